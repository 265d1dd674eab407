"""Checks a simulated world against the protocol's invariants at every step, and against what callers were promised.

The judge sees each change of a row as DynamoDB makes it, and each step of an operation in each process. Claims, fencing
tokens and writes are judged by the rows alone. Beliefs, losses and wake-ups are judged by what the library says of its own
state: `Process.note_holder` and `forget_holder`, a claim's `held`, `is_released`, `is_over` and `loss`, and the local queues.
A mistake there that also hides itself is not seen.

Most of the code here is about excuses. A process that stood still, met faults or was interrupted may be late, or lose
its turn, without a mistake of the library, and the judge must not report that. The invariants I1 to I8 are those of the
design document; "order" stands for the order of arrival of fair waiters (`pynamodb_mutex._protocol.waiting_line`). What
must be true when a schedule has ended is checked in `schedule`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dev.simulation.network import HOST_SKEW
from dev.simulation.world import EPOCH, Observer
from pynamodb_mutex._operations.states import State
from pynamodb_mutex._protocol.claim import FORCED_MARK, YEAR_10000, Loss
from pynamodb_mutex._protocol.waiting_line import PATIENCE, STEP, address_of, id_of
from pynamodb_mutex._runtime.callers import caller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dev.simulation.world import Process, World

    Place = tuple[str, Any]
    """A row: the name of its table, and its key."""


WAKES_WITHIN = 0.1
"""Longest time in seconds until a release has woken the next waiter of its process. A thread takes milliseconds."""

LONGEST_HANG = 10.0
"""Longest time in seconds for which a request may be under way. It exceeds every client's timeouts."""

DISTURBED_FOR = 2.0
"""Seconds after the end of an outage in which a process may still be late: what it had planned was not done."""

LATE_FOR = 15.0
"""Seconds after a process stood still or was interrupted, or after requests of it failed, in which others may pass its
waiters in line. A single request that hangs must not cost the first in line its place: PATIENCE allows for one."""

KEPT_BEYOND = 2.5
"""Longest time in seconds for which a kept claim is beyond ``hold_at_least``. Its end is counted from an upper bound of
DynamoDB's time."""

DRIFT = 0.02
"""Share of a duration by which the local clock and server time may differ."""

LATE_WRITE = 1.0
"""Seconds from the sending of a write that begins or ends a claim to its application beyond which it counts as late:
the times that it writes into the row are out of date by then."""

IDLE_FIRST = 3.0
"""Longest time in seconds for which a lock is free while a living waiter stands first. The waiter may not know yet that
it stands first, and polls within 2 s. That read may be out of date, and is repeated then."""

IDLE_NEVER_CALLED = 1.3
"""Longest time in seconds for which a lock is free while a living waiter has stood first for long, as long as no hint has
reached its process: it polls every 0.2 s. What that shows may be a second old."""

LONG_FIRST = 4.0
"""Seconds after which a waiter knows that it stands first."""

CALLED_WITHIN = 0.1
"""Longest time in seconds from a release until the waiter that it calls takes the lock: for an answer, a datagram and a
request, which take milliseconds each."""

CALLED_BEFORE = 0.5
"""Seconds after a call in which a waiter need not follow another one at once."""

GRAIN = 1.5
"""Longest time in seconds from the end of a claim until waiters know that it has passed. They know server time to a
second."""

IDLE_DEAD = 3.0
"""Seconds after the time that the protocol grants dead waiters within which a living one behind them takes the lock.
Its poll may be 2 s late, and it knows server time to a second."""


@dataclass(frozen=True)
class Watched:
    """Where the claims on the rows of a table are.

    Attributes:
        prefix: Prefix of the claim attributes in its own rows; None if its rows carry no claims.
        locks: The table that has the locks of its rows, and the prefix of their keys there; None if there is none.
    """

    prefix: str | None
    locks: tuple[str, str] | None = None


