"""Scenario: one process holds many locks and renews them: how many it loses, and what the renewals cost.

Each run is a process with a proxy of its own; small runs are measured at the same time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from dev.bench import OURS, PYTHON_CLIENT, Setting, failure
from dev.bench.children import Child, preload
from dev.bench.libraries import made
from dev.bench.tables import Table, number
from dev.bench.wire import Wire, wired

TAKERS = 32
"""Number of threads that acquire the locks."""

POLL_SECONDS = 0.25
"""Seconds between two counts of the threads."""


class Run(NamedTuple):
    """One process: the library, the number of its locks, and the latency in ms."""

    library: str
    locks: int
    latency: int


class Sizes(NamedTuple):
    """Sizes of the scenario.

    Attributes:
        groups: Runs, in groups that are measured at the same time.
        settle: Seconds from the last acquisition to the beginning of the measurement.
        count: Seconds that are measured, a multiple of the time between two renewals. In a full run this and ``settle``
            are more than a lease, so that a lock that is not renewed is lost.
    """

    groups: list[list[Run]]
    settle: float
    count: float


FULL = Sizes(
    [
        [Run(OURS, locks, latency) for locks in (10, 100) for latency in (5, 20)],
        [Run(OURS, 1000, latency) for latency in (5, 20)],
        [Run(OURS, 5000, 5)],
        [Run(OURS, 5000, 20)],
        [Run(PYTHON_CLIENT, 1000, latency) for latency in (5, 20)],
    ],
    settle=5.0,
    count=30.0,
)
# in this time each lock is renewed once
QUICK = Sizes([[Run(OURS, 10, 5)]], settle=5.0, count=6.0)


def measure(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    preload()
    found = []
    for group in sizes.groups:
        runs = [run for run in group if run.library in setting.libraries]
        if runs:
            found += _group(runs, setting.engine_url, sizes)
    return {"runs": found, "held_s": sizes.settle + sizes.count, "counted_s": sizes.count}


def _group(runs: list[Run], engine_url: str, sizes: Sizes) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        wires = [stack.enter_context(wired(engine_url, run.latency / 1000)) for run in runs]
        children = []
        for wire, run in zip(wires, runs, strict=True):
            child = Child(wire.engine, _hold, run.library, run.locks, run.latency, sizes.count)
            stack.callback(child.kill)
            children.append(child)
        found = [run._asdict() for run in runs]
        for one, child in zip(found, children, strict=True):
            _add(one, child.hear)
        time.sleep(sizes.settle)
        for one, wire, child in zip(found, wires, children, strict=True):
            wire.counted()
            _add(one, child.send)
        for one, wire, child in zip(found, wires, children, strict=True):
            _add(one, lambda wire=wire, child=child: _of(wire, child))
        return found


def _add(found: dict[str, Any], more: Callable[[], Any]) -> None:
    """Add figures to those of a run. If that fails, add the reason, and nothing more from then on."""
    if "failed" not in found:
        try:
            found |= more() or {}
        except Exception as error:
            found |= failure(error)


def _of(wire: Wire, child: Child) -> dict[str, Any]:
    measured = child.hear()
    return measured | wire.counted().per(measured["wall"])


def _hold(pipe: Any, name: str, count: int, latency: int, seconds: float) -> dict[str, Any]:
    library = made(name)
    library.release(library.take(f"many-own-{name}-{count}-{latency}"))  # opens the connection
    keys = [f"many-{name}-{count}-{latency}-{place}" for place in range(count)]
    with ThreadPoolExecutor(TAKERS) as takers:
        locks = list(takers.map(library.take, keys))
    pipe.say()
    pipe.wait()
    cpu, since = time.process_time(), time.monotonic()
    most = 0
    while time.monotonic() < since + seconds:
        time.sleep(POLL_SECONDS)
        most = max(most, threading.active_count())
    cpu, wall = time.process_time() - cpu, time.monotonic() - since
    lost = sum(not library.held(lock) for lock in locks)
    return {"lost": lost, "threads": most, "cpu_share": cpu / wall, "wall": wall}


def tables(found: dict[str, Any]) -> list[Table]:
    columns = [
        "Library", "Locks", "Latency, ms", "Lost", "Threads at most", "CPU", "Requests a second",
        "WCU a second",
    ]  # fmt: skip
    rows = []
    for run in found["runs"]:
        start = [run["library"], f"{run['locks']:,}", str(run["latency"])]
        if "failed" in run:
            rows.append([*start, f"failed: {run['failed']}", "", "", "", ""])
            continue
        counts = [number(run[what]) for what in ("requests", "wcu")]
        cpu = f"{run['cpu_share']:.1%}"
        rows.append([*start, f"{run['lost']:,}", str(run["threads"]), cpu, *counts])
    note = (
        f"Default settings, a lease of 30 s, held for {found['held_s']:g} s after the last was taken, and"
        f" counted in the last {found['counted_s']:g} s. CPU is that of the process, of one processor."
    )
    return [Table("Locks that one process holds and renews", columns, rows, note)]
