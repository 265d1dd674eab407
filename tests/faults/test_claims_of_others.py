"""I5: renewals, releases and guarded writes touch the own claim alone; force, the one it saw."""

import time
from collections.abc import Callable

import pytest
from hearing import OnLost
from pynamodb.exceptions import UpdateError
from scene import Scene, losses, lost_in_two_ways
from subjects import LOSSES, MAIN, OTHERS, crossed

from dev.faultproxy import after, drop_answer, drop_request, late, server_error, throttle
from pynamodb_mutex import MutexLostError, MutexNotHeldError
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock, expire

LoseIt = Callable[[Scene], object]


def unaware(scene, lose_it, **options):
    """Return a mutex that lost its lock and does not know, and the row as it must stay."""
    mutex = scene.mutex(auto_renew=False, **options)
    assert mutex.acquire()
    lose_it(scene)
    assert mutex.held
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


@pytest.mark.parametrize("fault", [throttle, server_error])
def test_release_that_was_throttled_first_still_shows_the_loss_only_if_it_knows(scene, fault):
    mutex, before = unaware(scene, Scene.forced_and_taken)
    scene.proxy.next(fault(), op="release")
    if fault is throttle:
        with pytest.raises(MutexLostError):
            mutex.release()
    else:  # the attempt before may have been the release; its lease was running
        mutex.release()
    assert scene.everything == before


@lost_in_two_ways
def test_release_of_a_lock_that_was_forced_before_shows_it_even_at_a_repeat(scene, lose):
    # the version shows that the force found this claim, so no release of ours came first
    mutex, before = unaware(scene, Scene.force)
    scene.proxy.next(lose(), op="release")
    with pytest.raises(MutexLostError) as raised:
        mutex.release()
    assert raised.value.loss is Loss.FORCED
    assert scene.everything == before


def test_second_release_is_not_sent(scene):
    mutex = scene.mutex()
    mutex.acquire()
    mutex.release()
    with pytest.raises(MutexNotHeldError):
        mutex.release()
    assert len(scene.proxy.of("release")) == 1


# -- renew -----------------------------------------------------------------------------------------


@losses
def test_background_renewal_of_a_lost_lock_says_so_and_touches_nothing(scene, lose_it, loss):
    on_lost = OnLost()
    with FakeClock() as clock:
        mutex = scene.mutex(on_lost=on_lost)
        mutex.acquire()
        lose_it(scene)
        before = scene.everything
        clock.advance(11)
        assert on_lost.wait()[:2] == (mutex, loss)
        assert mutex.lost
        assert not mutex.held
        assert scene.everything == before


def test_ended_lease_is_won_back_only_if_nobody_took_the_lock(scene):
    mutex = scene.mutex(lease=0.5, auto_renew=False)
    mutex.acquire()
    expire(scene.key, scene.there)
    time.sleep(0.5)
    assert not mutex.held
    assert mutex.loss is Loss.EXPIRED
    mutex.renew(lease=30)
    assert mutex.held
    assert not mutex.lost
    assert scene.row.token == mutex.token
    other = scene.expired_and_taken()
    with pytest.raises(MutexLostError):
        mutex.renew()
    assert scene.row.token == other.token


# -- hand-over -------------------------------------------------------------------------------------


@losses
def test_lost_lock_is_not_handed_over(scene, lose_it, loss):
    others = []
    mutex = scene.mutex(auto_renew=False)
    mutex.acquire()
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
    waiter.mutex.release()


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


def test_force_breaks_the_claim_that_it_saw(scene):
    other = scene.taken(data="kept")
    before = scene.everything
    assert scene.here.force_release(scene.key)
    assert scene.proxy.kinds() == ["GetItem", "force"]
    assert scene.row.expires_at is scene.row.owner is scene.row.lease is None
    assert scene.row.token != other.token
    assert scene.row.version == before["version"] + 1
    assert scene.row.data == "kept"
    with pytest.raises(MutexLostError) as raised:
        other.release()
    assert raised.value.loss is Loss.FORCED


def test_force_does_not_break_a_claim_later_than_the_one_it_saw(scene):
    first = scene.taken()
    others = []

    def change_hands():
        first.release()
        others.append(scene.taken())

    scene.proxy.next(after(change_hands), op="force")
    assert not scene.here.force_release(scene.key)
    assert others[0].held
    assert scene.row.token == others[0].token
    others[0].renew()
    others[0].release()


def test_force_breaks_the_claim_that_it_saw_also_after_a_renewal(scene):
    other = scene.taken()
    scene.proxy.next(after(other.renew), op="force")
    assert scene.here.force_release(scene.key)
    with pytest.raises(MutexLostError):
        other.renew()


@pytest.mark.parametrize("ever_held", [False, True])
def test_force_on_a_free_lock_writes_nothing(scene, ever_held):
    if ever_held:
        scene.taken().release()
    before = scene.everything
    assert not scene.here.force_release(scene.key)
    assert scene.proxy.kinds() == ["GetItem"]
    assert scene.everything == before


def test_force_on_a_lock_that_was_released_meanwhile_breaks_nothing(scene):
    other = scene.taken()
    scene.proxy.next(after(other.release), op="force")
    assert not scene.here.force_release(scene.key)
    assert scene.row.version == other.fencing_token


def test_forced_holder_in_the_same_process_knows_at_once(scene):
    on_lost = OnLost()
    mutex = scene.mutex(on_lost=on_lost)
    mutex.acquire()
    assert mutex.force_release()
    assert not mutex.held
    assert on_lost.wait()[1] is mutex.loss is Loss.FORCED


def test_forced_lock_can_be_had_at_once_with_a_greater_fencing_token(scene):
    mutex = scene.mutex()
    mutex.acquire()
    kept, others = late(), []
    scene.proxy.next(kept, after(lambda: others.append(scene.forced_and_taken())), op="renew")
    with pytest.raises(MutexLostError) as raised:
        mutex.renew()
    assert raised.value.loss is Loss.TAKEN
    assert others[0].fencing_token == mutex.fencing_token + 2
    before = scene.everything
    kept.apply()
    assert scene.everything == before
    others[0].release()
