"""`pynamodb-mutex doctor`: what it finds, that it finds each thing by itself, and that it changes nothing."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from click.testing import CliRunner
from proxy import (
    DYNAMODBS,
    Fault,
    Reply,
    answer_with,
    deny,
    drop_request,
    fault_proxy,
    no_date,
    page,
    pass_on,
    refuse,
    set_date,
    stall,
    throttle,
)
from pynamodb.attributes import TTLAttribute, UnicodeAttribute

from pynamodb_mutex import LockItem, Mutex, _clock
from pynamodb_mutex.cli import _checks
from pynamodb_mutex.cli._app import app
from pynamodb_mutex.cli._asking import Asker
from pynamodb_mutex.cli._permissions import ROLES, USES

on_one_engine = pytest.mark.parametrize("engine", ["embedded"], indirect=True)
"""For what is made up, or read from rows: an engine has no part in it."""

ON_TABLES = ("table", "ttl", "rows", "permissions")


class Found:
    """What the doctor told."""

    def __init__(self, *args: str, env: dict[str, str | None] | None = None) -> None:
        done = CliRunner().invoke(app, ["doctor", "--json", *args], env=env)
        assert isinstance(done.exception, SystemExit | None), done.exception
        told = json.loads(done.stdout)
        self.all = told["checks"]
        assert done.exit_code == bool(told["problems"]) == bool(self.of("problem"))

    def __getitem__(self, check: str) -> tuple[str, str]:
        """Return verdict and reason."""
        (found,) = self.told(check)
        return found

    def told(self, check: str) -> list[tuple[str, str]]:
        found = [each for each in self.all if each["check"] == check]
        assert all(each["advice"] or each["verdict"] in ("ok", "unchecked") for each in found)
        return [(each["verdict"], each["what"]) for each in found]

    def of(self, verdict: str) -> set[str]:
        return {each["check"] for each in self.all if each["verdict"] == verdict}


@pytest.fixture
def proxy(engine):
    with fault_proxy(engine) as proxy:
        yield proxy


def through(proxy, *args: str, **more) -> Found:
    return Found("--endpoint-url", proxy.url, *args, **more)


def rows() -> list[dict]:
    return boto3.client("dynamodb").scan(TableName=LockItem.Meta.table_name)["Items"]


def edited(**changes) -> Fault:
    """Answer DescribeTable as a table that is like this would."""

    def edit(reply: Reply) -> Reply:
        body = json.loads(reply.content)
        body["Table"] |= changes
        return replace(reply, content=json.dumps(body).encode())

    return replace(pass_on(), edit=edit)


# -- a table that is as it should be -----------------------------------------------------------------


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


# -- credentials, region, endpoint --------------------------------------------------------------------


NOWHERE = {
    "AWS_CONFIG_FILE": "/nowhere",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.mark.parametrize(
    ("args", "env", "check", "reason"),
    [
        ([], {"AWS_DEFAULT_REGION": None, "AWS_REGION": None}, "access", "specify a region"),
        (
            [],
            dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
            "access",
            "credentials",
        ),
        (["--profile", "nobody"], {"AWS_PROFILE": None}, "access", "profile (nobody)"),
        (["--endpoint-url", "nonsense"], {}, "access", "Invalid endpoint"),
        (["--endpoint-url", "http://127.0.0.1:9"], {}, "endpoint", "Could not connect"),
    ],
)
def test_without_an_answer_the_rest_is_left_out(embedded_engine, args, env, check, reason):
    env = NOWHERE | embedded_engine_env(embedded_engine) | env
    found = Found(*args, env=env)
    assert found.of("problem") == {check}
    assert reason in found[check][1]
    assert found.of("unchecked") == {"clock", *ON_TABLES}


class Refusing(BaseHTTPRequestHandler):
    """STS, as it answers who may not assume a role."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        error = "<Error><Code>AccessDenied</Code><Message>not you</Message></Error>"
        answer = f"<ErrorResponse>{error}</ErrorResponse>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("x-amzn-RequestId", "1")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing():
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_role_that_cannot_be_assumed(embedded_engine, tmp_path, refusing):
    config = tmp_path / "config"
    role = "arn:aws:iam::123456789012:role/none"
    keys = "aws_access_key_id = testing\naws_secret_access_key = testing\n"
    assumed = f"[profile assumed]\nrole_arn = {role}\nsource_profile = assumed\n"
    config.write_text(assumed + keys)
    env = embedded_engine_env(embedded_engine) | {"AWS_CONFIG_FILE": str(config)}
    env |= {"AWS_ENDPOINT_URL_STS": refusing}
    env |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"))
    found = Found("--profile", "assumed", env=env)
    assert found.of("problem") == {"access"}
    assert "AssumeRole operation: not you" in found["access"][1]


def embedded_engine_env(engine) -> dict[str, str | None]:
    return {
        "AWS_ENDPOINT_URL": engine.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }


@on_one_engine
def test_credentials_that_are_refused(table, proxy):
    proxy.always(refuse("ExpiredTokenException"))
    found = through(proxy)
    assert found.of("problem") == {"access"}
    assert found["access"][1].startswith("credentials: env, but ExpiredTokenException")
    assert {"endpoint", "clock"} <= found.of("ok")
    assert found.of("unchecked") == set(ON_TABLES)
    assert len(proxy.log) == 1


