"""Effects: what an operation asks its runner to do. Plain values.

An operation is a generator. Between two effects it is atomic: the runner holds the process's monitor while
the operation runs from one effect to the next, and never while a request is sent, a wait lasts, or user
code runs. So operations interleave at their effects only.

An interruption (Ctrl-C, the cancellation of a task) is thrown into the operation at the effect during
which it came. The operation may yield further effects while it handles it, to release what it may
have acquired, and raises it again.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing import Protocol

    from pynamodb_mutex._dynamodb.store import Request, Store

    class Sleeper(Protocol):
        """A thread or task that sleeps until it is woken."""

        def wake(self) -> None:
            """Wake it. Called inside the monitor: it only notifies."""


R = TypeVar("R")


class Send:
    """Send a request. Comes back with its `Answer` or `Failure`; server time was learned from it."""

    __slots__ = ("request",)

    def __init__(self, request: Request) -> None:
        self.request = request


class Open:
    """Make the client of a store: it knows the endpoint, and so whether its time is known already.

    It takes a tenth of a second. What goes wrong is said by the request that follows.
    """

    __slots__ = ("store",)

    def __init__(self, store: Store) -> None:
        self.store = store


class Wakeup:
    """What ends a wait before its time.

    Attributes:
        rung: Whether it rang since the last wait on it ended.
        sleeper: Who waits on it; set by the runner.
    """

    __slots__ = ("rung", "sleeper")

    def __init__(self) -> None:
        self.rung = False
        self.sleeper: Sleeper | None = None

    def ring(self) -> None:
        """End the wait on it, or the next one, if it has not begun."""
        self.rung = True
        # Read once: a waiter whose time is up sets it to None at any moment, outside the monitor.
        sleeper = self.sleeper
        if sleeper is not None:
            sleeper.wake()


class Wait:
    """Wait until a local time, or until the wake-up rings."""

    __slots__ = ("until", "wakeup")

    def __init__(self, until: float = math.inf, wakeup: Wakeup | None = None) -> None:
        self.until = until
        self.wakeup = wakeup


class Start:
    """Run another operation in the background, on a thread of those that send renewals."""

    __slots__ = ("operation",)

    def __init__(self, operation: Operation[Any]) -> None:
        self.operation = operation


class Deliver:
    """Go on when the events so far were delivered. What a receiver was interrupted by is thrown here."""

    __slots__ = ()


Effect = Send | Open | Wait | Start | Deliver

Operation = Generator[Effect, Any, R]
"""Yields effects, and returns its result."""
