"""The rows of one table of the simulated DynamoDB: their keys, earlier versions, and indexes.

Requests are evaluated in `table` and `pages`, which call this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dev.simulation.values import Item, UnfitError, Value, canonical_number, decimal_of, invalid

Key = tuple[Any, ...]
"""Values of a row's key attributes, under which the row is stored."""

_LONGEST_HASH = 2048
_LONGEST_RANGE = 1024


class Index(NamedTuple):
    """A secondary index, or the table itself, as the source of a Query or Scan.

    Attributes:
        name: Name of the index; None for the table itself.
        key: Kinds of its key attributes, by name, the hash key first.
        projected: Names of the attributes that it contains; None for all.
        is_global: Whether it is a global secondary index, which has no consistent reads.
    """

    name: str | None
    key: dict[str, str]
    projected: frozenset[str] | None
    is_global: bool

    def has(self, item: Item) -> bool:
        """Return whether the index contains a row: one that has all of its key attributes."""
        return all(kind in item.get(name, ()) for name, kind in self.key.items())

    def shown(self, item: Item) -> Item:
        """Return the attributes of a row that the index contains."""
        if self.projected is None:
            return item
        return {name: value for name, value in item.items() if name in self.projected}


class Table:
    """A table.

    Args:
        request: The parameters of CreateTable.
        kept: Number of versions of each row to keep for late reads.

    Attributes:
        name: Name of the table.
        key: Kinds of its key attributes, by name, the hash key first.
        description: The answer to DescribeTable.
        time_to_live: The TimeToLiveSpecification that was set last; empty if there is none.
        indexes: Its indexes by name; None is the name of the table itself.
        rows: The present rows by key. A row is never changed: a write replaces it.
    """

    def __init__(self, request: Mapping[str, Any], kept: int) -> None:
        self.name: str = request["TableName"]
        kinds = {
            each["AttributeName"]: each["AttributeType"] for each in request["AttributeDefinitions"]
        }
        self.key = _key(request, kinds)
        self.description = _description(request)
        self.time_to_live: dict[str, Any] = {}
        self.indexes: dict[str | None, Index] = {None: Index(None, self.key, None, is_global=False)}
        for scope in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
            for each in request.get(scope, ()):
                key = _key(each, kinds)
                projection = each["Projection"]
                projected = None
                if projection["ProjectionType"] != "ALL":
                    projected = frozenset(
                        (*self.key, *key, *projection.get("NonKeyAttributes", ()))
                    )
                name = each["IndexName"]
                self.indexes[name] = Index(name, key, projected, scope.startswith("Global"))
        # the key attributes of all indexes, but for those of the table's own key, which are checked with that
        self._indexed = [
            (index.name, name, kind)
            for index in self.indexes.values()
            for name, kind in index.key.items()
            if name not in self.key
        ]
        self.rows: dict[Key, Item] = {}
        self._versions: dict[Key, deque[tuple[int, Item | None]]] = {}
        self._kept = kept

    # -- keys -----------------------------------------------------------------------------------

    def key_of(self, key: Mapping[str, Value], *, whole: bool = False) -> Key:
        """Return the key of a row in the form under which the row is stored.

        Args:
            key: The key attributes; in a put, the whole row.
            whole: Whether this is the whole row.

        Raises:
            Refusal: If it is no key of this table.
        """
        if not whole and len(key) != len(self.key):
            raise invalid("The provided key element does not match the schema")
        longest = _LONGEST_HASH
        found = []
        for name, kind in self.key.items():
            if name not in key:
                raise invalid("One of the required keys was not given a value")
            content = key[name].get(kind)
            if content is None:
                raise UnfitError("One or more parameter values were invalid: Type mismatch for key")
            if not content:
                raise invalid(
                    "One or more parameter values are not valid. The AttributeValue for a key attribute "
                    f"cannot contain an empty string value. Key: {name}"
                )
            if kind == "N":
                content = canonical_number(content)
            elif len(content) > longest or (
                # a character has up to four bytes
                kind == "S" and 4 * len(content) > longest and len(content.encode()) > longest
            ):
                raise invalid(
                    f"Hash primary key values must be under {_LONGEST_HASH} bytes, and range primary "
                    f"key values must be under {_LONGEST_RANGE} bytes"
                )
            found.append(content)
            longest = _LONGEST_RANGE
        return tuple(found)

    def named(self, key: Key) -> Item:
        """Return a row's key as typed attributes."""
        return {
            name: {kind: part} for (name, kind), part in zip(self.key.items(), key, strict=True)
        }

    def check_indexed(self, item: Item) -> None:
        """Refuse a row that has a key attribute of an index with a value that the index cannot have."""
        for index, name, kind in self._indexed:
            value = item.get(name)
            if value is None:
                continue
            if kind not in value:
                raise UnfitError(
                    "One or more parameter values were invalid: Type mismatch for Index Key"
                )
            if not value[kind]:
                raise UnfitError(
                    "One or more parameter values are not valid. A value specified for a secondary "
                    "index key is not supported. The AttributeValue for a key attribute cannot contain "
                    f"an empty string value. IndexName: {index}, IndexKey: {name}"
                )

    # -- rows -----------------------------------------------------------------------------------

    def read(self, key: Key, as_of: int | None = None) -> Item | None:
        """Return a row, or None; with a number of writes, as it was after that write, or as the oldest version kept."""
        if as_of is None:
            return self.rows.get(key)
        versions = self._versions.get(key)
        if versions is None:
            return None
        known = (item for number, item in reversed(versions) if number <= as_of)
        return next(known, versions[0][1])

    def write(self, key: Key, item: Item | None, number: int) -> None:
        """Replace a row, or delete it if the new one is None; the number is that of the write, over all tables."""
        versions = self._versions.get(key)
        if versions is None:
            versions = self._versions[key] = deque([(0, None)], maxlen=self._kept)
        versions.append((number, item))
        if item is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = item

    def in_order(self, index: Index, as_of: int | None) -> list[tuple[Key, Item]]:
        """Return the rows in an index in its order, each with its sort key; as of a number of writes, None for all."""
        rows: Iterable[Item | None] = self.rows.values()
        if as_of is not None:
            rows = (self.read(key, as_of) for key in self._versions)
        found = [
            (self.place(index, item), item) for item in rows if item is not None and index.has(item)
        ]
        found.sort(key=lambda row: row[0])
        return found

    def place(self, index: Index, item: Item) -> Key:
        """Return the sort key of a row in an index: the index's key, followed by the table's."""
        return tuple(
            decimal_of(item[name]["N"]) if kind == "N" else item[name][kind]
            for key in ((index.key,) if index.name is None else (index.key, self.key))
            for name, kind in key.items()
        )


def _key(request: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, str]:
    """Return the kinds of the key attributes of a table or index by their names, the hash key first."""
    # HASH sorts before RANGE
    schema = sorted(request["KeySchema"], key=lambda each: str(each["KeyType"]))
    return {each["AttributeName"]: kinds[each["AttributeName"]] for each in schema}


def _description(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a table from the parameters of CreateTable."""
    described = {
        name: request[name]
        for name in (
            "TableName",
            "KeySchema",
            "AttributeDefinitions",
            "GlobalSecondaryIndexes",
            "LocalSecondaryIndexes",
        )
        if name in request
    }
    if "BillingMode" in request:
        described["BillingModeSummary"] = {"BillingMode": request["BillingMode"]}
    provisioned = {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0}
    return described | {
        "TableStatus": "ACTIVE",
        "TableArn": f"arn:aws:dynamodb:simulated:000000000000:table/{request['TableName']}",
        "ProvisionedThroughput": request.get("ProvisionedThroughput", provisioned),
    }
