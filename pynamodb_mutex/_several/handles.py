"""Handles on several locks, as users see them: all of them, or any one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn

from pynamodb_mutex._lock.dynamodb.keys import lock_name, row_name
from pynamodb_mutex._lock.handles import HandleOfOne, Lock
from pynamodb_mutex._lock.operations.options import OPTIONS, check_several, made
from pynamodb_mutex._lock.protocol.claim import Claim, date_of
from pynamodb_mutex._lock.protocol.messages import shown, shown_all
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex.exceptions import (
    MutexAlreadyHeldError,
    MutexError,
    MutexNotHeldError,
    MutexTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta

    from pynamodb.transactions import TransactWrite
    from typing_extensions import Self

    from pynamodb_mutex._lock.operations.contender import Caller
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.operations.planning import Held
    from pynamodb_mutex._several.acquire_all import AcquisitionOfSeveral
    from pynamodb_mutex._several.acquire_any import AcquisitionOfAny, ContenderForAny

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
            # if a table's Meta names none, the environment decides, and that is not known here
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
            timeout: Seconds that you wait, -1 for ever; None for the timeout that you gave with the keys.

        Returns:
            Whether you acquired them. False only if DynamoDB said that another holder has one.

        Raises:
            MutexAlreadyHeldError: As `Mutex.acquire <pynamodb_mutex.Mutex.acquire>`; also if your thread or task holds only
                some of the locks, which are reentrant, or others with them.
            pynamodb.exceptions.DoesNotExist: A row that you lock is missing.
            ValueError: The tables are in different regions; and as `Mutex.acquire <pynamodb_mutex.Mutex.acquire>`.
            pynamodb.exceptions.TransactWriteError: As UpdateError of `Mutex.acquire <pynamodb_mutex.Mutex.acquire>`, whose
                other errors you may get as well.
        """
        return self._acquire(blocking, timeout)

    def _asking(self) -> Operation[bool]:
        from pynamodb_mutex._several.acquire_all import are_held  # noqa: PLC0415 - as below

        process = current_process()
        locks = [(process.store(lock._options.model), lock._options) for lock in self._locks]
        return are_held(process, locks, any)

    def _acquisition(self, who: Caller, timeout: float, *, blocks: bool) -> AcquisitionOfSeveral:
        from pynamodb_mutex._several.acquire_all import AcquisitionOfSeveral  # noqa: PLC0415 - seldom needed

        contenders = [lock._contender(who, blocks=blocks) for lock in self._locks]
        for name in ("on_lost", "on_danger"):
            call = getattr(self._options, name)
            if call is None or any(getattr(lock._options, name) == call for lock in self._locks):
                continue
            # each key is a Mutex, which keeps its own options: nobody else would report this to the group
            for lock, contender in zip(self._locks, contenders, strict=True):
                calls = (*getattr(contender, name), functools.partial(call, lock))
                setattr(contender, name, calls)
        return AcquisitionOfSeveral(contenders, timeout, self._options.poll)

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

    def _reentered(self, acquisition: AcquisitionOfSeveral, me: Caller) -> Held | None:
        holders = [contender.key_queue.holder for contender in acquisition.contenders]
        own = [claim for claim in holders if claim is not None and claim.reenters(me.number)]
        # A caller can enter an acquisition again only with all of its claims and no others: they are renewed, lost and released
        # as one. Suppose this thread holds "a", and "b" is acquired now for "a" and "b": the group would be two acquisitions, and
        # one could be lost while the other stands.
        if own and all(contender.options.reentrant for contender in acquisition.contenders):
            held: Held = own[0].whole
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
            mine = lock._acquired.get(me)
            if mine is not None:
                if mine.stands_at(acquisition.process.now):
                    msg = f"{shown(lock._name)} is already held by this thread or task"
                    raise MutexAlreadyHeldError(msg, key=lock._name, owner=mine.contender.owner)
                mine.note_left()
        for handle in (self, *self._locks):
            handle._acquired[me] = None
        return None

    def _current(self, what: str) -> Held:
        held = super()._current(what)
        # the handle remembers the latest acquisition after its release, for `lost` and `loss`
        if held.is_released:
            raise self._not_held_error(what)
        return held

    def _not_held_error(self, what: str) -> MutexNotHeldError:
        return MutexNotHeldError(f"{what}: {self._shown} are not held", key=self._locks[0]._name)

    @property
    def _shown(self) -> str:
        return shown_all([lock._name for lock in self._locks])

    def _timeout_error(self, acquisition: AcquisitionOfSeveral) -> MutexTimeoutError:
        blocked = acquisition.last_blocked
        key, claim = blocked.contender.key, blocked.observed.claim or Claim()
        return MutexTimeoutError(
            f"{self._shown} were not all free within {self._options.timeout} s: "
            f"{blocked.contender.whose}{shown(key)} is {claim.described}",
            key=key,
            owner=claim.owner,
            expires_at=date_of(claim.ends),
        )


