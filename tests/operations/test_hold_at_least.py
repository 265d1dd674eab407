"""``hold_at_least``: a release before that time leaves a claim that nobody holds, that ends then, and that nothing moves."""

import asyncio
import logging
import time

import pytest
from pynamodb.exceptions import UpdateError
from row_models import Account
from sent_requests import assert_changes_nothing, kept_from
from two_clients import Elsewhere, held

from dev.faultproxy import apply_then_500, deny, drop_answer, duplicate, no_date
from pynamodb_mutex import (
    Mutex,
    MutexLostError,
    MutexTimeoutError,
    Semaphore,
    signals,
    synchronized,
)
from pynamodb_mutex.aio import AsyncMutex

HOLD = 50


def released(mutex):
    """Acquire a lock, work for a second, and release it; return when it was acquired."""
    held(mutex)
    began = time.monotonic()
    time.sleep(1)
    mutex.release()
    return began


def test_release_before_the_time_keeps_others_out_until_then(scene, caplog):
    mutex = scene.mutex(hold_at_least=HOLD, lease=10)
    began = released(mutex)
    assert scene.proxy.kinds()[-2:] == ["acquire", "keep"]
    assert not mutex.held
    assert not mutex.lost
    assert scene.leftovers() == ["a claim"]  # and no renewal
    row = scene.row
    assert row.owner is None
    other = scene.other()
    assert not other.acquire(blocking=False)
    with (
        pytest.raises(MutexTimeoutError, match=r"released, and kept until .* by hold_at_least"),
        other,
    ):
        pass
    assert scene.row.expires_at == row.expires_at
    assert other.acquire(timeout=100)
    assert HOLD <= time.monotonic() - began <= HOLD + 2.5
    assert not other.abandoned
    assert other.fencing_token == mutex.fencing_token + 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_release_after_the_time_leaves_nothing(scene):
    mutex = held(scene.mutex(hold_at_least=HOLD))
    time.sleep(HOLD)
    mutex.release()
    assert scene.is_free
    assert scene.other().acquire(blocking=False)


def test_claim_that_is_kept_may_end_before_the_lease_would(scene):
    began = released(scene.mutex(hold_at_least=5, lease=60))
    held(scene.other())
    assert 5 <= time.monotonic() - began <= 7.5


def test_waiter_of_the_process_is_not_handed_the_lock(scene):
    mutex = held(scene.mutex(hold_at_least=HOLD))
    began = time.monotonic()
    waiter = scene.waiting()
    mutex.release()
    waiter.join()
    assert waiter.acquired
    assert HOLD <= time.monotonic() - began <= HOLD + 2.5
    assert not scene.proxy.of("hand_over")


@pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
@pytest.mark.parametrize("deleted", [False, True])
def test_release_whose_answer_is_lost_is_recognised(scene, lose, deleted):
    mutex = held(scene.mutex(hold_at_least=HOLD, delete_on_release=deleted))
    scene.proxy.next(lose(), op="keep")
    mutex.release()
    assert [seen.applied for seen in scene.proxy.log[-2:]] == [True, False]
    assert not mutex.lost
    assert not scene.other().acquire(blocking=False)


def test_release_that_force_breaks_before_its_repeat_is_no_loss(scene):
    mutex = held(scene.mutex(hold_at_least=HOLD))
    scene.proxy.next(drop_answer(then=scene.force), op="keep")
    mutex.release()
    assert not mutex.lost
    assert scene.is_free


def test_release_that_is_repeated_when_the_time_has_come(scene):
    mutex = held(scene.mutex(hold_at_least=2, lease=60))
    scene.proxy.next(drop_answer(then=lambda: time.sleep(3)), op="keep")
    mutex.release()
    assert not mutex.lost
    held(scene.other())


@pytest.mark.parametrize("deleted", [False, True])
def test_release_that_a_proxy_sends_twice_is_no_loss(scene, deleted):
    mutex = held(scene.mutex(hold_at_least=HOLD, delete_on_release=deleted))
    scene.proxy.next(duplicate(answer="second"), op="keep")
    mutex.release()
    assert not mutex.lost


def test_late_copy_of_a_release_changes_nothing(scene):
    mutex = held(scene.mutex(hold_at_least=HOLD))
    late = kept_from(scene.proxy, op="keep")
    mutex.release()
    assert_changes_nothing(scene, late)


@pytest.mark.parametrize("what", ["renew", "save"])
def test_late_request_of_the_holder_does_not_move_the_end(scene, what):
    mutex = held(scene.mutex(hold_at_least=HOLD, auto_renew=False))
    late = kept_from(scene.proxy, deny(), op="UpdateItem")
    with pytest.raises(UpdateError):
        mutex.renew() if what == "renew" else mutex.save_data("late")
    mutex.release()
    assert_changes_nothing(scene, late)


