"""Row locks as their users see them: `locked`, the row it gives, and its lock."""

from __future__ import annotations

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from accounts import Account, Elsewhere, Ledger, balance, changed, expire
from pynamodb.connection import Connection
from pynamodb.transactions import TransactWrite
from row_tables import stored
from worker import Fork

from pynamodb_mutex import (
    Loss,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    RowLock,
    RowLockedError,
)

QUICK = (0.02, 0.1)


# -- taking it ----------------------------------------------------------------------------------


@pytest.mark.real
def test_locked_gives_the_row_and_its_writes_are_made_under_the_lock(model):
    with model.locked("a") as row:
        assert type(row) is model
        assert (row.name, row.balance) == ("a", 0)
        assert row.row_lock.held
        row.balance += 1
        row.save()
        row.update(actions=[model.balance.add(2)])
        assert row.balance == balance(model) == 3
        row.save()
    assert not model.locked("a").locked()
    assert balance(model) == 3


def test_making_a_lock_sends_nothing_and_no_request_reads_the_row(accounts, sent):
    del sent[:]
    lock = Account.locked("a")
    assert isinstance(lock, RowLock)
    assert not lock.held
    assert sent == []
    with lock as row:
        assert sent == ["UpdateItem"]
        row.balance = 5
        row.save(unlock=True)
    assert sent == ["UpdateItem", "PutItem"]
    del sent[:]
    with lock as row:
        assert row.balance == 5
        row.update(actions=[Account.balance.set(6)])
        assert row.balance == 6
    assert sent == ["UpdateItem"] * 3


@pytest.mark.real("embedded")
def test_the_first_request_of_a_process_is_one_more(accounts, sent):
    def take():
        del sent[:]
        with Account.locked("a"):
            return list(sent)

    assert Fork(take).value() == ["GetItem", "UpdateItem"]


@pytest.mark.real
def test_locks_in_the_lock_table_read_the_row_when_it_is_wanted(ledger, sent):
    del sent[:]
    with Ledger.locked("a") as row:
        assert sent == ["UpdateItem", "GetItem"]
        row.save(unlock=True)
    assert sent == ["UpdateItem", "GetItem", "TransactWriteItems"]


@pytest.mark.parametrize("enter", [RowLock.__enter__, RowLock.acquire])
def test_a_missing_row_is_not_made(accounts, enter):
    lock = Account.locked("missing")
    with pytest.raises(Account.DoesNotExist, match="missing"):
        enter(lock)
    assert not lock.held
    assert stored(Account("missing")) == {}
    Account("missing").save()
    assert lock.acquire(timeout=0)


def test_a_missing_row_with_its_lock_in_the_lock_table(ledger):
    lock = Ledger.locked("missing")
    with pytest.raises(Ledger.DoesNotExist, match="missing"), lock:
        pass
    assert not lock.locked()
    assert [row.name for row in Ledger.scan()] == ["a"]


def test_a_row_that_another_holds(model):
    holder = Elsewhere if model is Account else Ledger
    with holder.locked("a", owner="job-7") as held:
        lock = model.locked("a", timeout=0.2, poll=QUICK)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lock.acquire, blocking=False).result(60) is False
            began = time.monotonic()
            assert pool.submit(lock.acquire, timeout=0.4).result(60) is False
            assert time.monotonic() - began == pytest.approx(0.4)
            error = pool.submit(lock.__enter__).exception(60)
        assert isinstance(error, MutexTimeoutError)
        assert error.key == lock.key == f"{model.Meta.table_name}/a"
        assert error.owner == "job-7"
        assert error.expires_at > time.time()
        assert error.key in str(error)
        assert "job-7" in str(error)
        held.save()


# -- the row and its lock -----------------------------------------------------------------------


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
                assert caught.value.key == lock.key
                assert caught.value.owner == lock.owner
            with pytest.raises(MutexNotHeldError, match="not locked here"):
                other.save(unlock=True)
        row.save()
    assert row.row_lock is lock
    assert balance(model) == 0


def test_is_locked_says_what_the_instance_shows(accounts):
    free = Account.get("a")
    assert not free.is_locked
    assert not Account("a").is_locked
    with Elsewhere.locked("a") as theirs:
        seen = Account.get("a")
        assert (seen.is_locked, theirs.is_locked, free.is_locked) == (True, True, False)
        expire("a")
        assert not Account.get("a").is_locked
    with Account.locked("a") as row:
        assert row.is_locked
        row.save()
        assert row.is_locked
        row.update(actions=[Account.balance.add(1)])
        assert row.is_locked
        row.save(unlock=True)
        assert not row.is_locked


@pytest.mark.parametrize("write", [None, "save", "update", "refresh"])
def test_a_row_is_not_locked_any_more_when_its_lock_was_released(model, write):
    with model.locked("a") as row:
        if write == "update":
            changed(row)
        elif write is not None:
            getattr(row, write)()
        assert row.is_locked
    assert not row.is_locked
    if model is Account:
        with Elsewhere.locked("a"):
            row.refresh(consistent_read=True)
            assert row.is_locked


