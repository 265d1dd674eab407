"""Locks taken together of which one is lost or released by itself: what becomes of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from driving import scheduled
from group_scene import Keys
from hearing import hearing, until
from row_scene import Rows
from scene import Scene

from pynamodb_mutex import Loss, Mutex, MutexLostError
from pynamodb_mutex._operations.held import Held
from pynamodb_mutex._operations.release import release
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.testing import FakeClock


class Losses:
    """The mutexes with which `on_lost` was called."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.came = threading.Event()

    def __call__(self, mutex) -> None:
        self.keys.append(mutex.key)
        self.came.set()


@pytest.fixture
def calls(monkeypatch) -> Callable[[object], int]:
    """How often the renewal loop handled each that is scheduled."""
    count: dict[int, int] = {}
    handle = Held.is_to_be_renewed

    def counting(self, *args):
        count[id(self)] = count.get(id(self), 0) + 1
        return handle(self, *args)

    monkeypatch.setattr(Held, "is_to_be_renewed", counting)
    return lambda held: count.get(id(getattr(held, "together", held)), 0)


lost_members = pytest.mark.parametrize("lose", [Keys.force, Keys.forced_and_taken])
"""How one of the locks is lost without this process knowing: the second as after a pause."""


@lost_members
def test_loss_found_by_the_release_of_one_member_is_the_loss_of_all(
    keys: Keys, lose, calls
) -> None:
    on_lost = Losses()
    with FakeClock() as clock:
        group = keys.group(lease=30, on_lost=on_lost)
        assert group.acquire()
        lose(keys, 0)
        with pytest.raises(MutexLostError):
            group.members[0].release()
        # else the others would be neither renewed nor lost, and due again and again
        assert [mutex.lost for mutex in group.members] == [True] * 3
        assert on_lost.came.wait(60)
        held = group._latest
        assert held not in scheduled()
        clock.advance(100)
        assert calls(held) == 0
        assert len({mutex.loss for mutex in group.members}) == 1
        with pytest.raises(MutexLostError):
            group.release()
    assert len(on_lost.keys) == 1
    assert keys.free()[1:] == [True, True]


@lost_members
def test_loss_found_by_the_release_of_one_member_is_reported_of_each(keys: Keys, lose) -> None:
    with hearing(keys.scene.key) as heard:
        group = keys.group(auto_renew=False)
        assert group.acquire()
        lose(keys, 1)
        with pytest.raises(MutexLostError):
            group.members[1].release()
        heard.wait("lost", 3)
        assert {told["loss"] for told in heard.of("lost")} == {group.loss}
        assert group.loss in {Loss.FORCED, Loss.TAKEN}
        with pytest.raises(MutexLostError):
            group.release()
        assert heard.keys("lost") == keys.keys
        assert "released" not in [
            event.name for event in heard.events if event.sender is keys.scene.here
        ]


def test_others_are_renewed_after_one_member_was_released(keys: Keys, calls) -> None:
    proxy = keys.scene.proxy
    with FakeClock() as clock:
        group = keys.group(lease=30)
        assert group.acquire()
        group.members[0].release()
        other = keys.taken(0, lease=600)
        for count in (1, 2, 3):
            before = calls(group._latest)
            clock.advance(10.5)
            proxy.wait(1 + count, "TransactWriteItems")
            until(lambda: not group._latest.is_unanswered)
            # once for the renewal, and perhaps once more for what its answer planned
            assert calls(group._latest) - before <= 3
        assert not group.lost
        assert group.members[1].held
        assert group.members[2].held
        group.release()
    other.release()


def test_loss_found_by_the_release_of_one_row_is_the_loss_of_all(rows: Rows, calls) -> None:
    with FakeClock() as clock:
        locks = rows.locks(lease=30)
        assert locks.acquire()
        held = locks._latest
        first, *others = held.claims
        rows.force(0)
        with pytest.raises(MutexLostError):
            run(current_process(), release(first))
        assert all(claim.loss is Loss.FORCED for claim in others)
        clock.advance(100)
        assert held not in scheduled()
        assert calls(held) == 0
        with pytest.raises(MutexLostError):
            locks.release()
    assert rows.free() == [True] * 3


def detach(scene: Scene, mutex: Mutex) -> None:
    mutex.detach()


def find_it_lost(scene: Scene, mutex: Mutex) -> None:
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.release()


def find_it_taken(scene: Scene, mutex: Mutex) -> None:
    scene.forced_and_taken()
    with pytest.raises(MutexLostError):
        mutex.renew()


@pytest.mark.parametrize(
    "end", [detach, find_it_lost, find_it_taken, lambda _, mutex: mutex.release()]
)
def test_lock_that_ended_is_not_called_again(scene: Scene, calls, end) -> None:
    with FakeClock() as clock:
        mutex = scene.mutex(lease=30)
        assert mutex.acquire()
        end(scene, mutex)
        assert mutex._latest.together not in scheduled()
        clock.advance(100)
        assert calls(mutex._latest) == 0


def test_lease_that_ends_after_one_member_was_released_is_the_loss_of_the_others(
    keys: Keys,
) -> None:
    on_lost = Losses()
    with FakeClock() as clock:
        group = keys.group(lease=30, auto_renew=False, on_lost=on_lost)
        assert group.acquire()
        group.members[1].release()
        clock.advance(31)
        assert on_lost.came.wait(60)
        assert [mutex.lost for mutex in group.members] == [True, False, True]
        assert group._latest not in scheduled()
        with pytest.raises(MutexLostError):
            group.release()
