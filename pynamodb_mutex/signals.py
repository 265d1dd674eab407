"""Emits blinker signals for lock events, as PynamoDB does for requests.

``acquired.connect(receiver)`` has ``receiver(sender, **event)`` called for each lock of your process;
``acquired.connect(receiver, sender=ShopLock)``, for the locks in one table. The sender is the model of the lock's row:
`~pynamodb_mutex.LockItem`, a subclass of it, or, for a lock in a row, that row's model. blinker keeps a weak reference to
your receiver, unless you connect it with ``weak=False``.

**Order.** You get the signals of one acquisition in the order of the events: first ``acquired``; then any number of ``lost``,
each followed by a ``renewed`` with ``won_back`` if a renewal wins the lock back; last, if your process lives on, one of
``released``, ``handed_over`` and ``lost``. You get signals for each of the locks that you acquire together. To acquire a
reentrant lock again is no acquisition.

**Errors.** The library logs an exception of your receiver under ``pynamodb_mutex``, and goes on. It refuses a coroutine
function in the same way.

**Threads.** Your receiver may query mutexes and acquire other locks. One thread of the library emits ``renewed``,
``renewal_failed``, ``danger`` and ``clocks_disagree``, in order; at most 1000 of them wait for a slow receiver, and the library
drops further ones with a warning in the log. Each ``lost`` has a thread of its own. The others, and a ``renewed`` with
``won_back``, come on the thread that calls the lock, which waits for your receivers; for an asyncio task, on a worker thread in
the task's context. A slow receiver delays later events of the same acquisition only: the thread that it holds up emits them.
While the system refuses a thread, events that need one wait. A forked child emits nothing for its parent's locks.

Without blinker you get no signals, and ``connect`` raises RuntimeError: install the extra ``pynamodb-mutex[signals]``.

The classes below name the arguments, for type checkers: ``def receiver(sender, **event: Unpack[Lost])``.

Example::

    from pynamodb_mutex import Mutex
    from pynamodb_mutex.signals import acquired

    @acquired.connect
    def receiver(sender, **event):
        print("you waited", event["waited"], "s for", event["key"])

    with Mutex.for_key("report"):
        pass
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from pynamodb.signals import signals_available

from pynamodb_mutex._lock.runtime.notifications import SIGNALS
from pynamodb_mutex.exceptions import Loss

if TYPE_CHECKING:
    from blinker import NamedSignal

__all__ = [
    "Acquired",
    "ClocksDisagree",
    "Contended",
    "Danger",
    "HandedOver",
    "Lost",
    "Marked",
    "NotAcquired",
    "OnceCalled",
    "Released",
    "RenewalFailed",
    "Renewed",
    "acquired",
    "clocks_disagree",
    "contended",
    "danger",
    "handed_over",
    "lost",
    "marked",
    "not_acquired",
    "once_called",
    "released",
    "renewal_failed",
    "renewed",
    "signals_available",
]


class _OfAShare(TypedDict, total=False):
    """Arguments that the signals of a shared acquisition have in addition: see `Acquired`."""

    readers: int
    resent: int


class _OfAHold(_OfAShare):
    """Arguments that all signals of an acquisition have: see `Acquired`."""

    key: str
    owner: str
    token: str
    fencing_token: int | None
    attributes: dict[str, Any] | None


class Acquired(_OfAHold):
    """Arguments of `acquired`.

    Attributes:
        key: The lock's key; with a range key, both, separated by a blank.
        owner: The holder's label.
        token: Random id of the acquisition.
        fencing_token: Its fencing token; None with ``delete_on_release``.
        attributes: The values that you gave as ``attributes``, or None.
        waited: Seconds since you called ``acquire``.
        attempts: Number of requests sent for it: polls and conditional writes, including retries. 0 if another thread
            handed the lock over ahead of your first request. The requests of a group count for each of its locks.
        abandoned: Whether the previous holder never released the lock; False for several locks together.
        abandoned_by: Label of that holder, or None.
        forced: Whether you took the lock by force from another holder.
        lease: Seconds that the claim lasts without a renewal.
        expires_at: End of the claim, in seconds of DynamoDB's time since the epoch.
        readers: Number of readers, yours among them, as the last answer showed it. Only shared locks have this and the next
            argument.
        resent: Number of joins and renewals so far that you sent again: other readers had moved the end of the claim.
    """

    waited: float
    attempts: int
    abandoned: bool
    abandoned_by: str | None
    forced: bool
    lease: float
    expires_at: float


class Contended(TypedDict):
    """Arguments of `contended`.

    Attributes:
        key: The lock's key; with `~pynamodb_mutex.Mutex.any_of`, the key whose claim ends first, as far as known.
        owner: Label of the waiter.
        holder: Label of the holder. This and the next three are None if unknown.
        holder_token: Random id of the holder's acquisition.
        holder_fencing_token: Its fencing token.
        expires_at: End of the holder's claim, in seconds of DynamoDB's time since the epoch.
        attributes: The values that the waiter gave as ``attributes``, or None.
    """

    key: str
    owner: str
    attributes: dict[str, Any] | None
    holder: str | None
    holder_token: str | None
    holder_fencing_token: int | None
    expires_at: float | None


class NotAcquired(TypedDict):
    """Arguments of `not_acquired`.

    Attributes:
        key: The lock's key; with `~pynamodb_mutex.Mutex.any_of`, as in `Contended`.
        owner: Label of the waiter.
        waited: Seconds since you called ``acquire``.
        attempts: As in `Acquired`.
        error: The exception that you got; CancelledError for a cancelled task. None if another held the lock until your
            timeout.
        attributes: As in `Contended`.
    """

    key: str
    owner: str
    attributes: dict[str, Any] | None
    waited: float
    attempts: int
    error: BaseException | None


class Renewed(_OfAHold):
    """Arguments of `renewed`, in addition to the first five of `Acquired`.

    Attributes:
        expires_at: The new end, in seconds of DynamoDB's time since the epoch.
        won_back: Whether you had lost the lock, as `lost` reported, and this renewal won it back.
    """

    expires_at: float
    won_back: bool


class RenewalFailed(_OfAHold):
    """Arguments of `renewal_failed`, in addition to the first five of `Acquired`.

    Attributes:
        expires_at: End of the claim, in seconds of DynamoDB's time since the epoch; retries end then.
        error: The exception of the request.
    """

    expires_at: float
    error: Exception


class Danger(_OfAHold):
    """Arguments of `danger`, in addition to the first five of `Acquired`.

    Attributes:
        remaining: Seconds that were left of your lease; of several locks, of the first lease to end.
    """

    remaining: float


class Lost(_OfAHold):
    """Arguments of `lost`, in addition to the first five of `Acquired`.

    Attributes:
        loss: Why you lost the lock.
        taker: Label of the holder that has acquired the lock since; None if unknown.
        held_for: Seconds from the acquisition to the moment at which your process noticed the loss.
    """

    loss: Loss
    taker: str | None
    held_for: float


class Released(_OfAHold):
    """Arguments of `released`, in addition to the first five of `Acquired`.

    Attributes:
        held_for: Seconds since the acquisition.
        error: None if DynamoDB confirmed the release; otherwise the exception, and the lock expires with its lease at the
            latest.
    """

    held_for: float
    error: BaseException | None


class HandedOver(_OfAHold):
    """Arguments of `handed_over`, in addition to the first five of `Acquired`.

    Attributes:
        held_for: Seconds since the acquisition.
        to: Label of the next holder, a thread or task of your process. This and the next two are None after ``detach``: the
            process that attaches emits `acquired`.
        to_token: Random id of the next holder's acquisition.
        to_fencing_token: Its fencing token.
    """

    to: str | None
    to_token: str | None
    to_fencing_token: int | None
    held_for: float


class Marked(TypedDict):
    """Arguments of `marked`.

    Attributes:
        key: The lock's key.
        owner: Label of the writer.
        readers: Number of the readers that it waits for.
        attributes: As in `Contended`.
    """

    key: str
    owner: str
    readers: int
    attributes: dict[str, Any] | None


class OnceCalled(TypedDict):
    """Arguments of `once_called`.

    Attributes:
        key: The key.
        owner: Label of the caller.
        outcome: How your call ended. ``"ran"``: it did the work, and the result is recorded. ``"repeated"``: a result
            counted; ``"waited"``: the same, but your call waited for another run. ``"failed"``: it did not complete the
            work. ``"mismatched"``: PayloadMismatchError; ``"unknown"``: OutcomeUnknownError; ``"not_recorded"``:
            NotRecordedError.
        attributes: None.
    """

    key: str
    owner: str
    outcome: str
    attributes: dict[str, Any] | None


class ClocksDisagree(TypedDict):
    """Arguments of `clocks_disagree`.

    Attributes:
        endpoint: URL of the requests.
        behind: Seconds by which two answers contradict each other, at least; of several, the worst.
        answers: Number of answers since the last signal that contradict an earlier answer by more than 0.1 s.
        key: Empty, for this concerns no lock.
        owner: Empty.
        attributes: None.
    """

    endpoint: str
    behind: float
    answers: int
    key: str
    owner: str
    attributes: dict[str, Any] | None


acquired: NamedSignal = SIGNALS["acquired"]
"""You acquired a lock, by a request, by a hand-over from another thread or task, or by ``attach``. See `Acquired`."""

contended: NamedSignal = SIGNALS["contended"]
"""Your ``acquire`` found the lock held by another. You get it once per call. See `Contended`."""

not_acquired: NamedSignal = SIGNALS["not_acquired"]
"""Your ``acquire`` ended without the lock, by timeout, error or cancellation. See `NotAcquired`."""

renewed: NamedSignal = SIGNALS["renewed"]
"""A lock was renewed, in the background, by ``renew``, or by a guarded ``save``. You may get it, on another thread, later
than the signal of the acquisition's end. See `Renewed`.
"""

renewal_failed: NamedSignal = SIGNALS["renewal_failed"]
"""A renewal request failed, without an answer that the lock is lost. See `RenewalFailed`."""

danger: NamedSignal = SIGNALS["danger"]
"""Less than a third of your lease is left, and renewal has not helped. You get it once, and again only after a successful renewal.
With a receiver connected, you also get it for locks without ``auto_renew`` that you acquire from then on. Like ``renewed``
it may come later than the signal of the acquisition's end. See `Danger`.
"""

lost: NamedSignal = SIGNALS["lost"]
"""You lost a lock before you released it. You get it once, and again only if you won the lock back in between. With a
receiver connected, the library also detects, in the background, losses of locks without ``auto_renew`` that you acquire
from then on. See `Lost`.
"""

released: NamedSignal = SIGNALS["released"]
"""You released a lock, by ``release``, by leaving the block, or by a write with ``unlock=True``. See `Released`."""

handed_over: NamedSignal = SIGNALS["handed_over"]
"""You handed a lock over to the next thread or task in line, or detached it into a ticket. See `HandedOver`."""

marked: NamedSignal = SIGNALS["marked"]
"""Your waiting writer has marked the lock, and no new readers join for a few seconds. See `Marked`."""

once_called: NamedSignal = SIGNALS["once_called"]
"""Your call of `~pynamodb_mutex.once` has ended; you get the signals of its lock in addition. See `OnceCalled`."""

clocks_disagree: NamedSignal = SIGNALS["clocks_disagree"]
"""Answers of an endpoint contradict each other about the time by more than guarantee 1 allows. You get it at most once a minute
for each endpoint. The sender is a model whose request saw it. See `ClocksDisagree`.
"""
