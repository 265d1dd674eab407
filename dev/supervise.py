"""Ends DynamoDB Local when the process that started it ends, however that happens.

A program: ``python -I supervise.py URL COMMAND...``.
"""

from __future__ import annotations

import signal
import sys
import threading
from subprocess import DEVNULL, Popen
from urllib.parse import urlsplit

from pynamodb_mutex.testing.engines import when_parent_ends


def answers(url: str) -> bool:
    """Return whether a server answers at a URL, whatever the answer is."""
    import http.client

    parts = urlsplit(url)
    secure = parts.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", "/")
        connection.getresponse()  # DynamoDB refuses a bare GET, which is an answer, too
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def supervise(url: str, *command: str) -> None:
    """Run a server that does not notice by itself when our parent ends, and kill it then.

    Prints the server's process id once it answers.

    Args:
        url: URL at which the server will answer.
        *command: Program and arguments of the server.
    """
    over = threading.Event()
    # Not by an exception before there is a `server` to kill: it may have been started already.
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    when_parent_ends(over.set)
    server = Popen(command, stdin=DEVNULL, stdout=sys.stderr)
    try:
        # By an exception, so that the server is killed in `finally`: as a child it would outlive us.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        while not answers(url) and server.poll() is None and not over.wait(0.05):
            pass
        if server.poll() is None:
            print(server.pid, flush=True)
        while server.poll() is None and not over.wait(0.5):
            pass
    finally:
        server.kill()  # nothing is lost: all its data is in memory
        server.wait()


if __name__ == "__main__":
    supervise(*sys.argv[1:])
