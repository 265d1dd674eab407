"""What happened, as JSON lines: one file for each process, one event a line.

Every event has ``t``, nanoseconds of a clock that all processes of one host share and that the harness
never falsifies, ``proc`` and ``op``. The proxies' own file has each request in the order in which the
store applied it, with the rows as they then stood: that is the ground truth.
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
    """The time that all processes share, also those whose other clocks are falsified."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class Recorder:
    """Writes events to a file, each at once: its process may be killed at any time."""

    def __init__(self, path: Path, proc: str) -> None:
        self.path, self.proc = path, proc
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def __call__(
        self, op: str, *, t: int | None = None, proc: str | None = None, **more: Any
    ) -> int:
        """Write an event; return its time."""
        with self._lock:
            at = now() if t is None else t
            event = {"t": at, "proc": proc or self.proc, "op": op, **more}
            self._file.write(json.dumps(event, default=str) + "\n")
        return at

    def close(self) -> None:
        self._file.close()


def read(folder: Path) -> list[Event]:
    """Read all events of a run, in the order of time; those of the store in its order."""
    events: list[Event] = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:  # the last line of one that was killed
                continue
    return in_order(events)


def in_order(events: list[Event]) -> list[Event]:
    return sorted(events, key=lambda event: (event["t"], event.get("seq", 0)))
