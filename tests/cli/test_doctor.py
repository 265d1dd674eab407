"""``doctor``: each check, what it reports, and that it changes nothing."""

import json
import re
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from functools import partial

import pytest
from boto3.dynamodb.types import TypeSerializer
from command_line import cli, client, on_terminal, refuse_request, run_cli
from pynamodb.attributes import TTLAttribute, UnicodeAttribute
from tables import create_plain_table

from dev import faultproxy
from dev.faultproxy import DYNAMODBS, Reply, answer_with, deny, pass_on, refuse, set_date, throttle
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._lock.runtime import clock as _clock
from pynamodb_mutex.cli import _doctor, _probes
from pynamodb_mutex.cli._infrastructure import ROLES, USES
from pynamodb_mutex.testing import environment

ON_TABLES = {"table", "ttl", "rows", "permissions"}
READS = {"BatchGetItem", "DescribeTable", "DescribeTimeToLive", "GetItem", "Query", "Scan"}


class Found:
    """What the doctor reports in JSON."""

    def __init__(self, *args, proxy=None, model=None, **more):
        LockItem._connection = None
        if proxy is not None:
            args += ("--endpoint-url", proxy.url)
        if model is not None:
            globals()[model.__name__] = model
            args += ("--model", f"{__name__}:{model.__name__}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_probes, "time", time)  # that of the world, if there is one
            done = run_cli("doctor", "--json", *args, **more)
        report = json.loads(done.stdout)
        self.all = report["checks"]
        assert all(each["advice"] or each["verdict"] in ("ok", "unchecked") for each in self.all)
        assert done.exit_code == bool(report["problems"]) == bool(self.of("problem"))

    def __getitem__(self, check):
        """Return verdict and reason."""
        (found,) = self.about(check)
        return found

    def about(self, check):
        return [f"{each['verdict']}: {each['what']}" for each in self.all if each["check"] == check]

    def of(self, verdict):
        return {each["check"] for each in self.all if each["verdict"] == verdict}


def create(monkeypatch, keys, **more):
    """Create a table by hand, and make it that of LockItem."""
    monkeypatch.setattr(LockItem.Meta, "table_name", f"locks-{uuid.uuid4().hex}")
    create_plain_table(client(), LockItem.Meta.table_name, keys, **more)


def put(**attributes):
    item = {name: TypeSerializer().serialize(value) for name, value in attributes.items()}
    client().put_item(TableName=LockItem.Meta.table_name, Item=item)


@pytest.fixture(autouse=True)
def local(monkeypatch):
    """The simulated endpoint has a name that nobody can resolve."""
    monkeypatch.setattr(_doctor, "local_address", lambda _: "127.0.0.1")


@pytest.mark.real
def test_nothing_is_wrong_and_nothing_changes(proxy):
    rows = partial(client().scan, TableName=LockItem.Meta.table_name)
    with Mutex.for_key("free"):
        pass
    with Mutex.for_key("held", auto_renew=False):
        before = rows()["Items"]
        found = Found(proxy=proxy)
        for key in ("held", "free"):
            assert not Found("--key", key, proxy=proxy).of("problem")
        refused = Found("--key", "", proxy=proxy)["permissions"]
        assert refused == "problem: a key takes 1 to 2048 bytes of UTF-8, this one 0"
        assert rows()["Items"] == before
    fine = {*USES, "transactions", "access", "endpoint", "clock", "table", "keys", "billing"}
    assert fine | {"replicas", "stream", "ttl", "rows"} <= found.of("ok")
    assert (found.of("warning"), found.of("unchecked")) == ({"deletion protection"}, set())
    assert found["rows"] == "ok: 2 rows read: 2 of locks, nothing wrong"
    assert not [seen for seen in proxy.log if seen.applied and seen.op not in READS]


def test_lines_and_a_table_on_a_terminal(proxy):
    lines = cli("doctor").stdout.splitlines()
    assert any(line.startswith("ok         table                ") for line in lines)
    (at,) = (n for n, line in enumerate(lines) if line.startswith("warning    deletion protection"))
    assert lines[at + 1].strip().startswith("-> aws dynamodb update-table")
    assert lines[-1] == "no problems, 1 warning"
    sent, shown = on_terminal("doctor", columns=60)
    assert "\x1b[32mok" in sent
    assert max(map(len, shown.splitlines())) <= 60  # wrapped within its column
    assert "no problems, 1 warning" in shown
    proxy.always(deny(), op="GetItem")
    proxy.always(throttle(), op="Scan")
    done = cli("doctor", "--endpoint-url", proxy.url, code=1)
    assert done.stdout.splitlines()[-1] == "1 problem, 1 warning, 2 unchecked"


KEYS = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
ASSUMED = """[profile assumed]
role_arn = arn:aws:iam::123456789012:role/none
source_profile = assumed
aws_access_key_id = testing
aws_secret_access_key = testing
"""


@pytest.mark.parametrize(
    "case",
    [
        ([], {"AWS_DEFAULT_REGION": None}, "access: .*specify a region"),
        ([], KEYS, "access: .*credentials"),
        (["--profile", "nobody"], {"AWS_PROFILE": None}, r"access: .*profile \(nobody\)"),
        (["--profile", "assumed"], {"AWS_PROFILE": None} | KEYS, "access: .*operation: not you"),
        ([], {"AWS_ENDPOINT_URL_DYNAMODB": "nonsense"}, "access: .*Invalid endpoint"),
        ([], {"AWS_ENDPOINT_URL_DYNAMODB": "http://h:x"}, "access: .*Invalid endpoint: http"),
        (["--endpoint-url", "http://127.0.0.1:9"], {}, "endpoint: .*Could not connect"),
    ],
)
def test_without_an_answer_the_rest_is_unchecked(embedded_engine, tmp_path, wire, case):
    args, env, reason = case
    env = environment(embedded_engine) | env
    if "assumed" in args:
        (tmp_path / "config").write_text(ASSUMED)
        env |= {"AWS_CONFIG_FILE": str(tmp_path / "config")}
        wire.before["AssumeRole"] = partial(refuse_request, "AssumeRole", "AccessDenied", "not you")
    found = Found(*args, env=env)
    (check,) = found.of("problem")
    assert re.match(reason, f"{check}: {found[check]}")
    assert found.of("unchecked") == {"clock", *ON_TABLES}


def lock_item(**settings):
    """Return a model of the same table with other settings."""
    meta = type("Meta", (), {"table_name": LockItem.Meta.table_name, **settings})
    return type("Tuned", (LockItem,), {"Meta": meta})


def test_host_that_requests_go_to_is_named(monkeypatch):
    for variable, value in {
        "AWS_ACCOUNT_ID": "123456789012",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "https_proxy": "http://127.0.0.1:9",
        "no_proxy": "",
    }.items():
        monkeypatch.setenv(variable, value)
    found = Found("--region", "eu-west-1")
    host = "https://123456789012.ddb.eu-west-1.amazonaws.com"
    assert found["endpoint"].startswith(f"problem: {host} (eu-west-1): ")


@pytest.mark.real("embedded")
def test_credentials_that_are_refused_and_answers_that_are_not_from_dynamodb(proxy):
    keyed = lock_item(aws_access_key_id="testing", aws_secret_access_key="testing")
    assert Found(model=keyed)["access"] == "ok: credentials given by the model"
    proxy.always(refuse("ExpiredTokenException"))
    found = Found(proxy=proxy)
    assert found["access"].startswith("problem: credentials: env, but ExpiredTokenException")
    assert (found.of("problem"), found.of("unchecked")) == ({"access"}, ON_TABLES)
    assert {"endpoint", "clock"} <= found.of("ok")
    assert len(proxy.log) == 1
    contents = (b"[]", b'{"Table"', b"\xff")  # a list, half an answer, no text
    answers = [answer_with(Reply(200, content, DYNAMODBS)) for content in contents]
    for answer in (faultproxy.page(200), faultproxy.page(404), *answers):
        proxy.clear()
        proxy.always(answer)
        found = Found(proxy=proxy)
        assert found.of("problem") == {"endpoint"}
        assert "the answer is not from DynamoDB" in found["endpoint"]


def test_a_programming_error_is_raised(table):
    with pytest.raises(AttributeError):
        _probes.Asker(LockItem).ask("MakeCoffee", {})


def test_requests_without_an_answer_take_no_long_time(proxy):
    # after two of them no more are sent
    proxy.next(pass_on(), pass_on())
    proxy.always(faultproxy.drop_request())
    found = Found(proxy=proxy)
    assert not found.of("problem")
    assert {"rows", *USES} <= found.of("unchecked")
    assert len(proxy.log) == 4
    assert found["Scan"] == "unchecked: not sent: earlier requests were not answered"
    # and the timeouts of the model are not used
    proxy.clear()
    proxy.always(faultproxy.stall())
    started = time.monotonic()
    patient = lock_item(read_timeout_seconds=300)
    assert "Read timeout" in Found(model=patient, proxy=proxy)["endpoint"]
    assert time.monotonic() - started < 30


def test_other_keys(engine, monkeypatch):
    for key, kind in (("id", "S"), ("key", "N"), ("lockname", "S")):
        create(monkeypatch, {key: kind})
        found = Found()
        needs = "LockItem needs hash key 'key' (S)"
        assert found["keys"] == f"problem: the table has hash key '{key}' ({kind}), {needs}"
        assert (found.of("problem"), found["rows"][:3]) == ({"keys"}, "ok:")
        assert found["permissions"].startswith("unchecked: ")
    put(lockname="theirs", holder="a", expire_ts=NOW)
    assert Found()["rows"].startswith("warning: 1 row in the format of dyndb-mutex:")


class Other(LockItem):
    key = UnicodeAttribute(hash_key=True, attr_name="pk")
    kind = UnicodeAttribute(range_key=True, attr_name="sk", default="lock")
    ttl = TTLAttribute(null=True, attr_name="expires")


class Ranged(LockItem):
    kind = UnicodeAttribute(range_key=True)


def test_other_names_and_a_range_key(made):
    with Mutex.for_key("a", model=made(Other)):
        found = Found(model=Other)
    assert not found.of("problem") | found.of("unchecked")
    assert found["keys"] == "ok: hash key 'pk' (S), range key 'sk' (S)"
    assert found["ttl"] == "ok: ENABLED on 'expires'"
    # its range keys are given lock by lock
    found = Found(model=made(Ranged))
    assert not found.of("problem") | found.of("unchecked")


def test_ttl_and_provisioned_capacity(engine, monkeypatch):
    for reads, verdict in ((5, "ok"), (1, "warning")):
        units = {"ReadCapacityUnits": reads, "WriteCapacityUnits": 5}
        create(monkeypatch, {"key": "S"}, BillingMode="PROVISIONED", ProvisionedThroughput=units)
        found = Found()
        assert found["billing"] == f"{verdict}: {reads} read and 5 write capacity units"
    assert found["ttl"] == "warning: DISABLED: rows of unused keys stay for ever"
    ttl = {"Enabled": True, "AttributeName": "expires_at"}
    name = LockItem.Meta.table_name
    client().update_time_to_live(TableName=name, TimeToLiveSpecification=ttl)
    assert Found()["ttl"] == "problem: ENABLED on 'expires_at', not on 'ttl'"


HERE, THERE = {"RegionName": "us-east-1"}, {"RegionName": "eu-west-1"}
STRONG = {"MultiRegionConsistency": "STRONG"}
EVENTUAL = {"Replicas": [THERE], "MultiRegionConsistency": "EVENTUAL"}
STREAM = {"StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}}
UNKNOWN = "UnknownOperationException"
UNSUPPORTED = rf"warning: not supported \({UNKNOWN}"


def shifted(seconds):
    by = timedelta(seconds=seconds)
    return set_date(lambda date: format_datetime(parsedate_to_datetime(date) + by, usegmt=True))


def edited(**changes):
    """Answer DescribeTable as for a table with these settings; return the operation, too."""

    def edit(reply):
        body = json.loads(reply.content)
        body["Table"] |= changes
        return replace(reply, content=json.dumps(body).encode())

    return "DescribeTable", replace(pass_on(), edit=edit)


def at_most(**units):
    billing = {"BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}}
    return edited(**billing, OnDemandThroughput=units)


def answer(body):
    return answer_with(Reply(200, json.dumps(body).encode(), DYNAMODBS))


@pytest.mark.parametrize(
    ("fault", "check", "expected"),
    [
        (edited(TableStatus="UPDATING"), "table", "ok: .*is UPDATING"),
        (edited(TableStatus="DELETING"), "table", "problem: .*is DELETING"),
        (edited(DeletionProtectionEnabled=True), "deletion protection", "ok: on"),
        (edited(**STREAM), "stream", r"ok: on \(NEW_IMAGE\): each write"),
        (at_most(MaxWriteRequestUnits=1), "billing", "warning: .*at most -1 reads and 1 writes"),
        (at_most(MaxReadRequestUnits=-1), "billing", "ok: on demand"),
        (edited(Replicas=[HERE]), "replicas", "ok: none"),
        (edited(Replicas=[THERE]), "replicas", "problem: .*with eu-west-1, eventually consistent"),
        (edited(**EVENTUAL), "replicas", "problem: .*two regions can each grant the same lock"),
        (edited(GlobalTableVersion="2017.11.29"), "replicas", "problem: .*with other regions"),
        (
            edited(Replicas=[HERE, THERE], **STRONG),
            "replicas",
            "warning: .*with eu-west-1, strongly",
        ),
        ((None, shifted(-20)), "clock", r"ok: (19\.\d|20\.\d|21\.0) s ahead of"),
        ((None, shifted(20)), "clock", r"ok: (19\.\d|20\.\d|21\.0) s behind"),
        ((None, shifted(-400)), "clock", r"warning: (399\.\d|400\.\d|401\.0) s ahead of"),
        ((None, faultproxy.no_date()), "clock", "unchecked: no answer had a date$"),
        (("BatchGetItem", refuse(UNKNOWN)), "BatchGetItem", UNSUPPORTED),
        (("Scan", throttle()), "Scan", "unchecked: .*ThrottlingException"),
        (("Scan", throttle()), "rows", "unchecked: "),
    ],
)
def test_verdict_by_an_answer(proxy, fault, check, expected):
    op, reply = fault
    proxy.always(reply, op=op)
    found = Found(proxy=proxy)
    assert re.match(expected, found[check])
    assert op != "Scan" or found.of("unchecked") == {"rows", "Scan"}


def test_clocks(proxy, monkeypatch):
    # as if an earlier answer had been given by a host whose clock is wrong
    proxy.next(shifted(-20))
    assert Found(proxy=proxy)["clock"].startswith("ok: within ")
    proxy.always(faultproxy.delay(0.01))
    proxy.next(shifted(-20), op="Scan")
    found = Found(proxy=proxy)
    assert re.match(r"problem: answers contradict .* by (19|18)\.\d\d s$", found["clock"])
    assert found.of("problem") == {"clock"}
    # one that does not count suspension
    verdict = "ok: " if hasattr(time, "CLOCK_BOOTTIME") else "warning: "
    assert Found()["local clock"].startswith(verdict)
    monkeypatch.setattr(_clock, "_SUSPEND_AWARE", None)
    assert Found()["local clock"].startswith("warning: ")


def test_a_strongly_consistent_global_table_has_no_ttl_and_no_transactions(proxy):
    op, edit = edited(Replicas=[THERE], **STRONG)
    proxy.always(edit, op=op)
    disabled = {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
    proxy.always(answer(disabled), op="DescribeTimeToLive")
    proxy.always(refuse("ValidationException"), op="TransactWriteItems")
    found = Found(proxy=proxy)
    (ttl,) = (each for each in found.all if each["check"] == "ttl")
    assert "no TTL on such a table" in ttl["advice"]
    assert "DynamoDB has neither transactions" in found["replicas"]
    assert not found.of("problem")
    assert {"transactions", "ConditionCheckItem"} <= found.of("warning")


NOW = 1_800_000_000
OURS = {"token": "t", "version": 1, "lease": 30, "expires_at": NOW, "ttl": NOW + 1}
OTHERS = {
    "python-dynamodb-lock": "owner_name lease_duration record_version_number expiry_time",
    "Java": "ownerName leaseDuration recordVersionNumber isReleased",
    "dynamodblock": "owner_id ttl ttl_precise",
    "dyndb-mutex": "holder expire_ts",
    "ShedLock": "lockUntil lockedAt lockedBy",
}


def test_rows_of_other_libraries(table, monkeypatch):
    put(key="unknown", state="open")
    put(key="ours", **OURS)
    with monkeypatch.context() as patch:
        patch.setattr(_doctor, "SAMPLE", 1)
        assert re.match("ok: the first 1 row read: . of locks, nothing wrong", Found()["rows"])
    cases = ({}, "warning", "in the format of"), (OURS, "problem", "locked by")
    for ours, verdict, words in cases:
        for library, attributes in OTHERS.items():
            put(key=library, **(dict.fromkeys(attributes.split(), 1) | ours))
        found = Found().about("rows")
        starts = [f"{verdict}: 1 row ('{library}') {words}" for library in OTHERS]
        assert [sum(what.startswith(start) for what in found) for start in starts] == [1] * 5
        assert len(found) == len(OTHERS)


BROKEN = {
    "whose 'version' is missing: no mutex acquires such a row": {"version": None},
    "with a claim, but without 'lease'": {"lease": None},
    "whose 'expires_at' is not a number": {"expires_at": "2027-01-15"},
    "whose 'expires_at' is not in seconds: it is after the year 9999": {"expires_at": NOW * 1000},
    "whose 'waiting' is not a list: no mutex acquires such a row": {"waiting": "me"},
    "whose 'free_since' is not a number": {"free_since": "2027-01-15"},
    "whose 'ttl' is not a number": {"ttl": "2027-01-15"},
    "whose 'ttl' is not in seconds": {"ttl": NOW * 1000},
    "whose 'ttl' is before 'expires_at': DynamoDB may delete": {"ttl": NOW - 1},
}


def test_rows_that_look_broken(table):
    put(key="ours", **OURS)
    put(key="free", token="t", version=2, free_since=NOW, waiting=["who", "waits"])
    put(key="left", token="t", version=2, ttl=NOW)
    for place, broken in enumerate(BROKEN.values()):
        row = {name: value for name, value in (OURS | broken).items() if value is not None}
        for number in range(4):
            put(key=f"{place}-{number}", **row)
    found = Found().about("rows")
    for place, fault in enumerate(BROKEN):
        keys = ", ".join([f"'{place}-.'"] * 3)
        (what,) = (what for what in found if fault in what)
        assert re.match(rf"warning: 4 rows \({keys}, \.\.\.\) {re.escape(fault)}", what)
    assert len(found) == len(BROKEN)


IN_TRANSACTIONS = {"ConditionCheckItem": "ConditionCheck", "UpdateItem": "Update"}


@pytest.mark.parametrize("role", ["locker", "several", "viewer", "operator", "lock-model"])
def test_missing_permissions_are_reported_action_by_action(proxy, role):
    actions = ROLES[role].actions
    allowed = {IN_TRANSACTIONS[action] for action in actions if action in IN_TRANSACTIONS}
    denied = lambda body: not allowed & set(body["TransactItems"][0])  # noqa: E731 - it is short
    proxy.always(deny(), op="TransactWriteItems", when=denied)
    for action in set(USES) - set(actions):
        proxy.always(deny(), op=action)
    found = Found(proxy=proxy)
    vital = {action for action, use in USES.items() if use.vital}
    assert found.of("ok") >= set(USES) & set(actions)
    assert found.of("problem") == vital - set(actions)
    assert found.of("warning") >= set(USES) - vital - set(actions)
    verdict = "ok: " if "UpdateItem" in actions else "warning: "
    assert found["transactions"].startswith(verdict)
    needs = {"table": "DescribeTable", "ttl": "DescribeTimeToLive", "rows": "Scan"}
    unchecked = {check for check, action in needs.items() if action not in actions}
    assert found.of("unchecked") == unchecked


def test_no_table(proxy):
    found = Found("--table", "locks-that-are-not-there")
    assert found.of("problem") == {"table"}
    assert found.of("unchecked") == ON_TABLES - {"table"}
    assert {"access", "endpoint", "clock"} <= found.of("ok")
    proxy.always(deny(), op="DescribeTable")  # then the permissions show it
    found = Found("--table", "locks-that-are-not-there", proxy=proxy)
    assert found.of("problem") == {"GetItem", "UpdateItem"}
    assert found["GetItem"] == "problem: there is no such table"


def test_hints(proxy, monkeypatch):
    assert Found()["hints"] == "ok: with fair=Hints() a waiter of this host is called at 127.0.0.1"
    monkeypatch.setattr(_doctor, "_WAITS_FOR_HINT", 0.01)
    monkeypatch.setattr(_doctor, "_SENDS", "")
    assert Found()["hints"].startswith("warning: a datagram to this process did not arrive: timed")
    monkeypatch.setattr(_doctor, "_SENDS", "raise SystemExit(1)")
    assert Found()["hints"].startswith("warning: a datagram to this process did not arrive: Comm")

    def fail(_):
        raise OSError("no such host")

    monkeypatch.setattr(_doctor, "local_address", fail)
    assert Found()["hints"] == "unchecked: the endpoint's address is not known: no such host"
