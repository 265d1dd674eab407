"""Hints: waiters with ``fair=True`` are called when it is their turn, instead of finding it out by a poll.

Whoever releases a lock sees in the answer who stands first in line, and at which address, and sends one datagram with the
id of that entry. The waiter takes the lock by the same write as always, under the same conditions. So a hint decides nothing,
and one that is lost, late, doubled or forged costs a poll, or a write that is refused.

Where a process listens, and what sends the datagrams, is in `listener`; the entries are in `waiting_line`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb_mutex._fair.waiting_line import address_of, id_of
from pynamodb_mutex._lock.operations.events import Hint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._lock.operations.effects import Wakeup
    from pynamodb_mutex._lock.operations.shared import Shared

NEXT = "+"
"""What follows the id in a hint to a waiter that is next, but not called yet."""

SHORTEST = 0.2
"""Seconds from one take by a hint to the next, at least: whoever can read the row can send as many hints as it likes."""


class Called:
    """A waiter that can be called.

    Attributes:
        hint: The last hint that it has not followed yet: its id, with `NEXT` if it is only next; empty if there is none.
    """

    def __init__(self, shared: Shared, entry: str, wakeup: Wakeup) -> None:
        self.hint = ""
        self._shared = shared
        self._id = id_of(entry)
        self._wakeup = wakeup
        self._taken_at = -SHORTEST
        shared.called[self._id] = self

    def note(self, hint: str) -> None:
        """Note a hint that has arrived, and wake the waiter."""
        # a call is not undone by the "next" of a release before it, which has overtaken it
        self.hint = hint if not self.hint else min(hint, self.hint)
        self._shared.was_called = True
        self._wakeup.ring()

    def follow(self) -> str | None:
        """Return how the last hint is to be followed: "take", "poll" or, if there is none, None."""
        hint, self.hint = self.hint, ""
        if not hint:
            return None
        now = self._shared.now
        if hint != self._id or now < self._taken_at + SHORTEST:
            return "poll"
        self._taken_at = now
        return "take"

    def end(self) -> None:
        """Wait no longer."""
        self._shared.called.pop(self._id, None)


def note_hint(shared: Shared, text: str) -> None:
    """Note a datagram that has arrived, if it is for a waiter of this process. Called inside the monitor."""
    waiter = shared.called.get(text.removesuffix(NEXT))
    if waiter is not None:
        waiter.note(text)


def call_first(shared: Shared, waiting: Sequence[str], *, is_free: bool = True) -> None:
    """Call the first in line, and let the one behind know that it is next.

    Args:
        shared: What the locks of the process share.
        waiting: The entries in line, first come first.
        is_free: Whether the lock is free. If not, the first is next.
    """
    # Without the second hint, a waiter that polls rarely does not know that it stands first now: a call that gets lost would
    # cost it all the time until its next poll.
    marks = ("", NEXT) if is_free else (NEXT,)
    for entry, mark in zip(waiting, marks, strict=False):
        address = address_of(entry)
        if address is not None:
            shared.emit(Hint(address, id_of(entry) + mark))
