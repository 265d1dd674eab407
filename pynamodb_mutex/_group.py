"""Several locks at once: all or none of them, by one transaction each way.

No order of keys and no deadlock, for nobody holds some while waiting for others. Each lock is a claim
like any other from then on.
"""

from __future__ import annotations

import logging
import math
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pynamodb.constants import TRANSACT_UPDATE
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex import _events
from pynamodb_mutex._acquire import Effort, FirstSent, claim_in_the_way, disown, told
from pynamodb_mutex._claim import TOO_SHORT, Claim, Tenure, Watch, new_token
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._group_hold import GroupHold
from pynamodb_mutex._hold import Hold
from pynamodb_mutex._keys import row_name
from pynamodb_mutex._messages import shown
from pynamodb_mutex._repeat import persisting
from pynamodb_mutex._waiting import AT_ONCE, frees_soon, next_wait
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamodb.models import Model

    from pynamodb_mutex._answers import Cancelled
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._store import Store
    from pynamodb_mutex._waiting import Alarm, Steps
    from pynamodb_mutex._wanted import Wanted

_log = logging.getLogger("pynamodb_mutex")


def read_rows(
    store: Store, wanted: Sequence[tuple[type[Model], RawItem]], *, consistent: bool
) -> list[RawItem]:
    """Read up to 100 rows by model and key, by one request; an empty one is not there.

    Raises:
        Transient: If it may pass.
        PynamoDBException: If it cannot.
    """
    keys: dict[str, list[RawItem]] = {}
    models = {}
    for model, key in wanted:
        keys.setdefault(model.Meta.table_name, []).append(key)
        models[model.Meta.table_name] = model
    # by name, for a number may come back spelt otherwise
    by_name = {}
    for table, items in store.read_all(keys, consistent=consistent).items():
        for item in items:
            found = {name: item[name] for name in keys[table][0]}
            by_name[row_name(models[table], found)] = item
    return [by_name.get(row_name(model, key), {}) for model, key in wanted]


class _Claiming:
    """One of the locks that are wanted, and what is known of its row."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.store = wanted.store
        self.watch = Watch()

    def start_anew(self) -> None:
        """Begin another try, whose outcome is not to be mistaken for the last one's."""
        store, seen = self.store, self.watch.claim or Claim()
        # not before what is known of the row and of server time was read
        self.tenure = Tenure(new_token(store.server_now()), self.wanted.terms.lease)
        self.version = max(store.next_version(local_clock().now()), seen.version + 1)
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

    def see(self, claim: Claim, received: float) -> bool:
        """Take note of another's row; return whether it has changed hands since the last look."""
        before = self.watch.claim
        self.watch.see(claim, received)
        return before is not None and before.token != claim.token

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


