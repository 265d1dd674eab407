"""A world in virtual time: processes that run the shipped operations, a network that fails, DynamoDB.

Everything runs in one thread. What happens next is the first entry of one queue, ordered by time; all chance
comes from one seed. So the same seed plays the same schedule, to the letter, on any machine.

What is the library's own here: the operations, the state of what is held, the queues, the renewal loop, the
requests, and the reading of answers and failures. What stands in for the rest: `Thread` for the runner of
`_runtime`, `Process` for its monitor and clock, `Network` for botocore, `Tables` for DynamoDB.
"""

from __future__ import annotations

import heapq
import math
import random
from email.utils import formatdate
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError

from dev.simulation.table import Refusal, Tables
from pynamodb_mutex._dynamodb.store import Store
from pynamodb_mutex._operations.effects import Send, Start, Wait
from pynamodb_mutex._operations.events import CallOnLost, LockEvent
from pynamodb_mutex._operations.renew import renewal_loop
from pynamodb_mutex._operations.shared import Shared
from pynamodb_mutex._protocol.server_time import DRIFT, ServerTime
from pynamodb_mutex._runtime.notifications import RECEIVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.answers import Answer, Failure
    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.effects import Effect, Operation
    from pynamodb_mutex._operations.events import Event

EPOCH = 1_800_000_000.0
"""Server time at the beginning."""

ENDPOINT = "http://simulated"

_MOST_REQUESTS_WHEN_CLOSED = 100


class Faults:
    """How often what goes wrong, as shares of all requests.

    Attributes:
        lost_request: Not delivered; the client's connection hangs until its timeout.
        lost_answer: Applied; the answer is lost.
        late: The client gives up, and the request is applied up to 20 s later.
        duplicated: Applied, and once more up to 10 s later.
        failed_before: Answered by a 500 without being applied.
        failed_after: Answered by a 500 after being applied.
        throttled: Refused for now.
        denied: Refused by a policy.
        nonsense: Answered by something that is not DynamoDB.
        undated: Answered without a Date.
    """

    KINDS = (
        "lost_request",
        "lost_answer",
        "late",
        "duplicated",
        "failed_before",
        "failed_after",
        "throttled",
        "denied",
        "nonsense",
        "undated",
    )

    def __init__(self, **shares: float) -> None:
        self.shares = {kind: shares.get(kind, 0.0) for kind in self.KINDS}

    @classmethod
    def at_random(cls, rng: random.Random) -> Faults:
        """Return some kinds of faults, each rare or frequent; often none."""
        level = rng.choice((0.0, 0.01, 0.05, 0.2))
        shares = {kind: rng.random() * level for kind in cls.KINDS if rng.random() < 0.5}
        shares["denied"] = shares.get("denied", 0.0) / 10
        return cls(**shares)

    def draw(self, rng: random.Random) -> str | None:
        """Return what goes wrong with one request; None if nothing does."""
        at = rng.random()
        for kind, share in self.shares.items():
            at -= share
            if at < 0:
                return kind
        return None


class World:
    """Time, chance, and what happens next.

    Attributes:
        now: Seconds of true time.
        rng: The one source of chance.
        tables: DynamoDB.
        processes: Those that live.
        trace: What happened, a line each, if it is kept.
        judge: Sees what is applied, and each step.
    """

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.now = 0.0
        self.rng = random.Random(seed)
        self.tables = Tables()
        self.network = Network(self)
        self.processes: list[Process] = []
        self.judge: Any = None
        self.trace: list[str] | None = [] if keep_trace else None
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._serial = 0
        self._begun: list[Operation[Any]] = []

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Make a call at a time."""
        self._serial += 1
        heapq.heappush(self._queue, (max(when, self.now), self._serial, call))

    def after(self, seconds: float, call: Callable[[], object]) -> None:
        """Make a call after a time."""
        self.at(self.now + seconds, call)

    def run(self, until: float, *, most: int) -> bool:
        """Let things happen until a time, or until nothing is left to happen.

        Returns:
            False if more than ``most`` things happened before.
        """
        while self._queue and self._queue[0][0] <= until:
            self.now, _, call = heapq.heappop(self._queue)
            call()
            most -= 1
            if not most:
                return False
        self.now = max(self.now, until)
        return True

    def begun(self, operation: Operation[Any]) -> None:
        """Remember an operation, which `end` closes."""
        self._begun.append(operation)

    def end(self) -> None:
        """Close the operations that have not ended, such as those of processes that crashed.

        Closed, an operation tries to release what it may hold, and asks to send requests for that. Nobody
        answers; the garbage collector, which would close it else, would complain about each.
        """
        self._queue.clear()
        for operation in self._begun:
            for _ in range(_MOST_REQUESTS_WHEN_CLOSED):
                try:
                    operation.close()
                except RuntimeError:
                    # it has asked for something instead of ending
                    continue
                except Exception:
                    pass
                break

    def note(self, who: str, what: str) -> None:
        """Keep a line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now:12.6f} {who:8} {what}")


