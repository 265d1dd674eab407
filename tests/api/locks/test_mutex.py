"""Mutex as a lock and a context manager: acquire, release, with."""

from __future__ import annotations

import copy
import math
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from pynamodb.signals import pre_dynamodb_send

from pynamodb_mutex import (
    LockItem,
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
)
from pynamodb_mutex.testing import expire, held_elsewhere

QUICK = (0.02, 0.1)


@contextmanager
def requests():
    """Collect the names of the operations that are sent inside the block."""
    sent = []

    def note(_sender, operation_name, **_):
        sent.append(operation_name)

    with pre_dynamodb_send.connected_to(note):
        yield sent


# -- acquire ------------------------------------------------------------------------------------


@pytest.mark.real
def test_acquire_takes_a_free_lock_and_another_is_refused(table):
    first, second = Mutex.for_key("a"), Mutex.for_key("a")
    assert first.acquire() is True
    assert second.acquire(blocking=False) is False
    assert (first.held, second.held) == (True, False)
    first.release()
    assert second.acquire(blocking=False) is True


def test_keys_do_not_touch_each_other(table):
    with Mutex.for_key("a"), Mutex.for_key("b", timeout=0), Mutex.for_key("A", timeout=0):
        pass


@pytest.mark.real
def test_any_text_that_dynamodb_takes_is_a_key(table):
    for key in ("x", "  ", "ключ-🔒", "a/b?c#d", "k" * 2048, "é" * 1024, "$", ":x"):
        with Mutex.for_key(key) as mutex:
            assert mutex.key == key
            assert Mutex.for_key(key).locked()
        assert table.get(key).key == key


def test_acquire_gives_up_at_its_timeout_and_not_before(table):
    with held_elsewhere("a"):
        began = time.monotonic()
        assert Mutex.for_key("a", poll=QUICK).acquire(timeout=0.4) is False
        assert time.monotonic() - began == pytest.approx(0.4)


def test_the_mutex_has_a_default_timeout_that_acquire_overrides(table):
    mutex = Mutex.for_key("a", timeout=0.2, poll=QUICK)
    with held_elsewhere("a"):
        assert mutex.acquire() is False
        assert mutex.acquire(timeout=0) is False
    patient = Mutex.for_key("a", timeout=0, poll=QUICK)
    with ThreadPoolExecutor() as pool, held_elsewhere("a"):
        waiting = pool.submit(patient.acquire, timeout=-1)
        time.sleep(20)
        assert not waiting.done()
    assert waiting.result(60) is True


def test_timeout_zero_looks_once_and_takes_what_is_free(table):
    mutex = Mutex.for_key("a", timeout=0)
    with held_elsewhere("a"), requests() as sent:
        assert mutex.acquire() is False
    assert len(sent) <= 3
    assert mutex.acquire() is True


@pytest.mark.parametrize("timeout", [0, 0.0, 1, 0.5, 3600])
def test_a_timeout_without_blocking_is_refused(timeout):
    with requests() as sent, pytest.raises(ValueError, match="non-blocking"):
        Mutex.for_key("a").acquire(blocking=False, timeout=timeout)
    assert not sent


def test_minus_one_without_blocking_is_what_threading_takes(table):
    assert Mutex.for_key("a", timeout=5).acquire(False, -1) is True


@pytest.mark.parametrize("timeout", [-2, -0.5, -1.0001, math.nan, math.inf, -math.inf])
def test_a_timeout_that_is_no_duration_is_refused(timeout):
    with requests() as sent, pytest.raises(ValueError, match="timeout"):
        Mutex.for_key("a").acquire(timeout=timeout)
    assert not sent


@pytest.mark.parametrize("timeout", [True, False, "1", b"1", [1], 1j])
def test_a_timeout_that_is_no_number_is_refused(timeout):
    with requests() as sent, pytest.raises(TypeError, match="timeout"):
        Mutex.for_key("a").acquire(timeout=timeout)
    assert not sent


def test_a_thread_cannot_take_twice_what_it_holds(table):
    mutex = Mutex.for_key("a", owner="me")
    mutex.acquire()
    for call in (mutex.acquire, mutex.__enter__, lambda: mutex.acquire(blocking=False)):
        with pytest.raises(MutexAlreadyHeldError) as caught:
            call()
        assert (caught.value.key, caught.value.owner) == ("a", "me")
    assert mutex.held
    mutex.release()
    assert mutex.acquire()


