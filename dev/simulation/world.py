"""A world in virtual time: processes whose threads call the library's public API, a faulty network, and DynamoDB.

Everything runs on one thread of this program. The next event is always the first entry of one queue, which is
ordered by time, and one seeded generator makes all random choices. So a seed plays exactly the same schedule on any
machine.

A simulated thread is a greenlet. It runs until it would block, that is, until it sends a request, waits or sleeps.
Then the world takes the next event from its queue. The library runs unchanged, with its runners, its monitor and its
worker threads, and so does PynamoDB. The rest is replaced: the clock and threads in this module, the primitives of
`threading` and asyncio's event loop in `threads`, botocore's client in `network`, and DynamoDB in `table`.

The world decides nothing about what the processes do or whether that is right: see `schedule` and `judge`.
"""

from __future__ import annotations

import asyncio
import heapq
import ipaddress
import itertools
import math
import random
from contextlib import contextmanager
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

from dev.simulation.table import Tables
from pynamodb_mutex._lock.operations.effects import Wait
from pynamodb_mutex._lock.protocol.server_time import DRIFT
from pynamodb_mutex._lock.runtime import process as of_runtime
from pynamodb_mutex._lock.runtime.callers import caller
from pynamodb_mutex._lock.runtime.clock import LocalClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Effect
    from pynamodb_mutex._lock.operations.events import Event

EPOCH = 1_800_000_000.0
"""Server time at the beginning of a world, in seconds since 1970; where a test does not need another."""

MOST_EVENTS = 300_000
"""Most events of one `World`: more mean an endless loop. A schedule has a few thousand; one in which many poll behind ten dead
waiters had more than 100,000."""


class ViolationError(AssertionError):
    """A promise of the library was broken in a simulated world."""


class Observer:
    """What a world reports of its processes, here to nobody: see `judge`."""

    def disturbed(self, process: Process) -> None:
        """An outage of a process begins or ends."""

    def froze(self, process: Process) -> None:
        """The clock of a process has stood still, and goes on."""

    def jumped(self, process: Process) -> None:
        """The clock of a process jumps forward."""

    def goes_on(self, process: Process, caller: int) -> None:
        """A thread or task goes on with an operation."""

    def waits(self, process: Process, caller: int) -> None:
        """A thread or task sleeps until it is woken or a time comes."""

    def watch(self, handle: Any, options: Mapping[str, Any]) -> None:
        """The running thread or task is about to use a handle, which was made with these options."""

    def stepped(self, process: Process) -> None:
        """A step of an operation has ended."""

    def answered(self, exchange: Any) -> None:
        """The answer of DynamoDB to a request has reached its thread."""

    def failed(self, process: Process, kwargs: dict[str, Any]) -> None:
        """A request with these parameters meets a fault."""

    def went_astray(self, hint: bytes) -> None:
        """A datagram meets a fault, or is forged."""

    def reached(self, process: Process, hint: bytes) -> None:
        """A datagram arrives at a process, which may not be the one that it is for."""


