"""The watchdog: a process that ends the command when ``run`` cannot.

``run`` may be killed, stopped, or out of memory. Then no process renews the lock, and the command must
not go on. This file is run as a program, which imports nothing but the standard library.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_SLACK = 0.5
"""Seconds after the end of the lease in which ``run`` may act first."""

_LONGEST_SLEEP = 1.0
_POLL = 0.05
"""Seconds between two polls whether the process that was asked to end has ended."""
_DONE = "done"


class Watchdog:
    """The watchdog, as ``run`` uses it. A context manager."""

    def __init__(self) -> None:
        """Start the watchdog; it guards nothing yet."""
        # in a session of its own: what ends our group or terminal must not end the watchdog
        source, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__],
                stdin=source,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(source)
        self._sent = math.inf

    def guard(self, target: int, grace: float) -> None:
        """Name the process that the watchdog ends when this process has ended or does not renew.

        Args:
            target: As for `os.kill`: negative for a process group.
            grace: Seconds from SIGTERM to SIGKILL.
        """
        self._write(f"{target} {grace}")

    def extend(self, deadline: float) -> None:
        """Send the local time until which the lock is held; minus infinity if it is lost."""
        if deadline != self._sent:
            self._sent = deadline
            self._write(str(deadline))

    def _write(self, line: str) -> None:
        with suppress(OSError):  # the watchdog was killed
            os.write(self._pipe, f"{line}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._write(_DONE)
        # after an error the watchdog ends the command now: the pipe closes without "done"
        os.close(self._pipe)
        self._process.wait()


# -- in its own process ------------------------------------------------------------------------------


def now() -> float:
    """Return the time by the clock of `pynamodb_mutex._runtime.clock.LocalClock`."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def watch() -> None:
    """Read deadlines from standard input until it closes, or until the last one has passed."""
    target, grace, until = 0, 0.0, math.inf
    unread = b""
    while now() < until + _SLACK:
        if not select.select([0], [], [], min(_LONGEST_SLEEP, max(0.0, until + _SLACK - now())))[0]:
            continue
        received = os.read(0, 4096)
        if not received:
            break
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            words = line.decode().split()
            if words == [_DONE]:
                return
            if len(words) > 1:
                target, grace = int(words[0]), float(words[1])
            else:
                until = float(words[0])
                if until == -math.inf:  # the lock is lost: `run` ends the command
                    until = math.inf
    if target:
        print(
            "pynamodb-mutex run: run was killed or stopped: the watchdog ends the command",
            file=sys.stderr,
        )
        end(target, now() + grace, until)


def end(target: int, kill_at: float, lease_ends: float) -> None:
    """Send SIGTERM to a process or group, and SIGKILL at ``kill_at`` or, if that is earlier, when the lease ends."""
    if lease_ends > now():
        kill_at = min(kill_at, lease_ends)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(target, signal.SIGTERM)
        os.kill(target, signal.SIGCONT)
        while now() < kill_at:
            time.sleep(_POLL)
            os.kill(target, 0)
        os.kill(target, signal.SIGKILL)


if __name__ == "__main__":
    watch()
