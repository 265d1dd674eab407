"""The locks that are measured, each used as its README shows, with its own defaults.

Each is a `Library` with the same few methods, so that the same code measures all; `made` makes one by its name.
A library is imported only when it is made, for not every environment has all of them, and `start` measures that.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

from dev.bench import (
    BLOCK_LOCK,
    DISPATCH,
    DYNDB_MUTEX,
    FAIR,
    FLOOR,
    HINTED,
    OURS,
    PEERS,
    PYTHON_CLIENT,
    UPDATE,
    table_of,
)

PATIENT = 3600.0
"""Timeout in seconds for all that wait: longer than any scenario, so that none gives up."""

_DAY = 86_400
_KEYS = {
    PYTHON_CLIENT: ("lock_key", "sort_key"),
    BLOCK_LOCK: ("lock_id",),
    DYNDB_MUTEX: ("lockname",),
}

IMPORTS = {
    OURS: ("pynamodb.models", "pynamodb_mutex"),
    PYTHON_CLIENT: ("boto3", "python_dynamodb_lock.python_dynamodb_lock"),
    BLOCK_LOCK: ("boto3", "dynamodblock"),
    DYNDB_MUTEX: ("boto3", "dyndbmutex.dyndbmutex"),
}
"""By library: the module that a program which uses it has imported anyway, and the module whose import is measured."""


def create_table(client: Any, table: str, keys: tuple[str, ...]) -> None:
    """Create a table that is billed on demand, whose keys are strings."""
    schema = zip(keys, ("HASH", "RANGE"), strict=False)
    client.create_table(
        TableName=table,
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in schema],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        BillingMode="PAY_PER_REQUEST",
    )


def keys_of(name: str) -> tuple[str, ...]:
    """Return the key attributes of a library's table, all strings."""
    return _KEYS.get(name, ("key",))


class Library:
    """A lock library in one process.

    Args:
        lease: Lease in seconds; None for the library's default.
    """

    def __init__(self, lease: float | None = None) -> None: ...

    def take(self, key: str) -> Any:
        """Acquire a lock, and wait for it if the library can; return it for `release`, None if it was not acquired."""
        raise NotImplementedError

    def release(self, lock: Any) -> None:
        """Release a lock that `take` returned."""
        lock.release()

    def held(self, lock: Any) -> bool:
        """Return whether the library believes that it holds a lock. Not all libraries can answer this."""
        raise NotImplementedError

    def close(self) -> None:
        """End the threads of the library, if it has any."""


class Floor(Library):
    """The least that a lock like ours can cost: the same two conditional writes, by boto3's client as it is.

    It does not renew, wait or retry. A test compares its requests with ours.
    """

    def __init__(self, lease: float | None = None) -> None:
        import boto3

        self._lease = lease or 30.0
        self._client = boto3.client("dynamodb")

    def _update(self, key: str, names: str, values: list[tuple[str, Any]], **more: Any) -> Any:
        return self._client.update_item(
            TableName=table_of(FLOOR),
            Key={"key": {"S": key}},
            ExpressionAttributeNames={f"#{n}": name for n, name in enumerate(names.split())},
            ExpressionAttributeValues={f":{n}": dict([typed]) for n, typed in enumerate(values)},
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
            **more,
        )

    def take(self, key: str) -> Any:
        now, token = time.time(), uuid.uuid4().hex
        item = self._update(
            key,
            "expires_at token key version recordVersionNumber owner abandoned_by lease ttl writes"
            " shared_by wanted_until wanted_by",
            [
                ("N", f"{now:.3f}"), ("S", token), ("S", "S"), ("N", "0"), ("N", str(2**63 - 1)), ("S", "S"),
                ("S", ""), ("S", token), ("S", "bench:1:MainThread"), ("N", f"{self._lease:.3f}"),
                ("N", f"{now + self._lease:.3f}"), ("N", str(int(now + 7 * _DAY))), ("N", str(int(now * 1000))),
                ("N", "1"), ("N", "0"),
            ],
            ConditionExpression=(
                "(((attribute_not_exists (#0) OR #0 < :0) AND (attribute_not_exists (#1) OR #1 <> :1)) AND"
                " (((attribute_not_exists (#2) OR (attribute_type (#1, :2) AND #3 BETWEEN :3 AND :4)) AND"
                " attribute_not_exists (#4)) AND (attribute_not_exists (#5) OR attribute_type (#5, :5))))"
            ),
            UpdateExpression=(
                "SET #6 = if_not_exists (#5, :6), #1 = :7, #5 = :8, #7 = :9, #0 = :10, #8 = :11,"
                " #3 = if_not_exists (#3, :12) + :13, #9 = if_not_exists (#9, :14) REMOVE #10, #11, #12"
            ),
            ReturnValues="ALL_NEW",
        )["Attributes"]  # fmt: skip
        return key, token, item["version"]["N"]

    def release(self, lock: Any) -> None:
        key, token, version = lock
        now = time.time()
        self._update(
            key,
            "token version expires_at free_since ttl owner lease",
            [("S", token), ("N", version), ("N", f"{now:.3f}"), ("N", str(int(now + 7 * _DAY)))],
            ConditionExpression="((#0 = :0 AND #1 = :1) AND attribute_exists (#2))",
            UpdateExpression="SET #3 = :2, #4 = :3 REMOVE #2, #5, #6",
        )


