"""The floor: the least that a lock like ours can cost, written by hand.

It sends the same two conditional writes as this library, with the same attributes and conditions, by boto3's client
as it is. It does not renew, wait or retry. A test compares its requests with ours.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from dev.bench import FLOOR, Library, table_of

_DAY = 86_400
_TAKE = {
    "ConditionExpression": (
        "(((attribute_not_exists (#0) OR #0 < :0) AND (attribute_not_exists (#1) OR #1 <> :1)) AND"
        " (((attribute_not_exists (#2) OR (attribute_type (#1, :2) AND #3 BETWEEN :3 AND :4)) AND"
        " (attribute_not_exists (#4) AND attribute_not_exists (#5))) AND (attribute_not_exists (#6) OR"
        " attribute_type (#6, :5))))"
    ),
    "UpdateExpression": (
        "SET #7 = if_not_exists (#6, :6), #1 = :7, #6 = :8, #8 = :9, #0 = :10,"
        " #9 = if_not_exists (#10, :11), #3 = if_not_exists (#3, :12) + :13,"
        " #11 = if_not_exists (#11, :14)"
    ),
    "ExpressionAttributeNames": {
        "#0": "expires_at", "#1": "token", "#2": "key", "#3": "version",
        "#4": "recordVersionNumber", "#5": "closed", "#6": "owner", "#7": "abandoned_by",
        "#8": "lease", "#9": "ttl", "#10": "kept_until", "#11": "writes",
    },
    "ReturnValues": "ALL_NEW",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}  # fmt: skip
_RELEASE = {
    "ConditionExpression": "((#0 = :0 AND #1 = :1) AND attribute_exists (#2))",
    "UpdateExpression": "SET #3 = :2, #4 = if_not_exists (#5, :3) REMOVE #2, #6, #7",
    "ExpressionAttributeNames": {
        "#0": "token", "#1": "version", "#2": "expires_at", "#3": "free_since", "#4": "ttl",
        "#5": "kept_until", "#6": "owner", "#7": "lease",
    },
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}  # fmt: skip


class Floor(Library):
    """A lock that is two requests of boto3."""

    def __init__(self, lease: float | None = None) -> None:
        import boto3

        self._lease = lease or 30.0
        self._client = boto3.client("dynamodb")

    def take(self, key: str) -> Any:
        now = time.time()
        token = uuid.uuid4().hex
        item = self._client.update_item(
            TableName=table_of(FLOOR),
            Key={"key": {"S": key}},
            ExpressionAttributeValues={
                ":0": {"N": f"{now:.3f}"},
                ":1": {"S": token},
                ":2": {"S": "S"},
                ":3": {"N": "0"},
                ":4": {"N": str(2**63 - 1)},
                ":5": {"S": "S"},
                ":6": {"S": ""},
                ":7": {"S": token},
                ":8": {"S": "bench:1:MainThread"},
                ":9": {"N": f"{self._lease:.3f}"},
                ":10": {"N": f"{now + self._lease:.3f}"},
                ":11": {"N": str(int(now + 7 * _DAY))},
                ":12": {"N": str(int(now * 1000))},
                ":13": {"N": "1"},
                ":14": {"N": "0"},
            },
            **_TAKE,
        )["Attributes"]
        return key, token, item["version"]

    def release(self, lock: Any) -> None:
        key, token, version = lock
        now = time.time()
        self._client.update_item(
            TableName=table_of(FLOOR),
            Key={"key": {"S": key}},
            ExpressionAttributeValues={
                ":0": {"S": token},
                ":1": version,
                ":2": {"N": f"{now:.3f}"},
                ":3": {"N": str(int(now + 7 * _DAY))},
            },
            **_RELEASE,
        )
