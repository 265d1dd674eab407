"""Signals when requests fail, locks are lost, and receivers misbehave."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from driving import send_renewal
from group_scene import Keys
from hearing import Heard, hearing, until
from pynamodb.exceptions import PynamoDBException, UpdateError
from scene import Scene, losses
from stores import store_for

from dev.faultproxy import after, apply_then_500, deny, drop_answer, drop_request, server_error
from pynamodb_mutex import (
    LockItem,
    Loss,
    Mutex,
    MutexLostError,
    MutexNotHeldError,
    signals,
)
from pynamodb_mutex._operations.events import LockEvent
from pynamodb_mutex._protocol.claim import Claim
from pynamodb_mutex._runtime import notifications
from pynamodb_mutex._runtime.process import current_process, forget_everything
from pynamodb_mutex.testing import FakeClock


@pytest.fixture
def heard(scene: Scene) -> Iterator[Heard]:
    with hearing(scene.key) as heard:
        yield heard


# -- requests that fail ----------------------------------------------------------------------------


def test_lost_answers_are_counted_as_attempts(scene: Scene, heard: Heard) -> None:
    scene.proxy.next(drop_answer(), apply_then_500(), op="acquire")
    mutex = scene.mutex()
    assert mutex.acquire()
    assert heard.the("acquired")["attempts"] == 3
    assert heard.the("acquired")["token"] == scene.row.token
    scene.proxy.next(drop_answer(), op="release")
    mutex.release()
    assert heard.the("released")["error"] is None
    assert heard.names == ["acquired", "released"]


def test_what_cannot_be_acquired_shows_why(scene: Scene, heard: Heard) -> None:
    scene.proxy.next(deny(), op="acquire")
    with pytest.raises(UpdateError) as raised:
        scene.mutex().acquire()
    assert heard.names == ["not_acquired"]
    assert heard.the("not_acquired")["error"] is raised.value
    assert heard.the("not_acquired")["attempts"] == 1


def test_a_group_that_cannot_be_acquired_shows_why(scene: Scene, keys: Keys, heard: Heard) -> None:
    scene.proxy.next(deny(), op="TransactWriteItems")
    with pytest.raises(PynamoDBException) as raised:
        keys.group().acquire()
    assert {told["error"] for told in heard.of("not_acquired")} == {raised.value}
    assert heard.keys("not_acquired") == keys.keys


def test_a_release_that_does_not_get_through_is_reported_with_its_error(
    scene: Scene, heard: Heard
) -> None:
    mutex = scene.mutex(lease=4)
    assert mutex.acquire()
    scene.proxy.always(drop_request(), op="release")
    with pytest.raises(UpdateError) as raised:
        mutex.release()
    assert heard.the("released")["error"] is raised.value
    assert "lost" not in heard.names


def test_a_group_whose_release_does_not_get_through(scene: Scene, keys: Keys, heard: Heard) -> None:
    group = keys.group()
    assert group.acquire()
    scene.proxy.next(deny(), op="TransactWriteItems")
    with pytest.raises(PynamoDBException) as raised:
        group.release()
    assert [told["error"] for told in heard.of("released")] == [raised.value] * 3


def test_renewals_that_fail_are_reported_and_then_the_one_that_succeeds(
    scene: Scene, heard: Heard
) -> None:
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


def test_a_renewal_asked_for_that_fails_is_reported_too(scene: Scene, heard: Heard) -> None:
    with scene.mutex() as mutex:
        scene.proxy.next(deny(), op="renew")
        with pytest.raises(UpdateError) as raised:
            mutex.renew()
        assert heard.the("renewal_failed")["error"] is raised.value


def test_a_renewal_that_comes_too_late_is_not_reported(scene: Scene, heard: Heard) -> None:
    with FakeClock() as clock:
        mutex = scene.mutex(auto_renew=False)
        assert mutex.acquire()
        scene.proxy.next(after(lambda: clock.advance(31)), op="renew")
        send_renewal(mutex._latest)
        assert scene.applied("renew") == [True]
        heard.wait("lost")
        mutex.renew()
    # the one that was waited for
    assert heard.the("renewed")["won_back"]


def test_a_batch_that_fails_is_reported_of_each(scene: Scene, heard: Heard) -> None:
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
def test_a_loss_is_reported_once(scene: Scene, heard: Heard, lose_it, loss: Loss) -> None:
    mutex = scene.mutex(auto_renew=False)
    assert mutex.acquire()
    token = mutex.token
    lose_it(scene)
    for _ in range(2):
        with pytest.raises(MutexLostError):
            mutex.renew()
    with pytest.raises(MutexLostError):
        mutex.release()
    event = heard.wait("lost")
    assert event.thread.name == "pynamodb-mutex-lost"
    assert event.sender is scene.here
    assert event.told["loss"] is loss
    assert event.told["taker"] == ("other" if loss is Loss.TAKEN else None)
    assert event.told["token"] == token
    assert len(heard.of("lost")) == 1
    assert "released" not in [e.name for e in heard.events if e.sender is scene.here]


@losses
def test_a_loss_that_the_release_finds_is_reported_once(
    scene: Scene, heard: Heard, lose_it, loss: Loss
) -> None:
    mutex = scene.mutex(auto_renew=False)
    assert mutex.acquire()
    lose_it(scene)
    with pytest.raises(MutexLostError):
        mutex.release()
    assert heard.the("lost")["loss"] is loss
    assert [e.name for e in heard.events if e.sender is scene.here] == ["acquired", "lost"]


def test_a_release_that_is_refused_shows_no_loss_that_was_reported(
    scene: Scene, heard: Heard
) -> None:
    mutex = scene.mutex(auto_renew=False)
    assert mutex.acquire()
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.renew()
    # it may have begun before that
    with current_process().monitor:
        mutex._latest.lost_at_release(Claim())
    heard.wait("lost")
    assert heard.names == ["acquired", "lost"]


def test_a_force_in_the_same_process_is_reported(scene: Scene, heard: Heard) -> None:
    mutex = scene.mutex()
    assert mutex.acquire()
    assert scene.here.force_release(scene.key)
    assert heard.the("lost")["loss"] is Loss.FORCED


def test_locks_that_were_not_handed_out_show_nothing(scene: Scene, heard: Heard) -> None:
    mutex = scene.mutex(timeout=0)
    scene.proxy.always(drop_answer(), op="acquire")
    with pytest.raises(UpdateError):
        mutex.acquire()
    assert heard.names == ["not_acquired"]


# -- receivers -------------------------------------------------------------------------------------


class Failing:
    """Raises in each signal."""

    def __init__(self, scene: Scene, error: type[BaseException]) -> None:
        self.scene = scene
        self.error = error
        self.count = 0

    def __call__(self, sender, **told) -> None:
        if self.scene.key in told["key"]:
            self.count += 1
            raise self.error("a receiver's own")


def test_what_a_receiver_raises_hurts_neither_the_lock_nor_the_others(
    scene: Scene, heard: Heard, caplog
) -> None:
    failing = Failing(scene, ValueError)
    with (
        signals.acquired.connected_to(failing),
        signals.renewed.connected_to(failing),
        signals.lost.connected_to(failing),
        signals.released.connected_to(failing),
        hearing(scene.key) as second,
    ):
        with scene.mutex() as mutex:
            mutex.renew()
            second.wait("renewed")
        with pytest.raises(MutexLostError), mutex:
            scene.force()
        second.wait("lost")
        heard.wait("lost")
        # each is logged after it was raised, the last one on a thread of its own
        until(
            lambda: sum("a receiver of the signal" in r.getMessage() for r in caplog.records) == 5
        )
        assert failing.count == 5
    assert heard.names == second.names
    messages = [r.getMessage() for r in caplog.records if "a receiver of the signal" in r.message]
    for name in ("acquired", "renewed", "released", "lost"):
        assert any(name in message for message in messages), name
    assert all(
        r.lock_key == scene.key for r in caplog.records if "a receiver of the signal" in r.message
    )


def test_a_receiver_cannot_end_a_thread_of_ours(scene: Scene, heard: Heard) -> None:
    failing = Failing(scene, SystemExit)
    with signals.renewed.connected_to(failing), signals.lost.connected_to(failing):
        mutex = scene.mutex()
        assert mutex.acquire()
        for count in (1, 2):
            mutex.renew()
            heard.wait("renewed", count)
        scene.force()
        with pytest.raises(MutexLostError):
            mutex.renew()
        heard.wait("lost")
        until(lambda: failing.count == 3)


def test_a_coroutine_function_is_refused(scene: Scene, caplog) -> None:
    async def receiver(sender, **told) -> None:
        pass

    with signals.acquired.connected_to(receiver, scene.here), scene.mutex():
        pass
    assert "a coroutine function cannot receive signals" in caplog.text


def test_a_muted_signal_is_not_sent(scene: Scene, heard: Heard) -> None:
    with signals.acquired.muted(), scene.mutex():
        pass
    assert heard.names == ["released"]


def test_blinker_that_fails_itself_hurts_nothing(scene: Scene, heard: Heard, monkeypatch, caplog):
    def changed(_):
        raise RuntimeError("changed during iteration")

    monkeypatch.setattr(signals.acquired, "receivers_for", changed)
    with scene.mutex():
        pass
    assert "acquired of" in caplog.text
    assert heard.names == ["released"]


def test_an_interrupted_receiver_leaves_no_lock_behind(scene: Scene, keys: Keys) -> None:
    failing = Failing(scene, KeyboardInterrupt)
    mutex, group = scene.mutex(), keys.group()
    for lock in (mutex, group):
        with signals.acquired.connected_to(failing), pytest.raises(KeyboardInterrupt):
            lock.acquire()
        assert not lock.held
        assert not lock.locked()
    assert failing.count == 2


def test_a_slow_receiver_delays_neither_renewals_nor_the_news_of_a_loss(
    scene: Scene, heard: Heard
) -> None:
    come, go = threading.Event(), threading.Event()
    told = threading.Event()

    def slow(sender, **fields) -> None:
        if fields["key"] == scene.key:
            come.set()
            assert go.wait(60)

    with FakeClock() as clock, signals.renewed.connected_to(slow):
        mutex = scene.mutex(on_lost=lambda _: told.set())
        other = Mutex.for_key(f"{scene.key}.other", model=scene.here)
        assert mutex.acquire()
        assert other.acquire()
        clock.advance(11)
        assert come.wait(60)
        for _ in range(3):  # more than may be under way for one lock
            until(lambda: min(mutex.remaining, other.remaining) > 25)
            clock.advance(10.5)
        until(lambda: min(mutex.remaining, other.remaining) > 25)
        scene.force()
        clock.advance(10.5)
        assert told.wait(60)
        heard.wait("lost")
        assert other.held
        go.set()
    other.release()


def test_a_slow_receiver_of_losses_delays_no_other(scene: Scene, heard: Heard) -> None:
    go = threading.Event()

    def slow(sender, **fields) -> None:
        if fields["key"] == scene.key:
            assert go.wait(60)

    mutex = scene.mutex()
    other = Mutex.for_key(f"{scene.key}.other", model=scene.here)
    with signals.lost.connected_to(slow):
        for each in (mutex, other):
            assert each.acquire()
            scene.there.force_release(each.key)
            with pytest.raises(MutexLostError):
                each.renew()
        until(lambda: any(told["key"] == other.key for told in heard.of("lost")))
        go.set()


@pytest.mark.parametrize("how", ["renewed", "released", "lost"])
def test_nothing_is_reported_before_acquired_was(scene: Scene, heard: Heard, how: str) -> None:
    """Else a receiver would remember for ever what ended before it began."""
    mutex = scene.mutex()
    come, go = threading.Event(), threading.Event()

    def slow(sender, **fields) -> None:
        if fields["key"] == scene.key:
            come.set()
            assert go.wait(60)
            order.append("acquired")

    def note(sender, **fields) -> None:
        if fields["key"] == scene.key:
            order.append(how)

    order: list[str] = []
    with signals.acquired.connected_to(slow), getattr(signals, how).connected_to(note):
        acquiring = threading.Thread(target=mutex.acquire)
        acquiring.start()
        assert come.wait(60)
        # what it acquired is seen by other threads, and may end meanwhile
        if how == "renewed":
            mutex.renew()
        elif how == "released":
            mutex.release()
        else:
            assert scene.here.force_release(scene.key)
        assert mutex.lost == (how == "lost")
        assert order == []
        go.set()
        acquiring.join(60)
        heard.wait(how)
        until(lambda: len(order) == 2)
    assert order == ["acquired", how]


def test_renewals_that_nobody_takes_note_of_are_dropped_not_piled_up(
    scene: Scene, heard: Heard, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(notifications, "MOST_UNDELIVERED", 2)
    come, go = threading.Event(), threading.Event()

    def slow(sender, **fields) -> None:
        if fields["key"] == scene.key:
            come.set()
            assert go.wait(60)

    with scene.mutex() as mutex, signals.renewed.connected_to(slow):
        mutex.renew()
        assert come.wait(60)
        for _ in range(4):
            mutex.renew()
        assert caplog.text.count("a receiver is too slow: renewed") == 2
        go.set()
        heard.wait("renewed", 3)


def test_the_thread_that_shows_ends_when_there_is_nothing_to_show(
    scene: Scene, heard: Heard, monkeypatch
) -> None:
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
def test_a_forked_child_shows_nothing_of_its_parents_locks(table) -> None:
    told = []

    def receiver(sender, **_) -> None:
        told.append(1)

    names = ("acquired", "renewed", "released", "lost", "handed_over")
    for name in names:
        getattr(signals, name).connect(receiver)
    try:
        mutex = Mutex.for_key("a")
        assert mutex.acquire()
        before = len(told)
        child = os.fork()
        if child == 0:
            told.clear()
            with pytest.raises(MutexNotHeldError):
                mutex.release()
            assert not mutex.lost
            time.sleep(0.2)
            os._exit(len(told))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(told) >= before
        mutex.release()
    finally:
        for name in names:
            getattr(signals, name).disconnect(receiver)


@pytest.mark.real("embedded")
def test_a_receiver_that_forks_ends_the_telling_in_the_child(table) -> None:
    calls = []
    me = os.getpid()

    def fork(sender, **_) -> None:
        if os.getpid() != me:
            os._exit(9)  # told in a child
        child = os.fork()
        if child:
            calls.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def fork_too(sender, **told) -> None:
        fork(sender, **told)

    with signals.acquired.connected_to(fork), signals.acquired.connected_to(fork_too):
        Mutex.for_key("a").acquire()
        if os.getpid() != me:
            os._exit(0)
    assert calls == [0, 0]


def test_an_engine_that_is_left_ends_the_telling(table) -> None:
    calls = []

    def leave(sender, **_) -> None:
        calls.append(1)
        forget_everything()

    def leave_too(sender, **told) -> None:
        leave(sender, **told)

    with signals.acquired.connected_to(leave), signals.acquired.connected_to(leave_too):
        Mutex.for_key("a").acquire()
    assert calls == [1]
    assert LockItem.force_release("a")
