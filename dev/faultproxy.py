"""An HTTP proxy between clients and an engine that injects faults: lost, late, doubled and made-up messages.

Everything above the wire is real: PynamoDB, botocore, its connections and timeouts. Tests, dev.chaos and dev.bench use it.

    with fault_proxy(engine) as proxy:
        locks = through(proxy, LockItem)
        proxy.next(drop_answer(), op="acquire")  # the next acquire is applied, and its answer is lost

The parts, in this order: requests and answers as the proxy and its faults see them, with the names of requests in the lock
protocol; the faults; the proxy, with its rules (which requests meet which fault) and its log, the ground truth of what was
applied, and in which order.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from pynamodb.models import Model

from pynamodb_mutex.testing import Engine

if TYPE_CHECKING:
    from typing_extensions import Self

Body = dict[str, Any]
"""The JSON of a request or an answer."""

When = Callable[[Body], bool]
"""Returns whether a rule applies to a request, by its body."""


@dataclass(frozen=True)
class Reply:
    """An answer, from the engine or made up by a fault.

    Attributes:
        status: HTTP status.
        content: Body as it is sent, often JSON.
        headers: Names and values.
    """

    status: int
    content: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def body(self) -> Body:
        return json.loads(self.content)

    @property
    def error(self) -> str | None:
        """Code of the error, without its namespace; None if the answer is no error."""
        return None if self.status < 400 else self.body.get("__type", "").rpartition("#")[2]


@dataclass
class Seen:
    """A request that reached the proxy.

    Attributes:
        op: Name of the operation in DynamoDB.
        body: Body of the request.
        kind: Name in the lock protocol: acquire, renew, release, keep, hand_over, attach, save_data, force, disown,
            join, leave, mark or unmark, also if the claim is in a user's row; update for a user's own write to its row,
            guarded or on condition that nobody holds it; otherwise the name of the operation. A reader that begins a
            claim acquires it, the last one releases it, and those between join and leave it.
        applied: Whether the engine applied the request.
        status: Status of the engine's answer; None if the request was not forwarded.
        fault: Name of the fault that the request met; None if it met none.
        reply: The engine's answer, which may differ from what the client got; None if the request was not forwarded.
        raw: Body as it was sent.
        headers: Headers of the request, for a replay.
    """

    op: str
    body: Body
    kind: str
    applied: bool
    status: int | None
    fault: str | None
    reply: Reply | None
    raw: bytes
    headers: dict[str, str] = field(repr=False)


_PREFIX = "lock_"
"""Beginning of the names of a claim's attributes in a user's row."""


def _changed(section: str, body: Body) -> set[str]:
    """Return the names of the attributes that one section of an update expression changes.

    Args:
        section: SET or REMOVE.
        body: Body of the request.
    """
    expression = body.get("UpdateExpression", "")
    found = re.search(rf"\b{section}\b(.*?)(?=\bSET\b|\bREMOVE\b|\bADD\b|\bDELETE\b|$)", expression)
    if found is None:
        return set()
    names = body.get("ExpressionAttributeNames", {})
    if section == "SET":
        return {names[name] for name in re.findall(r"(#\w+) = ", found[1])}
    return {names[name] for name in re.findall(r"#\w+", found[1])}


def kind_of(op: str, body: Body) -> str:  # noqa: C901, PLR0911 - one for each kind
    """Return the name of a request in the lock protocol; for other requests, the name of the operation.

    Args:
        op: Name of the operation in DynamoDB.
        body: Body of the request.
    """
    sets = {name.removeprefix(_PREFIX) for name in _changed("SET", body)}
    removes = {name.removeprefix(_PREFIX) for name in _changed("REMOVE", body)}
    condition = _spelt(body)
    # a request that takes the lock may remove its own entry from the line, and is no "leave"
    if {"waiting"} in (sets, removes) and not sets & {"token", "expires_at"}:
        return "join" if "waiting" in sets else "leave"
    if "wanted_by" in sets | removes and "token" not in sets:
        return "mark" if sets else "unmark"
    if "shared_by" in removes and "expires_at" not in sets | removes:
        return "leave"
    # of a reader's entry, which a renewal finds in the map
    if "shared_by" in condition and "expires_at" in sets and "attribute_not_exists" in condition:
        return "join"
    # Acquire, hand_over and attach set it: the writes by which a claim gets another holder. Only acquire may create the
    # row or find it free; only attach requires an end that has not passed.
    if "abandoned_by" in sets:
        passed_on = "attach" if "expires_at >=" in condition else "hand_over"
        return "acquire" if "attribute_not_exists" in condition else passed_on
    # The result of a run of `once` takes the place of its claim; by hand, with another token.
    if "done_until" in sets | removes:
        return "decide" if "token" in sets else "complete"
    # A guarded write counts itself: under this name in the lock table, with the prefix in a user's row.
    if "writes" in sets:
        return "save_data" if "writes" in _changed("SET", body) else "update"
    # The claim ends. Force writes a token of its own; release compares token and version; disown, for an acquisition
    # whose outcome is unknown, cannot know the version.
    if "expires_at" in removes:
        if "token" in sets:
            return "force"
        if "version" in condition:
            return "release"
        return "disown" if "token" in condition else "update"
    if "expires_at" in sets and "owner" in removes:
        return "keep"
    return "renew" if "expires_at" in sets else op


def _spelt(body: Body) -> str:
    """Return the condition of a request, with the names of attributes in place of the placeholders."""
    names = body.get("ExpressionAttributeNames", {})
    return re.sub(r"#\w+", lambda m: names[m[0]], body.get("ConditionExpression", ""))


class Exchange:
    """One request under way, on which a fault acts.

    Attributes:
        op: Name of the operation in DynamoDB.
        raw: Body as it was sent.
        body: Body of the request.
        kind: Name in the lock protocol: see `Seen`.
        headers: Headers of the request, but for the host.
        proxy: The proxy.
        edits: Functions that change the answer, in this order, before the client gets it.
    """

    def __init__(self, handler: BaseHTTPRequestHandler, op: str, raw: bytes) -> None:
        self.op, self.raw, self.body = op, raw, json.loads(raw)
        self.kind = kind_of(op, self.body)
        self.headers = {name: value for name, value in handler.headers.items() if name != "Host"}
        self.proxy = handler.server.proxy
        self.edits: list[Callable[[Reply], Reply]] = []
        self._handler = handler

    def apply(self, fault: str | None) -> Reply:
        """Forward the request to the engine, log it under a fault's name, and return the answer."""
        return self.proxy.forward(self, fault)

    def keep_from_engine(self, fault: str) -> None:
        """Log the request as one that was not forwarded."""
        self.proxy.note(self, fault, None)

    def answer(self, reply: Reply) -> None:
        """Answer the client; nothing happens if it has gone."""
        for edit in self.edits:
            reply = edit(reply)
        handler = self._handler
        with suppress(OSError):
            handler.send_response_only(reply.status)
            for name, value in reply.headers:
                if name.lower() not in {"content-length", "connection", "transfer-encoding"}:
                    handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(reply.content)))
            handler.end_headers()
            handler.wfile.write(reply.content)
            handler.wfile.flush()

    def reset(self) -> None:
        """Let the connection end by a reset, as after a failure of the network; it ends when the fault has acted."""
        # with SO_LINGER at zero seconds, closing the socket sends RST; otherwise it would send FIN, an orderly end
        linger = struct.pack("ii", 1, 0)
        self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._handler.close_connection = True


