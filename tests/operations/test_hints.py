"""Hints: waiters that are called by a datagram when the lock is released, and how often they poll.

Schedules in which hints go astray are in simulation/test_schedules.py; real sockets in runtime/test_listener.py.
"""

import asyncio
import itertools
import logging
import time
from functools import partial

import pytest
from pynamodb.exceptions import UpdateError
from this_process import current_process, forget_everything
from two_clients import Elsewhere, held
from waits import until

from dev.faultproxy import after, drop_answer, drop_request
from dev.simulation.network import worlds
from pynamodb_mutex import Hints, LockItem, Mutex, MutexError
from pynamodb_mutex._fair.hints import NEXT, SHORTEST, Calls
from pynamodb_mutex._fair.listener import LINGER, Listener
from pynamodb_mutex._fair.waiting_line import LONGEST_POLL, NEXT_POLL, address_of, id_of
from pynamodb_mutex.aio import AsyncMutex

INSTANT = 0.01
"""Seconds that requests and datagrams take here, at most: they take no time."""

ALL = "ALL_NEW"


def fair(key="a", **options):
    return Mutex.for_key(key, **{"fair": Hints()} | options)


def holder(**options):
    """Return the holder of the lock, which is as in another process."""
    return held(fair(**{"model": Elsewhere, "auto_renew": False} | options))


class Waiter:
    """A thread that waits in line, and holds the lock as soon as it has it.

    Attributes:
        entry: Its entry in the row.
        acquired_at: When it had the lock; None before.
    """

    acquired_at = None

    def __init__(self, pool, **options):
        self.mutex = fair(**options)
        self.done = pool.submit(self._wait)
        until(lambda: self.mutex.position is not None)
        self.entry = entries(options.get("key", "a"))[-1]

    def _wait(self):
        assert self.mutex.acquire()
        self.acquired_at = time.monotonic()

    def acquired_within(self, seconds, since):
        """Wait until it holds the lock; return whether that came so soon."""
        self.done.result()
        return self.acquired_at - since <= seconds + INSTANT

    def release(self):
        """Release the lock; return when that was."""
        self.done.result()
        self.mutex.release()
        return time.monotonic()


def entries(key="a"):
    raw = LockItem._get_connection().get_item(key, consistent_read=True).get("Item", {})
    return [entry["S"] for entry in raw.get("waiting", {"L": []})["L"]]


class Air:
    """The datagrams of the world in which the test is."""

    def __init__(self):
        self.datagrams = worlds[-1].network.datagrams
        self.requests = worlds[-1].network.log

    @property
    def hints(self):
        """What was sent so far."""
        return [data.decode() for _, data in self.datagrams.log]

    def lose(self, *texts):
        """Lose all datagrams from now on, or those with these texts."""
        self.datagrams.script = lambda _, data: (
            "lost" if not texts or data.decode() in texts else None
        )

    def forge(self, entry, text):
        self.datagrams.send(text.encode("latin-1"), address_of(entry))

    def since(self, number):
        """Return the operations of the requests after so many, with what they ask to see."""
        return [
            (sent.operation, sent.kwargs.get("ReturnValues")) for sent in self.requests[number:]
        ]


@pytest.fixture
def air(table):
    return Air()


def polls(seconds):
    """Return the seconds between the reads of the next seconds."""
    air = Air()
    before = len(air.requests)
    time.sleep(seconds)
    times = [each.sent for each in air.requests[before:] if each.operation == "GetItem"]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def call(pool, **model):
    """Let a hint reach this process, which relies on them then."""
    lock = holder(key="called", lease=60, **model)
    mutex = fair(key="called", **model)
    waits = pool.submit(mutex.acquire)
    until(lambda: mutex.position == 0)
    lock.release()
    assert waits.result()
    mutex.release()


# -- calls ------------------------------------------------------------------------------------------


