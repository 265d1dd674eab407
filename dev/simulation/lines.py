"""Checks the line of fair waiters in a row: their order, whom they may pass, and that whoever is called comes at once.

See `pynamodb_mutex._fair.waiting_line` for what the library promises. "order" stands for it in the names of rules.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dev.simulation.claims import FAR, parts_of, values_on
from dev.simulation.handles import LATE_FOR
from dev.simulation.signals import SignalJudge
from dev.simulation.world import EPOCH
from pynamodb_mutex._fair.waiting_line import address_of, id_of, in_line

if TYPE_CHECKING:
    from dev.simulation.claims import Place
    from dev.simulation.world import Process, World


LATE_WRITE = 1.0
"""Seconds from the sending of a write that begins or ends a claim to its application beyond which it counts as late:
the times that it writes into the row are out of date by then."""

PATIENCE = 6.0
"""Seconds for which those behind wait for the first in line, before they pass it for dead."""

STEPS = (1.0,) * 2 + (0.5,) * 10 + (0.09,) * 100
"""Seconds more for which those behind each further one wait."""

IN_ORDER = 10
"""Most dead waiters behind whom those who live keep their order."""

IN_ORDER_BY_POLLS = 2
"""The same if the release was dated late: waiters then learn by their polls since when the lock is free."""

DATED_WITHIN = 0.3
"""Seconds by which a release is dated late at most if its process knows server time well."""

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


class LineJudge(SignalJudge):
    """Judges the lines of fair waiters, in addition to signals."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        # when somebody has left a line
        self._left_at: dict[Place, float] = {}
        # fair waiters, by their entry in the row: whose they are, and when they joined
        self._waiters: dict[str, Process] = {}
        self._joined: dict[str, float] = {}
        # when a late write gave a row a wrong date: see `_is_misled`
        self._misdated: dict[Place, float] = {}
        # by how much the last release was dated late
        self._dated_late: dict[Place, float] = {}
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

    def have_died(self, process: Process, place: Place, row: dict[str, Any]) -> None:
        """Note a row in whose line waiters of a process stand who have died, and since when it is free."""
        for entry in line_of(row):
            self._waiters[entry], self._joined[entry] = process, self._world.now
            self._doubtful[entry] = self._world.now
        self._free_since[place] = self._world.now
        said = (row["token"]["S"], None, int(row["version"]["N"]), place[0], place[1][-1][-1])
        self._claims.add(said)

    def failed(self, process: Process, kwargs: dict[str, Any]) -> None:
        """Note that a request meets a fault: its process may be late from now on.

        The request may be one that joins the line or leaves it. Then its waiter may stand in line without waiting, and
        others rightly take it for dead. So every waiter whose entry is among the values of the request is doubtful.
        """
        self._failures.setdefault(process, []).append(self._world.now)
        for part in parts_of(kwargs):
            for values in (part.get("ExpressionAttributeValues", {}), part.get("Item", {})):
                for value in values.values():
                    self._doubtful.setdefault(value.get("S", ""), self._world.now)

    def timed_out(self) -> None:
        """Check, too, that whoever gave up stands in line no more."""
        super().timed_out()
        process = self._world.running.process
        for watch in self._in_use():
            place = "locks", watch.keys[:1]
            if not watch.options.get("fair") or not self._is_well(process, watch.began - LATE_FOR):
                continue
            own = [
                entry
                for entry in line_of(self._world.tables.row(*place) or {})
                if self._waiters[entry] is process
                and entry.rpartition(":")[2] == watch.name
                and self._joined[entry] >= watch.began
            ]
            self._ask("order gave up", not own, f"{watch.name} gave {place} up, and left {own}")

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

    def _check_line(
        self, process: Process, place: Place, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        """Check the line in a row after a change: waiters arrive in the order in which DynamoDB applied their joins."""
        before, after = line_of(old), line_of(new)
        exchange = self._world.network.applying
        assert exchange is not None
        if len(set(after)) < len(after):
            self.fail(f"order: a waiter stands twice in line for {place}: {after}")
        if not new:
            what = f"{process.name} deleted {place}, where somebody waits: {before}"
            self._ask("order kept", not before, what)
        for entry in after:
            if entry not in before:
                self._waiters.setdefault(entry, process)
                self._joined[entry] = self._world.now
                if self._interrupted.get(process, -math.inf) >= exchange.sent:
                    # Ctrl-C came while the join was under way. The request that leaves the line was sent after the
                    # join and may have been applied before it. Then the entry stays, and nobody waits there.
                    self._doubtful[entry] = self._world.now
        late = self._world.now - exchange.sent
        is_acquired = new.get("token") != old.get("token") and "expires_at" in new
        is_fair = "waiting" in repr(exchange.kwargs.get("ExpressionAttributeNames", {}))
        for entry in () if is_acquired else {*before} - {*after}:
            what = f"{process.name} removed {entry} from the line for {place}"
            is_own = self._waiters[entry] is process and entry in values_on(exchange, place)
            self._ask("order own entry", is_own, what)
            self._left_at[place] = self._world.now
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
        if is_ended:
            dated = float(new.get("free_since", {"N": "inf"})["N"]) - EPOCH
            self._dated_late[place] = dated - self._world.now
        if "expires_at" in new:
            end = float(new["expires_at"]["N"]) - EPOCH
            # an end in the far future stands for none: the holder knew no server time
            self._free_since[place] = math.inf if end > FAR else max(end + GRAIN, self._world.now)
        elif is_ended or place not in self._free_since:
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
        if self._has_jumped(process):
            return
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
        patience = PATIENCE + sum(STEPS[: len(passed)])
        for entry in passed:
            # PATIENCE, 6 s, allows the first in line one request that hangs for 3 s. Each one behind it has only a second
            # or less more than the one before it, so one such request may cost it its place.
            failures = 1 if entry == before[0] else 0
            # One ahead has given up, and this one learns of its new place by its next poll: later than the one behind it, which so
            # passes the dead ones before it does.
            is_moved = self._world.now - self._left_at.get(place, -math.inf) <= 2.0 + patience
            is_misled = is_moved or self._is_misled(taker, place)
            is_dated = self._dated_late.get(place, 0.0) <= DATED_WITHIN
            most = IN_ORDER if is_dated else IN_ORDER_BY_POLLS
            is_in_order = self._dead_ahead(entry, before) <= most
            if self._is_punctual(entry, failures) and is_in_order and not is_misled:
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
        longest = PATIENCE + sum(STEPS[: dead - 1]) + IDLE_DEAD if dead else IDLE_FIRST
        if idle > longest:
            self.fail(f"order: {place} was free for {idle:.1f} s with {dead} dead of {before}")

    def _dead_ahead(self, entry: str, line: list[str]) -> int:
        """Return the number of waiters ahead of one that are, or may be, dead."""
        ahead = line[: line.index(entry)]
        return sum(not self._is_punctual(each, failures=0) for each in ahead)

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
        for entry in line_of(self._world.tables.row(*place) or {}):
            waiter = self._waiters[entry]
            if waiter.lives and waiter not in self._failures:
                self.fail(f"order: {waiter.name} left {entry} in line for {place}")


def line_of(row: dict[str, Any]) -> list[str]:
    """Return the entries of the waiters in a row, first come first."""
    return in_line([entry["S"] for entry in row.get("waiting", {"L": []})["L"]])
