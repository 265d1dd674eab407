"""``show``: all that is known of one lock."""

from __future__ import annotations

import json
import time
from datetime import datetime

import pytest
from cli import run_cli
from lock_items import Wire

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._protocol.claim import NO_SERVER_TIME
from pynamodb_mutex.testing import expire, held_elsewhere


def shown(key, *options):
    done = run_cli("show", key, *options)
    assert (done.exit_code, done.stderr) == (0, "")
    pairs = (line.partition(":") for line in done.stdout.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def document(key):
    return json.loads(run_cli("show", key, "--json").stdout)


def test_a_lock_that_is_held(table):
    mutex = Mutex.for_key("a", owner="me", lease=90, data={"page": [1, None]})
    with mutex:
        mutex.save_data({"page": [2, None]})
        lines = shown("a", "--tz", "Europe/Berlin")
        item = LockItem.get("a")
        found = document("a")
    assert list(lines) == [
        "key",
        "state",
        "owner",
        "since",
        "until",
        "lease",
        "fencing token",
        "token",
        "guarded writes",
        "row kept until",
        "data",
    ]
    assert (lines["key"], lines["state"], lines["owner"]) == ("a", "held", "me")
    assert (lines["lease"], lines["guarded writes"]) == ("90 s", "1")
    assert lines["fencing token"] == str(mutex.fencing_token)
    assert json.loads(lines["data"]) == {"page": [2, None]}
    assert lines["since"].endswith("s ago)")
    assert datetime.fromisoformat(lines["since"][:25]) == item.since.replace(microsecond=0)
    assert lines["until"].endswith(", unless renewed)")
    assert found["token"] == mutex.token
    assert found["data"] == {"page": [2, None]}
    assert (found["forced"], found["guarded_writes"], found["state"]) == (False, 1, "held")
    assert datetime.fromisoformat(found["row_kept_until"]) == item.ttl


def test_a_lock_that_is_abandoned_and_one_that_was_taken_over(table):
    with held_elsewhere("a", owner="crashed"):
        expire("a")
        lines = shown("a")
        assert lines["state"].startswith("abandoned: its claim has ended")
        assert lines["until"].endswith(" ago)")
        with Mutex.for_key("a"):
            assert shown("a")["taken over from"] == "crashed, which never gave it back"
            assert document("a")["abandoned_by"] == "crashed"


def test_what_the_last_holder_left(table):
    with Mutex.for_key("a", data="left") as mutex:
        pass
    lines = shown("a")
    assert (lines["state"], lines["token"]) == ("free", mutex.token)
    assert lines["fencing token"] == str(mutex.fencing_token)
    assert lines["data"] == '"left"'
    assert "owner" not in lines
    found = document("a")
    assert (found["owner"], found["since"], found["until"], found["lease"]) == (None,) * 4
    kept = datetime.fromisoformat(found["row_kept_until"]).timestamp()
    assert abs(kept - time.time() - LockItem.retention) < 3600


def test_a_claim_that_was_broken(table):
    with held_elsewhere("a"):
        table.force_release("a")
    assert shown("a")["broken"] == "the last claim was broken by force"
    assert document("a")["forced"] is True


def test_a_key_that_was_never_taken(table):
    assert shown("a") == {"key": "a", "state": "free", "row": "none: never taken, or long ago"}
    assert document("a")["fencing_token"] is None


def test_data_that_is_no_json(table):
    with held_elsewhere("a"):
        LockItem.get("a").update([LockItem.owner.set("\x1b[2J")], add_version_condition=False)
        connection = LockItem._get_connection().connection
        connection.client.update_item(
            TableName=table.Meta.table_name,
            Key={"key": {"S": "a"}},
            UpdateExpression="SET #d = :d REMOVE #t",
            ExpressionAttributeNames={"#d": "data", "#t": "ttl"},
            ExpressionAttributeValues={":d": {"S": "{no"}},
        )
        lines = shown("a")
    assert lines["data"].startswith('"cannot be read: ')
    assert lines["owner"] == r"\x1b[2J"
    assert "row kept until" not in lines


@pytest.mark.parametrize("written", [{"S": "NaN"}, {"S": '["Infinity", -Infinity]'}, {"M": {}}])
def test_data_that_no_json_has(table, written):
    Mutex.for_key("a").acquire()
    connection = LockItem._get_connection().connection
    connection.client.update_item(
        TableName=table.Meta.table_name,
        Key={"key": {"S": "a"}},
        UpdateExpression="SET #d = :d",
        ExpressionAttributeNames={"#d": "data"},
        ExpressionAttributeValues={":d": written},
    )
    assert document("a")["data"].startswith("cannot be read: ")


def test_a_claim_that_another_program_wrote(table):
    with held_elsewhere("a"):
        actions = [LockItem.token.set("theirs"), LockItem.owner.remove()]
        LockItem.get("a").update(actions, add_version_condition=False)
        lines = shown("a")
    assert (lines["state"], lines["owner"]) == ("held", "-")
    assert "since" not in lines


def test_row_of_another_application(table):
    row = {"key": {"S": "a"}, "owner": {"S": "Ann"}, "version": {"N": "3"}}
    client = LockItem._get_connection().connection.client
    client.put_item(TableName=table.Meta.table_name, Item=row)
    lines = shown("a")
    assert list(lines) == ["key", "state", "problem", "row"]
    assert lines["state"] == "invalid: no mutex takes this row"
    assert "'token' is missing" in lines["problem"]
    assert "'owner': {'S': 'Ann'}" in lines["row"]
    found = document("a")
    assert (found["state"], found["problem"]) == ("invalid", lines["problem"])
    assert {found[name] for name in ("owner", "since", "until", "fencing_token")} == {None}


def test_end_that_is_no_date(table):
    with held_elsewhere("a"):
        change = [LockItem.expires_at.set(1e18)]
        LockItem.get("a").update(change, add_version_condition=False)
        lines = shown("a")
    assert lines["state"].startswith("invalid: ")
    assert "'expires_at' is not in seconds" in lines["problem"]


def test_instants_that_are_not_known_are_left_out(table):
    """A token and a TTL that another program wrote, and an end from before its holder knew server time."""
    with held_elsewhere("a"):
        client = LockItem._get_connection().connection.client
        row = client.get_item(TableName=table.Meta.table_name, Key={"key": {"S": "a"}})["Item"]
        odd = {"token": {"S": "theirs"}, "ttl": {"N": "1e18"}}
        row |= odd | {"expires_at": {"N": str(NO_SERVER_TIME + 30)}}
        client.put_item(TableName=table.Meta.table_name, Item=row)
        lines = shown("a")
        assert lines["state"] == "held"
        assert not {"since", "until", "row kept until"} & set(lines)
        found = document("a")
        assert {found[name] for name in ("since", "until", "row_kept_until")} == {None}


def test_lock_is_shown_without_its_age_where_server_time_is_not_known(table, monkeypatch):
    with held_elsewhere("a"):
        wire = Wire(monkeypatch)
        wire.drop_dates("GetItem")
        assert shown("a", "--tz", "UTC")["since"].endswith("+00:00")


def test_keys_that_no_lock_can_have():
    for key in ("", "x" * 3000):
        done = run_cli("show", key)
        assert done.exit_code == 2
        assert "a key takes 1 to 2048 bytes" in done.stderr
    assert "is for row locks alone" in run_cli("show", "a", "--range-key", "1").stderr