# -- with ---------------------------------------------------------------------------------------


def test_with_gives_the_mutex_and_gives_it_back(table):
    mutex = Mutex.for_key("a")
    with mutex as inside:
        assert inside is mutex
        assert mutex.held
    assert not mutex.held
    assert not Mutex.for_key("a").locked()
    with mutex:
        assert mutex.held


def test_the_timeout_error_names_owner_and_end(table):
    with held_elsewhere("a", owner="job-7", lease=30) as item:
        with pytest.raises(MutexTimeoutError) as caught, Mutex.for_key("a", timeout=0):
            pass
        error = caught.value
        assert isinstance(error, TimeoutError)
        assert (error.key, error.owner, error.expires_at) == ("a", "job-7", item.expires_at)
        assert "'a'" in str(error)
        assert "job-7" in str(error)
        assert item.expires.isoformat(timespec="milliseconds") in str(error)


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_the_timeout_error_names_a_holder_of_this_process_too(table, timeout):
    with Mutex.for_key("a", owner="front") as holder, ThreadPoolExecutor() as pool:
        waiter = Mutex.for_key("a", timeout=timeout, poll=QUICK)
        error = pool.submit(waiter.__enter__).exception(60)
        assert isinstance(error, MutexTimeoutError)
        assert error.owner == "front"
        assert error.expires_at == table.get("a").expires_at
        assert holder.held


def test_an_exception_of_the_body_passes_and_the_lock_is_released(table):
    with pytest.raises(KeyError, match="mine"), Mutex.for_key("a"):
        raise KeyError("mine")
    assert not Mutex.for_key("a").locked()


@pytest.mark.real
def test_leaving_after_a_loss_raises(table):
    with pytest.raises(MutexLostError) as caught, Mutex.for_key("a"):
        LockItem.force_release("a")
    assert caught.value.loss is Loss.FORCED


def test_a_loss_never_replaces_the_exception_of_the_body(table):
    def body():
        LockItem.force_release("a")
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught, Mutex.for_key("a"):
        body()
    if hasattr(caught.value, "__notes__"):
        assert "could not be released" in caught.value.__notes__[0]


def test_a_body_may_give_the_lock_back_itself(table):
    with Mutex.for_key("a") as mutex:
        mutex.release()
        with Mutex.for_key("a", timeout=0) as other:
            assert other.held
        assert not mutex.held
    assert not mutex.lost


def test_a_body_that_gave_it_back_leaves_anothers_lock_alone(table):
    with Mutex.for_key("a") as mutex:
        mutex.release()
        other = Mutex.for_key("a", timeout=0)
        other.acquire()
    assert other.held
    assert mutex.locked()
    other.release()


def test_a_body_may_take_it_again_and_leaving_gives_that_back(table):
    with Mutex.for_key("a") as mutex:
        first = mutex.fencing_token
        mutex.release()
        mutex.acquire()
        assert mutex.fencing_token > first
    assert not mutex.held
    assert not mutex.locked()


def test_entered_on_one_thread_and_left_on_another(table):
    mutex = Mutex.for_key("a")
    mutex.__enter__()
    with ThreadPoolExecutor() as pool:
        pool.submit(mutex.__exit__, None, None, None).result(60)
    assert not mutex.held
    assert not mutex.locked()
    assert mutex.acquire(timeout=0)


# -- release ------------------------------------------------------------------------------------


def test_releasing_what_was_never_taken_is_an_error():
    with requests() as sent, pytest.raises(MutexNotHeldError, match="not held") as caught:
        Mutex.for_key("a").release()
    assert isinstance(caught.value, RuntimeError)
    assert not isinstance(caught.value, MutexLostError)
    assert not sent


def test_releasing_twice_is_an_error_and_touches_nobody(table):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    mutex.release()
    with Mutex.for_key("a") as other:
        with requests() as sent, pytest.raises(MutexNotHeldError, match="released"):
            mutex.release()
        assert not sent
        assert other.held
        assert mutex.locked()


