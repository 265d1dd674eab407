"""What clients see of the two engines that tests and examples run on, and of the table in memory."""

import http.client
import json
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError
from tables import INVALID, KEY, REFUSED, SCHEMA, create_plain_table, n, s

TABLE = "engine-tests"
NO_TABLE = "ResourceNotFoundException"
ITEM = {**KEY, "end": n("1700000000.125"), "by": s("")}
VALUES = {}


@pytest.fixture(scope="module")
def client(dynamodb):
    create_plain_table(dynamodb, TABLE, {"k": "S"})
    yield dynamodb
    dynamodb.delete_table(TableName=TABLE)


def address(client):
    return "127.0.0.1", urlsplit(client.meta.endpoint_url).port


def test_every_answer_has_a_date(client):
    answer = client.list_tables()
    with pytest.raises(ClientError) as caught:
        client.get_item(TableName="missing", Key={"k": s("a")})
    for response in (answer, caught.value.response):
        assert response["ResponseMetadata"]["HTTPHeaders"]["date"].endswith(" GMT")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


def test_a_conditional_write_has_one_winner(client):
    def win(key):
        try:
            client.update_item(
                TableName=TABLE,
                Key={"k": s(f"race-{key}")},
                UpdateExpression="SET winner = :me",
                ConditionExpression="attribute_not_exists(winner)",
                ExpressionAttributeValues={":me": n(1)},
            )
        except client.exceptions.ConditionalCheckFailedException:
            return 0
        return 1

    keys = range(40)
    with ThreadPoolExecutor(16) as threads:
        wins = list(threads.map(lambda _: [win(key) for key in keys], range(16)))
    assert [sum(column) for column in zip(*wins, strict=True)] == [1] * len(keys)


@pytest.mark.lengthy
def test_connections_are_kept_alive_without_stalls(dynamodb):
    headers = {
        "X-Amz-Target": "DynamoDB_20120810.ListTables",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": "AWS4-HMAC-SHA256 Credential=testing/20300101/us-east-1/dynamodb/"
        "aws4_request, SignedHeaders=host, Signature=0",
    }
    connection = http.client.HTTPConnection(*address(dynamodb))
    connection.connect()
    ours = connection.sock
    took = []
    # even so a machine may stall in some of the rounds, those algorithms would in each
    while len(took) < 10 and not (took and min(took) < 20 * 0.04):
        started = time.monotonic()
        for _ in range(20):
            connection.request("POST", "/", b"{}", headers)
            assert connection.getresponse().read()
        took.append(time.monotonic() - started)
    assert connection.sock is ours
    # what Nagle's algorithm and delayed acknowledgements would take
    assert min(took) < 20 * 0.04
    connection.close()


def test_many_clients_at_once(client):
    idle = [socket.create_connection(address(client)) for _ in range(100)]
    together = Barrier(120)

    def ask(_):
        together.wait()
        return client.get_item(TableName=TABLE, Key={"k": s("none")})

    with ThreadPoolExecutor(120) as threads:
        assert len(list(threads.map(ask, range(120)))) == 120
    for connection in idle:
        connection.close()


# -- what the table in memory has, too -------------------------------------------------------------


def fill(store):
    store("CreateTable", **SCHEMA)
    store("PutItem", Item=ITEM)


def test_refusal_shows_the_row_if_asked(store):
    asked = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    names = {"ExpressionAttributeNames": {"#b": "by", "#e": "end"}}
    text = "SET #b = if_not_exists(#e, :1), #e = :1"
    update = {"Key": KEY, "UpdateExpression": text, "ConditionExpression": "#e < :1", **names}
    assert store("UpdateItem", **update) == (REFUSED, None)
    assert store("UpdateItem", **update, **asked) == (REFUSED, ITEM)
    asked |= {"Key": {"kk": s("none")}, "ConditionExpression": "attribute_exists(kk)"}
    assert store("DeleteItem", **asked) == (REFUSED, None)


@pytest.mark.parametrize("sign", ["< :1", "<= :1", "> :1", ">= :1", "BETWEEN :1 AND :1"])
def test_comparison_of_two_types_is_false(store, sign):
    update = {"Key": KEY, "UpdateExpression": "SET m = :1"}
    for wrong in (s("1"), {"NULL": True}, {"M": {}}):
        store("PutItem", Item={**KEY, "n": wrong})
        refused = store("UpdateItem", **update, ConditionExpression=f"n {sign}")
        assert refused == (REFUSED, None)
        assert store("UpdateItem", **update, ConditionExpression=f"NOT n {sign}") == {}


