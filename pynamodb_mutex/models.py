"""The lock table: LockItem, a row that carries a claim and nothing else."""

from __future__ import annotations

import logging
import os
from datetime import datetime, timezone
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from pynamodb.attributes import (
    JSONAttribute,
    NumberAttribute,
    TTLAttribute,
    UnicodeAttribute,
    VersionAttribute,
)
from pynamodb.models import Model

from pynamodb_mutex._dynamodb.connection import CONNECT_TIMEOUT, READ_TIMEOUT
from pynamodb_mutex._dynamodb.keys import check_key, key_of
from pynamodb_mutex._dynamodb.pynamodb_private import forget_connection
from pynamodb_mutex._operations.options import check_retention
from pynamodb_mutex._operations.release import force
from pynamodb_mutex._operations.retry import learn_time, scanned_page
from pynamodb_mutex._protocol.claim import SHORTEST_LEASE, YEAR_10000, made_at
from pynamodb_mutex._protocol.messages import one_line, shown
from pynamodb_mutex._runtime.process import current_process, lock_models
from pynamodb_mutex._runtime.run_on_thread import run

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("pynamodb_mutex")

_TIGHT = {
    "connect_timeout_seconds": CONNECT_TIMEOUT,
    "read_timeout_seconds": READ_TIMEOUT,
    "max_pool_connections": 50,
}


class _DefaultName:
    """The name of `LockItem`'s table, unless one is assigned.

    The environment is read at first use: pytest, for one, imports the package before any conftest.py can set
    the variable. It is read once, for a name that changed later would divide the holders of a lock.
    """

    def __get__(self, meta: object, _: object = None) -> str:
        return _default_table()


@cache
def _default_table() -> str:
    return os.environ.get("PYNAMODB_MUTEX_TABLE", "pynamodb-mutex")


class _DefaultMeta(type):
    table_name = _DefaultName()


