"""Fixtures of the tests of commands."""

import os
import sys
import uuid
from contextlib import ExitStack

import pytest
from command_line import COMMAND, plain


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
def spawn():
    """Starts a command on a terminal of its own; its `end` is the exit code, and what was shown until then."""
    if sys.platform == "win32":
        pytest.skip("Windows has no pseudo-terminals")
    pexpect = pytest.importorskip("pexpect")

    class Terminal(pexpect.spawn):
        def end(self):
            sent = self.read()
            self.close()
            return self.exitstatus, plain(sent)

    with ExitStack() as started:

        def start(*arguments):
            process = Terminal(
                *(COMMAND[0], [*COMMAND[1:], *map(str, arguments)]),
                env=os.environ | {"TERM": "xterm-256color"},
                timeout=60,
                dimensions=(24, 100),
                encoding="utf-8",
            )
            started.callback(process.close, force=True)
            return process

        yield start
