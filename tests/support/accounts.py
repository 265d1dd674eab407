"""Rows of a user, to be locked: with the claim in the row, and in the lock table."""

from __future__ import annotations

from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from row_tables import meta

from pynamodb_mutex import LockItem, RowLockMixin


class Account(RowLockMixin, Model):
    Meta = meta("accounts")

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


class Elsewhere(RowLockMixin, Model):
    """The same rows with another connection and another queue, as in another process."""

    Meta = Account.Meta

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


class Ledger(RowLockMixin, Model):
    """Its locks stand in the lock table."""

    Meta = meta("ledger")
    lock_model = LockItem

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


def balance(model):
    """Return the balance that stands in the row a."""
    return model.get("a", consistent_read=True).balance


def changed(row):
    """Update a row."""
    return row.update(actions=[type(row).balance.add(1)])
