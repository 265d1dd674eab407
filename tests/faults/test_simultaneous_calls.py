"""Two calls on one held lock at the same time: of two threads or tasks, or one that interrupts the other.

A release, above all, is called by signal handlers, at any moment.
"""

import asyncio
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from unittest.mock import patch

import pytest
from pynamodb.exceptions import PutError, PynamoDBException
from row_models import add_unread, save, update
from sent_requests import TRANSACT
from signal_receivers import hearing
from this_process import current_process, forget_everything, scheduled, store_for
from two_clients import held

from dev.faultproxy import (
    after,
    delay,
    delay_answer,
    deny,
    drop_answer,
    drop_request,
    kind_of,
    late,
    server_error,
    stall,
)
from pynamodb_mutex import (
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    Semaphore,
    signals,
)
from pynamodb_mutex._lock.dynamodb.store import Request
from pynamodb_mutex._lock.operations import renew
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex.aio import AsyncMutex, AsyncSemaphore


class Calling:
    """A call on a thread of its own."""

    def __init__(self, call, *args, **options):
        self.result = self.error = None
        self.thread = threading.Thread(target=self._call, args=(call, args, options), daemon=True)
        self.thread.start()

    def _call(self, call, args, options):
        try:
            self.result = call(*args, **options)
        except BaseException as error:  # also those of pytest, such as that of `pytest.raises`
            self.error = error

    def end(self):
        """Wait for its end; return its result, or raise its error."""
        self.thread.join(300)
        assert not self.thread.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error
        return self.result


@contextmanager
def interrupted(kind, act, *, sent=False):
    """Let a call interrupt this thread at its first request of a kind: before that is sent, or after its answer."""
    send, due, me = Request.send, [True], threading.current_thread()

    def interrupt(request):
        kinds = (request.operation, kind_of(request.operation, request.kwargs))
        if kind not in kinds or not due or threading.current_thread() is not me:
            return send(request)
        due.clear()
        reply = send(request) if sent else None
        act()
        return reply or send(request)

    with patch.object(Request, "send", interrupt):
        yield
    assert not due, "nothing was interrupted"


# -- a release while a write that unlocks is under way ---------------------------------------------


@pytest.mark.parametrize("fault", [delay, delay_answer])
@pytest.mark.parametrize("by", ["thread", "handler before", "handler after"])
def test_release_and_write_that_unlocks_are_no_loss_to_each_other(row_scene, fault, by):
    lost = []
    row = row_scene.locked(auto_renew=False, on_lost=lost.append)
    lock, outcome = row.row_lock, []

    def write():
        try:
            save(row, unlock=True)
        except MutexNotHeldError as error:
            outcome.append((type(error), error.applied))

    with hearing(row_scene.key) as heard:
        if by == "thread":
            row_scene.proxy.next(fault(2), op="PutItem")
            saving = Calling(write)
            time.sleep(1)
            lock.release()
            saving.end()
        else:
            with interrupted("PutItem", lock.release, sent=by == "handler after"):
                write()
    is_first = row_scene.row.last == "mine"
    assert outcome == ([] if is_first else [(MutexNotHeldError, False)])
    assert is_first == (by == "handler after" or (by == "thread" and fault is delay_answer))
    assert heard.names == ["released"]
    assert (lock.held, lock.lost, lost, row_scene.is_free) == (False, False, [], True)
    assert scheduled() == []


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize("sent", [False, True])
def test_reader_whose_release_is_interrupted_leaves_and_ends_no_claim_of_others(scene, sent):
    options = {"shared": True, "auto_renew": False}
    begun, joined = held(scene.mutex(**options)), held(scene.other(**options))
    with interrupted("UpdateItem", interrupt, sent=sent), pytest.raises(KeyboardInterrupt):
        begun.release()
    assert list(scene.parsed.readers) == [f"{joined.token} {joined.owner}"]
    assert not scene.mutex().acquire(blocking=False)


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("options", [{}, {"delete_on_release": True}, {"hold_at_least": 5}])
def test_release_that_is_interrupted_is_sent_again(scene, options, sent):
    mutex = held(scene.mutex(auto_renew=False, **options))
    operation = "DeleteItem" if "delete_on_release" in options else "UpdateItem"
    with hearing(scene.key) as heard:
        with interrupted(operation, interrupt, sent=sent), pytest.raises(KeyboardInterrupt):
            mutex.release()
        assert [(event.name, event.fields["error"]) for event in heard.events] == [
            ("released", None)
        ]
    time.sleep(options.get("hold_at_least", 0) + 3)
    with scene.other(timeout=0):
        pass


