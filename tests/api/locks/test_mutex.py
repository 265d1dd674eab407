"""Mutex: what it does with its row, and among the threads of a process."""

import gc
import math
import os
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
from pynamodb.attributes import NumberAttribute, VersionAttribute
from pynamodb.exceptions import TransactWriteError
from pynamodb.transactions import TransactWrite
from row_models import PLAIN, created, hashed, made
from two_clients import Elsewhere, held
from waits import until

from pynamodb_mutex import LockItem, Loss, Mutex, exceptions, release_all
from pynamodb_mutex.testing import expire, held_elsewhere

QUICK = (0.02, 0.1)


@pytest.mark.real
def test_life_of_a_lock(table, sent):
    first, second = Mutex.for_key("a", owner="first"), Mutex.for_key("a", data=[1])
    for name in ("token", "fencing_token"):
        with pytest.raises(exceptions.MutexNotHeldError):
            getattr(first, name)
    assert (first.abandoned, first.data, first.locked()) == (False, None, False)
    sent.clear()
    assert (first.acquire(), sent) == (True, ["UpdateItem"])
    item = table.get("a")
    during = (first.token, first.fencing_token)
    assert during == (item.token, item.version)
    # server time in milliseconds
    assert first.fencing_token / 1000 == pytest.approx(time.time(), abs=60)
    assert f"<Mutex 'a' in {table.Meta.table_name}: held, fencing token {during[1]}" in repr(first)
    for model in (Elsewhere, LockItem):
        with pytest.raises(exceptions.MutexTimeoutError) as refused:
            Mutex.for_key("a", model=model, timeout=0).__enter__()
        error = refused.value
        assert (error.key, error.owner, error.expires_at) == ("a", "first", item.expires)
        assert item.expires.isoformat(timespec="milliseconds") in str(error)
    first.renew(lease=100)
    assert table.get("a").expires_at > item.expires_at + 60
    first.save_data({"page": 1})
    sent.clear()
    assert (first.locked(), sent) == (True, ["GetItem"])
    first.release()
    assert (first.locked(), first.token, first.fencing_token) == (False, *during)
    with second:
        assert second.token != during[0]
        assert (second.fencing_token, second.data) == (during[1] + 1, [1])
    dead = held(Mutex.for_key("a", owner="dead", auto_renew=False))
    expire("a")
    assert not dead.locked()
    with Mutex.for_key("a", model=Elsewhere, timeout=0) as next_holder:
        assert (next_holder.abandoned, next_holder.abandoned_by) == (True, "dead")
        assert next_holder.fencing_token > dead.fencing_token
        with pytest.raises(exceptions.MutexLostError, match="save_data"):
            dead.save_data("late")
    assert next_holder.abandoned
    with pytest.raises(exceptions.MutexLostError) as caught, first:  # noqa: PT012 - the block is what is left
        assert (first.abandoned, first.abandoned_by, first.data) == (False, None, [1])
        assert LockItem.force_release("a")
    assert caught.value.loss is Loss.FORCED
    with Mutex.for_key("a", delete_on_release=True):
        pass
    assert list(table.scan()) == []


@pytest.mark.real("simulated", "local")
def test_any_text_that_dynamodb_takes_is_a_key(table):
    for key in ("x", "  ", "ключ-🔒", "a/b?c#d", "k" * 2048, "é" * 1024, "$", ":x", "X"):
        with Mutex.for_key(key, timeout=0) as mutex, Mutex.for_key("other", timeout=0):
            assert mutex.key == table.get(key).key == key
            assert Mutex.for_key(key).locked()


def test_owner_is_host_process_and_thread_or_the_callers_label(table, pool):
    def owner(**options):
        with Mutex.for_key("a", **options) as mutex:
            assert table.get("a").owner == mutex.owner
        return mutex.owner

    here = f":{os.getpid()}:{threading.current_thread().name}"
    other = pool.submit(owner).result(60)
    owners = (Mutex.for_key("a").owner, owner(), other)
    assert [each.endswith(here) for each in owners] == [True, True, False]
    assert f":{os.getpid()}:" in other
    assert owner(owner="request-é") == "request-é"


def test_delete_on_release_refuses_guarded_writes(table, sent):
    mutex = Mutex.for_key("a", delete_on_release=True)
    for call in (lambda: mutex.save_data([2]), mutex.transaction):
        with mutex:
            sent.clear()
            with pytest.raises(
                exceptions.MutexError, match=r"delete_on_release.* late copies"
            ) as caught:
                call()
            # sent, a copy of it would be applied a second time, after the copy of its acquire
            assert sent == []
            assert (type(caught.value), caught.value.key) == (exceptions.MutexError, "a")
            assert mutex.held
        # that the lock is not held is reported first
        with pytest.raises(exceptions.MutexNotHeldError, match="released"):
            call()
    assert list(table.scan()) == []


