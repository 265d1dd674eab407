"""Locks of a process to which the system refuses threads for a while: none is lost by that."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hearing import Heard, hearing, until
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from refusals import Refusals, refusing
from scene import Scene

from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError, RowLockMixin
from pynamodb_mutex._operations.renew import LONGEST_SLEEP
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import RETRY, _RenewalSleeper, start_renewals
from pynamodb_mutex._runtime.threads import LINGER
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import Engine, FakeClock


@pytest.fixture
def refusals(engine: Engine) -> Iterator[Refusals]:
    """A process without a thread of the library's, and the means to refuse it any."""
    time.sleep(2 * LINGER)  # those that fixtures needed end
    with refusing() as refusals:
        yield refusals


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    with FakeClock() as clock:
        yield clock


@pytest.fixture
def heard(scene: Scene) -> Iterator[Heard]:
    with hearing(scene.key) as heard:
        yield heard


class OnLost:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, _: Any) -> None:
        self.calls.append(threading.current_thread().name)


class Goods(RowLockMixin, Model):
    """Rows to lock."""

    class Meta:
        table_name = "set by the fixture"
        billing_mode = "PAY_PER_REQUEST"

    name = UnicodeAttribute(hash_key=True)
    left = NumberAttribute(default=0)


@pytest.fixture
def goods(table: type[LockItem], monkeypatch) -> type[Goods]:
    monkeypatch.setattr(Goods.Meta, "table_name", f"goods-{table.Meta.table_name}")
    Goods.create_table(wait=True)
    for name in NAMES:
        Goods(name).save()
    return Goods


NAMES = ["a", "b"]

Make = Callable[..., Any]


@pytest.fixture(params=["one", "several", "row", "rows"])
def make(request, table: type[LockItem], goods: type[Goods]) -> Make:
    """Make one lock, or two that are taken together."""
    if request.param == "one":
        return lambda **options: Mutex.for_key("b", **options)
    if request.param == "several":
        return lambda **options: Mutex.for_keys(NAMES, **options)
    if request.param == "row":
        return lambda **options: goods.locked("b", **options)
    return lambda **options: goods.locked_all(NAMES, **options)


@pytest.fixture
def force(table: type[LockItem], goods: type[Goods]) -> Callable[[], None]:
    """Break the claim on one of them, as another process does: nobody here knows."""

    class Elsewhere(table):
        class Meta(table.Meta):
            pass

    class GoodsElsewhere(goods):
        class Meta(goods.Meta):
            pass

    def force() -> None:
        # only one of them is held
        assert [Elsewhere.force_release("b"), GoodsElsewhere.locked("b").force_release()].count(
            True
        ) == 1

    return force


# -- refusals that pass ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_lock_is_renewed_and_watched_once_refusals_have_passed(
    make, force, refusals, clock, count: int
) -> None:
    on_lost = OnLost()
    lock = make(lease=30, on_lost=on_lost)
    refusals.left = count
    assert lock.acquire()
    clock.advance(11)
    # without asking the lock, which would try again
    assert lock._latest.remaining < 20
    until(lambda: lock.remaining > 20)
    assert len(refusals.refused) == count
    refusals.left = count
    force()
    clock.advance(11)
    until(lambda: lock.lost and on_lost.calls)
    assert lock.loss is Loss.FORCED
    assert on_lost.calls == ["pynamodb-mutex-on-lost"]


def ask(mutex: Mutex) -> None:
    assert mutex.held


def acquire_another(mutex: Mutex) -> None:
    assert Mutex.for_key(f"{mutex.key}-another", model=mutex._options.model).acquire()


@pytest.mark.parametrize(
    "call",
    [
        ask,
        repr,
        Mutex.renew,
        Mutex.ensure_held,
        lambda mutex: mutex.save_data("a"),
        lambda mutex: mutex.lost,
        lambda mutex: Mutex.for_keys([mutex]).held,
        acquire_another,
    ],
)
def test_whatever_is_asked_of_a_lock_tries_again(scene: Scene, clock, refusals, call) -> None:
    mutex = scene.mutex(lease=30)
    refusals.left = 1
    assert mutex.acquire()
    # nothing but the user's own calls can do it
    assert refusals.refused == ["pynamodb-mutex-renewer"]
    call(mutex)
    assert not current_process().threads.refusing
    clock.advance(11)
    scene.proxy.wait(1, "renew")


