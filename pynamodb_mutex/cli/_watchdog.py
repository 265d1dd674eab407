"""The watchdog: a process that ends the command when ``run`` cannot.

``run`` may be killed, stopped, or out of memory. Then no process renews the lock, and the command must
not go on. `Watchdog` is the side of ``run``, which sends lines through a pipe: the process to end, and each new
deadline of the lock. If the pipe closes, or a deadline passes, the watchdog ends the command. As long as ``run`` itself
works, `_child` ends it instead, and at the end ``run`` kills the watchdog.

This file is run as a program, which imports nothing but the standard library: it starts fast, and needs no package
that may be missing.
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
"""Most seconds between two readings of the clock: the timeout of ``select`` does not count a suspension, which the
lease does."""

_POLL = 0.05
"""Seconds between two checks whether the process that was asked to end has ended."""


class Watchdog:
    """The watchdog, as ``run`` uses it. A context manager; left by an error, it ends the command."""

    def __init__(self, command: str) -> None:
        """Start the watchdog, which names our command in its message; it guards nothing yet."""
        # In a session of its own: what ends our process group or terminal must not end the watchdog too. Neither it nor
        # the command inherits the write end of the pipe (Python opens pipes like that), so that the pipe closes
        # when this process dies, and not only when the command ends.
        source, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", __file__, command],
                stdin=source,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        finally:
            os.close(source)
        os.set_blocking(self._pipe, False)
        self._sent = math.inf

    def guard(self, target: int, grace: float, deadline: float) -> None:
        """Name the process that the watchdog ends when this process has ended or does not renew.

        The deadline is sent by the same write: if this process were stopped between two writes, the watchdog would
        wait for its end, and the command would outlive the lease.

        Args:
            target: Process id, as for `os.kill`; negative for a process group.
            grace: Seconds from SIGTERM to SIGKILL.
            deadline: As for `extend`.
        """
        self._sent = deadline
        self._write(f"{target} {grace}\n{deadline}")

    def extend(self, deadline: float) -> None:
        """Send the deadline of the lock, if it has changed.

        Args:
            deadline: Local time until which the lock is held; minus infinity if it is lost.
        """
        if deadline != self._sent:
            self._sent = deadline
            self._write(str(deadline))

    def _write(self, line: str) -> None:
        try:
            os.write(self._pipe, f"{line}\n".encode())
        except BlockingIOError:
            # The pipe is full, because the watchdog was stopped hours ago. Resumed, it would miss this deadline, and end
            # the command for an older one that has passed.
            self._process.kill()
        except OSError:
            pass  # it was killed: this process still supervises the command

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        # In both cases also a watchdog that was stopped: this process would wait for it, and keep the lock, for ever.
        if error is None:
            self._process.kill()
        else:
            # This process no longer supervises the command. The pipe closes, so the watchdog ends the command now; this
            # process waits until it has.
            self._process.send_signal(signal.SIGCONT)
        os.close(self._pipe)
        self._process.wait()


# -- in its own process ------------------------------------------------------------------------------


def now() -> float:
    """Return the local time, by the clock of `pynamodb_mutex._lock.runtime.clock.LocalClock`.

    That clock has one zero for all processes of the machine, so deadlines of ``run`` can be compared with it.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def watch() -> None:
    """Read deadlines from standard input until it closes or the last one has passed; then end the command.

    Return without doing so if no process was named yet.
    """
    target, grace, until = 0, 0.0, math.inf
    unread = b""
    while True:
        # Read before the pipe is. If this process was stopped for long, the deadline that it knows has passed, but later
        # ones are in the pipe: `run` has renewed the lock meanwhile.
        left = until + _SLACK - now()
        if not select.select([0], [], [], min(_LONGEST_SLEEP, max(0.0, left)))[0]:
            if left <= 0:
                break
            continue
        received = os.read(0, 4096)
        if not received:  # `run` has ended, or left its block by an error
            break
        # a read may end in the middle of a line
        *lines, unread = (unread + received).split(b"\n")
        for line in lines:
            words = line.decode().split()
            if len(words) > 1:
                target, grace = int(words[0]), float(words[1])
            else:
                until = float(words[0])
                # The lock is lost, and `run`, which works, ends the command with its grace. Taken as a deadline that
                # has passed, this would make both of them do so. If `run` is killed meanwhile, the pipe closes.
                if until == -math.inf:
                    until = math.inf
    if target:
        end(target, now() + grace, until)
        # Only now: whatever killed `run` may have killed the reader of its standard error, too, and a message to a
        # reader that has gone raises an error, one to a reader that does not read waits for ever.
        with suppress(OSError):
            print(
                f"pynamodb-mutex {sys.argv[1]} was killed or stopped: the watchdog has ended the command",
                file=sys.stderr,
            )


def end(target: int, kill_at: float, lease_ends: float) -> None:
    """Send SIGTERM to a process or group, and SIGKILL if it has not ended in time.

    Args:
        target: Process id; negative for a process group.
        kill_at: Local time of SIGKILL.
        lease_ends: Local time at which the lease ends. SIGKILL is sent then if that is earlier than ``kill_at``.
            A lease that has ended already, as after `run` was stopped, does not count: the command has had no notice.
    """
    if lease_ends > now():
        kill_at = min(kill_at, lease_ends)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(target, signal.SIGTERM)
        os.kill(target, signal.SIGCONT)
        while now() < kill_at:
            time.sleep(_POLL)
            os.kill(target, 0)  # raises ProcessLookupError once it has ended
        os.kill(target, signal.SIGKILL)


if __name__ == "__main__":
    watch()
