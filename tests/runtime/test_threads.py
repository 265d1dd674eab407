"""Threads: the one place that starts them, and locks of a process to which the system refuses them for a while."""

import asyncio
import io
import itertools
import sys
import threading
import time
from unittest.mock import Mock

import pytest
from kinds_of_locks import MAIN
from processes import refusing, run_script
from row_models import Account, changed
from signal_receivers import OnLost, hearing
from this_process import Process, current_process
from two_clients import held
from waits import until

from dev.faultproxy import stall, through
from pynamodb_mutex import Loss, Mutex, MutexLostError
from pynamodb_mutex._lock.operations.renew import LONGEST_SLEEP, renewal_loop
from pynamodb_mutex._lock.runtime import run_on_thread
from pynamodb_mutex._lock.runtime.run_on_thread import (
    RETRY,
    _RenewalSleeper,
    execute,
    start_renewals,
)
from pynamodb_mutex._lock.runtime.threads import LINGER, REFUSALS, Threads, Workers

NAME = "pynamodb-mutex-test"
HERE = threading.current_thread().name


class Runs:
    """What ran, and on which thread, which a system may refuse; each run ends when the test says so."""

    def __init__(self, system):
        self.system, self.threads, self.go = system, Threads(), threading.Event()
        self.done, self.names = [], []
        self.go.set()

    def put(self, number):
        self.threads.put(NAME, lambda: self(number))
        self.threads.start()

    def __call__(self, number=0):
        self.names.append(threading.current_thread().name)
        self.done.append((number, threading.current_thread()))
        assert self.go.wait(60)

    def wait(self, *numbers):
        until(lambda: len(self.done) >= len(numbers))
        assert sorted(number for number, _ in self.done) == sorted(numbers)


@pytest.fixture
def runs():
    with refusing() as system:
        runs = Runs(system)
        yield runs
        runs.go.set()


@pytest.mark.parametrize("error", [each("no stack") for each in REFUSALS])
def test_refused_threads_run_once_refusals_have_passed_and_are_logged_once(runs, caplog, error):
    runs.system.error = error
    for numbers in ([1, 2, 3], [4, 5, 6]):
        runs.system.left = 3
        for number in numbers:
            runs.put(number)
            assert runs.threads.refusing
        assert (len(runs.done), len(runs.system.refused)) == (numbers[0] - 1, numbers[-1])
        for _ in range(2):
            runs.threads.start()
            runs.wait(*range(1, numbers[-1] + 1))
            assert not runs.threads.refusing
    # each on a daemon thread of its own
    assert len({thread for _, thread in runs.done}) == 6
    assert all(thread.daemon and thread.name == NAME for _, thread in runs.done)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", f"the system refuses the thread {NAME}, to be tried again: {error!r}")
    ] * 2


@pytest.mark.parametrize(
    ("error", "has_started"), [(ZeroDivisionError, False), (KeyboardInterrupt, True)]
)
def test_function_runs_once_though_the_start_of_its_thread_raises(runs, error, has_started):
    """Ctrl-C may come when the thread runs already, and before that is noted."""
    start = runs.system.started

    def interrupted(thread):
        runs.system.started = start
        if has_started:
            start(thread)
        raise error

    runs.system.started = interrupted
    with pytest.raises(error):
        runs.put(1)
    if has_started:
        runs.wait(1)
    # the thread for it may find nothing left to do
    runs.put(2)
    runs.wait(1, 2)


def test_starting_thread_is_not_waited_for_and_forgets_nothing(runs):
    start = runs.system.started

    def slow(thread):
        runs.system.started = start
        runs.put(2)  # as another thread does meanwhile
        assert runs.done == []
        start(thread)

    runs.system.started = slow
    runs.put(1)
    runs.wait(1, 2)


def test_thread_that_another_has_started_is_not_started_again(runs):
    class Overtaken:
        """Between the question whether anything waits and the lock, another thread starts it."""

        def acquire(self, blocking):
            runs.threads._starting = threading.Lock()
            runs.threads.start()
            runs.threads._starting = self
            return True

        def release(self):
            pass

    runs.threads._starting = Overtaken()
    runs.put(1)
    runs.wait(1)


def test_thread_starts_while_the_refusal_of_another_is_being_logged(runs, caplog):
    """The output of the log may block for a minute."""
    seen = []

    def blocks(record):
        runs.put(2)  # as another thread does meanwhile
        runs.wait(1, 2)
        seen.append(record)
        return True

    runs.system.left = 1
    with caplog.filtering(blocks):
        runs.put(1)
    assert len(seen) == 1


