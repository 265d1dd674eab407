"""Schemas of tables, and a `Store` that sends requests: to the table in memory, or to an engine."""

import re
import uuid
from functools import cache

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from dev.simulation.answers import BYWAYS, response_of
from dev.simulation.table import Refusal, Tables
from dev.simulation.values import SETS
from pynamodb_mutex.testing import use


def keys(names):
    """Return a KeySchema: the hash key, and the range key if there is one."""
    kinds = zip(names.split(), ("HASH", "RANGE"), strict=False)
    return [{"AttributeName": name, "KeyType": kind} for name, kind in kinds]


def schema(names, kinds, **more):
    """Return the arguments of CreateTable, from the names of the table's key and the types of all keys."""
    return {
        "KeySchema": keys(names),
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind in kinds.items()
        ],
        "BillingMode": "PAY_PER_REQUEST",
        **more,
    }


def create_plain_table(client, name, kinds, **more):
    """Create a table; ``kinds`` has the types of the hash key and of the range key, if there is one, by name."""
    client.create_table(TableName=name, **schema(" ".join(kinds), kinds, **more))


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


def value_of(name, values):
    """Return the value of a placeholder; without one, its name is the value, a number or a string."""
    return values.get(name) or (n(name) if name.isdecimal() else s(name))


def valued(request, values):
    """Add values for the placeholders in a request's expressions; ``:undefined`` has none."""
    texts = " ".join(str(text) for name, text in request.items() if name.endswith("Expression"))
    names = {*re.findall(r":(\w+)", texts)} - {"undefined"}
    used = {f":{name}": value_of(name, values) for name in sorted(names)}
    return {"ExpressionAttributeValues": used, **request} if used else request


def in_order(answer):
    """Return an answer with its sets sorted, and without what it cost."""
    if isinstance(answer, list):
        return [in_order(each) for each in answer]
    if not isinstance(answer, dict):
        return answer
    return {
        name: sorted(value) if name in SETS else in_order(value)
        for name, value in answer.items()
        if name not in BYWAYS
    }


class Store:
    """Sends requests to an engine, or to the table in memory; adds the name of the table and the values.

    Returns answers; for a refusal its code and the row that it shows, or the reasons of a cancelled transaction.
    A test module that uses one creates the table in ``fill(store)``; its VALUES are those of placeholders.

    Attributes:
        name: Of the table, unless a request names another.
        apply: Answers a request.
        tables: The tables in memory.
        answer: The last answer that was no refusal, in full.
        message: Of the last refusal.
    """

    def __init__(self, module, apply=None, **options):
        self.tables = Tables(**options)
        self.name = f"cases_{uuid.uuid4().hex}"
        self.apply = apply or self.tables.apply
        self.answer, self.message = {}, ""
        self._values = module.VALUES
        module.fill(self)

    def __call__(self, operation, **request):
        if not operation.startswith(("Batch", "List", "Transact")):
            request = {"TableName": self.name, **valued(request, self._values)}
        try:
            self.answer = self.apply(operation, request)
            return in_order(self.answer)
        except Refusal as refusal:
            response, self.message = response_of(refusal), refusal.message
        except ClientError as error:
            response, self.message = error.response, error.response["Error"]["Message"]
            assert response["ResponseMetadata"]["HTTPStatusCode"] == 400
        reasons = [reason["Code"] for reason in response.get("CancellationReasons", ())]
        return response["Error"]["Code"], reasons or in_order(response.get("Item"))


@cache
def client_of(endpoint):
    """Return a client; kept, because making one takes longer than a test."""
    # what botocore refuses by itself, DynamoDB is to refuse
    config = Config(parameter_validation=False)
    return boto3.client("dynamodb", endpoint_url=endpoint, config=config)


def stores(*names):
    """Return a fixture `store` with each of these in turn: ``memory``, and engines by their names."""

    @pytest.fixture(params=names)
    def store(request):
        if request.param == "memory":
            yield Store(request.module)
            return
        with use(request.getfixturevalue(f"{request.param}_engine")) as engine:
            yield Store(request.module, client_of(engine.endpoint_url)._make_api_call)

    return store
