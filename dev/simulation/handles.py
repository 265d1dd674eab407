"""Checks what handles say to the users of a simulated world: belief (I1), loss and danger (I6), wake-ups (I7).

The judge asks the public handles that clients use, after each step of their process, as the thread or task that uses them.
What they say is judged by the rows and the requests alone. `promises` checks what calls return, and `judge` the changes of the
rows.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dev.faultproxy import kind_of
from dev.simulation.claims import (
    FAR,
    FORCED_MARK,
    Term,
    Watch,
    names_claim,
    names_of,
    place_of,
    values_on,
)
from dev.simulation.network import HOST_SKEW
from dev.simulation.world import EPOCH, Observer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dev.simulation.claims import Claim, Place
    from dev.simulation.network import Exchange
    from dev.simulation.world import Process, World


DRIFT = 0.02
"""Share of a duration by which the local clock and server time may differ."""

JUMPS_FOR = 60.0
"""Seconds after a clock has jumped in which its process may take living claims for dead: twice the longest lease."""

KNOWN_WITHIN = 0.1
"""Longest time in seconds from an answer until its process has drawn its conclusions from it."""

WATCHED_BEYOND = 2.3
"""Seconds beyond its lease for which those that watch a claim wait. Until then its holder may believe, after its clock has
stood still."""

WAKES_WITHIN = 0.1
"""Longest time in seconds until a release has woken the next waiter of its process. A thread takes milliseconds."""

LONGEST_HANG = 10.0
"""Longest time in seconds for which a request may be under way. It exceeds every client's timeouts."""

LATE_FOR = 15.0
"""Seconds after a process stood still or was interrupted, or after requests of it failed, in which others may pass its
waiters in line. A single request that hangs must not cost the first in line its place: PATIENCE allows for one."""

COARSE = 1.3
"""Seconds by which a lease may come out too short: server time is known to a second, and differs between hosts."""

REPORTED_WITHIN = 0.5
"""Longest time in seconds from a loss, or a danger, to the call that reports it, on a thread of its own."""

NEAR = 2.5
"""Seconds after its lease in which a claim must end: for so long a newcomer waits in addition."""

RELEASERS = {"handler", "pynamodb-mutex-release"}
"""Names of the threads that release all that a process holds."""

FEWEST_HAND_OVERS = 16
SHORTEST_RUN = 0.49
"""Hand-overs in a row, and their seconds, after which a process lets others have a lock, and wakes nobody. Its clock may be
wrong by 1 %."""


