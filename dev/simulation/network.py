"""The network of a simulated world: a stand-in for botocore's client, faults of requests, and DynamoDB's answers.

It decides when a request arrives, whether its answer comes back, which second its Date header shows, and how old a read
may be. `table` evaluates the requests; `world` orders all of it in time.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import botocore.session
from botocore import xform_name
from botocore.client import BaseClient
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from botocore.hooks import HierarchicalEmitter

from dev.simulation.datagrams import Datagrams
from dev.simulation.table import Refusal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from pynamodb.connection import Connection

    from dev.simulation.world import Process, Thread, World

    Outcome = Callable[[], dict[str, Any]]

HOST_SKEW = 0.1
"""Largest difference between the clocks of two of DynamoDB's hosts, in seconds."""


MINUTES = 600.0
"""Seconds after which a request is applied at the latest, or once more."""

LATEST_READ = 1.0
"""Largest age of what an eventually consistent read shows, in seconds."""


@dataclass(frozen=True)
class Fault:
    """A fault of one request.

    Attributes:
        kind: One of `KINDS`.
        seconds: For how long the client waits, or after how long the request is applied late or again, depending on
            the kind; None for a random time.
    """

    kind: str
    seconds: float | None = None


KINDS = {
    "lost_request": "not delivered; the client waits for its timeout",
    "lost_answer": "applied, and the answer is lost",
    "late": "the client gives up; applied so many seconds later",
    "very_late": "the same, minutes later",
    "duplicated": "applied, and once more so many seconds later",
    "redoubled": "the same, minutes later",
    "repeated": "applied, and once more so many seconds later by a proxy, which returns the second answer",
    "failed_before": "answered by a 500, and not applied",
    "failed_after": "answered by a 500, and applied",
    "throttled": "refused for now",
    "denied": "refused by a policy",
    "nonsense": "answered by something that is not DynamoDB",
    "undated": "answered without a Date",
    "partial": "of a batch only a part is done",
    "conflict": "of a write: refused, because another transaction is under way",
    "reset": "applied or not; the connection is closed",
    "preempted": "its thread stands still between the preparation of the request and its sending",
    "slow": "the request and its answer take 2 ms to 1 s each",
    "slow_twice": "the same, and applied once more so many seconds later",
}
"""What each kind of fault does."""


class Faults:
    """The share of all requests that meets each kind of fault."""

    def __init__(self, **shares: float) -> None:
        self.shares = shares

    @classmethod
    def at_random(cls, rng: random.Random) -> Faults:
        """Return random shares for about half of the kinds, all of one level of frequency, which may be none."""
        level = rng.choice((0.0, 0.01, 0.05, 0.2))
        kinds = [kind for kind in KINDS if kind != "slow_twice"]  # it shows where it meets all
        shares = {kind: rng.random() * level for kind in kinds if rng.random() < 0.5}
        # a denied request is not retried, so many of them would end most calls early
        shares["denied"] = shares.get("denied", 0.0) / 10
        # in some worlds nothing is fast; last, because what was not met by another fault counts
        shares.pop("slow", None)
        shares["slow"] = rng.choice((0.0, 0.0, 0.0, 0.1, 1.0))
        return cls(**shares)

    def draw(self, rng: random.Random) -> Fault | None:
        """Return a random fault for one request; None for no fault."""
        at = rng.random()
        for kind, share in self.shares.items():
            at -= share
            if at < 0:
                return Fault(kind)
        return None


@dataclass
class Exchange:
    """A request on its way.

    Attributes:
        thread: The thread that sends it.
        client: The client that sends it.
        operation: DynamoDB's name of the operation, such as UpdateItem.
        kwargs: Its parameters, as botocore's client takes them.
        sent: True time at which it was sent or, if its thread is preempted, was to be sent.
        fault: The fault that it meets; None for none.
        evaluated: True time at which DynamoDB evaluated it for the answer that arrives; infinity if none does.
    """

    thread: Thread
    client: Client
    operation: str
    kwargs: dict[str, Any]
    sent: float
    fault: Fault | None = None
    evaluated: float = math.inf

    @property
    def met(self) -> str:
        """Kind of the fault that it meets; empty for none."""
        return self.fault.kind if self.fault else ""


@cache
def service_model() -> Any:
    """Return botocore's description of DynamoDB's operations."""
    return botocore.session.get_session().get_service_model("dynamodb")


