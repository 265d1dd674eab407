"""Benchmark: what this library and other locks on DynamoDB cost in requests, capacity units, CPU, time and memory.

    .venv-peers/bin/python -m dev.bench

Ours is compared with bare boto3, which sends the same two conditional writes by hand and so is the
floor, and with other locks on DynamoDB. A proxy adds the latency of a network and counts the requests, which
do not depend on the engine.

`scenarios` has a module for each scenario, `libraries` calls all locks in the same way, `turns` has the processes that want
one lock, `wire` counts, `tables` shows the figures. This module has what they share.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

ROOT = Path(__file__).parents[2]

FLOOR = "bare boto3"
DISPATCH = "PynamoDB's dispatch"
UPDATE = "PynamoDB's update()"
BY_HAND = (DISPATCH, UPDATE)
"""The floor's two writes, sent by PynamoDB."""

OURS = "pynamodb-mutex"
FAIR = f"{OURS}, fair"
HINTED = f"{OURS}, fair, hints"
PYTHON_CLIENT = "python-dynamodb-lock"
BLOCK_LOCK = "dynamodblock"
DYNDB_MUTEX = "dyndbmutex"
WAITERS = (PYTHON_CLIENT, BLOCK_LOCK)
PEERS = (*WAITERS, DYNDB_MUTEX)
"""The other libraries. Those but the last wait for a lock that is held."""

LATENCY = 0.005
"""Seconds that the proxy adds to each request, where a scenario does not compare latencies."""


T = TypeVar("T")


def table_of(name: str) -> str:
    """Return the name of a library's table; that of the floor for what sends the same writes."""
    name = FLOOR if name in BY_HAND else name
    return f"bench-{name.replace(' ', '-')}"


class Setting(NamedTuple):
    """What the scenarios run on, and how much of them.

    Attributes:
        engine_url: URL of the engine.
        libraries: Names of the libraries that are installed.
        quick: Whether to run everything at tiny sizes, only to see whether it runs.
    """

    engine_url: str
    libraries: tuple[str, ...]
    quick: bool

    def those(self, *names: str) -> list[str]:
        """Return those of some libraries that are installed."""
        return [name for name in names if name in self.libraries]


def in_turns(
    names: Iterable[str], rounds: int, measure: Callable[[str, int], T]
) -> dict[str, list[T]]:
    """Measure libraries, which take turns in each round; return what was found in each round, by name."""
    found: dict[str, list[T]] = {name: [] for name in names}
    for turn in range(rounds):
        for name, so_far in found.items():
            so_far.append(measure(name, turn))
    return found


def median_ratio(own: list[dict[str, Any]], floor: list[dict[str, Any]], what: str) -> float:
    """Return by how much a figure is larger than that of the floor in the same round, by the median of the rounds."""
    return median(mine[what] / least[what] for mine, least in zip(own, floor, strict=True))
