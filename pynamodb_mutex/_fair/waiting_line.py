"""The waiting line in a lock's row (``fair=True``): when a fair waiter polls, takes the lock, and passes dead waiters.

A fair waiter joins the end of a list in the row by one write, and takes the lock when it stands first; the write
that takes the lock removes it from the list. Nothing here is needed for safety: each such write has the
conditions of every acquiring write, and more. The worst that a fault can cause is a wrong order, or a delay.

Waiters judge each other by these constants: they belong to the protocol, and are no options. `pynamodb_mutex._fair.acquire` sends
the requests; docs/concepts/order.rst explains the rules to users.
"""

from __future__ import annotations

import base64
import ipaddress
import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, NO_SERVER_TIME, TICK
from pynamodb_mutex._lock.protocol.schedule import SHORTEST_WAIT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._lock.protocol.claim import Claim
    from pynamodb_mutex._lock.protocol.server_time import Bounds

DEAD_AFTER = 6.0
"""Seconds for which the lock must have been free before the first in line counts as dead: a waiter polls at least every
2 s, one request may hang for 3 s, and a poll may have to be repeated after an answer that was out of date."""

STEPS = (1.0,) * 2 + (0.5,) * 10 + (0.09,) * 100
"""Seconds more for each further waiter ahead, so that the waiters behind several dead ones still take their turns in order.

A step of 1 s covers a waiter that has just come and knows server time to the second of a ``Date``; a step of 0.5 s covers a
waiter whose polls have shown server time to about 0.3 s. Waiters behind twelve others have short steps and may pass each other,
but behind fifty dead waiters a free lock stays free for 17 s at most."""

NEXT_POLL = 0.3
"""Seconds until the poll of a waiter with a "next" hint: it stands first from then on, and the hint about the release may get
lost."""

LONGEST_POLL = 1.8
"""Longest wait between two polls of a waiter that does not stand first, in seconds. DEAD_AFTER relies on it.

Not whole seconds: a ``Date`` shows server time best just after it has changed, so each poll should come at another part of the
second."""

HEAD_POLL = 0.2
"""Longest wait between two polls of the first in line, in seconds: nobody else may take the lock that is released."""

_SHARE = 0.1
"""Wait between two polls of the first in line, as a share of the time for which it has seen the present holder: if a section has
lasted long, it will most likely last for a while yet."""

_MEMORY = 10.0
"""Seconds for which a waiter remembers the places it stood at, to know how fast the line moves."""

_ONE_CYCLE = 0.02
"""Shortest time that the lock takes to get from one waiter to the next, in seconds."""

_ID = 16
"""Characters at the beginning of an entry that no other waiter's entry has."""

_LONGEST_ENTRY = 64
"""Most bytes of an entry."""

STRUCK_OUT = "-"
"""Stands in the place of an entry whose waiter has left, while many wait: no other entry moves, so that many can leave at once."""

_CAN_BE_CALLED = "!"
"""Follows the id in an entry with an address. All other entries have the bar there, so no label is taken for an address."""


# -- entries ---------------------------------------------------------------------------------------


def new_entry(
    server_now: float | None, random_bits: str, owner: str, address: bytes | None = None
) -> str:
    """Return the entry in the row for one call of ``acquire``: when it began, random bits, the address if any, a bar, a label.

    Args:
        server_now: Server time, in seconds; None if it is not known.
        random_bits: At least 32 random bits, as hexadecimal digits.
        owner: Label for people; cut off, at a character, if it is too long.
        address: Packed address and port at which the waiter can be called; None if it cannot.
    """
    began = f"{int(server_now or 0.0):08x}"[:8]
    called = "" if address is None else _CAN_BE_CALLED + base64.b64encode(address).decode()
    mark = began + random_bits[-(_ID - len(began)) :] + called + "|"
    return mark + owner.encode()[: _LONGEST_ENTRY - len(mark)].decode(errors="ignore")


def label_of(entry: str) -> str:
    """Return the owner label in an entry, for people; the whole entry if it has none."""
    return entry.partition("|")[2] or entry


def in_line(waiting: Sequence[str]) -> list[str]:
    """Return the entries of the waiters in a list, without those that are struck out."""
    return [entry for entry in waiting if entry != STRUCK_OUT]


def id_of(entry: str) -> str:
    """Return the beginning of an entry, which no other entry has: hints name their waiter by it."""
    return entry[:_ID]


