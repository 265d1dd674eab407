"""Other locks on DynamoDB, and ours, under the same fault injection: what each violates, and how long a dead
holder's lock stays closed.

    python -m dev.peers --python .venv-peers/bin/python --seed 1 --seconds 60

The peers are no dependency: they live in an environment of their own, and each is used as its README shows.
"""

from typing import Any, NamedTuple


class Library(NamedTuple):
    """One that is tried.

    Attributes:
        name: As its package is called.
        keys: Of its lock table, all strings: the partition key, and the sort key if there is one.
        adapter: The module here that holds it, and its class.
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


def create_table(client: Any, table: str, keys: tuple[str, ...]) -> None:
    """Create a table on demand, all of whose keys are strings."""
    client.create_table(
        TableName=table,
        KeySchema=[
            {"AttributeName": key, "KeyType": kind}
            for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
        ],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        BillingMode="PAY_PER_REQUEST",
    )
