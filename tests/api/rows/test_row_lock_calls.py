"""A row's lock has all that a mutex has, also between threads."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from accounts import Account, Elsewhere, Ledger, balance, changed, expire
from pynamodb.connection import Connection
from pynamodb.transactions import TransactWrite
from row_tables import stored

from pynamodb_mutex import (
    Loss,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
)

QUICK = (0.02, 0.1)


# -- all that a mutex has -----------------------------------------------------------------------


def test_a_row_lock_can_do_what_a_mutex_can(accounts):
    lock = Account.locked("a", owner="me", lease=20)
    assert "not held" in repr(lock)
    with lock as row:
        assert f"RowLock '{Account.Meta.table_name}/a'" in repr(lock)
        assert "held, fencing token" in repr(lock)
        assert (lock.held, lock.lost, lock.loss, lock.owner) == (True, False, None, "me")
        assert (lock.abandoned, lock.abandoned_by, lock.data) == (False, None, None)
        assert (row.lock_token, row.lock_version) == (lock.token, lock.fencing_token)
        first = float(stored(row)["lock_expires_at"]["N"])
        lock.renew(40)
        assert 30 < lock.remaining <= 40
        lock.ensure_held(at_least=15)
        assert float(stored(row)["lock_expires_at"]["N"]) >= first + 15
        assert Account.locked("a").locked()
        with pytest.raises(MutexAlreadyHeldError):
            lock.acquire()
        with pytest.raises(MutexError, match="write to the row"):
            lock.save_data(1)
    token = lock.fencing_token
    with lock:
        assert lock.fencing_token == token + 1


def test_a_row_of_a_dead_holder(accounts):
    dead = Elsewhere.locked("a", owner="dead", auto_renew=False)
    assert dead.acquire()
    expire("a")
    with Account.locked("a", timeout=5) as row:
        assert (row.row_lock.abandoned, row.row_lock.abandoned_by) == (True, "dead")
        assert row.row_lock.fencing_token == dead.fencing_token + 1
        with pytest.raises(MutexLostError):
            dead.row.save()
    assert balance(Account) == 0


@pytest.mark.parametrize("options", [{"auto_renew": False}, {"max_hold": 0.1}], ids=repr)
def test_on_lost_is_reported_and_given_the_lock(model, options):
    lost = []
    lock = model.locked("a", on_lost=lost.append, **options)
    assert lock.acquire()
    time.sleep(31)
    assert len(lost) == 1
    assert lost[0] is lock
    assert (lock.loss, lock.lost, lock.held) == (Loss.EXPIRED, True, False)


def test_it_is_renewed_in_the_background(accounts):
    with Account.locked("a") as row:
        first = row.lock_expires_at
        time.sleep(31)
        assert row.row_lock.held
        assert float(stored(row)["lock_expires_at"]["N"]) > first
        row.save()


def test_a_reentrant_row_is_the_same_row(model):
    with model.locked("a", reentrant=True) as outer:
        outer.balance = 1
        with model.locked("a", reentrant=True) as inner:
            assert inner is outer
            inner.save()
            for write in (inner.save, lambda **also: inner.update([model.balance.add(1)], **also)):
                with pytest.raises(MutexAlreadyHeldError, match="only the last one"):
                    write(unlock=True)
        assert outer.is_locked
        assert balance(model) == 1
        outer.save(unlock=True)
        assert not outer.is_locked


def test_a_function_runs_under_it(accounts):
    @Account.locked("a", timeout=10)
    def raised(by):
        assert Account.get("a").is_locked
        row = Elsewhere.locked("a")
        assert row.acquire(blocking=False) is False
        return by

    assert raised(3) == raised(by=3) == 3
    assert not Account.locked("a").locked()


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_row_lock_is_not_copied_and_the_hint_says_what_to_do(copying):
    with pytest.raises(TypeError, match=r"Account\.locked\(") as caught:
        copying(Account.locked("a"))
    assert "for_key" not in str(caught.value)


def test_a_row_lock_has_no_truth_value():
    with pytest.raises(TypeError, match=r"\.held"):
        bool(Account.locked("a"))


def test_what_needs_a_row_of_its_own_needs_a_lock_model(table, ledger):
    for option in ({"data": 1}, {"delete_on_release": True}):
        with pytest.raises(TypeError, match=f"{next(iter(option))} needs a lock_model"):
            Account.locked("a", **option)
    with Ledger.locked("a", data={"page": 1}) as row:
        assert row.row_lock.data == {"page": 1}
        row.row_lock.save_data(2)
        row.save(unlock=True)
    assert [item.data for item in table.scan()] == [2]
    with Ledger.locked("a", delete_on_release=True):
        pass
    assert list(table.scan()) == []


def test_row_under_a_lock_that_is_deleted_at_release_is_not_written(table, ledger, sent):
    def within_a_transaction(row):
        with TransactWrite(connection=Connection()) as transaction:
            transaction.save(row)

    for what, write in (
        ("save", lambda row: row.save()),
        ("save", lambda row: row.save(unlock=True)),
        ("update", changed),
        ("delete", lambda row: row.delete()),
        ("transaction", within_a_transaction),
    ):
        with Ledger.locked("a", delete_on_release=True) as row:
            row.balance = 5
            sent.clear()
            with pytest.raises(MutexError, match=f"{what}: .*delete_on_release.* late copies"):
                write(row)
            assert sent == []
            assert row.row_lock.held
    refused = pytest.raises(MutexError, match=r"transaction: .*delete_on_release")
    with Ledger.locked_all(["a"], delete_on_release=True) as rows, refused:
        rows.transaction()
    assert balance(Ledger) == 0
    assert list(table.scan()) == []


# -- threads ------------------------------------------------------------------------------------


def test_each_thread_gets_the_row_as_the_one_before_left_it(model):
    tokens = []

    def add():
        with model.locked("a", timeout=60) as row:
            row.balance += 1
            row.save()
            tokens.append(row.row_lock.fencing_token)

    with ThreadPoolExecutor(5) as pool:
        for future in [pool.submit(add) for _ in range(10)]:
            future.result(90)
    assert balance(model) == 10
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("unlock", [True, False])
def test_who_waits_gets_the_row_as_it_then_stands(model, unlock):
    waits = threading.Event()

    def wait():
        lock = model.locked("a", timeout=60, poll=QUICK)
        waits.set()
        with lock as row:
            return row.balance

    with ThreadPoolExecutor(1) as pool, model.locked("a") as row:
        waiting = pool.submit(wait)
        assert waits.wait(60)
        time.sleep(0.3)
        row.balance = 8
        row.save()
        time.sleep(0.3)
        assert not waiting.done()
        row.balance = 9
        row.save(unlock=unlock)
        if not unlock:
            row.row_lock.release()
        assert waiting.result(60) == 9
