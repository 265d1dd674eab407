"""Guarded writes: applied only while the lock is held, at most once, in the order in which the holder made them.

Each write under a claim has a number, which it stores in the row that carries the claim, on condition that the claim
is ours and that the stored number is that of the last write known to be applied. So the row shows, after a lost answer
or a late copy, which write came last. `pynamodb_mutex._lock.protocol.outcome` decides what a refusal means.

This module has the loop that sends a write; `row_write` and `transaction` have the parts of a write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException, TransactWriteError

from pynamodb_mutex._lock.dynamodb.layout import serialize_data
from pynamodb_mutex._lock.operations.effects import Wait, Wakeup
from pynamodb_mutex._lock.operations.retry import Attempts, retrying
from pynamodb_mutex._lock.protocol import outcome
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._lock.protocol.outcome import GuardedWrite, Verdict
from pynamodb_mutex._lock.protocol.schedule import RELEASE_PATIENCE
from pynamodb_mutex._writes.requests import WriteTemplates
from pynamodb_mutex.exceptions import MutexAlreadyHeldError, MutexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim, Proposal
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex.exceptions import MutexNotHeldError

    class Condition(Protocol):
        """A protocol condition other than a lock guard, such as "nobody holds this row"."""

        def judge(
            self, raw: RawItem, error: PynamoDBException, now: float, *, maybe_applied: bool
        ) -> Verdict:
            """Return the outcome of a refused write from a row; raise if it is final."""


def check_guardable(claim: HeldClaim, what: str) -> None:
    """Raise unless the claim is held, and can guard a write.

    With ``delete_on_release`` it cannot, because the release deletes the claim and the number of the last guarded
    write together with the row. Suppose a late copy of the acquire then finds no row and makes the same claim again
    (same token, same version, no write counted yet), and a late copy of the guarded write finds every condition
    satisfied and is applied a second time.

    Raises:
        MutexNotHeldError: If it is not held here; MutexLostError if it was lost.
        MutexError: With ``delete_on_release``.
    """
    claim.check(what)
    if claim.options.delete_on_release:
        msg = (
            f"{what}: the lock {shown(claim.key)} cannot guard writes, for it is used with delete_on_release: "
            "once its row is deleted, late copies of requests could apply a write again; "
            "leave out delete_on_release"
        )
        raise MutexError(msg, key=claim.key)
    refuse_shared(claim, what)


def refuse_shared(claim: HeldClaim, what: str) -> None:
    """Raise MutexError if other readers may share the claim: their writes would have no order, and so no guard."""
    if claim.options.shared:
        msg = f"{what}: {shown(claim.key)} is shared, and readers guard no writes: hold it alone to write"
        raise MutexError(msg, key=claim.key)


class Guard:
    """The guard that one claim puts on a write.

    Attributes:
        ends: Whether the write releases the lock.
        carries: Whether the write replaces the whole row, and so writes the claim with its end.
        deletes: Whether the write deletes the row that carries the claim.
        lease: Seconds for which it renews; None for the lock's own lease or, after ``max_hold``, the rest of it.
        number: Number of the write, which no other write has; 0 until `begin`.
    """

    def __init__(
        self,
        claim: HeldClaim,
        *,
        ends: bool = False,
        carries: bool = False,
        deletes: bool = False,
        lease: float | None = None,
    ) -> None:
        self.claim = claim
        self.ends = ends or deletes
        self.carries = carries
        self.deletes = deletes
        self.lease = lease
        self.number = 0
        self._renewals: list[Proposal] = []
        self._was_in_doubt = False

    @property
    def renews(self) -> bool:
        """Whether the write doubles as a renewal."""
        return self.carries and not self.ends

    def check(self, what: str) -> None:
        """Raise unless the claim can guard a write now: see `check_guardable`; ``what`` names the call."""
        check_guardable(self.claim, what)

    def values(self) -> dict[str, Any]:
        """Return the serialised values of an attempt that is about to be sent."""
        claim = self.claim
        values = claim.store.mine(claim.own)
        if self.ends:
            values |= claim.store.ending(claim.process.now) | {"abandoned_by": claim.abandoned_by}
        if self.renews:
            renewal = claim.propose_renewal(self.lease)
            self._renewals.append(renewal)
            values |= renewal.values
        return values | {"known": str(claim.own.writes), "next": str(self.number)}

    def begin(self, what: str) -> None:
        """Begin a write. If it releases the lock, the lock does not count as held from now on.

        That does not wait for the answer: as soon as DynamoDB applies the write, another may hold the lock.

        Raises:
            MutexAlreadyHeldError: If it would release a lock that was acquired several times.
        """
        claim = self.claim
        self._was_in_doubt = claim.belief.state == "in doubt"
        if self.ends:
            if claim.depth > 1:
                msg = f"{what}: {shown(claim.key)} was acquired {claim.depth} times: release it until one is left"
                raise MutexAlreadyHeldError(msg, key=claim.key, owner=claim.contender.owner)
            claim.change("unlocking")
        # one number for all attempts: a row that has it shows that one of them was applied
        self.number = claim.own.next_write(claim.process.random_bits())

    def judge(self, row: RawItem, *, maybe_applied: bool) -> Verdict:
        """Return the outcome of this write from a row that refused an attempt; ``row`` is empty if there is none."""
        claim, now = self.claim, self.claim.process.now
        shown_claim = claim.store.layout.claim(row)
        last = self._renewals[-1].end if self.renews else None
        verdict = outcome.guarded_write(
            claim.own,
            GuardedWrite(self.number, last, self.deletes),
            shown_claim,
            row_is_gone=not row,
            may_delete=maybe_applied and claim.stands_at(now) and claim.ends > now,
        )
        if verdict == "applied":
            # An earlier attempt was applied, with an earlier end than the last attempt's: the lease counts from the sending of
            # that attempt. If a renewal has moved the end since, no attempt is left here.
            self._renewals = [each for each in self._renewals if each.end == shown_claim.expires_at]
        return verdict

    def is_in(self, row: RawItem) -> bool:
        """Return whether a row carries the claim."""
        return outcome.is_mine(self.claim.own, self.claim.store.layout.claim(row))

    def lose(self, row: RawItem) -> None:
        """Note the loss that a row shows, unless an earlier write without an answer may have released the lock."""
        claim = self.claim
        claim.note_gone(claim.store.layout.claim(row), in_doubt=self._was_in_doubt)

    def error(self, what: str, *, applied: bool | None) -> MutexNotHeldError:
        """Return the error for this write, after `lose`: the lock was lost, or released here while it was under way.

        Args:
            what: Name of the call, for the message.
            applied: Whether the write was applied; None if that is unknown.
        """
        claim = self.claim
        if claim.is_released and claim.belief.loss is None:
            return claim.not_held_error(what, applied=applied)
        return claim.lost_error(what, applied=applied)

    def applied(self) -> None:
        """Note that the write was applied: by its last attempt, unless `judge` has found an earlier one."""
        claim = self.claim
        claim.own.writes = self.number
        if self._renewals:
            renewal = self._renewals[-1]
            claim.extend(renewal)
            whole = claim.whole
            claim.emit_renewed()
            if claim.group is None:
                # only without a group: a write renews one claim, and the other claims of a group stay due as planned
                whole.failure = None
                whole.plan_renewal(renewal.sent, whole.ends)
                claim.process.schedule.refresh(whole)
        if self.ends:
            claim.note_unlocked()
        # This settles an earlier write of unknown outcome that was to release the lock. It was not applied, or DynamoDB would
        # have refused this write; and it never will be, because the number that it expects is gone.
        elif claim.change("written"):
            # the claim may be in danger now: see `HeldClaim.danger_at`
            claim.process.schedule.refresh(claim.whole)

    def failed(self, *, in_doubt: bool) -> None:
        """Note that the write failed; ``in_doubt`` says whether it may have been applied all the same."""
        if self.ends:
            # A write in doubt may have released the lock: then the lock does not count as held, and if DynamoDB refuses its
            # release, that is no loss. Even if this write was not applied, an earlier write in doubt may have released it.
            doubt, whole = in_doubt or self._was_in_doubt, self.claim.whole
            self.claim.change("unanswered" if doubt else "not unlocked")
            # The lease may have ended by now, or little may be left. Neither counted while the write was under way, so the claim
            # may not be in the schedule any more: hence `add`, not `refresh`.
            whole.process.schedule.add(whole, whole.due())


class Refusal(NamedTuple):
    """A refused write, with the conditions that may have refused it.

    Attributes:
        guards: Guards that may have refused it, each with the row as it was then.
        error: The error to raise if neither a guard nor another condition of the protocol refused it.
        others: Other conditions of the protocol that may have refused it, each with the row as it was then.
    """

    guards: Sequence[tuple[Guard, RawItem]]
    error: PynamoDBException
    others: Sequence[tuple[Condition, RawItem]] = ()


def write(
    process: ProcessState,
    guards: Sequence[Guard],
    build: Callable[[], Request],
    refusal: Callable[[Answer], Refusal],
    what: str,
) -> Operation[Answer]:
    """Make one write, under claims or without any. Other writes of this process under the same claims wait meanwhile.

    Args:
        process: State of the process.
        guards: The claims' guards, each of another acquisition; empty for a write without a lock.
        build: Makes the request, with the guards' present values.
        refusal: Returns which conditions may have refused it, given the answer.
        what: Name of the call, for messages.

    Returns:
        The answer; if it was lost, the refusal of the retry, by which a row showed that the write was applied.

    Raises:
        MutexNotHeldError: If a lock is not held here.
        MutexError: If a lock is used with ``delete_on_release``.
        MutexLostError: If a claim is not ours any more; ``applied`` is None if an attempt whose
            answer was lost may have been applied before.
        PynamoDBException: If another condition of the write did not hold (nothing was written), or if DynamoDB
            cannot be reached (the outcome is unknown).
    """
    for guard in guards:
        guard.check(what)
    claims = [guard.claim for guard in guards]
    writer = process.runner
    try:
        # Inside the try, because Ctrl-C may come within a step, too: if nobody ended the reservation, all later writes would
        # wait for ever.
        yield from begin_writing(claims, writer, what)
        # Check again: this write may have waited for another write, which has released the lock, or found it lost.
        for guard in guards:
            guard.check(what)
        attempts = Attempts()
        try:
            # if one raises, the guards that have begun are taken back below; that does nothing to the others
            for guard in guards:
                guard.begin(what)
            answer = yield from _send_until_known(
                process, guards, build, refusal, what, attempts=attempts
            )
        except BaseException as error:
            # an error that is not DynamoDB's, such as Ctrl-C, may have come before the answer
            in_doubt = attempts.maybe_applied or (
                attempts.count > 0 and not isinstance(error, PynamoDBException)
            )
            for guard in guards:
                guard.failed(in_doubt=in_doubt)
            raise
        for guard in guards:
            guard.applied()
    finally:
        end_writing(claims, writer)
    return answer


def begin_writing(
    claims: Sequence[HeldClaim], writer: tuple[int, bool], what: str
) -> Operation[None]:
    """Wait until no other write of this process is under way under any of the claims, then reserve them all.

    All are reserved in one step, or none: so two writes under several claims cannot wait for each other.

    Args:
        claims: The claims.
        writer: `ProcessState.runner` in the write's step, a new object for each write.
        what: Name of the call, for messages.

    Raises:
        MutexError: If the wait would keep the write that is under way from ever ending.
    """
    # Suppose two writes are made at a time under one claim: A expects the number 0 and writes 1, B expects 0 and writes 2. B is
    # applied, and its answer is lost. A is refused, sent again (expects 2, writes 1), and applied. B's retry finds 1, which is
    # not its own number, is sent again as well (expects 1, writes 2), and is applied a second time.
    while busy := [claim for claim in claims if claim.writes_on is not None]:
        wakeup = Wakeup()
        for claim in busy:
            # Either this is a signal handler that has interrupted the thread while it sends that write; or a task of this
            # thread's event loop sends it, and goes on only when this call returns.
            if claim.writes_on is not None and claim.process.stalls(claim.writes_on):
                msg = f"{what}: a write under the lock {shown(claim.key)} is under way on this thread, which this call blocks"
                raise MutexError(msg, key=claim.key)
            claim.writers = (*claim.writers, wakeup)
        yield Wait(wakeup=wakeup)
    for claim in claims:
        claim.writes_on = writer


def end_writing(claims: Sequence[HeldClaim], writer: tuple[int, bool]) -> None:
    """End the reservation of `begin_writing`, if there is one, and wake the writes that wait for it."""
    for claim in claims:
        if claim.writes_on is writer:
            claim.writes_on = None
            for wakeup in claim.writers:
                wakeup.ring()
            claim.writers = ()


def _send_until_known(
    process: ProcessState,
    guards: Sequence[Guard],
    build: Callable[[], Request],
    refusal: Callable[[Answer], Refusal],
    what: str,
    *,
    attempts: Attempts,
) -> Operation[Answer]:
    """Send a write until its outcome is known.

    Returns:
        The answer; if it was lost, the refusal of the retry, by which a row showed that the write was applied.
    """
    about = guards[0].claim if guards else None
    while True:
        # anew in each round, because a renewal that this write met has moved the ends of the leases
        until = min((guard.claim.ends for guard in guards), default=process.now + RELEASE_PATIENCE)
        answer = yield from retrying(process, build, until, about=about, attempts=attempts)
        maybe_applied = attempts.maybe_applied
        if answer.applied or _is_applied(
            guards, refusal(answer), what, process.now, maybe_applied=maybe_applied
        ):
            return answer


def _is_applied(
    guards: Sequence[Guard], refusal: Refusal, what: str, now: float, *, maybe_applied: bool
) -> bool:
    """Return whether an earlier attempt at a refused write was applied; if not, the caller must send it again.

    Raises:
        PynamoDBException: If it is refused for good.
    """
    verdicts = {
        guard: guard.judge(row, maybe_applied=maybe_applied) for guard, row in refusal.guards
    }
    verdict = outcome.of_all(verdicts.values(), len(guards))
    applied = verdict == "applied"
    for guard, row in refusal.guards:
        is_lost = verdicts[guard] == "lost" or not guard.is_in(row)
        # Suppose a write that unlocks is applied, its answer is lost, another process acquires one of the locks, and
        # the retry is refused by that row: this lock was released, not lost. A write that does not unlock and was
        # applied returns normally, although the lock was lost since.
        if is_lost and not (applied and guard.ends):
            guard.lose(row)
            if not applied:
                # If a transaction is refused at the first attempt, it was not applied before: DynamoDB recognises a copy by its
                # ClientRequestToken. For another write, a proxy may have sent a copy that was applied.
                maybe = maybe_applied or not isinstance(refusal.error, TransactWriteError)
                unknown = verdict == "lost" and maybe
                raise guard.error(what, applied=None if unknown else False)
    if applied or verdict == "again":
        return applied
    # `maybe_applied` counts for a transaction, too, although its ClientRequestToken shows that no earlier attempt has been
    # applied so far. An attempt may still be on its way. Schedule: the first attempt is delayed, the second is refused because
    # another holds the row, the holder releases it, and the first attempt arrives.
    others = {
        condition.judge(row, refusal.error, now, maybe_applied=maybe_applied)
        for condition, row in refusal.others
    }
    if not others:
        raise refusal.error
    return "applied" in others


def payload(claim: HeldClaim, data: Any) -> str | None:
    """Serialise a caller's payload for `save_data`; None stays None.

    Raises:
        MutexError: If the lock is in a user's row, which has no payload.
        TypeError: If the payload is not JSON.
        ValueError: If it contains NaN or infinity, or is too long.
    """
    if claim.store.layout.must_exist:
        msg = "save_data: the lock of a row carries no data of its own; write to the row"
        raise MutexError(msg, key=claim.key)
    return serialize_data(claim.options.model, data)


def payload_with_request(claim: HeldClaim, what: str, data: Any) -> str | None:
    """Serialise a payload that a call writes with its own request.

    Raises:
        TypeError: If the lock is in a user's row, which has no payload; or if the payload is not JSON.
        MutexError: If the release deletes the row.
        MutexAlreadyHeldError: For a release that is not the last one of a reentrant lock.
        ValueError: If the payload contains NaN or infinity, or is too long.
    """
    if claim.store.layout.must_exist:
        msg = f"{what}: data needs a lock_model: the lock of {shown(claim.key)} stands in the row itself"
        raise TypeError(msg)
    if claim.options.delete_on_release:
        msg = f"{what}: no data with delete_on_release, which deletes it with the row"
        raise MutexError(msg, key=claim.key)
    refuse_shared(claim, what)
    if what == "release" and claim.depth > 1:
        msg = f"release: {shown(claim.key)} was acquired {claim.depth} times: only the last release takes data"
        raise MutexAlreadyHeldError(msg, key=claim.key, owner=claim.contender.owner)
    return serialize_data(claim.options.model, data)


def save_data(
    claim: HeldClaim, serialized: str | None, lease: float | None = None
) -> Operation[None]:
    """Write a serialised payload into the lock's row by a guarded write; with None remove the payload.

    Args:
        claim: The claim.
        serialized: The payload.
        lease: Seconds for which the same write renews the claim; None if it leaves the end alone.
    """
    # A guarded write, not a renewal that also writes the payload. Suppose `renew(data=1)` is delayed, its caller gets an error
    # and calls `save_data(2)`: the late renewal's end is later than the stored end, and it would write 1 over 2.
    store, row = claim.store, claim.options.row
    requests = store.of(WriteTemplates)
    template = requests.clear_data if serialized is None else requests.save_data
    if lease is not None:
        template = requests.renew_with_data
    guard = Guard(claim, carries=lease is not None, lease=lease)

    def build() -> Request:
        return store.update(template, row, guard.values() | {"data": serialized})

    def refusal(answer: Answer) -> Refusal:
        return Refusal([(guard, answer.item)], answer.refusal)

    what = "save_data" if lease is None else "renew"
    yield from write(claim.process, [guard], build, refusal, what)
    claim.item = store.layout.with_data(claim.item, serialized)
