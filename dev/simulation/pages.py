"""Evaluates Query and Scan: the rows of a table or of an index, page by page.

`storage` returns the rows in order, and `expressions` evaluates conditions and filters. Reads by key are in `table`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from dev.simulation.expressions import Condition, Expressions, Values, expressions_of, shown
from dev.simulation.storage import Index, Key, Table
from dev.simulation.values import Item, canonical_item, check_known, invalid, size_of_item

_LARGEST = 1024 * 1024
_READ_UNIT = 4096

_PAGED = {
    "ConsistentRead",
    "ExclusiveStartKey",
    "ExpressionAttributeNames",
    "ExpressionAttributeValues",
    "FilterExpression",
    "IndexName",
    "Limit",
    "ProjectionExpression",
    "ReturnConsumedCapacity",
    "Select",
    "TableName",
}
_QUERY = _PAGED | {"KeyConditionExpression", "ScanIndexForward"}
_SCAN = _PAGED | {"Segment", "TotalSegments"}
_OF_KEYS = {"=", "<", "<=", ">", ">=", "BETWEEN", "begins_with"}


def scan(table: Table, request: Mapping[str, Any], as_of: int | None) -> dict[str, Any]:
    """Answer a Scan: rows in the order of their keys; with segments, those of one of them."""
    check_known("Scan", request, _SCAN)
    index, late = _opened(table, request, as_of)
    expressions, values = expressions_of(request)
    rows = table.in_order(index, late)
    segments = request.get("TotalSegments", 1)
    if segments > 1:
        hash_key = next(iter(index.key))
        rows = [
            (place, item)
            for place, item in rows
            # not `hash`, which differs between processes, so that a seed would not play the same schedule again
            if zlib.crc32(repr(item[hash_key]).encode()) % segments == request["Segment"]
        ]
    return _Page(table, index, request).of(rows, expressions, values)


def query(table: Table, request: Mapping[str, Any], as_of: int | None) -> dict[str, Any]:
    """Answer a Query: rows of one hash key in the order of their range keys, or in the reverse order."""
    check_known("Query", request, _QUERY)
    index, late = _opened(table, request, as_of)
    expressions, values = expressions_of(request)
    condition, filtering = expressions.key_condition, expressions.filter
    if condition is None:
        raise invalid(
            "Either the KeyConditions or KeyConditionExpression parameter must be specified"
        )
    _check_key_condition(condition, index, values)
    keys = filtering.names.intersection(index.key) if filtering is not None else ()
    if keys:
        raise invalid(
            "Filter Expression can only contain non-primary key attributes: "
            f"Primary key attribute: {min(keys)}"
        )
    rows = [row for row in table.in_order(index, late) if condition.holds(row[1], values)]
    if not request.get("ScanIndexForward", True):
        rows.reverse()
    return _Page(table, index, request).of(rows, expressions, values)


def _opened(
    table: Table, request: Mapping[str, Any], as_of: int | None
) -> tuple[Index, int | None]:
    """Return the index that a request reads, and the number of writes as of which it reads; None for all writes."""
    index = table.indexes.get(request.get("IndexName"))
    if index is None:
        raise invalid(f"The table does not have the specified index: {request['IndexName']}")
    if not request.get("ConsistentRead"):
        return index, as_of
    if index.is_global:
        raise invalid("Consistent reads are not supported on global secondary indexes")
    return index, None


def _check_key_condition(condition: Condition, index: Index, values: Values) -> None:
    """Refuse a condition other than one equality of the hash key, and at most one comparison of the range key."""
    for operator in condition.operators:
        if operator not in _OF_KEYS:
            raise invalid(f"Invalid operator used in KeyConditionExpression: {operator}")
    named = {conjunct.name: conjunct for conjunct in condition.conjuncts}
    if len(named) < len(condition.conjuncts):
        raise invalid("KeyConditionExpressions must only contain one condition per key")
    hash_key = next(iter(index.key))
    if hash_key not in named or not index.key.keys() >= condition.names:
        raise invalid("Query condition missed key schema element")
    if named[hash_key].operator != "=":
        raise invalid("Query key condition not supported")
    for name, conjunct in named.items():
        for placeholder in conjunct.placeholders:
            content = values[placeholder].get(index.key[name])
            if content is None:
                raise invalid(
                    "One or more parameter values were invalid: Condition parameter type does not "
                    "match schema type"
                )
            if not content:
                raise invalid(
                    "One or more parameter values are not valid. The AttributeValue for a key attribute "
                    f"cannot contain an empty string value. Key: {name}"
                )


class _Page:
    """One page of the answer to a Query or Scan.

    As in DynamoDB, Limit counts rows before the filter, and a full page has a LastEvaluatedKey even if no row follows.
    """

    def __init__(self, table: Table, index: Index, request: Mapping[str, Any]) -> None:
        self._table = table
        self._index = index
        self._request = request

    def of(
        self, rows: Sequence[tuple[Key, Item]], expressions: Expressions, values: Values
    ) -> dict[str, Any]:
        """Return the page that begins after the request's ExclusiveStartKey, or with the first row."""
        limit, filtering = self._request.get("Limit"), expressions.filter
        if limit is not None and limit < 1:
            raise invalid("Limit must be greater than or equal to 1")
        counts = self._request.get("Select") == "COUNT"
        if counts and expressions.projection is not None:
            raise invalid(
                "Cannot specify the ProjectionExpression when choosing to get only the Count"
            )
        ends = {**self._table.key, **self._index.key}
        start = self._request.get("ExclusiveStartKey")
        if start is not None:
            start = canonical_item(start)
            if {name: kind for name, value in start.items() for kind in value} != ends:
                raise invalid("The provided starting key is invalid")
            after = self._table.place(self._index, start)
            forward = self._request.get("ScanIndexForward", True)
            rows = [row for row in rows if (row[0] > after if forward else row[0] < after)]
        items: list[Item] = []
        scanned = size = 0
        answer: dict[str, Any] = {}
        for _, item in rows:
            seen = self._index.shown(item)
            scanned += 1
            size += size_of_item(seen)
            if filtering is None or filtering.holds(seen, values):
                items.append(shown(seen, expressions))
            if scanned == limit or size >= _LARGEST:
                answer["LastEvaluatedKey"] = {name: {**item[name]} for name in ends}
                break
        if not counts:
            answer["Items"] = items
        if self._request.get("ReturnConsumedCapacity", "NONE") != "NONE":
            units = max(1, -(-size // _READ_UNIT)) * (
                1.0 if self._request.get("ConsistentRead") else 0.5
            )
            answer["ConsumedCapacity"] = {"TableName": self._table.name, "CapacityUnits": units}
        return answer | {"Count": len(items), "ScannedCount": scanned}