def test_a_row_in_the_lock_table_shows_nothing_of_its_lock(ledger):
    with Ledger.locked("a") as row:
        assert row.is_locked
        assert not Ledger.get("a").is_locked


def test_a_row_is_saved_without_its_lock_after_it_was_released(model):
    with model.locked("a") as row:
        pass
    row.balance = 1
    row.save()
    changed(row)
    assert balance(model) == row.balance == 2
    with pytest.raises(MutexNotHeldError) as caught:
        row.save(unlock=True)
    assert not isinstance(caught.value, MutexLostError)
    with model.locked("a") as after:
        assert after is not row
        with pytest.raises(RowLockedError):
            row.save()
        after.save()


def every_way_to_write(row):
    """Return what a program may do with an instance, each as a call."""

    def together(write):
        def call():
            with TransactWrite(connection=Connection()) as transaction:
                write(transaction)

        return call

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


@pytest.mark.parametrize("give_back", [save_and_unlock, update_and_unlock, release_by_hand])
def test_row_released_inside_its_block_is_not_written_there(model, give_back):
    with model.locked("a") as row:
        row.balance = 5
        give_back(row)
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


def test_deleted_row_is_not_made_anew_inside_its_block(accounts):
    with Account.locked("a") as row:
        row.delete()
        Account("a", balance=7).save()
        with pytest.raises(MutexNotHeldError):
            row.save()
    assert balance(Account) == 7


def test_each_of_two_blocks_of_a_reentrant_lock_must_end(model):
    outer = model.locked("a", reentrant=True)
    with outer as row:
        with model.locked("a", reentrant=True) as same:
            assert same is row
        row.save(unlock=True)
        with pytest.raises(MutexNotHeldError):
            row.save()
    row.save()


def test_row_that_was_locked_without_a_block_is_ordinary_once_released(model):
    lock = model.locked("a")
    assert lock.acquire()
    row = lock.row
    row.save(unlock=True)
    row.balance = 3
    row.save()
    assert balance(model) == 3


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


@pytest.mark.real
def test_a_lost_row_is_never_saved_again(model):
    lock = model.locked("a")
    with pytest.raises(MutexLostError), lock as row:
        assert model.locked("a").force_release()
    assert lock.loss is Loss.FORCED
    with model.locked("a") as heir:
        heir.balance = 1
        heir.save()
    row.balance = 7
    for write in (row.save, row.delete, lambda: row.save(unlock=True), lambda: changed(row)):
        with pytest.raises(MutexLostError) as caught:
            write()
        assert (caught.value.loss, caught.value.applied) == (Loss.FORCED, False)
    assert balance(model) == 1
    assert not row.is_locked


def test_a_loss_that_the_release_met_is_remembered_too(accounts):
    with pytest.raises(MutexLostError), Account.locked("a") as row:
        assert Elsewhere.locked("a").force_release()
    for write in (row.save, row.delete, lambda: changed(row)):
        with pytest.raises(MutexLostError) as caught:
            write()
        assert caught.value.loss is Loss.FORCED


def test_a_row_whose_lease_ended_is_not_saved(accounts):
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


def test_a_row_whose_key_was_changed_is_not_the_row_that_is_locked(model):
    model("b", balance=1).save()
    with model.locked("a") as row:
        for name in ("b", "new"):
            row.name = name
            for write in (
                row.save,
                row.delete,
                lambda: row.save(unlock=True),
                lambda: changed(row),
            ):
                with pytest.raises(
                    MutexNotHeldError, match=f"{name}' .*{row.row_lock.key}"
                ) as caught:
                    write()
                assert not isinstance(caught.value, MutexLostError)
        assert row.row_lock.held
        row.name = "a"
        row.save()
    assert sorted((row.name, row.balance) for row in model.scan()) == [("a", 0), ("b", 1)]


@pytest.mark.real
def test_refresh_keeps_the_row_under_its_lock(model):
    with model.locked("a") as row:
        row.balance = 9
        row.refresh(consistent_read=True)
        assert row.balance == 0
        row.balance = 4
        row.save(unlock=True)
    assert balance(model) == 4


@pytest.mark.parametrize(
    "copying", [copy.copy, copy.deepcopy, lambda row: pickle.loads(pickle.dumps(row))]
)
def test_a_copy_of_a_locked_row_is_not_locked(model, copying):
    with model.locked("a") as row:
        row.balance = 3
        twin = copying(row)
        assert type(twin) is model
        assert (twin.name, twin.balance) == ("a", 3)
        with pytest.raises(MutexNotHeldError):
            _ = twin.row_lock
        with pytest.raises(RowLockedError):
            twin.save()
        assert row.is_locked
    twin.save()
    assert balance(model) == 3


@pytest.mark.real("embedded")
def test_a_forked_child_does_not_write_under_the_lock_of_its_parent(model):
    def write(row):
        for attempt in (row.save, row.delete, lambda: changed(row)):
            with pytest.raises(MutexNotHeldError, match="parent"):
                attempt()
        with pytest.raises(RowLockedError):
            model("a").save()
        return row.is_locked

    with model.locked("a") as row:
        child = Fork(lambda: write(row))
        row.balance = 2
        row.save()
        assert child.value() is False
        row.save()
    assert balance(model) == 2
