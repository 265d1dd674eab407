"""What is held: a claim, or 1 to 100 claims that are held together.

This module decides, for users and for operations, whether a lock is held, for how much longer, and why it was
lost. It computes that from three values: the state (`states.Belief`), the term of the claim (`Term`), and the bounds of
server time (`Bounds`). Each is immutable and replaced as a whole, so `HeldClaim.held` and the other queries are
correct without the process's monitor.

It sends nothing. The requests that begin, prolong and end a claim are in `acquire`, `renew`, `release` and
`guarded_write`; the renewal loop is in `renew`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.dynamodb.layout import seconds
from pynamodb_mutex._lock.operations.events import Call, Delivery, LockEvent, Log
from pynamodb_mutex._lock.operations.states import (
    EXPIRING,
    STANDING,
    TRANSITIONS,
    Belief,
    Change,
    State,
)
from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, Claim, Loss, OwnClaim, date_of
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.protocol.outcome import loss_of, was_lost_before_release
from pynamodb_mutex._lock.protocol.schedule import (
    MOST_RENEWALS_UNDER_WAY,
    NEVER,
    plan_after_failure,
    plan_after_sending,
    plan_renewal,
)
from pynamodb_mutex.exceptions import MutexError, MutexLostError, MutexNotHeldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.operations.contender import Contender
    from pynamodb_mutex._lock.operations.effects import Wakeup
    from pynamodb_mutex._lock.operations.shared import Shared


# -- what is held ----------------------------------------------------------------------------------


class Held(ABC):
    """What is held, renewed and lost as one: a claim by itself, or a group of claims that are held together.

    A loss of one is a loss of all that are not released, and a renewal renews all of those. When one is lost, the
    rows of the others are not touched: their claims are released by the holder, or expire. Whoever works under them
    may not know of the loss yet, and nobody else should begin meanwhile.

    Attributes:
        shared: State that the locks of the process share.
        rows: The user's rows under the locks, by the lock object that entered; None if there are none.
        blocks: Number of those that may go on after the release as if it were held: ``with`` blocks that began with it and
            have not ended, each thread that runs on when the block of its task was cancelled, and a holder that does not
            know that a write whose answer was lost, or `release_all`, has released the lock.
        plan: Plan for the next renewal.
        is_queued: Whether a renewal waits for a thread.
        renewals_under_way: Number of renewals under way.
        failure: What the last renewal failed with, without tracebacks; None if it was answered.
        ended_by_max_hold: The ``max_hold`` that ended the renewals, in seconds; None if none did.
        in_danger: Whether it was reported that little is left of a lease, and no renewal has helped since.
    """

    __slots__ = (
        "blocks",
        "ended_by_max_hold",
        "failure",
        "in_danger",
        "is_queued",
        "plan",
        "renewals_under_way",
        "rows",
        "shared",
    )

    is_group = False
    """Whether the claims are acquired, renewed and released by transactions, even if there is only one."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.rows: dict[object, Any] | None = None
        self.blocks = 0
        self.plan = NEVER
        self.is_queued = False
        self.renewals_under_way = 0
        self.failure: BaseException | None = None
        self.ended_by_max_hold: float | None = None
        self.in_danger = False

    @property
    def together(self) -> Held:
        """What is held, renewed and lost as one with this: its group, or itself."""
        return self

    @property
    @abstractmethod
    def claims(self) -> Sequence[HeldClaim]:
        """All of the claims, including those that were released."""

    @property
    def unreleased(self) -> Sequence[HeldClaim]:
        """Claims that are not released; first those in whose rows another claim was seen.

        In that order an error names the key that was lost in the store, not one that was lost with it.
        """
        claims = [claim for claim in self.claims if not claim.is_released]
        return sorted(claims, key=lambda claim: claim.belief.taker is None)

    @property
    def ends(self) -> float:
        """Local time at which the first of the leases ends. Released claims count only if all are released."""
        return min(claim.ends for claim in self.unreleased or self.claims)

    @property
    def danger_at(self) -> float:
        """Local time from which too little is left of a lease; infinity if nobody is to be notified of that."""
        return min((claim.danger_at for claim in self.unreleased), default=math.inf)

    def held_at(self, now: float) -> bool:
        """Return whether the holder may believe at a local time that it holds all of the locks."""
        return all(claim.held_at(now) for claim in self.claims)

    def stands_at(self, now: float) -> bool:
        """Return whether all unreleased claims may still be in their rows: see `HeldClaim.stands_at`."""
        claims = self.unreleased
        return bool(claims) and all(claim.stands_at(now) for claim in claims)

    @property
    def is_over(self) -> bool:
        """Whether one of the locks was lost, all were released, or they are held by the parent of this fork."""
        claims = self.unreleased
        return not claims or any(claim.is_over for claim in claims)

    @property
    def is_released(self) -> bool:
        """Whether all of the claims were released."""
        return not self.unreleased

    @property
    def loss(self) -> Loss | None:
        """Why the locks were lost; None if they were not."""
        return next((loss for claim in self.claims if (loss := claim.loss) is not None), None)

    @property
    def why(self) -> str:
        """Why the locks were lost, as text for messages; empty if they were not."""
        return next((claim.why for claim in self.claims if claim.loss is not None), "")

    @property
    def lease(self) -> float:
        """Shortest lease of the unreleased claims, in seconds; infinity if there are none."""
        return min((claim.lease for claim in self.unreleased), default=math.inf)

    @property
    def held(self) -> bool:
        """Whether the holder may believe now that it holds all of it."""
        return self.held_at(self.shared.read_clock())

    @property
    def remaining(self) -> float:
        """Seconds for which the holder may still believe, by the local clock; 0 if it may not."""
        now = self.shared.read_clock()
        return max(0.0, self.ends - now) if self.held_at(now) else 0.0

    @property
    def is_unanswered(self) -> bool:
        """Whether a renewal is unanswered: the last one failed, or one is under way."""
        return self.failure is not None or self.renewals_under_way > 0

    # -- schedule: inside the monitor ---------------------------------------------------------------

    def start(self, sent: float) -> None:
        """Schedule the renewals and, if somebody wants to be notified of it in time, the danger and the end of the lease.

        Otherwise nothing is scheduled: the renewal loop need not run, and the next call notes the end.

        Args:
            sent: Local time before the request that acquired or renewed the claims was sent.
        """
        shared, ends = self.shared, self.ends
        self.plan_renewal(sent, ends)
        is_renewed = self.plan is not NEVER
        # Of what is renewed, the danger comes after the renewal that is planned, and its time is found when that is due: to
        # find it here would slow down each acquisition.
        at = self.plan.at if is_renewed else self.danger_at
        is_to_run = is_renewed or at < math.inf or shared.receivers["lost"]
        if is_to_run or any(claim.contender.on_lost for claim in self.unreleased):
            shared.schedule.add(self, min(ends, at))

    def stop(self) -> None:
        """Remove the claims from the schedule if they are over: lost, or all released."""
        if self.is_over:
            self.shared.schedule.remove(self)

    def plan_renewal(self, sent: float, ends: float) -> None:
        """Plan the next renewal, unless a claim is not to be renewed in the background.

        Args:
            sent: Local time before the request that acquired or renewed the claims was sent.
            ends: Local time at which the first lease ends.
        """
        for claim in self.unreleased:
            if not claim.options.auto_renew:
                return
        self.plan = plan_renewal(sent, ends)

    def due(self) -> float:
        """Return the local time of the next renewal or, if that comes first, of the danger or the end of the lease.

        Infinity if there is nothing left to do.
        """
        if self.is_over:
            return math.inf
        # Not `plan.at`: an answer about another row may have shown since that server time is further on than was known.
        due = min(self.plan.due(self.ends), *(claim.expires for claim in self.unreleased))
        return due if self.in_danger else min(due, self.danger_at)

    def is_to_be_renewed(self) -> bool:
        """Note the end of the lease, or the danger, if it has come; return whether the caller is to start a renewal now.

        The renewal after it is planned now, not when the answer arrives: this one may hang, and the next one must be
        due in time all the same.
        """
        shared = self.shared
        now = shared.now
        for claim in self.unreleased:
            claim.note_end()
        if self.is_over:
            return False
        if not self.in_danger and now >= self.danger_at:
            self.in_danger = True
            for claim in self.unreleased:
                claim.emit("danger", remaining=self.ends - now)
            self.call("on_danger", self.unreleased)
        if now < self.plan.due(self.ends):
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
        # If all workers hang, each due time would queue another renewal without the first condition. Without the
        # second, an endpoint that does not answer would get another request in each third of a lease, and each would
        # occupy a worker.
        if self.is_queued or self.renewals_under_way >= MOST_RENEWALS_UNDER_WAY:
            return False
        self.is_queued = True
        return True

    def call(self, name: str, claims: Sequence[HeldClaim]) -> None:
        """Call the functions that were given by an option for some of the claims, each once."""
        called: list[Any] = []
        for claim in claims:
            for call in getattr(claim.contender, name):
                if call.func not in called:
                    called.append(call.func)
                    self.shared.emit(Call(name, claim, call))

    def plan_after_failure(self, error: BaseException) -> None:
        """Plan the renewal after one that failed: soon."""
        shared = self.shared
        self.failure = error
        # It is kept, perhaps for as long as the lock's object. Each traceback would keep all frames below it, and what
        # their variables refer to.
        each: BaseException | None = error
        while each is not None:
            each.__traceback__ = None
            each = each.__cause__ or each.__context__
        self.plan = plan_after_failure(shared.now, self.ends, self.lease, shared.uniform)

    def plan_without_some(self, sent: float) -> None:
        """Plan the renewal after one that left out some claims, because a write under way may release them.

        It may be refused, too, and then there must be time to renew them. But there is a pause in any case: after a
        third of what is left of their leases, then after a third of that, and so on, there would be no end of requests.

        Args:
            sent: Local time before the renewal was sent.
        """
        shared, ends = self.shared, self.ends
        pause = plan_after_failure(shared.now, ends, self.lease, shared.uniform)
        self.plan = max(plan_renewal(sent, ends), pause, key=attrgetter("at"))


