"""One process holds many locks and renews them: whether it keeps them all, and what it costs.

Each run is a process with a proxy of its own; small ones go at once.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from benchmarks import OURS, PYTHON_CLIENT, Setting, failure
from benchmarks.children import Child, preload
from benchmarks.libraries import made
from benchmarks.tables import Table, number
from benchmarks.wire import Wire, wired

ONE_BY_ONE = f"{OURS}, one by one"
"""With renewals of several locks by one request switched off."""

TAKERS = 32
LOOK_SECONDS = 0.25


class Run(NamedTuple):
    """One process: whose locks, how many, at which latency in ms."""

    library: str
    locks: int
    latency: int


class Sizes(NamedTuple):
    """What is tried.

    Attributes:
        groups: Runs that go at the same time.
        seconds: For which they are held, after the last was taken; more than a lease.
    """

    groups: list[list[Run]]
    seconds: float


FULL = Sizes(
    [
        [Run(OURS, locks, latency) for locks in (10, 100) for latency in (5, 20)],
        *([Run(OURS, locks, latency)] for locks in (1000, 5000) for latency in (5, 20)),
        [Run(ONE_BY_ONE, 1000, 5)],
        [Run(ONE_BY_ONE, 5000, 5)],
        *([Run(PYTHON_CLIENT, 1000, latency)] for latency in (5, 20)),
    ],
    35.0,
)
# without peers: a lease is not over in this time, but a third of it is
QUICK = Sizes([[Run(OURS, 10, 5), Run(ONE_BY_ONE, 10, 5)]], 11.0)


def measure(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    preload()
    left_out = set()
    if PYTHON_CLIENT not in setting.libraries:
        left_out.add(PYTHON_CLIENT)
    if not _has_batches():
        left_out.add(ONE_BY_ONE)
    found = []
    for group in sizes.groups:
        runs = [run for run in group if run.library not in left_out]
        found += _group(runs, setting.engine_url, sizes.seconds)
    return {"runs": found, "held_s": sizes.seconds}


def _has_batches() -> bool:
    return hasattr(_our_store(), "batches")


def _our_store() -> Any:
    from pynamodb_mutex import LockItem
    from pynamodb_mutex._process import store_for

    return store_for(LockItem)


def _group(runs: list[Run], engine_url: str, seconds: float) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        wires = [stack.enter_context(wired(engine_url, run.latency / 1000)) for run in runs]
        children = []
        for wire, run in zip(wires, runs, strict=True):
            child = Child(wire.engine, _hold, run.library, run.locks, run.latency, seconds)
            stack.callback(child.kill)
            children.append(child)
        return [
            run._asdict() | _of(wire, child, seconds)
            for run, wire, child in zip(runs, wires, children, strict=True)
        ]


def _of(wire: Wire, child: Child, seconds: float) -> dict[str, Any]:
    try:
        child.hear()
        wire.counted()
        child.tell()
        found = child.hear(seconds + 60)
        counts = wire.counted()
    except Exception as error:
        return failure(error)
    return found | counts.per(found["wall"])


def _hold(pipe: Any, name: str, count: int, latency: int, seconds: float) -> dict[str, Any]:
    if name == ONE_BY_ONE:
        _our_store().batches = False
    library = made(OURS if name == ONE_BY_ONE else name)
    library.give_back(library.take(f"many-own-{name}-{count}-{latency}"))  # connects
    keys = [f"many-{name}-{count}-{latency}-{place}" for place in range(count)]
    with ThreadPoolExecutor(TAKERS) as takers:
        locks = list(takers.map(library.take, keys))
    pipe.say()
    pipe.wait()
    cpu, since = time.process_time(), time.monotonic()
    most = 0
    while time.monotonic() < since + seconds:
        time.sleep(LOOK_SECONDS)
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
        f"Default settings, a lease of 30 s, held for {found['held_s']:g} s after the last was taken."
        " CPU is that of the process, of one processor."
    )
    return [Table("Locks that one process holds and renews", columns, rows, note)]
