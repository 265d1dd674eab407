"""Row locks as their users see them: `locked`, the row it gives, and its lock."""

import copy
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from accounts import Account, Elsewhere, Ledger, balance, changed
from pynamodb.connection import Connection
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
from row_tables import stored
from worker import Fork

from pynamodb_mutex import (
    Loss,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    RowLock,
    RowLockedError,
    RowLockMixin,
)
from pynamodb_mutex._runtime.process import forget_everything
from pynamodb_mutex.testing import expire

QUICK = (0.02, 0.1)


# -- taking it ----------------------------------------------------------------------------------


@pytest.mark.real
def test_row_is_written_under_its_lock(model):
    with model.locked("a") as row:
        assert type(row) is model
        assert (row.name, row.balance) == ("a", 0)
        assert row.row_lock.held
        row.balance += 1
        row.save()
        row.update(actions=[model.balance.add(2)])
        assert row.balance == balance(model) == 3
        row.balance = 9
        row.refresh(consistent_read=True)
        assert row.balance == 3
        row.save()
    assert not model.locked("a").locked()
    with pytest.raises(MutexLostError), model.locked("a") as row:
        assert model.locked("a").force_release()
    with model.locked("a") as next_holder:
        next_holder.balance = 4
        next_holder.save(unlock=True)
    with pytest.raises(MutexLostError):
        row.save()
    assert balance(model) == 4


def test_requests_of_a_lock_in_the_row(accounts, sent):
    sent.clear()
    lock = Account.locked("a")
    assert isinstance(lock, RowLock)
    assert sent == []
    # no request reads the row
    with lock as row:
        assert sent == ["UpdateItem"]
        row.balance = 5
        row.save(unlock=True)
    assert sent == ["UpdateItem", "PutItem"]
    sent.clear()
    with lock as row:
        assert row.balance == 5
        row.update(actions=[Account.balance.set(6)])
        assert row.balance == 6
    assert sent == ["UpdateItem"] * 3
    forget_everything()
    sent.clear()
    # the first request of a process is one more
    with Account.locked("a"):
        assert sent == ["GetItem", "UpdateItem"]


def test_requests_of_a_lock_in_the_lock_table(ledger, sent):
    sent.clear()
    with Ledger.locked("a") as row:
        assert sent == ["UpdateItem", "GetItem"]
        row.save(unlock=True)
    assert sent == ["UpdateItem", "GetItem", "TransactWriteItems"]


@pytest.mark.parametrize("enter", [RowLock.__enter__, RowLock.acquire])
def test_missing_row_is_not_made(accounts, ledger, enter):
    lock = Account.locked("missing")
    with pytest.raises(Account.DoesNotExist, match="missing"):
        enter(lock)
    assert not lock.held
    assert stored(Account("missing")) == {}
    Account("missing").save()
    assert lock.acquire(timeout=0)
    lock = Ledger.locked("missing")
    with pytest.raises(Ledger.DoesNotExist, match="missing"), lock:
        pass
    assert not lock.locked()
    assert [row.name for row in Ledger.scan()] == ["a"]


# -- the row and its lock -----------------------------------------------------------------------


def test_lock_shows_the_claim_in_the_row(accounts):
    lock = Account.locked("a", owner="me", timeout=5)
    assert lock.key == f"{Account.Meta.table_name}/a"
    with lock as row:
        assert f"<RowLock '{lock.key}' in " in repr(lock)
        assert (lock.owner, lock.data) == ("me", None)
        assert (lock.abandoned, lock.abandoned_by) == (False, None)
        assert (row.lock_token, row.lock_version) == (lock.token, lock.fencing_token)
        assert row.lock_expires_at == float(stored(row)["lock_expires_at"]["N"])
        lock.renew()
        assert float(stored(row)["lock_expires_at"]["N"]) > row.lock_expires_at
        with pytest.raises(MutexError, match="write to the row"):
            lock.save_data(1)
    token = lock.fencing_token
    dead = Elsewhere.locked("a", owner="dead", auto_renew=False)
    assert dead.acquire()
    expire("a", Account)
    with lock:
        assert (lock.abandoned, lock.abandoned_by) == (True, "dead")
        assert lock.fencing_token == dead.fencing_token + 1 == token + 2


