"""A distributed mutex on DynamoDB for PynamoDB users."""

import logging

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
    "RowLockedError",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
