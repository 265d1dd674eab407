"""Tables that are made by their schema; stores that contain the same rows: the table in memory, and the engines."""

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
    """Return how a table is created, from the names of its key and the kinds of all keys."""
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
    """Return the value of a placeholder; if there is none it is what it is called, a number or a string."""
    return values.get(name) or (n(name) if name.isdecimal() else s(name))


def valued(request, values):
    """Add the values of the placeholders in the expressions; ``:undefined`` has none."""
    texts = " ".join(str(text) for name, text in request.items() if name.endswith("Expression"))
    names = {*re.findall(r":(\w+)", texts)} - {"undefined"}
    used = {f":{name}": value_of(name, values) for name in sorted(names)}
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


class Store:
    """Sends requests to an engine, or to the table in memory; the table and the values are filled in.

    A refusal is returned as its code and the row that it shows, or of a transaction the reasons.

    Attributes:
        name: Of the table that a request is about if it says nothing else.
        apply: What answers requests.
        tables: Those in memory.
        answer: The last one that was no refusal, with all that it says.
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
    """Return a client, which takes longer to make than a test."""
    # what botocore refuses by itself, DynamoDB is to refuse
    config = Config(parameter_validation=False)
    return boto3.client("dynamodb", endpoint_url=endpoint, config=config)


def stores(*names):
    """Return a fixture: the table in memory and engines, by their names."""

    @pytest.fixture(params=names)
    def store(request):
        if request.param == "memory":
            yield Store(request.module)
            return
        with use(request.getfixturevalue(f"{request.param}_engine")) as engine:
            yield Store(request.module, client_of(engine.endpoint_url)._make_api_call)

    return store
