"""Several locks at once: all or none, or whichever is free.

They come from `Mutex.for_keys`, `RowLockMixin.locked_all`, `Mutex.any_of` and `Semaphore.for_key`.
"""

from pynamodb_mutex._any_of import AnyOf
from pynamodb_mutex._mutex_group import MutexGroup
from pynamodb_mutex._row_group import LockedRows, RowLocks
from pynamodb_mutex._semaphore import Semaphore

__all__ = ["AnyOf", "LockedRows", "MutexGroup", "RowLocks", "Semaphore"]
