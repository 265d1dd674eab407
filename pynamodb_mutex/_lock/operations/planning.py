"""`Held`: one claim, or several that are renewed and lost as one; how long it lasts, and when its next renewal is due.

It sends nothing: `renew` sends the renewals that are planned here, and `release` the release. What makes one claim held or lost
is in `held`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.operations.events import Call, Log
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._lock.protocol.schedule import (
    MOST_RENEWALS_UNDER_WAY,
    NEVER,
    plan_after_failure,
    plan_after_sending,
    plan_renewal,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb.exceptions import PynamoDBException

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex._lock.protocol.outcome import Renewal
    from pynamodb_mutex.exceptions import Loss, MutexLostError

    Claims = Sequence[Any]
    """Claims, each a `held.HeldClaim`; that class is built on this module."""

    Proposals = Mapping[Any, Any]
    """What a renewal proposes for each claim, a `held.Proposal`."""


class Held(ABC):
    """What is held, renewed and lost as one: a claim by itself, or a group of claims.

    If one claim of a group is lost, all claims that are not released are lost, and a renewal renews all of these. The rows of
    the others stay as they are until the holder releases their claims, or these expire: the holder may not know of the loss
    yet, and nobody else should begin meanwhile.

    Attributes:
        rows: The user's rows under the locks, by the lock object that entered; None if there are none.
        open_blocks: Number of ``with`` blocks that began with it and have not ended; None if none ever began.
        is_unaware: Whether the holder, outside of a block, does not know of the release: a write whose answer was lost, or
            `release_all`, has released the lock.
        plan: Plan for the next renewal.
        is_queued: Whether a renewal waits for a thread.
        renewals_under_way: Number of renewals under way.
        failure: What the last renewal failed with, without tracebacks; None if it was answered.
        ended_by_max_hold: The ``max_hold`` that ended the renewals, in seconds; None if none did.
        in_danger: Whether the danger was reported, and no renewal has ended it since.
    """

    __slots__ = (
        "ended_by_max_hold",
        "failure",
        "in_danger",
        "is_queued",
        "is_unaware",
        "open_blocks",
        "plan",
        "process",
        "renewals_under_way",
        "rows",
    )

    def __init__(self, process: ProcessState) -> None:
        self.process = process
        self.rows: dict[object, Any] | None = None
        self.open_blocks: int | None = None
        self.is_unaware = False
        self.plan = NEVER
        self.is_queued = False
        self.renewals_under_way = 0
        self.failure: BaseException | None = None
        self.ended_by_max_hold: float | None = None
        self.in_danger = False

    @property
    def whole(self) -> Held:
        """The group of this claim; a claim without a group, or a group, returns itself."""
        return self

    @property
    @abstractmethod
    def claims(self) -> Claims:
        """All of the claims, including those that were released."""

    # -- renewal and release: one claim by its own requests, a group by transactions ------------------

    error_class: type[PynamoDBException]
    """PynamoDB's exception for a write of this kind of claim."""

    @abstractmethod
    def to_renew(self) -> Claims:
        """Return the claims to renew."""

    @abstractmethod
    def renewal(self, proposals: Proposals) -> Request:
        """Return the request that renews claims, given a proposal for each."""

    @abstractmethod
    def note_renewal(self, proposals: Proposals, answer: Answer) -> Renewal:
        """Note the outcome of a renewal, and return it."""

    @abstractmethod
    def plan_after_renewal(self, renewed: Claims, sent: float) -> None:
        """Plan the renewal after one that was sent at a local time, and has renewed some of the claims."""

    @abstractmethod
    def loss_before_release(self) -> MutexLostError | None:
        """Return the loss of a group, whose claims are to be released all the same; None for no loss.

        Raises:
            MutexLostError: If a claim without a group had been lost.
            MutexNotHeldError: If a claim is not held here.
        """

    @abstractmethod
    def end(self, endings: Mapping[Any, Any], *, hands_over: bool) -> Operation[bool]:
        """End the claims by one request, if one can replace the release of each; return whether it was applied.

        Args:
            endings: For each claim that is to be released its `release.Ending`.
            hands_over: Whether the next waiter of this process may get the lock.
        """

    @property
    def unreleased(self) -> Claims:
        """Claims that are not released; first the claims in whose rows another claim was seen.

        In that order an error names the key that DynamoDB shows as lost, not a key that was lost with it.
        """
        claims = [claim for claim in self.claims if not claim.is_released]
        return sorted(claims, key=lambda claim: claim.belief.taker is None)

    @property
    def ends(self) -> float:
        """Local time at which the first of the leases ends. Released claims count only if all are released."""
        ends: float = min(claim.ends for claim in self.unreleased or self.claims)
        return ends

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
        """Whether one of the locks was lost, all were released, or the parent of this forked process holds them."""
        claims = self.unreleased
        return not claims or any(claim.is_over for claim in claims)

    @property
    def is_released(self) -> bool:
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
        """Whether the holder may believe now that it holds all of the locks."""
        return self.held_at(self.process.read_clock())

    @property
    def remaining(self) -> float:
        """Seconds for which the holder may still believe, by the local clock; 0 if it may not."""
        now = self.process.read_clock()
        return max(0.0, self.ends - now) if self.held_at(now) else 0.0

    @property
    def is_unanswered(self) -> bool:
        """Whether a renewal is unanswered: the last one failed, or one is under way."""
        return self.failure is not None or self.renewals_under_way > 0

    # -- schedule: inside the monitor ---------------------------------------------------------------

    def start(self, sent: float) -> None:
        """Schedule the renewals and, if anybody wants to be notified in time, the danger and the end of the lease.

        If there is neither, nothing is scheduled: the renewal loop need not run, and the next call notes the end.

        Args:
            sent: Local time before the request that acquired or renewed the claims was sent.
        """
        process, ends = self.process, self.ends
        self.plan_renewal(sent, ends)
        is_renewed = self.plan is not NEVER
        # With renewals, the danger comes after the planned renewal, and its time is found when that is due: to find it here
        # would slow down each acquisition.
        at = self.plan.at if is_renewed else self.danger_at
        is_to_run = is_renewed or at < math.inf or process.receivers["lost"]
        if is_to_run or any(claim.contender.on_lost for claim in self.unreleased):
            process.schedule.add(self, min(ends, at))

    def stop(self) -> None:
        """Remove the claims from the schedule if they are over: lost, or all released."""
        if self.is_over:
            self.process.schedule.remove(self)

    def plan_renewal(self, sent: float, ends: float) -> None:
        """Plan the next renewal; none if a claim has no renewal in the background.

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
        due: float = min(self.plan.due(self.ends), *(claim.expires for claim in self.unreleased))
        return due if self.in_danger else min(due, self.danger_at)

    def is_to_be_renewed(self) -> bool:
        """Note the end of the lease, or the danger, if it has come; return whether the caller is to start a renewal now.

        It plans the renewal after this one now, not when the answer arrives: this one may hang, and the next one must be due in
        time all the same.
        """
        process = self.process
        now = process.now
        for claim in self.unreleased:
            claim.note_end()
        if self.is_over:
            return False
        if not self.in_danger and now >= self.danger_at:
            self.in_danger = True
            # without claims that a write may have released: see `HeldClaim.danger_at`
            claims = [claim for claim in self.unreleased if claim.danger_at < math.inf]
            for claim in claims:
                claim.emit("danger", remaining=claim.ends - now)
            self.call("on_danger", claims)
        if now < self.plan.due(self.ends):
            return False
        for claim in self.unreleased:
            if claim.is_over_max_hold(now):
                max_hold = claim.options.max_hold
                values = (shown(claim.key), max_hold)
                text = "%s is held for more than %s s: not renewed"
                process.emit(Log("warning", text, values, claim.log_fields))
                self.plan, self.ended_by_max_hold = NEVER, max_hold
                return False
        self.plan = plan_after_sending(now, self.ends, self.lease)
        # Without the first condition, each due time would queue another renewal if all workers hang. Without the second, an
        # endpoint that does not answer would get another request in each third of a lease, and each would occupy a worker.
        if self.is_queued or self.renewals_under_way >= MOST_RENEWALS_UNDER_WAY:
            return False
        self.is_queued = True
        return True

    def call(self, name: str, claims: Claims) -> None:
        """Call, each once, the functions that users gave by an option for some of the claims."""
        called: list[Any] = []
        for claim in claims:
            for call in getattr(claim.contender, name):
                if call.func not in called:
                    called.append(call.func)
                    self.process.emit(Call(name, claim, call))

    def plan_after_failure(self, error: BaseException) -> None:
        """Plan the renewal after one that failed: soon."""
        process = self.process
        self.failure = error
        # The error is kept, perhaps for as long as the lock's object. Each traceback would keep all frames below it, and all
        # objects of their variables.
        each: BaseException | None = error
        while each is not None:
            each.__traceback__ = None
            each = each.__cause__ or each.__context__
        self.plan = plan_after_failure(process.now, self.ends, self.lease, process.uniform)
