"""Signals when requests fail, locks are lost, and receivers misbehave."""

import functools
import os
import threading
import time
from contextlib import ExitStack

import pytest
from driving import send_renewal
from hearing import OnLost, hearing, until
from pynamodb.exceptions import PynamoDBException, UpdateError
from scene import held, losses
from stores import store_for
from worker import forked

from dev.faultproxy import after, apply_then_500, deny, drop_answer, drop_request, server_error
from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError, MutexNotHeldError, signals
from pynamodb_mutex._operations.events import LockEvent
from pynamodb_mutex._protocol.claim import Claim
from pynamodb_mutex._runtime import notifications
from pynamodb_mutex._runtime.process import current_process, forget_everything
from pynamodb_mutex.testing import FakeClock


@pytest.fixture
def heard(scene):
    with hearing(scene.key) as heard:
        yield heard


class Slow:
    """A receiver that returns, for one key, only when it may."""

    def __init__(self, key):
        self.key, self.come, self.go = key, threading.Event(), threading.Event()

    def __call__(self, sender, **fields):
        if fields["key"] == self.key:
            self.come.set()
            assert self.go.wait(60)


class Failing:
    """A receiver that raises, for one key and those that begin with it."""

    def __init__(self, key, error):
        self.key, self.error, self.count = key, error, 0

    def __call__(self, sender, **fields):
        if self.key in fields["key"]:
            self.count += 1
            raise self.error("a receiver's own")


# -- requests that fail ----------------------------------------------------------------------------


def test_lost_answers_are_counted_as_attempts(scene, heard):
    scene.proxy.next(drop_answer(), apply_then_500(), op="acquire")
    mutex = held(scene.mutex())
    assert heard.the("acquired")["attempts"] == 3
    assert heard.the("acquired")["token"] == scene.row.token
    scene.proxy.next(drop_answer(), op="release")
    mutex.release()
    assert heard.the("released")["error"] is None
    assert heard.names == ["acquired", "released"]


@pytest.mark.parametrize("several", [False, True])
def test_what_cannot_be_acquired_shows_why(scene, keys, heard, several):
    scene.proxy.next(deny())
    lock = keys.group() if several else scene.mutex()
    with pytest.raises(PynamoDBException) as raised:
        lock.acquire()
    assert set(heard.names) == {"not_acquired"}
    assert heard.keys("not_acquired") == (keys.keys if several else [scene.key])
    for fields in heard.of("not_acquired"):
        assert (fields["error"], fields["attempts"]) == (raised.value, 1)


@pytest.mark.parametrize("several", [False, True])
def test_release_that_does_not_get_through_is_reported_with_its_error(scene, keys, heard, several):
    lock = held(keys.group() if several else scene.mutex(lease=4))
    scene.proxy.always(deny() if several else drop_request())
    with pytest.raises(PynamoDBException) as raised:
        lock.release()
    assert heard.keys("released") == (keys.keys if several else [scene.key])
    assert all(fields["error"] is raised.value for fields in heard.of("released"))
    assert "lost" not in heard.names


def test_renewals_that_fail_are_reported_and_then_the_one_that_succeeds(scene, heard):
    scene.proxy.always(server_error(), op="renew")
    with FakeClock() as clock, scene.mutex() as mutex:
        clock.advance(11)
        event = heard.wait("renewal_failed")
        scene.proxy.clear()
        clock.advance(1)
        heard.wait("renewed")
    assert event.thread.name == "pynamodb-mutex-notifier"
    assert event.told["token"] == mutex.token
    assert isinstance(event.told["error"], UpdateError)
    assert event.told["expires_at"] < heard.of("renewed")[0]["expires_at"]


def test_renewal_asked_for_that_fails_is_reported_too(scene, heard):
    with scene.mutex() as mutex:
        scene.proxy.next(deny(), op="renew")
        with pytest.raises(UpdateError) as raised:
            mutex.renew()
        assert heard.the("renewal_failed")["error"] is raised.value


def test_renewal_that_comes_too_late_is_not_reported(scene, heard):
    with FakeClock() as clock:
        mutex = held(scene.mutex(auto_renew=False))
        scene.proxy.next(after(lambda: clock.advance(31)), op="renew")
        send_renewal(mutex._latest)
        assert scene.applied("renew") == [True]
        heard.wait("lost")
        mutex.renew()
    # the one that was waited for
    assert heard.the("renewed")["won_back"]


def test_batch_that_fails_is_reported_of_each(scene, heard):
    mutexes = [Mutex.for_key(f"{scene.key}.{n}", model=scene.here, lease=120) for n in range(3)]
    for mutex in mutexes:
        assert mutex.acquire()
    store_for(scene.here).batches = True
    scene.proxy.next(drop_answer(), op="BatchExecuteStatement")
    first, *others = [mutex._latest for mutex in mutexes]
    send_renewal(first, *others)
    heard.wait("renewal_failed", 3)
    assert heard.keys("renewal_failed") == [mutex.key for mutex in mutexes]