def test_write_that_unlocks_and_is_refused_does_not_revive_what_was_released(row_scene):
    row = row_scene.locked(auto_renew=False)
    row_scene.proxy.next(delay_answer(2), op="PutItem")
    saving = Calling(save, row, unlock=True, condition=row_scene.here.balance == 77)
    time.sleep(1)
    row.row_lock.release()
    with pytest.raises(PutError):
        saving.end()
    with row_scene.other():
        assert not row.row_lock.held


def test_write_under_way_says_that_the_lock_was_released_and_not_lost(scene):
    mutex = held(scene.mutex())
    scene.proxy.next(delay(2), op="save_data")
    writing = Calling(mutex.save_data, 1)
    time.sleep(1)
    mutex.release()
    with pytest.raises(MutexNotHeldError, match="released") as raised:
        writing.end()
    assert (type(raised.value), raised.value.applied) == (MutexNotHeldError, False)
    assert not mutex.lost


@pytest.mark.parametrize("unlock", [False, True])
def test_row_is_not_written_without_a_guard_once_a_renewal_shows_that_it_was_released(
    row_scene, unlock
):
    row = row_scene.locked(auto_renew=False)
    row_scene.proxy.next(drop_answer(), deny(), op=row_scene.op("update"))
    with pytest.raises(PynamoDBException):
        update(row, unlock=True)
    with row_scene.other() as theirs:
        save(theirs, "theirs")
    execute(
        current_process(),
        renew.renew_in_background(row.row_lock._latest.whole),
    )
    with pytest.raises(MutexNotHeldError) as raised:
        save(row, unlock=unlock)
    assert (raised.value.applied, row.row_lock.lost) == (False, False)
    assert row_scene.row.last == "theirs"


@pytest.mark.parametrize("applied", [False, True])
def test_locks_of_which_one_may_have_been_released_are_renewed(rows, applied):
    locks = held(rows.locks())
    fault = drop_answer() if applied else drop_request()
    rows.scene.proxy.next(fault, deny(), op=rows.scene.op("save"))
    with pytest.raises(PynamoDBException):
        save(locks._rows_of(locks._latest)[0], unlock=True)
    rows.scene.proxy.start_anew()
    time.sleep(95)
    assert len(rows.scene.proxy.of(TRANSACT)) < 15
    assert not locks.lost
    assert [lock.held for lock in locks._locks] == [False, True, True]
    locks.release()
    assert rows.free() == [True, True, True]


@pytest.mark.parametrize("unlocks", ["all", "one"])
def test_locks_that_a_hanging_write_unlocks_are_not_renewed_over_and_over(rows, unlocks):
    locks = held(rows.locks())
    if unlocks == "all":
        rows.scene.proxy.always(drop_request(partial(time.sleep, 1)), op=TRANSACT)
        writing = Calling(add_unread, rows, locks, unlock=True)
    else:
        rows.scene.proxy.next(delay(29), op=rows.scene.op("save"))
        writing = Calling(save, locks._rows_of(locks._latest)[0], unlock=True)
    once, rounds = renew._renew_once, []
    with patch.object(renew, "_renew_once", lambda *args: rounds.append(args) or once(*args)):
        time.sleep(31)
    with suppress(PynamoDBException):
        writing.end()
    assert len(rounds) < (50 if unlocks == "all" else 15)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("what", ["renew", "ensure_held"])
