"""Row locks as their users see them: `locked`, the row it gives, its lock; and several rows."""

import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from processes import Fork
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
from row_models import (
    LOCKABLE,
    Account,
    AccountElsewhere,
    Ledger,
    add_to_all,
    add_unread,
    balance,
    changed,
    created,
    keyed,
    made,
    save,
    stored,
    update,
)
from sent_requests import TRANSACT, that
from this_process import forget_everything
from two_clients import held

from dev.faultproxy import Fault, after, deny, drop_answer, no_date, server_error, through
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
from pynamodb_mutex.testing import FakeClock, expire


def assert_refused(writes, error, match=None, **shown):
    """See that each write is refused by an error of exactly this class, with these attributes."""
    for write in writes:
        with pytest.raises(error, match=match) as caught:
            write()
        assert type(caught.value) is error
        assert {name: getattr(caught.value, name) for name in shown} == shown


def save_and_unlock(row):
    row.save(unlock=True)


def update_and_unlock(row):
    row.update(actions=[type(row).balance.set(row.balance)], unlock=True)


def single_writes(row):
    return [row.save, row.delete, lambda: changed(row)]


def transact(what, row, *args):
    """Write a row in a transaction of PynamoDB's."""
    with TransactWrite(connection=Connection()) as transaction:
        getattr(transaction, what)(row, *args)


def batch(what, row):
    with type(row).batch_write() as writes:
        getattr(writes, what)(row)


def every_way_to_write(row):
    """Return what a program may do with an instance, each as a call."""
    actions = [type(row).balance.add(1)]
    parts = [("save",), ("update", actions), ("delete",)]
    return [
        *single_writes(row),
        lambda: save_and_unlock(row),
        *[lambda what=what, args=args: transact(what, row, *args) for what, *args in parts],
        *[lambda what=what: batch(what, row) for what in ("save", "delete")],
    ]


# -- taking it ----------------------------------------------------------------------------------


@pytest.mark.real
def test_row_is_written_under_its_lock_and_never_again_once_that_is_lost(model):
    lock = model.locked("a")
    with pytest.raises(MutexLostError), lock as row:  # noqa: PT012 - the block is what is left
        assert type(row) is model
        assert (row.name, row.balance, row.row_lock.held) == ("a", 0, True)
        row.balance += 1
        row.save()
        row.update(actions=[model.balance.add(2)])
        assert row.balance == balance(model) == 3
        row.balance = 9
        row.refresh(consistent_read=True)
        assert row.balance == 3
        row.save()
        if model is Account:
            assert AccountElsewhere.locked("a").force_release()
        else:
            Ledger.lock_model(lock.key).delete(add_version_condition=False)
        # force of this process is known at once, a deleted row when the release finds it
        assert row.is_locked == (model is not Account)
    assert lock.loss is (Loss.FORCED if model is Account else Loss.DELETED)
    with model.locked("a") as next_holder:
        next_holder.balance = 4
        next_holder.save(unlock=True)
    assert not lock.locked()
    row.balance = 7
    writes = [*single_writes(row), lambda: save_and_unlock(row)]
    assert_refused(writes, MutexLostError, loss=lock.loss, applied=False)
    assert balance(model) == 4
    assert not row.is_locked
    with model.locked("a"):
        pass
    assert not model.locked("a").locked()


def test_row_is_refreshed_under_its_lock_as_the_writes_before_have_left_it(any_scene):
    with any_scene.lock() as row:
        row.refresh()
    row.refresh()
    reads = [read.body["ConsistentRead"] for read in any_scene.proxy.of("GetItem")[-2:]]
    assert reads == [True, False]


