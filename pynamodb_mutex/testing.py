"""For tests and demos: an embedded DynamoDB, a clock that stands until moved, claims of others.

Needs the extra ``testing``. Its pytest fixtures (``dynamodb``, ``lock_table``, ``fake_clock``) are
there as soon as the package is installed.
"""

from __future__ import annotations

import math
import threading
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pynamodb.models import Model

from pynamodb_mutex._dynamodb.requests import Template
from pynamodb_mutex._engines import (
    Engine,
    EngineError,
    dynamodb_local,
    embedded_dynamodb,
    environment,
    why_no_dynamodb_local,
)
from pynamodb_mutex._engines import use as _use
from pynamodb_mutex._operations.acquire import Acquisition
from pynamodb_mutex._operations.contender import Contender
from pynamodb_mutex._operations.release import release
from pynamodb_mutex._operations.retry import retrying
from pynamodb_mutex._protocol.messages import shown
from pynamodb_mutex._runtime import clock as _clock
from pynamodb_mutex._runtime.callers import caller
from pynamodb_mutex._runtime.process import Process, current_process, forget_everything
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.exceptions import MutexLostError, MutexTimeoutError
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from pynamodb_mutex._dynamodb.store import Store
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.options import LockOptions

M = TypeVar("M", bound=Model)

__all__ = [
    "Engine",
    "EngineError",
    "FakeClock",
    "dynamodb_local",
    "embedded_dynamodb",
    "environment",
    "expire",
    "held_elsewhere",
    "use",
    "why_no_dynamodb_local",
]


@contextmanager
def use(engine: Engine) -> Iterator[Engine]:
    """Let this process, and those it starts, talk to an engine inside the block.

    What the library knows of another endpoint, its connections included, is dropped on both ends.
    """
    with _use(engine):
        forget_everything()
        try:
            yield engine
        finally:
            forget_everything()


class FakeClock(_clock.LocalClock):
    """A local clock that stands still until it is moved, as a context manager.

    Every lock of the process goes by it inside the block; waiting threads wake when it is moved far
    enough. It is the local clock alone: the engine's own time goes on, so `advance` plays a process
    that was suspended, or slow, and standing still one whose clock stood.
    """

    def __init__(self) -> None:
        """Start at the time of the real clock."""
        self._now = _clock.LocalClock().now()
        self._moved = threading.Condition()
        self._waiting: list[tuple[float, threading.Condition]] = []

    def __enter__(self) -> Self:
        self._before = _clock.replace_local_clock(self)
        return self

    def __exit__(self, *_: object) -> None:
        _clock.replace_local_clock(self._before)
        self.advance(math.inf)

    def now(self) -> float:
        """Return seconds since an arbitrary start."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock, and wake who waits for that."""
        with self._moved:
            self._now += seconds
            over = [condition for ends, condition in self._waiting if ends <= self._now]
        for condition in over:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        """Wait on a condition that is held, until it is notified or the clock is moved."""
        with self._moved:
            ends = math.inf if timeout is None else self._now + timeout
            if self._now >= ends:
                return
            self._waiting.append((ends, condition))
        try:
            condition.wait()
        finally:
            with self._moved:
                self._waiting.remove((ends, condition))


def expire(key: Any, model: type[Model] = LockItem) -> None:
    """Move the end of a key's claim into the past, as if its holder had died long ago.

    A holder in this process goes on as it may after a pause: it finds out at its next request, or at the
    end of its lease. Others here do not count on it any more.

    Args:
        key: The lock's key; of a row, its hash key, or a tuple of hash and range key.
        model: The lock table, or the model of the row.

    Raises:
        pynamodb.exceptions.UpdateError: If nobody holds it.
    """
    process, options = current_process(), _lock_of(key, model)._options
    run(process, _expiring(process, process.store(options.model), options))


def _expiring(process: Process, store: Store, options: LockOptions) -> Operation[None]:
    ends = store.layout.expires_at
    outdate = Template(store.connection.table, actions=[ends.set(1.0)], condition=ends.exists())
    answer = yield from retrying(process, lambda: store.update(outdate, options.row, {}), 0.0)
    if answer.error is not None:
        raise answer.error
    for claim in list(process.holders(store, options.key)):
        claim.leave_queue()


def _lock_of(key: Any, model: type[Model], **options: Any) -> Mutex:
    """Return the lock that a key, or that of a row, stands for."""
    if issubclass(model, LockItem):
        return Mutex.for_key(key, model=model, **options)
    if not hasattr(model, "locked"):
        raise TypeError(f"{model.__name__} has no locks: neither a LockItem nor a RowLockMixin")
    lock: Mutex = model.locked(  # type: ignore[attr-defined]  # a RowLockMixin
        *(key if isinstance(key, tuple) else (key,)), **options
    )
    return lock


@overload
def held_elsewhere(
    key: str, *, owner: str = ..., lease: float = ...
) -> AbstractContextManager[LockItem]: ...
@overload
def held_elsewhere(
    key: Any, *, owner: str = ..., lease: float = ..., model: type[M]
) -> AbstractContextManager[M]: ...
def held_elsewhere(
    key: Any,
    *,
    owner: str = "elsewhere",
    lease: float = 30.0,
    model: type[Model] = LockItem,
) -> AbstractContextManager[Model]:
    """Let somebody else hold a key, or a row, inside a block, whoever held it before.

    Args:
        key: The lock's key; of a row, its hash key, or a tuple of hash and range key.
        owner: The label of the holder.
        lease: Seconds; not renewed.
        model: The lock table, or the model of the row.

    Returns:
        A context manager that gives the item, or the row, as it stands in the table.
    """
    lock = _lock_of(key, model, owner=owner, lease=lease, auto_renew=False)
    return _held_elsewhere(lock, model)


@contextmanager
def _held_elsewhere(lock: Mutex, model: type[Model]) -> Iterator[Model]:
    lock.force_release()
    elsewhere = Process()  # with a connection and a queue of its own, as another process has
    store = elsewhere.store(lock._options.model)
    contender = Contender(elsewhere, store, lock._options, caller())
    acquisition = Acquisition(contender, 0.0)
    acquisition.begin()
    claim = run(elsewhere, acquisition.poll())
    if claim is None:
        msg = f"{shown(lock.key)} was taken before it could be held elsewhere"
        raise MutexTimeoutError(msg, key=lock.key)
    try:
        stands_in_row = lock._options.model is model
        yield model.from_raw_data(claim.item) if stands_in_row else _row_of(lock)
    finally:
        # lost, when the test broke it, or let it end
        with suppress(MutexLostError):
            run(elsewhere, release(claim))


def _row_of(lock: Any) -> Model:
    row: Model = lock._model.from_raw_data(run(current_process(), lock._reading()))
    return row
