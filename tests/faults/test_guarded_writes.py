"""I1 and I2: a write under a lock is applied only under its claim, once, in order; what is reported is true.

And nobody believes to hold a lock from when a write that unlocks may be applied.
"""

import copy
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from kinds_of_locks import LOSSES, OF_KEYS, OF_ROWS, by, crossed, table
from operations_by_hand import interrupt_at
from pynamodb.attributes import VersionAttribute
from pynamodb.exceptions import (
    DeleteError,
    PutError,
    PynamoDBException,
    TransactWriteError,
    UpdateError,
)
from row_models import save, update
from sent_requests import REFUSALS, TRANSACT, assert_changes_nothing
from signal_receivers import OnLost, hearing
from this_process import scheduled

from dev import faultproxy as net
from dev.faultproxy import (
    after,
    apply_then_500,
    delay,
    delay_answer,
    deny,
    drop_answer,
    drop_request,
    late,
    throttle,
)
from pynamodb_mutex import (
    Loss,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
)
from pynamodb_mutex._attach import attach
from pynamodb_mutex._writes import guarded_write
from pynamodb_mutex._writes.guarded_write import Guard


def those(ways, *words):
    return [way for way in ways if any(word in way.split() for word in words)]


ALONE = those(OF_ROWS, "alone")
TRANSACTIONS = [way for way in OF_ROWS if way not in ALONE]
DELETING = those(OF_ROWS, "delete")
UNLOCKING = those(ALONE, "save", "update")
KEEPING = [*OF_KEYS, *UNLOCKING]
KEEPING_TRANSACTIONS = those(TRANSACTIONS, "save", "update")
MOST, OTHERS = [*OF_KEYS, *ALONE], TRANSACTIONS
UNLOCK = {"unlock": True}
not_deleting = by(*KEEPING, *KEEPING_TRANSACTIONS)


def assert_lost(written, applied, *causes, **options):
    """See that a write is refused because the lock is lost; return the error."""
    with pytest.raises(MutexLostError) as raised:
        written.write(**options)
    assert raised.value.applied is applied
    assert raised.value.loss in (causes or list(Loss))
    return raised.value


def cancelled(*codes):
    """Cancelled by DynamoDB for these reasons."""
    reasons = [{"Code": code} for code in codes]
    return net.refuse("TransactionCanceledException", CancellationReasons=reasons)


def belief(lock):
    """Say what a lock says of itself; a holder that does not believe must not act on it either."""
    if not lock.held:
        with pytest.raises(MutexNotHeldError) as raised:
            lock.ensure_held()
        assert lock.lost == isinstance(raised.value, MutexLostError)
        assert str(raised.value).startswith(f"ensure_held: {lock.key!r} ")
        assert raised.value.key == lock.key
    return lock.held, lock.remaining > 0, lock.lost


NO_BELIEF = (False, False, False)

# -- applied ---------------------------------------------------------------------------------------


@pytest.mark.real
@by("transaction")
def test_transaction_has_the_guard_in_the_same_request(written):
    written.acquire()
    written.write("first")
    written.write("second")
    assert written.shown == (2, "second", 2)
    written.lock.release()
    assert written.proxy.kinds() == ["acquire", TRANSACT, TRANSACT, "release"]


@by(
    "data", "row alone save", "row alone update"
)  # DynamoDB itself recognizes the copy of a transaction
def test_refusal_of_the_copy_of_a_write_shows_that_it_was_applied(written):
    written.acquire()
    written.proxy.next(net.duplicate("second"), op=written.op)
    written.write("first")
    assert written.shown == (1, "first", 1)
    assert written.applied() == [True, False]


@not_deleting
@pytest.mark.parametrize(("lose", "times"), [(drop_answer, 1), (apply_then_500, 3)])
def test_write_whose_answer_is_lost_is_applied_once(written, lose, times):
    written.acquire()
    claim = written.claim
    written.proxy.next(*[lose() for _ in range(times)], op=written.op)
    written.write("first")
    assert written.shown == (1, "first", 1)
    assert written.applied() == [True] + [False] * times
    written.write("second")
    assert written.shown == (2, "second", 2)
    if written.what == "update":  # a save renews
        assert written.claim == claim | {"writes": written.claim["writes"]}
    assert written.lock.held
    if written.is_data:
        assert written.lock.data == [2, "second"]
    written.lock.release()
    written.acquire()
    assert written.shown == (2, "second", 0)


