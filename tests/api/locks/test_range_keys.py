"""Locks whose range keys are given lock by lock: each is a lock of its own, whatever shares its hash key."""

import asyncio
import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pynamodb import attributes as types
from row_models import Account
from test_lock_item import subclass
from this_process import QueueFor
from waits import until

from pynamodb_mutex import (
    InvalidKeyError,
    InvalidTicketError,
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexTimeoutError,
    Semaphore,
    synchronized,
)
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import expire, held_elsewhere


@pytest.fixture
def shards(engine):
    return subclass(shard=types.UnicodeAttribute(range_key=True))


def names(items):
    return [(item.key, item.shard) for item in items]


def test_locks_that_share_a_hash_key_are_independent(shards):
    one, other = (Mutex.for_key("c", range_key=f"s{n}", model=shards) for n in (1, 2))
    with one, other, Mutex.for_key("d", range_key="s1", model=shards):
        assert (one.key, one.range_key) == ("c", "s1")
        assert "'c s1' in " in repr(one)
        assert names(shards.held("c")) == [("c", "s1"), ("c", "s2")]
        assert sorted(names(shards.held())) == [("c", "s1"), ("c", "s2"), ("d", "s1")]
        assert all(item.is_held for item in shards.held("c"))
        assert names(shards.held("nothing")) == []
        again = Mutex.for_key("c", range_key="s1", model=shards, timeout=0)
        with pytest.raises(MutexTimeoutError, match="'c s1' was not free") as raised, again:
            pass
        assert raised.value.key == "c s1"
        with pytest.raises(MutexAlreadyHeldError, match="'c s2' is already held"):
            other.acquire()
        with pytest.raises(MutexAlreadyHeldError, match=r"'c s2' is already held .* by another"):
            Mutex.for_key("c", range_key="s2", model=shards).acquire()
        assert shards.force_release("c", "s1") is True
        assert (other.locked(), other.held, one.locked()) == (True, True, False)
        one.acquire()
    assert list(shards.held("c")) == []


def test_hand_over_stays_among_those_of_one_range_key(shards):
    lock = Mutex.for_key("c", range_key="s1", model=shards)
    with ThreadPoolExecutor() as pool, lock:
        waiter = Mutex.for_key("c", range_key="s1", model=shards)
        stranger = Mutex.for_key("c", range_key="s2", model=shards)
        waiting = pool.submit(waiter.acquire, timeout=20)
        assert stranger.acquire(blocking=False)
        stranger.release()
        assert not waiting.done()
        lock.release()
        assert waiting.result()
        assert not stranger.locked()
        lock.acquire(blocking=False)
        waiter.release()
        lock.acquire()


def test_lock_of_a_thread_that_has_ended_is_in_the_way_of_its_own_range_key_alone(shards, caplog):
    one, other = (Mutex.for_key("c", range_key=f"s{n}", model=shards) for n in (1, 2))
    thread = threading.Thread(target=one.acquire)
    thread.start()
    thread.join()
    with other, ThreadPoolExecutor() as pool:
        waiter = Mutex.for_key("c", range_key="s2", model=shards, timeout=1)
        assert pool.submit(waiter.acquire).result() is False
    assert "stays held" not in caplog.text
    assert not Mutex.for_key("c", range_key="s1", model=shards, timeout=1).acquire()
    assert caplog.text.count("'c s1' is held by") == 1
    one.release()


@pytest.mark.parametrize("wrong", [5, "", "x" * 1025, "\ud800", ["s1"]])
def test_range_key_that_no_row_can_have_is_refused_before_any_request(shards, wrong, sent):
    for call in (
        lambda: Mutex.for_key("c", range_key=wrong, model=shards),
        lambda: AsyncMutex.for_key("c", range_key=wrong, model=shards)._lock,
        lambda: shards.force_release("c", wrong),
    ):
        before = len(sent)
        with pytest.raises(InvalidKeyError, match=r"Sub\.shard"):
            call()
        assert len(sent) == before


def test_range_key_where_there_is_none_or_none_where_there_is_one(shards):
    with pytest.raises(InvalidKeyError, match="has no range key, but one was given: 's1'"):
        Mutex.for_key("c", range_key="s1")
    for call in (Mutex.for_key, shards.force_release):
        with pytest.raises(InvalidKeyError, match=r"Sub\.shard is a range key: give range_key"):
            call("c", **({"model": shards} if call == Mutex.for_key else {}))
    for make in (
        lambda: Semaphore.for_key("c", permits=2, range_key="s1", model=shards),
        lambda: Mutex.any_of(["c"], range_key="s1", model=shards),
        lambda: Mutex.for_keys(["c"], range_key="s1", model=shards),
    ):
        with pytest.raises(TypeError, match="unexpected keyword argument 'range_key'"):
            make()
    for several in (Mutex.any_of, Mutex.for_keys):
        with pytest.raises(InvalidKeyError, match="of several keys, to a Mutex for each"):
            several(["c"], model=shards)


