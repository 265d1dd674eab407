"""Scenario: one process holds the lock and others wait: how many requests they send, and which gets it next.

Each waiter is a process of its own or, with this library, also a thread of one process. Requests are counted in the
steady state. In what order waiters hold the lock in turn is measured by `turns`.
"""

from __future__ import annotations

import math
import time
import uuid
from contextlib import ExitStack
from statistics import median
from typing import Any, NamedTuple

from dev.bench import FAIR, HINTED, LATENCY, OURS, WAITERS, Setting, turns
from dev.bench.tables import Table, number, table
from dev.bench.turns import Run, agents
from dev.bench.wire import wired

THREADS = f"{OURS}, threads"
"""Name of the runs of this library in which the waiters are threads of one process."""


class Sizes(NamedTuple):
    """Sizes of the scenario.

    Attributes:
        waiters: Numbers of waiters.
        settle: Seconds until the steady state.
        count: Seconds of the steady state that are measured: two periods of the library with the longest one.
        turns: Runs in which the waiters hold the lock in turn.
        turns_count: Seconds of each of these runs, at least.
    """

    waiters: list[int]
    settle: float
    count: float
    turns: list[Run]
    turns_count: float


def _fair_and_not(section: float, *waiters: int) -> list[Run]:
    return [Run(name, count, section) for count in waiters for name in (HINTED, FAIR, OURS)]


FULL = Sizes(
    [1, 8, 64], settle=4.0, count=10.0,
    turns=[
        *_fair_and_not(0.02, 2, 8), *_fair_and_not(1.0, 2, 8, 64),
        *(Run(name, 8, 1.0) for name in WAITERS),
    ],
    turns_count=15.0,
)  # fmt: skip
QUICK = Sizes([1, 8], settle=1.0, count=2.0, turns=_fair_and_not(0.05, 2), turns_count=2.0)


def measure(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL

    def steady(name: str) -> dict[str, Any]:
        found = {str(n): _steady(name, n, setting.engine_url, sizes) for n in sizes.waiters}
        return {"waiters": found}

    def in_turn(run: Run) -> dict[str, Any]:
        # so long that each waiter has a turn, and that there are 30 turns at least
        seconds = max(sizes.turns_count, max(run.waiters + 2, 30) * run.section)
        found = turns.measure(run, sizes.settle, seconds, setting.engine_url)
        idle = found["idle"]
        p99 = idle[math.ceil(0.99 * len(idle)) - 1]
        return found | {"idle": {"median": median(idle), "p99": p99}}

    runs = [run for run in sizes.turns if run.library in {FAIR, HINTED, *setting.libraries}]
    return {
        "libraries": {name: steady(name) for name in (OURS, THREADS, *setting.those(*WAITERS))},
        "in_turn": [run._asdict() | in_turn(run) for run in runs],
        "latency_ms": 1000 * LATENCY,
        "counted_s": sizes.count,
    }


def _steady(name: str, waiters: int, engine_url: str, sizes: Sizes) -> dict[str, Any]:
    """Count the requests while one holds a lock and others wait for it."""
    library, key = OURS if name == THREADS else name, uuid.uuid4().hex
    processes, threads = (1, waiters) if name == THREADS else (waiters, 1)
    with ExitStack() as stack:
        wire = stack.enter_context(wired(engine_url, LATENCY))
        (holder,) = agents(stack, wire.engine, 1, library, key)
        holder.send(None)
        holder.hear()
        for waiter in agents(stack, wire.engine, processes, library, key, threads=threads):
            waiter.send(None)
        time.sleep(sizes.settle)
        wire.counted()
        since = time.monotonic()
        time.sleep(sizes.count)
        minutes = (time.monotonic() - since) / 60
        counts = wire.counted()
    return counts.per(waiters * minutes) | {"total": counts.requests / minutes}


def tables(found: dict[str, Any]) -> list[Table]:
    rows = [
        ([name, count], counts)
        for name, each in found["libraries"].items()
        for count, counts in each["waiters"].items()
    ]
    runs = sorted(found["in_turn"], key=lambda run: (run["section"], run["waiters"]))
    loads, counted, row_bytes = (
        [run[what] for run in runs if run[what]] for what in ("load", "counted_s", "row_bytes")
    )
    costs = {"Requests an acquisition": "requests", "WCU": "wcu", "RCU": "rcu"}
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
        table(
            "One holds the lock, others wait, in turn", ["Library", "Waiters", "Section, s"],
            [
                ("Acquisitions", lambda run: str(run["takes"])),
                ("Errors", lambda run: str(run["errors"])),
                ("Inversions", lambda run: f"{run['inversions']:,}"),
                ("Idle: median, s", lambda run: number(run["idle"]["median"])),
                ("p99, s", lambda run: number(run["idle"]["p99"])),
                ("Longest wait, s", "longest_wait"),
                *((head, lambda run, cost=cost: number(run["each_take"][cost])) for head, cost in costs.items()),
            ],
            (([run["library"], str(run["waiters"]), f"{run['section']:g}"], run) for run in runs),
            f"Default settings, {1000 * LATENCY:g} ms, for {min(counted):g} to {max(counted):g} s."
            " Each waiter is a process, and waits again when the next one holds the lock; it calls again if a library"
            " raises. An inversion is a waiter overtaken in one acquisition. Idle is the lock from the end of a release"
            " to the end of the next acquisition. p99 of fewer than 100 is the longest. Waits that had not ended count."
            f" The row had {max(row_bytes):,.0f} bytes at most, and the load average before a run was"
            f" {min(loads):.1f} to {max(loads):.1f}.",
        ),
    ]  # fmt: skip
