"""``create-table`` and ``delete-table``."""

from __future__ import annotations

import json
import uuid

import boto3
import pytest
from botocore.exceptions import ClientError
from cli import answered, run_cli
from lock_items import Wire

from pynamodb_mutex import Mutex
from pynamodb_mutex.cli import _infrastructure
from pynamodb_mutex.testing import expire

pytestmark = pytest.mark.real


@pytest.fixture
def name(engine):
    """The name of a table that is not there."""
    return f"locks-{uuid.uuid4().hex}"


def described(name):
    return boto3.client("dynamodb").describe_table(TableName=name)["Table"]


def is_there(name):
    pages = boto3.client("dynamodb").get_paginator("list_tables").paginate()
    return any(name in page["TableNames"] for page in pages)


def test_a_table_is_made_once(name):
    done = run_cli("--table", name, "create-table")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"table {name} in us-east-1 at http://")
    assert done.stdout.endswith(" is created\n")
    client = boto3.client("dynamodb")
    assert described(name)["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert (ttl["AttributeName"], ttl["TimeToLiveStatus"]) == ("ttl", "ENABLED")
    done = run_cli("--table", name, "create-table")
    assert (done.exit_code, done.stdout.endswith(" was there\n")) == (0, True)
    done = run_cli("create-table", "--table", name, "--tag", "a=b")
    assert done.stdout.endswith(" was there; its settings are left as they are\n")
    done = run_cli("create-table", "--table", name, "--json")
    assert json.loads(done.stdout) == {"table": name, "created": False}


def test_its_settings(name, engine):
    options = ("--read-capacity", "3", "--write-capacity", "4", "--tag", "team=pay", "--tag", "x=")
    done = run_cli("--table", name, "create-table", *options, "--json")
    assert json.loads(done.stdout) == {"table": name, "created": True}
    table = described(name)
    assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == 3
    assert table["ProvisionedThroughput"]["WriteCapacityUnits"] == 4
    if engine.name == "local":
        return  # it keeps no tags
    client = boto3.client("dynamodb")
    tags = client.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"]
    assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "pay", "x": ""}


def test_a_protected_table_is_not_deleted(name):
    run_cli("--table", name, "create-table", "--deletion-protection")
    done = run_cli("--table", name, "delete-table", "--yes")
    assert done.exit_code == 1
    assert "protected against deletion; to end that: aws dynamodb update-table" in done.stderr
    assert is_there(name)
    client = boto3.client("dynamodb")
    client.update_table(TableName=name, DeletionProtectionEnabled=False)
    assert run_cli("--table", name, "delete-table", "--yes").exit_code == 0
    assert not is_there(name)


@pytest.mark.parametrize(("key", "kind"), [("id", "S"), ("key", "N")])
def test_a_table_of_another_kind_is_left_alone(name, key, kind):
    client = boto3.client("dynamodb")
    client.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind}],
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    done = run_cli("--table", name, "delete-table", "--yes", "--force")
    assert done.exit_code == 1
    assert f"is no lock table: it has hash key '{key}' ({kind})" in done.stderr
    assert is_there(name)
    done = run_cli("--table", name, "create-table")
    assert (done.exit_code, "exists with other keys" in done.stderr) == (1, True)


def test_the_name_is_asked_for(table):
    name = table.Meta.table_name
    done = run_cli("delete-table")
    assert done.exit_code == 1
    assert "there is no terminal to ask on: nothing was done; see --yes" in done.stderr
    for wrong in ("y\n", "\n"):
        done = answered(wrong, "delete-table")
        assert done.exit_code == 1
        assert "that is not its name: nothing was done" in done.stderr
    assert is_there(name)
    Mutex.for_key("a", auto_renew=False).acquire()
    expire("a")
    done = answered(f"{name}\n", "delete-table")
    assert done.exit_code == 0, done.stderr
    assert "  rows: " in done.stderr
    assert "  locks held:  0\n" in done.stderr
    assert done.stdout.endswith(" is gone\n")
    assert not is_there(name)
    done = run_cli("delete-table", "--yes")
    assert (done.exit_code, f"there is no table {name} in" in done.stderr) == (1, True)
    with pytest.raises(ClientError):
        described(name)


def test_it_is_refused_while_locks_are_held(table):
    Mutex.for_key("a", owner="one\x1b", auto_renew=False).acquire()
    Mutex.for_key("b", owner="two", auto_renew=False).acquire()
    done = run_cli("delete-table", "--yes")
    assert done.exit_code == 1
    assert "  locks held:  2\n" in done.stderr
    assert "    'a' by 'one\\x1b'\n" in done.stderr
    assert "2 locks are held: nothing was done; --force deletes it all the same" in done.stderr
    assert is_there(table.Meta.table_name)
    assert run_cli("delete-table", "--yes", "--force").exit_code == 0
    assert not is_there(table.Meta.table_name)


def test_somebody_else_deletes_it_too(table, monkeypatch):
    wire = Wire(monkeypatch)
    client = boto3.client("dynamodb")
    wire.before["DeleteTable"] = lambda: client.delete_table(TableName=table.Meta.table_name)
    done = run_cli("delete-table", "--yes")
    assert (done.exit_code, done.stdout.endswith(" is gone\n")) == (0, True)


def test_a_table_that_is_being_deleted_is_waited_for(table, monkeypatch):
    monkeypatch.setattr(_infrastructure, "_POLL", 0.01)
    wire = Wire(monkeypatch)
    client = boto3.client("dynamodb")

    def then(answer):
        answer["Table"]["TableStatus"] = "DELETING"
        if wire.sent.count("DescribeTable") == 3:
            wire.after.clear()
            client.delete_table(TableName=table.Meta.table_name)

    wire.after["DescribeTable"] = then
    wire.sent.clear()
    assert run_cli("delete-table", "--yes").exit_code == 0
    assert wire.sent.count("DescribeTable") >= 4


def test_one_that_does_not_go_is_reported(table, monkeypatch):
    monkeypatch.setattr(_infrastructure, "_POLL", 0.01)
    monkeypatch.setattr(_infrastructure, "_LONGEST_WAIT", 0.03)
    wire = Wire(monkeypatch)
    wire.after["DescribeTable"] = lambda answer: answer["Table"].update(TableStatus="DELETING")
    done = run_cli("delete-table", "--yes")
    assert done.exit_code == 1
    assert "is still DELETING after 0 s" in done.stderr
    assert is_there(table.Meta.table_name)


def test_what_dynamodb_refuses_is_reported(table, monkeypatch):
    wire = Wire(monkeypatch)

    def denied():
        error = {"Error": {"Code": "AccessDeniedException", "Message": "not you"}}
        raise ClientError(error, "DeleteTable")

    for operation in ("DeleteTable", "DescribeTable"):
        wire.before[operation] = denied
        done = run_cli("delete-table", "--yes")
        assert (done.exit_code, "not you" in done.stderr) == (1, True)
    assert is_there(table.Meta.table_name)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--read-capacity", "1"), "--read-capacity and --write-capacity go together"),
        (("--read-capacity", "0", "--write-capacity", "1"), "--read-capacity"),
        (("--tag", "team"), "'team' is not as in team=payments"),
        (("--tag", "=x"), "'=x' is not as in team=payments"),
    ],
)
def test_wrong_usage(args, message):
    done = run_cli("create-table", *args)
    assert done.exit_code == 2
    assert message in done.stderr
