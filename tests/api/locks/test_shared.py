"""Locks that readers share: who holds them together, who waits, what is refused, and which requests that takes."""

import asyncio
import time
from functools import partial

import pytest
from row_models import Account
from signal_receivers import hearing
from two_clients import Elsewhere, held, on_thread
from waits import until

from pynamodb_mutex import Loss, Mutex, Semaphore, exceptions, synchronized
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import expire

QUICK = (0.02, 0.1)


def shared(key="a", **options):
    return Mutex.for_key(key, **{"shared": True, "timeout": 20, "poll": QUICK, **options})


def alone(key="a", **options):
    return Mutex.for_key(key, **{"timeout": 20, "poll": QUICK, **options})


def labels(table):
    return sorted(label for label, _ in table.get("a").readers)


@pytest.mark.real("simulated", "embedded", "local")
def test_readers_hold_a_lock_together_and_a_writer_holds_it_alone(table):
    first = on_thread(held, shared(owner="first", model=Elsewhere))
    with shared(owner="second") as second:
        assert second.fencing_token == first.fencing_token
        assert second.token != first.token
        function = synchronized("a", shared=True, owner="third")(partial(labels, table))
        assert function() == ["first", "second", "third"]
        item = table.get("a")
        assert (item.owner, labels(table)) == ("shared: first", ["first", "second"])
        assert (item.is_held, [row.key for row in table.held()]) == (True, ["a"])
        with pytest.raises(exceptions.MutexTimeoutError, match=r"held by 2 reader\(s\): "):
            on_thread(alone(timeout=0, model=Elsewhere).__enter__)
    assert (second.held, first.held) == (False, True)
    assert labels(table) == ["first"]
    first.release()
    item = table.get("a")
    assert (item.is_held, item.readers, item.shared_by) == (False, [], None)
    with alone() as writer:
        assert (writer.fencing_token, writer.abandoned) == (first.fencing_token + 1, False)
        with pytest.raises(exceptions.MutexTimeoutError, match="held by"):
            on_thread(shared(timeout=0, model=Elsewhere).__enter__)


@pytest.mark.real("simulated", "embedded", "local")
def test_alone_a_reader_takes_two_requests_and_in_one_process_a_join_takes_a_read_and_a_write(
    table, sent
):
    with alone("b"):
        pass  # server time is known from here on
    sent.clear()
    with shared() as outer:
        assert sent == ["UpdateItem"]
        reader = on_thread(held, shared())
        assert sent == ["UpdateItem", "GetItem", "UpdateItem"]
        with shared() as nested:
            assert sent == ["UpdateItem", "GetItem", "UpdateItem", "UpdateItem"]
            assert nested.fencing_token == outer.fencing_token
        reader.release()
        sent.clear()
    assert sent == ["UpdateItem"]


@pytest.mark.real("simulated", "embedded", "local")
def test_waiting_writer_holds_new_readers_back_unless_they_are_nested_and_gets_in(table, pool):
    reading = held(shared(owner="reader"))
    waiting = pool.submit(alone(owner="writer").acquire)
    until(lambda: table.get("a").wanted_by == "writer")
    with pytest.raises(
        exceptions.MutexTimeoutError, match=r"a writer waits \('writer'\); held by 1 reader\(s\):"
    ):
        on_thread(shared(timeout=0).__enter__)
    assert shared().locked()
    with shared(timeout=5):
        reading.release()
        assert not waiting.done()
    assert waiting.result(60)
    item = table.get("a")
    assert (item.owner, item.wanted_by, item.shared_by) == ("writer", None, None)


def test_reader_that_asks_for_the_lock_alone_is_refused_at_once(table):
    for timeout in (0, 20, -1):
        with (
            shared(owner="reader"),
            pytest.raises(exceptions.MutexAlreadyHeldError, match="release the shared") as refused,
        ):
            alone(timeout=timeout).acquire()
        assert (refused.value.key, refused.value.owner) == ("a", "reader")


def again(mutex):
    held(mutex)
    return mutex


COVERS = {
    "a mutex": alone,
    "one that was entered again": lambda: again(alone(reentrant=True)),
    "one of several": lambda: Mutex.for_keys(["b", "a"]),
}