class Client(BaseClient):
    """Stands in for botocore's client below a PynamoDB connection.

    Attributes:
        reads_for: Read timeout in seconds.
        hangs_for: Longest time in seconds for which a request may be under way: the connect and the read timeout.
        meta: What PynamoDB and the library read of a client's ``meta``.
    """

    def __init__(self, connection: Connection) -> None:
        self._request_signer = SimpleNamespace(_credentials=SimpleNamespace(method="simulated"))
        self.reads_for = connection._read_timeout_seconds
        self.hangs_for = connection._connect_timeout_seconds + self.reads_for
        region = connection.region or "us-east-1"
        self.meta = SimpleNamespace(
            region_name=region,
            endpoint_url=connection.host or f"http://{region}.simulated",
            events=HierarchicalEmitter(),
            service_model=service_model(),
        )

    def __getattr__(self, name: str) -> Any:
        operation = _operations().get(name)
        if operation is None:
            raise AttributeError(name)
        return lambda **kwargs: self._make_api_call(operation, kwargs)


@cache
def _operations() -> dict[str, str]:
    """Return DynamoDB's names of the operations, by the names of the client's methods."""
    return {xform_name(name): name for name in service_model().operation_names}


def make_api_call(client: Client, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Send a request; `threads.installed` puts this in place of the method of botocore's clients."""
    client.meta.events.emit(f"before-send.dynamodb.{operation}")
    return worlds[-1].network.exchange(client, operation, kwargs)


worlds: list[World] = []
"""The worlds that are installed, the current one last: see `threads.installed`.

A client looks its world up here for each request, for PynamoDB keeps the client of a model from one world to the next.
"""


class Network:
    """Carries requests to DynamoDB and answers back, or loses, delays and doubles them.

    Args:
        world: The world; the network registers itself with it.

    Attributes:
        faults: Shares of random faults.
        script: Returns the fault of a request; where it returns None, `faults` decides.
        partitioned: Processes none of whose requests arrive.
        requests: Number of requests that were sent.
        log: The requests, in the order in which they were sent.
        applying: The request that DynamoDB evaluates now; None if it evaluates none.
        datagrams: What carries the hints of processes to each other.
        proxies: Objects that carry the requests of an endpoint instead, by its URL.
        latency: Mean time in seconds of a request on its way, and of an answer.
        late_reads: Share of eventually consistent reads that may miss the latest writes.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        world.network = self
        self.latency = 0.004
        self.late_reads = 0.1
        self.proxies: dict[str, Any] = {}
        self.faults = Faults()
        self.script: Callable[[Exchange], Fault | None] = lambda _: None
        self.partitioned: set[Process] = set()
        self.requests = 0
        self.log: list[Exchange] = []
        self.applying: Exchange | None = None
        self.datagrams = Datagrams(world)
        self._written: deque[tuple[float, int]] = deque([(0.0, 0)])

    def exchange(self, client: Client, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Send a request for the running thread; return DynamoDB's answer, or raise botocore's error."""
        world, url = self._world, client.meta.endpoint_url
        proxy = self.proxies.get(url)
        if proxy is not None:
            answer: dict[str, Any] = proxy.carry(client, operation, kwargs)
            return answer
        host = urlsplit(url).hostname or ""
        if not host.endswith("simulated") or host.startswith("proxy"):
            # nobody listens there, or a proxy did and has ended
            raise EndpointConnectionError(endpoint_url=url)
        thread = world.running
        self.requests += 1
        exchange = Exchange(thread, client, operation, kwargs, world.now)
        self.log.append(exchange)
        exchange.fault = self.script(exchange) or self.faults.draw(world.rng)
        if exchange.met == "preempted":
            world.judge.failed(thread.process, kwargs)
            world.note(str(thread), f"stands still before it sends {operation}")
            world.sleep(world.rng.choice((0.05, 0.5, 3.0)) * world.rng.random())
        world.note(str(thread), f"sends {operation}")
        self._carry(exchange)
        # The thread is woken with a function, which returns the answer or raises: an error must be raised on this
        # thread, not where the world processes its arrival.
        outcome: Outcome = thread.park()
        if exchange.evaluated < math.inf:
            world.judge.answered(exchange)
        return outcome()

    def _carry(self, exchange: Exchange) -> None:  # noqa: C901 - one branch for each kind of fault
        world, rng = self._world, self._world.rng
        fault = exchange.fault
        there, back = self.takes(rng), self.takes(rng)
        if exchange.thread.process in self.partitioned:
            fault = exchange.fault = Fault("lost_request")
        # The waker is made now, not when the answer arrives: the thread may be interrupted meanwhile and wait for the
        # answer to another request, and must not take this answer for that.
        wake, apply = exchange.thread.waker(), partial(self._apply, exchange)
        if fault is None:
            world.deliver(there, partial(self._apply_and_answer, exchange, back, wake))
            return
        world.judge.failed(exchange.thread.process, exchange.kwargs)
        world.note(str(exchange.thread), f"  {fault.kind}")
        seconds = fault.seconds
        hangs = rng.choice((0.05, 0.5, exchange.client.hangs_for)) if seconds is None else seconds
        kind = fault.kind
        if kind in {"slow", "slow_twice"}:
            there, back = (0.002 * 500 ** rng.random() for _ in range(2))
        if kind == "lost_request":
            world.after(hangs, partial(wake, _timed_out(connected=False)))
        elif kind == "lost_answer":
            world.deliver(there, apply)
            # Not before the request is applied: a client that gives up earlier is what "late" is for.
            world.after(max(there + back, hangs), partial(wake, _timed_out(connected=True)))
        elif kind in {"late", "very_late"}:
            hangs, longest = exchange.client.hangs_for, 20 if kind == "late" else MINUTES
            world.after(hangs, partial(wake, _timed_out(connected=True)))
            world.deliver(hangs + rng.random() * longest if seconds is None else seconds, apply)
        elif kind in {"duplicated", "redoubled", "slow_twice"}:
            longest = MINUTES if kind == "redoubled" else 10
            world.deliver(there, partial(self._apply_and_answer, exchange, back, wake))
            world.deliver(there + (rng.random() * longest if seconds is None else seconds), apply)
        elif kind == "repeated":
            world.deliver(there, apply)
            later = rng.choice((0.05, 0.5)) if seconds is None else seconds
            world.deliver(there + later, partial(self._apply_and_answer, exchange, back, wake))
        elif (failure := _failure(exchange, rng)) is not None:
            is_applied, outcome = failure
            if is_applied:
                world.deliver(there, apply)
            world.after(there + back, partial(wake, outcome))
        else:
            # "undated" and "partial" change the answer: see `_apply_and_answer` and `_apply`
            world.deliver(there, partial(self._apply_and_answer, exchange, back, wake))

    def takes(self, rng: random.Random) -> float:
        """Return a random time in seconds for which a request, an answer or a datagram is under way."""
        if not self.latency:
            return 0.0
        return min(rng.expovariate(1 / self.latency), 2.0) + 0.001

    def _apply(self, exchange: Exchange) -> Outcome:
        """Evaluate a request; return a function that returns DynamoDB's answer, or raises its refusal."""
        world = self._world
        kwargs = {
            name: value
            for name, value in exchange.kwargs.items()
            if name != "ReturnConsumedCapacity"
        }
        as_of = None
        if world.rng.random() < self.late_reads:
            # An eventually consistent read may miss the last two writes, but shows all that are a second old. The table
            # ignores this for consistent reads and for writes.
            as_of = max(
                self._writes_before(LATEST_READ), world.tables.writes - world.rng.randrange(3)
            )
        # Each answer comes from one of two hosts of DynamoDB, which are as far apart as they may be, with a Date in whole seconds.
        skew = math.copysign(HOST_SKEW / 2, world.rng.random() - 0.5) if self.latency else 0.0
        date = _date(math.floor(world.epoch + world.now + skew))
        operation, name = exchange.operation, str(exchange.thread)
        self.applying = exchange
        try:
            if exchange.met == "partial":
                data = self._apply_in_part(operation, kwargs, as_of)
            else:
                data = world.tables.apply(operation, kwargs, as_of)
        except Refusal as refusal:
            world.note(name, f"  {operation} refused: {refusal.code}")
            return _refused(refusal, operation, date)
        finally:
            self.applying = None
        if world.tables.writes != self._written[-1][1]:
            # for `_writes_before`
            self._written.append((world.now, world.tables.writes))
        world.note(name, f"  {operation} applied")
        return partial(dict, data, ResponseMetadata=_metadata(date))

    def _writes_before(self, seconds: float) -> int:
        """Return the number of writes that had been applied so many seconds ago."""
        now, history = self._world.now, self._written
        while len(history) > 1 and history[1][0] <= now - seconds:
            history.popleft()
        return history[0][1]

    def _apply_in_part(
        self, operation: str, kwargs: dict[str, Any], as_of: int | None
    ) -> dict[str, Any]:
        """Apply a random part of a batch and leave the rest, as a busy table does; apply any other request whole."""
        rng, apply = self._world.rng, self._world.tables.apply
        if operation == "BatchGetItem":
            done, left = {}, {}
            for table, asked in kwargs["RequestItems"].items():
                keys = [(key, rng.random() < 0.5) for key in asked["Keys"]]
                for part, chosen in ((done, True), (left, False)):
                    some = [key for key, is_done in keys if is_done is chosen]
                    if some:
                        part[table] = {**asked, "Keys": some}
            data = apply(operation, {"RequestItems": done}, as_of) if done else {"Responses": {}}
            return {**data, "UnprocessedKeys": left}
        return apply(operation, kwargs, as_of)

    def _apply_and_answer(self, exchange: Exchange, back: float, wake: Callable[..., None]) -> None:
        outcome = self._apply(exchange)
        exchange.evaluated = self._world.now
        if exchange.met == "undated":
            outcome = _undated(outcome)
        self._world.deliver(back, partial(wake, outcome))


_FAILURES = {
    "failed_before": ("InternalServerError", 500),
    "failed_after": ("InternalServerError", 500),
    "throttled": ("ThrottlingException", 400),
    "denied": ("AccessDeniedException", 400),
}


_WRITES = {"DeleteItem", "PutItem", "TransactWriteItems", "UpdateItem"}


@lru_cache(maxsize=64)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)


