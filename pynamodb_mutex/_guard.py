"""Guarded writes: applied only under the claim, once, and in the order in which they were made."""

from __future__ import annotations

import enum
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex import _events
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._repeat import Transient, persist
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._hold import Hold, Renewal
    from pynamodb_mutex._keys import RawItem

    class Judge(Protocol):
        """A condition of a write that is no guard, and yet the protocol's."""

        def judge(self, raw: RawItem, error: PynamoDBException, *, maybe_applied: bool) -> Verdict:
            """Say what a row tells whose write was refused; raise if that is final."""


_PATIENCE = 5.0
"""Seconds for which a write under no claim is repeated when it meets another at the same row.

How often it is repeated for other reasons is for the connection to say that it goes through.
"""


class Verdict(enum.Enum):
    """What a row shows whose write was refused."""

    APPLIED = "an earlier attempt was applied"
    GONE = "the row to be deleted is not there"
    AGAIN = "what was known is out of date: to be sent again"
    LOST = "the claim is not ours any more"
    REFUSED = "the claim is ours: something else was refused"


class Part:
    """One claim's part in a guarded write.

    Attributes:
        hold: The acquisition.
        ends: Whether the write gives the lock back.
        carries: Whether it writes the whole row, and so the claim with its end.
        deletes: Whether it deletes the row that carries the claim.
        number: Of this write, never proposed before.
    """

    def __init__(
        self, hold: Hold, *, ends: bool = False, carries: bool = False, deletes: bool = False
    ) -> None:
        self.hold = hold
        self.ends = ends or deletes
        self.carries = carries
        self.deletes = deletes
        self.number = 0
        self._renewals: list[Renewal] = []

    @property
    def renews(self) -> bool:
        """Whether it doubles as a renewal."""
        return self.carries and not self.ends

    def claim(self, raw: RawItem) -> Claim:
        """Read the claim in the row."""
        return self.hold.store.rows.claim(raw)

    def values(self) -> dict[str, Any]:
        """Serialise what an attempt about to be sent proposes."""
        hold = self.hold
        values = hold.mine() | {"known": str(hold.tenure.writes), "next": str(self.number)}
        if self.ends:
            values["ttl"] = hold.store.ttl_from_now()
        if self.renews:
            renewal = hold.propose_renewal()
            self._renewals.append(renewal)
            values |= renewal.values
        return values

    def judge(self, raw: RawItem, *, maybe_applied: bool) -> Verdict:
        """Say what a row that refused an attempt tells; an empty one is not there."""
        tenure, claim = self.hold.tenure, self.claim(raw)
        ours = claim.token == tenure.token and claim.version == tenure.version
        if ours and claim.writes == self.number:
            self._renewals = [each for each in self._renewals if each.end == claim.expires_at]
            return Verdict.APPLIED
        if self.deletes and not raw and maybe_applied and self.hold.stands:
            # while nobody else could have the lock: by our own doing
            return Verdict.GONE
        if not tenure.is_mine(claim):
            return Verdict.LOST
        if claim.writes != tenure.writes:
            # an earlier write, whose answer never came, had been applied
            tenure.writes = claim.writes
            return Verdict.AGAIN
        if self.renews and self._renewals[-1].end <= (claim.expires_at or 0.0):
            # it met a renewal that was sent later
            self.hold.saw_end(claim)
            return Verdict.AGAIN
        return Verdict.REFUSED

    def applied(self) -> None:
        """Take note that the write was applied: by its last attempt, if nothing else is known."""
        self.hold.tenure.writes = self.number
        # one before this that was to end the claim did not, and comes too late now
        self.hold.may_have_ended = False
        if self._renewals:
            self.hold.renewed(self._renewals[-1])
        if self.ends:
            self.hold.end()


class Refusal(NamedTuple):
    """A write that was refused.

    Attributes:
        guards: What the rows show whose guard may have refused it.
        error: What to raise if it was none of them.
        others: What the rows show whose other conditions may have refused it.
        blind: Whether nothing tells that an earlier attempt was applied: neither a guard's number nor
            a transaction's token.
        maybe_applied: Whether an attempt that the connection itself repeated may have been applied.
    """

    guards: Sequence[tuple[Part, RawItem]]
    error: PynamoDBException
    others: Sequence[tuple[Judge, RawItem]] = ()
    blind: bool = False
    maybe_applied: bool = False