# -- losses ----------------------------------------------------------------------------------------


@losses
@pytest.mark.parametrize("found_by", ["renew", "release"])
def test_loss_is_reported_once(scene, heard, found_by, lose_it, loss):
    mutex = held(scene.mutex(auto_renew=False))
    token = mutex.token
    lose_it(scene)
    for call in ["renew", "renew", "release"] if found_by == "renew" else ["release"]:
        with pytest.raises(MutexLostError):
            getattr(mutex, call)()
    told = heard.the("lost")
    event = heard.wait("lost")
    assert event.thread.name == "pynamodb-mutex-lost"
    assert event.sender is scene.here
    assert (told["loss"], told["token"]) == (loss, token)
    assert told["taker"] == ("other" if loss is Loss.TAKEN else None)
    assert [e.name for e in heard.events if e.sender is scene.here] == ["acquired", "lost"]


def test_release_that_is_refused_shows_no_loss_that_was_reported(scene, heard):
    mutex = held(scene.mutex(auto_renew=False))
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.renew()
    # it may have begun before that
    with current_process().monitor:
        mutex._latest.lost_at_release(Claim())
    heard.wait("lost")
    assert heard.names == ["acquired", "lost"]


def test_locks_that_were_not_handed_out_show_nothing(scene, heard):
    mutex = scene.mutex(timeout=0)
    scene.proxy.always(drop_answer(), op="acquire")
    with pytest.raises(UpdateError):
        mutex.acquire()
    assert heard.names == ["not_acquired"]


# -- receivers -------------------------------------------------------------------------------------


def test_what_a_receiver_raises_hurts_neither_the_lock_nor_the_others(scene, heard, caplog):
    def failures():
        return [r for r in caplog.records if "a receiver of the signal" in r.getMessage()]

    names = ("acquired", "renewed", "lost", "released")
    failing = Failing(scene.key, ValueError)
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(getattr(signals, name).connected_to(failing))
        second = stack.enter_context(hearing(scene.key))
        with scene.mutex() as mutex:
            mutex.renew()
            second.wait("renewed")
        with pytest.raises(MutexLostError), mutex:
            scene.force()
        second.wait("lost")
        heard.wait("lost")
        # each is logged after it was raised, the last one on a thread of its own
        until(lambda: len(failures()) == 5)
        assert failing.count == 5
    assert heard.names == second.names
    for name in names:
        assert any(name in record.getMessage() for record in failures()), name
    assert {record.lock_key for record in failures()} == {scene.key}


def test_receiver_cannot_end_a_thread_of_ours(scene, heard):
    failing = Failing(scene.key, SystemExit)
    with signals.renewed.connected_to(failing), signals.lost.connected_to(failing):
        mutex = held(scene.mutex())
        for count in (1, 2):
            mutex.renew()
            heard.wait("renewed", count)
        scene.force()
        with pytest.raises(MutexLostError):
            mutex.renew()
        heard.wait("lost")
        until(lambda: failing.count == 3)


def test_coroutine_function_is_refused(scene, caplog):
    async def receiver(sender, **fields):
        pass

    with signals.acquired.connected_to(receiver, scene.here), scene.mutex():
        pass
    assert "a coroutine function cannot receive signals" in caplog.text


def test_muted_signal_is_not_sent(scene, heard):
    with signals.acquired.muted(), scene.mutex():
        pass
    assert heard.names == ["released"]


def test_blinker_that_fails_itself_hurts_nothing(scene, heard, monkeypatch, caplog):
    def changed(_):
        raise RuntimeError("changed during iteration")

    monkeypatch.setattr(signals.acquired, "receivers_for", changed)
    with scene.mutex():
        pass
    assert "acquired of" in caplog.text
    assert heard.names == ["released"]


def test_interrupted_receiver_leaves_no_lock_behind(scene, keys):
    failing = Failing(scene.key, KeyboardInterrupt)
    mutex, group = scene.mutex(), keys.group()
    for lock in (mutex, group):
        with signals.acquired.connected_to(failing), pytest.raises(KeyboardInterrupt):
            lock.acquire()
        assert not lock.held
        assert not lock.locked()
    assert failing.count == 2


