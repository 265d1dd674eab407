"""Handles: base classes of all locks as users see them, on one key or several, for threads or for tasks.

A handle offers properties and calls, and remembers which thread or task has which acquisition. It decides nothing
about the lock: each call makes an operation of `pynamodb_mutex._lock.operations` and lets a runner of
`pynamodb_mutex._lock.runtime` execute it. The handles for tasks are in `pynamodb_mutex._tasks`; the public classes are in
`mutex`, `groups`, `rows` and `aio`.

Threads and tasks may share a handle. A thread that has called `acquire` on it, or entered a ``with`` block of it, sees its
own latest call alone. So if another thread acquires the lock by the same object, neither a holder that has lost the lock nor
a caller that was refused sees `held` as True, or releases the lock. A thread that never acquired by the handle, such as a
helper thread of the holder, sees the latest acquisition.
"""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar
from weakref import WeakKeyDictionary

from pynamodb_mutex._lock.operations.events import Log
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.operations.options import Made, check_at_least, check_bool, check_lease
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.operations.renew import ensure_held, renew
from pynamodb_mutex._lock.protocol.claim import Claim, date_of
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.runtime.callers import Blocks, caller, calling_frame, waits_block
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex.exceptions import MutexError, MutexNotHeldError, MutexTimeoutError, add_note

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import TracebackType
    from typing import ParamSpec

    from pynamodb_mutex._lock.operations.acquire import Acquisition, BaseAcquisition
    from pynamodb_mutex._lock.operations.contender import Caller
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.operations.planning import Held
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex.exceptions import Loss

    P = ParamSpec("P")


R = TypeVar("R")
H = TypeVar("H", bound="Held")
"""Type of a handle's acquisitions: one claim, or a group."""


class Handle(Made, Generic[H]):
    """A lock as users see it: the properties that are answered without a request."""

    @abstractmethod
    def _mine(self) -> H | None:
        """Return what this thread or task acquired by its latest call of `acquire`; None if that call acquired nothing.

        If it never called `acquire`, return the latest acquisition of all; None before the first.
        """

    @property
    def held(self) -> bool:
        """Whether you hold the lock, by the local clock; of several locks, whether you hold all. Sends no request."""
        held = self._mine()
        return held is not None and held.held

    @property
    def remaining(self) -> float:
        """Seconds until your lease ends, by the local clock; of several locks, the first lease to end. 0 without a lock."""
        held = self._mine()
        return 0.0 if held is None else held.remaining

    @property
    def deadline(self) -> float:
        """Time at which `held` becomes False unless the lock is renewed, in seconds of the local clock.

        Compare it with ``time.clock_gettime(time.CLOCK_BOOTTIME)`` on Linux and ``time.monotonic()`` elsewhere, on this machine
        only. Each renewal moves it, until ``max_hold``. It may also move nearer, if DynamoDB's answers show that your local
        clock stood still. Minus infinity if you no longer hold the lock, or the parent of your forked process acquired it.

        Raises:
            MutexNotHeldError: You never acquired it.
        """
        held = self._last("deadline")
        return held.ends if held.held else -math.inf

    @property
    def lost(self) -> bool:
        """Whether you held the lock and then lost it, without a release of yours. Sends no request."""
        return self.loss is not None

    @property
    def loss(self) -> Loss | None:
        """Why you lost the lock, or None. Sends no request."""
        held = self._mine()
        return None if held is None else held.loss

    def _last(self, what: str) -> H:
        """Return what `_mine` does, for a call that needs an acquisition; ``what`` names the call.

        Raises:
            MutexNotHeldError: If there was none yet.
        """
        held = self._mine()
        if held is None:
            raise self._not_held_error(what)
        return held

    @abstractmethod
    def _not_held_error(self, what: str) -> MutexNotHeldError:
        """Return the error for a call that needs an acquisition; ``what`` names the call."""

    @property
    @abstractmethod
    def _shown(self) -> str:
        """The key or the keys, for messages."""

    def __repr__(self) -> str:
        """Describe the lock and its state, without a request."""
        return f"<{type(self).__name__} {self._shown}: {self._state()}>"

    def _state(self) -> str:
        """Describe the state of the lock, for people."""
        held = self._mine()
        if held is not None and held.held:
            return f"held, {held.remaining:.1f} s left"
        if held is not None and held.loss is not None:
            return f"lost: {held.why}"
        return "not held"

    def __bool__(self) -> NoReturn:
        """Refuse: it is not clear what the truth value would mean."""
        raise TypeError(f"{self!r} has no truth value: use .held, or the result of .acquire()")


