"""Faults: what may happen to a request on its way to the engine and back.

Each function returns a `Fault`; its first line says what that does to the request. "Forward" means that the
engine gets the request and applies it, if its conditions hold; "answer" and "reset" are what the client gets. Which
requests meet a fault is decided by `FaultProxy.next` and `FaultProxy.always`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dev.faultproxy.wire import Exchange, Reply


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


def _refuses(name: str, status: int, code: str, **more: Any) -> Fault:
    """Return a fault that answers with an error, and forwards nothing."""

    def meet(exchange: Exchange) -> None:
        exchange.keep_from_engine(name)
        # Made at each request: a fault may stand for a whole run, and a Date from the beginning of the run would show
        # clients a server time that is long past.
        exchange.answer(_made_up(status, code, **more))

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

    def meet(exchange: Exchange) -> None:
        exchange.keep_from_engine("drop_request")
        then()
        exchange.reset()

    return Fault("drop_request", meet)


def drop_answer(then: Callable[[], object] = lambda: None) -> Fault:
    """Forward the request, call ``then``, such as another client's request, and reset the connection: the answer is lost."""

    def meet(exchange: Exchange) -> None:
        exchange.apply("drop_answer")
        then()
        exchange.reset()

    return Fault("drop_answer", meet)


def server_error() -> Fault:
    """Forward nothing, and answer with status 500."""
    return _refuses("server_error", 500, "InternalServerError")


def unavailable() -> Fault:
    """Forward nothing, and answer with status 503."""
    return _refuses("unavailable", 503, "ServiceUnavailable")


def apply_then_500(then: Callable[[], object] = lambda: None) -> Fault:
    """Forward the request, call ``then``, and answer with status 500."""

    def meet(exchange: Exchange) -> None:
        exchange.apply("apply_then_500")
        then()
        exchange.answer(_made_up(500, "InternalServerError"))

    return Fault("apply_then_500", meet)


def throttle(code: str = "ThrottlingException") -> Fault:
    """Forward nothing, and answer with status 400 and a code of throttling."""
    return _refuses("throttle", 400, code)


def deny() -> Fault:
    """Forward nothing, and answer that the role of the caller does not allow the request."""
    return _refuses("deny", 400, "AccessDeniedException")


def refuse(code: str, status: int = 400, **more: Any) -> Fault:
    """Forward nothing, and answer with any other error, with ``more`` in its body."""
    return _refuses(code, status, code, **more)


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

    def meet(exchange: Exchange) -> None:
        if apply:
            exchange.apply("page")
        else:
            exchange.keep_from_engine("page")
        headers = (("Content-Type", "text/html"), ("Date", date or _now()))
        exchange.answer(Reply(status, content, headers))

    return Fault("page", meet)


def answer_with(reply: Reply) -> Fault:
    """Forward nothing, and answer with a given reply."""

    def meet(exchange: Exchange) -> None:
        exchange.keep_from_engine("answer_with")
        exchange.answer(reply)

    return Fault("answer_with", meet)


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