def test_lock_and_row_cost_few_requests(model, sent):
    # a lock in the row comes with it, and a lock in the lock table makes a transaction of each write
    read, put, update = (
        ([], "PutItem", ["UpdateItem"])
        if model is Account
        else (["GetItem"], "TransactWriteItems", ["TransactWriteItems", "GetItem"])
    )
    sent.clear()
    lock = model.locked("a")
    assert isinstance(lock, RowLock)
    assert sent == []
    with lock as row:
        row.balance = 5
        row.save(unlock=True)
    assert sent == ["UpdateItem", *read, put]
    sent.clear()
    with lock as row:
        assert row.balance == 5
        row.update(actions=[model.balance.set(6)])
        assert row.balance == 6
    assert sent == ["UpdateItem", *read, *update, "UpdateItem"]
    forget_everything()
    sent.clear()
    # the first request of a process is one more
    with model.locked("a"):
        assert sent == ["GetItem", "UpdateItem", *read]


def test_missing_row_is_not_made(model):
    lock = model.locked("missing")
    # only reading shows that a row is missing whose lock is in a lock table
    for enter in (RowLock.__enter__, RowLock.acquire)[: 2 if model is Account else 1]:
        with pytest.raises(model.DoesNotExist, match="missing"):
            enter(lock)
        assert (lock.held, lock.locked()) == (False, False)
        assert stored(model("missing")) == {}
    model("missing").save()
    assert lock.acquire(timeout=0)


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
    dead = held(AccountElsewhere.locked("a", owner="dead", auto_renew=False))
    expire("a", Account)
    with lock:
        assert (lock.abandoned, lock.abandoned_by) == (True, "dead")
        assert lock.fencing_token == dead.fencing_token + 1 == token + 2


def test_only_the_instance_that_was_read_under_the_lock_has_it(model):
    before = model.get("a")
    with model.locked("a") as row:
        lock = row.row_lock
        assert isinstance(lock, RowLock)
        assert lock.row is row
        row.balance = 3
        copies = [copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row))]
        for copied in copies:
            assert type(copied) is model
            assert (copied.name, copied.balance) == ("a", 3)
        for other in (before, model.get("a"), model("a", balance=1), *copies):
            with pytest.raises(MutexNotHeldError, match="without its lock"):
                _ = other.row_lock
            assert_refused(single_writes(other), RowLockedError, key=lock.key, owner=lock.owner)
            with pytest.raises(MutexNotHeldError, match="not locked here"):
                other.save(unlock=True)
        assert row.is_locked
        assert balance(model) == 0
        row.save()
    assert row.row_lock is lock
    copies[0].balance = 4
    copies[0].save()
    assert balance(model) == 4


def test_is_locked_says_what_the_instance_shows(accounts, ledger):
    free = Account.get("a")
    assert not free.is_locked
    assert not Account("a").is_locked
    with AccountElsewhere.locked("a") as theirs:
        seen = Account.get("a")
        assert (seen.is_locked, theirs.is_locked, free.is_locked) == (True, True, False)
        expire("a", Account)
        assert not Account.get("a").is_locked
    # another instance shows nothing of a lock in the lock table
    with Ledger.locked("a") as row:
        assert row.is_locked
        assert not Ledger.get("a").is_locked
        row.save(unlock=True)
        assert not row.is_locked


def test_held_gives_the_rows_whose_locks_are_held_now(accounts, ledger):
    for name in ("free", "expired", "theirs"):
        Account(name).save()
    with Account.locked("a"), AccountElsewhere.locked("theirs"), AccountElsewhere.locked("expired"):
        expire("expired", Account)
        rows = sorted(Account.held(), key=lambda row: row.name)
        assert [(row.name, type(row)) for row in rows] == [("a", Account), ("theirs", Account)]
        assert all(row.is_locked for row in rows)
    assert list(Account.held()) == []
    with pytest.raises(TypeError, match=r"Ledger keeps its locks in LockItem: LockItem\.held\(\)"):
        Ledger.held()


