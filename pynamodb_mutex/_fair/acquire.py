"""Acquire one lock in the order of arrival, by waiting in a line in its row.

`pynamodb_mutex._fair.waiting_line` decides when to join, to poll, to take the lock and to pass dead waiters; this module sends
the requests. Each fair waiter stands in the line of the row, even if others of its process do: there is no hand-over within the
process. Safety needs nothing here, because each acquiring write keeps the conditions that it has in `acquire`. A fault in the
line costs the order, or time.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._fair.hints import Called, Calls, Hints
from pynamodb_mutex._fair.requests import Passing, clear, entries, join, leave
from pynamodb_mutex._fair.waiting_line import Take, WaitingLine, in_line, new_entry
from pynamodb_mutex._lock.dynamodb.answers import Failure
from pynamodb_mutex._lock.operations.acquire import Acquisition, undone
from pynamodb_mutex._lock.operations.effects import Outside, Wait, Wakeup
from pynamodb_mutex._lock.operations.events import Log
from pynamodb_mutex._lock.operations.retry import retrying
from pynamodb_mutex._lock.protocol.claim import MOST_WAITING, Claim
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.protocol.schedule import RELEASE_PATIENCE

if TYPE_CHECKING:
    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.contender import Contender
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.protocol.claim import OwnClaim


class FairAcquisition(Acquisition):
    """The acquisition of one lock in the order of arrival."""

    def __init__(self, contender: Contender, timeout: float) -> None:
        super().__init__(contender, timeout)
        self._line = WaitingLine(contender.options.poll)
        self._take = Take()
        # number of joins that were refused because the lock had changed hands
        self._outpaced = 0
        self._calls = contender.process.of(Calls)
        self._called: Called | None = None
        self._has_listened = False

    @property
    def position(self) -> int | None:
        """Number of waiters ahead of this one in the last row that was seen; None if it does not stand in the line."""
        return self._line.place

    def _in_line(self) -> Operation[HeldClaim | None]:
        """Wait for the lock in the line of its row; leave no entry in the row, if DynamoDB can be reached."""
        wakeup = Wakeup()
        self.contender.key_queue.watch(wakeup)
        try:
            claim = yield from self._wait_in_line(wakeup)
        finally:
            self.contender.key_queue.unwatch(wakeup)
            if self._called is not None:
                self._called.end()
            # Even after an interruption: otherwise the waiters behind the entry would wait until it counts as dead. If the lock
            # was acquired, this sends nothing.
            yield from undone([self._leave])
        return claim

    _try = _in_line

    def _wait_in_line(self, wakeup: Wakeup) -> Operation[HeldClaim | None]:
        process, line = self.process, self._line
        if self.timeout > 0:
            self._check_holders()
        yield from self._begin_to_see()
        is_woken = False
        while True:
            before = self.observed.claim
            # Suppose a holder of this process has released the lock: it is free, and this waiter needs no read.
            take = line.as_first() if is_woken else self._next_take()
            if take is not None:
                self._take = take
                claim = yield from self.take()
                if claim is not None:
                    line.leave()
                    return claim
            elif process.now < self._deadline and line.place is None and line.size < MOST_WAITING:
                yield from self._listen(wakeup)
                yield from self._join()
            if not self._contended:
                self._emit_contended()
            is_woken = False
            # A refusal shows the row. If that shows anything new, this waiter may take the lock now, even at the deadline.
            is_new = self.observed.claim != before
            if process.now >= self._deadline and not (is_new and self._next_take()):
                return None
            if not is_new:
                self.contender.warn_of_wait(self._since, self.holder)
                if self._deadline == math.inf:
                    self._check_holders()
                is_woken = yield from self._wait_and_poll(wakeup)

    def _next_take(self) -> Take | None:
        """Return how to take the lock now; None if DynamoDB would refuse that, or another waiter comes first."""
        bounds, now = self.contender.store.bounds, self.process.now
        if self.observed.claim is None:
            return Take()  # nothing is known of the row yet: take it if nobody holds it or waits
        return self._line.take(now, bounds, self.free_at)

    def _wait_and_poll(self, wakeup: Wakeup) -> Operation[bool]:
        """Wait until the next poll is due, and read the row, unless a write is due without a read.

        Returns:
            Whether this waiter stands first, and a hint or a release in this process ended the wait. There was no read then.
        """
        process, line, bounds = self.process, self._line, self.contender.store.bounds
        line.polls_rarely = self._called is not None and self._calls.was_called
        until = min(line.polls_at(process.now, bounds, self.free_at), self._deadline)
        while process.now < until:
            yield Wait(until, wakeup)
            self.check_process()
            hint = None if self._called is None else self._called.follow()
            if hint == "take":
                return True
            if hint == "poll":
                line.next_at, line.polls_rarely = process.now, True
                until = min(line.polls_at(process.now, bounds, self.free_at), self._deadline)
                continue
            # a wake-up is of no use to a waiter that does not stand first: it waits on
            if line.place == 0 and process.now < until:
                return True
        if self._next_take() is None:
            # If the last read showed an older row than was known before, this read is consistent.
            is_current = line.doubts
            answer = yield from self._read(consistent=is_current)
            answer.claim.check()
            if line.see(answer.claim, answer.received, is_current=is_current):
                self.see(answer.claim, answer.received)
        if line.place == 0 and self._next_take() is not None:
            # Nobody announced this release: the process has no hints, or the hint got lost. Until a hint arrives again, only
            # polls show the next releases.
            self._calls.was_called = False
        return False

    def _begin_to_see(self) -> Operation[None]:
        """Learn server time if it is not known well enough, and make the entry for the line.

        Without server time others could not judge the claim by its end: see `Acquisition.poll`.
        """
        self.check_process()
        contender = self.contender
        if not contender.store.connection.is_open:
            yield Outside(contender.store.connection.open)
        if not contender.store.knows_time(contender.options.lease, self.process.now):
            # Consistent: a stale read could show a lock that was released already, and the caller would wait for a free
            # key.
            self._see_answer((yield from self._read(consistent=True)))
        # Made only now, because it shows people the server time. It stays the same until the call ends: DynamoDB refuses a join
        # while its entry is in the row, so a retry or a late copy never makes a second entry.
        self._line.entry = self._new_entry()

    def _new_entry(self, address: bytes | None = None) -> str:
        contender, process = self.contender, self.process
        began = contender.store.server_now(process.now)
        return new_entry(began, process.random_bits(), contender.owner, address)

    def _request(self, own: OwnClaim, values: dict[str, Any], now: float) -> Request:
        """Return the acquiring write, with the conditions of `Acquisition` and of the take."""
        take, seen = self._take, self.observed.claim
        values |= {"entry": self._line.entry, "past": self.contender.store.now_low(now, take.past)}
        if seen is not None:
            values |= {"seen": seen.token, "line": entries(seen.waiting)}
        self._clause = Passing.by(take)
        return super()._request(own, values, now)

    def _see_answer(self, answer: Answer) -> None:
        super()._see_answer(answer)
        self._line.see(answer.claim, answer.received, is_current=True)

    # -- joining and leaving ------------------------------------------------------------------------

    def _listen(self, wakeup: Wakeup) -> Operation[None]:
        """If this waiter wants hints, open a socket, and put its address into the entry, before the join."""
        hints, store = self.contender.options.fair, self.contender.store
        if not isinstance(hints, Hints) or self._has_listened:
            return
        from pynamodb_mutex._fair.listener import Listener  # noqa: PLC0415 - seldom needed

        self._has_listened = True
        listener = self.process.of(Listener)
        # outside, because it may have to resolve the endpoint's name
        address = yield Outside(partial(listener.address, store.connection, hints))
        if address is not None:
            entry = self._line.entry = self._new_entry(address)
            self._called = Called(self.process, entry, wakeup)

    def _join(self) -> Operation[None]:
        """Join the end of the line; the answer shows this waiter's place, or that it does not stand there.

        DynamoDB refuses the join if the lock has changed hands too often since it was seen, or the line is full, or the entry
        is in the line already, because an earlier attempt was applied.
        """
        contender, line, seen = self.contender, self._line, self.observed.claim or Claim()
        entry, store = line.entry, contender.store
        # Suppose waiters of a process near to DynamoDB pass the lock on faster than a request of ours gets there: if the join
        # allowed no change of hands, we would never join. So it allows for more after each refusal, up to those of some seconds.
        changes = 2 ** min(self._outpaced, 10) - 1

        def accept(answer: Answer) -> Failure | None:
            if answer.applied and entry not in answer.claim.waiting:
                return store.connection.not_dynamodbs("UpdateItem")
            return None

        line.may_be_in_line = True  # before the effect: an interruption during it must know that there may be an entry
        answer = yield from retrying(
            self.process,
            lambda: join(store, contender.options.row, entry, seen, changes),
            self._deadline,
            about=contender,
            attempts=self.attempts,
            accept=accept,
        )
        self._see_answer(answer)
        self._outpaced += line.place is None

    def _leave(self) -> Operation[None]:
        """Leave the line if this waiter may stand in it, until the answer to a write shows that it does not.

        A read does not prove that: it may show the row as it was before the join.
        """
        contender, line, process = self.contender, self._line, self.process
        until = process.now + RELEASE_PATIENCE

        def build() -> Request:
            return leave(contender.store, contender.options.row, line, process.now)

        try:
            while line.may_be_in_line and not process.inherited:
                answer = yield from retrying(process, build, until, about=contender)
                if answer.applied:
                    rest = answer.claim.waiting
                    if contender.on_freed is not None and line.place == 0:
                        from pynamodb_mutex._fair.listener import call  # noqa: PLC0415 - as above

                        call(process, rest, is_free=process.now >= self.free_at)
                    line.leave()
                    # Suppose many leave at once: each strikes out its entry, because it has seen the others in line. So only the
                    # answer shows which of them was the last.
                    if rest and not in_line(rest):
                        ask = partial(clear, contender.store, contender.options.row, rest)
                        yield from retrying(process, ask, until, about=contender)
                else:
                    line.see(answer.claim, answer.received, is_current=True)
        except PynamoDBException as error:
            text = "%s still stands in line for %s, which delays others by some seconds: %s"
            values = (shown(contender.owner), shown(contender.key), one_line(error))
            process.emit(Log("warning", text, values, contender.log_fields))
        line.leave()
