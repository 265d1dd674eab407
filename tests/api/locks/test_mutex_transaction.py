"""Mutex.transaction: rows of any tables, written only while the lock is held."""

from __future__ import annotations

import uuid

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute, VersionAttribute
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError, MutexNotHeldError
from pynamodb_mutex.testing import expire


class Elsewhere(LockItem):
    """The same table with another connection and another queue, as in another process."""

    class Meta(LockItem.Meta):
        pass


@pytest.fixture
def account(table):
    class Account(Model):
        class Meta:
            table_name = f"accounts-{uuid.uuid4().hex}"
            billing_mode = "PAY_PER_REQUEST"

        name = UnicodeAttribute(hash_key=True)
        balance = NumberAttribute(default=0)
        version = VersionAttribute()

    Account.create_table(wait=True)
    return Account


@pytest.fixture
def entry(table):
    class Entry(Model):
        class Meta:
            table_name = f"entries-{uuid.uuid4().hex}"
            billing_mode = "PAY_PER_REQUEST"

        name = UnicodeAttribute(hash_key=True)
        number = NumberAttribute(range_key=True)

    Entry.create_table(wait=True)
    return Entry


def stored(model):
    return {item.name: item.balance for item in model.scan()}


@pytest.mark.real
def test_rows_of_several_tables_are_written_with_the_lock(account, entry):
    kept, changed, gone = (account(name, balance=1) for name in ("kept", "changed", "gone"))
    for row in (kept, changed, gone):
        row.save()
    with Mutex.for_key("a") as mutex:
        with mutex.transaction() as transaction:
            assert isinstance(transaction, TransactWrite)
            new = account("new", balance=7)
            transaction.save(new)
            transaction.update(changed, actions=[account.balance.add(4)])
            transaction.delete(gone)
            transaction.condition_check(account, "kept", condition=account.balance == 1)
            transaction.save(entry("log", number=1))
        assert mutex.held
    assert stored(account) == {"kept": 1, "changed": 5, "new": 7}
    assert [item.number for item in entry.query("log")] == [1]


def test_version_attributes_move_with_it(account):
    row = account("x", balance=1)
    with Mutex.for_key("a") as mutex:
        with mutex.transaction() as transaction:
            transaction.save(row)
        assert row.version == 1
        row.balance = 2
        with mutex.transaction() as transaction:
            transaction.save(row)
        assert row.version == 2
        with mutex.transaction() as transaction:
            transaction.update(row, actions=[account.balance.set(3)])
    assert account.get("x").version == row.version == 3


@pytest.mark.real
def test_another_condition_that_does_not_hold_refuses_it_all_and_the_lock_stays(account):
    account("x", balance=1).save()
    with Mutex.for_key("a") as mutex:
        writing = mutex.transaction()
        writing.save(account("y", balance=9))
        writing.condition_check(account, "x", condition=account.balance > 100)
        with pytest.raises(TransactWriteError) as caught:
            writing.__exit__(None, None, None)
        assert caught.value.cause_response_code == "TransactionCanceledException"
        assert stored(account) == {"x": 1}
        assert mutex.held
        with mutex.transaction() as again:
            again.save(account("z"))
    assert set(stored(account)) == {"x", "z"}


def test_an_empty_transaction_is_a_check_that_the_lock_is_held(account):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    with mutex.transaction():
        pass
    writing = mutex.transaction()
    Elsewhere.force_release("a")
    with pytest.raises(MutexLostError):
        writing.__exit__(None, None, None)


def test_an_exception_in_the_block_writes_nothing(account):
    def body(transaction):
        transaction.save(account("x"))
        raise KeyError("mine")

    with Mutex.for_key("a") as mutex:
        with pytest.raises(KeyError), mutex.transaction() as transaction:
            body(transaction)
        assert stored(account) == {}
        assert mutex.held


@pytest.mark.real
def test_a_holder_that_lost_the_lock_writes_nothing(account):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    expire("a")
    Mutex.for_key("a", model=Elsewhere, owner="thief").acquire(blocking=False)
    assert mutex.held
    writing = mutex.transaction()
    writing.save(account("x"))
    with pytest.raises(MutexLostError) as caught:
        writing.__exit__(None, None, None)
    error = caught.value
    assert (error.applied, error.loss, error.owner) == (False, Loss.TAKEN, "thief")
    assert stored(account) == {}


def test_a_lock_broken_between_start_and_commit_writes_nothing(account):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    writing = mutex.transaction()
    writing.save(account("x"))
    LockItem.force_release("a")
    with pytest.raises(MutexLostError) as caught:
        writing.__exit__(None, None, None)
    assert (caught.value.applied, caught.value.loss) == (False, Loss.FORCED)
    assert stored(account) == {}


def test_a_transaction_needs_the_lock(account):
    mutex = Mutex.for_key("a")
    with pytest.raises(MutexNotHeldError, match="transaction"):
        mutex.transaction()
    mutex.acquire()
    writing = mutex.transaction()
    writing.save(account("x"))
    mutex.release()
    with pytest.raises(MutexNotHeldError, match="released"):
        mutex.transaction()
    with pytest.raises(MutexNotHeldError, match="released"):
        writing.__exit__(None, None, None)
    assert stored(account) == {}


def test_transactions_and_payload_are_written_in_turn(account, table):
    with Mutex.for_key("a") as mutex:
        for number in range(3):
            mutex.save_data(number)
            with mutex.transaction() as transaction:
                transaction.save(account(f"x{number}"))
        assert table.get("a").writes == 6
        assert len(stored(account)) == 3
    with Mutex.for_key("a"):
        assert table.get("a").writes == 0


def test_a_row_of_the_lock_table_itself_may_be_written(account, table):
    """Another row: DynamoDB takes no two operations on one item."""
    with Mutex.for_key("a") as mutex:
        with mutex.transaction() as transaction:
            transaction.update(table("b"), actions=[table.data.set([1])])
        writing = mutex.transaction()
        writing.update(table("a"), actions=[table.data.set([1])], add_version_condition=False)
        with pytest.raises(TransactWriteError):
            writing.__exit__(None, None, None)
        assert mutex.held
    assert table.get("b").data == [1]
