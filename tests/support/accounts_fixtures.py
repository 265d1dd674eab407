"""Fixtures of the tests of row locks: models with fresh tables, and the requests that are sent."""

from __future__ import annotations

import pytest
from accounts import Account, Ledger
from lock_items import Wire
from row_tables import created, meta


def fresh(model, monkeypatch):
    """Give a model a fresh table, in which there is the row a."""
    monkeypatch.setattr(model.Meta, "table_name", meta().table_name)
    created(model)("a").save()
    return model


@pytest.fixture
def accounts(engine, monkeypatch):
    """Account, and with it Elsewhere."""
    return fresh(Account, monkeypatch)


@pytest.fixture
def ledger(table, monkeypatch):
    """Ledger, and a fresh lock table."""
    return fresh(Ledger, monkeypatch)


@pytest.fixture(params=[Account, Ledger])
def model(request, table, monkeypatch):
    """Each of the two in turn."""
    return fresh(request.param, monkeypatch)


@pytest.fixture
def sent(monkeypatch):
    """Collect the operations of every request of this process."""
    return Wire(monkeypatch).sent
