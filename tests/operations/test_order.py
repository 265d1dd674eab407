"""The order of arrival between processes: fair waiters stand in line in the row."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from hearing import until
from lock_items import Elsewhere, Wire
from pynamodb.exceptions import UpdateError

from dev.faultproxy import DYNAMODBS, Reply, answer_with, drop_answer, drop_request, late, stall
from pynamodb_mutex import (
    LockItem,
    Mutex,
    MutexAlreadyHeldError,
    MutexTimeoutError,
    Semaphore,
    synchronized,
)
from pynamodb_mutex._protocol.claim import MOST_WAITING
from pynamodb_mutex._protocol.waiting_line import LONGEST_POLL, PATIENCE, STEP, patience
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import held_elsewhere

SLACK = 2.5
"""Seconds after which the dead are passed, at most: server time is known to a second, and a poll comes 2 s late."""

DEAD = "6922f3e0deadbeef|dead"


def fair(key="a", **options):
    return Mutex.for_key(key, fair=True, **options)


def entries(key="a"):
    raw = LockItem._get_connection().get_item(key, consistent_read=True).get("Item", {})
    return [entry["S"] for entry in raw.get("waiting", {"L": []})["L"]]


def stand(*waiting, key="a"):
    """Let the entries of waiters stand in the row, whoever they are."""
    LockItem._get_connection().update_item(key, actions=[LockItem.waiting.set(list(waiting))])


@contextmanager
def waiter(name, pool, key="a", **options):
    """Let somebody wait in line, and check that it acquires the lock in the end."""
    mutex = fair(key, owner=name, **options)
    waits = pool.submit(mutex.acquire)
    until(lambda: mutex.position is not None)
    yield mutex, waits


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


# -- the order ----------------------------------------------------------------------------------


@pytest.mark.real("simulated", "embedded", "local")
def test_waiters_acquire_the_lock_in_the_order_in_which_they_joined(table, pool):
    order, mutexes, waits = [], [], []

    def section(mutex, name):
        with mutex:
            order.append((name, mutex.fencing_token))

    with fair(owner="first"):
        for name in "bcdef":
            mutexes.append(fair(owner=name, model=Elsewhere if name in "bd" else LockItem))
            waits.append(pool.submit(section, mutexes[-1], name))
            until(lambda: mutexes[-1].position == len(mutexes) - 1)
        assert table.get("a", consistent_read=True).waiters == [*"bcdef"]
    for wait in waits:
        wait.result()
    assert [name for name, _ in order] == [*"bcdef"]
    assert sorted(order, key=lambda each: each[1]) == order
    assert {mutex.position for mutex in mutexes} == {None}
    assert entries() == []


def test_uncontended_cycle_is_two_requests(table, monkeypatch):
    with fair():
        pass
    sent = Wire(monkeypatch).sent
    with fair():
        pass
    assert sent == ["UpdateItem", "UpdateItem"]


def test_first_in_line_of_the_same_process_needs_no_read_after_a_release(table, pool, monkeypatch):
    holder = fair()
    holder.acquire()
    with waiter("b", pool) as (mutex, waits):
        sent = Wire(monkeypatch).sent
        holder.release()
        assert waits.result()
        assert sent == ["UpdateItem", "UpdateItem"]
        mutex.release()


def test_taker_that_is_not_fair_overtakes(table, pool):
    with held_elsewhere("a"), waiter("b", pool) as (mutex, waits):
        assert Mutex.for_key("a").force_release()
        with Mutex.for_key("a", model=Elsewhere, timeout=0):
            assert mutex.position == 0
        assert waits.result()
        mutex.release()


def test_whoever_does_not_wait_takes_no_lock_for_which_others_do(table, pool):
    with held_elsewhere("a"):
        pass
    stand(DEAD)
    assert not fair().acquire(blocking=False)
    assert not fair(timeout=0).acquire()
    assert entries() == [DEAD]
    with pytest.raises(MutexTimeoutError, match="'a'"), fair(timeout=0):
        pass


def test_waiter_that_gives_up_leaves_the_line(table, pool):
    with held_elsewhere("a"), waiter("b", pool, timeout=3) as (mutex, waits):
        assert len(entries()) == 1
        assert not waits.result()
        assert (mutex.position, entries()) == (None, [])


def test_position_is_none_before_and_without_fairness(table):
    assert fair().position is None
    with Mutex.for_key("b") as mutex:
        assert mutex.position is None


def test_long_label_is_cut_at_a_character(table, pool):
    with held_elsewhere("a"), waiter("ä" * 100, pool, timeout=1) as (_, waits):
        [entry] = entries()
        assert len(entry.encode()) in (63, 64)
        assert table.get("a").waiters == ["ä" * 23]
        waits.result()
        assert table.get("a").waiters == []


def test_reentrant_and_attached_locks_are_fair(table, pool):
    with fair(reentrant=True) as mutex, mutex:
        pass
    mutex = fair()
    mutex.acquire()
    with Mutex.attach(mutex.detach(), fair=True) as attached:
        assert attached.held


# -- the dead -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [1, 3])
def test_dead_waiters_are_passed(table, dead):
    with held_elsewhere("a"), ThreadPoolExecutor(1) as pool:
        stand(*[f"{n}{DEAD[1:]}" for n in range(dead)])
        with waiter("b", pool) as (mutex, waits):
            Mutex.for_key("a").force_release()
            since = time.monotonic()
            assert waits.result()
            took = time.monotonic() - since
            assert PATIENCE + (dead - 1) * STEP - 0.1 < took < PATIENCE + (dead - 1) * STEP + SLACK
            assert entries() == []
            mutex.release()


def test_line_of_dead_waiters_costs_nothing_if_the_lock_was_free_for_long(table):
    with held_elsewhere("a"):
        pass
    stand(DEAD, f"1{DEAD[1:]}")
    time.sleep(patience(2) + SLACK)
    assert fair().acquire(blocking=False)
    assert entries() == []


def test_time_for_which_the_lock_was_free_before_counts(table):
    with held_elsewhere("a"):
        pass
    stand(DEAD)
    time.sleep(4)
    since = time.monotonic()
    with fair():
        assert PATIENCE - 4 < time.monotonic() - since < PATIENCE - 4 + SLACK
    assert entries() == []


def test_line_behind_a_dead_holder_moves(table, pool):
    with held_elsewhere("a", lease=10):
        stand(DEAD)
        with waiter("b", pool) as (mutex, waits):
            since = time.monotonic()
            assert waits.result()
            assert 10 + PATIENCE - 1 < time.monotonic() - since < 10 + PATIENCE + 2 * SLACK
            mutex.release()


def test_dead_waiter_is_passed_without_server_time(table, monkeypatch):
    wire = Wire(monkeypatch)
    with held_elsewhere("a", lease=10):
        stand(DEAD)
        wire.drop_dates("GetItem", "UpdateItem")
        since = time.monotonic()
        assert fair().acquire()
        assert 10 + PATIENCE < time.monotonic() - since < 10 + PATIENCE + 2 * SLACK


def test_dead_first_and_busy_takers_do_not_stop_the_line(table, pool):
    """Takers that are not fair leave the lock free for 20 ms at a time."""
    busy = True

    def take():
        while busy:
            with Mutex.for_key("a", model=Elsewhere):
                time.sleep(0.02)
            time.sleep(0.02)

    with fair():
        stand(DEAD)
        taking = pool.submit(take)
        with waiter("b", pool) as (mutex, waits):
            pass
    assert waits.result(timeout=60)
    # it passes whoever stands before it, and removes nobody, who may live
    assert entries() == [DEAD]
    mutex.release()
    busy = False
    taking.result()


def test_full_line_is_waited_for_outside(table, pool, monkeypatch):
    with held_elsewhere("a"):
        stand(*[f"{n:016}|" for n in range(MOST_WAITING)])
        mutex = fair()
        sent = Wire(monkeypatch).sent
        waits = pool.submit(mutex.acquire)
        time.sleep(10)
        assert mutex.position is None
        assert sent.count("UpdateItem") == 1
        assert 4 <= sent.count("GetItem") <= 6
        stand(*[f"{n:016}|" for n in range(MOST_WAITING - 1)])
        until(lambda: mutex.position == MOST_WAITING - 1)
        stand(entries()[-1])
        Mutex.for_key("a").force_release()
        assert waits.result()
        mutex.release()


# -- at the edges -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["key", "keys"])
def test_row_with_waiters_is_not_deleted_by_its_release(table, pool, kind):
    options = {"delete_on_release": True, "model": Elsewhere}
    holder = Mutex.for_keys(["a"], **options) if kind == "keys" else fair(**options)
    holder.acquire()
    with waiter("b", pool, delete_on_release=True) as (mutex, waits):
        holder.release()
        assert waits.result()
    mutex.release()
    with pytest.raises(LockItem.DoesNotExist):
        table.get("a", consistent_read=True)


def test_waiter_whose_row_is_deleted_takes_the_lock_as_a_newcomer(table, pool):
    with held_elsewhere("a"), waiter("b", pool) as (mutex, waits):
        LockItem._get_connection().delete_item("a")
        assert waits.result()
        assert mutex.held
        mutex.release()


def test_first_in_line_takes_what_is_broken_by_force(table, pool):
    with held_elsewhere("a"), waiter("b", pool) as (first, waits), waiter("c", pool) as (second, _):
        assert LockItem.force_release("a")
        assert waits.result()
        assert second.position == 1
        first.release()
    until(lambda: second.held)
    second.release()


def test_row_written_by_an_older_version_has_no_date(table):
    """It does not say since when it is free: waiters go by their own clocks."""
    with held_elsewhere("a"):
        pass
    LockItem._get_connection().update_item("a", actions=[LockItem.free_since.remove()])
    stand(DEAD)
    since = time.monotonic()
    assert fair().acquire()
    assert PATIENCE <= time.monotonic() - since < PATIENCE + SLACK


def test_fairness_that_is_not_offered_is_refused(accounts, table):
    for call in (
        lambda: Mutex.for_keys(["a", "b"], fair=True),
        lambda: Mutex.for_keys(["a", fair("b")]),
        lambda: Mutex.any_of(["a", "b"], fair=True),
        lambda: Semaphore.for_key("a", permits=2, fair=True),
    ):
        with pytest.raises(TypeError, match="fair=True is for the lock of one key"):
            call()
    for call in (
        lambda: accounts.locked("a", fair=True),
        lambda: accounts.locked_all(["a", "b"], fair=True),
    ):
        with pytest.raises(TypeError, match="fair needs a lock_model"):
            call()


def test_lock_of_a_row_in_the_lock_table_is_fair(ledger, pool):
    with ledger.locked("a", fair=True):
        waiting = ledger.locked("a", fair=True)
        waits = pool.submit(waiting.acquire)
        until(lambda: waiting.position == 0)
    assert waits.result()
    waiting.release()
    named = Mutex.for_row(ledger, "a", fair=True)
    assert named.acquire(blocking=False)
    named.release()
    with pytest.raises(TypeError, match="fair=True is for the lock of one key"):
        ledger.locked_all(["a"], fair=True)


def test_decorated_function_waits_in_line(table, pool):
    @synchronized("{key}", owner="b", fair=True)
    def section(key):
        return table.get(key, consistent_read=True).owner

    with held_elsewhere("a"):
        result = pool.submit(section, "a")
        until(lambda: entries() != [])
        assert table.get("a", consistent_read=True).waiters == ["b"]
    assert result.result() == "b"


def test_wait_for_ones_own_lock_is_refused(table):
    with fair(), pytest.raises(MutexAlreadyHeldError, match="already held by this thread"):
        fair().acquire()
    assert entries() == []


def test_tasks_wait_in_order_and_leave_when_they_are_cancelled(table):
    order = []

    async def section(name):
        async with AsyncMutex.for_key("a", owner=name, fair=True):
            order.append(name)

    async def play():
        mutex = AsyncMutex.for_key("a", fair=True)
        await mutex.acquire()
        tasks = []
        for name in "bcd":
            tasks.append(asyncio.create_task(section(name)))
            while len(entries()) < len(tasks):
                await asyncio.sleep(0.01)
        assert mutex.position is None
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert len(entries()) == 2
        await mutex.release()
        await asyncio.wait(tasks)

    asyncio.run(play())
    assert order == ["b", "d"]


# -- faults -------------------------------------------------------------------------------------


def test_join_whose_answer_is_lost_stands_once(scene):
    with Mutex.for_key(scene.key, model=scene.there) as holder, ThreadPoolExecutor(1) as pool:
        scene.proxy.next(drop_answer(), drop_answer(), op="join")
        mutex = Mutex.for_key(scene.key, model=scene.here, fair=True)
        waits = pool.submit(mutex.acquire)
        until(lambda: mutex.position == 0)
        assert [seen.applied for seen in scene.proxy.of("join")] == [True, False, False]
        assert len(scene.there.get(scene.key, consistent_read=True).waiters) == 1
        holder.release()
        assert waits.result()
        mutex.release()
        holder.acquire()


def test_late_join_stands_in_line_until_it_counts_as_dead(scene):
    """It is applied after its waiter has left: those behind it wait as for a dead one."""
    with Mutex.for_key(scene.key, model=scene.there) as holder:
        join = late()
        scene.proxy.next(join, op="join")
        scene.proxy.always(drop_request(), op="join")
        mutex = Mutex.for_key(scene.key, model=scene.here, timeout=1, fair=True)
        with pytest.raises(UpdateError):
            mutex.acquire()
        assert mutex.position is None
        assert [seen.applied for seen in scene.proxy.of("leave")] == [False]
        join.apply()
        assert len(scene.there.get(scene.key, consistent_read=True).waiters) == 1
        holder.release()
        since = time.monotonic()
        other = Mutex.for_key(scene.key, model=scene.there, fair=True)
        assert other.acquire()
        assert time.monotonic() - since < PATIENCE + SLACK
        other.release()
        holder.acquire()


def test_release_that_is_applied_late_makes_nobody_dead(scene):
    """It says that the lock has been free since it was sent; whoever has seen the lock held meanwhile knows better."""
    holder = Mutex.for_key(scene.key, model=scene.here, lease=100, auto_renew=False)
    with ThreadPoolExecutor(1) as pool:
        holder.acquire()
        release = late()
        scene.proxy.next(release, op="release")
        scene.proxy.always(drop_request(), op="release")
        with suppress(UpdateError):
            holder.release()
        raw = scene.there._get_connection()
        raw.update_item(scene.key, actions=[LockItem.waiting.set([DEAD])])
        mutex = Mutex.for_key(scene.key, model=scene.there, fair=True)
        waits = pool.submit(mutex.acquire)
        time.sleep(30)
        assert mutex.position == 1
        since = time.monotonic()
        release.apply()
        assert waits.result()
        assert time.monotonic() - since >= PATIENCE - LONGEST_POLL
        mutex.release()


def test_leave_that_fails_is_logged(scene, caplog):
    with Mutex.for_key(scene.key, model=scene.there):
        scene.proxy.always(drop_request(), op="leave")
        mutex = Mutex.for_key(scene.key, model=scene.here, owner="she", timeout=1, fair=True)
        assert not mutex.acquire()
        assert "'she' still stands in line" in caplog.text
        assert len(scene.there.get(scene.key, consistent_read=True).waiters) == 1


def test_leave_finds_its_place_though_the_line_has_moved(scene):
    with Mutex.for_key(scene.key, model=scene.there), ThreadPoolExecutor(1) as pool:
        first = Mutex.for_key(scene.key, model=scene.there, timeout=5, fair=True)
        waits = pool.submit(first.acquire)
        until(lambda: first.position == 0)
        # it polls once in 2 s, and does not see that the other has left
        mutex = Mutex.for_key(scene.key, model=scene.here, timeout=5.5, poll=(2, 2), fair=True)
        assert not mutex.acquire()
        assert not waits.result()
        assert [seen.applied for seen in scene.proxy.of("leave")][-1]
        assert scene.there.get(scene.key, consistent_read=True).waiters == []


def test_answer_to_a_join_that_is_not_dynamodbs_is_no_place(scene):
    with Mutex.for_key(scene.key, model=scene.there):
        scene.proxy.next(answer_with(Reply(200, b"{}", DYNAMODBS)), op="join")
        mutex = Mutex.for_key(scene.key, model=scene.here, timeout=5, fair=True)
        assert not mutex.acquire()
        assert len(scene.proxy.of("join")) == 2
        assert scene.there.get(scene.key, consistent_read=True).waiters == []


def test_read_that_is_out_of_date_is_repeated(scene, monkeypatch):
    """It shows the row from before the join."""
    with Mutex.for_key(scene.key, model=scene.there), ThreadPoolExecutor(1) as pool:
        item = scene.there._get_connection().get_item(scene.key)["Item"]
        before = Reply(200, json.dumps({"Item": item}).encode(), DYNAMODBS)
        mutex = Mutex.for_key(scene.key, model=scene.here, fair=True, timeout=10)
        scene.proxy.next(answer_with(before), op="GetItem")
        waits = pool.submit(mutex.acquire)
        time.sleep(3)
        reads = [seen.body["ConsistentRead"] for seen in scene.proxy.of("GetItem")]
        assert reads[:3] == [False, True, False]
        assert len(scene.proxy.of("join")) == 1
        assert not waits.result()


def test_task_that_is_cancelled_while_its_last_poll_hangs_leaves_the_line(scene):
    """The cancellation is thrown at the request that leaves the line, before that is sent."""

    async def play():
        mutex = AsyncMutex.for_key(scene.key, model=scene.here, timeout=3, fair=True)
        task = asyncio.create_task(mutex.acquire())
        while mutex.position is None:
            await asyncio.sleep(0.01)
        scene.proxy.always(stall(10.0), op="GetItem")
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with Mutex.for_key(scene.key, model=scene.there):
        asyncio.run(play())
        assert scene.there.get(scene.key, consistent_read=True).waiters == []
