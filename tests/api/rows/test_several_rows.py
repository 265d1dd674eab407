"""Several row locks: all or none, in one request each way; and loss of one is loss of all."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from row_scene import TRANSACT, Account, Rows, add_to_all, add_unread, save, update
from scene import forget_holds

from pynamodb_mutex import (
    MutexAlreadyHeldError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    RowLockMixin,
)

# -- requests --------------------------------------------------------------------------------------


@pytest.mark.real
def test_two_requests_lock_write_and_unlock(rows: Rows) -> None:
    with rows.locks() as locked:
        add_unread(rows, locked)
    assert rows.scene.proxy.kinds() == [TRANSACT, TRANSACT]
    assert rows.balances == [1, 1, 1]
    assert all(rows.free())


def test_three_requests_if_the_rows_are_read(rows: Rows) -> None:
    with rows.locks() as locked:
        assert [row.name for row in locked] == rows.keys
        assert len(locked) == 3
        add_to_all(locked)
    assert rows.scene.proxy.kinds() == [TRANSACT, "BatchGetItem", TRANSACT]
    assert rows.balances == [1, 1, 1]


def test_two_requests_lock_and_unlock(rows: Rows) -> None:
    with rows.locks():
        assert not any(rows.free())
    assert rows.scene.proxy.kinds() == [TRANSACT, TRANSACT]
    assert all(rows.free())


def test_transaction_that_does_not_unlock_is_followed_by_others(rows: Rows) -> None:
    with rows.locks() as locked:
        add_to_all(locked, unlock=False)
        assert not any(rows.free())
        update(locked[0])
        add_to_all(locked)
        assert all(rows.free())
    assert rows.balances == [3, 2, 2]


def test_rows_of_the_transaction_may_be_saved_updated_and_deleted(rows: Rows) -> None:
    locks = rows.locks()
    with locks as locked:
        first, second, third = locked
        with locked.transaction() as transaction:
            first.balance = 10
            transaction.save(first)
            transaction.update(second, [type(second).balance.add(5)])
            transaction.delete(third)
        assert not locks.held
        assert not locks.lost
    found = list(rows.scene.there.batch_get(rows.keys, consistent_read=True))
    assert sorted(row.balance for row in found) == [5, 10]


# -- all or none -----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 2])
def test_none_is_locked_if_one_is_held(rows: Rows, place: int) -> None:
    other = rows.taken(place)
    assert rows.locks().acquire(blocking=False) is False
    assert rows.free() == [at != place for at in range(3)]
    with pytest.raises(MutexTimeoutError) as raised, rows.locks(timeout=0.2):
        pass
    assert raised.value.owner == "other"
    assert raised.value.key == other.key
    assert rows.free() == [at != place for at in range(3)]
    other.release()
    with rows.locks() as locked:
        add_to_all(locked)
    assert rows.balances == [1, 1, 1]


def test_waits_until_the_last_is_free(rows: Rows) -> None:
    others = [rows.taken(0), rows.taken(2)]
    waiting = threading.Thread(target=lambda: locks.acquire(timeout=30))
    locks = rows.locks(poll=(0.02, 0.05))
    waiting.start()
    for other in others:
        time.sleep(0.1)
        assert waiting.is_alive()
        other.release()
    waiting.join(60)
    assert locks.held
    locks.release()


def test_missing_row_locks_nothing(rows: Rows) -> None:
    any_scene = rows.scene
    any_scene.old(rows.keys[1]).delete()
    locks = rows.locks()
    with pytest.raises(any_scene.here.DoesNotExist), locks as locked:
        locked[1].refresh()
    assert rows.free() == [True] * 3
    assert any_scene.there.count(rows.keys[1]) == 0
    assert not locks.held


def test_dead_holder_of_one_is_taken_over(rows: Rows) -> None:
    any_scene = rows.scene
    other = any_scene.there.locked(rows.keys[1], lease=0.5, auto_renew=False, owner="dead")
    assert other.acquire()
    with rows.locks() as locked:
        add_to_all(locked)
    with pytest.raises(MutexLostError):
        update(other.row)
    assert rows.balances == [1, 1, 1]


def test_the_same_row_twice_is_refused(rows: Rows) -> None:
    here = rows.scene.here
    with pytest.raises(ValueError, match="once at a time"):
        here.locked_all([rows.keys[0], rows.keys[1], rows.keys[0]])
    with pytest.raises(ValueError, match="once at a time"):
        here.locked_all([rows.keys[0], here.locked(rows.keys[0])])
    for wrong in ([], [str(n) for n in range(101)]):
        with pytest.raises(ValueError, match="1 to 100"):
            here.locked_all(wrong)
    assert rows.scene.proxy.kinds() == []


def test_taking_them_twice_is_refused(rows: Rows) -> None:
    locks = rows.locks()
    with pytest.raises(MutexNotHeldError):
        locks.release()
    with locks, pytest.raises(MutexAlreadyHeldError):
        locks.acquire()
    with pytest.raises(MutexNotHeldError):
        locks.transaction()


# -- other models ----------------------------------------------------------------------------------


class Ledger(RowLockMixin, Model):
    """Another table, with a range key and locks in its rows."""

    class Meta:
        table_name = "set by the fixture"
        billing_mode = "PAY_PER_REQUEST"

    name = UnicodeAttribute(hash_key=True)
    year = NumberAttribute(range_key=True)
    total = NumberAttribute(default=0)


@pytest.fixture
def ledger(rows: Rows) -> Iterator[type[Ledger]]:
    class Mine(Ledger):
        _connection = None

        class Meta(Ledger.Meta):
            table_name = f"ledger-{uuid.uuid4().hex}"
            host = rows.scene.proxy.url

    Mine.create_table(wait=True)
    Mine("books", 2024).save()
    rows.scene.proxy.start_anew()
    yield Mine
    forget_holds(Mine)


@pytest.mark.real
def test_rows_of_several_models_are_locked_and_written_together(
    rows: Rows, ledger: type[Ledger]
) -> None:
    here, key = rows.scene.here, rows.keys[0]
    with here.locked_all([key, ledger.locked("books", 2024)]) as locked:
        account, books = locked
        assert (type(account), type(books)) == (here, ledger)
        assert ledger.locked("books", 2024).acquire(blocking=False) is False
        with locked.transaction() as transaction:
            transaction.update(account, [here.balance.add(-3)])
            transaction.update(books, [ledger.total.add(3)])
    assert rows.balances == [-3, 0, 0]
    assert ledger.get("books", 2024, consistent_read=True).total == 3
    assert rows.free()[0]
    assert ledger.locked_all([("books", 2024)]).acquire(blocking=False)


def test_held_row_of_another_model_locks_none(rows: Rows, ledger: type[Ledger]) -> None:
    here, key = rows.scene.here, rows.keys[0]
    with ledger.locked("books", 2024):
        locks = here.locked_all([key, ledger.locked("books", 2024)])
        assert locks.acquire(blocking=False) is False
    assert rows.free() == [True] * 3


# -- contention ------------------------------------------------------------------------------------


def run_all(*work: Callable[[], None]) -> None:
    errors: list[BaseException] = []

    def run(each: Callable[[], None]) -> None:
        try:
            each()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not any(thread.is_alive() for thread in threads)
    assert errors == []


def test_locks_taken_in_opposite_orders_neither_block_nor_lose_an_update(rows: Rows) -> None:
    any_scene, times = rows.scene, 6
    first, second, third = rows.keys

    def work(model: type[Account], keys: list[str]) -> Callable[[], None]:
        def several() -> None:
            for n in range(times):
                with model.locked_all(keys, timeout=60, poll=(0.01, 0.1)) as locked:
                    if n % 2:
                        add_to_all(locked)
                    else:
                        for row in locked:
                            save(row, unlock=n == 2)

        return several

    def one() -> None:
        for _ in range(times):
            with any_scene.there.locked(second, timeout=60, poll=(0.01, 0.1)) as row:
                save(row)

    run_all(
        work(any_scene.here, [first, second]),
        work(any_scene.there, [second, first]),
        work(any_scene.there, [third, second, first]),
        one,
    )
    assert rows.balances == [3 * times, 4 * times, times]
    assert all(rows.free())
