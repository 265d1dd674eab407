"""The network of a simulated world: botocore's client, what goes wrong with requests, and DynamoDB's answers."""

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
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from botocore.hooks import HierarchicalEmitter
from botocore.retries.standard import RetryContext, StandardRetryConditions

from dev.simulation.table import Refusal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from pynamodb.connection import Connection

    from dev.simulation.world import Process, Thread, World

    Outcome = Callable[[], dict[str, Any]]

EPOCH = 1_800_000_000.0
"""Server time at the beginning of a world, if it does not matter."""

HOST_SKEW = 0.1
"""Seconds by which the clocks of DynamoDB's hosts differ, at most."""


LATEST_READ = 1.0
"""Seconds by which a read that is not consistent is late, at most."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    Attributes:
        kind: One of `KINDS`.
        seconds: What the kind says.
    """

    kind: str
    seconds: float | None = None


KINDS = {
    "lost_request": "not delivered; the client waits for its timeout",
    "lost_answer": "applied, and the answer is lost",
    "late": "the client gives up; applied so many seconds later",
    "duplicated": "applied, and once more so many seconds later",
    "failed_before": "answered by a 500, and not applied",
    "failed_after": "answered by a 500, and applied",
    "throttled": "refused for now",
    "denied": "refused by a policy",
    "nonsense": "answered by something that is not DynamoDB",
    "undated": "answered without a Date",
    "partial": "of a batch only a part is done",
}
"""Kinds of faults, and what they mean."""


class Faults:
    """How often what goes wrong, as shares of all requests."""

    def __init__(self, **shares: float) -> None:
        self.shares = shares

    @classmethod
    def at_random(cls, rng: random.Random) -> Faults:
        """Return some kinds of faults, each rare or frequent; often none."""
        level = rng.choice((0.0, 0.01, 0.05, 0.2))
        shares = {kind: rng.random() * level for kind in KINDS if rng.random() < 0.5}
        shares["denied"] = shares.get("denied", 0.0) / 10
        return cls(**shares)

    def draw(self, rng: random.Random) -> Fault | None:
        """Return what goes wrong with one request; None if nothing does."""
        at = rng.random()
        for kind, share in self.shares.items():
            at -= share
            if at < 0:
                return Fault(kind)
        return None


@dataclass
class Exchange:
    """A request, and what became of it.

    Attributes:
        thread: By which it is sent.
        client: Of which connection.
        operation: DynamoDB's name.
        kwargs: As botocore's client takes them.
        sent: True time at which it was sent.
        fault: What goes wrong with it.
    """

    thread: Thread
    client: Client
    operation: str
    kwargs: dict[str, Any]
    sent: float
    fault: Fault | None = None


@cache
def service_model() -> Any:
    """Return what botocore knows of DynamoDB."""
    return botocore.session.get_session().get_service_model("dynamodb")


class Client(BaseClient):
    """Stands for botocore's client, under PynamoDB's connection."""

    def __init__(self, connection: Connection) -> None:
        self._request_signer = None
        self.reads_for = connection._read_timeout_seconds
        self.hangs_for = connection._connect_timeout_seconds + self.reads_for
        region = connection.region or "us-east-1"
        self.meta = SimpleNamespace(
            region_name=region,
            endpoint_url=connection.host or f"http://{region}.simulated",
            events=HierarchicalEmitter(),
            service_model=service_model(),
        )
        attempts = 1 + connection._max_retry_attempts_exception
        self.retry_conditions = StandardRetryConditions(max_attempts=attempts)

    def __getattr__(self, name: str) -> Any:
        operation = _operations().get(name)
        if operation is None:
            raise AttributeError(name)
        return lambda **kwargs: self._make_api_call(operation, kwargs)


@cache
def _operations() -> dict[str, str]:
    """Return DynamoDB's names of operations by those of a client's methods."""
    return {xform_name(name): name for name in service_model().operation_names}


