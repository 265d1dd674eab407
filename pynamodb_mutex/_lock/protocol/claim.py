"""Claims: what a row says about its lock, when another's claim may be taken over, and how long we may believe in ours.

There are three views of a claim: `Claim` is the row as an answer showed it, `ObservedClaim` is the claim of another
holder over several answers, `OwnClaim` is ours. All functions decide from their arguments: local times, bounds of server
time, rows. The meaning of an answer to one of our requests is in `outcome`; the state of a held lock (held, lost, released)
is in `pynamodb_mutex._lock.operations.states`.
"""

# without annotations from __future__: NamedTuple compiles each one that is text, at each import
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

from pynamodb_mutex._lock.protocol.messages import shown_all, shown_owner
from pynamodb_mutex._lock.protocol.server_time import DRIFT, WATCH_GRACE, Bounds

T = TypeVar("T")

SHORTEST_LEASE = 0.5
"""Shortest lease, in seconds. Server time is known only to a second, and requests take time: they would use a shorter one up."""

NO_SERVER_TIME = 253370764800.0
"""End, in server time, for a holder that has seen no ``Date`` yet: 9999-01-01. Others then judge by watching alone."""

TOO_SHORT = 0.5
"""Share of the lease. If less is left of a claim just acquired or renewed, it is renewed at once, before it is used."""

TICK = 0.001
"""Smallest difference between two ends, in seconds. Stored ends are whole milliseconds."""

HIGHEST_VERSION = 2**63 - 1
"""Highest fencing token: a resource that compares fencing tokens may keep them in signed 64-bit integers."""

MOST_WAITING = 100
"""Most entries in a row's line. A write is billed by the size of its row: with 100 entries it takes 3 to 7 units."""

NUMBERS = 2**61 - 1
"""Numbers of guarded writes are below this prime, so that each random bit counts."""

MOST_NUMBERS = 100
"""Most numbers of guarded writes that an acquisition keeps in memory. A caller's condition may refuse any number of writes."""

MOST_CHANGES = 1000
"""Most changes of hands of one row while a request is under way. If a row was deleted and made anew, its version is further
from ours after one second."""

MARK_FAR = 15.0
"""Seconds from now. A waiting writer's mark that ends later counts for nothing: no writer of ours has written it."""

YEAR_10000 = 253402300800.0
"""First second, in server time, that no date can represent. Whatever wrote a later end did not mean seconds."""

FORCED_MARK = "forced-"
"""Prefix of the token that a forced release writes in place of the holder's."""

# a token made by `new_token`, or the same with FORCED_MARK; the group is the time of its making, in milliseconds
_MADE = f"(?:{FORCED_MARK})?([0-9a-f]{{12}})7[0-9a-f]{{19,}}$"


def new_token(server_now: float | None, random_bits: str) -> str:
    """Return a token that no other acquisition has, and that shows people when it was made.

    It begins as a version 7 UUID does (RFC 9562): milliseconds, zero if server time is not known, then
    random bits.

    Args:
        server_now: Server time, in seconds; None if it is not known.
        random_bits: At least 80 random bits, as hexadecimal digits.
    """
    return f"{int((server_now or 0.0) * 1000):012x}7{random_bits}"


def token_time(token: str | None) -> float | None:
    """Return the server time at which a token was made, in seconds.

    None if `new_token` did not make it, or server time was not known then. For people: the protocol decides nothing by it.
    """
    made = re.match(_MADE, token or "")
    at = int(made[1], 16) / 1000 if made else 0.0
    return at if 0 < at < YEAR_10000 else None


def date_of(server_time: float | None) -> datetime | None:
    """Return server time as a date in UTC, for people; None if there is none, for ever, or if no date can represent it."""
    if server_time is None or not 0 <= server_time < NO_SERVER_TIME:
        return None
    return datetime.fromtimestamp(server_time, tz=timezone.utc)