@table("written, lose", crossed(DELETING, [drop_answer, apply_then_500], UNLOCKING, [drop_answer]))
def test_write_that_ends_a_claim_is_applied_once_and_then_nobody_believes(written, lose):
    lost, seen = [], []
    # a row takes the lock in it with it, but not one in a lock table
    ends = not (written.deletes and written.scene.in_table)
    expected = NO_BELIEF if ends else (True, True, False)
    with written.scene.lock(on_lost=lost.append) as written.row:
        written.lock = written.row.row_lock
        written.proxy.next(lose(lambda: seen.append(belief(written.lock))), lose(), op=written.op)
        written.write(**{} if written.deletes else UNLOCK)
        assert [*seen, belief(written.lock)] == [expected] * 2
        assert written.applied() == [True, False, False]
    assert written.content == (None if written.deletes else (1, "mine"))
    assert written.times_second == written.writes_second
    assert written.is_free
    assert len(written.proxy.of("release")) == (not ends)
    assert lost == []
    if not written.deletes:
        written.taken().release()


# -- not applied -----------------------------------------------------------------------------------

CYCLE = ("cycle_of_another", Loss.TAKEN)
# by a program that knows nothing of locks
OVERWRITE = ("overwrite", Loss.DELETED)


@table(
    "written, lose_it, loss, options",
    [
        *crossed(MOST, [(*each, {}) for each in LOSSES], OTHERS, [(*LOSSES[0], {})]),
        *[(way, *CYCLE, {}) for way in (*MOST, *OTHERS)],
        *[(way, *OVERWRITE, {}) for way in those(OF_ROWS, "row")],
        *crossed(UNLOCKING, [(*LOSSES[at], UNLOCK) for at in (0, 2)]),
    ],
)
def test_write_refused_at_the_first_attempt_is_not_applied(written, lose_it, loss, options):
    # through a proxy that repeats requests, another request may have been applied: if the row shows no more whose write
    # came before, only a transaction is known not to be
    unknown = lose_it in ("delete", *CYCLE, *OVERWRITE) and written.op != TRANSACT
    on_lost = OnLost()
    written.acquire(auto_renew=False, on_lost=on_lost)
    getattr(written, lose_it)()
    assert written.lock.held  # it cannot know
    before = written.everything
    error = assert_lost(written, None if unknown else False, loss, **options)
    assert error.owner == ("other" if "taken" in lose_it else None)
    assert written.lock.loss is loss
    assert on_lost.wait()[:2] == (written.lock, loss)
    assert written.everything == before
    assert not written.lock.held


NOT_APPLIED = [
    (throttle, "forced_and_taken", False),  # surely not applied
    (drop_request, "forced_and_taken", False),
    (net.server_error, "forced_and_taken", False),
    (lambda: cancelled("TransactionConflict", "None"), "forced_and_taken", False),
    (net.server_error, "force", False),
    (drop_request, "force", False),
    (drop_request, "delete", None),
]


@table("written, fault, lose_it, applied", crossed(MOST, NOT_APPLIED, OTHERS, NOT_APPLIED[1:2]))
def test_write_not_applied_before_the_loss_is_reported_as_far_as_known(
    written, fault, lose_it, applied
):
    written.acquire()
    written.proxy.next(fault(), after(getattr(written, lose_it)), op=written.op)
    if written.deletes and lose_it == "delete" and not written.scene.in_table:
        written.write()  # the row is gone, as it was to be
    else:
        assert_lost(written, applied)
    assert (written.content or (0, None)) == (0, None)
    assert written.times_second == 0


# -- unknown ---------------------------------------------------------------------------------------


def repeat(then):
    """As by a proxy that sends a request again, and returns the second answer."""
    return net.duplicate("second", then)


# DynamoDB itself recognises the copy of a transaction, as which a row is written whose lock is in a lock table
REPEATED = ["data", *those(UNLOCKING, "row")]
TAKE_OVERS = [
    *crossed(KEEPING, [(drop_answer, {}), (apply_then_500, {})]),
    *crossed(KEEPING_TRANSACTIONS, [(drop_answer, {})], UNLOCKING, [(drop_answer, UNLOCK)]),
    *crossed(REPEATED, [(repeat, {})], REPEATED[1:], [(repeat, UNLOCK)]),
]


