"""What locks cost, side by side: requests, capacity units, CPU, time, memory, growth.

    python -m dev.bench --python .venv-peers/bin/python

Ours is compared with bare boto3, which sends the same two conditional writes by hand and so is the
floor, and with other locks on DynamoDB. A proxy adds the latency of a network and counts, so that
requests are those of production, whatever the engine.
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
    """Where the scenarios run.

    Attributes:
        engine_url: Where the engine answers.
        libraries: The names of those that are there.
        quick: Whether to try everything at tiny sizes.
        full: Whether to measure all sizes, where that takes long.
    """

    engine_url: str
    libraries: tuple[str, ...]
    quick: bool
    full: bool = False

    def those(self, *names: str) -> list[str]:
        """Which of these are there."""
        return [name for name in names if name in self.libraries]


def failure(error: BaseException) -> dict[str, str]:
    """What a library's row says that could not be measured."""
    return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def engine_title(engine: str) -> str:
    """Name an engine in a text; one that was running before can only be DynamoDB Local."""
    return "the embedded engine" if engine == "embedded" else "DynamoDB Local"
