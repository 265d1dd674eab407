"""Capacity units that DynamoDB charges for a request, by its rules for items that are smaller than 1 KB.

They follow from the request alone: a refused write costs as much as an applied one.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Units(NamedTuple):
    """Write and read capacity units of one request."""

    write: float = 0.0
    read: float = 0.0


_FREE = {
    "CreateTable",
    "DescribeTable",
    "DescribeTimeToLive",
    "UpdateTimeToLive",
    "DescribeEndpoints",
}
"""Operations that cost no units."""


class UnknownOperationError(ValueError):
    """The units of an operation are not known here."""


def units(operation: str, body: dict[str, Any]) -> Units:
    """Return the units of a request.

    Raises:
        UnknownOperationError: If they are not known. It must not count as free.
    """
    match operation:
        case "PutItem" | "UpdateItem" | "DeleteItem":
            return Units(write=1)
        case "TransactWriteItems":
            return Units(write=2 * len(body["TransactItems"]))
        case "GetItem" | "Query" | "Scan":
            return Units(read=_of_a_read(body))
        case "BatchGetItem":
            tables = body["RequestItems"].values()
            return Units(read=sum(len(each["Keys"]) * _of_a_read(each) for each in tables))
        case _ if operation in _FREE:
            return Units()
    raise UnknownOperationError(operation)


def _of_a_read(body: dict[str, Any]) -> float:
    return 1.0 if body.get("ConsistentRead") else 0.5
