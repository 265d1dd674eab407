"""Several locks at once: all or none of them, by one transaction each way.

No order of keys and no deadlock, for nobody holds some while waiting for others. Each lock is a claim
like any other from then on.
"""

from __future__ import annotations

import logging
import math
import random
import uuid
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb.constants import TRANSACT_UPDATE
from pynamodb.exceptions import GetError, PynamoDBException, TransactWriteError

from pynamodb_mutex._acquire import FirstSent
from pynamodb_mutex._claim import Claim, Tenure, Watch, new_token
from pynamodb_mutex._clock import local_clock, sleep
from pynamodb_mutex._hold import Hold
from pynamodb_mutex._release import Ending, release_request, was_running
from pynamodb_mutex._repeat import Transient, persist
from pynamodb_mutex._waiting import next_wait
from pynamodb_mutex.exceptions import MutexError, MutexLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._store import Cancelled, Store
    from pynamodb_mutex._wanted import Wanted

_log = logging.getLogger("pynamodb_mutex")

_SHORTEST_WAIT = 0.01
_TOO_SHORT = 0.5


class _Claiming:
    """One of the locks that are wanted, and what is known of its row."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.store = wanted.store
        self.watch = Watch()
        self.version = 0
        self.start_anew()

    def start_anew(self) -> None:
        """Begin another try, whose outcome is not to be mistaken for the last one's."""
        self.tenure = Tenure(new_token(), self.wanted.terms.lease)
        self._first_end = 0.0

    def free_at(self) -> float:
        """Return the local time from which the row may be taken, as far as is known."""
        if self.watch.claim is None:
            return -math.inf
        return self.watch.free_at(self.store.server.bounds)

    def request(self) -> dict[str, Any]:
        """Return the update that takes the row, for an attempt about to be sent."""
        now, rows, terms = local_clock().now(), self.store.rows, self.wanted.terms
        end, lease = self.tenure.propose(now, self.store.server.bounds, terms.lease)
        self._first_end = self._first_end or end
        if not self.version:
            self.version = self.store.next_version(now)
        values = self.wanted.values(lease, end) | {
            "token": self.tenure.token,
            "new_version": str(self.version),
            "now_low": self.store.now_low(now),
        }
        watched = self.watch.claim if now >= self.watch.matures() else None
        if watched is not None:
            values |= self.store.seen(watched)
        template = rows.acquire_exactly(watched=watched is not None, data="data" in values)
        return template.fill(terms.row, values)

    def is_ours(self, claim: Claim) -> bool:
        """Say whether a row that refused us shows that an earlier attempt was applied."""
        token_is_ours = claim.token == self.tenure.token and claim.version == self.version
        return token_is_ours and claim.expires_at is not None

    def see(self, claim: Claim, received: float) -> None:
        """Take note of a row that refused us."""
        self.watch.see(claim, received)
        self.version = max(self.version, claim.version + 1)

    def hold(self, sent: float) -> Hold:
        """Return the acquisition, whichever of the attempts since ``sent`` made it."""
        wanted, tenure = self.wanted, self.tenure
        claim = Claim(
            token=tenure.token,
            version=self.version,
            expires_at=self._first_end,
            lease=wanted.terms.lease,
            owner=wanted.owner,
        )
        return Hold(wanted, tenure, claim, {}, sent)

    def disown(self) -> None:
        """Try to end a claim that nobody will believe in."""
        values = {"mine": self.tenure.token, "ttl": self.store.ttl(self.tenure.proposed)}
        try:
            self.store.write(self.store.rows.disown, self.wanted.terms.row, values)
        except (Transient, PynamoDBException) as error:
            key = self.wanted.terms.key
            _log.warning("%s may be held by nobody for up to a lease: %s", key, error)