class Claim(NamedTuple):
    """The part of a row about its lock. Without arguments, the claim of a row that does not exist.

    Attributes:
        token: Token of the last acquisition; None if there never was one.
        version: Fencing token.
        expires_at: End of the claim, in server time; None if there is no claim, as in a tombstone.
        lease: Seconds for which the claim lives without being renewed.
        owner: Label of the holder, for people; None if there is none.
        writes: Number of the last guarded write under this claim or an earlier one; 0 before the first.
        abandoned_by: Label of the dead holder from which this holder took the lock over, or empty.
        free_since: Upper bound of the server time at which the last claim was ended, or a reader or the first in line
            left: usually a second or two late. None if none of these ever happened.
        waiting: Entries of the waiters in line, first come first; see `waiting_line`.
        shared_by: Ends of the readers that share a claim, in server time, by the claim's token and the reader's name.
        wanted_until: Server time until which no other readers begin or join, because a writer waits; None for none.
        wanted_by: Label of the writer that waits.
        of_room: Values of the attributes that a room has declared, by their names: see `of`; None for none.
        fault: Why the row cannot be a lock's; None if it can. Such a row shows no claim, only its token if that can
            be read. The holder takes the row for overwritten; nobody else may judge by it.
    """

    token: str | None = None
    version: int = 0
    expires_at: float | None = None
    lease: float = 0.0
    owner: str | None = None
    writes: int = 0
    abandoned_by: str = ""
    free_since: float | None = None
    waiting: tuple[str, ...] = ()
    shared_by: dict[str, dict[str, float]] | None = None
    wanted_until: float | None = None
    wanted_by: str | None = None
    of_room: Mapping[str, Any] | None = None
    fault: Exception | None = None

    def of(self, kind: Callable[..., T]) -> T:
        """Return ``kind``, a room's own view of the row, made from the attributes that the room has declared."""
        return kind(**self.of_room or {})

    @property
    def readers(self) -> dict[str, float] | None:
        """The end of each reader that shares the claim, by the reader's name; None if it is not shared."""
        # A map under another token belongs to an earlier claim, which a process of an older version has replaced.
        is_shared = self.shared_by is not None and self.expires_at is not None
        return (self.shared_by or {}).get(self.token or "") if is_shared else None

    @property
    def shares(self) -> list[tuple[str, float]]:
        """The label of each reader that shares the claim, and its end."""
        return [(name.partition(" ")[2], end) for name, end in (self.readers or {}).items()]

    @property
    def ends(self) -> float | None:
        """Server time at which the claim ends unless it is renewed; a shared claim ends with its last reader."""
        # Not at the row's end: a reader that has left may have had a longer lease than a reader that died.
        return self.expires_at if self.readers is None else max(self.readers.values(), default=0.0)

    @property
    def is_reserved(self) -> bool:
        """Whether nobody holds the lock, but the last holder's ``hold_at_least`` keeps others from it until the claim ends."""
        return self.expires_at is not None and self.owner is None

    @property
    def holder(self) -> str:
        """The label of the holder, or those of the readers, as a message shows them."""
        if self.is_reserved:
            return f"nobody (released, and kept until {self._end} by hold_at_least)"
        labels = [label for label, _ in self.shares]
        return (
            f"{len(labels)} reader(s): {shown_all(labels)}" if labels else shown_owner(self.owner)
        )

    @property
    def described(self) -> str:
        """The holder and the end of the claim, for a message."""
        if self.ends is None:
            return "its holder is not known"
        return f"held by {self.holder}" + (
            "" if self.is_reserved else f" until {self._end} unless renewed"
        )

    @property
    def _end(self) -> str:
        try:
            end = datetime.fromtimestamp(self.ends or 0.0, tz=timezone.utc)
            return f"{end.isoformat(timespec='milliseconds')} (DynamoDB's time)"
        except (ValueError, OverflowError, OSError):
            return f"{self.ends} s"  # another program wrote the row, and no date can represent this

    def check(self) -> None:
        """Raise InvalidRowError unless the row may be a lock's.

        Call this before you decide by another's claim. A row that cannot be read shows no claim: a waiter would take the lock
        for free, and send an acquiring write again and again whose condition never holds.
        """
        if self.fault is not None:
            raise self.fault

    def marked_until(self, now: float, bounds: Bounds | None) -> float | None:
        """Return the server time until which a waiting writer keeps new readers out; None if the row shows no such writer."""
        until = self.wanted_until
        if until is None or bounds is None or now >= bounds.passes(until + TICK):
            return None
        return until if until <= bounds.highest(now) + MARK_FAR else None

    def is_held(self, received: float, bounds: Bounds | None) -> bool:
        """Return whether the claim was running when the row was received, as far as server time is known."""
        self.check()
        ends = self.ends
        return ends is not None and (bounds is None or received < bounds.passes(ends))


