"""Scenario: one process holds many locks and renews them: how many it loses, and what they cost.

Each run is a process with a proxy of its own.
"""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from dev.bench import OURS, PYTHON_CLIENT, Setting
from dev.bench.children import Child
from dev.bench.libraries import Library, made
from dev.bench.tables import Table, named, table
from dev.bench.wire import wired

TAKERS = 32
"""Number of threads that acquire the locks."""

POLL_SECONDS = 0.25
"""Seconds between two counts of the threads."""


class Run(NamedTuple):
    """One process: the library, the number of its locks, and the latency in ms."""

    library: str
    locks: int
    latency: int


FULL = [
    *(Run(OURS, locks, latency) for locks in (10, 100, 1000, 5000) for latency in (5, 20)),
    *(Run(PYTHON_CLIENT, 1000, latency) for latency in (5, 20)),
]

SETTLE = 5.0
"""Seconds from the last acquisition to the beginning of the measurement.

This and the seconds that are measured, a multiple of the time between two renewals, are more than a lease in a full run,
so that a lock that is not renewed is lost. In a quick run each lock is renewed once.
"""


def measure(setting: Setting) -> dict[str, Any]:
    runs, seconds = ([Run(OURS, 10, 5)], 6.0) if setting.quick else (FULL, 30.0)
    runs = [run for run in runs if run.library in setting.libraries]
    return {
        "runs": [run._asdict() | _run(run, setting.engine_url, seconds) for run in runs],
        "held_s": SETTLE + seconds,
        "counted_s": seconds,
        "memory": _memory(setting, 50 if setting.quick else 1000),
    }


def _memory(setting: Setting, count: int) -> dict[str, Any]:
    """Return the bytes of Python objects for each of so many locks, by library."""
    found = {}
    with wired(setting.engine_url) as wire:
        for name in setting.those(OURS, PYTHON_CLIENT):
            with Child(wire.engine, _trace, name, count) as child:
                found[name] = {"held": child.hear()}
    return {"libraries": found, "held": count}


def _trace(pipe: Connection, name: str, count: int) -> float:
    library = made(name)
    tracemalloc.start()
    kept = _taken(library, f"memory-{name}", TAKERS)  # opens the connections
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    kept += _taken(library, f"memory-more-{name}", count)
    gc.collect()
    return (tracemalloc.get_traced_memory()[0] - before) / count


def _run(run: Run, engine_url: str, seconds: float) -> dict[str, Any]:
    with (
        wired(engine_url, run.latency / 1000) as wire,
        Child(wire.engine, _hold, *run, seconds) as child,
    ):
        child.hear()
        time.sleep(SETTLE)
        wire.counted()
        child.send(None)
        measured = child.hear()
        return measured | wire.counted().per(measured["wall"])


def _hold(pipe: Connection, name: str, count: int, latency: int, seconds: float) -> dict[str, Any]:
    library = made(name)
    library.release(library.take(f"many-own-{name}-{count}-{latency}"))  # opens the connection
    locks = _taken(library, f"many-{name}-{count}-{latency}", count)
    pipe.send(None)
    pipe.recv()
    cpu, since = time.process_time(), time.monotonic()
    most = 0
    while time.monotonic() < since + seconds:
        time.sleep(POLL_SECONDS)
        most = max(most, threading.active_count())
    cpu, wall = time.process_time() - cpu, time.monotonic() - since
    lost = sum(not library.held(lock) for lock in locks)
    return {"lost": lost, "threads": most, "cpu_share": cpu / wall, "wall": wall}


def _taken(library: Library, key: str, count: int) -> list[Any]:
    with ThreadPoolExecutor(TAKERS) as takers:
        return list(takers.map(library.take, [f"{key}-{place}" for place in range(count)]))


def tables(found: dict[str, Any]) -> list[Table]:
    return [
        table(
            "Locks that one process holds and renews", ["Library", "Locks", "Latency, ms"],
            [
                ("Lost", lambda run: f"{run['lost']:,}"), ("Threads at most", lambda run: str(run["threads"])),
                ("CPU", lambda run: f"{run['cpu_share']:.1%}"), ("Requests a second", "requests"),
                ("WCU a second", "wcu"),
            ],
            (([run["library"], f"{run['locks']:,}", str(run["latency"])], run) for run in found["runs"]),
            f"Default settings, a lease of 30 s, held for {found['held_s']:g} s after the last was taken, and"
            f" counted in the last {found['counted_s']:g} s. CPU is that of the process, of one processor.",
        ),
        table(
            "Memory of a lock that is held and renewed", ["Library"], [("Bytes", "held")],
            named(found["memory"]["libraries"]),
            f"Python objects as tracemalloc counts them, for each of {found['memory']['held']:,} locks.",
        ),
    ]  # fmt: skip
