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


SHORTEST_WAIT = 0.05
"""Seconds between two attempts, at most, at first ..."""

LONGEST_WAIT = 1.0
"""... and in the end."""


class Transient(Exception):  # noqa: N818 - not an error: it is repeated, or its cause raised
    """A failure that may pass.

    Attributes:
        error: What to raise when it does not.
        maybe_applied: Whether the request may have been applied.
    """

    def __init__(self, error: PynamoDBException, *, maybe_applied: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.maybe_applied = maybe_applied


def persisting(attempt: Callable[[], T], until: float, lock: Named | None = None) -> Steps[T]:
    """Repeat an attempt, in steps, while its failure may pass.

    The waits grow exponentially, with full jitter, after M. Brooker as `_waiting.next_wait`. The steps of
    a task are done now on this thread, now on that: a library that keeps count by the thread cannot.

    Args:
        attempt: Sends one request; called again after Transient.
        until: Local time after which it is not repeated, but PATIENCE is always granted.
        lock: What it is about, for the log.

    Raises:
        PynamoDBException: The last failure, once it is too late to repeat, or one that cannot pass.
    """
    clock, wait = local_clock(), SHORTEST_WAIT
    until = max(until, clock.now() + PATIENCE)
    while True:
        try:
            return attempt()
        except Transient as failure:
            if clock.now() >= until:
                raise failure.error from failure.error.cause
            fields = None if lock is None else lock.log_fields
            _log.warning("%s; to be repeated", one_line(failure), extra=fields)
        yield min(clock.now() + random.uniform(0, wait), until)  # noqa: S311 - jitter, not a secret
        wait = min(LONGEST_WAIT, 2 * wait)


def persist(attempt: Callable[[], T], until: float, lock: Named | None = None) -> T:
    """Do `persisting` on this thread, which sleeps between the attempts."""
    return all_steps(persisting(attempt, until, lock), Alarm())
