"""The adapter of this library; `adapters` has those of the others."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from dev.chaos.tables import Written
from dev.peers.adapters import Peer
from pynamodb_mutex import LockItem, Mutex


class OurMutex(Peer):
    """pynamodb-mutex, with its own defaults but for the lease.

    It has guarded writes too, which no other library has: `read` and `write`.
    """

    def __init__(self, table: str, lease: float, owner: str) -> None:
        self.version = version("pynamodb-mutex")
        self._lease, self._owner = lease, owner
        self._mutex: Mutex | None = None

        class Locks(LockItem):
            class Meta:
                table_name = table

        class Rows(Written):
            _connection = None

            class Meta:
                table_name = f"{table.rpartition('-')[0]}-rows"

        self._locks, self._rows = Locks, Rows
        self._row: Any = None

    def acquire(self, key: str, timeout: float) -> bool:
        self._mutex = Mutex.for_key(
            key, model=self._locks, lease=self._lease, timeout=timeout, owner=self._owner
        )
        return self._mutex.acquire()

    def held(self) -> bool:
        return self._mutex is not None and self._mutex.held

    def release(self) -> None:
        self._mutex.release()

    def close(self) -> None:
        pass

    # -- what only this library has ----------------------------------------------------------------

    def read(self, name: str) -> None:
        """Read the row that is to be written under the lock."""
        self._row = self._rows.get(name, consistent_read=True)

    def write(self, value: str) -> None:
        """Write a value, and the one that was read, to that row, in a transaction guarded by the lock."""
        row = self._row
        with self._mutex.transaction() as transaction:
            transaction.update(row, [self._rows.last.set(value), self._rows.read.set(row.last)])
        row.last = value
