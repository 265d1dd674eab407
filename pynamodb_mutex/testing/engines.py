"""DynamoDB on this machine, for tests and examples.

:func:`embedded_dynamodb` starts moto's DynamoDB, in a process of its own that never outlives the one that started it. It needs
only Python packages and starts in a second. :func:`use` directs the process to it, or to another engine that is running. What
the embedded engine adds to moto is in `embedded_server`.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import IO, cast
from urllib.parse import urlsplit

from pynamodb_mutex._lock.runtime.process import forget_everything

_START_SECONDS = 60.0
_STOP_SECONDS = 5.0


class EngineError(RuntimeError):
    """Your engine does not start. The message names your next step, or shows the engine's output."""


@dataclass(frozen=True)
class Engine:
    """A DynamoDB that listens on this machine.

    Attributes:
        name: "embedded", or any other name, such as "external", for an engine that was already running.
        endpoint_url: The URL at which it answers.
        pid: Its process id; None if it was already running.
    """

    name: str
    endpoint_url: str
    pid: int | None = None


@contextmanager
def embedded_dynamodb(port: int = 0) -> Iterator[Engine]:
    """Run moto's DynamoDB, one request at a time, in a process of its own.

    Args:
        port: The port on 127.0.0.1; 0 for any free port.

    Yields:
        The engine, ready to answer.

    Raises:
        EngineError: A package is missing, or the server does not start.

    Example::

        from pynamodb_mutex import LockItem, Mutex
        from pynamodb_mutex.testing import embedded_dynamodb, use

        with embedded_dynamodb() as engine, use(engine):
            LockItem.create_table()
            with Mutex.for_key("a") as mutex:
                print("you hold it", mutex.held)
    """
    missing = [name for name in ("moto", "flask", "waitress") if not importlib.util.find_spec(name)]
    if missing:
        raise EngineError(
            f"the embedded DynamoDB needs {' and '.join(missing)}: "
            "pip install 'pynamodb-mutex[testing]'"
        )
    # The server must find the packages that this process finds, whatever made its sys.path, and nothing
    # in the working directory: `-m` would search that first (PYTHONSAFEPATH is for Python 3.11 and later).
    package_root = str(Path(__file__).parents[2])
    path = [package_root, *map(os.path.abspath, filter(None, sys.path))]
    env = {**_without_aws(), "PYTHONPATH": os.pathsep.join(path)}
    command = [sys.executable, "-m", f"{__package__}.embedded_server", str(port)]
    with run_server(command, env, package_root) as (process, url):
        yield Engine("embedded", url, process.pid)


def environment(engine: Engine) -> dict[str, str]:
    """Make an environment in which botocore reaches the engine and nothing else of AWS.

    Args:
        engine: The engine to reach.

    Returns:
        All of ``os.environ`` except its AWS settings, which are replaced by the engine's. Can be the
        ``env`` of a subprocess.
    """
    env = _without_aws()
    env |= dict.fromkeys(("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"), engine.endpoint_url)
    env |= dict.fromkeys(("AWS_DEFAULT_REGION", "AWS_REGION"), "us-east-1")
    env |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing")
    # botocore would send even local requests through a proxy. If both spellings are set, the one in lower case counts.
    direct = urlsplit(engine.endpoint_url).hostname or ""
    for name in ("NO_PROXY", "no_proxy"):
        listed = os.environ.get(name, direct).split(",")
        env[name] = ",".join(dict.fromkeys([*listed, direct]))
    return env


def _without_aws() -> dict[str, str]:
    """Return ``os.environ`` without its AWS settings, for the clients of an engine and for moto, which uses botocore too."""
    # botocore reads settings from many AWS_ variables and from two files. Any that is left, such as a session token or a
    # switch that ignores endpoints, could lead requests past the engine. With a profile that is not there moto answers
    # each request with a server error.
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    env |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    return env | {"AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def use(engine: Engine) -> Iterator[Engine]:
    """Direct your process, and the processes that it starts, to an engine for the length of the block.

    The library forgets its connections, locks and server time at both ends of the block. Your boto3 clients and the connections
    of models other than lock models keep their endpoint.

    Args:
        engine: The engine to reach.

    Yields:
        The same engine.
    """
    inside, before = environment(engine), dict(os.environ)
    # Only these are restored: other variables that are set inside the block keep their values after it.
    changed = {name for name, _ in inside.items() ^ before.items()}
    _set_environment(changed, inside)
    forget_everything()
    try:
        yield engine
    finally:
        _set_environment(changed, before)
        forget_everything()


def _set_environment(names: set[str], values: dict[str, str]) -> None:
    for name in names:
        if name in values:
            os.environ[name] = values[name]
        else:
            os.environ.pop(name, None)


@contextmanager
def run_server(
    command: Sequence[str], env: dict[str, str] | None = None, folder: str | None = None
) -> Iterator[tuple[Popen[bytes], str]]:
    """Run a server in a child process, and stop it at the end of the block.

    Args:
        command: Program and arguments. The server prints a line once it is ready.
        env: Environment of the server; by default that of this process.
        folder: Working directory of the server; by default that of this process.

    Yields:
        The process, and the line that it printed.

    Raises:
        EngineError: If the server does not start.
    """
    starter = os.getpid()
    with tempfile.TemporaryFile() as log:
        # In a session of its own, so that Ctrl-C does not end it: this process still needs the engine to clean up.
        process = Popen(
            command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=log,
            env=env,
            cwd=folder,
            start_new_session=True,
        )
        try:
            yield process, _first_line(process, log)
        finally:
            # A forked child that unwinds this stack must not stop the engine, which its parent still uses.
            if os.getpid() == starter:
                _stop(process)


def _first_line(process: Popen[bytes], log: IO[bytes]) -> str:
    """Return the line that a server prints once it is ready.

    Raises:
        EngineError: If it ends before that, or is not ready within `_START_SECONDS`. The message has its output.
    """
    output = cast("IO[bytes]", process.stdout)
    alarm = threading.Timer(_START_SECONDS, process.terminate)
    alarm.start()
    try:
        line = output.readline().decode().strip()
    finally:
        alarm.cancel()
    if not line:
        _stop(process)
        log.seek(0)
        words = log.read().decode(errors="replace").strip()
        raise EngineError(f"the engine did not start:\n{words}")
    return line


def _stop(process: Popen[bytes]) -> None:
    with process:  # closes its pipes and waits
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except TimeoutExpired:
            process.kill()


def when_parent_ends(action: Callable[[], object]) -> None:
    """Call an action, on a thread, once the parent process has ended or closed our stdin.

    Neither sign alone would do: stdin stays open as long as a forked child of the parent holds its other end, and on
    Windows orphans do not get a new parent.

    Args:
        action: The action. It is called once for each of the two signs that is seen, so perhaps twice.
    """
    parent = os.getppid()

    def watch_stdin() -> None:
        with suppress(OSError):
            os.read(0, 1)  # returns when stdin is closed, because nobody writes to it
        action()

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        action()

    for watch in (watch_stdin, watch_parent):
        threading.Thread(target=watch, daemon=True).start()
