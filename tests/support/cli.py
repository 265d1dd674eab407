"""The command line, run in this process."""

import sys

import pytest
from click.testing import CliRunner, Result, _NamedTextIOWrapper

from pynamodb_mutex.cli._app import app

COMMAND = (sys.executable, "-m", "pynamodb_mutex.cli")
"""The same in a process of its own."""


def run_cli(*args: str, typed: str | None = None, **more) -> Result:
    """Run a command with the engine in use; what it raises but an exit fails the test.

    Args:
        args: What follows ``pynamodb-mutex``.
        typed: What somebody types at a terminal; None if there is nobody.
        more: As `CliRunner.invoke` takes it.
    """
    with pytest.MonkeyPatch.context() as patch:
        if typed is not None:
            patch.setattr(_NamedTextIOWrapper, "isatty", lambda stream: stream.name == "<stdin>")
        return CliRunner().invoke(app, args, input=typed, catch_exceptions=False, **more)
