"""Acquire a shared lock: begin a claim, or join the claim that other readers share; renew it, and leave it.

Each reader is by itself: there is no line in the process, and no hand-over. A writer that waits marks the row, which holds
new readers back for a few seconds at a time. `pynamodb_mutex._shared.readers` decides what may be sent.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.dynamodb.answers import Failure
from pynamodb_mutex._lock.dynamodb.layout import SHARED_MARK, seconds
from pynamodb_mutex._lock.operations import acquire
from pynamodb_mutex._lock.operations.contender import Contender, refuse_wait
from pynamodb_mutex._lock.operations.events import LockEvent
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.operations.local_queue import LocalQueue
from pynamodb_mutex._lock.operations.retry import Attempts, retrying, send
from pynamodb_mutex._lock.protocol.claim import TICK, Claim
from pynamodb_mutex._lock.protocol.messages import shown, shown_owner
from pynamodb_mutex._lock.protocol.outcome import shows_release, was_lost_before_release
from pynamodb_mutex._shared import readers, requests
from pynamodb_mutex.exceptions import Loss, MutexError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import Proposal
    from pynamodb_mutex._lock.operations.process_state import ProcessState, Queue
    from pynamodb_mutex._lock.protocol import outcome

_MOST_ROUNDS = 4
"""Most requests of one try: one that begins a claim, and joins; DynamoDB may refuse a join for its form, or for a longer lease."""


class Waiting(list[Any]):
    """The contenders of this process that wait for shared locks."""

    def __init__(self, process: ProcessState) -> None:  # noqa: ARG002 - `ProcessState.of` gives it
        super().__init__()


class SharedContender(Contender):
    """A contender for a shared lock. It waits in a queue of its own, so that no release hands the lock over to it."""

    __slots__ = ("_queue",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._queue: Queue = LocalQueue({}, None)

    @property
    def queue(self) -> Queue:
        return self._queue

    key_queue = queue

    def stalled_holder(self, sought: Callable[[Any], bool] | None = None) -> Any:
        """Return the local holder that a wait keeps from its release: see `Contender`. Readers keep nobody out."""
        stalled = super().stalled_holder(sought)
        return None if isinstance(stalled, HeldShare) else stalled

    def values(self, lease: float, end: float) -> dict[str, Any]:
        """Return the serialised values of a claim that this reader begins.

        Raises:
            MutexError: If DynamoDB's answers have no ``Date``.
        """
        if self.store.bounds is None:
            msg = f"{shown(self.key)}: DynamoDB's answers have no Date, so no reader's share could be dated"
            raise MutexError(msg, key=self.key)
        return super().values(lease, end) | {"owner": SHARED_MARK + self.owner}

    def _disown(self, own: Any) -> Operation[None]:
        """Remove an entry that nobody will use, if a read shows it; sent once."""
        # Never by the token alone: other readers share the claim.
        store, row = self.store, self.options.row
        reply = yield from send(store.read(row, consistent=True))
        if not isinstance(reply, Failure) and own.end_in(reply.claim) is not None:
            own.seen, own.version = reply.claim, reply.claim.version
            yield from send(requests.leave(store, row, own, self.process.now))


def shares_of(contender: Contender, *, of_caller: bool = False) -> list[HeldShare]:
    """Return this process's shares of a lock, or only the shares of the thread or task that asks for it."""
    found = contender.process.holders(contender.store, contender.row_name)
    held = [each for each in found if isinstance(each, HeldShare) and each.held]
    return [each for each in held if not of_caller or each.contender.caller == contender.caller]


