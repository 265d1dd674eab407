"""I4: a request that the network delivers late, or twice, is harmless."""

import pytest
from pynamodb.exceptions import PynamoDBException, UpdateError
from row_scene import TRANSACT, delete, save, update
from scene import held
from subjects import (
    DELETED,
    MAIN,
    OF_KEYS,
    OF_ROWS,
    OTHERS,
    PASSED_ON,
    REFUSALS,
    SUBJECTS,
    TOGETHER,
    assert_changes_nothing,
    by,
    crossed,
    kept_from,
    of,
    table,
)

from dev.faultproxy import Fault, deny, drop_request, duplicate, late
from pynamodb_mutex import Loss, MutexLostError, MutexNotHeldError, RowLockedError
from pynamodb_mutex.testing import expire

# -- locks of every kind ---------------------------------------------------------------------------


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
}


CASES = [(kind, then) for then in MEANWHILE for kind in ("acquire", "renew")]
FEW = [case for case in CASES if case[1] in ("nothing", "released", "forced, taken")]
# an acquire is applied where the lock is free, a renewal where the claim is still ours
EXCEPTIONS = [
    (name, *case) for name in MAIN for case in [("acquire", "forced"), ("renew", "expired")]
]
# as documented of delete_on_release: without a tombstone nothing shows that the acquisition is over
EXCEPTIONS.append((DELETED, "acquire", "released"))


@table(
    "subject, kind, then",
    [case for case in crossed(MAIN, CASES, OTHERS, FEW) if case not in EXCEPTIONS],
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
    if then in ("nothing", "renewed", "released, acquired again"):
        assert subject.owns(lock)
    assert_changes_nothing(subject, kept)
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


@of(*[name for name in SUBJECTS if name not in (*TOGETHER, *PASSED_ON)])
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
    if subject.name != DELETED:
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
        subject.proxy.next(Fault("twice", twice), **subject.on("renew"))
        lock.renew(60)
        assert lock.remaining > 50
        assert subject.applied("renew") == [True]


# -- one lock --------------------------------------------------------------------------------------


def test_late_disowning_and_late_force_do_not_touch_later_claims(scene):
    late_disown, late_force = late(), late()
    scene.proxy.always(drop_request(), op="acquire")
    scene.proxy.next(late_disown, op="disown")
    mutex = scene.mutex()
    with pytest.raises(UpdateError):
        mutex.acquire(timeout=0)
    scene.proxy.clear()
    held(mutex)
    assert_changes_nothing(scene, late_disown)
    scene.proxy.next(late_force, op="force")
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
    assert (claim.token, claim.writes) == (mutex.token, 0)
    assert not copy or claim.version == first.version
    assert not mutex.held
    with pytest.raises(MutexNotHeldError):
        mutex.release()
    assert not scene.other().acquire(blocking=False)
    expire(scene.key, scene.there)  # it ends at the end that it carries
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


# -- writes under a lock ---------------------------------------------------------------------------


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


def late_write(written, **options):
    """Write by a second attempt, while the network keeps the first; return that."""
    kept = kept_from(written.proxy, op=written.op)
    written.acquire()
    written.write("first", **options)
    return kept


ALONE = [way for way in KEEPING if "plain" not in way and "guarded" not in way]


@table(
    "written, then",
    crossed(ALONE, THEN, [way for way in KEEPING if way not in ALONE], ["nothing", "write again"]),
)
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


@by(*[f"{place} alone {what}" for place in ("row", "table") for what in ("save", "update")])
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


@of("row")
@pytest.mark.parametrize("kind", ["acquire", "renew"])
@pytest.mark.parametrize(
    ("write", "options"),
    [(save, {}), (save, {"unlock": True}), (update, {"unlock": True}), (delete, {})],
)
def test_late_request_of_a_lock_changes_nothing_after_a_write(subject, kind, write, options):
    kept = kept_from(subject.proxy, **subject.on(kind))
    lock = subject.held()
    if kind == "renew":
        lock.renew(60)
    write(lock.row, **options)
    assert_changes_nothing(subject, kept)
    assert subject.is_free or not options
    assert subject.scene.gone is (write is delete)


# -- rows: writes without the lock -----------------------------------------------------------------


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
    again = held(scene.mutex())
    again.release()
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
    # not the second answer to a release: that the claim is gone at the first attempt means a loss
    scene.proxy.always(duplicate(), op="release")
    scene.proxy.always(duplicate(answer))
    other, writes = history(scene)
    # but for releases, which are the same done twice
    again = [seen for seen in writes[1::2] if seen.kind != "release"]
    assert not any(seen.applied for seen in again)
    assert scene.row.token == other.token
