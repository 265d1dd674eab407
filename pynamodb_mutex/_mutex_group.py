"""Several keys, all or none: what `Mutex.for_keys` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._decorated import locked_calls
from pynamodb_mutex._group import read_rows
from pynamodb_mutex._keys import row_name
from pynamodb_mutex._lock_group import LockGroup
from pynamodb_mutex._messages import shown
from pynamodb_mutex._process import current_process
from pynamodb_mutex._repeat import persist
from pynamodb_mutex._terms import made
from pynamodb_mutex._waiting import Alarm, all_steps
from pynamodb_mutex.exceptions import MutexError
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import ParamSpec

    from pynamodb.transactions import TransactWrite
    from typing_extensions import Self

    P = ParamSpec("P")

R = TypeVar("R")


class MutexGroup(LockGroup):
    """The locks of several keys, taken, renewed and given back together: all or none.

    Each is one request, so there is no order of keys to keep, and no deadlock. Losing one lock is
    losing all: ``on_lost`` is called once, and the claims that still stand are given back by ``release``,
    or end with their leases. Used like a ``Mutex``: also as a context manager and as a decorator.

    Not guaranteed: that who wants many keys is not overtaken again and again by those who want few of
    them; and what ``Mutex`` does not guarantee.
    """

    _made_by = "Mutex.for_keys([...])"

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order in which they were given, each once."""
        return tuple(lock.key for lock in self._locks)

    @property
    def members(self) -> tuple[Mutex, ...]:
        """What each lock knows of itself, in the order of `keys`: its ``abandoned_by``, its ``data``."""
        return tuple(self._locks)

    @property
    def fencing_tokens(self) -> dict[str, int]:
        """Numbers of the last acquisition by key: each greater than any before it on its key.

        Raises:
            MutexNotHeldError: If the locks were never taken.
            MutexError: With ``delete_on_release``, for then they may fall; or if two of the locks have
                the same key, in two tables: then ask each of the `members`.
        """
        tokens = {lock.key: lock.fencing_token for lock in self._locks}
        if len(tokens) < len(self._locks):
            msg = f"{self._names}: a key comes from two tables; ask each of .members for its token"
            raise MutexError(msg)
        return tokens

    def locked(self) -> bool:
        """Whether anyone holds any of the locks, by one consistent read of all.

        Raises:
            InvalidRowError: If one of the rows is not a lock's, or its lock attributes cannot be right.
            pynamodb.exceptions.GetError: If DynamoDB refuses or cannot be reached.
        """
        terms = [lock._terms for lock in self._locks]
        stores = [current_process().store(each.model) for each in terms]
        keys = [(each.model, each.row) for each in terms]
        rows = persist(lambda: read_rows(stores[0], keys, consistent=True), 0.0)
        now, bounds = local_clock().now(), stores[0].server.bounds
        claims = [store.rows.claim(item) for store, item in zip(stores, rows, strict=True)]
        return any(claim.is_held(now, bounds) for claim in claims)

    def transaction(self) -> TransactWrite:
        """Return a TransactWrite that is applied only if all the locks are still held in the store.

        As ``Mutex.transaction``; of its 100 items each lock takes one.

        Raises:
            MutexLostError: If the locks are lost already. Leaving its ``with`` block raises it too.
            MutexNotHeldError: If they are not held here.
            MutexError: If one of them is used with ``delete_on_release``, for then nothing can be guarded.
        """
        holds = self._current("transaction").holds
        from pynamodb_mutex._transaction import (  # noqa: PLC0415 - seldom needed, slow to load
            GuardedTransactWrite,
        )

        return GuardedTransactWrite(holds)

    def __enter__(self) -> Self:
        """Take the locks.

        Raises:
            MutexTimeoutError: If they were not all free within the timeout; it names the key that was in
                the way, its owner and the end of its lease.
        """
        alarm = Alarm()
        entered: Self = all_steps(self._entering(alarm), alarm)
        return entered

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call runs under the locks, by a group of its own."""
        return locked_calls(function, self._another)

    def _another(self) -> MutexGroup:
        locks = [lock._another() for lock in self._locks]
        return made(MutexGroup, locks, self._terms)


def mutex_group(keys: Iterable[str | Mutex], options: dict[str, Any]) -> MutexGroup:
    """Return what `Mutex.for_keys` returns."""
    if isinstance(keys, (str, Mutex)):
        msg = f"keys must be several, such as [{shown(keys)}], not one"
        raise TypeError(msg)
    members: dict[str, Mutex] = {}
    for key in keys:
        mutex = key if isinstance(key, Mutex) else Mutex.for_key(key, **options)
        name = row_name(mutex._terms.model, mutex._terms.row)
        if members.setdefault(name, mutex)._terms != mutex._terms:
            msg = (
                f"{shown(mutex.key)} comes twice, with different options: one lock has but one set"
            )
            raise ValueError(msg)
    # of any key: it is the timeout and the poll that count
    return made(MutexGroup, list(members.values()), Mutex.for_key("keys", **options)._terms)
