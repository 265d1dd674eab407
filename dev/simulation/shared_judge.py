"""Checks what shared locks promise in a simulated world: by the rows, the requests, and what handles say.

To the rules of `judge` each reader is a holder of its own, whose claim is its entry in the row. Those that are added here, S1 to
S9, are the design's: S1: the row's end and lease never fall within a claim, and cover each reader. S2: nobody begins or joins
past a mark that counts, but who is in. S3: no more readers than there may be. S4: a request changes no entry but its own, and
removes another only if that is dead. S5: a claim is taken over when its last reader is dead, by a write that names it with its
end, or by watching. S6: a mark is made on a shared claim, for some seconds, and only its own is removed. S7: a waiting writer
gets in while readers come and go. S8: no reader waits for long where it may join. S9: whoever holds a lock one way is refused
the other at once, and nested readers do not wait.
"""

from __future__ import annotations

import copy
import math
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dev.simulation.claims import FAR, FORCED_MARK, Claim, Term, reader_of, values_on
from dev.simulation.handles import LONGEST_HANG, NEAR
from dev.simulation.judge import IDLE_SLACK, Judge
from dev.simulation.lines import GRAIN, LATE_WRITE
from dev.simulation.network import HOST_SKEW
from dev.simulation.world import EPOCH
from pynamodb_mutex._lock.dynamodb.layout import SHARED_MARK
from pynamodb_mutex._shared import readers as rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dev.simulation.claims import Place, Watch
    from dev.simulation.judge import Watched
    from dev.simulation.network import Exchange
    from dev.simulation.world import Process, World

LONGEST_MARK = 7.4
"""Seconds from the sending of a mark to its end at most: its length, and what a client may not know of server time."""

MARK_FAR = 14.5
"""Seconds from the sending of a begin or join from which a mark may count for nothing, as written by hand."""

MARKS_WITHIN = 2.0
"""Longest time in seconds between two polls of a writer that has seen readers."""


class Sharing(NamedTuple):
    """What a row says of readers that share its claim.

    Attributes:
        ends: The end of each, in server time, by the name of its entry.
        version: The fencing token of all.
    """

    ends: dict[str, float]
    version: int

    @property
    def last(self) -> float:
        """The end of the last of them."""
        return max(self.ends.values(), default=0.0)


def sharing_of(row: dict[str, Any]) -> Sharing | None:
    """Return what a row says of its readers; None if nobody shares its claim. A map under another token counts for nothing."""
    readers = row.get("shared_by", {"M": {}})["M"].get(row.get("token", {}).get("S", ""))
    if readers is None or "expires_at" not in row:
        return None
    ends = {name: float(end["N"]) for name, end in readers["M"].items()}
    return Sharing(ends, int(row["version"]["N"]))


def mark_of(row: dict[str, Any]) -> float:
    """Return the true time at which the mark in a row ends; minus infinity if there is none."""
    return float(row.get("wanted_until", {"N": "-inf"})["N"]) - EPOCH


def token_of(name: str) -> str:
    """Return the token in the name of an entry, by which its reader's handle is known."""
    return name.partition(" ")[0]


def lease_of(name: str) -> float:
    """Return the lease in the name of an entry: the clients write it there."""
    return float(name.rpartition("/")[2])


def piece_of(name: str) -> str:
    """Return what the entries of one thread or task, one within the other, have in common."""
    return name.partition(" ")[2].partition("/")[0]


def is_old(process: Process) -> bool:
    """Return whether a process is of an older version, which knows of no readers."""
    share = random.Random(f"{process.world.seed} old").choice((0.0, 0.0, 0.3))
    return random.Random(f"{process.world.seed} old {process.name}").random() < share


