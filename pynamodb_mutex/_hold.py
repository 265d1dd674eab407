"""One acquisition, from the moment it is held to its end."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb_mutex import _events
from pynamodb_mutex._claim import Claim, Loss, Tenure
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._messages import shown
from pynamodb_mutex._renewing import RENEWALS_PER_LEASE, Renewing
from pynamodb_mutex._templates import seconds
from pynamodb_mutex.exceptions import (
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pynamodb_mutex._answers import Answer
    from pynamodb_mutex._group_hold import GroupHold
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._store import Store
    from pynamodb_mutex._wanted import Wanted

_log = logging.getLogger("pynamodb_mutex")


class Renewal(NamedTuple):
    """What a request that renews a claim proposes.

    Attributes:
        end: The new end.
        lease: The lease written beside it.
        sent: Local time before it is sent.
        values: All of it, serialised.
    """

    end: float
    lease: float
    sent: float
    values: dict[str, Any]


class Hold(Renewing):
    """An acquisition that the store has confirmed.

    Whether it is still held is computed from its end at each question, never a flag. No lock of
    this class is kept during a request.

    Attributes:
        since: Local time from which it was held.
    """

    def __init__(
        self, wanted: Wanted, tenure: Tenure, claim: Claim, item: RawItem, sent: float
    ) -> None:
        super().__init__(wanted.process)
        tenure.acquired(claim, sent, wanted.store.server.bounds)
        self.wanted = wanted
        self.tenure = tenure
        self.abandoned_by = claim.abandoned_by
        self.item = item
        self.depth = 1
        self.row: Any = None
        self.group: GroupHold | None = None
        self.may_have_ended = False
        self.writing = threading.Lock()
        self.taker: Claim | None = None
        self._threads = wanted.process.threads
        self.terms = wanted.terms
        self.store = wanted.store
        self._finished = False
        self.is_ending = False
        self._loss: Loss | None = None
        self._lock = threading.Lock()
        self.events = _events.EventQueue(wanted, self._lock)
        self.since = local_clock().now()
        self.plan(sent)

    # -- belief ---------------------------------------------------------------------------------

    @property
    def ends(self) -> float:
        """Local time at which this holder stops believing."""
        return self.tenure.ends(self.store.server.bounds)

    @property
    def inherited(self) -> bool:
        """Whether this acquisition belongs to a parent process."""
        return self.wanted.process.left_behind

    @property
    def finished(self) -> bool:
        """Whether it was given back."""
        return self._finished

    @property
    def given_back_inside(self) -> bool:
        """Whether it was given back and a ``with`` block that began with it goes on."""
        return self._finished and (self.group or self).blocks > 0

    @property
    def remaining(self) -> float:
        """Seconds for which this holder may still believe, by the local clock."""
        if self._in_doubt or not self.stands:
            return 0.0
        return max(0.0, self.ends - local_clock().now())

    @property
    def stands(self) -> bool:
        """Whether the claim is not known to have ended, though a write may have given it back."""
        if self._finished or self._loss is not None or self.inherited:
            return False
        return self.ends > local_clock().now()

    @property
    def _in_doubt(self) -> bool:
        """Whether a write may have given it back: one under way, or one of unknown outcome."""
        return self.is_ending or self.may_have_ended

    @property
    def held(self) -> bool:
        """Whether this holder may believe now."""
        return self.remaining > 0

    @property
    def claim(self) -> Claim:
        """The claim as it stands in the row, as far as this holder knows."""
        tenure = self.tenure
        return Claim(
            token=tenure.token,
            version=tenure.version,
            expires_at=tenure.expires_at,
            lease=self.terms.lease,
            owner=self.wanted.owner,
        )

    @property
    def fencing_token(self) -> int | None:
        """The version, unless the row is deleted at release: then it may fall."""
        return None if self.terms.delete_on_release else self.tenure.version

    @property
    def log_fields(self) -> dict[str, Any]:
        """What a record in the log says of the lock, beside its message."""
        return self.wanted.log_fields | {"fencing_token": self.fencing_token}

    @property
    def data(self) -> Any:
        """The payload in the row, as far as this holder knows."""
        return self.store.rows.data(self.item)

    def reenters(self, caller: int) -> bool:
        """Whether a thread or task that asks again may enter on this acquisition."""
        return self.terms.reentrant and self.wanted.caller == caller and self.held

    @property
    def holds(self) -> Sequence[Hold]:
        """This one alone (see `Renewing`)."""
        return (self,)

    @property
    def over(self) -> bool:
        """Whether it is known to have ended, or is another process's."""
        return self._finished or self._loss is not None or self.inherited

    @property
    def loss(self) -> Loss | None:
        """Why it was lost; None if it was not."""
        self.note_end()
        return self._loss

    def note_end(self) -> None:
        """Take note of the loss if the lease has ended."""
        if not self.over and not self.stands:
            together = self.group or self
            self.lose(Loss.UNREACHABLE if together.unanswered else Loss.EXPIRED)

    @property
    def cause(self) -> Loss | None:
        """Why it was lost, as far as it was noted. Unlike `loss` this takes note of nothing."""
        return self._loss

    @property
    def why(self) -> str:
        """Why it was lost, in words."""
        loss, max_hold = self._loss or Loss.EXPIRED, (self.group or self).ended_by_max_hold
        if loss is Loss.EXPIRED and max_hold is not None:
            return f"its lease ended, for it was held for longer than max_hold, {max_hold:g} s"
        return loss.value

    def lose(self, loss: Loss, taker: Claim | None = None) -> None:
        """Take note of the loss, also for what is held together; tell each `on_lost` of it once."""
        self._lose(loss, taker, released=False)

    def lost_at_release(self, claim: Claim) -> MutexLostError:
        """Return the error for a release that found another claim than ours.

        What is held together is lost as it would have been a moment before the release. Who releases
        learns it from the error: `on_lost` is called only if there is more to lose.
        """
        self._lose(self.tenure.loss(claim), claim, released=True)
        return self.lost_error("release")

    def _lose(self, loss: Loss, taker: Claim | None, *, released: bool) -> None:
        together = self.group or self
        lost: list[Hold] = []
        with together.changing:
            if self._note(loss, taker, released=released):
                others = (hold for hold in together.holds if hold is not self)
                lost = [self, *(hold for hold in others if hold._note(loss, None))]
        together.stop()
        for hold in lost:
            hold.wanted.queue.left(hold)
        told: list[Any] = []
        for hold in [] if released and lost == [self] else lost:
            on_lost, tell = hold.terms.on_lost, hold.wanted.on_lost
            if tell is not None and on_lost not in told:
                told.append(on_lost)
                self._threads.put("pynamodb-mutex-on-lost", partial(hold._tell, tell))
        _events.lost(lost)
        self._threads.start()

    def _note(self, loss: Loss, taker: Claim | None, *, released: bool = False) -> bool:
        """Take note of a loss, if it came before a release; return whether it is news."""
        with self._lock:
            if self._finished and not released:
                return False
            is_news = self._loss is None
            self._loss, self.taker = loss, taker
            if is_news:
                _events.note_lost(self)
        return is_news

    def _tell(self, on_lost: Callable[[], object]) -> None:
        try:
            on_lost()
        except Exception:  # noqa: BLE001 - the caller's code, on a thread of ours
            _log.exception("on_lost of %s failed", shown(self.terms.key), extra=self.log_fields)

    def lost_error(self, what: str, *, applied: bool | None = False) -> MutexLostError:
        """Return the error that says that the lock was lost, with its cause."""
        loss = self._loss or Loss.EXPIRED
        taker = self.taker
        return MutexLostError(
            f"{what}: {shown(self.terms.key)} was lost: {self.why}",
            loss=loss,
            applied=applied,
            key=self.terms.key,
            owner=taker.owner if taker else None,
            expires_at=taker.expires_at if taker else None,
        )

    def check(self, what: str) -> None:
        """Raise unless this is held."""
        if self.inherited:
            msg = f"{what}: {shown(self.terms.key)} is held by the parent process, not by its fork"
            raise MutexNotHeldError(msg, key=self.terms.key)
        self._threads.start()
        if self._finished:
            raise self._finished_error(what)
        if self.loss is not None:
            raise self.lost_error(what)

    def check_guardable(self, what: str) -> None:
        """Raise unless this is held, and its claim can guard a write.

        With ``delete_on_release`` it cannot. Both the claim and the number of the last guarded write go
        with the row at release: a late copy of the acquire, which finds no row, makes the same claim again
        (same token, same version, no write counted yet), and then a late copy of the guarded write finds
        all that it asks for, and is applied a second time.

        Raises:
            MutexNotHeldError: If it is not held here; MutexLostError if it is lost.
            MutexError: With ``delete_on_release``.
        """
        self.check(what)
        if self.terms.delete_on_release:
            msg = (
                f"{what}: the lock {shown(self.terms.key)} cannot guard writes, for it is used with delete_on_release: "
                "once its row is deleted, late copies of requests could apply a write again; "
                "leave out delete_on_release"
            )
            raise MutexError(msg, key=self.terms.key)

    def _finished_error(self, what: str) -> MutexNotHeldError:
        msg = f"{what}: {shown(self.terms.key)} is not held: it was released or detached"
        return MutexNotHeldError(msg, key=self.terms.key)

    # -- renewal --------------------------------------------------------------------------------

    @property
    def batch(self) -> Store | None:
        """The store, if its locks may be renewed by batches (see `Renewing`).

        Not one whose lease is so short that nothing of it may be left when a batch was not answered.
        """
        store = self.store
        lasts = self.terms.lease >= RENEWALS_PER_LEASE * store.hangs_for
        return store if store.batches and lasts and not self._alone else None

    def renew_once(self, lease: float | None) -> Sequence[Hold]:
        """Send a renewal, again only if it met a later one (see `Renewing`)."""
        while True:
            renewal = self.propose_renewal(self.terms.lease if lease is None else lease)
            values = self.mine() | renewal.values
            answer = self.store.write(self.store.rows.renew, self.terms.row, values)
            applied = self.renewal_answered(renewal, answer)
            if applied is not None:
                return self.holds if applied else ()

    def renewal_answered(self, renewal: Renewal, answer: Answer) -> bool | None:
        """Take note of what a renewal brought; return whether it was applied, None to repeat it."""
        tenure, claim = self.tenure, answer.claim
        self._unreachable = False
        stored = claim.expires_at or 0.0
        if answer.applied or (tenure.is_mine(claim) and stored == renewal.end):
            self.extend(renewal)
            return True
        if not tenure.is_mine(claim):
            self.renewal_refused(claim)
        elif stored > tenure.proposed:
            self.saw_end(claim)
            return None
        # else a renewal sent later came first: its own answer tells what it brought
        return False

    def renewal_refused(self, claim: Claim) -> None:
        """Take note of a claim that is not ours, unless a write of ours is just ending it."""
        if not self.is_ending:
            self.lose(self.tenure.loss(claim), claim)

    def propose_renewal(self, lease: float | None = None) -> Renewal:
        """Return what a request that is about to be sent may renew the claim to.

        Args:
            lease: Seconds; by default those of the mutex or, beyond `max_hold`, just what is left.
        """
        now = local_clock().now()
        if lease is None:
            lease = 0.0 if self.is_over_max_hold(now) else self.terms.lease
        with self._lock:
            end, granted = self.tenure.propose(now, self.store.server.bounds, lease)
        values = {
            "end": seconds(end),
            "lease": seconds(granted + 0.0005),
            "ttl": self.store.ttl(end),
            "owner": self.wanted.owner,
            "abandoned_by": self.abandoned_by,
        }
        return Renewal(end, granted, now, values)

    def saw_end(self, claim: Claim) -> None:
        """Take note of an end that stands in the row, so that the next proposed is later."""
        with self._lock:
            self.tenure.proposed = max(self.tenure.proposed, claim.expires_at or 0.0)

    def extend(self, renewal: Renewal) -> None:
        """Take note that a renewal was applied."""
        with self._lock:
            bounds = self.store.server.bounds
            self.tenure.renewed(renewal.end, renewal.lease, renewal.sent, bounds)

    def renewed(self, renewal: Renewal) -> None:
        """Take note that a write which carried the claim was applied."""
        self.extend(renewal)
        self.tell_renewed(self.holds)
        if self.group is None:
            # else the others are due when they were
            self.plan(renewal.sent)
            self.wanted.process.renewer.refresh(self)

    def is_over_max_hold(self, now: float) -> bool:
        """Whether it has been held for longer than is allowed."""
        max_hold = self.terms.max_hold
        return max_hold is not None and now - self.since >= max_hold

    def renew(self, lease: float | None) -> None:
        """Renew now, with all that is held together; see `Renewing.renew`."""
        if self.group is None or self._finished:
            super().renew(lease)
        else:
            self.group.renew(lease)

    @property
    def ended(self) -> bool:
        """Whether it was lost, but not to another: a renewal may win it back."""
        return self._loss in (Loss.EXPIRED, Loss.UNREACHABLE)

    def check_renewable(self) -> None:
        """Raise if no renewal can win the claim back."""
        if self._finished or self.inherited:
            self.check("renew")
        if self._loss is not None and not self.ended:
            raise self.lost_error("renew")

    def win_back(self) -> bool:
        """Believe again, after a renewal of a lease that had ended; return whether it is not too late."""
        with self._lock:
            if self._finished:
                return False
            self._loss = None
            _events.note_won_back(self)
        self.wanted.queue.took(self)
        return True

    def ensure(self, at_least: float) -> None:
        """Raise unless this is held, and renew it first if less is left."""
        self.check("ensure_held")
        if self._in_doubt:
            msg = f"ensure_held: {shown(self.terms.key)} may have been given back by a write without an answer yet"
            raise MutexNotHeldError(msg, key=self.terms.key)
        if self.remaining < at_least:
            self.renew(None)

    def leave(self, what: str = "release") -> bool:
        """Leave one level of a reentrant acquisition; return whether it is to be given back."""
        with self._lock:
            if self._finished:
                raise self._finished_error(what)
            self.depth -= 1
            self._finished = self.depth == 0
        if self._finished:
            (self.group or self).stop()
        return self._finished

    @contextmanager
    def ending(self, what: str) -> Iterator[None]:
        """Send a write inside the block that gives the lock back as well.

        There is no belief meanwhile: from when it is applied another may take the lock. A renewal
        that is refused tells nothing then: the write tells what became of the claim.
        """
        if self.depth > 1:
            msg = f"{what}: {shown(self.terms.key)} is entered {self.depth} times: only the last one unlocks"
            raise MutexAlreadyHeldError(msg, key=self.terms.key, owner=self.wanted.owner)
        self.is_ending = True
        try:
            yield
        finally:
            self.is_ending = False

    def end(self) -> None:
        """Take note that the claim was given back by a write."""
        with self._lock:
            self.depth, self._finished = 0, True
        self.forget()

    def mine(self) -> dict[str, Any]:
        """Serialise what makes a claim ours: token and version."""
        return {"mine": self.tenure.token, "version": str(self.tenure.version)}

    def forget(self) -> None:
        """End the belief in a hold that is not handed out, without a request."""
        self._finished = True
        (self.group or self).stop()
        self.wanted.queue.left(self)
