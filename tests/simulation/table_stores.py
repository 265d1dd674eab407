"""Stores that hold the same rows: the table in memory, and DynamoDB Local."""

import re
import uuid
from functools import cache

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from dev.simulation.answers import BYWAYS
from dev.simulation.table import Refusal, Tables
from dev.simulation.values import SETS


def keys(names):
    """Return a KeySchema: the hash key, and the range key if there is one."""
    kinds = zip(names.split(), ("HASH", "RANGE"), strict=False)
    return [{"AttributeName": name, "KeyType": kind} for name, kind in kinds]


def schema(names, kinds, **more):
    """Return how a table is created, from the names of its key and the kinds of all keys."""
    return {
        "KeySchema": keys(names),
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()
        ],
        "BillingMode": "PAY_PER_REQUEST",
        **more,
    }


def index(name, names, projection, **more):
    projection = {"ProjectionType": projection, **more}
    return {"IndexName": name, "KeySchema": keys(names), "Projection": projection}


SCHEMA = schema("kk", {"kk": "S"})
KEY = {"kk": {"S": "key"}}
REFUSED = "ConditionalCheckFailedException"
INVALID = "ValidationException"


def n(value):
    return {"N": str(value)}


def s(text):
    return {"S": text}


def valued(values, request):
    """Return a request with the values of those placeholders that its expressions name."""
    texts = " ".join(str(text) for name, text in request.items() if name.endswith("Expression"))
    used = {name: values[name] for name in re.findall(r":\w+", texts) if name in values}
    return {"ExpressionAttributeValues": used, **request} if used else request


def in_order(answer):
    """Sort the sets in an answer, and leave out what it cost."""
    if isinstance(answer, list):
        return [in_order(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    return {
        name: sorted(value) if name in SETS else in_order(value)
        for name, value in answer.items()
        if name not in BYWAYS
    }


class InMemory:
    """The table in memory; a refusal is returned as its code and what it shows besides."""

    name = "table"

    def __init__(self, **options):
        self.message = ""  # of the last refusal
        self.tables = Tables(**options)

    def __call__(self, operation, **request):
        try:
            return in_order(self.tables.apply(operation, request))
        except Refusal as refusal:
            self.message, reasons = refusal.message, refusal.reasons
            more = refusal.item if reasons is None else [reason["Code"] for reason in reasons]
            return refusal.code, in_order(more)


@cache
def client_of(endpoint):
    """Return a client, which takes longer to make than a test."""
    # what botocore refuses by itself, DynamoDB is to refuse
    config = Config(parameter_validation=False)
    return boto3.client("dynamodb", endpoint_url=endpoint, config=config)


class Local:
    """DynamoDB Local; refusals as from the table in memory."""

    def __init__(self, endpoint):
        self.message = ""
        self.name = f"cases-{uuid.uuid4().hex}"
        self.client = client_of(endpoint)

    def __call__(self, operation, **request):
        try:
            return in_order(self.client._make_api_call(operation, request))
        except ClientError as error:
            response = error.response
            self.message = response["Error"]["Message"]
            reasons = response.get("CancellationReasons", ())
            more = [reason["Code"] for reason in reasons] or response.get("Item")
            return response["Error"]["Code"], in_order(more)