class Dispatched(Floor):
    """The floor's two writes by what PynamoDB has beneath its models."""

    def __init__(self, lease: float | None = None) -> None:
        from pynamodb.connection import Connection

        super().__init__(lease)
        dispatch = Connection().dispatch
        self._client = SimpleNamespace(update_item=lambda **asked: dispatch("UpdateItem", asked))


class Updated(Library):
    """The floor's two writes by ``update`` of a PynamoDB model."""

    def __init__(self, lease: float | None = None) -> None:
        from pynamodb.attributes import NumberAttribute, UnicodeAttribute
        from pynamodb.models import Model

        texts = ("token", "owner", "abandoned_by", "recordVersionNumber")
        numbers = ("expires_at", "lease", "ttl", "version", "writes", "free_since")
        members: dict[str, Any] = {name: UnicodeAttribute(null=True) for name in texts}
        members |= {name: NumberAttribute(null=True) for name in numbers}
        members |= {"key": UnicodeAttribute(hash_key=True)}
        members |= {"Meta": type("Meta", (), {"table_name": table_of(FLOOR)})}
        self._model: Any = type("Lock", (Model,), members)
        self._lease = lease or 30.0

    def take(self, key: str) -> Any:
        model, now, token = self._model, time.time(), uuid.uuid4().hex
        is_free = model.expires_at.does_not_exist() | (model.expires_at < now)
        is_free &= model.token.does_not_exist() | (model.token != token)
        is_lock = model.token.is_type() & model.version.between(0, 2**63 - 1)
        is_lock &= model.recordVersionNumber.does_not_exist()
        is_free &= model.key.does_not_exist() | is_lock
        is_free &= model.owner.does_not_exist() | model.owner.is_type()
        row = model(key)
        row.update(
            actions=[
                model.abandoned_by.set(model.owner | ""), model.token.set(token),
                model.owner.set("bench:1:MainThread"), model.lease.set(self._lease),
                model.expires_at.set(now + self._lease),
                model.ttl.set(int(now + 7 * _DAY)),
                model.version.set((model.version | int(now * 1000)) + 1),
                model.writes.set(model.writes | 0),
            ],
            condition=is_free,
        )  # fmt: skip
        return row

    def release(self, row: Any) -> None:
        model, now = self._model, time.time()
        is_ours = (model.token == row.token) & (model.version == row.version)
        row.update(
            actions=[
                model.free_since.set(now), model.ttl.set(int(now + 7 * _DAY)),
                model.expires_at.remove(), model.owner.remove(), model.lease.remove(),
            ],
            condition=is_ours & model.expires_at.exists(),
        )  # fmt: skip


class Ours(Library):
    """This library.

    If it is fair, the label of a waiter in the row begins with its process id: see `turns`.
    """

    def __init__(
        self, lease: float | None = None, *, is_called: bool = False, **options: Any
    ) -> None:
        from pynamodb_mutex import Hints, LockItem, Mutex

        if is_called:
            options["fair"] = Hints()
        LockItem.Meta.table_name = table_of(OURS)
        self._for_key = Mutex.for_key
        self._options: Any = options if lease is None else {"lease": lease, **options}
        if options:
            # The parts of the default label, but the process id first: the end of a long label is cut off.
            self._options["owner"] = f"{os.getpid()}@{socket.gethostname()}:MainThread"

    def take(self, key: str) -> Any:
        mutex = self._for_key(key, **self._options)
        return mutex if mutex.acquire() else None

    def held(self, lock: Any) -> bool:
        return lock.held and not lock.lost


class PythonClient(Library):
    """python-dynamodb-lock: one client for the process; for another lease, periods in the proportions it advises."""

    def __init__(self, lease: float | None = None) -> None:
        import boto3
        from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

        shares = {"heartbeat_period": 1 / 4, "safe_period": 2 / 3, "lease_duration": 1}
        seconds = {name: lease * share for name, share in shares.items()} if lease else {}
        options: Any = {name: timedelta(seconds=each) for name, each in seconds.items()}
        resource = boto3.resource("dynamodb")
        self._client = DynamoDBLockClient(resource, table_name=table_of(PYTHON_CLIENT), **options)

    def take(self, key: str) -> Any:
        return self._client.acquire_lock(key, retry_timeout=timedelta(seconds=PATIENT))

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


def made(name: str, lease: float | None = None) -> Library:
    """Return a library by its name."""
    return _LIBRARIES[name](lease)


_LIBRARIES: dict[str, Callable[..., Library]] = {
    FLOOR: Floor, DISPATCH: Dispatched, UPDATE: Updated, OURS: Ours, FAIR: partial(Ours, fair=True), HINTED: partial(Ours, fair=True, is_called=True),
    PYTHON_CLIENT: PythonClient, BLOCK_LOCK: BlockLock, DYNDB_MUTEX: DyndbMutex,
}  # fmt: skip


def versions() -> dict[str, str]:
    """Return the version of each library that is installed, by name."""
    from importlib.metadata import PackageNotFoundError, version

    found = {FLOOR: version("boto3")}
    for name in (OURS, *PEERS):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
