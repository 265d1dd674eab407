"""A system that refuses threads to the library, as one does at a limit or without memory."""

import math
import threading
from contextlib import contextmanager
from unittest.mock import patch


class Refusals:
    """Refuses the library's threads.

    Attributes:
        left: How many are still refused, of those whose names end with `only`.
        error: What is raised.
        refused: The names of those that were refused.
        started: Called in place of the start of a thread that is not refused.
    """

    def __init__(self, start):
        self.left, self.only, self.refused, self.started = 0, "", [], start
        self.error = RuntimeError("can't start new thread")

    def all(self, only=""):
        """Refuse all, or all of some kind, from now on."""
        self.left, self.only = math.inf, only

    def none(self):
        """Refuse none any more."""
        self.left = 0

    def start(self, thread):
        is_ours = thread.name.startswith("pynamodb-mutex") and thread.name.endswith(self.only)
        if self.left > 0 and is_ours:
            self.left -= 1
            self.refused.append(thread.name)
            raise self.error
        self.started(thread)


@contextmanager
def refusing():
    """Let a test refuse threads inside the block."""
    refusals = Refusals(threading.Thread.start)
    with patch.object(threading.Thread, "start", lambda thread: refusals.start(thread)):  # noqa: PLW0108 - a method would not get the thread
        yield refusals
