"""I4: a request that the network delivers late, or twice, is harmless."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pynamodb.exceptions import UpdateError
from scene import Scene

from dev.faultproxy import Late, Reply, deny, drop_request, duplicate, late
from pynamodb_mutex import LockItem, Mutex, MutexError, MutexLostError, MutexNotHeldError
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import expire


def assert_refused(reply: Reply) -> None:
    assert reply.error == "ConditionalCheckFailedException"


def arrives_in_vain(scene: Scene, kept: Late) -> None:
    """Let a kept request reach the engine, and see that it changes nothing."""
    before = scene.everything
    assert_refused(kept.apply())
    assert scene.everything == before


# -- acquire ---------------------------------------------------------------------------------------


def late_acquire(scene: Scene, **options: bool) -> tuple[Late, Mutex]:
    """Acquire by a second attempt, while the network keeps the first."""
    kept = late()
    scene.proxy.next(kept, op="acquire")
    mutex = scene.mutex(**options)
    assert mutex.acquire()
    assert len(scene.proxy.of("acquire")) == 1  # the one that is kept is not in the log
    return kept, mutex


def test_late_acquire_does_not_touch_the_claim_of_its_own_repeat(scene: Scene) -> None:
    kept, mutex = late_acquire(scene)
    arrives_in_vain(scene, kept)
    mutex.release()


def test_late_acquire_does_not_take_the_lock_again_after_its_own_release(scene: Scene) -> None:
    kept, mutex = late_acquire(scene)
    mutex.release()
    arrives_in_vain(scene, kept)
    assert scene.row.expires_at is None


def test_late_acquire_does_not_take_back_a_claim_that_has_ended(scene: Scene) -> None:
    kept, _ = late_acquire(scene)
    expire(scene.key, scene.there)
    arrives_in_vain(scene, kept)


@pytest.mark.real
def test_late_acquire_does_not_touch_the_claim_of_another(scene: Scene) -> None:
    kept, mutex = late_acquire(scene)
    mutex.release()
    other = scene.taken()
    arrives_in_vain(scene, kept)
    assert other.held
    other.release()


def test_late_acquire_on_anothers_tombstone_is_believed_by_nobody(scene: Scene) -> None:
    # the one exception that one request cannot prevent
    kept, mutex = late_acquire(scene)
    mutex.release()
    other = scene.taken()
    other.release()
    assert kept.apply().status == 200
    assert not mutex.held
    assert not other.held
    assert scene.row.version > other.fencing_token
    expire(scene.key, scene.there)  # it ends at the end that it carries
    assert scene.other().acquire(blocking=False)


def test_old_holder_is_not_helped_by_its_late_acquire_on_anothers_tombstone(scene: Scene) -> None:
    kept, mutex = late_acquire(scene)
    other = scene.forced_and_taken()
    other.release()
    assert kept.apply().status == 200
    assert scene.row.token == mutex.token  # yet it is not its claim: the version is another
    before = scene.everything
    with pytest.raises(MutexLostError) as raised:
        mutex.save_data("late")
    assert raised.value.applied is False
    with pytest.raises(MutexLostError):
        mutex.renew()
    with pytest.raises(MutexLostError):
        mutex.release()
    assert scene.everything == before
    assert not mutex.held


def claim_that_nobody_believes_in(scene: Scene, mutex: Mutex) -> LockItem:
    """See that a late acquire made a claim that blocks the key, and no more than that; return it."""
    claim = scene.row
    assert claim.token == mutex.token
    assert not mutex.held
    with pytest.raises(MutexNotHeldError):
        mutex.release()
    assert not scene.other().acquire(blocking=False)
    expire(scene.key, scene.there)  # it ends at the end that it carries
    other = scene.other()
    assert other.acquire(blocking=False)
    other.release()
    return claim


def test_copy_of_an_acquire_makes_its_claim_again_where_the_row_was_deleted_at_release(
    scene: Scene,
) -> None:
    # as documented of delete_on_release: without a tombstone nothing shows that the acquisition is over
    mutex = scene.mutex(delete_on_release=True)
    mutex.acquire()
    first = scene.row
    mutex.release()
    assert scene.gone
    (acquired,) = scene.proxy.of("acquire")
    assert scene.proxy.replay(acquired).status == 200
    again = claim_that_nobody_believes_in(scene, mutex)
    assert (again.version, again.writes) == (first.version, first.writes)


def test_late_acquire_makes_a_claim_where_the_row_was_deleted_at_release(scene: Scene) -> None:
    kept, mutex = late_acquire(scene, delete_on_release=True)
    mutex.release()
    assert kept.apply().status == 200
    claim_that_nobody_believes_in(scene, mutex)


def test_guarded_write_of_a_lock_whose_row_is_deleted_is_never_sent(scene: Scene) -> None:
    # sent, a copy of it would be applied a second time, after the copy of its acquire
    mutex = scene.mutex(delete_on_release=True)
    mutex.acquire()
    with pytest.raises(MutexError, match="late copies"):
        mutex.save_data("mine")
    with pytest.raises(MutexError, match="late copies"):
        mutex.transaction()
    assert scene.proxy.kinds() == ["acquire"]
    mutex.release()


@pytest.mark.real
def test_late_disowning_of_a_given_up_acquire_does_not_touch_the_next_claim(scene: Scene) -> None:
    kept = late()
    scene.proxy.always(drop_request(), op="acquire")
    scene.proxy.next(kept, op="disown")
    mutex = scene.mutex()
    with pytest.raises(UpdateError):
        mutex.acquire(timeout=0)
    scene.proxy.clear()
    assert mutex.acquire()
    arrives_in_vain(scene, kept)
    assert mutex.held
    mutex.release()


# -- renew -----------------------------------------------------------------------------------------


def late_renewal(scene: Scene, *, lease: float = 60) -> tuple[Late, Mutex]:
    """Renew by a second attempt, while the network keeps the first."""
    kept = late()
    mutex = scene.mutex()
    assert mutex.acquire()
    scene.proxy.next(kept, op="renew")
    mutex.renew(lease=lease)
    return kept, mutex


def test_late_renewal_does_not_move_the_end_back(scene: Scene) -> None:
    kept, mutex = late_renewal(scene)
    arrives_in_vain(scene, kept)
    mutex.release()


def test_shorter_renewal_does_not_move_the_end_back(scene: Scene) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    mutex.renew(lease=600)
    end, left = scene.row.expires_at, mutex.remaining
    mutex.renew(lease=1)
    assert scene.row.expires_at >= end
    assert mutex.remaining > left - 60
    assert scene.row.lease > 500  # who watches waits for what the holder may believe
    mutex.release()


@pytest.mark.real
def test_late_renewal_does_not_revive_a_released_claim(scene: Scene) -> None:
    kept, mutex = late_renewal(scene)
    mutex.release()
    arrives_in_vain(scene, kept)
    assert scene.row.expires_at is None


def test_late_renewal_does_not_revive_a_claim_that_was_broken(scene: Scene) -> None:
    kept, _ = late_renewal(scene)
    assert scene.force()
    arrives_in_vain(scene, kept)
    assert scene.row.expires_at is None


def test_late_renewal_does_not_revive_a_claim_that_was_taken_out_by_hand(scene: Scene) -> None:
    kept, _ = late_renewal(scene)
    scene.clear()
    arrives_in_vain(scene, kept)


def test_late_renewal_does_not_touch_the_claim_of_another(scene: Scene) -> None:
    kept, _ = late_renewal(scene)
    scene.expired_and_taken()
    arrives_in_vain(scene, kept)


def test_late_renewal_does_not_touch_the_next_claim_of_its_own_client(scene: Scene) -> None:
    kept, mutex = late_renewal(scene, lease=600)
    mutex.release()
    assert mutex.acquire()
    arrives_in_vain(scene, kept)
    mutex.release()


# -- release ---------------------------------------------------------------------------------------


def late_release(scene: Scene, **options: bool) -> tuple[Late, Mutex]:
    """Release by a second attempt, while the network keeps the first."""
    kept = late()
    mutex = scene.mutex(**options)
    assert mutex.acquire()
    scene.proxy.next(kept, op="DeleteItem" if options else "release")
    mutex.release()
    return kept, mutex


def test_late_release_does_not_touch_the_claim_of_another(scene: Scene) -> None:
    kept, _ = late_release(scene)
    other = scene.taken()
    arrives_in_vain(scene, kept)
    other.release()


@pytest.mark.real
def test_late_release_does_not_touch_the_next_claim_of_its_own_client(scene: Scene) -> None:
    kept, mutex = late_release(scene)
    assert mutex.acquire()
    arrives_in_vain(scene, kept)
    assert mutex.held
    mutex.release()


def test_late_release_of_a_free_lock_leaves_it_free(scene: Scene) -> None:
    kept, mutex = late_release(scene)
    kept.apply()
    assert (scene.row.expires_at, scene.row.version) == (None, mutex.fencing_token)


def test_late_release_that_deletes_does_not_touch_the_row_of_another(scene: Scene) -> None:
    kept, _ = late_release(scene, delete_on_release=True)
    other = scene.taken()
    arrives_in_vain(scene, kept)
    other.release()


# -- hand-over -------------------------------------------------------------------------------------


def late_hand_over(scene: Scene) -> tuple[Late, Mutex]:
    """Hand over by a second attempt, while the network keeps the first."""
    kept = late()
    mutex = scene.mutex()
    mutex.acquire()
    waiter = scene.waiting()
    scene.proxy.next(kept, op="hand_over")
    mutex.release()
    waiter.join(60)
    assert waiter.acquired
    return kept, waiter.mutex


def test_late_hand_over_does_not_touch_the_claim_that_it_made(scene: Scene) -> None:
    kept, mutex = late_hand_over(scene)
    arrives_in_vain(scene, kept)
    assert mutex.held
    mutex.release()


@pytest.mark.real
def test_late_hand_over_does_not_revive_what_was_released(scene: Scene) -> None:
    kept, mutex = late_hand_over(scene)
    mutex.release()
    arrives_in_vain(scene, kept)
    assert scene.row.expires_at is None


def test_late_hand_over_does_not_revive_a_claim_that_was_taken_out_by_hand(scene: Scene) -> None:
    kept = late()
    mutex = scene.mutex(lease=5)
    mutex.acquire()
    waiter = scene.waiting()
    scene.proxy.next(kept, op="hand_over")
    scene.proxy.always(drop_request(), op="hand_over")
    scene.proxy.always(drop_request(), op="acquire")
    with pytest.raises(UpdateError):
        mutex.release()
    scene.clear()
    arrives_in_vain(scene, kept)
    scene.proxy.clear()
    waiter.join(60)
    assert waiter.acquired
    waiter.mutex.release()


# -- guarded writes --------------------------------------------------------------------------------


def late_write(scene: Scene) -> tuple[Late, Mutex]:
    """Write twice, while the network keeps the first attempt at the first write."""
    kept = late()
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(kept, op="save_data")
    mutex.save_data("first")
    mutex.save_data("second")
    return kept, mutex


@pytest.mark.real
def test_late_write_does_not_overwrite_the_holders_next_one(scene: Scene) -> None:
    kept, mutex = late_write(scene)
    arrives_in_vain(scene, kept)
    assert scene.row.data == "second"
    mutex.release()


def test_late_write_that_was_never_applied_does_not_overwrite_the_next_one(scene: Scene) -> None:
    kept = late()
    mutex = scene.mutex()  # its lease is long: a renewal would change the row as well
    mutex.acquire()
    scene.proxy.next(kept, deny(), op="save_data")
    with pytest.raises(UpdateError):
        mutex.save_data("first")  # not known whether it was applied
    assert mutex.held
    mutex.save_data("second")
    arrives_in_vain(scene, kept)
    assert scene.row.data == "second"
    mutex.release()


@pytest.mark.parametrize("end", [Mutex.release, Mutex.force_release])
def test_late_write_is_not_applied_after_the_claim(
    scene: Scene, end: Callable[[Mutex], None]
) -> None:
    kept, mutex = late_write(scene)
    end(mutex)
    arrives_in_vain(scene, kept)


def test_late_write_is_not_applied_under_the_claim_of_another(scene: Scene) -> None:
    kept, mutex = late_write(scene)
    mutex.release()
    other = scene.taken()
    arrives_in_vain(scene, kept)
    other.save_data("other")
    arrives_in_vain(scene, kept)
    other.release()


def test_late_write_is_not_applied_under_the_next_claim_of_its_own_client(scene: Scene) -> None:
    kept, mutex = late_write(scene)
    mutex.release()
    mutex.acquire()
    arrives_in_vain(scene, kept)
    mutex.release()


# -- force -----------------------------------------------------------------------------------------


@pytest.mark.real
def test_late_force_does_not_break_a_later_claim(scene: Scene) -> None:
    kept = late()
    scene.taken()
    scene.proxy.next(kept, op="force")
    assert scene.here.force_release(scene.key)
    other = scene.taken()
    arrives_in_vain(scene, kept)
    other.renew()
    other.release()
    arrives_in_vain(scene, kept)


# -- all of them -----------------------------------------------------------------------------------


def history(scene: Scene) -> Mutex:
    """Let every kind of request happen once; return the present holder."""
    mutex = scene.mutex()
    mutex.acquire()
    mutex.renew()
    mutex.save_data("mine")
    waiter = scene.waiting()
    mutex.release()
    waiter.join(60)
    waiter.mutex.release()
    assert mutex.acquire()
    scene.here.force_release(scene.key)
    again = scene.mutex()
    assert again.acquire()
    again.release()
    return scene.taken(data="other")


@pytest.mark.real
def test_whole_history_sent_again_changes_nothing(scene: Scene) -> None:
    other = history(scene)
    writes = [seen for seen in scene.proxy.log if seen.op != "GetItem"]
    assert {seen.kind for seen in writes} == {
        "acquire",
        "renew",
        "save_data",
        "hand_over",
        "release",
        "force",
    }
    before = scene.everything
    for seen in [*writes, *reversed(writes)]:
        assert_refused(scene.proxy.replay(seen))
        assert scene.everything == before, seen.kind
    assert other.held
    other.release()


@pytest.mark.parametrize("answer", ["first", "second"])
def test_every_request_of_a_whole_history_may_be_sent_twice(scene: Scene, answer: str) -> None:
    # not the second answer to a release: that the claim is gone at the first look means a loss
    scene.proxy.always(duplicate(), op="release")
    scene.proxy.always(duplicate(answer))
    other = history(scene)
    writes = [seen for seen in scene.proxy.log if seen.op != "GetItem"]
    # but for releases, which are the same done twice
    again = [seen for seen in writes[1::2] if seen.kind != "release"]
    assert not any(seen.applied for seen in again)
    assert scene.row.token == other.token
    other.release()


def test_loss_is_named_after_a_late_duplicate_as_before(scene: Scene) -> None:
    kept, mutex = late_renewal(scene)
    scene.forced_and_taken()
    arrives_in_vain(scene, kept)
    with pytest.raises(MutexLostError):
        mutex.renew()
    assert mutex.loss is Loss.TAKEN