@pytest.mark.real("embedded")
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has this clock")
def test_deadline_is_a_reading_of_the_clock_that_users_read(table):
    # as the documentation says
    now = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    with Mutex.for_key("a", lease=100, auto_renew=False) as mutex:
        assert now() < mutex.deadline <= now() + 100
        assert mutex.remaining == pytest.approx(mutex.deadline - now(), abs=30)
        mutex.detach()
        assert mutex.deadline == -math.inf


PAYLOADS = [0, "", [], {}, False, True, 1.5, -1, 10**30, "ключ 🔒", "null", "\ud800"]
PAYLOADS += [{"a": [1, {"b": None}], "é": "\x00"}]


@pytest.mark.real("simulated", "local")
def test_any_json_is_a_payload_and_survives_a_change_of_hands(table):
    for data in PAYLOADS:
        with Mutex.for_key("a", data=data) as mutex:
            assert mutex.data == table.get("a").data == data
    mutex.acquire()
    for data in (None, *PAYLOADS):
        mutex.save_data(data)
        assert mutex.data == table.get("a").data == data
    LockItem.force_release("a")
    with Mutex.for_key("a") as following:
        assert following.data == mutex.data == PAYLOADS[-1]
        following.save_data(None)
    with Mutex.for_key("a") as following:
        assert following.data is None


def test_payload_is_taken_as_it_is_when_it_is_given(table, sent):
    data = [1]
    mutex = Mutex.for_key("a", data=data)
    data.append(2)
    with pytest.raises(exceptions.MutexNotHeldError, match="save_data"):
        mutex.save_data(1)
    with mutex:
        sent.clear()
        for wrong in (object(), {1, 2}, b"x", {"a": threading.Lock()}):
            with pytest.raises(TypeError):
                mutex.save_data(wrong)
        assert sent == []
        assert mutex.data == table.get("a").data == [1]
        mutex.save_data([2])
    sent.clear()
    with pytest.raises(exceptions.MutexNotHeldError, match="released"):
        mutex.save_data(1)
    assert sent == []
    assert table.get("a").data == [2]


def test_reentrance_does_not_outlive_the_lock(table):
    outer, inner = held(Mutex.for_key("a", reentrant=True)), Mutex.for_key("a", reentrant=True)
    LockItem.force_release("a")
    with inner:
        assert inner.fencing_token > outer.fencing_token
        assert not outer.held
        with pytest.raises(exceptions.MutexLostError):
            outer.release()
        assert inner.held


@pytest.mark.real("embedded")
def test_thread_is_not_mistaken_for_one_that_ended(table):
    """Python gives a new thread the number of an old one."""
    plain, nested = Mutex.for_key("a", poll=QUICK), Mutex.for_key("b", reentrant=True)
    numbers, taken = [], []

    def come():
        if not numbers:
            numbers.append(threading.get_ident())
            held(plain)
            held(nested)
        elif threading.get_ident() in numbers:
            mutexes = Mutex.for_key("b", reentrant=True), plain
            taken.extend(mutex.acquire(blocking=False) or mutex.held for mutex in mutexes)

    with Mutex.for_key("other"):
        pass  # from now on the renewer's thread is there, and takes no number
    for _ in range(100):
        thread = threading.Thread(target=come)
        thread.start()
        thread.join()
        if taken:
            break
    else:
        pytest.skip("no thread got the number of the one that ended")
    assert taken == [False, False]
    # nor is anything kept of those that have ended
    gc.collect()
    assert [len(mutex._acquired) for mutex in (plain, nested)] == [0, 0]


def test_each_thread_sees_its_own_acquisition_or_else_the_latest(table, pool):
    mutex = held(Mutex.for_key("a", poll=QUICK))
    assert pool.submit(lambda: (mutex.held, mutex.token)).result(60) == (True, mutex.token)
    mine = mutex.fencing_token
    LockItem.force_release("a")

    def other():
        with mutex:
            time.sleep(10)
            assert mutex.held
            return mutex.fencing_token

    working = pool.submit(other)
    time.sleep(5)
    assert (mutex.held, mutex.lost, mutex.fencing_token) == (False, True, mine)
    with pytest.raises(exceptions.MutexLostError):
        mutex.release()
    # what the other thread took was not released
    assert mutex.locked()
    assert working.result(60) > mine
    assert not mutex.locked()
    assert not pool.submit(lambda: mutex.held).result(60)


