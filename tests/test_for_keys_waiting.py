"""Who waits for several keys: what it sends, who wakes it, and who comes first."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest
from group_scene import TRANSACT, Keys, kinds
from proxy import deny
from pynamodb.exceptions import GetError

from pynamodb_mutex import Mutex
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._process import current_process
from pynamodb_mutex._waiting import AT_ONCE, Alarm, LocalQueue, Steps
from pynamodb_mutex.groups import MutexGroup
from pynamodb_mutex.testing import FakeClock

pytest_plugins = ["scene_fixtures"]


def in_line(steps: Steps[Any]) -> Steps[Any]:
    """Do the first of the steps of an acquisition, in which nothing is sent."""
    assert next(steps) == AT_ONCE
    return steps


def queues(group: MutexGroup) -> list[LocalQueue]:
    process = current_process()
    return [process.queue(process.store(m._terms.model), m.key) for m in group.members]


def test_a_poll_is_one_request_for_what_stands_in_the_way(keys: Keys) -> None:
    others = [keys.taken(0), keys.taken(2)]
    assert not keys.group(poll=(0.1, 0.2)).acquire(timeout=3)
    assert set(kinds(keys.scene.proxy)[1:]) == {"BatchGetItem"}
    (tables,) = {len(seen.body["RequestItems"]) for seen in keys.scene.proxy.of("BatchGetItem")}
    assert tables == 1
    (read,) = keys.scene.proxy.of("BatchGetItem")[0].body["RequestItems"].values()
    assert read["ConsistentRead"] is False
    assert len(read["Keys"]) == 2
    for other in others:
        other.release()
    assert keys.group().acquire(blocking=False)


def test_a_release_in_the_process_wakes_who_waits(keys: Keys) -> None:
    holder = keys.group(1, 2)
    assert holder.acquire()
    waiting = keys.group(poll=(60, 60), timeout=100)
    thread = threading.Thread(target=waiting.acquire)
    thread.start()
    keys.scene.proxy.wait(2, TRANSACT)
    while not queues(waiting)[2].watchers:
        time.sleep(0.01)
    holder.release()
    thread.join(30)
    assert not thread.is_alive()
    assert waiting.held
    assert not any(queue.watchers for queue in queues(waiting))
    waiting.release()


@pytest.mark.parametrize("leaves", ["by its end", "by an error", "closed"])
def test_who_leaves_is_not_woken_any_more_but_the_next(keys: Keys, leaves: str) -> None:
    other = keys.taken(0)
    group, alarms = keys.group(), [Alarm(), Alarm()]
    with FakeClock() as clock:
        first, second = (in_line(group._acquiring(True, 10, alarm)) for alarm in alarms)
        next(first)
        next(second)
        assert [list(queue.watchers) for queue in queues(group)] == [alarms] * 3
        if leaves == "closed":
            first.close()
        elif leaves == "by an error":
            keys.scene.proxy.always(deny())
            with pytest.raises(GetError):
                next(first)
        else:
            clock.advance(11)
            with pytest.raises(StopIteration):
                next(first)
        assert [list(queue.watchers) for queue in queues(group)] == [alarms[1:]] * 3
        assert [alarm._rung for alarm in alarms] == [False, True]
        second.close()
    assert not any(queue.watchers for queue in queues(group))
    other.release()


def test_a_newcomer_lets_those_who_wait_go_first(keys: Keys) -> None:
    other = keys.taken(0)
    older = in_line(keys.group()._acquiring(True, 20, Alarm()))
    next(older)
    other.release()
    keys.scene.proxy.start_anew()
    newcomer = in_line(keys.group(0, poll=(1, 1))._acquiring(True, 20, Alarm()))
    assert next(newcomer) > local_clock().now() + 0.5
    assert kinds(keys.scene.proxy) == []
    # who does not wait is not asked to
    assert keys.group(0).acquire(blocking=False)
    older.close()
    newcomer.close()


def test_a_lock_that_changes_hands_is_looked_at_often(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    other = keys.taken(1)
    steps = in_line(keys.group(poll=(1, 100))._acquiring(True, 1000, Alarm()))

    def wait() -> float:
        return next(steps) - local_clock().now()

    assert [round(wait() / 3) for _ in range(2)] == [1, 3]
    other.release()
    again = keys.taken(1)
    assert wait() <= 3
    assert 3 < wait() <= 9
    again.release()
    steps.close()


# -- contention ------------------------------------------------------------------------------------


class Section:
    """What nobody may be in together with another who holds one of the same keys."""

    def __init__(self, keys: list[str]) -> None:
        self.inside: dict[str, list[int]] = {key: [] for key in keys}
        self.done = 0
        self.errors: list[BaseException] = []

    def work(self, lock: MutexGroup | Mutex, *keys: str) -> None:
        try:
            for _ in range(5):
                with lock:
                    for key in keys:
                        self.inside[key].append(1)
                    time.sleep(0.005)
                    assert all(len(self.inside[key]) == 1 for key in keys)
                    for key in keys:
                        self.inside[key].pop()
                self.done += 1
        except BaseException as error:
            self.errors.append(error)


def test_groups_and_single_locks_exclude_each_other(keys: Keys) -> None:
    section = Section(keys.keys)
    options = {"lease": 20, "timeout": 100, "poll": (0.01, 0.05)}
    groups = [keys.group(*places, **options) for places in ((0, 1), (1, 2), (2, 0))]
    work = [(group, *group.keys) for group in groups]
    work += [(other, other.key) for other in (keys.other(place, **options) for place in (0, 1))]
    threads = [threading.Thread(target=section.work, args=args) for args in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert section.errors == []
    assert section.done == 25
