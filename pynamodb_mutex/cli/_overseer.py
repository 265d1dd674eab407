"""Watching over a command while it runs under a lock: when to end it, and how."""

from __future__ import annotations

import math
import signal
import sys
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING

from pynamodb_mutex._protocol.claim import Loss
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex.cli._signals import ENDING

if TYPE_CHECKING:
    from pynamodb_mutex.cli._child import Child
    from pynamodb_mutex.cli._signals import Signals
    from pynamodb_mutex.cli._watchdog import Watchdog
    from pynamodb_mutex.mutex import Mutex

LONGEST_SLEEP = 1.0
"""Seconds: a wait does not count a suspension of the machine, leases do."""

_LOOKS = 0.05
"""Seconds between two looks at what the command left behind."""

_DYING = 1.0
"""Seconds in which what was killed is gone; later only where orphans are waited for by nobody."""


class Why(Enum):
    """Why the command was ended, if it did not end by itself."""

    LOST = "the lock was lost"
    IN_DANGER = "the lock could not be renewed"
    DEADLINE = "its time was up"
    ASKED = "a signal asked for it"


def say(message: str) -> None:
    """Tell people what happened: on standard error, for standard output is the command's."""
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
        """Wait until the command has ended and, if it was told to, all of its group; return its exit code."""
        while True:
            self._child.look()
            code = self._child.exit_code
            if code is not None and self._rest_is_over():
                return code
            self._watchdog.tell(self._mutex.deadline)
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
        ahead = [now + LONGEST_SLEEP, self._kill_at, self._deadline]
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

    def _end(self, why: Why, told: str) -> None:
        """Ask the command to end, unless it was asked to for another reason that is good enough."""
        if self.why is not None and why is not Why.LOST:
            return
        self.why = why
        # first of all: who reads standard error may keep us waiting
        allowed = self._child.end()
        self._expect_end()
        say(f"{told}: ending the command")
        if not allowed:
            say("it runs as another user and cannot be ended: waiting for it")
