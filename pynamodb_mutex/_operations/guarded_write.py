"""Guarded writes: applied only under the claim, at most once, in the order in which they were made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._operations.effects import Wait, Wakeup
from pynamodb_mutex._operations.held import Change, State
from pynamodb_mutex._operations.retry import Attempts, retrying
from pynamodb_mutex._protocol import outcome
from pynamodb_mutex._protocol.messages import shown
from pynamodb_mutex._protocol.outcome import GuardedWrite, Verdict
from pynamodb_mutex._protocol.schedule import RELEASE_PATIENCE
from pynamodb_mutex.exceptions import MutexAlreadyHeldError, MutexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.held import HeldClaim, Proposal
    from pynamodb_mutex._operations.shared import Shared

    class Condition(Protocol):
        """A protocol condition other than a lock guard, such as "nobody holds this row"."""

        def judge(
            self, raw: RawItem, error: PynamoDBException, now: float, *, maybe_applied: bool
        ) -> Verdict:
            """Say what a row shows whose write was refused; raise if that is final."""


class Guard:
    """The guard of one claim on a write.

    Attributes:
        claim: The claim.
        ends: Whether the write releases the lock.
        carries: Whether it writes the whole row, and so the claim with its end.
        deletes: Whether it deletes the row that carries the claim.
        number: Of this write, never proposed before.
    """

    def __init__(
        self, claim: HeldClaim, *, ends: bool = False, carries: bool = False, deletes: bool = False
    ) -> None:
        self.claim = claim
        self.ends = ends or deletes
        self.carries = carries
        self.deletes = deletes
        self.number = 0
        self._renewals: list[Proposal] = []
        self._was_in_doubt = False

    @property
    def renews(self) -> bool:
        """Whether it doubles as a renewal."""
        return self.carries and not self.ends

    def values(self) -> dict[str, Any]:
        """Serialise what an attempt that is about to be sent proposes."""
        claim = self.claim
        values = claim.store.mine(claim.own)
        if self.ends:
            values |= claim.store.ending(claim.shared.now)
        if self.renews:
            renewal = claim.propose_renewal()
            self._renewals.append(renewal)
            values |= renewal.values
        return values | {"known": str(claim.own.writes), "next": str(self.number)}

    def begin(self, what: str) -> None:
        """Begin a write: from now on there is no belief, if it releases the lock.

        Raises:
            MutexNotHeldError: If the lock is not held here; MutexLostError if it was lost.
            MutexAlreadyHeldError: If it would release a lock that is entered several times.
        """
        claim = self.claim
        if self.ends:
            if claim.depth > 1:
                msg = f"{what}: {shown(claim.key)} is entered {claim.depth} times: only the last one unlocks"
                raise MutexAlreadyHeldError(msg, key=claim.key, owner=claim.contender.owner)
            self._was_in_doubt = claim.belief.state is State.IN_DOUBT
            claim.change(Change.UNLOCKING)
        self.number = claim.own.next_write()

    def judge(self, row: RawItem, *, maybe_applied: bool) -> Verdict:
        """Say what a row shows that refused an attempt; an empty one does not exist."""
        claim = self.claim
        shown_claim = claim.store.layout.claim(row)
        last = self._renewals[-1].end if self.renews else None
        verdict = outcome.guarded_write(
            claim.own,
            GuardedWrite(self.number, last, self.deletes),
            shown_claim,
            row_is_gone=not row,
            may_delete=maybe_applied and claim.stands_at(claim.shared.now),
        )
        if verdict is Verdict.APPLIED:
            self._renewals = [each for each in self._renewals if each.end == shown_claim.expires_at]
        return verdict

    def lose(self, row: RawItem) -> None:
        """Note the loss that a row shows."""
        claim = self.claim
        shown_claim = claim.store.layout.claim(row)
        claim.lose(outcome.loss_of(claim.own, shown_claim), shown_claim)

    def applied(self) -> None:
        """Note that the write was applied: by its last attempt, if nothing else is known."""
        claim = self.claim
        claim.own.writes = self.number
        if self._renewals:
            renewal = self._renewals[-1]
            claim.extend(renewal)
            together = claim.together
            together.emit_renewed([claim])
            if not together.is_group:
                # else the others are due when they were
                together.plan_renewal(renewal.sent, together.ends)
                claim.shared.schedule.refresh(together)
        if self.ends:
            claim.depth = 0
            claim.change(Change.UNLOCKED)
            claim.together.stop()
            claim.leave_queue()
            if claim.belief.loss is None:
                claim.emit("released", held_for=claim.held_for, error=None)
        else:
            claim.change(Change.WRITTEN)

    def failed(self, *, in_doubt: bool) -> None:
        """Note that the write was not applied, or may have been."""
        if self.ends:
            # the claim may be gone by our own doing: nobody believes in it, and a release must not wonder
            doubt = in_doubt or self._was_in_doubt
            self.claim.change(Change.UNANSWERED if doubt else Change.NOT_UNLOCKED)


class Refusal(NamedTuple):
    """A write that was refused.

    Attributes:
        guards: What the rows show whose guard may have refused it.
        error: What to raise if it was none of them.
        others: What the rows show whose other conditions may have refused it.
        maybe_applied: Whether an attempt that the connection itself retried may have been applied.
    """

    guards: Sequence[tuple[Guard, RawItem]]
    error: PynamoDBException
    others: Sequence[tuple[Condition, RawItem]] = ()
    maybe_applied: bool = False


def write(
    shared: Shared,
    guards: Sequence[Guard],
    build: Callable[[], Request],
    refusal: Callable[[Answer], Refusal],
    what: str,
) -> Operation[Answer | None]:
    """Make one write, under claims as a rule; other writes of this process under the same claims wait.

    Args:
        shared: What the locks of the process share.
        guards: The claims' guards, each of another acquisition.
        build: Makes the request, with what the guards propose at that moment.
        refusal: Says which conditions may have refused it.
        what: For messages.

    Returns:
        The answer; None if it was lost, and a guard showed that the write was applied.

    Raises:
        MutexNotHeldError: If a lock is not held here.
        MutexError: If a lock is used with ``delete_on_release``.
        MutexLostError: If a claim is not ours any more; ``applied`` is None if an attempt whose
            answer was lost may have been applied before.
        PynamoDBException: If another condition of the write did not hold: nothing was written. Or
            if DynamoDB cannot be reached: the outcome is unknown.
    """
    for guard in guards:
        guard.claim.check_guardable(what)
    claims = [guard.claim for guard in guards]
    yield from turn_to_write(claims)
    try:
        for guard in guards:
            guard.claim.check(what)
        begun: list[Guard] = []
        attempts = Attempts()
        try:
            for guard in guards:
                guard.begin(what)
                begun.append(guard)
            answer = yield from _send_until_known(
                shared, guards, build, refusal, what, attempts=attempts
            )
        except BaseException as error:
            # what is none of DynamoDB's, such as Ctrl-C, may have come before an answer
            in_doubt = attempts.maybe_applied or (
                attempts.count > 0 and not isinstance(error, PynamoDBException)
            )
            for guard in begun:
                guard.failed(in_doubt=in_doubt)
            raise
        for guard in guards:
            guard.applied()
    finally:
        end_turn_to_write(claims)
    return answer


def turn_to_write(claims: Sequence[HeldClaim]) -> Operation[None]:
    """Wait until no other write of this process is under way under any of the claims, and begin.

    All are taken at once, or none: two writes cannot wait for each other.
    """
    while busy := [claim for claim in claims if claim.is_writing]:
        wakeup = Wakeup()
        for claim in busy:
            claim.writers = (*claim.writers, wakeup)
        yield Wait(wakeup=wakeup)
    for claim in claims:
        claim.is_writing = True


def end_turn_to_write(claims: Sequence[HeldClaim]) -> None:
    """Let the next write begin."""
    for claim in claims:
        claim.is_writing = False
        for wakeup in claim.writers:
            wakeup.ring()
        claim.writers = ()


def _send_until_known(
    shared: Shared,
    guards: Sequence[Guard],
    build: Callable[[], Request],
    refusal: Callable[[Answer], Refusal],
    what: str,
    *,
    attempts: Attempts,
) -> Operation[Answer | None]:
    """Send a write until it is known what became of it; return the answer, or None for a lost one."""
    about = guards[0].claim if guards else None
    while True:
        # anew in each round: the renewal that this write met has moved the end
        until = min((guard.claim.ends for guard in guards), default=shared.now + RELEASE_PATIENCE)
        answer = yield from retrying(shared, build, until, about=about, attempts=attempts)
        if answer.applied:
            return answer
        refused = refusal(answer)
        if refused.maybe_applied:
            attempts.first_sent = min(attempts.first_sent, answer.sent)
        if _is_applied(guards, refused, what, shared.now, maybe_applied=attempts.maybe_applied):
            return None


def _is_applied(
    guards: Sequence[Guard], refusal: Refusal, what: str, now: float, *, maybe_applied: bool
) -> bool:
    """Say whether a refused write was applied by an earlier attempt; else it is to be sent again.

    Raises:
        PynamoDBException: If neither.
    """
    verdicts = {
        guard: guard.judge(row, maybe_applied=maybe_applied) for guard, row in refusal.guards
    }
    verdict = outcome.of_all(verdicts.values(), len(guards))
    applied = verdict is Verdict.APPLIED
    for guard, row in refusal.guards:
        is_lost = verdicts[guard] in {Verdict.LOST, Verdict.GONE}
        # A write that unlocks is applied, its answer is lost, another process acquires one of the locks, and the
        # retry is refused by that row: this lock was released, not lost.
        if is_lost and not (applied and guard.ends):
            guard.lose(row)
            if not applied:
                raise guard.claim.lost_error(what, applied=None if maybe_applied else False)
    if applied or verdict is Verdict.AGAIN:
        return applied
    # Also in a transaction, whose token shows only that no earlier attempt was applied so far: the first attempt is
    # delayed, the second is refused because another holds the row, the holder releases it, and the first arrives.
    others = {
        condition.judge(row, refusal.error, now, maybe_applied=maybe_applied)
        for condition, row in refusal.others
    }
    if not others:
        raise refusal.error
    return Verdict.APPLIED in others


def payload(claim: HeldClaim, data: Any) -> str | None:
    """Serialise a caller's payload for `save_data`; None stays None.

    Raises:
        MutexError: If the row is a user's.
        TypeError: If it is not JSON.
        ValueError: If JSON has no name for a number in it.
    """
    if claim.store.layout.must_exist:
        msg = "save_data: the lock of a row carries no data of its own; write to the row"
        raise MutexError(msg, key=claim.key)
    return claim.store.layout.serialize_data(data)


def save_data(claim: HeldClaim, serialized: str | None) -> Operation[None]:
    """Write a serialised payload into the row, or with None remove it, guarded."""
    store, row = claim.store, claim.options.row
    template = store.requests.clear_data if serialized is None else store.requests.save_data
    guard = Guard(claim)

    def build() -> Request:
        return store.update(template, row, guard.values() | {"data": serialized})

    def refusal(answer: Answer) -> Refusal:
        return Refusal([(guard, answer.item)], answer.refusal)

    yield from write(claim.shared, [guard], build, refusal, "save_data")
    claim.item = store.layout.with_data(claim.item, serialized)