# -- faults --------------------------------------------------------------------------------------
#
# Each function returns a `Fault`; its first line says what that does to the request. "Forward" means that the engine gets
# the request and applies it, if its conditions hold; "answer" and "reset" are what the client gets. Which requests meet a
# fault is decided by `FaultProxy.next` and `FaultProxy.always`.


@dataclass(eq=False)
class Fault:
    """What happens to a request.

    Attributes:
        name: Name of the fault in the log; None if it does no harm.
        meet: Does what happens to a request: forwards it, answers it, resets its connection, or several of these.
        edit: Changes the answer before the client gets it; None to leave it as it is. Added by `FaultProxy.always`,
            it changes the answers of other faults too.
    """

    name: str | None
    meet: Callable[[Exchange], None]
    edit: Callable[[Reply], Reply] | None = None


def _now() -> str:
    """Return the time as a ``Date`` header."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())


DYNAMODBS = (
    ("Content-Type", "application/x-amz-json-1.0"),
    ("x-amzn-RequestId", "MADEUPBYTHEPROXY"),
)
"""Headers by which clients recognise answers of DynamoDB."""


def _made_up(status: int, code: str, **more: Any) -> Reply:
    """Return an error that the proxy makes up, in the form of DynamoDB's."""
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "made up by the proxy"}
    return Reply(status, json.dumps(body | more).encode(), (*DYNAMODBS, ("Date", _now())))


