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
from typing import Any, NamedTuple

Event = dict[str, Any]

SECOND = 1_000_000_000


_ENDS = {"stop_client": "resume", "stand_still": "resume", "partition": "heal"}
"""By which event each outage of a client ends."""


class Outage(NamedTuple):
    """A time in which a client did nothing, or nothing that reached the store.

    Attributes:
        deed: What the fault injector did to it.
    """

    since: int
    until: int
    client: str
    deed: str


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


def outages(events: list[Event]) -> list[Outage]:
    """Return when each client was stopped, frozen or cut off, in the order of the ends."""
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
    return sorted(events, key=lambda event: (event["t"], event.get("seq", 0)))