def refusing(advice: str) -> Callable[..., NoReturn]:
    """Return a method that refuses the kind of ``with`` block that is not for this kind of lock.

    Args:
        advice: The end of the message.
    """

    def refuse(lock: Handle[Any], *_: object) -> NoReturn:
        raise TypeError(f"{type(lock).__name__} is for {advice}")

    return refuse


class HandleOfOne(Handle[HeldClaim]):
    """A lock on one key, as users see it."""

    _options: LockOptions

    @property
    def _present(self) -> LockOptions:
        """The options of this acquisition; before the first acquisition the options that the user gave, for all keys."""
        claim = self._mine()
        return self._options if claim is None else claim.options

    @property
    def key(self) -> str:
        """The lock's key. Of any of several keys, you see the key of this acquisition, and before it a description of all.

        With a range key, the hash key alone.
        """
        return self._present.key

    @property
    def range_key(self) -> Any:
        """The range key that you gave with the key, or None."""
        return self._present.range_key

    @property
    def _name(self) -> str:
        """What messages call the lock; with several keys to choose from, the key of this acquisition."""
        return self.key if self.range_key is None else self._present.name

    @property
    def token(self) -> str:
        """Random id of this acquisition; no other acquisition has the same.

        Raises:
            MutexNotHeldError: You never acquired the lock.
        """
        return self._last("token").own.token

    @property
    def fencing_token(self) -> int:
        """Number of this acquisition, greater than the number of any earlier acquisition on this key.

        Send it to a resource outside DynamoDB, and let the resource refuse a number below the highest that it has seen: it is
        then safe from your writes after the end of your lease. The resource must have seen your number before you read from it.
        (M. Kleppmann, "How to do distributed locking", 2016.)

        Raises:
            MutexNotHeldError: You never acquired the lock.
            MutexError: The lock has ``delete_on_release``: the number could fall.

        Example::

            from pynamodb_mutex import Mutex

            with Mutex.for_key("index") as mutex:
                print("send this number with each write:", mutex.fencing_token)
        """
        if self._present.delete_on_release:
            msg = "no fencing token with delete_on_release: it could fall when the row is new"
            raise MutexError(msg, key=self._options.key)
        return self._last("fencing_token").own.version

    @property
    def owner(self) -> str:
        """Label of this acquisition; before you acquire, the label that you would get. The protocol never compares it."""
        claim = self._mine()
        return self._options.owner or caller().label if claim is None else claim.contender.owner

    @property
    def abandoned(self) -> bool:
        """Whether the previous holder never released the lock."""
        return bool(self.abandoned_by)

    @property
    def abandoned_by(self) -> str | None:
        """Label of the previous holder if it never released the lock; otherwise, and for several locks together, None."""
        claim = self._mine()
        return claim.abandoned_by or None if claim is not None else None

    @property
    def data(self) -> Any:
        """The payload in the row, as of your acquisition or your last call that wrote one; or None.

        Raises:
            InvalidRowError: Another program wrote something there that is not JSON.
        """
        claim = self._mine()
        return None if claim is None else claim.data

    def _not_held_error(self, what: str) -> MutexNotHeldError:
        return MutexNotHeldError(f"{what}: {shown(self._name)} is not held", key=self._name)

    def _state(self) -> str:
        claim = self._mine()
        if claim is not None and claim.held:
            return f"held, fencing token {claim.own.version}, {claim.remaining:.1f} s left"
        return super()._state()

    @property
    def _shown(self) -> str:
        return f"{shown(self._name)} in {self._options.model.Meta.table_name}"


