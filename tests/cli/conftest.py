"""Fixtures of the tests of commands."""

from __future__ import annotations

import os
import uuid

import pytest
from cli import COMMAND
from lock_items import Wire

from dev.faultproxy import fault_proxy
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


@pytest.fixture
def proxied(embedded, embedded_engine):
    """A proxy to the embedded engine."""
    with fault_proxy(embedded_engine) as proxy:
        yield proxy


@pytest.fixture
def wire(monkeypatch):
    return Wire(monkeypatch)


@pytest.fixture
def spawn():
    """Starts a command on a terminal of its own."""
    pexpect = pytest.importorskip("pexpect")
    started = []

    def start(*arguments, endpoint=None):
        env = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None)
        if endpoint is not None:
            env["AWS_ENDPOINT_URL_DYNAMODB"] = endpoint
        command = [*COMMAND[1:], *map(str, arguments)]
        process = pexpect.spawn(
            COMMAND[0], command, env=env, encoding="utf-8", timeout=60, dimensions=(24, 100)
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.close(force=True)
