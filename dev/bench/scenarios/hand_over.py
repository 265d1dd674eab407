"""Scenario: how long a lock is idle after its release, or the death of its holder, until the next process holds it.

Holder and waiter are processes of their own, several pairs at a time, each with a key of its own.
Times are those of the monotonic clock, which all processes of the machine share.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any

from dev.bench import DYNDB_MUTEX, FLOOR, LATENCY, OURS, Setting, of_each
from dev.bench.children import Child, preload
from dev.bench.tables import Column, Table, named, number, table
from dev.bench.turns import now, take_turns
from dev.bench.wire import Wire, wired

LATER = 3
"""Number of leases after the death of a holder until a newcomer asks for the lock, which has never seen its claim."""


# The shortest and the longest time in seconds before a release for which a process waits, and the number of rounds; with
# other libraries, which take long, it is lower.
FULL = {"short": (0.1, 1.0, 6, 2), "long": (5.0, 5.5, 2, 2)}
QUICK = {"short": (0.1, 0.3, 1, 1), "long": (1.0, 1.1, 1, 1)}


# pairs of processes, those whose holder is killed, and the lease of these
PAIRS = 5, 4, 4.0
QUICK_PAIRS = 2, 1, 1.0


def measure(setting: Setting) -> dict[str, Any]:
    preload()
    lease = (QUICK_PAIRS if setting.quick else PAIRS)[2]
    names = [name for name in setting.libraries if name != FLOOR]
    with wired(setting.engine_url, LATENCY) as wire:
        found = of_each(names, lambda name: _of(name, wire, quick=setting.quick))
    return {"libraries": found, "latency_ms": 1000 * LATENCY, "lease": lease}


def _of(name: str, wire: Wire, *, quick: bool) -> dict[str, Any]:
    count, dead, lease = QUICK_PAIRS if quick else PAIRS
    waits = name != DYNDB_MUTEX  # which never does
    times: dict[str, Any] = dict.fromkeys(("short", "long", "waiting"))
    with ExitStack() as stack:

        def pairs(kind: str, count: int, lease: float | None = None) -> list[tuple[Child, Child]]:
            children = []
            for place in range(2 * count):
                agent = partial(take_turns, lease=lease)
                child = Child(wire.engine, agent, name, f"{kind}-{place // 2}")
                children.append(stack.enter_context(child))
            for child in children:
                child.hear()
            return list(zip(children[::2], children[1::2], strict=True))

        if waits:
            waiting = pairs("pair", count)
            for kind, (low, high, often, fewer) in (QUICK if quick else FULL).items():
                rounds = often if name == OURS else fewer
                times[kind] = [
                    each for _ in range(rounds) for each in _handed_over(waiting, low, high)
                ]
        awaited, deserted = pairs("awaited", waits * dead, lease), pairs("deserted", dead, lease)
        return times | _of_the_dead(awaited, deserted, lease)


def _handed_over(pairs: list[tuple[Child, Child]], low: float, high: float) -> list[float]:
    """Let each holder release after a random time; return the seconds from each release to the next acquisition."""
    for holder, _ in pairs:
        holder.send(None)
    for holder, waiter in pairs:
        holder.hear()
        waiter.send(None)
    begun = time.monotonic()
    for wait, place in sorted((random.uniform(low, high), place) for place in range(len(pairs))):
        time.sleep(max(0.0, begun + wait - time.monotonic()))
        pairs[place][0].send(None)
    found = []
    for holder, waiter in pairs:
        (released,), (taken, *_) = holder.hear(), waiter.hear()
        found.append(taken - released)
        waiter.send(None)
        waiter.hear()
    return found


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
        killed.append(now())
        holder.kill()
    time.sleep(LATER * lease)
    came = []
    for _, waiter in deserted:
        came.append(now())
        waiter.send(None)
    waiting = [waiter.hear()[0] - at for (_, waiter), at in zip(awaited, killed, strict=False)]
    newcomer = [waiter.hear()[0] - at for (_, waiter), at in zip(deserted, came, strict=True)]
    return {"waiting": waiting or None, "newcomer": newcomer}


def tables(found: dict[str, Any]) -> list[Table]:
    lease = found["lease"]

    def made_of(title: str, kinds: dict[str, str], note: str) -> Table:
        columns: list[Column] = []
        for shown, kind in kinds.items():
            columns += [
                (
                    f"{shown}: median",
                    lambda each, kind=kind: number(each[kind] and median(each[kind])),
                ),
                ("max", lambda each, kind=kind: number(each[kind] and max(each[kind]))),
                ("n", lambda each, kind=kind: str(len(each[kind] or ()))),
            ]
        return table(title, ["Library"], columns, named(found["libraries"]), note)

    return [
        made_of(
            "Seconds from a release until the next process has the lock",
            {"Waited up to 1 s": "short", "Waited 5 s": "long"},
            f"Default settings, {found['latency_ms']:g} ms. dyndbmutex never waits.",
        ),
        made_of(
            "Seconds until a dead holder's lock is had",
            {
                "One who waits, from the kill": "waiting",
                f"A newcomer, {LATER} leases later": "newcomer",
            },
            f"The lease is {lease:g} s, and the holder is killed {lease / 4:g} s after it took the lock."
            " dyndbmutex never waits.",
        ),
    ]
