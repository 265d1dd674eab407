"""The lock table: LockItem, the row of one lock.

The model names the stored attributes, creates the table, and answers questions about a row as it was read. It does
not acquire, renew or release: see `pynamodb_mutex.Mutex`. The conditional requests that do are built from the model's
attributes in `pynamodb_mutex._lock.dynamodb`.
"""

from __future__ import annotations

import inspect
import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pynamodb.attributes import (
    Attribute,
    JSONAttribute,
    ListAttribute,
    MapAttribute,
    NumberAttribute,
    TTLAttribute,
    UnicodeAttribute,
    VersionAttribute,
)
from pynamodb.models import Model

from pynamodb_mutex._lock.dynamodb.connection import CONNECT_TIMEOUT, POOL_CONNECTIONS, READ_TIMEOUT
from pynamodb_mutex._lock.dynamodb.keys import check_key, hash_key_of, key_of
from pynamodb_mutex._lock.dynamodb.layout import OF_TABLES
from pynamodb_mutex._lock.dynamodb.pynamodb_private import forget_connection, range_key_name
from pynamodb_mutex._lock.operations.options import check_retention
from pynamodb_mutex._lock.operations.retry import learn_time
from pynamodb_mutex._lock.protocol.claim import SHORTEST_LEASE, date_of, token_time
from pynamodb_mutex._lock.runtime.process import current_process, lock_models
from pynamodb_mutex._lock.runtime.run_on_thread import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from datetime import datetime

    from typing_extensions import Self

    from pynamodb_mutex._lock.protocol.claim import Claim

M = TypeVar("M", bound=Model)

_log = logging.getLogger("pynamodb_mutex")

_TIGHT = {
    "connect_timeout_seconds": CONNECT_TIMEOUT,
    "read_timeout_seconds": READ_TIMEOUT,
    "max_pool_connections": POOL_CONNECTIONS,
}
"""Meta of a lock table, by default. With PynamoDB's own timeouts one request that hangs could outlast a lease."""


class _DefaultName:
    """Descriptor: the name of `LockItem`'s table, until another is assigned to the Meta.

    The environment is read at first use: pytest imports the package before a conftest.py can set the variable.
    It is read once: with a name that changes later, one part of a program would lock in one table and the
    rest in another.
    """

    def __get__(self, meta: object, _: object = None) -> str:
        return _default_table()


@cache
def _default_table() -> str:
    return os.environ.get("PYNAMODB_MUTEX_TABLE", "pynamodb-mutex")


class _DefaultMeta(type):
    table_name = _DefaultName()


def check_stored_names(model: type[Model]) -> None:
    """Refuse a new model that stores two attributes under one name.

    Raises:
        TypeError: If it does.
    """
    stored: dict[str, str] = {}
    for name, attribute in inspect.getmembers(model, lambda each: isinstance(each, Attribute)):
        other = stored.setdefault(attribute.attr_name, name)
        if other != name:
            msg = f"{model.__name__}: {other} and {name} are both stored as {attribute.attr_name!r}"
            raise TypeError(msg)


