"""The tables of the simulated processes: locks, rows that carry their claims or have them in the lock table, and plain rows."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from dev.simulation.once import Effect, Receipt
from pynamodb_mutex import LockItem, RowLockMixin
from pynamodb_mutex._lock.dynamodb.layout import SHARING, Layout
from pynamodb_mutex._lock.dynamodb.requests import Requests

if TYPE_CHECKING:
    from dev.simulation.table import Tables


class _Meta:
    region = "simulated"
    host = "http://simulated"


class Lock(LockItem):
    """The lock table of the simulated processes."""

    class Meta(_Meta):
        """An endpoint that only the simulated network knows."""

        table_name = "locks"

    purpose = UnicodeAttribute(default="none")


class _OldLayout(Layout):
    """The layout of an older version, which knows of no readers."""

    def __init__(self, model: type[Model]) -> None:
        super().__init__(model)
        self.sharing = []
        self._readers = [each for each in self._readers if each[0] not in SHARING]


class OldLock(LockItem):
    """The same lock table, as processes of an older version see it."""

    class Meta(_Meta):
        """An endpoint that only the simulated network knows."""

        table_name = "locks"

    _rows = _OldLayout, Requests


class Shard(LockItem):
    """A lock table with range keys: locks that differ in these alone have nothing to do with each other."""

    class Meta(_Meta):
        """An endpoint that only the simulated network knows."""

        table_name = "shards"

    part = UnicodeAttribute(range_key=True)


class _Row(Model):
    """A row that clients write: what they count in it, and the number of the last write."""

    name = UnicodeAttribute(hash_key=True)
    count = NumberAttribute(default=0)
    data = UnicodeAttribute(null=True)


class Account(RowLockMixin, _Row):
    """Rows that carry their claims."""

    class Meta(_Meta):
        """An endpoint that only the simulated network knows."""

        table_name = "accounts"


class Ledger(RowLockMixin, _Row):
    """Rows whose claims are in the lock table."""

    class Meta(_Meta):
        """An endpoint that only the simulated network knows."""

        table_name = "ledger"

    lock_model = Lock


class Slot(RowLockMixin, _Row):
    """Rows with a range key, whose locks are advisory: writes without them are not refused."""

    class Meta(_Meta):
        """An endpoint that only the simulated network knows."""

        table_name = "slots"

    lock_enforced = False

    part = UnicodeAttribute(range_key=True)


class Order(_Row):
    """Rows without locks; they are written in transactions that a lock guards."""

    class Meta(_Meta):
        """An endpoint that only the simulated network knows."""

        table_name = "orders"


ROWS = 2
"""Number of rows in each of the users' tables."""


def create_tables(tables: Tables) -> None:
    """Create the lock tables, and the users' tables with their rows."""
    for model in (Lock, Shard, Account, Ledger, Slot, Order, Receipt, Effect):
        names = [
            "key" if issubclass(model, LockItem) else "name",
            *["part"] * (model in (Shard, Slot)),
        ]
        tables.apply(
            "CreateTable",
            {
                "TableName": model.Meta.table_name,
                "KeySchema": [
                    {"AttributeName": name, "KeyType": kind}
                    for name, kind in zip(names, ("HASH", "RANGE"), strict=False)
                ],
                "AttributeDefinitions": [
                    {"AttributeName": name, "AttributeType": "S"} for name in names
                ],
                "BillingMode": "PAY_PER_REQUEST",
            },
        )
    for model, number in itertools.product((Account, Ledger, Slot, Order), range(ROWS)):
        item = {"name": {"S": f"r{number}"}, "count": {"N": "0"}}
        if model is Slot:
            item["part"] = {"S": "a"}
        tables.apply("PutItem", {"TableName": model.Meta.table_name, "Item": item})