class HeldShare(HeldClaim):
    """A reader's part of a claim, from the answer that confirmed it until it is left or lost."""

    __slots__ = ()

    own: readers.SharedClaim

    @property
    def claim(self) -> Claim:
        """The claim that it shares, as an answer has shown it last."""
        return self.own.seen

    @property
    def can_be_won_back(self) -> bool:
        """Whether a renewal would make it held again: until a row has shown that the entry was removed."""
        return super().can_be_won_back and self.belief.taker is None

    def begin(self) -> None:
        """Note that the lock is held from now on, or again, and let the other readers of this process join."""
        super().begin()
        for other in self.process.of(Waiting):
            if (other.store, other.row_name) == (self.store, self.contender.row_name):
                other.queue.wake()

    def leave_queue(self) -> None:
        """Remove the holder from the records of this process, and wake a writer of this process that waits."""
        super().leave_queue()
        # Not while other readers share it: a fair writer would take the lock for free, and neither read nor mark.
        if len(self.own.seen.readers or ()) <= 1:
            self.process.queue(self.store, self.contender.row_name).wake()

    def emit(self, name: str, **fields: Any) -> None:
        """Queue an event of this acquisition, without the fields that make no sense if others share the lock."""
        own = self.own
        super().emit(name, **fields, readers=len(own.seen.readers or ()), resent=own.resent)

    def renewal(self, proposals: Mapping[HeldClaim, Proposal]) -> Request:
        """Return the request that renews the entry."""
        end, lease = proposals[self].end, proposals[self].lease
        return requests.renew(self.store, self.options.row, self.own, end, lease)

    def note_renewal(
        self, proposals: Mapping[HeldClaim, Proposal], answer: Answer
    ) -> outcome.Renewal:
        """Note the outcome of a renewal, and return it."""
        own, row, proposal = self.own, answer.claim, proposals[self]
        verdict = readers.renewal(own, proposal.end, row, applied=answer.applied)
        if verdict == "gone":
            self.lose(Loss.EXPIRED, row)
            return "lost"
        if verdict == "lost":
            # if the row has our claim without an end, somebody cleared it by hand, whichever reader began it
            self.note_refusal(row._replace(token=own.token) if own.is_of(row) else row)
            return verdict
        own.seen = row
        if verdict == "applied":
            self.extend(proposal)
        elif verdict == "again":
            own.again(proposal.end, proposal.lease)
        return verdict

    def end(self, endings: Mapping[Any, Any], *, hands_over: bool) -> Operation[bool]:  # noqa: ARG002 - to nobody
        """Leave the claim, and end it as its last reader."""
        ending, own = endings[self], self.own
        while True:
            answer = yield from retrying(
                self.process,
                lambda: requests.leave(self.store, self.options.row, own, self.process.now),
                ending.until,
                about=self,
                attempts=ending.attempts,
            )
            row = answer.claim
            if answer.applied or own.end_in(row) is None:
                break
            # other readers have left or joined since: this one is the last now, or not any more
            own.seen = row
        maybe_applied = ending.attempts.maybe_applied
        is_lost = was_lost_before_release(own, row, maybe_applied=maybe_applied)
        if answer.applied or self._has_left(answer) or not is_lost:
            return True
        if own.is_of(row):
            # another reader took this one for dead, and removed it
            self.lose(Loss.EXPIRED, row, at_release=True)
            raise self.lost_error("release")
        raise self.lost_at_release(row)

    def _has_left(self, answer: Answer) -> bool:
        """Return whether a refusal shows that an earlier copy of this leave was applied: see `shows_release`."""
        own, row = self.own, answer.claim
        if own.is_of(row):
            # Only a reader that joins many others removes another's entry: there are too few in both rows that we saw.
            return all(len(each.readers or ()) < readers.BURY_FROM for each in (own.seen, row))
        # A holder that takes over a standing claim copies its owner. Read raw: `Claim.abandoned_by` leaves readers out.
        former = answer.item.get(self.store.layout.abandoned_by.attr_name)
        return former == {"S": ""} and shows_release(own, row, "", deletes=False)


class CoveredShare(HeldClaim):
    """A share of a thread or task that holds the lock alone. It has no claim of its own: that lock covers it.

    It has the lock's attributes, such as `belief` until it is released, where it does not set its own.
    """

    __slots__ = ("_lock",)

    def __init__(self, lock: HeldClaim) -> None:
        self._lock = lock
        self.depth = 1
        self.group = lock.whole
        self.options = lock.options.replace(shared=True)  # which guards no writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def note_end(self) -> None:
        """Note the loss of the covering lock, if its lease has ended."""
        self._lock.note_end()

    def emit(self, name: str, **fields: Any) -> None:
        """Emit nothing: nobody has acquired or released a lock."""

    def end(self, endings: Mapping[Any, Any], *, hands_over: bool) -> Operation[bool]:  # noqa: ARG002 - there is no claim
        """Send nothing."""
        yield from ()
        return True


