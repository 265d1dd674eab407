"""Models that the command line is given by ``--model``."""

from __future__ import annotations

from pynamodb.attributes import BinaryAttribute, MapAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, RowLockMixin


class ShopLock(LockItem):
    """Other stored names, a range key, another kind of payload."""

    class Meta:
        table_name = "shop"

    key = UnicodeAttribute(hash_key=True, attr_name="pk")
    kind = UnicodeAttribute(range_key=True, attr_name="sk", default="LOCK")
    owner = UnicodeAttribute(null=True, attr_name="who")
    expires_at = NumberAttribute(null=True, attr_name="until")
    data = MapAttribute(null=True, attr_name="payload")


class Order(RowLockMixin, Model):
    class Meta:
        table_name = "orders"
        billing_mode = "PAY_PER_REQUEST"

    customer = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)


class Blob(RowLockMixin, Model):
    class Meta:
        table_name = "blobs"
        billing_mode = "PAY_PER_REQUEST"

    digest = BinaryAttribute(hash_key=True, legacy_encoding=False)


class Kept(RowLockMixin, Model):
    class Meta:
        table_name = "kept"

    lock_model = LockItem
    name = UnicodeAttribute(hash_key=True)
