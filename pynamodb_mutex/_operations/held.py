"""What is held: the states of a claim, what changes them, and 1 to 100 claims that are held together.

Everything that says how a held lock fares, to users and to operations, is computed here from three values:
the state, the term of the claim, and the bounds of server time. Each is immutable and replaced as a whole, so
`HeldClaim.held` and its like are read without the monitor.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._dynamodb.layout import seconds
from pynamodb_mutex._operations.events import CallOnLost, LockEvent, Log
from pynamodb_mutex._protocol.claim import Claim, Loss, OwnClaim
from pynamodb_mutex._protocol.messages import shown
from pynamodb_mutex._protocol.outcome import loss_of
from pynamodb_mutex._protocol.schedule import (
    EARLY,
    MOST_RENEWALS_UNDER_WAY,
    NEVER,
    plan_after_failure,
    plan_after_sending,
    plan_renewal,
)
from pynamodb_mutex.exceptions import MutexError, MutexLostError, MutexNotHeldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._operations.contender import Contender
    from pynamodb_mutex._operations.effects import Wakeup


# -- the state machine -----------------------------------------------------------------------------


class State(enum.Enum):
    """The state of a claim of ours. That its lease has ended is not one of them: the clock says so."""

    CONFIRMED = "confirmed by DynamoDB, and not handed out yet: nobody believes in it"
    HELD = "held"
    ENDING = "a write that releases it is under way"
    IN_DOUBT = "a write whose answer was lost may have released it"
    LOST = "lost"
    RELEASED = "released, handed over or detached"
    INHERITED = "held by the parent of this forked process"


class Change(enum.Enum):
    """What changes the state of a claim."""

    BEGIN = "it is handed out to whoever asked for it"
    RELEASE = "its holder releases it, hands it over or detaches it"
    UNLOCKING = "a write that releases it is sent"
    UNLOCKED = "that write was applied"
    NOT_UNLOCKED = "that write was not applied"
    UNANSWERED = "that write may have been applied"
    WRITTEN = "a later guarded write was applied, so that one was not, and comes too late now"
    LOSS = "its lease ended, or a row shows that it is not ours any more"
    WON_BACK = "a renewal was applied after its lease had ended, and nobody had taken it"


TRANSITIONS: dict[tuple[State, Change], State] = {
    (State.CONFIRMED, Change.BEGIN): State.HELD,
    (State.CONFIRMED, Change.RELEASE): State.RELEASED,
    # A loss of what nobody was given is not reported. See `HeldClaim.note_end` for the end of its lease.
    (State.CONFIRMED, Change.LOSS): State.LOST,
    (State.HELD, Change.RELEASE): State.RELEASED,
    (State.IN_DOUBT, Change.RELEASE): State.RELEASED,
    # of claims that were lost together: others of them may still stand in their rows
    (State.LOST, Change.RELEASE): State.RELEASED,
    # There is no belief from when such a write is sent: as soon as it is applied, another may take the lock.
    (State.HELD, Change.UNLOCKING): State.ENDING,
    (State.IN_DOUBT, Change.UNLOCKING): State.ENDING,
    (State.ENDING, Change.UNLOCKED): State.RELEASED,
    (State.LOST, Change.UNLOCKED): State.RELEASED,
    (State.ENDING, Change.NOT_UNLOCKED): State.HELD,
    (State.ENDING, Change.UNANSWERED): State.IN_DOUBT,
    (State.IN_DOUBT, Change.WRITTEN): State.HELD,
    (State.HELD, Change.LOSS): State.LOST,
    (State.ENDING, Change.LOSS): State.LOST,
    (State.IN_DOUBT, Change.LOSS): State.LOST,
    # the cause may be known better now
    (State.LOST, Change.LOSS): State.LOST,
    (State.LOST, Change.WON_BACK): State.HELD,
}
"""What is not in it changes nothing: a loss that is seen after the release, for one."""

STANDING = frozenset({State.CONFIRMED, State.HELD, State.ENDING, State.IN_DOUBT})
"""The states in which the row carries our claim, as far as is known."""


class Belief:
    """The state of a claim, and what goes with it.

    Attributes:
        state: The state.
        loss: Why it was lost, also if it was released after that.
        taker: The claim that was seen in its place.
    """

    __slots__ = ("loss", "state", "taker")

    def __init__(self, state: State, loss: Loss | None = None, taker: Claim | None = None) -> None:
        self.state = state
        self.loss = loss
        self.taker = taker


# -- one claim -------------------------------------------------------------------------------------


class HeldClaim:
    """One acquisition that DynamoDB has confirmed.

    Attributes:
        contender: Who made it.
        shared: What the locks of its process share.
        options: Of the lock.
        store: Where its row is.
        own: The claim.
        together: What is held, renewed and lost together with it; at least itself.
        belief: Its state.
        since: Local time from which it was held.
        abandoned_by: Owner label of the holder from which it was taken over, or empty.
        item: The row, as far as this holder knows.
        depth: How often it was entered, if it is reentrant.
        row: The user's instance that stands for the row.
        is_writing: Whether a guarded write is under way: one at a time for each claim.
        writers: Wake-ups of the guarded writes that wait for their turn.
        events: What happened to it and is not delivered yet.
        delivering: Whether a thread is at it: at first that of the acquisition.
    """

    __slots__ = (
        "abandoned_by",
        "belief",
        "contender",
        "delivering",
        "depth",
        "events",
        "is_writing",
        "item",
        "options",
        "own",
        "row",
        "shared",
        "since",
        "store",
        "together",
        "writers",
    )

    together: Held

    def __init__(
        self, contender: Contender, own: OwnClaim, claim: Claim, item: RawItem, sent: float
    ) -> None:
        own.acquired(claim, sent, contender.store.bounds)
        self.contender = contender
        self.shared = contender.shared
        self.options = contender.options
        self.store = contender.store
        self.own = own
        self.belief = Belief(State.CONFIRMED)
        self.since = contender.shared.now
        self.abandoned_by = claim.abandoned_by
        self.item = item
        self.depth = 1
        self.row: Any = None
        self.is_writing = False
        self.writers: tuple[Wakeup, ...] = ()
        self.events: tuple[LockEvent, ...] = ()
        self.delivering = True

    @property
    def key(self) -> str:
        """The lock's key."""
        return self.options.key

    @property
    def lease(self) -> float:
        """Seconds."""
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
        """The version, unless the row is deleted at release: then it may fall."""
        return None if self.options.delete_on_release else self.own.version

    @property
    def log_fields(self) -> dict[str, Any]:
        """What a record in the log says of the lock."""
        return self.contender.log_fields | {"fencing_token": self.fencing_token}

    @property
    def data(self) -> Any:
        """The payload in the row, as far as this holder knows."""
        return self.store.layout.data(self.item)

    # -- how it fares: no question changes anything -------------------------------------------------

    @property
    def state(self) -> State:
        """Its state. In a forked child all claims are its parent's."""
        return State.INHERITED if self.shared.inherited else self.belief.state

    @property
    def ends(self) -> float:
        """Local time at which this holder stops believing."""
        return self.own.ends(self.store.connection.server.bounds)

    def stands_at(self, now: float) -> bool:
        """Say whether the claim is not known to have ended, though a write may have released it."""
        is_standing = self.belief.state in STANDING and not self.shared.inherited
        return is_standing and self.ends > now

    def held_at(self, now: float) -> bool:
        """Say whether this holder may believe at a local time."""
        is_held = self.belief.state is State.HELD and not self.shared.inherited
        return is_held and self.ends > now

    @property
    def held(self) -> bool:
        """Whether this holder may believe now."""
        return self.held_at(self.shared.read_clock())

    @property
    def remaining(self) -> float:
        """Seconds for which this holder may still believe, by the local clock."""
        if self.belief.state is not State.HELD or self.shared.inherited:
            return 0.0
        return max(0.0, self.ends - self.shared.read_clock())

    @property
    def is_over(self) -> bool:
        """Whether it was lost, released or inherited."""
        return self.belief.state not in STANDING or self.shared.inherited

    @property
    def is_released(self) -> bool:
        """Whether it was released, handed over or detached."""
        return self.belief.state is State.RELEASED

    @property
    def is_released_inside(self) -> bool:
        """Whether it was released, and a ``with`` block that began with it goes on."""
        return self.is_released and self.together.blocks > 0

    @property
    def loss(self) -> Loss | None:
        """Why it was lost; None if it was not."""
        return self._loss_at(self.shared.read_clock())

    def _loss_at(self, now: float) -> Loss | None:
        belief = self.belief
        if belief.loss is not None or self.is_over or self.ends > now:
            return belief.loss
        return Loss.UNREACHABLE if self.together.is_unanswered else Loss.EXPIRED

    @property
    def why(self) -> str:
        """Why it was lost, in words."""
        return self.explain(self.loss or Loss.EXPIRED)

    def explain(self, loss: Loss) -> str:
        """Say a loss in words."""
        max_hold = self.together.ended_by_max_hold
        if loss is Loss.EXPIRED and max_hold is not None:
            return f"its lease ended, for it was held for longer than max_hold, {max_hold:g} s"
        return loss.value

    def reenters(self, caller: int) -> bool:
        """Say whether a thread or task that asks again may enter on this acquisition."""
        return self.options.reentrant and self.contender.caller.number == caller and self.held

    # -- errors -------------------------------------------------------------------------------------

    def check(self, what: str) -> None:
        """Raise unless this is held.

        Raises:
            MutexNotHeldError: If it is not held here; MutexLostError if it was lost.
        """
        if self.state is State.INHERITED:
            msg = f"{what}: {shown(self.key)} is held by the parent process, not by its fork"
            raise MutexNotHeldError(msg, key=self.key)
        if self.is_released:
            raise self.not_held_error(what)
        self.note_end()
        if self.belief.loss is not None:
            raise self.lost_error(what)

    def check_guardable(self, what: str) -> None:
        """Raise unless this is held, and its claim can guard a write.

        With ``delete_on_release`` it cannot. Both the claim and the number of the last guarded write go
        with the row at release: a late copy of the acquire, which finds no row, makes the same claim again
        (same token, same version, no write counted yet), and then a late copy of the guarded write finds
        all that it asks for, and is applied a second time.

        Raises:
            MutexNotHeldError: If it is not held here; MutexLostError if it was lost.
            MutexError: With ``delete_on_release``.
        """
        self.check(what)
        if self.options.delete_on_release:
            msg = (
                f"{what}: the lock {shown(self.key)} cannot guard writes, for it is used with delete_on_release: "
                "once its row is deleted, late copies of requests could apply a write again; "
                "leave out delete_on_release"
            )
            raise MutexError(msg, key=self.key)

    def check_renewable(self) -> None:
        """Raise if no renewal can win the claim back."""
        if self.is_released or self.shared.inherited:
            self.check("renew")
        loss = self.belief.loss
        if loss is not None and not loss.can_be_won_back:
            raise self.lost_error("renew")

    def not_held_error(self, what: str) -> MutexNotHeldError:
        """Return the error for a call after the release."""
        msg = f"{what}: {shown(self.key)} is not held: it was released or detached"
        return MutexNotHeldError(msg, key=self.key)

    def lost_error(self, what: str, *, applied: bool | None = False) -> MutexLostError:
        """Return the error that says that the lock was lost, with its cause."""
        taker = self.belief.taker
        return MutexLostError(
            f"{what}: {shown(self.key)} was lost: {self.why}",
            loss=self.belief.loss or Loss.EXPIRED,
            applied=applied,
            key=self.key,
            owner=taker.owner if taker else None,
            expires_at=taker.expires_at if taker else None,
        )

    # -- changes: inside the monitor ----------------------------------------------------------------

    def change(self, change: Change) -> bool:
        """Change the state as the table says; return whether it did. Not for a loss: see `lose`."""
        after = TRANSITIONS.get((self.belief.state, change))
        if after is None:
            return False
        loss = None if change is Change.WON_BACK else self.belief.loss
        # last, and in one statement: whatever interrupts this thread sees the old state or the new one
        self.belief = Belief(after, loss, self.belief.taker)
        return True

    def emit(self, name: str, **fields: Any) -> None:
        """Let an event of this acquisition be delivered, behind those before it.

        But the acquisition itself comes first: a lock that was handed over may be lost before its holder, who
        waited for it, goes on.
        """
        event = LockEvent(name, self.contender, self, fields)
        if self.shared.receivers[name]:
            first = name == "acquired"
            self.events = (event, *self.events) if first else (*self.events, event)
        self.shared.outbox.append(event)

    def emit_acquired(self, since: float, attempts: int) -> None:
        """Let it be reported, before anything else is.

        Args:
            since: Local time at which it was asked for.
            attempts: Requests that were sent for it.
        """
        self.emit(
            "acquired",
            waited=max(0.0, self.since - since),
            attempts=attempts,
            abandoned=bool(self.abandoned_by),
            abandoned_by=self.abandoned_by or None,
            lease=self.options.lease,
            expires_at=self.own.expires_at,
        )

    def emit_renewed(self, *, won_back: bool = False) -> None:
        """Let a renewal be reported."""
        self.emit("renewed", expires_at=self.own.expires_at, won_back=won_back)

    def emit_handed_over(self, successor: HeldClaim | None) -> None:
        """Let a hand-over be reported.

        Args:
            successor: The next holder; None if that is whoever has the ticket.
        """
        self.emit(
            "handed_over",
            held_for=self.held_for,
            to=None if successor is None else successor.contender.owner,
            to_token=None if successor is None else successor.own.token,
            to_fencing_token=None if successor is None else successor.fencing_token,
        )

    def begin(self) -> None:
        """Begin to hold it, or hold it again: let others in this process know."""
        self.change(Change.BEGIN)
        self.contender.queue.acquired_by(self)
        self.note_holder()

    def note_holder(self) -> None:
        """Let other models of the table find it."""
        self.shared.note_holder(self.store, self.options.key, self)

    def leave_queue(self) -> None:
        """Let others in this process know that it is not held any more."""
        self.shared.forget_holder(self.store, self.key, self)
        self.contender.queue.released_by(self)

    def forget(self) -> None:
        """End the belief in a claim that is not handed out, without a request."""
        self.change(Change.RELEASE)
        self.together.stop()
        self.leave_queue()

    def note_end(self) -> None:
        """Note the loss if the lease has ended.

        Not before it is handed out. The answer to the acquiring write may come after the end of the lease;
        a renewal then shows whether the lock is still ours, and nobody has lost anything.
        """
        loss = self._loss_at(self.shared.now)
        if loss is not None and self.belief.state in STANDING - {State.CONFIRMED}:
            self.lose(loss)

    def lose(self, loss: Loss, taker: Claim | None = None) -> None:
        """Note a loss, also for what is held together; call each ``on_lost`` once."""
        self._lose(loss, taker, at_release=False)

    def lost_at_release(self, claim: Claim) -> MutexLostError:
        """Return the error for a release that found another claim than ours.

        What is held together is lost as it would have been a moment before the release. Who releases
        learns it from the error: ``on_lost`` is called only if there is more to lose.
        """
        self._lose(loss_of(self.own, claim), claim, at_release=True)
        return self.lost_error("release")

    def _lose(self, loss: Loss, taker: Claim | None, *, at_release: bool) -> None:
        together = self.together
        lost: list[HeldClaim] = []
        if self._note_loss(loss, taker, at_release=at_release):
            others = (claim for claim in together.unreleased if claim is not self)
            lost = [self, *(claim for claim in others if claim._note_loss(loss, None))]
        together.stop()
        for claim in lost:
            claim.leave_queue()
        called: list[Any] = []
        for claim in [] if at_release and lost == [self] else lost:
            on_lost, call = claim.options.on_lost, claim.contender.on_lost
            if call is not None and on_lost not in called:
                called.append(on_lost)
                self.shared.emit(CallOnLost(claim, call))

    def _note_loss(self, loss: Loss, taker: Claim | None, *, at_release: bool = False) -> bool:
        """Note a loss, if it came before a release; return whether it is news."""
        before = self.belief
        after = TRANSITIONS.get((before.state, Change.LOSS))
        if after is None and not at_release:
            return False
        self.belief = Belief(after or before.state, loss, taker)
        if before.loss is not None or before.state is State.CONFIRMED:
            return False
        owner = None if taker is None else taker.owner
        self.emit("lost", loss=loss, taker=owner, held_for=self.held_for)
        return True

    @property
    def held_for(self) -> float:
        """Seconds for which it was held."""
        return max(0.0, self.shared.now - self.since)

    # -- renewal ------------------------------------------------------------------------------------

    def is_over_max_hold(self, now: float) -> bool:
        """Say whether it has been held for longer than is allowed."""
        max_hold = self.options.max_hold
        return max_hold is not None and now - self.since >= max_hold

    def propose_renewal(self, lease: float | None = None) -> Proposal:
        """Return what a request that is about to be sent may renew the claim to.

        Args:
            lease: Seconds; by default those of the mutex or, beyond ``max_hold``, just what is left.
        """
        now, store = self.shared.now, self.store
        if lease is None:
            lease = 0.0 if self.is_over_max_hold(now) else self.lease
        end, granted = self.own.propose(now, store.bounds, lease)
        values = store.mine(self.own) | {
            "end": seconds(end),
            "lease": seconds(granted + 0.0005),
            "ttl": store.ttl(end),
            "owner": self.contender.owner,
            "abandoned_by": self.abandoned_by,
        }
        return Proposal(end, granted, now, values)

    def extend(self, proposal: Proposal) -> None:
        """Note that a renewal was applied."""
        self.own.renewed(proposal.end, proposal.lease, proposal.sent, self.store.bounds)