class SharedAcquisition(acquire.Acquisition):
    """The acquisition of a shared lock."""

    _clause = requests.Begin()

    def by_force(self) -> None:
        """Raise TypeError: a reader breaks nobody's claim."""
        raise TypeError("force=True is for a lock that is held alone, and not for shared=True")

    def acquire(self, note: Callable[[HeldClaim], object]) -> Operation[HeldClaim | None]:
        """Acquire as `BaseAcquisition.acquire`; if this thread or task holds the lock alone, return a share that it covers."""
        contender = self.contender
        alone = contender.stalled_holder()
        if alone is not None and alone.contender.caller == contender.caller:
            covered = CoveredShare(alone)
            note(covered)
            return covered
        # If another caller of this process reads, a read comes first, to spare a refused write; not if this caller reads.
        self._reads_first = bool(shares_of(contender))
        for share in shares_of(contender, of_caller=True):
            self.observed.see(share.own.seen, self.process.now)
        waiting = self.process.of(Waiting)
        waiting.append(contender)
        try:
            return (yield from super().acquire(note))
        finally:
            waiting.remove(contender)

    @property
    def free_at(self) -> float:
        """Local time from which the lock may be shared, as far as is known: see `Acquisition`."""
        bounds = self.contender.store.bounds
        free_at = -math.inf if self._joins else super().free_at
        until = self._seen.marked_until(self.process.now, bounds)
        if until is None or bounds is None or self._is_nested:
            return free_at
        return max(free_at, bounds.passes(until + TICK))

    @property
    def described(self) -> str:
        """The reason that kept this reader out last, for a message: a holder, a mark, or the number of readers."""
        seen, bounds, besides = self._seen, self.contender.store.bounds, ""
        if seen.marked_until(self.process.now, bounds) is not None:
            besides = f"a writer waits ({shown_owner(seen.wanted_by)}); "
        elif len(seen.readers or ()) >= readers.MOST:
            besides = f"{readers.MOST} readers are the most there can be; "
        return besides + (self.holder or Claim()).described

    @property
    def _seen(self) -> Claim:
        return self.observed.claim or Claim()

    @property
    def _is_nested(self) -> bool:
        """Whether this thread or task has an entry in the claim: a waiting writer must not keep it out, or both wait for ever."""
        mine = shares_of(self.contender, of_caller=True) if self._seen.readers else ()
        return any(share.own.end_in(self._seen) is not None for share in mine)

    @property
    def _joins(self) -> bool:
        bounds, nested = self.contender.store.bounds, self._is_nested
        return readers.may_join(self._seen, self.process.now, bounds, nested=nested)

    def take(self, seen: Claim | None = None) -> Operation[HeldClaim | None]:  # noqa: ARG002 - it breaks none
        """Begin a claim or join one; return None if another holds the lock alone, or a writer waits."""
        own: readers.SharedClaim | None = None
        for _ in range(_MOST_ROUNDS):
            if own is None or not own.version or not (self._joins and own.is_of(self._seen)):
                token = self.process.new_token(self.contender.store)
                own = readers.SharedClaim(token, self.contender.options.lease, self.contender.owner)
            if self._joins:
                own.seen, own.version = self._seen, self._seen.version
            held = yield from self._send(own)
            if held is not None or self.process.now < self.free_at:
                return held
        return None

    def _send(self, own: readers.SharedClaim) -> Operation[HeldClaim | None]:
        """Send the write that begins a claim, or joins one if ``own`` has its version; return None if it was refused."""
        contender, process, store = self.contender, self.process, self.contender.store
        attempts, proposed = Attempts(), (0.0, 0.0)

        def build() -> Request:
            nonlocal proposed
            self.attempts.count += 1
            now, row = process.now, contender.options.row
            proposed = end, lease = own.propose(now, store.bounds, own.lease)
            if own.version:
                return requests.join(store, row, own, end, lease, now, nested=self._is_nested)
            values = contender.values(lease, end) | requests.not_marked(store, now)
            values["readers"] = {own.token: {"M": {own.name: {"N": seconds(end)}}}}
            return self._request(own, values, now)

        def accept(answer: Answer) -> Failure | None:
            if answer.applied:
                answer.claim.check()
            if answer.applied and own.end_in(answer.claim) is None:
                return store.connection.not_dynamodbs("UpdateItem")  # see `Acquisition.take`
            return None

        self.undo.append(partial(acquire.end_write, contender, own, attempts))
        answer = yield from retrying(
            process, build, self._deadline, about=contender, attempts=attempts, accept=accept
        )
        # Suppose a join is refused for too many readers, one of them leaves, and a copy of the join is applied: the next request
        # finds its entry, and watchers have counted since then.
        own.asked = min(own.asked, attempts.first_sent, answer.sent)
        if own.end_in(answer.claim) is None:
            self.undo.pop()
            own.again(*proposed)
            self._see_answer(answer)
            return None
        # Even if it was refused: an earlier attempt was applied. See `Acquisition.take`, for this and the rest.
        found = answer.claim
        if found.token != own.token:
            # It joins a claim. If a writer died before, the reader that began the claim has reported that.
            found = found._replace(abandoned_by="")
        claim = HeldShare(contender, own, found, answer.item, own.asked)
        held = yield from self._hold(claim, own.asked)
        if held is None:
            # Do not use the name again. Suppose the leave that was sent just now is late: it would remove the entry of a reader
            # that holds the lock. And a waiter that watches the row counts from the time when this entry was made.
            own.version = 0
        return held