class SharedJudge(Judge):
    """Watches readers and marks, in addition to claims that are held alone."""

    def __init__(self, world: World, tables: Mapping[str, Watched]) -> None:
        super().__init__(world, tables)
        self._receives = False  # signals are judged by claims that are held alone
        # what the row that changes said of readers before, and says now
        self._before: Sharing | None = None
        self._after: Sharing | None = None
        # the fencing token of each acquisition, by its token
        self._fences: dict[str, int] = {}
        # since when a reader could get in; since when readers have shared the same claim, and no mark was removed
        self._open_since: dict[Place, float] = {}
        self._shared_since: dict[Place, float] = {}
        self._is_of_writers = False

    def _check_said(self, watch: Watch) -> None:
        """Check what a handle says of the row; a reader that joins says whom the first one of the claim has replaced."""
        if not watch.options.get("shared"):
            super()._check_said(watch)

    def _check_written(self, watch: Watch) -> None:
        """Check nothing: a process of an older version, and a reader that joins, write no extra attributes."""

    def failed(self, process: Process, kwargs: dict[str, Any]) -> None:
        """Note in addition the token of a reader whose request meets a fault: it may have made its entry."""
        super().failed(process, kwargs)
        self._doubtful.setdefault(token_of(reader_of(kwargs) or ""), self._world.now)

    # -- rows ---------------------------------------------------------------------------------------

    def _changed(self, table: str, key: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
        self._before, self._after = sharing_of(old), sharing_of(new)
        super()._changed(table, key, old, new)
        if table == "locks":
            self._note_open((table, key), old, new)

    def _check_own(
        self,
        exchange: Exchange,
        place: Place,
        prefix: str,
        old: dict[str, Any],
        new: dict[str, Any],
    ) -> None:
        if place[0] == "locks":
            self._check_mark(exchange, place, old, new)
        before, after = self._before, self._after
        if before is None or old["token"] != new.get("token", {}):
            super()._check_own(exchange, place, prefix, old, new)
            if after is not None and old.get("token") != new["token"]:
                self._check_begin(exchange, place, old, new, after)
        elif after is not None:
            self._check_entries(exchange, place, old, new)
        else:
            me = reader_of(exchange.kwargs)
            what = f"{exchange.thread} ended {place}, which {list(before.ends)} share"
            self._ask("S4 end", [*before.ends] == [me] and "expires_at" not in new, what)
            is_kept = mark_of(old) == mark_of(new)
            self._ask("S6 kept", is_kept, f"{exchange.thread} ended {place} with its mark")

    def _check_begin(
        self,
        exchange: Exchange,
        place: Place,
        old: dict[str, Any],
        new: dict[str, Any],
        after: Sharing,
    ) -> None:
        """Check a claim that a reader begins."""
        names = [*map(token_of, after.ends)]
        is_own = names == [new["token"]["S"]] and after.last == float(new["expires_at"]["N"])
        self._ask("S4 begin", is_own, f"{exchange.thread} began {place} as {new}")
        what = f"{exchange.thread} began {place} past a mark"
        self._ask("S2 begin", not self._is_marked(exchange, old), what)
        self._check_past_writers(exchange, place)

    def _is_late(self, exchange: Exchange) -> bool:
        late = self._world.now - exchange.sent > LATE_WRITE
        return late or self._is_unaware(exchange)

    def _is_unaware(self, exchange: Exchange) -> bool:
        """Return whether the process does not know how late it is; a copy may arrive when it has learned that."""
        return self._is_excused(exchange.thread.process) or self._is_sent_late(exchange)

    def _is_marked(self, exchange: Exchange, row: dict[str, Any]) -> bool:
        """Return whether a mark in a row counts for a request."""
        until = mark_of(row)
        is_near = until <= exchange.sent + MARK_FAR
        is_near &= not self._is_unaware(exchange)
        return self._world.now < until + HOST_SKEW / 2 and is_near

    def _check_entries(
        self, exchange: Exchange, place: Place, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        """Check a change of a row whose claim readers share before and after it."""
        assert self._before is not None
        assert self._after is not None
        before, after = self._before.ends, self._after.ends
        who, me = f"{exchange.thread} changed {place}:", reader_of(exchange.kwargs)
        ends, leases = (
            [float(row[name]["N"]) for row in (old, new)] for name in ("expires_at", "lease")
        )
        is_later = ends[1] >= ends[0] and leases[1] >= leases[0]
        self._ask("S1 never lower", is_later, f"{who} its end from {ends}, its lease from {leases}")
        is_covered = ends[1] >= max(after.values(), default=0.0)
        self._ask("S1 covers", is_covered, f"{who} it ends at {ends[1]} before {after}")
        changed = [name for name in before | after if before.get(name) != after.get(name)]
        others = [name for name in changed if name != me]
        for name in others:
            is_dead = name not in after and self._is_past(before.get(name, math.inf))
            is_right = is_dead and me not in before and not self._is_believed(token_of(name))
            self._ask("S4 dead", is_right, f"{who} the entry of {name}")
        same = all(old.get(name) == new.get(name) for name in ("version", "owner"))
        is_own = same and (me in changed or (ends[0], leases[0]) == (ends[1], leases[1]))
        self._ask("S4 own entry", is_own, f"{who} and not its own entry {me}")
        if me not in changed or me is None:
            return
        is_named = float(old["version"]["N"]) in values_on(exchange, place)
        self._ask("S4 names", is_named, f"{who} it does not name its version")
        if me not in before:
            is_in = any(piece_of(name) == piece_of(me) for name in before)
            # a late one, or a copy, which compared no mark, may have been in: it is an entry of nobody now
            names = exchange.kwargs["ExpressionAttributeNames"].values()
            may_be_late = self._is_late(exchange) or token_of(me) in self._gone
            is_in |= may_be_late and "wanted_until" not in names
            self._ask("S2 join", is_in or not self._is_marked(exchange, old), f"{who} past a mark")
            is_few = is_in or bool(others) or len(before) < rules.MOST
            self._ask("S3", is_few, f"{who} {me} joined {len(before)} readers")
            self._check_kept_out(place)
            if not is_in:
                self._check_past_writers(exchange, place)
        elif me in after:
            self._ask("S1 entry", after[me] > before[me], f"{who} {me} to an earlier end")

    def _is_past(self, end: float) -> bool:
        """Return whether a server time has passed for sure."""
        return EPOCH + self._world.now >= end + HOST_SKEW / 2

    def _check_mark(
        self, exchange: Exchange, place: Place, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        """Check that a mark is made on a shared claim, for some seconds, and that only its own is removed."""
        before, after, who = mark_of(old), mark_of(new), f"{exchange.thread} on {place}:"
        if self._after is None and old.get("token") != new.get("token") and "expires_at" in new:
            # Force, and the hand-overs after it, which name the claim before, leave marks. So does an older version, which
            # knows of none.
            names_it = old.get("token", {}).get("S", "") in values_on(exchange, place)
            leaves = names_it or is_old(exchange.thread.process)
            self._ask("S6 got in", after == -math.inf or leaves, f"{who} got in, and left a mark")
        if before == after:
            return
        if after == -math.inf and old.get("token") == new.get("token"):
            is_own = float(old["wanted_until"]["N"]) in values_on(exchange, place)
            self._ask("S6 own", is_own, f"{who} removed a mark that is not its own")
        elif after > -math.inf:
            is_short = after <= exchange.sent + LONGEST_MARK
            # A late copy, or a request whose process stood still before it was sent, does not count the mark that it meets for
            # one, and so may shorten it.
            is_later = after > before or before > after - LONGEST_MARK + MARK_FAR
            is_shared = self._before is not None and self._before == self._after
            what = f"{who} a mark from {before:.1f} to {after:.1f}"
            self._ask("S6 mark", is_short and is_later and is_shared, what)
        is_only = all(old.get(n) == new.get(n) for n in ("expires_at", "lease", "version"))
        is_only |= old.get("token") != new.get("token")
        self._ask("S6 alone", is_only, f"{who} a mark changed the claim")
        if after < before:
            self._shared_since[place] = self._world.now

    def _check_claim(self, exchange: Exchange, place: Place, old: Claim, new: Claim) -> None:
        if self._before is None or old.token != new.token:
            super()._check_claim(exchange, place, old, new)

    def _acquired(self, exchange: Exchange, place: Place, old: Claim, new: Claim) -> None:
        if self._before is not None:
            name = exchange.thread.process.name
            for token in map(token_of, self._before.ends):
                what = f"{name} took {place}, in which a reader believes"
                self._ask("I1 taken", not self._is_believed(token), what)
            is_dead = self._is_past(self._before.last)
            is_dead |= self._world.now - self._claimed_since.get(place, math.inf) >= old.lease
            is_right = {old.token, old.end} <= values_on(exchange, place) and is_dead
            assert old.end is not None
            what = f"{name} took {place} of {self._before}"
            self._ask("S5", is_right or self._is_past(old.end), what)
            old = copy.copy(old)
            old.end = None
        super()._acquired(exchange, place, old, new)

    def _note_term(
        self, exchange: Exchange, place: Place, old: Claim, new: Claim, *, breaks: bool
    ) -> None:
        before, after = self._before, self._after
        self._fences[new.token or ""] = new.version
        if before is None and after is None:
            super()._note_term(exchange, place, old, new, breaks=breaks)
            return
        me = token_of(reader_of(exchange.kwargs) or "")
        if before is not None and me in map(token_of, before.ends) and me not in self._names(after):
            if after is None:
                # whoever leaves others behind, though they be dead, wakes nobody
                self._ended[id(exchange)] = place, me, "", exchange.sent
            self._left.add(me)
        if after is None:
            # if a writer takes it over
            super()._note_term(exchange, place, old, new, breaks=breaks)
            term = self._terms.get(new.token or "")
            if term is not None and (term.abandoned_by or "").startswith(SHARED_MARK):
                term.abandoned_by = ""
            return
        self._end_term(place, old, new, breaks=breaks)
        for name, end in after.ends.items():
            if before is None or before.ends.get(name) != end:
                self._note_entry(exchange, place, old, new, name)

    @staticmethod
    def _names(sharing: Sharing | None) -> list[str]:
        return [] if sharing is None else [*map(token_of, sharing.ends)]

    def _note_entry(
        self, exchange: Exchange, place: Place, old: Claim, new: Claim, name: str
    ) -> None:
        """Note the entry of a reader as the claim by which it holds the lock."""
        assert self._after is not None
        token, process, now = token_of(name), exchange.thread.process, self._world.now
        end = self._after.ends[name] - EPOCH
        watched = exchange.sent + new.lease
        self._fences[token] = new.version
        term = self._terms.get(token)
        until = exchange.sent + lease_of(name)
        if term is None:
            # its lease counts from the first attempt, also if that was refused
            sent = (e for e in self._sent(process, exchange.sent) if token in values_on(e, None))
            first = min([self._first_asked(exchange, token), *(each.sent for each in sent)])
            until = first + lease_of(name)
            term = Term(place, process, f":{exchange.thread.name}", now, 0.0, watched)
            is_begun = self._before is None or old.token != new.token
            if is_begun and (old.end is None or self._before is not None):
                term.abandoned_by = ""
            elif is_begun and old.end is not None and now >= old.end - EPOCH:
                term.abandoned_by = "" if old.is_reserved else old.owner
            self._terms[token] = term
        self._prolonged.setdefault(id(exchange), []).append((token, until))
        term.end, term.watched = end, max(watched, term.watched)
        # a late copy, and what a late answer has made the reader ask for again, is dated by when it was sent
        is_near = end <= exchange.sent + lease_of(name) + NEAR or process in self._jumps
        what = (
            f"an entry on {place} of {lease_of(name)} s ends {end - exchange.sent:.1f} s after it"
        )
        self._ask("I7 end", is_near, what)

    def _end_term(
        self, place: Place, old: Claim, new: Claim | None, *, breaks: bool = False
    ) -> None:
        super()._end_term(place, old, new, breaks=breaks)
        if self._before is None:
            return
        stays = new is not None and old.token == new.token and new.end is not None
        is_forced = new is not None and (new.token or "").startswith(FORCED_MARK)
        for token in map(token_of, self._before.ends):
            if stays and token in self._names(self._after):
                continue
            term = self._terms.pop(token, None)
            if term is not None:
                self._gone[token] = term, self._world.now
                if breaks or is_forced:
                    term.broken_at, term.broken_by = self._world.now, self._world.network.applying
                    self._broken_terms[token] = term

    # -- waiting ------------------------------------------------------------------------------------

    def _check_call(self, *about: Any, is_acquired: bool) -> None:
        # a reader that leaves calls nobody
        if self._before is None or self._after is not None or is_acquired:
            super()._check_call(*about, is_acquired=is_acquired)

    def _note_times(
        self, place: Place, old: dict[str, Any], new: dict[str, Any], **more: Any
    ) -> None:
        """Note since when the lock is free: a shared one when its last reader's entry has ended, whatever the row's end."""
        if self._after is not None:
            new = {**new, "expires_at": {"N": str(self._after.last)}}
        super()._note_times(place, old, new, **more)

    def _note_open(self, place: Place, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Note since when a reader could get in: the key is free, or others share it, and no mark keeps it out."""
        now, after = self._world.now, self._after
        opens = mark_of(new) + GRAIN
        if after is not None and len(after.ends) >= rules.MOST:
            opens = max(opens, min(after.ends.values(), default=0.0) - EPOCH + GRAIN)
            opens = math.inf if rules.MOST < rules.BURY_FROM else opens
            opens = min(opens, max(after.last - EPOCH + GRAIN, mark_of(new) + GRAIN))
        elif after is None and "expires_at" in new:
            end = float(new["expires_at"]["N"]) - EPOCH
            opens = math.inf if end > FAR else max(opens, end + GRAIN)
        was = self._open_since.get(place, 0.0)
        self._open_since[place] = opens if opens > now else min(was, now)
        if after is None or old.get("token") != new.get("token"):
            self._shared_since[place] = now if after is not None else math.inf

    def _waiters_for(self, process: Process, place: Place) -> list[Watch]:
        found = super()._waiters_for(process, place)
        if self._is_of_writers:
            # an older version waits for the end of the row, or watches it
            found = [each for each in found if not _shares(each) and not is_old(process)]
        return found

    @contextmanager
    def _of_writers(self) -> Iterator[None]:
        """Leave out processes of an older version, and readers: they stand in no queue, and marks keep them out."""
        self._is_of_writers = True
        yield
        self._is_of_writers = False

    def _writers_for(self, process: Process, place: Place) -> list[Watch]:
        with self._of_writers():
            return self._waiters_for(process, place)

    def _expect(
        self, process: Process, place: Place, token: str | None, owner: str, asked: float
    ) -> None:
        with self._of_writers():
            super()._expect(process, place, token, owner, asked)

    def _check_starved(self, place: Place) -> None:
        with self._of_writers():
            super()._check_starved(place)
        self._check_kept_out(place)

    def _check_kept_out(self, place: Place) -> None:
        """Check that no reader waits for long while it could get in."""
        now, since = self._world.now, self._open_since.get(place, 0.0)
        if now - since < IDLE_SLACK:
            return
        for process in self._punctual():
            for watch in self._waiters_for(process, place):
                if _shares(watch) and watch.since < watch.began:
                    waits, longest = now - max(since, watch.began), watch.options["poll"][1]
                    what = f"{process.name} waits for {waits:.1f} s to share {place}"
                    self._ask("S8", waits <= 2 * longest + IDLE_SLACK, what)

    def _check_past_writers(self, exchange: Exchange, place: Place) -> None:
        """Check that no writer waits which would have marked the row by now, if a reader gets in that was not in."""
        if self._is_late(exchange):
            return  # a mark of now is too far ahead for it, and it begins or joins for nobody
        if any(map(self._has_jumped, self._world.processes)):
            return  # nor does a mark count that such a process has written
        now, since = self._world.now, self._shared_since.get(place, math.inf)
        for process in self._punctual():
            waiters = self._writers_for(process, place)
            # behind one that wants several a writer of the same process may rely on its polls
            if not all(each.is_single for each in waiters):
                continue
            for watch in waiters:
                # one that is called in vain sends acquires in place of marks
                is_called = bool(self._astray) and watch.options.get("fair")
                if watch.since < watch.began and watch.options.get("timeout") and not is_called:
                    waits = now - max(since, watch.began)
                    # its first poll shows the readers, or one that comes after they have got in
                    most = MARKS_WITHIN + (watch.options["poll"][1] if since > watch.began else 0.0)
                    what = (
                        f"a reader got in {place}, for which {process.name} waits for {waits:.1f} s"
                    )
                    self._ask("S7", waits <= most + IDLE_SLACK, what)

    # -- what callers learn -------------------------------------------------------------------------

    def _note_belief(self, watch: Watch) -> None:
        super()._note_belief(watch)
        handle = watch._handle()
        if watch.is_single and _shares(watch) and watch.tokens[0] in self._fences:
            is_same = handle.fencing_token == self._fences[watch.tokens[0]]
            self._ask("I3 shared", is_same, f"{watch.process.name} has {handle.fencing_token}")

    def gave_up(self) -> list[Watch]:
        """Check that the running thread or task, which waits no more, has left no mark; return what it has waited for.

        Empty if its process was delayed, or is of an older version.
        """
        process, found = self._world.running.process, []
        for watch in self._in_use():
            is_well = self._is_well(process, watch.began - LONGEST_HANG)
            if watch.tokens or "timeout" not in watch.options or not is_well or is_old(process):
                continue
            found.append(watch)
            place = _place_of(watch)
            row = self._world.tables.row(*place) or {}
            # a mark that an older version has left in the row of its claim, and cannot be made anew there, ends by itself
            counts = mark_of(row) > self._world.now and sharing_of(row) is not None
            is_own = counts and row["wanted_by"]["S"] == watch.options.get("owner")
            what = f"{process.name} gave {place} up, and left its mark"
            self._ask("S6 removed", not is_own, what)
        return found

    def timed_out(self) -> None:
        """Check, too, that the lock was not to be had all the time."""
        super().timed_out()
        process, now = self._world.running.process, self._world.now
        for watch in self.gave_up():
            place, shares = _place_of(watch), _shares(watch)
            others = [each for each in self._writers_for(process, place) if each is not watch]
            if not watch.is_single or watch.options.get("fair") or (others and not shares):
                continue
            since = (self._open_since if shares else self._free_since).get(place, now)
            idle, longest = now - max(since, watch.began), 2 * watch.options["poll"][1]
            is_short = idle <= longest + IDLE_SLACK
            is_right = is_short if watch.options["timeout"] else since >= watch.began
            what = f"{process.name} was refused {place}, which was to be had for {idle:.1f} s"
            self._ask("said refused", is_right, what)

    def leaves(self, handle: Any) -> None:
        """Note that the running thread or task, which has not got a handle's lock, asks for it no more."""
        for watch in self._own(handle):
            watch.is_used = watch.is_used and bool(watch.ask())

    def nested(self, outer: Any, inner: Any, begun: float) -> None:
        """Check that a reader which holds the lock has got it once more soon."""
        process = self._world.running.process
        if self.stands(outer) and self._is_well(process, begun - LONGEST_HANG):
            waited = self._world.now - begun
            is_in = bool(inner.held or inner.loss) and waited <= IDLE_SLACK
            self._ask("S9 nested", is_in, f"{process.name} waited {waited:.1f} s, nested")

    def covered(self, outer: Any, inner: Any, *, is_in: bool) -> None:
        """Check that whoever holds a lock alone shares it at once, without a claim of its own."""
        if self.stands(outer):
            is_covered = is_in and inner.token == outer.token
            self._ask("S9 covered", is_covered, f"{inner!r} under {outer!r}")

    def asked_for_another(self, handle: Any, *, is_refused: bool) -> None:
        """Check that a reader that asked for the lock alone, and holds it still, was refused."""
        if self.stands(handle):
            self._ask("S9 other", is_refused, f"{handle!r} was not refused")


def _place_of(watch: Watch) -> Place:
    return "locks", (watch.keys[0],)


def _shares(watch: Watch) -> bool:
    return bool(watch.options.get("shared"))
