"""I4: a request that was applied and whose answer was lost is harmless when it is repeated."""

import time

import pytest
from hearing import OnLost, until
from pynamodb.exceptions import PynamoDBException, UpdateError
from scene import Acquiring, Scene, held
from subjects import MAIN, OTHERS, SUBJECTS, TOGETHER, crossed

from dev.faultproxy import apply_then_500, deny, drop_answer, drop_request, late, no_date, throttle
from pynamodb_mutex import MutexLostError, MutexNotHeldError, MutexTimeoutError
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock

once_and_often = pytest.mark.parametrize(("lose", "times"), [(drop_answer, 1), (apply_then_500, 3)])

# -- locks of every kind ---------------------------------------------------------------------------


RECOGNISED = [
    (drop_answer, 1, {"blocking": False}),
    (drop_answer, 1, {"timeout": 20}),
    (apply_then_500, 3, {"timeout": 20}),
]


@pytest.mark.parametrize(
    ("subject", "lose", "times", "how"),
    crossed(MAIN, RECOGNISED, OTHERS, RECOGNISED[-1:]),
    indirect=["subject"],
)
def test_acquire_that_was_applied_is_recognised(subject, lose, times, how):
    subject.proxy.next(*[lose() for _ in range(times)], **subject.on("acquire"))
    lock = subject.lock()
    assert lock.acquire(**how)
    assert lock.held
    assert subject.applied("acquire") == [True] + [False] * times
    assert subject.owns(lock)
    lock.release()
    assert subject.is_free


@pytest.mark.parametrize("subject", sorted(set(SUBJECTS) - set(TOGETHER)), indirect=True)
def test_acquire_whose_claim_was_broken_before_the_repeat_is_made_anew(subject):
    subject.proxy.next(drop_answer(then=subject.force), **subject.on("acquire"))
    lock = subject.held()
    assert subject.applied("acquire") == [True, True]
    assert subject.owns(lock)


@pytest.mark.parametrize(
    ("subject", "lose"),
    crossed(MAIN, [drop_answer, apply_then_500, None], OTHERS, [None]),
    indirect=["subject"],
)
def test_acquire_of_unknown_outcome_is_never_held_and_disowned(subject, lose):
    if lose is None:
        subject.proxy.next(drop_answer(), deny(), **subject.on("acquire"))
    else:
        subject.proxy.always(lose(), **subject.on("acquire"))
    lock = subject.lock()
    with pytest.raises(PynamoDBException) as raised:
        lock.acquire(timeout=0.2)
    assert raised.value.cause is not None
    assert not lock.held
    assert subject.proxy.kinds()[-1] == "disown"
    assert subject.proxy.of("disown")[-1].applied
    assert subject.is_free
    assert subject.other().acquire(blocking=False)


@pytest.mark.parametrize(
    ("subject", "lose"),
    crossed(MAIN, [drop_answer, apply_then_500], OTHERS, [drop_answer]),
    indirect=["subject"],
)
def test_renewal_whose_answer_is_lost_is_repeated_and_only_ever_later(subject, lose):
    lock = subject.held()
    ends = [subject.ends]
    note = lambda: ends.append(subject.ends)  # noqa: E731 - used twice, named once
    subject.proxy.next(lose(then=note), lose(then=note), **subject.on("renew"))
    lock.renew()
    note()
    assert len(ends) == 4
    for of_one_claim in zip(*ends, strict=True):
        assert list(of_one_claim) == sorted(set(of_one_claim))
    assert max(ends[-1]) - min(ends[-1]) < 1
    assert lock.held
    assert subject.owns(lock)
    lock.release()


LOSSES = [
    ("forced_and_taken", Loss.TAKEN, drop_answer),
    ("force", Loss.FORCED, drop_answer),
    ("forced_and_taken", Loss.TAKEN, drop_request),
]


@pytest.mark.parametrize(
    ("subject", "lose_it", "loss", "fault"),
    crossed(MAIN, LOSSES, OTHERS, LOSSES[:1]),
    indirect=["subject"],
)
def test_renewal_is_a_loss_if_it_was_lost_before_the_repeat(subject, lose_it, loss, fault):
    lock = subject.held()
    subject.proxy.next(fault(then=getattr(subject, lose_it)), **subject.on("renew"))
    with pytest.raises(MutexLostError) as raised:
        lock.renew()
    assert raised.value.loss is lock.loss is loss
    assert raised.value.owner == ("other" if loss is Loss.TAKEN else None)
    assert not lock.held
    assert subject.claims[-1].get("owner") == ({"S": "other"} if loss is Loss.TAKEN else None)


@pytest.mark.real
@pytest.mark.parametrize("subject", ["one lock"], indirect=True)
def test_renewal_is_a_loss_if_another_took_over_before_the_repeat_on_real_engines(subject):
    test_renewal_is_a_loss_if_it_was_lost_before_the_repeat(subject, *LOSSES[0])


