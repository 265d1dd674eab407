"""The threads of a process that want the same key: hand-over from one to the next."""

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from driving import Driven, scheduled, waiting
from hearing import until
from lock_items import Elsewhere
from scene import held
from stores import QueueFor, store_for

from pynamodb_mutex import LockItem, Mutex, MutexLostError, MutexNotHeldError, MutexTimeoutError
from pynamodb_mutex._dynamodb.store import Store
from pynamodb_mutex._operations.effects import Send, Wait
from pynamodb_mutex._operations.release import release
from pynamodb_mutex._protocol.schedule import MOST_HAND_OVERS
from pynamodb_mutex._runtime import process as _process
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.testing import FakeClock


@pytest.fixture
def queue(table):
    return QueueFor(table, "a")


@pytest.fixture
def pool():
    with ThreadPoolExecutor(40) as pool:
        yield pool


def mutex(**options):
    return Mutex.for_key("a", **{"poll": (0.02, 0.1), **options})


def test_eight_threads_take_turns_by_about_one_request_for_each_section(queue, pool, sent):
    one = Mutex.for_key("a")
    inside, sections = [], []

    def work(number):
        mutex = one if number % 2 else Mutex.for_key("a")
        for _ in range(10):
            with mutex:
                inside.append(number)
                assert inside == [number]
                sections.append((mutex.fencing_token, number))
                inside.pop()

    one.acquire()
    sent.clear()
    working = [pool.submit(work, number) for number in range(8)]
    until(lambda: len(queue.turns) == 8)
    one.release()
    for worker in working:
        worker.result(100)
    # first come, first served
    assert [number for _, number in sections] == [*range(8)] * 10
    assert sections == sorted(set(sections))
    assert len(sent) <= 1.15 * 80
    assert queue.is_idle
    assert not one.locked()


def test_store_that_another_thread_has_made_meanwhile_is_everybodys(table, monkeypatch):
    """Else there would be two queues."""
    made = []

    def make(*args):
        if not made:
            made.append(None)
            made.append(store_for(Elsewhere))
        return Store(*args)

    monkeypatch.setattr(_process, "Store", make)
    assert store_for(Elsewhere) is made[1]


def test_after_some_hand_overs_another_process_gets_in(table, pool):
    order = []

    def wait(model, poll):
        with mutex(model=model, poll=poll):
            order.append(model)

    with Mutex.for_key("a"):
        waits = [pool.submit(wait, LockItem, (0.5, 1.0)) for _ in range(36)]
        waits.append(pool.submit(wait, Elsewhere, (0.02, 0.05)))
        time.sleep(1)
    for each in waits:
        each.result(60)
    # handed over to so many, then released for real; the second time at the latest
    assert order.index(Elsewhere) in (MOST_HAND_OVERS, 2 * MOST_HAND_OVERS + 1)


@pytest.mark.real
def test_hand_over_is_a_new_acquisition(table, queue, pool, sent):
    first, second = Mutex.for_key("a", owner="one"), Mutex.for_key("a", owner="two", lease=50)
    first.acquire()
    waits = pool.submit(second.acquire)
    until(lambda: queue.turns)
    sent.clear()
    first.release()
    assert waits.result(60) is True
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


def handing_over(holder):
    """Release a lock, as far as the request that hands it over, which is not sent yet."""
    releasing = Driven(release(holder._latest))
    assert isinstance(releasing.step(), Send)
    return releasing


def test_deadline_during_a_hand_over_waits_for_its_outcome(queue, clock, sent):
    holder, waiter = held(mutex()), mutex()
    waits = waiting(waiter, 0.5)
    releasing = handing_over(holder)
    sent.clear()
    clock.advance(0.8)
    assert waits.wake() is not None
    assert sent == []
    releasing.until_it_waits()
    assert waits.effect.wakeup.rung
    assert waits.wake() is None
    assert sent == ["UpdateItem"]
    assert waiter.held
    waiter.release()
    assert queue.is_idle


def test_hand_over_that_fails_leaves_the_waiter_to_itself(queue, clock):
    holder, waiter = held(mutex()), mutex()
    late, waits = waiting(mutex(), 0.3), waiting(waiter, 30)
    releasing = handing_over(holder)
    Elsewhere.force_release("a")
    thief = held(Mutex.for_key("a", model=Elsewhere))
    clock.advance(0.5)
    with pytest.raises(MutexLostError):
        releasing.until_it_waits()
    assert late.effect.wakeup.rung
    assert late.wake() is late.result is None
    thief.release()
    while waits.wake():
        clock.advance(0.1)
    assert waiter.held
    waiter.release()
    assert queue.is_idle


def test_waiter_that_is_not_first_in_line_learns_the_holder_too(table, queue, pool):
    with Mutex.for_key("a", owner="front"):
        waits = pool.submit(mutex().acquire, timeout=30)
        until(lambda: queue.turns)
        error = pool.submit(Mutex.for_key("a", timeout=0.1).__enter__).exception(60)
        assert isinstance(error, MutexTimeoutError)
        assert (error.owner, error.expires_at) == ("front", table.get("a").expires_at)
    assert waits.result(60) is True


def test_of_two_threads_that_release_at_once_one_releases_it(table, pool, sent):
    mutex = held(Mutex.for_key("a", auto_renew=False))
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


def test_waiter_that_is_interrupted_leaves_nothing(queue):
    holder, waiter = held(mutex()), mutex()
    waiting(waiter).interrupt()
    assert queue.turns == []
    assert holder.held
    assert not waiter.held
    holder.release()
    assert not waiter.locked()
    assert queue.is_idle


@pytest.mark.real("embedded")
def test_ctrl_c_while_waiting_leaves_nothing(queue, pool):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()  # what a collected object's last call raises is ignored, a Ctrl-C too
    gc.disable()
    holder, waiter = mutex(), mutex()
    pool.submit(holder.acquire).result(60)
    pool.submit(lambda: until(lambda: queue.turns) and os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            waiter.acquire(timeout=30)
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)
    assert not queue.turns
    assert not waiter.held
    holder.release()
    assert queue.is_idle
    assert waiter.acquire(timeout=0)


@pytest.mark.parametrize("again", ["never", "before it comes", "when it came"])
def test_waiter_interrupted_during_a_hand_over_releases_what_comes(queue, again):
    """Or if it is interrupted in that, too, the thread that hands over does."""
    holder, waiter = held(mutex()), mutex()
    waits = waiting(waiter)
    releasing = handing_over(holder)
    # it waits for the hand-over that is under way
    assert isinstance(waits.step(error=KeyboardInterrupt()), Wait)
    if again == "before it comes":
        waits.interrupt()
        assert queue.turns == []
    releasing.until_it_waits()
    if again == "when it came":
        assert waits.effect.wakeup.rung
        waits.interrupt()
    elif again == "never":
        with pytest.raises(KeyboardInterrupt):
            waits.wake()
    assert not waiter.held
    assert not waiter.locked()
    assert queue.is_idle
    assert scheduled() == []
