"""The floor: what a lock cannot do without, written by hand.

The same two conditional writes as ours, the same attributes and conditions, by boto3's client as it
is; no renewal, no wait, no repeat.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

import boto3

from benchmarks import FLOOR
from benchmarks.libraries import Library, table_of

_DAY = 86_400
_TAKE = {
    "ConditionExpression": (
        "((attribute_not_exists (#0) OR #0 < :0) AND (attribute_not_exists (#1) OR #1 <> :1))"
    ),
    "UpdateExpression": (
        "SET #2 = if_not_exists (#3, :2), #1 = :3, #3 = :4, #4 = :5, #0 = :6, #5 = :7, #6 = :8,"
        " #7 = if_not_exists (#7, :9) + :10"
    ),
    "ExpressionAttributeNames": {
        "#0": "expires_at", "#1": "token", "#2": "abandoned_by", "#3": "owner", "#4": "lease",
        "#5": "ttl", "#6": "writes", "#7": "version",
    },
    "ReturnValues": "ALL_NEW",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}  # fmt: skip
_GIVE_BACK = {
    "ConditionExpression": "((#0 = :0 AND #1 = :1) AND attribute_exists (#2))",
    "UpdateExpression": "SET #3 = :2 REMOVE #2, #4, #5",
    "ExpressionAttributeNames": {
        "#0": "token", "#1": "version", "#2": "expires_at", "#3": "ttl", "#4": "owner",
        "#5": "lease",
    },
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}  # fmt: skip


class Floor(Library):
    """Two requests with boto3."""

    def __init__(self, lease: float | None = None) -> None:
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
                ":2": {"S": ""},
                ":3": {"S": token},
                ":4": {"S": "bench:1:MainThread"},
                ":5": {"N": f"{self._lease:.3f}"},
                ":6": {"N": f"{now + self._lease:.3f}"},
                ":7": {"N": str(int(now + 7 * _DAY))},
                ":8": {"N": "0"},
                ":9": {"N": str(int(now * 1000))},
                ":10": {"N": "1"},
            },
            **_TAKE,
        )["Attributes"]
        return key, token, item["version"]

    def give_back(self, lock: Any) -> None:
        key, token, version = lock
        self._client.update_item(
            TableName=table_of(FLOOR),
            Key={"key": {"S": key}},
            ExpressionAttributeValues={
                ":0": {"S": token},
                ":1": version,
                ":2": {"N": str(int(time.time() + 7 * _DAY))},
            },
            **_GIVE_BACK,
        )
