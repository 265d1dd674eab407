"""I4: a request is harmless that is repeated for its answer was lost, or that the network delivers late, or twice."""

import time
from contextlib import nullcontext

import pytest
from kinds_of_locks import (
    DELETED,
    LOSSES,
    MAIN,
    OF_KEYS,
    OF_ROWS,
    OTHERS,
    PASSED_ON,
    SHARED,
    SUBJECTS,
    TOGETHER,
    by,
    crossed,
    of,
    table,
)
from pynamodb.exceptions import PynamoDBException, UpdateError
from row_models import delete, save, update
from sent_requests import REFUSALS, TRANSACT, assert_changes_nothing, kept_from
from two_clients import Acquiring, Scene, held

from dev import faultproxy as net
from dev.faultproxy import apply_then_500, deny, drop_answer, drop_request, late
from pynamodb_mutex import Loss, MutexLostError, MutexNotHeldError, RowLockedError
from pynamodb_mutex._lock.runtime.clock import local_clock

ACQUIRED = [name for name in SUBJECTS if name not in (*TOGETHER, *PASSED_ON)]
ACQUIRED_ALONE = [name for name in ACQUIRED if name != SHARED[1]]

# -- lost answers: locks of every kind -------------------------------------------------------------

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
    if subject.guards:
        subject.write(lock)
        assert set(subject.content) == {"mine"}
    lock.release()
    assert subject.is_free


@table("subject, lose_it", crossed(ACQUIRED_ALONE, ["force", "expired_and_taken"]))
def test_acquire_whose_claim_is_gone_again_before_the_repeat_is_made_anew(subject, lose_it):
    versions = []

    def lose():
        versions.append(int(subject.claims[-1]["version"]["N"]))
        other = getattr(subject, lose_it)()
        if lose_it != "force":
            other.release()

    subject.proxy.next(drop_answer(then=lose), **subject.on("acquire"))
    lock = subject.held(lease=10)
    assert subject.applied("acquire") == [True, True]
    # the claim is the second, though it has the token of the first
    assert subject.owns(lock)
    assert int(subject.claims[-1]["version"]["N"]) == versions[0] + 2
    if subject.guards:
        subject.write(lock)
    lock.release()
    assert subject.is_free


# of a hand-over it is the giver's, below
DISOWNED = [name for name in OTHERS if name != "handed over"]


@table("subject, lose", crossed(MAIN, [drop_answer, apply_then_500, None], DISOWNED, [None]))
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
    last = subject.proxy.log[-1]
    assert (last.kind, last.applied) == (subject.kind("disown"), True)
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


LOST = [
    ("forced_and_taken", Loss.TAKEN, drop_answer),
    ("force", Loss.FORCED, drop_answer),
    ("forced_and_taken", Loss.TAKEN, drop_request),
]


@table("subject, lose_it, loss, fault", crossed(MAIN, LOST, OTHERS, LOST[:1]))
def test_renewal_is_a_loss_if_it_was_lost_before_the_repeat(subject, lose_it, loss, fault):
    lock, taker = subject.held(), "other" if loss is Loss.TAKEN else None
    subject.proxy.next(fault(then=getattr(subject, lose_it)), **subject.on("renew"))
    with pytest.raises(MutexLostError) as raised:
        lock.renew()
    assert (raised.value.loss, raised.value.owner, lock.loss) == (loss, taker, loss)
    assert not lock.held
    assert subject.claims[-1].get("owner") == (taker and {"S": taker})


@table(
    "subject, lose, times",
    crossed(MAIN, [(drop_answer, 1), (apply_then_500, 3)], OTHERS, [(drop_answer, 1)]),
)
def test_release_whose_answer_is_lost_is_a_release(subject, lose, times):
    lock = subject.held()
    subject.proxy.next(*[lose() for _ in range(times)], **subject.on("release"))
    versions = [claim["version"] for claim in subject.claims]
    lock.release()
    assert (lock.held, lock.lost) == (False, False)
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