class ObservedClaim:
    """The claim in a row, as one waiter observes it over several answers.

    A claim is dead when server time is surely past its end, or when it has stayed unchanged for its
    whole lease and WATCH_GRACE on the local clock. Each rule is safe alone; the second needs no
    server time.

    Attributes:
        claim: The claim as it was seen last; None if no row was seen yet.
        changed_hands: Whether the token in the last row that was seen differs from the token in the row before.
    """

    def __init__(self) -> None:
        self.claim: Claim | None = None
        self.changed_hands = False
        self._since = 0.0

    def see(self, claim: Claim, received: float) -> None:
        """Note the claim in an answer that was received at local time ``received``.

        Raises:
            InvalidRowError: If it cannot be a lock's.
        """
        claim.check()
        seen = self.claim
        if seen is None or (claim.token, claim.expires_at) != (seen.token, seen.expires_at):
            # Compare both, because a renewal keeps the token and moves the end. If only the token counted, a waiter would take
            # a holder that renews for dead one lease after it first saw the claim.
            # The watch counts from when the answer was received. Suppose a read is sent at 0 s and delayed; the
            # holder renews at 5 s; the read is served at 6 s and shows the renewed claim. Counted from 0 s, the watch
            # would be over up to 5 s before the holder's lease.
            self._since = received
        self.changed_hands = seen is not None and claim.token != seen.token
        self.claim = claim

    def matures(self) -> float:
        """Return the local time from which the unchanged claim is dead by watching alone; infinity for never."""
        if self.claim is None or self.claim.expires_at is None or not self.claim.lease:
            # without a lease in the row, nobody knows how long to watch
            return math.inf
        # (1 + DRIFT) because this clock may run fast; the holder stops at (1 - DRIFT), because its clock may run slow
        return self._since + (self.claim.lease + WATCH_GRACE) * (1 + DRIFT)

    def free_at(self, bounds: Bounds | None) -> float:
        """Return the local time from which a waiter may take the lock, if its row stays as it is.

        Infinity if no row was seen yet, or nothing shows when the claim is dead; minus infinity if there
        is no claim.
        """
        if self.claim is None:
            return math.inf
        if self.claim.ends is None:
            return -math.inf
        if bounds is None:
            return self.matures()
        # A tick later, because `Store.now_low` subtracts one: sooner, DynamoDB would refuse the acquiring write.
        return min(self.matures(), bounds.passes(self.claim.ends + TICK))

    def to_name(self, now: float, bounds: Bounds | None) -> Claim | None:
        """Return the claim if a write that takes it over must name it, with its end; None if the write only compares its end."""
        is_shared = self.claim is not None and self.claim.readers is not None
        return (
            self.claim if now >= (self.free_at(bounds) if is_shared else self.matures()) else None
        )


class Term:
    """How long a holder may believe in its claim. Replaced as a whole, so that it can be read without the monitor.

    Attributes:
        ends: Local time at which the lease ends, counted from before the request that began the lease was sent.
        limit: Server time at which the belief ends at the latest: the end in the row or, if that is earlier, the time from
            which a watcher may take the claim over.
        since: Local time before the latest request that extended the belief was sent.
    """

    __slots__ = ("ends", "limit", "since")

    def __init__(
        self, ends: float = -math.inf, limit: float = 0.0, since: float = -math.inf
    ) -> None:
        self.ends = ends
        self.limit = limit
        self.since = since


NO_TERM = Term()
"""The term of a claim that no answer has confirmed: nobody may believe in it."""


