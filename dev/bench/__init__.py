"""Benchmark: what this library and other locks on DynamoDB cost in requests, capacity units, CPU, time and memory.

    python -m dev.bench --python .venv-peers/bin/python

Ours is compared with bare boto3, which sends the same two conditional writes by hand and so is the
floor, and with other locks on DynamoDB. A proxy adds the latency of a network and counts the requests, which
do not depend on the engine.

`scenarios` has a module for each scenario, `libraries` calls all locks in the same way, `wire` and `proxy` count,
`tables` and `charts` show the figures. This module has the names that they share.
"""

from typing import NamedTuple

FLOOR = "bare boto3"
OURS = "pynamodb-mutex"
FAIR = f"{OURS}, fair"
PYTHON_CLIENT = "python-dynamodb-lock"
BLOCK_LOCK = "dynamodblock"
DYNDB_MUTEX = "dyndbmutex"
PEERS = (PYTHON_CLIENT, BLOCK_LOCK, DYNDB_MUTEX)


class Setting(NamedTuple):
    """What the scenarios run on, and how much of them.

    Attributes:
        engine_url: URL of the engine.
        libraries: Names of the libraries that are installed.
        quick: Whether to run everything at tiny sizes, only to see whether it runs.
        full: Whether to measure all sizes, even those that take long.
    """

    engine_url: str
    libraries: tuple[str, ...]
    quick: bool
    full: bool = False

    def those(self, *names: str) -> list[str]:
        """Return those of some libraries that are installed."""
        return [name for name in names if name in self.libraries]


def failure(error: BaseException) -> dict[str, str]:
    """Return the entry of a library or run that could not be measured, with the reason."""
    return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def engine_title(engine: str) -> str:
    """Return the name of an engine for people; one that was running before can only be DynamoDB Local."""
    return "the embedded engine" if engine == "embedded" else "DynamoDB Local"
