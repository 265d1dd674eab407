"""Adapters of the three other Python libraries, each used as its README shows, with its own defaults but for the lease.

`Peer` is what `worker` needs of a library. All of them find the engine, in truth the proxy of the client, in
``AWS_ENDPOINT_URL``. Ours is in `ours`, that in Java in `java`.
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
"""Seconds between two attempts of the adapter at a lock whose library does not wait, 20 % more or less."""


class Peer(Protocol):
    """A library as a client uses it, for one lock at a time.

    Args:
        table: Name of the lock table.
        lease: Lease in seconds.
        owner: Name of the owner of the locks.

    Attributes:
        version: Version of the library.
    """

    version: str

    def __init__(self, table: str, lease: float, owner: str) -> None: ...

    def acquire(self, key: str, timeout: float) -> bool:
        """Acquire a lock within ``timeout`` seconds; return whether it was acquired. Raises what the library raises."""
        ...

    def held(self) -> bool:
        """Return whether the library believes that it holds the lock; in doubt, judged in its favour. Never raises."""
        ...

    def release(self) -> None:
        """Release the lock. Raises what the library raises."""
        ...

    def close(self) -> None:
        """End the threads and processes of the library."""
        ...


class PythonClient(Peer):
    """python-dynamodb-lock, with four heartbeats a lease as it advises, and "in danger" after two thirds of the lease.

    It believes as long as its lock is LOCKED, that is neither stolen nor in danger, as it reports by its callback.
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
    """A library that never stops believing by itself: the adapter ends its belief a lease after the last request.

    The lease counts from before the request that may have acquired the lock was sent.
    """

    def __init__(self, table: str, lease: float, owner: str) -> None:
        self._table, self._lease, self._owner = table, lease, owner
        self._lock: Any = None
        self._asked = 0.0
        self._turns = 0

    def _next_owner(self) -> str:
        """Return an owner for one acquisition, each time another one, as the library itself does without an owner."""
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
    """dynamodblock, with a new object for each acquisition, because each object works only once.

    The library reads ``is_locked`` right before it writes, so the lease counts from the latest time it did.
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
    """dyndbmutex, which never waits: the adapter tries again every POLL_SECONDS until the timeout is over."""

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
