"""The proxy: passes requests to an engine, lets some meet a fault, and logs all of them.

`FaultProxy.next` and `FaultProxy.always` set the rules: which requests meet which fault. The log is the ground truth
of what was applied, and in which order. What a fault does is in `faults`; the form of requests is in `wire`.
"""

from __future__ import annotations

import http.client
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pynamodb.models import Model

from dev.faultproxy.faults import Fault, pass_on
from dev.faultproxy.wire import Exchange, Reply, Seen, When
from pynamodb_mutex.testing import Engine

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class _Rule:
    """A fault, and which requests meet it.

    Attributes:
        fault: The fault.
        op: Operation of the requests, or their name in the lock protocol; None for any.
        when: Returns whether the rule applies, by the body of the request; None for any.
    """

    fault: Fault
    op: str | None
    when: When | None

    def fits(self, exchange: Exchange) -> bool:
        return self.op in (None, exchange.op, exchange.kind) and (
            self.when is None or self.when(exchange.body)
        )


class FaultProxy:
    """A proxy to an engine; made by `fault_proxy`.

    Attributes:
        url: URL at which it listens.
        log: All requests that reached the proxy; those that were forwarded in the order in which the engine got them.
        errors: Errors that faults raised, which `check` raises.
        closing: Set when the proxy closes; ends the waits of faults.
    """

    def __init__(self, engine_url: str) -> None:
        self.url = ""
        self.log: list[Seen] = []
        self.errors: list[BaseException] = []
        self.closing = threading.Event()
        self._engine = urlsplit(engine_url)
        self._queued: list[_Rule] = []
        self._standing: list[_Rule] = []
        self._rules = threading.Lock()
        self._forwarding = threading.Lock()
        self._logged = threading.Condition()

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """Listen inside the block; on leaving it, raise an error that a fault raised."""
        with _Server(self) as server:
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                self.closing.set()
                server.shutdown()
                thread.join()
                for connection in list(server.connections):
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
        self.check()

    def next(self, *faults: Fault, op: str | None = None, when: When | None = None) -> None:
        """Let each of the next requests meet one of these faults, in their order, after those that are queued already.

        Args:
            *faults: The faults.
            op: Operation of the requests, or their name in the lock protocol (see `Seen`); None for any.
            when: Returns whether a fault is for a request, by its body; None for any request.
        """
        with self._rules:
            self._queued += [_Rule(fault, op, when) for fault in faults]

    def always(self, fault: Fault, op: str | None = None, when: When | None = None) -> None:
        """Let every request meet a fault from now on, unless one of those queued by `next` is for it.

        If several such faults are for a request, it meets the first; those that only edit the answer do so in any case.

        Args:
            fault: The fault.
            op: Operation of the requests, or their name in the lock protocol (see `Seen`); None for any.
            when: Returns whether the fault is for a request, by its body; None for any request.
        """
        with self._rules:
            self._standing.append(_Rule(fault, op, when))

    def clear(self) -> None:
        """Remove all rules: every request passes from now on."""
        with self._rules:
            self._queued.clear()
            self._standing.clear()

    def start_anew(self) -> None:
        """Remove all rules, empty the log, and raise an error that a fault raised."""
        self.clear()
        with self._logged:
            self.log.clear()
        self.check()

    def check(self) -> None:
        """Raise the latest error that a fault raised, if there is one."""
        if self.errors:
            raise self.errors.pop()

    def of(self, *kinds: str) -> list[Seen]:
        """Return the requests of these operations, or of these names in the lock protocol."""
        with self._logged:
            return [seen for seen in self.log if seen.kind in kinds or seen.op in kinds]

    def kinds(self) -> list[str]:
        """Return the names of all requests in the lock protocol, in the order of the log."""
        with self._logged:
            return [seen.kind for seen in self.log]

    def wait(self, count: int, *kinds: str, timeout: float = 60.0) -> list[Seen]:
        """Wait until at least ``count`` requests of these operations or names are in the log; return all of them."""
        with self._logged:
            came = self._logged.wait_for(
                lambda: len([s for s in self.log if s.kind in kinds or s.op in kinds]) >= count,
                timeout,
            )
        assert came, f"waited for {count} x {kinds}, saw {self.kinds()}"
        return self.of(*kinds)

    def replay(self, seen: Seen, **changes: Any) -> Reply:
        """Forward a request once more, as a late duplicate, and return the answer. This is not logged.

        Args:
            seen: The request.
            **changes: Members of its body to replace.
        """
        raw = json.dumps(seen.body | changes).encode() if changes else seen.raw
        headers = seen.headers | {"Content-Length": str(len(raw))}
        with self._forwarding:
            return self._ask(headers, raw)

    # -- for faults --------------------------------------------------------------------------------

    def wait_until_closing(self, until: threading.Event | float) -> None:
        """Wait for an event, or for some seconds, and no longer than the proxy is open."""
        if isinstance(until, float | int):
            self.closing.wait(until)
            return
        while not until.wait(0.05) and not self.closing.is_set():
            pass

    def forward(self, exchange: Exchange, fault: str | None) -> Reply:
        """Forward a request to the engine, log it under a fault's name, and return the answer."""
        # One at a time, until it is logged. Otherwise the engine might apply A before B, and the log show B before A:
        # then whoever reads the log for an order of acquisitions would find two holders where there was one.
        with self._forwarding:
            reply = self._ask(exchange.headers, exchange.raw)
            self.note(exchange, fault, reply)
        return reply

    def note(self, exchange: Exchange, fault: str | None, reply: Reply | None) -> None:
        """Log a request; the reply is None if it was not forwarded."""
        status = None if reply is None else reply.status
        seen = Seen(
            exchange.op, exchange.body, exchange.kind, status == 200, status, fault, reply, exchange.raw,
            exchange.headers,
        )  # fmt: skip
        with self._logged:
            self.log.append(seen)
            self._logged.notify_all()

    def meet(self, exchange: Exchange) -> None:
        """Find the fault for a request, and let it act."""
        with self._rules:
            standing = [rule.fault for rule in self._standing if rule.fits(exchange)]
            queued = next((rule for rule in self._queued if rule.fits(exchange)), None)
            if queued is not None:
                self._queued.remove(queued)
        # A fault that edits answers does so for whatever else a request meets; it never takes the place of another one.
        faults = [f for f in standing if f.edit is None]
        fault = queued.fault if queued is not None else (faults or [pass_on()])[0]
        edits = [fault, *(f for f in standing if f is not fault)]
        exchange.edits = [f.edit for f in edits if f.edit is not None]
        fault.meet(exchange)

    def _ask(self, headers: dict[str, str], raw: bytes) -> Reply:
        """Send a request to the engine on a connection of its own, and return the answer."""
        engine = http.client.HTTPConnection(self._engine.hostname, self._engine.port, timeout=30)
        try:
            engine.request("POST", "/", raw, headers)
            response = engine.getresponse()
            content = response.read()
        finally:
            engine.close()
        return Reply(response.status, content, tuple(response.getheaders()))


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client, with a thread of its own."""

    protocol_version = "HTTP/1.1"  # connections stay open between requests, as with DynamoDB
    # head and body of an answer in one packet, at once: otherwise each answer could wait for an acknowledgement
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        raw = self.rfile.read(length)
        if len(raw) < length:  # the client was killed while it sent
            self.close_connection = True
            return
        op = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
        exchange = Exchange(self, op, raw)
        try:
            self.server.proxy.meet(exchange)
        except BaseException as error:
            # such as an assertion that failed in a fault: `check` raises it later, on the thread of the test
            self.server.proxy.errors.append(error)
            exchange.reset()

    def handle(self) -> None:
        with suppress(OSError):  # the client went away
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


class _Server(socketserver.ThreadingTCPServer):
    """Accepts the connections of clients.

    Attributes:
        proxy: The proxy.
        connections: Open connections of clients, which are shut down when the proxy closes.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.connections: set[socket.socket] = set()

    def shutdown_request(self, request: socket.socket) -> None:
        # The inherited method shuts the connection down before it closes it. That would send FIN ahead of the RST of
        # `Exchange.reset`, and the client would see an orderly end.
        self.connections.discard(request)
        self.close_request(request)


@contextmanager
def fault_proxy(engine: Engine) -> Iterator[FaultProxy]:
    """Run a proxy to an engine inside the block; on leaving it, raise an error that a fault raised."""
    with FaultProxy(engine.endpoint_url).serving() as proxy:
        yield proxy


M = TypeVar("M", bound=Model)


def through(proxy: FaultProxy, table: type[M], *, read_timeout: float = 30.0) -> type[M]:
    """Return another client of a table: a subclass of its model whose requests go through the proxy.

    Mutexes of different models share no local queue, so several clients in one process are like several processes.

    Args:
        proxy: The proxy.
        table: Model of the table.
        read_timeout: Seconds after which a request without an answer fails.
    """

    class Client(table):
        # None: otherwise the class would inherit the open connection of the table's model, around the proxy
        _connection = None

        class Meta(table.Meta):
            table_name = table.Meta.table_name
            host = proxy.url
            read_timeout_seconds = read_timeout

    return Client
