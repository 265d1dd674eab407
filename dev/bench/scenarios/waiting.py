"""Scenario: one process holds the lock and others wait: how many requests they send, and which gets it next.

Each waiter is a process of its own or, with this library, also a thread of one process. Requests are counted in the
steady state. Each number of waiters has a key and a proxy of its own, so that small numbers are measured at the same
time. In what order waiters hold the lock in turn is measured by `turns`.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from typing import Any, NamedTuple

from dev.bench import BLOCK_LOCK, FAIR, HINTED, OURS, PYTHON_CLIENT, Setting, failure, turns
from dev.bench.children import Child, preload
from dev.bench.libraries import made
from dev.bench.tables import Table, number
from dev.bench.turns import Run
from dev.bench.wire import wired

LATENCY = turns.LATENCY
THREADS = f"{OURS}, threads"
"""Name of the runs of this library in which the waiters are threads of one process."""


class Sizes(NamedTuple):
    """Sizes of the scenario.

    Attributes:
        ours: Numbers of waiters with this library, in groups that are measured at the same time.
        others: The same for other libraries, and for threads.
        settle: Seconds until the steady state.
        count: Seconds of the steady state that are measured: two periods of the library with the longest one.
        turns: Runs in which the waiters hold the lock in turn, in groups that are measured at the same time.
        turns_count: Seconds of each of these runs, at least.
    """

    ours: list[list[int]]
    others: list[list[int]]
    settle: float
    count: float
    turns: list[list[Run]]
    turns_count: float


def _fair_and_not(section: float, *waiters: int) -> list[Run]:
    return [Run(name, count, section) for count in waiters for name in (HINTED, FAIR, OURS)]


_OTHERS = [Run(name, 8, 1.0) for name in (PYTHON_CLIENT, BLOCK_LOCK)]
# 64 processes need the whole machine, and so do short sections
_LARGE = [[run] for run in _fair_and_not(1.0, 64)]
_SOME_TURNS = [
    *([run] for run in _fair_and_not(0.02, 2, 8)), _fair_and_not(0.2, 2), _fair_and_not(0.2, 8), _fair_and_not(1.0, 2, 8) + _OTHERS, *_LARGE,
]  # fmt: skip
_ALL_TURNS = [
    *([run] for section in (0.02, 0.2) for run in _fair_and_not(section, 2, 8, 16, 64)),
    _fair_and_not(1.0, 2, 8, 16) + _OTHERS, *_LARGE,
    _fair_and_not(5.0, 2, 8, 16), *([run] for run in _fair_and_not(5.0, 64)),
]  # fmt: skip

USUAL = Sizes(
    [[1, 2, 4, 8, 16], [32], [64]], [[1, 4, 16], [64]], settle=4.0, count=10.0,
    turns=_SOME_TURNS, turns_count=15.0,
)  # fmt: skip
FULL = USUAL._replace(turns=_ALL_TURNS)
QUICK = Sizes(
    [[1, 8]], [[1, 8]], settle=1.0, count=2.0, turns=[_fair_and_not(0.05, 2)], turns_count=2.0
)


def measure(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL if setting.full else USUAL
    preload()
    found: dict[str, Any] = {}
    for name in (OURS, THREADS, *setting.those(PYTHON_CLIENT, BLOCK_LOCK)):
        try:
            found[name] = {"waiters": {}}
            for group in sizes.ours if name == OURS else sizes.others:
                found[name]["waiters"] |= _group(name, group, setting.engine_url, sizes)
        except Exception as error:
            found[name] = failure(error)
    in_turn: list[dict[str, Any]] = []
    for group in sizes.turns:
        runs = [run for run in group if run.library in {FAIR, HINTED, *setting.libraries}]
        # so long that each waiter has a turn, and that there are 30 turns at least
        least = max(max(run.waiters + 2, 30) * run.section for run in runs)
        in_turn += turns.measure(
            runs, sizes.settle, max(sizes.turns_count, least), setting.engine_url
        )
    return {
        "libraries": found, "in_turn": in_turn, "latency_ms": 1000 * LATENCY,
        "counted_s": sizes.count,
    }  # fmt: skip


def _group(name: str, group: list[int], engine_url: str, sizes: Sizes) -> dict[str, Any]:
    with ExitStack() as stack:
        wires = [stack.enter_context(wired(engine_url, LATENCY)) for _ in group]
        children: list[Child] = []
        stack.callback(lambda: [child.kill() for child in children])
        for wire, count in zip(wires, group, strict=True):
            key = f"{name}-{count}"
            holder = Child(wire.engine, _hold, _library(name), key)
            children.append(holder)
            holder.hear()
            processes, threads = (1, count) if name == THREADS else (count, 1)
            waiters = [
                Child(wire.engine, _wait, _library(name), key, threads) for _ in range(processes)
            ]
            children += waiters
            for waiter in waiters:
                waiter.hear()
        for waiter in children:
            waiter.send()
        time.sleep(sizes.settle)
        for wire in wires:
            wire.counted()
        since = time.monotonic()
        time.sleep(sizes.count)
        minutes = (time.monotonic() - since) / 60
        found = [wire.counted() for wire in wires]
    return {
        str(count): counts.per(count * minutes) | {"total": counts.requests / minutes}
        for count, counts in zip(group, found, strict=True)
    }


def _library(name: str) -> str:
    return OURS if name == THREADS else name


def _hold(pipe: Any, name: str, key: str) -> None:
    library = made(name)
    library.take(key)
    pipe.say()
    threading.Event().wait()


def _wait(pipe: Any, name: str, key: str, threads: int) -> None:
    library = made(name)
    library.release(library.take(f"{key}-own-{os.getpid()}"))  # opens the connection
    pipe.say()
    pipe.wait()
    for _ in range(threads):
        threading.Thread(target=library.take, args=(key,), daemon=True).start()
    threading.Event().wait()


def tables(found: dict[str, Any]) -> list[Table]:
    libraries = found["libraries"]
    columns = [
        "Library", "Waiters", "Requests each, a minute", "WCU each", "RCU each", "All requests a minute",
    ]  # fmt: skip
    rows = []
    for name, each in libraries.items():
        if "failed" in each:
            rows.append([name, "", f"failed: {each['failed']}", "", "", ""])
            continue
        for count, counts in each["waiters"].items():
            shown = [number(counts[what]) for what in ("requests", "wcu", "rcu", "total")]
            rows.append([name, count, *shown])
    note = (
        f"Default settings, {found['latency_ms']:g} ms, counted for {found['counted_s']:g} s in the steady"
        " state, the holder's renewals with them. Each waiter is a process, or a thread of one process."
    )
    return [
        Table("What those cost who wait for one lock", columns, rows, note),
        *turns.tables(found["in_turn"]),
    ]
