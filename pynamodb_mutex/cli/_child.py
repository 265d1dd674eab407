"""The command that is run: found, started, signalled, and waited for."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pynamodb_mutex._protocol.messages import escaped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CANNOT_RUN = 126
"""Exit code: the command is there, but cannot be executed."""

NOT_FOUND = 127
"""Exit code: there is no such command."""

OF_SIGNALS = 128
"""Exit codes above it: ended by that signal."""


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