@table("written, lose, options", TAKE_OVERS)
def test_write_applied_before_another_took_over_is_applied(written, lose, options):
    seen = []

    def take_over():
        other = written.taken() if options else written.forced_and_taken()
        seen.append((written.lock.held, other.held))

    written.acquire()
    written.proxy.next(lose(then=take_over), op=written.op)
    written.write(**options)
    assert seen == [(not options, True)]  # of a claim that was forced it cannot know
    assert (written.lock.held, written.lock.loss) == (False, None if options else Loss.TAKEN)
    assert written.content == (1, "mine")
    assert written.claim["owner"] == {"S": "other"}


@table("written, lose, options", TAKE_OVERS)
def test_write_applied_before_another_wrote_is_unknown(written, lose, options):
    def write():
        if options:
            written.taken().row.save(unlock=True)
        else:
            written.cycle_of_another()

    written.acquire()
    written.proxy.next(lose(then=write), op=written.op)
    assert_lost(written, None, Loss.TAKEN, **options)


@by(*KEEPING)
def test_write_of_another_copy_of_the_process_is_a_loss(written):
    """A virtual machine is restored twice, and both copies hold the lock: one write would replace the other."""
    written.acquire()
    claim = written.lock._current("the test")
    state = copy.copy(claim.own)
    written.write("first")
    before = written.everything
    claim.own = state
    assert_lost(written, False if written.op == TRANSACT else None, Loss.TAKEN)
    assert written.everything == before


@by("row alone delete")
def test_delete_of_a_row_that_was_made_anew_before_the_repeat_is_unknown(written):
    written.acquire()
    written.proxy.next(drop_answer(then=written.overwrite), op=written.op)
    assert_lost(written, None)
    assert written.content[1] == "old"


@by("row alone delete")
def test_delete_of_a_row_that_the_next_holder_deletes_before_the_repeat_is_unknown(written):
    written.acquire(auto_renew=False, lease=3)

    def take_and_delete():
        time.sleep(5)
        written.taken().row.delete()

    written.proxy.next(drop_request(), after(take_and_delete), op=written.op)
    assert_lost(written, None)


def unlocked_in_doubt(row_scene, **options):
    """Unlock by a write that the network keeps, and give up; return it, and the row."""
    kept = late()
    row_scene.proxy.next(kept, deny(), op=row_scene.op("update"))
    row = row_scene.locked(**options)
    with pytest.raises(PynamoDBException):
        update(row, unlock=True)
    assert belief(row.row_lock) == NO_BELIEF
    assert not row.is_locked
    return kept, row


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("then", ["release", "write", "unlocking write"])
def test_unlocking_write_that_was_given_up_and_lands_is_no_loss(row_scene, then, taken):
    lost = []
    kept, row = unlocked_in_doubt(row_scene, on_lost=lost.append)
    assert kept.apply().status == 200
    assert row_scene.is_free
    other = row_scene.taken() if taken else None
    if then == "release":
        row.row_lock.release()
        assert row_scene.applied("release") == [False]
    else:
        with pytest.raises(MutexNotHeldError, match="was released") as raised:
            save(row, "late", unlock=then == "unlocking write")
        assert (type(raised.value), raised.value.applied) == (MutexNotHeldError, False)
    assert (row.row_lock.held, row.row_lock.lost, lost) == (False, False, [])
    assert row_scene.row.last == "mine"
    assert other is None or other.held


def test_write_that_a_release_overtakes_finds_no_loss(row_scene):
    kept, row = unlocked_in_doubt(row_scene)
    assert kept.apply().status == 200
    row_scene.proxy.next(after(row.row_lock.release), op=row_scene.op("save"))
    with pytest.raises(MutexNotHeldError, match="was released"):
        save(row, "late")
    assert not row.row_lock.lost


def test_lock_of_unknown_state_that_is_broken_by_force_is_lost(row_scene):
    _, row = unlocked_in_doubt(row_scene)
    row_scene.force()
    with pytest.raises(MutexLostError) as raised:
        save(row, "late")
    assert (raised.value.loss, raised.value.applied) == (Loss.FORCED, False)


def test_write_that_is_applied_proves_that_the_claim_stands(row_scene):
    kept, row = unlocked_in_doubt(row_scene)
    update(row)
    assert row.row_lock.held
    assert_changes_nothing(row_scene, kept)
    row.row_lock.ensure_held()
    assert row_scene.row.balance == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_lock_of_unknown_state_is_neither_taken_again_by_its_own_mutex_nor_detached(
    row_scene, reentrant
):
    _, row = unlocked_in_doubt(row_scene, reentrant=reentrant)
    with pytest.raises(MutexAlreadyHeldError):
        row.row_lock.acquire(timeout=0)
    with pytest.raises(MutexNotHeldError, match="unknown outcome"):
        row.row_lock.detach()
    assert row_scene.proxy.of("renew") == []
    row.row_lock.release()
    assert row_scene.is_free
    assert row.row_lock.acquire(timeout=0)


