"""I2 and I4: a request of a row's lock that the network delivers late, or twice, is harmless."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pynamodb.exceptions import PynamoDBException
from row_scene import (
    TRANSACT,
    Account,
    RowScene,
    Write,
    arrives_in_vain,
    assert_refused,
    delete,
    every_write,
    save,
    save_or_update,
    update,
)

from dev.faultproxy import Late, deny, drop_answer, late
from pynamodb_mutex import MutexLostError, RowLockedError

Next = Callable[[RowScene, Account], Any]


# -- guarded writes --------------------------------------------------------------------------------


def late_write(any_scene: RowScene, write: Write, **options: bool) -> tuple[Late, Account]:
    """Write by a second attempt, while the network keeps the first."""
    kept = late()
    any_scene.proxy.next(kept, op=any_scene.op(write.__name__))
    row = any_scene.locked()
    write(row, "first", **options)
    return kept, row


def release(any_scene: RowScene, row: Account) -> None:
    row.row_lock.release()


def release_and_write_unlocked(any_scene: RowScene, row: Account) -> None:
    row.row_lock.release()
    save(any_scene.row, "unlocked")


def release_and_let_another_lock(any_scene: RowScene, row: Account) -> None:
    row.row_lock.release()
    any_scene.taken()


def release_and_lock_again(any_scene: RowScene, row: Account) -> None:
    row.row_lock.release()
    assert row.row_lock.acquire()
    save(row.row_lock.row, "again")


def lose_it(any_scene: RowScene, row: Account) -> None:
    any_scene.forced_and_taken()


def write_by_save(any_scene: RowScene, row: Account) -> None:
    save(row, "second")


def write_by_update(any_scene: RowScene, row: Account) -> None:
    update(row, "second")


def nothing(any_scene: RowScene, row: Account) -> None:
    pass


@save_or_update
@pytest.mark.parametrize(
    "then",
    [
        nothing,
        write_by_save,
        write_by_update,
        release,
        release_and_write_unlocked,
        release_and_let_another_lock,
        release_and_lock_again,
        lose_it,
    ],
)
def test_late_write_changes_nothing(any_scene: RowScene, write: Write, then: Next) -> None:
    kept, row = late_write(any_scene, write)
    then(any_scene, row)
    arrives_in_vain(any_scene, kept)


@save_or_update
@pytest.mark.parametrize("then", ["nothing", "unlocked", "locked", "written"])
def test_late_write_that_unlocks_changes_nothing(
    any_scene: RowScene, write: Write, then: str
) -> None:
    kept, row = late_write(any_scene, write, unlock=True)
    assert any_scene.is_free
    if then == "unlocked":
        save(any_scene.row, "unlocked")
    if then in {"locked", "written"}:
        assert row.row_lock.acquire()
    if then == "written":
        # with the number that the late one has as well
        save(row.row_lock.row, "again")
    arrives_in_vain(any_scene, kept)


@pytest.mark.parametrize("then", ["nothing", "anew", "locked"])
def test_late_delete_changes_nothing(any_scene: RowScene, then: str) -> None:
    kept, row = late_write(any_scene, delete)
    assert any_scene.gone
    if any_scene.in_table:
        row.row_lock.release()
    if then in {"anew", "locked"}:
        any_scene.there(any_scene.key, last="anew").save()
    if then == "locked":
        any_scene.taken()
    arrives_in_vain(any_scene, kept)
    assert then == "nothing" or any_scene.row.last == "anew"


@pytest.mark.real
@every_write
def test_late_transaction_is_refused_also_when_its_request_token_is_forgotten(
    table_scene: RowScene, write: Write
) -> None:
    any_scene = table_scene
    with any_scene.lock() as row:
        write(row)
        if write is delete:
            any_scene.old(any_scene.key).save()
        else:
            save(row, "second")
    before = any_scene.everything
    for seen in any_scene.proxy.of(TRANSACT):
        # as DynamoDB takes it after ten minutes
        assert_refused(any_scene.proxy.replay(seen, ClientRequestToken=str(uuid.uuid4())))
    assert any_scene.everything == before


@every_write
def test_given_up_write_of_a_lost_lock_changes_nothing(any_scene: RowScene, write: Write) -> None:
    kept = late()
    any_scene.proxy.next(kept, deny(), op=any_scene.op(write.__name__))
    row = any_scene.locked()
    with pytest.raises(PynamoDBException):
        write(row)
    any_scene.forced_and_taken()
    arrives_in_vain(any_scene, kept)


def test_given_up_unlocking_write_that_lands_unlocks(row_scene: RowScene) -> None:
    # nobody knows its outcome: the lock then is free, and the next write is refused truly
    kept = late()
    row_scene.proxy.next(kept, deny(), op="update")
    row = row_scene.locked()
    with pytest.raises(PynamoDBException):
        update(row, unlock=True)
    assert not row.is_locked  # as far as anybody may rely on it
    assert kept.apply().status == 200
    assert row_scene.is_free
    with pytest.raises(MutexLostError) as raised:
        save(row, "late")
    assert raised.value.applied is False
    assert row_scene.row.last == "mine"


# -- the lock's own requests -----------------------------------------------------------------------


def late_lock(any_scene: RowScene) -> tuple[Late, Account]:
    """Lock by a second attempt, while the network keeps the first."""
    kept = late()
    any_scene.proxy.next(kept, op="acquire")
    return kept, any_scene.locked()


@pytest.mark.parametrize(
    "then", [nothing, write_by_save, release, release_and_let_another_lock, release_and_lock_again]
)
def test_late_locking_changes_nothing(row_scene: RowScene, then: Next) -> None:
    kept, row = late_lock(row_scene)
    then(row_scene, row)
    arrives_in_vain(row_scene, kept)


@save_or_update
def test_late_locking_does_not_lock_again_what_a_write_unlocked(
    row_scene: RowScene, write: Write
) -> None:
    kept, row = late_lock(row_scene)
    write(row, unlock=True)
    arrives_in_vain(row_scene, kept)
    assert row_scene.is_free


@pytest.mark.real
def test_late_locking_does_not_bring_back_a_row_that_was_deleted(row_scene: RowScene) -> None:
    kept, row = late_lock(row_scene)
    row.delete()
    arrives_in_vain(row_scene, kept)
    assert row_scene.gone


def test_late_locking_on_anothers_tombstone_is_believed_by_nobody(row_scene: RowScene) -> None:
    # the one exception that one request cannot prevent
    kept, row = late_lock(row_scene)
    row.row_lock.release()
    other = row_scene.taken()
    other.release()
    assert kept.apply().status == 200
    before = row_scene.everything
    assert not row.is_locked
    assert row_scene.version > other.fencing_token
    row_scene.expire()  # it ends at the end that it carries
    assert row_scene.other().acquire(blocking=False)
    assert row_scene.everything != before


def late_renewal(any_scene: RowScene) -> tuple[Late, Account]:
    """Renew by a second attempt, while the network keeps the first."""
    kept = late()
    any_scene.proxy.next(kept, op="renew")
    row = any_scene.locked()
    row.row_lock.renew(lease=60)
    return kept, row


def unlock_by_save(any_scene: RowScene, row: Account) -> None:
    save(row, unlock=True)


def unlock_by_update(any_scene: RowScene, row: Account) -> None:
    update(row, unlock=True)


def unlock_by_delete(any_scene: RowScene, row: Account) -> None:
    row.delete()


@pytest.mark.parametrize(
    "then",
    [
        nothing,
        release,
        release_and_lock_again,
        unlock_by_save,
        unlock_by_update,
        unlock_by_delete,
        lose_it,
    ],
)
def test_late_renewal_changes_nothing(row_scene: RowScene, then: Next) -> None:
    kept, row = late_renewal(row_scene)
    then(row_scene, row)
    arrives_in_vain(row_scene, kept)


@pytest.mark.parametrize("then", ["again", "other", "unlocked"])
def test_late_release_changes_nothing(row_scene: RowScene, then: str) -> None:
    kept = late()
    row = row_scene.locked()
    row_scene.proxy.next(kept, op="release")
    row.row_lock.release()
    if then == "again":
        assert row.row_lock.acquire()
    if then == "other":
        row_scene.taken()
    if then == "unlocked":
        save(row_scene.row, "unlocked")
    arrives_in_vain(row_scene, kept)


def test_answer_to_the_locking_request_lost_is_recognised(row_scene: RowScene) -> None:
    row_scene.proxy.next(drop_answer(), drop_answer(), op="acquire")
    with row_scene.lock() as row:
        assert row_scene.applied("acquire") == [True, False, False]
        assert (row.balance, row.lock_version) == (0, row_scene.version)
        save(row)
    assert row_scene.row.balance == 1


# -- writes without the lock -----------------------------------------------------------------------


@pytest.mark.real  # botocore repeats what nobody guards
def test_late_unlocked_save_does_not_write_over_the_next_one(row_scene: RowScene) -> None:
    kept = late()
    row_scene.proxy.next(kept, op="PutItem")
    row = row_scene.here(row_scene.key)
    save(row, "first")
    save(row, "second")
    arrives_in_vain(row_scene, kept)


@pytest.mark.real
def test_late_unlocked_writes_do_not_touch_a_row_that_is_locked(row_scene: RowScene) -> None:
    all_kept = []
    for write in (save, update, delete):
        kept = late()
        row_scene.proxy.next(kept, op=row_scene.op(write.__name__))
        write(row_scene.here(row_scene.key))
        all_kept.append(kept)
    row_scene.overwrite()
    row_scene.taken()
    for kept in all_kept:
        arrives_in_vain(row_scene, kept)


def test_late_attempt_of_an_unlocked_write_may_follow_its_refusal(any_scene: RowScene) -> None:
    kept = late()
    any_scene.proxy.next(kept, op=any_scene.op("update"))
    row = any_scene.here.get(any_scene.key, consistent_read=True)
    with (
        any_scene.there.locked(any_scene.key),
        pytest.raises(RowLockedError, match="answer was lost") as refused,
    ):
        update(row, "late")
    assert refused.value.applied is None
    # the holder has released the row: nothing refuses the first attempt any more
    assert kept.apply().status == 200
    assert any_scene.old.get(any_scene.key, consistent_read=True).last == "late"
