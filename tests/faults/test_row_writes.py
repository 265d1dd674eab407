"""I2: a write under a row's lock is applied only under the claim, once, in order; and told truly."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pynamodb.attributes import VersionAttribute
from pynamodb.exceptions import DeleteError, PutError, PynamoDBException, UpdateError
from row_scene import (
    Account,
    RowScene,
    Write,
    arrives_in_vain,
    every_write,
    row_losses,
    save,
    save_or_update,
    update,
)
from scene import Lose, lost_in_two_ways

from dev.faultproxy import (
    Fault,
    Late,
    after,
    deny,
    drop_answer,
    drop_request,
    late,
    server_error,
    throttle,
)
from pynamodb_mutex import MutexLostError
from pynamodb_mutex.exceptions import Loss

lost = pytest.mark.parametrize("lose", [drop_answer])
"""One way for an answer to be lost will do where another would show nothing new."""


def assert_lost(
    write: Callable[[], object], applied: bool | None, loss: Loss | None = None
) -> MutexLostError:
    """See that a write is refused because the lock is lost."""
    with pytest.raises(MutexLostError) as raised:
        write()
    assert raised.value.applied is applied
    assert loss in (None, raised.value.loss)
    return raised.value


# -- applied ---------------------------------------------------------------------------------------


@lost_in_two_ways
@save_or_update
def test_write_whose_answer_is_lost_is_applied_once(
    any_scene: RowScene, write: Write, lose: Lose
) -> None:
    op = any_scene.op(write.__name__)
    with any_scene.lock() as row:
        any_scene.proxy.next(lose(), lose(), op=op)
        write(row, "first")
        assert any_scene.applied(op) == [True, False, False]
        for stored in (any_scene.row, row):
            assert (stored.balance, stored.last) == (1, "first")
        assert any_scene.writes == 1
        write(row, "second")
        assert (any_scene.row.balance, any_scene.row.last, any_scene.writes) == (2, "second", 2)
        assert row.is_locked


@lost
@save_or_update
def test_write_that_unlocks_and_whose_answer_is_lost_is_applied_once(
    any_scene: RowScene, write: Write, lose: Lose
) -> None:
    op = any_scene.op(write.__name__)
    lost: list[object] = []
    with any_scene.lock(on_lost=lost.append) as row:
        any_scene.proxy.next(lose(), lose(), op=op)
        write(row, "first", unlock=True)
        assert any_scene.applied(op) == [True, False, False]
        assert not row.row_lock.held
        assert not row.row_lock.lost
    assert (any_scene.row.balance, any_scene.row.last) == (1, "first")
    assert any_scene.is_free
    assert any_scene.proxy.of("release") == []
    assert lost == []
    any_scene.taken().release()


@lost
def test_delete_whose_answer_is_lost_is_applied_once(any_scene: RowScene, lose: Lose) -> None:
    op = any_scene.op("delete")
    with any_scene.lock() as row:
        any_scene.proxy.next(lose(), lose(), op=op)
        row.delete()
        assert any_scene.applied(op) == [True, False, False]
    assert any_scene.gone


@pytest.mark.real
def test_update_leaves_the_claim_alone(row_scene: RowScene) -> None:
    with row_scene.lock() as row:
        before = row_scene.claim
        update(row)
        assert row_scene.claim == before | {"writes": {"N": "1"}}


def test_unlock_of_unknown_outcome_is_no_loss_to_the_release(row_scene: RowScene) -> None:
    any_scene = row_scene
    lock = any_scene.lock()
    any_scene.proxy.next(drop_answer(), deny(), op="PutItem")
    with pytest.raises(PutError), lock as row:
        save(row, "mine", unlock=True)
    assert any_scene.is_free
    assert any_scene.row.last == "mine"
    assert not lock.lost
    # there was no claim to end any more
    assert any_scene.applied("release") == [False]


# -- not applied -----------------------------------------------------------------------------------


@every_write
@row_losses
def test_refused_at_the_first_attempt_is_not_applied(
    any_scene: RowScene, write: Write, lose_it: Callable[[RowScene], object], loss: Loss
) -> None:
    row = any_scene.locked(auto_renew=False)
    lose_it(any_scene)
    assert row.row_lock.held  # it cannot know
    before = any_scene.everything
    told = assert_lost(lambda: write(row), False, loss)
    assert told.owner == ("other" if loss is Loss.TAKEN else None)
    assert row.row_lock.loss is loss
    assert any_scene.everything == before
    assert not row.is_locked


@every_write
@pytest.mark.parametrize(
    ("lose_it", "loss"),
    [(RowScene.forced_and_taken, Loss.TAKEN), (RowScene.force, Loss.FORCED)],
)
def test_refused_at_the_first_attempt_inside_a_write_that_unlocks_as_well(
    row_scene: RowScene, write: Write, lose_it: Callable[[RowScene], object], loss: Loss
) -> None:
    row = row_scene.locked(auto_renew=False)
    lose_it(row_scene)
    before = row_scene.everything
    unlock = {} if write.__name__ == "delete" else {"unlock": True}
    assert_lost(lambda: write(row, **unlock), False, loss)
    assert row_scene.everything == before


@every_write
def test_write_of_a_holder_that_slept_through_anothers_whole_cycle_is_not_applied(
    any_scene: RowScene, write: Write
) -> None:
    row = any_scene.locked(auto_renew=False)
    other = any_scene.expired_and_taken()
    save(other.row, "other", unlock=True)
    assert_lost(lambda: write(row), False, Loss.TAKEN)
    assert any_scene.row.last == "other"


@pytest.mark.parametrize("fault", [throttle, server_error])
@every_write
def test_taken_over_after_an_attempt_that_was_throttled_is_reported_as_far_as_known(
    any_scene: RowScene, write: Write, fault: Lose
) -> None:
    row = any_scene.locked()
    any_scene.proxy.next(
        fault(), after(any_scene.forced_and_taken), op=any_scene.op(write.__name__)
    )
    # throttled is surely not applied; after a 500 nobody knows
    assert_lost(lambda: write(row), False if fault is throttle else None)
    assert (any_scene.row.balance, any_scene.row.last) == (0, None)


@every_write
def test_refused_after_code_that_takes_no_locks_has_written_over_the_row(
    row_scene: RowScene, write: Write
) -> None:
    row = row_scene.locked(auto_renew=False)
    row_scene.overwrite()
    assert_lost(lambda: write(row), False, Loss.DELETED)
    assert row_scene.row.last == "old"


# -- unknown ---------------------------------------------------------------------------------------


@lost
@save_or_update
def test_applied_and_then_taken_over_before_the_repeat_is_unknown(
    any_scene: RowScene, write: Write, lose: Lose
) -> None:
    row = any_scene.locked()
    any_scene.proxy.next(lose(then=any_scene.forced_and_taken), op=any_scene.op(write.__name__))
    assert assert_lost(lambda: write(row), None, Loss.TAKEN).owner == "other"
    assert (any_scene.row.balance, any_scene.row.last) == (1, "mine")


@lost
@save_or_update
def test_applied_with_the_unlock_and_then_taken_before_the_repeat_is_unknown(
    any_scene: RowScene, write: Write, lose: Lose
) -> None:
    row = any_scene.locked()
    any_scene.proxy.next(lose(then=any_scene.taken), op=any_scene.op(write.__name__))
    assert_lost(lambda: write(row, unlock=True), None)
    assert (any_scene.row.balance, any_scene.row.last) == (1, "mine")


@every_write
@pytest.mark.parametrize("take", [RowScene.force, RowScene.forced_and_taken])
def test_not_applied_and_then_lost_before_the_repeat_is_unknown(
    any_scene: RowScene, write: Write, take: Callable[[RowScene], object]
) -> None:
    row = any_scene.locked()
    any_scene.proxy.next(
        drop_request(then=lambda: take(any_scene)), op=any_scene.op(write.__name__)
    )
    assert_lost(lambda: write(row), None)
    assert any_scene.row.last in (None, "old")


@lost
def test_row_deleted_and_made_anew_by_another_before_the_repeat_is_unknown(
    row_scene: RowScene, lose: Lose
) -> None:
    row = row_scene.locked()
    any_scene = row_scene
    any_scene.proxy.next(lose(then=any_scene.overwrite), op=any_scene.op("delete"))
    assert_lost(row.delete, None)
    assert any_scene.row.last == "old"


# -- earlier writes whose outcome nobody knows -------------------------------------------------------


def give_up_a_write(
    any_scene: RowScene, write: Write, *faults: Fault, **options: bool
) -> tuple[Late, Account]:
    """Let a guarded write fail for good; return its first attempt, kept by the network."""
    kept = late()
    any_scene.proxy.next(kept, *faults, deny(), op=any_scene.op(write.__name__))
    row = any_scene.locked()
    with pytest.raises(PynamoDBException) as raised:
        write(row, "first", **options)
    assert not isinstance(raised.value, MutexLostError)
    assert row.is_locked
    return kept, row


@lost
@save_or_update
def test_next_write_goes_through_after_one_that_was_applied_unknown_to_us(
    any_scene: RowScene, write: Write, lose: Lose
) -> None:
    kept, row = give_up_a_write(any_scene, write, lose())
    assert (any_scene.row.last, any_scene.writes) == ("first", 1)
    save(row, "second")
    assert (any_scene.row.last, any_scene.writes) == ("second", 2)
    arrives_in_vain(any_scene, kept)
    row.row_lock.release()


@save_or_update
def test_next_write_goes_through_after_one_that_was_never_applied(
    any_scene: RowScene, write: Write
) -> None:
    kept, row = give_up_a_write(any_scene, write)
    save(row, "second")
    assert (any_scene.row.last, any_scene.writes) == ("second", 2)
    arrives_in_vain(any_scene, kept)
    row.row_lock.release()


@save_or_update
def test_given_up_write_that_lands_during_the_next_one_keeps_its_place_before_it(
    any_scene: RowScene, write: Write
) -> None:
    kept, row = give_up_a_write(any_scene, write)
    any_scene.proxy.next(server_error(), op=any_scene.op("save"))
    landed: list[int] = []
    any_scene.proxy.next(after(lambda: landed.append(kept.apply().status)), op=any_scene.op("save"))
    save(row, "second")
    assert landed == [200]
    assert (any_scene.row.last, any_scene.writes) == ("second", 2)
    row.row_lock.release()


def test_given_up_write_that_lands_is_not_taken_for_the_next_one(any_scene: RowScene) -> None:
    # the next write is applied too, its answer is lost, and the late one cannot undo it
    kept, row = give_up_a_write(any_scene, update)
    any_scene.proxy.next(drop_answer(then=kept.apply), op=any_scene.op("save"))
    save(row, "second")
    assert any_scene.row.last == "second"
    row.row_lock.release()


# -- order -----------------------------------------------------------------------------------------


def test_threads_that_write_under_one_lock_lose_no_update(any_scene: RowScene) -> None:
    with any_scene.lock() as row:
        for _ in range(3):
            any_scene.proxy.next(drop_answer(), drop_request(), op=any_scene.op("update"))
        errors: list[BaseException] = []

        def work() -> None:
            mine = type(row)(row.name)
            mine._row_lock, mine._row_claim = row._row_lock, row._row_claim
            try:
                for _ in range(4):
                    update(mine)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert (any_scene.row.balance, any_scene.writes) == (12, 12)


# -- conditions of the caller's own ----------------------------------------------------------------


@every_write
@pytest.mark.parametrize("renewed", [False, True])
def test_condition_of_the_callers_own_is_no_loss(
    row_scene: RowScene, write: Write, renewed: bool
) -> None:
    any_scene = row_scene
    error = {"save": PutError, "update": UpdateError, "delete": DeleteError}[write.__name__]
    with any_scene.lock() as row:
        if renewed:
            # refused for a renewal as well, and then for the condition alone
            any_scene.proxy.next(after(row.row_lock.renew), op=any_scene.op(write.__name__))
        before = any_scene.row.to_simple_dict()
        with pytest.raises(error) as raised:
            write(row, condition=any_scene.here.balance == 99)
        assert raised.value.cause_response_code == "ConditionalCheckFailedException"
        assert row.is_locked
        after_it = any_scene.row.to_simple_dict()
        if not renewed:
            assert after_it == before
        assert after_it["balance"] == 0
        row.balance = 0
        save(row, condition=any_scene.here.balance == 0)
        assert any_scene.row.balance == 1


@pytest.fixture
def versioned(row_scene: RowScene) -> type[Account]:
    """The client with the bad network, whose model has a version of its own."""

    class Versioned(row_scene.here):
        class Meta(row_scene.here.Meta):
            pass

        revision = VersionAttribute()

    Versioned(row_scene.key).save()
    row_scene.proxy.start_anew()
    return Versioned


@lost
def test_own_result_is_recognised_by_a_model_with_a_version(
    row_scene: RowScene, versioned: type[Account], lose: Lose
) -> None:
    with versioned.locked(row_scene.key) as row:
        row_scene.proxy.next(lose(), op="PutItem")
        row_scene.proxy.next(lose(), op="update")
        save(row)
        assert row.revision == 2
        update(row)
        assert row.revision == 3
        save(row)
    found = versioned.get(row_scene.key, consistent_read=True)
    assert (found.revision, found.balance) == (4, 3)


@every_write
def test_mismatch_of_the_models_version_is_pynamodbs_error_not_a_loss(
    row_scene: RowScene, versioned: type[Account], write: Write
) -> None:
    with versioned.locked(row_scene.key) as row:
        # by a program that knows nothing of locks
        row_scene.set_claim(versioned.revision.set(7))
        with pytest.raises((PutError, UpdateError, DeleteError)) as raised:
            write(row)
        assert raised.value.cause_response_code == "ConditionalCheckFailedException"
        assert row.is_locked
        assert versioned.get(row_scene.key, consistent_read=True).balance == 0
    assert row_scene.is_free
