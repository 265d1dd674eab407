"""Keys that are closed: nobody acquires them, whoever asks learns why, and holders keep what they have."""

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest
from pynamodb import attributes as types
from test_lock_item import raw, subclass
from waits import until

from dev.faultproxy import after, apply_then_500, drop_answer
from pynamodb_mutex import (
    InvalidKeyError,
    InvalidRowError,
    LockItem,
    Mutex,
    MutexClosedError,
    RowLockMixin,
    Semaphore,
    synchronized,
)
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import expire, held_elsewhere

WHY = "migration until 14:00"
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)


def refused(call, *args, **more):
    with pytest.raises(MutexClosedError, match=f"'a' is closed: {WHY}") as raised:
        call(*args, **more)
    assert (raised.value.reason, raised.value.key) == (WHY, "a")
    return raised.value


ASKED = {
    "acquire": lambda: Mutex.for_key("a").acquire(),
    "not blocking": lambda: Mutex.for_key("a").acquire(blocking=False),
    "with": lambda: Mutex.for_key("a").__enter__(),
    "fair": lambda: Mutex.for_key("a", fair=True).acquire(),
    "deleted": lambda: Mutex.for_key("a", delete_on_release=True).acquire(),
    "several": lambda: Mutex.for_keys(["b", "a"]).acquire(),
    "decorator": synchronized("a")(lambda: None),
    "skip": synchronized("a", on_locked="skip")(lambda: None),
    "async": lambda: asyncio.run(AsyncMutex.for_key("a").acquire()),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_closed_key_refuses_all_who_ask(table, asked):
    LockItem.close("a", WHY)
    refused(asked)
    with held_elsewhere("b"):
        refused(asked)
    assert "token" in raw(table, "a")
    LockItem.open("a")
    assert asked() is not False


def test_error_can_be_pickled_and_names_the_holder(table):
    with Mutex.for_key("a", owner="me"):
        LockItem.close("a", WHY)
        error = refused(Mutex.for_key("a", owner="you").acquire, blocking=False)
        again = pickle.loads(pickle.dumps(error))
        assert (again.reason, again.key, again.owner) == (WHY, "a", "me")
        assert again.expires_at is not None


def test_one_of_several_keys_that_is_open_is_acquired(table):
    LockItem.close("a", WHY)
    for _ in range(5):
        with Mutex.any_of(["a", "b"]) as mutex:
            assert mutex.key == "b"
            assert Mutex.any_of(["a", "b"]).acquire(blocking=False) is False
    LockItem.close("b", "also")
    with pytest.raises(MutexClosedError, match="'any of a, b' is closed: "):
        Mutex.any_of(["a", "b"]).acquire()
    with pytest.raises(MutexClosedError, match="'any of a' is closed: "):
        Mutex.any_of(["a"]).acquire()
    LockItem.close("gpu#permit-1", WHY)
    with Semaphore.for_key("gpu", permits=2) as semaphore:
        assert semaphore.permit == 2


def test_holder_keeps_the_lock_until_it_releases_it(table):
    mutex = Mutex.for_key("a", lease=20)
    mutex.acquire()
    LockItem.close("a", WHY)
    mutex.renew()
    mutex.ensure_held(at_least=15)
    mutex.save_data({"page": 1})
    with mutex.transaction():
        pass
    ticket = mutex.detach()
    with Mutex.attach(ticket) as attached:
        assert attached.held
        assert table.get("a").closed == WHY
    item = table.get("a")
    assert (item.is_held, item.closed, item.ttl, item.data) == (False, WHY, LAST, {"page": 1})
    refused(mutex.acquire)


def test_dead_holders_lock_is_not_taken_over(table):
    with held_elsewhere("a"):
        expire("a")
        LockItem.close("a", WHY)
        refused(Mutex.for_key("a").acquire)
        assert table.force_release("a")
        refused(Mutex.for_key("a").acquire)


@pytest.mark.parametrize("fair", [False, True])
def test_waiters_from_before_learn_the_reason_and_get_nothing(table, fair):
    with Mutex.for_key("a") as holder, ThreadPoolExecutor() as pool:
        waiters = [Mutex.for_key("a", fair=fair) for _ in range(3)]
        waiting = [pool.submit(waiter.acquire) for waiter in waiters]
        queue = holder._mine().contender.queue
        until(lambda: len(table.get("a").waiting or () if fair else queue.turns) == 3)
        LockItem.close("a", WHY)
        for each in waiting:
            refused(each.result, 30)
        assert holder.held
        assert not table.get("a").waiting


def test_waiters_for_another_processs_lock_learn_the_reason(table):
    with held_elsewhere("a"), ThreadPoolExecutor() as pool:
        one, several, any_of = (
            pool.submit(lock.acquire)
            for lock in (Mutex.for_key("a"), Mutex.for_keys(["a", "b"]), Mutex.any_of(["a"]))
        )
        until(lambda: current_process().queue(current_process().store(LockItem), "a").watchers)
        LockItem.close("a", WHY)
        refused(one.result, 30)
        refused(several.result, 30)
        with pytest.raises(MutexClosedError, match="'any of a' is closed"):
            any_of.result(30)


def test_closed_key_is_not_handed_over(table):
    with ThreadPoolExecutor() as pool:
        holder = Mutex.for_key("a", poll=(60.0, 60.0), delete_on_release=True)
        holder.acquire()
        waiter = Mutex.for_key("a", poll=(60.0, 60.0))
        waiting = pool.submit(waiter.acquire)
        until(lambda: holder._mine().contender.queue.turns)
        LockItem.close("a", WHY)
        holder.release()
        refused(waiting.result, 5)
        item = table.get("a")
        assert (holder.lost, item.is_held, item.closed) == (False, False, WHY)


def test_closed_row_is_not_deleted_at_release(table):
    mutexes = [Mutex.for_key(key, delete_on_release=True) for key in "ab"]
    with mutexes[0]:
        LockItem.close("a", WHY)
    assert raw(table, "a")["closed"] == {"S": WHY}
    LockItem.open("a")
    with Mutex.for_keys(mutexes):
        LockItem.close("a", WHY)
    assert (raw(table, "a")["closed"], raw(table, "b")) == ({"S": WHY}, {})
    assert table.get("a").expires_at is None


def test_close_makes_the_row_and_keeps_its_date_until_it_is_opened(table):
    LockItem.close("a", "something else")
    LockItem.close("a", WHY)
    item = table.get("a")
    assert (item.closed, item.ttl, item.is_held, list(LockItem.held())) == (WHY, LAST, False, [])
    assert Mutex.for_key("a").locked() is False
    LockItem.open("a")
    LockItem.open("a")
    item = table.get("a")
    assert (item.closed, item.kept_until) == (None, None)
    with Mutex.for_key("a", must_exist=True) as mutex:
        assert mutex.fencing_token == item.version + 1
    assert table.get("a").ttl < LAST


def test_open_makes_a_row_of_a_free_lock(table):
    LockItem.open("a")
    item = table.get("a")
    assert (item.closed, item.is_held, item.kept_until) == (None, False, None)
    assert item.ttl.timestamp() == pytest.approx(item.version / 1000 + LockItem.retention, abs=5)
    with Mutex.for_key("a", must_exist=True) as mutex:
        ttl = table.get("a").ttl
        LockItem.open("a")
        assert (table.get("a").ttl, mutex.held) == (ttl, True)


def test_reason_is_bounded_where_it_is_given_and_where_it_is_shown(table):
    with pytest.raises(ValueError, match="1 to 1000 characters, this one 1001: shorten it"):
        LockItem.close("a", "x" * 1001)
    LockItem.close("a", "x" * 1000)
    stored = "y" * 100_000  # by another program
    table._get_connection().update_item("a", actions=[table.closed.set(stored)])
    with pytest.raises(MutexClosedError) as raised:
        Mutex.for_key("a").acquire()
    assert str(raised.value) == f"'a' is closed: {'y' * 1000}"
    assert raised.value.reason == stored


def test_what_cannot_be_closed(table):
    for wrong, error in (
        (7, TypeError),
        (None, TypeError),
        ("", ValueError),
        ("\ud800", ValueError),
    ):
        with pytest.raises(error, match="reason must be a"):
            LockItem.close("a", wrong)
    for call in (lambda: LockItem.close("", WHY), lambda: LockItem.open("x" * 2049)):
        with pytest.raises(InvalidKeyError):
            call()
    assert list(table.scan()) == []
    assert not hasattr(RowLockMixin, "close")


@pytest.mark.parametrize(
    "has", [{"name": {"S": "x"}}, {"token": {"S": "x"}}, {"version": {"N": "1"}}]
)
def test_row_that_is_no_locks_is_neither_closed_nor_opened(here, table, proxy, has):
    row = {"key": {"S": "foreign"}, **has}
    client = table._get_connection().connection.client
    # somebody makes it just before the write, and again it is seen by the read
    proxy.next(
        after(lambda: client.put_item(TableName=table.Meta.table_name, Item=row)), op="UpdateItem"
    )
    for call in (lambda: here.close("foreign", WHY), lambda: here.open("foreign")):
        with pytest.raises(InvalidRowError):
            call()
        assert raw(table, "foreign") == row


def test_range_keys_are_closed_one_by_one(engine):
    model = subclass(shard=types.UnicodeAttribute(range_key=True))
    model.close("a", WHY, "s1")
    with pytest.raises(MutexClosedError, match="'a s1' is closed"):
        Mutex.for_key("a", range_key="s1", model=model).acquire()
    with Mutex.for_key("a", range_key="s2", model=model):
        model.open("a", "s1")
    with Mutex.for_key("a", range_key="s1", model=model):
        pass


def test_closed_attribute_of_any_type_closes(table):
    with Mutex.for_key("a"):
        pass
    client = table._get_connection().connection.client
    client.put_item(TableName=table.Meta.table_name, Item=raw(table, "a") | {"closed": {"N": "7"}})
    with pytest.raises(MutexClosedError, match="'a' is closed: 7"):
        Mutex.for_key("a").acquire()
    LockItem.open("a")
    with Mutex.for_key("a"):
        pass


@pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
def test_close_and_open_whose_answers_are_lost_are_repeated(here, table, proxy, lose):
    for call, reason in ((lambda: here.close("a", WHY), WHY), (lambda: here.open("a"), None)):
        proxy.next(lose(), op="UpdateItem")
        call()
        assert table.get("a").closed == reason


@pytest.mark.real
def test_on_real_engines(table):
    mutex = Mutex.for_key("a", lease=20)
    mutex.acquire()
    LockItem.close("a", WHY)
    mutex.renew()
    item = table.get("a")
    assert (item.closed, item.ttl, item.is_held) == (WHY, LAST, True)
    refused(Mutex.for_key("a").acquire, blocking=False)
    mutex.release()
    refused(Mutex.for_key("a").acquire)
    assert table.get("a").ttl == LAST
    LockItem.open("a")
    with mutex:
        assert table.get("a").ttl < LAST