class GroupAcquisition:
    """An attempt of one thread to get several locks, until a deadline."""

    def __init__(self, wanted: Sequence[Wanted], deadline: float) -> None:
        self._members = [_Claiming(each) for each in wanted]
        self._deadline = deadline
        self._store: Store = wanted[0].store

    @property
    def in_the_way(self) -> tuple[str, Claim]:
        """Key and claim of a lock that was not free."""
        blocked = max(self._members, key=lambda member: member.free_at())
        return blocked.wanted.terms.key, blocked.watch.claim or Claim()

    def run(self, *, blocking: bool) -> list[Hold] | None:
        """Get all the locks; None if they were not free in time."""
        clock, waited = local_clock(), 0.0
        poll = self._members[0].wanted.terms.poll
        while True:
            holds = self._take() if self._looks_free() else None
            now = clock.now()
            if holds is not None or not blocking or now >= self._deadline:
                return holds
            waited = next_wait(waited, poll)
            frees_at = max(member.free_at() for member in self._members)
            # many wait for the same end: not all at that instant
            soon = max(now + _SHORTEST_WAIT, frees_at + random.uniform(0, poll[0]))  # noqa: S311 - jitter
            sleep(min(now + waited, soon, self._deadline) - now)

    def _looks_free(self) -> bool:
        """Look at what stood in the way: half a read unit, where a transaction costs two writes each."""
        if self._members[0].wanted.process.left_behind:
            raise MutexError(
                "the process was forked, or its engine left, while it waited for locks"
            )
        for member in self._members:
            store, row = member.store, member.wanted.terms.row
            # without server time the claim would have no end by which others can judge
            first_contact = store.server.bounds is None and member.watch.claim is None
            if not first_contact and local_clock().now() >= member.free_at():
                continue
            look = partial(store.read, row, consistent=first_contact)
            try:
                answer = persist(look, self._deadline)
            except GetError as error:
                # to the caller it is the acquisition that failed
                raise TransactWriteError(error.msg, error.cause) from error.cause
            member.watch.see(answer.claim, answer.received)
            if answer.received < member.free_at():
                return False
        return True

    def _take(self) -> list[Hold] | None:
        """Send the transaction; None if another holds one of the locks."""
        first_sent = FirstSent()

        def attempt() -> Cancelled | None:
            with first_sent.attempt():
                items = [{TRANSACT_UPDATE: member.request()} for member in self._members]
                return self._store.transact(items, str(uuid.uuid4()))

        while True:
            for member in self._members:
                member.start_anew()
            try:
                cancelled = persist(attempt, self._deadline)
                if cancelled is None or self._is_ours(cancelled):
                    return self._start(first_sent.at)
            except BaseException:
                if first_sent.at < math.inf:
                    for member in self._members:
                        member.disown()
                raise
            first_sent.at = math.inf
            if self._is_blocked(cancelled):
                return None
            # else it was refused for a fencing token, or an end, that is known now

    def _is_ours(self, cancelled: Cancelled) -> bool:
        return any(
            self._members[place].is_ours(self._members[place].store.rows.claim(item))
            for place, item in cancelled.items.items()
        )

    def _is_blocked(self, cancelled: Cancelled) -> bool:
        """Take note of what refused us; say whether another holds it."""
        blocked = False
        for place, item in cancelled.items.items():
            member = self._members[place]
            if member.store.rows.must_exist and not item:
                key, model = member.wanted.terms.key, member.wanted.terms.model
                raise model.DoesNotExist(f"{key}: no such row to lock")
            member.see(member.store.rows.claim(item), cancelled.received)
            blocked = blocked or cancelled.received < member.free_at()
        return blocked

    def _start(self, sent: float) -> list[Hold] | None:
        holds = [member.hold(sent) for member in self._members]
        for hold in holds:
            hold.companions = tuple(other for other in holds if other is not hold)
            if hold.remaining < _TOO_SHORT * hold.terms.lease:
                # this process's clock may have stood still
                with suppress(PynamoDBException):
                    hold.renew(None)
        if not all(hold.held for hold in holds):
            for member, hold in zip(self._members, holds, strict=True):
                hold.forget()
                member.disown()
            return None
        for hold in holds:
            hold.wanted.queue.took(hold)
            hold.start()
        return holds


def release_all(holds: Sequence[Hold]) -> None:
    """Give locks back, by one transaction as a rule.

    Raises:
        MutexLostError: If one had been lost; the others are given back.
        MutexNotHeldError: If one is not held here.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    lost: MutexLostError | None = None
    try:
        for hold in holds:
            hold.check("release")
    except MutexLostError as error:
        # with one all were lost, but claims of others may still stand
        lost = error
    runs_until = min(hold.ends for hold in holds)
    for hold in holds:
        hold.leave()
    try:
        endings = [Ending(hold, runs_until) for hold in holds]
        if lost is not None or not _release_together(endings):
            lost = _release_singly(endings) or lost
    finally:
        for hold in holds:
            hold.wanted.queue.left(hold)
    if lost is not None:
        raise lost


def _release_together(endings: Sequence[Ending]) -> bool:
    """Send the transaction; return whether it was applied."""

    def attempt() -> Cancelled | None:
        items = []
        for ending in endings:
            hold = ending.hold
            values = hold.mine() | {"ttl": hold.ttl_if_released()}
            items.append(
                {TRANSACT_UPDATE: hold.store.rows.release_held.fill(hold.terms.row, values)}
            )
        try:
            return endings[0].hold.store.transact(items, str(uuid.uuid4()))
        except Transient as failure:
            for ending in endings:
                ending.may_be_applied = ending.may_be_applied or failure.maybe_applied
            raise

    return persist(attempt, endings[0].until) is None


def _release_singly(endings: Sequence[Ending]) -> MutexLostError | None:
    """Release each for itself; return the error of the first that had been lost."""
    lost: MutexLostError | None = None
    for ending in endings:
        try:
            ending.send(release_request(ending.hold), was_running)
        except MutexLostError as error:
            lost = lost or error
    return lost
