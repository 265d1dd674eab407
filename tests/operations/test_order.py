"""The order of arrival between processes: fair waiters stand in line in the row.

The schedules of a late release, and of a task cancelled while its poll hangs, are in simulation/test_schedules.py.
"""

import asyncio
import json
import time

import pytest
from pynamodb.exceptions import UpdateError
from two_clients import Elsewhere, held
from waits import until

from dev.faultproxy import (
    DYNAMODBS,
    Reply,
    after,
    answer_with,
    delay,
    drop_answer,
    drop_request,
    late,
    pass_on,
    stall,
)
from pynamodb_mutex import LockItem, Mutex, MutexTimeoutError, Semaphore, synchronized
from pynamodb_mutex._fair.waiting_line import DEAD_AFTER, dead_after
from pynamodb_mutex._lock.protocol.claim import MOST_WAITING
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import held_elsewhere

SLACK = 2.5
"""Seconds after which the dead are passed, at most: server time is known to a second, and a poll comes 2 s late."""

DEAD = "6922f3e0deadbeef|dead"

LIVE = [f"{number}|" for number in range(8)]


def fair(key="a", **options):
    return Mutex.for_key(key, fair=True, **options)


def raw():
    """Return the list in the row, with what is struck out."""
    item = LockItem._get_connection().get_item("a", consistent_read=True).get("Item", {})
    return [entry["S"] for entry in item.get("waiting", {"L": []})["L"]]


def entries():
    return [entry for entry in raw() if entry != "-"]


def stand(*waiting):
    """Let the entries of waiters stand in the row, whoever they are."""
    LockItem._get_connection().update_item("a", actions=[LockItem.waiting.set(list(waiting))])


def in_line(pool, mutex, **how):
    """Let a thread wait in line by a mutex; return both."""
    waits = pool.submit(mutex.acquire, **how)
    until(lambda: mutex.position is not None)
    return mutex, waits


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
    assert ({mutex.position for mutex in mutexes}, entries()) == ({None}, [])


def test_cycle_is_two_requests_and_that_of_the_next_in_line_of_the_process_too(table, pool, sent):
    with fair():
        mutex, waits = in_line(pool, fair())
        sent.clear()
    assert (waits.result(), sent) == (True, ["UpdateItem"] * 2)
    mutex.release()
    sent.clear()
    with fair():
        pass
    assert sent == ["UpdateItem"] * 2


def test_lock_broken_by_force_is_for_the_first_in_line_unless_another_is_not_fair(table, pool):
    with held_elsewhere("a"):
        first, waits = in_line(pool, fair())
        second, _ = in_line(pool, fair())
        assert Mutex.for_key("a").force_release()
        assert Mutex.for_key("a", model=Elsewhere, auto_renew=False).acquire(timeout=0)
        assert (first.position, second.position) == (0, 1)
        assert LockItem.force_release("a")
        assert (waits.result(), second.position) == (True, 1)
        first.release()
        until(lambda: second.held)


def test_lock_that_another_process_attaches_is_for_the_first_in_line(table, pool):
    holder = held(fair(model=Elsewhere))
    first, second = (in_line(pool, fair())[0] for _ in range(2))
    time.sleep(dead_after(2))
    attached = Mutex.attach(holder.detach(), model=Elsewhere, fair=True)
    time.sleep(dead_after(2))
    attached.release()
    until(lambda: first.held or second.held)
    assert first.held
    first.release()
    until(lambda: second.held)


def test_whoever_does_not_wait_takes_no_lock_for_which_others_do(table):
    with held_elsewhere("a"):
        pass
    stand(DEAD)
    assert not fair().acquire(blocking=False)
    assert not fair(timeout=0).acquire()
    assert entries() == [DEAD]
    with pytest.raises(MutexTimeoutError, match="'a'"), fair(timeout=0):
        pass


def test_waiter_that_gives_up_leaves_the_line(table, pool):
    with held_elsewhere("a"):
        mutex, waits = in_line(pool, fair(owner="ä" * 100, timeout=3))
        [entry] = entries()
        # its label is cut at a character
        assert len(entry.encode()) in (63, 64)
        assert table.get("a").waiters == ["ä" * 23]
        assert not waits.result()
        assert (mutex.position, table.get("a").waiters, entries()) == (None, [], [])


