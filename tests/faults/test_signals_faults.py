"""Signals when requests fail, locks are lost, and receivers misbehave."""

import functools
import os
from contextlib import ExitStack

import pytest
from driving import send_renewal
from hearing import OnLost, Slow, hearing, until
from pynamodb.exceptions import PynamoDBException, UpdateError
from scene import held
from stores import store_for

from dev.faultproxy import after, apply_then_500, deny, drop_answer, server_error
from pynamodb_mutex import LockItem, Mutex, MutexLostError, signals
from pynamodb_mutex._operations.events import LockEvent
from pynamodb_mutex._protocol.claim import Claim
from pynamodb_mutex._runtime import notifications
from pynamodb_mutex._runtime.process import current_process, forget_everything


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
@pytest.mark.parametrize("fault", [deny, drop_answer])
def test_requests_that_do_not_get_through_show_why(scene, keys, heard, several, fault):
    lock = keys.group(timeout=0) if several else scene.mutex(timeout=0)
    for told, call in (("not_acquired", lock.acquire), ("released", lock.release)):
        if told == "released":
            scene.proxy.clear()
            held(lock)
            heard.events.clear()
        scene.proxy.always(fault())
        with pytest.raises(PynamoDBException) as raised:
            call()
        assert heard.names == [told] * (3 if several else 1)
        assert heard.keys(told) == (keys.keys if several else [scene.key])
        assert all(fields["error"] is raised.value for fields in heard.of(told))
        if (told, fault) == ("not_acquired", deny):
            assert {fields["attempts"] for fields in heard.of(told)} == {1}


def test_renewals_that_fail_are_reported_and_then_the_one_that_succeeds(scene, heard, clock):
    scene.proxy.always(server_error(), op="renew")
    with scene.mutex() as mutex:
        clock.advance(11)
        event = heard.wait("renewal_failed")
        scene.proxy.clear()
        clock.advance(1)
        heard.wait("renewed")
        # also one that was asked for
        scene.proxy.next(deny(), op="renew")
        with pytest.raises(UpdateError) as raised:
            mutex.renew()
        until(lambda: heard.of("renewal_failed")[-1]["error"] is raised.value)
    assert event.thread.name == "pynamodb-mutex-notifier"
    assert event.told["token"] == mutex.token
    assert isinstance(event.told["error"], UpdateError)
    assert event.told["expires_at"] < heard.of("renewed")[0]["expires_at"]


def test_renewal_that_comes_too_late_is_not_reported(scene, heard, clock):
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


# -- receivers -------------------------------------------------------------------------------------


def test_what_a_receiver_raises_hurts_neither_the_lock_nor_others_nor_our_threads(
    scene, heard, caplog
):
    def failures():
        return [r for r in caplog.records if "a receiver of the signal" in r.getMessage()]

    # that would end a thread of the library's
    ends, fails = Failing(scene.key, SystemExit), Failing(scene.key, ValueError)
    failing = {"acquired": fails, "renewed": ends, "lost": ends, "released": fails}
    with ExitStack() as stack:
        for name, receiver in failing.items():
            stack.enter_context(getattr(signals, name).connected_to(receiver))
        second = stack.enter_context(hearing(scene.key))
        with scene.mutex() as mutex:
            for count in (1, 2):
                mutex.renew()
                second.wait("renewed", count)
        with pytest.raises(MutexLostError), mutex:
            scene.force()
        second.wait("lost")
        heard.wait("lost")
        # each is logged after it was raised, the last one on a thread of its own
        until(lambda: len(failures()) == 6)
        assert (ends.count, fails.count) == (3, 3)
    assert heard.names == second.names
    for name in failing:
        assert any(name in record.getMessage() for record in failures()), name
    assert {record.lock_key for record in failures()} == {scene.key}


def test_signal_that_cannot_be_sent_hurts_nothing(scene, heard, monkeypatch, caplog):
    async def receiver(sender, **fields):
        pass

    def changed(_):
        raise RuntimeError("changed during iteration")

    mutex = scene.mutex()
    with signals.acquired.connected_to(receiver, scene.here), mutex:
        pass
    assert "a coroutine function cannot receive signals" in caplog.text
    heard.events.clear()
    with signals.acquired.muted(), mutex:
        pass
    # blinker itself fails
    monkeypatch.setattr(signals.acquired, "receivers_for", changed)
    with mutex:
        pass
    assert "acquired of" in caplog.text
    assert heard.names == ["released"] * 2


def test_interrupted_receiver_leaves_no_lock_behind(scene, keys):
    failing = Failing(scene.key, KeyboardInterrupt)
    mutex, group = scene.mutex(), keys.group()
    for lock in (mutex, group):
        with signals.acquired.connected_to(failing), pytest.raises(KeyboardInterrupt):
            lock.acquire()
        assert not lock.held
        assert not lock.locked()
    assert failing.count == 2


def test_slow_receiver_delays_neither_renewals_nor_the_report_of_a_loss(scene, heard, clock):
    slow, on_lost = Slow(scene.key), OnLost()
    with signals.renewed.connected_to(slow), signals.lost.connected_to(slow):
        mutex = held(scene.mutex(on_lost=on_lost))
        other = held(Mutex.for_key(f"{scene.key}.other", model=scene.here))
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
        # nor that of another
        scene.there.force_release(other.key)
        with pytest.raises(MutexLostError):
            other.renew()
        until(lambda: other.key in heard.keys("lost"))
        slow.go.set()


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
