"""What DynamoDB charges for a request, by rule: our items are smaller than 1 KB.

A refused write costs what an applied one does. Only the request is looked at, never the answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Units(NamedTuple):
    """Capacity units of one request."""

    write: float = 0.0
    read: float = 0.0


_FREE = {
    "CreateTable",
    "DescribeTable",
    "DescribeTimeToLive",
    "UpdateTimeToLive",
    "DescribeEndpoints",
}


class UnknownOperationError(ValueError):
    """A request whose price nobody has written down here."""


def units(operation: str, body: dict[str, Any]) -> Units:
    """Return what a request costs.

    Raises:
        UnknownOperationError: Rather than count it as free.
    """
    match operation:
        case "PutItem" | "UpdateItem" | "DeleteItem":
            return Units(write=1)
        case "TransactWriteItems":
            return Units(write=2 * len(body["TransactItems"]))
        case "BatchExecuteStatement":
            return Units(write=len(body["Statements"]))
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
