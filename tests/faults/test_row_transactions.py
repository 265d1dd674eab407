"""I2: rows written under their lock inside PynamoDB's transactions, and the lock's own."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pynamodb.attributes import VersionAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import TransactWriteError
from pynamodb.transactions import TransactWrite
from row_scene import (
    TRANSACT,
    Account,
    RowScene,
    Write,
    arrives_in_vain,
    assert_refused,
    delete,
    every_write,
    row_losses,
    save,
    save_or_update,
    update,
)
from scene import Lose, lost_in_two_ways

from dev.faultproxy import after, deny, drop_request, late, throttle
from pynamodb_mutex import MutexError, MutexLostError
from pynamodb_mutex.exceptions import Loss


def plain(row: Account) -> TransactWrite:
    return TransactWrite(connection=Connection(host=row.Meta.host))


def of_the_lock(row: Account) -> TransactWrite:
    return row.row_lock.transaction()


Way = Callable[[Account], TransactWrite]
ways = pytest.mark.parametrize("way", [plain, of_the_lock])
of_the_locks_alone = pytest.mark.parametrize("way", [of_the_lock])


def transact(way: Way, write: Write, row: Account, last: str = "mine", **options: Any) -> None:
    """Make a write in a transaction, with one of a row that nobody locks."""
    model = type(row)
    with way(row) as transaction:
        if write is save:
            row.balance, row.last = row.balance + 1, last
            transaction.save(row, **options)
        elif write is update:
            transaction.update(row, [model.balance.add(1), model.last.set(last)], **options)
        else:
            transaction.delete(row, **options)
        other = model(f"{row.name}-beside")
        transaction.update(other, [model.balance.add(1)], add_version_condition=False)


def beside(any_scene: RowScene) -> int:
    """How often the transaction's other row was written."""
    row = next(iter(any_scene.there.query(f"{any_scene.key}-beside", consistent_read=True)), None)
    return 0 if row is None else row.balance


@ways
@lost_in_two_ways
@save_or_update
def test_answer_lost_is_applied_once(
    any_scene: RowScene, way: Way, write: Write, lose: Lose
) -> None:
    with any_scene.lock() as row:
        any_scene.proxy.next(*[lose() for _ in range(3)], op=TRANSACT)
        transact(way, write, row, "first")
        assert any_scene.applied(TRANSACT) == [True, False, False, False]
        assert (any_scene.row.balance, any_scene.row.last, any_scene.writes) == (1, "first", 1)
        row.balance = 1
        transact(way, write, row, "second")
        assert (any_scene.row.balance, any_scene.row.last, any_scene.writes) == (2, "second", 2)
        assert row.is_locked
    assert beside(any_scene) == 2


@ways
@lost_in_two_ways
def test_answer_to_a_delete_lost_is_applied_once(row_scene: RowScene, way: Way, lose: Lose) -> None:
    with row_scene.lock() as row:
        row_scene.proxy.next(lose(), op=TRANSACT)
        transact(way, delete, row)
    assert row_scene.gone
    assert beside(row_scene) == 1


@ways
@every_write
@row_losses
def test_refused_at_the_first_attempt_is_not_applied(
    row_scene: RowScene,
    way: Way,
    write: Write,
    lose_it: Callable[[RowScene], object],
    loss: Loss,
) -> None:
    row = row_scene.locked(auto_renew=False)
    lose_it(row_scene)
    before = row_scene.everything
    with pytest.raises(MutexLostError) as raised:
        transact(way, write, row)
    assert raised.value.applied is False
    assert raised.value.loss is row.row_lock.loss is loss
    assert row_scene.everything == before
    assert beside(row_scene) == 0


@ways
@every_write
def test_refused_in_a_lock_table(any_scene: RowScene, way: Way, write: Write) -> None:
    row = any_scene.locked(auto_renew=False)
    any_scene.forced_and_taken()
    with pytest.raises(MutexLostError) as raised:
        transact(way, write, row)
    assert raised.value.applied is False
    assert (any_scene.row.balance, beside(any_scene)) == (0, 0)


@ways
@lost_in_two_ways
@save_or_update
def test_applied_and_then_taken_over_before_the_repeat_is_unknown(
    any_scene: RowScene, way: Way, write: Write, lose: Lose
) -> None:
    row = any_scene.locked()
    any_scene.proxy.next(lose(then=any_scene.forced_and_taken), op=TRANSACT)
    with pytest.raises(MutexLostError) as raised:
        transact(way, write, row)
    assert raised.value.applied is None
    assert raised.value.owner == "other"
    assert (any_scene.row.balance, beside(any_scene)) == (1, 1)


@ways
@every_write
@pytest.mark.parametrize(("fault", "applied"), [(drop_request, None), (throttle, False)])
def test_not_applied_and_then_taken_over_is_reported_as_far_as_known(
    any_scene: RowScene, way: Way, write: Write, fault: Lose, applied: bool | None
) -> None:
    row = any_scene.locked()
    any_scene.proxy.next(fault(), after(any_scene.forced_and_taken), op=TRANSACT)
    with pytest.raises(MutexLostError) as raised:
        transact(way, write, row)
    assert raised.value.applied is applied
    assert (any_scene.row.balance, beside(any_scene)) == (0, 0)


@ways
@save_or_update
def test_late_transaction_changes_nothing(any_scene: RowScene, way: Way, write: Write) -> None:
    kept = late()
    with any_scene.lock() as row:
        any_scene.proxy.next(kept, op=TRANSACT)
        transact(way, write, row, "first")
        save(row, "second")
        arrives_in_vain(any_scene, kept)
        seen = any_scene.proxy.of(TRANSACT)[0]
        before = any_scene.everything
        # as DynamoDB takes it after ten minutes
        assert_refused(any_scene.proxy.replay(seen, ClientRequestToken=str(uuid.uuid4())))
        assert any_scene.everything == before
    assert beside(any_scene) == 1