def test_only_the_row_that_was_read_under_the_lock_has_it(model):
    before = model.get("a")
    with model.locked("a") as row:
        lock = row.row_lock
        assert isinstance(lock, RowLock)
        assert lock.row is row
        for other in (before, model.get("a"), model("a", balance=1)):
            with pytest.raises(MutexNotHeldError, match="without its lock"):
                _ = other.row_lock
            for write in (other.save, other.delete, lambda row=other: changed(row)):
                with pytest.raises(RowLockedError) as caught:
                    write()
                assert (caught.value.key, caught.value.owner) == (lock.key, lock.owner)
            with pytest.raises(MutexNotHeldError, match="not locked here"):
                other.save(unlock=True)
        row.save()
    assert row.row_lock is lock
    assert balance(model) == 0


def test_is_locked_says_what_the_instance_shows(accounts, ledger):
    free = Account.get("a")
    assert not free.is_locked
    assert not Account("a").is_locked
    with Elsewhere.locked("a") as theirs:
        seen = Account.get("a")
        assert (seen.is_locked, theirs.is_locked, free.is_locked) == (True, True, False)
        expire("a", Account)
        assert not Account.get("a").is_locked
    with Account.locked("a") as row:
        assert row.is_locked
        row.save()
        assert row.is_locked
        row.update(actions=[Account.balance.add(1)])
        assert row.is_locked
        row.save(unlock=True)
        assert not row.is_locked
    # another instance shows nothing of a lock in the lock table
    with Ledger.locked("a") as row:
        assert row.is_locked
        assert not Ledger.get("a").is_locked


@pytest.mark.parametrize("write", [Model.refresh, RowLockMixin.save, changed, None])
def test_row_is_not_locked_any_more_when_its_lock_was_released(model, write):
    with model.locked("a") as row:
        if write is not None:
            write(row)
        assert row.is_locked
    assert not row.is_locked
    with model.locked("a") as after:
        assert after is not row
        with pytest.raises(RowLockedError):
            row.save()
        after.save()
    if model is Account:
        with Elsewhere.locked("a"):
            row.refresh(consistent_read=True)
            assert row.is_locked


def together(write):
    """Return a call that makes a write in a transaction of PynamoDB's."""

    def call():
        with TransactWrite(connection=Connection()) as transaction:
            write(transaction)

    return call


def every_way_to_write(row):
    """Return what a program may do with an instance, each as a call."""

    def batch(what):
        def call():
            with type(row).batch_write() as writes:
                getattr(writes, what)(row)

        return call

    add = [type(row).balance.add(1)]
    return [
        row.save,
        row.delete,
        lambda: row.update(actions=add),
        lambda: row.save(unlock=True),
        together(lambda transaction: transaction.save(row)),
        together(lambda transaction: transaction.update(row, actions=add)),
        together(lambda transaction: transaction.delete(row)),
        batch("save"),
        batch("delete"),
    ]


def save_and_unlock(row):
    row.save(unlock=True)


def update_and_unlock(row):
    row.update(actions=[type(row).balance.set(row.balance)], unlock=True)


def release_by_hand(row):
    row.row_lock.release()


@pytest.mark.parametrize("release", [save_and_unlock, update_and_unlock, release_by_hand])
def test_row_released_inside_its_block_is_not_written_there(model, release):
    with model.locked("a") as row:
        row.balance = 5
        release(row)
        with model.locked("a") as next_holder:
            next_holder.balance = 7
            next_holder.save()
        for write in every_way_to_write(row):
            with pytest.raises(MutexNotHeldError, match="row") as caught:
                write()
            assert type(caught.value) is MutexNotHeldError
            assert caught.value.key == row.row_lock.key
        assert balance(model) == 7
    # afterwards it is an ordinary instance again, whose last write wins
    row.save()
    assert balance(model) == 5
    lock = model.locked("a")
    assert lock.acquire()
    row = lock.row
    release(row)
    # where there is no block it is one at once
    row.balance = 3
    row.save()
    assert balance(model) == 3


def test_row_deleted_inside_its_block_is_not_made_anew(accounts):
    with Account.locked("a") as row:
        row.delete()
        Account("a", balance=7).save()
        with pytest.raises(MutexNotHeldError):
            row.save()
    assert balance(Account) == 7


def test_reentrant_lock_gives_the_same_row_until_each_block_has_ended(model):
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
        with pytest.raises(MutexNotHeldError):
            outer.save()
    outer.save()


