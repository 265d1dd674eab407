"""``release(data=...)`` and ``renew(data=...)``: the payload is written by the request that is sent anyway."""

import asyncio

import pytest
from pynamodb.exceptions import UpdateError
from row_models import Account
from sent_requests import assert_changes_nothing, kept_from
from two_clients import held

from dev.faultproxy import after, apply_then_500, deny, drop_answer
from pynamodb_mutex import (
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    Semaphore,
)

HOLDS = pytest.mark.parametrize("hold", [None, 50])
LOSES = pytest.mark.parametrize("lose", [drop_answer, apply_then_500])


@HOLDS
def test_release_writes_it_by_its_own_request(scene, hold):
    mutex = held(scene.mutex(data={"at": 1}, hold_at_least=hold))
    sent = len(scene.proxy.log)
    mutex.release(data={"at": 2})
    assert len(scene.proxy.log) == sent + 1
    assert mutex.data == scene.row.data == {"at": 2}


@HOLDS
def test_release_without_it_leaves_what_is_stored(scene, hold):
    mutex = held(scene.mutex(data="old", hold_at_least=hold))
    mutex.release(data=None)
    assert mutex.data == scene.row.data == "old"


@HOLDS
@LOSES
def test_release_whose_answer_is_lost_has_written_it_once(scene, hold, lose):
    mutex = held(scene.mutex(hold_at_least=hold))
    scene.proxy.next(lose(), op="release" if hold is None else "keep")
    mutex.release(data="mine")
    assert mutex.data == scene.row.data == "mine"
    assert not mutex.lost


@HOLDS
def test_late_copy_of_a_release_writes_nothing(scene, hold):
    mutex = held(scene.mutex(hold_at_least=hold))
    kept = kept_from(scene.proxy, op="release" if hold is None else "keep")
    mutex.release(data="mine")
    if hold is not None:
        scene.force()
    scene.taken(data="other").release()
    assert_changes_nothing(scene, kept)


def test_release_of_a_lost_lock_writes_nothing(scene):
    mutex = held(scene.mutex(data="mine"))
    scene.expired_and_taken().save_data("other")
    with pytest.raises(MutexLostError):
        mutex.release(data="late")
    assert scene.row.data == "other"
    assert mutex.data == "mine"


def test_release_that_fails_leaves_it_as_it_was_known(scene):
    mutex = held(scene.mutex(data="old"))
    scene.proxy.next(deny(), op="release")
    with pytest.raises(UpdateError):
        mutex.release(data="new")
    assert mutex.data == scene.row.data == "old"


@pytest.mark.parametrize("late", [False, True])
def test_data_of_the_next_holder_is_not_removed(scene, late):
    mutex = held(scene.mutex(data="mine"))
    kept = kept_from(scene.proxy, deny(), op="UpdateItem") if late else None
    if late:
        with pytest.raises(UpdateError):
            mutex.save_data(None)
    scene.force()
    scene.taken(data="theirs")
    if kept is not None:
        assert_changes_nothing(scene, kept)
    with pytest.raises(MutexLostError) as lost:
        mutex.save_data(None)
    assert lost.value.applied is False
    assert scene.row.data == "theirs"


def test_late_removal_does_not_undo_a_later_write(scene):
    mutex = held(scene.mutex(data="old"))
    kept = kept_from(scene.proxy, deny(), op="UpdateItem")
    with pytest.raises(UpdateError):
        mutex.save_data(None)
    mutex.save_data("new")
    assert_changes_nothing(scene, kept)
    assert mutex.data == scene.row.data == "new"


@pytest.mark.parametrize("own", [None, "of the next"])
def test_next_holder_of_the_process_finds_it_or_writes_its_own(scene, own):
    mutex = held(scene.mutex())
    waiter = scene.waiting(data=own)
    mutex.release(data="of the last")
    waiter.join()
    assert scene.proxy.kinds()[-1] == "hand_over"
    assert waiter.mutex.data == scene.row.data == (own or "of the last")
    assert mutex.data == (None if own else "of the last")


def test_renewal_writes_it_by_one_request_and_moves_the_end(scene):
    mutex = held(scene.mutex(lease=10))
    before, sent = scene.row.expires_at, len(scene.proxy.log)
    mutex.renew(60, data=[1])
    assert len(scene.proxy.log) == sent + 1
    assert mutex.data == scene.row.data == [1]
    assert scene.row.expires_at > before + 45
    assert mutex.remaining > 50
    before = scene.row.expires_at
    mutex.renew(data=[2])
    assert scene.row.expires_at > before
    mutex.save_data([3])
    mutex.renew()
    assert scene.row.data == [3]