def test_row_is_not_locked_any_more_when_its_lock_was_released(model):
    for write in (Model.refresh, RowLockMixin.save, changed, lambda _: None):
        with model.locked("a") as row:
            write(row)
            assert row.is_locked
        assert not row.is_locked
        with model.locked("a") as after:
            assert after is not row
            with pytest.raises(MutexNotHeldError):
                row.save()
            row.refresh()
            with pytest.raises(RowLockedError):
                row.save()
            after.save()
        if model is Account:
            with AccountElsewhere.locked("a"):
                row.refresh(consistent_read=True)
                assert row.is_locked


@pytest.mark.parametrize(
    "release", [save_and_unlock, update_and_unlock, lambda row: row.row_lock.release()]
)
def test_row_released_inside_its_block_is_not_written_there(model, release):
    with model.locked("a") as row:
        row.balance = 5
        release(row)
        assert not row.is_locked
        with model.locked("a") as next_holder:
            next_holder.balance = 7
            next_holder.save()
        writes = every_way_to_write(row)
        assert_refused(writes, MutexNotHeldError, "row", key=row.row_lock.key)
        assert balance(model) == 7
        row.refresh()
        assert_refused(every_way_to_write(row), MutexNotHeldError, "before, in its block")
    # it still shows what was read under the lock, until it is refreshed
    row.balance = 5
    assert_refused(every_way_to_write(row), MutexNotHeldError, "at the end of its block")
    assert balance(model) == 7
    row.refresh()
    assert row.balance == 7
    row.balance = 5
    # it is an ordinary instance again, whose last write wins
    row.save()
    assert balance(model) == 5
    row = held(model.locked("a")).row
    release(row)
    # where there is no block it is one at once
    row.balance = 3
    row.save()
    assert balance(model) == 3


def test_rows_released_together_inside_their_block_are_not_written_there(model):
    model("b").save()
    locked = model.locked_all(["a", "b"])
    with locked as rows:
        first, second = rows
        with rows.transaction() as transaction:
            transaction.save(first)
        for row in (first, second):
            assert_refused(every_way_to_write(row), MutexNotHeldError)
    for row in (first, second):
        assert_refused(every_way_to_write(row), MutexNotHeldError)
        row.refresh()
        row.save()


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
            for unlock in (save_and_unlock, update_and_unlock):
                with pytest.raises(MutexAlreadyHeldError, match="was acquired 2 times"):
                    unlock(inner)
        assert outer.is_locked
        assert balance(model) == 1
        outer.save(unlock=True)
        assert not outer.is_locked
        with pytest.raises(MutexNotHeldError):
            outer.save()
    outer.refresh()
    outer.save()


def test_row_whose_lease_ended_is_not_saved(accounts):
    lock = held(Account.locked("a", auto_renew=False))
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
            writes = [*single_writes(row), lambda: save_and_unlock(row)]
            assert_refused(writes, MutexNotHeldError, f"{name}' .*{row.row_lock.key}")
        assert row.row_lock.held
        row.name = "a"
        row.save()
    assert sorted((row.name, row.balance) for row in model.scan()) == [("a", 0), ("b", 1)]


@pytest.mark.real("embedded")
def test_forked_child_does_not_write_under_the_lock_of_its_parent(accounts, ledger):
    def write(*rows):
        for row in rows:
            assert_refused(single_writes(row), MutexNotHeldError, "parent")
            assert_refused([type(row)("a").save], RowLockedError)
        return [row.is_locked for row in rows]

    with Account.locked("a") as row, Ledger.locked("a") as other:
        child = Fork(lambda: write(row, other))
        assert child.value() == [False, False]
        row.balance = other.balance = 2
        row.save()
        other.save()
    assert balance(Account) == balance(Ledger) == 2


# -- locks in a lock table ----------------------------------------------------------------------


def test_option_that_needs_a_row_of_its_own_needs_a_lock_model(table, ledger):
    for option in ({"data": 1}, {"delete_on_release": True}):
        with pytest.raises(TypeError, match=f"{next(iter(option))} needs a lock_model"):
            Account.locked("a", **option)
    with Ledger.locked("a", data={"page": 1}) as row:
        assert row.row_lock.data == {"page": 1}
        row.row_lock.save_data(2)
        row.save(unlock=True)
    assert [item.data for item in table.scan()] == [2]


