"""Timeouts as they ship: a seed plays the schedule here that it plays for `python -m dev.simulation`. Stores, filled.

A file whose tests have a `store` fills it by `fill`, and says in VALUES what placeholders stand for.
"""

import pytest
from tables import Store, stores

from dev.simulation.models import Lock, Receipt, Shard
from pynamodb_mutex._lock.dynamodb import connection

store = stores("memory", "local")


@pytest.fixture(autouse=True)
def timeouts_as_they_ship(monkeypatch):
    # conftest.py of all tests lengthens them
    monkeypatch.setattr(connection, "READ_TIMEOUT", 2.0)
    for model in (Lock, Shard, Receipt):
        monkeypatch.setattr(model.Meta, "read_timeout_seconds", 2.0)


@pytest.fixture
def memory(request):
    """The table in memory."""
    return Store(request.module)
