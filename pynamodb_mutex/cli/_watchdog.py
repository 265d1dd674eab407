"""A process that ends the command when the one that watches over it cannot.

That one may be killed, stopped, or out of memory: then nobody renews the lock, and the command must
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
"""Seconds after the end of the lease that are left to the one who should act first."""

_LONGEST_SLEEP = 1.0
_LOOKS = 0.05
_DONE = "done"


class Watchdog:
    """The watchdog, as the one that it watches sees it. A context manager."""

    def __init__(self) -> None:
        """Start it; it has nothing to do yet."""
        # apart from the terminal and from our group, or what ends us would end it too
        news, self._news = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__],
                stdin=news,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(news)
        self._told = math.inf

    def guard(self, target: int, grace: float) -> None:
        """Let it end a process, or, if negative, a group, when this process is gone.

        Args:
            target: As for `os.kill`.
            grace: Seconds from SIGTERM to SIGKILL.
        """
        self._write(f"{target} {grace}")

    def extend(self, deadline: float) -> None:
        """Send the time until which the lock is held unless more is sent; minus infinity: it is lost."""
        if deadline != self._told:
            self._told = deadline
            self._write(str(deadline))

    def _write(self, line: str) -> None:
        with suppress(OSError):  # somebody killed it
            os.write(self._news, f"{line}\n".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._write(_DONE)
        # after an error it ends the command now
        os.close(self._news)
        self._process.wait()


# -- in its own process ------------------------------------------------------------------------------


def now() -> float:
    """Return the time by the clock of `pynamodb_mutex._runtime.clock.LocalClock`."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def watch() -> None:
    """Follow the times on standard input, until its end."""
    target, grace, until = 0, 0.0, math.inf
    unread = b""
    while now() < until + _SLACK:
        if not select.select([0], [], [], min(_LONGEST_SLEEP, max(0.0, until + _SLACK - now())))[0]:
            continue
        came = os.read(0, 4096)
        if not came:
            break
        *lines, unread = (unread + came).split(b"\n")
        for line in lines:
            words = line.decode().split()
            if words == [_DONE]:
                return
            if len(words) > 1:
                target, grace = int(words[0]), float(words[1])
            else:
                until = float(words[0])
                if until == -math.inf:  # known there, and acted upon
                    until = math.inf
    if target:
        print("pynamodb-mutex run: gone or stopped: ending its command", file=sys.stderr)
        end(target, now() + grace, until)


def end(target: int, kill_at: float, lease_ends: float) -> None:
    """End a process or group: by SIGKILL when its time, or before that the lease, is over."""
    if lease_ends > now():
        kill_at = min(kill_at, lease_ends)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(target, signal.SIGTERM)
        os.kill(target, signal.SIGCONT)
        while now() < kill_at:
            time.sleep(_LOOKS)
            os.kill(target, 0)
        os.kill(target, signal.SIGKILL)


if __name__ == "__main__":
    watch()
