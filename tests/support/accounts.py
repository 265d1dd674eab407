"""Rows of a user, to be locked: with the claim in the row, and in the lock table.

The fixtures give them fresh tables, in which there is the row a.
"""

from __future__ import annotations

import pytest
from lock_items import Wire
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from row_tables import created, meta

from pynamodb_mutex import LockItem, RowLockMixin


class Account(RowLockMixin, Model):
    Meta = meta("accounts")

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


class Elsewhere(Account):
    """The same rows with another connection and another queue, as in another process."""

    Meta = Account.Meta


class Ledger(Account):
    """Its locks stand in the lock table."""

    Meta = meta("ledger")
    lock_model = LockItem


def balance(model):
    """Return the balance that stands in the row a."""
    return model.get("a", consistent_read=True).balance


def changed(row):
    """Update a row."""
    return row.update(actions=[type(row).balance.add(1)])


def _fresh(model, monkeypatch):
    monkeypatch.setattr(model.Meta, "table_name", meta().table_name)
    created(model)("a").save()
    return model


@pytest.fixture
def accounts(engine, monkeypatch):
    """Account, and with it Elsewhere."""
    return _fresh(Account, monkeypatch)


@pytest.fixture
def ledger(table, monkeypatch):
    """Ledger, and a fresh lock table."""
    return _fresh(Ledger, monkeypatch)


@pytest.fixture(params=[Account, Ledger])
def model(request, table, monkeypatch):
    """Each of the two in turn."""
    return _fresh(request.param, monkeypatch)


@pytest.fixture
def sent(monkeypatch):
    """Collect the operations of every request of this process."""
    return Wire(monkeypatch).sent
