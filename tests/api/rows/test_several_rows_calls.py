"""What several row locks have in common with one: the calls, their errors, clocks that stood still."""

from __future__ import annotations

import pickle
import re
import threading
import time
from collections.abc import Iterator

import pytest
from accounts import Account, Ledger
from group_scene import that
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from row_scene import TRANSACT, Rows

from dev.faultproxy import Exchange, Fault, deny, drop_answer, no_date, server_error
from pynamodb_mutex import Loss, MutexError, MutexLostError, MutexNotHeldError
from pynamodb_mutex._runtime.process import forget_everything
from pynamodb_mutex.groups import RowLocks
from pynamodb_mutex.testing import FakeClock


@pytest.fixture
def locks(accounts: type[Account]) -> Iterator[RowLocks[Account]]:
    """The locks of two rows."""
    accounts("b").save()
    return accounts.locked_all(["a", "b"], lease=20, timeout=20)


# -- calls -----------------------------------------------------------------------------------------


def test_nothing_but_waiting_takes_a_timeout(locks: RowLocks[Account]) -> None:
    with pytest.raises(ValueError, match="non-blocking"):
        locks.acquire(blocking=False, timeout=1)
    with pytest.raises(ValueError, match="timeout"):
        locks.acquire(timeout=-2)
    assert not locks.held


def test_what_is_not_held_says_so(locks: RowLocks[Account]) -> None:
    assert locks.remaining == 0
    assert "not held" in repr(locks)
    for call in (locks.release, locks.ensure_held, locks.transaction):
        with pytest.raises(MutexNotHeldError, match="not held"):
            call()


def test_what_is_held_says_for_how_long(locks: RowLocks[Account]) -> None:
    with locks:
        assert 10 < locks.remaining <= 20
        assert re.search(r"b': held, 1\d\.\d s left", repr(locks))
    assert locks.remaining == 0


def test_it_has_no_truth_value_and_is_not_copied(locks: RowLocks[Account]) -> None:
    with pytest.raises(TypeError, match=r"\.held"):
        bool(locks)
    with pytest.raises(TypeError, match="make it where"):
        pickle.dumps(locks)


def test_ensure_held_renews_those_of_which_too_little_is_left(locks: RowLocks[Account]) -> None:
    with FakeClock() as clock:
        assert locks.acquire()
        clock.advance(5)
        ends = [row.lock_expires_at for row in Account.scan(consistent_read=True)]
        locks.ensure_held(1)
        assert [row.lock_expires_at for row in Account.scan(consistent_read=True)] == ends
        locks.ensure_held(19)
        assert locks.remaining > 19
        with pytest.raises(ValueError, match="at_least"):
            locks.ensure_held(20)
        locks.release()


def test_renewed_by_one_request(rows: Rows) -> None:
    with rows.locks(lease=20, auto_renew=False) as locked:
        ends = [float(row.lock_expires_at or 0) for row in rows.stored()]
        rows.scene.proxy.start_anew()
        locked._locks.renew(60)
        assert rows.scene.proxy.kinds() == [TRANSACT]
        assert locked._locks.remaining > 50
        if not rows.scene.in_table:
            after = [row.lock_expires_at for row in rows.stored()]
            assert all(later > end for later, end in zip(after, ends, strict=True))


def test_a_missing_row_under_a_lock_table_is_reported_when_it_is_looked_at(
    ledger: type[Ledger],
) -> None:
    with ledger.locked_all(["a", "missing"]) as rows:
        with pytest.raises(Ledger.DoesNotExist):
            print(rows[0])
        assert rows._locks.held


def test_ensure_held_shows_a_loss(locks: RowLocks[Account]) -> None:
    assert locks.acquire()
    assert Account.locked("b").force_release()
    with pytest.raises(MutexLostError) as raised:
        locks.ensure_held()
    assert raised.value.loss is Loss.FORCED
    with pytest.raises(MutexLostError):
        locks.release()
    assert Account.locked("a").acquire(blocking=False)


def test_the_bodys_own_error_is_not_replaced(locks: RowLocks[Account]) -> None:
    with pytest.raises(ZeroDivisionError) as raised, locks:  # noqa: PT012 - the block is what is left
        assert Account.locked("b").force_release()
        raise ZeroDivisionError
    if hasattr(raised.value, "add_note"):  # since Python 3.11
        assert "could not be released" in raised.value.__notes__[0]


def test_a_loss_is_reported_at_the_end_of_a_clean_body(locks: RowLocks[Account]) -> None:
    with pytest.raises(MutexLostError), locks:
        assert Account.locked("b").force_release()


def test_rows_of_models_without_locks_may_be_written_too(
    locks: RowLocks[Account], accounts: type[Account]
) -> None:
    class Plain(Model):
        class Meta:
            table_name = accounts.Meta.table_name

        name = UnicodeAttribute(hash_key=True)

    with locks as rows, rows.transaction() as transaction:
        transaction.save(Plain("c"))
    assert Plain.count("c") == 1


# -- faults ----------------------------------------------------------------------------------------


def test_locking_that_is_refused_for_good_is_not_disowned(rows: Rows) -> None:
    rows.scene.proxy.next(deny(), op=TRANSACT)
    with pytest.raises(TransactWriteError):
        rows.locks().acquire()
    assert rows.scene.proxy.kinds() == [TRANSACT]


def test_locking_of_unknown_outcome_that_cannot_be_disowned_is_still_not_held(rows: Rows) -> None:
    locks = rows.locks(timeout=0)
    rows.scene.proxy.always(drop_answer(), op=TRANSACT)
    rows.scene.proxy.always(server_error(), op="disown")
    with pytest.raises(TransactWriteError):
        locks.acquire(timeout=1)
    assert not locks.held
    assert len(rows.scene.proxy.of("disown")) == 3


def test_without_a_date_a_dead_holder_is_watched_for_its_lease(rows: Rows) -> None:
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
def test_a_client_whose_clock_stood_still_gets_claims_that_are_long_enough(
    fake_clock: FakeClock, locks: RowLocks[Account]
) -> None:
    with Account.locked("a"):
        pass
    # the clock stands, its knowledge of server time with it: the claims come out short
    time.sleep(12)
    fake_clock.advance(0.001)
    assert locks.acquire(blocking=False)
    assert locks.remaining > 10
    locks.release()


def test_claims_that_came_too_late_are_not_held(rows: Rows) -> None:
    with FakeClock() as clock:

        def answer_late(exchange: Exchange) -> None:
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


def test_who_waits_while_the_engine_is_left_is_reported(rows: Rows) -> None:
    other = rows.taken(0)
    told: list[str] = []

    def wait() -> None:
        try:
            rows.locks(poll=(0.02, 0.02)).acquire(timeout=60)
        except MutexError as error:
            told.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    rows.scene.proxy.wait(1, "BatchGetItem")
    forget_everything()
    waiting.join(60)
    assert "engine left" in told[0]
    assert other.locked()
