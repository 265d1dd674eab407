"""Commands under a lock: started by this process or in one of their own."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import contextmanager, suppress

from cli import COMMAND
from click.testing import CliRunner
from hearing import GENEROUS, until

from pynamodb_mutex import Mutex
from pynamodb_mutex.cli._app import app

RUN = [*COMMAND, "run"]


def run_here(*arguments):
    """Let this process be the command line."""
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


@contextmanager
def running(*arguments, **options):
    """Run the command line in a process without a terminal."""
    process = subprocess.Popen(
        [*RUN, *map(str, arguments)],
        start_new_session=True,
        text=True,
        stdin=options.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def outcome(process):
    """Wait for the end; return exit code and standard error."""
    error = process.communicate(timeout=GENEROUS)[1]
    return process.returncode, error


def text_in(path):
    """Wait for a file that is written at once, and return what it says."""
    return until(lambda: path.exists() and path.read_text())


def watched(path):
    """Wait until the command has written its process id, and the watchdog knows of it; return it."""
    pid = int(text_in(path))
    time.sleep(1.0)  # that is told right after the command was started
    return pid


def is_there(pid):
    """Whether a process is there, and not merely not waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout
    return state.strip()[:1] not in {"", "Z"}


def free():
    mutex = Mutex.for_key("k")
    if not mutex.acquire(blocking=False):
        return False
    mutex.release()
    return True
