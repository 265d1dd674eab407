"""The three Python peers, each as its README shows it, with its own defaults but for the lease.

All find the store, which is the client's proxy, by ``AWS_ENDPOINT_URL``.
"""

from __future__ import annotations

import os
import random
import time
from datetime import timedelta
from importlib.metadata import version
from typing import Any, Protocol

import boto3

POLL_SECONDS = 0.1


class Peer(Protocol):
    """What a client needs of a library; made with the lock table's name, the lease and an owner's name.

    Attributes:
        version: Of the library.
    """

    version: str

    def __init__(self, table: str, lease: float, owner: str) -> None: ...

    def acquire(self, key: str, timeout: float) -> bool:
        """Say whether the lock was had within so many seconds; raise what the library raises."""
        ...

    def held(self) -> bool:
        """Whether the library believes to hold it, judged in its favour. Never raises."""
        ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class PythonClient(Peer):
    """python-dynamodb-lock: four heartbeats a lease as it advises, in danger after two thirds of it.

    It believes as long as its lock is LOCKED: neither stolen nor in danger, as its callback hears.
    """

    def __init__(self, table: str, lease: float, owner: str) -> None:
        from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

        self.version = version("python-dynamodb-lock")
        self._lock: Any = None
        self._client = DynamoDBLockClient(
            boto3.resource("dynamodb"),
            table_name=table,
            owner_name=owner,
            heartbeat_period=timedelta(seconds=lease / 4),
            safe_period=timedelta(seconds=lease * 2 / 3),
            lease_duration=timedelta(seconds=lease),
        )

    def acquire(self, key: str, timeout: float) -> bool:
        from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockError

        self._lock = None
        try:
            self._lock = self._client.acquire_lock(key, retry_timeout=timedelta(seconds=timeout))
        except DynamoDBLockError as error:
            if error.code == DynamoDBLockError.ACQUIRE_TIMEOUT:
                return False
            raise
        return True

    def held(self) -> bool:
        return self._lock is not None and self._lock.status == self._lock.LOCKED

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        self._client.close()


class _NoExpiry(Peer):
    """A library that never stops believing: the adapter does so for it, a lease after it last asked."""

    def __init__(self, table: str, lease: float, owner: str) -> None:
        self._table, self._lease, self._owner = table, lease, owner
        self._lock: Any = None
        self._asked = 0.0
        self._turns = 0

    def _next_owner(self) -> str:
        """Name an owner of one acquisition, as the library itself does when it is given none."""
        self._turns += 1
        return f"{self._owner}-{self._turns}"

    def held(self) -> bool:
        return self._lock is not None and time.monotonic() < self._asked + self._lease

    def release(self) -> None:
        lock, self._lock = self._lock, None
        lock.release()

    def close(self) -> None:
        pass


class BlockLock(_NoExpiry):
    """dynamodblock: an object for each acquisition, since one works once.

    ``is_locked`` is what it asks right before it writes: from then on its lease counts.
    """

    def __init__(self, table: str, lease: float, owner: str) -> None:
        super().__init__(table, lease, owner)
        self.version = version("dynamodblock")
        self._resource = boto3.resource("dynamodb").Table(table)

    def acquire(self, key: str, timeout: float) -> bool:
        from dynamodblock import DynamoDBLock, DynamoDBLockTimeoutError

        adapter = self

        class Noting(DynamoDBLock):
            @property
            def is_locked(self) -> bool:
                adapter._asked = time.monotonic()
                return super().is_locked

        self._lock = None
        lock = Noting(
            lock_id=key,
            dynamodb_table_resource=self._resource,
            lock_ttl=int(self._lease),
            retry_timeout=timeout,
            owner_id=self._next_owner(),
        )
        try:
            lock.acquire()
        except DynamoDBLockTimeoutError:
            return False
        self._lock = lock
        return True


class DyndbMutex(_NoExpiry):
    """dyndbmutex: it never waits, so its adapter asks every 0.1 s or so until the time is over."""

    def __init__(self, table: str, lease: float, owner: str) -> None:
        super().__init__(table, lease, owner)
        self.version = version("dyndbmutex")
        os.environ["DD_MUTEX_TABLE_NAME"] = table

    def acquire(self, key: str, timeout: float) -> bool:
        from dyndbmutex.dyndbmutex import DynamoDbMutex

        self._lock = None
        until = time.monotonic() + timeout
        mutex = DynamoDbMutex(
            key,
            holder=self._next_owner(),
            timeoutms=int(self._lease * 1000),
            region_name=os.environ["AWS_DEFAULT_REGION"],
        )
        while True:
            self._asked = time.monotonic()
            if mutex.lock():
                self._lock = mutex
                return True
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS * random.uniform(0.8, 1.2))
