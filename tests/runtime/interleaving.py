"""Threads of which one runs at a time, from one turn to the next: which one, a test decides."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


class Task:
    """One of the threads."""

    def __init__(self, turns: Turns, run: Callable[[], object], name: str) -> None:
        self.name = name
        self.go = threading.Semaphore(0)
        self.done = False
        self.error: BaseException | None = None
        self._turns = turns
        self._run = run
        # one that hangs when a test fails must not keep the process
        threading.Thread(target=self._thread, daemon=True).start()

    def _thread(self) -> None:
        self._turns.mine.task = self
        self.go.acquire()
        try:
            self._run()
        except BaseException as error:
            self.error = error
        self.done = True
        self._turns.back.release()


class Turns:
    """Lets tasks run, one at a time.

    Args:
        seed: Of what is chosen.
        stays: How likely the one that ran goes on. What goes wrong needs few changes as a rule, but at
            the wrong moments.
    """

    def __init__(self, seed: int, stays: float) -> None:
        self.mine = threading.local()
        self.back = threading.Semaphore(0)
        self.tasks: list[Task] = []
        self._random = random.Random(seed)
        self._stays = stays

    def spawn(self, run: Callable[[], object], name: str = "") -> None:
        """Add a thread; it runs when it is its turn."""
        self.tasks.append(Task(self, run, name or getattr(run, "__name__", repr(run))))

    def run(self) -> None:
        """Run all to their ends; raise what one of them raised."""
        task: Task | None = None
        while left := [task for task in self.tasks if not task.done]:
            if task not in left or self._random.random() > self._stays:
                task = self._random.choice(left)
            task.go.release()
            assert self.back.acquire(timeout=30), "one waits for something else than its turn"
        for task in self.tasks:
            if task.error is not None:
                raise task.error

    def turn(self) -> None:
        """Let others run. Nothing, on a thread that is not one of these."""
        task: Task | None = getattr(self.mine, "task", None)
        if task is not None:
            self.back.release()
            task.go.acquire()
