"""Scenario: how long a lock is idle after its release, or the death of its holder, until the next process holds it.

Holder and waiter are processes of their own.
"""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from statistics import median
from typing import Any

from dev.bench import DYNDB_MUTEX, FLOOR, LATENCY, Setting, turns
from dev.bench.children import Child
from dev.bench.tables import Table, number, table
from dev.bench.turns import Run, agents
from dev.bench.wire import wired

LATER = 3
"""Number of leases after the death of a holder until a newcomer asks for the lock, which has never seen its claim."""

# The shortest time in seconds before a release for which a process waits, how much longer the longest is, and for how
# many seconds the processes take turns.
FULL = {"short": (0.1, 0.9, 30.0), "long": (5.0, 0.5, 60.0)}
QUICK = {"short": (0.1, 0.2, 2.0), "long": (0.5, 0.1, 4.0)}

# the number of holders that are killed, and their lease
DEAD = 4, 4.0
QUICK_DEAD = 1, 1.0


def measure(setting: Setting) -> dict[str, Any]:
    names = [name for name in setting.libraries if name != FLOOR]
    return {
        "libraries": {name: _of(setting, name) for name in names},
        "latency_ms": 1000 * LATENCY,
        "lease": (QUICK_DEAD if setting.quick else DEAD)[1],
    }


def _of(setting: Setting, name: str) -> dict[str, Any]:
    times: dict[str, Any] = dict.fromkeys(("short", "long", "waiting"))
    waits = name != DYNDB_MUTEX  # which never does
    if waits:
        for kind, (section, vary, seconds) in (QUICK if setting.quick else FULL).items():
            run = Run(name, 1, section, vary)
            times[kind] = turns.measure(run, 0.0, seconds, setting.engine_url)["idle"]
    count, lease = QUICK_DEAD if setting.quick else DEAD
    with wired(setting.engine_url, LATENCY) as wire, ExitStack() as stack:
        awaited, deserted = (
            [agents(stack, wire.engine, 2, name, uuid.uuid4().hex, lease=lease) for _ in range(n)]
            for n in (waits * count, count)
        )
        return times | _of_the_dead(awaited, deserted, lease)


def _of_the_dead(
    awaited: list[tuple[Child, Child]], deserted: list[tuple[Child, Child]], lease: float
) -> dict[str, Any]:
    """Kill holders; return the seconds until processes have the lock that wait already, and that come later."""
    for holder, _ in awaited + deserted:
        holder.send(None)
        holder.hear()
    for _, waiter in awaited:
        waiter.send(None)
    time.sleep(lease / 4)  # until then all waiters have seen that the lock is held
    killed = []
    for holder, _ in awaited + deserted:
        killed.append(time.monotonic())
        holder.kill()
    time.sleep(LATER * lease)
    came = []
    for _, waiter in deserted:
        came.append(time.monotonic())
        waiter.send(None)
    waiting = [waiter.hear()[0] - at for (_, waiter), at in zip(awaited, killed, strict=False)]
    newcomer = [waiter.hear()[0] - at for (_, waiter), at in zip(deserted, came, strict=True)]
    return {"waiting": waiting or None, "newcomer": newcomer}


def tables(found: dict[str, Any]) -> list[Table]:
    kinds = {
        "short": "a release, after a wait of up to 1 s",
        "long": "a release, after a wait of 5 s",
        "waiting": "the kill of the holder, while another process waits",
        "newcomer": f"the first call of a newcomer, {LATER} leases after the kill",
    }
    rows = [
        ([name, shown], {"times": each[kind]})
        for name, each in found["libraries"].items()
        for kind, shown in kinds.items()
        if each[kind]
    ]
    return [
        table(
            "Seconds until the next process has the lock", ["Library", "From"],
            [
                ("Median", lambda row: number(median(row["times"]))),
                ("Max", lambda row: number(max(row["times"]))),
                ("Times", lambda row: str(len(row["times"]))),
            ],
            rows,
            f"Default settings, {found['latency_ms']:g} ms; where holders are killed, {found['lease'] / 4:g} s after they"
            f" took the lock, the lease is {found['lease']:g} s. dyndbmutex never waits.",
        )
    ]  # fmt: skip