class OwnClaim:
    """Our own claim, from the first request that asks for it to its end.

    Attributes:
        lease: Lease of the lock, in seconds.
        version: Fencing token; 0 until an answer has shown it.
        expires_at: Latest end that is known to have been in the row, in server time; 0 until an answer has shown one.
        proposed: Highest end that any request proposed for it, or that a row showed.
        writes: Number of the last guarded write that is known to be applied, by us or before we acquired the lock.
        term: How long its holder may believe in it.
    """

    __slots__ = (
        "_known",
        "_numbers",
        "_reach",
        "expires_at",
        "lease",
        "proposed",
        "term",
        "token",
        "version",
        "writes",
    )

    def __init__(self, token: str, lease: float) -> None:
        self.token = token
        self.lease = lease
        self.version = 0
        self.expires_at = 0.0
        self.proposed = 0.0
        self.writes = 0
        self.term = NO_TERM
        self._numbers: tuple[int, ...] = ()
        # the arguments and the latest result of `ends`; replaced as a whole, as the term and the bounds are
        self._known: tuple[Term, Bounds | None, float] = (NO_TERM, None, NO_TERM.ends)
        # local time until which any request sent so far may let this holder believe, applied or not
        self._reach = -math.inf

    def propose(self, now: float, bounds: Bounds | None, lease: float) -> tuple[float, float]:
        """Return the end and the lease that a request which is about to be sent proposes.

        Args:
            now: Local time.
            bounds: Bounds of server time; None if no answer had a ``Date`` yet.
            lease: Seconds for which to hold the lock from now on.

        Returns:
            The end, later than any proposed before, and the lease to write with it. The lease may be longer than the caller
            asked for: an earlier request, perhaps still on its way, may let this holder believe for longer, and a watcher
            waits no longer than the lease in the row.
        """
        # Suppose renewal 1, for 60 s, is applied and answered: this holder believes for most of a minute. Renewal 2,
        # for 2 s, is applied and its answer is slow. With a lease of 2 s in the row, a watcher that knows no server
        # time would take the lock over once it has seen the row unchanged for little more than 2 s.
        lease = max(lease, (self._reach - now) / (1 - DRIFT))
        self._reach = max(self._reach, now + lease * (1 - DRIFT))
        end = NO_SERVER_TIME if bounds is None else bounds.nominal(now) + lease
        # Rounded up: the end must not come out a fraction below the sum. And later than any before, even if the lease is
        # shorter now. Suppose a renewal left the end as it was: it would extend the holder's lease on its local clock, but a
        # watcher would see an unchanged claim, count from before the renewal, and take the lock over while the holder believes.
        self.proposed = max(math.ceil(end * 1000) / 1000, next_end(self.proposed))
        return self.proposed, lease

    def acquired(self, claim: Claim, sent: float, bounds: Bounds | None) -> None:
        """Note that a row shows our acquisition.

        Args:
            claim: The claim in the row.
            sent: Local time before the first request that may have made it was sent.
            bounds: Bounds of server time after the answer; None if no answer had a ``Date`` yet.
        """
        self.version = claim.version
        self.writes = claim.writes
        self.renewed(claim.expires_at or 0.0, self.lease, sent, bounds)

    def renewed(self, end: float, lease: float, sent: float, bounds: Bounds | None) -> None:
        """Note that a renewal was applied. Nothing else extends the belief: neither sending a renewal, nor seeing a later end.

        Args:
            end: End that it wrote, in server time.
            lease: Lease that it wrote, in seconds.
            sent: Local time before it was sent.
            bounds: Bounds of server time after the answer; None if no answer had a ``Date`` yet.
        """
        # Answers may overtake each other. Suppose renewal 1 is applied, renewal 2 is applied and answered, then the answer to
        # renewal 1 arrives. That answer must shorten nothing: hence the maximum, and the comparison of the ends.
        ends, limit = max(self.term.ends, sent + lease * (1 - DRIFT)), self.term.limit
        if end > self.expires_at:
            self.expires_at = end
            # A watcher may have seen the row as early as the request was sent, and may take the lock over by its own clock
            # once it has watched for the lease and WATCH_GRACE. It does so before an end that is further off, such as
            # NO_SERVER_TIME, or an end that had to be later than one far ahead.
            watched = math.inf if bounds is None else bounds.lowest(sent) + lease + WATCH_GRACE
            limit = min(end, watched)
        self.term = Term(ends, limit, max(self.term.since, sent))

    def ends(self, bounds: Bounds | None) -> float:
        """Return the local time at which the holder must stop believing.

        The earlier of two: the lease after the send on the local clock, and the moment at which the upper bound of
        server time reaches the limit.
        """
        # The limit ends the belief of a holder whose clock stood still. Suppose it acquires with a lease of 10 s, the machine
        # is suspended for an hour, and by its clock 1 s has passed. The answer to the next request, about any row, raises the
        # upper bound by an hour, and so beyond the limit.
        known = self._known
        if known[0] is not self.term or known[1] is not bounds:
            term = self.term
            ends = term.ends if bounds is None else min(term.ends, bounds.reaches(term.limit))
            known = self._known = term, bounds, ends
        return known[2]

    def outbid(self, end: float | None) -> None:
        """Let the next proposed end be later than the end that a row showed. It does not extend the belief."""
        self.proposed = max(self.proposed, end or 0.0)

    def next_write(self, random_bits: str) -> int:
        """Return a number for a guarded write that no other write has, from at least 80 random bits in hexadecimal digits."""
        # Not `writes + 1`. Suppose write 1 (known 0, next 1) is delayed, and its caller gets an error. If write 2 were
        # (known 0, next 1) as well, and write 1 arrived first, write 2 would be refused, find its own number in the row, and be
        # reported as applied. No other count would do: suppose a virtual machine is restored twice, and both copies of its
        # process hold this claim. If a write of one copy is applied, the same number of the other copy would pass for applied.
        number = int(random_bits, 16) % NUMBERS
        self._numbers = (*self._numbers[1 - MOST_NUMBERS :], number)
        return number

    def has_numbered(self, claim: Claim) -> bool:
        """Return whether the last guarded write in a row is one of ours, or the last one before we acquired the lock."""
        if claim.writes:
            return claim.writes == self.writes or claim.writes in self._numbers
        # No numbered write was made under this claim nor under a later one, unless somebody wrote the row without the lock, or
        # it is a new row: its version counts from server time in milliseconds (lower than ours, if a late acquire makes it).
        is_the_same_row = (
            claim.token is not None and 0 <= claim.version - self.version < MOST_CHANGES
        )
        return is_the_same_row and not self.writes


def next_end(end: float) -> float:
    """Return the earliest end that counts as later than ``end``; both in server time."""
    return round(end + TICK, 3)
