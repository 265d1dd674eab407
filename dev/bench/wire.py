"""The way from the libraries to the engine: a proxy that adds latency and counts, for the length of a block.

The proxy is a process of its own. It has to be cheap, for it shares the machine with what is measured: it knows no more
of HTTP/1.1 than botocore and the engines use. `wired` starts it, and `Wire` controls it. What this process, or a child
of it, makes inside the block goes through the proxy. It injects no faults; for these see dev.faultproxy.
"""

from __future__ import annotations

import asyncio
import json
import re
import selectors
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from dev.bench.children import Child, Pipe
from pynamodb_mutex.testing import Engine, use

ROOT = Path(__file__).parents[2]

_FREE = {
    "CreateTable",
    "DescribeTable",
    "DescribeTimeToLive",
    "UpdateTimeToLive",
    "DescribeEndpoints",
}
"""Operations that cost no units."""


class UnknownOperationError(ValueError):
    """The units of an operation are not known here."""


def units(operation: str, body: dict[str, Any]) -> tuple[float, float]:
    """Return the write and read capacity units that DynamoDB charges for a request, for items smaller than 1 KB.

    They follow from the request alone: a refused write costs as much as an applied one.

    Raises:
        UnknownOperationError: If they are not known. It must not count as free.
    """
    read = 1.0 if body.get("ConsistentRead") else 0.5
    match operation:
        case "PutItem" | "UpdateItem" | "DeleteItem":
            return 1, 0
        case "TransactWriteItems":
            return 2 * len(body["TransactItems"]), 0
        case "GetItem" | "Query" | "Scan":
            return 0, read
        case _ if operation in _FREE:
            return 0, 0
    raise UnknownOperationError(operation)


class Counts(NamedTuple):
    """What passed through the proxy.

    Attributes:
        by_operation: Number of requests, by operation.
        wcu: Write capacity units.
        rcu: Read capacity units.
    """

    by_operation: dict[str, int]
    wcu: float
    rcu: float

    @property
    def requests(self) -> int:
        return sum(self.by_operation.values())

    def per(self, count: float) -> dict[str, Any]:
        """Return the counts divided by a number, such as that of cycles or minutes."""
        return {
            "requests": self.requests / count,
            "wcu": self.wcu / count,
            "rcu": self.rcu / count,
            "operations": {name: n / count for name, n in self.by_operation.items()},
        }


class Wire:
    """The controls of a proxy, for the process that measures.

    Attributes:
        engine: The proxy as an engine, for clients.
    """

    def __init__(self, proxy: Child) -> None:
        self.engine = Engine("proxy", proxy.hear())
        self._proxy = proxy

    def set(self, latency: float) -> None:
        """Delay every request by ``latency`` seconds from now on, and begin to count anew."""
        self._proxy.send(latency)
        self._proxy.hear()

    def counted(self) -> Counts:
        """Return what passed since the last call of this method or of `set`.

        Raises:
            ValueError: If there was a request whose capacity units are not known.
        """
        self._proxy.send(None)
        counts, unknown = self._proxy.hear()
        if unknown:
            raise ValueError(f"no price is known for {sorted(set(unknown))}")
        return counts


@contextmanager
def wired(engine_url: str, latency: float = 0.0) -> Iterator[Wire]:
    """Run a proxy to the engine inside the block; clients that this process makes there go through it.

    Args:
        engine_url: URL of the engine.
        latency: Seconds by which each request is delayed.
    """
    with Child(Engine("engine", engine_url), _serve, engine_url) as proxy:
        wire = Wire(proxy)
        with use(wire.engine):
            wire.set(latency)
            yield wire


def _header(head: bytes, name: bytes) -> bytes:
    """Return the value of a header of a message; empty if it is missing."""
    found = re.search(rb"(?i)\r\n%s: *([^\r]*)" % name, head)
    return found[1] if found else b""


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the head and the body of the next message."""
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(int(_header(head, b"content-length")))


class _Proxy:
    """The state that all connections share: latency, counts, and idle connections to the engine."""

    def __init__(self, engine_url: str) -> None:
        address = urlsplit(engine_url)
        self._engine = address.hostname, address.port
        self._latency = 0.0
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._counts, self._unknown = Counts({}, 0, 0), list[str]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection of a client, which sends a request only after it has the answer to the one before."""
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head, body = await _message(reader)
                self._count(_header(head, b"x-amz-target").rpartition(b".")[2].decode(), body)
                await asyncio.sleep(self._latency)
                writer.write(await self._answer(head + body))
        writer.close()

    async def _answer(self, request: bytes) -> bytes:
        """Send a request to the engine, on an idle connection or a new one; return the answer."""
        while True:
            if self._idle:
                upstream = self._idle.pop()
            else:
                upstream = await asyncio.open_connection(*self._engine)
            if not upstream[0].at_eof():
                break
        upstream[1].write(request)
        head, body = await _message(upstream[0])
        if _header(head, b"connection").lower() == b"close":
            upstream[1].close()
        else:
            self._idle.append(upstream)
        return head + body

    def _count(self, operation: str, body: bytes) -> None:
        so_far, wcu, rcu = self._counts
        so_far[operation] = so_far.get(operation, 0) + 1
        try:
            write, read = units(operation, json.loads(body))
        except UnknownOperationError:
            self._unknown.append(operation)
        else:
            self._counts = Counts(so_far, wcu + write, rcu + read)

    def control(self, pipe: Pipe) -> None:
        """Answer the process that measures with the counts, and begin to count anew; it may set the latency."""
        latency = pipe.wait()
        if latency is not None:
            self._latency = latency
        pipe.say((self._counts, self._unknown))
        self._counts, self._unknown = Counts({}, 0, 0), []


def _serve(pipe: Pipe, engine_url: str) -> None:
    """Run the proxy, in a process of its own."""

    async def serve() -> None:
        proxy = _Proxy(engine_url)
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, backlog=512)
        asyncio.get_running_loop().add_reader(pipe.fileno(), proxy.control, pipe)
        pipe.say(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await server.serve_forever()

    # epoll, the default, sleeps for whole milliseconds: a large part of the latency that is to be added
    asyncio.SelectorEventLoop(selectors.SelectSelector()).run_until_complete(serve())