def test_transactions_are_applied_once_for_each_token(store):
    tokens = [uuid.uuid4().hex for _ in range(3)]
    update = {"TableName": store.name, "Key": KEY, "UpdateExpression": "ADD nn :nn"}
    parts = [{"Update": update}]

    def add(number, token, **more):
        update["ExpressionAttributeValues"] = {":nn": n(number)}
        more["ClientRequestToken"] = tokens[token]
        answer = store("TransactWriteItems", TransactItems=parts, **more)
        stands = store("GetItem", Key=KEY, ConsistentRead=True)["Item"]
        return answer, stands.get("nn", n(0))["N"]

    # one that was cancelled is judged anew, its token is not used up
    update["ConditionExpression"] = "attribute_exists(there)"
    refused = ("TransactionCanceledException", ["ConditionalCheckFailed"])
    assert add(1, 0) == (refused, "0")
    assert add(2, 0) == (refused, "0")  # nor for another request
    store("PutItem", Item={**KEY, "there": n(1)})
    assert add(1, 0) == ({}, "1")
    # what is reported is no part of the request
    for report in ("NONE", "TOTAL", "NONE"):
        assert add(1, 1, ReturnConsumedCapacity=report) == ({}, "2")
    assert add(2, 1) == (("IdempotentParameterMismatchException", None), "2")
    assert add(1, 2) == ({}, "3")


def test_batches_and_transactions_are_neither_empty_nor_name_a_row_twice(store):
    here = {"TableName": store.name}
    puts = [{"Item": {**KEY, "a": n(number)}} for number in (1, 2)]

    def batch(operation, one, other):
        """A batch of one row, and those that are refused: empty ones, and of a row twice."""
        lists = (one, [], [*one, *other])
        rows = [{"Keys": each} if operation == "BatchGetItem" else each for each in lists]
        requests = [{"RequestItems": {store.name: each}} for each in rows]
        return operation, [*requests, {"RequestItems": {}}]

    def transaction(operation, one, other):
        return operation, [{"TransactItems": each} for each in ([one], [], [one, other])]

    put, get = {"Put": {**here, **puts[0]}}, {"Get": {**here, "Key": KEY}}
    for operation, (single, *wrong) in (
        batch("BatchWriteItem", [{"PutRequest": puts[0]}], [{"PutRequest": puts[1]}]),
        batch("BatchWriteItem", [{"PutRequest": puts[0]}], [{"DeleteRequest": {"Key": KEY}}]),
        batch("BatchGetItem", [KEY], [KEY]),
        transaction("TransactWriteItems", put, {"Delete": {**here, "Key": KEY}}),
        transaction("TransactGetItems", get, get),
    ):
        assert isinstance(store(operation, **single), dict)
        for request in wrong:
            assert store(operation, **request) == (INVALID, None), (operation, request)
    many = [{"PutRequest": {"Item": {"kk": s(str(number))}}} for number in range(26)]
    assert store("BatchWriteItem", RequestItems={store.name: many}) == (INVALID, None)


@pytest.mark.parametrize("store", ["embedded", "local"], indirect=True)
def test_time_to_live_is_not_set_twice(store):
    def switch(enabled, attribute="ttl", **table):
        wanted = {"Enabled": enabled, "AttributeName": attribute}
        return store("UpdateTimeToLive", TimeToLiveSpecification=wanted, **table)

    def message(*args):
        assert switch(*args) == (INVALID, None)
        return store.message

    assert message(False) == "TimeToLive is already disabled"
    switch(True)
    assert message(True) == "TimeToLive is already enabled"
    missing = {"TableName": "no-such-table"}
    assert switch(True, **missing) == store("DescribeTimeToLive", **missing) == (NO_TABLE, None)
    assert message(True, "x") == "TimeToLive is active on a different AttributeName"
    switch(False)
    assert message(False) == "TimeToLive is already disabled"


def test_request_tokens_are_forgotten_after_ten_minutes():
    # slow to import
    from werkzeug.test import EnvironBuilder
    from werkzeug.wrappers import Response

    from pynamodb_mutex.testing.embedded_server import DynamoDBRules

    now, calls = [0.0], []

    def moto(environ, start_response):
        calls.append(environ["wsgi.input"].read())
        start_response("200 OK", [("Date", "then")])
        return [b"%d" % len(calls)]

    rules = DynamoDBRules(moto, clock=lambda: now[0])

    def send(body, caller="a/20300101/us-east-1/dynamodb"):
        headers = {
            "X-Amz-Target": "DynamoDB_20120810.TransactWriteItems",
            "Authorization": f"AWS4-HMAC-SHA256 Credential={caller}/aws4_request, x",
        }
        environ = EnvironBuilder(method="POST", headers=headers, data=body).get_environ()
        answer = Response.from_app(rules, environ)
        return int(answer.data), answer.headers

    request = json.dumps({"ClientRequestToken": "t", "TransactItems": []}).encode()
    assert send(request)[0] == 1
    now[0] = 599.0
    answer, headers = send(request)
    assert answer == 1
    assert "Date" not in headers  # the server adds one that is true now
    assert send(request, "b/20300101/us-east-1/dynamodb")[0] == 2
    assert send(request, "a/20300101/eu-west-1/dynamodb")[0] == 3
    now[0] = 600.0
    assert send(request)[0] == 4
    for number, body in enumerate((b"no JSON", b"[]"), 5):
        assert send(body)[0] == number
        assert calls[-1] == body