def test_any_thread_may_release_as_with_threading_lock(table):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    with ThreadPoolExecutor() as pool:
        pool.submit(mutex.release).result(60)
    assert not mutex.held
    assert mutex.acquire(timeout=0)


# -- what it says of itself ---------------------------------------------------------------------


def test_what_it_says_costs_no_request(table):
    mutex = Mutex.for_key("a")
    with requests() as sent:
        before = (mutex.held, mutex.remaining, mutex.lost, mutex.loss, mutex.abandoned, mutex.data)
        assert before == (False, 0.0, False, None, False, None)
        assert "not held" in repr(mutex)
    assert not sent
    with mutex, requests() as sent:
        assert mutex.held
        assert 0 < mutex.remaining <= 30
        assert (mutex.lost, mutex.loss, mutex.abandoned) == (False, None, False)
        assert "held, fencing token" in repr(mutex)
        assert str(mutex.fencing_token) in repr(mutex)
        assert not sent
    with requests() as sent:
        assert (mutex.held, mutex.remaining, mutex.lost) == (False, 0.0, False)
        assert "not held" in repr(mutex)
    assert not sent


def test_repr_names_key_and_table_and_the_loss(table):
    mutex = Mutex.for_key("a")
    assert "'a'" in repr(mutex)
    assert table.Meta.table_name in repr(mutex)
    mutex.acquire()
    LockItem.force_release("a")
    assert Loss.FORCED.value in repr(mutex)


@pytest.mark.real
def test_locked_asks_the_store_by_one_consistent_read(table):
    mutex = Mutex.for_key("a")
    assert mutex.locked() is False
    with held_elsewhere("a"):
        with requests() as sent:
            assert mutex.locked() is True
        assert sent == ["GetItem"]
        expire("a")
        assert mutex.locked() is False
    with Mutex.for_key("a"):
        assert mutex.locked() is True
    assert mutex.locked() is False


def test_a_mutex_has_no_truth_value():
    with pytest.raises(TypeError, match=r"\.held"):
        bool(Mutex.for_key("a"))


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_mutex_is_not_copied_and_the_hint_says_what_to_do(copying):
    with pytest.raises(TypeError, match=r"Mutex\.for_key\('a'\)"):
        copying(Mutex.for_key("a"))


@pytest.mark.real
def test_token_and_fencing_token_before_during_and_after(table):
    mutex = Mutex.for_key("a")
    for name in ("token", "fencing_token"):
        with pytest.raises(MutexNotHeldError):
            getattr(mutex, name)
    with mutex:
        during = mutex.token, mutex.fencing_token
        item = table.get("a")
        assert during == (item.token, item.version)
    assert (mutex.token, mutex.fencing_token) == during
    with Mutex.for_key("a") as other:
        assert other.token != during[0]
        assert other.fencing_token == during[1] + 1
    assert (mutex.token, mutex.fencing_token) == during


@pytest.mark.real
def test_the_first_fencing_token_is_server_time_in_milliseconds(table):
    with Mutex.for_key("a") as mutex:
        assert mutex.fencing_token / 1000 == pytest.approx(time.time(), abs=60)


def test_the_owner_is_host_process_and_thread_or_the_callers_label(table):
    def told():
        with Mutex.for_key("a") as mutex:
            assert table.get("a").owner == mutex.owner
            return mutex.owner

    thread = threading.current_thread().name
    assert Mutex.for_key("a").owner.endswith(f":{os.getpid()}:{thread}")
    with ThreadPoolExecutor(thread_name_prefix="crew") as pool:
        assert ":crew" in pool.submit(told).result(60)
    with Mutex.for_key("a", owner="request-é") as mutex:
        assert mutex.owner == table.get("a").owner == "request-é"
    assert mutex.owner == "request-é"


@pytest.mark.real
def test_who_takes_a_dead_holders_lock_knows_it(table):
    dead = Mutex.for_key("a", owner="dead", auto_renew=False)
    dead.acquire()
    expire("a")
    heir = Mutex.for_key("a")
    assert heir.acquire(blocking=False)
    assert (heir.abandoned, heir.abandoned_by) == (True, "dead")
    assert heir.fencing_token > dead.fencing_token
    heir.release()
    assert heir.abandoned
    with Mutex.for_key("a") as after:
        assert (after.abandoned, after.abandoned_by) == (False, None)
