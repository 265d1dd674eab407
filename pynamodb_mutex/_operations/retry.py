"""Retry: sends a request, and again while its failure may pass. And the plain reads that need no more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._dynamodb.answers import Failure
from pynamodb_mutex._operations.effects import Send, Wait
from pynamodb_mutex._operations.events import Log
from pynamodb_mutex._protocol.messages import one_line
from pynamodb_mutex._protocol.schedule import SCAN_PATIENCE, Retries

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._dynamodb.store import Request, Store
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.shared import Shared

    class Named(Protocol):
        """What a log record can be about."""

        @property
        def log_fields(self) -> dict[str, Any]: ...


class Attempts:
    """The attempts at one write, of which one or more may be applied.

    Attributes:
        count: How many were sent.
        first_sent: Local time before the first of those that may have been applied, or that one was;
            infinity if none may.
    """

    __slots__ = ("count", "first_sent")

    def __init__(self, *, maybe_applied: bool = False) -> None:
        self.count = 0
        self.first_sent = -math.inf if maybe_applied else math.inf

    @property
    def maybe_applied(self) -> bool:
        """Whether one may have been applied, as far as no answer shows otherwise."""
        return self.first_sent < math.inf


def retrying(
    shared: Shared,
    build: Callable[[], Request],
    until: float,
    *,
    about: Named | None = None,
    attempts: Attempts | None = None,
    accept: Callable[[Answer], Failure | None] | None = None,
) -> Operation[Answer]:
    """Send a request until it is answered.

    Args:
        shared: What the locks of the process share.
        build: Makes the request; called for each attempt, as what it proposes depends on the time.
        until: Local time after which it is not retried.
        about: Whom log records are about.
        attempts: Of this write, continued. While an attempt is under way it counts as one that may have been
            applied: so that an interruption leaves the right answer behind.
        accept: Returns a failure for an answer that cannot be DynamoDB's.

    Raises:
        PynamoDBException: The last failure, once it is too late to retry, or one that cannot pass.
    """
    retries = Retries(shared.now, until)
    made = attempts or Attempts()
    while True:
        request = build()
        made.count += 1
        # Before the effect, not after it: at Ctrl-C the yield raises, and whoever undoes the write must already
        # know that it may have been applied. An answer that it was not takes only this attempt back: an
        # earlier one without an answer may still have been applied.
        before, made.first_sent = made.first_sent, min(made.first_sent, shared.now)
        reply: Answer | Failure = yield Send(request)
        if type(reply) is not Failure and accept is not None:
            reply = accept(reply) or reply
        if type(reply) is not Failure:
            if not reply.applied:
                made.first_sent = before
            return reply
        if not reply.maybe_applied or not reply.transient:
            made.first_sent = before
        if not reply.transient:
            raise reply.error
        at = retries.next(shared.now, shared.uniform, answered=reply.answered)
        if at is None:
            raise reply.error
        fields = None if about is None else about.log_fields
        shared.emit(Log("warning", "%s; to be retried", (one_line(reply.error),), fields))
        yield Wait(at)


def once(request: Request) -> Operation[Answer | Failure]:
    """Send a request once; return what came of it."""
    reply: Answer | Failure = yield Send(request)
    return reply


def learn_time(shared: Shared, store: Store, key: RawItem) -> Operation[None]:
    """Read a row for the server time that the answer shows. An error's answer shows it as well.

    Raises:
        PynamoDBException: If there was no answer.
    """
    try:
        yield from retrying(shared, lambda: store.read(key, consistent=False), 0.0)
    except PynamoDBException:
        if store.bounds is None:
            raise


def scanned_page(
    shared: Shared, store: Store, start: RawItem | None = None, limit: int | None = None
) -> Operation[dict[str, Any]]:
    """Read one page of the rows that carry a claim: see `Store.scan`; return DynamoDB's answer.

    Raises:
        PynamoDBException: If it cannot be read within SCAN_PATIENCE.
    """
    until = shared.now + SCAN_PATIENCE
    answer = yield from retrying(shared, lambda: store.scan(start, limit), until)
    return answer.data