class Process(Shared):
    """A process of the library's users, with a local clock of its own.

    Attributes:
        world: In which it runs.
        name: For the trace.
        lives: Until it crashes.
        frozen_at: True time since which its clock has stood still, for the judge to excuse what it believes.
        requests_answered: How many of its requests DynamoDB has answered with a Date.
        resumed_at: Local time at which its clock ran on after it had stood still last.
    """

    def __init__(self, world: World, name: str) -> None:
        rng = world.rng
        self.world = world
        self.name = name
        self.lives = True
        self.frozen_at: float | None = None
        self._rate = 1 + rng.uniform(-0.99, 0.99) * DRIFT
        self._begin, self._local = world.now, rng.uniform(0, 1e6)
        self._paused: list[Callable[[], object]] | None = None
        self.threads: list[Thread] = []
        self.requests_answered = 0
        self.resumed_at = -math.inf
        super().__init__(self.clock, rng.uniform, self._bits, {name: {} for name in RECEIVERS})
        world.processes.append(self)

    def _bits(self) -> str:
        return f"{self.world.rng.getrandbits(96):024x}"

    def clock(self) -> float:
        """Return the local time."""
        if self.frozen_at is not None:
            return self._local
        return self._local + (self.world.now - self._begin) * self._rate

    def true_time(self, local: float) -> float:
        """Return the true time at which the local clock shows a time, unless it is stopped before."""
        return self._begin + (local - self._local) / self._rate

    def store(self, model: type[Model]) -> Store:
        """Return the store of a model, with the simulated network under it."""
        store = self.known_store(model)
        if store is None:
            store = self.stores[model] = Store(model, self.server_times, self.clock)
            connection = store.connection
            connection.is_open = True
            connection.region, connection.endpoint = "simulated", ENDPOINT
            connection.server = self.server_times.setdefault(ENDPOINT, ServerTime())
            connection.pynamodb = _Dispatch()  # type: ignore[assignment]  # all that is called of it
        return store

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
        self._paused = []
        if freeze:
            self._local = self.clock()
            self.frozen_at = self.world.now
        self.world.after(seconds, self._go_on)

    def _go_on(self) -> None:
        paused, self._paused = self._paused or [], None
        if not self.lives:
            return
        if self.frozen_at is not None:
            self._begin, self.frozen_at = self.world.now, None
            self.resumed_at = self._local
            if self.world.judge is not None:
                self.world.judge.froze(self)
        self.world.note(self.name, "goes on")
        for call in paused:
            self.world.after(self.world.rng.random() * 0.001, partial(self.when_it_runs, call))

    def when_it_runs(self, call: Callable[[], object]) -> None:
        """Make a call now or, while the process stands still, when it goes on; never if it is dead."""
        if not self.lives:
            return
        if self._paused is not None:
            self._paused.append(call)
        else:
            call()

    # -- its threads --------------------------------------------------------------------------------

    def start(
        self, name: str, operation: Operation[Any], done: Callable[[Any], object] = lambda _: None
    ) -> Thread:
        """Start a thread that runs an operation; ``done`` gets what it returns, or raises."""
        thread = Thread(self, f"{self.name}.{name}", operation, done)
        self.threads.append(thread)
        self.world.after(self.world.rng.random() * 0.001, partial(self.when_it_runs, thread.begin))
        return thread

    def deliver(self, events: list[Event]) -> None:
        """Report what happened in a step."""
        for event in events:
            if isinstance(event, LockEvent):
                self.world.note(self.name, f"  {event.name} {event.contender.key}")
            elif isinstance(event, CallOnLost):
                event.call()

    def look_after_renewals(self) -> None:
        """Start the renewal loop, if it is needed."""
        if self.schedule.is_wanted:
            self.schedule.is_wanted, self.schedule.runs = False, True
            self.start("renewer", renewal_loop(self))


