"""What locks that are taken together have in common, be they on keys or on rows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn

from pynamodb_mutex._blocks import Blocks
from pynamodb_mutex._callers import this_caller
from pynamodb_mutex._group import GroupAcquisition
from pynamodb_mutex._messages import shown, shown_all
from pynamodb_mutex._process import current_process
from pynamodb_mutex._terms import Made, check_at_least, check_lease
from pynamodb_mutex._waiting import Alarm, all_steps
from pynamodb_mutex._wanted import Wanted
from pynamodb_mutex.exceptions import (
    MutexAlreadyHeldError,
    MutexNotHeldError,
    MutexTimeoutError,
    describe_holder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._claim import Loss
    from pynamodb_mutex._group_hold import GroupHold
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._terms import Terms
    from pynamodb_mutex._waiting import Steps
    from pynamodb_mutex.mutex import Mutex

MOST = 100
"""Operations that DynamoDB takes in one transaction."""


class LockGroup(Blocks["GroupHold"], Made):
    """Several locks, taken, renewed and given back together: all or none, in one request each.

    Nobody holds some of them while waiting for others. Losing one lock is losing all. May be shared
    by threads, as a Mutex: each sees its own acquisition, and one that has none sees the latest.
    """

    def __init__(self, locks: Sequence[Mutex], terms: Terms | None = None) -> None:
        """Use `Mutex.for_keys` or `RowLockMixin.locked_all`."""
        if not 1 <= len(locks) <= MOST:
            msg = f"1 to {MOST} locks can be taken at once, not {len(locks)}"
            raise ValueError(msg)
        metas = [lock._terms.model.Meta for lock in locks]
        for what in ("region", "host"):
            # where a table names none, the environment does
            named = {getattr(meta, what): meta.table_name for meta in metas if getattr(meta, what)}
            if len(named) > 1:
                places = ", ".join(f"{table} in {place}" for place, table in named.items())
                msg = f"one transaction reaches the tables of one {what} only, not {places}"
                raise ValueError(msg)
        self._locks = locks
        self._terms = terms or locks[0]._terms
        self._holds: dict[int, GroupHold] = {}
        self._latest: GroupHold | None = None
        self._entered: dict[int, list[GroupHold]] = {}

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take all the locks, or none.

        Args:
            blocking: Wait for them.
            timeout: Seconds to wait, -1 for ever. None is as if it were not given: the one that was given
                with the keys.

        Returns:
            Whether they were taken; False only if the store said that another holds one.

        Raises:
            MutexAlreadyHeldError: If this thread holds them by this object, and they are not
                reentrant; or if they are, and it holds some of them otherwise; or if the wait would never
                end, as `Mutex.acquire <pynamodb_mutex.Mutex.acquire>` says.
            ValueError: For a timeout with ``blocking=False``, or a negative one other than -1.
            InvalidRowError: If one of the rows is not a lock's, or its lock attributes cannot be right.
            pynamodb.exceptions.DoesNotExist: If one of the rows to lock is missing.
            pynamodb.exceptions.TableDoesNotExist: If a table is.
            pynamodb.exceptions.TransactWriteError: If DynamoDB refuses the request at all, or could
                not be reached, or was throttling, until the timeout; GetError if that was a read, as a
                first request or a poll is.
        """
        return self._acquire(blocking, timeout) is None

    def _acquire(self, blocking: bool, timeout: float | None) -> GroupAcquisition | None:
        """Take the locks; return the failed attempt if they were not free."""
        alarm = Alarm()
        return all_steps(self._acquiring(blocking, timeout, alarm), alarm)

    def _acquiring(
        self, blocking: bool, timeout: float | None, alarm: Alarm
    ) -> Steps[GroupAcquisition | None]:
        waits, deadline = self._terms.patience(blocking, timeout)
        me = this_caller()
        process = current_process()
        wanted = []
        for lock in self._locks:
            terms = lock._terms
            on_lost = functools.partial(terms.on_lost, lock) if terms.on_lost else None
            wanted.append(Wanted(terms, process.store(terms.model), process, on_lost))
        mine = self._entered_again(wanted, me)
        if mine is None:
            acquisition = GroupAcquisition(wanted, deadline, self._terms.poll)
            mine = yield from acquisition.run(alarm, blocking=waits)
            if mine is None:
                return acquisition
            self._note(me, mine)
            acquisition.tell(mine)
        else:
            self._note(me, mine)
        return None

    def _note(self, me: int, group: GroupHold) -> None:
        """Take note that this thread or task holds the locks."""
        self._holds[me] = self._latest = group
        for lock, hold in zip(self._locks, self._in_order(group), strict=True):
            lock._holds[me] = lock._latest = hold

    def _in_order(self, group: GroupHold) -> list[Hold]:
        """Return the acquisitions in the order of the locks: another object may have made them."""
        found = {(hold.terms.model, hold.terms.key): hold for hold in group.members}
        return [found[lock._terms.model, lock.key] for lock in self._locks]

    def _entered_again(self, wanted: Sequence[Wanted], me: int) -> GroupHold | None:
        """Enter the acquisition that this thread has already, if it is one of the same locks.

        Raises:
            MutexAlreadyHeldError: If it may not: it would wait for itself.
        """
        holders = [each.queue.holder for each in wanted]
        own = [hold for hold in holders if hold is not None and hold.reenters(me)]
        if own and all(each.terms.reentrant for each in wanted):
            group = own[0].group
            if group is not None and set(group.members) == set(holders):
                for hold in group.members:
                    hold.depth += 1
                return group
            key = own[0].terms.key
            msg = f"{shown(key)} is held by this thread otherwise: locks are entered again only all together"
            raise MutexAlreadyHeldError(msg, key=key, owner=own[0].wanted.owner)
        for lock in self._locks:
            mine = lock._holds.get(me)
            if mine is not None and mine.stands:
                msg = f"{shown(lock.key)} is already held by this thread or task"
                raise MutexAlreadyHeldError(msg, key=lock.key, owner=mine.wanted.owner)
        return None

    def release(self) -> None:
        """Give the locks back.

        Raises:
            MutexLostError: If one had been lost; the others are given back.
            MutexNotHeldError: If they are not held here.
            pynamodb.exceptions.PynamoDBException: If DynamoDB cannot be reached; the locks then end
                with their leases.
        """
        self._release(self._current("release"))

    def _release(self, group: GroupHold) -> None:
        try:
            group.release()
        finally:
            if group.finished:
                callers = [caller for caller, other in self._holds.items() if other is group]
                for caller in callers:
                    self._holds.pop(caller, None)
                    for lock in self._locks:
                        lock._holds.pop(caller, None)

    def renew(self, lease: float | None = None) -> None:
        """Renew all now, by one request. The new ends count from now and never come before the old.

        Leases that have ended are won back if nobody took one of the locks meanwhile.

        Args:
            lease: Seconds, for this renewal alone; each lock's own by default.

        Raises:
            MutexLostError: If they are lost.
            MutexNotHeldError: If they are not held here.
            pynamodb.exceptions.TransactWriteError: If DynamoDB cannot be reached until a lease ends.
        """
        if lease is not None:
            check_lease(lease)
        self._current("renew").renew(lease)

    def ensure_held(self, at_least: float = 0.0) -> None:
        """Raise unless all the locks are held, and renew them first if less is left of one.

        Args:
            at_least: Seconds that must be left of each lease.

        Raises:
            MutexLostError: If they are lost.
            MutexNotHeldError: If they are not held here.
        """
        for hold in self._current("ensure_held").holds:
            check_at_least(at_least, hold.terms.lease)
            hold.ensure(at_least)

    @property
    def held(self) -> bool:
        """Whether all the locks are held here, now, by the local clock. No I/O."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds until the first lease ends, by the local clock; 0 if the locks are not held."""
        group = self._mine()
        return 0.0 if group is None else group.remaining

    @property
    def deadline(self) -> float:
        """When the protected work must be over: that of the lock that ends first.

        By the clock that `Mutex.deadline <pynamodb_mutex.Mutex.deadline>` names.

        Raises:
            MutexNotHeldError: If the locks were never taken.
        """
        return min(lock.deadline for lock in self._locks)

    @property
    def lost(self) -> bool:
        """Whether the locks were held here and lost before they were given back. No I/O."""
        return self.loss is not None

    @property
    def loss(self) -> Loss | None:
        """Why they were lost; None if they were not."""
        group = self._mine()
        return None if group is None else group.loss

    def _entering(self, alarm: Alarm) -> Steps[Any]:
        failed = yield from self._acquiring(True, None, alarm)
        if failed is not None:
            raise self._timeout_error(failed)
        self._enters()
        return self

    def __repr__(self) -> str:
        """Say what is known, without asking."""
        group, state = self._mine(), "not held"
        if group is not None and group.remaining > 0:
            state = f"held, {group.remaining:.1f} s left"
        elif group is not None and group.loss is not None:
            state = f"lost: {group.why}"
        return f"<{type(self).__name__} {self._names}: {state}>"

    def __bool__(self) -> NoReturn:
        """Refuse: what would be asked is not clear."""
        msg = f"{type(self).__name__} has no truth value: use .held, or the result of .acquire()"
        raise TypeError(msg)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: an acquisition belongs to one process."""
        msg = f"{type(self).__name__} cannot be pickled: make it where it is used"
        raise TypeError(msg)

    @property
    def _names(self) -> str:
        return shown_all([lock.key for lock in self._locks])

    def _mine(self) -> GroupHold | None:
        # see View
        current_process().threads.start()
        return self._holds.get(this_caller()) or self._latest

    def _current(self, what: str) -> GroupHold:
        group = self._mine()
        if group is None or group.finished:
            raise self._not_held(what)
        return group

    def _not_held(self, what: str) -> MutexNotHeldError:
        return MutexNotHeldError(f"{what}: {self._names} are not held", key=self._locks[0].key)

    def _timeout_error(self, failed: GroupAcquisition) -> MutexTimeoutError:
        key, claim = failed.in_the_way
        return MutexTimeoutError(
            f"{self._names} were not all free within {self._terms.timeout} s: "
            f"{shown(key)} is {describe_holder(claim.owner, claim.expires_at)}",
            key=key,
            owner=claim.owner,
            expires_at=claim.expires_at,
        )