@pytest.mark.parametrize(
    ("subject", "lose", "times"),
    crossed(MAIN, [(drop_answer, 1), (apply_then_500, 3)], OTHERS, [(drop_answer, 1)]),
    indirect=["subject"],
)
def test_release_whose_answer_is_lost_is_a_release(subject, lose, times):
    lock = subject.held()
    subject.proxy.next(*[lose() for _ in range(times)], **subject.on("release"))
    before = subject.claims
    lock.release()
    assert not lock.held
    assert not lock.lost
    with pytest.raises(MutexNotHeldError) as raised:
        lock.release()
    assert not isinstance(raised.value, MutexLostError)
    assert len(subject.of("release")) == times + 1
    assert subject.is_free
    assert [claim["version"] for claim in subject.claims] == [claim["version"] for claim in before]


def test_release_is_a_release_if_another_acquired_before_the_repeat(subject):
    lock, other = subject.held(), subject.other(timeout=0)
    subject.proxy.next(drop_answer(then=other.acquire), **subject.on("release"))
    lock.release()
    assert subject.applied("release")[:2] == [True, False]
    assert other.held
    assert subject.claims[-1]["token"]["S"] == other.token


@pytest.mark.parametrize("subject", ["row", "row in a lock table"], indirect=True)
def test_row_is_read_by_an_acquire_whose_answer_is_lost(subject):
    subject.proxy.next(drop_answer(), drop_answer(), **subject.on("acquire"))
    with subject.lock() as row:
        assert row.balance == 0
        row.balance = 1
        row.save()
    assert subject.scene.row.balance == 1


# -- acquire ---------------------------------------------------------------------------------------


def test_lease_counts_from_before_the_first_sending(scene):
    first_seen = []

    def dawdle():
        first_seen.append(local_clock().now())
        time.sleep(1)

    # without server time nothing but that rule bounds the lease
    scene.proxy.always(no_date())
    scene.proxy.next(drop_answer(then=dawdle), op="acquire")
    mutex = held(scene.mutex(lease=10))
    assert mutex.deadline <= first_seen[0] + 10 * 0.99


def test_lease_does_not_count_from_attempts_that_were_surely_not_applied(scene):
    scene.proxy.always(no_date())
    scene.proxy.next(throttle(), throttle(), op="acquire")
    mutex = scene.mutex(lease=10)
    started = local_clock().now()
    assert mutex.acquire()
    waited = local_clock().now() - started
    assert mutex.remaining > 9.9 - waited


@pytest.mark.parametrize("take_over", [Scene.forced_and_taken, Scene.expired_and_taken])
def test_acquire_waits_if_another_took_over_before_the_repeat(scene, take_over):
    others = []
    scene.proxy.next(drop_answer(then=lambda: others.append(take_over(scene))), op="acquire")
    mutex = scene.mutex(owner="unlucky")
    acquiring = Acquiring(mutex)
    scene.proxy.wait(2, "acquire")
    scene.proxy.wait(1, "GetItem")
    (other,) = others
    assert acquiring.acquired is None
    assert not mutex.held
    assert scene.row.token == other.token
    assert other.abandoned_by == (None if take_over is Scene.forced_and_taken else "unlucky")
    other.release()
    acquiring.join(60)
    assert acquiring.acquired
    assert mutex.fencing_token > other.fencing_token


def test_acquire_whose_claim_another_acquired_and_released_before_the_repeat_is_made_anew(scene):
    others = []

    def take_and_give_back():
        others.append(scene.expired_and_taken())
        others[0].release()

    scene.proxy.next(drop_answer(then=take_and_give_back), op="acquire")
    mutex = scene.mutex(lease=10)
    assert mutex.acquire(timeout=20)
    assert scene.applied("acquire") == [True, True]
    # the claim is the second, though it has the token of the first
    assert mutex.fencing_token > others[0].fencing_token
    assert (scene.row.token, scene.row.version) == (mutex.token, mutex.fencing_token)
    assert mutex.held
    mutex.save_data({"done": 1})
    mutex.release()
    assert scene.row.expires_at is None


@pytest.mark.parametrize("lands_later", [False, True])
def test_acquire_of_unknown_outcome_that_is_not_disowned_ends_by_itself(scene, lands_later):
    kept = late()
    if lands_later:
        scene.proxy.next(kept, op="acquire")
        scene.proxy.always(drop_request(), op="acquire")
    else:
        scene.proxy.always(drop_answer(), op="acquire")
        scene.proxy.always(drop_request(), op="disown")
    mutex = scene.mutex(lease=1)
    with pytest.raises(UpdateError):
        mutex.acquire(timeout=0)
    assert scene.applied("disown") == [False]
    if lands_later:
        assert kept.apply().status == 200
    fence = scene.row.version
    assert scene.row.expires_at is not None
    assert not mutex.held
    other = scene.other()
    assert other.acquire(timeout=20)
    assert other.fencing_token == fence + 1
    assert not mutex.held


def test_with_statement_raises_the_error_and_never_runs_its_body_on_an_unknown_outcome(scene):
    scene.proxy.always(drop_answer(), op="acquire")
    with pytest.raises(UpdateError), scene.mutex(timeout=0):
        pytest.fail("it was entered")


# -- background renewals ---------------------------------------------------------------------------


