"""The overseer waits for a child process, passes signals on to it, and ends it when it must not go on."""

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
"""Exit code: the command is there, but cannot be executed."""

NOT_FOUND = 127
"""Exit code: there is no such command."""

OF_SIGNALS = 128
"""Exit codes above it: ended by that signal."""

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGQUIT") if hasattr(signal, name)
)
"""Signals that ask a program to end."""

OTHERS = tuple(
    getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
"""Signals that programs use as they like."""

WAKE = 0

_LONGEST_SLEEP = 1.0
"""Seconds: a wait does not count a suspension of the machine, leases do."""

_LOOKS = 0.05
"""Seconds between two looks at what the command left behind."""

_DYING = 1.0
"""Seconds in which what was killed is gone; later only where orphans are waited for by nobody."""


class NoCommandError(click.ClickException):
    """The command cannot be executed."""

    exit_code = CANNOT_RUN


class NotFoundError(NoCommandError):
    """There is no such command."""

    exit_code = NOT_FOUND


def find_command(name: str, environment: Mapping[str, str]) -> str:
    """Return the path of a command.

    Raises:
        NoCommandError: If there is none, or it cannot be executed.
    """
    path = environment.get("PATH", os.defpath)
    found = shutil.which(name, path=path)
    if found is not None:
        return found
    places = [""] if os.path.dirname(name) else path.split(os.pathsep)  # noqa: PTH120 - "./x" too
    if name and any(Path(place, name).exists() for place in places):
        raise NoCommandError(f"{escaped(name)}: cannot be executed")
    raise NotFoundError(f"{escaped(name)}: command not found")


def has_terminal() -> bool:
    """Whether this process has a controlling terminal, as when a person started it."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Child:
    """The command's process, and whatever that starts.

    Without a terminal it leads a process group of its own, which gets the signals. With one it stays
    in this process's group, or it could not read from the terminal, nor be stopped by it: then the
    signals go to the command alone.

    Attributes:
        exit_code: None while it runs; 128 and the number of the signal that ended it.
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
        """Start the command, with all that this process inherited.

        Args:
            path: Of the executable.
            arguments: Its name first.
            environment: All of it.
            own_group: Whether it leads a process group.
            adopts: Whether this process is given others' orphans, to wait for them too: the first of
                a container is.

        Raises:
            NoCommandError: If it cannot be started.
        """
        group: dict[str, Any] = {"setpgroup": 0} if own_group else {}
        try:
            # what Python ignores at its start, a program expects as it is by default
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

    def look(self) -> None:
        """Take note of who has ended."""
        while self.exit_code is None or self._adopts:
            try:
                pid, status = os.waitpid(-1 if self._adopts else self.pid, os.WNOHANG)
            except ChildProcessError:  # there is none left
                return
            if pid == 0:
                return
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = OF_SIGNALS - code if code < 0 else code

    @property
    def leaves_others(self) -> bool:
        """Whether somebody of its group is still there."""
        if not self.own_group:
            return False
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # there is somebody, of another user
        return True

    def send(self, number: int) -> bool:
        """Send a signal to the group, or to the command if it has none of its own.

        Returns:
            Whether it may be sent: not to a command that runs as another user, such as sudo.
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
        """Ask it to end, also if it is stopped; see `send`."""
        allowed = self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        return allowed


class Signals:
    """Signals meant for the command, and news of other threads, inside a block.

    They are read from a pipe: the interpreter writes them there whichever thread the system gave them
    to, and nothing is interrupted by them. One that was ignored when this process started, as by
    nohup, stays so.
    """

    def __enter__(self) -> Self:
        self._news, self._told = os.pipe()
        os.set_blocking(self._news, False)
        os.set_blocking(self._told, False)
        self._wakes = signal.set_wakeup_fd(self._told, warn_on_full_buffer=False)
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
        # a thread may be about to call `wake`: the pipe's ends are left to the end of the process

    def wake(self) -> None:
        """Let `next` return; on any thread."""
        with suppress(BlockingIOError):  # then it wakes without this
            os.write(self._told, bytes([WAKE]))

    def next(self, seconds: float) -> list[int]:
        """Return the signals that came, after waiting for the first of them at most so long.

        Those of no meaning for the command are left out: they only end the wait.
        """
        select.select([self._news], [], [], max(0.0, seconds))
        try:
            came = os.read(self._news, 4096)
        except BlockingIOError:
            came = b""
        return [number for number in came if number in ENDING or number in OTHERS]


class Why(Enum):
    """Why the command was ended, if it did not end by itself."""

    LOST = "the lock was lost"
    IN_DANGER = "the lock could not be renewed"
    DEADLINE = "its time was up"
    ASKED = "a signal asked for it"


def say(message: str) -> None:
    """Print what happened, for people: on standard error, for standard output is the command's."""
    with suppress(OSError):  # nobody reads it any more
        # click would find the stream below the one by which a line that shows a wait makes room
        print(f"pynamodb-mutex run: {message}", file=sys.stderr, flush=True)


class Overseer:
    """Waits for the command, and ends it when it must not go on.

    Attributes:
        why: Why it was ended: the first reason, unless the lock was lost.
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
        """Begin to watch.

        Args:
            child: The command.
            mutex: Its lock, held.
            signals: Those that come for it.
            watchdog: Who goes on if this process does not.
            lease: The lock's, in seconds.
            grace: Seconds from SIGTERM to SIGKILL.
            deadline: Seconds that the command may run; infinity for as long as it likes.
        """
        self.why: Why | None = None
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
        """Wait until the command has ended and, if that was asked for, all of its group; return its exit code."""
        while True:
            self._child.look()
            code = self._child.exit_code
            if code is not None and self._rest_is_over():
                return code
            self._watchdog.extend(self._mutex.deadline)
            for number in self._signals.next(self._next_look() - local_clock().now()):
                self._pass_on(number)
            self._look_at_lock()
            now = local_clock().now()
            if now >= self._deadline:
                self._deadline = math.inf
                self._end(Why.DEADLINE, f"the command has run for {self._may_run:g} s")
            if now >= self._kill_at:
                self._kill_at, self._killed_at = math.inf, now
                if self._child.send(signal.SIGKILL):
                    say("the command has not ended in time: killing it")

    def _rest_is_over(self) -> bool:
        if not (self._asked and self._child.leaves_others):
            return True
        return local_clock().now() >= self._killed_at + _DYING

    def _next_look(self) -> float:
        """Return the local time at which to look again, if nothing happens before."""
        now = local_clock().now()
        if self._child.exit_code is not None:
            return now + _LOOKS
        ahead = [now + _LONGEST_SLEEP, self._kill_at, self._deadline]
        if not self._lost:
            ahead.append(self._mutex.deadline - (0.0 if self._asked else self._margin))
        return min(ahead)

    def _pass_on(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGQUIT) and not self._child.own_group:
            return  # what is typed at a terminal comes to the command from there
        self._child.send(number)
        if number in ENDING:
            self._child.send(signal.SIGCONT)
            self.why = self.why or Why.ASKED
            self._expect_end()

    def _expect_end(self) -> None:
        self._asked = True
        self._kill_at = min(self._kill_at, local_clock().now() + self._grace)

    def _look_at_lock(self) -> None:
        loss = self._mutex.loss
        if loss is not None and not self._lost:
            # with notice the command was to be over by now: from here on another may have the lock
            at_once = self._asked and loss in (Loss.EXPIRED, Loss.UNREACHABLE)
            self._lost = True
            self._end(Why.LOST, f"the lock was lost: {loss.value}")
            if at_once:
                self._kill_at = local_clock().now()
        elif loss is None and not self._asked and self._mutex.remaining <= self._margin:
            self._end(Why.IN_DANGER, "the lock could not be renewed and is about to end")

    def _end(self, why: Why, message: str) -> None:
        """Ask the command to end, unless it was asked to for another reason that is good enough."""
        if self.why is not None and why is not Why.LOST:
            return
        self.why = why
        # first of all: who reads standard error may keep us waiting
        allowed = self._child.end()
        self._expect_end()
        say(f"{message}: ending the command")
        if not allowed:
            say("it runs as another user and cannot be ended: waiting for it")