@by(*UNLOCKING)
def test_belief_is_back_when_an_unlocking_write_was_refused_unless_it_may_land(written):
    written.acquire()
    condition = written.model.balance == 77
    for faults, options in (([], {"condition": condition}), ([deny()], {})):
        written.proxy.next(*faults, op=written.op)
        with pytest.raises(PynamoDBException):
            written.write(**UNLOCK, **options)
        assert belief(written.lock) == (True, True, False)
        written.row.refresh()
    written.write()
    assert written.content[0] == 1
    written.proxy.next(late(), op=written.op)
    with pytest.raises(PynamoDBException) as raised:
        written.write(**UNLOCK, condition=condition)
    assert raised.type is not MutexLostError
    assert belief(written.lock) == NO_BELIEF
    written.lock.release()


def test_renewal_of_a_claim_goes_on_while_a_write_that_unlocks_is_under_way(row_scene):
    # it may be refused, and then the lock is still held
    row = row_scene.locked()
    # for more than a third of the lease
    row_scene.proxy.next(drop_request(lambda: time.sleep(11)), op=row_scene.op("save"))
    save(row, unlock=True)
    assert row_scene.applied("renew")[0]
    assert row_scene.is_free


@pytest.mark.real("embedded")
def test_nobody_believes_after_ctrl_c_while_a_write_that_unlocks_is_under_way(row_scene):
    row = row_scene.locked()
    main, done = threading.main_thread().ident, threading.Event()

    def press():
        # Ctrl-C may come inside a finaliser, which loses it
        signal.pthread_kill(main, signal.SIGINT)
        while not done.wait(10):
            signal.pthread_kill(main, signal.SIGINT)

    row_scene.proxy.next(drop_answer(then=press), op=row_scene.op("save"))
    with pytest.raises(KeyboardInterrupt):
        save(row, unlock=True)
    done.set()
    assert belief(row.row_lock) == NO_BELIEF
    other = row_scene.taken()
    row.row_lock.release()
    assert other.held


@by(*UNLOCKING, *those(DELETING, "row"))
@pytest.mark.parametrize("in_time", [True, False])
def test_write_that_ends_a_claim_and_is_answered_after_the_lease_is_no_loss(
    written, in_time, on_lost
):
    slow = delay_answer if in_time else delay
    with hearing(written.scene.key) as heard:
        written.acquire(auto_renew=False, lease=3, on_lost=on_lost)
        written.proxy.next(slow(5), op=written.op)
        written.write(**({} if written.deletes else UNLOCK))
        time.sleep(1)
    assert written.applied() == [True]
    assert (written.lock.held, written.lock.loss, on_lost.calls) == (False, None, [])
    assert heard.names == ["acquired", "released"]


@by(*UNLOCKING)
@pytest.mark.parametrize("answer", ["refused", "none"])
def test_lease_that_ends_under_a_write_that_does_not_unlock_is_a_loss_once_that_is_known(
    written, answer, on_lost
):
    written.acquire(auto_renew=False, lease=3, on_lost=on_lost)
    lock, said = written.lock, []

    def end():
        time.sleep(5)
        said.append((lock.held, lock.loss, len(on_lost.calls), scheduled()))

    written.proxy.next(after(end) if answer == "refused" else drop_request(end), op=written.op)
    condition = written.model.balance == 77
    with pytest.raises(PynamoDBException) as raised:
        written.write(**UNLOCK, condition=condition)
    assert raised.type is not MutexLostError
    assert said == [(False, None, 0, [])]
    assert on_lost.wait()[1] is Loss.EXPIRED
    assert (lock.held, lock.loss, len(on_lost.calls)) == (False, Loss.EXPIRED, 1)


def test_waiter_does_not_spin_while_a_write_that_unlocks_has_no_answer_after_the_lease(
    row_scene, pool
):
    row = row_scene.locked(auto_renew=False, lease=3)
    row_scene.proxy.next(delay_answer(20), op=row_scene.op("save"))
    saving = pool.submit(save, row, unlock=True)
    time.sleep(1)
    other = row_scene.taken(lease=60)
    assert pool.submit(row_scene.lock(timeout=15).acquire).result() is False
    assert len(row_scene.proxy.of("GetItem")) < 60  # not a hundred a second
    saving.result()
    assert (row.row_lock.lost, other.held) == (False, True)