def _metadata(date: str | None) -> dict[str, Any]:
    headers = {"x-amzn-requestid": "SIMULATED"}
    if date is not None:
        headers["date"] = date
    return {"HTTPHeaders": headers, "HTTPStatusCode": 200}


def _raiser(error: Exception) -> Outcome:
    return partial(_raise, error)


def _raise(error: Exception) -> dict[str, Any]:
    raise error


def _timed_out(*, connected: bool) -> Outcome:
    kind = ReadTimeoutError if connected else ConnectTimeoutError
    return _raiser(kind(endpoint_url="simulated"))


def _failed(code: str, status: int, operation: str) -> Outcome:
    response: Any = {
        "Error": {"Code": code, "Message": "simulated"},
        "ResponseMetadata": {**_metadata(None), "HTTPStatusCode": status},
    }
    return _raiser(ClientError(response, operation))


def _failure(exchange: Exchange, rng: random.Random) -> tuple[bool, Outcome] | None:
    """Return whether a request that fails is applied all the same, and what its client gets; None if it does not fail."""
    kind = exchange.met
    if kind in _FAILURES:
        return kind == "failed_after", _failed(*_FAILURES[kind], exchange.operation)
    if kind == "nonsense":
        # such as a portal's page, for a request that may have passed it before
        return rng.random() < 0.5, _page
    if kind == "reset":
        return rng.random() < 0.5, _raiser(ConnectionClosedError(endpoint_url="simulated"))
    if kind == "conflict" and exchange.operation in _WRITES:
        return False, _in_conflict(exchange, rng)
    return None