def _meets(
    name: str,
    *,
    apply: bool = False,
    then: Callable[[], object] = lambda: None,
    answer: Callable[[], Reply] | None = None,
) -> Fault:
    """Return a fault that forwards the request or does not, calls ``then``, and resets the connection or answers.

    The answer is made at each request: a fault may stand for a whole run, and a Date from the beginning of the run would
    show clients a server time that is long past.
    """

    def meet(exchange: Exchange) -> None:
        if apply:
            exchange.apply(name)
        else:
            exchange.keep_from_engine(name)
        then()
        if answer is None:
            exchange.reset()
        else:
            exchange.answer(answer())

    return Fault(name, meet)


def pass_on() -> Fault:
    """Forward the request and return its answer: no fault."""
    return Fault(None, lambda exchange: exchange.answer(exchange.apply(None)))


def after(before: Callable[[], object]) -> Fault:
    """Call ``before``, such as another client's request; then forward the request and answer."""

    def meet(exchange: Exchange) -> None:
        before()
        exchange.answer(exchange.apply("after"))

    return Fault("after", meet)


def drop_request(then: Callable[[], object] = lambda: None) -> Fault:
    """Forward nothing, call ``then``, and reset the connection: the request is lost."""
    return _meets("drop_request", then=then)


def drop_answer(then: Callable[[], object] = lambda: None) -> Fault:
    """Forward the request, call ``then``, such as another client's request, and reset the connection: the answer is lost."""
    return _meets("drop_answer", apply=True, then=then)


def apply_then_500(then: Callable[[], object] = lambda: None) -> Fault:
    """Forward the request, call ``then``, and answer with status 500."""
    return _meets(
        "apply_then_500",
        apply=True,
        then=then,
        answer=lambda: _made_up(500, "InternalServerError"),
    )


def refuse(code: str, status: int = 400, **more: Any) -> Fault:
    """Forward nothing, and answer with an error, with ``more`` in its body."""
    return _meets(code, answer=lambda: _made_up(status, code, **more))


def server_error() -> Fault:
    """Forward nothing, and answer with status 500."""
    return refuse("InternalServerError", 500)


def unavailable() -> Fault:
    """Forward nothing, and answer with status 503."""
    return refuse("ServiceUnavailable", 503)


def throttle(code: str = "ThrottlingException") -> Fault:
    """Forward nothing, and answer with status 400 and a code of throttling."""
    return replace(refuse(code), name="throttle")


def deny() -> Fault:
    """Forward nothing, and answer that the role of the caller does not allow the request."""
    return refuse("AccessDeniedException")


def page(
    status: int,
    *,
    apply: bool = False,
    content: bytes = b"<html><body>Welcome!</body></html>",
    date: str | None = None,
) -> Fault:
    """Answer with a page of HTML, as load balancers and captive portals do.

    Args:
        status: Status of the answer.
        apply: Whether to forward the request before.
        content: The page.
        date: ``Date`` header of the answer; None for the present time.
    """

    def answer() -> Reply:
        return Reply(status, content, (("Content-Type", "text/html"), ("Date", date or _now())))

    return _meets("page", apply=apply, answer=answer)


def answer_with(reply: Reply) -> Fault:
    """Forward nothing, and answer with a given reply."""
    return _meets("answer_with", answer=lambda: reply)


def delay(seconds: float) -> Fault:
    """Forward the request after some seconds, and answer."""

    def meet(exchange: Exchange) -> None:
        exchange.proxy.closing.wait(seconds)
        exchange.answer(exchange.apply("delay"))

    return Fault("delay", meet)