class Thread:
    """Runs one operation: the simulator's runner.

    A step takes no time. Between two effects nothing else runs, as the monitor has it.
    """

    def __init__(
        self,
        process: Process,
        name: str,
        operation: Operation[Any],
        done: Callable[[Any], object],
    ) -> None:
        self.process = process
        self.world = process.world
        self.name = name
        self.operation = operation
        self.world.begun(operation)
        self._done = done
        self._wait: Wait | None = None
        self._turn = 0
        self._sent = 0.0
        self._interruption: BaseException | None = None

    def begin(self) -> None:
        """Run to the first effect."""
        self._step(self.operation.send, None)

    def interrupt(self) -> None:
        """Let Ctrl-C come at this thread's next moment."""
        self._interruption = KeyboardInterrupt()
        if self._wait is not None:
            self._turn += 1
            self._resume_wait(self._turn)

    def wake(self) -> None:
        """End its wait: called by whoever rings, inside a step of another thread."""
        turn = self._turn
        wake = partial(self.process.when_it_runs, partial(self._resume_wait, turn))
        self.world.after(self.world.rng.random() * 0.0005, wake)

    def _resume_wait(self, turn: int) -> None:
        if turn != self._turn or self._wait is None:
            return
        wakeup = self._wait.wakeup
        if wakeup is not None:
            wakeup.sleeper, wakeup.rung = None, False
        self._wait = None
        self._go(None, None)

    def answered(self, request: Request, outcome: Callable[[], dict[str, Any]]) -> None:
        """Read what came of a request, and go on."""
        dispatch: Any = request.store.connection.pynamodb
        dispatch.outcome = outcome
        reply = request.send()
        if reply.date is not None and self._sent_after_freeze():
            self.process.requests_answered += 1
        self._go(reply, request)

    def _sent_after_freeze(self) -> bool:
        """Say whether the answer is to a request that was sent after the clock had stood still last."""
        return self._sent >= self.process.resumed_at

    def _go(self, value: Answer | Failure | None, request: Request | None) -> None:
        interruption, self._interruption = self._interruption, None
        if interruption is not None:
            self._step(self.operation.throw, interruption, None)
        else:
            self._step(self.operation.send, value, request)

    def _step(
        self, resume: Callable[[Any], Effect], value: Any, request: Request | None = None
    ) -> None:
        process, world = self.process, self.world
        world.steps += 1
        now = process.now = process.clock()
        result: Any = None
        effect: Effect | None = None
        try:
            if request is not None and request.store.learn(value, self._sent, now):
                process.schedule.refresh_all()
            effect = resume(value)
        except StopIteration as done:
            result = done.value
        except BaseException as error:
            result = error
        events, process.outbox = process.outbox, []
        process.deliver(events)
        process.look_after_renewals()
        if world.judge is not None:
            world.judge.stepped(process)
        if effect is None:
            process.threads.remove(self)
            self._done(result)
            return
        self._perform(effect, now)

    def _perform(self, effect: Effect, now: float) -> None:
        if isinstance(effect, Send):
            self._sent = now
            self.world.note(self.name, f"sends {effect.request.operation}")
            self.world.network.send(self, effect.request)
        elif isinstance(effect, Wait):
            self._begin_wait(effect)
        else:
            if isinstance(effect, Start):
                self.process.start("worker", effect.operation)
            self.world.after(0.0, partial(self.process.when_it_runs, partial(self._go, None, None)))

    def _begin_wait(self, effect: Wait) -> None:
        self._wait = effect
        self._turn += 1
        wakeup = effect.wakeup
        resume = partial(self.process.when_it_runs, partial(self._timer, self._turn))
        if wakeup is not None:
            wakeup.sleeper = self
            if wakeup.rung:
                self.world.after(
                    0.0, partial(self.process.when_it_runs, partial(self._resume_wait, self._turn))
                )
                return
        if effect.until < math.inf:
            self.world.at(self.process.true_time(effect.until), resume)

    def _timer(self, turn: int) -> None:
        if turn != self._turn or self._wait is None:
            return
        # the clock may have stood still meanwhile
        if self.process.clock() < self._wait.until - 1e-9:
            again = partial(self.process.when_it_runs, partial(self._timer, turn))
            self.world.at(self.process.true_time(self._wait.until), again)
            return
        self._resume_wait(turn)