def test_call_after_a_write_that_has_unlocked_reports_no_loss(row_scene, taken, what):
    lost = []
    row = row_scene.locked(auto_renew=False, on_lost=lost.append)
    row_scene.proxy.next(drop_answer(), deny(), op=row_scene.op("update"))
    with pytest.raises(PynamoDBException):
        update(row, unlock=True)
    other = row_scene.taken() if taken else None
    with hearing(row_scene.key) as heard, pytest.raises(MutexNotHeldError) as raised:
        getattr(row.row_lock, what)()
    assert (type(raised.value), raised.value.applied) == (MutexNotHeldError, False)
    assert (lost, row.row_lock.lost) == ([], False)
    assert heard.names == ([] if what == "ensure_held" else ["released"])
    assert other is None or other.held


def test_renewal_of_several_that_may_have_been_released_sends_and_reports_it(rows):
    locks = held(rows.locks(auto_renew=False))
    rows.scene.proxy.next(drop_answer(), deny(), op=TRANSACT)
    with pytest.raises(PynamoDBException):
        add_unread(rows, locks, unlock=True)
    with pytest.raises(MutexNotHeldError) as raised:
        locks.renew()
    assert type(raised.value) is MutexNotHeldError
    assert not locks.lost


# -- winning back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("lands", ["late", "after the error"])
def test_lock_that_a_write_may_still_release_is_not_won_back(row_scene, on_lost, lands):
    row = row_scene.locked(auto_renew=False, lease=3, on_lost=on_lost)
    lock = row.row_lock

    def renew():
        time.sleep(4)
        lock.renew()
        assert not lock.held

    if lands == "late":
        row_scene.proxy.next(after(renew), op="PutItem")
        save(row, unlock=True)
    else:
        kept = late()
        row_scene.proxy.next(kept, deny(), op="PutItem")
        with pytest.raises(PynamoDBException):
            save(row, unlock=True)
        time.sleep(4)
        assert lock.loss is Loss.EXPIRED
        with pytest.raises(MutexLostError):
            lock.renew()
        assert kept.apply().status == 200
        with pytest.raises(MutexLostError):
            lock.release()
    with row_scene.other():
        assert not lock.held
    if lands == "late":
        with pytest.raises(MutexNotHeldError, match="released"):
            lock.release()


def test_locks_lost_while_a_transaction_may_unlock_them_are_released_all_the_same(rows, on_lost):
    locks = held(rows.locks(lease=3, auto_renew=False, on_lost=on_lost))
    rows.scene.proxy.next(drop_request(lambda: time.sleep(4)), deny(), op=TRANSACT)
    with pytest.raises(PynamoDBException):
        add_unread(rows, locks, unlock=True)
    assert locks.lost
    with pytest.raises(MutexLostError):
        locks.release()
    assert rows.free() == [True] * 3
    with pytest.raises(MutexNotHeldError) as raised:
        locks.release()
    assert type(raised.value) is MutexNotHeldError


def test_lock_whose_write_was_refused_after_the_end_of_its_lease_is_won_back(row_scene, on_lost):
    row = row_scene.locked(auto_renew=False, lease=3, on_lost=on_lost)
    row_scene.proxy.next(delay_answer(4), op="PutItem")
    with pytest.raises(PutError):
        save(row, unlock=True, condition=row_scene.here.balance == 77)
    assert row.row_lock.lost
    row.row_lock.renew()
    assert row.row_lock.held


def test_write_that_finds_another_holder_after_the_end_of_the_lease_says_so(row_scene, on_lost):
    row = row_scene.locked(auto_renew=False, lease=3, on_lost=on_lost)

    def take():
        time.sleep(5)
        row_scene.taken()

    row_scene.proxy.next(after(take), op="PutItem")
    with pytest.raises(MutexLostError) as raised:
        save(row, unlock=True)
    assert (raised.value.loss, raised.value.owner) == (Loss.TAKEN, "other")
    assert on_lost.wait()[1] is Loss.TAKEN


