"""`pynamodb-mutex doctor`: the table, and the rows in it."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace

import boto3
import pytest
from doctor_scene import ON_TABLES, Found, create, on_one_engine, through
from pynamodb.attributes import UnicodeAttribute

from dev.faultproxy import (
    DYNAMODBS,
    Fault,
    Reply,
    answer_with,
    pass_on,
    refuse,
)
from pynamodb_mutex import LockItem
from pynamodb_mutex.cli import _doctor

pytestmark = pytest.mark.real


def edited(**changes) -> Fault:
    """Answer DescribeTable as a table that is like this would."""

    def edit(reply: Reply) -> Reply:
        body = json.loads(reply.content)
        body["Table"] |= changes
        return replace(reply, content=json.dumps(body).encode())

    return replace(pass_on(), edit=edit)


# -- the table -------------------------------------------------------------------------------------


def test_no_table(engine, monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", "locks-that-are-not-there")
    found = Found()
    assert found.of("problem") == {"table"}
    assert found.of("unchecked") == set(ON_TABLES) - {"table"}
    assert {"access", "endpoint", "clock"} <= found.of("ok")


def enable_ttl(attribute: str) -> None:
    boto3.client("dynamodb").update_time_to_live(
        TableName=LockItem.Meta.table_name,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": attribute},
    )


@pytest.mark.parametrize(("key", "kind"), [("id", "S"), ("key", "N")])
def test_other_keys(engine, monkeypatch, key, kind):
    create(monkeypatch, key, kind)
    found = Found()
    assert found.of("problem") == {"keys"}
    assert found["rows"][0] == "ok"
    needs = "LockItem needs hash key 'key' (S)"
    assert found["keys"][1] == f"the table has hash key '{key}' ({kind}), {needs}"
    assert found["permissions"][0] == "unchecked"


@on_one_engine
def test_a_range_key_without_a_default(engine):
    class Ranged(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

        kind = UnicodeAttribute(range_key=True)

    Ranged.create_table()
    globals()["Ranged"] = Ranged
    found = Found("--model", f"{__name__}:Ranged")
    assert found.of("problem") == {"permissions"}
    assert "Ranged.kind is a range key: give it a default" in found["permissions"][1]


def test_ttl(engine, monkeypatch):
    create(monkeypatch)
    found = Found()["ttl"]
    assert found == ("warning", "DISABLED: rows of keys that are not used any more stay for ever")
    enable_ttl("expires_at")
    assert Found()["ttl"] == ("problem", "ENABLED on 'expires_at', not on 'ttl'")


@pytest.mark.parametrize(("units", "verdict"), [((5, 5), "ok"), ((1, 5), "warning")])
def test_provisioned_capacity(engine, monkeypatch, units, verdict):
    read, write = units
    throughput = {"ReadCapacityUnits": read, "WriteCapacityUnits": write}
    create(monkeypatch, BillingMode="PROVISIONED", ProvisionedThroughput=throughput)
    assert Found()["billing"] == (verdict, f"{read} read and {write} write capacity units")


STREAM = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
HERE = {"RegionName": "us-east-1"}
THERE = {"RegionName": "eu-west-1"}


def at_most(**units: int) -> dict:
    on_demand = {"BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}}
    return on_demand | {"OnDemandThroughput": units}


DESCRIBED = [
    ("table", {"TableStatus": "UPDATING"}, ("ok", "is UPDATING")),
    ("table", {"TableStatus": "DELETING"}, ("problem", "is DELETING")),
    ("deletion protection", {"DeletionProtectionEnabled": True}, ("ok", "on")),
    ("stream", {"StreamSpecification": STREAM}, ("ok", "on (NEW_IMAGE): each write")),
    ("billing", at_most(MaxWriteRequestUnits=1), ("warning", "at most -1 reads and 1 writes")),
    ("billing", at_most(MaxReadRequestUnits=-1), ("ok", "on demand")),
    ("replicas", {"Replicas": [HERE]}, ("ok", "none")),
    ("replicas", {"Replicas": [THERE]}, ("problem", "with eu-west-1, eventually consistent")),
    (
        "replicas",
        {"Replicas": [THERE], "MultiRegionConsistency": "EVENTUAL"},
        ("problem", "two regions can each give out the same lock"),
    ),
    ("replicas", {"GlobalTableVersion": "2017.11.29"}, ("problem", "with other regions")),
    (
        "replicas",
        {"Replicas": [HERE, THERE], "MultiRegionConsistency": "STRONG"},
        ("warning", "with eu-west-1, strongly consistent: DynamoDB has neither transactions"),
    ),
]


@on_one_engine
def test_what_dynamodb_says_of_a_table(table, proxy):
    for check, answer, (verdict, reason) in DESCRIBED:
        proxy.next(edited(**answer), op="DescribeTable")
        found = through(proxy)
        assert found[check][0] == verdict, answer
        assert reason in found[check][1]


@on_one_engine
def test_a_strongly_consistent_global_table_has_no_ttl(table, proxy):
    strong = {"Replicas": [THERE], "MultiRegionConsistency": "STRONG"}
    disabled = {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
    proxy.always(edited(**strong), op="DescribeTable")
    answer = Reply(200, json.dumps(disabled).encode(), DYNAMODBS)
    proxy.always(answer_with(answer), op="DescribeTimeToLive")
    proxy.always(refuse("ValidationException"), op="TransactWriteItems")
    found = through(proxy)
    (ttl,) = (each for each in found.all if each["check"] == "ttl")
    assert "no TTL on such a table" in ttl["advice"]
    assert not found.of("problem")
    assert {"transactions", "ConditionCheckItem"} <= found.of("warning")


# -- rows ------------------------------------------------------------------------------------------


def put(**attributes) -> None:
    boto3.resource("dynamodb").Table(LockItem.Meta.table_name).put_item(Item=attributes)


NOW = 1_800_000_000
OTHERS = {
    "python-dynamodb-lock": {
        "owner_name": "host",
        "lease_duration": 30,
        "record_version_number": "1",
        "expiry_time": NOW,
    },
    "Java": {
        "ownerName": "host",
        "leaseDuration": "20000",
        "recordVersionNumber": "1",
        "isReleased": "1",
    },
    "dynamodblock": {"owner_id": "a", "ttl": NOW, "ttl_precise": NOW},
    "dyndb-mutex": {"holder": "a", "expire_ts": NOW * 1000},
    "ShedLock": {"lockUntil": "2026", "lockedAt": "2026", "lockedBy": "host"},
}
OURS = {"token": "t", "version": 1, "lease": 30, "expires_at": NOW, "ttl": NOW + 1}


@on_one_engine
def test_rows_of_other_libraries(table):
    put(key="unknown", state="open")
    put(key="ours", **OURS)
    for library, attributes in OTHERS.items():
        put(key=library, **attributes)
    told = Found().told("rows")
    for library in OTHERS:
        (what,) = (what for verdict, what in told if library in what and verdict == "warning")
        assert what.startswith(f"1 row ('{library}') in the format of")
    assert len(told) == len(OTHERS)

    for library, attributes in OTHERS.items():
        put(key=library, **(attributes | OURS))
    told = Found().told("rows")
    for library in OTHERS:
        (what,) = (what for verdict, what in told if library in what and verdict == "problem")
        assert what.startswith(f"1 row ('{library}') locked by")
    assert len(told) == len(OTHERS)


@on_one_engine
def test_the_table_of_another_library(engine, monkeypatch):
    create(monkeypatch, "lockname")
    put(lockname="theirs", **OTHERS["dyndb-mutex"])
    found = Found()
    assert found.of("problem") == {"keys"}
    verdict, what = found["rows"]
    assert verdict == "warning"
    assert what.startswith("1 row in the format of dyndb-mutex")


BROKEN = {
    "whose 'version' is missing: no lock to this library": {"version": None},
    "with a claim, but without 'lease'": {"lease": None},
    "whose 'expires_at' is not a number": {"expires_at": "2027-01-15"},
    "whose 'expires_at' is not in seconds: it is after the year 9999": {"expires_at": NOW * 1000},
    "whose 'ttl' is not a number": {"ttl": "2027-01-15"},
    "whose 'ttl' is not in seconds": {"ttl": NOW * 1000},
    "whose 'ttl' is before 'expires_at': DynamoDB may delete": {"ttl": NOW - 1},
}


@on_one_engine
def test_rows_that_look_broken(table):
    put(key="ours", **OURS)
    put(key="free", token="t", version=2)
    put(key="left", token="t", version=2, ttl=NOW)
    for place, change in enumerate(BROKEN.values()):
        row = {name: value for name, value in (OURS | change).items() if value is not None}
        for number in range(4):
            put(key=f"{place}-{number}", **row)
    told = Found().told("rows")
    for place, fault in enumerate(BROKEN):
        ((verdict, what),) = (each for each in told if fault in each[1])
        assert verdict == "warning"
        assert what.startswith("4 rows (")
        assert what.count(f"'{place}-") == 3
        assert f", ...) {fault}" in what
    assert len(told) == len(BROKEN)


@on_one_engine
def test_of_many_rows_the_first_are_read(table, monkeypatch):
    monkeypatch.setattr(_doctor, "SAMPLE", 1)
    put(key="a", state="open")
    put(key="b", state="open")
    assert Found()["rows"] == ("ok", "the first 1 row read: 0 of locks, nothing wrong")
