"""The command line, run in this process, with a terminal or without."""

from __future__ import annotations

import os
import sys
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from pynamodb_mutex.cli._app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = (sys.executable, "-m", "pynamodb_mutex.cli")
"""The same in a process of its own."""


def run_cli(*args: str, keyboard: int | None = None, env: dict[str, str] | None = None) -> Result:
    """Run a command with the engine in use.

    What it raises but an exit fails the test.

    Args:
        args: What follows ``pynamodb-mutex``.
        keyboard: The terminal that it reads from, as `terminal` gives it; without one there is none.
        env: Added to the environment.
    """
    source = os.open(os.devnull, os.O_RDONLY) if keyboard is None else os.dup(keyboard)
    with os.fdopen(source, "rb") as stdin:
        return CliRunner().invoke(app, args, input=stdin, env=env, catch_exceptions=False)


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """A terminal: what we write to the first, a command reads from the second."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)  # no echo, which nobody would read
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def answered(text: str, *args: str) -> Result:
    """Run a command on a terminal where somebody types this."""
    with terminal() as (ours, theirs):
        os.write(ours, text.encode())
        return run_cli(*args, keyboard=theirs)
