"""Acquire one lock: poll, write, wait in line."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._dynamodb.answers import Failure
from pynamodb_mutex._operations.contender import refuse_wait
from pynamodb_mutex._operations.effects import Deliver, Open, Wait, Wakeup
from pynamodb_mutex._operations.events import Log, contended, not_acquired
from pynamodb_mutex._operations.held import Held, HeldClaim
from pynamodb_mutex._operations.local_queue import Turn
from pynamodb_mutex._operations.release import release
from pynamodb_mutex._operations.renew import renew
from pynamodb_mutex._operations.retry import Attempts, once, retrying
from pynamodb_mutex._protocol.claim import TOO_SHORT, ObservedClaim, OwnClaim
from pynamodb_mutex._protocol.messages import one_line, shown
from pynamodb_mutex._protocol.outcome import shows_acquisition
from pynamodb_mutex._protocol.schedule import poll_at_end
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.contender import Contender
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.shared import Queue
    from pynamodb_mutex._protocol.claim import Claim

H = TypeVar("H")


class Acquisition:
    """An attempt to acquire one lock, until a deadline.

    Attributes:
        contender: Who asks for it.
        observed: The claim that is in the way, as it was seen.
        requests: How many were sent for it; shared with a larger attempt, if this is part of one.
    """

    def __init__(
        self, contender: Contender, patience: float, requests: Attempts | None = None
    ) -> None:
        """Make an attempt.

        Args:
            contender: Who asks for the lock.
            patience: Seconds for which to wait; 0 for not at all.
            requests: Of a larger attempt.
        """
        self.contender = contender
        self.shared = contender.shared
        self.observed = ObservedClaim()
        self.requests = requests or Attempts()
        self._patience = patience
        self._deadline = math.inf
        self._since = math.inf
        self._outrun = False
        self._contended = False

    # -- the whole of it ----------------------------------------------------------------------------

    def run(self, note: Callable[[HeldClaim], object]) -> Operation[HeldClaim | None]:
        """Acquire the lock, and report it; None if it was not free in time.

        Args:
            note: Called with it before it is reported: receivers may ask the lock.
        """
        self.begin()
        try:
            claim = yield from self._once() if self._patience == 0 else self._in_line()
            if claim is not None:
                note(claim)
                yield from self.announce(claim)
        except BaseException as error:
            self._emit_not_acquired(error)
            raise
        if claim is None:
            self._emit_not_acquired(None)
        return claim

    def begin(self) -> None:
        """Count the patience from now."""
        self._since = self.shared.now
        self._deadline = self._since + self._patience

    def announce(self, claim: HeldClaim) -> Operation[None]:
        """Report that the lock was acquired, before anything else is reported of it."""
        claim.emit_acquired(self._since, self.requests.count)
        yield from delivered([claim], release, claim)

    def _emit_not_acquired(self, error: BaseException | None) -> None:
        contender, waited = self.blocker.contender, max(0.0, self.shared.now - self._since)
        self.shared.emit(not_acquired(contender, waited, self.requests.count, error))

    @property
    def blocker(self) -> Acquisition:
        """Of the locks that would do, the attempt at the one that is free first."""
        return self

    @property
    def holder(self) -> Claim | None:
        """The claim that was in the way last, as far as it was seen."""
        return claim_in_the_way(self.observed, self.contender)

    def _once(self) -> Operation[HeldClaim | None]:
        claim = yield from self.poll()
        if claim is None:
            self._emit_contended()
        return claim

    def _in_line(self) -> Operation[HeldClaim | None]:
        """Wait in line for the lock.

        It stands in line before anything is sent. Who asked first and queued after the answer would
        come behind those who asked later and were answered sooner.
        """
        queue, now = self.contender.queue, self.shared.now
        local = queue.holder
        turn: Turn[HeldClaim, Contender] = Turn(queue, self.contender, Wakeup())
        # a holder in this process hands over: no request is needed before it does
        turn.enter(now, polls_first=local is None or not local.held_at(now))
        claim: HeldClaim | None = None
        granted: HeldClaim | None = None
        try:
            claim = yield from self._wait(turn)
            granted = yield from _leave_line(turn)
            if granted is None:
                return claim
            if claim is None:
                # whoever handed it over left this to us
                yield from self._is_usable(granted)
                return granted
            # Of several keys: one was handed over while our poll acquired another.
            yield from _release_unwanted(granted)
        except BaseException:
            granted = granted or (yield from _leave_line(turn))
            for unwanted in (claim, granted):
                if unwanted is not None and not unwanted.is_released:
                    yield from _release_unwanted(unwanted)
            raise
        return claim

    def _wait(self, turn: Turn[HeldClaim, Contender]) -> Operation[HeldClaim | None]:
        """Wait until the lock is acquired; None if it is handed over, or the deadline came first."""
        shared, poll, queue = self.shared, self.contender.options.poll, turn.queue
        self._check_wait(turn)
        while True:
            if turn.granted is not None:
                return None
            if turn.is_due(shared.now, self._deadline):
                claim = yield from self.poll()
                if claim is not None:
                    return claim
                if self.holder is not None:
                    queue.saw(self.holder)
                if turn.granted is not None:
                    continue
            if shared.now >= self._deadline:
                return None
            self._report_wait(turn)
            end = poll_at_end(shared.now, self._frees_at(queue), poll, shared.uniform)
            until = turn.waits_until(shared.now, poll, self._deadline, end, shared.uniform)
            yield Wait(until, turn.wakeup)

    def _report_wait(self, turn: Turn[HeldClaim, Contender]) -> None:
        """Report, once it is known, that the lock is held; refuse to wait for what can never come."""
        if self._deadline == math.inf:
            # what was under way when it came may have acquired the lock meanwhile
            self._check_wait(turn)
        if not self._contended and turn.queue.known_taken:
            self._emit_contended()

    def _check_wait(self, turn: Turn[HeldClaim, Contender]) -> None:
        """Refuse a wait for what only the waiting thread, or task, could do.

        Raises:
            MutexAlreadyHeldError: If the wait would never end. One that ends by its deadline causes a warning.
        """
        contender = self.contender
        stalled = self._stalled_holder()
        for ahead in turn.queue.ahead_of(turn):
            if stalled is None and contender.stalls(ahead):
                stalled = ahead
        if stalled is not None:
            refuse_wait(contender, stalled, self._deadline)

    def _stalled_holder(self) -> Contender | None:
        """Return who holds the lock, if a wait for it keeps that one from releasing it."""
        return self.contender.stalled_holder()

    def _emit_contended(self) -> None:
        self._contended = True
        blocker = self.blocker
        self.shared.emit(contended(blocker.contender, blocker.holder))

    def _frees_at(self, queue: Queue) -> float:
        """Return the local time from which the lock is free, as far as is known."""
        local = queue.holder
        return min(math.inf if local is None else local.ends, self.free_at)

    @property
    def free_at(self) -> float:
        """Local time from which the claim in the way, if it stays as it is, may be taken over."""
        return self.observed.free_at(self.contender.store.bounds)

    # -- one try ------------------------------------------------------------------------------------

    def poll(self) -> Operation[HeldClaim | None]:
        """Acquire the lock if it is free, as far as is known; usually by one request."""
        self.check_process()
        contender, shared = self.contender, self.shared
        if not contender.store.connection.is_open:
            yield Open(contender.store)
        seen = self.observed.claim is not None
        # At first contact, and after an idle time: a claim would have no end by which others can judge it,
        # or one that has passed already.
        learns_time = not seen and not contender.store.knows_time(
            contender.options.lease, shared.now
        )
        local = contender.key_queue.holder
        held_here = local is not None and local.held_at(shared.now)
        waits = not seen or shared.now < self.free_at
        # free for moments only: taken again before a write could follow the read that saw it
        fleeting = self._outrun and self.observed.changed_hands and not held_here
        reads = learns_time or ((seen or held_here) and waits and not fleeting)
        if reads:
            # the first is consistent, for nobody shall wait for an unlocked key
            answer = yield from self._read(consistent=learns_time)
            if learns_time:
                self._see(answer)
            else:
                self.observed.see(answer.claim, answer.received)
            if answer.received < self.free_at:
                return None
        known = self.observed.claim
        claim = yield from self.take()
        if claim is None and self.observed.claim is not known and shared.now >= self.free_at:
            # Refused by bounds that were wide after an idle time, while the answer shows that the claim
            # had ended: who does not wait would go away, and the lock be free for no newcomer.
            claim = yield from self.take()
        self._outrun = self._outrun or (reads and claim is None)
        return claim

    def check_process(self) -> None:
        """Raise if the process was forked meanwhile: the lock would be the parent's."""
        if self.shared.inherited:
            raise MutexError(
                "the process was forked, or its engine left, while it waited for a lock"
            )

    def _read(self, *, consistent: bool) -> Operation[Answer]:
        contender = self.contender
        return (
            yield from retrying(
                self.shared,
                lambda: contender.store.read(contender.options.row, consistent=consistent),
                self._deadline,
                about=contender,
                attempts=self.requests,
            )
        )

    def take(self) -> Operation[HeldClaim | None]:
        """Send the acquiring write; None if another holds the lock."""
        contender, shared, store = self.contender, self.shared, self.contender.store
        lease = contender.options.lease
        own = OwnClaim(shared.new_token(store), lease)
        attempts = Attempts()

        def build() -> Request:
            end, granted = own.propose(shared.now, store.bounds, lease)
            return self._request(own, contender.values(granted, end), shared.now)

        def accept(answer: Answer) -> Failure | None:
            if answer.applied and answer.claim.token != own.token:
                # it was asked for the row as it is after the update
                return store.connection.not_dynamodbs("UpdateItem")
            return None

        claim: HeldClaim | None = None
        try:
            answer = yield from retrying(
                shared, build, self._deadline, about=contender, attempts=attempts, accept=accept
            )
            if answer.claim.token == own.token:
                # such as a fraction, which the write added one to: released below
                answer.claim.check()
            if not shows_acquisition(own, answer.claim):
                # Nothing to disown: an earlier attempt whose answer was lost has not been applied, or its claim
                # has ended since. One that is still on its way may be applied later. A request that is sent
                # now could not prevent that, since it would arrive first; the claim that the late attempt
                # then makes ends with its lease.
                attempts.first_sent = math.inf
                self._see(answer)
                return None
            # Also if refused: the first attempt was sent at 0 s and applied, its answer was lost, and the retry,
            # sent at 9 s, is refused by our own token. The row has the end that the first attempt proposed.
            # Counted from 9 s, our lease would last 9 s longer on the local clock than the row says, and
            # another could hold the lock meanwhile. So it counts from the first attempt that may have been
            # applied.
            sent = min(attempts.first_sent, answer.sent)
            claim = HeldClaim(contender, own, answer.claim, answer.item, sent)
            held = Held((claim,), is_group=False)
            if (yield from self._is_usable(claim)):
                claim.begin()
                held.start(sent)
                return claim
        except BaseException:
            if claim is not None or attempts.maybe_applied:
                yield from self._give_up(own, claim)
            raise
        finally:
            self.requests.count += attempts.count
        yield from self._give_up(own, claim)
        return None

    def _request(self, own: OwnClaim, values: dict[str, Any], now: float) -> Request:
        """Return the acquiring write."""
        watched = self.observed.claim
        if watched is not None and now < self.observed.matures():
            watched = None
        contender = self.contender
        return contender.store.acquire(contender.options.row, own, values, now=now, watched=watched)

    def _see(self, answer: Answer) -> None:
        """Note a row that is not ours.

        Raises:
            DoesNotExist: If there is no row, and there must be one.
        """
        contender = self.contender
        if contender.store.layout.must_exist and not answer.item:
            raise contender.model.DoesNotExist(f"{shown(contender.key)}: no such row to lock")
        self.observed.see(answer.claim, answer.received)

    def _is_usable(self, claim: HeldClaim) -> Operation[bool]:
        """Renew a claim that came out too short: this process's clock may have stood still."""
        shared = self.shared
        if claim.ends - shared.now < TOO_SHORT * claim.options.lease:
            try:
                yield from renew(claim.together)
            except PynamoDBException as error:
                text = "short claim of %s not renewed: %s"
                values = (shown(claim.key), one_line(error))
                shared.emit(Log("warning", text, values, claim.log_fields))
            return claim.stands_at(shared.now)
        return True

    def _give_up(self, own: OwnClaim, claim: HeldClaim | None) -> Operation[None]:
        if claim is not None:
            claim.forget()
        yield from disown(self.contender, own)


