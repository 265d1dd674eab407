"""The line in a lock's row: the rules by which fair waiters join it, poll, take the lock, and pass dead waiters.

A fair waiter joins the end of a list in the row by one write, and takes the lock when it stands first; the write
that takes the lock removes it from the list. Nothing here is needed for safety: each such write has the
conditions of every acquiring write, and more. What a fault can bring about is a wrong order, or a delay.

Waiters judge each other by these constants: they belong to the protocol, and are no options.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pynamodb_mutex._protocol.claim import FORCED_MARK, TICK
from pynamodb_mutex._protocol.schedule import SHORTEST_WAIT

if TYPE_CHECKING:
    from pynamodb_mutex._protocol.claim import Claim
    from pynamodb_mutex._protocol.server_time import Bounds

PATIENCE = 6.0
"""Seconds for which the lock is free before the one who stands first counts as dead: it polls at least every 2 s,
one request may hang for 3 s, and a poll may have to be repeated after an answer that was out of date."""

STEP = 2.0
"""Seconds more for each further one. Whoever stands behind several dead ones lets those before it go first."""

LONGEST_POLL = 2.0
"""Seconds between two polls of whoever does not stand first, at most; PATIENCE counts on it."""

HEAD_POLL = 0.2
"""Seconds between two polls of the one who stands first, at most: nobody else would notice the release."""

_SHARE = 0.1
"""Of the time for which the present holder has been seen, from one poll of the first in line to the next: a
section that has lasted long will most likely last for a while yet."""

_MEMORY = 10.0
"""Seconds for which a waiter remembers at which places it stood."""

_ONE_CYCLE = 0.02
"""Seconds that a hand-over takes at least."""

_ID = 16
"""Characters of an entry that no other waiter has."""

_LONGEST_ENTRY = 64
"""Bytes of an entry."""


# -- entries ---------------------------------------------------------------------------------------


def new_entry(server_now: float | None, random_bits: str, owner: str) -> str:
    """Return what stands in the row for one call of ``acquire``: when it began, random bits, a bar, and a label.

    Args:
        server_now: Server time, as far as it is known.
        random_bits: At least 32 of them, in hexadecimal digits.
        owner: A label for people. What is too long is cut off.
    """
    began = f"{int(server_now or 0.0):08x}"[:8]
    mark = began + random_bits[-(_ID - len(began)) :] + "|"
    return mark + owner.encode()[: _LONGEST_ENTRY - len(mark)].decode(errors="ignore")


def label_of(entry: str) -> str:
    """Return the label of an entry, for people."""
    return entry.partition("|")[2] or entry


def began_at(entry: str) -> float | None:
    """Return the server time at which a waiter began to wait; None if the entry does not say. For people."""
    try:
        began = float(int(entry[:8], 16))
    except ValueError:
        return None
    return began or None


# -- the writes that take the lock -----------------------------------------------------------------


class Take(NamedTuple):
    """On which condition a fair waiter takes the lock, in addition to those of any acquiring write; and whom that removes.

    Attributes:
        place: At which it must stand; None if it does not stand in line.
        size: How many must stand in line, if it does not.
        ahead: Whether those ahead of it are removed: they count as dead. It is removed in any case.
        past: Seconds for which the lock must have been free, by server time; 0 if it need only be free.
        unchanged: Whether the lock must not have changed hands since it was seen.
    """

    place: int | None = None
    size: int = 0
    ahead: bool = False
    past: float = 0.0
    unchanged: bool = False


def patience(place: int) -> float:
    """Return the seconds for which the lock is free before whoever stands at a place passes all ahead of it."""
    return PATIENCE + (place - 1) * STEP


def _dated(claim: Claim) -> tuple[object, ...]:
    """Return the values of a row of which at least one changes when somebody writes since when the lock is free."""
    return claim.token, claim.expires_at, claim.free_since


# -- what a waiter knows ---------------------------------------------------------------------------


class WaitingLine:
    """What one waiter knows of the line, from the rows that it was shown.

    Args:
        poll: Shortest and longest wait between two polls, in seconds.

    Attributes:
        entry: What stands in the row for it; empty until that is known.
        place: Where it stands, 0 for first; None if it does not.
        may_stand: Whether it may stand in the row: the answer to a write has not shown that it does not.
        doubts: Whether the last read showed less than was known before: the next one must be consistent.
        polled_at: Local time at which the row was seen last.
    """

    def __init__(self, poll: tuple[float, float]) -> None:
        self.entry = ""
        self.place: int | None = None
        self.may_stand = False
        self.doubts = False
        self.polled_at = -math.inf
        self._claim: Claim | None = None
        self._poll = poll
        self._places: deque[tuple[float, int]] = deque()
        self._holder_since = math.inf
        self._first: str | None = None
        self._first_since = math.inf
        self._first_token: str | None = None
        self._free_from = math.inf
        self._looked_at = self._changed_after = -math.inf

    @property
    def size(self) -> int:
        """How many stand in line, as far as is known."""
        return 0 if self._claim is None else len(self._claim.waiting)

    def see(self, claim: Claim, received: float, *, is_current: bool) -> bool:
        """Note the row as an answer showed it; return whether it can be believed.

        Args:
            claim: What the row says.
            received: Local time at which the answer came.
            is_current: Whether it is the answer to a write, or to a consistent read. Another read may show
                the row as it was before: places and fencing tokens only ever move forward.
        """
        self.polled_at = received
        known = self._claim
        place = claim.waiting.index(self.entry) if self.entry in claim.waiting else None
        if not is_current and known is not None:
            is_older = claim.version < known.version
            went_back = self.place is not None and (place is None or place > self.place)
            if is_older or went_back:
                self.doubts = True
                return False
        self.doubts = False
        self.place = place
        self.may_stand = place is not None
        if place is None:
            # What was seen of a line counts no more, if it joins again: those who join an empty row after its deletion
            # may stand in another order, and its first have stood there for long only in the old row.
            self._places.clear()
            self._first = None
        else:
            self._places.append((received, place))
            while received - self._places[0][0] > _MEMORY:
                self._places.popleft()
        self._watch(claim, received)
        self._claim = claim
        return True

    def _watch(self, claim: Claim, received: float) -> None:
        """Note for how long the same waiter has stood first, and the claim has been as it is."""
        known = self._claim
        if known is not None and _dated(claim) != _dated(known):
            self._changed_after = self._looked_at
        # Whoever has not seen the row for long does not know who stood first meanwhile: A stands first, leaves, and joins
        # again behind B, which takes the lock. Then A stands first again, and has not been passed over.
        has_seen_all = received - self._looked_at < PATIENCE
        self._looked_at = received
        if known is None or claim.token != known.token or claim.expires_at is None:
            self._holder_since = received
        first = claim.waiting[0] if claim.waiting else None
        if first is None or first != self._first or not has_seen_all:
            self._first, self._first_since, self._first_token = first, received, claim.token
        elif claim.token is not None and claim.token.startswith(FORCED_MARK):
            self._first_token = claim.token  # nobody has taken the lock
        if claim.expires_at is not None:
            self._free_from = math.inf
        elif known is None or known.expires_at is not None or known.token != claim.token:
            self._free_from = received

    def leave(self) -> None:
        """Note that it does not stand in line."""
        self.place, self.may_stand = None, False
        self._places.clear()

    # -- when to take the lock -------------------------------------------------------------------

    def take(  # noqa: PLR0911 - one for each rule
        self, now: float, bounds: Bounds | None, free_at: float
    ) -> Take | None:
        """Return how to take the lock now; None if that would be refused, or is another's turn.

        Args:
            now: Local time.
            bounds: Of server time.
            free_at: Local time from which any acquiring write may take the lock, as far as is known.
        """
        place, is_free = self.place, now >= free_at
        if place is None and self.size == 0:
            return Take() if is_free else None
        if place == 0:
            return Take(0) if is_free else None
        if now >= self.passes_at(bounds):
            if place is None:
                return Take(size=self.size, past=patience(self.size))
            return Take(place, ahead=True, past=patience(place))
        if place is None or not is_free:
            return None
        if now >= self._watched_at(place, free_at):
            return Take(place, ahead=True, unchanged=True)
        # Without this a dead waiter that stands first, and takers who do not stand in line and never leave the lock
        # free for long, would stop the line for ever. It passes those ahead of it, who may live, and removes none.
        return Take(place) if self._is_passed_over(now, place) else None

    def passes_at(self, bounds: Bounds | None) -> float:
        """Return the local time from which all ahead of this waiter count as dead, if the lock stays free until then.

        The claim in the row may be running now. One that nobody renews expires, and the lock is free from then on.
        """
        claim = self._claim
        ahead = self.size if self.place is None else self.place
        if claim is None or bounds is None or not ahead:
            return math.inf
        free = claim.free_since if claim.expires_at is None else claim.expires_at
        if free is None:
            return math.inf
        # A release that DynamoDB applies 10 s after it was sent says that the lock has been free for as long, and so does
        # a late leave; a late acquire, that its claim expired long ago. Whoever has seen the row as it was before knows
        # better.
        not_before = self._changed_after + patience(ahead)
        # a tick for the instant itself, which is not passed yet, and one for what is written as whole milliseconds
        return max(not_before, bounds.passes(free + patience(ahead) + 2 * TICK))

    def _watched_at(self, place: int, free_at: float) -> float:
        """Return the same by the local clock alone: the first in line and the lock have not changed for as long."""
        if self._claim is None or self._claim.expires_at is None:
            free_at = self._free_from
        return max(self._first_since, free_at) + patience(place)

    def _is_passed_over(self, now: float, place: int) -> bool:
        """Whether others have taken the lock while the same waiter has stood first for long."""
        has_changed = self._claim is not None and self._claim.token != self._first_token
        return has_changed and now >= self._first_since + patience(place)

    # -- when to look ----------------------------------------------------------------------------

    def polls_at(self, now: float, bounds: Bounds | None, free_at: float) -> float:
        """Return the local time of the next poll.

        Args:
            now: Local time.
            bounds: Of server time.
            free_at: Local time at which the claim in the row, if it stays as it is, may be taken.
        """
        # Never at once: a take that came an instant too early was refused, and would be sent again and again.
        return max(self._due(now, bounds, free_at), self.polled_at + SHORTEST_WAIT)

    def _due(self, now: float, bounds: Bounds | None, free_at: float) -> float:
        if self.doubts:
            return self.polled_at + self._poll[0]
        place = self.place
        if place is None:
            return min(self.polled_at + LONGEST_POLL, self.passes_at(bounds))
        if place == 0:
            return min(self.polled_at + self._as_first(now), free_at)
        wait = (
            self._as_first(now)
            if self._is_passed_over(now, place)
            else self._as_another(now, place)
        )
        return min(self.polled_at + wait, self.passes_at(bounds), self._watched_at(place, free_at))

    def _as_first(self, now: float) -> float:
        shortest, longest = self._poll
        return max(shortest, min(_SHARE * (now - self._holder_since), longest, HEAD_POLL))

    def _as_another(self, now: float, place: int) -> float:
        """Return the wait of one who does not stand first: half of the time until it will, as the line has moved."""
        since, then = self._places[0]
        each = (now - since + _ONE_CYCLE) / (then - place + 1)
        return max(self._poll[0], min(place * each / 2, LONGEST_POLL))
