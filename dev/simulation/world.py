"""A world in virtual time: processes whose threads call the public API, a network that fails, DynamoDB.

Everything runs in one thread of this program. What happens next is the first entry of one queue, ordered by time;
all chance comes from one seed. So the same seed plays the same schedule, to the letter, on any machine.

A simulated thread is a greenlet. It runs until it would block: until it sends a request, waits, or sleeps. Then
the world goes on with what is next. All of the library runs as it ships, runners, monitor and worker threads
included, and so does PynamoDB. What stands in for the rest: the clock and `Thread` here, the primitives of
`threading` and asyncio's loop in `threads`, botocore's client in `network`, DynamoDB in `table`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

from dev.simulation.network import EPOCH, Network
from dev.simulation.table import Tables
from pynamodb_mutex._operations.effects import Wait
from pynamodb_mutex._protocol.server_time import DRIFT
from pynamodb_mutex._runtime import process as of_runtime
from pynamodb_mutex._runtime.callers import this_caller
from pynamodb_mutex._runtime.clock import LocalClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dev.simulation.judge import Judge
    from pynamodb_mutex._dynamodb.store import Request, Store
    from pynamodb_mutex._operations.effects import Effect
    from pynamodb_mutex._operations.events import Event

MOST_STEPS = 100_000
"""A schedule has a few thousand. More within one `World.run` means that something goes round and round."""


class ViolationError(AssertionError):
    """Something happened that must not happen."""


class World:
    """Time, chance, and what happens next.

    Attributes:
        seed: Of all chance.
        now: Seconds of true time.
        rng: The one source of chance.
        tables: DynamoDB.
        network: Carries requests.
        processes: Those that live.
        process: The one that runs now.
        thread: The one that runs now; None between two.
        jitter: Seconds within which a thread begins, and goes on after its process stood still.
        main: The thread of the test itself, if that is part of the world.
        judge: Sees what is applied, and each step; None if nobody judges.
        trace: What happened, a line each, if it is kept.
    """

    def __init__(self, seed: int = 0, *, keep_trace: bool = False, epoch: float = EPOCH) -> None:
        self.seed = seed
        self.now = 0.0
        self.rng = random.Random(seed)
        self.tables = Tables(clock=lambda: self.now)
        self.network = Network(self, epoch)
        self.jitter = 0.001
        self.processes: list[Process] = []
        self.process: Process | None = None
        self.thread: Thread | None = None
        self.main: MainThread | None = None
        self.judge: Judge | None = None
        self.trace: list[str] | None = [] if keep_trace else None
        self.hub = getcurrent()
        self.has_ended = False
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = 0
        self._violation: str | None = None
        self._threads: list[Thread] = []

    # -- what happens next --------------------------------------------------------------------------

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Make a call at a time."""
        self._serial += 1
        heapq.heappush(self._queue, (max(when, self.now), self._serial, call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Make a call after a time."""
        self.at(self.now + seconds, call)

    def deliver(self, seconds: float, call: Callable[[], object]) -> None:
        """Let a request or an answer come after a time."""
        self.after(seconds, call)

    def run(self, until: float) -> None:
        """Let things happen until a time, or until nothing is left to happen.

        Raises:
            ViolationError: If there is no end to it, or what must not happen has happened.
        """
        for _ in range(MOST_STEPS):
            self.check()
            if self.is_over(until):
                self.now = max(self.now, until)
                return
            self.step()
        self.fail(f"more than {MOST_STEPS} steps: something goes round and round")
        self.check()

    def is_over(self, until: float) -> bool:
        """Say whether nothing more happens until a time."""
        return not self._queue or self._queue[0][0] > until

    def step(self) -> None:
        """Let the next thing happen.

        Raises:
            ViolationError: If what must not happen has happened.
        """
        if not self._queue:
            self.fail(f"nothing is left to happen, and {self.thread} waits")
        else:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.check()

    def fail(self, what: str) -> None:
        """Report that something happened that must not happen; the first is raised by `step`."""
        self.note("JUDGE", what)
        if self._violation is None:
            self._violation = f"seed {self.seed}, {self.now:.6f} s: {what}"

    def check(self) -> None:
        """Raise what was reported.

        Raises:
            ViolationError: If what must not happen has happened.
        """
        if self._violation is not None:
            raise ViolationError(self._violation)

    def note(self, who: str, what: str) -> None:
        """Keep a line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now:12.6f} {who:8} {what}")

    # -- for the thread that runs -------------------------------------------------------------------

    @property
    def running(self) -> Thread:
        """The thread that runs now."""
        assert self.thread is not None, "no simulated thread runs"
        return self.thread

    def sleep(self, seconds: float) -> None:
        """Let the thread that runs sleep, by the clock of its process."""
        thread = self.running
        thread.park(thread.process.clock() + seconds)

    @contextmanager
    def inside(self, process: Process) -> Iterator[None]:
        """Look at things as a process sees them: what is another's is inherited."""
        before = self.process
        self.enter(process)
        try:
            yield
        finally:
            self.enter(before)

    def enter(self, process: Process | None) -> None:
        """Let a process be the one that runs."""
        self.process = process
        if process is not None:
            of_runtime._process = process

    def switch_to(self, thread: Thread) -> None:
        """Let a thread run until it blocks."""
        before, self.thread = self.thread, thread
        process = self.process
        self.enter(thread.process)
        try:
            thread.go_on()
        finally:
            self.thread = before
            self.enter(process)

    def started(self, thread: Thread) -> None:
        """Remember a thread, which `end` ends."""
        self._threads.append(thread)

    def end(self) -> None:
        """End the threads that have not ended, such as those of processes that crashed."""
        self._queue.clear()
        self.has_ended, self.judge, self.trace = True, None, None
        for thread in self._threads:
            if thread.has_begun:
                self.switch_to(thread)


class Clock(LocalClock):
    """The clock of whichever process runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        """Return the local time of the process that runs."""
        process = self._world.process
        return 0.0 if process is None else process.clock()


class Process(of_runtime.Process):
    """A process of the library's users, with a local clock of its own.

    Args:
        world: In which it runs.
        name: For the trace.
        rate: Of its clock; at random within what the library allows by default.

    Attributes:
        lives: Until it crashes.
        frozen_at: True time since which its clock has stood still.
        refuses_threads: Whether its system refuses to start a thread.
        threads_running: Its threads that have not ended.
        clock_ran_on: Local time at which its clock stood still last.
        answered: How many dated answers to requests sent since then the library has learned server time from.
    """

    def __init__(self, world: World, name: str, rate: float | None = None) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.lives = True
        self.frozen_at: float | None = None
        self.refuses_threads = False
        self.threads_running: list[Thread] = []
        self.clock_ran_on = -math.inf
        self.answered = 0
        self._rate = 1 + rng.uniform(-0.99, 0.99) * DRIFT if rate is None else rate
        self._begin, self._local = world.now, rng.uniform(0, 1e6)
        self._paused: list[Callable[[], object]] | None = None
        super().__init__()
        self.now = self.clock()
        self.uniform = rng.uniform
        self.random_bits = self._random_bits
        world.processes.append(self)

    @property  # type: ignore[override]  # an attribute there
    def inherited(self) -> bool:
        """Whether the process that runs is another one, such as a fork: these locks do not belong to it."""
        return self._inherited or self.world.process is not self

    @inherited.setter
    def inherited(self, value: bool) -> None:
        self._inherited = value

    def _random_bits(self) -> str:
        return f"{self.world.rng.getrandbits(96):024x}"

    def clock(self) -> float:
        """Return the local time."""
        if self.frozen_at is not None:
            return self._local
        return self._local + (self.world.now - self._begin) * self._rate

    def time_of_day(self) -> float:
        """Return what its wall clock shows, which is off by up to an hour. The library never reads it."""
        chance = random.Random(f"{self.world.seed} {self.name}")
        wrong = chance.choice((-1, 1)) * 3600.0 ** chance.random()
        return self.world.network.epoch + self.world.now + wrong

    def true_time(self, local: float) -> float:
        """Return the true time at which the local clock shows a time, unless it is stopped before."""
        time = self._begin + (local - self._local) / self._rate
        while self._local + (time - self._begin) * self._rate < local:
            # Rounded down. A thread would wake before its time, wait for what is left of it, which is less than
            # floats can tell apart, and wake at the same instant again and again.
            time += 1e-9
        return time

    def step(
        self,
        resume: Callable[[Any], Effect],
        value: Any,
        request: Request | None,
        sent: float,
        events: list[Event],
    ) -> tuple[Effect, float]:
        """Run an operation to its next effect, and let the judge check the result."""
        judge = self.world.judge
        if judge is None:
            return super().step(resume, value, request, sent, events)
        caller = this_caller()
        judge.goes_on(self, caller)
        try:
            effect, now = super().step(resume, value, request, sent, events)
            if isinstance(effect, Wait) and effect.wakeup is not None:
                judge.waits(self, caller)
            return effect, now
        finally:
            # An answer to a request that was sent before the clock stood still does not tell for how long it did.
            if (
                request is not None
                and value.date is not None
                and (value.sent or sent) >= self.clock_ran_on
            ):
                self.answered += 1
            judge.stepped(self)

    def note_holder(self, store: Store, key: str, claim: Any) -> None:
        """Note that a key is held here."""
        super().note_holder(store, key, claim)
        self.world.note(str(self.world.thread), f"  HOLDS {key} by {claim.fencing_token}")
        if self.world.judge is not None:
            self.world.judge.believes(self, claim)

    def forget_holder(self, store: Store, key: str, claim: Any) -> None:
        """Note that a key is not held here any more."""
        super().forget_holder(store, key, claim)
        if self.world.judge is not None:
            self.world.judge.ended(self, store, key, claim)
        self.world.note(str(self.world.thread), f"  holds {key} no more: {claim.belief.state.name}")

    # -- what happens to it -------------------------------------------------------------------------

    def crash(self) -> None:
        """End without a word."""
        self.world.note(self.name, "CRASH")
        self.lives = False
        self.world.processes.remove(self)

    def stop(self, seconds: float, *, freeze: bool) -> None:
        """Stand still for a time: the clock runs on, or stands still too, as in a machine that is suspended."""
        if self._paused is not None:
            return
        self.world.note(self.name, f"{'FREEZE' if freeze else 'STOP'} for {seconds:.3f} s")
        if self.world.judge is not None:
            self.world.judge.disturbed(self)
        self._paused = []
        if freeze:
            self._local = self.clock()
            self.frozen_at = self.world.now
        self.world.after(seconds, self._go_on)

    def _go_on(self) -> None:
        paused, self._paused = self._paused or [], None
        if not self.lives:
            return
        if self.world.judge is not None:
            self.world.judge.disturbed(self)
        if self.frozen_at is not None:
            self._begin, self.frozen_at = self.world.now, None
            self.clock_ran_on = self._local
            if self.world.judge is not None:
                self.world.judge.froze(self)
        self.world.note(self.name, "goes on")
        for call in paused:
            self.world.after(
                self.world.rng.random() * self.world.jitter, partial(self.when_it_runs, call)
            )

    def jump(self, seconds: float) -> None:
        """Let the clock jump forward; what waits for a time that is over then goes on."""
        self._local += seconds
        for thread in [*self.threads_running, self.world.thread]:
            if thread is not None:
                thread.clock_has_jumped()

    def when_it_runs(self, call: Callable[[], object]) -> None:
        """Make a call now or, while the process stands still, when it goes on; never if it is dead."""
        if not self.lives:
            return
        if self._paused is not None:
            self._paused.append(call)
        else:
            call()

    # -- its threads --------------------------------------------------------------------------------

    def start_thread(self, name: str, call: Callable[[], object]) -> Thread:
        """Start a thread that makes a call."""
        thread = Thread(self, name, call)
        self.threads_running.append(thread)
        self.world.started(thread)
        self.world.after(self.world.rng.random() * self.world.jitter, thread.waker())
        return thread


class Thread:
    """A thread of a simulated process, as a greenlet.

    Attributes:
        process: Its process.
        name: Its name.
        ended: Whether its call has returned or raised.
        result: What it returned.
        error: What it raised.
        locals: What the library keeps for each thread.
    """

    def __init__(self, process: Process, name: str, call: Callable[[], object]) -> None:
        self.process = process
        self.name = name
        self.ended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.locals: dict[Any, Any] = {}
        self._call = call
        self._joining: list[Callable[..., None]] = []
        self._turn = 0
        self._parked, self._until = True, math.inf
        self._value: Any = None
        self._thrown: BaseException | None = None
        self._greenlet = greenlet(self._run, parent=process.world.hub)

    def __repr__(self) -> str:
        return f"{self.process.name}.{self.name.removeprefix('pynamodb-mutex-')}"

    @property
    def has_begun(self) -> bool:
        """Whether its call has begun, and not ended."""
        return bool(self._greenlet)

    def _run(self) -> None:
        try:
            self.result = self._call()
        except GreenletExit:
            pass
        except BaseException as error:
            self.error = error
        self.ended = True
        self.process.threads_running.remove(self)
        for wake in self._joining:
            wake()

    def park(self, until: float = math.inf) -> Any:
        """Block until a local time, or until it is woken; return the value that it is woken with.

        Raises:
            BaseException: What is thrown into it by `interrupt`.
        """
        world = self.process.world
        if world.has_ended:
            raise GreenletExit
        assert not self.process._is_stepping, "a step of an operation blocks"
        self._parked, self._until = True, until
        self.clock_has_jumped()
        # for asyncio all simulated threads are one: the loop of this one does not run in others
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            self._block()
        finally:
            asyncio._set_running_loop(loop)
        if world.has_ended:
            raise GreenletExit
        thrown, self._thrown = self._thrown, None
        if thrown is not None:
            raise thrown
        return self._value

    def clock_has_jumped(self) -> None:
        """Set the timer by the clock as it is now."""
        if self._parked and self._until < math.inf:
            self._set_timer(self._until, self._turn)

    def _block(self) -> None:
        self.process.world.hub.switch()

    def go_on(self) -> None:
        """Let it run until it blocks. For the world."""
        self._greenlet.switch()

    def join(self, timeout: float | None = None) -> None:
        """Let the thread that runs wait until this one has ended, or so many seconds are over."""
        waiting = self.process.world.running
        until = math.inf if timeout is None else waiting.process.clock() + timeout
        while not self.ended and waiting.process.clock() < until:
            self._joining.append(waiting.waker())
            waiting.park(until)

    def waker(self) -> Callable[..., None]:
        """Return what ends the present block, or the next one, unless something else ends it before."""
        return partial(self._wake, self._turn)

    def _wake(self, turn: int, value: Any = None) -> None:
        resume = partial(self._resume, turn, value)
        self.process.world.after(0.0, partial(self.process.when_it_runs, resume))

    def _resume(self, turn: int, value: Any) -> None:
        if turn == self._turn and self._parked:
            self._turn += 1
            self._parked, self._value = False, value
            self.process.world.switch_to(self)

    def _set_timer(self, until: float, turn: int) -> None:
        due = self.process.true_time(until)
        self.process.world.at(
            due, partial(self.process.when_it_runs, partial(self._time_is_over, until, turn))
        )

    def _time_is_over(self, until: float, turn: int) -> None:
        if turn != self._turn or not self._parked:
            return
        # the clock may have stood still meanwhile
        if self.process.clock() < until - 1e-9:
            self._set_timer(until, turn)
        else:
            self._resume(turn, None)

    def interrupt(self, error: BaseException) -> None:
        """Throw an error into it where it blocks, as a signal handler does."""
        if self.ended or not self._parked:
            return
        self.process.world.note(str(self), f"interrupted by {error!r}")
        self._thrown = error
        self._turn += 1
        self.process.world.after(0.0, self.waker())


class MainThread(Thread):
    """The thread of the test itself: while it blocks, it lets the rest of the world go on.

    Its process can be exchanged: a test acts as one process, and then as another.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process, "main", lambda: None)
        self._parked = False

    def _block(self) -> None:
        world = self.process.world
        for _ in range(MOST_STEPS):
            if not self._parked:
                return
            world.step()
        world.fail(f"more than {MOST_STEPS} steps: something goes round and round")
        world.step()

    def go_on(self) -> None:
        """Take note that it may go on: `_block` sees it."""
