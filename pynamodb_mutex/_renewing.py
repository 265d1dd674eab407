"""What is renewed in the background until it ends: one claim, or several that are held together."""

from __future__ import annotations

import logging
import math
import random
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex import _events
from pynamodb_mutex._batch import renew_together
from pynamodb_mutex._claim import TOO_SHORT
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._messages import shown
from pynamodb_mutex._repeat import Transient, persist

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pynamodb_mutex._claim import Loss
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._process import Process

_log = logging.getLogger("pynamodb_mutex")

RENEWALS_PER_LEASE = 3
_MOST_RENEWALS_UNDER_WAY = 2
_EARLY = 1 / 30
"""Of the lease: a tenth of the time from one renewal to the next. Those that are once renewed together
are due together from then on."""


class _Plan(NamedTuple):
    """When to renew next.

    An answer about any row may show that server time is further on than was known, so that a lease
    which was counted on ends earlier: up to a second, which is all of a short one. What was planned for
    the later end would then come after the end.

    Attributes:
        since: Local time before the last renewal was sent.
        end: Of the lease, as it was known then.
        at: The local time that was planned; infinity for never.
    """

    since: float
    end: float
    at: float

    def due(self, end: float) -> float:
        """Return when to renew, given the lease's end as it is known now."""
        if end >= self.end:
            return self.at
        return min(self.at, _third_of_the_way(self.since, end))


def _third_of_the_way(since: float, end: float) -> float:
    return since + max(0.0, end - since) / RENEWALS_PER_LEASE


_NEVER = _Plan(-math.inf, -math.inf, math.inf)


