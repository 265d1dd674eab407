"""Timeouts as they ship: a seed plays the schedule here that it plays for `python -m dev.simulation`."""

import pytest

from dev.simulation.schedule import Lock
from pynamodb_mutex._dynamodb import connection


@pytest.fixture(autouse=True)
def timeouts_as_they_ship(monkeypatch):
    # conftest.py of all tests lengthens them
    monkeypatch.setattr(connection, "READ_TIMEOUT", 2.0)
    monkeypatch.setattr(Lock.Meta, "read_timeout_seconds", 2.0)
