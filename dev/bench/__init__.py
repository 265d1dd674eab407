"""Benchmark: what this library and other locks on DynamoDB cost in requests, capacity units, CPU, time and memory.

    python -m dev.bench --python .venv-peers/bin/python

Ours is compared with bare boto3, which sends the same two conditional writes by hand and so is the
floor, and with other locks on DynamoDB. A proxy adds the latency of a network and counts the requests, which
do not depend on the engine.

`scenarios` has a module for each scenario, `libraries` calls all locks in the same way, `wire` and `proxy` count,
`tables` and `charts` show the figures. This module has what they share.
"""

from typing import Any, NamedTuple, Protocol

FLOOR = "bare boto3"
OURS = "pynamodb-mutex"
FAIR = f"{OURS}, fair"
HINTED = f"{OURS}, fair, hints"
PYTHON_CLIENT = "python-dynamodb-lock"
BLOCK_LOCK = "dynamodblock"
DYNDB_MUTEX = "dyndbmutex"
PEERS = (PYTHON_CLIENT, BLOCK_LOCK, DYNDB_MUTEX)


def table_of(name: str) -> str:
    """Return the name of a library's table. Ours finds it in PYNAMODB_MUTEX_TABLE."""
    return f"bench-{name.replace(' ', '-')}"


class Library(Protocol):
    """A lock library in one process.

    Args:
        lease: Lease in seconds; None for the library's default.
    """

    def __init__(self, lease: float | None = None) -> None: ...

    def take(self, key: str) -> Any:
        """Acquire a lock, and wait for it if the library can; return it for `release`, None if it was not acquired."""
        ...

    def release(self, lock: Any) -> None:
        """Release a lock that `take` returned."""
        ...

    def held(self, lock: Any) -> bool:
        """Return whether the library believes that it holds a lock. Not all libraries can answer this."""
        ...

    def close(self) -> None:
        """End the threads of the library, if it has any."""


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
