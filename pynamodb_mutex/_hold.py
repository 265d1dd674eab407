"""One acquisition, from the moment it is held to its end."""

from __future__ import annotations

import logging
import math
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._claim import NO_SERVER_TIME, Loss, Tenure
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._repeat import Transient, persist
from pynamodb_mutex._templates import seconds
from pynamodb_mutex.exceptions import MutexAlreadyHeldError, MutexLostError, MutexNotHeldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._wanted import Wanted

_log = logging.getLogger("pynamodb_mutex")

RENEWALS_PER_LEASE = 3
_MOST_RENEWALS_UNDER_WAY = 2


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


class Hold:
    """An acquisition that the store has confirmed.

    Whether it is still held is computed from its end at each question, never a flag. No lock of
    this class is kept during a request.
    """

    def __init__(
        self, wanted: Wanted, tenure: Tenure, claim: Claim, item: RawItem, sent: float
    ) -> None:
        tenure.acquired(claim, sent, wanted.store.server.bounds)
        self.wanted = wanted
        self.tenure = tenure
        self.abandoned_by = claim.abandoned_by
        self.item = item
        self.depth = 1
        self.row: Any = None
        self.companions: tuple[Hold, ...] = ()
        self.may_have_ended = False
        self.writing = threading.Lock()
        self.taker: Claim | None = None
        self.terms = wanted.terms
        self.store = wanted.store
        self._finished = False
        self._is_ending = False
        self._loss: Loss | None = None
        self._lock = threading.Lock()
        self._since = local_clock().now()
        self._renewals_under_way = 0
        self._queued = False
        self._unreachable = False
        self._renews_at = self._after(sent)

    def start(self) -> None:
        """Look after the claim in the background, from when it is handed out."""
        if self.terms.auto_renew or self.terms.on_lost is not None:
            self.wanted.process.renewer.add(self)

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
        return self._is_ending or self.may_have_ended

    @property
    def held(self) -> bool:
        """Whether this holder may believe now."""
        return self.remaining > 0

    @property
    def data(self) -> Any:
        """The payload in the row, as far as this holder knows."""
        return self.store.rows.data(self.item)

    def reenters(self, thread: int) -> bool:
        """Whether a thread that asks again may enter on this acquisition."""
        return self.terms.reentrant and self.wanted.thread == thread and self.held

    @property
    def loss(self) -> Loss | None:
        """Why it was lost; None if it was not."""
        if self._loss is None and not self._finished and not self.stands and not self.inherited:
            unanswered = self._unreachable or self._renewals_under_way > 0
            self.lose(Loss.UNREACHABLE if unanswered else Loss.EXPIRED)
        return self._loss

    def lose(self, loss: Loss, taker: Claim | None = None, *, tell: bool = True) -> None:
        """Take note of the loss, and tell the caller's `on_lost` of it."""
        with self._lock:
            if self._finished:
                return
            told = self._loss is not None
            self._loss = loss
            self.taker = taker
        if told:
            return
        _log.warning("%s lost by %s: %s", self.terms.key, self.wanted.owner, loss.value)
        self.wanted.process.renewer.remove(self)
        self.wanted.queue.left(self)
        for companion in self.companions:
            companion.lose(loss, tell=False)
        on_lost = self.wanted.on_lost
        if on_lost is not None and tell:
            threading.Thread(
                target=self._tell, args=(on_lost,), name="pynamodb-mutex-on-lost", daemon=True
            ).start()

    def _tell(self, on_lost: Callable[[], object]) -> None:
        try:
            on_lost()
        except Exception:  # noqa: BLE001 - the caller's code, on a thread of ours
            _log.exception("on_lost of %s failed", self.terms.key)

    def lost_error(self, what: str, *, applied: bool | None = False) -> MutexLostError:
        """Return the error that says that the lock was lost, with its cause."""
        loss = self._loss or Loss.EXPIRED
        taker = self.taker
        return MutexLostError(
            f"{what}: {self.terms.key!r} was lost: {loss.value}",
            loss=loss,
            applied=applied,
            key=self.terms.key,
            owner=taker.owner if taker else None,
            expires_at=taker.expires_at if taker else None,
        )

    def check(self, what: str) -> None:
        """Raise unless this is held."""
        if self.inherited:
            msg = f"{what}: {self.terms.key!r} is held by the parent process, not by its fork"
            raise MutexNotHeldError(msg, key=self.terms.key)
        if self._finished:
            msg = f"{what}: {self.terms.key!r} is not held: it was released"
            raise MutexNotHeldError(msg, key=self.terms.key)
        if self.loss is not None:
            raise self.lost_error(what)

    # -- renewal --------------------------------------------------------------------------------

    def _after(self, sent: float) -> float:
        """Return when to renew a claim asked for at ``sent``: early if it came out short."""
        if not self.terms.auto_renew:
            return math.inf
        return sent + max(0.0, self.ends - sent) / RENEWALS_PER_LEASE

    def due(self) -> float:
        """Return when the renewer should call (see `_renewer.Renewed`)."""
        if self._finished or self._loss is not None or self.inherited:
            return math.inf
        return min(self.ends, self._renews_at)

    def tend(self) -> bool:
        """Tell a loss, or say that a renewal is due (see `_renewer.Renewed`)."""
        now = local_clock().now()
        if self.loss is not None or self._finished or self.inherited or now < self._renews_at:
            return False
        if self._is_over_max_hold(now):
            held_for = self.terms.max_hold
            _log.warning("%s is held for more than %s s: not renewed", self.terms.key, held_for)
            self._renews_at = math.inf
            return False
        # counted from this sending, so that one that hangs is followed by another
        self._renews_at = now + self.terms.lease / RENEWALS_PER_LEASE
        if self._queued or self._renewals_under_way >= _MOST_RENEWALS_UNDER_WAY:
            return False
        self._queued = True
        return True

    def send_renewal(self) -> None:
        """Send one renewal in the background (see `_renewer.Renewed`)."""
        sent = local_clock().now()
        with self._lock:
            self._queued = False
            self._renewals_under_way += 1
        try:
            if self.stands:
                self.renew_once(self.terms.lease)
                self._renews_at = self._after(sent)
        except (Transient, PynamoDBException) as error:
            # only the store's refusal, or the end of the lease, is a loss
            self._unreachable = True
            pause = min(1.0, self.terms.lease / 10)
            self._renews_at = local_clock().now() + random.uniform(pause / 2, pause)  # noqa: S311 - jitter
            _log.warning("renewal of %s failed, to be repeated: %s", self.terms.key, error)
        finally:
            with self._lock:
                self._renewals_under_way -= 1
            self.wanted.process.renewer.refresh(self)

    def renew_once(self, lease: float) -> None:
        """Send a renewal, again only if it met a later one; a refusal is a loss.

        Raises:
            Transient: If it may pass.
            PynamoDBException: If it cannot.
        """
        tenure = self.tenure
        while True:
            renewal = self.propose_renewal(lease)
            values = self.mine() | renewal.values
            answer = self.store.write(self.store.rows.renew, self.terms.row, values)
            self._unreachable = False
            stored = answer.claim.expires_at or 0.0
            if answer.applied or (tenure.is_mine(answer.claim) and stored == renewal.end):
                with self._lock:
                    bounds = self.store.server.bounds
                    tenure.renewed(renewal.end, renewal.lease, renewal.sent, bounds)
                return
            if not tenure.is_mine(answer.claim):
                if not self._is_ending:
                    self.lose(tenure.loss(answer.claim), answer.claim)
                return
            if stored <= tenure.proposed:
                # a renewal sent later came first: its own answer tells what it brought
                return
            self.saw_end(answer.claim)

    def propose_renewal(self, lease: float | None = None) -> Renewal:
        """Return what a request that is about to be sent may renew the claim to.

        Args:
            lease: Seconds; by default those of the mutex or, beyond `max_hold`, just what is left.
        """
        now = local_clock().now()
        if lease is None:
            lease = 0.0 if self._is_over_max_hold(now) else self.terms.lease
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

    def renewed(self, renewal: Renewal) -> None:
        """Take note that a write which carried the claim was applied."""
        with self._lock:
            bounds = self.store.server.bounds
            self.tenure.renewed(renewal.end, renewal.lease, renewal.sent, bounds)
            self._renews_at = self._after(renewal.sent)
        self.wanted.process.renewer.refresh(self)

    def _is_over_max_hold(self, now: float) -> bool:
        max_hold = self.terms.max_hold
        return max_hold is not None and now - self._since >= max_hold

    def renew(self, lease: float | None) -> None:
        """Renew now; a lease that ended is won back if nobody took the lock meanwhile."""
        if self._finished or self.inherited:
            self.check("renew")
        if self._loss not in (None, Loss.EXPIRED, Loss.UNREACHABLE):
            raise self.lost_error("renew")
        until = max(self.ends, local_clock().now())
        persist(lambda: self.renew_once(self.terms.lease if lease is None else lease), until)
        with self._lock:
            ended = self._loss in (Loss.EXPIRED, Loss.UNREACHABLE)
            if ended and self.ends > local_clock().now():
                self._loss = None
        if ended:
            self.wanted.queue.took(self)
            self.start()
        self.wanted.process.renewer.refresh(self)
        if self.loss is not None:
            raise self.lost_error("renew")

    def ensure(self, at_least: float) -> None:
        """Raise unless this is held, and renew it first if less is left."""
        self.check("ensure_held")
        if self._in_doubt:
            msg = f"ensure_held: {self.terms.key!r} may have been given back by a write without an answer yet"
            raise MutexNotHeldError(msg, key=self.terms.key)
        if self.remaining < at_least:
            self.renew(None)

    def leave(self) -> bool:
        """Leave one level of a reentrant acquisition; return whether it is to be given back."""
        with self._lock:
            if self._finished:
                msg = f"release: {self.terms.key!r} is not held: it was released"
                raise MutexNotHeldError(msg, key=self.terms.key)
            self.depth -= 1
            self._finished = self.depth == 0
        if self._finished:
            self.wanted.process.renewer.remove(self)
        return self._finished

    @contextmanager
    def ending(self, what: str) -> Iterator[None]:
        """Send a write inside the block that gives the lock back as well.

        There is no belief meanwhile: from when it is applied another may take the lock. A renewal
        that is refused tells nothing then: the write tells what became of the claim.
        """
        if self.depth > 1:
            msg = f"{what}: {self.terms.key!r} is entered {self.depth} times: only the last one unlocks"
            raise MutexAlreadyHeldError(msg, key=self.terms.key, owner=self.wanted.owner)
        self._is_ending = True
        try:
            yield
        finally:
            self._is_ending = False

    def end(self) -> None:
        """Take note that the claim was given back by a write."""
        with self._lock:
            self.depth, self._finished = 0, True
        self.forget()

    def lost_at_release(self, claim: Claim) -> MutexLostError:
        """Return the error for a release that found another claim than ours."""
        self._loss, self.taker = self.tenure.loss(claim), claim
        return self.lost_error("release")

    def mine(self) -> dict[str, Any]:
        """Serialise what makes a claim ours: token and version."""
        return {"mine": self.tenure.token, "version": str(self.tenure.version)}

    def ttl_if_released(self) -> str:
        """Serialise when DynamoDB may delete the row if it is given back now."""
        bounds, now = self.store.server.bounds, local_clock().now()
        return self.store.ttl(NO_SERVER_TIME if bounds is None else bounds.highest(now))

    def forget(self) -> None:
        """End the belief in a hold that is not handed out, without a request."""
        self._finished = True
        self.wanted.process.renewer.remove(self)
        self.wanted.queue.left(self)
