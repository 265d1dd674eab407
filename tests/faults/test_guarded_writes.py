"""I2: a write under a lock is applied only under its claim, once, in order; and what is reported is true."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
from pynamodb.attributes import VersionAttribute
from pynamodb.exceptions import (
    DeleteError,
    PutError,
    PynamoDBException,
    TransactWriteError,
    UpdateError,
)
from row_scene import TRANSACT, save
from scene import lost_in_two_ways
from subjects import LOSSES, OF_KEYS, OF_ROWS, REFUSALS, assert_changes_nothing, crossed

from dev.faultproxy import (
    after,
    apply_then_500,
    deny,
    drop_answer,
    drop_request,
    late,
    refuse,
    server_error,
    throttle,
)
from pynamodb_mutex import MutexError, MutexLostError
from pynamodb_mutex.exceptions import Loss


def of(*ways):
    """Run a test for some ways to write."""
    return pytest.mark.parametrize("written", ways, indirect=True)


def those(ways, *words):
    return [way for way in ways if any(word in way.split() for word in words)]


ALONE = those(OF_ROWS, "alone")
TRANSACTIONS = [way for way in OF_ROWS if way not in ALONE]
not_deleting = of(*OF_KEYS, *those(OF_ROWS, "save", "update"))
MAY_UNLOCK = those(ALONE, "save", "update")
KEEPING = [*OF_KEYS, *MAY_UNLOCK]
KEEPING_TRANSACTIONS = those(TRANSACTIONS, "save", "update")
MOST, OTHERS = [*OF_KEYS, *ALONE], TRANSACTIONS


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
    return refuse("TransactionCanceledException", CancellationReasons=reasons)


# -- applied ---------------------------------------------------------------------------------------


@pytest.mark.real
@of("transaction")
def test_transaction_has_the_guard_in_the_same_request(written):
    written.acquire()
    written.write("first")
    written.write("second")
    assert written.shown == (2, "second", 2)
    written.lock.release()
    assert written.proxy.kinds() == ["acquire", TRANSACT, TRANSACT, "release"]


@not_deleting
@pytest.mark.parametrize(("lose", "times"), [(drop_answer, 1), (apply_then_500, 3)])
def test_write_whose_answer_is_lost_is_applied_once(written, lose, times):
    written.acquire()
    written.proxy.next(*[lose() for _ in range(times)], op=written.op)
    written.write("first")
    assert written.shown == (1, "first", 1)
    assert written.applied() == [True] + [False] * times
    written.write("second")
    assert written.shown == (2, "second", 2)
    assert written.lock.held
    if written.is_data:
        assert written.lock.data == [2, "second"]
    written.lock.release()


@of(*those(OF_ROWS, "delete"))
@lost_in_two_ways
def test_delete_whose_answer_is_lost_is_applied_once(written, lose):
    believed = []
    with written.scene.lock() as written.row:
        note = lambda: believed.append(written.row.row_lock.held)  # noqa: E731 - it is short
        written.proxy.next(lose(note), lose(), op=written.op)
        written.write()
        assert written.applied() == [True, False, False]
    assert believed == [written.scene.in_table]  # a row takes the lock in it with it
    assert written.scene.gone
    assert written.times_second == written.writes_second


@pytest.mark.real
@of("data", "row alone update")
def test_write_leaves_the_claim_alone(written):
    written.acquire()
    before = written.claim
    written.write()
    assert written.claim == before | {"writes": {"N": "1"}}


def test_unlock_of_unknown_outcome_is_no_loss_to_the_release(row_scene):
    lock = row_scene.lock()
    row_scene.proxy.next(drop_answer(), deny(), op="PutItem")
    with pytest.raises(PutError), lock as row:
        save(row, "mine", unlock=True)
    assert row_scene.is_free
    assert row_scene.row.last == "mine"
    assert not lock.lost
    # there was no claim to end any more
    assert row_scene.applied("release") == [False]


# -- not applied -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "lose_it", "loss", "options"),
    [
        *crossed(MOST, [(*each, {}) for each in LOSSES], OTHERS, [(*LOSSES[0], {})]),
        *crossed(MAY_UNLOCK, [(*LOSSES[at], {"unlock": True}) for at in (0, 2)], [], []),
    ],
    indirect=["written"],
)
def test_write_refused_at_the_first_attempt_is_not_applied(written, lose_it, loss, options):
    written.acquire(auto_renew=False)
    getattr(written, lose_it)()
    assert written.lock.held  # it cannot know
    before = written.everything
    error = assert_lost(written, False, loss, **options)
    assert error.owner == ("other" if loss is Loss.TAKEN else None)
    assert written.lock.loss is loss
    assert written.everything == before
    assert not written.lock.held


def test_write_after_the_whole_cycle_of_another_is_not_applied(written):
    written.acquire(auto_renew=False)
    written.cycle_of_another()
    before = written.everything
    assert_lost(written, False, Loss.TAKEN)
    assert written.everything == before


@of(*those(OF_ROWS, "row"))
def test_write_is_refused_after_code_that_takes_no_locks_has_written_over_the_row(written):
    written.acquire(auto_renew=False)
    written.scene.overwrite()
    assert_lost(written, False, Loss.DELETED)
    assert written.scene.row.last == "old"


NOT_APPLIED = [
    (throttle, "forced_and_taken", False),  # surely not applied
    (drop_request, "forced_and_taken", None),
    (server_error, "forced_and_taken", None),
    (lambda: cancelled("TransactionConflict", "None"), "forced_and_taken", False),
    (server_error, "force", None),
    (drop_request, "force", None),
    (drop_request, "delete", None),
]


@pytest.mark.parametrize(
    ("written", "fault", "lose_it", "applied"),
    crossed(MOST, NOT_APPLIED, OTHERS, NOT_APPLIED[1:2]),
    indirect=["written"],
)
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


@pytest.mark.parametrize(
    ("written", "lose"),
    crossed(KEEPING, [drop_answer, apply_then_500], KEEPING_TRANSACTIONS, [drop_answer]),
    indirect=["written"],
)
def test_write_applied_before_another_took_over_is_unknown(written, lose):
    written.acquire()
    written.proxy.next(lose(then=written.forced_and_taken), op=written.op)
    assert assert_lost(written, None, Loss.TAKEN).owner == "other"
    assert written.content == (1, "mine")
    assert written.claim["owner"] == {"S": "other"}


@of("row alone delete")
def test_delete_of_a_row_that_was_made_anew_before_the_repeat_is_unknown(written):
    written.acquire()
    written.proxy.next(drop_answer(then=written.scene.overwrite), op=written.op)
    assert_lost(written, None)
    assert written.scene.row.last == "old"


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


@pytest.mark.parametrize(
    ("written", "fault"),
    crossed(
        KEEPING,
        [None, drop_request, drop_answer, apply_then_500, late],
        KEEPING_TRANSACTIONS,
        [None, late],
    ),
    indirect=["written"],
)
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


@pytest.mark.parametrize(
    ("written", "between"),
    crossed(KEEPING, [[], [server_error]], KEEPING_TRANSACTIONS, [[server_error]]),
    indirect=["written"],
)
def test_given_up_write_that_lands_during_the_next_one_keeps_its_place_before_it(written, between):
    kept = give_up(written, drop_request())
    landed = []
    land = after(lambda: landed.append(kept.apply().status))
    written.proxy.next(*[fault() for fault in between], land, op=written.next_op)
    written.write_next("second")
    assert landed == [200]
    assert written.shown[1:] == ("second", 2)
    if written.is_data:
        assert written.lock.data[1] == "second"
    written.write_next("third")
    assert written.shown[1:] == ("third", 3)
    written.lock.release()


@not_deleting
def test_given_up_write_that_lands_is_not_taken_for_the_next_one(written):
    # the next write is applied too, its answer is lost, and the late one cannot undo it
    kept = give_up(written, drop_request())
    written.proxy.next(drop_answer(then=kept.apply), op=written.next_op)
    written.write_next("second")
    assert written.content[1] == "second"


@of("transaction")
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


@of("transaction", *those(OF_ROWS, "update"))
def test_threads_under_one_lock_lose_no_update(written):
    written.acquire()
    for _ in range(3):
        written.proxy.next(drop_answer(), drop_request(), op=written.op)
    in_threads(*written.calls_of_three_threads())
    # of the key, one thread writes the payload, which is not counted
    assert written.shown[::2] == (12 if written.at else 8, 12)
    written.lock.release()


def test_threads_that_write_the_payload_write_one_after_the_other(scene):
    with scene.mutex() as mutex:
        for _ in range(4):
            scene.proxy.next(drop_answer(), drop_request(), op="save_data")
        in_threads(*[lambda n, name=name: mutex.save_data([name, n]) for name in "abc"])
        landed = [seen for seen in scene.proxy.of("save_data") if seen.applied]
        data = [str(seen.body["ExpressionAttributeValues"]) for seen in landed]
        assert len(landed) == 12  # each once
        for name in "abc":
            mine = [values for values in data if f'"{name}"' in values]
            assert [f", {n}]" in text for n, text in enumerate(mine)] == [True] * 4
        assert scene.row.writes == 12
        assert scene.row.data == mutex.data


def test_renewal_does_not_wait_for_a_write(scene):
    with scene.mutex() as mutex, ThreadPoolExecutor() as pool:
        renewed = []
        renew = after(lambda: renewed.append(pool.submit(mutex.renew).result(60)))
        scene.proxy.next(renew, op="save_data")
        mutex.save_data(1)
        assert renewed == [None]


@of(*those(TRANSACTIONS, "save"))
def test_transaction_that_meets_a_renewal_sent_later_is_repeated(written):
    written.acquire()
    written.proxy.next(after(written.lock.renew), op=TRANSACT)
    written.write()
    assert written.applied() == ([True] if written.scene.in_table else [False, True])
    assert written.shown == (1, "mine", 1)
    assert written.times_second == 1


def test_numbers_of_writes_start_anew_with_each_claim(scene):
    for _ in range(2):
        with scene.mutex() as mutex:
            assert scene.row.writes == 0
            mutex.save_data(1)
            mutex.save_data(2)
            assert scene.row.writes == 2


# -- conditions of the caller's own ----------------------------------------------------------------

ERRORS = {"save": PutError, "update": UpdateError, "delete": DeleteError}


@pytest.mark.parametrize(
    ("written", "renewed"),
    crossed(
        those(OF_ROWS, "row"), [False, True], ["transaction", *those(OF_ROWS, "table")], [False]
    ),
    indirect=["written"],
)
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


@pytest.mark.real
@of("transaction")
def test_condition_of_the_callers_own_is_no_loss_on_real_engines(written):
    test_condition_of_the_callers_own_is_no_loss(written, False)


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
@of("transaction")
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


@of("transaction", *those(those(OF_ROWS, "row"), "save"))
@lost_in_two_ways
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


@of("transaction", *those(OF_ROWS, "row"))
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


# -- which rows a transaction of the lock guards ---------------------------------------------------


def test_transaction_of_a_row_lock_refuses_another_instance_of_the_row(row_scene):
    with row_scene.lock() as row:
        transaction = row.row_lock.transaction()
        transaction.update(row_scene.here(row_scene.key), [row_scene.here.balance.add(1)])
        with pytest.raises(TransactWriteError), transaction:
            pass
        assert row.is_locked
    assert row_scene.row.balance == 0


def test_transaction_of_a_lock_in_a_lock_table_guards_any_instance_of_its_row(table_scene):
    scene = table_scene
    row = scene.locked()
    with row.row_lock.transaction() as transaction:
        transaction.update(scene.here(scene.key), [scene.here.balance.add(1)])
    assert scene.row.balance == 1
    transaction = row.row_lock.transaction()
    transaction.update(scene.here(scene.key), [scene.here.balance.add(1)])
    scene.forced_and_taken()
    with pytest.raises(MutexLostError), transaction:
        pass
    assert scene.row.balance == 1


@pytest.mark.real
def test_transaction_of_the_lock_guards_rows_of_others(any_scene):
    row = any_scene.locked(auto_renew=False)
    free = any_scene.here(f"{any_scene.key}-free", balance=3)
    with row.row_lock.transaction() as transaction:
        transaction.save(free)
    assert any_scene.here.count(free.name) == 1
    any_scene.forced_and_taken()
    transaction = row.row_lock.transaction()
    transaction.delete(free)
    with pytest.raises(MutexLostError), transaction:
        pass
    assert any_scene.here.count(free.name) == 1