@LOSES
def test_renewal_whose_answer_is_lost_has_written_it_once(scene, lose):
    mutex = held(scene.mutex())
    scene.proxy.next(lose(), op="save_data")
    mutex.renew(data="mine")
    assert scene.applied("save_data") == [True, False]
    assert mutex.data == scene.row.data == "mine"
    assert mutex.remaining > 25


def test_renewal_that_meets_a_later_one_is_sent_again(scene):
    mutex = held(scene.mutex(lease=10))
    scene.proxy.next(after(lambda: mutex.renew(100)), op="save_data")
    mutex.renew(data="mine")
    assert scene.applied("save_data") == [False, True]
    assert scene.row.data == "mine"
    assert mutex.remaining > 90


@pytest.mark.parametrize("write", ["save_data", "renew"])
def test_late_renewal_does_not_undo_a_later_write(scene, write):
    mutex = held(scene.mutex())
    kept = kept_from(scene.proxy, deny(), op="save_data")
    with pytest.raises(UpdateError):
        mutex.renew(data=1)
    if write == "renew":
        mutex.renew(data=2)
    else:
        mutex.save_data(2)
    assert_changes_nothing(scene, kept)
    assert mutex.data == scene.row.data == 2
    mutex.release()
    assert_changes_nothing(scene, kept)


def test_renewal_of_a_lost_lock_writes_nothing(scene):
    mutex = held(scene.mutex())
    scene.forced_and_taken()
    with pytest.raises(MutexLostError) as lost:
        mutex.renew(data="late")
    assert lost.value.applied is False
    assert scene.row.data is None


def test_renewal_with_it_does_not_win_an_expired_lock_back(scene, clock):
    mutex = held(scene.mutex(lease=10, auto_renew=False))
    clock.advance(11)
    with pytest.raises(MutexLostError):
        mutex.renew(data="late")
    mutex.renew()
    mutex.renew(data="now")
    assert scene.row.data == "now"


def test_only_the_last_release_of_a_reentrant_lock_takes_it(scene):
    mutex = held(scene.mutex(reentrant=True))
    with mutex:
        mutex.renew(data="inside")
        with pytest.raises(MutexAlreadyHeldError, match="only the last release takes data"):
            mutex.release(data="inner")
        assert mutex.held
    assert mutex.held
    mutex.release(data="outer")
    assert scene.row.data == "outer"


def test_permit_and_member_write_their_own(scene):
    permit = held(Semaphore.for_key(scene.key, permits=2, model=scene.here))
    permit.renew(data="busy")
    permit.release(data="done")
    assert scene.there.get(permit.key).data == "done"
    group = held(Mutex.for_keys(["a", "b"], model=scene.here))
    group.members[0].renew(data="a")
    group.members[0].release(data="last")
    group.release()
    assert scene.there.get("a").data == "last"


def test_what_cannot_carry_it_is_refused_without_a_request(scene):
    deleter = held(Mutex.for_key("deleter", model=scene.here, delete_on_release=True))
    group = held(Mutex.for_keys(["a"], model=scene.here))
    mutex = held(scene.mutex())
    sent = len(scene.proxy.log)
    for name in ("release", "renew"):
        for lock, error in ((deleter, MutexError), (group, TypeError)):
            with pytest.raises(error, match="data"):
                getattr(lock, name)(data=1)
        for wrong, error in ((object(), TypeError), (float("nan"), ValueError)):
            with pytest.raises(error):
                getattr(mutex, name)(data=wrong)
        with pytest.raises(MutexNotHeldError):
            getattr(scene.mutex(), name)(data=1)
    with pytest.raises(ValueError, match="lease"):
        mutex.renew(0.1, data=1)
    assert mutex.held
    assert len(scene.proxy.log) == sent


def test_lock_of_a_row_carries_it_in_a_lock_table_alone(any_scene):
    lock = held(any_scene.lock())
    for name in ("renew", "release"):
        if any_scene.in_table:
            getattr(lock, name)(data=name)
            assert lock.data == name
        else:
            with pytest.raises(TypeError, match=f"{name}: data needs a lock_model"):
                getattr(lock, name)(data=name)
    assert issubclass(any_scene.here, Account)


def test_tasks_write_it_as_threads_do(scene):
    async def work():
        mutex = scene.async_mutex()
        await mutex.acquire()
        await mutex.renew(data=1)
        assert (mutex.data, scene.row.data) == (1, 1)
        with pytest.raises(TypeError):
            await mutex.release(data=object())
        assert mutex.held
        await mutex.renew(40)
        await mutex.release(data=2)
        assert (mutex.data, scene.row.data) == (2, 2)
        async with mutex:
            await mutex.release()

    asyncio.run(work())
