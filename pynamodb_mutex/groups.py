"""Locks on several keys: all of them or none, or whichever is free first; and `Semaphore`.

`Mutex.for_keys` makes a `MutexGroup`, `RowLockMixin.locked_all` a `RowLocks`, `Mutex.any_of` an `AnyOf`. All but
`Semaphore` are defined elsewhere, in `mutex` and `_row_locks`, and only exported here. How they are acquired is in
`pynamodb_mutex._several`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb_mutex._lock.dynamodb.keys import LONGEST_KEY, check_key, key_of
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._row_locks import LockedRows, RowLocks
from pynamodb_mutex._several.handles import MOST_KEYS
from pynamodb_mutex.exceptions import InvalidKeyError
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.mutex import AnyOf, MutexGroup, options_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pynamodb_mutex.mutex import Options

__all__ = ["AnyOf", "LockedRows", "MutexGroup", "RowLocks", "Semaphore"]

_PERMIT = "#permit-"
"""What stands in a permit's key between the semaphore's key and the permit's number."""


class Semaphore(AnyOf):
    """Limits the number of holders, in all of your processes together.

    Use it like `threading.BoundedSemaphore`, as a context manager, or as a decorator. Each permit is a lock with a lease of its
    own, so others get the permit of a dead holder. By one object, each of your threads or tasks holds one permit; for another
    permit in the same thread use another object.

    Not guaranteed: which permit you get; an order between processes. Fencing tokens grow per permit, so let your resource
    compare them per value of `permit`.
    """

    _made_by = "{}.for_key(...)"
    _makers = frozenset({"for_key"})

    @classmethod
    def for_key(  # type: ignore[override]  # the number of permits has no default
        cls, key: str, *, permits: int, model: type[LockItem] = LockItem, **options: Unpack[Options]
    ) -> Semaphore:
        """Return a semaphore for a key. You do not hold a permit yet, and this sends no request.

        Permit 3 of ``gpu`` is the lock on the key ``gpu#permit-3``.

        Your processes may use different numbers at the same time: there are never more holders than the largest number in use.
        After you have lowered the number, holders of higher permits keep them until they release.

        Args:
            key: 1 to 2037 bytes of UTF-8.
            permits: The number of holders at a time, 1 to 100.
            model: The lock table.
            **options: The options of `Mutex.for_key <pynamodb_mutex.Mutex.for_key>`.

        Raises:
            InvalidKeyError: DynamoDB would not accept the key.
            TypeError: ``permits`` is not an int, or an option has a wrong type.
            ValueError: ``permits`` is below 1 or above 100; and as `Mutex.for_key`.

        Example::

            from pynamodb_mutex import Semaphore

            with Semaphore.for_key("gpu", permits=4, timeout=60) as semaphore:
                print("you use card", semaphore.permit)
        """
        cls._called("for_key", options)
        if isinstance(permits, bool) or not isinstance(permits, int):
            msg = f"permits must be an int, not {shown(permits)}"
            raise TypeError(msg)
        if not 1 <= permits <= MOST_KEYS:
            msg = f"a semaphore has 1 to {MOST_KEYS} permits, not {permits}"
            raise ValueError(msg)
        # room for the longest number, so that the key stays valid when the number of permits is raised
        longest = LONGEST_KEY - len(f"{_PERMIT}{MOST_KEYS}")
        if len(check_key(key).encode()) > longest:
            msg = f"a semaphore's key takes 1 to {longest} bytes of UTF-8, this one {len(key.encode())}"
            raise InvalidKeyError(msg, key=key)
        slots = [f"{key}{_PERMIT}{number}" for number in range(1, permits + 1)]
        one = options_of(slots[0], options, model=model)
        each = [one.replace(key=slot, row=key_of(model, slot)) for slot in slots]
        return cls._of(one, each, key)

    @property
    def permit(self) -> int | None:
        """Number of your permit, from 1; None without an acquisition."""
        claim = self._mine()
        return None if claim is None else int(claim.options.key.rpartition(_PERMIT)[2])
