"""The history of a run as JSON lines: one file for each thread of a client, one event in each line.

Every event has ``t``, ``proc`` and ``op``. ``t`` is a time in nanoseconds of a clock that all processes of a host share
and that the harness never falsifies. A call has two events: its ``phase`` is ``invoke`` first, and then ``ok``, ``fail``
(it had no effect) or ``info`` (nobody knows).
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

Event = dict[str, Any]

SECOND = 1_000_000_000


def now() -> int:
    """Return the time that all processes share, even if their other clocks are falsified, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class Recorder:
    """Writes the events of one process to a file; each at once, because the process may be killed at any time."""

    def __init__(self, path: Path, proc: str) -> None:
        self.path, self.proc = path, proc
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def __call__(self, op: str, *, proc: str | None = None, **more: Any) -> None:
        """Write an event."""
        with self._lock:
            # the time is read inside the lock, so that a file is in the order of time
            event = {"t": now(), "proc": proc or self.proc, "op": op, **more}
            self._file.write(json.dumps(event, default=str) + "\n")

    def close(self) -> None:
        self._file.close()


def read(folder: Path) -> list[Event]:
    """Return all events of a run, in the order of time."""
    events: list[Event] = []
    for path in folder.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:  # the last line of a process that was killed while it wrote
                continue
    return sorted(events, key=lambda event: event["t"])
