"""The process of the command that ``run`` starts: how it is started, receives signals, and is ended.

`Child` is the process with those that it starts, `Signals` is what arrives for it, and `Supervisor` waits
for its end, or ends it when its lock is lost. Nothing here acquires or releases a lock: `_run` does. For
the case that this process itself is killed or stopped, `_watchdog` ends the command.
"""

from __future__ import annotations

import math
import os
import select
import shutil
import signal
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pynamodb_mutex._lock.protocol.messages import escaped
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex.exceptions import Loss

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from pynamodb_mutex._lock.handles import HandleOfOne
    from pynamodb_mutex.cli._watchdog import Watchdog

CANNOT_RUN = 126
"""Exit code: the command exists but cannot be executed."""

NOT_FOUND = 127
"""Exit code: the command does not exist."""

OF_SIGNALS = 128
"""Exit code of a command that a signal ended: this plus the number of the signal."""

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGQUIT") if hasattr(signal, name)
)
"""Signals that ask a program to end."""

OTHERS = tuple(
    getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
"""Signals whose meaning depends on the program, such as "read the configuration again": they are only forwarded."""

WAKE = 0
"""Byte written to the pipe of signals to end a wait; no signal has this number."""

_LONGEST_SLEEP = 1.0
"""Most seconds between two checks of the lock.

The lease runs on while the machine is suspended, but the timeout of ``select`` does not: a wait until the end of
the lease would end too late by all the time of the suspension.
"""

_GROUP_POLL = 0.05
"""Seconds between two polls of the process group after the command has ended."""

_KILL_TAKES = 1.0
"""Seconds for which the end of the process group is awaited after SIGKILL.

Without a limit this could be for ever: in a container whose first process does not reap orphans, the zombies of
the group never disappear.
"""


class NoCommandError(click.ClickException):
    """The command cannot be executed."""

    exit_code = CANNOT_RUN


class NotFoundError(NoCommandError):
    """The command does not exist."""

    exit_code = NOT_FOUND


def find_command(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a command, searched on the PATH of the environment that the command will have.

    Raises:
        NotFoundError: If it does not exist.
        NoCommandError: If it exists but cannot be executed.
    """
    path = environment.get("PATH", os.defpath)
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    # Not Path.parent: that is "." both for "x", which is searched on the PATH, and for "./x", which is not.
    places = [""] if os.path.dirname(name) else path.split(os.pathsep)  # noqa: PTH120 - as above
    # Not Path.exists: that raises if the PATH names a folder that only its owner may search.
    if name and any(os.access(Path(place, name), os.F_OK) for place in places):
        raise NoCommandError(f"{escaped(name)}: cannot be executed")
    raise NotFoundError(f"{escaped(name)}: command not found")


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal, as when a person started it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Child:
    """The process of a command, and the processes that it starts.

    Without a terminal the command leads a process group of its own, and signals go to the whole group.
    With a terminal it stays in the group of this process: in another group it could neither read from
    the terminal nor be stopped from there. Signals then go to the command alone.

    Attributes:
        pid: Process id of the command, and id of its process group if it leads one.
        own_group: Whether the command leads a process group.
        exit_code: Exit code of the command, or 128 plus the number of the signal that ended it; None while it runs.
    """

    def __init__(
        self,
        path: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        own_group: bool,
        adopts: bool,
        output: int | None = None,
    ) -> None:
        """Start the command.

        Args:
            path: Path of the executable.
            arguments: Arguments, beginning with the name of the command.
            environment: All variables of the command; none are inherited.
            own_group: Whether the command leads a process group.
            adopts: Whether orphans become children of this process, which then reaps them: true for
                the first process of a container.
            output: File descriptor of its standard output; None for that of this process.

        Raises:
            NoCommandError: If the command cannot be started.
        """
        options: dict[str, Any] = {"setpgroup": 0} if own_group else {}
        if output is not None:
            options["file_actions"] = [(os.POSIX_SPAWN_DUP2, output, 1)]
        try:
            # Python ignores these two from its start, and ignored signals stay ignored in a new program: with SIGPIPE
            # ignored, the first part of "yes | head -1" would report an error instead of ending silently.
            self.pid = os.posix_spawn(
                path,
                list(arguments),
                environment,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                **options,
            )
        except OSError as error:
            kind = NotFoundError if isinstance(error, FileNotFoundError) else NoCommandError
            raise kind(f"{escaped(arguments[0])}: {error.strerror}") from error
        self.own_group = own_group
        self.exit_code: int | None = None
        self._adopts = adopts

    def poll(self) -> None:
        """Reap processes that have ended, and set `exit_code` if the command has."""
        # Until nothing is left to reap, for one SIGCHLD may stand for the ends of several processes.
        while self.exit_code is None or self._adopts:
            try:
                pid, status = os.waitpid(-1 if self._adopts else self.pid, os.WNOHANG)
            except ChildProcessError:  # no child is left
                return
            if pid == 0:
                return
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = OF_SIGNALS - code if code < 0 else code

    @property
    def leaves_others(self) -> bool:
        """Whether a process of the group still exists; False if the command leads no group."""
        if not self.own_group:
            return False
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # a process of another user exists
        return True

    def send(self, number: int) -> bool:
        """Send a signal to the group, or to the command alone if it leads no group.

        Returns:
            False if this is not permitted: the command runs as another user, as under sudo.
        """
        try:
            if self.own_group:
                os.killpg(self.pid, number)
            elif self.exit_code is None:
                os.kill(self.pid, number)
        except PermissionError:
            return False
        except ProcessLookupError:
            pass
        return True

    def end(self) -> bool:
        """Send SIGTERM, and SIGCONT because a stopped process would not receive it; return as `send` does."""
        allowed = self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        return allowed


class Signals:
    """Receives signals for the command, and wake-ups by other threads, inside a ``with`` block.

    They are read from a pipe into which the interpreter writes them, whichever thread of this process
    the system interrupted. So a signal never raises an exception in our code, and one that arrives just before
    a wait is not missed: its byte is in the pipe and ends the wait at once. A signal that was ignored when this
    process started, as under nohup, stays ignored.
    """

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        # Before the handlers: a signal that met a handler and no pipe would be lost.
        self._wakes = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        # The interpreter writes only signals that have a handler, so each gets one that does nothing. SIGCHLD gets it
        # even if it was ignored: the system itself would reap the command then, and its exit code would be lost.
        self._before = {
            number: signal.signal(number, lambda *_: None)
            for number in (*ENDING, *OTHERS, signal.SIGCHLD)
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakes)
        # The pipe is never closed: a thread that reports a loss may be about to call `wake`, and would write into
        # whatever file has got the number of the descriptor since.

    def wake(self) -> None:
        """Make `next` return now, or at once when it is called; may be called on any thread."""
        with suppress(BlockingIOError):  # the pipe is full: `next` returns anyway
            os.write(self._write_end, bytes([WAKE]))

    def next(self, seconds: float) -> list[int]:
        """Wait for a signal or a wake-up, and return the signals for the command that have arrived.

        Wake-ups and SIGCHLD, the end of a child, end the wait too but are not returned.

        Args:
            seconds: Longest wait.
        """
        select.select([self._read_end], [], [], max(0.0, seconds))
        try:
            arrived = os.read(self._read_end, 4096)
        except BlockingIOError:
            arrived = b""
        return [number for number in arrived if number in ENDING or number in OTHERS]


class EndReason(Enum):
    """Why the command was asked to end, in the words of messages."""

    LOST = "the lock was lost"
    IN_DANGER = "the lock could not be renewed"
    DEADLINE = "it ran beyond its deadline"
    ASKED = "a signal asked for it"


def say(message: str) -> None:
    """Print a message on standard error: standard output belongs to the command."""
    context = click.get_current_context(silent=True)  # None on a thread that logs
    name = "run" if context is None else context.info_name
    with suppress(OSError):  # its reader has gone
        # Not click.echo: while a line shows a wait, rich has replaced sys.stderr by a stream that clears the line
        # first, and click.echo would write around it.
        print(f"pynamodb-mutex {name}: {message}", file=sys.stderr, flush=True)


class Supervisor:
    """Waits for the command, and ends it when its lock is lost, its time is up or a signal asks for it.

    The command is asked to end by SIGTERM and killed after the grace. If the lock cannot be renewed, SIGTERM is sent
    before the lease expires, and SIGKILL when it does: from then on another may hold the lock.

    Attributes:
        reason: Why the command was asked to end: the first reason, or LOST if the lock was lost later; None if it
            was not asked.
    """

    def __init__(
        self,
        child: Child,
        mutex: HandleOfOne,
        signals: Signals,
        watchdog: Watchdog,
        *,
        lease: float,
        grace: float,
        deadline: float,
    ) -> None:
        """Begin to supervise.

        Args:
            child: The command.
            mutex: Lock of the command, held.
            signals: Receives the signals.
            watchdog: Ends the command if this process cannot.
            lease: Lease of the lock in seconds.
            grace: Seconds from SIGTERM to SIGKILL.
            deadline: Seconds that the command may run, or infinity.
        """
        self.reason: EndReason | None = None
        self._child = child
        self._mutex = mutex
        self._signals = signals
        self._watchdog = watchdog
        self._grace = grace
        # Left of the lease when the command is asked to end: its whole grace if possible. But a third of the lease at
        # most: a lock is renewed when two thirds are left, and a renewal that fails needs time to be retried.
        self._margin = min(grace, lease / 3)
        self._may_run = deadline
        self._deadline = local_clock().now() + deadline
        self._asked = False
        self._kill_at = math.inf
        self._killed_at = math.inf
        self._lost = False

    def wait(self) -> int:
        """Wait until the command has ended, and its whole group if it was asked to end; return the exit code."""
        while True:
            self._child.poll()
            code = self._child.exit_code
            if code is not None and self._group_has_ended():
                return code
            # before the sleep: if this process is stopped or killed in it, the watchdog acts at this deadline
            self._watchdog.extend(self._mutex.deadline)
            for number in self._signals.next(self._next_check() - local_clock().now()):
                self._forward(number)
            self._check_lock()
            now = local_clock().now()
            if now >= self._deadline:
                self._deadline = math.inf
                self._end(EndReason.DEADLINE, f"the command has run for {self._may_run:g} s")
            if now >= self._kill_at:
                self._kill_at, self._killed_at = math.inf, now
                if self._child.send(signal.SIGKILL):
                    say("the command did not end in time: killing it")

    def _group_has_ended(self) -> bool:
        """Return whether nothing of the group is to be awaited any more.

        If the command ends by itself, processes that it leaves in the background run on without the lock. If it was
        asked to end, the lock is kept until all of them have ended: they were part of what the lock protects.
        """
        if not (self._asked and self._child.leaves_others):
            return True
        return local_clock().now() >= self._killed_at + _KILL_TAKES

    def _next_check(self) -> float:
        """Return the local time of the next check, if no signal arrives before."""
        now = local_clock().now()
        if self._child.exit_code is not None:
            return now + _GROUP_POLL
        ahead = [now + _LONGEST_SLEEP, self._kill_at, self._deadline]
        if not self._lost:
            ahead.append(self._mutex.deadline - (0.0 if self._asked else self._margin))
        return min(ahead)

    def _forward(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and not self._child.own_group:
            # Typed, these go from the terminal to the command itself, which would have them twice. Nor does the grace
            # begin: a program such as an interpreter or editor may go on after Ctrl-C.
            return
        self._child.send(number)
        if number in ENDING:
            self._child.send(signal.SIGCONT)  # a stopped process would not receive it
            self.reason = self.reason or EndReason.ASKED
            self._expect_end()

    def _expect_end(self) -> None:
        """Begin the grace; if it has begun already, this does not prolong it."""
        self._asked = True
        self._kill_at = min(self._kill_at, local_clock().now() + self._grace)

    def _check_lock(self) -> None:
        loss = self._mutex.loss
        if loss is not None and not self._lost:
            # The lease has ended, so another may hold the lock from now on. A command that was asked to end before has
            # had its notice and is killed now. Other losses, such as a claim broken by force, come at any moment:
            # the command then has what is left of its grace. Decided here, because `_end` sets `_asked`.
            at_once = self._asked and loss in (Loss.EXPIRED, Loss.UNREACHABLE)
            self._lost = True
            self._end(EndReason.LOST, f"the lock was lost: {self._mutex._last('loss').why}")
            if at_once:
                self._kill_at = local_clock().now()
        elif loss is None and not self._asked and self._mutex.remaining <= self._margin:
            self._end(EndReason.IN_DANGER, "the lock could not be renewed and is about to expire")

    def _end(self, reason: EndReason, message: str) -> None:
        """Ask the command to end, unless it was asked before; for a loss of the lock do so again, and report it."""
        if self.reason is not None and reason is not EndReason.LOST:
            return
        self.reason = reason
        # Before the message, which waits as long as the reader of standard error does not read: the command must not
        # work without its lock meanwhile.
        allowed = self._child.end()
        self._expect_end()
        say(f"{message}: ending the command")
        if not allowed:
            say("the command runs as another user and cannot be signalled: waiting for its end")
