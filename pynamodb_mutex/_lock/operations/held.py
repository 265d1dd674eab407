"""A claim of ours, from its acquisition until it is released or lost, and what changes its state.

It sends nothing. The requests that begin, prolong and end a claim are in `acquire`, `renew`, `release` and
`pynamodb_mutex._writes`; what is asked of a claim without changing it is in `acquired`, when it is renewed in `planning`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import UpdateError

from pynamodb_mutex._lock.dynamodb.layout import seconds
from pynamodb_mutex._lock.operations.acquired import Acquired
from pynamodb_mutex._lock.operations.events import LockEvent
from pynamodb_mutex._lock.operations.states import TRANSITIONS, Belief, Change
from pynamodb_mutex._lock.protocol import outcome
from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, Claim
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._lock.protocol.outcome import Renewal, loss_of, was_lost_before_release
from pynamodb_mutex.exceptions import Loss, MutexLostError, MutexNotHeldError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation

    Proposals = Mapping["HeldClaim", "Proposal"]


class HeldClaim(Acquired):
    """One acquisition that DynamoDB has confirmed, from then until it is released or lost."""

    __slots__ = ()

    error_class = UpdateError

    # -- checks that note the end of the lease --------------------------------------------------------

    def check(self, what: str) -> None:
        """Raise if the claim was lost, released or inherited. A write that may have released it does not count.

        Args:
            what: Name of the call, for the message.

        Raises:
            MutexNotHeldError: If it is not held here; MutexLostError if it was lost.
        """
        if self.shared.inherited:
            msg = f"{what}: {shown(self.key)} is held by the parent process, not by its fork"
            raise MutexNotHeldError(msg, key=self.key)
        if self.is_released:
            raise self.not_held_error(what)
        self.note_end()
        if self.belief.loss is not None:
            raise self.lost_error(what)

    def check_renewable(self) -> None:
        """Raise if a renewal is pointless: the lock was released, inherited, or lost to somebody else.

        A lock whose lease merely ended may be renewed: unless another took it meanwhile, that wins it back.
        """
        if self.is_released or self.shared.inherited:
            self.check("renew")
        if self.belief.loss is not None and not self.can_be_won_back:
            raise self.lost_error("renew")

    # -- changes: inside the monitor ----------------------------------------------------------------

    def change(self, change: Change) -> bool:
        """Change the state as the table says; return whether it changed. Not for a loss: see `lose`."""
        after = TRANSITIONS.get((self.belief.state, change))
        if after is None:
            return False
        loss = None if change == "won back" else self.belief.loss
        # Last, and in one statement: Ctrl-C, or a signal handler or other thread that reads `held` without the monitor,
        # comes before it or after it, and meets the old state or the new one, never half of each.
        self.belief = Belief(after, loss, self.belief.taker)
        return True

    def emit(self, name: str, **fields: Any) -> None:
        """Queue an event of this acquisition for delivery, after its earlier events; ``acquired`` comes first.

        A lock that was handed over may be lost before the thread that waited for it runs again and emits ``acquired``:
        then ``lost`` is in the queue already.

        Args:
            name: Name of the signal.
            fields: What the signal carries in addition to key, owner and tokens.
        """
        event = LockEvent(name, self.contender, self, fields)
        if self.shared.receivers[name]:
            first = name == "acquired"
            self.events = (event, *self.events) if first else (*self.events, event)
        self.shared.outbox.append(event)

    def emit_acquired(self, since: float, attempts: int) -> None:
        """Emit ``acquired`` before any other event of this acquisition.

        Args:
            since: Local time at which the caller asked for the lock.
            attempts: Number of requests that were sent for it.
        """
        # With events that wait for this one, it is made in any case: who delivers it delivers those.
        if not (self.abandoned_by or self.events or self.shared.hears("acquired")):
            return
        self.emit(
            "acquired",
            waited=max(0.0, self.since - since),
            attempts=attempts,
            abandoned=bool(self.abandoned_by),
            abandoned_by=self.abandoned_by or None,
            forced=self.own.token.startswith(FORCED_MARK),
            lease=self.options.lease,
            expires_at=self.own.expires_at,
        )

    def emit_renewed(self, *, won_back: bool = False) -> None:
        """Emit ``renewed``, unless the lock was lost when the answer arrived.

        Args:
            won_back: Whether the lease had ended, and the renewal won the lock back.
        """
        # Suppose a renewal is sent at 10 s for 30 s, and its answer arrives at 45 s: the lease that it granted has
        # ended as well, and the renewal loop may not have noted that yet. Then the loss is reported, not the renewal.
        self.note_end()
        if not self.is_over and self.shared.hears("renewed"):
            self.emit("renewed", expires_at=self.own.expires_at, won_back=won_back)

    def emit_handed_over(self, successor: HeldClaim | None) -> None:
        """Emit ``handed_over``.

        Args:
            successor: The next holder; None after a detach, when it is whoever attaches by the ticket.
        """
        self.emit(
            "handed_over",
            held_for=self.held_for,
            to=None if successor is None else successor.contender.owner,
            to_token=None if successor is None else successor.own.token,
            to_fencing_token=None if successor is None else successor.fencing_token,
        )

    def begin(self) -> None:
        """Note that the lock is held from now on, or again, and register the holder in this process."""
        self.change("begin")
        self.contender.queue.acquired_by(self)
        self.shared.note_holder(self)

    def leave_queue(self) -> None:
        """Remove the holder from the records of this process, and wake the next local waiter."""
        self.shared.forget_holder(self)
        self.contender.queue.released_by(self)

    def note_unlocked(self) -> None:
        """Note that a write which releases the lock was applied."""
        self.depth = 0
        # Not if `release` was called while that write was under way: then that reports the end of the claim.
        if self.change("unlocked"):
            self.together.stop()
            self.leave_queue()
            if self.belief.loss is None and self.shared.hears("released"):
                self.emit("released", held_for=self.held_for, error=None)

    def forget(self) -> None:
        """Drop a claim that no caller has been given, without a request."""
        self.change("release")
        self.together.stop()
        self.leave_queue()

    def note_end(self) -> None:
        """Note the loss if the lease has ended, and the state is one in which that is a loss."""
        loss = self._loss_at(self.shared.now)
        if loss is not None and self.belief.loss is None:
            self.lose(loss)

    def note_left(self) -> None:
        """Note that the claim has ended, and its holder has left it to acquire the lock anew.

        Suppose a renewal is under way when the lease ends, and its holder's next attempt fails. By the renewal's answer
        the claim would be held again, and renewed for ever: its holder sees the new attempt alone, and cannot release it.
        """
        self.note_end()
        self.depth = 0

    def lose(self, loss: Loss, taker: Claim | None = None, *, at_release: bool = False) -> None:
        """Note a loss, for all claims that are held together; emit ``lost`` for each, and call each ``on_lost`` once.

        Args:
            loss: Why the lock was lost.
            taker: Claim that the row shows in place of ours; None if no row was seen.
            at_release: Whether its release has found that. Of a claim that is held by itself ``on_lost`` is not called
                then: the caller of the release learns of the loss from the error.
        """
        together = self.together
        lost: list[HeldClaim] = []
        if self._note_loss(loss, taker, at_release=at_release):
            others = (claim for claim in together.unreleased if claim is not self)
            lost = [self, *(claim for claim in others if claim._note_loss(loss, None))]
        together.stop()
        for claim in lost:
            claim.leave_queue()
        self.call("on_lost", [] if at_release and lost == [self] else lost)

    def note_gone(self, row: Claim, *, in_doubt: bool) -> None:
        """Note that a row does not carry this claim any more: it was lost, or released by a write without an answer.

        Args:
            row: The claim that the row shows.
            in_doubt: Whether a write whose answer was lost, and which is not under way any more, may have released the
                lock before.
        """
        if was_lost_before_release(self.own, row, maybe_applied=in_doubt):
            self.lose(loss_of(self.own, row), row)
        elif self.may_be_unlocked:
            # The caller knows of an error alone. A later save of the row would go out without a guard, as one of a row
            # that was released, and undo what another has written since: it is refused.
            self.together.still_inside = self.together.still_inside or 1
            self.note_unlocked()

    def lost_at_release(self, claim: Claim) -> MutexLostError:
        """Note that the lock had been lost before its release, which found another claim; return the error.

        The claims that are held together with it are lost, too, as they would have been just before the release.
        """
        self.lose(loss_of(self.own, claim), claim, at_release=True)
        return self.lost_error("release")

    def _note_loss(self, loss: Loss, taker: Claim | None, *, at_release: bool = False) -> bool:
        """Note the loss of this claim alone, and emit ``lost`` once; return whether it was emitted.

        A loss that is seen after the release is none, except by that release itself: ``at_release``.
        """
        before = self.belief
        after = TRANSITIONS.get((before.state, "loss"))
        if after is None and not at_release:
            return False
        self.belief = Belief(after or before.state, loss, taker)
        if before.loss is not None or before.state == "confirmed":
            return False
        owner = None if taker is None else taker.owner
        self.emit("lost", loss=loss, taker=owner, held_for=self.held_for)
        return True

    def note_refusal(self, row: Claim) -> None:
        """Note what a row shows that refused a renewal, unless a write that releases the claim is under way.

        Suppose that write is applied, another process acquires the lock, and only then does the renewal arrive: the
        lock was released, not lost. The answer to the write shows what became of the claim. If there will be none,
        this row does.
        """
        state = self.belief.state
        if state == "ending" and not was_lost_before_release(self.own, row, maybe_applied=True):
            return
        self.note_gone(row, in_doubt=state == "in doubt")

    @property
    def held_for(self) -> float:
        """Seconds for which the lock has been held, as of this step."""
        now: float = self.shared.now
        return max(0.0, now - self.since)

    # -- release --------------------------------------------------------------------------------------

    def loss_before_release(self) -> None:
        """Raise if the claim is not held here, or had been lost."""
        try:
            self.check("release")
        except MutexLostError:
            # A renewal of another thread may be under way: with a depth of 0 it does not win the lock back, for nobody
            # would release it then. The claim stays lost, not released: `on_lost`, a signal handler or another thread may
            # call this, and the holder's block must report the loss.
            self.depth = max(0, self.depth - 1)
            raise

    def end(self, endings: Sequence[Any], *, hands_over: bool) -> Operation[bool]:
        """Hand the lock over if somebody is next in line in this process; return whether the claim has ended."""
        [ending] = endings
        # before `hold_at_least` the waiters of this process wait as all others do
        if not hands_over or ending.reserved_until > self.shared.now:
            return False
        turn = self.contender.next_holder(self)
        return False if turn is None else (yield from turn.take_over(ending))

    # -- renewal ------------------------------------------------------------------------------------

    def is_over_max_hold(self, now: float) -> bool:
        """Return whether the lock has been held for ``max_hold`` or longer."""
        max_hold = self.options.max_hold
        return max_hold is not None and now - self.since >= max_hold

    def to_renew(self) -> Sequence[HeldClaim]:
        """Return the claim, unless it was released."""
        return self.unreleased

    def renewal(self, proposals: Proposals) -> Request:
        """Return the request that renews the claim."""
        store = self.store
        return store.update(store.requests.renew, self.options.row, proposals[self].values)

    def note_renewal(self, proposals: Proposals, answer: Answer) -> Renewal:
        """Note the outcome of a renewal, and return it."""
        row, proposal = answer.claim, proposals[self]
        renewal = outcome.renewal(self.own, proposal.end, row, applied=answer.applied)
        if renewal == "applied":
            self.extend(proposal)
        elif renewal == "lost":
            self.note_refusal(row)
        elif renewal == "again":
            self.own.see(row.expires_at)
        return renewal

    def plan_after_renewal(self, renewed: Sequence[HeldClaim], sent: float) -> None:
        """Plan the renewal after one that was sent at a local time, if that was applied."""
        if renewed:
            self.plan_renewal(sent, self.ends)

    def propose_renewal(self, lease: float | None = None) -> Proposal:
        """Return the end that a request which is about to be sent proposes for the claim.

        Args:
            lease: Seconds. None for the lease of the mutex or, once ``max_hold`` has passed, for what is left.
        """
        now, store = self.shared.now, self.store
        if lease is None:
            # A guarded put writes the whole row, and the claim with it, also after ``max_hold``: then it must not
            # extend the lease. With 0, `OwnClaim.propose` grants what earlier requests have asked for, and no more.
            lease = 0.0 if self.is_over_max_hold(now) else self.lease
        end, granted = self.own.propose(now, store.bounds, lease)
        values = store.mine(self.own) | {
            "end": seconds(end),
            # Half a millisecond more, so that it is never rounded down: a waiter without server time waits as long as
            # the row says, and that must not be less than this holder believes.
            "lease": seconds(granted + 0.0005),
            "ttl": store.ttl(end),
            # not for a renewal: for a guarded put, which writes the whole row
            "owner": self.contender.owner,
            "abandoned_by": self.abandoned_by,
        }
        return Proposal(end, granted, now, values)

    def extend(self, proposal: Proposal) -> None:
        """Extend the belief: a request with this proposal was applied."""
        self.own.renewed(proposal.end, proposal.lease, proposal.sent, self.store.bounds)
        together = self.together
        # Not by each renewal: the answer to one may be so late that little is left all the same, as was reported.
        together.in_danger = together.in_danger and self.shared.now >= together.danger_at


class Proposal:
    """The values that a request proposes for a renewal of a claim.

    Attributes:
        end: New end of the claim, in server time.
        lease: Lease that is written with it, in seconds.
        sent: Local time before the request is sent.
        values: Values of the request, serialised, including those that identify our claim.
    """

    def __init__(self, end: float, lease: float, sent: float, values: dict[str, Any]) -> None:
        self.end = end
        self.lease = lease
        self.sent = sent
        self.values = values
