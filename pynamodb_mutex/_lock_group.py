"""What locks that are acquired together have in common, be they on keys or on rows."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._handles import HandleOfSeveral, ThreadHandle
from pynamodb_mutex._operations.contender import Contender
from pynamodb_mutex._operations.options import check_at_least, check_lease
from pynamodb_mutex._operations.release import release_several
from pynamodb_mutex._operations.renew import ensure_all_held, renew
from pynamodb_mutex._protocol.messages import shown, shown_all
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.exceptions import (
    MutexAlreadyHeldError,
    MutexNotHeldError,
    MutexTimeoutError,
    describe_holder,
)

if TYPE_CHECKING:
    from pynamodb_mutex._operations.acquire_several import AcquisitionOfSeveral
    from pynamodb_mutex._operations.contender import Caller
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.held import Held, HeldClaim
    from pynamodb_mutex._operations.options import LockOptions

MOST = 100
"""Operations that DynamoDB takes in one transaction."""


class LockGroup(HandleOfSeveral, ThreadHandle["Held"]):
    """Several locks, acquired, renewed and released together: all or none, in one request each.

    Nobody holds some of them while waiting for others. Losing one lock is losing all. May be shared
    by threads, as a Mutex: each sees its own acquisition, and one that has none sees the latest.
    """

    def __init__(self, locks: list[Any], options: LockOptions | None = None) -> None:
        """Use `Mutex.for_keys` or `RowLockMixin.locked_all`."""
        if not 1 <= len(locks) <= MOST:
            msg = f"1 to {MOST} locks can be taken at once, not {len(locks)}"
            raise ValueError(msg)
        metas = [lock._options.model.Meta for lock in locks]
        for what in ("region", "host"):
            # where a table names none, the environment does
            named = {getattr(meta, what): meta.table_name for meta in metas if getattr(meta, what)}
            if len(named) > 1:
                places = ", ".join(f"{table} in {place}" for place, table in named.items())
                msg = f"one transaction reaches the tables of one {what} only, not {places}"
                raise ValueError(msg)
        super().__init__(options or locks[0]._options)
        self._locks = locks

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire all the locks, or none.

        Args:
            blocking: Wait for them.
            timeout: Seconds to wait, -1 for ever. None is as if it were not given: the one that was given
                with the keys.

        Returns:
            Whether they were acquired; False only if the store said that another holds one.

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
        return self._acquire(blocking, timeout)

    def _attempt(self, who: Caller, patience: float, *, blocks: bool) -> AcquisitionOfSeveral:
        from pynamodb_mutex._operations.acquire_several import (  # noqa: PLC0415 - seldom needed
            AcquisitionOfSeveral,
        )

        process = current_process()
        contenders = []
        for lock in self._locks:
            options = lock._options
            on_lost = functools.partial(options.on_lost, lock) if options.on_lost else None
            store = process.store(options.model)
            contenders.append(
                Contender(process, store, options, who, blocks=blocks, on_lost=on_lost)
            )
        return AcquisitionOfSeveral(contenders, patience, self._options.poll)

    def _note(self, me: int, held: Held) -> None:
        super()._note(me, held)
        for lock, claim in zip(self._locks, self._in_order(held), strict=True):
            lock._note(me, claim)

    def _in_order(self, held: Held) -> list[HeldClaim]:
        """Return the acquisitions in the order of the locks: another object may have made them."""
        found = {(claim.options.model, claim.key): claim for claim in held.claims}
        return [found[lock._options.model, lock._options.key] for lock in self._locks]

    def _reentered(self, attempt: AcquisitionOfSeveral, me: int) -> Held | None:
        holders = [contender.key_queue.holder for contender in attempt.contenders]
        own = [claim for claim in holders if claim is not None and claim.reenters(me)]
        if own and all(contender.options.reentrant for contender in attempt.contenders):
            held: Held = own[0].together
            if held.is_group and set(held.claims) == set(holders):
                for claim in held.claims:
                    claim.depth += 1
                return held
            key = own[0].key
            msg = f"{shown(key)} is held by this thread otherwise: locks are entered again only all together"
            raise MutexAlreadyHeldError(msg, key=key, owner=own[0].contender.owner)
        for lock in self._locks:
            mine = lock._holds.get(me)
            if mine is not None and mine.stands_at(attempt.shared.now):
                msg = f"{shown(lock.key)} is already held by this thread or task"
                raise MutexAlreadyHeldError(msg, key=lock.key, owner=mine.contender.owner)
        return None

    @staticmethod
    def _blocks_of(held: Held) -> Held:
        return held

    def _current(self, what: str) -> Held:
        held = super()._current(what)
        if held.is_released:
            raise self._not_held_error(what)
        return held

    def _releasing(self, held: Held) -> Operation[None]:
        try:
            yield from release_several(held)
        finally:
            if held.is_released:
                callers = [who for who, other in self._holds.items() if other is held]
                for who in callers:
                    self._holds.pop(who, None)
                    for lock in self._locks:
                        lock._holds.pop(who, None)

    def _renewing(self, lease: float | None) -> Operation[None]:
        if lease is not None:
            check_lease(lease)
        return renew(self._current("renew"), lease)

    def _ensuring(self, at_least: float) -> Operation[None]:
        claims = self._current("ensure_held").unreleased
        for claim in claims:
            check_at_least(at_least, claim.lease)
        return ensure_all_held(claims, at_least)

    def _not_held_error(self, what: str) -> MutexNotHeldError:
        return MutexNotHeldError(f"{what}: {self._names} are not held", key=self._locks[0].key)

    @property
    def _names(self) -> str:
        return shown_all([lock._options.key for lock in self._locks])

    def _timeout_error(self, attempt: AcquisitionOfSeveral) -> MutexTimeoutError:
        key, claim = attempt.in_the_way
        return MutexTimeoutError(
            f"{self._names} were not all free within {self._options.timeout} s: "
            f"{shown(key)} is {describe_holder(claim.owner, claim.expires_at)}",
            key=key,
            owner=claim.owner,
            expires_at=claim.expires_at,
        )
