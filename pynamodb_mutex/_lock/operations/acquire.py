"""Acquire one lock: write, wait in the local queue, poll, write again.

Only an acquiring write decides who holds the lock; a read only shows whether such a write is worth sending. This
module has the order of requests and waits, and what happens to a claim that nobody will use. What a row's claim
means is in `claim`, the order of this process's waiters in `local_queue`, and the times are in `schedule`.
`pynamodb_mutex._several` and `pynamodb_mutex._fair` build on this module.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._lock.dynamodb.answers import Failure
from pynamodb_mutex._lock.operations.contender import refuse_wait, warn_of_blocked_loop
from pynamodb_mutex._lock.operations.effects import Deliver, Outside, Wait, Wakeup
from pynamodb_mutex._lock.operations.events import Log, contended, not_acquired
from pynamodb_mutex._lock.operations.hand_over import WaitingTurn
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.operations.planning import Held
from pynamodb_mutex._lock.operations.release import note_broken, release
from pynamodb_mutex._lock.operations.renew import renew
from pynamodb_mutex._lock.operations.retry import Attempts, retrying
from pynamodb_mutex._lock.protocol.claim import (
    FORCED_MARK,
    TOO_SHORT,
    Claim,
    ObservedClaim,
    OwnClaim,
)
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._lock.protocol.outcome import shows_acquisition
from pynamodb_mutex._lock.protocol.schedule import LONGEST_BETWEEN_MARKS, poll_at_end
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.requests import Clause
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.contender import Contender
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.process_state import ProcessState, Queue

H = TypeVar("H", bound=Held)
"""What an acquisition acquires: a claim, or a group of claims."""


class BaseAcquisition(ABC, Generic[H]):
    """One call of ``acquire``, for one lock or several, until its deadline.

    Attributes:
        timeout: Seconds to wait; 0 for a single try, infinity to wait for ever.
        attempts: The requests that it sent. If this is part of a larger acquisition, all requests of the larger one.
    """

    def __init__(self, process: ProcessState, timeout: float) -> None:
        self.process = process
        self.attempts = Attempts()
        self.timeout = timeout
        self._deadline = math.inf
        self._since = math.inf
        self._contended = False
        # if set, it takes the lock by force, before all else
        self._force: Callable[[], Operation[H | None]] | None = None

    def acquire(self, note: Callable[[H], object]) -> Operation[H | None]:
        """Acquire and emit the outcome; return what is held, or None if it was not free in time.

        It calls ``note`` with the result before it emits ``acquired``, because receivers may query the lock.
        """
        self.begin()
        try:
            held = None if self._force is None else (yield from self._force())
            if held is None:
                held = yield from self._try() if self.timeout == 0 else self._in_line()
            if held is not None:
                note(held)
                claims = held.claims
                # before any other event of this acquisition
                for claim in claims:
                    claim.emit_acquired(self._since, self.attempts.count)
                yield from delivered(claims)
        except BaseException as error:
            # Suppose Ctrl-C comes in a receiver, or at any effect before, such as during a hand-over or a request whose answer
            # is missing: the caller of ``acquire`` cannot know that it holds the lock, and would never release it.
            try:
                yield from undone(self._undoing())
            finally:  # also if a cancellation interrupts that
                self._emit_not_acquired(error)
            raise
        if held is None:
            yield from undone(self._undoing())
            self._emit_not_acquired(None)
        return held

    def begin(self) -> None:
        """Start to count the timeout."""
        self._since = self.process.now
        self._deadline = self._since + self.timeout

    @abstractmethod
    def _undoing(self) -> Sequence[Callable[[], Operation[None]]]:
        """Return the steps that undo what this acquisition has done, or may have done, if it fails or gives up."""

    @abstractmethod
    def _reported(self) -> Sequence[Contender]:
        """Return the contenders for the locks that were not acquired; not for locks of which no holder is known."""

    def _emit_not_acquired(self, error: BaseException | None) -> None:
        waited = max(0.0, self.process.now - self._since)
        for contender in self._reported():
            self.process.emit(not_acquired(contender, waited, self.attempts.count, error))

    def _check_holders(self) -> None:
        """Refuse a wait that keeps a holder in this process from ever releasing its lock: see `refuse_wait`."""
        for contender in self._reported():
            stalled = contender.stalled_holder()
            if stalled is not None:
                refuse_wait(contender, stalled.contender, stalled.ends_by, self._deadline)

    @abstractmethod
    def _emit_contended(self) -> None:
        """Emit ``contended`` for each lock that is known to be held."""

    def _try(self) -> Operation[H | None]:
        held = yield from self.poll()
        if held is None:
            self._emit_contended()
        return held

    @abstractmethod
    def _in_line(self) -> Operation[H | None]:
        """Wait, and acquire; return None if that was not possible in time."""

    @abstractmethod
    def poll(self) -> Operation[H | None]:
        """Try once; return None if another holds what is asked for."""

    def check_process(self) -> None:
        """Raise if the process was forked during a wait and this is the child: the lock would be the parent's."""
        if self.process.inherited:
            raise MutexError(
                "the process was forked, or its engine left, while it waited for a lock"
            )


