"""Getting hold of a lock: one try, and waiting."""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex import _events
from pynamodb_mutex._claim import TOO_SHORT, Tenure, Watch, new_token
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._hold import Hold
from pynamodb_mutex._messages import one_line, shown
from pynamodb_mutex._release import release
from pynamodb_mutex._repeat import Transient, persisting
from pynamodb_mutex._waiting import AT_ONCE, Turn
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamodb_mutex._answers import Answer
    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._waiting import Alarm, Steps
    from pynamodb_mutex._wanted import Wanted

_log = logging.getLogger("pynamodb_mutex")

H = TypeVar("H")
T = TypeVar("T")


class FirstSent:
    """Local time before the first of those attempts that may have been applied.

    Attributes:
        at: That time; infinity if there is no such attempt.
    """

    def __init__(self) -> None:
        self.at = math.inf

    @contextmanager
    def attempt(self) -> Iterator[float]:
        """Send one attempt inside the block; yields the local time."""
        now = local_clock().now()
        before, self.at = self.at, min(self.at, now)
        try:
            yield now
        except Transient as failure:
            if not failure.maybe_applied:
                self.at = before
            raise
        except PynamoDBException:
            self.at = before
            raise


class Effort:
    """What an acquisition takes, of one lock or of several.

    Attributes:
        since: Local time at which it began.
        attempts: Requests that were sent for it, reads and writes.
    """

    def __init__(self) -> None:
        self.since = math.inf
        self.attempts = 0