@table("subject, then", crossed(ACQUIRED, ["nothing", "taken", "taken and released"]))
def test_release_that_a_proxy_sends_twice_is_a_release(subject, then):
    """Whose second answer shows that the claim is gone, although no attempt before was without an answer."""

    def between():
        if then != "nothing":
            other = subject.taken()
            if then != "taken":
                other.release()

    lock = subject.held()
    subject.proxy.next(net.duplicate("second", between), **subject.on("release"))
    # with the row goes all that shows whose release it was
    is_unknown = subject.name == DELETED
    with pytest.raises(MutexLostError) if is_unknown else nullcontext():
        lock.release()
    assert subject.applied("release") == [True, False]
    assert (lock.held, lock.lost) == (False, is_unknown)
    assert subject.is_free is (then != "taken")


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


# -- lost answers: acquire -------------------------------------------------------------------------


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


@pytest.mark.parametrize("lands_later", [False, True])
def test_acquire_of_unknown_outcome_that_is_not_disowned_ends_by_itself(scene, lands_later):
    kept = late()
    if lands_later:
        scene.proxy.next(kept, op="acquire")
    else:
        scene.proxy.always(drop_request(), op="disown")
    scene.proxy.always(drop_request() if lands_later else drop_answer(), op="acquire")
    mutex = scene.mutex(lease=1)
    with pytest.raises(UpdateError):
        mutex.acquire(timeout=0)
    assert scene.applied("disown") == [False]
    if lands_later:
        assert kept.apply().status == 200
    fence = scene.row.version
    assert not scene.is_free
    assert not mutex.held
    assert held(scene.other()).fencing_token == fence + 1
    assert not mutex.held


# -- lost answers: hand-over within the process, and force -----------------------------------------


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


@pytest.mark.parametrize("disowned", [False, True])
def test_hand_over_of_unknown_outcome_is_believed_by_neither_and_disowned(scene, disowned):
    """Or it ends by itself."""
    mutex = held(scene.mutex(lease=3))
    waiter = scene.waiting(lease=3600 if disowned else 3)
    versions = []
    if not disowned:
        scene.proxy.always(drop_request(), op="disown")
    scene.proxy.always(drop_answer(then=lambda: versions.append(scene.row.version)), op="hand_over")
    with pytest.raises(UpdateError):
        mutex.release()
    assert not mutex.held
    assert versions[0] == mutex.fencing_token + 1
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.fencing_token == mutex.fencing_token + 2


@pytest.mark.parametrize("taken", [False, True])
def test_force_release_whose_answer_is_lost_breaks_the_claim_once(scene, taken):
    holder, other = scene.taken(), scene.other()
    # a waiting one has its chance as soon as the claim is broken
    scene.proxy.next(drop_answer(then=lambda: taken and held(other)), op="force")
    assert scene.here.force_release(scene.key) or taken
    assert scene.applied("force") == [True, False]
    assert scene.row.version == holder.fencing_token + 1 + taken
    assert (scene.is_free, other.held) == (not taken, taken)
    with pytest.raises(MutexLostError):
        holder.renew()


# -- late requests: locks of every kind ------------------------------------------------------------

MEANWHILE = {
    "nothing": lambda subject, lock: None,
    "renewed": lambda subject, lock: lock.renew(600),
    "released": lambda subject, lock: lock.release(),
    "released, acquired again": lambda subject, lock: lock.release() or lock.acquire(),
    "released, taken": lambda subject, lock: lock.release() or subject.taken(),
    "expired": lambda subject, lock: subject.expire(),
    "forced": lambda subject, lock: subject.force(),
    "cleared": lambda subject, lock: subject.clear(),
    "expired, taken": lambda subject, lock: subject.expired_and_taken(),
    "forced, taken": lambda subject, lock: subject.forced_and_taken(),
    # of a row
    "saved": lambda subject, lock: save(lock.row),
    "saved, unlocked": lambda subject, lock: save(lock.row, unlock=True),
    "updated, unlocked": lambda subject, lock: update(lock.row, unlock=True),
    "deleted": lambda subject, lock: delete(lock.row),
}
TO_A_ROW = list(MEANWHILE)[-4:]
CASES = [(kind, then) for then in MEANWHILE for kind in ("acquire", "renew")]
FEW = [case for case in CASES if case[1] in ("nothing", "released", "forced, taken")]
# an acquire is applied where the lock is free, a renewal where the claim is still ours
EXCEPTIONS = [
    (name, *case) for name in MAIN for case in [("acquire", "forced"), ("renew", "expired")]
]
# as documented of delete_on_release: without a tombstone nothing shows that the acquisition is over
EXCEPTIONS.append((DELETED, "acquire", "released"))
# as documented of readers: a late join is applied after its own leave, while others share the claim
EXCEPTIONS.append((SHARED[1], "acquire", "released"))


