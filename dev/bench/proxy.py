"""A proxy of its own process, which delays each request and counts what passes.

    python -m dev.bench.proxy ENGINE_URL

It prints its URL when it listens. It has to be cheap, for it shares the machine with what is
measured: no more HTTP/1.1 than botocore and the engines speak, all connections kept alive.
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
"""The path that the proxy answers itself: see `_Proxy.control`."""

_HEAD_ENDS = b"\r\n\r\n"


class Message:
    """One request or answer, as it came."""

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
    """Find a header's value."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    return head[start : head.index(b"\r\n", start)].strip()


class _Peer(asyncio.Protocol):
    """One end of a connection: cuts what comes into messages."""

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
    """A connection of a client, which sends its next request when it has its answer."""

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
        if not self.transport.is_closing():  # else it was killed while it waited
            self.transport.write(raw)


class _Proxy:
    """What all connections share."""

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
        """Return what was counted; set the latency and start anew if the body says so."""
        asked = json.loads(message.body)
        counts = {
            "requests": self._requests, "wcu": self._write, "rcu": self._read,
            "unknown": self._unknown,
        }  # fmt: skip
        body = json.dumps(counts).encode()
        if "latency" in asked:
            self.latency = asked["latency"]
        if asked.get("reset"):
            self._start_anew()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def forward(self, raw: bytes, client: _Client) -> None:
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
    when_parent_ends(lambda: os._exit(0))
    # epoll sleeps whole milliseconds, which would be a good part of the latency
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    loop.run_until_complete(_serve(engine_url))


if __name__ == "__main__":
    main(*sys.argv[1:])
