"""A claim of ours that DynamoDB has confirmed, until it is released or lost: held or not, for how long, and why it was lost.

It sends nothing. The requests that begin, prolong and end a claim are in `acquire`, `renew`, `release` and
`pynamodb_mutex._writes`; the times of its renewals are in `planning`.

All queries are computed from three values: the state (`states.Belief`), the term of the claim (`Term`), and the bounds of
server time (`Bounds`). Each is immutable and replaced as a whole, so a query is correct without the process's monitor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import UpdateError

from pynamodb_mutex._lock.dynamodb.layout import seconds
from pynamodb_mutex._lock.operations.events import LockEvent
from pynamodb_mutex._lock.operations.planning import Held
from pynamodb_mutex._lock.operations.states import (
    EXPIRING,
    STANDING,
    TRANSITIONS,
    Belief,
    Change,
)
from pynamodb_mutex._lock.protocol import outcome
from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, Claim, date_of
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.protocol.outcome import Renewal, loss_of, was_lost_before_release
from pynamodb_mutex._lock.protocol.schedule import NEVER
from pynamodb_mutex.exceptions import Loss, MutexLostError, MutexNotHeldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.contender import Contender
    from pynamodb_mutex._lock.operations.effects import Operation, Wakeup
    from pynamodb_mutex._lock.operations.events import Delivery
    from pynamodb_mutex._lock.protocol.claim import OwnClaim


class Proposal(NamedTuple):
    """The values that a request proposes for a renewal of a claim.

    Attributes:
        end: New end of the claim, in server time.
        lease: Lease that is written with it, in seconds.
        sent: Local time before the request is sent.
        values: Values of the request, serialised, including those that identify our claim.
    """

    end: float
    lease: float
    sent: float
    values: dict[str, Any]


Proposals = Mapping["HeldClaim", Proposal]


class HeldClaim(Held):
    """One acquisition that DynamoDB has confirmed, from then until it is released or lost.

    Attributes:
        contender: The contender that made the acquisition.
        group: The group of claims of which this is one; None if it is held by itself.
        own: Our claim: token, version, end and term.
        belief: State of the claim, replaced as a whole.
        since: Local time at which the acquisition was confirmed; ``held_for`` and ``max_hold`` count from it.
        abandoned_by: Owner label of the holder whose expired claim was taken over; empty if there was none.
        item: The raw row, as far as this holder knows; of a lock table only if it has a payload, else empty.
        depth: Number of times the lock was entered and not left again; above 1 only for reentrant locks.
        row: The user's model instance for a locked row; None as long as there is none.
        writes_on: The value of `ProcessState.runner` when the guarded write that is under way began; None if none is under way.
            There is one at a time for each claim.
        writers: Wake-ups of the guarded writes that wait for the write under way to end.
        events: Events that are not delivered yet, oldest first.
        delivery: Whether a thread is delivering its events, or is about to.
    """

    error_class = UpdateError

    __slots__ = (
        "abandoned_by",
        "belief",
        "contender",
        "delivery",
        "depth",
        "events",
        "group",
        "item",
        "options",
        "own",
        "row",
        "since",
        "store",
        "writers",
        "writes_on",
    )

    def __init__(
        self, contender: Contender, own: OwnClaim, claim: Claim, item: RawItem, sent: float
    ) -> None:
        super().__init__(contender.process)
        own.acquired(claim, sent, contender.store.bounds)
        self.contender = contender
        self.group: Held | None = None
        self.options = contender.options
        self.store = contender.store
        self.own = own
        self.belief = Belief("confirmed")
        self.since = contender.process.now
        self.abandoned_by = claim.abandoned_by
        # A row of a lock table is kept only for its payload: it takes more memory than the rest of a held lock.
        layout = contender.store.layout
        is_needed = layout.must_exist or layout.data_attribute.attr_name in item
        self.item: RawItem = item if is_needed else {}
        self.depth = 1
        self.row: Any = None
        self.writes_on: tuple[int, bool] | None = None
        self.writers: tuple[Wakeup, ...] = ()
        self.events: tuple[LockEvent, ...] = ()
        # Reserved before there is any event: the renewal loop, or a release in another thread, may emit one before the
        # acquiring thread has emitted ``acquired``. It must be queued, not delivered.
        self.delivery: Delivery = "reserved"

    @property
    def key(self) -> str:
        """What messages and signals call the lock: see `Contender`."""
        return self.contender.key

    @property
    def lease(self) -> float:
        """The lock's lease in seconds, as its options say. A renewal may have asked for another lease."""
        return self.options.lease

    @property
    def claim(self) -> Claim:
        """The claim as it is in the row, as far as this holder knows."""
        own = self.own
        return Claim(
            token=own.token,
            version=own.version,
            expires_at=own.expires_at,
            lease=self.lease,
            owner=self.contender.owner,
        )

    @property
    def fencing_token(self) -> int | None:
        """The claim's version; None with ``delete_on_release``, because the next row's version may be lower."""
        return None if self.options.delete_on_release else self.own.version

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields of log records about this acquisition."""
        return self.contender.log_fields | {"fencing_token": self.fencing_token}

    @property
    def data(self) -> Any:
        """The caller's payload in the row, as far as this holder knows."""
        return self.store.layout.data(self.item)

    # -- queries: none of them changes state --------------------------------------------------------

    @property
    def whole(self) -> Held:
        """The group of this claim, or the claim itself if it has none."""
        return self.group or self

    @property
    def claims(self) -> Sequence[Self]:
        """This claim."""
        return (self,)

    @property
    def unreleased(self) -> Sequence[Self]:
        """This claim, unless it was released."""
        return () if self.belief.state == "released" else (self,)

    @property
    def ends(self) -> float:
        """Local time at which the lease ends for this holder: from then on it must not believe."""
        return self.own.ends(self.store.connection.server.bounds)

    @property
    def expires(self) -> float:
        """Local time from which the end of the lease counts; infinity while a write that releases it is under way."""
        # Nobody believes in it then; and if the write turns out to be applied, the lock was released, however late the answer.
        return math.inf if self.belief.state == "ending" else self.ends

    @property
    def danger_at(self) -> float:
        """Local time from which too little is left of the lease; infinity if nobody is to be notified of that."""
        options = self.options
        is_notified = self.contender.on_danger or self.process.receivers["danger"]
        # no danger while a write that releases the lock is under way, or may have been applied: nobody believes in it then
        if not (options.auto_renew or is_notified) or self.belief.state != "held":
            return math.inf
        # A lease may come out much shorter than the caller asked for, since server time is known to a second. The renewal
        # after a third of it comes in time all the same, and there is no danger before half of it has passed.
        ends = self.ends
        return max(ends - options.lease / 3, (self.own.term.since + ends) / 2)

    @property
    def ends_by(self) -> float:
        """Local time by which the lease ends unless a caller renews it; infinity if it is renewed without end."""
        if self.whole.plan is NEVER:
            return self.ends
        max_hold = self.options.max_hold
        return math.inf if max_hold is None else self.since + max_hold + self.lease

    @property
    def noticed_within(self) -> float:
        """Seconds after which a renewal will have noticed that the claim was broken; 0 if it is not renewed."""
        return 0.0 if self.whole.plan is NEVER else self.options.lease / 3

    def stands_at(self, now: float) -> bool:
        """Return whether the claim may still be in its row at a local time.

        It has not ended as far as is known, though a write whose answer is missing may have released it.
        """
        state = self.belief.state
        is_standing = state in STANDING and not self.process.inherited
        # the same as `expires > now`, but faster: each acquisition calls this
        return is_standing and (state == "ending" or self.ends > now)

    def held_at(self, now: float) -> bool:
        """Return whether this holder may believe that it holds the lock at a local time."""
        is_held = self.belief.state == "held" and not self.process.inherited
        return is_held and self.ends > now

    @property
    def is_over(self) -> bool:
        """Whether the claim was lost, released or inherited. A lease that ended counts once it has been noted."""
        return self.belief.state not in STANDING or self.process.inherited

    @property
    def may_be_unlocked(self) -> bool:
        """Whether a write without an answer may have released the lock: it is under way, or its answer was lost."""
        return self.belief.state in {"ending", "in doubt"}

    @property
    def can_be_won_back(self) -> bool:
        """Whether the claim is lost, but a renewal that is applied would make it held again."""
        # Suppose a renewal is applied, and its answer is late. The lease ends, this process breaks the claim by force
        # and acquires the lock again, and the answer arrives: with it two would believe.
        belief = self.belief
        may_stand = belief.state == "lost" and belief.loss and belief.loss.can_be_won_back
        # With a depth of 0 the holder has left it, and nobody would release it.
        return bool(may_stand) and self.depth > 0 and self.contender.key_queue.holder is None

    @property
    def is_released(self) -> bool:
        """Whether the claim was released, handed over or detached."""
        return self.belief.state == "released"

    @property
    def loss(self) -> Loss | None:
        """Why the lock was lost; None if it was not. Also counts a lease that ended and was not noted yet."""
        return self._loss_at(self.process.read_clock())

    def _loss_at(self, now: float) -> Loss | None:
        belief = self.belief  # read once: another thread may replace it
        if belief.state not in EXPIRING or self.process.inherited or self.ends > now:
            return belief.loss
        return Loss.UNREACHABLE if self.whole.is_unanswered else Loss.EXPIRED

    @property
    def why(self) -> str:
        """Why the lock was lost, as text for messages."""
        return self.explain(self.loss or Loss.EXPIRED)

    def explain(self, loss: Loss) -> str:
        """Return the text for a loss of this claim."""
        max_hold = self.whole.ended_by_max_hold
        if loss is Loss.EXPIRED and max_hold is not None:
            return f"its lease ended, for it was held for longer than max_hold, {max_hold:g} s"
        failure = self.whole.failure if loss is Loss.UNREACHABLE else None
        return loss.value if failure is None else f"{loss.value}: {one_line(failure)}"

    @property
    def is_orphaned(self) -> bool:
        """Whether it is renewed, and nobody will release it: its thread or task has ended, or its mutex is gone."""
        contender = self.contender
        # The lock's object keeps a caller that has entered a block until the block is left, perhaps by another thread.
        is_left = contender.who() is None or contender.lock() is None
        return is_left and self.whole.plan is not NEVER

    def reenters(self, caller: int) -> bool:
        """Return whether a caller that already holds the lock by this acquisition may enter it once more."""
        return self.options.reentrant and self.contender.caller == caller and self.held

    # -- errors -------------------------------------------------------------------------------------

    def not_held_error(self, what: str, *, applied: bool | None = False) -> MutexNotHeldError:
        """Return the error for a call, named by ``what``, after the release or the detach.

        ``applied`` says whether the call's guarded write was applied; None if that is unknown.
        """
        msg = f"{what}: {shown(self.key)} is not held: it was released or detached"
        return MutexNotHeldError(msg, applied=applied, key=self.key)

    def lost_error(self, what: str, *, applied: bool | None = False) -> MutexLostError:
        """Return the error that says that the lock was lost, and why; ``what`` and ``applied`` as for `not_held_error`."""
        taker = self.belief.taker
        loss = self.belief.loss or Loss.EXPIRED
        error = MutexLostError(
            f"{what}: {shown(self.key)} was lost: {self.explain(loss)}",
            loss=loss,
            applied=applied,
            key=self.key,
            owner=taker.owner if taker else None,
            expires_at=date_of(taker.expires_at) if taker else None,
        )
        error.__cause__ = self.whole.failure if loss is Loss.UNREACHABLE else None
        return error

    # -- checks that note the end of the lease --------------------------------------------------------

    def check(self, what: str) -> None:
        """Raise if the claim was lost, released or inherited; not for a write that may have released it.

        Raises:
            MutexNotHeldError: If it is not held here; MutexLostError if it was lost.
        """
        if self.process.inherited:
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
        if self.is_released or self.process.inherited:
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
        # Last, and in one statement: Ctrl-C comes before it or after it, and a signal handler or another thread, which reads
        # `held` without the monitor, sees the old state or the new one, never half of each.
        self.belief = Belief(after, loss, self.belief.taker)
        return True

    def emit(self, name: str, **fields: Any) -> None:
        """Queue an event of this acquisition for delivery, after its earlier events; ``acquired`` comes first.

        A lock that was handed over may be lost before the thread that waited for it runs again and emits ``acquired``:
        then ``lost`` is in the queue already.

        ``fields`` are what the signal carries in addition to key, owner and tokens.
        """
        event = LockEvent(name, self.contender, self, fields)
        if self.process.receivers[name]:
            first = name == "acquired"
            self.events = (event, *self.events) if first else (*self.events, event)
        self.process.outbox.append(event)

    def emit_acquired(self, since: float, attempts: int) -> None:
        """Emit ``acquired`` before any other event of this acquisition.

        Args:
            since: Local time at which the caller asked for the lock.
            attempts: Number of requests that were sent for it.
        """
        # If other events wait for this one, it is made in any case: the thread that delivers it delivers the others.
        if not (self.abandoned_by or self.events or self.process.hears("acquired")):
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
        if not self.is_over and self.process.hears("renewed"):
            self.emit("renewed", expires_at=self.own.expires_at, won_back=won_back)

    def emit_handed_over(self, successor: HeldClaim | None) -> None:
        """Emit ``handed_over``. ``successor`` is None after a detach: another process attaches by the ticket."""
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
        self.process.note_holder(self)

    def leave_queue(self) -> None:
        """Remove the holder from the records of this process, and wake the next local waiter."""
        self.process.forget_holder(self)
        self.contender.queue.released_by(self)

    def note_unlocked(self) -> None:
        """Note that a write which releases the lock was applied."""
        self.depth = 0
        # If `release` was called while the write was under way, nothing changes here: `release` reports the end of the claim.
        if self.change("unlocked"):
            self.whole.stop()
            self.leave_queue()
            if self.belief.loss is None and self.process.hears("released"):
                self.emit("released", held_for=self.held_for, error=None)

    def forget(self) -> None:
        """Drop a claim that no caller has, without a request."""
        self.change("release")
        self.whole.stop()
        self.leave_queue()

    def note_end(self) -> None:
        """Note the loss if the lease has ended, and the state is in `EXPIRING`."""
        loss = self._loss_at(self.process.now)
        if loss is not None and self.belief.loss is None:
            self.lose(loss)

    def note_left(self) -> None:
        """Note that the claim has ended, and its holder has left it to acquire the lock anew.

        Suppose a renewal is under way when the lease ends, and the holder's next acquisition fails. The renewal's answer would
        make the claim held again, and renewed for ever: the holder sees its latest acquisition alone, and cannot release it.
        """
        self.note_end()
        self.depth = 0

    def lose(self, loss: Loss, taker: Claim | None = None, *, at_release: bool = False) -> None:
        """Note a loss, for the whole group; emit ``lost`` for each claim, and call each ``on_lost`` once.

        Args:
            loss: Why the lock was lost.
            taker: Claim that the row shows in place of ours; None if no row was seen.
            at_release: Whether a release has found the loss. If the claim is held by itself, ``on_lost`` is not called then:
                the caller of the release learns of the loss from the error.
        """
        whole = self.whole
        lost: list[HeldClaim] = []
        if self._note_loss(loss, taker, at_release=at_release):
            others = (claim for claim in whole.unreleased if claim is not self)
            lost = [self, *(claim for claim in others if claim._note_loss(loss, None))]
        whole.stop()
        for claim in lost:
            claim.leave_queue()
        self.call("on_lost", [] if at_release and lost == [self] else lost)

    def note_gone(self, row: Claim, *, in_doubt: bool) -> None:
        """Note that a row does not carry this claim any more: it was lost, or released by a write without an answer.

        Args:
            row: The claim that the row shows.
            in_doubt: Whether a write that is over, and whose answer was lost, may have released the lock before.
        """
        if was_lost_before_release(self.own, row, maybe_applied=in_doubt):
            self.lose(loss_of(self.own, row), row)
        elif self.may_be_unlocked:
            # The caller knows only of an error. If it saved the row later, the save would go out without a guard, as after a
            # release, and undo what the next holder has written: so such a save is refused.
            self.whole.is_unaware |= not self.whole.open_blocks
            self.note_unlocked()

    def lost_at_release(self, claim: Claim) -> MutexLostError:
        """Note that the lock had been lost before its release, which found another claim; return the error.

        The other claims of its group are lost, too, as they would have been just before the release.
        """
        self.lose(loss_of(self.own, claim), claim, at_release=True)
        return self.lost_error("release")

    def _note_loss(self, loss: Loss, taker: Claim | None, *, at_release: bool = False) -> bool:
        """Note the loss of this claim alone, and emit ``lost`` once; return whether it was emitted.

        A loss seen after the release does not count, unless the release itself has found it: ``at_release``.
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
        """Note the claim in a row that refused a renewal, unless a write that releases the lock is under way.

        Suppose that write is applied, another process acquires the lock, and only then does the renewal arrive: the lock was
        released, not lost. The answer to the write shows the outcome. If there will be no answer, this row shows it.
        """
        state = self.belief.state
        if state == "ending" and not was_lost_before_release(self.own, row, maybe_applied=True):
            return
        self.note_gone(row, in_doubt=state == "in doubt")

    @property
    def held_for(self) -> float:
        """Seconds for which the lock has been held, as of this step."""
        now: float = self.process.now
        return max(0.0, now - self.since)

    # -- release --------------------------------------------------------------------------------------

    def loss_before_release(self) -> None:
        """Raise if the claim is not held here, or had been lost."""
        try:
            self.check("release")
        except MutexLostError:
            # A renewal of another thread may be under way: with a depth of 0 it does not win the lock back, because nobody
            # would release it then. The claim stays lost, not released: `on_lost`, a signal handler or another thread may
            # call this, and the holder's block must report the loss.
            self.depth = max(0, self.depth - 1)
            raise

    def end(self, endings: Mapping[Any, Any], *, hands_over: bool) -> Operation[bool]:
        """Hand the lock over if somebody is next in line in this process; return whether the claim has ended."""
        ending = endings[self]
        # before `hold_at_least` has passed, the waiters of this process wait as all others do
        if not hands_over or ending.reserved_until > self.process.now:
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
            self.own.outbid(row.expires_at)
        return renewal

    def plan_after_renewal(self, renewed: Sequence[HeldClaim], sent: float) -> None:
        """Plan the renewal after one that was sent at a local time, if it was applied."""
        if renewed:
            self.plan_renewal(sent, self.ends)

    def propose_renewal(self, lease: float | None = None) -> Proposal:
        """Return the end that a request which is about to be sent proposes for the claim.

        Args:
            lease: Seconds. None for the lease of the mutex or, once ``max_hold`` has passed, for what is left.
        """
        now, store = self.process.now, self.store
        if lease is None:
            # A guarded put writes the whole row, and the claim with it, even after ``max_hold``: then it must not extend the
            # lease. With 0, `OwnClaim.propose` grants what earlier requests have asked for, and no more.
            lease = 0.0 if self.is_over_max_hold(now) else self.lease
        end, granted = self.own.propose(now, store.bounds, lease)
        values = store.mine(self.own) | {
            "end": seconds(end),
            # Half a millisecond more, so that it is never rounded down: a waiter without server time waits for the lease in
            # the row, and that must not be shorter than this holder believes.
            "lease": seconds(granted + 0.0005),
            "ttl": store.ttl(end),
            # for a guarded put, which writes the whole row
            "owner": self.contender.owner,
            "abandoned_by": self.abandoned_by,
        }
        return Proposal(end, granted, now, values)

    def extend(self, proposal: Proposal) -> None:
        """Extend the belief: a request with this proposal was applied."""
        self.own.renewed(proposal.end, proposal.lease, proposal.sent, self.store.bounds)
        whole = self.whole
        # A renewal does not always end the danger: its answer may be so late that little is left all the same.
        whole.in_danger = whole.in_danger and self.process.now >= whole.danger_at