def _in_conflict(exchange: Exchange, rng: random.Random) -> Outcome:
    """Return the refusal of a write that meets a transaction: of one of its parts, if it is a transaction itself."""
    parts = exchange.kwargs.get("TransactItems")
    if not parts:
        return _failed("TransactionConflictException", 400, exchange.operation)
    reasons = [{"Code": "None"} for _ in parts]
    reasons[rng.randrange(len(parts))] = {"Code": "TransactionConflict", "Message": "simulated"}
    refusal = Refusal("TransactionCanceledException", "simulated", reasons=reasons)
    return _refused(refusal, exchange.operation, None)


def _refused(refusal: Refusal, operation: str, date: str | None) -> Outcome:
    response: Any = {
        "Error": {"Code": refusal.code, "Message": str(refusal)},
        "ResponseMetadata": {**_metadata(date), "HTTPStatusCode": 400},
    }
    if refusal.item is not None:
        response["Item"] = refusal.item
    if refusal.reasons is not None:
        response["CancellationReasons"] = refusal.reasons
    return _raiser(ClientError(response, operation))


def _page() -> dict[str, Any]:
    """Return the answer that botocore makes of a page of HTML with status 200: an empty one, without an error."""
    headers = {"content-type": "text/html"}
    return {"ResponseMetadata": {"HTTPHeaders": headers, "HTTPStatusCode": 200}}


def _undated(outcome: Outcome) -> Outcome:
    """Return the same outcome without a Date header."""

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