class Renewing(ABC):
    """When to renew, and what becomes of a renewal that fails (see `_renewer.Renewed`).

    Attributes:
        changing: Kept while it is lost or won back as a whole.
        ended_by_max_hold: The ``max_hold`` that ended its renewals, in seconds; None if none did.
        blocks: How many ``with`` blocks that began with it have not ended.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self.changing = threading.Lock()
        self.blocks = 0
        self._renewals_under_way = 0
        self._queued = False
        self._unreachable = False
        self._alone = False
        self._plan = _NEVER
        self.ended_by_max_hold: float | None = None

    @property
    @abstractmethod
    def holds(self) -> Sequence[Hold]:
        """The acquisitions that are not given back."""

    @property
    @abstractmethod
    def ends(self) -> float:
        """Local time at which the holder stops believing."""

    @property
    @abstractmethod
    def over(self) -> bool:
        """Whether it is known to have ended, or is another process's."""

    @property
    @abstractmethod
    def stands(self) -> bool:
        """Whether it is not known to have ended, though a write may have given it back."""

    @property
    @abstractmethod
    def loss(self) -> Loss | None:
        """Why it was lost; None if it was not."""

    @abstractmethod
    def renew_once(self, lease: float | None) -> Sequence[Hold]:
        """Send a renewal, again only if it met a later one; a refusal is a loss.

        Args:
            lease: Seconds; by default each lock's own.

        Returns:
            Those that were renewed by it.

        Raises:
            Transient: If it may pass.
            PynamoDBException: If it cannot.
        """

    @property
    def unanswered(self) -> bool:
        """Whether the last renewals had no answer."""
        return self._unreachable or self._renewals_under_way > 0

    def start(self) -> None:
        """Look after it in the background, from when it is handed out."""
        asked = any(hold.terms.auto_renew or hold.terms.on_lost is not None for hold in self.holds)
        if asked or _events.on_lost.receivers:
            self._process.renewer.add(self)

    def stop(self) -> None:
        """Do not look after it any more, if it is over."""
        if self.over:
            self._process.renewer.remove(self)

    def plan(self, sent: float) -> None:
        """Set when to renew claims asked for at ``sent``: early if one came out short."""
        if all(hold.terms.auto_renew for hold in self.holds):
            ends = self.ends
            self._plan = _Plan(sent, ends, _third_of_the_way(sent, ends))

    def due(self) -> float:
        """Return when the renewer should call (see `_renewer.Renewed`)."""
        ends = self.ends
        return math.inf if self.over else min(ends, self._plan.due(ends))

    @property
    def batch(self) -> object | None:
        """Those of the same may be renewed by one request; None: by none with others."""
        return None

    @property
    def early(self) -> float:
        """Seconds by which it may be renewed before it is due, if that spares a request."""
        return _EARLY * self._shortest_lease(self.holds)

    def tend(self, ahead: float = 0.0) -> tuple[float, bool]:
        """Take note of the lease's end, or say that a renewal is due (see `_renewer.Renewed`)."""
        now = local_clock().now()
        for hold in self.holds:
            hold.note_end()
        is_due = not self.over and now + ahead >= self._plan.due(self.ends)
        sends = is_due and self._is_to_renew(now)
        return self.due(), sends

    def _is_to_renew(self, now: float) -> bool:
        """Say whether to send the renewal that is due; plan the next one in any case."""
        holds = self.holds
        for hold in holds:
            if hold.is_over_max_hold(now):
                _log.warning(
                    "%s is held for more than %s s: not renewed",
                    *(shown(hold.terms.key), hold.terms.max_hold),
                    extra=hold.log_fields,
                )
                self._plan, self.ended_by_max_hold = _NEVER, hold.terms.max_hold
                return False
        # counted from this sending, so that one that hangs is followed by another
        self._plan = _Plan(now, self.ends, now + self._shortest_lease(holds) / RENEWALS_PER_LEASE)
        if self._queued or self._renewals_under_way >= _MOST_RENEWALS_UNDER_WAY:
            return False
        self._queued = True
        return True

    def send_renewal(self, *others: Any) -> None:
        """Send one renewal in the background, or one with others (see `_renewer.Renewed`)."""
        members = (self, *others)
        for member in members:
            with member.changing:
                member._queued = False
                member._renewals_under_way += 1
        try:
            standing = [member for member in members if member.stands]
            if len(standing) > 1:
                renew_together(standing)
            elif standing:
                standing[0].renew_alone()
        finally:
            for member in members:
                with member.changing:
                    member._renewals_under_way -= 1
                self._process.renewer.refresh(member)

    def renew_alone(self) -> None:
        """Send one renewal by itself in the background; one that fails is due again soon."""
        sent = local_clock().now()
        try:
            renewed = self.renew_once(None)
        except (Transient, PynamoDBException) as error:
            self.renewal_failed(error)
        else:
            self._alone = False
            self.plan(sent)
            self.tell_renewed(renewed)

    def tell_renewed(self, renewed: Iterable[Hold]) -> None:
        """Tell who was renewed, but for those whose claim came too late to be believed in."""
        for hold in renewed:
            if not hold.over:
                _events.renewed(hold)

    def renewal_failed(self, error: Exception) -> None:
        """Let it be repeated soon, and by itself: only the store's refusal, or its end, is a loss."""
        self._unreachable = self._alone = True
        pause = min(1.0, self._shortest_lease(self.holds) / 10)
        now = local_clock().now()
        at = now + random.uniform(pause / 2, pause)  # noqa: S311 - jitter
        self._plan = _Plan(now, self.ends, at)
        self._tell_failed(error)

    def _tell_failed(self, error: Exception) -> None:
        for hold in self.holds:
            _events.renewal_failed(hold, error.error if isinstance(error, Transient) else error)

    def renew(self, lease: float | None) -> None:
        """Renew now, and tell; a lease that ended is won back if nobody took the lock meanwhile."""
        renewed, won_back = self.renew_untold(lease)
        for hold in won_back:
            _events.won_back(hold)
        self.tell_renewed(hold for hold in renewed if hold not in won_back)

    def renew_untold(
        self, lease: float | None, patience: float = math.inf
    ) -> tuple[Sequence[Hold], Sequence[Hold]]:
        """Do so without telling; return who was renewed, and who was won back.

        Not always by the same: one that a later renewal has overtaken wins back what that one renewed.
        """
        for hold in self.holds:
            hold.check_renewable()
        now = local_clock().now()
        until = min(max(self.ends, now), now + patience)
        try:
            first = next(iter(self.holds), None)
            renewed = persist(lambda: self.renew_once(lease), until, first)
            if renewed and self._came_out_short(lease):
                # After an idle time, or one for which the local clock stood still, the end was proposed
                # from bounds far behind. They are not any more.
                renewed = persist(lambda: self.renew_once(lease), until, first)
        except PynamoDBException as error:
            self._tell_failed(error)
            raise
        holds = self.holds
        with self.changing:
            lost = [hold for hold in holds if hold.over]
            won = all(hold.ended for hold in lost) and self.ends > local_clock().now()
            won_back = [hold for hold in lost if won and hold.win_back()]
        if lost:
            self.start()
        self._process.renewer.refresh(self)
        for hold in self.holds:
            if hold.loss is not None:
                raise hold.lost_error("renew")
        return renewed, won_back

    def _came_out_short(self, lease: float | None) -> bool:
        whole = self._shortest_lease(self.holds) if lease is None else lease
        return self.ends - local_clock().now() < TOO_SHORT * whole

    @staticmethod
    def _shortest_lease(holds: Sequence[Hold]) -> float:
        return min((hold.terms.lease for hold in holds), default=math.inf)
