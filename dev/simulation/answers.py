"""Answers of an engine and of the table in memory, for comparison."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import ClientError

from dev.simulation.table import Refusal, Tables
from dev.simulation.values import canonical_item

# what an answer says besides: texts for people, and what it cost
BYWAYS = {"ConsumedCapacity", "ItemCollectionMetrics", "Message", "ResponseMetadata", "message"}


def answer_of(tables: Tables, operation: str, kwargs: dict[str, Any]) -> Any:
    """Send a request to the table in memory; return its answer, or its refusal, for comparison."""
    try:
        return comparable(tables.apply(operation, kwargs))
    except Refusal as refusal:
        return comparable(response_of(refusal))


def response_of(refusal: Refusal) -> dict[str, Any]:
    """Return a refusal as botocore has it in its error."""
    response: dict[str, Any] = {"Error": {"Code": refusal.code}}
    if refusal.item is not None:
        response["Item"] = refusal.item
    if refusal.reasons is not None:
        response["CancellationReasons"] = refusal.reasons
    return response


def answer_of_engine(client: Any, operation: str, kwargs: dict[str, Any]) -> Any:
    """Send a request to an engine; return its answer, or its refusal, for comparison."""
    try:
        return comparable(client._make_api_call(operation, kwargs))
    except ClientError as error:
        return comparable(error.response)


def documented(answer: Any) -> Any:
    """Let an update that does not fit its row in a transaction be refused as DynamoDB Local does it.

    As documented such a transaction is cancelled, with a reason for each part.
    """
    codes = [reason["Code"] for reason in answer.get("CancellationReasons", ())]
    return {"Error": {"Code": "ValidationException"}} if "ValidationError" in codes else answer


def comparable(answer: Any) -> Any:
    """Let numbers compare by value, and sets and rows without their order; leave out messages."""
    if isinstance(answer, list):
        return [comparable(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    made: dict[str, Any] = {}
    for name, value in answer.items():
        if name in {"Item", "Attributes"}:
            made[name] = canonical_item(value)
        elif name == "Items":
            made[name] = in_order(value)
        elif name == "Responses" and isinstance(value, dict):
            made[name] = {table: in_order(rows) for table, rows in value.items()}
        elif name not in BYWAYS:
            made[name] = comparable(value)
    return made


def in_order(rows: list[dict[str, Any]]) -> list[Any]:
    return sorted(({"M": canonical_item(row)} for row in rows), key=lambda row: repr(in_names(row)))


def in_names(value: Any) -> Any:
    """Sort a typed value's names, all the way down."""
    if isinstance(value, dict):
        return sorted((name, in_names(each)) for name, each in value.items())
    return value
