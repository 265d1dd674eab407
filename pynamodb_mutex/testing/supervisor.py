"""Ends a server when the process that started it ends, however that happens.

A server of ours calls `when_parent_ends` itself. Another one runs under this module as a program,
``python -I supervisor.py URL COMMAND...``, which needs nothing but the standard library.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from subprocess import DEVNULL, Popen
from urllib.parse import urlsplit


def when_parent_ends(action: Callable[[], object]) -> None:
    """Call an action, on a thread, once the parent process has ended or closed our stdin.

    Either sign alone would not do: stdin stays open as long as a forked sibling holds its
    other end, and Windows does not give orphans a new parent.

    Args:
        action: Called once or twice.
    """
    parent = os.getppid()

    def watch_stdin() -> None:
        with suppress(OSError):
            os.read(0, 1)  # nobody writes to it, so this returns at its end
        action()

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        action()

    for watch in (watch_stdin, watch_parent):
        threading.Thread(target=watch, daemon=True).start()


def answers(url: str) -> bool:
    """Say whether a server answers at a URL."""
    import http.client  # noqa: PLC0415 - slow to import, and most processes never need it

    parts = urlsplit(url)
    secure = parts.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse()  # DynamoDB refuses a bare GET: that too is an answer
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def supervise(url: str, *command: str) -> None:
    """Run a server that would not notice our parent's end, and end it then.

    Prints the server's process id once it answers.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    over = threading.Event()
    when_parent_ends(over.set)
    server = Popen(command, stdin=DEVNULL, stdout=sys.stderr)
    try:
        while not answers(url) and server.poll() is None and not over.wait(0.05):
            pass
        if server.poll() is None:
            print(server.pid, flush=True)
        while server.poll() is None and not over.wait(0.5):
            pass
    finally:
        server.kill()  # all it has is in memory
        server.wait()


if __name__ == "__main__":
    supervise(*sys.argv[1:])
