"""`pynamodb-mutex doctor`: it changes nothing, tries each permission by itself, and shows what it found."""

from __future__ import annotations

import json
import os
import sys
import uuid

import boto3
import pytest
from click.testing import CliRunner
from doctor_scene import Found, on_one_engine, through
from pynamodb.attributes import TTLAttribute, UnicodeAttribute

from dev.faultproxy import (
    DYNAMODBS,
    Reply,
    answer_with,
    deny,
    refuse,
    throttle,
)
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.cli._app import app
from pynamodb_mutex.cli._infrastructure import ROLES, USES

pytestmark = pytest.mark.real


def rows() -> list[dict]:
    return boto3.client("dynamodb").scan(TableName=LockItem.Meta.table_name)["Items"]


def test_nothing_is_wrong_and_nothing_changes(table, proxy):
    with Mutex.for_key("free"):
        pass
    with Mutex.for_key("held", auto_renew=False):
        before = rows()
        found = through(proxy)
        for key in ("held", "free"):
            assert not through(proxy, "--key", key).of("problem")
        assert rows() == before
    assert {*USES, "transactions", "access", "endpoint", "clock", "table", "keys"} <= found.of("ok")
    assert {"billing", "replicas", "stream", "ttl", "rows"} <= found.of("ok")
    assert found.of("warning") == {"deletion protection"}
    assert not found.of("unchecked")
    assert found["rows"] == ("ok", "2 rows read: 2 of locks, nothing wrong")
    assert not [seen for seen in proxy.log if seen.applied and seen.op not in READS]


READS = {"BatchExecuteStatement", "BatchGetItem", "DescribeTable", "DescribeTimeToLive"}
READS |= {"GetItem", "Scan"}


def test_a_table_of_other_names(engine):
    class Other(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

        key = UnicodeAttribute(hash_key=True, attr_name="pk")
        kind = UnicodeAttribute(range_key=True, attr_name="sk", default="lock")
        ttl = TTLAttribute(null=True, attr_name="expires")

    Other.create_table()
    with Mutex.for_key("a", model=Other):
        globals()["Other"] = Other
        found = Found("--model", f"{__name__}:Other")
    assert not found.of("problem") | found.of("unchecked")
    assert found["keys"][1] == "hash key 'pk' (S), range key 'sk' (S)"
    assert found["ttl"][1] == "ENABLED on 'expires'"


# -- permissions -----------------------------------------------------------------------------------


IN_TRANSACTIONS = {"ConditionCheckItem": "ConditionCheck", "UpdateItem": "Update"}


def let_only(proxy, actions: tuple[str, ...]) -> None:
    """Deny every other action, as AWS does."""
    allowed = {IN_TRANSACTIONS[action] for action in actions if action in IN_TRANSACTIONS}
    proxy.always(
        deny(),
        op="TransactWriteItems",
        when=lambda body: not allowed & set(body["TransactItems"][0]),
    )
    for action in set(USES) - set(actions):
        proxy.always(deny(), op="BatchExecuteStatement" if action == "PartiQLUpdate" else action)


@on_one_engine
def test_a_role_that_may_not_describe_it_learns_that_there_is_no_table(table, proxy):
    proxy.always(deny(), op="DescribeTable")
    found = through(proxy, "--table", "locks-that-are-not-there")
    assert found.of("problem") == {"GetItem", "UpdateItem"}
    assert found["GetItem"][1] == "there is no such table"


@pytest.mark.parametrize("role", ["locker", "several", "viewer", "operator", "lock-model"])
def test_what_a_role_may_not_do_is_reported_action_by_action(table, proxy, role):
    actions = ROLES[role].actions
    let_only(proxy, actions)
    found = through(proxy)
    vital = {action for action, use in USES.items() if use.vital}
    assert found.of("ok") >= set(USES) & set(actions)
    assert found.of("problem") == vital - set(actions)
    assert found.of("warning") >= set(USES) - vital - set(actions)
    assert found["transactions"][0] == ("ok" if "UpdateItem" in actions else "warning")
    expected = {
        check
        for check, action in (
            ("table", "DescribeTable"),
            ("ttl", "DescribeTimeToLive"),
            ("rows", "Scan"),
        )
        if action not in actions
    }
    assert found.of("unchecked") == expected


@on_one_engine
def test_a_batch_may_be_denied_statement_by_statement(table, proxy):
    told = {"Responses": [{"Error": {"Code": "AccessDenied", "Message": "no"}, "TableName": "x"}]}
    answer = Reply(200, json.dumps(told).encode(), DYNAMODBS)
    proxy.always(answer_with(answer), op="BatchExecuteStatement")
    found = through(proxy)
    assert found["PartiQLUpdate"][0] == "warning"
    assert "not allowed" in found["PartiQLUpdate"][1]


@on_one_engine
def test_an_engine_that_knows_no_batches(table, proxy):
    proxy.always(refuse("UnknownOperationException"), op="BatchExecuteStatement")
    verdict, what = through(proxy)["PartiQLUpdate"]
    assert verdict == "warning"
    assert what.startswith("not understood (UnknownOperationException")


@on_one_engine
def test_what_is_throttled_is_not_known(table, proxy):
    proxy.always(throttle(), op="Scan")
    found = through(proxy)
    assert found.of("unchecked") == {"rows", "Scan"}
    assert "ThrottlingException" in found["Scan"][1]


# -- how it is shown -------------------------------------------------------------------------------


@on_one_engine
def test_plain(table):
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert "ok         table                " in done.stdout
    (at,) = (n for n, line in enumerate(lines) if line.startswith("warning    deletion protection"))
    assert lines[at + 1].strip().startswith("-> aws dynamodb update-table")
    assert lines[-1] == "no problems, 1 warning"


@on_one_engine
def test_plain_with_a_problem(table, proxy):
    proxy.always(deny(), op="GetItem")
    proxy.always(throttle(), op="Scan")
    done = CliRunner().invoke(app, ["doctor", "--endpoint-url", proxy.url])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "1 problem, 1 warning, 2 unchecked"


@on_one_engine
def test_on_a_terminal(table):
    pexpect = pytest.importorskip("pexpect")
    terminal = pexpect.spawn(
        sys.executable,
        ["-m", "pynamodb_mutex.cli", "doctor"],
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "60"},
        dimensions=(50, 60),
        encoding="utf-8",
        timeout=60,
    )
    shown = terminal.read()
    terminal.close()
    assert terminal.exitstatus == 0
    assert "\x1b[32mok" in shown
    # wrapped, with what belongs together below one another
    assert max(len(line) for line in shown.replace("\x1b", "").splitlines()) < 80
    assert "no problems, 1 warning" in shown