def test_loss_is_still_reported_at_the_release(scene):
    mutex = held(scene.mutex(hold_at_least=HOLD))
    scene.forced_and_taken()
    with pytest.raises(MutexLostError):
        mutex.release()
    assert scene.row.owner == "other"


def test_kept_claim_can_be_broken_by_force(scene):
    released(scene.mutex(hold_at_least=HOLD))
    scene.force()
    assert scene.other().acquire(blocking=False)


def test_without_server_time_waiters_watch_for_the_rest(scene):
    with scene.fresh() as fresh:
        fresh.proxy.always(no_date())
        began = released(fresh.mutex(hold_at_least=20))
        with scene.fresh() as another:
            another.proxy.always(no_date())
            held(another.mutex(timeout=100))
    assert 20 <= time.monotonic() - began <= 24


@pytest.mark.parametrize("lost", [False, True])
def test_each_of_several_keeps_its_own(scene, lost):
    with scene.fresh() as fresh:
        keeper = Mutex.for_key(f"{scene.key}-a", model=fresh.here, hold_at_least=HOLD)
        deleter = Mutex.for_key(f"{scene.key}-b", model=fresh.here, delete_on_release=True)
        group = held(Mutex.for_keys([keeper, deleter]))
        if lost:
            fresh.proxy.next(drop_answer(), op="TransactWriteItems")
        group.release()
        assert not group.lost
    assert not Mutex.for_key(f"{scene.key}-a", model=scene.there).acquire(blocking=False)
    assert Mutex.for_key(f"{scene.key}-b", model=scene.there).acquire(blocking=False)


def test_semaphore_and_any_of_and_decorated_calls_keep_what_they_had(scene):
    options = {"model": scene.here, "hold_at_least": HOLD}
    with Semaphore.for_key(scene.key, permits=2, **options) as permit:
        taken = permit.key
    assert not Mutex.for_key(taken, model=scene.there).acquire(blocking=False)
    keys = [f"{scene.key}-{name}" for name in "ab"]
    with Mutex.any_of(keys, **options) as mutex:
        taken = mutex.key
    assert not Mutex.for_key(taken, model=scene.there).acquire(blocking=False)

    @synchronized(f"{scene.key}-c", **options)
    def call():
        return 1

    assert call() == 1
    assert not Mutex.for_key(f"{scene.key}-c", model=scene.there).acquire(blocking=False)


def test_error_of_the_block_keeps_too(scene):
    with pytest.raises(ZeroDivisionError), scene.mutex(hold_at_least=HOLD):
        1 / 0  # noqa: B018 - the error is the point
    assert not scene.other().acquire(blocking=False)


def test_claim_that_no_caller_was_given_is_not_kept(scene):
    def interrupt(_, **__):
        raise KeyboardInterrupt

    with signals.acquired.connected_to(interrupt), pytest.raises(KeyboardInterrupt):
        scene.mutex(hold_at_least=HOLD).acquire()
    assert scene.is_free


def test_tasks_keep_as_threads_do_unless_they_are_cancelled_before(scene):
    async def cancelled():
        task = asyncio.ensure_future(scene.async_mutex(hold_at_least=HOLD).acquire())
        scene.proxy.next(drop_answer(then=task.cancel), op="acquire")
        with pytest.raises(asyncio.CancelledError):
            await task

    async def work():
        async with scene.async_mutex(hold_at_least=HOLD):
            pass

    asyncio.run(cancelled())
    assert scene.is_free
    asyncio.run(work())
    assert not scene.other().acquire(blocking=False)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ("x", TypeError),
        (True, TypeError),
        (0, ValueError),
        (-1, ValueError),
        (float("inf"), ValueError),
    ],
)
def test_time_that_is_no_duration_is_refused(wrong, error):
    with pytest.raises(error, match="hold_at_least"):
        Mutex.for_key("k", hold_at_least=wrong)
    with pytest.raises(error, match="hold_at_least"):
        AsyncMutex.for_key("k", hold_at_least=wrong)


def test_locks_of_rows_refuse_it():
    class InTable(Account):
        class Meta(Account.Meta):
            pass

        lock_model = Elsewhere

    for model in (Account, InTable):
        with pytest.raises(TypeError, match="hold_at_least is for the locks of keys"):
            model.locked("r", hold_at_least=HOLD)
        with pytest.raises(TypeError, match="hold_at_least is for the locks of keys"):
            model.locked_all(["r"], hold_at_least=HOLD)
