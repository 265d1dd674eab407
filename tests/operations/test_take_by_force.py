"""``acquire(force=True)``: the claim that is found is broken by the write that acquires the lock, and no later one."""

import asyncio
import logging

import pytest
from pynamodb.exceptions import UpdateError
from row_models import Account
from sent_requests import assert_changes_nothing, kept_from
from two_clients import Acquiring, held, on_thread

from dev.faultproxy import after, apply_then_500, deny, drop_answer
from pynamodb_mutex import (
    InvalidRowError,
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexLostError,
    Semaphore,
    signals,
)
from pynamodb_mutex.aio import AsyncMutex


def forced(scene, **how):
    mutex = scene.mutex()
    assert mutex.acquire(force=True, **how)
    return mutex


def test_free_lock_is_acquired_by_the_usual_request(scene, caplog):
    mutex = forced(scene)
    assert scene.proxy.kinds()[-1] == "acquire"
    assert not mutex.token.startswith("forced-")
    assert not caplog.records


def test_holder_is_displaced_by_one_more_request(scene, caplog):
    heard = []
    note = lambda _, **fields: heard.append(fields)  # noqa: E731 - a receiver
    displaced = scene.taken(lease=100)
    displaced.renew()
    with signals.acquired.connected_to(note):
        mutex = forced(scene, blocking=False)
    assert scene.proxy.kinds()[-2:] == ["acquire", "hand_over"]
    assert mutex.held
    assert mutex.fencing_token == displaced.fencing_token + 1
    assert not mutex.abandoned
    assert [fields["forced"] for fields in heard] == [True]
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert said == f"'{scene.key}' taken by force from 'other'"
    with pytest.raises(MutexLostError) as lost:
        displaced.release()
    assert lost.value.loss is Loss.FORCED
    assert lost.value.owner == mutex.owner
    mutex.save_data("mine")
    mutex.renew()
    mutex.release()
    assert scene.is_free


@pytest.mark.parametrize("shared", [False, True])
def test_holder_of_this_process_learns_it_at_once(scene, shared):
    displaced = on_thread(held, scene.mutex(shared=shared))
    sent = len(scene.proxy.log)
    mutex = forced(scene)
    # no read, which may be stale
    assert scene.proxy.kinds()[sent:] == ["acquire", "hand_over"]
    assert displaced.loss is Loss.FORCED
    assert not displaced.held
    mutex.release()
    assert not scene.leftovers()


def test_claim_that_was_renewed_since_is_broken_too(scene):
    displaced = scene.taken(lease=100)
    scene.proxy.next(after(displaced.renew), op="hand_over")
    assert forced(scene, blocking=False).held
    with pytest.raises(MutexLostError):
        displaced.renew()


@pytest.mark.parametrize("blocking", [False, True])
def test_later_claim_than_the_one_found_is_not_broken(scene, blocking):
    scene.taken()
    later = []
    scene.proxy.next(after(lambda: later.append(scene.expired_and_taken())), op="hand_over")
    mutex = scene.mutex()
    if not blocking:
        assert not mutex.acquire(blocking=False, force=True)
        assert not scene.proxy.of("hand_over")[-1].applied
    else:
        assert mutex.acquire(
            force=True, timeout=200
        )  # not before the lease of the later one has ended
        assert mutex.abandoned_by == "other"
    assert later[0].loss is (Loss.EXPIRED if blocking else None)


def test_lock_that_was_released_since_is_acquired_as_a_free_one(scene):
    released = scene.taken()
    scene.proxy.next(after(released.release), op="hand_over")
    mutex = forced(scene, blocking=False)
    assert scene.applied("hand_over", "acquire") == [False, False, True]
    assert not mutex.token.startswith("forced-")


@pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
def test_answer_that_is_lost_is_recognised(scene, lose):
    displaced = scene.taken()
    scene.proxy.next(lose(), lose(), op="hand_over")
    mutex = forced(scene, timeout=20)
    assert mutex.fencing_token == displaced.fencing_token + 1
    assert scene.applied("hand_over") == [True, False, False]


def test_outcome_that_stays_unknown_is_no_lock_and_is_taken_back(scene):
    scene.taken()
    scene.proxy.next(drop_answer(), deny(), op="hand_over")
    with pytest.raises(UpdateError):
        scene.mutex().acquire(force=True, timeout=20)
    assert scene.proxy.kinds()[-1] == "disown"
    assert scene.is_free


@pytest.mark.parametrize("released", [False, True])
def test_late_copy_changes_nothing(scene, released):
    scene.taken()
    kept = kept_from(scene.proxy, op="hand_over")
    mutex = forced(scene, timeout=20)
    if released:
        mutex.release()
    assert_changes_nothing(scene, kept)


def test_release_of_the_displaced_holder_that_was_applied_before_is_no_loss(scene):
    holder = held(scene.mutex())
    taker = scene.other()
    scene.proxy.next(drop_answer(then=lambda: taker.acquire(force=True)), op="release")
    holder.release()
    assert not holder.lost
    assert taker.held


def test_row_without_a_readable_lock_is_refused(scene):
    scene.taken()
    scene.there._get_connection().update_item(scene.key, actions=[scene.there.version.remove()])
    with pytest.raises(InvalidRowError):
        scene.mutex().acquire(force=True)


def test_kept_claim_is_taken(scene):
    with scene.other(hold_at_least=100):
        pass
    assert forced(scene, blocking=False).held


def test_own_lock_is_entered_again_or_refused_as_without_force(scene):
    mutex = held(scene.mutex(reentrant=True))
    token = mutex.token
    assert mutex.acquire(force=True)
    assert mutex.token == token
    single = held(Mutex.for_key("single", model=scene.here))
    with pytest.raises(MutexAlreadyHeldError):
        single.acquire(force=True)


def test_fair_lock_is_taken_past_the_line(scene):
    scene.taken()
    waiter = Acquiring(scene.other(fair=True))
    mutex = scene.mutex(fair=True)
    assert mutex.acquire(force=True)
    assert waiter.acquired is None
    mutex.release()
    waiter.join()
    assert waiter.acquired


def test_row_lock_is_taken_as_a_mutex_is(any_scene):
    displaced = any_scene.lock()
    there = held(any_scene.other())
    assert displaced.acquire(force=True, blocking=False)
    displaced.row.balance = 3
    displaced.row.save()
    with pytest.raises(MutexLostError):
        there.row.save()
    displaced.release()


def test_tasks_take_by_force(scene):
    async def work():
        mutex = scene.async_mutex()
        assert await mutex.acquire(force=True)
        with pytest.raises(TypeError, match="any of several"):
            await AsyncMutex.any_of(["a", "b"], model=scene.here).acquire(force=True)
        with pytest.raises(TypeError, match="force"):
            await mutex.acquire(force="yes")
        await mutex.release()

    displaced = scene.taken()
    asyncio.run(work())
    with pytest.raises(MutexLostError):
        displaced.release()


def test_what_cannot_be_forced_is_refused(scene):
    sent = len(scene.proxy.log)
    for lock in (
        Mutex.any_of(["a", "b"], model=scene.here),
        Semaphore.for_key("s", permits=2, model=scene.here),
        Mutex.for_keys(["a"], model=scene.here),
        Account.locked_all(["r"]),
    ):
        with pytest.raises(TypeError, match="force"):
            lock.acquire(force=True)
    with pytest.raises(TypeError, match="force must be True or False"):
        scene.mutex().acquire(force="no")
    assert len(scene.proxy.log) == sent
