"""Semaphore: so many holders at a time, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb_mutex._any_of import MOST, AnyOf, any_terms
from pynamodb_mutex._keys import LONGEST_KEY, check_key
from pynamodb_mutex._messages import shown
from pynamodb_mutex._terms import made
from pynamodb_mutex.exceptions import InvalidKeyError
from pynamodb_mutex.models import LockItem

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pynamodb_mutex._terms import Options

_PERMIT = "#permit-"


class Semaphore(AnyOf):
    """A lock that at most so many acquisitions hold at a time, wherever they run.

    Used like `threading.Semaphore`, as a context manager, or as a decorator. Each permit is a lock of
    its own, with a lease: that of a dead holder is free again. One object holds one permit for each
    thread or task; for one more in the same thread make another object.

    Not guaranteed: an order between permits. A fencing token grows for each permit alone, so a resource
    that compares it must do so for each value of `permit`.
    """

    _made_by = "{}.for_key(...)"
    _makers = frozenset({"for_key"})

    @classmethod
    def for_key(  # type: ignore[override]  # the number of permits has no default
        cls, key: str, *, permits: int, model: type[LockItem] = LockItem, **options: Unpack[Options]
    ) -> Semaphore:
        """Return a semaphore for a key, not yet held. Sends nothing.

        Permit 3 of ``gpu`` is the lock on the key ``gpu#permit-3``.

        Clients may ask for different numbers at the same time. There are never more holders than the
        largest of them and, once those have left that hold a permit beyond the lowest, never more than
        the lowest as long as no client asks for more.

        Args:
            key: 1 to 2037 bytes of UTF-8.
            permits: How many may hold it at a time, 1 to 100.
            model: The lock table.
            **options: Those of `Mutex.for_key`.

        Raises:
            InvalidKeyError: For a key that DynamoDB would not take.
            TypeError: If permits is not an int, or an option is of a wrong type.
            ValueError: If permits is below 1 or above 100, or as `Mutex.for_key` says.
        """
        cls._called("for_key", options)
        if isinstance(permits, bool) or not isinstance(permits, int):
            msg = f"permits must be an int, not {shown(permits)}"
            raise TypeError(msg)
        if not 1 <= permits <= MOST:
            msg = f"a semaphore has 1 to {MOST} permits, not {permits}"
            raise ValueError(msg)
        # whatever the number is now: it may be raised later
        longest = LONGEST_KEY - len(f"{_PERMIT}{MOST}")
        if len(check_key(key).encode()) > longest:
            msg = f"a semaphore's key takes 1 to {longest} bytes of UTF-8, this one {len(key.encode())}"
            raise InvalidKeyError(msg, key=key)
        slots = [f"{key}{_PERMIT}{number}" for number in range(1, permits + 1)]
        terms, each = any_terms(slots, key, model, options)
        return made(cls, terms, each)

    @property
    def permit(self) -> int | None:
        """Number of the permit of the last acquisition, from 1; None before the first."""
        hold = self._mine()
        return None if hold is None else int(hold.terms.key.rpartition(_PERMIT)[2])