def delay_answer(seconds: float) -> Fault:
    """Forward the request at once, and answer after some seconds."""

    def meet(exchange: Exchange) -> None:
        reply = exchange.apply("delay_answer")
        exchange.proxy.closing.wait(seconds)
        exchange.answer(reply)

    return Fault("delay_answer", meet)


def stall(until: threading.Event | float = 3600.0, *, apply: bool = False) -> Fault:
    """Leave the connection open without an answer, and reset it in the end.

    Args:
        until: Event that ends this, or seconds after which it ends.
        apply: Whether to forward the request, at once.
    """

    def meet(exchange: Exchange) -> None:
        if apply:
            exchange.apply("stall")
        else:
            exchange.keep_from_engine("stall")
        exchange.proxy.wait_until_closing(until)
        exchange.reset()

    return Fault("stall", meet)


def duplicate(answer: str = "first", then: Callable[[], object] = lambda: None) -> Fault:
    """Forward the request, call ``then``, forward it again, and answer with the "first" or "second" of the two answers."""

    def meet(exchange: Exchange) -> None:
        replies = {"first": exchange.apply("duplicate")}
        then()
        replies["second"] = exchange.apply("duplicate")
        exchange.answer(replies[answer])

    return Fault("duplicate", meet)


class Late(Fault):
    """A fault that resets the connection at once and keeps the request, to forward it when a test says so.

    Attributes:
        caught: Set as soon as there is a request.
        kept: The request, once it has come.
    """

    def __init__(self) -> None:
        super().__init__("late", self._keep)
        self.caught = threading.Event()
        self.kept: Exchange | None = None

    def _keep(self, exchange: Exchange) -> None:
        assert self.kept is None, "one request only"
        # `caught` last: whoever waits for it calls `apply`, which reads `kept`
        self.kept = exchange
        exchange.reset()
        self.caught.set()

    def apply(self, timeout: float = 30.0) -> Reply:
        """Forward the request now; return the answer, for which no client waits any more.

        Args:
            timeout: Seconds for which the request is awaited, if it has not come yet.
        """
        assert self.caught.wait(timeout), "no request came"
        return self.kept.apply("late")


def late() -> Late:
    """Reset the connection at once, and forward the request when `Late.apply` is called."""
    return Late()


def apply_after(exchange: Exchange, seconds: float, fault: str) -> None:
    """Forward a request after some seconds, on a thread, unless the proxy is closed before.

    Args:
        exchange: The request.
        seconds: Seconds from now.
        fault: Name of the fault for the log.
    """

    def apply() -> None:
        if not exchange.proxy.closing.wait(seconds):
            exchange.apply(fault)

    threading.Thread(target=apply, daemon=True).start()


def late_by(seconds: Callable[[], float]) -> Fault:
    """Reset the connection at once, and forward the request as many seconds later as ``seconds`` returns."""

    def meet(exchange: Exchange) -> None:
        wait = seconds()
        exchange.reset()
        apply_after(exchange, wait, "late")

    return Fault("late", meet)


def _without_date(reply: Reply) -> Reply:
    return replace(reply, headers=tuple(h for h in reply.headers if h[0].lower() != "date"))


def no_date() -> Fault:
    """Forward the request, and answer without a Date header; by `FaultProxy.always`, also after other faults."""
    return replace(pass_on(), edit=_without_date)


def set_date(date: Callable[[str], str]) -> Fault:
    """Forward the request, and answer with another Date header; by `FaultProxy.always`, also after other faults.

    Args:
        date: Returns the new header for the old one.
    """

    def edit(reply: Reply) -> Reply:
        headers = tuple((n, date(v) if n.lower() == "date" else v) for n, v in reply.headers)
        return replace(reply, headers=headers)

    return replace(pass_on(), edit=edit)


def cut_off() -> Fault:
    """Forward the request, and answer with the first half of the answer, as if the connection was closed in the middle."""

    def edit(reply: Reply) -> Reply:
        return replace(reply, content=reply.content[: len(reply.content) // 2])

    return replace(pass_on(), edit=edit)


# -- the proxy -----------------------------------------------------------------------------------


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