@pytest.mark.parametrize("covers", COVERS.values(), ids=COVERS)
def test_who_holds_a_lock_alone_reads_under_it_without_a_request(table, sent, covers):
    outer = held(covers())
    member = getattr(outer, "members", [outer])[-1]
    sent.clear()
    with hearing("a") as heard, shared(owner="inner", lease=1, timeout=0) as inner:
        assert (inner.held, inner.owner, inner.token) == (True, member.owner, member.token)
        assert inner.fencing_token == member.fencing_token
        assert 29 < inner.remaining <= outer.remaining
        inner.ensure_held(20)
        assert synchronized("a", shared=True)(shared(timeout=0).acquire)()
        with pytest.raises(exceptions.MutexAlreadyHeldError, match="by this mutex"):
            inner.acquire()
        with pytest.raises(exceptions.MutexError, match="readers guard no writes"):
            inner.save_data("x")
    assert (inner.held, inner.lost, outer.held, sent) == (False, False, True, [])
    assert not {"acquired", "released"} & set(heard.names)
    assert not on_thread(shared(timeout=0).acquire)
    with pytest.raises(exceptions.MutexNotHeldError):
        inner.release()
    assert inner.acquire(timeout=0)
    sent.clear()
    inner.renew(600)
    assert len(sent) == 1
    assert inner.remaining == pytest.approx(member.remaining, abs=1)
    assert outer.remaining > 500
    while outer.held:
        outer.release()
    assert (inner.held, inner.lost, table.get("a").is_held) == (False, False, False)
    for call in (inner.renew, inner.ensure_held, inner.release):
        with pytest.raises(exceptions.MutexNotHeldError):
            call()
    with shared() as reading:
        assert (reading.held, labels(table)) == (True, [reading.owner])


def test_share_under_a_lock_is_lost_and_won_back_with_it(table):
    outer, inner = held(alone(lease=5, auto_renew=False)), held(shared())
    time.sleep(5)
    with pytest.raises(exceptions.MutexLostError):
        inner.ensure_held()
    assert [each.loss for each in (outer, inner)] == [Loss.EXPIRED] * 2
    inner.renew()
    assert (outer.held, inner.held) == (True, True)
    Elsewhere.force_release("a")
    for call in (inner.renew, inner.release, outer.release):
        with pytest.raises(exceptions.MutexLostError):
            call()
        assert [each.loss for each in (outer, inner)] == [Loss.FORCED] * 2


@pytest.mark.parametrize(
    "option", ["reentrant", "delete_on_release", "fair", "hold_at_least", "data"]
)
def test_options_that_need_the_lock_alone_are_refused(option):
    with pytest.raises(TypeError, match=rf"{option} is for a lock that is held alone"):
        shared(**{option: True})


def test_other_kinds_of_lock_are_not_shared(table):
    for make in (
        lambda: Mutex.for_keys(["a", "b"], shared=True),
        lambda: Mutex.any_of(["a", "b"], shared=True),
        lambda: Semaphore.for_key("a", permits=2, shared=True),
        lambda: shared().acquire(force=True),
        lambda: shared(shared="yes"),
        lambda: Mutex.attach("{}", shared=True),
        lambda: held(shared()).detach(),
    ):
        with pytest.raises(TypeError, match="shared"):
            make()
    with shared() as mutex:
        write, renew = partial(mutex.save_data, [1]), partial(mutex.renew, data=[1])
        for call in (mutex.transaction, write, renew, partial(mutex.release, data=[1])):
            with pytest.raises(exceptions.MutexError, match="readers guard no writes"):
                call()
        assert mutex.held


def test_tasks_share_a_lock_and_so_do_those_of_a_row(table):
    async def refused(kind):
        acquired = kind.for_row(Account, "r", shared=True, timeout=0).acquire()
        return not (acquired if kind is Mutex else await acquired)

    async def work():
        name = AsyncMutex.for_row(Account, "r", shared=True)
        async with AsyncMutex.for_key("a", shared=True), name:
            await asyncio.create_task(AsyncMutex.for_key("a", shared=True).acquire())
            assert len(table.get("a").readers) == 2
            assert len(table.get(name.key).readers) == 1
            with pytest.raises(exceptions.MutexAlreadyHeldError):
                await AsyncMutex.for_key("a").acquire()
        under = AsyncMutex.for_row(Account, "r", shared=True, timeout=0)
        async with AsyncMutex.for_row(Account, "r") as outer, under:
            assert under.token == outer.token
            for other in (AsyncMutex, Mutex):
                assert await asyncio.create_task(refused(other))
            await outer.release()
            assert not under.held

    asyncio.run(work())
    with pytest.raises(TypeError, match="shared is for the locks of keys"):
        Account.locked("r", shared=True)


def test_without_server_time_nobody_shares(table, wire):
    wire.drop_dates("GetItem", "UpdateItem")
    with pytest.raises(exceptions.MutexError, match="no Date"):
        shared().acquire()


def test_dead_readers_are_replaced_by_the_next_one_and_abandon_nothing(table):
    for make in (shared, alone):
        dead = on_thread(held, shared(owner="dead", auto_renew=False))
        expire("a")
        with make() as mutex:
            assert table.get("a").is_held
            assert mutex.fencing_token == dead.fencing_token + 1
            assert not mutex.abandoned
        with pytest.raises(exceptions.MutexLostError):
            dead.renew()
        assert dead.lost


def test_only_the_first_reader_learns_that_a_writer_died(table):
    on_thread(held, alone(owner="dead", auto_renew=False))
    expire("a")
    with shared() as first, shared() as second:
        assert (first.abandoned_by, second.abandoned_by) == ("dead", None)