@pytest.mark.parametrize(
    ("where", "name", "call"),
    [
        (guarded_write, "begin_writing", save),
        (Guard, "begin", save),
        (attach, "begin_writing", lambda row, **_: row.row_lock.detach()),
    ],
)
def test_write_interrupted_within_a_step_keeps_its_turn_from_no_other(
    row_scene, monkeypatch, where, name, call
):
    """By Ctrl-C just when a call returns."""
    row = row_scene.locked()
    interrupt_at(monkeypatch, where, name)
    with pytest.raises(KeyboardInterrupt):
        call(row, unlock=True)
    assert row.row_lock.held
    update(row, unlock=True)
    assert row_scene.is_free


# -- earlier writes whose outcome nobody knows -------------------------------------------------------


def give_up(written, *faults):
    """Let a write fail for good; return its first attempt, which the network keeps."""
    kept = late()
    written.proxy.next(kept, *faults, deny(), op=written.op)
    written.acquire()
    with pytest.raises(PynamoDBException) as raised:
        written.write("first")
    assert not isinstance(raised.value, MutexLostError)
    assert written.lock.held
    return kept


SECOND_ATTEMPTS = [None, late, drop_request, drop_answer, apply_then_500]


@table("written, fault", crossed(KEEPING, SECOND_ATTEMPTS, KEEPING_TRANSACTIONS, [None, late]))
def test_next_write_goes_through_after_one_that_was_given_up(written, fault):
    """Whether it was applied (by a second attempt, or late) or not."""
    kept = give_up(written, *([] if fault in (None, late) else [fault()]))
    if fault is late:
        assert kept.apply().status == 200
    applied = fault in (drop_answer, apply_then_500, late)
    if applied:
        assert written.content[1] == "first"
    written.write_next("second")
    assert written.shown[1:] == ("second", 2)
    if fault is not late:
        assert_changes_nothing(written, kept)
    assert written.times_second == (applied and written.writes_second)
    written.lock.release()


LANDING = [
    (lambda land: [after(land)], 200),
    (lambda land: [net.server_error(), after(land)], 200),
    # the next one is applied too, its answer is lost, and the late one cannot undo it
    (lambda land: [drop_answer(then=land)], 400),
]


@table("written, faults, status", crossed(KEEPING, LANDING, KEEPING_TRANSACTIONS, LANDING[1:]))
def test_given_up_write_that_arrives_during_the_next_one_keeps_its_place_before_it(
    written, faults, status
):
    kept = give_up(written, drop_request())
    landed = []
    arrives = faults(lambda: landed.append(kept.apply().status))
    written.proxy.next(*arrives, op=written.next_op)
    written.write_next("second")
    assert landed == [status]
    assert written.shown[1:] == ("second", 2)
    if written.is_data:
        assert written.lock.data[1] == "second"
    written.write_next("third")
    assert written.shown[1:] == ("third", 3)
    written.lock.release()


@by("transaction")
def test_given_up_transaction_does_not_land_after_a_write_of_the_payload(written):
    kept = give_up(written, drop_request())
    written.write("second", data=True)
    assert kept.apply().error == "TransactionCanceledException"
    assert written.content == (0, None)
    written.lock.release()


# -- order -----------------------------------------------------------------------------------------


def in_threads(*calls):
    """Let each call be made four times on a thread of its own; raise what they raise."""
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(lambda call: [call(n) for n in range(4)], calls))


@by("transaction", *those(OF_ROWS, "update"))
def test_threads_under_one_lock_lose_no_update(written):
    written.acquire()
    for _ in range(3):
        written.proxy.next(drop_answer(), drop_request(), op=written.op)
    in_threads(*written.calls_of_three_threads())
    # of the key, one thread writes the payload, which is not counted
    assert written.shown[::2] == (12 if written.at else 8, 12)
    written.lock.release()


@by("data", *those(TRANSACTIONS, "save"))
def test_write_does_not_keep_back_a_renewal_and_is_repeated_if_it_met_one(written):
    written.acquire()
    written.proxy.next(after(written.lock.renew), op=written.op)
    written.write()
    is_refused = not written.is_data and not written.scene.in_table
    assert written.applied() == ([False, True] if is_refused else [True])
    assert written.shown == (1, "mine", 1)
    assert written.times_second == written.writes_second


# -- conditions of the caller's own ----------------------------------------------------------------

ERRORS = {"save": PutError, "update": UpdateError, "delete": DeleteError}


