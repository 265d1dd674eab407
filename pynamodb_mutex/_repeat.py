"""Repeating what failed and may pass."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, TypeVar

from pynamodb_mutex._clock import local_clock, sleep
from pynamodb_mutex._lazy import load_tenacity

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.exceptions import PynamoDBException

_log = logging.getLogger("pynamodb_mutex")

T = TypeVar("T")

PATIENCE = 0.5
"""Seconds for which a failure that passes is met with a repeat even when the caller would not wait."""


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


def persist(attempt: Callable[[], T], until: float) -> T:
    """Repeat an attempt while its failure may pass, with full jitter.

    Args:
        attempt: Sends one request; called again after Transient.
        until: Local time after which it is not repeated, but PATIENCE is always granted.

    Raises:
        PynamoDBException: The last failure, once it is too late to repeat, or one that cannot pass.
    """
    clock = local_clock()
    until = max(until, clock.now() + PATIENCE)
    try:
        return attempt()
    except Transient as failure:
        if clock.now() >= until:
            raise failure.error from failure.error.cause
        _log.warning("%s; to be repeated", failure)
    load_tenacity()
    import tenacity  # noqa: PLC0415 - not needed as long as nothing fails

    def wait_at_most(duration: float) -> None:
        sleep(max(0.0, min(duration, until - clock.now())))

    wait_at_most(random.uniform(0, 0.05))  # noqa: S311 - jitter, not a secret
    repeat = tenacity.Retrying(
        sleep=wait_at_most,
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
        stop=lambda _: clock.now() >= until,
        retry=tenacity.retry_if_exception_type(Transient),
        reraise=True,
    )
    try:
        return repeat(attempt)
    except Transient as failure:
        raise failure.error from failure.error.cause
