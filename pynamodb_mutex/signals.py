"""Signals of what happens to locks, by blinker, as PynamoDB's own are.

``acquired.connect(receiver)`` calls ``receiver(sender, **event)`` for each lock of this process,
``acquired.connect(receiver, sender=ShopLock)`` for those in one table. The sender is the model in
whose table the lock stands: `~pynamodb_mutex.LockItem`, a subclass of it, or for a row's lock the row's model. A
receiver is kept by a weak reference unless it is connected with ``weak=False``.

Each acquisition is reported in the order in which things happen to it, whatever the threads do: first
``acquired``, then each ``lost``, and a ``renewed`` with ``won_back`` for each time that a lost lock is held
again, and as its end one of ``released``, ``handed_over`` and ``lost``, unless the process ends before.
Locks that are acquired together are reported one by one. Entering a reentrant lock again is not an acquisition.

What a receiver raises is logged under ``pynamodb_mutex`` and goes no further. A coroutine function is
refused in the same way. No lock of the library is kept while a receiver runs: it may ask mutexes and
acquire other locks. ``renewed`` and ``renewal_failed`` are sent on one thread of the library's own, in
their order, at most 1000 of them waiting; each ``lost`` on a thread of its own; the rest, and a
``renewed`` by which a lost lock is held again, on the thread that calls the lock, which waits for the
receivers. For a task of asyncio that is a worker thread, in the task's context. Where another thread is
still reporting what came before, of the same acquisition, that one goes on with it, and nobody waits: a
receiver that is slow, or calls the lock, delays what comes after it, and no other acquisition.
While the system refuses a thread, what is reported on one waits. A forked child reports nothing of its parent's
locks.

Without blinker nothing is sent, and ``connect`` raises RuntimeError: install the extra
``pynamodb-mutex[signals]``.

The classes name the arguments, for type checkers: ``def receiver(sender, **event: Unpack[Lost])``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from pynamodb.signals import signals_available

from pynamodb_mutex._protocol.claim import Loss
from pynamodb_mutex._runtime import notifications

if TYPE_CHECKING:
    from blinker import NamedSignal

__all__ = [
    "Acquired",
    "Contended",
    "HandedOver",
    "Lost",
    "NotAcquired",
    "Released",
    "RenewalFailed",
    "Renewed",
    "acquired",
    "contended",
    "handed_over",
    "lost",
    "not_acquired",
    "released",
    "renewal_failed",
    "renewed",
    "signals_available",
]


class _OfAHold(TypedDict):
    key: str
    owner: str
    token: str
    fencing_token: int | None


class Acquired(_OfAHold):
    """Arguments of `acquired`.

    Attributes:
        key: The lock's key.
        owner: The holder's label.
        token: Random id of the acquisition.
        fencing_token: Its number; None with ``delete_on_release``.
        waited: Seconds from the call that asked for it.
        attempts: Requests that were sent for it: looks and conditional writes, repeats counted. 0 if
            another thread handed it over before this one had asked. Those of one group are counted
            for each of its locks.
        abandoned: Whether the holder before never gave it back.
        abandoned_by: Label of that holder, or None.
        lease: Seconds it lives without being renewed.
        expires_at: End of the claim, in server time.
    """

    waited: float
    attempts: int
    abandoned: bool
    abandoned_by: str | None
    lease: float
    expires_at: float


class Contended(TypedDict):
    """Arguments of `contended`.

    Attributes:
        key: The lock's key; with `~pynamodb_mutex.Mutex.any_of`, the one that is free first as far as is known.
        owner: Label of the one who asks.
        holder: Label of the one who holds it; None if it is not known, as are the next three.
        holder_token: Random id of that acquisition.
        holder_fencing_token: Its number.
        expires_at: End of the holder's claim, in server time.
    """

    key: str
    owner: str
    holder: str | None
    holder_token: str | None
    holder_fencing_token: int | None
    expires_at: float | None


class NotAcquired(TypedDict):
    """Arguments of `not_acquired`.

    Attributes:
        key: The lock's key; with `~pynamodb_mutex.Mutex.any_of`, as in `Contended`.
        owner: Label of the one who asked.
        waited: Seconds from the call.
        attempts: As in `Acquired`.
        error: What was raised; CancelledError for a task that was cancelled. None if the lock was held
            until the timeout.
    """

    key: str
    owner: str
    waited: float
    attempts: int
    error: BaseException | None


class Renewed(_OfAHold):
    """Arguments of `renewed`, in addition to the first four of `Acquired`.

    Attributes:
        expires_at: The new end, in server time.
        won_back: Whether the lock had been lost, as `lost` reported, and is held again by this renewal.
    """

    expires_at: float
    won_back: bool


class RenewalFailed(_OfAHold):
    """Arguments of `renewal_failed`, in addition to the first four of `Acquired`.

    Attributes:
        expires_at: End of the claim, in server time: until then it is retried.
        error: What the request failed with.
    """

    expires_at: float
    error: Exception


class Lost(_OfAHold):
    """Arguments of `lost`, in addition to the first four of `Acquired`.

    Attributes:
        loss: Why.
        taker: Label of the one who has taken it, if that is known.
        held_for: Seconds from the acquisition until this process knew.
    """

    loss: Loss
    taker: str | None
    held_for: float


class Released(_OfAHold):
    """Arguments of `released`, in addition to the first four of `Acquired`.

    Attributes:
        held_for: Seconds from the acquisition.
        error: None as a rule. Else why DynamoDB did not confirm the release: the lock expires with
            its lease at the latest.
    """

    held_for: float
    error: BaseException | None


class HandedOver(_OfAHold):
    """Arguments of `handed_over`, in addition to the first four of `Acquired`.

    Attributes:
        held_for: Seconds from the acquisition.
        to: Label of the next holder, a thread or task of this process; None after ``detach``, as are
            the next two: `acquired` reports it where the ticket is attached.
        to_token: Random id of the next holder's acquisition.
        to_fencing_token: Its number.
    """

    to: str | None
    to_token: str | None
    to_fencing_token: int | None
    held_for: float


acquired: NamedSignal = notifications.on_acquired
"""A lock was acquired, by a request of its own, by a hand-over from another thread, or by ``attach``. See `Acquired`."""

contended: NamedSignal = notifications.on_contended
"""A lock that was asked for is held. Sent once for each acquisition, when that is first seen. See `Contended`."""

not_acquired: NamedSignal = notifications.on_not_acquired
"""An acquisition ended without the lock, by timeout, by an error, or cancelled. See `NotAcquired`."""

renewed: NamedSignal = notifications.on_renewed
"""A lock was renewed, in the background, by ``renew``, or by a guarded ``save``. May come after its end was
reported, from another thread. See `Renewed`."""

renewal_failed: NamedSignal = notifications.on_renewal_failed
"""A request to renew failed, and did not say that the lock is lost. See `RenewalFailed`."""

lost: NamedSignal = notifications.on_lost
"""A lock was lost before it was released. Sent once; again only if it was won back in between. The
end of a lock that is acquired while somebody listens is watched in the background, also without ``auto_renew``. See
`Lost`."""

released: NamedSignal = notifications.on_released
"""A lock was released, by ``release``, by leaving the block, or by a write with ``unlock=True``. See `Released`."""

handed_over: NamedSignal = notifications.on_handed_over
"""A lock went on to the next thread or task in line, or into a ticket by ``detach``. See `HandedOver`."""
