"""The history of a run as JSON lines: one file for each thread of a client, one event in each line.

Every event has ``t``, ``proc`` and ``op``. ``t`` is a time in nanoseconds of a clock that all processes of a host
share. A call has two events: its ``phase`` is ``invoke`` first, and then ``ok``, ``fail`` (it had no effect) or
``info`` (nobody knows). `figures` counts what happened, and `problems` finds what Porcupine does not judge: progress,
errors and forks.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dev.chaos.sections import KEYS, ROWS

Event = dict[str, Any]

SECOND = 1_000_000_000


def now() -> int:
    """Return the time that all processes share, in nanoseconds."""
    return time.monotonic_ns()


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


DEEDS = ("stop_client", "kill", "cut_off", "fork", "force", "reap")


def unserved(events: list[Event]) -> set[str]:
    """Return the living threads and the locks that had no acquisition in the quiet time at the end."""
    waiting = {*KEYS, *ROWS}
    quiet = False
    for event in events:
        if event["op"] == "start" and not quiet:
            waiting.add(event["proc"])
        elif event["op"] == "kill":
            waiting = {each for each in waiting if not each.startswith(event["killed"] + "t")}
        elif event["op"] == "quiet":
            quiet = True
        elif event["op"] == "stop":
            break
        elif quiet and event["op"] == "acquire" and event["phase"] == "ok":
            waiting -= {event["proc"], *event["locks"]}
    return waiting


def problems(events: list[Event]) -> list[str]:
    """Return what is wrong in a history, for people; Porcupine judges the rest."""
    found = [f"{each} was not served in the quiet at the end" for each in sorted(unserved(events))]
    for event in events:
        if event["op"] in {"hung", "died"}:
            found.append(f"{event['client']} {event['op']}")
        if event.get("typed") is False:
            found.append(f"{event['proc']}: {event['op']} raised {event['error']}: {event['text']}")
        if event["op"] == "fork" and (event["held"] or len(event["refused"]) < 2):
            found.append(f"{event['proc']}: a forked child could use its parent's lock")
    return found


def figures(events: list[Event]) -> list[str]:
    """Return how much happened, as lines of text."""
    calls = ("acquire", "renew", "write", "release")
    lines = [
        _counts(op, (e["phase"] for e in events if e["op"] == op and e["phase"] != "invoke"))
        for op in calls
    ]
    lines.append(_counts("errors", (event["error"] for event in events if "typed" in event)))
    lines.append(_counts("requests with faults", (e["fault"] for e in events if e.get("fault"))))
    lines.append(_counts("injector", (event["op"] for event in events if event["op"] in DEEDS)))
    return lines


def _counts(name: str, each: Iterator[str]) -> str:
    counts = Counter(each)
    listed = ", ".join(f"{what} {count:,}" for what, count in counts.most_common())
    return f"{name}: {counts.total():,}" + (f" ({listed})" if listed else "")