def test_row_under_a_lock_that_is_deleted_at_release_is_not_written(table, ledger, sent):
    with Ledger.locked("a", delete_on_release=True) as row:
        row.balance = 5
        sent.clear()
        for what, write in (
            *[("save", lambda unlock=unlock: row.save(unlock=unlock)) for unlock in (False, True)],
            ("update", lambda: changed(row)),
            ("delete", row.delete),
            ("transaction", lambda: transact("save", row)),
        ):
            with pytest.raises(MutexError, match=f"{what}: .*delete_on_release.* late copies"):
                write()
        assert sent == []
        assert row.row_lock.held
    refused = pytest.raises(MutexError, match=r"transaction: .*delete_on_release")
    with Ledger.locked_all(["a"], delete_on_release=True) as rows, refused:
        rows.transaction()
    assert balance(Ledger) == 0
    assert list(table.scan()) == []


# -- several rows -------------------------------------------------------------------------------


@pytest.mark.real
def test_rows_are_locked_read_written_and_unlocked_in_one_request_each(rows):
    with rows.locks() as locked:
        add_unread(rows, locked)
    assert rows.scene.proxy.kinds() == [TRANSACT, TRANSACT]
    with rows.locks() as locked:
        assert [row.name for row in locked] == rows.keys
        assert len(locked) == 3
        add_to_all(locked)
    assert rows.scene.proxy.kinds()[2:] == [TRANSACT, "BatchGetItem", TRANSACT]
    with rows.locks():
        assert not any(rows.free())
    assert rows.scene.proxy.kinds()[5:] == [TRANSACT, TRANSACT]
    assert rows.balances == [2, 2, 2]
    assert all(rows.free())


def test_transaction_that_does_not_unlock_is_followed_by_others(rows):
    with rows.locks() as locked:
        add_to_all(locked, unlock=False)
        assert not any(rows.free())
        update(locked[0])
        add_to_all(locked)
        assert all(rows.free())
    assert rows.balances == [3, 2, 2]


def test_rows_of_the_transaction_may_be_saved_updated_and_deleted(rows):
    plain = rows.scene.old(f"{rows.scene.key}-plain")
    locks = rows.locks()
    with locks as locked:
        first, second, third = locked
        with locks.transaction() as transaction:
            first.balance = 10
            transaction.save(first)
            transaction.update(second, [type(second).balance.add(5)])
            transaction.delete(third)
            # and those of models without locks
            transaction.save(plain)
        assert not locks.held
        assert not locks.lost
    found = list(rows.scene.there.batch_get(rows.keys, consistent_read=True))
    assert sorted(row.balance for row in found) == [5, 10]
    assert type(plain).count(plain.name) == 1


def test_missing_row_locks_nothing(rows):
    scene = rows.scene
    scene.old(rows.keys[1]).delete()
    locks = rows.locks()
    missing = pytest.raises(scene.here.DoesNotExist)
    with missing, locks as locked:
        # only reading shows that a row is missing whose lock is in a lock table
        assert scene.in_table
        with pytest.raises(scene.here.DoesNotExist):
            print(locked[0])
        assert locks.held
        locked[1].refresh()
    assert rows.free() == [True] * 3
    assert scene.there.count(rows.keys[1]) == 0
    assert not locks.held


@pytest.mark.parametrize("dated", [True, False])
def test_dead_holder_of_one_is_taken_over(rows, dated):
    """Without a date it is watched for its lease."""
    other = rows.taken(1, lease=0.5, auto_renew=False)
    if not dated:
        rows.scene.proxy.always(no_date())
        # what it knew of server time goes with its stores
        forget_everything()
    with rows.locks(poll=(0.1, 0.2)) as locked:
        add_to_all(locked)
    with pytest.raises(MutexLostError if dated else MutexNotHeldError):
        update(other.row)
    assert rows.balances == [1, 1, 1]