@pytest.fixture
def workers(runs):
    return Workers(runs.threads, NAME, 2)


def test_workers_are_as_few_as_needed_and_not_more_than_allowed(workers, runs):
    runs.go.clear()
    for _ in range(3):
        workers.post(runs)
    until(lambda: len(runs.done) == 2)
    workers.help_out()
    assert runs.names == [NAME] * 2
    runs.go.set()
    until(lambda: workers._idle == 2)
    workers.post(runs)
    until(lambda: len(runs.done) == 4)
    assert workers._running == 2


def test_few_workers_that_all_hang_become_as_many_as_allowed_without_another_call(runs):
    workers = Workers(runs.threads, NAME, 9, 2)
    workers.post(runs)
    until(lambda: workers._idle == 1)
    runs.go.clear()
    for _ in range(10):
        workers.post(runs)
    assert sum(each.name == f"{NAME}-watch" for each in threading.enumerate()) <= 1
    until(lambda: len(runs.done) == 1 + 9 and not workers._is_watched)
    assert workers._asked_for == 9
    runs.go.set()
    until(lambda: len(runs.done) == 1 + 10)


def test_workers_become_no_more_than_there_are_calls_for(runs):
    workers = Workers(runs.threads, NAME, 9, 2)
    runs.go.clear()
    for _ in range(3):
        workers.post(runs)
    until(lambda: len(runs.done) == 3 and not workers._is_watched)
    assert workers._asked_for == 3
    # and again, as long as there may be more
    for _ in range(2):
        workers.post(runs)
    until(lambda: len(runs.done) == 5)


def test_calls_are_made_here_while_every_worker_is_refused(workers, runs):
    runs.system.all()
    for _ in range(3):
        workers.post(runs)
    assert runs.done == []
    assert [workers.help_out() for _ in range(4)] == [True] * 3 + [False]
    assert runs.names == [HERE] * 3
    # as soon as one is given, calls are left to it
    workers.post(runs.system.none)
    workers.post(runs)
    workers.help_out()
    until(lambda: len(runs.done) == 4)
    assert runs.names[-1] == NAME


def test_calls_are_left_to_a_worker_that_runs(workers, runs):
    runs.go.clear()
    workers.post(runs)
    until(lambda: runs.done)
    runs.system.all()
    workers.post(runs)
    workers.help_out()
    assert len(runs.done) == 1
    runs.go.set()
    until(lambda: len(runs.done) == 2)
    assert runs.names == [NAME] * 2


def test_workers_end_after_a_while_without_work_and_not_by_a_call_that_fails(
    workers, runs, monkeypatch, caplog
):
    monkeypatch.setattr("pynamodb_mutex._lock.runtime.threads.LINGER", 0.05)
    for count in (1, 2):
        for _ in range(4):
            workers.post(lambda: 1 / 0)
            workers.post(sys.exit)
            workers.post(Mock(side_effect=asyncio.CancelledError))
        workers.post(runs)
        until(lambda n=count: len(runs.done) == n and caplog.text.count("a call of") == 12 * n)
        until(lambda: workers._running == workers._asked_for == 0)


@pytest.mark.parametrize("is_closed", [False, True])
def test_workers_outlive_a_log_that_raises(workers, runs, caplog, monkeypatch, is_closed):
    def raises(record):
        raise RuntimeError("no request")

    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    if is_closed:  # as once the terminal of a process has gone
        printed.close()
    with caplog.filtering(raises):
        for _ in range(3):  # more than there are workers
            workers.post(lambda: 1 / 0)
        workers.post(runs)
        until(lambda: runs.done)
        # another worker may print still
        until(lambda: is_closed or printed.getvalue().count("RuntimeError: no request") == 3)


@pytest.fixture
def refusals(engine):
    """A process without a thread of the library's, and the means to refuse it any."""
    time.sleep(2 * LINGER)  # those that fixtures needed end
    with refusing() as refusals:
        yield refusals


of_each_request = pytest.mark.parametrize("subject", [*MAIN, "several rows"], indirect=True)


@of_each_request
@pytest.mark.parametrize("count", [1, 3])
def test_lock_is_renewed_and_watched_once_refusals_have_passed(subject, refusals, clock, count):
    on_lost = OnLost()
    refusals.left = count
    lock = subject.held(lease=30, on_lost=on_lost)
    clock.advance(11)
    # without asking the lock, which would try again
    assert lock._latest.remaining < 20
    until(lambda: lock.remaining > 20)
    assert len(refusals.refused) == count
    refusals.left = count
    subject.force()
    clock.advance(11)
    until(lambda: lock.lost and on_lost.calls)
    assert (lock.loss, on_lost.threads) == (Loss.FORCED, ["pynamodb-mutex-on-lost"])


