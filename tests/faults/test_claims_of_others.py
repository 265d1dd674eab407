"""I5: renewals, releases and guarded writes touch the own claim alone; force, the one it saw."""

import pytest
from hearing import OnLost
from pynamodb.exceptions import UpdateError
from scene import Scene, held, losses
from subjects import LOSSES, MAIN, OTHERS, crossed

from dev.faultproxy import (
    after,
    apply_then_500,
    drop_answer,
    drop_request,
    server_error,
    throttle,
)
from pynamodb_mutex import MutexLostError, MutexNotHeldError
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock


def unaware(scene, lose_it, **options):
    """Return a mutex that lost its lock and does not know, and the row as it must stay."""
    mutex = held(scene.mutex(auto_renew=False, **options))
    lose_it(scene)
    return mutex, scene.everything


# -- release ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "lose_it", "loss"),
    crossed(MAIN, LOSSES, OTHERS, LOSSES[:1]),
    indirect=["subject"],
)
@pytest.mark.parametrize("call", ["release", "renew"])
def test_request_of_a_lost_lock_reports_the_loss_and_touches_nothing(subject, call, lose_it, loss):
    lock = subject.held(auto_renew=False)
    getattr(subject, lose_it)()
    assert lock.held  # it cannot know
    before = subject.everything
    with pytest.raises(MutexLostError) as raised:
        getattr(lock, call)()
    assert raised.value.loss is loss
    assert raised.value.owner == ("other" if loss is Loss.TAKEN else None)
    if subject.name == "one lock":
        assert raised.value.key == subject.scene.key
        assert len(subject.of(call)) == 1
    if call == "renew":
        assert lock.loss is loss
        assert subject.everything == before
        with pytest.raises(MutexLostError):
            lock.renew()
    elif lose_it != "clear":  # that tombstone is still its own
        assert subject.everything[-1] == before[-1]
    assert not lock.held
    with pytest.raises(MutexLostError if call == "renew" else MutexNotHeldError):
        lock.release()
    # those of several that were not lost are released
    assert not any("expires_at" in claim for claim in subject.claims[:-1])


@losses
def test_release_that_deletes_touches_nothing_of_others(scene, lose_it, loss):
    mutex, before = unaware(scene, lose_it, delete_on_release=True)
    with pytest.raises(MutexLostError) as raised:
        mutex.release()
    assert raised.value.loss is loss
    if lose_it is not Scene.clear:  # that row is still its
        assert scene.everything == before


@pytest.mark.parametrize(
    ("lose_it", "fault", "loss"),
    [
        (Scene.forced_and_taken, throttle, Loss.TAKEN),
        # the attempt before may have been the release; its lease was running
        (Scene.forced_and_taken, server_error, None),
        # the version shows that the force found this claim, so no release of ours came first
        (Scene.force, drop_answer, Loss.FORCED),
        (Scene.force, apply_then_500, Loss.FORCED),
    ],
)
def test_release_that_is_repeated_shows_the_loss_only_if_it_knows(scene, lose_it, fault, loss):
    mutex, before = unaware(scene, lose_it)
    scene.proxy.next(fault(), op="release")
    if loss is None:
        mutex.release()
    else:
        with pytest.raises(MutexLostError) as raised:
            mutex.release()
        assert raised.value.loss is loss
    assert scene.everything == before


# -- renew -----------------------------------------------------------------------------------------


@losses
def test_background_renewal_of_a_lost_lock_says_so_and_touches_nothing(scene, lose_it, loss):
    on_lost = OnLost()
    with FakeClock() as clock:
        mutex = held(scene.mutex(on_lost=on_lost))
        lose_it(scene)
        before = scene.everything
        clock.advance(11)
        assert on_lost.wait()[:2] == (mutex, loss)
        assert scene.everything == before


# -- hand-over -------------------------------------------------------------------------------------


@losses
def test_lost_lock_is_not_handed_over(scene, lose_it, loss):
    others = []
    mutex = held(scene.mutex(auto_renew=False))
    waiter = scene.waiting()
    # just before the hand-over, for the waiting thread polls now and then
    scene.proxy.next(after(lambda: others.append(lose_it(scene))), op="hand_over")
    with pytest.raises(MutexLostError) as raised:
        mutex.release()
    assert raised.value.loss is loss
    assert scene.applied("hand_over") == [False]
    if loss is Loss.TAKEN:
        polls = len(scene.proxy.of("GetItem"))
        scene.proxy.wait(polls + 2, "GetItem")
        assert scene.row.token == others[0].token
        assert not waiter.mutex.held
        others[0].release()
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.held


# -- giving up an acquisition ----------------------------------------------------------------------


def test_disowning_touches_no_claim_of_another(scene):
    others = []
    scene.proxy.next(drop_answer(then=lambda: others.append(scene.forced_and_taken())))
    scene.proxy.always(drop_request(), op="acquire")
    with pytest.raises(UpdateError):
        scene.mutex().acquire(timeout=0)
    assert scene.applied("disown") == [False]
    assert scene.row.token == others[0].token
    others[0].release()


@pytest.mark.real
def test_disowning_creates_no_row(scene):
    scene.proxy.always(drop_request(), op="acquire")
    with pytest.raises(UpdateError):
        scene.mutex().acquire(timeout=0)
    assert len(scene.proxy.of("disown")) == 1
    assert scene.gone


def test_failed_try_leaves_the_holders_claim_as_it_is(scene):
    scene.taken()
    before = scene.everything
    mutex = scene.mutex()
    assert not mutex.acquire(blocking=False)
    assert not mutex.acquire(timeout=0.1)
    assert scene.everything == before


# -- force -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("renewed", [False, True])
def test_force_breaks_the_claim_that_it_saw(scene, renewed):
    other = scene.taken(data="kept")
    before = scene.everything
    if renewed:
        scene.proxy.next(after(other.renew), op="force")
    assert scene.here.force_release(scene.key)
    assert scene.proxy.kinds() == ["GetItem", "force"]
    assert scene.row.expires_at is scene.row.owner is scene.row.lease is None
    assert scene.row.token != other.token
    assert scene.row.version == before["version"] + 1
    assert scene.row.data == "kept"
    with pytest.raises(MutexLostError) as raised:
        other.release()
    assert raised.value.loss is Loss.FORCED
    assert scene.taken().fencing_token == other.fencing_token + 2


@pytest.mark.parametrize("taken_again", [False, True])
def test_force_breaks_nothing_when_the_claim_that_it_saw_was_released(scene, taken_again):
    first = scene.taken()
    others = []

    def change_hands():
        first.release()
        others.extend([scene.taken()] if taken_again else [])

    scene.proxy.next(after(change_hands), op="force")
    assert not scene.here.force_release(scene.key)
    assert scene.row.version == first.fencing_token + taken_again
    for other in others:
        assert scene.row.token == other.token
        other.renew()


@pytest.mark.parametrize("ever_held", [False, True])
def test_force_on_a_free_lock_writes_nothing(scene, ever_held):
    if ever_held:
        scene.taken().release()
    before = scene.everything
    assert not scene.here.force_release(scene.key)
    assert scene.proxy.kinds() == ["GetItem"]
    assert scene.everything == before
