"""Acquire one lock in the order of arrival, by standing in line in its row.

The rules are those of `pynamodb_mutex._protocol.waiting_line`; here they are put into requests. Each fair waiter stands in
the line of the row, also if others of its process do: there is no hand-over within the process.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._dynamodb.answers import Failure
from pynamodb_mutex._operations.acquire import Acquisition
from pynamodb_mutex._operations.contender import refuse_wait
from pynamodb_mutex._operations.effects import Open, Wait, Wakeup
from pynamodb_mutex._operations.events import Log
from pynamodb_mutex._operations.retry import retrying
from pynamodb_mutex._protocol.claim import MOST_WAITING
from pynamodb_mutex._protocol.messages import one_line, shown
from pynamodb_mutex._protocol.schedule import RELEASE_PATIENCE
from pynamodb_mutex._protocol.waiting_line import Take, WaitingLine, new_entry

if TYPE_CHECKING:
    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.contender import Contender
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.held import HeldClaim
    from pynamodb_mutex._protocol.claim import OwnClaim


class FairAcquisition(Acquisition):
    """An attempt to acquire one lock, in the order of arrival, until a deadline."""

    def __init__(self, contender: Contender, patience: float) -> None:
        """Make an attempt.

        Args:
            contender: Who asks for the lock.
            patience: Seconds for which to wait; 0 for not at all.
        """
        super().__init__(contender, patience)
        self._line = WaitingLine(contender.options.poll)
        self._take = Take()

    @property
    def position(self) -> int | None:
        """How many stand in line before this one, as far as is known; None if it does not stand there."""
        return self._line.place

    def _once(self) -> Operation[HeldClaim | None]:
        return (yield from self._in_line())

    def _in_line(self) -> Operation[HeldClaim | None]:
        """Wait in line for the lock. Whoever leaves without it leaves no entry, if DynamoDB can be reached."""
        wakeup = Wakeup()
        self.contender.key_queue.watch(wakeup)
        try:
            claim = yield from self._wait_for_turn(wakeup)
        finally:
            self.contender.key_queue.unwatch(wakeup)
            # also after an interruption: until then all behind it would wait for its turn
            try:
                yield from self._leave()
            except BaseException:
                # An interruption came after the wait was over. It is thrown at the next effect, which is the one
                # that leaves the line: that would not be sent.
                yield from self._leave()
                raise
        return claim

    def _wait_for_turn(self, wakeup: Wakeup) -> Operation[HeldClaim | None]:
        shared, line = self.shared, self._line
        self._check_self_wait()
        yield from self._begin_to_see()
        is_woken = False
        while True:
            before = self.observed.claim
            # released in this process: no read is needed to know that it is free
            take = Take(0) if is_woken else self._next_take()
            if take is not None:
                self._take = take
                claim = yield from self.take()
                if claim is not None:
                    line.leave()
                    return claim
            elif shared.now < self._deadline and line.place is None and line.size < MOST_WAITING:
                yield from self._join()
            if not self._contended:
                self._emit_contended()
            is_woken = False
            # an answer that showed something new may show that it is this one's turn
            is_new = self.observed.claim != before
            if shared.now >= self._deadline and not (is_new and self._next_take()):
                return None
            if not is_new:
                if self._deadline == math.inf:
                    self._check_self_wait()
                is_woken = yield from self._wait_and_poll(wakeup)

    def _next_take(self) -> Take | None:
        bounds, now = self.contender.store.bounds, self.shared.now
        if self.observed.claim is None:
            return Take()
        return self._line.take(now, bounds, self.free_at)

    def _wait_and_poll(self, wakeup: Wakeup) -> Operation[bool]:
        """Wait until the next poll is due, and read the row, unless a write is due whatever the row shows.

        Returns:
            Whether the wait of the first in line was ended by a release in this process.
        """
        shared, line, bounds = self.shared, self._line, self.contender.store.bounds
        until = min(line.polls_at(shared.now, bounds, self.free_at), self._deadline)
        while shared.now < until:
            yield Wait(until, wakeup)
            self.check_process()
            if line.place == 0 and shared.now < until:
                return True
        if self._next_take() is None:
            is_current = line.doubts
            answer = yield from self._read(consistent=is_current)
            answer.claim.check()
            if line.see(answer.claim, answer.received, is_current=is_current):
                self.observed.see(answer.claim, answer.received)
        return False

    def _begin_to_see(self) -> Operation[None]:
        """Learn server time at first contact: a claim would have no end by which others can judge it."""
        self.check_process()
        contender = self.contender
        if not contender.store.connection.is_open:
            yield Open(contender.store)
        if not contender.store.knows_time(contender.options.lease, self.shared.now):
            # consistent, for nobody shall wait for an unlocked key
            self._see((yield from self._read(consistent=True)))
        # Not before server time is known, which it shows to people. The same one until the call ends, also if it
        # joins again: so that it stands in the row once at most.
        began = contender.store.server_now(self.shared.now)
        self._line.entry = new_entry(began, self.shared.random_bits(), contender.owner)

    def _request(self, own: OwnClaim, values: dict[str, Any], now: float) -> Request:
        take, line, observed = self._take, self._line, self.observed
        watched = observed.claim
        values["entry"] = line.entry
        if watched is not None:
            values["seen"] = watched.token
            if take.place is None and watched.waiting:
                values["entry"] = watched.waiting[-1]
            if now < observed.matures():
                watched = None
        contender = self.contender
        return contender.store.acquire(
            contender.options.row, own, values, now=now, watched=watched, take=take
        )

    def _see(self, answer: Answer) -> None:
        super()._see(answer)
        self._line.see(answer.claim, answer.received, is_current=True)

    def _check_self_wait(self) -> None:
        stalled = self._stalled_holder() if self._patience > 0 else None
        if stalled is not None:
            refuse_wait(self.contender, stalled, self._deadline)

    # -- joining and leaving ------------------------------------------------------------------------

    def _join(self) -> Operation[None]:
        """Stand in line, at its end. The answer shows where: also if it was refused, for an earlier attempt was applied."""
        contender, line, seen = self.contender, self._line, self.observed.claim
        entry, store = line.entry, contender.store
        token = None if seen is None else seen.token

        def accept(answer: Answer) -> Failure | None:
            if answer.applied and entry not in answer.claim.waiting:
                return store.connection.not_dynamodbs("UpdateItem")
            return None

        line.may_stand = True
        answer = yield from retrying(
            self.shared,
            lambda: store.join(contender.options.row, entry, token),
            self._deadline,
            about=contender,
            attempts=self.requests,
            accept=accept,
        )
        self._see(answer)

    def _leave(self) -> Operation[None]:
        """Leave the line, if this may stand in it: done when the answer to a write shows that it does not.

        A read may show the row as it was before the join.
        """
        contender, line, shared = self.contender, self._line, self.shared
        until = shared.now + RELEASE_PATIENCE

        def build() -> Request:
            place = line.size if line.place is None else line.place
            return contender.store.leave(contender.options.row, line.entry, place, shared.now)

        try:
            while line.may_stand and not shared.inherited:
                answer = yield from retrying(shared, build, until, about=contender)
                if answer.applied:
                    line.leave()
                else:
                    line.see(answer.claim, answer.received, is_current=True)
        except PynamoDBException as error:
            text = "%s still stands in line for %s, which delays others by some seconds: %s"
            values = (shown(contender.owner), shown(contender.key), one_line(error))
            shared.emit(Log("warning", text, values, contender.log_fields))
        line.leave()
