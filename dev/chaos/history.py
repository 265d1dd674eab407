"""The history of a run as JSON lines: one file for each process, one event in each line.

Every event has ``t``, ``proc`` and ``op``. ``t`` is a time in nanoseconds of a clock that all processes of a host share
and that the harness never falsifies. The file of the proxies has each request in the order in which the store applied
it, with the rows after it. These are the facts by which `checker` judges everything else.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]

SECOND = 1_000_000_000


_ENDS = {"stop_client": "resume", "stand_still": "resume", "partition": "heal"}
"""The event that ends each kind of outage of a client."""


class Outage(NamedTuple):
    """A time in which a client stood still, or none of its requests reached the store.

    Attributes:
        since: Its beginning, in nanoseconds.
        until: Its end, in nanoseconds.
        client: Name of the client.
        deed: The event by which the fault injector caused it.
    """

    since: int
    until: int
    client: str
    deed: str


def now() -> int:
    """Return the time that all processes share, even if their other clocks are falsified, in nanoseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class Recorder:
    """Writes the events of one process to a file; each at once, because the process may be killed at any time."""

    def __init__(self, path: Path, proc: str) -> None:
        self.path, self.proc = path, proc
        self._file = path.open("a", buffering=1)
        self._lock = threading.Lock()

    def __call__(
        self, op: str, *, t: int | None = None, proc: str | None = None, **more: Any
    ) -> int:
        """Write an event, with the present time unless another is given; return its time."""
        with self._lock:
            # read inside the lock, so that a file is in the order of time
            at = now() if t is None else t
            event = {"t": at, "proc": proc or self.proc, "op": op, **more}
            self._file.write(json.dumps(event, default=str) + "\n")
        return at

    def close(self) -> None:
        self._file.close()


def read(folder: Path) -> list[Event]:
    """Return all events of a run, in the order of time; those of the store in the order of application."""
    events: list[Event] = []
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:  # the last line of a process that was killed while it wrote
                continue
    return in_order(events)


def outages(events: list[Event]) -> list[Outage]:
    """Return the times in which clients were stopped, frozen or cut off, in the order of their ends."""
    begun: dict[tuple[str, str], Outage] = {}
    found = []
    for event in events:
        if event["op"] in _ENDS:
            key = event["client"], _ENDS[event["op"]]
            begun[key] = Outage(event["t"], 0, event["client"], event["op"])
        elif event["op"] in _ENDS.values():
            outage = begun.pop((event["client"], event["op"]), None)
            if outage is not None:
                found.append(outage._replace(until=event["t"]))
    return found


def in_order(events: list[Event]) -> list[Event]:
    """Return events in the order of time; requests of the same time in the order of application."""
    return sorted(events, key=lambda event: (event["t"], event.get("seq", 0)))
