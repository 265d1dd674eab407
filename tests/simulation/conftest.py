"""Timeouts as they ship: a seed plays the schedule here that it plays for `python -m dev.simulation`. Stores, filled.

A file whose tests have a `store` fills it by `fill`, and says in VALUES what placeholders stand for.
"""

import pytest
from table_stores import Store, client_of

from dev.simulation.schedule import Lock
from pynamodb_mutex._dynamodb import connection
from pynamodb_mutex.testing import use


@pytest.fixture(autouse=True)
def timeouts_as_they_ship(monkeypatch):
    # conftest.py of all tests lengthens them
    monkeypatch.setattr(connection, "READ_TIMEOUT", 2.0)
    monkeypatch.setattr(Lock.Meta, "read_timeout_seconds", 2.0)


@pytest.fixture
def memory(request):
    """The table in memory."""
    return Store(request.module)


@pytest.fixture(params=["memory", "local"])
def store(request):
    """The table in memory, and DynamoDB Local."""
    if request.param == "memory":
        yield Store(request.module)
        return
    engine = request.getfixturevalue("local_engine")
    with use(engine):
        yield Store(request.module, client_of(engine.endpoint_url)._make_api_call)