def test_waiter_whose_row_would_be_too_large_does_not_spoil_the_holders_release(table, pool):
    holder, waiter = held(Mutex.for_key("a")), Mutex.for_key("a", data="x" * 409_590, poll=QUICK)
    waiting = pool.submit(waiter.acquire, timeout=20)
    until(lambda: holder._latest.contender.queue.turns)
    holder.release()
    assert "size" in str(waiting.exception(60))
    assert not holder.locked()


@pytest.fixture
def account(table):
    """The model of rows without locks."""
    attributes = hashed(balance=partial(NumberAttribute, default=0), version=VersionAttribute)
    return created(made(attributes(), PLAIN))


def stored(model):
    return {item.pk: item.balance for item in model.scan()}


def saving(mutex, *rows):
    """Return a transaction that is to save rows, before it is committed by its exit."""
    transaction = mutex.transaction()
    for row in rows:
        transaction.save(row)
    return transaction


@pytest.mark.real("simulated", "local")
def test_transaction_writes_rows_of_several_tables_under_the_lock(account, table):
    kept, changed, gone = (account(name, balance=1) for name in ("kept", "changed", "gone"))
    for row in (kept, changed, gone):
        row.save()
    with Mutex.for_key("a") as mutex:
        with mutex.transaction() as transaction:
            assert isinstance(transaction, TransactWrite)
            transaction.save(account("new", balance=7))
            transaction.update(changed, actions=[account.balance.add(4)])
            transaction.delete(gone)
            transaction.condition_check(account, "kept", condition=account.balance == 1)
            transaction.update(table("b"), actions=[table.data.set([1])])
        assert stored(account) == {"kept": 1, "changed": 5, "new": 7}
        assert account.get("changed").version == changed.version == 2
        assert table.get("b").data == [1]
        refused = saving(mutex, account("y", balance=9))
        refused.condition_check(account, "kept", condition=account.balance > 100)
        # DynamoDB takes no two operations on one item
        twice = mutex.transaction()
        twice.update(table("a"), actions=[table.data.set([1])], add_version_condition=False)
        for transaction in (twice, refused):
            with pytest.raises(TransactWriteError) as caught:
                transaction.__exit__(None, None, None)
        assert caught.value.cause_response_code == "TransactionCanceledException"
        assert mutex.held
        saving(mutex, account("after")).__exit__(None, None, None)
        assert set(stored(account)) == {"kept", "changed", "new", "after"}


def test_durations_may_be_timedeltas(table):
    long = timedelta(minutes=1)
    brief = timedelta(seconds=0.2)
    waits = {"timeout": timedelta(seconds=20), "poll": (brief, 1)}
    mutex = Mutex.for_key("a", lease=long, hold_at_least=long, max_hold=long, **waits)
    with held_elsewhere("a", lease=60):
        began = time.monotonic()
        assert mutex.acquire(timeout=timedelta(seconds=3)) is False
        assert time.monotonic() - began == pytest.approx(3)
        assert mutex.acquire() is False
        assert time.monotonic() - began == pytest.approx(23)
    assert mutex.acquire()
    assert 58 < mutex.remaining <= 60
    mutex.renew(timedelta(minutes=2))
    assert 118 < mutex.remaining <= 120
    ticket = mutex.detach(timedelta(minutes=3))
    assert table.get("a").lease == pytest.approx(180, abs=0.01)
    attached = Mutex.attach(ticket, lease=timedelta(minutes=4), hold_at_least=long)
    assert 237 < attached.remaining <= 240
    with pytest.raises(ValueError, match="at_least must be from 0 to below the lease"):
        attached.ensure_held(timedelta(minutes=4))
    ends = table.get("a").expires_at
    attached.ensure_held(timedelta(seconds=239.99))  # renews
    assert table.get("a").expires_at > ends
    assert release_all(timedelta(seconds=5)) == []
    assert 50 < table.get("a").remaining < 63  # nobody holds it, and nobody gets it before


def test_transaction_that_is_not_committed_writes_nothing(account):
    mutex = Mutex.for_key("a")
    with mutex:
        with mutex.transaction():
            pass  # without writes it checks that the lock is held
        with pytest.raises(KeyError), mutex.transaction() as writing:  # noqa: PT012 - the block is what is left
            writing.save(account("x"))
            raise KeyError("mine")
        assert mutex.held
        writing = saving(mutex, account("x"))
    with pytest.raises(exceptions.MutexNotHeldError, match="released"):
        writing.__exit__(None, None, None)
    for model, rows in ((LockItem, ["x"]), (Elsewhere, ["x"]), (Elsewhere, [])):
        mutex.acquire()
        writing = saving(mutex, *map(account, rows))
        model.force_release("a")
        with pytest.raises(exceptions.MutexLostError) as caught:
            writing.__exit__(None, None, None)
        assert (caught.value.applied, caught.value.loss) == (False, Loss.FORCED)
    assert stored(account) == {}
