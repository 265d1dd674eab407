"""The ``with`` blocks that threads and tasks are in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from pynamodb_mutex._callers import take_last, this_caller
from pynamodb_mutex._messages import one_line
from pynamodb_mutex.exceptions import add_note

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Protocol

    class Acquired(Protocol):
        """What a block holds."""

        blocks: int

        @property
        def finished(self) -> bool:
            """Whether it was given back."""


H = TypeVar("H", bound="Acquired")


class Blocks(Generic[H]):
    """A lock that is given back when the block under it is left."""

    _holds: dict[int, H]
    _entered: dict[int, list[H]]

    if TYPE_CHECKING:

        def _release(self, hold: H) -> None: ...

    def _enters(self) -> None:
        """Take note that this thread or task begins a block with what it holds."""
        me = this_caller()
        hold = self._holds[me]
        hold.blocks += 1
        self._entered.setdefault(me, []).append(hold)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock back. The body's own exception is never replaced.

        Raises:
            MutexLostError: After a clean body, if the lock was lost meanwhile.
        """
        entered = take_last(self._entered)
        entered.blocks -= 1
        # the body may have given it back, or lost it, and taken it again
        hold = self._holds.get(this_caller(), entered)
        if hold.finished:
            return
        try:
            self._release(hold)
        except Exception as failure:
            if error is None:
                raise
            add_note(error, f"and the lock could not be given back: {one_line(failure)}")