class Proposal:
    """What a request that renews a claim proposes.

    Attributes:
        end: The new end.
        lease: The lease written with it.
        sent: Local time before it is sent.
        values: All of it, serialised, with what makes the claim ours.
    """

    __slots__ = ("end", "lease", "sent", "values")

    def __init__(self, end: float, lease: float, sent: float, values: dict[str, Any]) -> None:
        self.end = end
        self.lease = lease
        self.sent = sent
        self.values = values


# -- claims that are held together -----------------------------------------------------------------


class Held:
    """1 to 100 claims that were acquired by one request: held, renewed and lost together.

    What one of them knows of a loss or asks of a renewal is for all that are not released. When one is
    lost, the claims of the others are left as they are, to be released or to expire: whoever works under
    them may not know yet, and nobody else should begin.

    Attributes:
        claims: All of them.
        shared: What the locks of the process share.
        is_group: Whether they are acquired, renewed and released by transactions, even if it is but one.
        rows: What stands for the rows under the locks, for each object that entered.
        blocks: How many ``with`` blocks that began with it have not ended.
        plan: When to renew next.
        is_queued: Whether a renewal waits for a thread.
        renewals_under_way: How many are.
        is_unreachable: Whether the last renewal had no answer.
        is_alone: Whether the next renewal is sent by itself, for the last one failed.
        ended_by_max_hold: The ``max_hold`` that ended its renewals, in seconds; None if none did.
    """

    __slots__ = (
        "blocks",
        "claims",
        "ended_by_max_hold",
        "is_alone",
        "is_group",
        "is_queued",
        "is_unreachable",
        "plan",
        "renewals_under_way",
        "rows",
        "shared",
    )

    def __init__(self, claims: Sequence[HeldClaim], *, is_group: bool) -> None:
        self.claims = claims
        self.shared = claims[0].shared
        self.is_group = is_group
        self.rows: dict[object, Any] | None = None
        self.blocks = 0
        self.plan = NEVER
        self.is_queued = False
        self.renewals_under_way = 0
        self.is_unreachable = False
        self.is_alone = False
        self.ended_by_max_hold: float | None = None
        for claim in claims:
            claim.together = self

    @property
    def unreleased(self) -> Sequence[HeldClaim]:
        """Those that are not released, first the one whose loss was seen."""
        if not self.is_group:
            return () if self.claims[0].belief.state is State.RELEASED else self.claims
        claims = [claim for claim in self.claims if not claim.is_released]
        return sorted(claims, key=lambda claim: claim.belief.taker is None)

    @property
    def is_released(self) -> bool:
        """Whether all were released."""
        return not self.unreleased

    @property
    def ends(self) -> float:
        """Local time at which the first of the leases ends."""
        if not self.is_group:
            return self.claims[0].ends
        return min(claim.ends for claim in self.unreleased or self.claims)

    def held_at(self, now: float) -> bool:
        """Say whether the holder may believe in all of them at a local time."""
        return all(claim.held_at(now) for claim in self.claims)

    @property
    def held(self) -> bool:
        """Whether the holder may believe in all of them now."""
        return self.held_at(self.shared.read_clock())

    @property
    def remaining(self) -> float:
        """Seconds for which the holder may still believe in all of them."""
        return min(claim.remaining for claim in self.claims)

    def stands_at(self, now: float) -> bool:
        """Say whether no claim is known to have ended, though a write may have released it."""
        claims = self.unreleased
        return bool(claims) and all(claim.stands_at(now) for claim in claims)

    @property
    def is_over(self) -> bool:
        """Whether one was lost, or all were released, or it is another process's."""
        if not self.is_group:
            return self.claims[0].is_over
        claims = self.unreleased
        return not claims or any(claim.is_over for claim in claims)

    @property
    def loss(self) -> Loss | None:
        """Why they were lost; None if they were not."""
        return next((loss for claim in self.claims if (loss := claim.loss) is not None), None)

    @property
    def why(self) -> str:
        """Why they were lost, in words."""
        return next((claim.why for claim in self.claims if claim.loss is not None), "")

    @property
    def is_unanswered(self) -> bool:
        """Whether the last renewals had no answer."""
        return self.is_unreachable or self.renewals_under_way > 0

    @property
    def lease(self) -> float:
        """The shortest of the leases, in seconds."""
        return min((claim.lease for claim in self.unreleased), default=math.inf)

    # -- schedule: inside the monitor ---------------------------------------------------------------

    def start(self, sent: float) -> None:
        """Schedule its renewals, and the end of its lease if that is to be reported in time.

        Args:
            sent: Local time before the request that acquired or renewed it was sent.
        """
        shared, ends = self.shared, self.ends
        self.plan_renewal(sent, ends)
        for claim in self.unreleased:
            options = claim.options
            if options.auto_renew or options.on_lost is not None or shared.receivers["lost"]:
                shared.schedule.add(self, min(ends, self.plan.at))
                return

    def stop(self) -> None:
        """Do not schedule it any more, if it is over."""
        if self.is_over:
            self.shared.schedule.remove(self)

    def plan_renewal(self, sent: float, ends: float) -> None:
        """Plan the renewal of claims that were acquired or renewed at ``sent``, and end at ``ends``."""
        for claim in self.unreleased:
            if not claim.options.auto_renew:
                return
        self.plan = plan_renewal(sent, ends)

    def due(self) -> float:
        """Return the local time at which something is to be done; infinity for never again."""
        if self.is_over:
            return math.inf
        ends = self.ends
        return min(ends, self.plan.due(ends))

    def early(self) -> float:
        """Return the seconds by which it may be renewed before it is due, if that saves a request."""
        return EARLY * self.lease

    def is_to_be_renewed(self, ahead: float) -> bool:
        """Note the end of the lease; say whether to send a renewal that is due so many seconds ahead.

        The next renewal is planned in any case.
        """
        shared = self.shared
        now = shared.now
        for claim in self.unreleased:
            claim.note_end()
        if self.is_over or now + ahead < self.plan.due(self.ends):
            return False
        for claim in self.unreleased:
            if claim.is_over_max_hold(now):
                max_hold = claim.options.max_hold
                values = (shown(claim.key), max_hold)
                text = "%s is held for more than %s s: not renewed"
                shared.emit(Log("warning", text, values, claim.log_fields))
                self.plan, self.ended_by_max_hold = NEVER, max_hold
                return False
        self.plan = plan_after_sending(now, self.ends, self.lease)
        if self.is_queued or self.renewals_under_way >= MOST_RENEWALS_UNDER_WAY:
            return False
        self.is_queued = True
        return True

    def plan_after_failure(self) -> None:
        """Plan the renewal after one that failed: soon, and by itself."""
        shared = self.shared
        self.is_unreachable = self.is_alone = True
        self.plan = plan_after_failure(shared.now, self.ends, self.lease, shared.uniform)

    def emit_renewed(self, claims: Sequence[HeldClaim]) -> None:
        """Emit `Renewed`, except for claims that had been lost when the answer arrived."""
        for claim in claims:
            # The answer comes so late that this lease has ended, too, and before the renewal loop noted that:
            # the loss is what there is to report.
            claim.note_end()
            if not claim.is_over:
                claim.emit_renewed()
