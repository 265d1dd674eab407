"""Signals as they come, in the order in which they came, without a handler that does anything."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

ENDING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGQUIT") if hasattr(signal, name)
)
"""Signals that ask a program to end."""

OTHERS = tuple(
    getattr(signal, name) for name in ("SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
"""Signals that programs use as they like."""

WAKE = 0


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
