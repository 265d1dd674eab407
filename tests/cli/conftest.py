"""Fixtures of the tests of commands."""

import os
import sys
import uuid
from contextlib import ExitStack

import pytest
from cli import COMMAND
from lock_items import Wire


@pytest.fixture
def proxy(table, proxy):
    """A proxy to the engine, with a table."""
    return proxy


@pytest.fixture
def made(engine, monkeypatch):
    """Makes a model's table, under a name of its own."""

    def make(model):
        monkeypatch.setattr(model.Meta, "table_name", f"locks-{uuid.uuid4().hex}")
        monkeypatch.setattr(model, "_connection", None)
        model.create_table(wait=True)
        return model

    return make


@pytest.fixture
def wire(monkeypatch):
    return Wire(monkeypatch)


@pytest.fixture
def spawn():
    """Starts a command on a terminal of its own."""
    if sys.platform == "win32":
        pytest.skip("Windows has no pseudo-terminals")
    pexpect = pytest.importorskip("pexpect")
    with ExitStack() as started:

        def start(*arguments):
            command = [*COMMAND[1:], *map(str, arguments)]
            unset = ("COLUMNS", "LINES", "NO_COLOR")
            env = {name: value for name, value in os.environ.items() if name not in unset}
            more = {"env": env | {"TERM": "xterm-256color"}, "encoding": "utf-8"}
            process = pexpect.spawn(COMMAND[0], command, timeout=60, dimensions=(24, 100), **more)
            started.callback(process.close, force=True)
            return process

        yield start
