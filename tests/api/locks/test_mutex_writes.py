"""What a holder does with its lock: payload, renewal, transactions; force; options of release."""

from __future__ import annotations

import threading
import time

import pytest
from hearing import until

from pynamodb_mutex import (
    LockItem,
    Loss,
    Mutex,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
)
from pynamodb_mutex.testing import expire, held_elsewhere


class Elsewhere(LockItem):
    """The same table with another connection and another queue, as in another process."""

    class Meta(LockItem.Meta):
        pass


def taken_elsewhere(key):
    """Let somebody else take over a claim that ended; the holder before knows nothing of it."""
    expire(key)
    thief = Mutex.for_key(key, model=Elsewhere, owner="thief")
    assert thief.acquire(blocking=False)
    return thief


def end_of(key):
    return LockItem.get(key, consistent_read=True).expires_at


# -- payload ------------------------------------------------------------------------------------

PAYLOADS = [
    None,
    0,
    "",
    [],
    {},
    False,
    True,
    1.5,
    -1,
    10**30,
    "ключ 🔒",
    "null",
    "\ud800",
    {"a": [1, {"b": None}], "é": "\x00"},
]


@pytest.mark.real
def test_any_json_is_saved_and_read_back(table):
    with Mutex.for_key("a") as mutex:
        for data in PAYLOADS:
            mutex.save_data(data)
            assert mutex.data == data
            assert table.get("a").data == data
    assert mutex.data == table.get("a").data == PAYLOADS[-1]


def test_any_json_is_taken_along_at_acquisition(table):
    for data in PAYLOADS[1:]:
        with Mutex.for_key("a", data=data) as mutex:
            assert mutex.data == data
            assert table.get("a").data == data


@pytest.mark.real
def test_data_survives_a_change_of_hands(table):
    with Mutex.for_key("a", data={"page": 1}):
        pass
    second = Mutex.for_key("a")
    second.acquire()
    assert second.data == {"page": 1}
    second.save_data({"page": 2})
    LockItem.force_release("a")
    with Mutex.for_key("a") as third:
        assert third.data == {"page": 2}
    with Mutex.for_key("a", data={"page": 0}) as fourth:
        assert fourth.data == {"page": 0}


def test_data_taken_out_is_gone_for_the_next_one_too(table):
    with Mutex.for_key("a", data=[1]) as mutex:
        mutex.save_data(None)
    with Mutex.for_key("a") as after:
        assert after.data is None


def test_data_that_is_no_json_is_not_saved(table):
    with Mutex.for_key("a", data=[1]) as mutex:
        for data in (object(), {1, 2}, b"x", {"a": threading.Lock()}):
            with pytest.raises(TypeError):
                mutex.save_data(data)
        assert mutex.data == table.get("a").data == [1]
        mutex.save_data([2])
        assert mutex.held


def test_data_is_taken_as_it_is_when_the_mutex_is_made(table):
    data = [1]
    mutex = Mutex.for_key("a", data=data)
    data.append(2)
    with mutex:
        assert mutex.data == [1]


def test_save_data_needs_the_lock(table):
    mutex = Mutex.for_key("a")
    with pytest.raises(MutexNotHeldError):
        mutex.save_data(1)
    mutex.acquire()
    mutex.release()
    with pytest.raises(MutexNotHeldError):
        mutex.save_data(1)
    assert table.get("a").data is None


@pytest.mark.real
def test_save_data_after_a_loss_writes_nothing_and_says_so(table):
    mutex = Mutex.for_key("a", data="mine")
    mutex.acquire()
    thief = taken_elsewhere("a")
    assert mutex.held
    with pytest.raises(MutexLostError) as caught:
        mutex.save_data("late")
    error = caught.value
    assert (error.applied, error.loss, error.key) == (False, Loss.TAKEN, "a")
    assert error.owner == "thief"
    assert thief.data == table.get("a").data == "mine"
    assert mutex.loss is Loss.TAKEN
    assert not mutex.held


# -- renewal ------------------------------------------------------------------------------------


@pytest.mark.real
def test_renew_counts_from_now_and_never_adds_up(table):
    with Mutex.for_key("a", lease=20) as mutex:
        first = end_of("a")
        for _ in range(5):
            mutex.renew()
        assert first < end_of("a") < first + 15
        assert mutex.remaining <= 20
        assert mutex.fencing_token == table.get("a").version


def test_renew_never_shortens(table):
    with Mutex.for_key("a", lease=60) as mutex:
        left, end = mutex.remaining, end_of("a")
        mutex.renew(lease=1)
        assert end_of("a") > end
        assert mutex.remaining > left - 20


def test_renew_may_ask_for_longer(table):
    with Mutex.for_key("a", lease=10) as mutex:
        end = end_of("a")
        mutex.renew(lease=100)
        assert end_of("a") > end + 80
        assert 80 < mutex.remaining <= 100
        assert table.get("a").lease >= 99
        mutex.renew()
        assert mutex.remaining > 80


def test_renew_needs_the_lock(table):
    mutex = Mutex.for_key("a")
    with pytest.raises(MutexNotHeldError):
        mutex.renew()
    with mutex:
        pass
    with pytest.raises(MutexNotHeldError, match="released"):
        mutex.renew()


def test_renew_wins_back_a_claim_that_ended_and_that_nobody_took(table):
    mutex = Mutex.for_key("a", auto_renew=False)
    mutex.acquire()
    token = mutex.fencing_token
    time.sleep(31)
    assert (mutex.held, mutex.loss) == (False, Loss.EXPIRED)
    mutex.renew()
    assert (mutex.held, mutex.loss) == (True, None)
    assert mutex.fencing_token == token
    mutex.release()


