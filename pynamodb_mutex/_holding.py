"""The tasks that hold a lock, and their cancellation when it is lost."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._callers import acting_as, caller_name, this_caller

if TYPE_CHECKING:
    from typing import Protocol

    from pynamodb_mutex._claim import Loss

    class Losable(Protocol):
        """A lock that can be lost."""

        @property
        def loss(self) -> Loss | None:
            """Why the one who asks has lost it."""


class Holding:
    """A task that holds a lock.

    Attributes:
        cancelled_for: The loss for which the task was cancelled.
    """

    def __init__(self, lock: Losable, *, cancel_on_loss: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = lock
        # there is always one where something is awaited
        self._task: Any = asyncio.current_task()
        self._caller = (this_caller(), caller_name())
        self._cancels_on_loss = cancel_on_loss
        self.cancelled_for: Loss | None = None
        self._other_cancels = self._cancels()
        self._ended = False

    def _cancels(self) -> int:
        # Python 3.10 does not count them: then each is taken for ours, once there was one of ours
        count: int = getattr(self._task, "cancelling", int)()
        return count

    def check_soon(self) -> None:
        """Cancel the task if it has lost the lock; called on any thread."""
        with suppress(RuntimeError):  # its loop is closed, and the task ended
            self._loop.call_soon_threadsafe(self._check)

    def _check(self) -> None:
        # on the loop, so that the task stands at an await, and is told there
        if self._ended or self.cancelled_for is not None or not self._cancels_on_loss:
            return
        with acting_as(*self._caller):
            self.cancelled_for = self._lock.loss
        if self.cancelled_for is not None:
            self._task.cancel(f"a lock was lost: {self.cancelled_for.value}")

    def end(self) -> None:
        """Cancel nobody any more."""
        self._ended = True

    def leave(self, error: BaseException | None) -> BaseException | None:
        """Take note that the task leaves the block; return the error with which it does.

        That is none in place of a cancellation that was this object's and nobody else's.
        """
        self.end()
        if self.cancelled_for is None:
            return error
        getattr(self._task, "uncancel", int)()
        ours = self._cancels() <= self._other_cancels
        return None if ours and isinstance(error, asyncio.CancelledError) else error
