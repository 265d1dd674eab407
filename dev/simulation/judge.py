"""Checks a simulated world against the protocol's invariants at every step, and against what callers were promised.

The judge sees each change of a row as DynamoDB makes it, with the request that makes it. Claims, fencing tokens and writes are
judged by these alone. What the library says to its users is judged in `handles`, `promises` and `signals`, and the line of fair waiters in `lines`. Nothing that the
library notes for itself decides.

Most of the code here is about excuses. A process that stood still, met faults or was interrupted may be late, or lose
its turn, without a mistake of the library, and the judge must not report that. The invariants I1 to I8 are those of the
design document; "order" stands for the order of arrival of fair waiters (`pynamodb_mutex._fair.waiting_line`), "hold" for ``hold_at_least``,
"said" for what a handle says of its row, and "signal" for signals. What must be true when a schedule has ended is checked in `schedule`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dev.simulation.claims import FAR, FORCED_MARK, Claim, values_on
from dev.simulation.handles import DRIFT
from dev.simulation.lines import LineJudge
from dev.simulation.network import HOST_SKEW
from dev.simulation.world import EPOCH
from pynamodb_mutex._lock.runtime.callers import caller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dev.simulation.claims import Place, Watch
    from dev.simulation.network import Exchange
    from dev.simulation.world import Process, World


KEPT_BEYOND = 2.5
"""Longest time in seconds for which a kept claim is beyond ``hold_at_least``. Its end is counted from an upper bound of
DynamoDB's time."""

IDLE_SLACK = 1.5
"""Seconds beyond two polls for which a lock may be free while somebody waits for it."""


@dataclass(frozen=True)
class Watched:
    """Where the claims on the rows of a table are.

    Attributes:
        prefix: Prefix of the claim attributes in its own rows; None if its rows carry no claims.
        locks: The table that has the locks of its rows, and the prefix of their keys there; None if there is none.
        is_enforced: Whether writes without the lock are refused; otherwise they may end a claim, and lose an update.
    """

    prefix: str | None
    locks: tuple[str, str] | None = None
    is_enforced: bool = True