def test_call_that_cannot_work_is_refused(rows):
    here, (first, second, _) = rows.scene.here, rows.keys
    for error, message, calls in (
        (ValueError, "once at a time", ([first, second, first], [first, here.locked(first)])),
        # one key would be several: its letters
        (TypeError, r"locked_all takes several keys, .* not ", (first, b"a", 7, None)),
        (ValueError, "1 to 100", ([], [str(n) for n in range(101)])),
    ):
        for wrong in calls:
            with pytest.raises(error, match=message):
                here.locked_all(wrong)
    assert rows.scene.proxy.kinds() == []


@pytest.mark.real("simulated", "local")
def test_rows_of_several_models_are_locked_and_written_together(rows):
    here, key = rows.scene.here, rows.keys[0]
    attributes = keyed(UnicodeAttribute, NumberAttribute)() | {"total": NumberAttribute(default=0)}
    books = through(rows.scene.proxy, created(made(attributes, LOCKABLE)))
    books("books", 2024).save()
    both = [key, books.locked("books", 2024)]
    with books.locked("books", 2024):
        assert here.locked_all(both).acquire(blocking=False) is False
    assert rows.free() == [True] * 3
    with here.locked_all(both) as locked:
        account, page = locked
        assert (type(account), type(page)) == (here, books)
        assert books.locked("books", 2024).acquire(blocking=False) is False
        with locked.transaction() as transaction:
            transaction.update(account, [here.balance.add(-3)])
            transaction.update(page, [books.total.add(3)])
    assert rows.balances == [-3, 0, 0]
    assert books.get("books", 2024, consistent_read=True).total == 3
    assert rows.free()[0]
    with books.locked_all([("books", 2024)], timeout=0):
        pass


def test_locks_taken_in_opposite_orders_neither_block_nor_lose_an_update(rows):
    here, there, times = rows.scene.here, rows.scene.there, 6
    first, second, third = rows.keys

    def work(model, *keys):
        for n in range(times):
            with model.locked_all(keys, timeout=60, poll=(0.01, 0.1)) as locked:
                if n % 2:
                    add_to_all(locked)
                else:
                    for row in locked:
                        save(row, unlock=n == 2)

    working = [(here, first, second), (there, second, first), (there, third, second, first)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda arguments: work(*arguments), working))
    assert rows.balances == [3 * times, 3 * times, times]
    assert all(rows.free())


def test_locking_that_fails_is_disowned_unless_it_was_surely_not_applied(rows):
    proxy, locks = rows.scene.proxy, rows.locks()
    proxy.next(deny(), op=TRANSACT)
    with pytest.raises(TransactWriteError):
        locks.acquire()
    assert proxy.kinds() == [TRANSACT]
    # it is not held either if it cannot be disowned
    proxy.always(drop_answer(), op=TRANSACT)
    proxy.always(server_error(), op="disown")
    with pytest.raises(TransactWriteError):
        locks.acquire(timeout=1)
    assert not locks.held
    assert len(proxy.of("disown")) == 3


@pytest.mark.parametrize("is_lost", [False, True])
def test_claims_that_came_too_late_are_not_held(rows, is_lost):
    with FakeClock() as clock:

        def answer_late(exchange):
            reply = exchange.apply("late answer")
            clock.advance(3)
            exchange.answer(reply)

        locks = rows.locks(lease=2)
        rows.scene.proxy.next(Fault("late answer", answer_late), op=TRANSACT)
        fault = after(lambda: rows.force(0)) if is_lost else deny()
        rows.scene.proxy.next(fault, when=that("renew"))
        with nullcontext() if is_lost else pytest.raises(TransactWriteError):
            assert not locks.acquire(blocking=False)
        assert not locks.held
    rows.scene.proxy.wait(3, "disown")
    assert all(rows.free())