class GroupAcquisition:
    """An attempt to get several locks, until a deadline."""

    def __init__(
        self, wanted: Sequence[Wanted], deadline: float, poll: tuple[float, float]
    ) -> None:
        self._members = [_Claiming(each) for each in wanted]
        self._queues = [each.queue for each in wanted]
        self._deadline = deadline
        self._poll = poll
        self._waited = 0.0
        self._store: Store = wanted[0].store
        self._effort = Effort()
        self._tells = True

    @property
    def in_the_way(self) -> tuple[str, Claim]:
        """Key and claim of a lock that was not free."""
        blocked = max(self._members, key=lambda member: member.free_at())
        return blocked.wanted.terms.key, blocked.watch.claim or Claim()

    def run(self, alarm: Alarm, *, blocking: bool) -> Steps[GroupHold | None]:
        """Get all the locks, in steps, and tell of it; None if they were not free in time."""
        self._effort.since = local_clock().now()
        return (yield from told(self._run(alarm, blocking=blocking), self._came_to_nothing))

    def tell(self, group: GroupHold) -> None:
        """Tell that the locks were acquired."""
        try:
            for hold in group.members:
                _events.acquired(hold, self._effort)
        except BaseException:
            # interrupted in a receiver: nobody would know that they are to be given back
            with suppress(PynamoDBException):
                group.release()
            raise

    def _came_to_nothing(self, error: BaseException | None) -> None:
        for member in self._members:
            _events.not_acquired(member.wanted, self._effort, error)

    def _tell_contended(self) -> None:
        """Tell of each lock that is held, once: when it is first known of any."""
        now = local_clock().now()
        for member in self._members:
            claim = claim_in_the_way(member.watch, member.wanted)
            if claim is not None and (member.watch.claim is None or now < member.free_at()):
                self._tells = False
                _events.contended(member.wanted, claim)

    def _run(self, alarm: Alarm, *, blocking: bool) -> Steps[GroupHold | None]:
        if blocking:
            self._check_wait(alarm)
        yield AT_ONCE
        # those of this process that have waited for longer come first
        waits_first = blocking and any(queue.watchers for queue in self._queues)
        if not waits_first:
            hold = yield from self._look()
            if hold is not None:
                return hold
        self._tell_contended()
        if not blocking:
            return None
        with self._watching(alarm):
            while True:
                now = local_clock().now()
                if not waits_first and now >= self._deadline:
                    return None
                waits_first = False
                if self._deadline == math.inf:
                    self._check_wait(alarm)
                self._waited = next_wait(self._waited, self._poll)
                frees_at = max(member.free_at() for member in self._members)
                soon = math.inf if frees_at == -math.inf else frees_soon(now, frees_at, self._poll)
                yield min(now + self._waited, soon, self._deadline)
                hold = yield from self._look()
                if hold is not None:
                    return hold
                if self._tells:
                    self._tell_contended()

    def _check_wait(self, alarm: Alarm) -> None:
        """Refuse a wait for what only the waiting thread, or task, could do: see `Acquisition`."""
        for wanted in (member.wanted for member in self._members):
            stalled = wanted.stalled_holder(alarm)
            if stalled is not None:
                from pynamodb_mutex._self_wait import refuse_wait  # noqa: PLC0415 - seldom needed

                refuse_wait(wanted, stalled, self._deadline)

    @contextmanager
    def _watching(self, alarm: Alarm) -> Iterator[None]:
        """Be woken when this process gives one of the locks back."""
        for queue in self._queues:
            with queue.lock:
                queue.watchers.append(alarm)
        try:
            yield
        finally:
            for queue in self._queues:
                with queue.lock:
                    was_first = queue.watchers[0] is alarm
                    queue.watchers.remove(alarm)
                    if was_first and queue.watchers and queue.holder is None:
                        # who leaves may have been woken, and have left the lock to the next
                        queue.watchers[0].ring()

    def _look(self) -> Steps[GroupHold | None]:
        """Take the locks if they are free, as far as one can see."""
        free = yield from self._looks_free()
        return (yield from self._take()) if free else None

    def _looks_free(self) -> Steps[bool]:
        """Look at what stood in the way: half a read unit, where a transaction costs two writes each."""
        if self._members[0].wanted.process.left_behind:
            raise MutexError(
                "the process was forked, or its engine left, while it waited for locks"
            )
        # see `Acquisition.look`
        learns_time = self._members[0].watch.claim is None and not all(
            member.store.knows_time(member.wanted.terms.lease) for member in self._members
        )
        now = local_clock().now()
        members = [member for member in self._members if learns_time or now < member.free_at()]
        if not members:
            return True
        keys = [(member.wanted.terms.model, member.wanted.terms.row) for member in members]

        def attempt() -> list[RawItem]:
            self._effort.attempts += 1
            return read_rows(self._store, keys, consistent=learns_time)

        rows = yield from persisting(attempt, self._deadline, members[0].wanted)
        received = local_clock().now()
        return not self._is_blocked(dict(zip(members, rows, strict=True)), received)

    def _take(self) -> Steps[GroupHold | None]:
        """Send the transaction; None if another holds one of the locks."""
        first_sent = FirstSent()
        before: dict[int, RawItem] = {}

        def attempt() -> Cancelled | None:
            self._effort.attempts += 1
            with first_sent.attempt():
                items = [{TRANSACT_UPDATE: member.request()} for member in self._members]
                return self._store.transact(items, str(uuid.uuid4()))

        while True:
            for member in self._members:
                member.start_anew()
            try:
                cancelled = yield from persisting(attempt, self._deadline, self._members[0].wanted)
                if cancelled is None or self._is_ours(cancelled):
                    return self._start(first_sent.at)
            except BaseException:
                if first_sent.at < math.inf:
                    for member in self._members:
                        disown(member.wanted, member.tenure)
                raise
            first_sent.at = math.inf
            refused = {self._members[place]: item for place, item in cancelled.items.items()}
            if self._is_blocked(refused, cancelled.received) or cancelled.items == before:
                return None
            # It was refused for a fencing token, or an end, that is known now. If the same rows refuse it
            # again, whatever the reason is, sending it once more is for the next poll: neither the timeout nor
            # blocking=False is looked at in this loop.
            before = cancelled.items

    def _is_ours(self, cancelled: Cancelled) -> bool:
        return any(
            self._members[place].is_ours(self._members[place].store.rows.claim(item))
            for place, item in cancelled.items.items()
        )

    def _is_blocked(self, rows: dict[_Claiming, RawItem], received: float) -> bool:
        """Take note of rows that may be another's; say whether one is held."""
        blocked = changed = False
        for member, item in rows.items():
            if member.store.rows.must_exist and not item:
                key, model = member.wanted.terms.key, member.wanted.terms.model
                raise model.DoesNotExist(f"{shown(key)}: no such row to lock")
            changed |= member.see(member.store.rows.claim(item), received)
            blocked |= received < member.free_at()
        if changed:
            # it is held for short times: to look seldom would be to find it held by the next one
            self._waited = 0.0
        return blocked

    def _start(self, sent: float) -> GroupHold | None:
        group = GroupHold([member.hold(sent) for member in self._members], sent)
        if any(hold.remaining < TOO_SHORT * hold.terms.lease for hold in group.members):
            # this process's clock may have stood still
            with suppress(PynamoDBException):
                group.renew(None)
        if not group.remaining:
            for member, hold in zip(self._members, group.members, strict=True):
                hold.forget()
                disown(member.wanted, member.tenure)
            return None
        for hold in group.members:
            hold.wanted.queue.took(hold)
        group.start()
        return group
