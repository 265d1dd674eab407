"""Holders for tests: one that died long ago, and one that seems to be in another process."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pynamodb.exceptions import TableDoesNotExist
from pynamodb.models import Model

from pynamodb_mutex._lock.dynamodb.keys import lock_name
from pynamodb_mutex._lock.dynamodb.requests import Template
from pynamodb_mutex._lock.operations.acquire import Acquisition
from pynamodb_mutex._lock.operations.contender import Contender
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.operations.retry import retrying
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._lock.runtime.callers import caller
from pynamodb_mutex._lock.runtime.process import Process, current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex.exceptions import MutexLostError, MutexTimeoutError
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb_mutex._lock.dynamodb.store import Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.options import LockOptions

M = TypeVar("M", bound=Model)


def expire(key: Any, model: type[Model] = LockItem, *, range_key: Any = None) -> None:
    """Move the end of a key's claim into the past, as if its holder had died long ago.

    A holder in your process continues, as after a pause: it notices the loss at its next request, or at the end of its lease.
    Waiters in your process no longer wait for it.

    Args:
        key: The lock's key, or the hash key of a row; with a range key, a tuple of both.
        model: The lock table, or the model of the row.
        range_key: The range key, in place of a tuple.

    Raises:
        pynamodb.exceptions.UpdateError: Nobody holds the key.
    """
    process, options = current_process(), _lock_of(key, model, range_key)._options
    execute(process, _expiring(process, process.store(options.model), options))


def _expiring(process: Process, store: Store, options: LockOptions) -> Operation[None]:
    end = store.layout.expires_at
    # a claim that readers share would live as long as the last of them
    actions = [end.set(1.0), *(each.remove() for each in store.layout.sharing)]
    outdate = Template(store.connection.table, actions=actions, condition=end.exists())
    answer = yield from retrying(process, lambda: store.update(outdate, options.row, {}), 0.0)
    if answer.error is not None:
        raise answer.error
    name = lock_name(options.model, options.key, options.row)
    for claim in list(process.holders(store, name)):
        claim.leave_queue()


@overload
def held_elsewhere(
    key: str, *, range_key: str | None = ..., owner: str = ..., lease: float = ...
) -> AbstractContextManager[LockItem]: ...
@overload
def held_elsewhere(
    key: Any, *, range_key: Any = ..., owner: str = ..., lease: float = ..., model: type[M]
) -> AbstractContextManager[M]: ...
def held_elsewhere(
    key: Any,
    *,
    range_key: Any = None,
    owner: str = "elsewhere",
    lease: float = 30.0,
    model: type[Model] = LockItem,
) -> AbstractContextManager[Model]:
    """Hold a key, or a row, for the length of your block as if another process did. Breaks any other claim first.

    Args:
        key: The lock's key, or the hash key of a row; with a range key, a tuple of both.
        range_key: The range key, in place of a tuple.
        owner: The label of the holder.
        lease: Seconds until the lock expires; nothing renews it.
        model: The lock table, or the model of the row.

    Returns:
        A context manager that returns the item, or the row, as it is in the table.

    Example::

        from pynamodb_mutex import Mutex
        from pynamodb_mutex.testing import held_elsewhere

        with held_elsewhere("report", owner="another host"):
            assert not Mutex.for_key("report").acquire(timeout=0)
    """
    return _held(_lock_of(key, model, range_key, owner=owner, lease=lease, auto_renew=False), model)


@contextmanager
def _held(lock: Any, model: type[M]) -> Iterator[M]:
    lock.force_release()
    # With connections, local queues and holders of its own, as another process has them: to the rest of this process
    # the lock is held elsewhere, and is not handed over locally.
    elsewhere = Process()
    store = elsewhere.store(lock._options.model)
    acquisition = Acquisition(Contender(elsewhere, store, lock._options, caller(), lock=lock), 0.0)
    acquisition.begin()
    claim = execute(elsewhere, acquisition.poll())
    if claim is None:
        msg = f"{shown(lock.key)} was taken before it could be held elsewhere"
        raise MutexTimeoutError(msg, key=lock.key)
    try:
        # the claim of a row may be in a lock table
        read = elsewhere.store(model).read(lock._raw_key or lock._options.row, consistent=True)
        answer = execute(elsewhere, retrying(elsewhere, lambda: read, 0.0))
        yield model.from_raw_data(answer.item)
    finally:
        # the test may have broken the lock, let it expire, or deleted the table
        with suppress(MutexLostError, TableDoesNotExist):
            execute(elsewhere, release(claim))


def _lock_of(key: Any, model: type[Model], range_key: Any, **options: Any) -> Mutex:
    """Return a mutex for a key of a lock table, or a row lock for the key of a row."""
    if range_key is not None:
        key = (key, range_key)
    if issubclass(model, LockItem):
        key, range_key = key if isinstance(key, tuple) else (key, None)
        return Mutex.for_key(key, range_key=range_key, model=model, **options)
    if not hasattr(model, "locked"):
        raise TypeError(f"{model.__name__} has no locks: neither a LockItem nor a RowLockMixin")
    lock: Mutex = model.locked(  # type: ignore[attr-defined]  # a RowLockMixin
        *(key if isinstance(key, tuple) else (key,)), **options
    )
    return lock