@pytest.mark.parametrize("count", [10, 35])
def test_many_waiters_that_leave_at_once_send_a_write_each(table, pool, sent, count):
    """Each that removed its entry would move the others, whose writes would be refused and sent again."""
    with held_elsewhere("a", lease=300):
        deadline = time.monotonic() + 30
        waits = []
        for number in range(count):
            mutex = fair(timeout=deadline - time.monotonic())
            waits.append(in_line(pool, mutex)[1])
            assert mutex.position == number
        time.sleep(deadline - time.monotonic() - 0.001)
        sent.clear()
        assert not any(wait.result() for wait in waits)
        assert sent.count("UpdateItem") <= 1.3 * count
        assert raw() == []


def test_waiters_behind_struck_out_entries_keep_their_order_and_remove_them(table, pool):
    with held_elsewhere("a"):
        names = [fair(owner=name, timeout=5 if name in "ace" else 60) for name in "abcdef"]
        waits = [in_line(pool, mutex)[1] for mutex in names]
        for each in (0, 2, 4):
            assert not waits[each].result()
        # of more than four one that leaves is struck out, of four it is removed
        assert [entry.partition("|")[2] or entry for entry in raw()] == ["-", "b", "-", "d", "f"]
        until(lambda: [names[each].position for each in (1, 3, 5)] == [0, 1, 2])
    assert waits[1].result()
    assert (raw()[0], len(raw()), len(entries())) == ("-", 3, 2)
    for last, after_it in ((1, 3), (3, 5)):
        names[last].release()
        assert waits[after_it].result()
    assert raw() == []


def test_last_waiter_that_leaves_removes_what_others_have_struck_out(table):
    with held_elsewhere("a"):
        stand("-", "-")
        assert not fair(timeout=1).acquire()
        assert raw() == []
        stand("-", "-", DEAD)
        assert not fair(timeout=1).acquire()
        assert raw() == ["-", "-", DEAD]


@pytest.mark.parametrize("blocking", [False, True])
def test_newcomer_takes_a_free_lock_whose_waiters_have_all_left(table, sent, blocking):
    with held_elsewhere("a"):
        pass
    stand("-", "-", "-")
    assert fair().acquire(blocking=blocking)
    assert raw() == []


def test_line_that_is_full_of_struck_out_entries_has_room(table, pool):
    with held_elsewhere("a"):
        stand(DEAD, *["-"] * (MOST_WAITING - 1))
        mutex, _ = in_line(pool, fair(timeout=20))
        assert mutex.position == 1
        assert (len(raw()), raw()[0]) == (2, DEAD)


# -- the dead -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dead", "free_for", "dated", "wait"),
    [
        *((1, 0, True, DEAD_AFTER), (3, 0, True, dead_after(3))),
        *((1, 4, True, DEAD_AFTER - 4), (2, dead_after(2) + SLACK, True, 0)),
        # an older version has written the row: waiters go by their own clocks
        (1, 0, False, DEAD_AFTER),
    ],
)
def test_dead_waiters_are_passed_when_the_lock_was_free_for_long_enough(
    table, dead, free_for, dated, wait
):
    with held_elsewhere("a"):
        pass
    if not dated:
        table._get_connection().update_item("a", actions=[table.free_since.remove()])
    stand(*[f"{n}{DEAD[1:]}" for n in range(dead)])
    time.sleep(free_for)
    since = time.monotonic()
    with fair(timeout=wait and wait + SLACK):
        assert time.monotonic() - since >= wait - 0.1 * dated
        assert entries() == []


@pytest.mark.parametrize("line", [[DEAD, *LIVE], [*LIVE, DEAD]])
def test_newcomer_does_not_pass_who_has_joined_since_it_judged_the_line(scene, line):
    held(scene.other()).release()

    def stands(*waiting):
        actions = [LockItem.waiting.set(list(waiting))]
        scene.there._get_connection().update_item(scene.key, actions=actions)

    stands(DEAD)
    time.sleep(DEAD_AFTER + SLACK)
    # its first write is refused, and shows the line; its second one is to remove it
    scene.proxy.next(pass_on(), after(lambda: stands(*line)), op="acquire")
    assert not scene.mutex(fair=True).acquire(blocking=False)
    assert scene.applied("acquire") == [False, False]
    assert scene.row.waiting == line


