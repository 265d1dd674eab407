"""Scenario: how long a lock is idle after its release, or the death of its holder, until the next process holds it.

Holder and waiter are processes of their own, several pairs at a time, each with a key of its own.
Times are those of the monotonic clock, which all processes of the machine share.
"""

from __future__ import annotations

import random
import time
from statistics import median
from typing import Any, NamedTuple

from dev.bench import DYNDB_MUTEX, FLOOR, OURS, Setting, failure
from dev.bench.children import Child, preload
from dev.bench.libraries import made
from dev.bench.tables import Table, number, rows_of
from dev.bench.wire import Wire, wired

LATENCY = 0.005
LATER = 3
"""Number of leases after the death of a holder until a newcomer asks for the lock, which has never seen its claim."""


class Sizes(NamedTuple):
    """Sizes of the scenario.

    Attributes:
        short: Shortest and longest time in seconds before a release for which a process waits; number of rounds.
        long: The same, for long waits.
        fewer: Most rounds with other libraries, which take long.
        pairs: Number of pairs of processes.
        dead: Number of pairs whose holder is killed.
        lease: Lease of these, in seconds.
    """

    short: tuple[float, float, int]
    long: tuple[float, float, int]
    fewer: int
    pairs: int
    dead: int
    lease: float


FULL = Sizes((0.1, 1.0, 6), (5.0, 5.5, 2), fewer=2, pairs=5, dead=4, lease=4.0)
QUICK = Sizes((0.1, 0.3, 1), (1.0, 1.1, 1), fewer=1, pairs=2, dead=1, lease=1.0)


def measure(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    preload()
    found = {}
    with wired(setting.engine_url, LATENCY) as wire:
        for name in setting.libraries:
            if name == FLOOR:
                continue
            try:
                found[name] = _of(name, wire, sizes)
            except Exception as error:
                found[name] = failure(error)
    return {"libraries": found, "latency_ms": 1000 * LATENCY, "lease": sizes.lease}


def _of(name: str, wire: Wire, sizes: Sizes) -> dict[str, Any]:
    times: dict[str, Any] = dict.fromkeys(("short", "long", "waiting"))
    if name != DYNDB_MUTEX:  # which never waits
        pairs = [_Pair(name, f"pair-{place}", wire) for place in range(sizes.pairs)]
        try:
            for kind in ("short", "long"):
                low, high, often = getattr(sizes, kind)
                rounds = often if name == OURS else min(often, sizes.fewer)
                found = [_handed_over(pairs, low, high) for _ in range(rounds)]
                times[kind] = [each for one_round in found for each in one_round]
        finally:
            for pair in pairs:
                pair.end()
    return times | _of_the_dead(name, wire, sizes.dead, sizes.lease)


class _Pair:
    """Two processes that want one key.

    Attributes:
        holder: The process that acquires it first.
        waiter: The other process.
    """

    def __init__(self, name: str, key: str, wire: Wire, lease: float | None = None) -> None:
        self.holder = Child(wire.engine, _take_turns, name, key, lease)
        self.waiter = Child(wire.engine, _take_turns, name, key, lease)
        self.holder.hear()
        self.waiter.hear()

    def end(self) -> None:
        self.holder.kill()
        self.waiter.kill()


def _take_turns(pipe: Any, name: str, key: str, lease: float | None) -> None:
    library = made(name, lease)
    library.release(library.take(f"{key}-own-{random.random()}"))  # opens the connection
    pipe.say()
    while True:
        pipe.wait()
        lock = library.take(key)
        pipe.say(_now())
        pipe.wait()
        library.release(lock)
        pipe.say(_now())


def _now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _handed_over(pairs: list[_Pair], low: float, high: float) -> list[float]:
    """Let each holder release after a random time; return the seconds from each release to the next acquisition."""
    for pair in pairs:
        pair.holder.send()
    for pair in pairs:
        pair.holder.hear()
        pair.waiter.send()
    begun = time.monotonic()
    plan = sorted((random.uniform(low, high), place) for place in range(len(pairs)))
    for wait, place in plan:
        time.sleep(max(0.0, begun + wait - time.monotonic()))
        pairs[place].holder.send()
    found = []
    for pair in pairs:
        released = pair.holder.hear()
        found.append(pair.waiter.hear() - released)
        pair.waiter.send()
        pair.waiter.hear()
    return found


def _of_the_dead(name: str, wire: Wire, count: int, lease: float) -> dict[str, Any]:
    """Kill holders; return the seconds until processes have the lock that wait already, and that come later."""
    waits = name != DYNDB_MUTEX
    awaited = [_Pair(name, f"awaited-{place}", wire, lease) for place in range(waits * count)]
    deserted = [_Pair(name, f"deserted-{place}", wire, lease) for place in range(count)]
    try:
        for pair in awaited + deserted:
            pair.holder.send()
            pair.holder.hear()
        for pair in awaited:
            pair.waiter.send()
        time.sleep(lease / 4)  # until then all waiters have seen that the lock is held
        killed = []
        for pair in awaited + deserted:
            killed.append(_now())
            pair.holder.kill()
        time.sleep(LATER * lease)
        came = []
        for pair in deserted:
            came.append(_now())
            pair.waiter.send()
        waiting = [pair.waiter.hear() - at for pair, at in zip(awaited, killed, strict=False)]
        newcomer = [pair.waiter.hear() - at for pair, at in zip(deserted, came, strict=True)]
    finally:
        for pair in awaited + deserted:
            pair.end()
    return {"waiting": waiting or None, "newcomer": newcomer}


def tables(found: dict[str, Any]) -> list[Table]:
    libraries, lease = found["libraries"], found["lease"]
    released = {"Waited up to 1 s": "short", "Waited 5 s": "long"}
    dead = {
        "One who waits, from the kill": "waiting",
        f"A newcomer, {LATER} leases later": "newcomer",
    }
    return [
        _table(
            "Seconds from a release until the next process has the lock", released, libraries,
            f"Default settings, {found['latency_ms']:g} ms. dyndbmutex never waits.",
        ),
        _table(
            "Seconds until a dead holder's lock is had", dead, libraries,
            f"The lease is {lease:g} s, and the holder is killed {lease / 4:g} s after it took the lock."
            " dyndbmutex never waits.",
        ),
    ]  # fmt: skip


def _table(title: str, kinds: dict[str, str], libraries: dict[str, Any], note: str) -> Table:
    columns = ["Library"]
    for shown in kinds:
        columns += [f"{shown}: median", "max", "n"]

    def cells(each: dict[str, Any]) -> list[str]:
        shown = []
        for kind in kinds.values():
            seconds = each[kind]
            shown += (
                [number(median(seconds)), number(max(seconds)), str(len(seconds))]
                if seconds
                else ["-", "-", "0"]
            )
        return shown

    return Table(title, columns, rows_of(libraries, cells, len(columns)), note)
