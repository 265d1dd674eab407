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

from dev.bench import FAIR, HINTED, LATENCY, OURS, WAITERS, Setting, of_each, turns
from dev.bench.children import Child, preload
from dev.bench.libraries import made
from dev.bench.tables import Table, table
from dev.bench.turns import Run
from dev.bench.wire import Wire, wired

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


_OTHERS = [Run(name, 8, 1.0) for name in WAITERS]
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

    def of(name: str) -> dict[str, Any]:
        groups = sizes.ours if name == OURS else sizes.others
        found = [_group(name, group, setting.engine_url, sizes) for group in groups]
        return {"waiters": {count: each for group in found for count, each in group.items()}}

    in_turn: list[dict[str, Any]] = []
    found = of_each((OURS, THREADS, *setting.those(*WAITERS)), of)
    for group in sizes.turns:
        runs = [run for run in group if run.library in {FAIR, HINTED, *setting.libraries}]
        # so long that each waiter has a turn, and that there are 30 turns at least
        least = max(max(run.waiters + 2, 30) * run.section for run in runs)
        count = max(sizes.turns_count, least)
        in_turn += turns.measure(runs, sizes.settle, count, setting.engine_url)
    return {
        "libraries": found, "in_turn": in_turn, "latency_ms": 1000 * LATENCY,
        "counted_s": sizes.count,
    }  # fmt: skip


def _group(name: str, group: list[int], engine_url: str, sizes: Sizes) -> dict[str, Any]:
    library = OURS if name == THREADS else name
    with ExitStack() as stack:
        wires = [stack.enter_context(wired(engine_url, LATENCY)) for _ in group]

        def child(wire: Wire, function: Any, *arguments: Any) -> Child:
            return stack.enter_context(Child(wire.engine, function, library, *arguments))

        children = []
        for wire, count in zip(wires, group, strict=True):
            key = f"{name}-{count}"
            holder = child(wire, turns.take_turns, key)
            holder.hear()
            holder.send(None)
            holder.hear()
            processes, threads = (1, count) if name == THREADS else (count, 1)
            waiters = [child(wire, _wait, key, threads) for _ in range(processes)]
            for waiter in waiters:
                waiter.hear()
            children += waiters
        for waiter in children:
            waiter.send(None)
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


def _wait(pipe: Any, name: str, key: str, threads: int) -> None:
    library = made(name)
    library.release(library.take(f"{key}-own-{os.getpid()}"))  # opens the connection
    pipe.say(None)
    pipe.wait()
    for _ in range(threads):
        threading.Thread(target=library.take, args=(key,), daemon=True).start()
    threading.Event().wait()


def tables(found: dict[str, Any]) -> list[Table]:
    rows = [
        ([name, count], counts)
        for name, each in found["libraries"].items()
        for count, counts in each.get("waiters", {"": each}).items()
    ]
    return [
        table(
            "What those cost who wait for one lock", ["Library", "Waiters"],
            [
                ("Requests each, a minute", "requests"), ("WCU each", "wcu"), ("RCU each", "rcu"),
                ("All requests a minute", "total"),
            ],
            rows,
            f"Default settings, {found['latency_ms']:g} ms, counted for {found['counted_s']:g} s in the steady"
            " state, the holder's renewals with them. Each waiter is a process, or a thread of one process.",
        ),
        *turns.tables(found["in_turn"]),
    ]  # fmt: skip