@pytest.mark.parametrize("dated", [True, False])
def test_line_behind_a_dead_holder_moves_also_without_server_time(table, pool, wire, dated):
    with held_elsewhere("a", lease=10):
        stand(DEAD)
        if not dated:
            wire.drop_dates("GetItem", "UpdateItem")
        _, waits = in_line(pool, fair())
        since = time.monotonic()
        assert waits.result()
        assert 10 + DEAD_AFTER - dated < time.monotonic() - since < 10 + DEAD_AFTER + 2 * SLACK


def test_full_line_is_waited_for_outside(table, pool, sent):
    with held_elsewhere("a"):
        stand(*[f"{n:016}|" for n in range(MOST_WAITING)])
        mutex = fair()
        sent.clear()
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


@pytest.mark.parametrize("kind", ["key", "keys"])
def test_row_with_waiters_is_not_deleted_by_its_release(table, pool, kind):
    options = {"delete_on_release": True, "model": Elsewhere}
    holder = Mutex.for_keys(["a"], **options) if kind == "keys" else fair(**options)
    with holder:
        mutex, waits = in_line(pool, fair(delete_on_release=True))
    assert waits.result()
    mutex.release()
    with pytest.raises(LockItem.DoesNotExist):
        table.get("a", consistent_read=True)


def test_waiter_whose_row_is_deleted_takes_the_lock_as_a_newcomer(table, pool):
    with held_elsewhere("a"):
        mutex, waits = in_line(pool, fair())
        table._get_connection().delete_item("a")
        assert (waits.result(), mutex.held) == (True, True)


def test_waiter_that_finds_itself_further_back_waits_there(table, pool):
    """A late copy of its join came after others had passed it."""
    with held_elsewhere("a"):
        mutex, waits = in_line(pool, fair())
        stand(DEAD, *entries())
        until(lambda: mutex.position == 1)
    assert (waits.result(), entries()) == (True, [])


def test_fairness_that_is_not_offered_is_refused(accounts, ledger):
    for call in (
        lambda: Mutex.for_keys(["a", "b"], fair=True),
        lambda: Mutex.for_keys(["a", fair("b")]),
        lambda: Mutex.any_of(["a", "b"], fair=True),
        lambda: Semaphore.for_key("a", permits=2, fair=True),
        lambda: ledger.locked_all(["a"], fair=True),
    ):
        with pytest.raises(
            TypeError, match="fair=True is for one key of a lock table: several have no common line"
        ):
            call()
    for call in (accounts.locked, lambda key, **fair: accounts.locked_all([key], **fair)):
        with pytest.raises(TypeError, match="fair needs a lock_model"):
            call("a", fair=True)


def test_reentrant_and_attached_locks_and_those_of_rows_in_the_lock_table_are_fair(ledger, pool):
    with fair(reentrant=True) as mutex, mutex:
        assert mutex.position is fair().position is None
    ticket = held(fair()).detach()
    with Mutex.attach(ticket, fair=True) as attached:
        assert attached.held
    with ledger.locked("a", fair=True):
        mutex, waits = in_line(pool, ledger.locked("a", fair=True))
        assert mutex.position == 0
    assert waits.result()
    mutex.release()
    assert Mutex.for_row(ledger, "a", fair=True).acquire(blocking=False)


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


@pytest.fixture
def other(scene):
    """The other client holds the scene's lock."""
    with scene.other() as other:
        yield other


@pytest.mark.parametrize(
    ("faults", "applied"),
    [
        ([drop_answer(), drop_answer()], [True, False, False]),
        ([answer_with(Reply(200, b"{}", DYNAMODBS))], [False, True]),
    ],
)
def test_join_whose_answer_is_lost_or_not_dynamodbs_stands_once(
    scene, other, pool, faults, applied
):
    scene.proxy.next(*faults, op="join")
    mutex, waits = in_line(pool, scene.mutex(fair=True, timeout=5))
    assert (mutex.position, scene.applied("join")) == (0, applied)
    assert len(scene.row.waiters) == 1
    assert (waits.result(), scene.row.waiters) == (False, [])