@pytest.mark.parametrize("call", ["renew", "ensure_held"])
def test_lock_is_not_won_back_by_another_thread_once_its_block_has_ended(scene, call):
    mutex, renewing = scene.mutex(lease=3), None
    scene.proxy.always(server_error(), op="renew")

    def work():
        nonlocal renewing
        with mutex:
            time.sleep(2)
            scene.proxy.next(delay_answer(2), op="renew")
            renewing = Calling(getattr(mutex, call), 2.9)
            time.sleep(1.5)
            assert mutex.lost

    with pytest.raises(MutexLostError):
        work()
    scene.proxy.clear()
    with pytest.raises(MutexNotHeldError):
        renewing.end()
    assert (mutex.held, scheduled()) == (False, [])


@pytest.mark.parametrize("by", ["on_lost", "thread"])
def test_release_of_a_lost_lock_by_another_hides_no_loss_from_the_holder(scene, by):
    def release(mutex):
        with pytest.raises(MutexLostError):
            mutex.release()

    def work():
        with mutex:
            time.sleep(5)
            if by == "thread":
                Calling(release, mutex).end()
            with pytest.raises(MutexLostError):
                mutex.ensure_held()
            with pytest.raises(MutexLostError):
                mutex.renew()

    on_lost = release if by == "on_lost" else None
    mutex = scene.mutex(lease=3, auto_renew=False, on_lost=on_lost)
    with pytest.raises(MutexLostError):
        work()
    assert scheduled() == []


def test_block_that_was_left_with_a_loss_does_not_count_when_the_lock_is_won_back(scene):
    mutex = scene.mutex(lease=3, auto_renew=False, reentrant=True)
    with mutex:
        with pytest.raises(MutexLostError), mutex:
            time.sleep(4)
        mutex.renew()
        assert mutex.held
    assert scene.leftovers() == []


def test_lock_that_this_process_broke_and_took_again_is_not_won_back(scene, on_lost):
    """By an answer that was late."""
    mutex = held(scene.mutex(lease=3, auto_renew=False, on_lost=on_lost))
    time.sleep(2.8)
    scene.proxy.next(delay_answer(1), op="renew")
    renewing = Calling(mutex.renew)
    time.sleep(0.4)
    assert mutex.loss is Loss.EXPIRED
    assert mutex.force_release()
    other = held(scene.mutex())
    time.sleep(1)
    with pytest.raises(MutexLostError):
        renewing.end()
    assert (mutex.held, other.held) == (False, True)


# -- calls that return although the lock was released meanwhile ------------------------------------


@pytest.mark.parametrize("how", ["release", "detach", "unlock"])
@pytest.mark.parametrize("call", ["renew", "ensure_held"])
@pytest.mark.parametrize("fault", [delay, delay_answer])
def test_renewal_fails_if_the_lock_is_released_meanwhile(row_scene, how, call, fault):
    row = row_scene.locked(auto_renew=False)
    row_scene.proxy.next(fault(2), op="renew")
    calling = Calling(getattr(row.row_lock, call), 29.9)
    time.sleep(1)
    if how == "unlock":
        save(row, unlock=True)
    else:
        getattr(row.row_lock, how)()
    with pytest.raises(MutexNotHeldError):
        calling.end()


@pytest.mark.parametrize(
    ("ended", "release_raises", "renew_raises"),
    [(False, PynamoDBException, MutexNotHeldError), (True, MutexLostError, MutexLostError)],
)
def test_renewal_that_is_retried_does_not_prolong_what_was_left_meanwhile(
    scene, ended, release_raises, renew_raises
):
    mutex = held(scene.mutex(lease=300, auto_renew=False))
    end = scene.row.expires_at
    if ended:
        time.sleep(300)
    scene.proxy.always(server_error())
    renewing = Calling(mutex.renew)
    time.sleep(0.2)
    with pytest.raises(release_raises):
        mutex.release()
    scene.proxy.clear()
    with pytest.raises(renew_raises, match="was lost" if ended else "released"):
        renewing.end()
    assert scene.row.expires_at == end