class Judge(LineJudge):
    """Watches the tables and processes of a world, and reports violations to it.

    Args:
        world: The world; the judge registers itself with it.
        tables: The tables to watch, by name.

    Attributes:
        writes: Number of times that each write was applied, by the number that the write carries.
        unlocked: Numbers of writes without a lock, which the network may apply twice.
        forgotten: Numbers of writes to rows that were deleted later.
        wanted: The count that a row must have for a write, by the number of that.
        deletes: Who deletes a row now, in place of a request of a process: "a person" or "the TTL"; None for nobody.
    """

    def __init__(self, world: World, tables: Mapping[str, Watched]) -> None:
        super().__init__(world)
        self._tables = tables
        self._versions: dict[Place, int] = {}
        # since when a row has carried its present claim, with the end that it has now
        self._claimed_since: dict[Place, float] = {}
        # who makes a write, by its number: the token and version of its claim, and the thread or task
        self._writers: dict[str, tuple[str, int, int]] = {}
        # the number of the last write of a thread or task under a claim
        self._last_writes: dict[tuple[Place, tuple[str, int, int]], int] = {}
        # rows that were deleted, but not by the TTL; numbers of writes to a row, and those that were made before that
        self._remade: set[Place] = set()
        self._written: dict[Place, set[str]] = {}
        self.forgotten: set[str] = set()
        # requests that have counted a guarded write in a row
        self._counted: set[tuple[int, Place]] = set()
        # of claims with ``hold_at_least``, by their tokens and those of the claims that are kept in their place: true times
        # before which nobody else may hold the lock, and by which it is free
        self._holds: dict[str, tuple[float, float]] = {}
        self.writes: dict[str, int] = {}
        self.unlocked: set[str] = set()
        self.wanted: dict[str, int | None] = {}
        self.deletes: str | None = None
        world.judge = self
        world.tables.watch = self._changed

    # -- rows ---------------------------------------------------------------------------------------

    def _changed(self, table: str, key: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
        watched = self._tables.get(table)
        if watched is None:
            return
        place = (table, key)
        if self.deletes is not None:
            self._deleted(place, Claim(old, watched.prefix or ""))
            return
        exchange = self._world.network.applying
        assert exchange is not None
        process = exchange.thread.process
        self._note_row(place, old, new)
        if watched.prefix is not None:
            before, after = Claim(old, watched.prefix), Claim(new, watched.prefix)
            term = self._terms.get(before.token or "")
            is_judged = (
                watched.is_enforced
                # the one takes a living claim for dead, the other has written a wrong end
                and not self._has_jumped(process, exchange.sent)
                and (term is None or not self._has_jumped(term.process))
            )
            if is_judged:
                self._check_own(exchange, place, watched.prefix, old, new)
                self._check_claim(exchange, place, before, after)
            if (before.token, before.end) != (after.token, after.end):
                self._claimed_since[place] = self._world.now
            self._note_term(exchange, place, before, after, breaks=not is_judged)
        if watched.prefix == "":
            self._check_line(process, place, old, new)
        self._check_write(exchange, place, watched, old, new)
        if not new:
            self._forget(place)

    def _deleted(self, place: Place, claim: Claim) -> None:
        """Note that a row is deleted: by hand, of which its holder cannot know, or by the TTL."""
        self._free_since.pop(place, None)
        is_by_hand = self.deletes == "a person"
        self._end_term(place, claim, None, breaks=is_by_hand)
        if is_by_hand:
            self._forget(place)
        else:
            self._ask("I3 TTL", not self._is_alive(claim), f"the TTL deletes the claim in {place}")

    def _forget(self, place: Place) -> None:
        """Note that a row was deleted with its fencing token.

        A new row may have a lower one. And a late copy of an acquire makes its claim in it, and then a late copy of a
        write finds all as it was the first time.
        """
        self._versions.pop(place, None)
        self._remade.add(place)
        self.forgotten |= self._written.pop(place, set())

    def _note_belief(self, watch: Watch) -> None:
        super()._note_belief(watch)
        hold = watch.options.get("hold_at_least")
        for token in watch.tokens if hold is not None else ():
            term = self._terms.get(token)
            if token not in self._holds and term is not None:
                least = term.since + hold * (1 - DRIFT) - HOST_SKEW
                most = self._world.now + hold * (1 + DRIFT) + KEPT_BEYOND
                self._holds[token] = least, most

    def _check_own(
        self,
        exchange: Exchange,
        place: Place,
        prefix: str,
        old: dict[str, Any],
        new: dict[str, Any],
    ) -> None:
        """Check that only a request which names a running claim changes it, or what it protects; and that versions grow."""
        before, after = Claim(old, prefix), Claim(new, prefix)
        # for others see `_forced` and `_acquired`
        is_same = after.token in {None, before.token} or (
            not (after.token or "").startswith(FORCED_MARK)
            and (after.end is None or after.is_reserved)
        )
        names = (
            f"{prefix}{name}" for name in ("version", "lease", "expires_at", "owner", "writes")
        )
        changed = [name for name in (*names, "data", "count") if old.get(name) != new.get(name)]
        if changed and is_same and self._is_alive(before):
            what = (
                f"{exchange.thread.process.name} changed {changed} of {place}, and names no claim"
            )
            is_own = self._is_named(exchange, place, before)
            # Whoever gives up an acquire does not know the version that it got, if it got one; and nobody gets the ticket
            # of a detach that is interrupted.
            token = before.token or ""
            is_left = token not in self._given or not self._is_believed(token)
            is_own |= is_left and token in values_on(exchange, place)
            self._ask("I5 own claim", is_own, what)
        is_undated = not old and self._is_undated(exchange.thread.process, after)
        if new and not is_undated:
            lowest = max(before.version, self._versions.get(place, 0))
            what = f"the fencing token of {place} fell from {lowest} to {after.version}"
            self._ask("I3 never lower", after.version >= lowest, what)
        elif is_undated:
            self._versions[place] = after.version
        counted = old.get(f"{prefix}writes") != new.get(f"{prefix}writes")
        if counted and is_same and after.token is not None:
            request = (id(exchange), place)
            is_first = request not in self._counted or place in self._remade
            self._ask("I2 applied once", is_first, f"{exchange.thread} wrote {place} twice")
            self._counted.add(request)

    def _is_undated(self, process: Process, claim: Claim) -> bool:
        """Return whether a process made a claim without server time: the fencing token of a new row begins at 1 then."""
        # it learns none from the requests that its user sends, and then gives an end in the far future
        return process not in self._dated or (claim.end or 0.0) - EPOCH > FAR

    @staticmethod
    def _is_named(exchange: Exchange, place: Place, claim: Claim) -> bool:
        """Return whether the condition of a request on a row names the claim in it: its token, and its version or its end."""
        named = values_on(exchange, place)
        return claim.token in named and not named.isdisjoint((claim.version, claim.end))

    def _check_claim(self, exchange: Exchange, place: Place, old: Claim, new: Claim) -> None:
        """Check a change of the claim in a row: who may begin, extend or end it."""
        process = exchange.thread.process
        is_forced = (new.token or "").startswith(FORCED_MARK)
        if is_forced and old.token is not None and new.token != old.token:
            self._forced(exchange, place, old, new)
        elif (
            new.is_reserved
            and old.token is not None
            and (new.token, new.end) != (old.token, old.end)
        ):
            self._kept(process, place, old, new)
        elif new.token != old.token and new.end is not None:
            self._acquired(exchange, place, old, new)
        elif new.end is not None and old.end is None and old.token is not None:
            self.fail(f"I5: the ended claim of {old.token} on {place} stands again")
        elif old.end is not None and new.end is not None and new.end < old.end:
            # A claim that was detached may be made to end sooner, once its process does not hold it any more.
            may_end = new.token in self.detached and not self._is_believed(new.token or "")
            self._ask("I1 end", may_end, f"the end of {new.token} on {place} moved back")
        elif new.end is None and old.end is not None:
            self._check_hold(process, place, old)

    def _kept(self, process: Process, place: Place, old: Claim, new: Claim) -> None:
        """Check that a release before ``hold_at_least`` leaves a claim that ends in time, and is not renewed."""
        assert new.end is not None
        if old.is_reserved:
            self.fail(f"I5: {process.name} changed the kept claim {old.token} on {place}")
        elif old.token in self._holds:
            least, most = self._holds[old.token]
            self._holds[new.token or ""] = least, most
            end = new.end - EPOCH
            # without server time the end in the row says nothing
            is_late = most < end < FAR and process not in self._late_clocks
            # the holder carries server time on by its clock
            least -= 2 * DRIFT * (self._world.now - self._dated_last.get(process, self._world.now))
            # a holder whose clock stood still writes an end that may have passed, until a Date shows it the time
            if (end < least and not self._is_excused(process)) or is_late:
                self.fail(
                    f"hold: {place} is kept until {end:.1f}, not from {least:.1f} to {most:.1f}"
                )
        self._versions[place] = new.version

    def _check_hold(self, process: Process, place: Place, old: Claim) -> None:
        """Check that a lock with ``hold_at_least`` becomes another's, or free, no sooner."""
        least, _ = self._holds.get(old.token or "", (-math.inf, 0.0))
        is_alive = self._is_alive(old) or (
            old.is_reserved and old.end is not None and old.end > EPOCH + FAR
        )
        is_early = self._world.now < least and is_alive and process not in self._interrupted
        if is_early:
            self.fail(
                f"hold: {process.name} has {place} at {self._world.now:.1f}, before {least:.1f}"
            )

    def _forced(self, exchange: Exchange, place: Place, old: Claim, new: Claim) -> None:
        """Check a claim that is broken by force, and the one that takes its place if there is one.

        Force breaks only the claim that it saw: its request carries that claim's token. Another may have acquired the lock
        since, and its claim must stand.
        """
        name = exchange.thread.process.name
        what = f"{name} broke a claim on {place} that it had not seen: {old.token}"
        self._ask("I5 force", old.token in values_on(exchange, place), what)
        is_next = old.end is not None and new.version > old.version
        self._ask("I5 force", is_next, f"{name} broke no claim on {place}, or kept its version")
        self._versions[place] = new.version

    def _acquired(self, exchange: Exchange, place: Place, old: Claim, new: Claim) -> None:
        """Check an acquisition: its fencing token is higher, and it takes no claim that is alive, unless it was given."""
        process, now = exchange.thread.process, self._world.now
        is_higher = new.version > self._versions.get(place, 0) or self._is_undated(process, new)
        what = f"the fencing token of {place} did not grow: {new.version}"
        self._ask("I3 grows", is_higher, what)
        self._versions[place] = new.version
        self._check_hold(process, place, old)
        self._check_starved(place)
        if old.end is None:
            return
        token = old.token or ""
        term = self._terms.get(token)
        if term is not None:
            what = f"{process.name} took {place}, in which {term.process.name} believes"
            self._ask("I1 taken", not self._is_believed(token), what)
        if EPOCH + now >= old.end + HOST_SKEW / 2:
            self.asked["I1 dead"] += 1
            return
        what = f"{process.name} took {place} before its end, {old.end - EPOCH:.3f}, and did not name its claim"
        self._ask("I1 named", self._is_named(exchange, place, old), what)
        is_given = token in self.detached or (term is not None and term.process is process)
        is_watched = now - self._claimed_since.get(
            place, now
        ) >= old.lease and old.end in values_on(exchange, place)
        what = f"{process.name} took {place} before its end: {old.end - EPOCH:.3f}"
        self._ask("I1 given or watched", is_given or is_watched, what)

    def _check_starved(self, place: Place) -> None:
        """Check that a lock which is taken now was not free for long while somebody waited for it (I7), alone or for any of several.

        Each waiter polls at least as often as its options say, and one poll may show what was so a second ago. In a line
        others are waited for: see `_check_turn`.
        """
        now, free_since = self._world.now, self._free_since.get(place, math.inf)
        row = self._world.tables.row(*place) or {}
        if now - free_since < IDLE_SLACK or "waiting" in row:
            return
        # a waiter relies on the holder of its process, which learns late that its claim was broken
        broken = [each.known_at for each in self._broken_terms.values() if each.place == place]
        if any(known_at >= now - IDLE_SLACK for known_at in broken):
            return
        for process in self._punctual():
            waiters = self._waiters_for(process, place)
            # the first of them polls for all
            longest = max((each.options.get("poll", (0, 0))[1] for each in waiters), default=0)
            for watch in waiters:
                if not watch.is_all and watch.since < watch.began and "poll" in watch.options:
                    idle = now - max(free_since, watch.began)
                    what = f"{place} was free for {idle:.1f} s while {watch.process.name} waited"
                    self._ask("I7 starved", idle <= 2 * longest + IDLE_SLACK, what)

    def _is_alive(self, claim: Claim) -> bool:
        """Return whether a claim has not ended yet, so that nobody may take it.

        A holder that knows no server time writes an end in the far future. Waiters then watch the claim for a whole
        lease by their own clocks, so its end in the row says nothing.
        """
        now = EPOCH + self._world.now
        return claim.end is not None and now < claim.end + HOST_SKEW / 2 < EPOCH + FAR

    def _check_write(
        self,
        exchange: Exchange,
        place: Place,
        watched: Watched,
        old: dict[str, Any],
        new: dict[str, Any],
    ) -> None:
        """Check a write of a client, if the change is one: it is applied once, under its own claim, losing no update.

        Each such write carries a number of its own. A change of the row that keeps the number is another one, such as a
        renewal, or the same write applied again.
        """
        number = _number_of(new)
        prefix = watched.prefix or ""
        writes = f"{prefix}writes"
        # The counter of guarded writes went up, the number did not: the same write was applied again. Not so in a
        # transaction, which raises the counter in the lock's row though it writes other rows.
        is_single = exchange.operation != "TransactWriteItems"
        is_same = new.get(f"{prefix}token") == old.get(f"{prefix}token")
        is_repeated = is_same and is_single and new.get(writes) != old.get(writes)
        # In a row that is written by transactions only the count shows that one was applied again.
        is_repeated = is_repeated or new.get("count") != old.get("count")
        if number is None or (number == _number_of(old) and not is_repeated):
            return
        is_taken = new.get(f"{prefix}token") != old.get(f"{prefix}token") and "count" not in new
        if is_taken and number not in self._writers:
            return  # an acquisition that writes the payload, and no release that hands over or keeps
        if (count := self.wanted.get(number)) is not None:
            what = f"the write {number} of {place} was applied, against its condition"
            self._ask("I2 condition", old.get("count") == {"N": str(count)}, what)
        self.writes[number] = self.writes.get(number, 0) + 1
        self._written.setdefault(place, set()).add(number)
        # without a lock, a request that met a fault may be applied again
        is_excused = number in self.forgotten or {number} <= self.unlocked & self._doubtful.keys()
        what = f"the write {number} of {place} was applied twice"
        self._ask("I2 once", self.writes[number] == 1 or is_excused, what)
        claim = self._claim_of(place, watched, old)
        writer = self._writers.get(number)
        if writer is None:
            what = f"{exchange.thread} wrote {place} without its lock, under a claim"
            is_own = not self._is_alive(claim) or self._is_named(exchange, place, claim)
            is_own |= not watched.is_enforced or self._has_jumped(exchange.thread.process)
            self._ask("I2 without a lock", is_own, what)
        else:
            is_own = claim.end is not None and (claim.token, claim.version) == writer[:2]
            what = f"{exchange.thread} wrote {place} under the claim of {claim.token}, not {writer[:2]}"
            self._ask("I2 own claim", is_own, what)
            last = self._last_writes.get((place, writer), 0)
            what = f"the write {number} of {place} was applied after {last}"
            in_order = int(number) >= last or number in self.forgotten
            self._ask("I2 order", in_order, what)
            self._last_writes[place, writer] = int(number)
        if "count" in new and watched.is_enforced:
            before = int(old.get("count", {"N": "0"})["N"])
            what = f"the write {number} of {place} loses an update"
            self._ask("I2 no lost update", int(new["count"]["N"]) == before + 1, what)

    def writes_under(self, handle: Any, *numbers: str) -> None:
        """Note that the running thread or task is about to write under a lock, by these numbers."""
        writer = (handle.token, handle.fencing_token, caller(labelled=False).number)
        self._writers.update(dict.fromkeys(numbers, writer))

    def _claim_of(self, place: Place, watched: Watched, old: dict[str, Any]) -> Claim:
        """Return the claim that guards a row: in the row itself as it was, or in the lock table."""
        if watched.locks is None:
            return Claim(old, watched.prefix or "")
        table, prefix = watched.locks
        return Claim(self.row(table, f"{prefix}{place[1][0]}"), "")

    def row(self, table: str, key: str) -> dict[str, Any]:
        """Return the present row of a table whose key is a hash key alone; empty if there is none."""
        return self._world.tables.row(table, (key,)) or {}


def _number_of(row: dict[str, Any]) -> str | None:
    """Return the number of the client's write that a row carries; None if it carries none.

    As the payload of a lock it is JSON, hence the quotation marks.
    """
    data: str | None = row.get("data", {}).get("S")
    return None if data is None else data.strip('"')
