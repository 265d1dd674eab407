"""The one place that starts threads: what the system refuses runs later, once, and in order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from hearing import until
from refusals import Refusals, refusing

from pynamodb_mutex._runtime import threads as _threads
from pynamodb_mutex._runtime.threads import REFUSALS, Threads, Workers

NAME = "pynamodb-mutex-test"


@pytest.fixture
def refusals() -> Iterator[Refusals]:
    with refusing() as refusals:
        yield refusals


class Runs:
    """What ran, and on which thread."""

    def __init__(self, threads: Threads) -> None:
        self.threads = threads
        self.done: list[tuple[int, threading.Thread]] = []

    def put(self, number: int) -> None:
        self.threads.put(NAME, lambda: self.done.append((number, threading.current_thread())))

    def wait(self, *numbers: int) -> None:
        until(lambda: len(self.done) >= len(numbers))
        assert sorted(number for number, _ in self.done) == sorted(numbers)


@pytest.fixture
def runs() -> Runs:
    return Runs(Threads())


def test_function_runs_on_a_daemon_thread_of_its_own(runs: Runs) -> None:
    for number in (1, 2):
        runs.put(number)
    runs.threads.start()
    runs.wait(1, 2)
    assert len({thread for _, thread in runs.done}) == 2
    assert all(thread.daemon and thread.name == NAME for _, thread in runs.done)


@pytest.mark.parametrize("error", [each("refused") for each in REFUSALS])
def test_refused_threads_run_once_refusals_have_passed(
    runs: Runs, refusals: Refusals, error
) -> None:
    refusals.left, refusals.error = 3, error
    for number in (1, 2):
        runs.put(number)
        runs.threads.start()
        assert runs.threads.refusing
    runs.put(3)
    runs.threads.start()
    assert runs.done == []
    assert len(refusals.refused) == 3
    runs.threads.start()
    runs.wait(1, 2, 3)
    assert not runs.threads.refusing
    runs.threads.start()
    runs.wait(1, 2, 3)


def test_refusals_are_logged_once_until_a_thread_is_given(
    runs: Runs, refusals: Refusals, caplog
) -> None:
    for count in (1, 2):
        refusals.left = 3
        runs.put(count)
        for _ in range(4):
            runs.threads.start()
        runs.wait(*range(1, count + 1))
        assert caplog.text.count("the system refuses the thread") == count
    (record, _) = caplog.records
    assert record.levelno == logging.WARNING
    assert NAME in record.getMessage()
    assert "can't start new thread" in record.getMessage()


def test_end_of_the_interpreter_is_not_logged(runs: Runs, refusals: Refusals, caplog) -> None:
    refusals.all()
    refusals.error = RuntimeError("can't create new thread at interpreter shutdown")
    runs.put(1)
    runs.threads.start()
    assert runs.threads.refusing
    assert caplog.text == ""


def test_other_errors_are_raised(runs: Runs, refusals: Refusals) -> None:
    refusals.left, refusals.error = 1, ZeroDivisionError("a patch of somebody's")
    runs.put(1)
    with pytest.raises(ZeroDivisionError):
        runs.threads.start()
    runs.threads.start()
    runs.wait(1)


def test_function_runs_once_when_the_starting_thread_is_interrupted(
    runs: Runs, refusals: Refusals
) -> None:
    """Ctrl-C may come when the thread runs already, and before that is noted."""
    start = refusals.started

    def interrupted(thread: threading.Thread) -> None:
        refusals.started = start
        start(thread)
        raise KeyboardInterrupt

    refusals.started = interrupted
    runs.put(1)
    with pytest.raises(KeyboardInterrupt):
        runs.threads.start()
    runs.wait(1)
    # the thread for it finds nothing left to do
    runs.put(2)
    runs.threads.start()
    runs.wait(1, 2)


def test_starting_thread_is_not_waited_for_and_forgets_nothing(
    runs: Runs, refusals: Refusals
) -> None:
    start, come, go = refusals.started, threading.Event(), threading.Event()

    def slow(thread: threading.Thread) -> None:
        refusals.started = start
        come.set()
        assert go.wait(60)
        start(thread)

    refusals.started = slow
    runs.put(1)
    starting = threading.Thread(target=runs.threads.start)
    start(starting)
    assert come.wait(60)
    runs.put(2)
    runs.threads.start()
    assert runs.done == []
    go.set()
    runs.wait(1, 2)
    starting.join(60)


def test_thread_that_another_has_started_is_not_started_again(runs: Runs) -> None:
    class Overtaken:
        """Between the question whether anything waits and the lock, another thread starts it."""

        def acquire(self, blocking: bool) -> bool:
            runs.threads._starting = threading.Lock()
            runs.threads.start()
            runs.threads._starting = self
            return True

        def release(self) -> None:
            pass

    runs.put(1)
    runs.threads._starting = Overtaken()
    runs.threads.start()
    runs.wait(1)


# -- workers ---------------------------------------------------------------------------------------


class Calls:
    """Calls that end when the test says so."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.go = threading.Event()

    def __call__(self) -> None:
        self.began.append(threading.current_thread().name)
        assert self.go.wait(60)


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    yield calls
    calls.go.set()