class Lock(Handle[H]):
    """A lock for threads: its blocking calls, and the operations behind them.

    The methods that return an `Operation` do the work. The public calls run them on the caller's thread;
    `~pynamodb_mutex._tasks.handles.AsyncLock` runs the same ones for tasks.
    """

    _options: LockOptions

    def __init__(self, options: LockOptions) -> None:
        self._options = options
        # By thread or task, as long as it lives: what its latest call of `acquire` has acquired; None for nothing, or not yet.
        # This and `_latest` stay after the release, so that the user can still ask for `lost` and `token`.
        self._acquired: WeakKeyDictionary[Caller, H | None] = WeakKeyDictionary()
        self._latest: H | None = None
        self._blocks: Blocks[H] = Blocks()

    def _mine(self) -> H | None:
        # No other property starts a thread. Suppose the system has refused a thread, and no other thread of ours would
        # ask again: a holder that only asks for `held` in a loop would wait in vain for its renewals and for ``on_lost``.
        # `start` waits for nothing and raises nothing.
        threads = current_process().threads
        if threads.waiting:
            threads.start()
        me, latest = caller(labelled=False), self._latest
        if me in self._acquired or latest is None or not latest.is_released:
            return self._acquired.get(me, latest)
        # Another acquisition by this object. Suppose jobs of a pool acquire permits by one semaphore, and others release them.
        every = (claim for held in current_process().all_held() for claim in held.claims)
        return next((each for each in every if each.contender.lock() is self), latest)

    def _current(self, what: str) -> H:
        """Return the acquisition that a call works on: see `_last`. Several locks must not all be released."""
        return self._last(what)

    # -- operations ---------------------------------------------------------------------------------

    @abstractmethod
    def _acquisition(self, who: Caller, timeout: float, *, blocks: bool) -> Any:
        """Return the acquisition that one call makes, by its caller.

        Args:
            who: The thread or task that calls.
            timeout: Seconds to wait for the lock; 0 to try once, infinity to wait for ever.
            blocks: Whether waiting blocks the caller's thread.
        """

    @abstractmethod
    def _reentered(self, acquisition: Any, me: Caller) -> H | None:
        """Enter what this thread or task holds once more, and return it; if it holds nothing, begin the acquisition.

        Raises:
            MutexAlreadyHeldError: If it holds the lock, and may not enter it again.
        """

    @abstractmethod
    def _timeout_error(self, acquisition: Any) -> MutexTimeoutError:
        """Return the error for a lock that was not free in time."""

    def _note(self, me: Caller, held: H) -> None:
        """Record the acquisition that a thread or task has from now on."""
        self._acquired[me] = self._latest = held

    def _acquiring(self, acquisition: BaseAcquisition[H], me: Caller) -> Operation[H | None]:
        """Acquire the lock; return None if it was not free in time."""
        held = self._reentered(acquisition, me)
        if held is None:
            # `acquire` records it before it emits ``acquired``: a receiver may ask this handle
            acquired: H | None = yield from acquisition.acquire(functools.partial(self._note, me))
            return acquired
        self._note(me, held)
        return held

    def _entering(self, acquisition: BaseAcquisition[H], me: Caller, frame: int) -> Operation[H]:
        """Acquire the lock for a ``with`` block, in whose frame this is called; return the acquisition."""
        held = yield from self._acquiring(acquisition, me)
        if held is None:
            raise self._timeout_error(acquisition)
        return self._begin_block(held, me, frame)

    def _begin_block(self, held: H, me: Caller, frame: int) -> H:
        held.whole.open_blocks = (held.whole.open_blocks or 0) + 1
        self._blocks.begin(me, held, frame)
        return held

    def _renewing(self, lease: float | timedelta | None) -> Operation[None]:
        """Renew the lock, for ``lease`` seconds or, if None, for each lock's own lease."""
        if lease is not None:
            lease = check_lease(lease)
        return renew(self._current("renew"), lease)

    def _ensuring(self, at_least: float | timedelta) -> Operation[None]:
        """Raise unless the lock is held; renew it first if less than ``at_least`` of its lease is left."""
        held = self._current("ensure_held")
        return ensure_held(held, check_at_least(at_least, held.lease))

    def _leave_block(self, error: BaseException | None) -> tuple[Caller, H | None]:
        """Leave a ``with`` block.

        Args:
            error: The exception by which it is left; None if by none.

        Returns:
            Who began the block, and the acquisition to release; None if it was released already.
        """
        who, entered = self._blocks.leave(error)
        entered.whole.open_blocks = (entered.whole.open_blocks or 0) - 1
        # The body may have released the lock, or lost it, and acquired it again. The lock must not stay locked after the
        # block, so what is held now is released here, not what was held when the block began. The caller that began the block
        # holds it: another thread, which leaves the block, may have its own permit by the same semaphore.
        held = self._acquired.get(who)
        if held is None or held.is_released:
            held = entered
        return who, None if held.is_released else held

    def _ending_block(self, held: H, error: BaseException | None) -> Operation[None]:
        """Release what `_leave_block` has returned, unless another thread or a signal handler has done so since."""
        if not held.is_released:
            warn_of_suspension(held.process, self._shown, error)
            yield from release(held)

    @abstractmethod
    def _asking(self) -> Operation[bool]:
        """Return the operation that reads whether anyone holds the lock."""

    # -- calls --------------------------------------------------------------------------------------

    def _acquire(
        self, blocking: bool, timeout: float | timedelta | None, force: bool = False
    ) -> bool:
        who = caller()
        acquisition = self._acquisition(
            who, self._options.seconds_to_wait(blocking, timeout), blocks=waits_block()
        )
        if force:
            check_bool("force", force)
            acquisition.by_force()
        return execute(acquisition.process, self._acquiring(acquisition, who)) is not None

    def release(self) -> None:
        """Release the lock; of several locks, all.

        If your signal handler or finaliser interrupted a step of this library on the same thread, the library releases the lock
        right after that step, and logs errors.

        Raises:
            MutexLostError: You had lost the lock; of several locks, one of them. The others are released.
            MutexNotHeldError: You do not hold it: you never acquired it, were refused, have released it already, or the parent
                of your forked process acquired it.
            pynamodb.exceptions.PynamoDBException: You cannot reach DynamoDB; the lock then expires with its lease. UpdateError
                for one lock, DeleteError with ``delete_on_release``, TransactWriteError for several.
        """
        held = self._current("release")
        execute(current_process(), release(held), may_be_deferred=True)

    def renew(self, lease: float | timedelta | None = None) -> None:
        """Renew now, by one request. The new end counts from now and is never earlier than the old end.

        You win an expired lock back if nobody has acquired it since.

        Args:
            lease: Seconds, for this renewal alone; each lock's own lease by default.

        Raises:
            MutexLostError: You have lost the lock.
            MutexNotHeldError: You do not hold it.
            pynamodb.exceptions.PynamoDBException: You could not reach DynamoDB until the lease ended: UpdateError for one lock,
                TransactWriteError for several.
        """
        execute(current_process(), self._renewing(lease))

    def ensure_held(self, at_least: float | timedelta = 0.0) -> None:
        """Raise unless you hold the lock. Renews it first if less than ``at_least`` of its lease is left.

        Of several locks, locks that you have released one by one do not count. Without an argument it sends no request.

        Args:
            at_least: Seconds or timedelta that you need, less than the lease.

        Raises:
            MutexLostError: You have lost it.
            MutexNotHeldError: You do not hold it.
            ValueError: ``at_least`` is negative, or not below the lease.
            pynamodb.exceptions.PynamoDBException: The renewal failed: see `renew`.

        Example::

            from pynamodb_mutex import Mutex

            with Mutex.for_key("export") as mutex:
                for part in range(3):
                    mutex.ensure_held(at_least=5)  # raises MutexLostError
        """
        execute(current_process(), self._ensuring(at_least))

    def _enter(self) -> H:
        who = caller()
        acquisition = self._acquisition(
            who, self._options.seconds_to_wait(True, None), blocks=waits_block()
        )
        return execute(acquisition.process, self._entering(acquisition, who, id(calling_frame())))

    @abstractmethod
    def __enter__(self) -> Any:
        """Acquire the lock; of several locks, all."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the lock, as `release` does. Never replaces an exception of your block.

        Raises:
            MutexLostError: Your block did not raise, and you have lost the lock.
        """
        _, held = self._leave_block(error)
        if held is None:
            return
        # Deferred if this runs inside a step of the library: in the middle of one, the garbage collector may close a
        # generator that is suspended in this block.
        try:
            execute(current_process(), self._ending_block(held, error), may_be_deferred=True)
        except Exception as failure:
            if error is None:
                raise
            note_not_released(error, failure)

    def locked(self) -> bool:
        """Return whether anyone holds the lock, by one consistent read.

        Of several locks, whether anyone holds any of them; of any of several keys, whether all keys have holders.

        Raises:
            InvalidRowError: The row under the key is not a lock's, or has impossible attributes.
            pynamodb.exceptions.GetError: DynamoDB refuses the request, or you cannot reach it.
        """
        return execute(current_process(), self._asking())

    @abstractmethod
    def _another(self) -> Lock[Any]:
        """Return another handle on the same lock."""

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call acquires the lock by a handle of its own.

        Raises:
            TypeError: You decorate a generator or a coroutine function, which would run outside the lock.
        """
        from pynamodb_mutex._lock import decorated  # noqa: PLC0415 - seldom needed

        decorated.check_function(function)
        if decorated.is_async(function):
            msg = "an async function cannot run under a Mutex: it would block the event loop"
            raise TypeError(msg)
        return decorated.locked_calls(function, lambda *_, **__: self._another())


# not in the class: type checkers refuse an ``async with`` because the class lacks these methods
Lock.__aenter__ = Lock.__aexit__ = refusing("threads: use 'with', or an AsyncMutex")  # type: ignore[attr-defined]  # see above


# -- blocks that are left by an exception ----------------------------------------------------------


_SUSPEND = {
    ("aws_durable_execution_sdk_python", "SuspendExecution"),
    ("inngest", "ResponseInterrupt"),
    ("langgraph", "GraphInterrupt"),
    ("prefect", "Pause"),
}
"""Package and name of the exceptions by which frameworks end a function that they run again later, from its start."""

_SUSPENDED = (
    "%s: %s suspends your function, and its block is left: others may have the lock until the function is run again, and "
    "acquires it anew. See https://pynamodb-mutex.readthedocs.io/page/howto/suspended.html"
)

_MOST_WARNED = 1000
"""Number of locks with a warning after which the process forgets all of them."""


class _Warned(set[str]):
    """Names of the locks for which this process has warned that a suspension left their block."""

    def __init__(self, _: ProcessState) -> None:
        super().__init__()


def warn_of_suspension(process: ProcessState, name: str, error: BaseException | None) -> None:
    """Log, once for each lock, that a block is left because a framework suspends its function: others get the lock meanwhile.

    Args:
        process: State of the process.
        name: What was held in the block, for the message.
        error: The exception by which it is left; None for none.
    """
    if error is None:
        return
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    warned = process.of(_Warned)
    if not kinds & _SUSPEND or name in warned:
        return
    if len(warned) >= _MOST_WARNED:
        warned.clear()
    warned.add(name)
    process.emit(Log("warning", _SUSPENDED, (name, type(error).__name__)))


def note_not_released(error: BaseException, failure: Exception) -> None:
    """Add a note to the exception of a block: the library could not release its lock either."""
    add_note(error, f"and the lock could not be released: {one_line(failure)}")


def timeout_error(what: str, name: str, acquisition: Acquisition) -> MutexTimeoutError:
    """Return the error for a lock that was not free in time.

    Args:
        what: What did not happen, for the message, with braces for the name.
        name: What messages call the lock.
        acquisition: The acquisition that failed.
    """
    seen, timeout = acquisition.holder or Claim(), acquisition.contender.options.timeout
    msg = f"{what.format(shown(name))} within {timeout} s: {acquisition.described}"
    return MutexTimeoutError(msg, key=name, owner=seen.owner, expires_at=date_of(seen.ends))