class Acquisition(BaseAcquisition[HeldClaim]):
    """The acquisition of one lock.

    Attributes:
        contender: The contender that asks for the lock.
        observed: The claim in the way, as this acquisition has seen it.
        displaced: The claim whose place this acquisition has taken by force; None if there is none.
        undo: Steps that undo what it has done, or may have done, and what others have seen of it.
        on_readers: Called with this acquisition when it sees that readers share the claim in the way; None for nothing.
        request_mark: Makes the request by which this acquisition shows readers that it waits, in place of a poll's read; it
            returns None for a read. None until this acquisition meets readers.
    """

    _reads_first = False
    """Whether the first request is a consistent read in any case."""

    _clause: Clause | None = None
    """What this kind of acquisition adds to the acquiring write; None for nothing."""

    def __init__(
        self, contender: Contender, timeout: float, whole: Acquisition | None = None
    ) -> None:
        """Make an acquisition; if ``whole`` is given, as a part of that larger one."""
        super().__init__(contender.process, timeout)
        self.contender = contender
        self.observed = ObservedClaim()
        # whether another process was faster, at least once: a read had shown a free lock, and the write was refused
        self._outrun = False
        self.displaced: Claim | None = None
        self.on_readers: Callable[[Acquisition], object] | None = None
        self.request_mark: Callable[[], Request | None] | None = None
        # Noted before a request is sent, and not in variables of a step: Ctrl-C may come within a step, too.
        self.undo: list[Callable[[], Operation[None]]] = []
        if whole is not None:
            self.attempts, self.undo = whole.attempts, whole.undo

    # -- the acquisition as a whole -----------------------------------------------------------------

    def _undoing(self) -> Sequence[Callable[[], Operation[None]]]:
        return self.undo

    def _reported(self) -> Sequence[Contender]:
        return (self.blocker.contender,)

    def by_force(self) -> None:
        """Let this acquisition break the claim that is in the row when it begins."""
        self._force = self._by_force

    @property
    def blocker(self) -> Acquisition:
        """The acquisition of the lock that will be free first: this one, unless the caller takes any of several keys."""
        return self

    @property
    def holder(self) -> Claim | None:
        """The claim that was in the way last; None if none was seen.

        What this acquisition has seen comes first, then a holder in this process, then what other waiters in its queue saw.
        """
        if self.observed.claim is not None:
            return self.observed.claim
        queue = self.contender.key_queue
        return queue.in_the_way if queue.holder is None else queue.holder.claim

    @property
    def described(self) -> str:
        """The claim that was in the way last, for a message."""
        return self.blocker.contender.whose + (self.holder or Claim()).described

    def _by_force(self) -> Operation[HeldClaim | None]:
        """Acquire the lock, in place of the claim in its row if there is one; return None if another process was faster."""
        claim = yield from self.poll()
        seen = self.observed.claim
        if claim is None and seen is not None and seen.expires_at is not None:
            claim = yield from self.take(seen)
        return claim

    def _in_line(self) -> Operation[HeldClaim | None]:
        """Wait for the lock in the local queue; return None if it was not free in time.

        The turn is in the queue before anything is sent. Otherwise a thread that asked first, but queued only after
        its answer, would come after threads that asked later and were answered sooner.
        """
        queue, now = self.contender.queue, self.process.now
        local = queue.holder
        turn = WaitingTurn(queue, self.contender, Wakeup())
        self.undo.append(partial(_undo_turn, turn))
        # A holder in this process hands the lock over. Until then a poll would show nothing new, as a rule.
        turn.enter(now, polls_first=local is None or not local.held_at(now))
        claim = yield from self._wait(turn)
        if claim is not None:
            # the caller takes any of several keys, and a holder may have handed another over to it meanwhile
            yield from _undo_turn(turn)
            return claim
        granted = yield from _leave_line(turn)
        if granted is not None:
            # The thread that hands a lock over does not renew a claim that came out too short: that would delay its
            # release. So we do. If the renewal fails, the claim is returned all the same: it is held already, and a loss
            # is reported as for any held lock.
            yield from renew_if_short(granted)
        return granted

    def _wait(self, turn: WaitingTurn) -> Operation[HeldClaim | None]:
        """Poll and wait until the lock is acquired; return None if it was handed over, or at the deadline."""
        process, queue = self.process, turn.queue
        self._check_wait(turn)
        while True:
            if turn.granted is not None:
                return None
            settled, turn.settled = turn.settled, None
            if settled is not None:
                self.see(settled, process.now)
            if queue.holder is not None:
                # Suppose the local holder does not renew, and its thread calls nothing: nobody else notes the end of its
                # lease. If it still counted as the holder, this waiter would plan each poll for that end, which has passed,
                # and poll a hundred times a second once another process holds the lock.
                queue.holder.note_end()
            if turn.is_due(process.now, self._deadline):
                claim = yield from self.poll()
                if claim is not None:
                    return claim
                if self.holder is not None:
                    queue.note_in_the_way(self.holder, process.now + self.poll_times[1])
                # A holder handed the lock over while the poll was under way: what the poll showed is out of date.
                if turn.granted is not None:
                    continue
            self._report_wait(turn)
            if process.now >= self._deadline:
                return None
            self.blocker.contender.warn_of_wait(self._since, self.holder)
            poll = self.poll_times
            end = poll_at_end(process.now, self._frees_at(queue), poll, process.uniform)
            longest = 0.0 if queue.holder is None else max(poll[1], queue.holder.noticed_within)
            deadline, uniform = self._deadline, process.uniform
            until = turn.waits_until(process.now, poll, deadline, end, uniform, longest=longest)
            yield Wait(until, turn.wakeup)

    def _report_wait(self, turn: WaitingTurn) -> None:
        """Emit ``contended`` once it is known that the lock is held; refuse a wait that cannot end."""
        if self._deadline == math.inf:
            # In each round. Suppose this wait blocks an event loop, and when it began, a task of that loop had its acquire
            # under way: now the task holds the lock. A wait with a deadline only warns, once, at its start.
            self._check_wait(turn)
        if not self._contended and turn.queue.known_taken:
            self._emit_contended()
            # If this waiter blocks an event loop, each new holder wakes it: that may be a task of the loop, which cannot go on.
            turn.sleeps = not (self.contender.blocks and self.contender.is_pinned)

    def _check_wait(self, turn: WaitingTurn) -> None:
        """Refuse a wait that keeps the holder, or a waiter ahead in the queue, from ever going on.

        Raises:
            MutexAlreadyHeldError: If the wait would never end. If it ends by its deadline, or with a lease, there is at most
                a warning: see `refuse_wait`.
        """
        contender, holder = self.contender, self.contender.stalled_holder()
        stalled, ends = None, -math.inf
        if holder is not None:
            stalled, ends = holder.contender, holder.ends_by
        for ahead in turn.queue.may_be_stalled(turn):
            # By the thread that hands over, not by the caller that acquired: any thread or task may release a lock.
            giver = ahead.promised_by
            # the first of the waiters that would never go on
            if ends < math.inf and contender.stalls(ahead.contender):
                stalled, ends = ahead.contender, math.inf
            if ends < math.inf and giver is not None and self.process.stalls(ahead.given_by):
                stalled, ends = giver.contender, math.inf
        if stalled is not None:
            refuse_wait(contender, stalled, ends, self._deadline)

    def _emit_contended(self) -> None:
        self._contended = True
        blocker = self.blocker
        self.process.emit(contended(blocker.contender, blocker.holder))
        if self.timeout:
            warn_of_blocked_loop([self.contender])

    def _frees_at(self, queue: Queue) -> float:
        """Return the local time from which the lock is free unless it is renewed, as far as is known."""
        local = queue.holder
        return min(math.inf if local is None else local.expires, self.free_at)

    @property
    def poll_times(self) -> tuple[float, float]:
        """Shortest and longest wait between two polls, in seconds."""
        shortest, longest = self.contender.options.poll
        most = math.inf if self.request_mark is None else LONGEST_BETWEEN_MARKS
        return min(shortest, most), min(longest, most)

    @property
    def free_at(self) -> float:
        """Local time from which the claim in the way may be taken over, if it stays as it is.

        Infinity if no row was seen, minus infinity if there was no claim in it.
        """
        return self.observed.free_at(self.contender.store.bounds)

    # -- one try ------------------------------------------------------------------------------------

    def poll(self) -> Operation[HeldClaim | None]:
        """Try once: acquire the lock if it may be free, usually by one request; return None if another holds it.

        The first poll is the acquiring write itself, unless this process holds the lock: one request if the lock is
        free, and a refusal shows the holder. Later polls read the row, for half a read unit in place of a write unit,
        and write only if the read shows that the lock may be free.
        """
        self.check_process()
        contender, process = self.contender, self.process
        if not contender.store.connection.is_open:
            yield Outside(contender.store.connection.open)
        first = self._first()
        if first == "consistent read":
            self._see_answer((yield from self._read(consistent=True)))
        elif first == "read":
            answer = yield from self._read(consistent=False)
            self.see(answer.claim, answer.received)
        if first != "write" and process.now < self.free_at:
            return None
        known = self.observed.claim
        claim = yield from self.take()
        if claim is None and self.observed.claim is not known and process.now >= self.free_at:
            # The write compared the claim's end with a lower bound of server time that had fallen behind in an idle
            # time, and was refused. The Date of the refusal shows that the claim had ended. Without a second write, a
            # caller that does not wait would not get a lock that is free.
            claim = yield from self.take()
        self._outrun = self._outrun or (first != "write" and claim is None)
        return claim

    def _first(self) -> Literal["write", "read", "consistent read"]:
        """Return the request with which a try begins. A later read may be stale: the next poll corrects it."""
        contender, now, seen = self.contender, self.process.now, self.observed.claim is not None
        if not seen and (
            self._reads_first or not contender.store.knows_time(contender.options.lease, now)
        ):
            # Until an answer has shown server time, a claim's end cannot be given in it, and others could judge the claim
            # only by watching it. After a long idle time the end is counted from bounds that have fallen behind, and may
            # have passed when the claim is made. So a read comes first: its answer sets the bounds. A stale one could show
            # a lock that was released already, and the caller would wait for a free key.
            return "consistent read"
        local = contender.key_queue.holder
        # With force it is a write in any case: a read may be stale, and show an earlier holder.
        held_here = local is not None and local.held_at(now) and self._force is None
        seems_free = now >= self.free_at if seen else not held_here
        # Suppose other processes hold the lock for short times, and one of them acquires it between our read and our
        # write, each time: a slower process would wait for ever. So it sends only writes as long as the lock changes hands;
        # but if readers keep it out, its request marks the row for them.
        is_fleeting = self._outrun and self.observed.changed_hands and self.request_mark is None
        return "write" if seems_free or (is_fleeting and not held_here) else "read"

    def _read(self, *, consistent: bool) -> Operation[Answer]:
        contender = self.contender

        def build() -> Request:
            request = None if self.request_mark is None else self.request_mark()
            return request or contender.store.read(contender.options.row, consistent=consistent)

        return (
            yield from retrying(
                self.process, build, self._deadline, about=contender, attempts=self.attempts
            )
        )

    def take(self, seen: Claim | None = None) -> Operation[HeldClaim | None]:
        """Send the acquiring write; return None if another holds the lock.

        Args:
            seen: The claim to break, and no later one; None for the lock only if it is free.
        """
        contender, process, store = self.contender, self.process, self.contender.store
        lease = contender.options.lease
        # The mark shows the displaced holder why its claim is gone. Without a claim to break there is no mark: a holder takes
        # the mark, with the version after its own, as proof that no release of its own was applied before.
        mark = "" if seen is None else FORCED_MARK
        own = OwnClaim(mark + process.new_token(store), lease)
        attempts = Attempts()

        def build() -> Request:
            self.attempts.count += 1
            end, granted = own.propose(process.now, store.bounds, lease)
            values = contender.values(granted, end)
            if seen is not None:
                return store.hand_over(contender.options.row, seen, own, values)
            return self._request(own, values, process.now)

        def accept(answer: Answer) -> Failure | None:
            if answer.applied and answer.claim.token != own.token:
                # The write asks for the row as it is afterwards, with our token in it. An answer without the token is not
                # DynamoDB's but, for example, a proxy's, and shows nothing.
                return store.connection.not_dynamodbs("UpdateItem")
            return None

        self.undo.append(partial(end_write, contender, own, attempts))
        answer = yield from retrying(
            process, build, self._deadline, about=contender, attempts=attempts, accept=accept
        )
        if answer.claim.token == own.token:
            # It raises, for example, for a version with a fraction, to which the write added 1. The undo ends the claim.
            answer.claim.check()
        if not shows_acquisition(own, answer.claim):
            # There is nothing to take back: an earlier attempt whose answer was lost has not been applied, or its claim has
            # ended since. If it is still on its way, it may be applied later. A request that we send now would arrive before
            # it and could not prevent that; the late claim ends with its lease. Noted before `_see_answer`, which may raise.
            self.undo.pop()
            self._see_answer(answer)
            return None
        # Also if it was refused. Suppose the first attempt was sent at 0 s and applied, its answer was lost, and the retry,
        # sent at 9 s, is refused by our own token. The row has the end that the first attempt proposed. Counted from
        # 9 s, our lease would last 9 s longer on the local clock than the row says, and another could hold the lock
        # meanwhile. So it counts from the first attempt that may have been applied.
        sent = min(attempts.first_sent, answer.sent)
        claim = HeldClaim(contender, own, answer.claim, answer.item, sent)
        if seen is not None:
            self.displaced = seen
            note_broken(process, store, contender.row_name, seen, answer.claim)
            text, values = "%s taken by force from %s", (shown(contender.key), seen.holder)
            process.emit(Log("warning", text, values, claim.log_fields))
        return (yield from self._hold(claim, sent))

    def _hold(self, claim: HeldClaim, sent: float) -> Operation[HeldClaim | None]:
        """Hold a claim that an answer shows to be ours; return None if it has ended, after taking it back.

        ``sent`` is the local time before the request that made the claim was sent.
        """
        self.undo[-1] = partial(take_back, claim)
        failure = yield from renew_if_short(claim)
        if claim.stands_at(self.process.now):
            claim.begin()
            claim.start(sent)
            return claim
        yield from take_back(claim)
        self.undo.pop()
        raise_if_out_of_time(failure, claim, self._deadline)
        return None

    def _request(self, own: OwnClaim, values: dict[str, Any], now: float) -> Request:
        """Return the acquiring write."""
        contender, watched = self.contender, self.observed.claim
        if watched is not None:
            watched = self.observed.to_name(now, contender.store.bounds)
        return contender.store.acquire(
            contender.options.row, own, values, now=now, watched=watched, clause=self._clause
        )

    def _see_answer(self, answer: Answer) -> None:
        """Observe the row in an answer; it does not carry our claim."""
        self.see_row(answer.item, answer.claim, answer.received)

    def see_row(self, item: RawItem, claim: Claim, received: float) -> None:
        """Observe a row that does not carry our claim, received at a local time, and the claim in it.

        Raises:
            DoesNotExist: If the row to lock does not exist, and the protocol must not create it.
            InvalidRowError: If the row is not a lock's.
        """
        contender = self.contender
        if not item and (contender.store.layout.must_exist or contender.options.must_exist):
            raise contender.model.DoesNotExist(f"{shown(contender.key)}: no such row to lock")
        self.see(claim, received)

    def see(self, claim: Claim, received: float) -> None:
        """Observe the claim of a row that was received at a local time; raise InvalidRowError if the row is not a lock's."""
        self.observed.see(claim, received)
        if claim.shared_by is not None and self.on_readers is not None:
            self.on_readers(self)