def test_release_shows_whom_to_call_and_the_called_waiter_takes_the_lock_without_a_read(air, pool):
    lock = holder()
    first, second, third = (Waiter(pool) for _ in range(3))
    time.sleep(7.03)
    number, since = len(air.requests), time.monotonic()
    lock.release()
    assert first.acquired_within(0, since)
    assert air.since(number)[:2] == [("UpdateItem", ALL), ("UpdateItem", ALL)]
    assert air.hints == [id_of(first.entry), id_of(second.entry) + NEXT]
    assert second.acquired_within(0, first.release())
    assert third.acquired_within(0, second.release())
    assert air.hints[2:] == [id_of(second.entry), id_of(third.entry) + NEXT, id_of(third.entry)]
    third.release()
    assert len(air.hints) == 5


def _parts(request):
    """Return the parts of a request that are the same each time."""
    parts = {name: text for name, text in request.kwargs.items() if "Expression" in name}
    return request.operation, {**parts, "ExpressionAttributeValues": None}


def _cycle(pool, **options):
    """Play what a hint changes, with a lock on which nobody is called; return what was sent, and the entries in line."""
    before = len(worlds[-1].network.log)
    lock = holder(**options)
    gives_up = fair(timeout=3, **options)
    waits = pool.submit(gives_up.acquire)
    until(lambda: gives_up.position == 0)
    line = entries(options["key"])
    assert not waits.result()
    lock.release()
    return worlds[-1].network.log[before:], line


def test_without_hints_no_request_row_or_thread_differs(air, pool):
    world = worlds[-1]
    _cycle(pool, key="warm", fair=True)
    sent, [entry] = _cycle(pool, key="without", fair=True)
    assert entry[16] == "|"
    assert (Listener in current_process()._of_rooms, air.hints, air.datagrams.bound) == (
        False,
        [],
        {},
    )
    assert not [thread for thread in world.process.threads_running if "hints" in thread.name]
    # with hints, too, the release alone asks for more
    hinted, [called] = _cycle(pool, key="with")
    shows, asks = ([each.kwargs.get("ReturnValues") for each in some] for some in (sent, hinted))
    assert (shows[-1], asks[-1], shows[:-1]) == (None, ALL, asks[:-1])
    assert [_parts(each) for each in sent] == [_parts(each) for each in hinted]
    assert called[16:].replace(f"!{called[17:].partition('|')[0]}|", "|") == entry[16:]


def test_call_is_for_a_waiter_with_an_address_alone(air, pool):
    lock = holder()
    first = Waiter(pool, fair=True)
    second = Waiter(pool)
    time.sleep(3)
    since = time.monotonic()
    lock.release()
    assert first.acquired_within(0.2, since)
    assert air.hints == [id_of(second.entry) + NEXT]
    first.release()
    # as of a process of an older version: it calls nobody
    assert second.acquired_within(NEXT_POLL, first.acquired_at + INSTANT)
    assert len(air.hints) == 1
    second.release()


def test_row_that_its_release_would_delete_is_kept_and_its_waiter_called(air, pool):
    lock = holder(delete_on_release=True)
    waiter = Waiter(pool)
    time.sleep(7.03)
    since = time.monotonic()
    lock.release()
    assert waiter.acquired_within(0, since)
    assert air.hints == [id_of(waiter.entry)]
    waiter.release()


def test_lock_that_is_kept_after_its_release_is_for_nobody_yet(air, pool):
    lock = holder(hold_at_least=5)
    waiter = Waiter(pool)
    lock.release()
    assert air.hints == []
    waiter.release()


def test_waiter_that_gives_up_lets_the_next_one_know(air, pool):
    lock = holder()
    first = fair(timeout=10)
    gives_up = pool.submit(first.acquire)
    until(lambda: first.position == 0)
    second = Waiter(pool)
    last = fair(timeout=2)
    assert not last.acquire()
    assert air.hints == []  # nobody stands behind it
    assert not gives_up.result()
    assert air.hints == [id_of(second.entry) + NEXT]
    time.sleep(NEXT_POLL + INSTANT)
    assert second.mutex.position == 0
    lock.release()
    second.release()