def test_lost_lock_that_was_left_and_then_ended_was_not_broken_by_force(keys):
    group = held(keys.group(lease=300, auto_renew=False, on_lost=[].append))
    time.sleep(group.remaining - 0.5)
    renewals = []
    for seconds in (1.5, 3):
        keys.scene.proxy.next(delay(seconds), op=TRANSACT)
        background = renew.renew_in_background(group._latest)
        renewals.append(Calling(execute, current_process(), background))
        time.sleep(0.1)
    time.sleep(0.8)
    with pytest.raises(MutexLostError):
        group.members[0].release()
    for renewing in renewals:  # the first is applied, and the second refused
        renewing.end()
    assert group.members[0].loss is Loss.UNREACHABLE
    with pytest.raises(MutexLostError):
        group.release()
    assert group.loss is Loss.UNREACHABLE


def test_lock_is_not_ensured_while_a_write_unlocks_it(row_scene):
    row = row_scene.locked(auto_renew=False)
    row_scene.proxy.next(delay_answer(2), op="renew")
    row_scene.proxy.next(delay(5), op="PutItem")
    ensuring = Calling(row.row_lock.ensure_held, 29.9)
    time.sleep(1)
    saving = Calling(save, row, unlock=True)
    with pytest.raises(MutexNotHeldError):
        ensuring.end()
    saving.end()


def test_ctrl_c_in_a_receiver_that_released_several_is_raised_as_it_is(keys):
    group = keys.group()

    def receive(sender, **_):
        if group.held:
            group.release()
            raise KeyboardInterrupt

    with signals.acquired.connected_to(receive, keys.scene.here), pytest.raises(KeyboardInterrupt):
        group.acquire()


def test_release_of_several_does_not_forget_what_its_thread_has_acquired_since(keys):
    group = held(keys.group(auto_renew=False))
    member = group.members[0]
    keys.scene.proxy.next(delay_answer(2), op=TRANSACT)
    releasing = Calling(group.release)
    time.sleep(1)
    mine = held(member).token
    releasing.end()
    keys.force(0)
    Calling(member.acquire).end()
    assert member.token == mine


def test_late_renewal_wins_nothing_back_for_a_thread_that_has_asked_anew(scene):
    mutex = held(scene.mutex(lease=10, auto_renew=False))
    time.sleep(9)
    scene.proxy.next(delay_answer(2), op="renew")
    renewing = Calling(mutex.renew)  # of a helper
    time.sleep(1)
    # it was applied
    assert not mutex.acquire(timeout=0)
    with pytest.raises(MutexLostError):
        renewing.end()
    assert not mutex.held


def test_block_is_left_although_another_thread_releases_just_then(scene):
    mutex, leave = scene.mutex(), Mutex._leave_block

    def interrupt(self, *args):
        left = leave(self, *args)
        mutex.release()
        return left

    with patch.object(Mutex, "_leave_block", interrupt), mutex:
        pass
    assert scene.leftovers() == []


def test_block_that_another_thread_leaves_ends_the_acquisition_of_the_thread_that_began_it(keys):
    semaphore = Semaphore.for_key(keys.keys[0], permits=2, model=keys.scene.here)

    def holding():
        with semaphore:
            yield

    mine = held(semaphore).permit
    generator = holding()
    Calling(next, generator).end()
    generator.close()  # as the garbage collector does, on whatever thread
    assert (semaphore.held, semaphore.permit) == (True, mine)
    semaphore.release()
    assert scheduled() == []
    # nor does it end a block that goes on, on the thread which closes it or on another
    for aside in (False, True):
        with semaphore:
            mine, generator = semaphore.permit, holding()
            Calling(next, generator).end()
            if aside:
                Calling(generator.close).end()
            else:
                generator.close()
            assert (semaphore.held, semaphore.permit) == (True, mine)
        assert scheduled() == []