@table(
    "subject, kind, then",
    [
        (name, kind, then)
        for name, kind, then in crossed(MAIN, CASES, OTHERS, FEW)
        if (name, kind, then) not in EXCEPTIONS and (name == "row" or then not in TO_A_ROW)
    ],
)
def test_late_request_of_a_lock_changes_nothing(subject, kind, then):
    if kind == "acquire":
        kept = kept_from(subject.proxy, **subject.on(kind))
    lock = subject.held()
    if kind == "renew":
        kept = kept_from(subject.proxy, **subject.on(kind))
        lock.renew(60)
    assert subject.applied(kind) == [True]  # the one that is kept is not in the log
    MEANWHILE[then](subject, lock)
    if then in ("nothing", "renewed", "released, acquired again", "saved"):
        assert subject.owns(lock)
    assert_changes_nothing(subject, kept)
    assert subject.is_free or "unlocked" not in then
    assert subject.gone is (then == "deleted" or (subject.name, then) == (DELETED, "released"))
    if then == "forced, taken":
        with pytest.raises(MutexLostError):
            lock.renew()
        assert lock.loss is Loss.TAKEN


@table(
    "subject, then",
    [
        *crossed(SUBJECTS, ["nothing", "acquired again", "taken"]),
        ("row", "written without the lock"),
    ],
)
def test_late_release_changes_nothing(subject, then):
    lock = subject.held()
    kept = kept_from(subject.proxy, **subject.on("release"))
    lock.release()
    if then == "nothing":
        # releases are the same done twice, but for the time at which DynamoDB may delete the row
        kept.apply()
        assert subject.is_free
        return
    if then == "acquired again":
        assert lock.acquire()
    elif then == "taken":
        subject.taken()
    else:
        save(subject.scene.row, "unlocked")
    assert_changes_nothing(subject, kept)


@of(*ACQUIRED_ALONE)
def test_late_acquire_on_the_tombstone_of_another_is_believed_by_nobody(subject):
    # the one exception that one request cannot prevent
    kept = kept_from(subject.proxy, **subject.on("acquire"))
    lock, token = subject.held(), {"S": subject.claims[-1]["token"]["S"]}
    other = subject.forced_and_taken()
    other.release()
    assert kept.apply().status == 200
    assert subject.claims[-1]["token"] == token  # and yet of another version
    assert int(subject.claims[-1]["version"]["N"]) > other.fencing_token
    before = subject.everything
    calls = [lock.renew, lock.release]
    if subject.guards:
        calls.insert(0, lambda: subject.write(lock))
    for call in calls:
        with pytest.raises(MutexLostError) as raised:
            call()
        assert raised.value.applied is False
    assert subject.everything == before
    assert (lock.held, other.held) == (False, False)
    subject.expire()  # it ends at the end that it carries
    assert subject.other().acquire(blocking=False)


@of("several keys")
def test_renewal_that_an_engine_without_memory_gets_twice_is_applied_once(subject):
    def twice(exchange):
        exchange.apply("twice")
        seen = subject.proxy.of(TRANSACT)[-1]
        reply = subject.proxy.replay(seen, ClientRequestToken="another")
        assert reply.error in REFUSALS
        exchange.answer(reply)

    with subject.lock() as lock:
        subject.proxy.next(net.Fault("twice", twice), **subject.on("renew"))
        lock.renew(60)
        assert lock.remaining > 50
        assert subject.applied("renew") == [True]


