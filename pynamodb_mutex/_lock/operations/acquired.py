"""One acquisition that DynamoDB has confirmed, as users and operations see it: held or not, for how long, and why it was lost.

All of it is computed from three values: the state (`states.Belief`), the term of the claim (`Term`), and the bounds of
server time (`Bounds`). Each is immutable and replaced as a whole, so these queries are correct without the process's
monitor. What changes the state is in `held`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.operations.planning import Held
from pynamodb_mutex._lock.operations.states import EXPIRING, STANDING, Belief
from pynamodb_mutex._lock.protocol.claim import Claim, date_of
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.protocol.schedule import NEVER
from pynamodb_mutex.exceptions import Loss, MutexLostError, MutexNotHeldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.operations.contender import Contender
    from pynamodb_mutex._lock.operations.effects import Wakeup
    from pynamodb_mutex._lock.operations.events import Delivery, LockEvent
    from pynamodb_mutex._lock.protocol.claim import OwnClaim


class Acquired(Held):
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
        writers: Wake-ups of the guarded writes that wait for that one to end.
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
        self.group: Held | None = None
        self.options = contender.options
        self.store = contender.store
        self.own = own
        self.belief = Belief("confirmed")
        self.since = contender.shared.now
        self.abandoned_by = claim.abandoned_by
        # A row of a lock table only for its payload: it takes more memory than all else that is kept of a held lock.
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
        # Nobody believes in it then; and if the write turns out to be applied, it was released, however late the answer.
        return math.inf if self.belief.state == "ending" else self.ends

    @property
    def danger_at(self) -> float:
        """Local time from which too little is left of the lease; infinity if nobody is to be notified of that."""
        options = self.options
        is_notified = self.contender.on_danger or self.shared.receivers["danger"]
        # nor while a write that releases it is under way, or may have been applied: nobody believes in it then
        if not (options.auto_renew or is_notified) or self.belief.state != "held":
            return math.inf
        # A lease may come out much shorter than it was asked for, since server time is known to a second. The renewal
        # after a third of it comes in time all the same, and there is no danger before half of it has passed.
        ends = self.ends
        return max(ends - options.lease / 3, (self.own.term.since + ends) / 2)

    @property
    def ends_by(self) -> float:
        """Local time by which the lease ends unless a caller renews it; infinity if it is renewed without end."""
        if self.together.plan is NEVER:
            return self.ends
        max_hold = self.options.max_hold
        return math.inf if max_hold is None else self.since + max_hold + self.lease

    @property
    def noticed_within(self) -> float:
        """Seconds after which a renewal will have noticed that the claim was broken; 0 if it is not renewed."""
        return 0.0 if self.together.plan is NEVER else self.options.lease / 3

    def stands_at(self, now: float) -> bool:
        """Return whether the claim may still be in its row at a local time.

        It has not ended as far as is known, though a write whose answer is missing may have released it.
        """
        state = self.belief.state
        is_standing = state in STANDING and not self.shared.inherited
        # as `expires` says, which this does not ask: each acquisition does so
        return is_standing and (state == "ending" or self.ends > now)

    def held_at(self, now: float) -> bool:
        """Return whether this holder may believe that it holds the lock at a local time."""
        is_held = self.belief.state == "held" and not self.shared.inherited
        return is_held and self.ends > now

    @property
    def is_over(self) -> bool:
        """Whether the claim was lost, released or inherited. A lease that ended counts once it has been noted."""
        return self.belief.state not in STANDING or self.shared.inherited

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
        # With a depth of 0 its holder has left it, and nobody would release it.
        return bool(may_stand) and self.depth > 0 and self.contender.key_queue.holder is None

    @property
    def is_released(self) -> bool:
        """Whether the claim was released, handed over or detached."""
        return self.belief.state == "released"

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