def test_default_is_used_where_no_range_key_is_given(engine):
    model = subclass(shard=types.UnicodeAttribute(range_key=True, default="all"))
    with (
        Mutex.for_key("c", model=model) as default,
        Mutex.for_key("c", range_key="s1", model=model),
    ):
        assert default.range_key is None
        # those under other range keys may be another model's, unless they have this hash key
        assert names(model.held()) == [("c", "all")]
        assert names(model.held("c")) == [("c", "all"), ("c", "s1")]
        assert Mutex.for_key("c", range_key="all", model=model).acquire(blocking=False) is False


def test_range_keys_of_other_types(engine):
    for attribute, value, other in (
        (types.NumberAttribute(range_key=True), 7, 7.0),
        (types.BinaryAttribute(range_key=True, legacy_encoding=False), b"\xff", b"\xff"),
    ):
        model = subclass(shard=attribute)
        mutex = Mutex.for_key("c", range_key=value, model=model)
        mutex.acquire()
        assert Mutex.for_key("c", range_key=other, model=model).acquire(blocking=False) is False
        assert [item.shard for item in model.held("c")] == [value]
        with Mutex.attach(mutex.detach(), model=model) as attached:
            assert (attached.range_key, attached.held) == (value, True)
    with pytest.raises(InvalidKeyError, match=r"Sub\.shard cannot be nan"):
        Mutex.for_key(
            "c", range_key=math.nan, model=subclass(shard=types.NumberAttribute(range_key=True))
        )


def test_ticket_carries_the_range_key(shards):
    mutex = Mutex.for_key("c", range_key="s1", model=shards)
    mutex.acquire()
    ticket = mutex.detach()
    fields = json.loads(ticket)
    assert (fields["key"], fields["range_key"]) == ("c", {"S": "s1"})
    for wrong in ({"N": "1"}, {"S": 7}, {}, "s1"):
        with pytest.raises(InvalidTicketError, match="range key that Sub cannot have"):
            Mutex.attach(json.dumps(fields | {"range_key": wrong}), model=shards)
    with pytest.raises(InvalidTicketError, match="range key that LockItem cannot have"):
        Mutex.attach(ticket)
    with Mutex.attach(ticket, model=shards) as attached:
        assert names(shards.held("c")) == [("c", "s1")]
        assert (attached.key, attached.range_key) == ("c", "s1")


def test_group_of_locks_with_one_hash_key(shards):
    locks = [Mutex.for_key("c", range_key=f"s{n}", model=shards, reentrant=True) for n in (1, 2)]
    with Mutex.for_keys(locks) as group:
        assert group.keys == ("c s1", "c s2")
        assert set(group.fencing_tokens) == {"c s1", "c s2"}
        assert names(shards.held("c")) == [("c", "s1"), ("c", "s2")]
        with Mutex.for_keys(locks[::-1]) as again:
            assert again.fencing_tokens == group.fencing_tokens
        assert Mutex.for_key("c", range_key="s2", model=shards).acquire(blocking=False) is False


def test_any_of_locks_with_one_hash_key(shards):
    def both(**options):
        each = [Mutex.for_key("c", range_key=f"s{n}", model=shards, owner=f"w{n}") for n in (1, 2)]
        return Mutex.any_of([*each, each[0]], **options)

    mutex = both(lease=60)
    assert (mutex.keys, mutex.key, mutex.range_key) == (("c s1", "c s2"), "any of c s1, c s2", None)
    with held_elsewhere(("c", "s1"), model=shards):
        assert not mutex.locked()
    with held_elsewhere(("c", "s1"), model=shards), mutex:
        # it keeps its own options
        assert (mutex.key, mutex.range_key, mutex.owner) == ("c", "s2", "w2")
        assert mutex.remaining <= 30
        assert "'c s2' in " in repr(mutex)
        assert names(shards.held("c")) == [("c", "s1"), ("c", "s2")]
        with pytest.raises(MutexTimeoutError, match="'any of c s1, c s2' was not free"):
            both(timeout=0).__enter__()
        with pytest.raises(TypeError, match=r"which of 'c s1', 'c s2'\?"):
            mutex.force_release()
        # a release hands over the lock that was held, and not the other one of its hash key
        with ThreadPoolExecutor() as pool:
            waiter = both(poll=(50, 50))
            waiting = pool.submit(waiter.acquire, timeout=20)
            rows = frozenset(f"{shards.Meta.table_name}/c/s{n}" for n in (1, 2))
            until(lambda: QueueFor(shards, rows).in_the_way)
            released = time.monotonic()
            mutex.release()
            assert waiting.result()
            assert time.monotonic() == released
        assert (waiter.range_key, waiter.fencing_token) == ("s2", mutex.fencing_token + 1)
        waiter.release()
        mutex.acquire()
    assert list(shards.held("c")) == []