def test_background_renewal_is_repeated_soon_and_shows_a_loss(scene):
    # that one which is repeated goes on is in test_errors.py
    on_lost = OnLost()
    scene.proxy.next(drop_answer(then=scene.forced_and_taken), op="renew")
    with FakeClock() as clock:
        mutex = held(scene.mutex(on_lost=on_lost))
        for count, pause in enumerate((11, 1), start=1):
            clock.advance(pause)
            scene.proxy.wait(count, "renew")
            until(lambda: not mutex._latest.together.renewals_under_way)
        assert on_lost.wait()[1] is Loss.TAKEN
    assert scene.row.owner == "other"


# -- release ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True])
def test_release_that_deletes_and_whose_answer_is_lost_is_a_release(scene, taken):
    other = scene.other()
    mutex = held(scene.mutex(delete_on_release=True))
    scene.proxy.next(drop_answer(then=other.acquire if taken else lambda: None), op="DeleteItem")
    mutex.release()
    assert scene.applied("DeleteItem") == [True, False]
    assert scene.gone is not taken
    assert not taken or scene.row.token == other.token


@pytest.mark.real
def test_release_that_deletes_and_whose_answer_is_lost_on_real_engines(scene):
    test_release_that_deletes_and_whose_answer_is_lost_is_a_release(scene, False)


# -- hand-over within the process ------------------------------------------------------------------


@once_and_often
def test_hand_over_whose_answer_is_lost_is_recognised(scene, lose, times):
    mutex = held(scene.mutex())
    waiter = scene.waiting()
    scene.proxy.next(*[lose() for _ in range(times)], op="hand_over")
    mutex.release()
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.held
    assert not mutex.held
    assert not mutex.lost
    assert scene.applied("hand_over") == [True] + [False] * times
    assert len(scene.proxy.of("acquire")) == 1
    assert scene.row.token == waiter.mutex.token
    assert scene.row.version == waiter.mutex.fencing_token == mutex.fencing_token + 1
    waiter.mutex.release()
    assert scene.row.expires_at is None


def test_hand_over_is_believed_by_neither_if_another_took_over_before_the_repeat(scene):
    others = []
    mutex = held(scene.mutex())
    waiter = scene.waiting()
    scene.proxy.next(
        drop_answer(then=lambda: others.append(scene.forced_and_taken())), op="hand_over"
    )
    mutex.release()
    scene.proxy.wait(len(scene.proxy.of("GetItem")) + 2, "GetItem")
    assert waiter.acquired is None
    assert not waiter.mutex.held
    assert not mutex.held
    assert scene.row.token == others[0].token
    others[0].release()
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.fencing_token > others[0].fencing_token


def test_hand_over_of_unknown_outcome_is_believed_by_neither_and_ends_by_itself(scene):
    mutex = held(scene.mutex(lease=3))
    waiter = scene.waiting(lease=3)
    versions = []
    scene.proxy.always(drop_answer(then=lambda: versions.append(scene.row.version)), op="hand_over")
    with pytest.raises(UpdateError):
        mutex.release()
    assert not mutex.held
    assert versions[0] == mutex.fencing_token + 1
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.fencing_token == mutex.fencing_token + 2


# -- force -----------------------------------------------------------------------------------------


@pytest.mark.real
def test_force_release_whose_answer_is_lost_breaks_the_claim_once(scene):
    holder = scene.other()
    holder.acquire()
    scene.proxy.next(drop_answer(), op="force")
    assert scene.here.force_release(scene.key)
    assert scene.applied("force") == [True, False]
    assert scene.row.version == holder.fencing_token + 1
    assert scene.row.expires_at is None
    with pytest.raises(MutexLostError):
        holder.renew()


def test_force_release_leaves_the_claim_of_another_who_acquired_before_the_repeat(scene):
    holder, other = scene.other(), scene.other()
    holder.acquire()
    # the waiting other has its chance as soon as the claim is broken
    scene.proxy.next(drop_answer(then=lambda: other.acquire(timeout=10)), op="force")
    scene.here.force_release(scene.key)
    assert scene.applied("force") == [True, False]
    assert other.held
    assert scene.row.token == other.token


# -- what every request has in common ---------------------------------------------------------------


@pytest.mark.real
def test_every_answer_of_a_whole_cycle_may_be_lost(scene):
    kinds = ["acquire", "renew", "save_data", "release"]
    for kind in kinds:
        scene.proxy.next(drop_answer(), op=kind)
    with scene.mutex() as mutex:
        mutex.renew()
        mutex.save_data({"n": 1})
    assert scene.proxy.kinds() == [kind for kind in kinds for _ in range(2)]
    item = scene.row
    assert (item.data, item.writes, item.version) == ({"n": 1}, 1, mutex.fencing_token)
    assert item.expires_at is None


def test_read_whose_answer_is_lost_is_repeated(scene):
    scene.taken(owner="somebody")
    with scene.fresh() as first:
        first.proxy.next(drop_answer(), drop_answer(), op="GetItem")
        with pytest.raises(MutexTimeoutError, match="somebody"), first.mutex(timeout=0.2):
            pass
