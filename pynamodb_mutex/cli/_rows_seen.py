"""Rows in the lock table that this library did not write, or would not have written so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._protocol.claim import YEAR_10000
from pynamodb_mutex._protocol.messages import shown
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.cli._findings import Finding, ok, problem, unchecked, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex.cli._asking import Reply
    from pynamodb_mutex.models import LockItem

SAMPLE = 500
"""Rows that are looked at, at most."""

_SHOWN = 3

_OTHERS = {
    "python-dynamodb-lock": {"owner_name", "lease_duration", "record_version_number"},
    "the DynamoDB Lock Client for Java, dynamolock (Go) or a relative": {
        "ownerName",
        "recordVersionNumber",
    },
    "dynamodblock": {"owner_id", "ttl_precise"},
    "dyndb-mutex": {"holder", "expire_ts"},
    "ShedLock": {"lockUntil", "lockedAt", "lockedBy"},
}
"""Attributes that other libraries write, whatever the key is called."""


def rows_seen(model: type[LockItem], reply: Reply) -> Iterator[Finding]:
    """Judge rows by the answer to a Scan."""
    if reply.code is not None:
        yield unchecked("rows", reply.told)
        return
    reader = _Reader(model)
    items = reply.data["Items"]
    more = "LastEvaluatedKey" in reply.data
    seen = f"{'the first ' if more else ''}{len(items)} row{'' if len(items) == 1 else 's'}"
    broken: dict[str, list[RawItem]] = {}
    others: dict[str, list[RawItem]] = {}
    shared: dict[str, list[RawItem]] = {}
    for item in items:
        library = next((name for name, marks in _OTHERS.items() if marks <= set(item)), None)
        ours = reader.is_ours(item)
        if library is not None:
            (shared if ours else others).setdefault(library, []).append(item)
        elif ours:
            for fault in reader.faults(item):
                broken.setdefault(fault, []).append(item)
    locks = sum(map(reader.is_ours, items))
    if not (broken or others or shared):
        yield ok("rows", f"{seen} read: {locks} of locks, nothing wrong")
    for library, found in shared.items():
        what = f"{reader.count(found)} locked by {library} too: the two do not keep each other out"
        yield problem(
            "rows", what, "let one library lock a key, and delete the rows when neither does"
        )
    for library, found in others.items():
        what = f"{reader.count(found)} in the format of {library}, which does not see our locks, nor we its"
        advice = "use a table of their own for these locks; delete the rows if nothing writes them any more"
        yield warning("rows", what, advice)
    for fault, found in broken.items():
        what = f"{reader.count(found)} {fault}"
        yield warning(
            "rows", what, "find what else writes them; pynamodb-mutex show KEY shows such a row"
        )


class _Reader:
    """Reads rows by the names that a model stores them under."""

    def __init__(self, model: type[LockItem]) -> None:
        self._fault = current_process().store(model).layout.fault
        self._key = model.key.attr_name
        self._token = model.token.attr_name
        self._version = model.version.attr_name
        self._lease = model.lease.attr_name
        self._ends = model.expires_at.attr_name
        self._ttl = model.ttl.attr_name

    def is_ours(self, item: RawItem) -> bool:
        """Say whether a row carries a claim, or what is left of one, or looks as if."""
        return (self._token in item and self._version in item) or self._ends in item

    def faults(self, item: RawItem) -> Iterator[str]:
        """Say what this library would not have written."""
        fault = self._fault(item)
        if fault is not None:
            yield f"whose {fault}: no lock to this library"
            return
        claimed = self._ends in item
        if claimed and self._lease not in item:
            yield f"with a claim, but without {self._lease!r}"
        if self._ttl not in item:
            return
        ttl = _number(item[self._ttl])
        if ttl is None:
            yield f"whose {self._ttl!r} is not a number"
        elif ttl >= YEAR_10000:
            yield f"whose {self._ttl!r} is not in seconds: it is after the year 9999"
        elif claimed and ttl < float(item[self._ends]["N"]):
            yield f"whose {self._ttl!r} is before {self._ends!r}: DynamoDB may delete a lock that is held"

    def count(self, items: list[RawItem]) -> str:
        """Say how many rows, and name the first few, unless the table's key is called otherwise."""
        text = f"{len(items)} row{'' if len(items) == 1 else 's'}"
        keys = [shown(*item[self._key].values()) for item in items[:_SHOWN] if self._key in item]
        more = [] if len(items) <= _SHOWN else ["..."]
        return f"{text} ({', '.join(keys + more)})" if keys else text


def _number(typed: dict[str, Any]) -> float | None:
    return float(typed["N"]) if "N" in typed else None