def disown(contender: Contender, own: OwnClaim) -> Operation[None]:
    """Try to end a claim that nobody will believe in, whether or not it was, or will be, made."""
    shared, store = contender.shared, contender.store
    values = store.ending(shared.now, own.proposed) | {"mine": own.token}
    request = store.update(store.requests.disown, contender.options.row, values)
    reply = yield from once(request)
    if isinstance(reply, Failure):
        text = "%s may be held by nobody for up to a lease: %s"
        shown_values = (shown(contender.key), one_line(reply.error))
        shared.emit(Log("warning", text, shown_values, contender.log_fields))


def _leave_line(turn: Turn[HeldClaim, Contender]) -> Operation[HeldClaim | None]:
    """Leave the line; wait for a hand-over that is under way, and return the lock if it was handed over.

    Interrupted in that, too, it leaves all the same: then whoever hands the lock over finds it gone, or the
    lock was just handed over, and nobody else would release it.
    """
    try:
        while turn.promised_by is not None:
            yield Wait(wakeup=turn.wakeup)
    except BaseException:
        granted = turn.leave()
        if granted is not None:
            yield from _release_unwanted(granted)
        raise
    return turn.leave()


def _release_unwanted(claim: HeldClaim) -> Operation[None]:
    with suppress(PynamoDBException):  # it is reported, and expires with its lease
        yield from release(claim)


def claim_in_the_way(observed: ObservedClaim, contender: Contender) -> Claim | None:
    """Return the claim that was seen last on a key, or that of a holder in this process."""
    if observed.claim is not None:
        return observed.claim
    queue = contender.key_queue
    return queue.in_the_way if queue.holder is None else queue.holder.claim


def delivered(
    claims: list[HeldClaim], undo: Callable[[H], Operation[None]], held: H
) -> Operation[None]:
    """Go on when an acquisition was reported to the receivers; undo it if one of them was interrupted.

    Nobody would know otherwise that it is to be released.
    """
    is_received = False
    for claim in claims:
        claim.delivering = bool(claim.events)
        is_received = is_received or claim.delivering
    if not is_received:
        return
    try:
        yield Deliver()
    except BaseException:
        with suppress(PynamoDBException):  # it expires with its lease
            yield from undo(held)
        raise
