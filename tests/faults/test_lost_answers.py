"""I4: a request that was applied and whose answer was lost is harmless when it is repeated."""

import time
from contextlib import nullcontext

import pytest
from pynamodb.exceptions import PynamoDBException, UpdateError
from scene import Acquiring, Scene, held
from subjects import (
    DELETED,
    LOSSES,
    MAIN,
    OTHERS,
    PASSED_ON,
    SUBJECTS,
    TOGETHER,
    crossed,
    of,
    table,
)

from dev import faultproxy as net
from dev.faultproxy import apply_then_500, drop_answer, drop_request
from pynamodb_mutex import Loss, MutexLostError, MutexNotHeldError
from pynamodb_mutex._runtime.clock import local_clock

# -- locks of every kind ---------------------------------------------------------------------------

RECOGNISED = [
    (drop_answer, 1, {"blocking": False}),
    (drop_answer, 1, {"timeout": 20}),
    (apply_then_500, 3, {"timeout": 20}),
]


@table("subject, lose, times, how", crossed(MAIN, RECOGNISED, OTHERS, RECOGNISED[-1:]))
def test_acquire_that_was_applied_is_recognised(subject, lose, times, how):
    subject.proxy.next(*[lose() for _ in range(times)], **subject.on("acquire"))
    lock = subject.lock()
    assert lock.acquire(**how)
    assert lock.held
    assert subject.applied("acquire") == [True] + [False] * times
    assert subject.owns(lock)
    if subject.name != DELETED:
        subject.write(lock)
        assert set(subject.content) == {"mine"}
    lock.release()
    assert subject.is_free


@of(*[name for name in SUBJECTS if name not in (*TOGETHER, *PASSED_ON)])
def test_acquire_whose_claim_was_broken_before_the_repeat_is_made_anew(subject):
    subject.proxy.next(drop_answer(then=subject.force), **subject.on("acquire"))
    lock = subject.held()
    assert subject.applied("acquire") == [True, True]
    assert subject.owns(lock)


# of a hand-over it is the giver's, below
DISOWNED = [name for name in OTHERS if name != "handed over"]


@table("subject, lose", crossed(MAIN, [drop_answer, apply_then_500, None], DISOWNED, [None]))
def test_acquire_of_unknown_outcome_is_never_held_and_disowned(subject, lose):
    if lose is None:
        subject.proxy.next(drop_answer(), net.deny(), **subject.on("acquire"))
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


@table("subject, lose", crossed(MAIN, [drop_answer, apply_then_500], OTHERS, [drop_answer]))
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
    lock.renew(lease=600)
    ends, left = subject.ends, lock.remaining
    lock.renew(lease=1)
    assert subject.ends >= ends
    assert lock.remaining > left - 60
    # who watches waits for what the holder may believe
    assert min(float(claim["lease"]["N"]) for claim in subject.claims) > 500
    lock.release()


LOST = [
    ("forced_and_taken", Loss.TAKEN, drop_answer),
    ("force", Loss.FORCED, drop_answer),
    ("forced_and_taken", Loss.TAKEN, drop_request),
]


@table("subject, lose_it, loss, fault", crossed(MAIN, LOST, OTHERS, LOST[:1]))
def test_renewal_is_a_loss_if_it_was_lost_before_the_repeat(subject, lose_it, loss, fault):
    lock = subject.held()
    subject.proxy.next(fault(then=getattr(subject, lose_it)), **subject.on("renew"))
    with pytest.raises(MutexLostError) as raised:
        lock.renew()
    assert raised.value.loss is lock.loss is loss
    assert raised.value.owner == ("other" if loss is Loss.TAKEN else None)
    assert not lock.held
    assert subject.claims[-1].get("owner") == ({"S": "other"} if loss is Loss.TAKEN else None)


@table(
    "subject, lose, times",
    crossed(MAIN, [(drop_answer, 1), (apply_then_500, 3)], OTHERS, [(drop_answer, 1)]),
)
def test_release_whose_answer_is_lost_is_a_release(subject, lose, times):
    lock = subject.held()
    subject.proxy.next(*[lose() for _ in range(times)], **subject.on("release"))
    versions = [claim["version"] for claim in subject.claims]
    lock.release()
    assert not lock.held
    assert not lock.lost
    with pytest.raises(MutexNotHeldError) as raised:
        lock.release()
    assert not isinstance(raised.value, MutexLostError)
    assert len(subject.of("release")) == times + 1
    assert subject.is_free
    left = [claim["version"] for claim in subject.claims if claim]
    assert left == ([] if subject.name == DELETED else versions)


def test_release_is_a_release_if_another_acquired_before_the_repeat(subject):
    lock, other = subject.held(), subject.other(timeout=0)
    subject.proxy.next(drop_answer(then=other.acquire), **subject.on("release"))
    lock.release()
    assert subject.applied("release")[:2] == [True, False]
    assert other.held
    assert subject.claims[-1]["token"]["S"] == other.token


@of("one lock")
@pytest.mark.parametrize(
    ("lose_it", "fault", "loss"),
    [
        ("forced_and_taken", net.throttle, Loss.TAKEN),
        # the attempt before may have been the release; its lease was running
        ("forced_and_taken", net.server_error, None),
        # the version shows that the force found this claim, so no release of ours came first
        ("force", drop_answer, Loss.FORCED),
        ("force", apply_then_500, Loss.FORCED),
    ],
)
def test_release_that_is_repeated_shows_the_loss_only_if_it_knows(subject, lose_it, fault, loss):
    lock = subject.held(auto_renew=False)
    getattr(subject, lose_it)()
    before = subject.everything
    subject.proxy.next(fault(), op="release")
    with pytest.raises(MutexLostError) if loss else nullcontext() as raised:
        lock.release()
    assert loss is None or raised.value.loss is loss
    assert subject.everything == before


