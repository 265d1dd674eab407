"""Which permissions the library's requests take: one list for `policy`, `doctor` and the tests."""

from __future__ import annotations

from typing import NamedTuple


class Role(NamedTuple):
    """What somebody does with a table, and the actions of IAM that it takes.

    Attributes:
        does: In a line.
        actions: Without the ``dynamodb:`` before them. A transaction takes those of what it is made of.
    """

    does: str
    actions: tuple[str, ...]


ROLES = {
    "locker": Role(
        "take and give back single locks, with renewal, waiting and guarded writes",
        ("GetItem", "UpdateItem"),
    ),
    "several": Role(
        "the same with for_keys, any_of and Semaphore, and with many locks renewed by one request",
        ("BatchGetItem", "GetItem", "PartiQLUpdate", "UpdateItem"),
    ),
    "deleter": Role(
        "as locker, with delete_on_release=True",
        ("DeleteItem", "GetItem", "UpdateItem"),
    ),
    "rows": Role(
        "lock, read and write the rows of a RowLockMixin model in --table",
        ("BatchGetItem", "DeleteItem", "GetItem", "PartiQLUpdate", "PutItem", "UpdateItem"),
    ),
    "lock-model": Role(
        "the same rows, where --table is their lock_model: the permissions on it",
        ("BatchGetItem", "ConditionCheckItem", "GetItem", "PartiQLUpdate", "UpdateItem"),
    ),
    "viewer": Role("look at locks", ("BatchGetItem", "GetItem", "Scan")),
    "operator": Role(
        "look at locks and the table, and break locks",
        ("BatchGetItem", "DescribeTable", "DescribeTimeToLive", "GetItem", "Scan", "UpdateItem"),
    ),
    "admin": Role(
        "create the table and delete it",
        ("CreateTable", "DeleteTable", "DescribeTable", "DescribeTimeToLive", "UpdateTimeToLive"),
    ),
}


class Use(NamedTuple):
    """What in the library takes an action on the lock table.

    Attributes:
        by: What does not work without it.
        role: The least role that has it.
        vital: Whether no lock can be taken without it.
    """

    by: str
    role: str
    vital: bool = False


USES = {
    "GetItem": Use("every lock", "locker", vital=True),
    "UpdateItem": Use("every lock", "locker", vital=True),
    "PartiQLUpdate": Use(
        "renewing many locks by one request; without it each is renewed by its own", "several"
    ),
    "BatchGetItem": Use("Mutex.for_keys, Mutex.any_of and Semaphore", "several"),
    "ConditionCheckItem": Use("rows whose lock_model is this table", "lock-model"),
    "DeleteItem": Use("delete_on_release=True", "deleter"),
    "Scan": Use("LockItem.held(), and the look at the table's rows here", "viewer"),
    "DescribeTable": Use("LockItem.create_table(), and half of the checks here", "operator"),
    "DescribeTimeToLive": Use("LockItem.create_table(), and a check here", "operator"),
}
"""The actions that `doctor` tries. Those that create, change and delete tables cannot be tried harmlessly."""