@on_one_engine
def test_credentials_of_the_model(table):
    class Keyed(LockItem):
        class Meta:
            table_name = LockItem.Meta.table_name
            aws_access_key_id = "testing"
            aws_secret_access_key = "testing"

    globals()["Keyed"] = Keyed
    found = Found("--model", f"{__name__}:Keyed")
    assert found["access"] == ("ok", "credentials given by the model")


@on_one_engine
@pytest.mark.parametrize(
    "answer",
    [
        page(200),
        page(404),
        answer_with(Reply(200, b"[]", DYNAMODBS)),
        answer_with(Reply(200, b'{"Table"', DYNAMODBS)),
        answer_with(Reply(200, b"\xff", DYNAMODBS)),
    ],
    ids=["page", "error page", "list", "half an answer", "no text"],
)
def test_something_else_answers(table, proxy, answer):
    proxy.always(answer)
    found = through(proxy)
    assert found.of("problem") == {"endpoint"}
    assert "what answers is not DynamoDB" in found["endpoint"][1]


@on_one_engine
def test_our_own_mistakes_are_not_taken_for_answers(table):
    with pytest.raises(AttributeError):
        Asker(LockItem).ask("MakeCoffee", {})


@on_one_engine
def test_what_stops_answering_is_not_asked_again_and_again(table, proxy):
    proxy.next(pass_on(), pass_on())
    proxy.always(drop_request())
    found = through(proxy)
    assert not found.of("problem")
    assert {"rows", *USES} <= found.of("unchecked")
    assert len(proxy.log) == 4
    assert found["Scan"][1] == "not asked, for nothing answered any more"


@pytest.mark.unmeasured
@on_one_engine
def test_it_ends_within_seconds_when_nothing_answers(table, proxy):
    class Patient(LockItem):
        class Meta:
            table_name = LockItem.Meta.table_name
            read_timeout_seconds = 60

    globals()["Patient"] = Patient
    proxy.always(stall())
    started = time.monotonic()
    found = through(proxy, "--model", f"{__name__}:Patient")
    assert time.monotonic() - started < 15
    assert "Read timeout" in found["endpoint"][1]


# -- clocks -----------------------------------------------------------------------------------------


def shifted(seconds: float) -> Fault:
    def shift(date: str) -> str:
        return format_datetime(
            parsedate_to_datetime(date) + timedelta(seconds=seconds), usegmt=True
        )

    return set_date(shift)


@on_one_engine
@pytest.mark.parametrize(
    ("shift", "verdict", "side"),
    [(-20, "ok", "ahead of"), (20, "ok", "behind"), (-400, "warning", "ahead of")],
)
def test_clocks_that_differ(table, proxy, shift, verdict, side):
    proxy.always(shifted(shift))
    found = through(proxy)["clock"]
    assert found[0] == verdict
    offset, words = found[1].split(" s ", 1)
    # the margin, and what a busy machine adds to it
    assert abs(abs(shift) - float(offset)) < 3
    assert words.startswith(side)


@on_one_engine
def test_clocks_that_agree(table, proxy):
    # as if an earlier answer had been given by a host whose clock is wrong
    proxy.next(shifted(-20))
    verdict, what = through(proxy)["clock"]
    assert verdict == "ok"
    assert what.startswith("within ")


@on_one_engine
def test_no_date(table, proxy):
    proxy.always(no_date())
    assert through(proxy)["clock"] == ("unchecked", "no answer had a date")


@on_one_engine
def test_a_system_whose_clock_does_not_count_suspension(table, monkeypatch):
    assert Found()["local clock"][0] == ("ok" if hasattr(time, "CLOCK_BOOTTIME") else "warning")
    monkeypatch.setattr(_clock, "_SUSPEND_AWARE", None)
    assert Found()["local clock"][0] == "warning"


# -- the table --------------------------------------------------------------------------------------


def test_no_table(engine, monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", "locks-that-are-not-there")
    found = Found()
    assert found.of("problem") == {"table"}
    assert found.of("unchecked") == set(ON_TABLES) - {"table"}
    assert {"access", "endpoint", "clock"} <= found.of("ok")


def create(monkeypatch, key: str = "key", kind: str = "S", **more) -> None:
    """Create a table by hand, and let it be LockItem's."""
    name = f"locks-{uuid.uuid4().hex}"
    monkeypatch.setattr(LockItem.Meta, "table_name", name)
    client = boto3.client("dynamodb")
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind}],
        **({"BillingMode": "PAY_PER_REQUEST"} | more),
    )
    client.get_waiter("table_exists").wait(TableName=name)


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


# -- permissions ------------------------------------------------------------------------------------

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
def test_what_a_role_may_not_do_is_told_action_by_action(table, proxy, role):
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


# -- rows -------------------------------------------------------------------------------------------


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
    "with a claim, but without 'version' and 'lease'": {"version": None, "lease": None},
    "whose 'expires_at' is no number": {"expires_at": "2027-01-15"},
    "whose 'expires_at' is not in seconds: milliseconds": {"expires_at": NOW * 1000},
    "whose 'ttl' is not in seconds": {"ttl": NOW * 1000},
    "whose 'ttl' is before 'expires_at': DynamoDB may delete": {"ttl": NOW - 1},
}


@on_one_engine
def test_rows_that_look_broken(table):
    put(key="ours", **OURS)
    put(key="free", token="t", version=2)
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
    monkeypatch.setattr(_checks, "SAMPLE", 1)
    put(key="a", state="open")
    put(key="b", state="open")
    assert Found()["rows"] == ("ok", "the first 1 row read: 0 of locks, nothing wrong")


# -- how it is shown --------------------------------------------------------------------------------


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