@pytest.mark.real
def test_renew_after_another_took_it_is_a_loss(table):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    taken_elsewhere("a")
    for _ in range(2):
        with pytest.raises(MutexLostError) as caught:
            mutex.renew()
        assert (caught.value.loss, caught.value.owner) == (Loss.TAKEN, "thief")


def test_a_holder_whose_claim_was_made_to_expire_still_may_renew_it(table):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    expire("a")
    assert not mutex.locked()
    mutex.renew()
    assert mutex.locked()
    mutex.release()


# -- ensure_held --------------------------------------------------------------------------------


def test_ensure_held_passes_and_sends_nothing_while_enough_is_left(table):
    with Mutex.for_key("a", lease=30, auto_renew=False) as mutex:
        end = end_of("a")
        mutex.ensure_held()
        mutex.ensure_held(at_least=1)
        assert end_of("a") == end


def test_ensure_held_renews_if_less_is_left(table):
    with Mutex.for_key("a", auto_renew=False) as mutex:
        end = end_of("a")
        time.sleep(8)
        mutex.ensure_held(at_least=25)
        assert end_of("a") > end
        assert mutex.remaining > 25


def test_ensure_held_without_the_lock(table):
    mutex = Mutex.for_key("a")
    with pytest.raises(MutexNotHeldError, match="ensure_held"):
        mutex.ensure_held()
    mutex.acquire()
    LockItem.force_release("a")
    for at_least in (0, 20):
        with pytest.raises(MutexLostError) as caught:
            mutex.ensure_held(at_least)
        assert caught.value.loss is Loss.FORCED
    mutex.acquire()
    mutex.release()
    with pytest.raises(MutexNotHeldError, match="released"):
        mutex.ensure_held()


# -- force --------------------------------------------------------------------------------------


@pytest.mark.real
def test_force_release_breaks_what_another_holds(table):
    mutex = Mutex.for_key("a")
    assert mutex.force_release() is False
    with held_elsewhere("a") as item:
        before = item.version
        assert mutex.force_release() is True
        assert mutex.force_release() is False
        assert not mutex.locked()
        assert table.get("a").version == before + 1
        with mutex:
            assert mutex.fencing_token == before + 2
            # that was given up, not abandoned
            assert not mutex.abandoned


def test_force_release_of_ones_own_is_a_loss_known_at_once(table):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    assert mutex.force_release() is True
    assert (mutex.held, mutex.lost, mutex.loss) == (False, True, Loss.FORCED)
    with pytest.raises(MutexLostError):
        mutex.release()


def test_a_forced_holder_elsewhere_learns_it_from_its_next_request(table):
    mutex = Mutex.for_key("a")
    mutex.acquire()

    assert Elsewhere.force_release("a") is True
    assert mutex.held
    with pytest.raises(MutexLostError) as caught:
        mutex.renew()
    assert caught.value.loss is Loss.FORCED


# -- release and its options --------------------------------------------------------------------


def test_delete_on_release_leaves_no_row(table):
    mutex = Mutex.for_key("a", delete_on_release=True, data=[1])
    with mutex:
        assert table.get("a").data == [1]
    assert list(table.scan()) == []
    with mutex:
        with pytest.raises(MutexError, match="delete_on_release"):
            _ = mutex.fencing_token
        assert mutex.token == table.get("a").token


def test_delete_on_release_refuses_guarded_writes(table):
    mutex = Mutex.for_key("a", delete_on_release=True, data=[1])
    with mutex:
        for write in (lambda: mutex.save_data([2]), mutex.transaction):
            with pytest.raises(MutexError, match="late copies") as caught:
                write()
            assert "delete_on_release" in str(caught.value)
            assert (type(caught.value), caught.value.key) == (MutexError, "a")
        stored = table.get("a", consistent_read=True)
        assert (stored.data, stored.writes) == ([1], 0)
        assert mutex.held
    # who does not hold it is told that first
    for write in (lambda: mutex.save_data([2]), mutex.transaction):
        with pytest.raises(MutexNotHeldError):
            write()


@pytest.mark.real
def test_delete_on_release_never_deletes_anothers_row(table):
    mutex = Mutex.for_key("a", delete_on_release=True)
    mutex.acquire()
    taken_elsewhere("a")
    with pytest.raises(MutexLostError) as caught:
        mutex.release()
    assert caught.value.loss is Loss.TAKEN
    assert mutex.locked()


def test_max_hold_ends_the_renewal_of_a_holder_that_hangs(table):
    lost = []
    mutex = Mutex.for_key("a", max_hold=5, on_lost=lost.append)
    mutex.acquire()
    end = end_of("a")
    time.sleep(31)
    assert end_of("a") == end
    assert lost == [mutex]
    assert not mutex.held
    assert mutex.loss is Loss.EXPIRED


@pytest.mark.real
def test_on_lost_is_called_once_with_the_mutex(table):
    calls = []
    told = threading.Event()

    def on_lost(mutex):
        calls.append((mutex, threading.current_thread() is threading.main_thread()))
        told.set()

    mutex = Mutex.for_key("a", on_lost=on_lost)
    mutex.acquire()
    LockItem.force_release("a")
    assert told.wait(60)
    with pytest.raises(MutexLostError):
        mutex.release()
    assert calls == [(mutex, False)]


def test_on_lost_is_not_called_after_a_release(table):
    calls = []
    with Mutex.for_key("a", on_lost=calls.append, auto_renew=False):
        pass
    time.sleep(31)
    assert calls == []


def test_an_on_lost_that_fails_is_logged(table, caplog):
    def on_lost(mutex):
        raise LookupError("mine")

    mutex = Mutex.for_key("a", on_lost=on_lost)
    mutex.acquire()
    LockItem.force_release("a")
    until(lambda: "on_lost of 'a' failed" in caplog.text)