class LockItem(Model):
    """One lock, as its row stands in the table.

    Subclass it to choose another table, region or host (``class Meta``), other stored names
    (``attr_name=``), extra attributes, or a range key with a default. A subclass has a connection
    of its own, with tight timeouts, whatever its ``Meta`` derives from.

    Attributes:
        key: 1 to 2048 bytes of UTF-8.
        version: The fencing token: grows at each change of hands.
        token: Of the last acquisition; stays when the lock is released.
        owner: A label for people; absent when free.
        lease: Seconds the claim lives without being renewed.
        expires_at: End of the claim in seconds of server time; absent when free.
        writes: Number of the last guarded write under this claim.
        abandoned_by: Label of the holder from whom this claim was taken over, or empty.
        ttl: When DynamoDB may delete the row. Garbage collection only, never the end of a claim.
        data: The caller's payload, any JSON; survives hand-over.
    """

    class Meta(metaclass=_DefaultMeta):
        table_name: str
        billing_mode = "PAY_PER_REQUEST"
        connect_timeout_seconds = _TIGHT["connect_timeout_seconds"]
        read_timeout_seconds = _TIGHT["read_timeout_seconds"]
        max_pool_connections = _TIGHT["max_pool_connections"]

    retention: ClassVar[float] = 7 * 86400.0
    """Seconds a row stays after its claim ended or was released. Fencing tokens only grow as long
    as the row exists or, once it is deleted, as server time in milliseconds is ahead of them."""

    key = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    token = UnicodeAttribute(null=True)
    owner = UnicodeAttribute(null=True)
    lease = NumberAttribute(null=True)
    expires_at = NumberAttribute(null=True)
    writes = NumberAttribute(null=True)
    abandoned_by = UnicodeAttribute(null=True)
    ttl = TTLAttribute(null=True)
    data = JSONAttribute(null=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the subclass its own connection, and its Meta what it left out.

        Raises:
            TypeError: If its retention is not a number.
            ValueError: If its retention is negative, infinite or NaN, or longer than 100 years.
        """
        # PynamoDB looks at the table's name alone and would hand over the parent's connection
        forget_connection(cls)
        check_retention(cls.retention)
        lock_models.add(cls)
        meta = cls.__dict__.get("Meta")
        if meta is not None:
            for name, value in {**_TIGHT, "billing_mode": "PAY_PER_REQUEST"}.items():
                if not hasattr(meta, name):
                    setattr(meta, name, value)
            if not issubclass(meta, LockItem.Meta) and not hasattr(meta, "table_name"):
                # inherited, for the name must not be read before it is used
                named: Any = type("Meta", (meta, LockItem.Meta), {})
                cls.Meta = named  # type: ignore[misc]  # mypy takes it for a fixed type
        super().__init_subclass__(**kwargs)

    @classmethod
    def create_table(  # type: ignore[override]  # boto3's names, and waiting is the default
        cls, wait: bool = True, **create_table_options: Any
    ) -> None:
        """Create the table: on-demand, with TTL enabled. Safe to call again, also while it is made.

        Args:
            wait: Return when the table is active and its TTL enabled. Without waiting, TTL is only
                enabled if the table is active already: call again later.
            **create_table_options: Any option of CreateTable as boto3 names it, such as
                ``TableClass``, ``DeletionProtectionEnabled``, ``OnDemandThroughput``,
                ``WarmThroughput``, ``StreamSpecification``, ``SSESpecification``,
                ``ResourcePolicy``, ``Tags``, or ``BillingMode`` with ``ProvisionedThroughput``.

        Raises:
            TypeError: For an option that CreateTable does not have.
            ValueError: For an option's value that CreateTable would not take.
            pynamodb.exceptions.TableError: If DynamoDB refuses, or an existing table has other keys
                or another TTL attribute.
        """
        from pynamodb_mutex._dynamodb import create_table  # noqa: PLC0415 - seldom needed, slow to load

        create_table.create(cls, wait=wait, options=create_table_options)

    @classmethod
    def held(cls) -> Iterator[LockItem]:
        """Iterate over the items that are held now, in no order. Reads the whole table.

        A row that cannot be a lock's, or is no item of this model, such as one whose ``data`` is not JSON, is
        left out, with a warning in the log that names it.

        Raises:
            pynamodb.exceptions.ScanError: If DynamoDB refuses or cannot be reached.
            pynamodb.exceptions.TableDoesNotExist: If there is no table.
        """
        layout = current_process().store(cls).layout
        for raw in filter(layout.is_the_models, cls._scanned()):
            claim = layout.claim(raw)
            try:
                claim.check()
                item = cls.from_raw_data(raw)
            except Exception as error:  # noqa: BLE001 - what an attribute makes of another's value
                key = layout.key(raw)
                _log.warning(
                    "%s left out of %s.held(): %s",
                    *(shown(key), cls.__name__, one_line(error)),
                    extra={"lock_key": key, "lock_owner": claim.owner, "fencing_token": None},
                )
                continue
            if item.is_held:
                yield item

    @classmethod
    def _scanned(cls) -> Iterator[dict[str, dict[str, Any]]]:
        """Read all rows that carry a claim, dead or alive."""
        process = current_process()
        store = process.store(cls)
        start = None
        while True:
            page = run(process, scanned_page(process, store, start))
            yield from page["Items"]
            start = page.get("LastEvaluatedKey")
            if start is None:
                return

    @classmethod
    def force_release(cls, key: str) -> bool:
        """Break the claim that stands in the row now, and no later one.

        The holder learns it from its next request. Guarded writes of it are refused from this
        moment on; anything else it does is not.

        A row whose lock attributes cannot be right, so that no mutex takes it, is put right, if it still
        stands exactly as it was read: the lock is free then, and its fencing token above the old one, if
        that was a number. A row that is not a lock's is never changed.

        Args:
            key: The lock's key.

        Returns:
            Whether a claim was broken, or a row put right; False if there was nothing to break, or the row
            changed hands meanwhile.

        Raises:
            InvalidKeyError: For a key that no lock can have.
            InvalidRowError: If the row under the key is not a lock's.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses or cannot be reached.
        """
        process = current_process()
        row = key_of(cls, check_key(key))
        return run(process, force(process, process.store(cls), row, key))

    @property
    def is_held(self) -> bool:
        """Whether the claim this item shows is still running, as far as server time is known."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds until the claim this item shows may be taken over, unless it is renewed.

        Costs a read if this process has had no answer from DynamoDB yet, or none for 25 leases, to know its
        time.
        """
        if self.expires_at is None:
            return 0.0
        process = current_process()
        store = process.store(type(self))
        store.connection.open()
        if not store.knows_time(float(self.lease or SHORTEST_LEASE), process.read_clock()):
            run(process, learn_time(process, store, key_of(type(self), self.key)))
        bounds, now = store.bounds, process.read_clock()
        if bounds is None:
            return float(self.lease or 0.0)
        return max(0.0, bounds.passes(self.expires_at) - now)

    @property
    def since(self) -> datetime | None:
        """When the holder took the lock, in server time (UTC); None if there is no claim.

        For people, to a second or two. None too if the claim's token is not this library's.
        """
        made = made_at(self.token)
        if self.expires_at is None or made is None:
            return None
        return datetime.fromtimestamp(made, tz=timezone.utc)

    @property
    def expires(self) -> datetime | None:
        """End of the claim in server time (UTC); None if there is no claim, or its end is no date."""
        if self.expires_at is None or not 0 <= self.expires_at < YEAR_10000:
            return None
        return datetime.fromtimestamp(self.expires_at, tz=timezone.utc)


lock_models.add(LockItem)