def make_api_call(client: Client, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Stand for the method of each client, retries included: see `threads.installed`."""
    world = worlds[-1]
    attempt = 1
    while True:
        client.meta.events.emit(f"before-send.dynamodb.{operation}")
        try:
            return world.network.exchange(client, operation, kwargs)
        except (BotoCoreError, ClientError) as error:
            if not _is_to_be_retried(client, operation, attempt, error):
                raise
        world.sleep(world.rng.random() * 2.0 ** (attempt - 1))
        attempt += 1


def _is_to_be_retried(client: Client, operation: str, attempt: int, error: Exception) -> bool:
    """Emit botocore's event for an attempt that failed, and decide as botocore does."""
    model = service_model().operation_model(operation)
    caught: Exception | None = error
    http = parsed = response = None
    if isinstance(error, ClientError):
        parsed = error.response
        http = SimpleNamespace(status_code=parsed["ResponseMetadata"]["HTTPStatusCode"], headers={})
        caught, response = None, (http, parsed)
    client.meta.events.emit(
        f"needs-retry.dynamodb.{operation}",
        operation=model,
        response=response,
        caught_exception=caught,
    )
    decision: bool = client.retry_conditions.is_retryable(
        RetryContext(attempt, model, parsed, http, caught)
    )
    return decision


worlds: list[World] = []
"""Those that are installed, see `threads.installed`. PynamoDB keeps the client of a model from one to the next."""


class Network:
    """Carries requests to DynamoDB and answers back, or does not.

    Attributes:
        faults: What goes wrong at random.
        script: Decides what goes wrong with a request, before chance does; None leaves it to chance.
        partitioned: Processes that reach nothing.
        requests: How many were sent.
        log: What was sent, in the order in which it was sent.
        applying: What DynamoDB evaluates now.
        proxies: What carries requests in its place, by the URL of the endpoint.
        epoch: Server time at the beginning of the world.
        latency: Seconds that a request takes on its way, and an answer, in the mean.
        late_reads: The share of reads that do not see the latest writes, unless they are consistent.
    """

    def __init__(self, world: World, epoch: float) -> None:
        self._world = world
        self.epoch = epoch
        self.latency = 0.004
        self.late_reads = 0.1
        self.proxies: dict[str, Any] = {}
        self.faults = Faults()
        self.script: Callable[[Exchange], Fault | None] = lambda _: None
        self.partitioned: set[Process] = set()
        self.requests = 0
        self.log: list[Exchange] = []
        self.applying: Exchange | None = None
        self._written: deque[tuple[float, int]] = deque([(0.0, 0)])

    def exchange(self, client: Client, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Carry a request for the thread that runs; return DynamoDB's answer, or raise what botocore would."""
        world, url = self._world, client.meta.endpoint_url
        proxy = self.proxies.get(url)
        if proxy is not None:
            answer: dict[str, Any] = proxy.carry(client, operation, kwargs)
            return answer
        host = urlsplit(url).hostname or ""
        if not host.endswith("simulated") or host.startswith("proxy"):
            # nobody listens there, or not any more
            raise EndpointConnectionError(endpoint_url=url)
        thread = world.running
        self.requests += 1
        exchange = Exchange(thread, client, operation, kwargs, world.now)
        self.log.append(exchange)
        world.note(str(thread), f"sends {operation}")
        self._carry(exchange)
        outcome: Outcome = thread.park()
        return outcome()

    def _carry(self, exchange: Exchange) -> None:  # noqa: C901 - one line for each kind of fault
        world, rng = self._world, self._world.rng
        fault = exchange.fault = self.script(exchange) or self.faults.draw(rng)
        there, back = self._takes(), self._takes()
        if exchange.thread.process in self.partitioned:
            fault = exchange.fault = Fault("lost_request")
        # made now: whoever is interrupted, and sends something else, must not get this answer for that
        wake, apply = exchange.thread.waker(), partial(self._apply, exchange)
        if fault is None:
            world.deliver(there, partial(self._apply_and_answer, exchange, back, wake))
            return
        if world.judge is not None:
            world.judge.failed(exchange)
        world.note(str(exchange.thread), f"  {fault.kind}")
        seconds = fault.seconds
        hangs = rng.choice((0.05, 0.5, exchange.client.hangs_for)) if seconds is None else seconds
        kind = fault.kind
        if kind == "lost_request":
            world.after(hangs, partial(wake, _timed_out(connected=False)))
        elif kind == "lost_answer":
            world.deliver(there, apply)
            world.after(max(there + back, hangs), partial(wake, _timed_out(connected=True)))
        elif kind == "late":
            hangs = exchange.client.hangs_for
            world.after(hangs, partial(wake, _timed_out(connected=True)))
            world.deliver(hangs + rng.random() * 20 if seconds is None else seconds, apply)
        elif kind == "duplicated":
            world.deliver(there, partial(self._apply_and_answer, exchange, back, wake))
            world.deliver(there + (rng.random() * 10 if seconds is None else seconds), apply)
        elif kind in _FAILURES:
            code, status = _FAILURES[kind]
            if kind == "failed_after":
                world.deliver(there, apply)
            world.after(there + back, partial(wake, _failed(code, status, exchange.operation)))
        elif kind == "nonsense":
            if rng.random() < 0.5:
                world.deliver(there, apply)
            world.after(there + back, partial(wake, _page))
        else:
            world.deliver(there, partial(self._apply_and_answer, exchange, back, wake))

    def _takes(self) -> float:
        """Return for how long a request, or an answer, is under way."""
        if not self.latency:
            return 0.0
        return min(self._world.rng.expovariate(1 / self.latency), 2.0) + 0.001

    def _apply(self, exchange: Exchange) -> Outcome:
        """Apply a request; return what DynamoDB answers."""
        world = self._world
        kwargs = {
            name: value
            for name, value in exchange.kwargs.items()
            if name != "ReturnConsumedCapacity"
        }
        as_of = None
        if world.rng.random() < self.late_reads:
            # a read that is not consistent may be late by some writes, but hardly by more than a second
            as_of = max(
                self._writes_before(LATEST_READ), world.tables.writes - world.rng.randrange(3)
            )
        skew = world.rng.uniform(-0.5, 0.5) * HOST_SKEW if self.latency else 0.0
        date = _date(math.floor(self.epoch + world.now + skew))
        operation, name = exchange.operation, str(exchange.thread)
        self.applying = exchange
        try:
            if exchange.fault is not None and exchange.fault.kind == "partial":
                data = self._apply_in_part(operation, kwargs, as_of)
            else:
                data = world.tables.apply(operation, kwargs, as_of)
        except Refusal as refusal:
            world.note(name, f"  {operation} refused: {refusal.code}")
            return _refused(refusal, operation, date)
        finally:
            self.applying = None
        if world.tables.writes != self._written[-1][1]:
            self._written.append((world.now, world.tables.writes))
        world.note(name, f"  {operation} applied")
        return partial(dict, data, ResponseMetadata=_metadata(date))

    def _writes_before(self, seconds: float) -> int:
        """Return how many writes there were so many seconds ago."""
        now, history = self._world.now, self._written
        while len(history) > 1 and history[1][0] <= now - seconds:
            history.popleft()
        return history[0][1]

    def _apply_in_part(
        self, operation: str, kwargs: dict[str, Any], as_of: int | None
    ) -> dict[str, Any]:
        """Apply a part of a batch, and leave the rest out as a busy table does; all of any other request."""
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
        if operation == "BatchExecuteStatement":
            statements = kwargs["Statements"]
            chosen = [rng.random() < 0.5 for _ in statements]
            some = [each for each, is_done in zip(statements, chosen, strict=True) if is_done]
            answers = iter(apply(operation, {"Statements": some})["Responses"] if some else ())
            busy = {"Error": {"Code": "ThrottlingError", "Message": "simulated"}}
            return {"Responses": [next(answers) if is_done else busy for is_done in chosen]}
        return apply(operation, kwargs, as_of)

    def _apply_and_answer(self, exchange: Exchange, back: float, wake: Callable[..., None]) -> None:
        outcome = self._apply(exchange)
        fault = exchange.fault
        if fault is not None and fault.kind == "undated":
            outcome = _undated(outcome)
        self._world.deliver(back, partial(wake, outcome))


_FAILURES = {
    "failed_before": ("InternalServerError", 500),
    "failed_after": ("InternalServerError", 500),
    "throttled": ("ThrottlingException", 400),
    "denied": ("AccessDeniedException", 400),
}


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


def _refused(refusal: Refusal, operation: str, date: str) -> Outcome:
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
    """Return what botocore makes of a page of HTML."""
    headers = {"content-type": "text/html"}
    return {"ResponseMetadata": {"HTTPHeaders": headers, "HTTPStatusCode": 200}}


def _undated(outcome: Outcome) -> Outcome:
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