# -- late requests: one lock -----------------------------------------------------------------------


def test_late_disowning_and_late_force_do_not_touch_later_claims(scene):
    late_disown = kept_from(scene.proxy, op="disown")
    scene.proxy.always(drop_request(), op="acquire")
    mutex = scene.mutex()
    with pytest.raises(UpdateError):
        mutex.acquire(timeout=0)
    scene.proxy.clear()
    held(mutex)
    assert_changes_nothing(scene, late_disown)
    late_force = kept_from(scene.proxy, op="force")
    assert scene.here.force_release(scene.key)
    other = scene.taken()
    for end in (other.renew, other.release):
        assert_changes_nothing(scene, late_disown)
        assert_changes_nothing(scene, late_force)
        end()
    assert_changes_nothing(scene, late_force)


@pytest.mark.parametrize("copy", [True, False])
def test_acquire_that_lands_where_the_row_was_deleted_makes_a_claim_that_nobody_believes(
    scene, copy
):
    kept = late()
    scene.proxy.next(*[] if copy else [kept], op="acquire")
    mutex = held(scene.mutex(delete_on_release=True))
    first = scene.row
    mutex.release()
    assert scene.gone
    (acquired,) = scene.proxy.of("acquire")
    assert (scene.proxy.replay(acquired) if copy else kept.apply()).status == 200
    claim = scene.row
    assert claim.token == mutex.token
    assert not copy or claim.version == first.version
    assert not mutex.held
    with pytest.raises(MutexNotHeldError):
        mutex.release()
    assert not scene.other().acquire(blocking=False)
    scene.expire()  # it ends at the end that it carries
    assert scene.other().acquire(blocking=False)


def test_late_hand_over_does_not_revive_a_claim_that_was_taken_out_by_hand(scene):
    mutex = held(scene.mutex(lease=5))
    waiter = scene.waiting()
    kept = kept_from(scene.proxy, op="hand_over")
    scene.proxy.always(drop_request(), op="hand_over")
    scene.proxy.always(drop_request(), op="acquire")
    with pytest.raises(UpdateError):
        mutex.release()
    scene.clear()
    assert_changes_nothing(scene, kept)
    scene.proxy.clear()
    waiter.join(60)
    assert waiter.acquired


# -- late requests: writes under a lock ------------------------------------------------------------


def write_unlocked(written):
    if written.at:
        save(written.scene.row, "unlocked")


def another_writes(written):
    other = written.taken()
    if not written.at:
        other.save_data("other")


def release_and_write_again(written):
    written.lock.release()
    assert written.lock.acquire()
    if written.at:
        written.row = written.lock.row
    written.write_next("again")  # with the number that the late one has as well


THEN = {
    "nothing": lambda written: None,
    "write again": lambda written: written.write_next("second"),
    "release": lambda written: written.lock.release(),
    "release, write unlocked": lambda written: written.lock.release() or write_unlocked(written),
    "release, acquire, write": release_and_write_again,
    "release, another acquires": lambda written: written.lock.release() or written.taken(),
    "release, another writes": lambda written: written.lock.release() or another_writes(written),
    "force": lambda written: written.lock.force_release(),
    "another takes over": lambda written: written.forced_and_taken(),
}
DELETING = [way for way in OF_ROWS if "delete" in way]
KEEPING = [*OF_KEYS, *[way for way in OF_ROWS if way not in DELETING]]
ALONE = [way for way in KEEPING if "plain" not in way and "guarded" not in way]
IN_TRANSACTIONS = [way for way in KEEPING if way not in ALONE]


def late_write(written, **options):
    """Write by a second attempt, while the network keeps the first; return that."""
    kept = kept_from(written.proxy, op=written.op)
    written.acquire()
    written.write("first", **options)
    return kept


