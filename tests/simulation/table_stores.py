"""Stores that hold the same rows: the table in memory, and DynamoDB Local."""

from __future__ import annotations

import uuid
from functools import cache
from typing import Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from dev.simulation.answers import BYWAYS
from dev.simulation.table import Refusal, Tables

SCHEMA = {
    "KeySchema": [{"AttributeName": "kk", "KeyType": "HASH"}],
    "AttributeDefinitions": [{"AttributeName": "kk", "AttributeType": "S"}],
    "BillingMode": "PAY_PER_REQUEST",
}
KEY = {"kk": {"S": "key"}}
REFUSED = "ConditionalCheckFailedException"
INVALID = "ValidationException"


def n(value: object) -> dict[str, str]:
    return {"N": str(value)}


def s(text: str) -> dict[str, str]:
    return {"S": text}


class Store(Protocol):
    name: str
    message: str  # of the last refusal

    def __call__(self, operation: str, **kwargs: Any) -> Any: ...


class InMemory:
    """The table in memory; refusals are returned as (code, message, more)."""

    name = "table"

    def __init__(self) -> None:
        self.message = ""
        self.tables = Tables()

    def __call__(self, operation: str, **kwargs: Any) -> Any:
        try:
            return self.tables.apply(operation, kwargs)
        except Refusal as refusal:
            self.message = refusal.message
            if refusal.reasons is not None:
                return refusal.code, [reason["Code"] for reason in refusal.reasons]
            return refusal.code, refusal.item


@cache
def client_of(endpoint: str) -> Any:
    """Return a client, which takes longer to make than a test."""
    # what botocore refuses by itself, DynamoDB is to refuse
    config = Config(parameter_validation=False)
    return boto3.client("dynamodb", endpoint_url=endpoint, config=config)


class Local:
    """DynamoDB Local."""

    def __init__(self, endpoint: str) -> None:
        self.message = ""
        self.name = f"cases-{uuid.uuid4().hex}"
        self.client = client_of(endpoint)

    def __call__(self, operation: str, **kwargs: Any) -> Any:
        try:
            answer = self.client._make_api_call(operation, kwargs)
            return {name: answer[name] for name in answer if name not in BYWAYS}
        except ClientError as error:
            code, response = error.response["Error"]["Code"], error.response
            self.message = error.response["Error"]["Message"]
            if "CancellationReasons" in response:
                return code, [reason["Code"] for reason in response["CancellationReasons"]]
            return code, response.get("Item")
