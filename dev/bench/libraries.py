"""The locks that are measured, each used as its README shows, with its own defaults.

Each is a `Library` with the same few methods, so that the same code measures all; `made` makes one by its name.
A library is imported only when it is made, for not every environment has all of them.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dev.bench import (
    BLOCK_LOCK,
    DYNDB_MUTEX,
    FAIR,
    FLOOR,
    HINTED,
    OURS,
    PEERS,
    PYTHON_CLIENT,
    Library,
    table_of,
)
from dev.bench.floor import Floor
from dev.peers import LIBRARIES

PATIENT = 3600.0
"""Timeout in seconds for all that wait: longer than any scenario, so that none gives up."""


def keys_of(name: str) -> tuple[str, ...]:
    """Return the key attributes of a library's table, all strings."""
    return ("key",) if name == FLOOR else LIBRARIES[name].keys


class Ours(Library):
    """This library."""

    def __init__(self, lease: float | None = None) -> None:
        from pynamodb_mutex import Mutex

        self._for_key = Mutex.for_key
        self._options: Any = {} if lease is None else {"lease": lease}

    def take(self, key: str) -> Any:
        mutex = self._for_key(key, **self._options)
        return mutex if mutex.acquire() else None

    def release(self, lock: Any) -> None:
        lock.release()

    def held(self, lock: Any) -> bool:
        return lock.held and not lock.lost


class OursFair(Ours):
    """This library with ``fair=True``. The label of a waiter in the row begins with its process id: see `turns`."""

    def __init__(self, lease: float | None = None) -> None:
        super().__init__(lease)
        # The parts of the default label, but the process id first: the end of a long label is cut off.
        owner = f"{os.getpid()}@{socket.gethostname()}:MainThread"
        self._options |= {"fair": True, "owner": owner}


class OursHinted(OursFair):
    """This library with ``fair=True`` and ``hints=True``."""

    def __init__(self, lease: float | None = None) -> None:
        super().__init__(lease)
        self._options["hints"] = True


class PythonClient(Library):
    """python-dynamodb-lock: one client for the process; for another lease, periods in the proportions it advises."""

    def __init__(self, lease: float | None = None) -> None:
        import boto3
        from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

        options: Any = {}
        if lease is not None:
            options = {
                "heartbeat_period": timedelta(seconds=lease / 4),
                "safe_period": timedelta(seconds=lease * 2 / 3),
                "lease_duration": timedelta(seconds=lease),
            }
        resource = boto3.resource("dynamodb")
        self._client = DynamoDBLockClient(resource, table_name=table_of(PYTHON_CLIENT), **options)

    def take(self, key: str) -> Any:
        return self._client.acquire_lock(key, retry_timeout=timedelta(seconds=PATIENT))

    def release(self, lock: Any) -> None:
        lock.release()

    def held(self, lock: Any) -> bool:
        return lock.status == lock.LOCKED

    def close(self) -> None:
        # Its close() does the same, and then waits until its sleeping threads have noticed.
        self._client._shutting_down = True


class BlockLock(Library):
    """dynamodblock: a new object for each acquisition, because each object works only once."""

    def __init__(self, lease: float | None = None) -> None:
        import boto3
        from dynamodblock import DynamoDBLock

        self._make = DynamoDBLock
        self._options = {} if lease is None else {"lock_ttl": int(lease)}
        self._table = boto3.resource("dynamodb").Table(table_of(BLOCK_LOCK))

    def take(self, key: str) -> Any:
        lock = self._make(key, self._table, retry_timeout=PATIENT, **self._options)
        lock.acquire()
        return lock

    def release(self, lock: Any) -> None:
        lock.release()


class DyndbMutex(Library):
    """dyndbmutex, which never waits. One object is kept for each key, in its favour: each new one makes two clients."""

    def __init__(self, lease: float | None = None) -> None:
        from dyndbmutex.dyndbmutex import DynamoDbMutex

        os.environ["DD_MUTEX_TABLE_NAME"] = table_of(DYNDB_MUTEX)
        self._make = DynamoDbMutex
        self._options = {} if lease is None else {"timeoutms": int(lease * 1000)}
        self._made: dict[str, Any] = {}

    def take(self, key: str) -> Any:
        mutex = self._made.get(key)
        if mutex is None:
            region = os.environ["AWS_DEFAULT_REGION"]
            mutex = self._made[key] = self._make(key, region_name=region, **self._options)
        return mutex if mutex.lock() else None

    def release(self, lock: Any) -> None:
        lock.release()


def made(name: str, lease: float | None = None) -> Library:
    """Return a library by its name."""
    return _LIBRARIES[name](lease)


_LIBRARIES: dict[str, type[Library]] = {
    FLOOR: Floor,
    OURS: Ours,
    FAIR: OursFair,
    HINTED: OursHinted,
    PYTHON_CLIENT: PythonClient,
    BLOCK_LOCK: BlockLock,
    DYNDB_MUTEX: DyndbMutex,
}


def versions() -> dict[str, str | None]:
    """Return the version of each library in this environment, by name; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in (FLOOR, OURS, *PEERS):
        try:
            found[name] = version("boto3" if name == FLOOR else name)
        except PackageNotFoundError:
            found[name] = None
    return found