def test_write_of_a_locked_row_tries_again(goods: type[Goods], refusals, clock) -> None:
    refusals.all()
    lock = goods.locked("a", lease=30)
    assert lock.acquire()
    row = lock.row
    refusals.none()
    row.update([goods.left.add(1)])
    assert not current_process().threads.refusing


def test_thread_that_schedules_renewals_tries_again_by_itself(
    scene: Scene, clock, refusals
) -> None:
    on_lost = OnLost()
    mutex = scene.mutex(lease=30, on_lost=on_lost)
    assert mutex.acquire()
    refusals.all("on-lost")
    assert scene.here.force_release(scene.key)
    # nothing else is to be looked after, and yet it goes on
    for _ in range(int(3 * LINGER)):
        seen = len(refusals.refused)
        clock.advance(LONGEST_SLEEP)
        until(lambda: len(refusals.refused) > seen)  # noqa: B023 - called at once
    assert on_lost.calls == []
    refusals.none()
    until(lambda: clock.advance(RETRY) or on_lost.calls)


def test_refusals_of_threads_that_schedule_do_not_spin(scene: Scene, clock, refusals) -> None:
    mutex = scene.mutex(lease=30)
    assert mutex.acquire()
    refusals.all()
    clock.advance(11)
    scene.proxy.wait(1, "renew")
    hold = mutex._latest
    until(lambda: not hold.together.is_unanswered)
    seen = len(refusals.refused)
    time.sleep(5)
    assert len(refusals.refused) - seen <= 5 / RETRY + 1


def test_renewal_loop_does_not_wait_for_a_thread_beyond_its_time(refusals) -> None:
    process, ran = current_process(), threading.Event()
    refusals.all()
    process.threads.put("pynamodb-mutex-test", ran.set)
    process.threads.start()
    assert process.threads.refusing
    _RenewalSleeper(process).sleep(process.read_clock() - 1)
    assert process.threads.refusing
    refusals.none()
    process.threads.start()
    assert ran.wait(60)


def test_one_thread_renews_whoever_asks_for_it_last(refusals) -> None:
    process = current_process()
    process.schedule.is_wanted = True
    refusals.all()
    for _ in range(2):
        start_renewals(process)
    assert refusals.refused == ["pynamodb-mutex-renewer"]
    refusals.none()
    process.threads.start()


# -- refusals that last ----------------------------------------------------------------------------


def test_lock_is_renewed_though_every_worker_is_refused(make, refusals, clock) -> None:
    lock = make(lease=30)
    assert lock.acquire()
    refusals.all()
    for _ in range(3):
        clock.advance(11)
        until(lambda: lock._latest.remaining > 20)
    assert set(refusals.refused) == {"pynamodb-mutex-worker"}
    lock.release()


def test_loss_is_noted_though_every_thread_is_refused(make, force, refusals, clock, caplog) -> None:
    on_lost = OnLost()
    lock = make(lease=30, auto_renew=False, on_lost=on_lost)
    refusals.all()
    assert lock.acquire()
    force()
    with pytest.raises(MutexLostError):
        lock.renew()
    assert lock.lost
    assert lock.loss is Loss.FORCED
    assert "lost" in repr(lock)
    assert "lost by" in caplog.text
    assert "the system refuses" in caplog.text
    with pytest.raises(MutexLostError):
        lock.ensure_held()
    assert not lock.held
    assert on_lost.calls == []
    refusals.none()
    assert lock.lost
    until(lambda: on_lost.calls)
    with pytest.raises(MutexLostError):
        lock.release()
    assert on_lost.calls == ["pynamodb-mutex-on-lost"]


