"""A worker of the demo: takes the lock again and again, and says what it does.

Started by the director as ``python -m pynamodb_mutex.demo.worker NAME SEED LEASE``. It waits for a
line with the end of the show, and ends earlier if the director does. It knows nothing of the scenes
that are played with it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING

from pynamodb.signals import pre_dynamodb_send

from pynamodb_mutex import Mutex, MutexLostError, MutexTimeoutError
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex.testing.supervisor import when_parent_ends

if TYPE_CHECKING:
    from typing import Any

KEY = "the-press"
"""The lock for which all workers compete."""

SHORTEST, LONGEST = 0.1, 0.8
"""Seconds of a section."""

PAUSE = 1.5
"""Seconds, at most, between two sections of one worker."""


class Worker:
    """Counts the sections of all workers in the lock's payload: reads a number, writes one more."""

    def __init__(self, name: str, seed: int, lease: float) -> None:
        self._name = name
        self._lease = lease
        self._random = random.Random(f"{seed} {name}")  # noqa: S311 - not a secret
        self._mutex = self._new_mutex(0.0)
        self._on_its_way = 0.0
        pre_dynamodb_send.connect(self._sends)

    def say(self, what: str, **details: Any) -> None:
        """Tell the director one event."""
        told = {"t": time.monotonic_ns(), "who": self._name, "what": what, **details}
        # one write of less than a pipe's atom: a worker that is killed leaves no half line
        os.write(1, json.dumps(told).encode() + b"\n")

    def compete(self, end: int) -> None:
        """Take the lock and give it back until the show is over."""
        while (left := self._rest(end)) > 0:
            self._mutex = self._new_mutex(left)
            self.say("asked")
            try:
                with self._mutex:
                    self._section(self._random.uniform(SHORTEST, LONGEST))
            except MutexTimeoutError:
                self.say("gave_up")
            except MutexLostError as error:
                self.say("ousted", loss=error.loss.value)

    def _rest(self, end: int) -> float:
        """Do something else for a while, and return the seconds left until the end of the show."""
        time.sleep(self._random.uniform(0, PAUSE))
        return (end - time.monotonic_ns()) / 1e9

    def _new_mutex(self, timeout: float) -> Mutex:
        return Mutex.for_key(
            KEY,
            lease=self._lease,
            timeout=timeout,
            owner=self._name,
            on_lost=self._lost,
            poll=(0.05, 0.5),  # sections are short, and a show is no place for long waits
        )

    def _section(self, seconds: float) -> None:
        mutex = self._mutex
        self.say(
            "entered",
            fence=mutex.fencing_token,
            abandoned_by=mutex.abandoned_by,
            seconds=seconds,
            until=self._until(),
        )
        count = (mutex.data or 0) + 1
        time.sleep(seconds / 2)
        self._on_its_way = seconds / 2
        try:
            mutex.save_data(count)
        except MutexLostError as error:
            self.say("refused", loss=error.loss.value)
            raise
        self.say("left", until=self._until())

    def _until(self) -> int:
        """Return when this worker stops, or stopped, to believe that it holds the lock."""
        left = self._mutex._current("demo").ends - local_clock().now()
        return time.monotonic_ns() + int(left * 1e9)

    def _sends(self, _: object, *, operation_name: str, **__: object) -> None:
        """Tell of a request; hold a guarded write up, after all checks here, before it is sent.

        This stretches the moment at which it hurts most to be stopped, so that the director can
        hit it. Runs on whatever thread sends, and renewals go on.
        """
        self.say("read" if operation_name == "GetItem" else "write")
        if self._on_its_way and threading.current_thread() is threading.main_thread():
            self.say("sending", until=self._until())
            time.sleep(self._on_its_way)
            self._on_its_way = 0.0
            self.say("sent", until=self._until())

    def _lost(self, mutex: Mutex) -> None:
        self.say("lost", loss=mutex.loss.value if mutex.loss else None)


def main() -> None:
    """Run one worker."""
    name, seed, lease = sys.argv[1:]
    worker = Worker(name, int(seed), float(lease))
    worker.say("ready")
    end = int(sys.stdin.readline())
    when_parent_ends(lambda: os._exit(1))
    worker.compete(end)


if __name__ == "__main__":
    main()