class Judge(Observer):
    """Watches the tables and processes of a world, and reports violations to it.

    Args:
        world: The world; the judge registers itself with it.
        tables: The tables to watch, by name.

    Attributes:
        acquisitions: Number of acquisitions in which a process has believed.
        writes: Number of times that each write was applied, by the number that the write carries.
        unguarded: Numbers of writes that the network may apply twice: they were made without a lock, or before somebody
            deleted a row.
        detached: Tokens of acquisitions that were detached: whoever has the ticket may take the lock.
        by_hand: Whether a person or the TTL deletes a row now, rather than a request of a process.
    """

    def __init__(self, world: World, tables: Mapping[str, Watched]) -> None:
        self._world = world
        self._tables = tables
        self._believed: dict[tuple[str, str], list[tuple[Process, Any]]] = {}
        # keys that more than one claim may be believed to hold; only these are checked at each step
        self._contested: set[tuple[str, str]] = set()
        # the number of answers of a process (`Process.answered`) when its clock had stood still
        self._frozen: dict[Process, int] = {}
        self._versions: dict[Place, int] = {}
        # tokens of claims that were broken by force, or whose row was deleted by hand: their holders cannot know that
        self._broken: set[str] = set()
        self._owners: dict[str, Process] = {}
        # of claims with ``hold_at_least``, by their tokens and those of the claims that are kept in their place: true times
        # before which nobody else may hold the lock, and by which it is free
        self._holds: dict[str, tuple[float, float]] = {}
        # processes whose clocks have stood still: they count too little of the time that has passed
        self._late_clocks: set[Process] = set()
        self._began: dict[Any, float] = {}
        # threads and tasks, by their process and the library's number for them: those that wait now, and since when a
        # waiting one has had a reason to go on
        self._waiting: set[tuple[Process, int]] = set()
        self._to_be_woken: dict[tuple[Process, int], float] = {}
        self._disturbed: dict[Process, float] = {}
        # what is held and was reported as in danger: when, and the end of its claims in their rows at that time
        self._in_danger: dict[Any, tuple[float, float]] = {}
        self._failures: dict[Process, list[float]] = {}
        self._interrupted: dict[Process, float] = {}
        # fair waiters, by their entry in the row: whose they are, and when they joined
        self._waiters: dict[str, Process] = {}
        self._joined: dict[str, float] = {}
        # when a late write gave a row a wrong date: see `_is_misled`
        self._misdated: dict[Place, float] = {}
        # entries that may stand in line though nobody waits there any more
        self._doubtful: set[str] = set()
        self._free_since: dict[Place, float] = {}
        # entries that stood first when somebody from outside the line took the lock
        self._overtaken: set[tuple[Place, str]] = set()
        # since when the same entry has stood first
        self._first_since: dict[Place, float] = {}
        # releases that call the first in line: when, and by which process
        self._calls: dict[Place, tuple[float, Process]] = {}
        # processes that a hint has reached; when the last one to each waiter came, and those of which any went astray
        self._reached: set[Process] = set()
        self._hinted: dict[str, float] = {}
        self._astray: set[str] = set()
        self.detached: set[str] = set()
        self.acquisitions = 0
        self.writes: dict[str, int] = {}
        self.unguarded: set[str] = set()
        self.by_hand = False
        world.judge = self
        world.tables.watch = self._changed

    def fail(self, what: str) -> None:
        """Report a violation. It is raised where the world runs, not in the thread that is judged."""
        self._world.fail(what)

    # -- rows ---------------------------------------------------------------------------------------

    def _changed(self, table: str, key: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
        watched = self._tables.get(table)
        if watched is None:
            return
        place = (table, key)
        if self.by_hand:
            # The holder could not know, and a new row may have a lower fencing token: excuse both. Also what was written
            # before: a late copy of its acquire makes its claim in the new row, and then a late copy of the write finds
            # all as it was the first time.
            prefix = watched.prefix or ""
            self._broken.add(old.get(f"{prefix}token", {}).get("S", ""))
            self._versions.pop(place, None)
            self._free_since.pop(place, None)
            self.unguarded.update(self.writes)
            return
        exchange = self._world.network.applying
        assert exchange is not None
        process = exchange.thread.process
        if watched.prefix is not None:
            self._check_claim(
                process, place, _Claim(old, watched.prefix), _Claim(new, watched.prefix)
            )
        if watched.prefix == "":
            self._check_line(process, place, old, new)
            self._check_closed(process, place, old, new)
        self._check_write(process, place, watched, old, new)

    def _check_claim(self, process: Process, place: Place, old: _Claim, new: _Claim) -> None:
        """Check a change of the claim in a row: who may begin, extend or end it."""
        is_forced = (new.token or "").startswith(FORCED_MARK)
        if is_forced and old.token is not None and new.token != old.token:
            self._forced(process, place, old, new)
            return
        if new.is_kept and old.token is not None and (new.token, new.end) != (old.token, old.end):
            self._kept(process, place, old, new)
        elif new.token != old.token and new.end is not None:
            self._acquired(process, place, old, new)
        elif new.end is not None and old.end is None and old.token is not None:
            self.fail(f"I5: the ended claim of {old.token} on {place} stands again")
        elif old.end is not None and new.end is not None and new.end < old.end:
            # A claim that was detached may be made to end sooner, once its process does not hold it any more.
            held = any(claim.own.token == new.token for claim in self._began)
            if held or new.token not in self.detached:
                self.fail(f"I1: the end of {new.token} on {place} moved back")
        elif new.end is None and old.end is not None:
            self._check_hold(process, place, old)
        owner = self._owners.get(old.token or "")
        if new.end is None and owner not in {None, process} and self._is_alive(old):
            # A write without the lock may end a claim that is dead, but none that is alive.
            self.fail(f"I5: {process.name} ended the claim of {owner.name} on {place}")

    def _kept(self, process: Process, place: Place, old: _Claim, new: _Claim) -> None:
        """Check that a release before ``hold_at_least`` leaves a claim that ends in time, and is not renewed."""
        assert new.end is not None
        if old.is_kept:
            self.fail(f"I5: {process.name} changed the kept claim {old.token} on {place}")
        elif old.token in self._holds:
            least, most = self._holds[old.token]
            self._holds[new.token or ""] = least, most
            end = new.end - EPOCH
            # without server time the end in the row says nothing
            is_late = most < end < 1e8 and process not in self._late_clocks
            if end < least or is_late:
                self.fail(
                    f"hold: {place} is kept until {end:.1f}, not from {least:.1f} to {most:.1f}"
                )
        self._versions[place] = new.version

    def _check_hold(self, process: Process, place: Place, old: _Claim) -> None:
        """Check that a lock with ``hold_at_least`` becomes another's, or free, no sooner."""
        least, _ = self._holds.get(old.token or "", (-math.inf, 0.0))
        is_alive = self._is_alive(old) or (
            old.is_kept and old.end is not None and old.end > EPOCH + 1e8
        )
        is_early = self._world.now < least and is_alive and process not in self._interrupted
        if is_early and self._was_given(old.token):
            self.fail(
                f"hold: {process.name} has {place} at {self._world.now:.1f}, before {least:.1f}"
            )

    def _was_given(self, token: str | None) -> bool:
        """Return whether a caller has a claim; one whose acquire has failed or was interrupted is not kept for it."""
        claims = [claim for claim in self._began if claim.own.token == token]
        locks = [claim.contender.lock() for claim in claims]
        return not any(
            lock is not None and claim not in lock._attempts.values()
            for claim, lock in zip(claims, locks, strict=True)
        )

    def _check_closed(
        self, process: Process, place: Place, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        """Check that nobody acquires a closed lock, and that its row is kept. Whoever has a ticket continues to hold it."""
        # a claim that is kept after a release has a token of its own, and no owner
        is_acquired = new.get("token") != old.get("token") and {"expires_at", "owner"} <= {*new}
        if is_acquired and "closed" in old and old["token"]["S"] not in self.detached:
            self.fail(f"closed: {process.name} took {place}, which is closed")
        if "closed" in old and not new:
            self.fail(f"closed: {process.name} deleted {place}, which is closed")
        if "closed" in new and float(new.get("ttl", {"N": "inf"})["N"]) < YEAR_10000 - 10:
            self.fail(f"closed: the TTL may delete {place}, which is closed")

    # -- fair waiters -------------------------------------------------------------------------------

    def failed(self, process: Process, kwargs: dict[str, Any]) -> None:
        """Note that a request meets a fault: its process may be late from now on.

        The request may be one that joins the line or leaves it. Then its waiter may stand in line without waiting, and
        others rightly take it for dead. So every waiter whose entry is among the values of the request is doubtful.
        """
        self._failures.setdefault(process, []).append(self._world.now)
        for value in kwargs.get("ExpressionAttributeValues", {}).values():
            self._doubtful.add(value.get("S", ""))

    def interrupted(self, process: Process) -> None:
        """Note that a thread of a process was interrupted; if it stands in line, it leaves it."""
        self._interrupted[process] = self._world.now

    def _is_punctual(self, entry: str, failures: int) -> bool:
        """Return whether a waiter lives and had no reason to miss its turn.

        Args:
            entry: The waiter's entry in the row.
            failures: Number of failed requests of its process that are no excuse.
        """
        if entry in self._doubtful:
            return False
        process = self._waiters[entry]
        # failures before it joined did not delay it
        since = max(self._world.now - LATE_FOR, self._joined[entry])
        failed = [time for time in self._failures.get(process, []) if time > since]
        return self._runs(process) and len(failed) <= failures

    def _runs(self, process: Process) -> bool:
        """Return whether a process lives, and nothing but failed requests has delayed it lately."""
        since = self._world.now - LATE_FOR
        is_disturbed = (
            max(self._interrupted.get(process, since), self._disturbed.get(process, since)) > since
        )
        return process.lives and process._paused is None and not is_disturbed

    def _check_line(
        self, process: Process, place: Place, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        """Check the line in a row after a change: waiters arrive in the order in which DynamoDB applied their joins."""
        before, after = line_of(old), line_of(new)
        exchange = self._world.network.applying
        assert exchange is not None
        if len(set(after)) < len(after):
            self.fail(f"order: a waiter stands twice in line for {place}: {after}")
        for entry in after:
            if entry not in before:
                self._waiters.setdefault(entry, process)
                self._joined[entry] = self._world.now
                if self._interrupted.get(process, -math.inf) >= exchange.sent:
                    # Ctrl-C came while the join was under way. The request that leaves the line was sent after the
                    # join and may have been applied before it. Then the entry stays, and nobody waits there.
                    self._doubtful.add(entry)
        late = self._world.now - exchange.sent
        is_acquired = new.get("token") != old.get("token") and "expires_at" in new
        is_fair = "waiting" in repr(exchange.kwargs.get("ExpressionAttributeNames", {}))
        # A take that is applied late is not judged: its waiter may have been passed meanwhile, and have joined again at
        # another place. It counts as one from outside the line, like that of a waiter without fair=True.
        if is_acquired and is_fair and late < PATIENCE:
            self._check_turn(process, place, before, after)
        elif is_acquired and before:
            self._overtaken.add((place, before[0]))
        self._check_call(process, place, old, new, is_acquired=is_acquired)
        self._note_times(place, old, new, late=late, is_acquired=is_acquired)

    def _check_call(
        self,
        process: Process,
        place: Place,
        old: dict[str, Any],
        new: dict[str, Any],
        *,
        is_acquired: bool,
    ) -> None:
        """Check that a waiter that a release has called takes the lock at once, and that one that was never called polls."""
        before, after, now = line_of(old), line_of(new), self._world.now
        exchange = self._world.network.applying
        assert exchange is not None
        if "expires_at" in old and "expires_at" not in new and after:
            # whoever sends hints wants to see whom to call
            announces = exchange.kwargs.get("ReturnValues") == "ALL_NEW" and exchange.fault is None
            hinted = self._hinted.get(id_of(after[0]), -math.inf)
            # one that has come since it was sent may be its own, sent too early
            is_first = not -CALLED_BEFORE < hinted - exchange.sent < 0
            if announces and address_of(after[0]) and is_first:
                self._calls[place] = (now, process)
        elif is_acquired and before and [e for e in before if e not in after] == before[:1]:
            first, since = before[0], self._free_since.get(place, math.inf)
            if self._is_punctual(first, failures=0) and not process.refuses_threads:
                when, by = self._calls.get(place, (now, process))
                is_called = id_of(first) not in self._astray and self._runs(by)
                if is_called and now - when > CALLED_WITHIN:
                    self.fail(f"order: {first} was called for {place} {now - when:.1f} s ago")
                has_stood = since - self._first_since.get(place, math.inf) > LONG_FIRST
                polls = has_stood and process not in self._reached
                if polls and now - since > IDLE_NEVER_CALLED:
                    self.fail(f"order: {place} was free for {now - since:.1f} s, and not polled")
        if is_acquired or before[:1] != after[:1]:
            self._calls.pop(place, None)
        if before[:1] != after[:1]:
            self._first_since[place] = now

    def went_astray(self, hint: bytes) -> None:
        """Note that a hint meets a fault, or is forged: its waiter need not follow those that come later at once."""
        self._astray.add(id_of(hint.decode(errors="replace")))

    def reached(self, process: Process, hint: bytes) -> None:
        """Note that a hint has reached a process: it may poll rarely from now on."""
        self._reached.add(process)
        if len(hint) == len(id_of(hint.decode(errors="replace"))):
            self._hinted[hint.decode(errors="replace")] = self._world.now

    def _note_times(
        self,
        place: Place,
        old: dict[str, Any],
        new: dict[str, Any],
        *,
        late: float,
        is_acquired: bool,
    ) -> None:
        """Note since when the lock is free, and whether the row gives that time correctly.

        Args:
            place: The row.
            old: The row before.
            new: The row after.
            late: Seconds from the sending of the write to its application.
            is_acquired: Whether the write acquired the lock.
        """
        before, after = line_of(old), line_of(new)
        is_ended = "expires_at" in old and "expires_at" not in new
        first_left = bool(before) and before[:1] != after[:1]
        # These writes date the row: since when the lock is free, or until when it is held. They take the time from when
        # they were sent. A release applied 10 s later says that the lock has been free for 10 s already.
        if is_acquired or is_ended or first_left:
            self._misdated[place] = self._world.now if late > LATE_WRITE else math.inf
        if "expires_at" in new:
            end = float(new["expires_at"]["N"]) - EPOCH
            # an end in the far future stands for none: the holder knew no server time
            self._free_since[place] = math.inf if end > 1e8 else max(end + GRAIN, self._world.now)
        elif "expires_at" in old or place not in self._free_since:
            self._free_since[place] = self._world.now
        if before != after and not is_acquired:
            # a join or a leave: whoever stands first now gets the full time to notice
            self._free_since[place] = max(self._free_since[place], self._world.now)

    def _check_turn(
        self, process: Process, place: Place, before: list[str], after: list[str]
    ) -> None:
        """Check that a waiter takes the lock in its turn, passes only dead waiters, and is not late.

        Args:
            process: The process that takes the lock.
            place: The row.
            before: The entries in line before.
            after: The entries in line after; the taker and those that it passed are gone.
        """
        removed = [entry for entry in before if entry not in after]
        taker = removed[-1] if removed and self._waiters[removed[-1]] is process else None
        passed = [entry for entry in removed if entry != taker]
        if len(removed) == 1 and (place, before[0]) not in self._overtaken:
            # A taker removes those that it passes, as dead. There is one exception: takers from outside the line have
            # taken the lock from the first. That one may be dead, but the lock is never free for long enough to prove
            # it, and the line would stop for ever. So those behind it may pass it, and leave it in line, for it may
            # live.
            passed = before[: before.index(removed[0])]
            if passed:
                self.fail(f"order: {removed[0]} left {passed}, whom it passed, in line for {place}")
        if after and not removed:
            self.fail(f"order: a newcomer took {place} before those in line: {before}")
        for entry in passed:
            # PATIENCE, 6 s, allows the first in line one request that hangs for 3 s. Each one behind it has only 2 s
            # more than the one before it, so one such request may cost it its place.
            failures = 1 if entry == before[0] else 0
            if self._is_punctual(entry, failures) and not self._is_misled(taker, place):
                self.fail(f"order: {entry} was passed in line for {place}")
        # The taker is in time if the lock was not free for longer than the protocol grants the waiters at the head of
        # the line that are, or may be, dead.
        idle = self._world.now - self._free_since.get(place, math.inf)
        dead = 0
        for entry in before:
            if self._is_punctual(entry, failures=0):
                break
            dead += 1
        else:
            return
        longest = PATIENCE + (dead - 1) * STEP + IDLE_DEAD if dead else IDLE_FIRST
        if idle > longest:
            self.fail(f"order: {place} was free for {idle:.1f} s with {dead} dead of {before}")

    def _is_misled(self, taker: str | None, place: Place) -> bool:
        """Return whether a late write gave the row a wrong date, and a taker could not know that.

        A release that is applied 10 s after it was sent says that the lock has been free for as long, so living waiters
        look dead. A waiter knows better if it stood in line before that and has polled all the time: it has seen the
        lock held meanwhile.
        """
        since = self._misdated.get(place, math.inf)
        if since == math.inf:
            return False
        return (
            taker is None or self._joined[taker] > since or not self._is_punctual(taker, failures=1)
        )

    def check_left(self, place: Place) -> None:
        """Check, at the end of a schedule, that no process that lives and met no fault has left an entry in line."""
        for entry in line_of(self.row(place[0], place[1][0])):
            waiter = self._waiters[entry]
            if waiter.lives and waiter not in self._failures:
                self.fail(f"order: {waiter.name} left {entry} in line for {place}")

    def _forced(self, process: Process, place: Place, old: _Claim, new: _Claim) -> None:
        """Check a claim that is broken by force, and the one that takes its place if there is one."""
        self._broken.add(old.token or "")
        self._check_forced(process, place, old.token or "")
        if new.end is None:
            return
        self._owners[new.token or ""] = process
        if old.end is None or new.version <= old.version:
            self.fail(f"I5: {process.name} took {place} by force, and broke no claim")
        self._versions[place] = new.version

    def _check_forced(self, process: Process, place: Place, broken: str) -> None:
        """Check that force breaks only the claim that it saw: its request carries that claim's token.

        Another may have acquired the lock since, and its claim must stand.
        """
        exchange = self._world.network.applying
        assert exchange is not None
        if {"S": broken} not in exchange.kwargs["ExpressionAttributeValues"].values():
            self.fail(f"I5: {process.name} broke a claim on {place} that it had not seen: {broken}")

    def _acquired(self, process: Process, place: Place, old: _Claim, new: _Claim) -> None:
        """Check an acquisition: its fencing token is higher, and it takes no claim that is alive."""
        assert new.token is not None
        self._owners[new.token] = process
        # the key "deleted" is used with delete_on_release, where fencing tokens may fall
        if new.version <= self._versions.get(place, 0) and place[1] != ("deleted",):
            self.fail(f"I3: the fencing token of {place} did not grow: {new.version}")
        self._versions[place] = new.version
        self._check_hold(process, place, old)
        is_handed_over = self._owners.get(old.token or "") is process
        if old.end is None or is_handed_over or old.token in self.detached:
            return
        if self._is_alive(old):
            self.fail(f"I1: {process.name} took {place} before its end: {old.end:.3f}")

    def _is_alive(self, claim: _Claim) -> bool:
        """Return whether a claim has not ended yet, so that nobody may take it.

        A holder that knows no server time writes an end in the far future. Waiters then watch the claim for a whole
        lease by their own clocks, so its end in the row says nothing.
        """
        now = EPOCH + self._world.now
        return claim.end is not None and now + HOST_SKEW < claim.end < EPOCH + 1e8

    def _check_write(
        self,
        process: Process,
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
        exchange = self._world.network.applying
        # The counter of guarded writes went up, the number did not: the same write was applied again. Not so in a
        # transaction, which raises the counter in the lock's row though it writes other rows.
        is_single = exchange is not None and exchange.operation != "TransactWriteItems"
        is_same = new.get(f"{prefix}token") == old.get(f"{prefix}token")
        is_repeated = is_same and is_single and new.get(writes) != old.get(writes)
        # In a row that is written by transactions only the count shows that one was applied again.
        is_repeated = is_repeated or new.get("count") != old.get("count")
        if number is None or (number == _number_of(old) and not is_repeated):
            return
        if new.get(f"{prefix}token") != old.get(f"{prefix}token") and "count" not in new:
            return  # an acquisition that writes the payload, which is no guarded write
        self.writes[number] = self.writes.get(number, 0) + 1
        if self.writes[number] > 1 and number not in self.unguarded:
            self.fail(f"I2: the write {number} of {place} was applied twice")
        claim = self._claim_of(place, watched, old)
        owner = self._owners.get(claim.token or "")
        if owner not in {None, process} and self._is_alive(claim):
            self.fail(f"I2: {process.name} wrote {place} under the claim of {owner.name}")
        if "count" in new:
            before = int(old.get("count", {"N": "0"})["N"])
            if int(new["count"]["N"]) != before + 1:
                self.fail(f"I2: the write {number} of {place} loses an update")

    def _claim_of(self, place: Place, watched: Watched, old: dict[str, Any]) -> _Claim:
        """Return the claim that guards a row: in the row itself as it was, or in the lock table."""
        if watched.locks is None:
            return _Claim(old, watched.prefix or "")
        table, prefix = watched.locks
        return _Claim(self.row(table, f"{prefix}{place[1][0]}"), "")

    def row(self, table: str, key: str) -> dict[str, Any]:
        """Return the present row of a table whose key is a hash key alone; empty if there is none."""
        return self._world.tables.row(table, (key,)) or {}

    # -- beliefs and losses -------------------------------------------------------------------------

    def believes(self, process: Process, claim: Any) -> None:
        """Note a claim that a process may believe to hold from now on."""
        self.acquisitions += 1
        # A process that cannot start its renewal thread tries again when it uses a lock next. That may be too late for
        # a renewal, so a loss of this claim is excused: see `ended`.
        self._began[claim] = math.inf if process.refuses_threads else self._world.now
        hold = claim.options.hold_at_least
        if hold is not None:
            since = self._world.now
            least, most = (
                since + hold * (1 - DRIFT) - HOST_SKEW,
                since + hold * (1 + DRIFT) + KEPT_BEYOND,
            )
            self._holds.setdefault(claim.own.token, (least, most))
        if claim.contender.caller != caller(labelled=False).number:
            # Another thread or task runs this step: it has handed the lock over to the waiter, which must go on soon.
            self._expect(process, claim.contender)
        place = (claim.store.connection.table_name, claim.key)
        claims = self._believed.setdefault(place, [])
        if (process, claim) not in claims:
            claims.append((process, claim))
        if len(claims) > 1:
            self._contested.add(place)

    def ended(self, process: Process, store: Any, key: str, claim: Any) -> None:
        """Check, when a claim has ended, that its process had tried to renew it; expect that the next waiter is woken.

        Args:
            process: The process that held the lock.
            store: The store of the lock's model.
            key: The lock's key.
            claim: The claim that has ended.
        """
        began, now = self._began.pop(claim, math.inf), self._world.now
        self._check_danger(process, claim, now - began)
        queue = process.queues.get((store, key))
        if queue is not None and queue.holder is claim and queue.turns:
            self._expect(process, queue.turns[0].contender)
        if (
            # A claim whose answer came late has little left of its lease, and may be lost before its first renewal is
            # due.
            now - began < claim.lease / 2
            or claim.belief.state is not State.LOST
            or claim.belief.loss not in {Loss.EXPIRED, Loss.UNREACHABLE}
            or not claim.options.auto_renew
            or claim.options.max_hold is not None
        ):
            return
        since = max(began, now - claim.lease)
        if self._disturbed.get(process, -1.0) >= since - DISTURBED_FOR or process.refuses_threads:
            return
        for sent in reversed(self._world.network.log):
            # A renewal that was sent before `since` counts too, if it may still be under way: no further one is sent
            # while two are, and a request may hang for longer than a short lease. Such a renewal may even be from
            # before the lock was lost and won back by a renewal that its holder asked for.
            if sent.sent < since - LONGEST_HANG:
                break
            hangs = sent.client.hangs_for if sent.thread.name.endswith("worker") else 0.0
            if sent.sent < since - hangs or sent.thread.process is not process:
                continue
            if claim.own.token in repr(sent.kwargs):
                return
        self.fail(f"I6: {process.name} let {key} expire, and did not try to renew it")

    def called(self, process: Process, call: Any) -> None:
        """Check a call of ``on_danger``: once for each danger, while the lock is held, and not long before its end."""
        if call.name != "on_danger":
            return
        claim, held = call.claim, call.claim.together
        if held.is_over:
            self.fail(f"I6: {process.name} reports a danger of {claim.key}, which is over")
        left = held.ends - claim.shared.now
        if left > max(each.lease for each in held.unreleased) / 2:
            self.fail(f"I6: {process.name} reports a danger of {claim.key}, {left:.1f} s too early")
        end = min(each.own.expires_at for each in held.unreleased)
        if self._in_danger.get(held, (0.0, 0.0))[1] == end:
            self.fail(f"I6: {process.name} reports the same danger of {claim.key} twice")
        self._in_danger[held] = (claim.shared.now, end)

    def _check_danger(self, process: Process, claim: Any, held_for: float) -> None:
        """Check that ``on_danger`` was called before the lease of a claim has run out, if its process ran meanwhile."""
        if (
            not claim.contender.on_danger
            # An answer may show that server time is a second further on than was known: then there is no time between.
            or claim.lease < 10
            or held_for < claim.lease / 2
            or claim.belief.state is not State.LOST
            or claim.belief.loss not in {Loss.EXPIRED, Loss.UNREACHABLE}
            or self._disturbed.get(process, -math.inf) >= self._world.now - claim.lease
            or process.refuses_threads
        ):
            return
        since = min(each.own.term.since for each in claim.together.claims)
        if self._in_danger.get(claim.together, (-math.inf, 0.0))[0] < since:
            self.fail(f"I6: {process.name} did not report the danger before it lost {claim.key}")

    # -- wake-ups within a process ------------------------------------------------------------------

    def _expect(self, process: Process, contender: Any) -> None:
        """Expect that a waiter goes on soon, if it sleeps now; one that waits for an answer goes on with that."""
        waiter = (process, contender.caller)
        if waiter in self._waiting:
            self._to_be_woken.setdefault(waiter, self._world.now)

    def waits(self, process: Process, caller: int) -> None:
        """Note that a thread or task of a process sleeps until it is woken or a time comes."""
        self._waiting.add((process, caller))

    def goes_on(self, process: Process, caller: int) -> None:
        """Note that a thread or task goes on; check that it was woken as soon as it had to be."""
        waiter = (process, caller)
        self._waiting.discard(waiter)
        since = self._to_be_woken.pop(waiter, None)
        if since is None:
            return
        # A task cannot go on while its loop's thread sends a request of another task, as it does where the system
        # refuses threads. The thread of a waiter that is no task has had its last answer before it began to wait.
        waited = self._world.now - max(since, self._world.running.answered_at)
        if waited > WAKES_WITHIN:
            self.fail(f"I7: a release in {process.name} woke the next in line after {waited:.1f} s")

    def disturbed(self, process: Process) -> None:
        """Excuse a process that is late: it has been disturbed, as by an outage that begins or ends now."""
        self._disturbed[process] = self._world.now
        for waiter in [each for each in self._to_be_woken if each[0] is process]:
            del self._to_be_woken[waiter]

    def froze(self, process: Process) -> None:
        """Excuse what a process believes from now, when its clock has stood still, until it has had an answer (I1)."""
        self._frozen[process] = process.answered
        self._late_clocks.add(process)

    def stepped(self, _: Process) -> None:
        """Check, after a step of any process, that no two claims on one key are believed in."""
        if self._contested:
            for place in sorted(self._contested):
                self._check_belief(place)

    def _check_belief(self, place: tuple[str, str]) -> None:
        """Ask each claim on a key whether its process believes to hold it; at most one may say so."""
        world = self._world
        running = world.process
        alive, believers = [], []
        for process, claim in self._believed[place]:
            # asked as the process itself: by its clock, and not as a claim inherited from a parent
            world.enter(process)
            if self._may_believe(process, claim):
                alive.append((process, claim))
                if claim.held and not self._is_excused(process):
                    believers.append((process, claim))
        world.enter(running)
        self._believed[place] = alive
        if len(alive) < 2:
            self._contested.discard(place)
        if len(believers) > 1:
            names = ", ".join(f"{p.name} ({c.own.version})" for p, c in believers)
            self.fail(f"I1: {names} believe that they hold {place}")

    def _may_believe(self, process: Process, claim: Any) -> bool:
        """Return whether a process may believe in a claim now or later; an expired claim may be won back."""
        if not process.lives or claim.is_released or claim.own.token in self._broken:
            return False
        return not claim.is_over or claim.loss is None or claim.loss.can_be_won_back

    def _is_excused(self, process: Process) -> bool:
        """Return whether a process may believe wrongly: its clock stands still, or did, and no answer came since."""
        if process.frozen_at is not None:
            return True
        answered = self._frozen.get(process)
        if answered is not None and process.answered > answered:
            del self._frozen[process]
            return False
        return answered is not None


def line_of(row: dict[str, Any]) -> list[str]:
    """Return the entries of the waiters in a row, first come first."""
    return [entry["S"] for entry in row.get("waiting", {"L": []})["L"]]


def _number_of(row: dict[str, Any]) -> str | None:
    """Return the number of the client's write that a row carries; None if it carries none.

    As the payload of a lock it is JSON, hence the quotation marks.
    """
    data: str | None = row.get("data", {}).get("S")
    return None if data is None else data.strip('"')


class _Claim:
    """The claim in a row.

    Attributes:
        token: Token of the last acquisition; None if there was none.
        end: Server time at which the claim ends; None if the lock is free.
        version: Fencing token; 0 if there is none.
        is_kept: Whether it is held by nobody: a release before ``hold_at_least`` has left it.
    """

    __slots__ = ("end", "is_kept", "token", "version")

    def __init__(self, row: dict[str, Any], prefix: str) -> None:
        self.token: str | None = row.get(f"{prefix}token", {}).get("S")
        end = row.get(f"{prefix}expires_at")
        self.end = None if end is None else float(end["N"])
        self.is_kept = end is not None and f"{prefix}owner" not in row
        self.version = int(row.get(f"{prefix}version", {"N": "0"})["N"])
