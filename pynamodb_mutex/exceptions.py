"""The library's exceptions, all below `MutexError`, and why a lock was lost.

Failures of DynamoDB itself, such as a missing table or a denied request, raise PynamoDB's own exceptions.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException

if TYPE_CHECKING:
    from datetime import datetime

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
    "NotRecordedError",
    "OutcomeUnknownError",
    "PayloadMismatchError",
    "ResultUnavailableError",
    "RowLockedError",
]


class Loss(enum.Enum):
    """Why a lock was lost."""

    EXPIRED = "its lease ended before it was renewed"
    TAKEN = "another holder has taken it, perhaps after its claim was broken by force"
    FORCED = "its claim was broken by force"
    DELETED = "its row was deleted or overwritten"
    UNREACHABLE = "its renewals failed, or had no answer, until its lease ended"

    @property
    def can_be_won_back(self) -> bool:
        """Whether a renewal may win the lock back: only the clock has shown the loss, no row."""
        return self in (Loss.EXPIRED, Loss.UNREACHABLE)


def _rebuild(kind: type[MutexError], args: tuple[Any, ...], state: dict[str, Any]) -> MutexError:
    """Make an exception again from its pickle, without ``__init__``, whose arguments differ from class to class."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class MutexError(PynamoDBException):
    """Base class of this library's exceptions.

    Messages show keys and owners as ``repr`` does, shortened; the attributes have the full values.

    Attributes:
        key (str | None): The lock's key, if known.
        owner (str | None): Label of the holder, if known.
        expires_at (datetime.datetime | None): End of the holder's claim, in DynamoDB's time (UTC), if known.
    """

    msg = "Mutex error"

    def __init__(
        self,
        msg: str | None = None,
        cause: Exception | None = None,
        *,
        key: str | None = None,
        owner: str | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        super().__init__(msg, cause)
        self.key = key
        self.owner = owner
        self.expires_at = expires_at

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call __init__ with the message alone. The cause is left out: it may refer to a socket, which
        # cannot be pickled.
        return _rebuild, (type(self), self.args, {**self.__dict__, "cause": None})


def add_note(error: BaseException, text: str) -> None:
    """Add a note to an exception; without effect before Python 3.11, which has no notes."""
    getattr(error, "add_note", str)(text)


class MutexTimeoutError(MutexError, TimeoutError):
    """The lock was not free within the timeout."""


class MutexNotHeldError(MutexError, RuntimeError):
    """The call needs the lock, but the lock is not held here.

    Attributes:
        applied (bool | None): For a guarded write: False if it was not applied, None if that is unknown. False for all
            other calls.
    """

    def __init__(
        self,
        msg: str | None = None,
        cause: Exception | None = None,
        *,
        applied: bool | None = False,
        key: str | None = None,
        owner: str | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        super().__init__(msg, cause, key=key, owner=owner, expires_at=expires_at)
        self.applied = applied


class MutexLostError(MutexNotHeldError):
    """The lock was held here and has been lost.

    Attributes:
        loss (Loss): The cause. With UNREACHABLE, ``__cause__`` is the failure of the last renewal, unless that was under way.
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
        expires_at: datetime | None = None,
    ) -> None:
        super().__init__(msg, cause, applied=applied, key=key, owner=owner, expires_at=expires_at)
        self.loss = loss


class MutexAlreadyHeldError(MutexError, RuntimeError):
    """The thread or task already holds the lock and may not acquire it again.

    Also raised if the call would block the event loop of the task that holds the lock.
    """


class RowLockedError(MutexError):
    """A write of a row without its lock was refused, because another holder has the row.

    Attributes:
        applied (bool | None): False if it was not applied; None if that is unknown, because an earlier
            attempt's answer was lost.
    """

    def __init__(
        self,
        msg: str | None = None,
        cause: Exception | None = None,
        *,
        applied: bool | None = False,
        key: str | None = None,
        owner: str | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        super().__init__(msg, cause, key=key, owner=owner, expires_at=expires_at)
        self.applied = applied


class InvalidKeyError(MutexError, ValueError):
    """The key is one that DynamoDB would not accept, or a template makes none of the arguments of a call."""


class InvalidRowError(MutexError):
    """The row under the key is not a lock's, or has impossible lock attributes.

    Such a row is never acquired, and no call waits for it. `LockItem.force_release
    <pynamodb_mutex.LockItem.force_release>` repairs impossible attributes, and `Once.forget <pynamodb_mutex.Once.forget>` by
    force those of a key of ``once``.

    Attributes:
        attribute (str | None): Stored name of the attribute that is missing or wrong, if known.
    """

    def __init__(
        self,
        msg: str | None = None,
        cause: Exception | None = None,
        *,
        attribute: str | None = None,
        key: str | None = None,
        owner: str | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        super().__init__(msg, cause, key=key, owner=owner, expires_at=expires_at)
        self.attribute = attribute


class InvalidTicketError(MutexError, ValueError):
    """The text is not a ticket, or is a ticket for another table, region or model."""


# -- of `once` ---------------------------------------------------------------------------------------


class PayloadMismatchError(MutexError, ValueError):
    """The key has a result, or a run, for another payload: two different requests have one key."""


class OutcomeUnknownError(MutexError):
    """A run ended without a result, with ``on_abandoned="raise"``, and somebody has to decide what became of its work.

    ``Once.forget`` lets it be done again, ``Once.record`` says that it is done. ``owner`` is the label of that run.

    Attributes:
        since (datetime.datetime | None): When it began, in DynamoDB's time (UTC), to a second or two; None if that is not
            known.
    """

    def __init__(self, *args: Any, since: datetime | None = None, **about: Any) -> None:
        super().__init__(*args, **about)
        self.since = since


class NotRecordedError(MutexLostError):
    """The function has returned, but its result was not recorded, or it is unknown whether it was.

    The run had lost its key, and another may have done the same work; or DynamoDB refused or did not answer until the lease
    had ended. ``applied`` is False if the result was not recorded, and None if that is unknown.

    Attributes:
        value (Any): What the function returned.
    """

    def __init__(self, *args: Any, value: Any = None, **about: Any) -> None:
        super().__init__(*args, **about)
        self.value = value


class ResultUnavailableError(MutexError):
    """The work is done, but its result could not be stored, or cannot be read.

    Attributes:
        reason (str): Why.
        value (Any): What the function returned, for the caller whose run it was; otherwise None.
    """

    def __init__(self, *args: Any, reason: str = "", value: Any = None, **about: Any) -> None:
        super().__init__(*args, **about)
        self.reason = reason
        self.value = value