class Acquisition:
    """An attempt to get one lock, until a deadline.

    Attributes:
        effort: What it takes; that of a larger attempt, if this is part of one.
    """

    def __init__(self, wanted: Wanted, deadline: float, effort: Effort | None = None) -> None:
        self.wanted = wanted
        self.watch = Watch()
        self.effort = effort or Effort()
        self._deadline = deadline
        self._outrun = False
        self._contended = False

    @property
    def blocker(self) -> Acquisition:
        """Of the locks that would do, the attempt to get the one that is free first."""
        return self

    @property
    def holder(self) -> Claim | None:
        """The claim that stood in the way last, as far as it was seen."""
        return claim_in_the_way(self.watch, self.wanted)

    def told(self, steps: Steps[H]) -> Steps[H]:
        """Do the steps of this attempt, and tell if they come to nothing."""
        return told(steps, self._came_to_nothing)

    def _came_to_nothing(self, error: BaseException | None) -> None:
        _events.not_acquired(self.blocker.wanted, self.effort, error)

    def tell(self, hold: Hold) -> None:
        """Tell that the lock was acquired."""
        try:
            _events.acquired(hold, self.effort)
        except BaseException:
            # interrupted in a receiver: nobody would know that it is to be given back
            with suppress(PynamoDBException):
                release(hold)
            raise

    def run(self, alarm: Alarm, *, blocking: bool) -> Steps[Hold | None]:
        """Get the lock, in steps; None if it was not free in time."""
        self.effort.since = local_clock().now()
        if not blocking:
            yield AT_ONCE
            hold = yield from self.look()
            if hold is None:
                self._report_contention()
            return hold
        queue = self.wanted.queue
        local = queue.holder
        # a holder in this process hands over: no request is needed before it does
        looks = local is None or not local.held
        with Turn(queue, self.wanted, self._give_back, looks=looks, alarm=alarm) as turn:
            self._check_wait(turn)
            # It stands in line before anything is sent. Who asked first and queued after the answer would
            # come behind those who asked later and were answered sooner.
            yield AT_ONCE
            hold = yield from turn.wait(
                self._look_in_line,
                self.wanted.terms.poll,
                deadline=self._deadline,
                frees_at=self._frees_at,
                rests=partial(self._rests, turn),
            )
        if hold is not None:
            # whoever handed it over left this to us
            self._is_usable(hold)
        return hold

    def _look_in_line(self) -> Steps[Hold | None]:
        hold = yield from self.look()
        holder = self.holder
        if hold is None and holder is not None:
            self.wanted.queue.found(holder)
        return hold

    def _rests(self, turn: Turn[Wanted, Hold]) -> None:
        """Report, once it is known, that the lock is held; refuse to wait for what can never come."""
        if self._deadline == math.inf:
            # what was under way when it came may have taken the lock meanwhile
            self._check_wait(turn)
        if not self._contended and self.wanted.queue.known_taken:
            self._report_contention()

    def _check_wait(self, turn: Turn[Wanted, Hold]) -> None:
        """Refuse a wait for what only the waiting thread, or task, could do.

        Raises:
            MutexAlreadyHeldError: If the wait would never end. One that ends by its deadline is warned of.
        """
        wanted, alarm = self.wanted, turn.alarm
        ahead = (other for other in wanted.queue.ahead_of(turn) if wanted.stalls(other, alarm))
        stalled = self._stalled_holder(alarm) or next(ahead, None)
        if stalled is not None:
            from pynamodb_mutex._self_wait import refuse_wait  # noqa: PLC0415 - seldom needed

            refuse_wait(wanted, stalled, self._deadline)

    def _stalled_holder(self, alarm: Alarm) -> Wanted | None:
        """Return what holds the lock, if a wait for it keeps that from giving it back."""
        return self.wanted.stalled_holder(alarm)

    def _report_contention(self) -> None:
        self._contended = True
        blocker = self.blocker
        _events.contended(blocker.wanted, blocker.holder)

    def _frees_at(self) -> float:
        local = self.wanted.queue.holder
        ends = math.inf if local is None else local.ends
        return min(ends, self.watch.free_at(self.wanted.store.server.bounds))

    @staticmethod
    def _give_back(hold: Hold) -> None:
        """Release what was handed over to one who does not wait any more."""
        release(hold)

    def look(self) -> Steps[Hold | None]:
        """Take the lock if it is free, as far as one can see; by one request as a rule."""
        self._check_process()
        store = self.wanted.store
        bounds = store.server.bounds
        seen = self.watch.claim is not None
        # at first contact, and after an idle time: a claim would have no end by which others can judge it,
        # or one that has passed already
        learns_time = not seen and not store.knows_time(self.wanted.terms.lease)
        local = self.wanted.key_queue.holder
        held_here = local is not None and local.held
        waits = not seen or local_clock().now() < self.watch.free_at(bounds)
        # free for moments only: over before a write could follow the read that saw it
        fleeting = self._outrun and self.watch.changed_hands and not held_here
        reads = learns_time or ((seen or held_here) and waits and not fleeting)
        if reads:
            # the first is consistent, for nobody shall wait for an unlocked key
            answer = yield from self._read(consistent=learns_time)
            if learns_time:
                self._see(answer)
            else:
                self.watch.see(answer.claim, answer.received)
            if answer.received < self.watch.free_at(store.server.bounds):
                return None
        known = self.watch.claim
        hold = yield from self.take()
        if hold is None and self.watch.claim is not known and self._is_dead():
            # Refused by bounds that were wide after an idle time, while the answer shows that the claim
            # had ended: who does not wait would go away, and the lock be free for no newcomer.
            hold = yield from self.take()
        self._outrun = self._outrun or (reads and hold is None)
        return hold

    def _is_dead(self) -> bool:
        return local_clock().now() >= self.watch.free_at(self.wanted.store.server.bounds)

    def _check_process(self) -> None:
        if self.wanted.process.left_behind:
            raise MutexError(
                "the process was forked, or its engine left, while it waited for a lock"
            )

    def _read(self, *, consistent: bool) -> Steps[Answer]:
        read = partial(self.wanted.store.read, self.wanted.terms.row, consistent=consistent)
        return (yield from self._reading(read))

    def _reading(self, read: Callable[[], T]) -> Steps[T]:
        def attempt() -> T:
            self.effort.attempts += 1
            return read()

        return (yield from persisting(attempt, self._deadline, self.wanted))

    def _request(self, tenure: Tenure, values: dict[str, Any], now: float) -> Answer:
        """Send one acquiring write."""
        watched = self.watch.claim if now >= self.watch.matures() else None
        row = self.wanted.terms.row
        return self.wanted.store.acquire(row, tenure, values, now=now, watched=watched)

    def take(self) -> Steps[Hold | None]:
        """Send the acquiring write; None if another holds the lock."""
        wanted, store = self.wanted, self.wanted.store
        tenure = Tenure(new_token(store.server_now()), wanted.terms.lease)
        first_sent = FirstSent()

        def attempt() -> Answer:
            self.effort.attempts += 1
            with first_sent.attempt() as now:
                end, lease = tenure.propose(now, store.server.bounds, wanted.terms.lease)
                answer = self._request(tenure, wanted.values(lease, end), now)
                if answer.applied and answer.claim.token != tenure.token:
                    # it was asked for the row as it now is
                    raise store.not_dynamodbs("UpdateItem")
                return answer

        hold: Hold | None = None
        try:
            answer = yield from persisting(attempt, self._deadline, wanted)
            if answer.claim.token == tenure.token:
                # such as a fraction, which the write added one to: given up below
                answer.claim.check()
            # refused, but ours: an earlier attempt was applied and its answer lost
            if answer.claim.token != tenure.token or answer.claim.expires_at is None:
                first_sent.at = math.inf
                self._see(answer)
                return None
            hold = Hold(wanted, tenure, answer.claim, answer.item, first_sent.at)
            if self._is_usable(hold):
                wanted.queue.took(hold)
                hold.start()
                return hold
        except BaseException:
            if first_sent.at < math.inf:
                self._give_up(tenure, hold)
            raise
        self._give_up(tenure, hold)
        return None

    def _see(self, answer: Answer) -> None:
        """Take note of a row that is not ours.

        Raises:
            DoesNotExist: If there is no row, and there must be one.
        """
        if self.wanted.store.rows.must_exist and not answer.item:
            raise self.wanted.terms.model.DoesNotExist(
                f"{shown(self.wanted.terms.key)}: no such row to lock"
            )
        self.watch.see(answer.claim, answer.received)

    def _is_usable(self, hold: Hold) -> bool:
        """Renew a claim that came out too short: this process's clock may have stood still."""
        if hold.remaining < TOO_SHORT * self.wanted.terms.lease:
            try:
                hold.renew(None)
            except PynamoDBException as error:
                _log.warning(
                    "short claim of %s not renewed: %s",
                    *(shown(self.wanted.terms.key), one_line(error)),
                    extra=hold.log_fields,
                )
        return hold.held

    def _give_up(self, tenure: Tenure, hold: Hold | None) -> None:
        if hold is not None:
            hold.forget()
        disown(self.wanted, tenure)


def disown(wanted: Wanted, tenure: Tenure) -> None:
    """Try to end a claim that nobody will believe in, whether or not it was, or will be, made."""
    store, terms = wanted.store, wanted.terms
    values = {"mine": tenure.token, "ttl": store.ttl(tenure.proposed)}
    try:
        store.write(store.rows.disown, terms.row, values)
    except (Transient, PynamoDBException) as error:
        _log.warning(
            "%s may be held by nobody for up to a lease: %s",
            *(shown(terms.key), one_line(error)),
            extra=wanted.log_fields,
        )


def claim_in_the_way(watch: Watch, wanted: Wanted) -> Claim | None:
    """Return the claim that was seen last on a key, or that of a holder in this process."""
    if watch.claim is not None:
        return watch.claim
    local = wanted.key_queue.holder
    return wanted.key_queue.in_the_way if local is None else local.claim


def told(steps: Steps[H], came_to_nothing: Callable[[BaseException | None], None]) -> Steps[H]:
    """Do the steps of an attempt, and tell if they come to nothing: by what error, if by any."""
    try:
        got = yield from steps
    except BaseException as error:
        came_to_nothing(error)
        raise
    if got is None:
        came_to_nothing(None)
    return got