def test_waiter_without_hints_that_gives_up_lets_nobody_know(air, pool):
    lock = holder()
    first = fair(timeout=3, fair=True)
    gives_up = pool.submit(first.acquire)
    until(lambda: first.position == 0)
    second = Waiter(pool)
    assert not gives_up.result()
    assert air.hints == []
    lock.release()
    second.release()


@pytest.mark.parametrize(
    ("fault", "ends", "mark"),
    [
        (drop_request, "leave", NEXT),  # it was called, and has not seen that the lock is free
        (drop_request, "leave", ""),
        (drop_answer, "disown", ""),
    ],
)
def test_waiter_that_fails_to_take_the_lock_calls_the_next_one(scene, pool, fault, ends, mark):
    """It leaves the line while the lock is free, or ends the claim that it may have made."""
    air, lock = Air(), held(scene.other(fair=Hints()))
    first = scene.mutex(fair=Hints(), timeout=5)
    fails = pool.submit(first.acquire)
    until(lambda: first.position == 0)
    second = scene.other(fair=Hints(), timeout=60)
    waits = pool.submit(second.acquire)
    until(lambda: second.position == 1)
    [called, entry] = scene.row.waiting
    if not mark:
        air.lose(id_of(called))
    time.sleep(3.03)
    scene.proxy.always(fault(), op="acquire")
    lock.release()
    del air.datagrams.log[:]
    with pytest.raises(UpdateError):
        fails.result()
    assert scene.applied(ends) == [True]
    assert (waits.result(), air.hints) == (True, [id_of(entry) + mark])
    second.release()


@pytest.mark.parametrize("is_taken", [False, True])
def test_release_whose_answer_is_lost_calls_the_first_in_line_if_the_lock_is_free(
    scene, pool, is_taken
):
    """The release is sent again, and refused: what that shows is the row as it is by now."""
    air, lock = Air(), held(scene.mutex(fair=Hints()))
    first = scene.other(fair=Hints(), timeout=60)
    waits = pool.submit(first.acquire)
    until(lambda: first.position == 0)
    [entry] = scene.row.waiting
    call(pool, model=scene.there)
    air.datagrams.log.clear()
    time.sleep(2.0)
    takes = scene.other()
    again = after(partial(held, takes)) if is_taken else after(lambda: None)
    scene.proxy.next(drop_answer(), again, op="release")
    lock.release()
    assert scene.applied("release") == [True, False]
    assert air.hints == ([] if is_taken else [id_of(entry)])
    if is_taken:
        takes.release()
    assert waits.result()
    first.release()


def test_lock_that_is_broken_by_force_is_announced(air, pool):
    """By whoever does it: the row shows that its waiters can be called."""
    holder()
    waiter = Waiter(pool)
    time.sleep(7.03)
    since = time.monotonic()
    assert LockItem.force_release("a")
    assert waiter.acquired_within(0, since)
    assert air.hints == [id_of(waiter.entry)]
    waiter.release()


def test_tasks_are_called(air):
    async def play():
        lock = AsyncMutex.for_key("a", model=Elsewhere, fair=Hints())
        await lock.acquire()
        waiting = AsyncMutex.for_key("a", fair=Hints())
        task = asyncio.create_task(waiting.acquire())
        while waiting.position is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(7.03)
        number, since = len(air.requests), time.monotonic()
        await lock.release()
        assert await task
        assert time.monotonic() - since < INSTANT
        assert air.since(number) == [("UpdateItem", ALL), ("UpdateItem", ALL)]
        await waiting.release()

    asyncio.run(play())
    assert len(air.hints) == 1


def test_task_that_is_cancelled_while_its_socket_is_opened_waits_no_more(air):
    async def play():
        await AsyncMutex.for_key("a", model=Elsewhere, fair=True).acquire()
        for delay in range(5):
            task = asyncio.create_task(AsyncMutex.for_key("a", fair=Hints()).acquire())
            for _ in range(delay):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()

    asyncio.run(play())
    assert (entries(), current_process().of(Calls).waiters) == ([], {})


