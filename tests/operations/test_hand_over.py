"""The threads of a process that want the same key: hand-over from one to the next."""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.client import BaseClient
from driving import Driven, acquiring, scheduled
from hearing import until
from lock_items import Elsewhere
from stores import QueueFor, store_for

from pynamodb_mutex import LockItem, Mutex, MutexLostError, MutexNotHeldError, MutexTimeoutError
from pynamodb_mutex._operations.effects import Send, Wait
from pynamodb_mutex._operations.release import release
from pynamodb_mutex._protocol.schedule import MOST_HAND_OVERS
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.testing import FakeClock


@pytest.fixture
def queue(table):
    return QueueFor(table, "a")


@pytest.fixture
def pool():
    with ThreadPoolExecutor(9) as pool:
        yield pool


def mutex(**options):
    return Mutex.for_key("a", **{"poll": (0.02, 0.1), **options})


def submitted(pool, queue, call, *args, **options):
    """Let a thread call something that waits for the lock; return once it stands in line."""
    before = len(queue.turns)
    waiting = pool.submit(call, *args, **options)
    until(lambda: len(queue.turns) > before)
    return waiting


class Gate:
    """Stops the writes of one thread before they are sent."""

    def __init__(self, monkeypatch):
        self.thread = None
        self.reached, self.open = threading.Event(), threading.Event()
        original = BaseClient._make_api_call

        def pass_gate(client, operation, kwargs):
            if threading.get_ident() == self.thread and operation == "UpdateItem":
                self.reached.set()
                assert self.open.wait(60)
            return original(client, operation, kwargs)

        monkeypatch.setattr(BaseClient, "_make_api_call", pass_gate)

    def guards_this_thread(self):
        self.thread = threading.get_ident()

    def release(self, holder):
        """Release, as far as the gate."""
        self.guards_this_thread()
        holder.release()


@pytest.fixture
def gate(table, monkeypatch):
    return Gate(monkeypatch)


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "an object each"])
def test_eight_threads_cost_about_one_request_for_each_section(queue, pool, sent, shared):
    one = Mutex.for_key("a")
    inside, tokens = [], []

    def work():
        mutex = one if shared else Mutex.for_key("a")
        for _ in range(10):
            with mutex:
                inside.append(1)
                assert len(inside) == 1
                tokens.append(mutex.fencing_token)
                inside.pop()

    with one:
        sent.clear()
        working = [pool.submit(work) for _ in range(8)]
        until(lambda: len(queue.turns) == 8)
        one.release()
        for worker in working:
            worker.result(100)
    assert len(tokens) == 80
    assert tokens == sorted(set(tokens))
    assert len(sent) <= 1.15 * 80
    assert not one.locked()


@pytest.mark.real("embedded")
def test_threads_that_use_a_table_first_at_once_share_one_queue(table, pool):
    class Fresh(table):
        class Meta(table.Meta):
            pass

    start = threading.Barrier(9)

    def look_up():
        start.wait(60)
        return store_for(Fresh)

    with current_process().monitor:  # so that none has made it when the last one asks
        working = [pool.submit(look_up) for _ in range(8)]
        start.wait(60)
        time.sleep(0.1)
    assert {worker.result(60) for worker in working} == {store_for(Fresh)}


def test_first_come_first_served(queue, pool):
    order = []

    def wait(number):
        with Mutex.for_key("a"):
            order.append(number)

    with Mutex.for_key("a"):
        waiting = [submitted(pool, queue, wait, number) for number in range(8)]
    for waiter in waiting:
        waiter.result(60)
    assert order == list(range(8))
    assert queue.is_idle


def test_after_some_hand_overs_another_process_gets_in(table, queue):
    order = []

    def wait(model, poll):
        with mutex(model=model, poll=poll):
            order.append(model)

    with ThreadPoolExecutor(40) as pool:
        with Mutex.for_key("a"):
            waiting = [pool.submit(wait, LockItem, (0.5, 1.0)) for _ in range(36)]
            waiting.append(pool.submit(wait, Elsewhere, (0.02, 0.05)))
            others = QueueFor(Elsewhere, "a")
            until(lambda: (len(queue.turns), len(others.turns)) == (36, 1))
        for waiter in waiting:
            waiter.result(60)
    # handed over to so many, then released for real; the second time at the latest
    assert order.index(Elsewhere) in (MOST_HAND_OVERS, 2 * MOST_HAND_OVERS + 1)


@pytest.mark.real
def test_hand_over_is_a_new_acquisition(table, queue, pool, sent):
    first, second = Mutex.for_key("a", owner="one"), Mutex.for_key("a", owner="two", lease=50)
    first.acquire()
    waiting = submitted(pool, queue, second.acquire)
    sent.clear()
    first.release()
    assert waiting.result(60) is True
    assert sent == ["UpdateItem"]
    assert second.held
    assert second.token != first.token
    assert second.fencing_token == first.fencing_token + 1
    assert 40 < second.remaining <= 50
    item = table.get("a")
    assert (item.owner, item.token, item.abandoned_by) == ("two", second.token, "")
    assert not second.abandoned
    with FakeClock() as clock:  # and it is renewed
        clock.advance(20)
        until(lambda: second.remaining > 40)
        second.release()


def test_deadline_during_a_hand_over_waits_for_its_outcome(queue, gate, pool):
    holder, waiter = Mutex.for_key("a"), mutex()
    holder.acquire()
    with FakeClock() as clock:
        waiting = submitted(pool, queue, waiter.acquire, timeout=0.5)
        releasing = pool.submit(gate.release, holder)
        assert gate.reached.wait(60)
        clock.advance(0.8)
        time.sleep(0.2)  # one that gave up would be done
        assert not waiting.done()
        gate.open.set()
        assert waiting.result(60) is True
        releasing.result(60)
    assert waiter.held
    waiter.release()
    assert queue.is_idle


