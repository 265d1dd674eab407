"""Several row locks: all or none, in one request each way; and loss of one is loss of all."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from group_scene import that
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import TransactWriteError
from row_scene import TRANSACT, add_to_all, add_unread, save, update
from row_tables import LOCKABLE, created, keyed, made

from dev.faultproxy import Fault, deny, drop_answer, no_date, server_error, through
from pynamodb_mutex import MutexLostError
from pynamodb_mutex._runtime.process import forget_everything
from pynamodb_mutex.testing import FakeClock


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


def test_dead_holder_of_one_is_taken_over(rows):
    other = rows.scene.there.locked(rows.keys[1], lease=0.5, auto_renew=False, owner="dead")
    assert other.acquire()
    with rows.locks() as locked:
        add_to_all(locked)
    with pytest.raises(MutexLostError):
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
    books = created(made(attributes, LOCKABLE))
    books = through(rows.scene.proxy, books)
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


def test_without_a_date_a_dead_holder_is_watched_for_its_lease(rows):
    dead = rows.scene.there.locked(rows.keys[1], lease=0.5, auto_renew=False, owner="dead")
    assert dead.acquire()
    rows.scene.proxy.always(no_date())
    # what it knew of server time goes with its stores
    forget_everything()
    locks = rows.locks(poll=(0.1, 0.2))
    assert locks.acquire(timeout=30)
    assert locks._current("the second").claims[1].own.version > dead.fencing_token
    locks.release()


@pytest.mark.usefixtures("engine")  # before the clock, which stands still in its world
def test_client_whose_clock_stood_still_gets_claims_that_are_long_enough(fake_clock, accounts):
    accounts("b").save()
    with accounts.locked("a"):
        pass
    # the clock stands, its knowledge of server time with it: the claims come out short
    time.sleep(12)
    fake_clock.advance(0.001)
    locks = accounts.locked_all(["a", "b"], lease=20)
    assert locks.acquire(blocking=False)
    assert locks.remaining > 10
    locks.release()


def test_claims_that_came_too_late_are_not_held(rows):
    with FakeClock() as clock:

        def answer_late(exchange):
            reply = exchange.apply("late answer")
            clock.advance(3)
            exchange.answer(reply)

        locks = rows.locks(lease=2)
        rows.scene.proxy.next(Fault("late answer", answer_late), op=TRANSACT)
        rows.scene.proxy.always(deny(), when=that("renew"))
        assert not locks.acquire(blocking=False)
        assert not locks.held
    rows.scene.proxy.wait(3, "disown")
    assert all(rows.free())