def test_whoever_does_not_wait_opens_no_socket(air):
    holder()
    assert not fair(timeout=0).acquire()
    assert not fair().acquire(blocking=False)
    assert (Listener in current_process()._of_rooms, air.datagrams.bound) == (False, {})


# -- polls ------------------------------------------------------------------------------------------


def test_polls_are_rare_once_a_hint_has_come_and_until_a_release_was_not_announced(air, pool):
    lock = holder(fair=True)
    waiter = Waiter(pool)
    often = polls(10)
    assert max(often[5:]) < 0.21
    lock.release()
    waiter.release()
    call(pool)
    lock = holder(fair=True)
    waiter = Waiter(pool)
    rare = polls(11)
    assert min(rare) == pytest.approx(LONGEST_POLL)
    since = time.monotonic()
    lock.release()
    assert waiter.acquired_within(LONGEST_POLL, since)
    assert not waiter.acquired_within(INSTANT, since)
    waiter.release()
    lock = holder(fair=True)
    waiter = Waiter(pool)
    assert polls(10) == pytest.approx(often, abs=0.01)
    lock.release()
    waiter.release()


def test_waiters_further_back_poll_rarely_too(air, pool):
    call(pool)
    lock = holder(lease=60)
    waiters = [Waiter(pool) for _ in range(3)]
    number = len(air.requests)
    time.sleep(10.01)
    assert len(air.requests) - number == 3 * 5
    lock.release()
    for waiter in waiters:
        waiter.release()


@pytest.mark.parametrize("section", [0.0, 0.2])
def test_lost_hint_costs_the_next_in_line_no_more_than_the_hint_before_it_grants(
    air, pool, section
):
    call(pool)
    lock = holder(lease=60)
    first, second = Waiter(pool), Waiter(pool, model=Elsewhere)
    time.sleep(7.25)  # just after a poll
    air.lose(id_of(second.entry))
    since = time.monotonic()
    lock.release()
    assert first.acquired_within(0, since)
    time.sleep(section)
    first.release()
    assert second.acquired_within(NEXT_POLL, since)
    assert not second.acquired_within(section, since)
    second.release()


def test_lost_hints_cost_a_rare_poll(air, pool):
    call(pool)
    lock = holder(lease=60)
    waiter = Waiter(pool)
    time.sleep(7.03)
    air.lose()
    since = time.monotonic()
    lock.release()
    assert waiter.acquired_within(LONGEST_POLL, since)
    waiter.release()


def test_late_hint_that_it_is_next_does_not_undo_a_call(air, pool):
    lock = holder()
    waiter = Waiter(pool)
    time.sleep(7.03)
    air.datagrams.log.clear()
    called = current_process().of(Calls).waiters[id_of(waiter.entry)]
    for text in ("", NEXT):
        called.note(id_of(waiter.entry) + text)
    assert (called.hint, called.follow(), called.follow()) == (id_of(waiter.entry), "take", None)
    lock.release()
    waiter.release()


# -- forged hints -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "0123456789abcdef", "x" * 1000, "\xff\n", NEXT])
def test_hint_for_nobody_is_ignored(air, pool, text):
    lock = holder()
    waiter = Waiter(pool)
    for _ in range(10):
        air.forge(waiter.entry, text)
    assert max(polls(10)) < 0.21
    assert not current_process().of(Calls).was_called
    lock.release()
    waiter.release()


@pytest.mark.parametrize("mark", ["", NEXT])
def test_forged_hints_cost_a_request_now_and_then_and_no_more(air, pool, mark):
    lock = holder(lease=60)
    first, second = Waiter(pool), Waiter(pool)
    number = len(air.requests)
    for _ in range(100):
        for waiter in (first, second):
            air.forge(waiter.entry, id_of(waiter.entry) + mark)
        time.sleep(0.01)
    sent = [operation for operation, _ in air.since(number)]
    # each forged call is a take that is refused, by the lock's holder or for its place
    assert sent.count("UpdateItem") <= (0 if mark else 2 * (1 / SHORTEST + 1))
    assert sent.count("GetItem") <= 2 * (1 / NEXT_POLL + 1)
    assert (lock.held, first.mutex.position, second.mutex.position) == (True, 0, 1)
    time.sleep(1)
    lock.release()
    assert second.acquired_within(0, first.release())
    second.release()