class KeyGroup(LockGroup):
    """The locks of several keys, acquired, renewed and released together: see `pynamodb_mutex.groups.MutexGroup`."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Your keys, in the order in which you gave them, each once."""
        return tuple(lock._name for lock in self._locks)

    @property
    def fencing_tokens(self) -> dict[str, int]:
        """The fencing tokens of this acquisition, by key; each is greater than any before it on its key.

        Raises:
            MutexNotHeldError: You never acquired the locks.
            MutexError: One has ``delete_on_release``: the tokens could fall; or two locks have the same key in two
                tables: then read their tokens from the `members`.
        """
        tokens = {lock._name: lock.fencing_token for lock in self._locks}
        if len(tokens) < len(self._locks):
            msg = f"{self._shown}: a key comes from two tables; ask each of .members for its token"
            raise MutexError(msg)
        return tokens

    def transaction(self) -> TransactWrite:
        """Return a TransactWrite that DynamoDB applies only if you still hold all the locks.

        See `Mutex.transaction <pynamodb_mutex.Mutex.transaction>`. Each lock takes one of its 100 items.

        Raises:
            MutexLostError: You have lost the locks already. The end of its ``with`` block raises it too.
            MutexNotHeldError: You do not hold them.
            MutexError: One of them has ``delete_on_release``: nothing can be guarded.
        """
        claims = self._current("transaction").unreleased
        from pynamodb_mutex._writes import transact_write  # noqa: PLC0415 - seldom needed, slow to load

        return transact_write.GuardedTransactWrite(claims)

    def __enter__(self) -> Self:
        """Acquire the locks, as `acquire` does.

        Raises:
            MutexTimeoutError: The locks were not all free within your timeout. Its attributes describe one key that was held:
                the key, its owner and the end of its claim.
        """
        self._enter()
        return self

    def _another(self) -> Self:
        locks = [lock._another() for lock in self._locks]
        return made(type(self), locks, self._options)


# -- one of several --------------------------------------------------------------------------------

MOST_KEYS = 100
"""Largest number of keys: as many rows as DynamoDB reads by one request."""

_MOST_SHOWN = 3
"""Largest number of keys that the description of one of several spells out."""


class OneOfSeveral(HandleOfOne):
    """A lock on whichever of several keys is free first. In front of a mutex, whose lock it acquires otherwise."""

    _options: LockOptions

    def __init__(self, options: LockOptions, alternatives: Sequence[LockOptions]) -> None:
        """Use `Mutex.any_of`."""
        super().__init__(options)  # type: ignore[call-arg]  # of the mutex
        self._alternatives = alternatives

    @classmethod
    def _of(cls, own: LockOptions, each: Sequence[LockOptions], name: str | None = None) -> Self:
        """Return a lock on one of several keys of one lock table.

        Args:
            own: Options of the lock itself, whatever key it gets.
            each: Options of the locks of the keys.
            name: What messages call all of them together; None for the keys.
        """
        for options in (own, *each):
            options.check_several()
            if options.must_exist:
                raise TypeError(
                    "must_exist=True is for one key: of several, any row may be missing"
                )
        if name is None:
            first = ", ".join(key.name for key in each[:_MOST_SHOWN])
            more = f", ... ({len(each)} keys)" if len(each) > _MOST_SHOWN else ""
            name = f"any of {first}{more}"
        return made(cls, own.replace(key=name, range_key=None), each)

    @property
    def keys(self) -> tuple[str, ...]:
        """Your keys, in the order in which you gave them, each once."""
        return tuple(each.name for each in self._alternatives)

    def _asking(self) -> Operation[bool]:
        from pynamodb_mutex._several.acquire_all import are_held  # noqa: PLC0415 - as below

        process = current_process()
        store = process.store(self._options.model)
        return are_held(process, [(store, each) for each in self._alternatives], all)

    def force_release(self) -> NoReturn:
        """Refuse: it is not clear which key's claim to break.

        Raises:
            TypeError: Always. By `~pynamodb_mutex.LockItem.force_release` you break the claim on one key.
        """
        self._forcing()

    def _forcing(self) -> NoReturn:
        msg = f"which of {shown_all(self.keys)}? Use {self._options.model.__name__}.force_release(key)"
        raise TypeError(msg)

    def _another(self) -> Self:
        return made(type(self), self._options, self._alternatives)

    def _contender(self, who: Caller, *, blocks: bool) -> ContenderForAny:
        from pynamodb_mutex._several.acquire_any import ContenderForAny  # noqa: PLC0415 - seldom needed

        process, options = current_process(), self._options
        store = process.store(options.model)
        return ContenderForAny(
            process, store, options, self._alternatives, who, lock=self, blocks=blocks
        )

    def _acquisition(self, who: Caller, timeout: float, *, blocks: bool) -> AcquisitionOfAny:
        from pynamodb_mutex._several.acquire_any import AcquisitionOfAny  # noqa: PLC0415 - as above

        return AcquisitionOfAny(self._contender(who, blocks=blocks), timeout)


def members(called: str, keys: Iterable[Any], make: Callable[[str], Any]) -> list[Any]:
    """Return a mutex for each of several keys, each once.

    Args:
        called: Name of the method that the user called, for messages.
        keys: The keys, or mutexes on one key, which are returned as they are.
        make: Makes a mutex for a key.

    Raises:
        TypeError: If the keys are a single string, or not iterable; or for a mutex on any of several keys.
        ValueError: For none, more than 100, or a key that is repeated with different options.
    """
    check_several(called, keys)
    found: dict[str, Any] = {}
    for key in keys:
        # not a mutex for tasks, nor a run of `once`: these wrap a lock
        mutex = key if isinstance(key, HandleOfOne) and isinstance(key, Lock) else make(key)
        if isinstance(mutex, OneOfSeveral):
            # A transaction cannot choose: with a semaphore in it, it would wait for permit 1 while other permits are free.
            msg = f"{called} takes keys, and mutexes on one key each, not {mutex!r}"
            raise TypeError(msg)
        # by the row: the same key in two tables is two locks, but by two models of one table it is one lock
        name = row_name(mutex._options.model, mutex._options.row)
        first = found.setdefault(name, mutex)._options
        if any(
            getattr(first, each) != getattr(mutex._options, each) for each in ("model", *OPTIONS)
        ):
            msg = f"{shown(mutex._name)} comes twice, with different options: one lock has but one set"
            raise ValueError(msg)
    return list(found.values())
