"""The two DynamoDBs that tests and examples run on: what their clients see."""

import http.client
import io
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from engines import BOTH
from plain_tables import create_plain_table

from pynamodb_mutex.testing import use

TABLE = "engine-tests"


@pytest.fixture(scope="module", params=BOTH, ids=lambda start: start.__name__)
def engine(request, tmp_path_factory):
    # threads that change places all the time: if the server had several, one would be in another's way
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text("import sys; sys.setswitchinterval(1e-5)")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        with request.param() as started:
            yield started


@pytest.fixture(scope="module")
def dynamodb(engine):
    client = connect(engine)
    create_plain_table(client, TABLE, {"k": "S"})
    yield client
    client.delete_table(TableName=TABLE)
    client.close()


def connect(engine):
    with use(engine):
        return boto3.client(
            "dynamodb", config=Config(max_pool_connections=200, retries={"total_max_attempts": 1})
        )


def refused(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    return caught.value.response["Error"]["Code"], caught.value.response


def port_of(engine):
    return urlsplit(engine.endpoint_url).port


def test_every_answer_has_a_date(dynamodb):
    answer = dynamodb.list_tables()
    _, error = refused(dynamodb.get_item, TableName="missing", Key={"k": {"S": "a"}})
    for response in (answer, error):
        assert response["ResponseMetadata"]["HTTPHeaders"]["date"].endswith(" GMT")


def test_a_conditional_write_has_one_winner(dynamodb):
    def win(key):
        try:
            dynamodb.update_item(
                TableName=TABLE,
                Key={"k": {"S": f"race-{key}"}},
                UpdateExpression="SET winner = :me",
                ConditionExpression="attribute_not_exists(winner)",
                ExpressionAttributeValues={":me": {"S": "me"}},
            )
        except dynamodb.exceptions.ConditionalCheckFailedException:
            return 0
        return 1

    keys = range(40)
    with ThreadPoolExecutor(16) as threads:
        wins = list(threads.map(lambda _: [win(key) for key in keys], range(16)))
    assert [sum(column) for column in zip(*wins, strict=True)] == [1] * len(keys)


@pytest.mark.lengthy
def test_connections_are_kept_alive_without_stalls(engine):
    connection = http.client.HTTPConnection("127.0.0.1", port_of(engine))
    connection.connect()
    ours = connection.sock
    took = []
    # even so a machine may stall in some of the rounds, those algorithms would in each
    while len(took) < 10 and not (took and min(took) < 20 * 0.04):
        started = time.monotonic()
        for _ in range(20):
            connection.request("POST", "/", b"{}", signed("ListTables"))
            assert connection.getresponse().read()
        took.append(time.monotonic() - started)
    assert connection.sock is ours
    # what Nagle's algorithm and delayed acknowledgements would take
    assert min(took) < 20 * 0.04
    connection.close()


def signed(operation):
    return {
        "X-Amz-Target": f"DynamoDB_20120810.{operation}",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": "AWS4-HMAC-SHA256 Credential=testing/20300101/us-east-1/dynamodb/"
        "aws4_request, SignedHeaders=host, Signature=0",
    }


def test_many_clients_at_once(engine, dynamodb):
    idle = [socket.create_connection(("127.0.0.1", port_of(engine))) for _ in range(100)]
    together = Barrier(120)

    def ask(_):
        together.wait()
        return dynamodb.get_item(TableName=TABLE, Key={"k": {"S": "none"}})

    with ThreadPoolExecutor(120) as threads:
        assert len(list(threads.map(ask, range(120)))) == 120
    for connection in idle:
        connection.close()


def test_refusal_carries_the_item(dynamodb):
    item = {"k": {"S": "held"}, "end": {"N": "1700000000.125"}, "by": {"S": ""}}
    dynamodb.put_item(TableName=TABLE, Item=item)
    code, response = refused(
        dynamodb.update_item,
        TableName=TABLE,
        Key={"k": {"S": "held"}},
        UpdateExpression="SET #b = if_not_exists(#e, :one), #e = :one",
        ConditionExpression="#e < :one",
        ExpressionAttributeNames={"#b": "by", "#e": "end"},
        ExpressionAttributeValues={":one": {"N": "1"}},
        ReturnValuesOnConditionCheckFailure="ALL_OLD",
    )
    assert (code, response["Item"]) == ("ConditionalCheckFailedException", item)


@pytest.mark.parametrize("wrong", [{"S": "1"}, {"NULL": True}, {"M": {}}], ids=repr)
@pytest.mark.parametrize(
    "condition", ["n < :one", "n <= :one", "n > :one", "n >= :one", "n BETWEEN :one AND :one"]
)
def test_comparison_of_two_types_is_false(dynamodb, condition, wrong):
    dynamodb.put_item(TableName=TABLE, Item={"k": {"S": "typed"}, "n": wrong})
    update = {
        "TableName": TABLE,
        "Key": {"k": {"S": "typed"}},
        "UpdateExpression": "SET m = :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}},
    }
    code, _ = refused(dynamodb.update_item, **update, ConditionExpression=condition)
    assert code == "ConditionalCheckFailedException"
    dynamodb.update_item(**update, ConditionExpression=f"NOT {condition}")


def transact(key, condition=None, add=1):
    update = {
        "TableName": TABLE,
        "Key": {"k": {"S": key}},
        "UpdateExpression": "ADD n :n",
        "ExpressionAttributeValues": {":n": {"N": str(add)}},
    }
    if condition:
        update["ConditionExpression"] = condition
    return [{"Update": update}]


def number(dynamodb, key):
    item = dynamodb.get_item(TableName=TABLE, Key={"k": {"S": key}}, ConsistentRead=True)["Item"]
    return int(item["n"]["N"])


def test_request_token_applies_a_transaction_once(dynamodb):
    for report in ("NONE", "TOTAL", "NONE"):  # what is reported is no part of the request
        dynamodb.transact_write_items(
            TransactItems=transact("once"), ClientRequestToken="one", ReturnConsumedCapacity=report
        )
    assert number(dynamodb, "once") == 1
    code, _ = refused(
        dynamodb.transact_write_items,
        TransactItems=transact("once", add=2),
        ClientRequestToken="one",
    )
    assert code == "IdempotentParameterMismatchException"
    dynamodb.transact_write_items(TransactItems=transact("once"), ClientRequestToken="two")
    assert number(dynamodb, "once") == 2


def test_request_token_of_a_cancelled_transaction_is_free(dynamodb):
    code, response = refused(
        dynamodb.transact_write_items,
        TransactItems=transact("free", "attribute_exists(k)"),
        ClientRequestToken="free",
    )
    assert code == "TransactionCanceledException"
    assert [reason["Code"] for reason in response["CancellationReasons"]] == [
        "ConditionalCheckFailed"
    ]
    dynamodb.transact_write_items(TransactItems=transact("free"), ClientRequestToken="free")
    assert number(dynamodb, "free") == 1


def test_time_to_live_is_not_set_twice(dynamodb):
    def switch(enabled, attribute="ttl"):
        wanted = {"Enabled": enabled, "AttributeName": attribute}
        return {"TableName": TABLE, "TimeToLiveSpecification": wanted}

    def message(**arguments):
        code, response = refused(dynamodb.update_time_to_live, **arguments)
        assert code == "ValidationException"
        return response["Error"]["Message"]

    assert message(**switch(False)) == "TimeToLive is already disabled"
    dynamodb.update_time_to_live(**switch(True))
    assert message(**switch(True)) == "TimeToLive is already enabled"
    assert message(**switch(True, "x")) == "TimeToLive is active on a different AttributeName"
    dynamodb.update_time_to_live(**switch(False))
    assert message(**switch(False)) == "TimeToLive is already disabled"
    missing = {**switch(True), "TableName": "missing"}
    assert refused(dynamodb.update_time_to_live, **missing)[0] == "ResourceNotFoundException"
    assert (
        refused(dynamodb.describe_time_to_live, TableName="missing")[0]
        == "ResourceNotFoundException"
    )


def test_request_tokens_are_forgotten_after_ten_minutes():
    server = pytest.importorskip("pynamodb_mutex.testing.embedded_server")
    now, calls = [0.0], []

    def moto(environ, start_response):
        calls.append(environ["wsgi.input"].read())
        start_response("200 OK", [("Date", "then")])
        return [b"%d" % len(calls)]

    rules = server.DynamoDBRules(moto, clock=lambda: now[0])

    def send(body, caller="a/20300101/us-east-1/dynamodb"):
        headers = []
        environ = {
            "REQUEST_METHOD": "POST",
            "HTTP_X_AMZ_TARGET": "DynamoDB_20120810.TransactWriteItems",
            "HTTP_AUTHORIZATION": f"AWS4-HMAC-SHA256 Credential={caller}/aws4_request, x",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": io.BytesIO(body),
        }
        answer = b"".join(rules(environ, lambda _status, found, _info=None: headers.extend(found)))
        return answer, dict(headers)

    request = json.dumps({"ClientRequestToken": "t", "TransactItems": []}).encode()
    assert send(request)[0] == b"1"
    now[0] = 599.0
    answer, headers = send(request)
    assert answer == b"1"
    assert "Date" not in headers  # the server adds one that is true now
    assert send(request, "b/20300101/us-east-1/dynamodb")[0] == b"2"
    assert send(request, "a/20300101/eu-west-1/dynamodb")[0] == b"3"
    now[0] = 600.0
    assert send(request)[0] == b"4"
    assert send(b"no JSON")[0] == b"5"
    assert send(b"[]")[0] == b"6"
    assert calls[-2:] == [b"no JSON", b"[]"]
