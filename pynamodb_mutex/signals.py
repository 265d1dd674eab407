"""Emits blinker signals for lock events, as PynamoDB does for requests.

``acquired.connect(receiver)`` calls ``receiver(sender, **event)`` for each lock of this process,
``acquired.connect(receiver, sender=ShopLock)`` for those in one table. The sender is the model of the lock's
row: `~pynamodb_mutex.LockItem`, a subclass of it, or, for a lock in a row, that row's model. blinker keeps a
weak reference to a receiver unless it is connected with ``weak=False``.

**Order.** Signals of one acquisition are emitted in the order of the events: first ``acquired``; then any
number of ``lost``, each followed by a ``renewed`` with ``won_back`` if a renewal wins the lock back; last one of
``released``, ``handed_over`` and ``lost``, unless the process ends before. Locks that are acquired together are
reported one by one. Acquiring a reentrant lock again is not an acquisition.

**Errors.** An exception of a receiver is logged under ``pynamodb_mutex`` and has no other effect. A
coroutine function as a receiver is refused in the same way.

**Threads.** A receiver may query mutexes and acquire other locks. ``renewed``, ``renewal_failed``, ``danger`` and
``clocks_disagree`` are emitted on one thread of the library, in order; at most 1000 of them wait for a slow receiver, and further ones are
dropped with a warning in the log. Each ``lost`` is emitted on a thread of its own. The others, and a ``renewed`` with
``won_back``, are emitted on the thread that calls the lock, which waits for the receivers; for an asyncio task, on a
worker thread in the task's context. A slow receiver delays later events of the same acquisition only: they are emitted
by the thread that it holds up. While the system refuses a thread, events that need one wait. A forked child emits
nothing for its parent's locks.

Without blinker nothing is emitted, and ``connect`` raises RuntimeError: install the extra
``pynamodb-mutex[signals]``.

The classes below name the arguments, for type checkers: ``def receiver(sender, **event: Unpack[Lost])``.
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
        attributes: What the holder gave as ``attributes``; None if nothing.
        waited: Seconds since the call of ``acquire``.
        attempts: Number of requests sent for it: polls and conditional writes, including retries. 0 if another thread
            handed the lock over before this one sent a request. The requests of a group count for each of
            its locks.
        abandoned: Whether the previous holder never released the lock; False for several locks together.
        abandoned_by: Label of that holder, or None.
        forced: Whether the lock was taken by force from another holder.
        lease: Seconds until the claim expires unless renewed.
        expires_at: End of the claim, in seconds of DynamoDB's time since the epoch.
        readers: Number of those who share the lock, this one among them, as the last answer showed it. This and the next one
            only of a shared lock.
        resent: Number of joins and renewals so far that were sent again, because others had moved the end of the claim.
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
        attributes: What the waiter gave as ``attributes``; None if nothing.
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
        waited: Seconds since the call of ``acquire``.
        attempts: As in `Acquired`.
        error: The exception that was raised; CancelledError for a cancelled task. None if the lock was held
            by another until the timeout.
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
        won_back: Whether the lock had been lost, as `lost` reported, and this renewal won it back.
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
        remaining: Seconds that were left of the lease when this was noticed; of several locks, of the first to end.
    """

    remaining: float


class Lost(_OfAHold):
    """Arguments of `lost`, in addition to the first five of `Acquired`.

    Attributes:
        loss: Why the lock was lost.
        taker: Label of the holder that has acquired the lock since; None if unknown.
        held_for: Seconds from the acquisition until this process noticed the loss.
    """

    loss: Loss
    taker: str | None
    held_for: float


class Released(_OfAHold):
    """Arguments of `released`, in addition to the first five of `Acquired`.

    Attributes:
        held_for: Seconds since the acquisition.
        error: The exception because of which DynamoDB did not confirm the release: the lock then expires with its
            lease at the latest. None if DynamoDB confirmed it.
    """

    held_for: float
    error: BaseException | None


class HandedOver(_OfAHold):
    """Arguments of `handed_over`, in addition to the first five of `Acquired`.

    Attributes:
        held_for: Seconds since the acquisition.
        to: Label of the next holder, a thread or task of this process. This and the next two are None after
            ``detach``: the process that attaches emits `acquired`.
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
        outcome: How the call ended. ``"ran"``: it did the work, whose result is recorded. ``"repeated"``: a result counted;
            ``"waited"``: it did, after another run was waited for. ``"failed"``: it did not complete the work.
            ``"mismatched"``: PayloadMismatchError; ``"unknown"``: OutcomeUnknownError; ``"not_recorded"``: NotRecordedError.
        attributes: None.
    """

    key: str
    owner: str
    outcome: str
    attributes: dict[str, Any] | None


class ClocksDisagree(TypedDict):
    """Arguments of `clocks_disagree`.

    Attributes:
        endpoint: URL to which the requests went.
        behind: Seconds by which two answers contradict each other, at least; of several, by the worst.
        answers: Number of answers that contradict an earlier one by more than 0.1 s, since the signal before.
        key: Empty, for this is about no lock.
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
"""A lock was acquired, by a request, by a hand-over from another thread or task, or by ``attach``. See `Acquired`."""

contended: NamedSignal = SIGNALS["contended"]
"""``acquire`` found the lock held by another. Emitted once per call. See `Contended`."""

not_acquired: NamedSignal = SIGNALS["not_acquired"]
"""``acquire`` ended without the lock, by timeout, error or cancellation. See `NotAcquired`."""

renewed: NamedSignal = SIGNALS["renewed"]
"""A lock was renewed, in the background, by ``renew``, or by a guarded ``save``. It may be emitted, on another
thread, after the signal of the acquisition's end. See `Renewed`."""

renewal_failed: NamedSignal = SIGNALS["renewal_failed"]
"""A renewal request failed, without an answer that the lock is lost. See `RenewalFailed`."""

danger: NamedSignal = SIGNALS["danger"]
"""Less than a third of the lease is left, and renewal has not helped. Emitted once; again only after a
renewal that was applied. While a receiver is connected, also for locks without ``auto_renew``, if they were acquired
after it was connected. Like ``renewed`` it may come after the signal of the acquisition's end. See `Danger`."""

lost: NamedSignal = SIGNALS["lost"]
"""A lock was lost before it was released. Emitted once; again only if the lock was won back in between. While
a receiver is connected, losses are also detected in the background for locks without ``auto_renew``, if they were
acquired after it was connected. See `Lost`."""

released: NamedSignal = SIGNALS["released"]
"""A lock was released, by ``release``, by leaving the block, or by a write with ``unlock=True``. See `Released`."""

handed_over: NamedSignal = SIGNALS["handed_over"]
"""A lock was handed over to the next thread or task in line, or detached into a ticket. See `HandedOver`."""

marked: NamedSignal = SIGNALS["marked"]
"""A writer that waits for readers has marked the lock, so that no others join them for a few seconds. See `Marked`."""

once_called: NamedSignal = SIGNALS["once_called"]
"""A call of `~pynamodb_mutex.once` has ended; the signals of the lock under which it worked come in addition. See `OnceCalled`."""

clocks_disagree: NamedSignal = SIGNALS["clocks_disagree"]
"""Answers of an endpoint contradict each other about the time by more than guarantee 1 allows. At most once a minute
for each endpoint. The sender is a model whose request saw it. See `ClocksDisagree`."""
