"""What the holder of a lock does with it: renew it, write under it, give it back or on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._release import release
from pynamodb_mutex._terms import check_at_least, check_lease
from pynamodb_mutex._view import View

if TYPE_CHECKING:
    from pynamodb.transactions import TransactWrite

    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._keys import RawItem


class Holder(View):
    """What is done with an acquisition once it was made."""

    _raw_key: RawItem | None = None
    """Of the user's row that is locked, if it is one."""

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
                for caller, other in list(self._holds.items()):
                    if other is hold:
                        del self._holds[caller]

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

    def detach(self, lease: float | None = None) -> str:
        """End the acquisition here, and return a ticket by which another process goes on with it.

        The lock stays taken: nobody renews it until `attach`, so it ends when the ticket does. From
        the return on this mutex does not hold it. A guarded write under way is waited for.

        Not guaranteed: that anybody attaches. A ticket that is lost keeps the key blocked until it
        ends. Whoever may write to the table can use a ticket: pass it on as you would the lock.

        Args:
            lease: Seconds from now for which the ticket is good; the mutex's own by default.

        Returns:
            Compact JSON in ASCII, good for one `attach`.

        Raises:
            MutexLostError: If the lock is lost.
            MutexNotHeldError: If it is not held here, or a write of unknown outcome may have given it
                back.
            MutexAlreadyHeldError: If it is entered several times, being reentrant.
            MutexError: If it was taken together with others.
            pynamodb.exceptions.UpdateError: If DynamoDB cannot be reached within 5 s; the lock is held
                as before.
        """
        if lease is not None:
            check_lease(lease)
        from pynamodb_mutex._ticket import detach  # noqa: PLC0415 - seldom needed

        return detach(self._current("detach"), lease, self._raw_key)

    def save_data(self, data: Any) -> None:
        """Write the payload into the row, if the lock is still held in the store; None clears it.

        Raises:
            MutexLostError: If it is not; its ``applied`` says whether the payload was written.
            MutexError: With ``delete_on_release``, for then nothing can be guarded.
            TypeError: If the payload is not JSON; ValueError for NaN or infinity in it.
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
        condition in it does not hold, or DynamoDB cannot be reached; then the outcome is unknown. For a
        table that is not there it raises ``TableDoesNotExist``, which names that table.

        Raises:
            MutexLostError: If the lock is lost already.
            MutexNotHeldError: If it is not held here.
            MutexError: With ``delete_on_release``, for then nothing can be guarded.
        """
        hold = self._current("transaction")
        from pynamodb_mutex._transaction import (  # noqa: PLC0415 - seldom needed, slow to load
            GuardedTransactWrite,
        )

        return GuardedTransactWrite([hold])
