"""Checks what calls of locks promise those who make them, and what handles say of their rows.

An acquire keeps its timeout, and makes no row that must exist (I8); it writes what its options give (I5). A semaphore keeps
its permits (I1); a block that is left without an error had its lock, and
``on_lost`` and ``on_danger`` are called when they should be (I6). What ``ensure_held``, ``locked``, ``data`` and ``abandoned_by``
promise is in their docstrings.
"""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, Any

from dev.simulation.claims import names_of, place_of
from dev.simulation.handles import (
    DRIFT,
    KNOWN_WITHIN,
    LATE_FOR,
    LONGEST_HANG,
    REPORTED_WITHIN,
    HandleJudge,
)
from dev.simulation.network import LATEST_READ

if TYPE_CHECKING:
    from dev.simulation.claims import Place, Watch


PERMITS = 2
"""Number of permits of the semaphore, of which there is one."""

PERMIT = "#permit-"
"""What stands between its key and the number of a permit."""

SILENT_FOR = 2.5
"""Longest time in seconds for which a waiter relies on the first one of its process, if that has had no answer."""

WITHIN = 2 * LONGEST_HANG
"""Seconds after the timeout within which a call that acquires must have ended: its last request may hang, and so may the one
that ends what this may have acquired."""


class PromiseJudge(HandleJudge):
    """Judges what callers are promised, in addition to what handles say of belief and loss."""

    def section_ends(self, *, is_released: bool) -> None:
        """Check what the running thread or task has learned of the handles that it leaves."""
        for watch in self._in_use():
            self._check_in_time(watch)
            has_released = is_released and not self._was_released_by_another(watch)
            has_released = has_released and watch.began <= watch.since < math.inf
            has_released = has_released and not self._is_under_way(watch)
            what = f"{watch.process.name} left {watch.keys}, which was lost, without an error"
            if has_released:
                self._ask("I6 error", watch.loss is None, what)
            for token in self._broken_terms.keys() & {*watch.last} - self._left - self.detached:
                # if nobody has had the lock since, the row shows that force broke the claim, and no release came first
                term = self._broken_terms[token]
                if (term.broken_at, "FORCED") in self._causes.get(term.place, [])[-1:]:
                    self._ask("I6 hidden", not has_released, what)
        super().section_ends(is_released=is_released)

    def _note_belief(self, watch: Watch) -> None:
        is_new = watch.tokens != watch.last
        super()._note_belief(watch)
        for term in self._terms_of(watch.tokens):
            self._check_permits(watch, term.place)
        self._check_in_time(watch)
        if is_new and not self._is_excused(watch.process):
            self._check_asked(watch)
            self._check_said(watch)
            self._check_written(watch)

    def _check_in_time(self, watch: Watch) -> None:
        """Check that a call which acquires ended within its timeout: now, with a lock, or with the section."""
        timeout = watch.options.get("timeout")
        is_late = self._disturbed.get(watch.process, -math.inf) >= watch.began
        if timeout is None or is_late or watch.process.refuses_threads or watch.is_timed:
            return
        watch.is_timed = True
        waited = self._world.now - watch.began
        # what a repeat has shown to be its own is renewed first, if less than half of its lease is left
        fails = any(when > watch.began for when in self._failures.get(watch.process, ()))
        renews = watch.options.get("lease", 30.0) if fails else 0.0
        longest = timeout * (1 + DRIFT) + WITHIN + renews
        what = f"{watch.process.name} waited {waited:.1f} s for {watch.keys}, not {timeout}"
        self._ask("I8 in time", waited <= longest, what)

    def timed_out(self) -> None:
        """Check that the running thread or task, whose acquire had its timeout, has waited for so long."""
        for watch in self._in_use():
            self._check_asked(watch)
            timeout = watch.options.get("timeout")
            if timeout and not watch.is_timed:
                waited = self._world.now - watch.began
                has_jumped = self._jumps.get(watch.process, -math.inf) >= watch.began
                is_over = waited >= timeout * (1 - DRIFT) or has_jumped
                what = (
                    f"{watch.process.name} gave {watch.keys} up after {waited:.1f} of {timeout} s"
                )
                self._ask("I8 timeout", is_over, what)

    def _check_asked(self, watch: Watch) -> None:
        """Check that a waiter whose process knew nothing of the lock for a while, as behind a request that hangs, asked itself (I7)."""
        process, began = watch.process, watch.began
        is_plain = watch.is_single and "poll" in watch.options and watch.thread.name == watch.name
        is_plain &= not (watch.options.get("fair") or watch.options.get("shared"))
        is_late = (
            max(self._disturbed.get(process, began), self._interrupted.get(process, began)) > began
        )
        if (
            not is_plain
            or is_late
            or process.refuses_threads
            or self._world.now - began < SILENT_FOR
        ):
            return
        # nor is one to ask that has a holder in its process, or had one lately: others get a chance then
        gone = (term for term, when in self._gone.values() if when > began - LATE_FOR)
        places = {term.place for term in (*self._terms.values(), *gone) if term.process is process}
        if any(not names_of(place).isdisjoint(watch.keys) for place in places):
            return
        # it knows what those ahead of it in line have learned
        ahead = (each.began for each in self._watches[process] if each.keys == watch.keys)
        asked = [
            min(each.sent if each.thread is watch.thread else math.inf, each.evaluated)
            for each in self._sent(process, min(ahead))
            if each.operation in {"GetItem", "UpdateItem"}
            and not names_of(place_of(each.kwargs)).isdisjoint(watch.keys)
        ]
        waited = min(asked, default=self._world.now) - began
        what = f"{process.name} knew nothing of {watch.keys} for {waited:.1f} s, and did not ask"
        self._ask("I7 asks", waited <= SILENT_FOR, what)

    def _check_permits(self, watch: Watch, place: Place) -> None:
        """Check that no more hold a semaphore than it has permits."""
        if PERMIT not in place[1][0]:
            return
        places = [each for each in self._believers if PERMIT in each[1][0]]
        taken = [each for each in places if any(map(self._is_sound, self._believing(each)))]
        what = f"{watch.process.name} holds one of {taken}"
        self._ask("I1 permits", len(taken) <= PERMITS, what)

    def stands(self, handle: Any) -> bool:
        """Return whether a handle believes in an acquisition whose claim is in its row."""
        return any(
            each.ask() and not self._terms.keys().isdisjoint(each.tokens)
            for each in self._own(handle)
        )

    def said_locked(self, handle: Any, *, is_locked: bool) -> None:
        """Check an answer that somebody holds a lock, which this handle held when it was asked for."""
        if self.stands(handle):
            self._ask("said locked", is_locked, f"{handle!r} is locked by nobody")

    def inner_ended(self, handle: Any, token: str) -> None:
        """Check that the end of the inner of two blocks has not released what the outer one has acquired."""
        for watch in self._own(handle) if handle.token == token else ():
            is_kept = watch.ask() or watch.loss is not None or self._was_released_by_another(watch)
            what = f"{watch.process.name} released {watch.keys} at the end of an inner block"
            self._ask("I5 inner block", bool(is_kept), what)

    def ensured(self, handle: Any, at_least: float, begun: float) -> None:
        """Check that a call which began then has left so much of the lease, or more.

        By the row, for a renewal of another thread may have no answer yet.
        """
        now = self._world.now
        for watch in self._own(handle):
            left, what = watch.ask(), f"{watch.process.name} ensured {watch.keys}"
            if not left:  # a task goes on later than its call
                is_in_task = asyncio._get_running_loop() is not None
                self._ask("I6 ensured", is_in_task, f"{what}, which is not held")
                continue
            ends = [term.watched for term in self._terms_of(watch.tokens)]
            until = max(watch.until, min(ends, default=0.0))
            is_left = until - now + (1 + DRIFT) * (now - begun) >= at_least * (1 - DRIFT)
            self._ask("I6 ensured", is_left, f"{what} for {at_least:.1f} s, not {until - now:.1f}")

    def _check_said(self, watch: Watch) -> None:
        """Check what a handle says of the row as it was when it was acquired."""
        for token, (data, abandoned_by) in zip(watch.tokens, watch.said, strict=True):
            term = self._terms.get(token)
            # of several locks the answer shows no rows; of a user's row the payload is an attribute
            if term is None or not watch.is_single or term.place[0] not in {"locks", "shards"}:
                continue
            stored = (self._world.tables.row(*term.place) or {}).get("data")
            what = f"{watch.process.name} got the payload {data!r} of {term.place}, not {stored}"
            self._ask("said data", data == (stored and json.loads(stored["S"])), what)
            name = term.abandoned_by
            what = f"{watch.process.name} got {term.place} of {abandoned_by!r}, not {name!r}"
            self._ask("said abandoned", (abandoned_by or "") == name, what)

    def _note_row(self, place: Place, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Note when an acquisition has found which row of the lock table."""
        if place[0] == "locks" and "token" in new and new["token"] != old.get("token"):
            self._found[new["token"]["S"]] = place, self._world.now, old

    def _check_written(self, watch: Watch) -> None:
        """Check that an acquisition has made no row that must exist, and has written what its options give."""
        for token in sorted(self._found.keys() & self._terms.keys() & {*watch.tokens}):
            (place, _, found), given = self._found[token], watch.options
            row, what = self._world.tables.row(*place) or {}, f"{watch.process.name} has {place}"
            if given.get("must_exist"):
                self._ask("I8 must exist", bool(found), f"{what}, and made its row")
            # a new row has the default
            purpose = found.get("purpose", {"S": "none"})["S"]
            wanted = {"purpose": purpose, **given.get("attributes", {}), "data": given.get("data")}
            for name, value in sorted(wanted.items() - {("data", None)}):
                self._ask(f"I5 {name}", row.get(name) == {"S": str(value)}, f"{what}: its {name}")

    def was_missing(self) -> None:
        """Check that the row was missing at some time during a call that raised DoesNotExist."""
        for watch in self._in_use():
            if watch.options.get("must_exist") and watch.since < watch.began:
                place, since = ("locks", watch.keys), watch.began - LATEST_READ
                made = [at for each, at, old in self._found.values() if each == place and not old]
                is_true = not self._world.tables.row(*place) or max(made) >= since
                self._ask("I8 missing", is_true, f"{watch.process.name} found no {place}")

    def reported(self, name: str, handle: Any) -> None:
        """Check a call of ``on_lost`` or ``on_danger``."""
        process, now = self._world.running.process, self._world.now
        own = [each for each in self._watches.get(process, ()) if each.is_of(handle)]
        watches = [each for each in own if each.is_used]
        if not watches:
            return
        # several threads may share a handle: a loss is of one that has lost its lock, a danger of the one whose lease ends next
        is_loss = name == "on_lost"
        if is_loss:
            watch = min(watches, key=lambda each: (each.loss is None, each.losses))
        else:
            watch = min(
                watches, key=lambda each: (each.loss is not None, not each.tokens, each.until)
            )
        self._ask_handle(watch)
        if watch.since < watch.began:
            # It was handed over, and lost before the thread that waited for it has gone on.
            return
        is_late = not self._runs(process) or process.refused_threads
        what = f"{process.name} called {name} for {watch.keys}"
        if is_loss:
            # not if a renewal has won it back since the call was decided on: that was about the loss before
            watch.losses += watch.loss is not None
            # an acquisition that is lost while the row is read, for example, has never been held
            is_lost = watch.loss is not None or not watch.tokens or is_late
            is_lost = is_lost or now - watch.lost_at <= REPORTED_WITHIN
            self._ask("I6 on_lost", is_lost, f"{what}, which is not lost")
            # without a thread for it, the call about the loss before may have waited
            is_once = watch.losses <= 1 or len(own) > 1 or process.refused_threads
            self._ask("I6 on_lost", is_once, f"{what} twice")
            if watch.loss in {"EXPIRED", "UNREACHABLE"} and not is_late:
                late = now - (watch.lost_at if watch.is_in_doubt else watch.until)
                self._ask("I6 on_lost", late <= REPORTED_WITHIN, f"{what} {late:.1f} s late")
            return
        over = watch.loss is not None and now - watch.lost_at > REPORTED_WITHIN and not is_late
        self._ask("I6 on_danger", not over, f"{what}, which is lost")
        terms = self._terms_of(watch.tokens)
        if terms:
            since, left = min(term.renewed for term in terms), watch.until - now
            most = max(watch.options["lease"] / 2, REPORTED_WITHIN)
            # a renewal may have helped since the call was decided on
            is_right = left <= most or is_late or now - watch.extended_at < REPORTED_WITHIN
            self._ask("I6 on_danger", is_right, f"{what} {left:.1f} s before its end")
            is_another = watch.danger[1] != since or watch.extended_at > watch.danger[0]
            # of several threads that share the handle, it is not known whose lease was in danger before
            is_another |= len(own) > 1 or process.refused_threads
            self._ask("I6 on_danger", is_another, f"{what} twice")
            # a renewal whose answer has just come is not the one that the call is about
            watch.danger = now, since if now - watch.extended_at > KNOWN_WITHIN else (0.0, 0.0)
