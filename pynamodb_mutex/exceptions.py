"""What can go wrong with a lock. DynamoDB's own failures stay PynamoDB's exceptions."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._protocol.claim import Loss
from pynamodb_mutex._protocol.messages import shown_owner

__all__ = [
    "InvalidKeyError",
    "InvalidRowError",
    "InvalidTicketError",
    "Loss",
    "MutexAlreadyHeldError",
    "MutexError",
    "MutexLostError",
    "MutexNotHeldError",
    "MutexTimeoutError",
    "RowLockedError",
]


def _rebuild(kind: type[MutexError], args: tuple[Any, ...], state: dict[str, Any]) -> MutexError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class MutexError(PynamoDBException):
    """Base class of this library's exceptions.

    The text shows keys and owners as ``repr`` does, shortened; the attributes have them as they are.

    Attributes:
        key: The lock's key, where known.
        owner: Label of the holder, where known.
        expires_at: End of the holder's claim, in seconds of server time since the epoch, where known.
    """

    msg = "Mutex error"

    def __init__(
        self,
        msg: str | None = None,
        cause: Exception | None = None,
        *,
        key: str | None = None,
        owner: str | None = None,
        expires_at: float | None = None,
    ) -> None:
        super().__init__(msg, cause)
        self.key = key
        self.owner = owner
        self.expires_at = expires_at

    def __reduce__(self) -> tuple[Any, ...]:
        # the default would call __init__ with the message alone; a cause may hold a socket
        return _rebuild, (type(self), self.args, {**self.__dict__, "cause": None})


def describe_holder(owner: str | None, expires_at: float | None) -> str:
    """Say who holds a lock, and until when, for a message."""
    if expires_at is None:
        return "its holder is not known"
    try:
        end = datetime.fromtimestamp(expires_at, tz=timezone.utc).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        end = f"{expires_at} s"  # a row that another program wrote
    return f"held by {shown_owner(owner)} until {end} (DynamoDB's time) unless renewed"


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an exception, where Python has them (3.11)."""
    getattr(error, "add_note", str)(text)


class MutexTimeoutError(MutexError, TimeoutError):
    """The lock was not free within the timeout."""


class MutexNotHeldError(MutexError, RuntimeError):
    """The call needs the lock, and it is not held here."""


class MutexLostError(MutexNotHeldError):
    """The lock was held here, and is no more.

    Attributes:
        loss: Why.
        applied: Of a guarded write: False if it was not applied, None if that cannot be known.
    """

    def __init__(
        self,
        msg: str | None = None,
        cause: Exception | None = None,
        *,
        loss: Loss = Loss.EXPIRED,
        applied: bool | None = False,
        key: str | None = None,
        owner: str | None = None,
        expires_at: float | None = None,
    ) -> None:
        super().__init__(msg, cause, key=key, owner=owner, expires_at=expires_at)
        self.loss = loss
        self.applied = applied


class MutexAlreadyHeldError(MutexError, RuntimeError):
    """The thread or task that asks holds the lock already, and may not enter again.

    Or the one that asks would block the only thread on which the holder can go on: that of an event loop.
    """


class RowLockedError(MutexError):
    """A row was to be written without its lock while another holds it.

    Attributes:
        applied: False if it was not written; None if that cannot be known, for an answer was lost before.
    """

    def __init__(
        self,
        msg: str | None = None,
        cause: Exception | None = None,
        *,
        applied: bool | None = False,
        key: str | None = None,
        owner: str | None = None,
        expires_at: float | None = None,
    ) -> None:
        super().__init__(msg, cause, key=key, owner=owner, expires_at=expires_at)
        self.applied = applied


class InvalidKeyError(MutexError, ValueError):
    """A key that DynamoDB would not take."""


class InvalidRowError(MutexError):
    """A row stands under the key that is not a lock's, or whose lock attributes cannot be right.

    Such a row is never taken, and nobody waits for it. `LockItem.force_release
    <pynamodb_mutex.LockItem.force_release>` puts the lock attributes of a lock's row right.

    Attributes:
        attribute: Stored name of the attribute that is missing or wrong, where known.
    """

    def __init__(
        self,
        msg: str | None = None,
        cause: Exception | None = None,
        *,
        attribute: str | None = None,
        key: str | None = None,
        owner: str | None = None,
        expires_at: float | None = None,
    ) -> None:
        super().__init__(msg, cause, key=key, owner=owner, expires_at=expires_at)
        self.attribute = attribute


class InvalidTicketError(MutexError, ValueError):
    """What should be a ticket is none, or is one for another table or region."""
