"""A child process, the signals forwarded to it, and the supervisor that ends it when its lock is lost."""

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

from pynamodb_mutex._protocol.claim import Loss
from pynamodb_mutex._protocol.messages import escaped
from pynamodb_mutex._runtime.clock import local_clock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Self

    from pynamodb_mutex.cli._watchdog import Watchdog
    from pynamodb_mutex.mutex import Mutex

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
"""Signals to which programs give a meaning of their own."""

WAKE = 0
"""Written to the pipe of signals to end a wait; no signal has this number."""

_LONGEST_SLEEP = 1.0
"""Seconds between two checks of the lock: while the machine is suspended a lease runs on, a system wait does not."""

_GROUP_POLL = 0.05
"""Seconds between two polls of the process group after the command has ended."""

_KILL_TAKES = 1.0
"""Seconds after SIGKILL for the group to disappear. It stays longer only where no process reaps orphans."""


class NoCommandError(click.ClickException):
    """The command cannot be executed."""

    exit_code = CANNOT_RUN


class NotFoundError(NoCommandError):
    """The command does not exist."""

    exit_code = NOT_FOUND


def find_command(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a command.

    Raises:
        NoCommandError: If it does not exist or cannot be executed.
    """
    path = environment.get("PATH", os.defpath)
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    # Path.parent is "." for "x" and for "./x", which is not searched on the PATH
    places = [""] if os.path.dirname(name) else path.split(os.pathsep)  # noqa: PTH120 - as above
    if name and any(Path(place, name).exists() for place in places):
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
    """The process of the command, and the processes that it starts.

    Without a terminal the command leads a process group of its own, and signals go to the whole group.
    With a terminal it stays in the group of this process: in another group it could neither read from
    the terminal nor be stopped from there. Signals then go to the command alone.

    Attributes:
        exit_code: None while the command runs; 128 plus the number of a signal that ended it.
    """

    def __init__(
        self,
        path: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        own_group: bool,
        adopts: bool,
    ) -> None:
        """Start the command.

        Args:
            path: Path of the executable.
            arguments: Arguments, the name first.
            environment: The whole environment.
            own_group: Whether the command leads a process group.
            adopts: Whether orphans become children of this process, which then reaps them: true for
                the first process of a container.

        Raises:
            NoCommandError: If the command cannot be started.
        """
        group: dict[str, Any] = {"setpgroup": 0} if own_group else {}
        try:
            # Python ignores these signals from its start; a program expects the default action
            self.pid = os.posix_spawn(
                path,
                list(arguments),
                environment,
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
                **group,
            )
        except OSError as error:
            kind = NotFoundError if isinstance(error, FileNotFoundError) else NoCommandError
            raise kind(f"{escaped(arguments[0])}: {error.strerror}") from error
        self.own_group = own_group
        self.exit_code: int | None = None
        self._adopts = adopts

    def poll(self) -> None:
        """Reap processes that have ended, and set `exit_code` if the command has."""
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
        """Whether a process of the group still exists."""
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
        """Send SIGTERM, and SIGCONT in case the command is stopped; return as `send` does."""
        allowed = self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        return allowed


class Signals:
    """Signals for the command, and wake-ups by other threads, received inside a ``with`` block.

    They are read from a pipe into which the interpreter writes them, whichever thread of this process
    the system interrupted. So no signal interrupts code of ours. A signal that was ignored when this
    process started, as under nohup, stays ignored.
    """

    def __enter__(self) -> Self:
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        self._wakes = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
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
        # the pipe stays open until the process ends: a thread may be about to call `wake`

    def wake(self) -> None:
        """Make `next` return; may be called on any thread."""
        with suppress(BlockingIOError):  # the pipe is full: `next` returns anyway
            os.write(self._write_end, bytes([WAKE]))

    def next(self, seconds: float) -> list[int]:
        """Wait at most so long for a signal or a wake-up, and return the signals that have arrived.

        Wake-ups and SIGCHLD end the wait and are not returned.
        """
        select.select([self._read_end], [], [], max(0.0, seconds))
        try:
            arrived = os.read(self._read_end, 4096)
        except BlockingIOError:
            arrived = b""
        return [number for number in arrived if number in ENDING or number in OTHERS]


class EndReason(Enum):
    """Why the command was asked to end."""

    LOST = "the lock was lost"
    IN_DANGER = "the lock could not be renewed"
    DEADLINE = "it ran beyond its deadline"
    ASKED = "a signal asked for it"


def say(message: str) -> None:
    """Print a message on standard error: standard output belongs to the command."""
    with suppress(OSError):  # its reader has gone
        # not click.echo: it would bypass the stream by which rich clears the line that shows a wait
        print(f"pynamodb-mutex run: {message}", file=sys.stderr, flush=True)


class Supervisor:
    """Waits for the command, and ends it when its lock is lost, its time is up or a signal asks for it.

    Attributes:
        reason: Why the command was asked to end: the first reason, or LOST if the lock was lost later.
    """

    def __init__(
        self,
        child: Child,
        mutex: Mutex,
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
            mutex: Its lock, held.
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
            return  # the terminal sends these to the command itself
        self._child.send(number)
        if number in ENDING:
            self._child.send(signal.SIGCONT)
            self.reason = self.reason or EndReason.ASKED
            self._expect_end()

    def _expect_end(self) -> None:
        self._asked = True
        self._kill_at = min(self._kill_at, local_clock().now() + self._grace)

    def _check_lock(self) -> None:
        loss = self._mutex.loss
        if loss is not None and not self._lost:
            # the command had its notice; from the end of the lease on another may hold the lock
            at_once = self._asked and loss in (Loss.EXPIRED, Loss.UNREACHABLE)
            self._lost = True
            self._end(EndReason.LOST, f"the lock was lost: {loss.value}")
            if at_once:
                self._kill_at = local_clock().now()
        elif loss is None and not self._asked and self._mutex.remaining <= self._margin:
            self._end(EndReason.IN_DANGER, "the lock could not be renewed and is about to expire")

    def _end(self, reason: EndReason, message: str) -> None:
        """Ask the command to end, unless it has been asked before; a loss of the lock is always reported."""
        if self.reason is not None and reason is not EndReason.LOST:
            return
        self.reason = reason
        # before the message: the reader of standard error may block it
        allowed = self._child.end()
        self._expect_end()
        say(f"{message}: ending the command")
        if not allowed:
            say("the command runs as another user and cannot be signalled: waiting for its end")