def test_hand_over_that_fails_leaves_the_waiter_to_itself(queue, gate, pool):
    holder, waiter, late = Mutex.for_key("a"), mutex(), mutex()
    holder.acquire()
    with FakeClock() as clock:
        in_vain = submitted(pool, queue, late.acquire, timeout=0.3)
        waiting = submitted(pool, queue, waiter.acquire)
        releasing = pool.submit(gate.release, holder)
        assert gate.reached.wait(60)
        Elsewhere.force_release("a")
        thief = Mutex.for_key("a", model=Elsewhere)
        assert thief.acquire(blocking=False)
        clock.advance(0.5)
        gate.open.set()
        assert isinstance(releasing.exception(60), MutexLostError)
        assert in_vain.result(60) is False
        thief.release()
        while not waiting.done():  # time goes on
            clock.advance(0.1)
            time.sleep(0.1)
        assert waiting.result() is True
    waiter.release()
    assert queue.is_idle
    assert not holder.locked()


def test_waiter_that_is_not_first_in_line_learns_the_holder_too(table, queue, pool):
    first = mutex()
    with Mutex.for_key("a", owner="front"):
        waiting = submitted(pool, queue, first.acquire, timeout=30)
        error = pool.submit(Mutex.for_key("a", timeout=0.1).__enter__).exception(60)
        assert isinstance(error, MutexTimeoutError)
        assert (error.owner, error.expires_at) == ("front", table.get("a").expires_at)
    assert waiting.result(60) is True
    first.release()


def test_of_two_threads_that_release_at_once_one_releases_it(table, pool, sent):
    mutex = Mutex.for_key("a", auto_renew=False)
    mutex.acquire()
    # one has found its acquisition, and the other comes first
    late = mutex._releasing(mutex._latest)
    sent.clear()
    pool.submit(mutex.release).result(60)
    with pytest.raises(MutexNotHeldError, match="released"):
        run(current_process(), late)
    assert sent == ["UpdateItem"]
    assert not mutex.lost
    assert not mutex.locked()


# -- interrupted waiters ---------------------------------------------------------------------------


@pytest.fixture
def ctrl_c():
    """Press Ctrl-C soon."""
    # whatever the shell that started us made of it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    # what a collected object's last call raises is ignored, a Ctrl-C too
    gc.collect()
    gc.disable()
    yield lambda: threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    gc.enable()
    signal.signal(signal.SIGINT, before)


def stands_in(function, thread):
    frame = sys._current_frames()[thread.ident]
    return function in [each.f_code.co_name for each, _ in traceback.walk_stack(frame)]


@pytest.mark.real("embedded")
def test_ctrl_c_while_waiting_leaves_nothing(queue, pool, ctrl_c):
    holder, waiter = Mutex.for_key("a"), mutex()
    pool.submit(holder.acquire).result(60)
    ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        waiter.acquire(timeout=30)
    assert not queue.turns
    assert not waiter.held
    pool.submit(holder.release).result(60)
    assert not waiter.locked()
    assert queue.is_idle
    assert waiter.acquire(timeout=0)


@pytest.mark.real("embedded")
@pytest.mark.parametrize("twice", [False, True])
def test_ctrl_c_during_a_hand_over_releases_what_came(queue, gate, pool, ctrl_c, twice):
    """The waiter does, or if it is interrupted in that, too, the thread that handed over."""
    holder, waiter = Mutex.for_key("a"), mutex()

    def hold_and_release():
        with holder:
            until(lambda: len(queue.turns) == 1)
            gate.guards_this_thread()

    def press():
        assert gate.reached.wait(60)
        os.kill(os.getpid(), signal.SIGINT)
        # it waits for the hand-over
        until(lambda: stands_in("sleep", threading.main_thread()))
        time.sleep(0.1)
        if twice:
            os.kill(os.getpid(), signal.SIGINT)
            until(lambda: not queue.turns)
        gate.open.set()

    working = pool.submit(hold_and_release)
    until(lambda: holder.held)
    pressing = pool.submit(press)
    with pytest.raises(KeyboardInterrupt):
        waiter.acquire(timeout=30)
    pressing.result(60)
    working.result(60)
    assert not waiter.held
    assert queue.is_idle
    assert not waiter.locked()


def test_waiter_interrupted_again_just_when_the_lock_was_handed_over_releases_it(table, queue):
    holder, waiter = Mutex.for_key("a"), mutex()
    assert holder.acquire()
    waiting = acquiring(waiter, True, 30)
    waiting.until_it_waits()
    releasing = Driven(release(holder._latest))
    assert isinstance(releasing.step(), Send)
    # it waits for the hand-over that is under way
    assert isinstance(waiting.step(error=KeyboardInterrupt()), Wait)
    while releasing.effect is not None:
        releasing.go_on()
    assert waiting.effect.wakeup.rung
    waiting.interrupt()
    assert not waiter.locked()
    assert queue.is_idle
    assert scheduled() == []


@pytest.mark.real("embedded")
def test_exception_in_a_waiting_thread_leaves_nothing(queue, pool):
    waiting = []

    def wait():
        waiting.append(threading.get_ident())
        mutex().acquire()

    with Mutex.for_key("a") as holder:
        waiter = submitted(pool, queue, wait)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(waiting[0]), ctypes.py_object(KeyboardInterrupt)
        )
        assert isinstance(waiter.exception(60), KeyboardInterrupt)
        assert not queue.turns
        assert holder.held
    assert queue.is_idle
    assert not holder.locked()
