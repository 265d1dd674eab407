"""Who waits for several keys: what it sends, who wakes it, and who comes first."""

from __future__ import annotations

import threading
import time

import pytest
from driving import acquiring
from group_scene import TRANSACT, Keys, kinds
from pynamodb.exceptions import GetError
from stores import QueueFor

from dev.faultproxy import deny
from pynamodb_mutex import Mutex
from pynamodb_mutex._operations.local_queue import LocalQueue
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.groups import MutexGroup
from pynamodb_mutex.testing import FakeClock


def queues(group: MutexGroup) -> list[LocalQueue]:
    return [QueueFor(m._options.model, m.key) for m in group.members]


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
    thread.join(60)
    assert not thread.is_alive()
    assert waiting.held
    assert not any(queue.watchers for queue in queues(waiting))
    waiting.release()


@pytest.mark.parametrize("leaves", ["by its end", "by an error", "interrupted"])
def test_waiter_that_leaves_is_not_woken_any_more_but_the_next(keys: Keys, leaves: str) -> None:
    other = keys.taken(0)
    group = keys.group()
    with FakeClock() as clock:
        first, second = (acquiring(group, True, 10) for _ in range(2))
        wakeups = [driven.until_it_waits().wakeup for driven in (first, second)]
        assert [list(queue.watchers) for queue in queues(group)] == [wakeups] * 3
        if leaves == "interrupted":
            first.interrupt()
        elif leaves == "by an error":
            keys.scene.proxy.always(deny())
            first.step()
            with pytest.raises(GetError):
                first.until_it_waits()
        else:
            clock.advance(11)
            first.step()
            assert first.until_it_waits() is None
            assert first.result is None
        assert [list(queue.watchers) for queue in queues(group)] == [wakeups[1:]] * 3
        assert [wakeup.rung for wakeup in wakeups] == [False, True]
        second.interrupt()
    assert not any(queue.watchers for queue in queues(group))
    other.release()


def test_newcomer_lets_older_waiters_go_first(keys: Keys) -> None:
    other = keys.taken(0)
    older = acquiring(keys.group(), True, 20)
    older.until_it_waits()
    other.release()
    keys.scene.proxy.start_anew()
    newcomer = acquiring(keys.group(0, poll=(1, 1)), True, 20)
    assert newcomer.until_it_waits().until > local_clock().now() + 0.5
    assert kinds(keys.scene.proxy) == []
    # who does not wait is not asked to
    assert keys.group(0).acquire(blocking=False)
    older.interrupt()
    newcomer.interrupt()


def test_lock_that_changes_hands_is_polled_often(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_process(), "uniform", lambda _, most: most)
    other = keys.taken(1)
    waiter = acquiring(keys.group(poll=(1, 100)), True, 1000)

    def wait() -> float:
        if waiter.effect is not None:
            waiter.step()
        return waiter.until_it_waits().until - local_clock().now()

    assert [round(wait() / 3) for _ in range(2)] == [1, 3]
    other.release()
    again = keys.taken(1)
    assert wait() <= 3
    assert 3 < wait() <= 9
    again.release()
    waiter.interrupt()


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
