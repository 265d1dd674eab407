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
    """Why you lost a lock."""

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
    """The lock was not free within your timeout.

    Example::

        from pynamodb_mutex import Mutex, MutexTimeoutError
        from pynamodb_mutex.testing import held_elsewhere

        try:
            with held_elsewhere("report"), Mutex.for_key("report", timeout=0):
                print("you hold it")
        except MutexTimeoutError as error:
            print("you wait for", error.owner)
    """


class MutexNotHeldError(MutexError, RuntimeError):
    """Your call needs the lock, but you do not hold it here.

    Attributes:
        applied (bool | None): For a guarded write: False if DynamoDB did not apply it, None if you cannot know. False for all
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
    """You held the lock here and have lost it.

    Attributes:
        loss (Loss): The cause. With UNREACHABLE, ``__cause__`` is the failure of the last renewal, unless that was under way.

    Example::

        from pynamodb_mutex import LockItem, Mutex, MutexLostError

        try:
            with Mutex.for_key("report"):
                LockItem.force_release("report")  # an operator breaks your lock
        except MutexLostError as error:
            print("you lost it:", error.loss)
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
    """Your thread or task already holds the lock and may not acquire it again.

    You also get it if your call would block the event loop of the task that holds the lock.
    """


class RowLockedError(MutexError):
    """You wrote a row without its lock, and DynamoDB refused, because another holder has the row.

    Attributes:
        applied (bool | None): False if DynamoDB did not apply the write; None if you cannot know, because an earlier attempt's
            answer was lost.
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
    """DynamoDB would not accept the key, or your template makes no key of the arguments of a call."""


class InvalidRowError(MutexError):
    """The row under the key is not a lock's, or has impossible lock attributes.

    No mutex acquires such a row, and no call waits for it. You repair impossible attributes by `LockItem.force_release
    <pynamodb_mutex.LockItem.force_release>`, and in a key of ``once`` by `Once.forget <pynamodb_mutex.Once.forget>` with
    ``force``.

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
    """Your text is not a ticket, or is a ticket for another table, region or model."""


# -- of `once` ---------------------------------------------------------------------------------------


class PayloadMismatchError(MutexError, ValueError):
    """The key has a result, or a run, for another payload: two different requests have one key."""


class OutcomeUnknownError(MutexError):
    """A run ended without a result, with ``on_abandoned="raise"``, and you have to decide about its work.

    ``Once.forget`` lets the next call do the work again, ``Once.record`` records that it is done. ``owner`` is the label of
    that run.

    Attributes:
        since (datetime.datetime | None): When the run began, in DynamoDB's time (UTC), to a second or two; None if that is not
            known.
    """

    def __init__(self, *args: Any, since: datetime | None = None, **about: Any) -> None:
        super().__init__(*args, **about)
        self.since = since


class NotRecordedError(MutexLostError):
    """Your function has returned, but its result was not recorded, or nobody can know whether it was.

    Your run had lost its key, and another may have done the same work; or DynamoDB refused or did not answer until your lease
    had ended. ``applied`` is False if the result was not recorded, and None if you cannot know.

    Attributes:
        value (Any): The value that your function returned.
    """

    def __init__(self, *args: Any, value: Any = None, **about: Any) -> None:
        super().__init__(*args, **about)
        self.value = value


class ResultUnavailableError(MutexError):
    """The work is done, but its result could not be stored, or cannot be read.

    Attributes:
        reason (str): Why.
        value (Any): If it was your run, the value that your function returned; otherwise None.
    """

    def __init__(self, *args: Any, reason: str = "", value: Any = None, **about: Any) -> None:
        super().__init__(*args, **about)
        self.reason = reason
        self.value = value