class World:
    """The true time, the one source of randomness, and the queue of events.

    Attributes:
        seed: Seed of `rng`.
        now: True time, in seconds since the world began.
        rng: The one random number generator.
        epoch: Server time at the beginning, in seconds since 1970.
        tables: DynamoDB.
        network: The `Network` between the processes and DynamoDB, which registers itself.
        processes: Processes that have not crashed.
        process: The process that runs now; None if none does.
        thread: The thread that runs now; None if none does.
        jitter: Longest delay, in seconds, before a new thread begins, and before a thread goes on after its process
            was stopped.
        main: The thread of the test itself, if the test takes part in the world; else None.
        judge: Observes the processes: the `Judge`, once one has registered itself.
        trace: One line for each event that was noted; None if no trace is kept.
        hub: The greenlet that runs the queue. Each simulated thread switches back to it when it blocks.
        hosts: Numbers of the hosts that processes run on; the next one is that of the next process.
        has_ended: Whether `end` was called. From then on a thread that would block ends instead.
    """

    def __init__(self, seed: int = 0, *, keep_trace: bool = False, epoch: float = EPOCH) -> None:
        self.seed = seed
        self.now = 0.0
        self.rng = random.Random(seed)
        self.tables = Tables(clock=lambda: self.now)
        self.epoch = epoch
        self.network: Any = None
        self.jitter = 0.001
        self.processes: list[Process] = []
        self.process: Process | None = None
        self.thread: Thread | None = None
        self.main: MainThread | None = None
        self.judge = Observer()
        self.trace: list[str] | None = [] if keep_trace else None
        self.hub = getcurrent()
        self.has_ended = False
        self.hosts = itertools.count(1)
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = 0
        self._violation: str | None = None
        self._threads: list[Thread] = []

    # -- the queue of events ------------------------------------------------------------------------

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Schedule a call at a true time; at once if that has passed."""
        # The serial number keeps calls of the same instant in the order in which they were scheduled. Without it the
        # heap would compare the functions.
        self._serial += 1
        heapq.heappush(self._queue, (max(when, self.now), self._serial, call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Schedule a call in so many seconds."""
        self.at(self.now + seconds, call)

    def deliver(self, seconds: float, call: Callable[[], object]) -> None:
        """Schedule the arrival of a request or an answer. A world that explores all orders overrides this."""
        self.after(seconds, call)

    def run(self, until: float) -> None:
        """Process events until a true time, or until there are no more; `now` is that time afterwards.

        Raises:
            ViolationError: If a violation was reported, or there were too many events.
        """
        self.check()
        while not self.is_over(until):
            self.step()
        self.now = max(self.now, until)

    def is_over(self, until: float) -> bool:
        """Return whether there is no event up to a true time."""
        return not self._queue or self._queue[0][0] > until

    def step(self) -> None:
        """Process the next event.

        Raises:
            ViolationError: If a violation was reported, there is no event, or there were too many.
        """
        if not self._queue:
            self.fail(f"nothing is left to happen, and {self.thread} waits")
        # Not counted by `run` or by wait: suppose a loop of the library sends a request in each round and never gets
        # on. Each wait for an answer is short.
        elif self._serial > MOST_EVENTS:
            self.fail(f"more than {MOST_EVENTS} events: something goes round and round")
        else:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.check()

    def fail(self, what: str) -> None:
        """Report a violation. The first one is raised later, by `check`."""
        # It is not raised here: this may run on a simulated thread, in the middle of the library or of a client, whose
        # handlers would catch it.
        self.note("JUDGE", what)
        if self._violation is None:
            self._violation = f"seed {self.seed}, {self.now:.6f} s: {what}"

    def check(self) -> None:
        """Raise the first violation that was reported, if there is one.

        Raises:
            ViolationError: If a violation was reported.
        """
        if self._violation is not None:
            raise ViolationError(self._violation)

    def note(self, who: str, what: str) -> None:
        """Add a line to the trace, if one is kept."""
        if self.trace is not None:
            self.trace.append(f"{self.now:12.6f} {who:8} {what}")

    # -- for the thread that runs -------------------------------------------------------------------

    @property
    def running(self) -> Thread:
        """The thread that runs now; there must be one."""
        assert self.thread is not None, "no simulated thread runs"
        return self.thread

    def sleep(self, seconds: float) -> None:
        """Suspend the running thread for so many seconds of its process's clock."""
        thread = self.running
        thread.park(thread.process.clock() + seconds)

    @contextmanager
    def inside(self, process: Process) -> Iterator[None]:
        """Run the block as a process: locks of any other process appear to be inherited from a parent by fork."""
        before = self.process
        self.enter(process)
        try:
            yield
        finally:
            self.enter(before)

    def enter(self, process: Process | None) -> None:
        """Make a process the one that runs, for the library too; None for no process."""
        self.process = process
        if process is not None:
            of_runtime._process = process

    def switch_to(self, thread: Thread) -> None:
        """Run a thread until it blocks or ends.

        To be called by the hub only. A thread that wakes another one schedules this; if it switched itself, the world
        would go on in the middle of it.
        """
        before, self.thread = self.thread, thread
        process = self.process
        self.enter(thread.process)
        try:
            thread.go_on()
        finally:
            self.thread = before
            self.enter(process)

    def started(self, thread: Thread) -> None:
        """Register a thread, so that `end` can end it."""
        self._threads.append(thread)

    def end(self) -> None:
        """End all threads that have not ended, including those of crashed processes.

        Each gets a GreenletExit where it blocks. If a thread were left to the garbage collector, its ``finally``
        blocks would run at any time, perhaps while another world plays.
        """
        self._queue.clear()
        # While the threads unwind they still release locks. That is no part of the schedule, and must not be judged.
        self.has_ended, self.judge, self.trace = True, Observer(), None
        for thread in self._threads:
            if thread.has_begun:
                self.switch_to(thread)