class _Dispatch:
    """Stands for PynamoDB's connection, of which the library calls but one method."""

    outcome: Callable[[], dict[str, Any]]

    def dispatch(self, operation: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer that has come, or raise what came instead."""
        return self.outcome()


class Network:
    """Carries requests to DynamoDB and answers back, or does not."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.faults = Faults()
        self.requests = 0

    def send(self, thread: Thread, request: Request) -> None:
        """Carry a request, and let the thread know what came of it."""
        world, rng = self._world, self._world.rng
        self.requests += 1
        fault = self.faults.draw(rng)
        there, back = (min(rng.expovariate(1 / 0.004), 2.0) + 0.001 for _ in range(2))
        if fault is not None:
            world.note(thread.name, f"  {fault}")
        hangs = rng.choice((0.05, 0.5, request.store.connection.hangs_for))
        apply = partial(self._apply, thread, request)
        answer = partial(self._answer, thread, request)
        if fault == "lost_request":
            world.after(hangs, partial(answer, _timed_out(connected=False)))
        elif fault in {"lost_answer", "failed_after"}:
            failure = (
                _failed("InternalServerError", 500, request.operation)
                if fault == "failed_after"
                else None
            )
            world.after(there, apply)
            lost = max(there + back, hangs) if failure is None else there + back
            world.after(lost, partial(answer, failure or _timed_out(connected=True)))
        elif fault == "late":
            world.after(hangs, partial(answer, _timed_out(connected=True)))
            world.after(hangs + rng.random() * 20, apply)
        elif fault in {"failed_before", "throttled", "denied"}:
            code, status = {
                "failed_before": ("InternalServerError", 500),
                "throttled": ("ThrottlingException", 400),
                "denied": ("AccessDeniedException", 400),
            }[fault]
            world.after(there + back, partial(answer, _failed(code, status, request.operation)))
        elif fault == "nonsense":
            if rng.random() < 0.5:
                world.after(there, apply)
            world.after(there + back, partial(answer, dict))
        else:
            if fault == "duplicated":
                world.after(there + rng.random() * 10, apply)
            world.after(there, partial(self._apply_and_answer, thread, request, back, fault))

    def _answer(
        self, thread: Thread, request: Request, outcome: Callable[[], dict[str, Any]]
    ) -> None:
        thread.process.when_it_runs(partial(thread.answered, request, outcome))

    def _apply(self, thread: Thread, request: Request) -> Callable[[], dict[str, Any]]:
        """Apply a request; return what DynamoDB answers."""
        world, judge = self._world, self._world.judge
        kwargs = {
            name: value
            for name, value in request.kwargs.items()
            if name != "ReturnConsumedCapacity"
        }
        as_of = None
        if world.rng.random() < 0.1:
            # a read that is not consistent may be late by some writes
            as_of = max(0, world.tables.writes - world.rng.randrange(3))
        date = _date(math.floor(EPOCH + world.now + world.rng.uniform(-0.05, 0.05)))
        try:
            data = world.tables.apply(request.operation, kwargs, as_of)
        except Refusal as refusal:
            world.note(thread.name, f"  {request.operation} refused: {refusal.code}")
            return _refused(refusal, request.operation, date)
        finally:
            if judge is not None:
                judge.applied(thread.process, request)
        world.note(thread.name, f"  {request.operation} applied")
        return partial(dict, data, ResponseMetadata=_metadata(date))

    def _apply_and_answer(
        self, thread: Thread, request: Request, back: float, fault: str | None
    ) -> None:
        outcome = self._apply(thread, request)
        if fault == "undated":
            outcome = _undated(outcome)
        self._world.after(back, partial(self._answer, thread, request, outcome))


@lru_cache(maxsize=64)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _metadata(date: str | None) -> dict[str, Any]:
    headers = {"x-amzn-requestid": "SIMULATED"}
    if date is not None:
        headers["date"] = date
    return {"HTTPHeaders": headers, "HTTPStatusCode": 200}


def _raiser(error: Exception) -> Callable[[], dict[str, Any]]:
    def raise_it() -> dict[str, Any]:
        raise error

    return raise_it


def _timed_out(*, connected: bool) -> Callable[[], dict[str, Any]]:
    kind = ReadTimeoutError if connected else ConnectTimeoutError
    return _raiser(kind(endpoint_url=ENDPOINT))


def _failed(code: str, status: int, operation: str) -> Callable[[], dict[str, Any]]:
    response: Any = {
        "Error": {"Code": code, "Message": "simulated"},
        "ResponseMetadata": {**_metadata(None), "HTTPStatusCode": status},
    }
    return _raiser(ClientError(response, operation))


def _refused(refusal: Refusal, operation: str, date: str) -> Callable[[], dict[str, Any]]:
    response: Any = {
        "Error": {"Code": refusal.code, "Message": str(refusal)},
        "ResponseMetadata": {**_metadata(date), "HTTPStatusCode": 400},
    }
    if refusal.item is not None:
        response["Item"] = refusal.item
    if refusal.reasons is not None:
        response["CancellationReasons"] = refusal.reasons
    return _raiser(ClientError(response, operation))


def _undated(outcome: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    def undated() -> dict[str, Any]:
        try:
            data = outcome()
        except ClientError as error:
            response: Any = error.response
            response["ResponseMetadata"]["HTTPHeaders"].pop("date", None)
            raise
        data["ResponseMetadata"]["HTTPHeaders"].pop("date", None)
        return data

    return undated