IN_ROW, IN_TABLE = those(OF_ROWS, "row"), those(OF_ROWS, "table")


@table("written, renewed", crossed(IN_ROW, [False, True], ["transaction", *IN_TABLE], [False]))
def test_condition_of_the_callers_own_is_no_loss(written, renewed):
    written.acquire()
    if renewed:
        # refused for a renewal as well, and then for the condition alone
        written.proxy.next(after(written.lock.renew), op=written.op)
    before = written.everything
    with pytest.raises(PynamoDBException) as raised:
        written.write(condition=written.model.balance == 99)
    assert not isinstance(raised.value, MutexError)
    assert raised.value.cause_response_code in REFUSALS
    if written.op == TRANSACT:
        assert type(raised.value) is TransactWriteError or written.way == "alone"
    else:
        assert type(raised.value) is ERRORS[written.what]
    assert written.lock.held
    if not renewed:
        assert written.everything == before
    assert written.shown == (0, None, 0)
    written.row.balance = 0
    written.write(condition=written.model.balance == 0)
    assert written.content == (None if written.deletes else (1, "mine"))
    if written.lock.held:  # a row that is deleted takes its lock with it
        written.lock.release()


@pytest.mark.parametrize(
    ("reasons", "passes"),
    [
        (("TransactionConflict", "None"), True),
        (("None", "TransactionConflict"), True),
        (("ThrottlingError", "None"), True),
        (("None", "ProvisionedThroughputExceeded"), True),
        (("None", "ValidationError"), False),
    ],
)
@by("transaction")
def test_transaction_cancelled_is_repeated_if_the_reason_passes(written, reasons, passes):
    written.acquire()
    written.proxy.next(*[cancelled(*reasons)] * 2, op=TRANSACT)
    with nullcontext() if passes else pytest.raises(TransactWriteError):
        written.write("first")
    assert written.applied() == ([False, False, True] if passes else [False])
    assert written.lock.held
    assert written.shown == ((1, "first", 1) if passes else (0, None, 0))


# -- versions of the caller's models ---------------------------------------------------------------


@pytest.fixture
def versioned(written):
    """What is written has a version of the caller's."""

    class Versioned(written.model):
        class Meta(written.model.Meta):
            pass

        revision = VersionAttribute()

    written.use(Versioned)
    return written


@by("transaction", *those(those(OF_ROWS, "row"), "save"))
@pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
def test_version_of_the_callers_model_is_right_after_lost_answers(versioned, lose):
    versioned.acquire()
    for revision, what in enumerate(("save", "update", "save"), 2):
        versioned.what, versioned.row.balance = what, revision - 2
        versioned.proxy.next(lose(), op=versioned.op)
        versioned.write()
        assert versioned.row.revision == revision
        assert versioned.everything[versioned.at]["revision"] == {"N": str(revision)}
    assert versioned.content == (3, "mine")
    versioned.lock.release()


@by("transaction", *those(OF_ROWS, "row"))
def test_mismatch_of_the_callers_version_is_no_loss(versioned):
    versioned.acquire()
    # by a program that knows nothing of locks
    model, key = versioned.places[versioned.at]
    model._get_connection().update_item(key, actions=[versioned.model.revision.set(7)])
    with pytest.raises(PynamoDBException) as raised:
        versioned.write()
    assert not isinstance(raised.value, MutexError)
    assert raised.value.cause_response_code in REFUSALS
    assert versioned.lock.held
    assert versioned.content == (0, None)
    versioned.lock.release()
    assert versioned.is_free


def test_transaction_of_a_row_lock_guards_other_rows_and_refuses_another_instance(any_scene):
    scene = any_scene
    lock = scene.locked(auto_renew=False).row_lock
    free, other = scene.here(f"{scene.key}-free"), scene.here(scene.key)

    def write(what, *, with_other):
        with lock.transaction() as transaction:
            getattr(transaction, what)(free)
            if with_other:
                transaction.update(other, [scene.here.balance.add(1)])

    def shown():
        return scene.there.count(free.name, consistent_read=True), scene.row.balance

    # but one in a lock table guards any instance of its row
    with nullcontext() if scene.in_table else pytest.raises(TransactWriteError):
        write("save", with_other=True)
    assert lock.held
    assert shown() == (scene.in_table, scene.in_table)
    write("save", with_other=False)
    assert shown() == (1, scene.in_table)
    scene.forced_and_taken()
    for with_other in (False, True):
        with pytest.raises(MutexLostError):
            write("delete", with_other=with_other)
    assert shown() == (1, scene.in_table)