@pytest.mark.parametrize(
    "call",
    [
        lambda mutex: mutex.held,
        lambda mutex: mutex.lost,
        lambda mutex: Mutex.for_keys([mutex]).held,
        lambda mutex: mutex.save_data("a"),
        repr,
        Mutex.renew,
        Mutex.ensure_held,
        lambda mutex: Mutex.for_key("another", model=mutex._options.model).acquire(),
    ],
)
def test_whatever_is_asked_of_a_lock_tries_again(scene, clock, refusals, call):
    refusals.left = 1
    mutex = held(scene.mutex(lease=30))
    # nothing but the user's own calls can do it
    assert refusals.refused == ["pynamodb-mutex-renewer"]
    call(mutex)
    assert not current_process().threads.refusing
    clock.advance(11)
    scene.proxy.wait(1, "renew")


def test_write_of_a_locked_row_tries_again(accounts, refusals):
    refusals.all()
    row = Account.locked("a").__enter__()
    refusals.none()
    changed(row)
    assert not current_process().threads.refusing


def test_thread_that_schedules_renewals_tries_again_by_itself(scene, refusals):
    on_lost = OnLost()
    held(scene.mutex(lease=30, on_lost=on_lost))
    refusals.all("on-lost")
    assert scene.here.force_release(scene.key)
    # nothing else is to be looked after, and yet it goes on
    for _ in range(int(3 * LINGER)):
        seen = len(refusals.refused)
        time.sleep(LONGEST_SLEEP)
        assert len(refusals.refused) > seen
    refusals.none()
    time.sleep(2 * RETRY)
    assert on_lost.threads == ["pynamodb-mutex-on-lost"]


def test_refusals_of_threads_that_schedule_do_not_spin(scene, clock, refusals):
    mutex = held(scene.mutex(lease=30))
    refusals.all()
    clock.advance(11)
    scene.proxy.wait(1, "renew")
    until(lambda: not mutex._latest.whole.is_unanswered)
    seen = len(refusals.refused)
    time.sleep(5)
    assert len(refusals.refused) - seen <= 5 / RETRY + 1


def test_renewal_loop_does_not_wait_for_a_thread_beyond_its_time(refusals):
    process, ran = current_process(), threading.Event()
    refusals.all()
    process.threads.put("pynamodb-mutex-test", ran.set)
    process.threads.start()
    assert process.threads.refusing
    _RenewalSleeper(process).sleep(process.read_clock() - 1)
    refusals.none()
    process.threads.start()
    assert ran.wait(60)


def test_one_thread_renews_whoever_asks_for_it_last(refusals):
    process, member = current_process(), object()
    process.schedule.add(member, process.read_clock() + 1e9)
    refusals.all()
    for _ in range(2):
        start_renewals(process)
    process.schedule.remove(member)
    assert refusals.refused == ["pynamodb-mutex-renewer"]
    refusals.none()
    process.threads.start()


def test_ctrl_c_at_any_line_of_the_start_of_renewals_costs_no_renewals(monkeypatch):
    run_loop = run_on_thread._run_renewals
    loops = []

    def note(process, loop):
        with process.monitor:
            loops.extend([loop] if process.schedule.loop is loop else [])

    monkeypatch.setattr(run_on_thread, "_run_renewals", note)

    def is_interrupted(at):
        lines, process = [], Process()
        process.schedule.add(object(), process.read_clock() + 1e9)

        def trace(frame, event, _):
            # the line of `with` comes twice; Python does not let a signal in before it leaves the block
            if event == "line" and frame.f_lineno not in lines:
                lines.append(frame.f_lineno)
                if len(lines) > at:
                    raise KeyboardInterrupt
            return trace

        begin = lambda frame, *_: trace if frame.f_code is start_renewals.__code__ else None  # noqa: E731 - it is short
        loops.clear()
        traced = sys.gettrace()
        try:
            sys.settrace(begin)
            start_renewals(process)
            was_interrupted = False
        except KeyboardInterrupt:
            was_interrupted = True
        finally:
            sys.settrace(traced)
        execute(process, nothing())  # as the next operation does
        until(lambda: loops and not process.threads.waiting)
        assert len(loops) == 1
        return was_interrupted

    def nothing():
        return
        yield

    assert len(list(itertools.takewhile(is_interrupted, itertools.count()))) >= 6
    monkeypatch.setattr(run_on_thread, "_run_renewals", run_loop)
    # one that was put before the interruption ends at once
    process = Process()
    run_loop(process, renewal_loop(process))
    assert process.schedule.loop is None