def test_row_that_is_released_while_its_write_is_checked_is_not_written_without_a_guard(row_scene):
    note_end, due = HeldClaim.note_end, []

    def collect(claim):
        note_end(claim)
        if due:
            due.pop().release()  # by a finaliser in the step: deferred until just after it

    with row_scene.lock() as row, patch.object(HeldClaim, "note_end", collect):
        due.append(row.row_lock)
        with pytest.raises(MutexNotHeldError):
            save(row)
    assert row_scene.row.last != "mine"


def test_two_threads_that_read_the_row_get_the_same_instance(table_scene):
    lock = held(table_scene.lock())
    table_scene.proxy.next(delay(2), op="GetItem")
    reading = Calling(lambda: lock.row)
    time.sleep(1)
    row = lock.row
    assert reading.end() is row is lock.row


# -- calls that would wait for what they interrupt or block ----------------------------------------


@pytest.mark.parametrize("call", [lambda mutex: mutex.save_data(2), Mutex.detach])
@pytest.mark.parametrize("sent", [False, True])
def test_write_by_a_handler_that_interrupts_a_write_is_refused(scene, call, sent):
    def act():
        with pytest.raises(MutexError, match="under way on this thread"):
            call(mutex)

    def work():
        with mutex, interrupted("save_data", act, sent=sent):
            mutex.save_data(1)

    mutex = scene.mutex()
    Calling(work).end()
    assert scene.row.data == 1


def test_write_on_the_loops_thread_is_refused_while_a_task_writes(table_scene):
    table_scene.proxy.next(delay(2), op=TRANSACT)
    lock = table_scene.here.alocked(table_scene.key)

    async def transact():
        async with lock.transaction() as transaction:
            transaction.update(table_scene.here(table_scene.key), [table_scene.here.balance.add(1)])

    async def main():
        async with lock as row:
            transacting = asyncio.create_task(transact())
            await asyncio.sleep(0.5)
            with pytest.raises(MutexError, match="under way on this thread"):
                row.update([table_scene.here.balance.add(1)])
            await transacting

    Calling(asyncio.run, main()).end()
    assert table_scene.row.balance == 1


def test_handler_may_send_while_the_client_is_made(scene):
    with scene.fresh() as fresh:
        connection = store_for(fresh.here).connection
        made = []

        def act(_):
            assert connection._opening.acquire(blocking=False)
            connection._opening.release()
            made.append(True)

        with patch.object(connection, "_observe", act), fresh.mutex():
            assert made == [True]


@pytest.mark.parametrize("sent", [False, True])
def test_lock_that_a_handler_enters_meanwhile_is_not_detached(scene, sent):
    mutex = held(scene.mutex(reentrant=True))
    entered = interrupted("renew", mutex.acquire, sent=sent)
    with entered, pytest.raises(MutexAlreadyHeldError):
        mutex.detach()
    mutex.release()
    mutex.release()
    assert scene.leftovers() == []


def test_handler_does_not_wait_for_a_lock_that_its_thread_hands_over(scene):
    def act():
        with pytest.raises(MutexAlreadyHeldError):
            scene.mutex().acquire()

    def work():
        giver = held(scene.mutex())
        waiter = scene.waiting()
        with interrupted("hand_over", act):
            giver.release()
        waiter.join(60)
        assert waiter.acquired

    Calling(work).end()


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("kind", ["one", "several"])
def test_child_that_a_handler_forks_and_ends_leaves_its_parent_the_claim(keys, kind, sent):
    def act():
        forget_everything()
        raise SystemExit

    def work():
        lock = keys.group() if kind == "several" else Mutex.for_key("a", model=keys.scene.here)
        interrupting = interrupted("acquire" if kind == "one" else TRANSACT, act, sent=sent)
        with suppress(SystemExit), interrupting:
            lock.acquire()

    Calling(work).end()
    assert keys.scene.proxy.of("disown") == []


