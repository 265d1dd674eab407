"""Each acquisition's signals come in the order in which things happened, whatever the threads do."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from driving import Driven
from group_scene import Keys
from hearing import Heard, hearing, until
from refusals import Refusals, refusing
from scene import Scene

from dev.faultproxy import after
from pynamodb_mutex import Mutex, MutexLostError, signals
from pynamodb_mutex._operations.renew import renew
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.testing import FakeClock


@pytest.fixture
def heard(scene: Scene) -> Iterator[Heard]:
    with hearing(scene.key) as heard:
        yield heard


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


class Delayed:
    """The threads that report losses start when a test lets them."""

    def __init__(self, refusals: Refusals) -> None:
        self._start = refusals.started
        self._kept: list[threading.Thread] = []
        refusals.started = self._keep

    def _keep(self, thread: threading.Thread) -> None:
        if thread.name.endswith("-lost") and not thread.name.endswith("-on-lost"):
            self._kept.append(thread)
        else:
            self._start(thread)

    def go(self) -> None:
        for thread in self._kept:
            self._start(thread)
            thread.join(60)


@pytest.fixture
def delayed() -> Iterator[Delayed]:
    with refusing() as refusals:
        yield Delayed(refusals)


def course(heard: Heard) -> list[str]:
    """The signals, without the renewals that may come at any time."""
    return [
        "won back" if event.told.get("won_back") else event.name
        for event in heard.events
        if event.name != "renewed" or event.told["won_back"]
    ]


# -- lost and won back -----------------------------------------------------------------------------


def test_win_back_is_reported_after_the_loss(
    scene: Scene, clock: FakeClock, delayed: Delayed, heard: Heard
) -> None:
    mutex = scene.mutex(auto_renew=False)
    assert mutex.acquire()
    clock.advance(31)
    assert mutex.lost
    mutex.renew()
    assert mutex.held
    delayed.go()
    until(lambda: len(course(heard)) == 3)
    mutex.release()
    until(lambda: len(course(heard)) == 4)
    assert course(heard) == ["acquired", "lost", "won back", "released"]


def test_each_lock_of_a_group_is_reported_in_order(
    scene: Scene, keys: Keys, clock: FakeClock, delayed: Delayed, heard: Heard
) -> None:
    group = keys.group(auto_renew=False)
    assert group.acquire()
    for _ in range(2):
        clock.advance(31)
        assert group.lost
        group.renew()
    delayed.go()
    group.release()
    until(lambda: len(course(heard)) == 3 * 6)
    for key in keys.keys:
        of_one = Heard(key)
        of_one.events = [event for event in heard.events if event.told["key"] == key]
        assert course(of_one) == ["acquired", *["lost", "won back"] * 2, "released"]


def test_end_is_reported_after_a_loss_whose_receiver_is_slow(
    scene: Scene, clock: FakeClock, heard: Heard
) -> None:
    come, go = threading.Event(), threading.Event()

    def slow(sender, **told) -> None:
        if told["key"] == scene.key:
            come.set()
            assert go.wait(60)

    mutex = scene.mutex(auto_renew=False)
    other = Mutex.for_key(f"{scene.key}.other", model=scene.here, auto_renew=False)
    with signals.lost.connected_to(slow):
        assert mutex.acquire()
        clock.advance(31)
        assert mutex.lost
        assert come.wait(60)
        # nobody waits for it but what happens to the same acquisition later
        with other:
            mutex.renew()
            mutex.release()
            assert not mutex.held
        assert heard.keys("released") == [other.key]
        go.set()
        until(lambda: scene.key in heard.keys("released"))
    heard.events = [event for event in heard.events if event.told["key"] == scene.key]
    assert course(heard) == ["acquired", "lost", "won back", "released"]


def test_win_back_by_a_renewal_that_was_overtaken_is_reported(
    scene: Scene, clock: FakeClock, heard: Heard
) -> None:
    mutex = scene.mutex(auto_renew=False)
    assert mutex.acquire()
    clock.advance(31)
    heard.wait("lost")
    held = mutex._latest.together
    earlier, later = Driven(renew(held)), Driven(renew(held))
    requests = [driven.step().request for driven in (earlier, later)]
    # the later one is applied first, and refuses the earlier one
    applied, refused = requests[1].send(), requests[0].send()
    later.step(applied)
    assert mutex.held
    earlier.step(refused)
    heard.wait("renewed")
    assert course(heard) == ["acquired", "lost", "won back"]
    mutex.release()


def test_interrupted_receiver_does_not_keep_back_what_comes_after_it(
    scene: Scene, clock: FakeClock, heard: Heard
) -> None:
    come, go = threading.Event(), threading.Event()
    raised = []

    def interrupted(sender, **told) -> None:
        if told["key"] == scene.key and told["won_back"]:
            come.set()
            assert go.wait(60)
            raise KeyboardInterrupt

    def renew() -> None:
        try:
            mutex.renew()
        except KeyboardInterrupt as error:
            raised.append(error)

    mutex = scene.mutex(auto_renew=False)
    assert mutex.acquire()
    clock.advance(31)
    assert mutex.lost
    heard.wait("lost")
    until(lambda: not mutex._latest.delivering)
    with signals.renewed.connected_to(interrupted):
        renewing = threading.Thread(target=renew)
        renewing.start()
        assert come.wait(60)
        mutex.release()
        go.set()
        renewing.join(60)
    assert raised
    # receivers are called in no order: whether this one heard of the win-back before the other raised is chance
    reported = [each for each in course(heard) if each != "won back"]
    assert reported == ["acquired", "lost", "released"]


# -- detached --------------------------------------------------------------------------------------


def test_detach_that_wins_the_lock_back_says_so(scene: Scene, heard: Heard) -> None:
    # as the renewal of `detach` is under way, the lease ends
    mutex = scene.mutex(lease=3, auto_renew=False)
    assert mutex.acquire()
    scene.proxy.next(after(lambda: until(lambda: mutex.lost)), op="renew")
    ticket = mutex.detach(lease=60)
    until(lambda: len(course(heard)) == 4)
    assert course(heard) == ["acquired", "lost", "won back", "handed_over"]
    Mutex.attach(ticket, model=scene.here).release()


def test_receiver_that_writes_under_the_lock_does_not_hang_detach(
    scene: Scene, heard: Heard
) -> None:
    raised = []

    def write(sender, **told) -> None:
        if told["key"] == scene.key:
            try:
                mutex.save_data("mine")
            except MutexLostError as error:
                raised.append(error)

    mutex = scene.mutex(lease=3, auto_renew=False)
    with signals.lost.connected_to(write), signals.renewed.connected_to(write):
        assert mutex.acquire()
        scene.proxy.next(after(lambda: until(lambda: mutex.lost)), op="renew")
        mutex.detach(lease=60)
        heard.wait("handed_over")
    assert course(heard) == ["acquired", "lost", "won back", "handed_over"]


# -- an answer that comes late ---------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
def test_claim_whose_lease_ends_before_it_is_handed_out_is_not_reported_as_lost(
    scene: Scene, keys: Keys, clock: FakeClock, heard: Heard, several: bool
) -> None:
    calls: list[object] = []
    make = keys.group if several else scene.mutex
    lock = make(auto_renew=False, on_lost=calls.append)
    assert not lock.locked()
    scene.proxy.next(
        after(lambda: clock.advance(31)), op="TransactWriteItems" if several else "acquire"
    )
    assert lock.acquire(blocking=False)
    assert lock.held
    assert lock.loss is None
    lock.release()
    until(lambda: "released" in course(heard))
    assert set(course(heard)) == {"acquired", "released"}
    assert calls == []
    assert not [key for _, key in current_process()._holders if key.startswith(scene.key)]
