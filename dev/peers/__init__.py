"""Other locks on DynamoDB, and ours, under the same fault injection.

Shows which guarantees each violates, and how long it takes until a dead holder's lock is acquired again.

    python -m dev.peers --python .venv-peers/bin/python --seed 1 --seconds 60

The other libraries are no dependency: they are installed in an environment of their own, and each is used as its
README shows.
"""

# The docstring is the text of --help. For readers of the code: the clients (`worker`) call the libraries through
# `adapters`, `java` and `ours`; `run` injects the faults, with dev.chaos; `judge` finds the figures in the history of a
# run, and `table` and `picture` show them.

from typing import Any, NamedTuple


class Library(NamedTuple):
    """A lock library.

    Attributes:
        name: Name of its package.
        keys: Key attributes of its lock table, all strings: the partition key, and the sort key if there is one.
        adapter: Module in this package that has its adapter, and the class there.
    """

    name: str
    keys: tuple[str, ...]
    adapter: tuple[str, str]


LIBRARIES = {
    library.name: library
    for library in (
        Library("pynamodb-mutex", ("key",), ("ours", "OurMutex")),
        Library("python-dynamodb-lock", ("lock_key", "sort_key"), ("adapters", "PythonClient")),
        Library("dynamodblock", ("lock_id",), ("adapters", "BlockLock")),
        Library("dyndbmutex", ("lockname",), ("adapters", "DyndbMutex")),
        Library("dynamodb-lock-client", ("key",), ("java", "JavaClient")),
    )
}
OURS, JAVA = "pynamodb-mutex", "dynamodb-lock-client"

KEY = "m0"
"""The one lock."""


def create_table(client: Any, table: str, keys: tuple[str, ...]) -> None:
    """Create a table that is billed on demand, whose keys are strings."""
    client.create_table(
        TableName=table,
        KeySchema=[
            {"AttributeName": key, "KeyType": kind}
            for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
        ],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        BillingMode="PAY_PER_REQUEST",
    )
