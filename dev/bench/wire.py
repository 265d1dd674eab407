"""The way from the libraries to the engine: a proxy that delays requests and counts them, for the length of a block.

The proxy is dev.faultproxy, in a process of its own. `wired` starts it, and `Wire` controls it. What this process, or a
child of it, makes inside the block goes through the proxy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from dev.bench.children import Child
from dev.faultproxy import delay, fault_proxy
from pynamodb_mutex.testing import Engine, use


class Counts(NamedTuple):
    """Requests, and the write and read capacity units that they cost."""

    requests: float
    wcu: float
    rcu: float

    def per(self, count: float) -> dict[str, float]:
        """Return the counts divided by a number, such as that of cycles or minutes."""
        return {name: value / count for name, value in self._asdict().items()}


def price(operation: str, body: dict[str, Any]) -> Counts:
    """Return what DynamoDB charges for a request, for items smaller than 1 KB.

    It follows from the request alone: a refused write costs as much as an applied one.

    Raises:
        ValueError: If it is not known. It must not count as free.
    """
    match operation:
        case "PutItem" | "UpdateItem" | "DeleteItem":
            return Counts(1, 1, 0)
        case "TransactWriteItems":
            return Counts(1, 2 * len(body["TransactItems"]), 0)
        case "GetItem" | "Query" | "Scan":
            return Counts(1, 0, 1 if body.get("ConsistentRead") else 0.5)
        case "CreateTable" | "DescribeTable" | "DescribeTimeToLive" | "UpdateTimeToLive":
            return Counts(1, 0, 0)
    raise ValueError(f"no price is known for {operation}")


class Wire:
    """The controls of a proxy, for the process that measures.

    Attributes:
        engine: The proxy as an engine, for clients.
    """

    def __init__(self, proxy: Child) -> None:
        self.engine = Engine("proxy", proxy.hear())
        self._proxy = proxy

    def counted(self) -> Counts:
        """Return what passed since the last call."""
        self._proxy.send(None)
        prices = [price(*request) for request in self._proxy.hear()]
        return Counts(*map(sum, zip(*prices, strict=True))) if prices else Counts(0, 0, 0)

    def cost(self, turn: Callable[[], object], count: int) -> dict[str, float]:
        """Make some turns; return the seconds of the processor and of the clock, the requests and the units of each."""
        self.counted()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(count):
            turn()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return {"cpu": cpu / count, "wall": wall / count, **self.counted().per(count)}


@contextmanager
def wired(engine_url: str, latency: float = 0.0) -> Iterator[Wire]:
    """Run a proxy to the engine inside the block; clients that this process makes there go through it.

    Args:
        engine_url: URL of the engine.
        latency: Seconds by which each request is delayed.
    """
    engine = Engine("engine", engine_url)
    with Child(engine, _serve, engine, latency) as proxy:
        wire = Wire(proxy)
        with use(wire.engine):
            yield wire


def _serve(pipe: Connection, engine: Engine, latency: float) -> None:
    """Run the proxy, in a process of its own."""
    with fault_proxy(engine) as proxy:
        proxy.always(delay(latency))
        pipe.send(proxy.url)
        counted = 0
        while True:
            pipe.recv()
            passed = proxy.log[counted:]
            counted += len(passed)
            pipe.send([(seen.op, seen.body) for seen in passed])
