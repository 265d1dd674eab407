"""A proxy that delays each request and counts what passes; it runs as a process of its own.

    python -m dev.bench.proxy ENGINE_URL

It prints its URL when it listens. It has to be cheap, for it shares the machine with what is
measured: it knows no more of HTTP/1.1 than botocore and the engines use, and keeps all connections open.
`wire` starts it and asks it for its counts. It injects no faults; for these see dev.faultproxy.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import socket
import sys
from collections import Counter, deque
from typing import Any
from urllib.parse import urlsplit

from dev.bench.charges import UnknownOperationError, units
from pynamodb_mutex.testing.supervisor import when_parent_ends

CONTROL = b"/benchmark"
"""Path of requests that the proxy answers itself: see `_Proxy.control`."""

_HEAD_ENDS = b"\r\n\r\n"
"""End of the headers of a message."""


class Message:
    """One request or answer.

    Attributes:
        raw: The whole message.
        body: The message without its headers.
    """

    def __init__(self, raw: bytes, body_at: int) -> None:
        self.raw = raw
        self.body = raw[body_at:]
        self._head = raw[:body_at]

    @property
    def path(self) -> bytes:
        return self._head.split(b" ", 2)[1]

    @property
    def operation(self) -> str:
        return (header(self._head, b"x-amz-target") or b"").rpartition(b".")[2].decode()

    @property
    def closes(self) -> bool:
        return (header(self._head, b"connection") or b"").lower() == b"close"


def header(head: bytes, name: bytes) -> bytes | None:
    """Return the value of a header; None if it is missing.

    Args:
        head: Headers of a message, with its first line.
        name: Name of the header, in lower case.
    """
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    return head[start : head.index(b"\r\n", start)].strip()


class _Peer(asyncio.Protocol):
    """The proxy's end of a connection: cuts the stream of bytes into messages, and passes each to `came`."""

    def __init__(self) -> None:
        self._buffer = b""
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_ends := self._buffer.find(_HEAD_ENDS)) >= 0:
            body_at = head_ends + len(_HEAD_ENDS)
            length = header(self._buffer[:body_at], b"content-length")
            if length is None:
                print("a message without Content-Length", file=sys.stderr)
                self.transport.close()
                return
            ends = body_at + int(length)
            if len(self._buffer) < ends:
                return
            message = Message(self._buffer[:ends], body_at)
            self._buffer = self._buffer[ends:]
            self.came(message)

    def came(self, message: Message) -> None:
        raise NotImplementedError


class _Upstream(_Peer):
    """A connection to the engine, for one request at a time."""

    def __init__(self, proxy: _Proxy) -> None:
        super().__init__()
        self._proxy = proxy
        self._client: _Client | None = None

    def send(self, raw: bytes, client: _Client) -> None:
        self._client = client
        self.transport.write(raw)

    def came(self, message: Message) -> None:
        client, self._client = self._client, None
        if message.closes:
            self.transport.close()
        else:
            self._proxy.idle.append(self)
        client.answer(message.raw)

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._proxy.idle:
            self._proxy.idle.remove(self)
        if self._client is not None:
            self._client.transport.close()


class _Client(_Peer):
    """A connection of a client, which sends a request only after it has the answer to the one before."""

    def __init__(self, proxy: _Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    def came(self, message: Message) -> None:
        if message.path == CONTROL:
            self.answer(self._proxy.control(message))
            return
        self._proxy.count(message)
        loop = asyncio.get_running_loop()
        loop.call_later(self._proxy.latency, self._proxy.forward, message.raw, self)

    def answer(self, raw: bytes) -> None:
        if not self.transport.is_closing():  # the client may have been killed meanwhile
            self.transport.write(raw)


class _Proxy:
    """The state that all connections share: latency, counts, and idle connections to the engine.

    Attributes:
        latency: Seconds by which each request is delayed.
        idle: Connections to the engine that wait for a request.
    """

    def __init__(self, engine_url: str) -> None:
        address = urlsplit(engine_url)
        self._engine = address.hostname or "", address.port or 80
        self.latency = 0.0
        self.idle: deque[_Upstream] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._start_anew()

    def _start_anew(self) -> None:
        self._requests: Counter[str] = Counter()
        self._write = self._read = 0.0
        self._unknown: list[str] = []

    def count(self, message: Message) -> None:
        """Count a request and its capacity units."""
        operation = message.operation
        self._requests[operation] += 1
        try:
            cost = units(operation, json.loads(message.body))
        except UnknownOperationError:
            self._unknown.append(operation)
        else:
            self._write += cost.write
            self._read += cost.read

    def control(self, message: Message) -> bytes:
        """Return the counts as an HTTP answer, and begin to count anew; set the latency if the body names one."""
        asked = json.loads(message.body)
        counts = {
            "requests": self._requests, "wcu": self._write, "rcu": self._read,
            "unknown": self._unknown,
        }  # fmt: skip
        body = json.dumps(counts).encode()
        if "latency" in asked:
            self.latency = asked["latency"]
        self._start_anew()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def forward(self, raw: bytes, client: _Client) -> None:
        """Send a request to the engine, on an idle connection or a new one."""
        if self.idle:
            self.idle.pop().send(raw, client)
            return
        task = asyncio.get_running_loop().create_task(self._connect(raw, client))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _connect(self, raw: bytes, client: _Client) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, upstream = await loop.create_connection(lambda: _Upstream(self), *self._engine)
        except OSError as error:
            print(f"the engine cannot be reached: {error}", file=sys.stderr)
            client.transport.close()
            return
        upstream.send(raw, client)


async def _serve(engine_url: str) -> None:
    proxy = _Proxy(engine_url)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Client(proxy), "127.0.0.1", 0, backlog=512
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main(engine_url: str) -> None:
    """Run the proxy until the process that started it ends."""
    when_parent_ends(lambda: os._exit(0))
    # epoll, the default, sleeps for whole milliseconds: a large part of the latency that is to be added
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_serve(engine_url))


if __name__ == "__main__":
    main(*sys.argv[1:])
