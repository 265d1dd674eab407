"""Retry requests while their failure may pass, and read rows.

Most requests of the protocol are sent by `retrying`, which also notes since when an attempt may have been applied.
When to retry is decided in `protocol.schedule`, which failures may pass in `dynamodb.answers`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._lock.dynamodb.answers import Failure
from pynamodb_mutex._lock.operations.effects import Send, Wait
from pynamodb_mutex._lock.operations.events import Log
from pynamodb_mutex._lock.protocol.messages import one_line
from pynamodb_mutex._lock.protocol.schedule import Retries

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Request, Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.process_state import ProcessState

    class Named(Protocol):
        """Something that a log record can be about, such as a claim."""

        @property
        def log_fields(self) -> dict[str, Any]: ...


_READS = frozenset({"GetItem", "BatchGetItem"})


class Attempts:
    """The attempts at one write, any of which may have been applied.

    Args:
        maybe_applied: Whether a write before these attempts may have had the same effect.

    Attributes:
        count: Number of attempts that were sent.
        first_sent: Local time before the first attempt that was, or may have been, applied; infinity if there is
            none, minus infinity if it was before these attempts.
    """

    __slots__ = ("count", "first_sent")

    def __init__(self, *, maybe_applied: bool = False) -> None:
        self.count = 0
        self.first_sent = -math.inf if maybe_applied else math.inf

    @property
    def maybe_applied(self) -> bool:
        """Whether an attempt was, or may have been, applied, as far as the answers show."""
        return self.first_sent < math.inf


def retrying(
    process: ProcessState,
    build: Callable[[], Request],
    until: float,
    *,
    about: Named | None = None,
    attempts: Attempts | None = None,
    accept: Callable[[Answer], Failure | None] | None = None,
) -> Operation[Answer]:
    """Send a request, and retry it until it is answered. A condition that did not hold is an answer, too.

    As long as server time is not known, a read is sent again after an answer without a ``Date``, a few times.

    Args:
        process: State of the process.
        build: Makes the request; called for each attempt, since what it proposes depends on the time.
        until: Local time after which a failure is not retried; `schedule.PATIENCE` is granted in any case. If the connection
            counts retries, ``until`` limits only retries of a conflict.
        about: The claim or contender that log records are about; None if there is none.
        attempts: The attempts at this write so far, which are continued; None to begin anew.
        accept: Returns a failure for an answer that cannot be DynamoDB's, else None.

    Raises:
        PynamoDBException: The last failure, once it is too late to retry, or a failure that cannot pass.
    """
    begun, retries = process.now, None
    attempts = attempts or Attempts()
    failures = 0
    while True:
        request = build()
        attempts.count += 1
        # Before the effect, not after it: at Ctrl-C the yield raises, and the undo must already know that the write may have
        # been applied. If the answer says that it was not, only this attempt is taken back: an earlier attempt without an
        # answer may still have been applied.
        before, attempts.first_sent = attempts.first_sent, min(attempts.first_sent, process.now)
        reply: Answer | Failure = yield Send(request)
        if type(reply) is not Failure and accept is not None:
            reply = accept(reply) or reply
        if type(reply) is not Failure:
            if not reply.applied:
                attempts.first_sent = before
            # A process reads before its first write, for the time that the answer shows. Without the time, the write would
            # create a row whose fencing token is below those of the row that the TTL has deleted.
            server = request.store.connection.server
            if reply.is_dynamodbs and request.operation in _READS and server.may_be_learned:
                continue
            return reply
        # A failure that cannot pass is DynamoDB's refusal of this request, or it was never sent.
        if not reply.maybe_applied or not reply.transient:
            attempts.first_sent = before
        if not reply.transient:
            raise reply.error
        retries = retries or Retries(begun, until, request.store.connection.retries)
        at = retries.next(
            process.now, process.uniform, answered=reply.answered, conflict=reply.conflict
        )
        if at is None:
            raise reply.error
        failures += 1
        # Log the first, second, fourth, eighth failure, and so on: suppose DynamoDB cannot be reached for hours, and a waiter
        # retries twice a second.
        if failures.bit_count() == 1:
            fields = None if about is None else about.log_fields
            values = (one_line(reply.error), failures)
            process.emit(Log("warning", "%s; to be retried (failure %s)", values, fields))
        yield Wait(at)


def send(request: Request) -> Operation[Answer | Failure]:
    """Send a request once."""
    reply: Answer | Failure = yield Send(request)
    return reply


def learn_time(process: ProcessState, store: Store, key: RawItem) -> Operation[None]:
    """Read a row for the server time that the answer shows. The answer with an error shows it as well.

    Raises:
        PynamoDBException: If no answer showed it.
    """
    try:
        yield from retrying(process, lambda: store.read(key, consistent=False), 0.0)
    except PynamoDBException:
        if store.bounds is None:
            raise