def test_lease_that_ended_is_a_loss_though_every_thread_is_refused(
    scene: Scene, clock, refusals, heard: Heard
) -> None:
    on_lost = OnLost()
    mutex = scene.mutex(lease=30, on_lost=on_lost)
    refusals.all()
    assert mutex.acquire()
    clock.advance(31)
    assert not mutex.held
    assert mutex.loss is Loss.EXPIRED
    assert heard.names == ["acquired"]
    refusals.none()
    assert mutex.loss is Loss.EXPIRED
    heard.wait("lost")
    until(lambda: on_lost.calls)
    assert heard.names == ["acquired", "lost"]


def test_signals_of_renewals_come_once_refusals_have_passed(
    scene: Scene, refusals, heard: Heard
) -> None:
    refusals.all()
    with scene.mutex(auto_renew=False) as mutex:
        for _ in range(3):
            mutex.renew()
        assert heard.names == ["acquired"]
        refusals.none()
        assert mutex.held
        heard.wait("renewed", 3)
    assert heard.names == ["acquired", *["renewed"] * 3, "released"]


# -- tasks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 5])
def test_task_acquires_and_releases_while_threads_are_refused(
    scene: Scene, refusals, count: int
) -> None:
    async def main() -> None:
        refusals.left = count
        async with AsyncMutex.for_key(fresh.key, model=fresh.here) as mutex:
            await mutex.renew()
            await mutex.ensure_held()
            assert mutex.held

    with scene.fresh() as fresh:
        asyncio.run(main())
        assert fresh.proxy.kinds() == ["GetItem", "acquire", "renew", "release"]
    assert refusals.refused


def test_tasks_that_wait_get_the_lock_though_every_thread_is_refused(
    scene: Scene, refusals
) -> None:
    got: list[int] = []

    async def work(number: int) -> None:
        async with AsyncMutex.for_key(scene.key, model=scene.here, poll=(0.01, 0.05)):
            got.append(number)

    async def main() -> None:
        await asyncio.gather(*(work(number) for number in range(5)))

    refusals.all()
    asyncio.run(main())
    assert sorted(got) == list(range(5))


def test_task_is_reported_what_failed_though_every_thread_is_refused(
    scene: Scene, refusals
) -> None:
    async def main() -> None:
        async with AsyncMutex.for_key(scene.key, model=scene.here) as mutex:
            scene.force()
            await mutex.renew()

    refusals.all()
    with pytest.raises(MutexLostError):
        asyncio.run(main())


def test_task_loses_its_lock_once_refusals_have_passed(scene: Scene, refusals) -> None:
    on_lost = OnLost()

    async def main() -> None:
        mutex = AsyncMutex.for_key(
            scene.key, model=scene.here, on_lost=on_lost, cancel_on_loss=True
        )
        async with mutex:
            refusals.left = 3
            scene.force()
            with pytest.raises(MutexLostError):
                await mutex.renew()
            while True:
                assert mutex.lost
                await asyncio.sleep(0.01)

    with pytest.raises(MutexLostError):
        asyncio.run(main())
    until(lambda: on_lost.calls)


# -- the end of the process ------------------------------------------------------------------------


def test_locks_taken_as_the_interpreter_ends_make_no_noise_and_do_not_hang(
    embedded_engine,
) -> None:
    """Python 3.12 and later refuse every thread then; before, this plays it."""
    script = """
import asyncio, atexit, sys, threading
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import use, Engine

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

async def in_a_task():
    async with AsyncMutex.for_key("b") as mutex:
        await mutex.renew()

def last():
    threading.Thread.start = refuse
    with use(Engine("embedded", sys.argv[1])):
        LockItem.create_table()
        with Mutex.for_key("a") as mutex:
            mutex.renew()
        asyncio.run(in_a_task())
        lost = Mutex.for_key("a", auto_renew=False, on_lost=print)
        lost.acquire()
        LockItem.force_release("a")
        assert lost.lost
        LockItem.delete_table()
    print("done")

atexit.register(last)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, embedded_engine.endpoint_url],
        check=False, capture_output=True, text=True, timeout=100,
        env=os.environ | {"PYNAMODB_MUTEX_TABLE": f"at-exit-{time.time_ns()}"},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    # what is lost is said there, for nobody has set up logging; nothing of threads
    assert "thread" not in done.stderr
