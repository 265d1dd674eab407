"""Brings answers of an engine and of the table in memory into one form, so that they can be compared.

`replay` and the tests of the table use it. Which requests are compared is up to them.
"""

from __future__ import annotations

import json
from typing import Any

from botocore.exceptions import ClientError

from dev.simulation.table import Refusal
from dev.simulation.values import canonical_item

# parts of an answer that are not compared: texts for people, and the consumed capacity
BYWAYS = {"ConsumedCapacity", "ItemCollectionMetrics", "Message", "ResponseMetadata", "message"}


def response_of(refusal: Refusal) -> dict[str, Any]:
    """Return a refusal as the response that botocore's ClientError has for it."""
    response: dict[str, Any] = {"Error": {"Code": refusal.code}}
    if refusal.item is not None:
        response["Item"] = refusal.item
    if refusal.reasons is not None:
        response["CancellationReasons"] = refusal.reasons
    return response


def answer_of_engine(client: Any, operation: str, kwargs: dict[str, Any]) -> Any:
    """Send a request to an engine; return its answer or its refusal in the form to compare."""
    try:
        return comparable(client._make_api_call(operation, kwargs))
    except ClientError as error:
        return comparable(error.response)


def documented(answer: Any) -> Any:
    """Return an answer of the table in memory as DynamoDB Local gives it, where it deviates from the documentation.

    A transaction with an update that does not fit its row is cancelled according to the documentation, with a reason
    for each part. DynamoDB Local refuses it as invalid.
    """
    codes = [reason["Code"] for reason in answer.get("CancellationReasons", ())]
    return {"Error": {"Code": "ValidationException"}} if "ValidationError" in codes else answer


def comparable(answer: Any) -> Any:
    """Return an answer in the form to compare: numbers and sets canonical, rows sorted, without messages and costs."""
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
    """Return rows in canonical form, sorted: engines return those of a batch or scan in any order."""
    found = ({"M": canonical_item(row)} for row in rows)
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True, default=repr))
