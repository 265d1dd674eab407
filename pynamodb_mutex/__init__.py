"""A distributed mutex on DynamoDB for PynamoDB users.

This package exports what most programs need: `Mutex` and other locks, and `once` for work that is done once per key. Further
public modules: `pynamodb_mutex.aio`, the locks for asyncio; `pynamodb_mutex.groups`, the locks on several keys;
`pynamodb_mutex.runs`, what `once` is made of; `pynamodb_mutex.signals`, events of locks; `pynamodb_mutex.testing`, tables for
tests of your own.
"""

import atexit
import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

# an interpreter that another program embeds may have no arguments
if TYPE_CHECKING or [Path(each).stem for each in sys.argv[:1]] != ["pynamodb-mutex"]:
    # All at once, so that nobody sees a part of it: two threads that import parts of PynamoDB, whose modules refer to each
    # other, may get modules that are not complete. Not for the command: it prints its help without botocore.
    from pynamodb_mutex.exceptions import (
        InvalidKeyError,
        InvalidRowError,
        InvalidTicketError,
        Loss,
        MutexAlreadyHeldError,
        MutexError,
        MutexLostError,
        MutexNotHeldError,
        MutexTimeoutError,
        NotRecordedError,
        OutcomeUnknownError,
        PayloadMismatchError,
        ResultUnavailableError,
        RowLockedError,
    )
    from pynamodb_mutex.models import LockItem
    from pynamodb_mutex.mutex import Mutex
if TYPE_CHECKING:
    from pynamodb_mutex._admin.release_all import release_all
    from pynamodb_mutex._called_once import once
    from pynamodb_mutex._fair.hints import Hints
    from pynamodb_mutex._synchronized import synchronized
    from pynamodb_mutex.groups import Semaphore
    from pynamodb_mutex.rows import RowLock, RowLockMixin
    from pynamodb_mutex.runs import Once, OnceItem

__all__ = [
    "Hints",
    "InvalidKeyError",
    "InvalidRowError",
    "InvalidTicketError",
    "LockItem",
    "Loss",
    "Mutex",
    "MutexAlreadyHeldError",
    "MutexError",
    "MutexLostError",
    "MutexNotHeldError",
    "MutexTimeoutError",
    "NotRecordedError",
    "Once",
    "OnceItem",
    "OutcomeUnknownError",
    "PayloadMismatchError",
    "ResultUnavailableError",
    "RowLock",
    "RowLockMixin",
    "RowLockedError",
    "Semaphore",
    "once",
    "release_all",
    "synchronized",
]

__version__ = "0.1.0"

_HOMES = {
    "Hints": "_fair.hints",
    "LockItem": "models",
    "Mutex": "mutex",
    "Once": "runs",
    "OnceItem": "runs",
    "RowLock": "rows",
    "RowLockMixin": "rows",
    "Semaphore": "groups",
    "once": "_called_once",
    "release_all": "_admin.release_all",
    "synchronized": "_synchronized",
}
"""The modules of the names in `__all__` that are no exceptions."""


def __getattr__(name: str) -> Any:
    """Import a name that few programs need when it is first used, so that the package's import is fast."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'exceptions')}"), name)


def __dir__() -> list[str]:
    """Return the names of `__all__`, also those that are imported later, and none of those that this module uses."""
    return [*__all__, "__version__"]


def _release_at_exit() -> None:
    """Release what is held at a normal end of the interpreter; most processes hold nothing then."""
    runtime = sys.modules.get(f"{__name__}._lock.runtime.process")
    if runtime is not None and runtime.current_process().all_held():
        from pynamodb_mutex._admin.release_all import release_at_exit  # noqa: PLC0415 - seldom needed

        release_at_exit()


atexit.register(_release_at_exit)
logging.getLogger(__name__).addHandler(logging.NullHandler())
