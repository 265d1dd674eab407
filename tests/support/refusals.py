"""A system that refuses threads to the library, as one does at a limit or without memory."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

OURS = "pynamodb-mutex"


class Refusals:
    """Refuses the library's threads.

    Attributes:
        left: How many are still refused.
        only: The end of the name of those that are refused; of all, by default.
        error: What is raised.
        refused: The names of those that were.
        started: Called in place of the start of a thread that is not refused.
    """

    def __init__(self, start: Callable[[threading.Thread], None]) -> None:
        self.left: float = 0
        self.only = ""
        self.error: BaseException = RuntimeError("can't start new thread")
        self.refused: list[str] = []
        self.started = start

    def all(self, only: str = "") -> None:
        """Refuse all, or all of some kind, from now on."""
        self.left, self.only = math.inf, only

    def none(self) -> None:
        """Refuse none any more."""
        self.left = 0

    def start(self, thread: threading.Thread) -> None:
        name = thread.name
        if self.left > 0 and name.startswith(OURS) and name.endswith(self.only):
            self.left -= 1
            self.refused.append(name)
            raise self.error
        self.started(thread)


@contextmanager
def refusing() -> Iterator[Refusals]:
    """Let a test refuse threads inside the block."""
    refusals = Refusals(threading.Thread.start)
    with patch.object(threading.Thread, "start", lambda thread: refusals.start(thread)):  # noqa: PLW0108 - a method would not get the thread
        yield refusals