@of_each_request
def test_lock_is_renewed_though_every_worker_is_refused(subject, refusals, clock):
    lock = subject.held(lease=30)
    refusals.all()
    for _ in range(3):
        clock.advance(11)
        until(lambda: lock._latest.remaining > 20)
    assert set(refusals.refused) == {"pynamodb-mutex-worker"}
    lock.release()


def test_endpoint_that_hangs_costs_no_lock_at_another_one_though_every_thread_is_refused(
    scene, refusals
):
    here = through(scene.proxy, scene.there, read_timeout=2)
    hanging = [held(Mutex.for_key(str(n), model=here, lease=120)) for n in range(30)]
    lives = held(Mutex.for_key("lives", model=scene.there))
    scene.proxy.always(stall())
    refusals.all()
    time.sleep(110)
    assert lives.held
    assert all(mutex.held for mutex in hanging)
    refusals.none()
    scene.proxy.clear()


@of_each_request
@pytest.mark.parametrize("loss", [Loss.FORCED, Loss.EXPIRED])
def test_loss_is_noted_though_every_thread_is_refused(subject, clock, refusals, caplog, loss):
    on_lost = OnLost()
    refusals.all()
    with hearing(subject.scene.key) as heard:
        lock = subject.held(lease=30, auto_renew=loss is Loss.EXPIRED, on_lost=on_lost)
        if loss is Loss.EXPIRED:
            clock.advance(31)
        else:
            subject.force()
            for call in (lock.renew, lock.ensure_held):
                with pytest.raises(MutexLostError):
                    call()
        assert (lock.held, lock.lost, lock.loss) == (False, True, loss)
        assert "lost" in repr(lock)
        assert "lost by" in caplog.text or loss is Loss.EXPIRED
        assert "the system refuses" in caplog.text
        assert (on_lost.calls, set(heard.names)) == ([], {"acquired"})
        refusals.none()
        assert (lock.loss, on_lost.wait()[1]) == (loss, loss)
        assert on_lost.threads == ["pynamodb-mutex-on-lost"]
        heard.wait("lost")
        if loss is Loss.EXPIRED and len(heard.of("acquired")) == 1:
            assert heard.names == ["acquired", "lost"]


def test_signals_of_renewals_come_once_refusals_have_passed(scene, refusals, heard):
    refusals.all()
    with scene.mutex(auto_renew=False) as mutex:
        for _ in range(3):
            mutex.renew()
        assert heard.names == ["acquired"]
        refusals.none()
        assert mutex.held
        heard.wait("renewed", 3)
    assert heard.names == ["acquired", *["renewed"] * 3, "released"]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_task_acquires_and_releases_while_threads_are_refused(scene, refusals, count):
    async def main():
        refusals.left = count
        async with fresh.async_mutex() as mutex:
            await mutex.renew()
            await mutex.ensure_held()
            assert mutex.held

    with scene.fresh() as fresh:
        asyncio.run(main())
        assert fresh.proxy.kinds() == ["GetItem", "acquire", "renew", "release"]
    assert refusals.refused


def test_task_loses_its_lock_once_refusals_have_passed(scene, refusals):
    on_lost = OnLost()

    async def main():
        async with scene.async_mutex(on_lost=on_lost, cancel_on_loss=True) as mutex:
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


@pytest.mark.real("embedded")
def test_locks_taken_as_the_interpreter_ends_make_no_noise_and_do_not_hang(table):
    """Python 3.12 and later refuse every thread then; before, this plays it."""
    script = """
import asyncio, atexit, logging, threading
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.aio import AsyncMutex

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

async def in_a_task():
    async with AsyncMutex.for_key("b") as mutex:
        await mutex.renew()

def last():
    threading.Thread.start = refuse
    with Mutex.for_key("a") as mutex:
        mutex.renew()
    asyncio.run(in_a_task())
    lost = Mutex.for_key("a", auto_renew=False, on_lost=print)
    lost.acquire()
    LockItem.force_release("a")
    assert lost.lost
    print("done")

logging.basicConfig()
atexit.register(last)
"""
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert "lost by" in done.stderr
    assert "thread" not in done.stderr