@pytest.fixture
def workers(runs: Runs) -> Workers:
    return Workers(runs.threads, NAME, 2)


HERE = threading.current_thread().name


def test_workers_are_as_few_as_needed_and_not_more_than_allowed(
    workers: Workers, calls: Calls
) -> None:
    for _ in range(3):
        workers.post(calls)
    until(lambda: len(calls.began) == 2)
    workers.help_out()
    assert calls.began == [NAME] * 2
    calls.go.set()
    until(lambda: workers._idle == 2)
    workers.post(calls)
    until(lambda: len(calls.began) == 4)
    assert workers._running == 2


def test_calls_are_made_here_while_every_worker_is_refused(
    workers: Workers, calls: Calls, refusals: Refusals
) -> None:
    calls.go.set()
    refusals.all()
    for _ in range(3):
        workers.post(calls)
    assert calls.began == []
    workers.help_out()
    assert calls.began == [HERE] * 3
    workers.help_out()
    refusals.none()
    # those that were refused come when there is nothing left to do
    workers.post(calls)
    until(lambda: len(calls.began) == 4)
    assert calls.began[-1] == NAME


def test_calls_are_left_to_a_worker_that_runs(
    workers: Workers, calls: Calls, refusals: Refusals
) -> None:
    workers.post(calls)
    until(lambda: calls.began)
    refusals.all()
    workers.post(calls)
    workers.help_out()
    assert calls.began == [NAME]
    calls.go.set()
    until(lambda: len(calls.began) == 2)
    assert calls.began == [NAME] * 2


def test_calls_are_left_to_workers_as_soon_as_one_is_given(
    workers: Workers, calls: Calls, refusals: Refusals
) -> None:
    refusals.all()
    workers.post(refusals.none)
    workers.post(calls)
    workers.help_out()
    until(lambda: calls.began)
    assert calls.began == [NAME]


def test_call_that_fails_ends_no_worker(workers: Workers, calls: Calls, caplog) -> None:
    calls.go.set()
    for _ in range(4):
        workers.post(lambda: 1 / 0)
    workers.post(calls)
    until(lambda: calls.began)
    until(lambda: caplog.text.count("ZeroDivisionError") >= 4)
    assert workers._asked_for == workers._running


def test_workers_end_after_a_while_without_work(
    workers: Workers, calls: Calls, monkeypatch
) -> None:
    monkeypatch.setattr(_threads, "LINGER", 0.05)
    calls.go.set()
    for count in (1, 2):
        workers.post(calls)
        until(lambda n=count: len(calls.began) == n)
        until(lambda: workers._running == workers._asked_for == 0)