def test_slow_receiver_delays_neither_renewals_nor_the_report_of_a_loss(scene, heard):
    slow, on_lost = Slow(scene.key), OnLost()
    with FakeClock() as clock, signals.renewed.connected_to(slow):
        mutex = scene.mutex(on_lost=on_lost)
        other = Mutex.for_key(f"{scene.key}.other", model=scene.here)
        assert mutex.acquire()
        assert other.acquire()
        clock.advance(11)
        assert slow.come.wait(60)
        for _ in range(3):  # more than may be under way for one lock
            until(lambda: min(mutex.remaining, other.remaining) > 25)
            clock.advance(10.5)
        until(lambda: min(mutex.remaining, other.remaining) > 25)
        scene.force()
        clock.advance(10.5)
        on_lost.wait()
        heard.wait("lost")
        assert other.held
        slow.go.set()


def test_slow_receiver_of_losses_delays_no_other(scene, heard):
    slow = Slow(scene.key)
    mutex = scene.mutex()
    other = Mutex.for_key(f"{scene.key}.other", model=scene.here)
    with signals.lost.connected_to(slow):
        for each in (mutex, other):
            assert each.acquire()
            scene.there.force_release(each.key)
            with pytest.raises(MutexLostError):
                each.renew()
        until(lambda: any(fields["key"] == other.key for fields in heard.of("lost")))
        slow.go.set()


@pytest.mark.parametrize("how", ["renewed", "released", "lost"])
def test_nothing_is_reported_before_acquired_was(scene, heard, how):
    # else a receiver would remember for ever what ended before it began
    mutex, order, slow = scene.mutex(), [], Slow(scene.key)

    def first(sender, **fields):
        slow(sender, **fields)
        order.append("acquired")

    def second(sender, **fields):
        order.append(how)

    with (
        signals.acquired.connected_to(first, scene.here),
        getattr(signals, how).connected_to(second, scene.here),
    ):
        acquiring = threading.Thread(target=mutex.acquire)
        acquiring.start()
        assert slow.come.wait(60)
        # what it acquired is seen by other threads, and may end meanwhile
        calls = {"renewed": mutex.renew, "released": mutex.release, "lost": mutex.force_release}
        calls[how]()
        assert mutex.lost == (how == "lost")
        assert order == []
        slow.go.set()
        acquiring.join(60)
        heard.wait(how)
        until(lambda: len(order) == 2)
    assert order == ["acquired", how]


def test_renewals_are_dropped_not_piled_up_when_a_receiver_is_slow(
    scene, heard, monkeypatch, caplog
):
    monkeypatch.setattr(notifications, "MOST_UNDELIVERED", 2)
    slow = Slow(scene.key)
    with scene.mutex() as mutex, signals.renewed.connected_to(slow):
        mutex.renew()
        assert slow.come.wait(60)
        for _ in range(4):
            mutex.renew()
        assert caplog.text.count("a receiver is too slow: renewed") == 2
        slow.go.set()
        heard.wait("renewed", 3)


def test_thread_that_shows_ends_when_there_is_nothing_to_show(scene, heard, monkeypatch):
    monkeypatch.setattr(notifications, "LINGER", 0.05)
    process = current_process()
    notifier = notifications.Notifier(process.threads)
    with scene.mutex() as mutex:
        for count in (1, 2):
            fields = {"expires_at": 1.0, "won_back": False}
            event = LockEvent("renewed", mutex._latest.contender, mutex._latest, fields)
            notifier.put(process, event)
            heard.wait("renewed", count)
            until(lambda: not notifier._runs)


# -- forks -----------------------------------------------------------------------------------------


@pytest.mark.real("embedded")
def test_forked_child_emits_nothing_of_its_parents_locks(table):
    with hearing("a") as heard:
        mutex = held(Mutex.for_key("a"))
        before = len(heard.names)

        def child():
            with pytest.raises(MutexNotHeldError):
                mutex.release()
            assert not mutex.lost
            time.sleep(0.2)
            return len(heard.names)

        assert forked(child) == before
        mutex.release()


@pytest.mark.real("embedded")
def test_receiver_that_forks_ends_the_emitting_in_the_child(table):
    calls = []
    me = os.getpid()

    def fork(sender, **_):
        if os.getpid() != me:
            os._exit(9)  # emitted in a child
        child = os.fork()
        if child:
            calls.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    fork_too = functools.partial(fork)
    with signals.acquired.connected_to(fork), signals.acquired.connected_to(fork_too):
        Mutex.for_key("a").acquire()
        if os.getpid() != me:
            os._exit(0)
    assert calls == [0, 0]


def test_engine_that_is_left_ends_the_emitting(table):
    calls = []

    def leave(sender, **_):
        calls.append(1)
        forget_everything()

    leave_too = functools.partial(leave)
    with signals.acquired.connected_to(leave), signals.acquired.connected_to(leave_too):
        Mutex.for_key("a").acquire()
    assert calls == [1]
    assert LockItem.force_release("a")
