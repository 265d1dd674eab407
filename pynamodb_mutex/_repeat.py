"""Repeating what failed and may pass."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, TypeVar

from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._messages import one_line
from pynamodb_mutex._waiting import Alarm, all_steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from pynamodb.exceptions import PynamoDBException

    from pynamodb_mutex._waiting import Steps

    class Named(Protocol):
        """What a record in the log can be about."""

        @property
        def log_fields(self) -> dict[str, Any]: ...


_log = logging.getLogger("pynamodb_mutex")

T = TypeVar("T")

PATIENCE = 0.5
"""Seconds for which a failure that passes is met with a repeat even when the caller would not wait."""


STRANGER_PATIENCE = 10.0
"""Seconds for which an endpoint that has never answered this process is asked again, at most.

A mistyped region or host looks like a network that is down, and would be waited for for ever.
"""

SHORTEST_WAIT = 0.05
"""Seconds between two attempts, at most, at first ..."""

LONGEST_WAIT = 1.0
"""... and in the end."""


class Transient(Exception):  # noqa: N818 - not an error: it is repeated, or its cause raised
    """A failure that may pass.

    Attributes:
        error: What to raise when it does not.
        maybe_applied: Whether the request may have been applied.
        answered: Whether DynamoDB has answered there, now or before: else there may be nothing.
    """

    def __init__(
        self, error: PynamoDBException, *, maybe_applied: bool, answered: bool = True
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.maybe_applied = maybe_applied
        self.answered = answered


def persisting(attempt: Callable[[], T], until: float, lock: Named | None = None) -> Steps[T]:
    """Repeat an attempt, in steps, while its failure may pass.

    The waits grow exponentially, with full jitter, after M. Brooker as `_waiting.next_wait`. The steps of
    a task are done now on this thread, now on that: a library that keeps count by the thread cannot.

    Args:
        attempt: Sends one request; called again after Transient.
        until: Local time after which it is not repeated, but PATIENCE is always granted; and no more than
            STRANGER_PATIENCE as long as DynamoDB has never answered there.
        lock: What it is about, for the log.

    Raises:
        PynamoDBException: The last failure, once it is too late to repeat, or one that cannot pass.
    """
    clock, wait = local_clock(), SHORTEST_WAIT
    begun = clock.now()
    until = max(until, begun + PATIENCE)
    while True:
        try:
            return attempt()
        except Transient as failure:
            # judged at each failure: meanwhile another thread's request may have been answered
            ends = until if failure.answered else min(until, begun + STRANGER_PATIENCE)
            if clock.now() >= ends:
                raise failure.error from failure.error.cause
            fields = None if lock is None else lock.log_fields
            _log.warning("%s; to be repeated", one_line(failure), extra=fields)
        yield min(clock.now() + random.uniform(0, wait), ends)  # noqa: S311 - jitter, not a secret
        wait = min(LONGEST_WAIT, 2 * wait)


def persist(attempt: Callable[[], T], until: float, lock: Named | None = None) -> T:
    """Do `persisting` on this thread, which sleeps between the attempts."""
    return all_steps(persisting(attempt, until, lock), Alarm())