class HandleJudge(Observer):
    """Asks the handles of the clients of a world, and judges what they say.

    Attributes:
        asked: How often each rule was asked.
        acquisitions: Number of acquisitions in which a handle has believed.
        detached: Tokens of acquisitions that were detached: whoever has the ticket may take the lock.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked: Counter[str] = Counter()
        self.acquisitions = 0
        self.detached: set[str] = set()
        self._watches: dict[Process, list[Watch]] = {}
        # by their tokens, acquisitions whose claim is in its row, and those whose claim was broken by force or by hand
        self._terms: dict[str, Term] = {}
        self._broken_terms: dict[str, Term] = {}
        self._believers: dict[Place, list[Watch]] = {}
        # the watch that has believed in a token first
        self._given: dict[str, Watch] = {}
        # of acquisitions whose claim is not in its row any more, and when that ended; what has ended claims in a row: when, and
        # as which cause of a loss
        self._gone: dict[str, tuple[Term, float]] = {}
        self._causes: dict[Place, list[tuple[float, str]]] = {}
        # by the id of a request: claims that it has prolonged, and until when
        self._prolonged: dict[int, list[tuple[str, float]]] = {}
        # requests that have ended a claim or handed it over, by their ids: where, and to which token
        self._ended: dict[int, tuple[Place, str | None, str, float]] = {}
        # acquisitions whose claim their own process has ended
        self._left: set[str] = set()
        # the hand-overs in a row, and since when
        self._in_a_row: dict[Place, tuple[int, float]] = {}
        # which row an acquisition has found, and when, by its token
        self._found: dict[str, tuple[Place, float, dict[str, Any]]] = {}
        # acquisitions of which an answer has shown that they were applied, and when
        self._shown: dict[str, float] = {}
        # tokens of those that somebody of the same process has handed over
        self._handed_over: set[str | None] = set()
        # longest time from the sending of a request of a process to its answer: so coarsely it knows server time
        self._slowest: dict[Process, float] = {}
        # when a process has learned server time, first and last
        self._dated: dict[Process, float] = {}
        self._dated_last: dict[Process, float] = {}
        # the number of answers of a process (`Process.answered`) when its clock had stood still
        self._frozen: dict[Process, int] = {}
        # when its clock, which stood still, last went on
        self._resumed: dict[Process, float] = {}
        # processes whose clocks have stood still: they count too little of the time that has passed
        self._late_clocks: set[Process] = set()
        # when the clock of a process jumped last
        self._jumps: dict[Process, float] = {}
        self._disturbed: dict[Process, float] = {}
        # when a thread of a process has released all that it holds
        self._released_all: dict[Process, float] = {}
        self._failures: dict[Process, list[float]] = {}
        self._interrupted: dict[Process, float] = {}
        # texts in requests that met a fault, such as tokens, and entries that may stand in line though nobody waits there
        # any more; and when the first one did
        self._doubtful: dict[str, float] = {}
        # threads and tasks that wait now; groups of them, one of which has had a reason to go on, and since when
        self._waiting: set[tuple[Process, int]] = set()
        self._to_be_woken: list[tuple[set[tuple[Process, int]], float]] = []
        # how many calls of a process use handles that are not watched
        self._unwatched = Counter[Any]()

    def fail(self, what: str) -> None:
        """Report a violation. It is raised where the world runs, not in the thread that is judged."""
        self._world.fail(what)

    def _ask(self, rule: str, is_kept: bool, what: str) -> None:
        """Count that a rule was asked, and report a violation if it is not kept; the rule's name begins with its number."""
        self.asked[rule] += 1
        if not is_kept:
            self.fail(f"{rule.partition(' ')[0]}: {what}")

    # -- excuses ------------------------------------------------------------------------------------

    def disturbed(self, process: Process) -> None:
        """Excuse a process that is late: it has been disturbed, as by an outage that begins or ends now."""
        self._disturbed[process] = self._world.now
        self._to_be_woken = [
            each for each in self._to_be_woken if next(iter(each[0]))[0] is not process
        ]

    def froze(self, process: Process) -> None:
        """Excuse what a process believes from now, when its clock has stood still, until it has had an answer (I1)."""
        self._frozen[process] = process.answered
        self._resumed[process] = self._world.now
        self._late_clocks.add(process)

    def jumped(self, process: Process) -> None:
        """Excuse for some time what a process does that counts more time than has passed: I1 is not promised then."""
        self._jumps[process] = self._world.now
        self.disturbed(process)

    def _has_jumped(self, process: Process, at: float | None = None) -> bool:
        """Return whether the clock of a process had jumped not long before a true time; None for now."""
        at = self._world.now if at is None else at
        return at - self._jumps.get(process, -math.inf) < JUMPS_FOR

    def releases_all(self, process: Process) -> None:
        """Note that a thread of a process releases all that it holds."""
        self._released_all[process] = self._world.now

    def releases(self, handle: Any) -> None:
        """Note that the running thread or task begins to release a lock, which others may hold by the same handle."""
        for watch in self._watches.get(self._world.running.process, ()):
            if watch.is_of(handle) and not watch.is_own:
                watch.helped_at = self._world.now

    def _was_released_by_another(self, watch: Watch) -> bool:
        """Return whether another thread has released an acquisition: that one has learned what became of it."""
        since = watch.began if watch.since == math.inf else watch.since
        return max(watch.helped_at, self._released_all.get(watch.process, -math.inf)) >= since

    def interrupted(self, process: Process) -> None:
        """Note that a thread of a process was interrupted; if it stands in line, it leaves it."""
        self._interrupted[process] = self._world.now

    def _runs(self, process: Process) -> bool:
        """Return whether a process lives, and nothing but failed requests has delayed it lately."""
        since = self._world.now - LATE_FOR
        is_disturbed = (
            max(self._interrupted.get(process, since), self._disturbed.get(process, since)) > since
        )
        return process.lives and process._paused is None and not is_disturbed

    def _is_excused(self, process: Process) -> bool:
        """Return whether a process may believe wrongly: its clock stands still, or did, and no answer came since; or jumped."""
        if process.frozen_at is not None or self._has_jumped(process):
            return True
        answered = self._frozen.get(process)
        if answered is not None and process.answered > answered:
            del self._frozen[process]
            return False
        return answered is not None

    def _is_sent_late(self, exchange: Exchange) -> bool:
        """Return whether a process sent a request soon after its clock stood still, and may not have known how late it was."""
        resumed = self._resumed.get(exchange.thread.process, -math.inf)
        return exchange.sent - resumed < LATE_FOR

    def _is_well(self, process: Process, since: float) -> bool:
        """Return whether nothing has delayed a process lately, and no request of it has failed since a true time."""
        failed = any(when > since for when in self._failures.get(process, ()))
        return self._runs(process) and not failed and not process.refuses_threads

    def _punctual(self) -> list[Process]:
        """Return the processes that nothing has delayed lately."""
        since = self._world.now - LATE_FOR
        return [each for each in self._world.processes if self._is_well(each, since)]

    # -- rows and answers ---------------------------------------------------------------------------

    def _first_asked(self, exchange: Exchange, token: str | None) -> float:
        """Return when a process has first sent a request with a token, of which this one may be a repetition."""
        return min(exchange.sent, self._doubtful.get(token or "", math.inf))

    def _note_term(
        self, exchange: Exchange, place: Place, old: Claim, new: Claim, *, breaks: bool
    ) -> None:
        """Note what a change of the claim in a row means for its holders."""
        is_handed_over = new.token != old.token and new.end is not None
        term = self._terms.get(old.token or "")
        is_own = term is not None and term.process is exchange.thread.process
        breaks = breaks and not (is_own and new.token == old.token)
        # not if it is broken by force
        is_own = is_own and not (new.token or "").startswith(FORCED_MARK)
        if is_handed_over and is_own and not new.is_reserved:
            what = f"{exchange.thread} handed {place} over, and was to release it"
            self._ask("I5 all released", exchange.thread.name not in RELEASERS, what)
        if is_own and old.end is not None and (is_handed_over or new.end is None):
            owner = new.owner if is_handed_over else ""
            asked = self._first_asked(exchange, new.token)
            self._ended[id(exchange)] = place, old.token, owner, asked
            self._left.add(old.token or "")
            self._handed_over.add(new.token)
        if old.end is not None and new.end is None and new.token == old.token and not is_own:
            # a write without the lock removes a claim that has ended
            self._causes.setdefault(place, []).append((self._world.now, "FORCED"))
        self._end_term(place, old, new, breaks=breaks)
        if new.end is None or new.is_reserved or (old.token, old.end) == (new.token, new.end):
            return
        token, end = new.token or "", new.end - EPOCH
        first = self._first_asked(exchange, token)
        until, since, term = exchange.sent + new.lease, self._world.now, self._terms.get(token)
        watched = until if term is None else max(until, term.watched)
        if term is None:
            # its lease counts from the first attempt
            until = first + new.lease
            process = exchange.thread.process
            term = Term(place, process, new.owner, since, 0.0, watched)
            is_given = kind_of(exchange.operation, exchange.kwargs) in {"hand_over", "attach"}
            if old.end is not None and not is_given:
                term.abandoned_by = old.owner
            self._terms[token] = term
        self._prolonged.setdefault(id(exchange), []).append((token, until))
        # an end in the far future stands for none: then others watch the row
        process = term.process
        # each end is later than those that were proposed before it
        is_blind = first <= self._dated.get(process, math.inf) or term.end == math.inf
        is_blind |= any(each.met == "undated" for each in self._sent(process, exchange.sent))
        term.end, term.watched = math.inf if end > FAR else end, watched
        is_near = end <= exchange.sent + new.lease + NEAR or (end > FAR and is_blind)
        # by how much a clock has jumped, server time is misjudged until the drift that is allowed for has made up for it
        is_near |= process in self._jumps
        what = f"a claim on {place} of {new.lease} s ends {end - exchange.sent:.1f} s after it"
        self._ask("I7 end", is_near, what)
        self._check_max_hold(exchange, token)

    def _end_term(
        self, place: Place, old: Claim, new: Claim | None, *, breaks: bool = False
    ) -> None:
        """Note that a claim is not in its row any more, if it is not; ``breaks`` if its process cannot know that."""
        if new is not None and old.token == new.token and new.end is not None:
            return
        cause, is_same = "TAKEN", new is not None and new.token == old.token
        if new is None or new.token is None:
            cause = "DELETED"
        elif new.token.startswith(FORCED_MARK) or (breaks and is_same):
            cause, breaks = "FORCED", breaks or not is_same
        if breaks or not is_same:
            self._causes.setdefault(place, []).append((self._world.now, cause))
        term = self._terms.pop(old.token or "", None) if old.end is not None else None
        if term is None:
            return
        # a late copy may make the claim anew, whose process has learned how the first one ended
        _, since = self._gone.get(old.token or "", (term, self._world.now))
        self._gone[old.token or ""] = term, since
        if breaks:
            term.broken_at, term.broken_by = self._world.now, self._world.network.applying
            self._broken_terms[old.token or ""] = term

    def answered(self, exchange: Exchange) -> None:
        """Note what a process may know from now on, since DynamoDB has answered one of its requests."""
        process, now = exchange.thread.process, self._world.now
        # by how much it may have misjudged server time, which it carries on by its clock
        drifted = 2 * DRIFT * (exchange.sent - self._dated_last.get(process, exchange.sent))
        if exchange.met != "undated":
            self._dated.setdefault(process, now)
            self._dated_last[process] = now
        self._slowest[process] = max(now - exchange.sent, self._slowest.get(process, 0.0))
        is_repeated = exchange.met == "repeated"
        # the copy of a transaction is known by its token, and the answer to it shows what was so before
        is_old = is_repeated and exchange.operation == "TransactWriteItems"
        for token, until in self._prolonged.pop(id(exchange), ()):
            term = self._last_term(token)
            # the answer to a copy may show another end, of a renewal that was sent meanwhile
            if term is not None and (is_old or not (is_repeated and token in self._renewed())):
                term.renewed = max(term.renewed, (exchange.sent, until - max(0.0, drifted)))
        ended = self._ended.pop(id(exchange), None)
        if ended is not None:
            self._expect(process, *ended)
        self._check_recognised(exchange)
        if self._broken_terms and not is_old:
            values = values_on(exchange, None)
            for token in values & self._broken_terms.keys():
                term = self._broken_terms[token]
                # A take by force, of another thread, which was refused; or a person's decision about a run of `once`, or a retry
                # of that.
                by = term.broken_by
                decides = by is not None and exchange.thread is by.thread
                forced = any(str(each).startswith(FORCED_MARK) for each in values - {token})
                # Nor one that acquires several: that it was applied before shows in one row, and another may be gone since.
                acquires = exchange.operation == "TransactWriteItems" and token not in self._given
                if forced or acquires or decides:
                    continue
                if term.process is process and exchange.evaluated >= term.broken_at:
                    term.known_at = min(term.known_at, now)

    def _renewed(self) -> set[str]:
        """Return the tokens of claims with a renewal that is applied, and not answered."""
        return {token for pairs in self._prolonged.values() for token, _ in pairs}

    def _check_recognised(self, exchange: Exchange) -> None:
        """Check that a process recognises its own claim (I4), if the answer to its acquire was lost, and a later one came."""
        now = self._world.now
        for token in [token for token, when in self._shown.items() if now - when > REPORTED_WITHIN]:
            when, term = self._shown.pop(token), self._terms.get(token)
            if term is None or not self._runs(term.process):
                continue
            sent = [each for each in self._sent(term.process, when) if each.sent >= when]
            if not sent:
                continue  # it waits
            is_known = token in self._given or any(
                token in values_on(each, None)
                # a reader that gives up reads the row before it leaves
                or (each.kwargs.get("ConsistentRead") and place_of(each.kwargs) == term.place)
                for each in sent
            )
            what = f"{term.process.name} has not recognised its claim {token} on {term.place}"
            self._ask("I4 recognised", is_known, what)
        # No transaction acquires a single lock; and who gives up an acquisition knows of it, also if it stays.
        given_up = {"disown", "leave", "release"}
        if exchange.operation == "UpdateItem" and kind_of("", exchange.kwargs) not in given_up:
            for token in values_on(exchange, None) & self._terms.keys() - self._given.keys():
                term = self._terms[token]
                is_own = term.process is exchange.thread.process
                waits = any(
                    each.is_single
                    and each.began <= term.since
                    and each.name == term.owner.rpartition(":")[2]
                    and exchange.thread.name in {each.name, "aio"}  # not one that watches its claim
                    for each in self._waiters_for(term.process, term.place)
                )
                if (
                    is_own
                    and waits
                    and term.place[0]
                    in {"locks", "shards"}  # of a user's row, the row is read next
                    # what has ended, or soon will, is of no use to its process
                    and term.since < exchange.sent < min(term.end - COARSE, term.watched)
                    and token not in self._handed_over
                    # nor of what a late copy has made anew, after its process has given it up
                    and term.since <= self._doubtful.get(token, math.inf) + LONGEST_HANG
                ):
                    self._shown.setdefault(token, now)

    # -- handles ------------------------------------------------------------------------------------

    def watch(self, handle: Any, options: Mapping[str, Any]) -> None:
        """Ask a handle from now on, as the running thread or task, which is about to use it.

        Args:
            handle: The handle.
            options: What was given when it was made.
        """
        watches = self._watches.setdefault(self._world.running.process, [])
        watch = next((each for each in watches if each.is_own and each.is_of(handle)), None)
        if watch is None:
            watch = Watch(handle, self._world, options)
            watches.append(watch)
        watch.is_used, watch.is_timed, watch.began = True, False, self._world.now

    def section_ends(self, *, is_released: bool) -> None:
        """Note that the running thread or task has left the handles that it used.

        Args:
            is_released: Whether it has released what it held, as far as it knows.
        """
        for watch in self._in_use():
            watch.is_used = False
            for token in (
                watch.last if is_released and not self._was_released_by_another(watch) else ()
            ):
                term = self._terms.get(token)
                # With delete_on_release, or where somebody deleted the row, a late copy of an acquire makes its claim anew.
                # Since when one is held that nobody could watch is not known.
                is_made = term is not None and token not in self._gone and watch.since < math.inf
                is_left = is_made and token not in self.detached and not self._is_under_way(watch)
                what = f"{watch.process.name} released {watch.keys}, and its claim is in its row"
                self._ask("I5 released", not is_left, what)

    def _is_under_way(self, watch: Watch) -> bool:
        """Return whether another thread's request about the claim of a handle is under way, such as a release."""
        sent, running = self._sent(watch.process, self._world.now), self._world.running
        others = (each for each in sent if each.thread is not running and names_claim(each, watch))
        return any(each.evaluated == math.inf for each in others)

    def stepped(self, process: Process) -> None:
        """Check, after a step of a process, what its handles say."""
        watches = self._watches.get(process)
        if watches:
            self._watches[process] = [each for each in watches if self._ask_handle(each)]

    def _ask_handle(self, watch: Watch) -> bool:
        """Ask a handle whether it is held; return whether it is to be asked again."""
        before, loss = watch.tokens, watch.loss
        left = watch.ask()
        if left is None:
            return False
        if not left:
            if watch.loss is not None and watch.loss != loss:
                self._check_loss(watch, was_held=bool(before))
            self._check_reported(watch)
            return watch.is_used
        process, tokens = watch.process, watch.tokens
        if not self._is_excused(process):
            self.asked["I1 belief within the term"] += 1
            for token in tokens:
                self._check_term(process, token, watch.until)
        if tokens != before:
            self._note_belief(watch)
        return True

    def _note_belief(self, watch: Watch) -> None:
        """Note that a handle has begun to believe in an acquisition, or does so again."""
        if watch.tokens != watch.last:
            self.acquisitions += 1
            # A process that cannot start its renewal thread tries again when it uses a lock next. That may be too late for
            # a renewal, so a loss is excused.
            watch.since = math.inf if watch.process.refuses_threads else self._world.now
            watch.last = watch.tokens
        watch.losses = 0
        for token in watch.tokens:
            self._given.setdefault(token, watch)
            self._check_others(watch, token)

    def _in_use(self) -> list[Watch]:
        """Return what is known of the handles that the running thread or task uses."""
        watches = self._watches.get(self._world.running.process, ())
        return [each for each in watches if each.is_used and each.is_own]

    def _own(self, handle: Any) -> list[Watch]:
        """Return what the running thread or task knows of a handle."""
        watches = self._watches.get(self._world.running.process, ())
        return [each for each in watches if each.is_own and each.is_of(handle)]

    def _check_term(self, process: Process, token: str, until: float) -> None:
        """Check that the rows let a process believe in an acquisition until a true time."""
        term, broken = self._terms.get(token), self._broken_terms.get(token)
        if broken is not None and broken.process is process:
            # also if a late copy of its acquire has made the claim anew; it takes a moment to use an answer, and longer if
            # it stands still
            known = max(broken.known_at, self._disturbed.get(process, 0.0))
            if self._world.now - known <= KNOWN_WITHIN:
                return
        if term is None or term.process is not process:
            self.fail(f"I1: {process.name} believes in {token}, whose claim is not in its row")
            return
        watched = term.watched + (WATCHED_BEYOND if process in self._late_clocks else 0.0)
        if until > min(term.end + HOST_SKEW / 2, watched):
            self.fail(
                f"I1: {process.name} believes in {term.place} until {until:.2f}; "
                f"its claim ends at {term.end:.2f}, and is watched until {term.watched:.2f}"
            )

    def _check_others(self, watch: Watch, token: str) -> None:
        """Check that nobody else believes to hold the lock in which a handle believes from now on."""
        term = self._terms.get(token)
        if term is None:
            return
        believers = self._believing(term.place)
        self._believers[term.place] = [*believers, watch]
        self.asked["I1 one believer"] += 1
        for other in believers:
            is_another = set(other.tokens).isdisjoint(watch.tokens)
            is_another &= not (watch.options.get("shared") and other.options.get("shared"))
            if is_another and self._is_sound(watch) and self._is_sound(other):
                names = f"{watch.process.name} and {other.process.name}"
                self.fail(f"I1: {names} believe that they hold {term.place}")

    def _believing(self, place: Place) -> list[Watch]:
        """Return the handles that believe in a lock. One that has several to choose from may hold another by now."""
        return [
            each
            for each in self._believers.get(place, [])
            if each.ask() and place in {self._place_held(token) for token in each.tokens}
        ]

    def _is_sound(self, watch: Watch) -> bool:
        """Return whether nothing excuses the belief of a handle."""
        is_broken = not self._broken_terms.keys().isdisjoint(watch.tokens)
        return not is_broken and not self._is_excused(watch.process)

    def _place_held(self, token: str) -> Place | None:
        term = self._terms.get(token) or self._broken_terms.get(token)
        return None if term is None else term.place

    def _terms_of(self, tokens: Iterable[str]) -> list[Term]:
        """Return what is known of the claims with these tokens that are in their rows."""
        return [self._terms[token] for token in tokens if token in self._terms]

    def _last_term(self, token: str) -> Term | None:
        """Return what is known of the claim with this token, also if it is not in its row any more."""
        return self._terms.get(token) or self._gone.get(token, (None, 0.0))[0]

    def _is_believed(self, token: str) -> bool:
        """Return whether a handle says that it is held by an acquisition; not if that was broken, or its clock has stood still."""
        # a late copy may make the claim of a broken one anew
        term = None if token in self._broken_terms else self._terms.get(token)
        watches = [] if term is None else self._watches.get(term.process, [])
        return any(
            each.ask() and token in each.tokens and not self._is_excused(each.process)
            for each in watches
        )

    # -- losses and dangers -------------------------------------------------------------------------

    def _check_loss(self, watch: Watch, *, was_held: bool) -> None:
        """Check a loss that a handle reports: that it is true, by its cause, and that the process tried to prevent it."""
        process, now, loss = watch.process, self._world.now, watch.loss
        name = f"{process.name} reports the loss of {watch.keys}, {loss}"
        if loss not in {"EXPIRED", "UNREACHABLE"}:
            causes = {
                cause
                for token in watch.last
                if token in self._gone
                for term, since in [self._gone[token]]
                for when, cause in self._causes.get(term.place, ())
                if when >= since
            }
            # whoever has ended it by a request whose answer is lost, or late, finds what others have done since
            is_own = not self._left.isdisjoint(watch.last)
            true = loss in causes or is_own
            self._ask("I6 cause", true, f"{name}, by which it was not lost: {causes}")
            return
        terms = self._terms_of(watch.last)
        is_true_clock = process not in self._late_clocks and not self._has_jumped(process)
        if len(terms) == len(watch.last) and is_true_clock:
            # by the local clock, and by server time carried on by it
            drift = 2 * DRIFT
            ends = min(
                (1 - drift) * until + drift * sent for sent, until in (t.renewed for t in terms)
            )
            is_true = now > ends - COARSE - self._slowest.get(process, 0.0)
            self._ask("I6 no false loss", is_true, f"{name}, which it has until {ends:.1f}")
        # a renewal may have asked for more than a lease
        sent = self._sent(process, min(watch.extended_at, watch.until - LONGEST_HANG))
        own = [each for each in sent if names_claim(each, watch)]
        if loss == "UNREACHABLE" and watch.is_single:
            failed = any(each.fault is not None or each.evaluated == math.inf for each in own)
            failed = failed or not self._renewed().isdisjoint(watch.last)
            # an answer may show at once that the lease has ended, while its clock stood still
            failed = failed or not was_held or not is_true_clock
            self._ask("I6 cause", failed, f"{name}, and no request of it has failed")
        if was_held:
            self._check_tried(watch, own, name)
            self._check_danger(watch, name)

    def _sent(self, process: Process, since: float) -> list[Exchange]:
        """Return the requests that a process has sent since a true time, and those before it that may be under way."""
        found = []
        for sent in reversed(self._world.network.log):
            if sent.sent < since - LONGEST_HANG:
                break
            if sent.thread.process is process:
                found.append(sent)
        return found

    def _check_tried(self, watch: Watch, own: list[Exchange], name: str) -> None:
        """Check that a process had tried to renew a lock whose lease has ended."""
        process, lease = watch.process, watch.options.get("lease", math.inf)
        # a clock that jumps brings the end nearer
        ends = min(watch.until, self._world.now)
        since = max(watch.since, ends - lease)
        if (
            # with little left of its lease, as after a late answer, it may be lost before its first renewal is due
            ends - watch.since < lease / 2
            or not watch.options.get("auto_renew")
            or watch.options.get("max_hold") is not None
            or self._disturbed.get(process, -1.0) >= since - LONGEST_HANG
            or process.refuses_threads
        ):
            return
        # A renewal that was sent before `since` counts too, if it may still be under way: no further one is sent while two
        # are, and a request may hang for longer than a short lease. Such a renewal may even be from before the lock was
        # lost and won back by a renewal that its holder asked for.
        tried = any(
            each.sent >= since - each.client.hangs_for * each.thread.name.endswith("worker")
            for each in own
        )
        self._ask("I6 renewed", tried, f"{name}, and did not try to renew it")

    def _check_danger(self, watch: Watch, name: str) -> None:
        """Check that ``on_danger`` was called before a lease has run out, if the process ran meanwhile."""
        lease = watch.options.get("lease", 0.0)
        terms = self._terms_of(watch.last)
        if (
            "on_danger" not in watch.options
            or not terms
            # An answer may show that server time is a second further on than was known: then there is no time between.
            or lease < 10
            or self._world.now - watch.since < lease / 2
            or self._disturbed.get(watch.process, -math.inf) >= self._world.now - lease
            or watch.process.refuses_threads
        ):
            return
        since = min(term.renewed[0] for term in terms)
        self._ask("I6 danger", watch.danger[0] >= since, f"{name}, and did not report the danger")

    def _check_reported(self, watch: Watch) -> None:
        """Check that ``on_lost`` was called soon after a loss, as long as the handle is used."""
        late = self._world.now - watch.lost_at > REPORTED_WITHIN
        if watch.loss is None or not late or watch.losses or "on_lost" not in watch.options:
            return
        if watch.since == math.inf:
            return  # threads were refused, so nobody watches its lease
        # the release of several finds the loss of one, goes on with the others, and then raises
        if not watch.is_single or self._was_released_by_another(watch):
            return
        if self._runs(watch.process) and not watch.process.refuses_threads and watch.is_used:
            self.fail(f"I6: {watch.process.name} lost {watch.keys}, and did not call on_lost")

    def _check_max_hold(self, exchange: Exchange, token: str) -> None:
        """Check that nobody renews a lock in the background after ``max_hold``."""
        watch = self._given.get(token)
        most = None if watch is None else watch.options.get("max_hold")
        if watch is None or most is None or not exchange.thread.name.endswith("worker"):
            return
        if watch.process in self._late_clocks:
            return  # it counts by the local clock
        held_for = exchange.sent - watch.since
        is_late = any(
            when > watch.since + most / 2 for when in self._failures.get(watch.process, ())
        )
        is_kept = held_for <= most * (1 + DRIFT) + REPORTED_WITHIN or is_late
        what = f"{exchange.thread} renewed {watch.keys} after {held_for:.1f} s"
        self._ask("I6 max_hold", is_kept, what)

    # -- wake-ups within a process ------------------------------------------------------------------

    def _expect(
        self, process: Process, place: Place, token: str | None, owner: str, asked: float
    ) -> None:
        """Expect that a waiter goes on soon, if it sleeps now; one that waits for an answer goes on with that.

        Args:
            process: The process that has released a lock, or handed it over.
            place: The row.
            token: The token of the claim that was released.
            owner: The next holder, as the row names it; empty if there is none.
            asked: True time at which the process first made the request that did so.
        """
        waiters = self._waiters_for(process, place)
        if owner:
            count, since = self._in_a_row.get(place, (0, asked))
            self._in_a_row[place] = (count + 1, since)
            name = owner.rpartition(":")[2]
            # one that has begun since is another wait of the same thread or task, for which that claim is not
            waiters = [
                each
                for each in waiters
                if each.name == name and each.began <= asked and each.caller in self._waiting
            ]
        else:
            count, since = self._in_a_row.pop(place, (0, asked))
            holder = self._given.get(token or "")
            if (
                (count >= FEWEST_HAND_OVERS and asked - since >= SHORTEST_RUN)
                # whoever gives up an acquire, of which it does not know what became, or leaves what it has lost
                or holder is None
                or holder.loss is not None
                # a waiter that is not watched may be the next
                or self._unwatched[process]
                # one that wants several or any of several, or is fair, may be the next, and need not take the lock
                or any(not each.is_single or each.options.get("fair") for each in waiters)
                # the first of them waits for an answer, and those behind it for that
                or not {each.caller for each in waiters} <= self._waiting
                or any(term.place == place for term in self._terms.values())
            ):
                return
        if waiters:
            self.asked["I7 wakes"] += 1
            self._to_be_woken.append(({each.caller for each in waiters}, self._world.now))

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Say, for as long as the context is open, that the running thread or task uses a handle that is not watched."""
        process = self._world.running.process
        self._unwatched[process] += 1
        try:
            yield
        finally:
            self._unwatched[process] -= 1

    def _waiters_for(self, process: Process, place: Place) -> list[Watch]:
        """Return the handles of a process by which somebody waits for a lock now, or for several of which it is one."""
        names = names_of(place)
        return [
            each
            for each in self._watches.get(process, ())
            if each.is_used and not each.tokens and not names.isdisjoint(each.keys)
        ]

    def waits(self, process: Process, caller: int) -> None:
        """Note that a thread or task of a process sleeps until it is woken or a time comes."""
        self._waiting.add((process, caller))

    def goes_on(self, process: Process, caller: int) -> None:
        """Note that a thread or task goes on; check that it was woken as soon as it had to be."""
        waiter = (process, caller)
        self._waiting.discard(waiter)
        for each in [each for each in self._to_be_woken if waiter in each[0]]:
            self._to_be_woken.remove(each)
            waited = self._world.now - each[1]
            # Where the system refuses threads, the thread of an event loop sends the requests of its tasks: the next one
            # cannot go on meanwhile, nor a thread behind it.
            if waited > WAKES_WITHIN and not process.refuses_threads:
                self.fail(
                    f"I7: a release in {process.name} woke the next in line after {waited:.1f} s"
                )
