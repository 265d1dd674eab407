"""What may happen to a request on its way."""

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
    """What happens to a request; ``edit`` changes whatever answer it gets."""

    name: str | None
    meet: Callable[[Exchange], None]
    edit: Callable[[Reply], Reply] | None = None


def _now() -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())


DYNAMODBS = (
    ("Content-Type", "application/x-amz-json-1.0"),
    ("x-amzn-RequestId", "MADEUPBYTHEPROXY"),
)
"""Headers by which DynamoDB's answers are known."""


def _made_up(status: int, code: str, **more: Any) -> Reply:
    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "made up by the proxy"}
    return Reply(status, json.dumps(body | more).encode(), (*DYNAMODBS, ("Date", _now())))


def _refuses(name: str, status: int, code: str, **more: Any) -> Fault:
    def meet(exchange: Exchange) -> None:
        exchange.keep_from_engine(name)
        # made now: a fault may stand for a whole run, and a Date of its beginning would be a lie
        exchange.answer(_made_up(status, code, **more))

    return Fault(name, meet)


def pass_on() -> Fault:
    """Nothing happens to it."""
    return Fault(None, lambda exchange: exchange.answer(exchange.apply(None)))


def after(before: Callable[[], object]) -> Fault:
    """Applied after something else has happened."""

    def meet(exchange: Exchange) -> None:
        before()
        exchange.answer(exchange.apply("after"))

    return Fault("after", meet)


def drop_request(then: Callable[[], object] = lambda: None) -> Fault:
    """Reset before the engine sees it; something else may happen between."""

    def meet(exchange: Exchange) -> None:
        exchange.keep_from_engine("drop_request")
        then()
        exchange.reset()

    return Fault("drop_request", meet)


def drop_answer(then: Callable[[], object] = lambda: None) -> Fault:
    """Applied, then something else happens, then reset."""

    def meet(exchange: Exchange) -> None:
        exchange.apply("drop_answer")
        then()
        exchange.reset()

    return Fault("drop_answer", meet)


def drop_answer_then(then: Callable[[], object]) -> Fault:
    """Applied; then, for instance, another client acquires; then reset."""
    return drop_answer(then)


def server_error() -> Fault:
    """500, and not applied."""
    return _refuses("server_error", 500, "InternalServerError")


def unavailable() -> Fault:
    """503, and not applied."""
    return _refuses("unavailable", 503, "ServiceUnavailable")


def apply_then_500(then: Callable[[], object] = lambda: None) -> Fault:
    """Applied, then something else happens, then 500."""

    def meet(exchange: Exchange) -> None:
        exchange.apply("apply_then_500")
        then()
        exchange.answer(_made_up(500, "InternalServerError"))

    return Fault("apply_then_500", meet)


def throttle(code: str = "ThrottlingException") -> Fault:
    """400 with the code, and not applied."""
    return _refuses("throttle", 400, code)


def deny() -> Fault:
    """400: the caller's role does not allow it."""
    return _refuses("deny", 400, "AccessDeniedException")


def refuse(code: str, status: int = 400, **more: Any) -> Fault:
    """Any other error, and not applied; ``more`` goes into its body."""
    return _refuses(code, status, code, **more)


def page(
    status: int,
    *,
    apply: bool = False,
    content: bytes = b"<html><body>Welcome!</body></html>",
    date: str | None = None,
) -> Fault:
    """A page of HTML, as load balancers and captive portals give it."""

    def meet(exchange: Exchange) -> None:
        if apply:
            exchange.apply("page")
        else:
            exchange.keep_from_engine("page")
        headers = (("Content-Type", "text/html"), ("Date", date or _now()))
        exchange.answer(Reply(status, content, headers))

    return Fault("page", meet)


def answer_with(reply: Reply, name: str = "answer_with") -> Fault:
    """Any answer, and not applied."""

    def meet(exchange: Exchange) -> None:
        exchange.keep_from_engine(name)
        exchange.answer(reply)

    return Fault(name, meet)


def delay(seconds: float) -> Fault:
    """Applied only after a while, then answered."""

    def meet(exchange: Exchange) -> None:
        exchange.proxy.closing.wait(seconds)
        exchange.answer(exchange.apply("delay"))

    return Fault("delay", meet)


def delay_answer(seconds: float) -> Fault:
    """Applied at once, answered after a while."""

    def meet(exchange: Exchange) -> None:
        reply = exchange.apply("delay_answer")
        exchange.proxy.closing.wait(seconds)
        exchange.answer(reply)

    return Fault("delay_answer", meet)


def stall(until: threading.Event | float = 3600.0, *, apply: bool = False) -> Fault:
    """Half-open: no answer until released, and none then either.

    Args:
        until: An event, or seconds.
        apply: Whether the engine sees it, at once.
    """

    def meet(exchange: Exchange) -> None:
        if apply:
            exchange.apply("stall")
        else:
            exchange.keep_from_engine("stall")
        exchange.proxy.wait_until_closing(until)
        exchange.reset()

    return Fault("stall", meet)


def duplicate(answer: str = "first") -> Fault:
    """Sent on twice; ``answer`` says which of the two answers the client gets."""

    def meet(exchange: Exchange) -> None:
        replies = {place: exchange.apply("duplicate") for place in ("first", "second")}
        exchange.answer(replies[answer])

    return Fault("duplicate", meet)


class Late(Fault):
    """A request that the network keeps: the client's connection is reset at once."""

    def __init__(self) -> None:
        super().__init__("late", self._keep)
        self.caught = threading.Event()
        self.kept: Exchange | None = None

    def _keep(self, exchange: Exchange) -> None:
        assert self.kept is None, "one request only"
        self.kept = exchange
        exchange.reset()
        self.caught.set()

    def apply(self, timeout: float = 30.0) -> Reply:
        """Let it reach the engine now; return the answer, which nobody waits for any more."""
        assert self.caught.wait(timeout), "no request came"
        return self.kept.apply("late")


def late() -> Late:
    """Reset at once, and applied when the test says so."""
    return Late()


def apply_after(exchange: Exchange, seconds: float, fault: str) -> None:
    """Let a request reach the engine later, if there still is one then."""

    def apply() -> None:
        if not exchange.proxy.closing.wait(seconds):
            exchange.apply(fault)

    threading.Thread(target=apply, daemon=True).start()


def late_by(seconds: Callable[[], float]) -> Fault:
    """Reset at once, and applied so many seconds later."""

    def meet(exchange: Exchange) -> None:
        wait = seconds()
        exchange.reset()
        apply_after(exchange, wait, "late")

    return Fault("late", meet)


def _without_date(reply: Reply) -> Reply:
    return replace(reply, headers=tuple(h for h in reply.headers if h[0].lower() != "date"))


def no_date() -> Fault:
    """The answer has no Date header. With `always`, that of every other fault neither."""
    return replace(pass_on(), edit=_without_date)


def set_date(date: Callable[[str], str]) -> Fault:
    """The answer has another Date header. With `always`, that of every other fault too."""

    def edit(reply: Reply) -> Reply:
        headers = tuple((n, date(v) if n.lower() == "date" else v) for n, v in reply.headers)
        return replace(reply, headers=headers)

    return replace(pass_on(), edit=edit)