class Clock(LocalClock):
    """The local clock that the library reads: that of the process that runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        """Return the local time of the process that runs; 0 if none does."""
        process = self._world.process
        return 0.0 if process is None else process.clock()


class Process(of_runtime.Process):
    """A process that uses the library, with a local clock of its own.

    Args:
        world: The world in which it runs.
        name: Its name in the trace.
        rate: Rate of its clock; by default a random one within the drift that the library allows.

    Attributes:
        rate: Rate of its local clock.
        host: The address of its host, where no other process runs.
        lives: Whether it has not crashed.
        frozen_at: True time since which its clock has stood still; None if the clock runs.
        refuses_threads: Whether its operating system refuses to start threads now.
        refused_threads: Whether it has ever refused to: a call may wait for a thread until the next one is needed.
        threads_running: Its threads that have not ended.
        clock_ran_on: Local time at which its clock last went on after a freeze; minus infinity if it never froze.
        answered: Number of dated answers from which the library has learned server time and whose requests were sent
            since `clock_ran_on`.
    """

    def __init__(self, world: World, name: str, rate: float | None = None) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.host = str(ipaddress.IPv4Address("10.0.0.0") + next(world.hosts))
        self.lives = True
        self.frozen_at: float | None = None
        self.refuses_threads = self.refused_threads = False
        self.threads_running: list[Thread] = []
        self.clock_ran_on = -math.inf
        self.answered = 0
        self.rate = 1 + rng.uniform(-0.99, 0.99) * DRIFT if rate is None else rate
        self._begin, self._local = world.now, rng.uniform(0, 1e6)
        self._paused: list[Callable[[], object]] | None = None
        super().__init__()
        # The library's constructor has read the clock of the process that runs, which is another one or none, and has
        # chosen the sources of randomness of a real process.
        self.now = self.clock()
        self.uniform = rng.uniform
        self.random_bits = self._random_bits
        world.processes.append(self)

    @property  # type: ignore[override]  # an attribute there
    def inherited(self) -> bool:
        """Whether another process runs, such as a fork of this one: the locks of this process are not its own."""
        return self._inherited or self.world.process is not self

    @inherited.setter
    def inherited(self, value: bool) -> None:
        self._inherited = value

    def _random_bits(self) -> str:
        return f"{self.world.rng.getrandbits(96):024x}"

    def clock(self) -> float:
        """Return the local time, in seconds from an arbitrary start."""
        if self.frozen_at is not None:
            return self._local
        return self._local + (self.world.now - self._begin) * self.rate

    def time_of_day(self) -> float:
        """Return the time of its wall clock, which is off by up to an hour.

        The library never reads it. A broken variant does, to see that it is caught.
        """
        # A generator of its own: a variant that reads the wall clock must not change the rest of the schedule.
        chance = random.Random(f"{self.world.seed} {self.name}")
        wrong = chance.choice((-1, 1)) * 3600.0 ** chance.random()
        return self.world.epoch + self.world.now + wrong

    def true_time(self, local: float) -> float:
        """Return the true time at which the local clock will show a time, unless it is frozen before."""
        time = self._begin + (local - self._local) / self.rate
        while self._local + (time - self._begin) * self.rate < local:
            # The result was rounded down. A thread would wake before its time and wait for the rest, which is too small
            # to change a float. So it would wake at the same instant again and again.
            time += 1e-9
        return time

    def this_thread(self) -> int:
        """Return the number of the simulated thread that runs."""
        return id(self.world.running)

    def step(
        self,
        resume: Callable[[Any], Effect],
        value: Any,
        request: Request | None,
        sent: float,
        events: list[Event],
        *,
        blocks: bool = True,
    ) -> tuple[Effect, float]:
        """Run an operation to its next effect, and have the judge check the state of the process afterwards.

        See the method of the library for the arguments and the result.
        """
        judge, me = self.world.judge, caller(labelled=False).number
        judge.goes_on(self, me)
        try:
            effect, now = super().step(resume, value, request, sent, events, blocks=blocks)
            if isinstance(effect, Wait) and effect.wakeup is not None:
                judge.waits(self, me)
            return effect, now
        finally:
            # The process froze while a request was under way, and its answer was waiting when it resumed. That answer
            # proves nothing about the freeze: its Date may come from before it. Only an answer to a request that was
            # sent since ends the time in which the holder may still believe (I1). Where the client retries by itself,
            # `value.sent` is the time of the last attempt.
            if (
                request is not None
                and value.date is not None
                and (value.sent or sent) >= self.clock_ran_on
            ):
                self.answered += 1
            judge.stepped(self)

    def note_holder(self, claim: Any) -> None:
        """Note that this process now holds a key, in the trace too."""
        super().note_holder(claim)
        self.world.note(str(self.world.thread), f"  HOLDS {claim.key} by {claim.fencing_token}")

    def forget_holder(self, claim: Any) -> None:
        """Note that this process no longer holds a key, in the trace too."""
        super().forget_holder(claim)
        self.world.note(
            str(self.world.thread), f"  holds {claim.key} no more: {claim.belief.state}"
        )

    # -- outages ------------------------------------------------------------------------------------

    def crash(self) -> None:
        """End at once, without releasing anything.

        Its threads stay blocked until the world ends: `when_it_runs` makes no call for a dead process any more.
        """
        self.world.note(self.name, "CRASH")
        self.lives = False
        self.world.processes.remove(self)

    def stop(self, seconds: float, *, freeze: bool) -> None:
        """Suspend the process for so many seconds, unless it is suspended already.

        Args:
            seconds: Duration, in true time.
            freeze: Whether its local clock stands still too, as in a suspended machine; else the clock runs on.
        """
        if self._paused is not None:
            return
        self.world.note(self.name, f"{'FREEZE' if freeze else 'STOP'} for {seconds:.3f} s")
        self.world.judge.disturbed(self)
        self._paused = []
        if freeze:
            # before `frozen_at` is set: from then on `clock` returns `_local`
            self._local = self.clock()
            self.frozen_at = self.world.now
        self.world.after(seconds, self._go_on)

    def _go_on(self) -> None:
        paused, self._paused = self._paused or [], None
        if not self.lives:
            return
        self.world.judge.disturbed(self)
        if self.frozen_at is not None:
            self._begin, self.frozen_at = self.world.now, None
            self.clock_ran_on = self._local
            self.world.judge.froze(self)
        self.world.note(self.name, "goes on")
        # What came meanwhile is processed now, in any order, and through `when_it_runs` again: the process may be
        # suspended once more before a call's turn has come.
        for call in paused:
            self.world.after(
                self.world.rng.random() * self.world.jitter, partial(self.when_it_runs, call)
            )

    def jump(self, seconds: float) -> None:
        """Move the local clock forward; waits whose time has passed then end."""
        self.world.note(self.name, f"JUMPS by {seconds:.3f} s")
        self.world.judge.jumped(self)
        self._local += seconds
        # The timers that are in the queue already are due too late now. They stay there, and do nothing when they find
        # that the wait has ended.
        for thread in [*self.threads_running, self.world.thread]:
            if thread is not None:
                thread.clock_has_jumped()

    def when_it_runs(self, call: Callable[[], object]) -> None:
        """Make a call now; if the process is suspended, when it goes on; if it has crashed, never."""
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
    """A thread of a simulated process, run as a greenlet.

    Each block has a number, `_turn`. A waker belongs to one block, and does nothing once that block has ended. So the
    answer to a request that was interrupted, or a timer of an earlier wait, cannot end a later block.

    Attributes:
        process: The process of which it is a thread.
        name: Name of the thread.
        ended: Whether its call has returned or raised.
        locals: Thread-local values: those of the library, and the object that started the thread.
    """

    def __init__(self, process: Process, name: str, call: Callable[[], object]) -> None:
        self.process = process
        self.name = name
        self.ended = False
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
        """Whether its call has begun and has not ended."""
        return bool(self._greenlet)

    def _run(self) -> None:
        try:
            Context().run(self._call)  # its callers end with it
        except Exception as error:
            # unexpected (I8); and of a thread of the library, others wait for what it was to do
            self.process.world.fail(f"{self} ended by {error!r}")
        except BaseException:
            pass  # it was interrupted, or the world has ended
        self.ended = True
        self.locals.clear()
        self.process.threads_running.remove(self)
        for wake in self._joining:
            wake()

    def park(self, until: float = math.inf) -> Any:
        """Block until a local time, or until it is woken; return the value with which it is woken, None at the time.

        Raises:
            BaseException: If `interrupt` throws it into this thread.
        """
        world = self.process.world
        if world.has_ended:
            raise GreenletExit
        # The monitor would be held while the thread blocks. No other thread of the process could run an operation.
        assert not self.process._is_stepping, "a step of an operation blocks"
        self._parked, self._until = True, until
        self.clock_has_jumped()
        # asyncio knows the running loop of each thread of the interpreter, and all simulated threads are one of those.
        # Without this the loop of this thread would seem to run in the thread that goes on next.
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
        """Set the timer of the present block, if it has one, by the clock as it is now."""
        if self._parked and self._until < math.inf:
            self._set_timer(self._until, self._turn)

    def _block(self) -> None:
        self.process.world.hub.switch()

    def go_on(self) -> None:
        """Switch to the thread until it blocks. Only `World.switch_to` calls this."""
        self._greenlet.switch()

    def join(self, timeout: float | None = None) -> None:
        """Block the running thread until this one has ended, or for so many seconds of its clock; None for no limit."""
        waiting = self.process.world.running
        until = math.inf if timeout is None else waiting.process.clock() + timeout
        while not self.ended and waiting.process.clock() < until:
            self._joining.append(waiting.waker())
            waiting.park(until)

    def waker(self) -> Callable[..., None]:
        """Return a function that ends the present block or, of a thread that runs, the next one.

        It does nothing if something else has ended that block before. Its argument is the value that `park` returns.
        """
        return partial(self._wake, self._turn)

    def _wake(self, turn: int, value: Any = None) -> None:
        # through the queue: the caller is a thread in the middle of its own work, see `World.switch_to`
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
        # The clock has stood still meanwhile, so the true time of the timer was too early.
        if self.process.clock() < until - 1e-9:
            self._set_timer(until, turn)
        else:
            self._resume(turn, None)

    def interrupt(self, error: BaseException) -> None:
        """Throw an exception into the thread where it blocks, as a signal handler that raises does."""
        if self.ended or not self._parked:
            return
        self.process.world.note(str(self), f"interrupted by {error!r}")
        self._thrown = error
        # A new number for the block: the answer for which it waits, or its timer, may be due at this very instant, and
        # must not resume the thread instead.
        self._turn += 1
        self.process.world.after(0.0, self.waker())


class MainThread(Thread):
    """The thread of a test that takes part in the world: while it blocks, it processes the world's events.

    It is no greenlet of its own, but runs on the hub. Its process can be replaced: a test acts as one process, and then
    as another.
    """

    def __init__(self, process: Process) -> None:
        super().__init__(process, "main", lambda: None)
        # it runs already, unlike a new thread, which is woken for the first time
        self._parked = False

    def _block(self) -> None:
        world = self.process.world
        while self._parked:
            world.step()

    def go_on(self) -> None:
        """Do nothing: `_block` sees that the thread is no longer parked, and returns."""
