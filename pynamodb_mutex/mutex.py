"""Mutex: the lock as its users see it."""

from __future__ import annotations

import functools
import inspect
import math
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb_mutex._acquire import Acquisition
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._keys import check_key, key_of, row_key, row_name
from pynamodb_mutex._process import current_process
from pynamodb_mutex._release import force, release
from pynamodb_mutex._repeat import persist
from pynamodb_mutex._terms import FOREVER, Terms, check_at_least, check_lease, check_timeout
from pynamodb_mutex._threads import this_thread
from pynamodb_mutex._view import View
from pynamodb_mutex._wanted import Wanted
from pynamodb_mutex.exceptions import (
    MutexAlreadyHeldError,
    MutexTimeoutError,
    add_note,
    describe_holder,
)
from pynamodb_mutex.models import LockItem

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import ParamSpec

    from pynamodb.models import Model
    from pynamodb.transactions import TransactWrite
    from typing_extensions import Self, Unpack

    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._terms import Options

    P = ParamSpec("P")

R = TypeVar("R")


class Mutex(View):
    """A lock that at most one thread of one process holds, wherever they run.

    Used like `threading.Lock`, as a context manager, or as a decorator. A mutex may be shared by
    threads: each sees its own acquisition, and one that has none sees the latest.

    Not guaranteed: that what the holder does outside DynamoDB ends before the lease does. A process
    may be stopped between any two of its steps. `transaction` is safe from that, and so is any
    resource that compares `fencing_token`.
    """

    def __init__(self, terms: Terms) -> None:
        """Use `for_key`."""
        super().__init__(terms)
        self._entered: dict[int, list[Hold]] = {}

    @classmethod
    def for_key(
        cls,
        key: str,
        *,
        model: type[LockItem] = LockItem,
        lease: float = 30.0,
        timeout: float = FOREVER,
        auto_renew: bool = True,
        max_hold: float | None = None,
        owner: str | None = None,
        on_lost: Callable[[Mutex], object] | None = None,
        data: Any = None,
        poll: tuple[float, float] = (0.05, 1.0),
        reentrant: bool = False,
        delete_on_release: bool = False,
    ) -> Mutex:
        """Return a mutex for a key, not yet held. Sends nothing.

        Args:
            key: 1 to 2048 bytes of UTF-8.
            model: The lock table.
            lease: Seconds the lock lives without being renewed, at least 0.5. A dead holder's lock
                is free after about this time.
            timeout: Seconds to wait for the lock; -1 waits for ever.
            auto_renew: Renew in the background, each third of the lease.
            max_hold: Seconds after which it is not renewed any more, for a holder that hangs.
            owner: A label for people; host, process and thread by default.
            on_lost: Called with the mutex, on a thread of its own, when the lock is lost.
            data: Any JSON, written into the row with the claim; None leaves what is there.
            poll: Shortest and longest wait between two looks at a held lock, in seconds.
            reentrant: A thread that holds the key by a reentrant mutex may acquire it again.
            delete_on_release: Delete the row at release. Fencing tokens can then fall.

        Raises:
            InvalidKeyError: For a key that DynamoDB would not take.
            TypeError: For an option of a wrong type, or data that is not JSON.
            ValueError: For a negative, infinite or NaN duration, or a lease too short to renew.
        """
        if not (isinstance(model, type) and issubclass(model, LockItem)):
            msg = f"model must be LockItem or a subclass of it, not {model!r}"
            raise TypeError(msg)
        terms = Terms(
            key=check_key(key),
            row=key_of(model, key),
            model=model,
            lease=lease,
            timeout=timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            owner=owner,
            on_lost=on_lost,
            data=model.get_attributes()["data"].serialize(data),
            poll=poll,
            reentrant=reentrant,
            delete_on_release=delete_on_release,
        )
        terms.check()
        return cls(terms)

    @classmethod
    def for_row(
        cls,
        model: type[Model],
        hash_key: Any,
        range_key: Any = None,
        *,
        lock_model: type[LockItem] = LockItem,
        **options: Unpack[Options],
    ) -> Mutex:
        """Return a mutex in the lock table, named after a row that need not exist.

        It is that of `RowLockMixin.locked` for a model whose ``lock_model`` is the same.

        Args:
            model: Whose table the row is in. Any PynamoDB model.
            hash_key: Of the row.
            range_key: Of the row, if the model has one.
            lock_model: The lock table.
            **options: Those of `for_key`.

        Raises:
            InvalidKeyError: For a key that the model cannot have.
        """
        name = row_name(model, row_key(model, hash_key, range_key))
        return cls.for_key(name, model=lock_model, **options)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock.

        Args:
            blocking: Wait for it.
            timeout: Seconds to wait, -1 for ever; the mutex's own by default.

        Returns:
            Whether it was taken; False only if the store said that another holds it.

        Raises:
            MutexAlreadyHeldError: If this thread holds it by this mutex, which is not reentrant.
            ValueError: For a timeout with ``blocking=False``, or a negative one other than -1.
            pynamodb.exceptions.TableDoesNotExist: If there is no table.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses the request at all, or could not be
                reached, or was throttling, until the timeout.
        """
        return self._acquire(blocking, timeout) is None

    def _acquire(self, blocking: bool, timeout: float | None) -> Acquisition | None:
        """Take the lock; return the failed attempt if it was not free."""
        if not blocking and timeout is not None and timeout != FOREVER:
            msg = "can't specify a timeout for a non-blocking call"
            raise ValueError(msg)
        seconds = self._terms.timeout if timeout is None else check_timeout(timeout)
        me = this_thread()
        process = current_process()
        mine = self._holds.get(me)
        on_lost = functools.partial(self._terms.on_lost, self) if self._terms.on_lost else None
        wanted = Wanted(self._terms, process.store(self._terms.model), process, on_lost)
        local = wanted.queue.holder
        if self._terms.reentrant and local is not None and local.reenters(me):
            mine = local
        if mine is not None and mine.stands:
            if not (self._terms.reentrant and mine.held):
                msg = f"{self._terms.key!r} is already held by this thread, by this mutex"
                raise MutexAlreadyHeldError(msg, key=self._terms.key, owner=self.owner)
            mine.depth += 1
            self._holds[me] = self._latest = mine
            return None
        now = local_clock().now()
        waits = blocking and seconds != 0
        deadline = math.inf if seconds == FOREVER and waits else now + seconds * waits
        acquisition = Acquisition(wanted, deadline)
        hold = acquisition.run(blocking=waits)
        if hold is None:
            return acquisition
        self._holds[me] = self._latest = hold
        return None

    def release(self) -> None:
        """Give the lock back.

        Raises:
            MutexLostError: If it had been lost.
            MutexNotHeldError: If it is not held here: never taken, given back already, or held by
                the parent of this forked process.
            pynamodb.exceptions.UpdateError: If DynamoDB cannot be reached; the lock then ends with
                its lease. DeleteError with ``delete_on_release``.
        """
        self._release(self._current("release"))

    def _release(self, hold: Hold) -> None:
        try:
            release(hold)
        finally:
            if not hold.held:
                for thread, other in list(self._holds.items()):
                    if other is hold:
                        del self._holds[thread]

    def renew(self, lease: float | None = None) -> None:
        """Renew now. The new end counts from now and never comes before the old one.

        A lease that has ended is won back if nobody took the lock meanwhile.

        Args:
            lease: Seconds, for this renewal alone; the mutex's own by default.

        Raises:
            MutexLostError: If the lock is lost.
            MutexNotHeldError: If it is not held here.
            pynamodb.exceptions.UpdateError: If DynamoDB cannot be reached until the lease ends.
        """
        if lease is not None:
            check_lease(lease)
        self._current("renew").renew(lease)

    def ensure_held(self, at_least: float = 0.0) -> None:
        """Raise unless the lock is held, and renew it first if less of its lease is left.

        Args:
            at_least: Seconds that must be left; more than the lease is never left.

        Raises:
            MutexLostError: If it is lost.
            MutexNotHeldError: If it is not held here.
        """
        check_at_least(at_least, self._terms.lease)
        self._current("ensure_held").ensure(at_least)

    def force_release(self) -> bool:
        """Break whatever claim stands on this key now, and no later one.

        Returns:
            Whether a claim was broken. See `LockItem.force_release`.
        """
        terms = self._terms
        return force(current_process().store(terms.model), terms.row, terms.key)

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            MutexTimeoutError: If it was not free within the timeout.
        """
        failed = self._acquire(True, None)
        if failed is not None:
            raise self._timeout_error(failed.holder)
        me = this_thread()
        self._entered.setdefault(me, []).append(self._holds[me])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the lock back. The body's own exception is never replaced.

        Raises:
            MutexLostError: After a clean body, if the lock was lost meanwhile.
        """
        entered = self._leave()
        # the body may have given it back, or lost it, and taken it again
        hold = self._holds.get(this_thread(), entered)
        if hold.finished:
            return
        try:
            self._release(hold)
        except Exception as failure:
            if error is None:
                raise
            add_note(error, f"and the lock could not be given back: {failure}")

    def _leave(self) -> Hold:
        """Return the acquisition of the block that is left, on whatever thread that happens."""
        me = this_thread()
        thread = me if me in self._entered else next(iter(self._entered))
        entered = self._entered[thread]
        hold = entered.pop()
        if not entered:
            del self._entered[thread]
        return hold

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call runs under the lock, by a mutex of its own."""
        if _is_async(function):
            msg = "an async function cannot run under a Mutex: it would block the event loop"
            raise TypeError(msg)
        if inspect.isgeneratorfunction(function):
            msg = "a generator would run after the lock is given back: take it inside the generator"
            raise TypeError(msg)

        @functools.wraps(function)
        def locked(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._another():
                return function(*args, **kwargs)

        return locked

    def _another(self) -> Mutex:
        return Mutex(self._terms)

    def save_data(self, data: Any) -> None:
        """Write the payload into the row, if the lock is still held in the store; None clears it.

        Raises:
            MutexLostError: If it is not; its ``applied`` says whether the payload was written.
            TypeError: If the payload is not JSON.
            pynamodb.exceptions.UpdateError: If DynamoDB cannot be reached; the outcome is unknown.
        """
        from pynamodb_mutex._guard import save_data  # noqa: PLC0415 - seldom needed

        save_data(self._current("save_data"), data)

    def transaction(self) -> TransactWrite:
        """Return a TransactWrite that is applied only if the lock is still held in the store.

        Its rows are written at most once, and in the order of this holder's writes. One of its 100
        items is the guard on the lock's row.

        Leaving its ``with`` block raises MutexLostError if the lock is lost; ``applied`` says whether
        the rows were written. It raises ``pynamodb.exceptions.TransactWriteError`` if another
        condition in it does not hold, or DynamoDB cannot be reached; then the outcome is unknown.

        Raises:
            MutexLostError: If the lock is lost already.
            MutexNotHeldError: If it is not held here.
        """
        hold = self._current("transaction")
        hold.check("transaction")
        from pynamodb_mutex._transaction import (  # noqa: PLC0415 - seldom needed, slow to load
            GuardedTransactWrite,
        )

        return GuardedTransactWrite([hold])

    def locked(self) -> bool:
        """Whether anyone holds the lock, by one consistent read.

        Raises:
            pynamodb.exceptions.GetError: If DynamoDB refuses or cannot be reached.
        """
        store = current_process().store(self._terms.model)
        answer = persist(lambda: store.read(self._terms.row, consistent=True), 0.0)
        ends, bounds = answer.claim.expires_at, store.server.bounds
        return ends is not None and (bounds is None or answer.received < bounds.passes(ends))

    def _timeout_error(self, holder: Claim | None) -> MutexTimeoutError:
        owner, ends = (None, None) if holder is None else (holder.owner, holder.expires_at)
        return MutexTimeoutError(
            f"{self._terms.key!r} was not free within {self._terms.timeout} s: "
            f"{describe_holder(owner, ends)}",
            key=self._terms.key,
            owner=owner,
            expires_at=ends,
        )


def _is_async(function: Callable[..., object]) -> bool:
    """Say whether calling it gives something to be awaited; also of an object with ``__call__``."""
    called = type(function).__call__
    return any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each)
        for each in (function, called)
    )