def test_join_of_a_slow_process_is_applied_though_the_lock_changes_hands_before_it_comes(
    scene, pool
):
    scene.proxy.always(delay(0.1))
    end = time.monotonic() + 6

    def work():
        while time.monotonic() < end:
            with scene.other(fair=True):
                time.sleep(0.02)

    for _ in range(3):
        pool.submit(work)
    time.sleep(1)
    with scene.mutex(timeout=4, fair=True):
        assert time.monotonic() < end


def test_late_join_stands_in_line_until_it_counts_as_dead(scene):
    """It is applied after its waiter has left: those behind it wait as for a dead one."""
    with scene.other():
        join = late()
        scene.proxy.next(join, op="join")
        scene.proxy.always(drop_request(), op="join")
        mutex = scene.mutex(timeout=1, fair=True)
        with pytest.raises(UpdateError):
            mutex.acquire()
        assert (mutex.position, scene.applied("leave")) == (None, [False])
        join.apply()
        assert len(scene.row.waiters) == 1
    assert scene.other(fair=True).acquire(timeout=DEAD_AFTER + SLACK)


@pytest.mark.parametrize("dies", [False, True])
def test_next_in_line_has_its_full_time_when_the_first_gives_up(scene, pool, dies):
    holder = held(scene.other(lease=1, auto_renew=not dies))
    first = scene.mutex(timeout=DEAD_AFTER - 1, fair=True)
    waits = pool.submit(first.acquire)
    until(lambda: first.position == 0)
    actions = [LockItem.waiting.set([*scene.row.waiting, DEAD])]
    scene.there._get_connection().update_item(scene.key, actions=actions)
    scene.proxy.always(drop_request(), op="acquire")
    if not dies:
        holder.release()
    with pytest.raises(UpdateError):
        waits.result()
    since = time.monotonic()
    assert scene.row.waiting == [DEAD]
    assert scene.other(fair=True).acquire(timeout=DEAD_AFTER + SLACK)
    assert time.monotonic() - since >= DEAD_AFTER


def test_leave_that_fails_is_logged(scene, other, caplog):
    scene.proxy.always(drop_request(), op="leave")
    assert not scene.mutex(owner="she", timeout=1, fair=True).acquire()
    assert "'she' still stands in line" in caplog.text
    assert len(scene.row.waiters) == 1


def test_leave_finds_its_place_though_the_line_has_moved(scene, other, pool):
    _, waits = in_line(pool, scene.other(timeout=5, fair=True))
    scene.proxy.next(after(waits.result), op="leave")
    assert not scene.mutex(timeout=4, fair=True).acquire()
    assert (scene.applied("leave"), scene.row.waiters) == ([False, True], [])
    assert waits.result() is False


def test_read_that_is_out_of_date_is_repeated(scene, other, pool):
    """It shows the row from before the join."""
    item = scene.there._get_connection().get_item(scene.key)["Item"]
    before = Reply(200, json.dumps({"Item": item}).encode(), DYNAMODBS)
    scene.proxy.next(answer_with(before), op="GetItem")
    waits = pool.submit(scene.mutex(fair=True, timeout=10).acquire)
    time.sleep(3)
    reads = [seen.body["ConsistentRead"] for seen in scene.proxy.of("GetItem")]
    assert reads[:3] == [False, True, False]
    assert (len(scene.proxy.of("join")), waits.result()) == (1, False)


def test_decorated_function_waits_in_line(table, pool):
    @synchronized("{key}", owner="b", fair=True)
    def section(key):
        return table.get(key, consistent_read=True).owner

    with held_elsewhere("a"):
        result = pool.submit(section, "a")
        until(lambda: entries() != [])
        assert table.get("a", consistent_read=True).waiters == ["b"]
    assert result.result() == "b"


def test_task_that_is_cancelled_while_its_last_poll_hangs_leaves_the_line(scene, other):
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

    asyncio.run(play())
    assert scene.row.waiters == []
