"""Judges a simulated world: the invariants of the protocol at every step, and what callers were promised.

It sees each row as DynamoDB changes it, and each step of each process. What it knows of a lock it takes from the
rows and from what a holder believes, not from what the library says about it: the library is what is judged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dev.simulation.network import EPOCH, HOST_SKEW
from pynamodb_mutex._operations.held import State
from pynamodb_mutex._protocol.claim import FORCED_MARK, Loss
from pynamodb_mutex._protocol.waiting_line import PATIENCE, STEP
from pynamodb_mutex._runtime.callers import this_caller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dev.simulation.network import Exchange
    from dev.simulation.world import Process, World

    Place = tuple[str, Any]
    """A row: its table and its key."""


WAKES_WITHIN = 0.1
"""Seconds within which a release wakes the next waiter of its process; a thread takes some milliseconds."""

LONGEST_HANG = 10.0
"""Seconds for which a request may be under way, at most: longer than any timeout of a client."""

DISTURBED_FOR = 2.0
"""Seconds after a process stood still in which it may still be late, for what it had planned was not done."""

LATE_FOR = 15.0
"""Seconds after a process stood still, or two of its requests failed, in which others may pass it in line. One request
that hangs must not cost a waiter its place: PATIENCE allows for it."""

LATE_WRITE = 1.0
"""Seconds after which a write is late that begins or ends a claim: the times that it writes are out of date."""

IDLE_FIRST = 3.0
"""Seconds for which a lock is free, at most, while a living waiter stands first. It may not know that it does, and polls
after 2 s; that read may show the row as it was, and is repeated."""

GRAIN = 1.5
"""Seconds after the end of a claim until a waiter knows that it has passed: server time is known to a second."""

IDLE_DEAD = 3.0
"""Seconds beyond what the protocol grants the dead before a living waiter: a poll comes 2 s late, and server time is
known to a second."""


@dataclass(frozen=True)
class Watched:
    """What the judge knows of a table.

    Attributes:
        prefix: Of the attributes of claims in it; None if there are none.
        locks: In which table the locks of its rows stand, and what their keys begin with.
    """

    prefix: str | None
    locks: tuple[str, str] | None = None


class Judge:
    """Watches the tables of a world.

    Args:
        world: The world, which it joins.
        tables: What is watched.

    Attributes:
        acquisitions: How many were believed in.
        writes: Guarded writes by their number: how often each was applied.
        unguarded: Writes without a lock: the network may apply one twice.
        detached: Tokens of acquisitions for which there is a ticket.
        by_hand: Whether a person, or the TTL, changes rows now.
    """

    def __init__(self, world: World, tables: Mapping[str, Watched]) -> None:
        self._world = world
        self._tables = tables
        self._believed: dict[tuple[str, str], list[tuple[Process, Any]]] = {}
        self._contested: set[tuple[str, str]] = set()
        self._frozen: dict[Process, int] = {}
        self._versions: dict[Place, int] = {}
        self._broken: set[str] = set()
        self._owners: dict[str, Process] = {}
        self._began: dict[Any, float] = {}
        self._waiting: set[tuple[Process, int]] = set()
        self._to_be_woken: dict[tuple[Process, int], float] = {}
        self._disturbed: dict[Process, float] = {}
        self._failures: dict[Process, list[float]] = {}
        self._interrupted: dict[Process, float] = {}
        self._waiters: dict[str, Process] = {}
        self._joined: dict[str, float] = {}
        self._misdated: dict[Place, float] = {}
        self._doubtful: set[str] = set()
        self._free_since: dict[Place, float] = {}
        self._overtaken: set[tuple[Place, str]] = set()
        self.detached: set[str] = set()
        self.acquisitions = 0
        self.writes: dict[str, int] = {}
        self.unguarded: set[str] = set()
        self.by_hand = False
        world.judge = self
        world.tables.watch = self._changed

    def fail(self, what: str) -> None:
        """Report a violation: it is raised where the world runs, whatever the thread does that is judged."""
        self._world.fail(what)

    # -- rows ---------------------------------------------------------------------------------------

    def _changed(self, table: str, key: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
        watched = self._tables.get(table)
        if watched is None:
            return
        place = (table, key)
        if self.by_hand:
            # whoever held it is excused, and a fencing token that begins anew
            prefix = watched.prefix or ""
            self._broken.add(old.get(f"{prefix}token", {}).get("S", ""))
            self._versions.pop(place, None)
            self._free_since.pop(place, None)
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
        self._check_write(process, place, watched, old, new)

    def _check_claim(self, process: Process, place: Place, old: _Claim, new: _Claim) -> None:
        if (new.token or "").startswith(FORCED_MARK) and old.token is not None:
            if new.token != old.token:
                self._broken.add(old.token)
                self._check_forced(process, place, old.token)
            return
        if new.token != old.token and new.end is not None:
            self._acquired(process, place, old, new)
        elif new.end is not None and old.end is None and old.token is not None:
            self.fail(f"I5: the ended claim of {old.token} on {place} stands again")
        elif old.end is not None and new.end is not None and new.end < old.end:
            self.fail(f"I1: the end of {new.token} on {place} moved back")
        owner = self._owners.get(old.token or "")
        if new.end is None and owner not in {None, process} and self._is_alive(old):
            # a write without the lock ends a dead one
            self.fail(f"I5: {process.name} ended the claim of {owner.name} on {place}")

    # -- those who wait in line ---------------------------------------------------------------------

    def failed(self, exchange: Exchange) -> None:
        """Note that a request fails: its process may be late from now on.

        If it was to join the line, or to leave it, its waiter may stand there without waiting.
        """
        self._failures.setdefault(exchange.thread.process, []).append(self._world.now)
        for value in exchange.kwargs.get("ExpressionAttributeValues", {}).values():
            self._doubtful.add(value.get("S", ""))

    def interrupted(self, process: Process) -> None:
        """Note that somebody in a process was interrupted, who then leaves the line."""
        self._interrupted[process] = self._world.now

    def _is_punctual(self, entry: str, failures: int) -> bool:
        """Say whether a waiter lives, and nothing has kept it from polling in time but so many failed requests."""
        if entry in self._doubtful:
            return False
        process = self._waiters[entry]
        since = self._world.now - LATE_FOR
        is_disturbed = (
            max(self._interrupted.get(process, since), self._disturbed.get(process, since)) > since
        )
        since = max(since, self._joined[entry])
        failed = [time for time in self._failures.get(process, []) if time > since]
        is_running = process.lives and process._paused is None
        return is_running and not is_disturbed and len(failed) <= failures

    def _check_line(
        self, process: Process, place: Place, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        """Check the order of arrival: that of the joins, as DynamoDB applied them."""
        before, after = _line_of(old), _line_of(new)
        exchange = self._world.network.applying
        assert exchange is not None
        if len(set(after)) < len(after):
            self.fail(f"order: a waiter stands twice in line for {place}: {after}")
        for entry in after:
            if entry not in before:
                self._waiters.setdefault(entry, process)
                self._joined[entry] = self._world.now
                if self._interrupted.get(process, -math.inf) >= exchange.sent:
                    # Ctrl-C while the join was under way: the request that leaves the line may have come before it
                    self._doubtful.add(entry)
        late = self._world.now - exchange.sent
        is_acquired = new.get("token") != old.get("token") and "expires_at" in new
        is_fair = "waiting" in repr(exchange.kwargs.get("ExpressionAttributeNames", {}))
        # a place is the turn of whoever stands there, but not when it has lost its place meanwhile, and joined again
        if is_acquired and is_fair and late < PATIENCE:
            self._check_turn(process, place, before, after)
        elif is_acquired and before:
            self._overtaken.add((place, before[0]))
        self._note_times(place, old, new, late=late, is_acquired=is_acquired)

    def _note_times(
        self,
        place: Place,
        old: dict[str, Any],
        new: dict[str, Any],
        *,
        late: float,
        is_acquired: bool,
    ) -> None:
        """Note since when the lock is free, and whether the row says so."""
        before, after = _line_of(old), _line_of(new)
        is_ended = "expires_at" in old and "expires_at" not in new
        first_left = bool(before) and before[:1] != after[:1]
        if is_acquired or is_ended or first_left:
            self._misdated[place] = self._world.now if late > LATE_WRITE else math.inf
        if "expires_at" in new:
            end = float(new["expires_at"]["N"]) - EPOCH
            self._free_since[place] = math.inf if end > 1e8 else max(end + GRAIN, self._world.now)
        elif "expires_at" in old or place not in self._free_since:
            self._free_since[place] = self._world.now
        if before != after and not is_acquired:
            # whoever stands first now has not had its time yet
            self._free_since[place] = max(self._free_since[place], self._world.now)

    def _check_turn(
        self, process: Process, place: Place, before: list[str], after: list[str]
    ) -> None:
        """Check that a waiter takes the lock in its turn, and in time."""
        removed = [entry for entry in before if entry not in after]
        taker = removed[-1] if removed and self._waiters[removed[-1]] is process else None
        passed = [entry for entry in removed if entry != taker]
        if len(removed) == 1 and (place, before[0]) not in self._overtaken:
            # else the first in line loses to takers that do not stand in line, and may be dead
            passed = before[: before.index(removed[0])]
            if passed:
                self.fail(f"order: {removed[0]} left {passed}, whom it passed, in line for {place}")
        if after and not removed:
            self.fail(f"order: a newcomer took {place} before those in line: {before}")
        for entry in passed:
            # one request of the first may hang for 3 s; each one behind it has but 2 s more than the one before it
            failures = 1 if entry == before[0] else 0
            if self._is_punctual(entry, failures) and not self._is_misled(taker, place):
                self.fail(f"order: {entry} was passed in line for {place}")
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
        """Say whether the row claims that the lock has been free for longer than it was, and a taker cannot know better.

        It knows better if it stood in line before, and has looked at the row all the time.
        """
        since = self._misdated.get(place, math.inf)
        if since == math.inf:
            return False
        return (
            taker is None or self._joined[taker] > since or not self._is_punctual(taker, failures=1)
        )

    def check_left(self, place: Place) -> None:
        """Check that nobody who lives, and had no fault, has left an entry in the line."""
        for entry in _line_of(self.row(place[0], place[1][0])):
            waiter = self._waiters[entry]
            if waiter.lives and waiter not in self._failures:
                self.fail(f"order: {waiter.name} left {entry} in line for {place}")

    def _check_forced(self, process: Process, place: Place, broken: str) -> None:
        """Check that force breaks the claim that it saw: another may have acquired the lock since."""
        exchange = self._world.network.applying
        assert exchange is not None
        if {"S": broken} not in exchange.kwargs["ExpressionAttributeValues"].values():
            self.fail(f"I5: {process.name} broke a claim on {place} that it had not seen: {broken}")

    def _acquired(self, process: Process, place: Place, old: _Claim, new: _Claim) -> None:
        assert new.token is not None
        self._owners[new.token] = process
        if new.version <= self._versions.get(place, 0) and place[1] != ("deleted",):
            self.fail(f"I3: the fencing token of {place} did not grow: {new.version}")
        self._versions[place] = new.version
        is_handed_over = self._owners.get(old.token or "") is process
        if old.end is None or is_handed_over or old.token in self.detached:
            return
        if self._is_alive(old):
            self.fail(f"I1: {process.name} took {place} before its end: {old.end:.3f}")

    def _is_alive(self, claim: _Claim) -> bool:
        """Say whether a claim must not be taken.

        Without server time an end far in the future is proposed, and the claim dies by observation alone.
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
        """Check a write of a user's, if this is one: its number is new."""
        number = _number_of(new)
        prefix = watched.prefix or ""
        writes = f"{prefix}writes"
        exchange = self._world.network.applying
        # a transaction under the guard counts as a write too
        is_single = exchange is not None and exchange.operation != "TransactWriteItems"
        is_same = new.get(f"{prefix}token") == old.get(f"{prefix}token")
        is_repeated = is_same and is_single and new.get(writes) != old.get(writes)
        # of a transaction only an addition shows that it was applied once more
        is_repeated = is_repeated or new.get("count") != old.get("count")
        if number is None or (number == _number_of(old) and not is_repeated):
            return
        if new.get(f"{prefix}token") != old.get(f"{prefix}token") and "count" not in new:
            return  # what an acquisition carries is no guarded write
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
        if watched.locks is None:
            return _Claim(old, watched.prefix or "")
        table, prefix = watched.locks
        return _Claim(self.row(table, f"{prefix}{place[1][0]}"), "")

    def row(self, table: str, key: str) -> dict[str, Any]:
        """Return a row with a hash key alone, as it stands."""
        return self._world.tables.row(table, (key,)) or {}

    # -- belief -------------------------------------------------------------------------------------

    def believes(self, process: Process, claim: Any) -> None:
        """Note a claim that a process may believe in from now on."""
        self.acquisitions += 1
        # a thread that was refused is asked for again when the process uses its locks next, which may be late
        self._began[claim] = math.inf if process.refuses_threads else self._world.now
        if claim.contender.caller.number != this_caller():
            # it was handed over
            self._expect(process, claim.contender)
        place = (claim.store.connection.table_name, claim.key)
        claims = self._believed.setdefault(place, [])
        if (process, claim) not in claims:
            claims.append((process, claim))
        if len(claims) > 1:
            self._contested.add(place)

    def ended(self, process: Process, store: Any, key: str, claim: Any) -> None:
        """Check that a process did what it could against a loss; expect that the next in line is woken."""
        began, now = self._began.pop(claim, math.inf), self._world.now
        queue = process.queues.get((store, key))
        if queue is not None and queue.holder is claim and queue.turns:
            self._expect(process, queue.turns[0].contender)
        if (
            # one that came late, with not much left of its lease, may be lost before its first renewal is due
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
            # No renewal is sent while two are under way, and a request may hang for longer than a short lease: one
            # from before the lock was lost, and won back by a renewal that its holder asked for.
            if sent.sent < since - LONGEST_HANG:
                break
            hangs = sent.client.hangs_for if sent.thread.name.endswith("worker") else 0.0
            if sent.sent < since - hangs or sent.thread.process is not process:
                continue
            if claim.own.token in repr(sent.kwargs):
                return
        self.fail(f"I6: {process.name} let {key} expire, and did not try to renew it")

    # -- waiters ------------------------------------------------------------------------------------

    def _expect(self, process: Process, contender: Any) -> None:
        """Expect that somebody goes on now, if it waits and does not send a request."""
        waiter = (process, contender.caller.number)
        if waiter in self._waiting:
            self._to_be_woken.setdefault(waiter, self._world.now)

    def waits(self, process: Process, caller: int) -> None:
        """Note that a thread or task waits until it is woken, or a time comes."""
        self._waiting.add((process, caller))

    def goes_on(self, process: Process, caller: int) -> None:
        """Check that a thread or task was woken when it had to be."""
        waiter = (process, caller)
        self._waiting.discard(waiter)
        since = self._to_be_woken.pop(waiter, None)
        if since is not None and self._world.now - since > WAKES_WITHIN:
            waited = self._world.now - since
            self.fail(f"I7: a release in {process.name} woke the next in line after {waited:.1f} s")

    def disturbed(self, process: Process) -> None:
        """Excuse what a process does late: it stood still, or stands still from now on."""
        self._disturbed[process] = self._world.now
        for waiter in [each for each in self._to_be_woken if each[0] is process]:
            del self._to_be_woken[waiter]

    def froze(self, process: Process) -> None:
        """Excuse what a process believes until it has had an answer: its clock stood still."""
        self._frozen[process] = process.answered

    def stepped(self, _: Process) -> None:
        """Check that nobody else believes in what a process believes in."""
        if self._contested:
            for place in sorted(self._contested):
                self._check_belief(place)

    def _check_belief(self, place: tuple[str, str]) -> None:
        world = self._world
        running = world.process
        alive, believers = [], []
        for process, claim in self._believed[place]:
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
        if not process.lives or claim.is_released or claim.own.token in self._broken:
            return False
        return not claim.is_over or claim.loss is None or claim.loss.can_be_won_back

    def _is_excused(self, process: Process) -> bool:
        if process.frozen_at is not None:
            return True
        answered = self._frozen.get(process)
        if answered is not None and process.answered > answered:
            del self._frozen[process]
            return False
        return answered is not None


def _line_of(row: dict[str, Any]) -> list[str]:
    return [entry["S"] for entry in row.get("waiting", {"L": []})["L"]]


def _number_of(row: dict[str, Any]) -> str | None:
    """Return the number of a user's write that a row carries; a payload of a lock is JSON."""
    data: str | None = row.get("data", {}).get("S")
    return None if data is None else data.strip('"')


class _Claim:
    """The claim in a row.

    Attributes:
        token: Its token.
        end: When it ends; None if it has ended.
        version: Its fencing token.
    """

    __slots__ = ("end", "token", "version")

    def __init__(self, row: dict[str, Any], prefix: str) -> None:
        self.token: str | None = row.get(f"{prefix}token", {}).get("S")
        end = row.get(f"{prefix}expires_at")
        self.end = None if end is None else float(end["N"])
        self.version = int(row.get(f"{prefix}version", {"N": "0"})["N"])
