"""An HTTP proxy between botocore and an engine that spoils what passes through it.

Faults are injected below botocore: everything above the wire is real. Its log is the ground truth
of what was applied, and in which order.
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
    fault: Fault
    op: str | None
    when: When | None

    def fits(self, exchange: Exchange) -> bool:
        return self.op in (None, exchange.op, exchange.kind) and (
            self.when is None or self.when(exchange.body)
        )


class FaultProxy:
    """See `fault_proxy`.

    Attributes:
        url: Where it listens.
        log: Each request that reached it, in the order in which they were applied.
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
        """Listen. A fault that raised fails the test on leaving."""
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
        """Let the next requests meet one of the faults each.

        Args:
            *faults: In this order, before those queued earlier get theirs.
            op: Only requests of this operation, or of this kind (see `Seen`).
            when: Only requests for whose body this returns true.
        """
        with self._rules:
            self._queued += [_Rule(fault, op, when) for fault in faults]

    def always(self, fault: Fault, op: str | None = None, when: When | None = None) -> None:
        """Let every request meet the fault from now on; one that is queued goes first."""
        with self._rules:
            self._standing.append(_Rule(fault, op, when))

    def clear(self) -> None:
        """Let everything pass from now on."""
        with self._rules:
            self._queued.clear()
            self._standing.clear()

    def start_anew(self) -> None:
        """Let everything pass, and forget what did."""
        self.clear()
        with self._logged:
            self.log.clear()
        self.check()

    def check(self) -> None:
        """Raise what a fault raised."""
        if self.errors:
            raise self.errors.pop()

    def of(self, *kinds: str) -> list[Seen]:
        """The requests of these operations or kinds."""
        with self._logged:
            return [seen for seen in self.log if seen.kind in kinds or seen.op in kinds]

    def kinds(self) -> list[str]:
        """What came, in order."""
        with self._logged:
            return [seen.kind for seen in self.log]

    def wait(self, count: int, *kinds: str, timeout: float = 60.0) -> list[Seen]:
        """Wait until so many requests of these operations or kinds are in the log."""
        with self._logged:
            came = self._logged.wait_for(
                lambda: len([s for s in self.log if s.kind in kinds or s.op in kinds]) >= count,
                timeout,
            )
        assert came, f"waited for {count} x {kinds}, saw {self.kinds()}"
        return self.of(*kinds)

    def replay(self, seen: Seen, **changes: Any) -> Reply:
        """Let a request reach the engine once more: a late duplicate. Not in the log.

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
        if isinstance(until, float | int):
            self.closing.wait(until)
            return
        while not until.wait(0.05) and not self.closing.is_set():
            pass

    def forward(self, exchange: Exchange, fault: str | None) -> Reply:
        with self._forwarding:  # so that the log has the engine's order
            reply = self._ask(exchange.headers, exchange.raw)
            self.note(exchange, fault, reply)
        return reply

    def note(self, exchange: Exchange, fault: str | None, reply: Reply | None) -> None:
        status = None if reply is None else reply.status
        seen = Seen(
            exchange.op,
            exchange.body,
            exchange.kind,
            status == 200,
            status,
            fault,
            reply,
            exchange.raw,
            exchange.headers,
        )
        with self._logged:
            self.log.append(seen)
            self._logged.notify_all()

    def meet(self, exchange: Exchange) -> None:
        """Let a request meet its fault."""
        with self._rules:
            standing = [rule.fault for rule in self._standing if rule.fits(exchange)]
            queued = next((rule for rule in self._queued if rule.fits(exchange)), None)
            if queued is not None:
                self._queued.remove(queued)
        faults = [f for f in standing if f.edit is None]
        fault = queued.fault if queued is not None else (faults or [pass_on()])[0]
        edits = [fault, *(f for f in standing if f is not fault)]
        exchange.edits = [f.edit for f in edits if f.edit is not None]
        fault.meet(exchange)

    def _ask(self, headers: dict[str, str], raw: bytes) -> Reply:
        engine = http.client.HTTPConnection(self._engine.hostname, self._engine.port, timeout=30)
        try:
            engine.request("POST", "/", raw, headers)
            response = engine.getresponse()
            content = response.read()
        finally:
            engine.close()
        return Reply(response.status, content, tuple(response.getheaders()))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
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
            self.server.proxy.errors.append(error)
            exchange.reset()

    def handle(self) -> None:
        with suppress(OSError):  # the client went away
            super().handle()

    def log_message(self, *_: object) -> None:
        pass


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.proxy = proxy
        self.connections: set[socket.socket] = set()

    def shutdown_request(self, request: socket.socket) -> None:
        # without a FIN ahead of it, so that a reset is one
        self.connections.discard(request)
        self.close_request(request)


@contextmanager
def fault_proxy(engine: Engine) -> Iterator[FaultProxy]:
    """Run a proxy to an engine. A fault that raised fails the test on leaving."""
    with FaultProxy(engine.endpoint_url).serving() as proxy:
        yield proxy


M = TypeVar("M", bound=Model)


def through(proxy: FaultProxy, table: type[M], *, read_timeout: float = 30.0) -> type[M]:
    """Return a client of its own for a table: a model that goes through the proxy.

    Mutexes of different models share no queue in the process: they are like different processes.
    """

    class Client(table):
        # PynamoDB would hand over that of the table's model
        _connection = None

        class Meta(table.Meta):
            table_name = table.Meta.table_name
            host = proxy.url
            read_timeout_seconds = read_timeout

    return Client