def test_any_of_locks_with_options_of_their_own(table):
    told = []
    own = Mutex.for_key(
        "a", lease=50, delete_on_release=True, on_lost=lambda mutex: told.append(("own", mutex))
    )
    given = {"on_lost": lambda mutex: told.append(("given", mutex)), "data": [1]}
    for keys, is_own in (([own], True), (["b"], False)):
        mutex = Mutex.any_of(keys, **given)
        mutex.acquire()
        assert (mutex.remaining > 40, mutex.data) == (is_own, None if is_own else [1])
        if is_own:
            mutex.renew()
            with pytest.raises(MutexError, match="delete_on_release"):
                mutex.fencing_token  # noqa: B018 - a property
            with pytest.raises(MutexError, match="delete_on_release"):
                mutex.renew(data=1)
        else:
            mutex.renew(data=2)
        table.force_release(mutex.key)
        with pytest.raises(MutexLostError):
            mutex.release()
        expected = [("own", mutex), ("given", mutex)][not is_own :]
        until(lambda: told == expected)  # noqa: B023 - called here
        told.clear()
    with Mutex.any_of([own, "b"]) as mutex:
        assert table.count(mutex.key) == 1


def test_what_cannot_be_any_of_several(shards):
    one = Mutex.for_key("a")
    shard = Mutex.for_key("c", range_key="s1", model=shards)
    for wrong, error, text in (
        ([one, Semaphore.for_key("a", permits=1)], TypeError, "any_of takes keys, and mutexes on"),
        ([one, shard], ValueError, "keys of one lock table, all by the same model"),
        ([shard, "c"], ValueError, "keys of one lock table"),
        ([one, Mutex.for_key("a", lease=7)], ValueError, "'a' comes twice, with different options"),
        ([Mutex.for_key("a", fair=True)], TypeError, "fair=True"),
        ([Mutex.for_key("a", must_exist=True)], TypeError, "must_exist=True is for one key"),
        ([Account.locked("a")], TypeError, "model must be LockItem or a subclass"),
    ):
        with pytest.raises(error, match=text):
            Mutex.any_of(wrong)
    for option in ("fair", "must_exist"):
        with pytest.raises(TypeError, match=f"{option}=True"):
            Mutex.any_of([one], **{option: True})


def test_any_of_in_a_task(shards):
    async def work():
        each = [Mutex.for_key("c", range_key=f"s{n}", model=shards) for n in (1, 2)]
        async with AsyncMutex.any_of(iter(each), cancel_on_loss=True) as mutex:
            shards.force_release("c", mutex.range_key)
            with pytest.raises(MutexLostError):
                await mutex.renew()
            await asyncio.sleep(60)

    with pytest.raises(MutexLostError):
        asyncio.run(work())


def test_synchronized_makes_the_range_key_from_the_arguments(shards):
    @synchronized("c-{number}", range_key="s{shard}", model=shards)
    def work(number, shard):
        return names(shards.held(f"c-{number}"))

    @synchronized("c-{number}", range_key="s{shard}", model=shards)
    async def work_async(number, shard):
        return names(await asyncio.to_thread(lambda: list(shards.held(f"c-{number}"))))

    assert work(7, 3) == [("c-7", "s3")]
    assert asyncio.run(work_async(8, 4)) == [("c-8", "s4")]
    numbered = subclass(shard=types.NumberAttribute(range_key=True))
    assert synchronized("c", range_key=1, model=numbered)(lambda: names(numbered.held("c")))() == [
        ("c", 1)
    ]
    with pytest.raises(InvalidKeyError, match="has no range key"):
        synchronized("c", range_key="s")
    with pytest.raises(ValueError, match="the function has no parameter 'shard'"):
        synchronized("c", range_key="{shard}", model=shards)(lambda: None)


def test_held_with_a_key_is_a_consistent_query(shards, sent):
    with Mutex.for_key("c", range_key="s1", model=shards):
        before = len(sent)
        assert names(shards.held("c")) == [("c", "s1")]
        assert sent[before:] == ["Query"]
    with pytest.raises(InvalidKeyError):
        shards.held("")


def test_testing_helpers_take_a_range_key(shards):
    with held_elsewhere("c", range_key="s1", owner="they", model=shards) as item:
        assert (item.key, item.shard, item.owner) == ("c", "s1", "they")
        assert Mutex.for_key("c", range_key="s1", model=shards).acquire(blocking=False) is False
        expire("c", shards, range_key="s1")
        assert Mutex.for_key("c", range_key="s1", model=shards).acquire(blocking=False)


@pytest.mark.real
def test_on_real_engines(engine):
    model = subclass(shard=types.UnicodeAttribute(range_key=True))
    locks = [Mutex.for_key("c", range_key=f"s{n}", model=model) for n in (1, 2)]
    with locks[0], locks[1]:
        assert names(model.held("c")) == [("c", "s1"), ("c", "s2")]
        assert model.force_release("c", "s2")
        assert names(model.held("c")) == [("c", "s1")]
        locks[1].acquire()