# -- a writer that waits for readers ---------------------------------------------------------------


def meet_readers(acquisition: acquire.Acquisition) -> None:
    """Let a writer's acquisition, which has seen readers, mark the row if it may wait.

    Raises:
        MutexAlreadyHeldError: If the thread or task is itself one of the readers.
    """
    claim, contender = acquisition.observed.claim, acquisition.contender
    if claim is None or not claim.readers or acquisition.request_mark is not None:
        return
    for share in shares_of(contender, of_caller=True):
        refuse_wait(contender, share.contender, math.inf, math.inf)
    if acquisition.timeout > 0:
        mark = _Mark(acquisition)
        acquisition.request_mark = mark.request
        acquisition.undo.append(mark.remove)


class _Mark:
    """The mark of one writer's acquisition."""

    def __init__(self, acquisition: acquire.Acquisition) -> None:
        self._acquisition = acquisition
        self._until = 0.0

    def request(self) -> Request | None:
        """Return the request that marks the row, and shows it; None if there are no readers, or another mark is long enough."""
        acquisition, contender = self._acquisition, self._acquisition.contender
        now, claim, bounds = (
            acquisition.process.now,
            acquisition.observed.claim,
            contender.store.bounds,
        )
        if claim is None or not claim.readers or bounds is None:
            return None
        until = claim.marked_until(now, bounds) or 0.0
        if until - bounds.highest(now) >= readers.MARK_LEFT:
            return None
        # The end never moves back: DynamoDB refuses an earlier end, and `remove`, which names it, would find nothing.
        self._until = max(self._until, bounds.nominal(now) + readers.MARK)
        if acquisition.process.hears("marked"):
            fields = {"readers": len(claim.readers)}
            acquisition.process.emit(LockEvent("marked", contender, None, fields))
        row, own = contender.options.row, seconds(self._until)
        return requests.mark(contender.store, row, claim, own, contender.owner, now)

    def remove(self) -> Operation[None]:
        """Remove the mark, so that readers need not wait for its end; sent once."""
        contender = self._acquisition.contender
        if self._until and not contender.process.inherited:
            until, row = seconds(self._until), contender.options.row
            yield from send(requests.unmark(contender.store, row, until))