def renew_if_short(held: Held) -> Operation[PynamoDBException | None]:
    """Renew what was just acquired if little is left of its lease; return the failure if the renewal fails.

    The answer may have been slow. Or the local clock stood still, and the answer has shown how late it is.
    """
    if held.ends - held.process.now < TOO_SHORT * held.lease:
        try:
            yield from renew(held)
        except PynamoDBException as error:
            # `renew` has reported it. The claim may still be ours for the rest of its lease.
            return error
    return None


def is_handed_out(claim: HeldClaim) -> bool:
    """Return whether a caller may count on a claim, so that it must end by a release."""
    return claim.belief.state not in {"confirmed", "released"}


def raise_if_out_of_time(failure: PynamoDBException | None, held: Held, deadline: float) -> None:
    """After the deadline, raise the failure to renew claims that no caller was given.

    No row shows another holder: the caller would take None for "another holds it", and skip its work. Call it after the claims
    are given up: those requests may hang until the deadline, with no poll after it.
    """
    is_lost = any(claim.belief.loss is not None for claim in held.claims)
    if failure is not None and not is_lost and deadline <= held.process.now:
        raise failure


def undone(steps: Sequence[Callable[[], Operation[None]]]) -> Operation[None]:
    """Run the steps that undo an acquisition; if they are interrupted, run them once more from the beginning.

    Suppose a task is cancelled while it awaits the answer to its last request, and the acquisition then ends by itself:
    the request has failed, or the deadline has come. The cancellation is thrown at the next effect, which is the first
    request of the undo, before that is sent.
    """
    try:
        for step in steps:
            yield from step()
    except BaseException:
        for step in steps:
            yield from step()
        raise