# -- one claim -------------------------------------------------------------------------------------


class HeldClaim(Held):
    """One acquisition that DynamoDB has confirmed, from then until it is released or lost.

    Attributes:
        contender: The contender that made the acquisition.
        group: The claims that are held, renewed and lost together with this one; None if it is held by itself.
        options: Options of the lock.
        store: Store in which the lock's row is.
        own: Our claim: token, version, end and term.
        belief: State of the claim, replaced as a whole.
        since: Local time at which the acquisition was confirmed; ``held_for`` and ``max_hold`` count from it.
        abandoned_by: Owner label of the holder whose expired claim was taken over; empty if there was none.
        item: The raw row, as far as this holder knows; of a lock table only if it has a payload, else empty.
        depth: Number of times the lock was entered and not left again; above 1 only for reentrant locks.
        row: The user's model instance for a locked row; None as long as there is none.
        writes_on: What runs the guarded write that is under way, as `Shared.runner` was when it began; None if none is
            under way. There is one at a time for each claim.
        writers: Wake-ups of the guarded writes that wait for their turn.
        events: Events that are not delivered yet, oldest first.
        delivery: Whether a thread is delivering its events, or is about to.
    """

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
        super().__init__(contender.shared)
        own.acquired(claim, sent, contender.store.bounds)
        self.contender = contender
        self.group: HeldGroup | None = None
        self.options = contender.options
        self.store = contender.store
        self.own = own
        self.belief = Belief(State.CONFIRMED)
        self.since = contender.shared.now
        self.abandoned_by = claim.abandoned_by
        # A row of a lock table only for its payload: it takes more memory than all else that is kept of a held lock.
        layout = contender.store.layout
        is_kept = layout.must_exist or layout.data_attribute.attr_name in item
        self.item: RawItem = item if is_kept else {}
        self.depth = 1
        self.row: Any = None
        self.writes_on: tuple[int, bool] | None = None
        self.writers: tuple[Wakeup, ...] = ()
        self.events: tuple[LockEvent, ...] = ()
        # Reserved before there is any event: the renewal loop, or a release in another thread, may emit one before the
        # acquiring thread has emitted ``acquired``. It must be queued, not delivered.
        self.delivery = Delivery.RESERVED

    @property
    def key(self) -> str:
        """What messages and signals call the lock: see `Contender`."""
        return self.contender.key

    @property
    def lease(self) -> float:
        """The lock's lease in seconds, as its options say. A renewal may have asked for another one."""
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
    def together(self) -> Held:
        """What is held, renewed and lost as one with this claim: its group, or the claim itself."""
        return self.group or self

    @property
    def claims(self) -> Sequence[HeldClaim]:
        """This claim."""
        return (self,)

    @property
    def unreleased(self) -> Sequence[HeldClaim]:
        """This claim, unless it was released."""
        return () if self.belief.state is State.RELEASED else (self,)

    @property
    def ends(self) -> float:
        """Local time at which the lease ends for this holder: from then on it must not believe."""
        return self.own.ends(self.store.connection.server.bounds)

    @property
    def expires(self) -> float:
        """Local time from which the end of the lease counts; infinity while a write that releases it is under way."""
        # Nobody believes in it then; and if the write turns out to be applied, it was released, however late the answer.
        return math.inf if self.belief.state is State.ENDING else self.ends

    @property
    def danger_at(self) -> float:
        """Local time from which too little is left of the lease; infinity if nobody is to be notified of that."""
        options = self.options
        is_notified = self.contender.on_danger or self.shared.receivers["danger"]
        # nor while a write that releases it is under way, or may have been applied: nobody believes in it then
        if not (options.auto_renew or is_notified) or self.belief.state is not State.HELD:
            return math.inf
        # A lease may come out much shorter than it was asked for, since server time is known to a second. The renewal
        # after a third of it comes in time all the same, and there is no danger before half of it has passed.
        ends = self.ends
        danger = options.lease / 3 if options.danger is None else options.danger
        return max(ends - danger, (self.own.term.since + ends) / 2)

    @property
    def ends_by(self) -> float:
        """Local time by which the lease ends unless a caller renews it; infinity if it is renewed without end."""
        if self.together.plan is NEVER:
            return self.ends
        max_hold = self.options.max_hold
        return math.inf if max_hold is None else self.since + max_hold + self.lease

    def stands_at(self, now: float) -> bool:
        """Return whether the claim may still be in its row at a local time.

        It has not ended as far as is known, though a write whose answer is missing may have released it.
        """
        is_standing = self.belief.state in STANDING and not self.shared.inherited
        return is_standing and self.expires > now

    def held_at(self, now: float) -> bool:
        """Return whether this holder may believe that it holds the lock at a local time."""
        is_held = self.belief.state is State.HELD and not self.shared.inherited
        return is_held and self.ends > now

    @property
    def is_over(self) -> bool:
        """Whether the claim was lost, released or inherited. A lease that ended counts once it has been noted."""
        return self.belief.state not in STANDING or self.shared.inherited

    @property
    def may_be_unlocked(self) -> bool:
        """Whether a write without an answer may have released the lock: it is under way, or its answer was lost."""
        return self.belief.state in {State.ENDING, State.IN_DOUBT}

    @property
    def can_be_won_back(self) -> bool:
        """Whether the claim is lost, but a renewal that is applied would make it held again."""
        # A renewal is applied, and its answer is late. The lease ends, this process breaks the claim by force and
        # acquires the lock again, and the answer arrives: with it two would believe.
        belief = self.belief
        may_stand = belief.state is State.LOST and belief.loss and belief.loss.can_be_won_back
        # With a depth of 0 its holder has left it, and nobody would release it.
        return bool(may_stand) and self.depth > 0 and self.contender.key_queue.holder is None

    @property
    def is_released(self) -> bool:
        """Whether the claim was released, handed over or detached."""
        return self.belief.state is State.RELEASED

    @property
    def is_released_inside(self) -> bool:
        """Whether the claim was released, and its holder may go on as if it were not: see `Held.blocks`."""
        return self.is_released and self.together.blocks > 0

    @property
    def loss(self) -> Loss | None:
        """Why the lock was lost; None if it was not. Includes a lease that ended and was not noted yet."""
        return self._loss_at(self.shared.read_clock())

    def _loss_at(self, now: float) -> Loss | None:
        belief = self.belief  # read once: another thread may replace it
        if belief.state not in EXPIRING or self.shared.inherited or self.ends > now:
            return belief.loss
        return Loss.UNREACHABLE if self.together.is_unanswered else Loss.EXPIRED

    @property
    def why(self) -> str:
        """Why the lock was lost, as text for messages."""
        return self.explain(self.loss or Loss.EXPIRED)

    def explain(self, loss: Loss) -> str:
        """Return the text for a loss of this claim."""
        max_hold = self.together.ended_by_max_hold
        if loss is Loss.EXPIRED and max_hold is not None:
            return f"its lease ended, for it was held for longer than max_hold, {max_hold:g} s"
        failure = self.together.failure if loss is Loss.UNREACHABLE else None
        return loss.value if failure is None else f"{loss.value}: {one_line(failure)}"

    @property
    def is_orphaned(self) -> bool:
        """Whether it is renewed, and nobody will release it: its thread or task has ended, or its mutex is gone."""
        contender = self.contender
        # Whoever has entered a block is kept by the lock's object until the block is left, perhaps elsewhere.
        is_left = contender.who() is None or contender.lock() is None
        return is_left and self.together.plan is not NEVER

    def reenters(self, caller: int) -> bool:
        """Return whether a thread or task that already holds the lock by this acquisition may enter it once more."""
        return self.options.reentrant and self.contender.caller == caller and self.held

    # -- errors -------------------------------------------------------------------------------------

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

    def check_guardable(self, what: str) -> None:
        """Raise if `check` would, or if the claim cannot guard a write.

        With ``delete_on_release`` it cannot, because the release deletes the claim and the number of the last guarded
        write together with the row. A late copy of the acquire then finds no row and makes the same claim again (same
        token, same version, no write counted yet), and a late copy of the guarded write finds every condition
        satisfied and is applied a second time.

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
        """Raise if a renewal is pointless: the lock was released, inherited, or lost to somebody else.

        A lock whose lease merely ended may be renewed: unless another took it meanwhile, that wins it back.
        """
        if self.is_released or self.shared.inherited:
            self.check("renew")
        if self.belief.loss is not None and not self.can_be_won_back:
            raise self.lost_error("renew")

    def not_held_error(self, what: str, *, applied: bool | None = False) -> MutexNotHeldError:
        """Return the error for a call after the release or the detach.

        Args:
            what: Name of the call, for the message.
            applied: Whether the call's guarded write was applied; None if that is unknown.
        """
        msg = f"{what}: {shown(self.key)} is not held: it was released or detached"
        return MutexNotHeldError(msg, applied=applied, key=self.key)

    def lost_error(self, what: str, *, applied: bool | None = False) -> MutexLostError:
        """Return the error that says that the lock was lost, and why.

        Args:
            what: Name of the call, for the message.
            applied: Whether the call's guarded write was applied; None if that is unknown.
        """
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
        error.__cause__ = self.together.failure if loss is Loss.UNREACHABLE else None
        return error

    # -- changes: inside the monitor ----------------------------------------------------------------

    def change(self, change: Change) -> bool:
        """Change the state as the table says; return whether it changed. Not for a loss: see `lose`."""
        after = TRANSITIONS.get((self.belief.state, change))
        if after is None:
            return False
        loss = None if change is Change.WON_BACK else self.belief.loss
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
        # A renewal is sent at 10 s for 30 s, and its answer arrives at 45 s: the lease that it granted has ended
        # as well, and the renewal loop may not have noted that yet. Then the loss is reported, not the renewal.
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
        self.change(Change.BEGIN)
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
        if self.change(Change.UNLOCKED):
            self.together.stop()
            self.leave_queue()
            if self.belief.loss is None:
                self.emit("released", held_for=self.held_for, error=None)

    def forget(self) -> None:
        """Drop a claim that no caller has been given, without a request."""
        self.change(Change.RELEASE)
        self.together.stop()
        self.leave_queue()

    def note_end(self) -> None:
        """Note the loss if the lease has ended, and the state is one in which that is a loss."""
        loss = self._loss_at(self.shared.now)
        if loss is not None and self.belief.loss is None:
            self.lose(loss)

    def abandon(self) -> None:
        """Note that the claim has ended, and its holder has left it to acquire the lock anew.

        A renewal is under way when the lease ends, and its holder's next attempt fails. By the renewal's answer the claim
        would be held again, and renewed for ever: its holder sees the new attempt alone, and cannot release it.
        """
        self.note_end()
        self.depth = 0

    def lose(self, loss: Loss, taker: Claim | None = None) -> None:
        """Note a loss, for all claims that are held together; emit ``lost`` for each, and call each ``on_lost`` once.

        Args:
            loss: Why the lock was lost.
            taker: Claim that the row shows in place of ours; None if no row was seen.
        """
        self._lose(loss, taker, at_release=False)

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
            self.together.blocks += 1
            self.note_unlocked()

    def lost_at_release(self, claim: Claim) -> MutexLostError:
        """Note that the lock had been lost before its release, which found another claim; return the error.

        The claims that are held together with it are lost, too, as they would have been just before the release. If
        there are none, ``on_lost`` is not called: the caller of the release learns of the loss from the error.
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
        self.call("on_lost", [] if at_release and lost == [self] else lost)

    def _note_loss(self, loss: Loss, taker: Claim | None, *, at_release: bool = False) -> bool:
        """Note the loss of this claim alone, and emit ``lost`` once; return whether it was emitted.

        A loss that is seen after the release is none, except by that release itself: ``at_release``.
        """
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
        """Seconds for which the lock has been held, as of this step."""
        now: float = self.shared.now
        return max(0.0, now - self.since)

    # -- renewal ------------------------------------------------------------------------------------

    def is_over_max_hold(self, now: float) -> bool:
        """Return whether the lock has been held for ``max_hold`` or longer."""
        max_hold = self.options.max_hold
        return max_hold is not None and now - self.since >= max_hold

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


# -- claims that are held together -----------------------------------------------------------------


class HeldGroup(Held):
    """1 to 100 claims that were acquired by one transaction."""

    __slots__ = ("_claims",)

    is_group = True

    def __init__(self, claims: Sequence[HeldClaim]) -> None:
        super().__init__(claims[0].shared)
        self._claims = claims
        for claim in claims:
            claim.group = self

    @property
    def claims(self) -> Sequence[HeldClaim]:
        """All of the claims, including those that were released."""
        return self._claims
