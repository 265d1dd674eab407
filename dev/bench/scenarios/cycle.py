"""Scenario: acquire and release a lock that nobody else wants, again and again.

The libraries take turns in one process, each with a block of cycles in each round. The cost of a block is divided by
that of the floor in the same round, so that a machine that is slow for a while is slow for all.
"""

from __future__ import annotations

import time
from statistics import median, quantiles
from typing import Any, NamedTuple

from dev.bench import FLOOR, Setting, failure
from dev.bench.libraries import made
from dev.bench.tables import Table, number, rows_of, times
from dev.bench.wire import Wire, wired


class Sizes(NamedTuple):
    """Sizes of the scenario.

    Attributes:
        rounds: Number of rounds and of cycles in each block, by latency in ms.
        warm: Number of cycles before each block that are not measured.
    """

    rounds: dict[int, tuple[int, int]]
    warm: int = 10


FULL = Sizes({0: (25, 30), 5: (6, 15), 20: (5, 6)})
QUICK = Sizes({0: (3, 5), 5: (2, 2), 20: (2, 1)}, warm=2)


def measure(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    failed: dict[str, Any] = {}
    blocks: dict[str, dict[int, list[dict[str, float]]]] = {name: {} for name in setting.libraries}
    with wired(setting.engine_url) as wire:
        for latency, (rounds, cycles) in sizes.rounds.items():
            for _ in range(rounds):
                for name in setting.libraries:
                    if name in failed:
                        continue
                    try:
                        block = _block(name, wire, latency / 1000, cycles, sizes.warm)
                    except Exception as error:
                        failed[name] = failure(error)
                    else:
                        blocks[name].setdefault(latency, []).append(block)
    return {
        "libraries": {
            name: failed.get(name) or _summary(blocks[name], blocks[FLOOR])
            for name in setting.libraries
        }
    }


def _block(name: str, wire: Wire, latency: float, cycles: int, warm: int) -> dict[str, float]:
    wire.set(0)
    library = made(name)
    try:
        for _ in range(warm):
            library.release(library.take("cycle"))
        wire.set(latency)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(cycles):
            library.release(library.take("cycle"))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return {"cpu": cpu / cycles, "wall": wall / cycles, **wire.counted().per(cycles)}
    finally:
        library.close()


def _summary(
    own: dict[int, list[dict[str, float]]], floor: dict[int, list[dict[str, float]]]
) -> dict[str, Any]:
    first = own[0][-1]
    cpu = _against(own[0], floor[0], "cpu")
    return {
        **{key: first[key] for key in ("requests", "wcu", "rcu", "operations")},
        "cpu": cpu,
        "wall": {str(latency): _against(own[latency], floor[latency], "wall") for latency in own},
    }


def _against(
    own: list[dict[str, float]], floor: list[dict[str, float]], what: str
) -> dict[str, Any]:
    """Compare the CPU or wall time of blocks with that of the floor in the same rounds."""
    ratios = [mine[what] / least[what] for mine, least in zip(own, floor, strict=False)]
    low, _, high = quantiles(ratios, n=4)
    return {
        "ms": 1000 * median(each[what] for each in own),
        "ratio": median(ratios),
        "ratio_quartiles": [low, high],
        "rounds": len(ratios),
    }


def tables(found: dict[str, Any]) -> list[Table]:
    return [_costs(found["libraries"]), _walls(found["libraries"])]


def _costs(libraries: dict[str, Any]) -> Table:
    columns = [
        "Take and release",
        "Requests",
        "WCU",
        "RCU",
        "CPU, ms",
        "Of the floor's",
        "Middle half",
    ]

    def cells(each: dict[str, Any]) -> list[str]:
        cpu = each["cpu"]
        low, high = map(times, cpu["ratio_quartiles"])
        counts = [number(each[what]) for what in ("requests", "wcu", "rcu")]
        return [*counts, number(cpu["ms"]), times(cpu["ratio"]), f"{low} to {high}"]

    note = (
        "The floor sends the same two writes as we do, by hand. CPU is that of the client process; its"
        " ratio is the median over rounds in which all took turns, and the half of them in the middle."
    )
    rows = rows_of(libraries, cells, len(columns))
    return Table("Costs of a lock that nobody else wants", columns, rows, note)


def _walls(libraries: dict[str, Any]) -> Table:
    latencies = next((list(each["wall"]) for each in libraries.values() if "wall" in each), [])
    columns = ["Take and release"]
    for latency in latencies:
        columns += [f"{latency} ms: ms", "of the floor's"]

    def cells(each: dict[str, Any]) -> list[str]:
        pairs = [(number(at["ms"]), times(at["ratio"])) for at in each["wall"].values()]
        return [cell for pair in pairs for cell in pair]

    note = (
        "By the latency that is added to each request. Medians; the engine's own time is in them."
    )
    rows = rows_of(libraries, cells, len(columns))
    return Table("Time of a lock that nobody else wants", columns, rows, note)
