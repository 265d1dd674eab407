"""Effects: plain values that an operation yields to have its runner send a request, wait, and so on.

An operation is a generator. Between two effects it is atomic: the runner holds the process's monitor while
the operation runs from one effect to the next, and never while a request is sent, a wait lasts, or user
code runs. So operations interleave at their effects only.

An interruption (Ctrl-C, the cancellation of a task) is thrown into the operation at the effect during
which it came. While the operation handles it, it may yield further effects, to release what it may have
acquired; then it raises it again. The runners are in `runtime`.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from pynamodb_mutex._lock.dynamodb.store import Request

    class Sleeper(Protocol):
        """A sleeping thread or task."""

        def wake(self) -> None:
            """Wake it. Called inside the monitor, so this must not wait for anything."""


R = TypeVar("R")


class Send:
    """Send a request. The operation gets its `Answer` or `Failure`; the runner has learned server time from it."""

    def __init__(self, request: Request) -> None:
        self.request = request


class Outside:
    """Call a function outside the monitor, because it may take time. The operation gets its result."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call


class Wakeup:
    """A bell that ends a wait before its time.

    Attributes:
        rung: Whether it has rung since the last wait on it ended.
        sleeper: The thread or task that waits on it, set by the runner; None if there is none.
    """

    def __init__(self) -> None:
        self.rung = False
        self.sleeper: Sleeper | None = None

    def ring(self) -> None:
        """End the wait on this wake-up; if nobody waits, end the next wait at once."""
        # In this order; the runner sets `sleeper` first, and then reads `rung`. So a ring at any moment finds the
        # sleeper, or is seen by the runner before it sleeps. In the other order a ring could get lost.
        self.rung = True
        # Read once: a waiter whose time is up sets it to None at any moment, outside the monitor.
        sleeper = self.sleeper
        if sleeper is not None:
            sleeper.wake()


class Wait:
    """Wait until a local time, or until a wake-up rings.

    Args:
        until: The local time; infinity to wait for the wake-up alone.
        wakeup: The wake-up; None to wait for the time alone.
    """

    def __init__(self, until: float = math.inf, wakeup: Wakeup | None = None) -> None:
        self.until = until
        self.wakeup = wakeup


class Start:
    """Run another operation in the background, on one of the threads that send renewals.

    Args:
        operation: The operation.
        place: `Connection.place` of its requests: an endpoint that hangs does not delay renewals at another.
    """

    def __init__(self, operation: Operation[Any], place: str) -> None:
        self.operation = operation
        self.place = place


class Deliver:
    """Continue once the runner has delivered the events so far. If a receiver is interrupted, the exception is thrown here."""


Effect = Send | Outside | Wait | Start | Deliver

Operation = Generator[Effect, Any, R]
"""A generator that yields effects, and returns the operation's result."""