class LockItem(Model):
    """The lock table as a PynamoDB model: the row of one lock.

    Subclass it to choose another table, region or host (``class Meta``), other stored names (``attr_name=``), additional
    attributes, or a range key. With a default, you need not give the range key for each lock. Your subclass has a
    connection of its own, with a connect timeout of 1 s and a read timeout of 2 s, unless its ``Meta`` sets others.

    Do not write rows by hand; use `force_release` to free a lock.

    Attributes:
        key (str): The hash key, 1 to 2048 bytes of UTF-8.
        version (int): The fencing token; grows each time the lock changes hands.
        token (str): Random id of the last acquisition; a release keeps it.
        owner (str | None): A label for people; None when free. ``shared:`` and the first reader's for a shared lock.
        lease (float | None): Seconds that the claim lasts without a renewal; None when free.
        expires_at (float | None): End of the claim, in seconds of DynamoDB's time since the epoch; None when free.
        writes (int | None): Random number of the last guarded write.
        abandoned_by (str | None): Label of a previous holder that never released the lock, or empty.
        ttl (datetime.datetime | None): When DynamoDB may delete the row, at least `retention` after the claim. Not the end of
            the claim.
        data (Any): The payload, any JSON value; a release keeps it, and the next holder can read it.
        waiting (list[str] | None): Entries of the waiters in line, first come first, ``-`` where one has left: see `waiters`.
        free_since (float | None): When the last claim ended, or a reader or the first in line last left, in seconds of
            DynamoDB's time since the epoch, at most two seconds late. You cannot see in it when the present claim began or
            ends.
        shared_by (Any): The readers' entries: see `readers`.
        wanted_until (float | None): Until when a waiting writer holds new readers back, in seconds of DynamoDB's time since the
            epoch.
        wanted_by (str | None): Label of that writer.

    Example::

        from pynamodb_mutex import LockItem, Mutex

        class ShopLock(LockItem):
            class Meta:
                table_name = "shop-locks"
                region = "eu-west-1"
    """

    class Meta(metaclass=_DefaultMeta):
        table_name: str
        billing_mode = "PAY_PER_REQUEST"
        connect_timeout_seconds = _TIGHT["connect_timeout_seconds"]
        read_timeout_seconds = _TIGHT["read_timeout_seconds"]
        max_pool_connections = _TIGHT["max_pool_connections"]

    retention: ClassVar[float] = 7 * 86400.0
    """Seconds for which a row outlasts its claim; 7 days by default, at least an hour. A row that is created later starts
    its fencing tokens from DynamoDB's time in milliseconds.
    """

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
    waiting = ListAttribute(of=UnicodeAttribute, null=True)
    free_since = NumberAttribute(null=True)
    shared_by: Any = MapAttribute(null=True)  # type: ignore[no-untyped-call]  # PynamoDB's
    wanted_until = NumberAttribute(null=True)
    wanted_by = UnicodeAttribute(null=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the subclass a connection of its own, and its Meta the defaults.

        Raises:
            TypeError: If its retention is not a number; if it has another use for a name such as ``waiting``, or
                stores two attributes under one name.
            ValueError: If its retention is negative, infinite, NaN or over 100 years.
        """
        # PynamoDB would use the parent's connection where the tables have the same name, even in different regions
        forget_connection(cls)
        check_retention(cls.retention)
        for name in OF_TABLES:
            kind = type(LockItem.get_attributes()[name])
            # A subclass may have an extra attribute under a name that locks use since then. It would silently become
            # the lock's.
            if not isinstance(cls.__dict__.get(name, kind()), kind):
                msg = (
                    f"{cls.__name__}.{name} belongs to the lock: use another name for an attribute of your "
                    f"own; to store the lock's under another name, give that as attr_name"
                )
                raise TypeError(msg)
        check_stored_names(cls)
        lock_models.add(cls)
        meta = cls.__dict__.get("Meta")
        if meta is not None:
            for name, value in {**_TIGHT, "billing_mode": "PAY_PER_REQUEST"}.items():
                if not hasattr(meta, name):
                    setattr(meta, name, value)
            if not issubclass(meta, LockItem.Meta) and not hasattr(meta, "table_name"):
                # inherit the name, do not copy it: a copy would read the environment now, before it may be set
                named: Any = type("Meta", (meta, LockItem.Meta), {})
                cls.Meta = named  # type: ignore[misc]  # mypy takes it for a fixed type
        super().__init_subclass__(**kwargs)

    @classmethod
    def create_table(  # type: ignore[override]  # boto3's names, and waiting is the default
        cls, wait: bool = True, **create_table_options: Any
    ) -> None:
        """Create the table: on-demand, with TTL enabled. You may call it again, also from several processes at once.

        Args:
            wait: Wait until the table is active and its TTL is enabled. Otherwise TTL is enabled only if the table is active
                already: call again later.
            **create_table_options: Any option of CreateTable as boto3 names it, such as ``TableClass``,
                ``DeletionProtectionEnabled``, ``OnDemandThroughput``, ``WarmThroughput``, ``StreamSpecification``,
                ``SSESpecification``, ``ResourcePolicy``, ``Tags``, or ``BillingMode`` with ``ProvisionedThroughput``.

        Raises:
            TypeError: CreateTable does not have the option.
            ValueError: CreateTable would not accept the value.
            pynamodb.exceptions.TableError: DynamoDB refuses the request, or an existing table has other keys or another TTL
                attribute, or is being deleted.

        Example::

            ShopLock.create_table(DeletionProtectionEnabled=True)
            with Mutex.for_key("order-7", model=ShopLock):
                print("you hold a lock in your own table")
        """
        from pynamodb_mutex._admin import create_table  # noqa: PLC0415 - seldom needed, slow to load

        create_table.create(cls, wait=wait, options=create_table_options)

    @classmethod
    def held(cls, key: str | None = None) -> Iterator[Self]:
        """Iterate over the items that are held now, in no particular order. Reads the whole table, or the rows of your key.

        If the range key has a default, and you give no key, you get only the items under that default: others may belong to other
        models.

        Not guaranteed: that all items are from one instant. Your iteration reads a page when it reaches it.

        It skips rows that are not a lock's, or that this model cannot read, such as a row whose ``data`` is not JSON, with a
        warning in the log.

        Args:
            key: A hash key, for its items under all range keys, in the order of these; None for all items.

        Raises:
            InvalidKeyError: No lock can have the key.
            pynamodb.exceptions.ScanError: DynamoDB refuses the request, or you cannot reach it; QueryError with a key.
            pynamodb.exceptions.TableDoesNotExist: The table is missing.

        Example::

            for item in LockItem.held():
                print(item.key, "is held by", item.owner, "until", item.expires)
        """
        from pynamodb_mutex._admin.listing import held_rows  # noqa: PLC0415 - seldom needed

        return held_rows(cls, None if key is None else hash_key_of(cls, check_key(key)))

    @classmethod
    def aheld(cls, key: str | None = None) -> AsyncIterator[Self]:
        """Iterate over the items that are held now, by ``async for``: see `held`."""
        from pynamodb_mutex._tasks.run_in_task import iterate  # noqa: PLC0415 - loads asyncio

        return iterate(cls.held(key))

    @classmethod
    def force_release(cls, key: str, range_key: Any = None) -> bool:
        """Break the claim that is in the row now, and no later claim.

        From then on DynamoDB refuses the holder's guarded writes, and the next fencing token is higher than the holder's. Not
        guaranteed: that the holder stops. It learns of the loss from its next request; a holder in your process, unless it
        shares the lock, learns of it at once. All readers of a shared lock lose it.

        No mutex acquires a row with impossible lock attributes. This repairs the row, unless it has changed since it was
        read: the lock is then free, and its fencing token is above any old number. It never changes a row that is not a
        lock's.

        Args:
            key: The lock's key.
            range_key: Its range key; None for the default.

        Returns:
            Whether it broke a claim, or repaired a row. False if there was nothing to break; or if the lock changed hands
                meanwhile, perhaps after a request whose answer was lost had broken the claim.

        Raises:
            InvalidKeyError: No lock can have the key.
            InvalidRowError: The row under the key is not a lock's.
            pynamodb.exceptions.UpdateError: DynamoDB refuses the request, or you cannot reach it; GetError for the read before
                it.

        Example::

            if LockItem.force_release("invoice-42"):
                print("you broke the claim; its holder may go on working")
        """
        from pynamodb_mutex._admin.force import force  # noqa: PLC0415 - seldom needed

        process = current_process()
        row = key_of(cls, check_key(key), range_key)
        return execute(process, force(process, process.store(cls), row, key))

    @property
    def is_held(self) -> bool:
        """Whether this item's claim is still running, as far as DynamoDB's time is known. See `remaining`."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds until others may take this item's claim over, without a renewal; 0 without a claim.

        If your process has had no answer from DynamoDB yet, or none for 25 leases, it does not know DynamoDB's time, and this
        sends a read. The whole lease if DynamoDB's answers have no ``Date``.

        Raises:
            pynamodb.exceptions.GetError: DynamoDB's time is not known and that read fails.
        """
        ends = self._ends
        if ends is None:
            return 0.0
        process = current_process()
        store = process.store(type(self))
        store.connection.open()
        if not store.knows_time(float(self.lease or SHORTEST_LEASE), process.read_clock()):
            own = range_key_name(type(self))
            row = key_of(type(self), self.key, own and getattr(self, own))
            execute(process, learn_time(process, store, row))
        bounds, now = store.bounds, process.read_clock()
        if bounds is None:
            # no end can be compared with a time: a waiter would watch the claim for a whole lease from now on
            return float(self.lease or 0.0)
        return max(0.0, bounds.passes(ends) - now)

    @property
    def since(self) -> datetime | None:
        """When the holder acquired the lock, in DynamoDB's time (UTC), to a second or two. For people only.

        None if there is no claim, if another program made its token, or if the holder did not know DynamoDB's time.
        """
        return None if self.expires_at is None else date_of(token_time(self.token))

    @property
    def waiters(self) -> list[str]:
        """Owner labels of the waiters with ``fair=True``, first come first.

        Long labels are cut off, for an entry of the line takes at most 64 bytes. You still see a dead waiter before others have
        passed it.
        """
        from pynamodb_mutex._fair.waiting_line import in_line, label_of  # noqa: PLC0415 - seldom needed

        return [label_of(entry) for entry in in_line([str(each) for each in self.waiting or ()])]

    @property
    def readers(self) -> list[tuple[str, datetime | None]]:
        """Label of each reader, at most 64 bytes of it, and the end of its share in DynamoDB's time (UTC).

        You still see a dead reader before the last reader has left, or a writer takes the lock over.
        """
        shares = () if self.shared_by is None else self._claim.shares
        return [(label, date_of(end)) for label, end in shares]

    @property
    def expires(self) -> datetime | None:
        """End of the claim, in DynamoDB's time (UTC); None without a claim, or for an end that is not a date."""
        return date_of(self._ends)

    @property
    def _ends(self) -> float | None:
        return self.expires_at if self.shared_by is None else self._claim.ends

    @property
    def _claim(self) -> Claim:
        return current_process().store(type(self)).layout.claim(self.serialize(null_check=False))


lock_models.add(LockItem)
