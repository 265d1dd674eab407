"""A distributed mutex on DynamoDB for PynamoDB users."""

import logging
from typing import TYPE_CHECKING, Any

from pynamodb_mutex.exceptions import (
    InvalidKeyError,
    Loss,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    RowLockedError,
)
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from pynamodb_mutex.rows import RowLock, RowLockMixin

__all__ = [
    "InvalidKeyError",
    "LockItem",
    "Loss",
    "Mutex",
    "MutexAlreadyHeldError",
    "MutexError",
    "MutexLostError",
    "MutexNotHeldError",
    "MutexTimeoutError",
    "RowLock",
    "RowLockMixin",
    "RowLockedError",
]


def __getattr__(name: str) -> Any:
    """Load row locks when they are asked for."""
    if name in {"RowLock", "RowLockMixin"}:
        from pynamodb_mutex import rows  # noqa: PLC0415 - as the docstring says

        return getattr(rows, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


logging.getLogger(__name__).addHandler(logging.NullHandler())
