"""Fixtures of the tests of commands."""

from __future__ import annotations

import uuid

import pytest

from pynamodb_mutex import LockItem
from pynamodb_mutex.testing import use


@pytest.fixture
def embedded(embedded_engine, monkeypatch):
    """A fresh table on the embedded engine: for what does not depend on DynamoDB."""
    with use(embedded_engine):
        name = f"locks-{uuid.uuid4().hex}"
        monkeypatch.setattr(LockItem.Meta, "table_name", name)
        monkeypatch.setenv("PYNAMODB_MUTEX_TABLE", name)
        LockItem.create_table()
        yield LockItem