def test_rows_released_together_inside_their_block_are_not_written_there(model):
    model("b").save()
    with model.locked_all(["a", "b"]) as rows:
        first, second = rows
        with rows.transaction() as transaction:
            transaction.save(first)
        for row in (first, second):
            for write in every_way_to_write(row):
                with pytest.raises(MutexNotHeldError):
                    write()
    first.save()
    second.save()


@pytest.mark.parametrize("known", ["at once", "at its release"])
def test_lost_row_is_never_saved_again(model, known):
    lock = model.locked("a")
    with pytest.raises(MutexLostError), lock as row:  # noqa: PT012 - the block is what is left
        if known == "at once":
            assert model.locked("a").force_release()
        elif model is Account:
            assert Elsewhere.locked("a").force_release()
        else:
            Ledger.lock_model(lock.key).delete(add_version_condition=False)
    loss = Loss.DELETED if (model, known) == (Ledger, "at its release") else Loss.FORCED
    assert lock.loss is loss
    with model.locked("a") as next_holder:
        next_holder.balance = 1
        next_holder.save()
    row.balance = 7
    for write in (row.save, row.delete, lambda: row.save(unlock=True), lambda: changed(row)):
        with pytest.raises(MutexLostError) as caught:
            write()
        assert (caught.value.loss, caught.value.applied) == (loss, False)
    assert balance(model) == 1
    assert not row.is_locked


def test_row_whose_lease_ended_is_not_saved(accounts):
    lock = Account.locked("a", auto_renew=False)
    assert lock.acquire()
    row = lock.row
    time.sleep(31)
    with pytest.raises(MutexLostError) as caught:
        row.save()
    assert caught.value.loss is Loss.EXPIRED
    lock.renew()
    row.save()
    lock.release()


def test_row_whose_key_was_changed_is_not_the_row_that_is_locked(model):
    model("b", balance=1).save()
    with model.locked("a") as row:
        for name in ("b", "new"):
            row.name = name
            match = f"{name}' .*{row.row_lock.key}"
            writes = (row.save, row.delete, lambda: row.save(unlock=True), lambda: changed(row))
            for write in writes:
                with pytest.raises(MutexNotHeldError, match=match) as caught:
                    write()
                assert not isinstance(caught.value, MutexLostError)
        assert row.row_lock.held
        row.name = "a"
        row.save()
    assert sorted((row.name, row.balance) for row in model.scan()) == [("a", 0), ("b", 1)]


@pytest.mark.parametrize(
    "copying", [copy.copy, copy.deepcopy, lambda row: pickle.loads(pickle.dumps(row))]
)
def test_copy_of_a_locked_row_is_not_locked(model, copying):
    with model.locked("a") as row:
        row.balance = 3
        copied = copying(row)
        assert type(copied) is model
        assert (copied.name, copied.balance) == ("a", 3)
        with pytest.raises(MutexNotHeldError):
            _ = copied.row_lock
        with pytest.raises(RowLockedError):
            copied.save()
        assert row.is_locked
    copied.save()
    assert balance(model) == 3


@pytest.mark.real("embedded")
def test_forked_child_does_not_write_under_the_lock_of_its_parent(accounts, ledger):
    def write(*rows):
        for row in rows:
            for attempt in (row.save, row.delete, lambda row=row: changed(row)):
                with pytest.raises(MutexNotHeldError, match="parent"):
                    attempt()
            with pytest.raises(RowLockedError):
                type(row)("a").save()
        return [row.is_locked for row in rows]

    with Account.locked("a") as row, Ledger.locked("a") as other:
        child = Fork(lambda: write(row, other))
        row.balance = other.balance = 2
        row.save()
        other.save()
        assert child.value() == [False, False]
        row.save()
        other.save()
    assert balance(Account) == balance(Ledger) == 2


# -- locks in a lock table ----------------------------------------------------------------------


def test_options_that_need_a_row_of_their_own_need_a_lock_model(table, ledger):
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
    for what, write in (
        ("save", lambda row: row.save()),
        ("save", lambda row: row.save(unlock=True)),
        ("update", changed),
        ("delete", lambda row: row.delete()),
        ("transaction", lambda row: together(lambda transaction: transaction.save(row))()),
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
def test_waiter_gets_the_row_as_it_then_stands(model, unlock):
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