# -- acquire ---------------------------------------------------------------------------------------


def test_lease_counts_from_the_first_sending_that_may_have_been_applied(scene):
    # without server time nothing but that rule bounds the lease
    scene.proxy.always(net.no_date())
    began = local_clock().now()
    scene.proxy.next(drop_answer(then=lambda: time.sleep(1)), drop_answer(), op="acquire")
    with scene.mutex(lease=10) as mutex:
        assert mutex.deadline <= began + 10 * 0.99
    # those that were surely not applied do not count
    scene.proxy.next(net.throttle(), net.throttle(), op="acquire")
    began = local_clock().now()
    with scene.mutex(lease=10) as mutex:
        assert mutex.deadline > began + 9.9


@pytest.mark.parametrize("take_over", [Scene.forced_and_taken, Scene.expired_and_taken])
def test_acquire_waits_if_another_took_over_before_the_repeat(scene, take_over):
    others = []
    scene.proxy.next(drop_answer(then=lambda: others.append(take_over(scene))), op="acquire")
    acquiring = Acquiring(scene.mutex(owner="unlucky"))
    scene.proxy.wait(2, "acquire")
    scene.proxy.wait(1, "GetItem")
    (other,) = others
    assert (acquiring.acquired, acquiring.mutex.held) == (None, False)
    assert scene.row.token == other.token
    assert other.abandoned_by == (None if take_over is Scene.forced_and_taken else "unlucky")
    other.release()
    acquiring.join(60)
    assert acquiring.acquired
    assert acquiring.mutex.fencing_token > other.fencing_token


def test_acquire_whose_claim_another_acquired_and_released_before_the_repeat_is_made_anew(scene):
    versions = []

    def take_and_give_back():
        versions.append(scene.row.version)
        scene.expired_and_taken().release()

    scene.proxy.next(drop_answer(then=take_and_give_back), op="acquire")
    mutex = held(scene.mutex(lease=10, timeout=20))
    assert scene.applied("acquire") == [True, True]
    # the claim is the second, though it has the token of the first
    assert mutex.fencing_token == versions[0] + 2
    assert (scene.row.token, scene.row.version) == (mutex.token, mutex.fencing_token)
    mutex.save_data({"done": 1})
    mutex.release()
    assert scene.row.expires_at is None


@pytest.mark.parametrize("lands_later", [False, True])
def test_acquire_of_unknown_outcome_that_is_not_disowned_ends_by_itself(scene, lands_later):
    kept = net.late()
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
    other = held(scene.other())
    assert other.fencing_token == fence + 1
    assert not mutex.held


def test_disowning_touches_no_claim_of_another(scene):
    others = []
    scene.proxy.next(drop_answer(then=lambda: others.append(scene.forced_and_taken())))
    scene.proxy.always(drop_request(), op="acquire")
    with pytest.raises(UpdateError):
        scene.mutex().acquire(timeout=0)
    assert scene.applied("disown") == [False]
    assert scene.row.token == others[0].token
    others[0].release()


# -- hand-over within the process ------------------------------------------------------------------


@of("one lock")
@pytest.mark.parametrize(
    ("fault", "lose_it", "loss"),
    [*[(net.after, *each) for each in LOSSES], (drop_answer, "forced_and_taken", None)],
)
def test_hand_over_of_a_lost_lock_is_believed_by_neither(subject, fault, lose_it, loss):
    scene, others = subject.scene, []
    mutex = subject.held(auto_renew=False)
    waiter = scene.waiting()
    # during the hand-over, for the waiting thread polls now and then
    meanwhile = lambda: others.append(getattr(subject, lose_it)())  # noqa: E731 - it is short
    scene.proxy.next(fault(meanwhile), op="hand_over")
    # of one that was applied nobody knows whether it was lost before
    with pytest.raises(MutexLostError) if loss else nullcontext() as raised:
        mutex.release()
    assert loss is None or raised.value.loss is loss
    assert scene.applied("hand_over") == ([False] if loss else [True, False])
    assert not mutex.held
    if "taken" in lose_it:
        scene.proxy.wait(len(scene.proxy.of("GetItem")) + 2, "GetItem")
        assert (waiter.acquired, waiter.mutex.held) == (None, False)
        assert scene.row.token == others[0].token
        others[0].release()
    waiter.join(60)
    assert waiter.mutex.held
    assert waiter.mutex.fencing_token > mutex.fencing_token + len(subject.of("release"))


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


# -- force, and whole cycles -----------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True])
def test_force_release_whose_answer_is_lost_breaks_the_claim_once(scene, taken):
    holder, other = scene.taken(), scene.other()
    # a waiting one has its chance as soon as the claim is broken
    scene.proxy.next(drop_answer(then=lambda: taken and held(other)), op="force")
    assert scene.here.force_release(scene.key) or taken
    assert scene.applied("force") == [True, False]
    assert scene.row.version == holder.fencing_token + 1 + taken
    assert (scene.row.expires_at is not None) is other.held is taken
    with pytest.raises(MutexLostError):
        holder.renew()


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