def guarded(parts: Sequence[Part], send: Callable[[], Refusal | None], what: str) -> None:
    """Make one write, under claims as a rule; other threads' writes under the same claims wait.

    Args:
        parts: The claims' parts, each of another acquisition.
        send: Sends the write, with what the parts propose at that moment; returns None if it was
            applied.
        what: For messages.

    Raises:
        MutexNotHeldError: If a lock is not held here.
        MutexError: If a lock is used with ``delete_on_release``.
        MutexLostError: If a claim is not ours any more; ``applied`` is None if an attempt whose
            answer was lost may have been applied before.
        PynamoDBException: If another condition of the write did not hold: nothing was written. Or
            if DynamoDB cannot be reached: the outcome is unknown.
    """
    with ExitStack() as stack:
        # in one order everywhere, or two threads wait for each other
        for part in sorted(parts, key=lambda part: part.hold.tenure.token):
            part.hold.check_guardable(what)
            stack.enter_context(part.hold.writing)
        for part in parts:
            part.hold.check(what)
            if part.ends:
                stack.enter_context(part.hold.ending(what))
            part.number = part.hold.tenure.next_write()
        _send_until_known(parts, send, what)
        for part in parts:
            part.applied()
    for part in parts:
        if part.ends:
            _events.released(part.hold)


def _send_until_known(parts: Sequence[Part], send: Callable[[], Refusal | None], what: str) -> None:
    maybe_applied = False

    def attempt() -> Refusal | None:
        nonlocal maybe_applied
        try:
            return send()
        except Transient as failure:
            maybe_applied = maybe_applied or failure.maybe_applied
            raise

    try:
        while True:
            until = min((part.hold.ends for part in parts), default=local_clock().now() + _PATIENCE)
            refusal = persist(attempt, until, parts[0].hold if parts else None)
            if refusal is None:
                return
            maybe_applied = maybe_applied or refusal.maybe_applied
            if _judged(parts, refusal, what, maybe_applied=maybe_applied):
                return
    except BaseException as error:
        # what is none of DynamoDB's, such as Ctrl-C, may have come before an answer
        in_doubt = maybe_applied or not isinstance(error, PynamoDBException)
        for part in parts:
            # the claim may be gone by our own doing: nobody believes in it, and a release must not wonder
            part.hold.may_have_ended |= part.ends and in_doubt
        raise


def _judged(parts: Sequence[Part], refusal: Refusal, what: str, *, maybe_applied: bool) -> bool:
    """Say whether a refused write was applied by an earlier attempt; else it is to be sent again.

    Raises:
        PynamoDBException: If neither.
    """
    verdicts = {part: part.judge(raw, maybe_applied=maybe_applied) for part, raw in refusal.guards}
    found = set(verdicts.values())
    # a row that is gone proves nothing beside a guard that still holds
    all_gone = found == {Verdict.GONE} and len(verdicts) == len(parts)
    applied = Verdict.APPLIED in found or all_gone
    for part, raw in refusal.guards:
        lost = verdicts[part] in {Verdict.LOST, Verdict.GONE}
        if lost and not (applied and part.ends):
            claim = part.claim(raw)
            part.hold.lose(part.hold.tenure.loss(claim), claim)
            if not applied:
                raise part.hold.lost_error(what, applied=None if maybe_applied else False)
    if applied:
        # as a whole, though another may have taken one of the locks since
        return True
    if Verdict.AGAIN in found:
        return False
    in_doubt = maybe_applied and refusal.blind
    others = {
        judge.judge(raw, refusal.error, maybe_applied=in_doubt) for judge, raw in refusal.others
    }
    if not others:
        raise refusal.error
    return Verdict.APPLIED in others


def save_data(hold: Hold, data: Any) -> None:
    """Write the caller's payload into the row, or with None take it out, guarded."""
    store, row = hold.store, hold.terms.row
    if store.rows.must_exist:
        msg = "save_data: the lock of a row carries no data of its own; write to the row"
        raise MutexError(msg, key=hold.terms.key)
    serialized = store.rows.serialize_data(data)
    template = store.rows.clear_data if serialized is None else store.rows.save_data
    part = Part(hold)

    def send() -> Refusal | None:
        answer = store.write(template, row, part.values() | {"data": serialized})
        if answer.error is None:
            return None
        return Refusal([(part, answer.item)], answer.error)

    guarded([part], send, "save_data")
    hold.item = store.rows.with_data(hold.item, serialized)
