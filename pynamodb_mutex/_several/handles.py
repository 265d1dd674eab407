"""Handles on several locks, as users see them: all of them together, or one of them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.dynamodb.keys import lock_name
from pynamodb_mutex._lock.handles import Lock
from pynamodb_mutex._lock.protocol.claim import date_of
from pynamodb_mutex._lock.protocol.messages import describe_holder, shown, shown_all
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex.exceptions import (
    MutexAlreadyHeldError,
    MutexNotHeldError,
    MutexTimeoutError,
)

if TYPE_CHECKING:
    from datetime import timedelta

    from pynamodb_mutex._lock.operations.contender import Caller
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.operations.planning import Held
    from pynamodb_mutex._several.acquire_all import AcquisitionOfSeveral

MOST = 100
"""Largest number of writes in one transaction of DynamoDB."""


class LockGroup(Lock["Held"]):
    """Several locks, acquired, renewed and released together: all or none, by one request each.

    Nobody holds some of them while waiting for others. Losing one lock is losing all. Threads may share
    it, as they may a Mutex.
    """

    def __init__(self, locks: list[Any], options: LockOptions | None = None) -> None:
        """Use `Mutex.for_keys` or `RowLockMixin.locked_all`."""
        if not 1 <= len(locks) <= MOST:
            msg = f"1 to {MOST} locks can be taken at once, not {len(locks)}"
            raise ValueError(msg)
        metas = [lock._options.model.Meta for lock in locks]
        for what in ("region", "host"):
            # a table whose Meta names none is where the environment says, which is not known here
            named = {getattr(meta, what): meta.table_name for meta in metas if getattr(meta, what)}
            if len(named) > 1:
                places = ", ".join(f"{table} in {place}" for place, table in named.items())
                msg = f"one transaction reaches the tables of one {what} only, not {places}"
                raise ValueError(msg)
        super().__init__(options or locks[0]._options)
        self._locks = locks

    def acquire(self, blocking: bool = True, timeout: float | timedelta | None = None) -> bool:
        """Acquire all the locks, or none.

        Args:
            blocking: Wait for the locks; otherwise try once.
            timeout: Seconds to wait, -1 for ever; None for the timeout that was given with the keys.

        Returns:
            Whether they were acquired. False only if DynamoDB said that another holder has one.

        Raises:
            MutexAlreadyHeldError: If this thread or task holds them by this object, and they are not
                reentrant; if they are, and it holds only some of them, or others with them; or if the wait
                would never end, as for `Mutex.acquire <pynamodb_mutex.Mutex.acquire>`.
            ValueError: For a timeout with ``blocking=False``, or a negative one other than -1; if the tables are
                in different regions.
            InvalidRowError: If one of the rows is not a lock's, or has impossible attributes.
            pynamodb.exceptions.DoesNotExist: If one of the rows to lock is missing.
            pynamodb.exceptions.TableDoesNotExist: If a table is missing.
            pynamodb.exceptions.TransactWriteError: If DynamoDB refuses the request; or if it throttled,
                failed, answered later than the lease allows, or was unreachable until the timeout.
            pynamodb.exceptions.GetError: The same, for a read: the first request to an endpoint, or a poll.
        """
        return self._acquire(blocking, timeout)

    def _asking(self) -> Operation[bool]:
        from pynamodb_mutex._several.acquire_all import are_held  # noqa: PLC0415 - as below

        process = current_process()
        locks = [(process.store(lock._options.model), lock._options) for lock in self._locks]
        return are_held(process, locks, any)

    def _attempt(self, who: Caller, patience: float, *, blocks: bool) -> AcquisitionOfSeveral:
        from pynamodb_mutex._several.acquire_all import (  # noqa: PLC0415 - seldom needed
            AcquisitionOfSeveral,
        )

        contenders = [lock._contender(who, blocks=blocks) for lock in self._locks]
        for name in ("on_lost", "on_danger"):
            call = getattr(self._options, name)
            if call is None or any(getattr(lock._options, name) == call for lock in self._locks):
                continue
            # each key is a Mutex, which keeps its own options: nobody else would report this to the group
            for lock, contender in zip(self._locks, contenders, strict=True):
                calls = (*getattr(contender, name), functools.partial(call, lock))
                setattr(contender, name, calls)
        return AcquisitionOfSeveral(contenders, patience, self._options.poll)

    def _note(self, me: Caller, held: Held) -> None:
        super()._note(me, held)
        # so that each member shows its own claim: its fencing token, data and previous holder
        for lock, claim in zip(self._locks, self._in_order(held), strict=True):
            lock._note(me, claim)

    def _in_order(self, held: Held) -> list[HeldClaim]:
        """Return the claims in the order of this object's locks.

        With reentrant locks, another object with the keys in another order may have acquired them.
        """
        found = {(claim.options.model, claim.contender.row_name): claim for claim in held.claims}
        each = [lock._options for lock in self._locks]
        return [found[own.model, lock_name(own.model, own.key, own.row)] for own in each]

    def _reentered(self, attempt: AcquisitionOfSeveral, me: Caller) -> Held | None:
        holders = [contender.key_queue.holder for contender in attempt.contenders]
        own = [claim for claim in holders if claim is not None and claim.reenters(me.number)]
        # Only all the claims of one acquisition can be entered again, and only without others: they are renewed,
        # lost and released as one. If this thread held "a" alone, and "b" were acquired now for "a" and "b", the
        # group would be two acquisitions, of which one can be lost while the other stands.
        if own and all(contender.options.reentrant for contender in attempt.contenders):
            held: Held = own[0].together
            if own[0].group is not None and set(held.claims) == set(holders):
                for claim in held.claims:
                    claim.depth += 1
                return held
            key = own[0].key
            msg = (
                f"{shown(key)} is held by this thread or task, but not together with exactly these locks: "
                "reentrant locks are acquired again only all together"
            )
            raise MutexAlreadyHeldError(msg, key=key, owner=own[0].contender.owner)
        for lock in self._locks:
            mine = lock._attempts.get(me)
            if mine is not None:
                if mine.stands_at(attempt.shared.now):
                    msg = f"{shown(lock._name)} is already held by this thread or task"
                    raise MutexAlreadyHeldError(msg, key=lock._name, owner=mine.contender.owner)
                mine.abandon()
        for handle in (self, *self._locks):
            handle._attempts[me] = None
        return None

    def _current(self, what: str) -> Held:
        held = super()._current(what)
        # the latest acquisition is remembered after its release, for `lost` and `loss`
        if held.is_released:
            raise self._not_held_error(what)
        return held

    def _not_held_error(self, what: str) -> MutexNotHeldError:
        return MutexNotHeldError(f"{what}: {self._shown} are not held", key=self._locks[0]._name)

    @property
    def _shown(self) -> str:
        return shown_all([lock._name for lock in self._locks])

    def _timeout_error(self, attempt: AcquisitionOfSeveral) -> MutexTimeoutError:
        key, claim = attempt.in_the_way
        return MutexTimeoutError(
            f"{self._shown} were not all free within {self._options.timeout} s: "
            f"{shown(key)} is {describe_holder(claim.owner, claim.expires_at)}",
            key=key,
            owner=claim.owner,
            expires_at=date_of(claim.expires_at),
        )