def test_finaliser_in_the_renewal_loop_delays_no_report_of_a_loss(scene, keys, on_lost):
    schedule = current_process().schedule
    take_due, forgotten = type(schedule).take_due, []
    held(scene.mutex(lease=3, on_lost=on_lost))
    forgotten.append(held(Mutex.for_key(keys.keys[0], model=scene.here)))

    def collect(schedule, now):
        if forgotten and now > since + 0.5:
            forgotten.pop().release()
        return take_due(schedule, now)

    since = current_process().now
    for kind in ("renew", "release"):
        scene.proxy.always(stall(20.0), op=kind)
    with patch.object(type(schedule), "take_due", collect):
        time.sleep(3.5)
    assert on_lost.calls


def test_task_that_releases_twice_keeps_no_other_from_being_cancelled_for_its_loss(keys):
    options = {"model": keys.scene.here, "cancel_on_loss": True, "lease": 3}
    semaphore = AsyncSemaphore.for_key(keys.keys[0], permits=2, **options)

    async def hold():
        async with semaphore:
            await asyncio.sleep(60)

    async def release_twice():
        await semaphore.acquire()
        await semaphore.release()
        with pytest.raises(MutexNotHeldError):
            await semaphore.release()

    async def main():
        holding = asyncio.create_task(hold())
        await asyncio.sleep(1)
        await asyncio.create_task(release_twice())
        keys.scene.proxy.always(server_error(), op="renew")
        with pytest.raises(MutexLostError):
            await asyncio.wait_for(holding, 10)

    Calling(asyncio.run, main()).end()


# -- two tasks -------------------------------------------------------------------------------------

CALLS = {
    "acquire": lambda mutex: mutex.acquire(timeout=5),
    "release": AsyncMutex.release,
    "renew": AsyncMutex.renew,
    "ensure_held": lambda mutex: mutex.ensure_held(29.9),
    "save_data": lambda mutex: mutex.save_data(1),
    "detach": AsyncMutex.detach,
}
SENT_AS = {"ensure_held": "renew", "detach": "renew"}
FAULTS = {
    "late": lambda: delay(2),
    "late answer": lambda: delay_answer(2),
    "lost answer": lambda: drop_answer(lambda: time.sleep(2)),
}


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("second", [*CALLS, None])
@pytest.mark.parametrize("first", CALLS)
def test_two_tasks_with_one_lock_leave_nothing_behind(scene, first, second, fault, is_cancelled):
    async def call(mutex, name):
        return None if name is None else await CALLS[name](mutex)

    async def main():
        mutex = scene.async_mutex()
        if first != "acquire":
            await mutex.acquire()
        scene.proxy.next(FAULTS[fault](), op=SENT_AS.get(first, first))
        one = asyncio.create_task(call(mutex, first))
        await asyncio.sleep(1)
        other = asyncio.create_task(call(mutex, second))
        await asyncio.sleep(0.5)
        if is_cancelled:
            one.cancel()
        results = await asyncio.gather(one, other, return_exceptions=True)
        for _ in range(2):
            with suppress(MutexNotHeldError):
                await asyncio.create_task(mutex.release())  # of a task that sees the latest
        for result in results:
            assert not isinstance(result, MutexLostError)
            assert (
                type(result) is not MutexError
            )  # it would wait for ever: a task does not block the other
            if isinstance(result, str):
                with suppress(MutexLostError):
                    await (await AsyncMutex.attach(result, model=scene.here)).release()
        assert scene.leftovers() == []
        assert await mutex.acquire(timeout=1)
        await mutex.release()

    with hearing(scene.key) as heard:
        Calling(asyncio.run, main()).end()
        time.sleep(1)
    assert "lost" not in heard.names
    for acquired in heard.of("acquired"):
        ends = [e.name for e in heard.events if e.fields.get("token") == acquired["token"]]
        assert len([name for name in ends if name in {"released", "handed_over"}]) == 1
