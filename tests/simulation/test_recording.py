"""What was sent in simulated worlds is answered by DynamoDB Local as it was in them."""

from __future__ import annotations

import pytest
from table_stores import SCHEMA

from dev.simulation.recording import Applied, recorded
from dev.simulation.replay import Client, expected, replay, replay_schedule
from dev.simulation.schedule import Size
from dev.simulation.table import Tables
from dev.simulation.values import Refusal
from pynamodb_mutex.testing import Engine


@pytest.fixture(scope="module")
def client(local_engine: Engine) -> Client:
    """A client of DynamoDB Local."""
    return Client(local_engine.endpoint_url)


@pytest.mark.local
@pytest.mark.parametrize("seed", range(4))
def test_schedules_are_answered_as_by_dynamodb_local(client: Client, seed: int) -> None:
    """`.ci/run` replays more."""
    assert replay_schedule(client, seed) > 10


@pytest.mark.local
@pytest.mark.parametrize("strikes", [0, 6])
def test_waiting_in_line_is_answered_as_by_dynamodb_local(client: Client, strikes: int) -> None:
    """Lists in rows: entries at places, appended and removed."""
    ways, faults = ("lock_fair", "lock_one"), {"lost_answer": 0.05}
    size = Size(8, 2, 6, 1, 1, ways, faults, strikes, 60.0)
    assert replay_schedule(client, 0, size) > 300


@pytest.fixture
def requests() -> list[Applied]:
    """Some requests of each kind that is compared in a way of its own."""
    tables = Tables()
    keys = [{"kk": {"S": f"row {number}"}} for number in range(3)]
    everything = {"rows": {"Keys": keys, "ConsistentRead": True}}
    with recorded() as requests:
        tables.apply("CreateTable", {"TableName": "rows", **SCHEMA})
        tables.batch_limit = 2
        writes = [{"PutRequest": {"Item": key}} for key in keys]
        tables.apply("BatchWriteItem", {"RequestItems": {"rows": writes}})
        tables.apply("BatchGetItem", {"RequestItems": everything})
        tables.batch_limit = None
        tables.apply("BatchGetItem", {"RequestItems": everything})
        tables.apply("Scan", {"TableName": "rows"}, 0)
        tables.apply("Scan", {"TableName": "rows", "Limit": 1})
        unfit = {"TableName": "rows", "Key": keys[0], "UpdateExpression": "SET aa = gone"}
        with pytest.raises(Refusal):
            tables.apply("TransactWriteItems", {"TransactItems": [{"Update": unfit}]})
        item = {"kk": {"S": "binary"}, "bb": {"B": b"x"}, "ss": {"BS": [b"y", b"x"]}}
        tables.apply("PutItem", {"TableName": "rows", "Item": item})
        statement = 'UPDATE "rows" SET "nn" = ? WHERE "kk" = ? RETURNING ALL NEW *'
        parameters = [{"N": "1"}, {"S": "binary"}]
        updating = {"Statement": statement, "Parameters": parameters}
        tables.apply("BatchExecuteStatement", {"Statements": [updating]})
        tables.apply("GetItem", {"TableName": "rows", "Key": keys[1]})
    return requests


@pytest.mark.local
def test_replay_leaves_out_what_need_not_be_equal(client: Client, requests: list[Applied]) -> None:
    assert len(requests) == 10
    replay(client, requests)


@pytest.mark.local
def test_replay_notices_an_answer_that_differs(client: Client, requests: list[Applied]) -> None:
    requests[-1] = requests[-1]._replace(outcome={})
    with pytest.raises(AssertionError, match="GetItem"):
        replay(client, requests)


def test_records_refusals_and_times() -> None:
    now = 0.0
    tables = Tables(clock=lambda: now)
    with recorded() as requests:
        tables.apply("CreateTable", {"TableName": "rows", **SCHEMA})
        now = 7.0
        with pytest.raises(Refusal):
            tables.apply("GetItem", {"TableName": "rows", "Key": {}}, 3)
    tables.apply("DescribeTable", {"TableName": "rows"})
    _, refused = requests
    assert refused[:5] == (tables, "GetItem", {"TableName": "rows", "Key": {}}, 3, 7.0)
    assert expected(refused) == {"Error": {"Code": "ValidationException"}}