# -- sockets ----------------------------------------------------------------------------------------


def test_socket_is_closed_when_nobody_has_waited_for_a_while_and_opened_again(air, pool):
    def listening():
        threads = [thread.name for thread in worlds[-1].process.threads_running]
        return len(air.datagrams.bound), threads.count("pynamodb-mutex-hints")

    for _ in range(2):
        lock = holder(lease=60)
        waiters = [Waiter(pool), Waiter(pool)]
        time.sleep(3 * LINGER)
        assert listening() == (1, 1)
        assert address_of(waiters[0].entry) == address_of(waiters[1].entry)
        lock.release()
        for waiter in waiters:
            waiter.release()
        assert listening() == (1, 1)
        time.sleep(LINGER + 1)
        assert listening() == (0, 0)
        assert current_process().of(Calls).waiters == {}


def test_datagrams_of_strangers_keep_no_socket_open(air, pool):
    lock = holder(lease=60)
    waiter = Waiter(pool)
    lock.release()
    waiter.release()
    [address] = air.datagrams.bound
    for _ in range(3):
        air.datagrams.send(b"x", address, is_forged=True)
        time.sleep(LINGER - 1)
    assert air.datagrams.bound == {}


def test_waiters_with_other_wishes_are_called_elsewhere(air, pool):
    lock = holder(lease=60)
    wishes = [
        Hints(address="203.0.113.9", port=5000),
        Hints(port=5001),
        Hints(address="2001:db8::1"),
    ]
    waiters = [Waiter(pool, fair=each) for each in wishes]
    found = [address_of(waiter.entry) for waiter in waiters]
    host = worlds[-1].process.host
    assert found[:2] == [("203.0.113.9", 5000), (host, 5001)]
    assert found[2][0] == "2001:db8::1"
    assert len(air.datagrams.bound) == 3
    lock.release()
    for waiter in waiters:
        waiter.release()


@pytest.mark.parametrize("why", ["refused", "taken"])
def test_refused_socket_is_logged_once_and_costs_the_hints_alone(air, pool, caplog, why):
    caplog.set_level(logging.DEBUG, "pynamodb_mutex")
    hints = Hints(port=5000)
    if why == "refused":
        air.datagrams.refuses = True
    else:
        air.datagrams.bound[worlds[-1].process.host, 5000] = object()
    lock = holder(lease=60)
    waiters = [Waiter(pool, fair=hints), Waiter(pool, fair=hints)]
    assert [address_of(waiter.entry) for waiter in waiters] == [None, None]
    assert [record.levelname for record in caplog.records if "hints" in record.message] == [
        "WARNING"
    ]
    assert "no hints for Hints(address=None, port=5000), so waiters poll: " in caplog.text
    assert max(polls(10)) < 1
    lock.release()
    assert air.hints == []
    for waiter in waiters:
        waiter.release()


def test_waiter_of_a_process_that_has_forked_is_called_at_another_socket(air, pool):
    holder(lease=60)
    waiter = Waiter(pool)
    [left] = air.datagrams.bound
    forget_everything()
    assert air.datagrams.bound == {}
    with pytest.raises(MutexError, match="forked"):
        waiter.done.result()
    time.sleep(LINGER)
    assert "pynamodb-mutex-hints" not in [each.name for each in worlds[-1].process.threads_running]
    lock = holder(key="b")
    waiter = Waiter(pool, key="b")
    assert left not in air.datagrams.bound
    since = time.monotonic()
    lock.release()
    assert waiter.acquired_within(INSTANT, since)
    waiter.release()
