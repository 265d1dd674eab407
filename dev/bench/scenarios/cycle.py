"""Scenario: acquire and release a lock that nobody else wants, again and again.

The libraries take turns in one process, each with a block of cycles in each round. The cost of a block is divided by
that of the floor in the same round, so that a machine that is slow for a while is slow for all.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

from dev.bench import BY_HAND, FLOOR, Setting, in_turns, median_ratio
from dev.bench.libraries import made
from dev.bench.tables import Column, Table, named, number, table, times
from dev.bench.wire import Wire, wired

FULL = {0: (25, 30), 5: (6, 15), 20: (5, 6)}
"""Number of rounds and of cycles in each block, by latency in ms."""
QUICK = {0: (3, 5), 5: (2, 2), 20: (2, 1)}

WARM = 5
"""Cycles before each block that are not measured."""


def measure(setting: Setting) -> dict[str, Any]:
    blocks, libraries = {}, (*BY_HAND, *setting.libraries)
    for latency, (rounds, cycles) in (QUICK if setting.quick else FULL).items():
        with wired(setting.engine_url, latency / 1000) as wire:
            block = partial(_block, wire, cycles)
            blocks[str(latency)] = in_turns(libraries, rounds, block)
    return {"libraries": {name: _summary(name, blocks) for name in libraries}}


def _block(wire: Wire, cycles: int, name: str, _: int) -> dict[str, float]:
    library = made(name)

    def cycle() -> None:
        library.release(library.take("cycle"))

    try:
        for _ in range(WARM):
            cycle()
        return wire.cost(cycle, cycles)
    finally:
        library.close()


def _summary(name: str, blocks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    def against(latency: str, what: str) -> dict[str, Any]:
        """Compare the CPU or wall time of blocks with that of the floor in the same rounds."""
        own, floor = blocks[latency][name], blocks[latency][FLOOR]
        ms = 1000 * median(each[what] for each in own)
        return {"ms": ms, "ratio": median_ratio(own, floor, what), "rounds": len(own)}

    return {
        **{key: blocks["0"][name][-1][key] for key in ("requests", "wcu", "rcu")},
        "cpu": against("0", "cpu"),
        "wall": {latency: against(latency, "wall") for latency in blocks},
    }


def tables(found: dict[str, Any]) -> list[Table]:
    libraries, first = found["libraries"], ["Take and release"]
    walls: list[Column] = []
    for at in next((each["wall"] for each in libraries.values()), ()):
        walls += [
            (f"{at} ms: ms", lambda each, at=at: number(each["wall"][at]["ms"])),
            ("of the floor's", lambda each, at=at: times(each["wall"][at]["ratio"])),
        ]
    return [
        table(
            "Costs of a lock that nobody else wants", first,
            [
                ("Requests", "requests"), ("WCU", "wcu"), ("RCU", "rcu"),
                ("CPU, ms", lambda each: number(each["cpu"]["ms"])),
                ("Of the floor's", lambda each: times(each["cpu"]["ratio"])),
            ],
            named(libraries),
            "The floor sends the same two writes as we do, by hand; so do PynamoDB's dispatch, beneath its models, and"
            " update() of one of its models. CPU is that of the client process; its ratio is the median over rounds in"
            " which all took turns.",
        ),
        table(
            "Time of a lock that nobody else wants", first, walls, named(libraries),
            "By the latency that is added to each request. Medians; the engine's own time is in them.",
        ),
    ]  # fmt: skip