def take_back(claim: HeldClaim) -> Operation[None]:
    """End a claim that nobody will use. If that is interrupted, it can be called again."""
    if is_handed_out(claim):
        with suppress(PynamoDBException):  # `release` has reported it, and the claim expires
            yield from release(claim, at_least=False)
        return
    claim.forget()
    # Also after a release. Suppose the first call was interrupted before the releasing request was sent: the belief has ended,
    # so `release` would do nothing; if the claim is still in the row, this request ends it by its token.
    yield from claim.contender.disown(claim.own)


def _leave_line(turn: WaitingTurn) -> Operation[HeldClaim | None]:
    """Leave the local queue; return the lock if it was handed over."""
    # If a hand-over to this turn is under way, wait for its outcome, even after the deadline: the write may have been applied,
    # and the claim is ours then. If a signal handler forks meanwhile, the child does not wait: the thread that hands over does
    # not exist there.
    while turn.promised_by is not None and not turn.contender.process.inherited:
        yield Wait(wakeup=turn.wakeup)
    return turn.leave()


def _undo_turn(turn: WaitingTurn) -> Operation[None]:
    """Leave the local queue, and take back a claim that was handed over. A turn that stays would block all turns behind it.

    This does not wait for a hand-over that is under way: the thread that hands over finds the turn gone, and ends its claim.
    """
    granted = turn.leave()
    if granted is not None:
        yield from take_back(granted)


def end_write(contender: Contender, own: OwnClaim, attempts: Attempts) -> Operation[None]:
    """End the claim that an acquiring write without an answer may have made."""
    if attempts.maybe_applied:
        yield from contender.disown(own)


def delivered(claims: Sequence[HeldClaim]) -> Operation[None]:
    """Wait until receivers have been notified of an acquisition; ``acquired`` is among the events of each claim."""
    is_received = False
    for claim in claims:
        # If there are events, this thread delivers until none are left, and then ends the delivery. If there are none, nobody
        # would end it, and later events would be stuck in the queue.
        if not claim.events:
            claim.delivery = "none"
        is_received = is_received or bool(claim.events) or bool(claim.abandoned_by)
    if is_received:
        yield Deliver()