@table("written, then", crossed(ALONE, THEN, IN_TRANSACTIONS, ["nothing", "write again"]))
def test_late_write_changes_nothing(written, then):
    kept = late_write(written)
    THEN[then](written)
    assert_changes_nothing(written, kept)


@by(*DELETING)
@pytest.mark.parametrize("then", ["nothing", "made anew", "locked"])
def test_late_delete_changes_nothing(written, then):
    kept = late_write(written)
    scene = written.scene
    assert scene.gone
    if written.lock.held:  # in a lock table
        written.lock.release()
    if then != "nothing":
        scene.there(scene.key, last="made anew").save()
    if then == "locked":
        written.taken()
    assert_changes_nothing(written, kept)
    assert then == "nothing" or scene.row.last == "made anew"


@by(*[way for way in ALONE if way not in OF_KEYS])
@pytest.mark.parametrize("then", ["nothing", "unlocked", "locked", "written"])
def test_late_write_that_unlocks_changes_nothing(written, then):
    kept = late_write(written, unlock=True)
    assert written.is_free
    if then == "unlocked":
        write_unlocked(written)
    elif then != "nothing":
        assert written.lock.acquire()
    if then == "written":
        # with the number that the late one has as well
        save(written.lock.row, "again")
    assert_changes_nothing(written, kept)


def test_given_up_write_of_a_lost_lock_changes_nothing(written):
    kept = kept_from(written.proxy, deny(), op=written.op)
    written.acquire()
    with pytest.raises(PynamoDBException):
        written.write()
    written.forced_and_taken()
    assert_changes_nothing(written, kept)


# -- late requests: writes without the lock --------------------------------------------------------


@pytest.mark.real("embedded")  # botocore repeats what nobody guards
def test_late_unlocked_writes_touch_neither_the_next_one_nor_a_row_that_is_locked(row_scene):
    all_kept, row = [], row_scene.here(row_scene.key)
    for write in (save, save, update, delete):
        kept = kept_from(row_scene.proxy, op=row_scene.op(write.__name__))
        write(row)
        all_kept.append(kept)
        if write is save:
            save(row, "next")
            assert_changes_nothing(row_scene, kept)
    row_scene.overwrite()
    row_scene.taken()
    for kept in all_kept:
        assert kept.apply().error in REFUSALS


def test_late_attempt_of_an_unlocked_write_may_follow_its_refusal(any_scene):
    kept = kept_from(any_scene.proxy, op=any_scene.op("update"))
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


# -- whole histories -------------------------------------------------------------------------------


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
    assert (item.data, item.version) == ({"n": 1}, mutex.fencing_token)
    assert item.expires_at is None


def history(scene):
    """Let every kind of request happen once; return the present holder, and what was written."""
    mutex = held(scene.mutex())
    mutex.renew()
    mutex.save_data("mine")
    waiter = scene.waiting()
    mutex.release()
    waiter.join(60)
    waiter.mutex.release()
    assert mutex.acquire()
    scene.here.force_release(scene.key)
    held(scene.mutex()).release()
    return scene.taken(data="other"), [seen for seen in scene.proxy.log if seen.op != "GetItem"]


@pytest.mark.real
def test_whole_history_sent_again_changes_nothing(scene):
    other, writes = history(scene)
    kinds = {"acquire", "renew", "save_data", "hand_over", "release", "force"}
    assert {seen.kind for seen in writes} == kinds
    before = scene.everything
    for seen in [*writes, *reversed(writes)]:
        assert scene.proxy.replay(seen).error in REFUSALS
        assert scene.everything == before, seen.kind
    assert other.held


@pytest.mark.parametrize("answer", ["first", "second"])
def test_every_request_of_a_whole_history_may_be_sent_twice(scene, answer):
    scene.proxy.always(net.duplicate(answer))
    other, writes = history(scene)
    # but for releases, which are the same done twice
    again = [seen for seen in writes[1::2] if seen.kind != "release"]
    assert not any(seen.applied for seen in again)
    assert scene.row.token == other.token