@ways
@pytest.mark.parametrize("lands", [True, False])
def test_given_up_transaction_keeps_its_place_before_the_next_write(
    any_scene: RowScene, way: Way, lands: bool
) -> None:
    kept = late()
    with any_scene.lock() as row:
        any_scene.proxy.next(kept, deny(), op=TRANSACT)
        with pytest.raises(TransactWriteError):
            transact(way, update, row, "first")
        if lands:
            assert kept.apply().status == 200
        save(row, "second")
        assert (any_scene.row.last, any_scene.writes) == ("second", 2)
        if not lands:
            arrives_in_vain(any_scene, kept)
    assert beside(any_scene) == lands


@ways
def test_transaction_that_meets_a_renewal_sent_later_is_repeated(
    row_scene: RowScene, way: Way
) -> None:
    with row_scene.lock() as row:
        row_scene.proxy.next(after(row.row_lock.renew), op=TRANSACT)
        transact(way, save, row)
        assert row_scene.applied(TRANSACT) == [False, True]
        assert (row_scene.row.balance, row_scene.writes) == (1, 1)
    assert beside(row_scene) == 1


@ways
def test_threads_under_one_lock_lose_no_update(any_scene: RowScene, way: Way) -> None:
    with any_scene.lock() as row:
        errors: list[BaseException] = []

        def work(write: Callable[[Account], None]) -> None:
            mine = type(row)(row.name)
            mine._row_lock, mine._row_claim = row._row_lock, row._row_claim
            try:
                for _ in range(4):
                    write(mine)
            except BaseException as error:
                errors.append(error)

        def in_transaction(mine: Account) -> None:
            # a row beside it that all write would be a conflict of their own
            with way(mine) as transaction:
                transaction.update(mine, [type(mine).balance.add(1)])

        writes = (in_transaction, in_transaction, update)
        threads = [threading.Thread(target=work, args=(write,)) for write in writes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert (any_scene.row.balance, any_scene.writes) == (12, 12)


@ways
@every_write
def test_condition_of_the_callers_own_is_no_loss(
    any_scene: RowScene, way: Way, write: Write
) -> None:
    with any_scene.lock() as row:
        with pytest.raises(TransactWriteError) as raised:
            transact(way, write, row, condition=any_scene.here.balance == 99)
        assert raised.value.cause_response_code == "TransactionCanceledException"
        codes = [each.code if each else None for each in raised.value.cancellation_reasons]
        assert "ConditionalCheckFailed" in codes
        assert row.is_locked
        assert (any_scene.row.balance, beside(any_scene), any_scene.writes) == (0, 0, 0)
        row.balance = 0
        transact(way, write, row, condition=any_scene.here.balance == 0)
    assert beside(any_scene) == 1


@ways
@lost_in_two_ways
def test_version_of_the_model_is_kept(row_scene: RowScene, way: Way, lose: Lose) -> None:
    class Versioned(row_scene.here):
        class Meta(row_scene.here.Meta):
            pass

        revision = VersionAttribute()

    Versioned(row_scene.key).save()
    with Versioned.locked(row_scene.key) as row:
        for n, write in enumerate((save, update, save), 2):
            row_scene.proxy.next(lose(), op=TRANSACT)
            transact(way, write, row)
            assert row.revision == n
            assert row_scene.raw["revision"]["N"] == str(n)
        row_scene.set_claim(Versioned.revision.set(7))
        with pytest.raises(TransactWriteError) as raised:
            transact(way, save, row)
        assert not isinstance(raised.value, MutexError)
        assert row.is_locked
        row_scene.set_claim(Versioned.revision.set(4))
    assert row_scene.is_free


@of_the_locks_alone
def test_instance_that_is_not_the_locked_one_is_refused(row_scene: RowScene, way: Way) -> None:
    any_scene = row_scene
    with any_scene.lock() as row:
        transaction = way(row)
        transaction.update(any_scene.here(any_scene.key), [any_scene.here.balance.add(1)])
        with pytest.raises(TransactWriteError), transaction:
            pass
        assert row.is_locked
    assert any_scene.row.balance == 0


def test_lock_in_a_lock_table_guards_any_instance_of_its_row(table_scene: RowScene) -> None:
    any_scene = table_scene
    row = any_scene.locked()
    with row.row_lock.transaction() as transaction:
        transaction.update(any_scene.here(any_scene.key), [any_scene.here.balance.add(1)])
    assert any_scene.row.balance == 1
    transaction = row.row_lock.transaction()
    transaction.update(any_scene.here(any_scene.key), [any_scene.here.balance.add(1)])
    any_scene.forced_and_taken()
    with pytest.raises(MutexLostError), transaction:
        pass
    assert any_scene.row.balance == 1


@pytest.mark.real
def test_transaction_of_the_lock_guards_rows_of_others(any_scene: RowScene) -> None:
    row = any_scene.locked(auto_renew=False)
    free = any_scene.here(f"{any_scene.key}-free", balance=3)
    with row.row_lock.transaction() as transaction:
        transaction.save(free)
    assert any_scene.here.count(free.name) == 1
    any_scene.forced_and_taken()
    transaction = row.row_lock.transaction()
    transaction.delete(free)
    with pytest.raises(MutexLostError), transaction:
        pass
    assert any_scene.here.count(free.name) == 1