def address_of(entry: str) -> tuple[str, int] | None:
    """Return the address and the port at which a waiter can be called; None if its entry has no address that may be used.

    Anybody who may write the row can put any address there. We send a datagram only to an address of one host.
    """
    mark, _, _ = entry.partition("|")
    if mark[_ID : _ID + 1] != _CAN_BE_CALLED:
        return None
    try:
        packed = base64.b64decode(mark[_ID + 1 :], validate=True)
        address = ipaddress.ip_address(packed[:-2])
    except ValueError:
        return None
    port = int.from_bytes(packed[-2:], "big")
    return (str(address), port) if is_a_hosts(address) and port else None


def is_a_hosts(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address belongs to one host. ::1 does, although Python counts it as reserved."""
    is_reserved = address.is_reserved and not address.is_loopback
    return not (address.is_multicast or address.is_unspecified or is_reserved)


def began_at(entry: str) -> float | None:
    """Return the server time at which the waiter began to wait; None if its entry does not say. For people."""
    try:
        began = float(int(entry[:8], 16))
    except ValueError:
        return None
    return began or None


# -- the writes that take the lock -----------------------------------------------------------------


class Take(NamedTuple):
    """The conditions about the line for the write by which a fair waiter takes the lock, and the entries that it removes.

    The conditions of any acquiring write come in addition.

    Attributes:
        at: Index at which the waiter's entry must stand in the list; None if it does not stand there.
        ahead: Whether the write also removes the entries ahead of the waiter's own, which are struck out or dead. A waiter
            without an entry removes all entries, and the list must be as it was seen; if ``ahead`` is false, it must be empty.
        past: Seconds for which the lock must have been free, by server time; 0 if it need only be free.
        unchanged: Whether the lock must not have changed hands since the row was seen.
    """

    at: int | None = None
    ahead: bool = False
    past: float = 0.0
    unchanged: bool = False


def dead_after(place: int) -> float:
    """Return the seconds for which the lock must be free before the waiter at a place may pass all ahead of it."""
    return DEAD_AFTER + sum(STEPS[: place - 1])


def _dated(claim: Claim) -> tuple[object, ...]:
    """Return values of a row: each write that changes the time since when the lock is free changes one of them at least."""
    return claim.token, claim.expires_at, claim.free_since


def _went_on(before: Claim, after: Claim) -> bool:
    """Return whether a lock was held all the time between two rows: attached or handed over, but not released."""
    is_held = (
        before.expires_at is not None and after.expires_at is not None and not before.is_reserved
    )
    # not taken over from a dead holder, and not released: a release dates itself if server time is known
    is_undated = after.free_since == NO_SERVER_TIME
    is_same = before.free_since == after.free_since and not after.abandoned_by
    return is_held and is_same and not is_undated


# -- what a waiter knows ---------------------------------------------------------------------------


class WaitingLine:
    """The knowledge of one waiter about the line, from the rows that it has seen.

    Args:
        poll: Shortest and longest wait between two polls, in seconds.

    Attributes:
        entry: Entry of this waiter; empty until it has asked for server time, which is part of the entry.
        place: Number of waiters ahead of it, 0 for the first; None if it does not stand in line.
        index: Index of its entry in the list, which also has struck-out entries; None if it does not stand there.
        may_be_in_line: Whether its entry may be in the row: no answer to a write, nor a consistent read, has ruled that out.
        doubts: Whether the last read showed an older row than was known already: the next read must be consistent.
        polled_at: Local time at which the last answer that showed the row was received.
        next_at: Local time of the last "next" hint to this waiter; minus infinity if it never got one.
        polls_rarely: Whether it relies on hints, and polls only so that it does not count as dead.
    """

    def __init__(self, poll: tuple[float, float]) -> None:
        self.entry = ""
        self.place: int | None = None
        self.index: int | None = None
        self.may_be_in_line = False
        self.doubts = False
        self.polled_at = -math.inf
        self.next_at = -math.inf
        self.polls_rarely = False
        self._claim: Claim | None = None
        self._poll = poll
        # local times at which it was seen to stand in line, and the places, for the last _MEMORY seconds
        self._places: deque[tuple[float, int]] = deque()
        # local time from which the present holder has been seen
        self._holder_since = math.inf
        # the entry that stands first, the local time from which it has been seen there, and the token in the row then
        self._first: str | None = None
        self._first_since = math.inf
        self._first_token: str | None = None
        # local time from which the lock has been seen free with the same token in the row; infinity while it is held
        self._free_from = math.inf
        # local time of the last poll that could be believed, and of the last poll before the dates in the row changed
        self._looked_at = self._changed_after = -math.inf

    @property
    def size(self) -> int:
        """Number of waiters in line, in the last row that was seen."""
        return len(in_line(self.waiting))

    @property
    def waiting(self) -> tuple[str, ...]:
        """The entries in the list, with struck-out ones, in the last row that was seen."""
        return () if self._claim is None else self._claim.waiting

    def see(self, claim: Claim, received: float, *, is_current: bool) -> bool:
        """Note the row as an answer showed it; return whether it can be believed.

        Args:
            claim: The claim in the row.
            received: Local time at which the answer was received.
            is_current: Whether it is the answer to a write or to a consistent read. Any other read may show
                the row as it was some time ago.
        """
        self.polled_at = received
        known = self._claim
        index = claim.waiting.index(self.entry) if self.entry in claim.waiting else None
        place = None if index is None else len(in_line(claim.waiting[:index]))
        went_back = self.place is not None and (place is None or place > self.place)
        if not is_current and known is not None:
            # Fencing tokens only grow, and places only move forward. If a read shows otherwise, it is older than the last row.
            # Suppose this waiter has joined, and a read does not show that yet: if it believed the read, it would join again,
            # or leave without a request because it seems to stand nowhere.
            is_older = claim.version < known.version
            if is_older or went_back:
                self.doubts = True
                return False
        self.doubts = False
        self.place, self.index = place, index
        self.may_be_in_line = place is not None
        if place is None or went_back:
            # If this waiter joins again, its knowledge of the old line does not count. The row may have been deleted: waiters
            # join the new row in another order, and the first in line has stood there for long only in the old row. Or others
            # have passed this waiter, and a late copy of its join has come after that.
            self._places.clear()
            self._first = None
        if place is not None:
            self._places.append((received, place))
            while received - self._places[0][0] > _MEMORY:
                self._places.popleft()
        self._watch(claim, received)
        self._claim = claim
        return True

    def _watch(self, claim: Claim, received: float) -> None:
        """Note since when the same waiter has stood first, and since when the lock has been held or free as it is."""
        known = self._claim
        if known is not None and _dated(claim) != _dated(known):
            # at some time after the last poll, whatever time the row gives
            self._changed_after = self._looked_at
        # A waiter that has not seen the row for long does not know which waiter stood first meanwhile. Suppose A stands first,
        # leaves, and joins again behind B, which takes the lock: then A stands first again, and nobody has passed it over.
        has_seen_all = received - self._looked_at < DEAD_AFTER
        self._looked_at = received
        if known is None or claim.token != known.token or claim.expires_at is None:
            self._holder_since = received
        first = next(iter(in_line(claim.waiting)), None)
        if first is None or first != self._first or not has_seen_all:
            self._first, self._first_since, self._first_token = first, received, claim.token
        elif claim.token is not None and claim.token.startswith(FORCED_MARK):
            # force put a new token into the row, but nobody has taken the lock
            self._first_token = claim.token
        elif known is not None and known.token == self._first_token and _went_on(known, claim):
            # Suppose the holder has detached the lock, and another process attaches. If that counted as passing the first in
            # line over, the second waiter would race with the first for the lock at the release.
            self._first_token = claim.token
        if claim.expires_at is not None:
            self._free_from = math.inf
        elif known is None or known.expires_at is not None or known.token != claim.token:
            self._free_from = received

    def leave(self) -> None:
        """Note that this waiter does not stand in line: it has left, or has taken the lock."""
        self.place = self.index = None
        self.may_be_in_line = False
        self._places.clear()

    # -- when to take the lock -------------------------------------------------------------------

    def take(  # noqa: PLR0911 - one for each rule
        self, now: float, bounds: Bounds | None, free_at: float
    ) -> Take | None:
        """Return how to take the lock now; None if DynamoDB would refuse the write, or another waiter comes first.

        Args:
            now: Local time.
            bounds: Bounds of server time; None if no answer had a ``Date``.
            free_at: Local time from which any acquiring write may take the lock.
        """
        place, is_free = self.place, now >= free_at
        if place is None and self.size == 0:
            return Take(ahead=bool(self.waiting)) if is_free else None
        if place == 0:
            return self.as_first() if is_free else None
        # By server time, all waiters ahead count as dead. This needs no watching: a newcomer may pass a whole dead line.
        if now >= self.passes_at(bounds):
            if place is None:
                return Take(ahead=True, past=dead_after(self.size))
            return Take(self.index, ahead=True, past=dead_after(place))
        if place is None or not is_free:
            return None
        # The same by watching alone, if server time is not known or the row does not date the release. The lock must be as it
        # was seen: if it was taken and released meanwhile, it has not been free for that long.
        if now >= self._watched_at(place, free_at):
            return Take(self.index, ahead=True, unchanged=True)
        # Suppose a dead waiter stands first, and takers without ``fair=True`` never leave the lock free for long: without
        # this rule they would stop the line for ever. The waiter passes the waiters ahead, but removes none: they may live.
        return Take(self.index) if self._is_passed_over(now, place) else None

    def as_first(self) -> Take:
        """Return how the first in line takes the lock: all entries ahead of its own are struck out, since waiters join behind."""
        # A waiter that was called stands first, and may not know it yet. If the call was late or forged, a take at the index
        # that it knows would remove live waiters; DynamoDB refuses a take at index 0, and the refusal shows the right index.
        return Take(self.index if self.place == 0 else 0, ahead=True)

    def passes_at(self, bounds: Bounds | None) -> float:
        """Return the local time from which all ahead of this waiter count as dead, if the lock stays free until then.

        It judges by the dates in the row. The claim in it may be running now: if nobody renews it, it expires, and the lock is
        free from then on. Infinity if server time is not known, the row has no date, or nobody is ahead.
        """
        claim = self._claim
        ahead = self.size if self.place is None else self.place
        if claim is None or bounds is None or not ahead:
            return math.inf
        free, end = claim.free_since, claim.ends
        if end is not None:
            # `free_since` comes from before this claim, or from a reader or a first in line that has left since. Suppose the
            # holder has died long ago, and the first in line gives up now: the next waiter's time begins now.
            free = end if free is None or free == NO_SERVER_TIME else max(free, end)
        if free is None:
            return math.inf
        # The dates in the row are times at which a request was sent. If DynamoDB applies a release, or a leave, 10 s later, the
        # lock seems to have been free for 10 s; the claim of a late acquire may seem to have expired long ago. A waiter that saw
        # the row before the change knows better: the lock became free, or the first in line left, after that poll, so the
        # waiters ahead have had no more time than since then.
        not_before = self._changed_after + dead_after(ahead)
        # One tick because `Store.now_low` subtracts one, and one because the condition requires a later time in whole
        # milliseconds: DynamoDB would refuse an earlier write.
        return max(not_before, bounds.passes(free + dead_after(ahead) + 2 * TICK))

    def _watched_at(self, place: int, free_at: float) -> float:
        """Return the local time from which all ahead count as dead by watching alone.

        Since then the same waiter has stood first, and the lock has been free, for the time of this place.
        """
        if self._claim is None or self._claim.expires_at is None:
            free_at = self._free_from
        # Suppose dead readers share the claim, and the last live reader has left since the last poll: judged by the ends of the
        # dead, the lock would seem to have been free for long.
        return max(self._first_since, free_at, self._changed_after) + dead_after(place)

    def _is_passed_over(self, now: float, place: int) -> bool:
        """Return whether others have taken the lock while the same waiter has stood first for long."""
        has_changed = self._claim is not None and self._claim.token != self._first_token
        return has_changed and now >= self._first_since + dead_after(place)

    # -- when to poll ----------------------------------------------------------------------------

    def polls_at(self, now: float, bounds: Bounds | None, free_at: float) -> float:
        """Return the local time of the next poll, or of a take that needs none.

        Args:
            now: Local time.
            bounds: Bounds of server time; None if no answer had a ``Date``.
            free_at: Local time from which the lock may be taken, if its row stays as it is.
        """
        # Never at once: if a take is sent an instant too early, DynamoDB refuses it, and it would be sent again and again.
        due = self._due(now, bounds, free_at)
        if self.polled_at < self.next_at:
            due = min(due, self.next_at + NEXT_POLL)
        return max(due, self.polled_at + SHORTEST_WAIT)

    def _due(self, now: float, bounds: Bounds | None, free_at: float) -> float:
        """Return the local time of the next poll, however soon that is after the last one."""
        if self.doubts:
            return self.polled_at + self._poll[0]
        place = self.place
        if place is None:
            return min(self.polled_at + LONGEST_POLL, self.passes_at(bounds))
        if place == 0:
            return min(self.polled_at + self._as_first(now), free_at)
        # passed over: it takes the lock from its place, and gets no hint when the lock is free
        wait = (
            self._as_first(now)
            if self._is_passed_over(now, place)
            else self._as_another(now, place)
        )
        return min(self.polled_at + wait, self.passes_at(bounds), self._watched_at(place, free_at))

    def _as_first(self, now: float) -> float:
        """Return the seconds between two polls of the first in line: more, the longer the holder has been seen."""
        if self.polls_rarely:
            return LONGEST_POLL
        shortest, longest = self._poll
        return max(shortest, min(_SHARE * (now - self._holder_since), longest, HEAD_POLL))

    def _as_another(self, now: float, place: int) -> float:
        """Return the seconds between two polls of another waiter: half the time that it needs to the front, at the line's pace."""
        if self.polls_rarely:
            return LONGEST_POLL
        since, then = self._places[0]
        # seconds for each place; it counts one place more, so that a line that stands still has a pace, too
        each = (now - since + _ONE_CYCLE) / (then - place + 1)
        return max(self._poll[0], min(place * each / 2, LONGEST_POLL))
