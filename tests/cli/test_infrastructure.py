"""``create-table``, ``delete-table``, ``template`` and ``policy``: the table, and permissions on it."""

from __future__ import annotations

import json
import re
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import NamedTuple

import boto3
import pytest
import yaml
from botocore.client import BaseClient
from cli import answered, run_cli
from cli_scene import refuse_request, wrong_usage
from driving import batch_of, send_renewal
from plain_tables import create_plain_table
from pynamodb.attributes import BinaryAttribute, NumberAttribute, TTLAttribute, UnicodeAttribute
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from row_tables import LOCKABLE, created, made
from snippets import read_hcl, stand_ins

from pynamodb_mutex import LockItem, Mutex, Semaphore
from pynamodb_mutex.cli import _infrastructure
from pynamodb_mutex.cli._infrastructure import ROLES, USES
from pynamodb_mutex.testing import expire, held_elsewhere

IN_TRANSACTIONS = {
    "ConditionCheck": "ConditionCheckItem",
    "Delete": "DeleteItem",
    "Put": "PutItem",
    "Update": "UpdateItem",
}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("create-table", "--read-capacity", "1"), "and --write-capacity together"),
        (("create-table", "--read-capacity", "0", "--write-capacity", "1"), "--read-capacity"),
        (("create-table", "--tag", "team"), "'team' is not KEY=VALUE, such as team=payments"),
        (("create-table", "--tag", "=x"), "'=x' is not KEY=VALUE, such as team=payments"),
        (("template", "pulumi"), "'pulumi' is not one of"),
        (("template", "cdk", "--read-capacity", "0"), "'--read-capacity': 0"),
        (("template", "cdk", "--write-capacity", "1"), "and --write-capacity together"),
        (("policy", "--role", "king"), "'king' is not one of"),
        (("policy", "--account", "me"), "twelve digits"),
        (("policy", "--region", "middle-earth-1"), "no AWS region: middle-earth-1"),
    ],
)
def test_wrong_usage(args, message):
    assert message in wrong_usage(*args)


def printed(*args, code=0, env=None):
    done = run_cli(*args, env=env)
    assert done.exit_code == code, done.output
    return done.output


def test_the_documentation_shows_what_is_printed(monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", "pynamodb-mutex")
    written = (Path(__file__).parents[2] / "docs/table.rst").read_text(encoding="utf-8")
    policy = re.search(r"^   pynamodb-mutex (policy .*)$", written, re.MULTILINE)[1]
    for command in (policy, *(f"template {language}" for language in READERS)):
        lines = printed(*command.split()).splitlines()
        assert "\n\n" + "".join(f"   {line}".rstrip() + "\n" for line in lines) + "\n" in written


# -- create-table and delete-table -----------------------------------------------------------------


@pytest.fixture
def name(engine):
    """The name of a table that does not exist."""
    return f"locks-{uuid.uuid4().hex}"


def described(name):
    return boto3.client("dynamodb").describe_table(TableName=name)["Table"]


def exists(name):
    pages = boto3.client("dynamodb").get_paginator("list_tables").paginate()
    return any(name in page["TableNames"] for page in pages)


def create(name, *options):
    return json.loads(printed("--table", name, "create-table", "--json", *options))


@pytest.mark.real
def test_create_table_with_and_without_settings(name, engine):
    done = run_cli("--table", name, "create-table")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"table {name} in us-east-1 at http://")
    assert done.stdout.endswith(" is created\n")
    client = boto3.client("dynamodb")
    assert described(name)["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert (ttl["AttributeName"], ttl["TimeToLiveStatus"]) == ("ttl", "ENABLED")
    assert printed("--table", name, "create-table").endswith(" already exists\n")
    again = printed("create-table", "--table", name, "--tag", "a=b")
    assert again.endswith(" already exists; its settings were not changed\n")
    assert create(name) == {"table": name, "created": False}
    other = f"{name}-2"
    options = ("--read-capacity", "3", "--write-capacity", "4", "--tag", "team=pay", "--tag", "x=")
    assert create(other, *options) == {"table": other, "created": True}
    found = described(other)
    throughput = found["ProvisionedThroughput"]
    assert (throughput["ReadCapacityUnits"], throughput["WriteCapacityUnits"]) == (3, 4)
    if engine.name != "local":  # which keeps no tags
        tags = client.list_tags_of_resource(ResourceArn=found["TableArn"])["Tags"]
        assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "pay", "x": ""}


@pytest.mark.real
def test_delete_table_refuses_a_protected_table_and_deletes_others(name):
    run_cli("--table", name, "create-table", "--deletion-protection")
    done = run_cli("--table", name, "delete-table", "--yes")
    assert done.exit_code == 1
    assert "protected against deletion; to change that: aws dynamodb update-table" in done.stderr
    assert exists(name)
    client = boto3.client("dynamodb")
    client.update_table(TableName=name, DeletionProtectionEnabled=False)
    assert run_cli("--table", name, "delete-table", "--yes").exit_code == 0
    assert not exists(name)


@pytest.mark.real("embedded")
@pytest.mark.parametrize(("key", "kind"), [("id", "S"), ("key", "N")])
def test_a_table_with_other_keys_is_left_alone(name, key, kind):
    create_plain_table(boto3.client("dynamodb"), name, {key: kind})
    done = run_cli("--table", name, "delete-table", "--yes", "--force")
    assert done.exit_code == 1
    assert f"is not a lock table: it has hash key '{key}' ({kind})" in done.stderr
    assert exists(name)
    assert "exists with other keys" in printed("--table", name, "create-table", code=1)


@pytest.mark.real("embedded")
def test_delete_table_asks_for_the_name(table):
    name = table.Meta.table_name
    done = run_cli("delete-table")
    assert done.exit_code == 1
    assert "nothing was done: there is no terminal to ask on; see --yes" in done.stderr
    for wrong in ("y\n", "\n"):
        done = answered(wrong, "delete-table")
        assert done.exit_code == 1
        assert "nothing was done: that is not the name of the table" in done.stderr
    assert exists(name)
    Mutex.for_key("a", auto_renew=False).acquire()
    expire("a")
    done = answered(f"{name}\n", "delete-table")
    assert done.exit_code == 0, done.stderr
    assert "  rows: " in done.stderr
    assert "  locks held:  0\n" in done.stderr
    assert done.stdout.endswith(" is deleted\n")
    assert not exists(name)
    assert f"there is no table {name} in" in printed("delete-table", "--yes", code=1)


@pytest.mark.real("embedded")
def test_delete_table_refuses_while_locks_are_held(table):
    Mutex.for_key("a", owner="one\x1b", auto_renew=False).acquire()
    Mutex.for_key("b", owner="two", auto_renew=False).acquire()
    done = run_cli("delete-table", "--yes")
    assert done.exit_code == 1
    assert "  locks held:  2\n" in done.stderr
    assert "    'a' by 'one\\x1b'\n" in done.stderr
    assert "nothing was done: locks are held; --force deletes the table nevertheless" in done.stderr
    assert exists(table.Meta.table_name)
    assert run_cli("delete-table", "--yes", "--force").exit_code == 0
    assert not exists(table.Meta.table_name)


@pytest.mark.real("embedded")
def test_delete_table_while_another_process_deletes_it(table, monkeypatch, wire):
    monkeypatch.setattr(_infrastructure, "_POLL", 0.01)
    client, name = boto3.client("dynamodb"), table.Meta.table_name
    wire.before["DeleteTable"] = lambda: client.delete_table(TableName=name)
    assert printed("delete-table", "--yes").endswith(" is deleted\n")
    table.create_table()

    def deleting(answer):
        answer["Table"]["TableStatus"] = "DELETING"
        if wire.sent.count("DescribeTable") == 3:
            wire.after.clear()
            client.delete_table(TableName=name)

    wire.after["DescribeTable"] = deleting
    wire.sent.clear()
    assert run_cli("delete-table", "--yes").exit_code == 0
    assert wire.sent.count("DescribeTable") >= 4


@pytest.mark.real("embedded")
def test_delete_table_reports_what_fails(table, monkeypatch, wire):
    monkeypatch.setattr(_infrastructure, "_POLL", 0.01)
    monkeypatch.setattr(_infrastructure, "_LONGEST_WAIT", 0.03)
    for operation in ("DeleteTable", "DescribeTable"):
        wire.before[operation] = partial(
            refuse_request, operation, "AccessDeniedException", "not you"
        )
        assert "not you" in printed("delete-table", "--yes", code=1)
    wire.after["DescribeTable"] = lambda answer: answer["Table"].update(TableStatus="DELETING")
    assert "is still DELETING after 0 s" in printed("delete-table", "--yes", code=1)
    assert exists(table.Meta.table_name)


# -- template --------------------------------------------------------------------------------------


class Stored(LockItem):
    """Names of its own, and a range key."""

    class Meta:
        table_name = "locks-stored"

    key = UnicodeAttribute(hash_key=True, attr_name="pk")
    kind = UnicodeAttribute(range_key=True, attr_name="sk", default="lock")
    ttl = TTLAttribute(null=True, attr_name="expires")


class Odd(LockItem):
    """Names that each language would take for something else."""

    class Meta:
        table_name = "1e3"

    key = UnicodeAttribute(hash_key=True, attr_name="no")
    kind = NumberAttribute(range_key=True, attr_name='${a} %{b} "c" \\ é', default=1)
    ttl = TTLAttribute(null=True, attr_name="# ttl: 1")


class Provisioned(LockItem):
    class Meta:
        table_name = "locks-provisioned"
        billing_mode = "PROVISIONED"
        read_capacity_units = 3
        write_capacity_units = 4

    kind = BinaryAttribute(range_key=True, legacy_encoding=False, default=b"lock")


class ByOwner(GlobalSecondaryIndex[LockItem]):
    class Meta:
        projection = AllProjection()

    owner = UnicodeAttribute(hash_key=True)


class Indexed(LockItem):
    by_owner = ByOwner()


class Tagged(LockItem):
    class Meta:
        table_name = "locks-tagged"
        tags = {"team": "billing"}  # noqa: RUF012 - PynamoDB's way


class Described(NamedTuple):
    """A table, whoever describes it."""

    name: str
    keys: tuple[tuple[str, str], ...]
    ttl: tuple[str, bool]
    capacity: tuple[int, int] | None
    protected: bool = False


def read_cloudformation(text):
    (resource,) = yaml.safe_load(text)["Resources"].values()
    assert resource["Type"] == "AWS::DynamoDB::Table"
    table = resource["Properties"]
    ttl = table.pop("TimeToLiveSpecification")
    protected = table.pop("DeletionProtectionEnabled", False)
    found = as_described(table, (ttl["AttributeName"], ttl["Enabled"]), protected=protected)
    known = {"TableName", "BillingMode", "KeySchema", "AttributeDefinitions"}
    assert set(table) - {"ProvisionedThroughput"} == known
    return found


def as_described(table, ttl, *, protected):
    """Read what CreateTable takes, which CloudFormation takes too."""
    kinds = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
    assert [each["KeyType"] for each in table["KeySchema"]] == ["HASH", "RANGE"][: len(kinds)]
    units = None
    if table["BillingMode"] == "PROVISIONED":
        provisioned = table["ProvisionedThroughput"]
        units = provisioned["ReadCapacityUnits"], provisioned["WriteCapacityUnits"]
    names = [each["AttributeName"] for each in table["KeySchema"]]
    return Described(
        table["TableName"], tuple((name, kinds[name]) for name in names), ttl, units, protected
    )


def read_terraform(text):
    ((name, (table,)),) = read_hcl(text).items()
    assert name == "resource aws_dynamodb_table locks"
    kinds = {each["name"]: each["type"] for each in table.pop("attribute")}
    keys = [table.pop(key) for key in ("hash_key", "range_key") if key in table]
    assert set(keys) == set(kinds)
    (ttl,) = table.pop("ttl")
    on_demand = table.pop("billing_mode") == "PAY_PER_REQUEST"
    found = Described(
        table.pop("name"),
        tuple((key, kinds[key]) for key in keys),
        (ttl["attribute_name"], ttl["enabled"]),
        None if on_demand else (table.pop("read_capacity"), table.pop("write_capacity")),
        table.pop("deletion_protection_enabled", False),
    )
    assert not table
    return found


def read_cdk(text):
    namespace = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_ins().items():
            patch.setitem(sys.modules, name, module)
        exec(text, namespace)
    (table,) = namespace["LockStack"](None, "locks").tables
    on_demand = table.pop("billing_mode") == "PAY_PER_REQUEST"
    found = Described(
        table.pop("table_name"),
        tuple(table.pop(key) for key in ("partition_key", "sort_key") if key in table),
        (table.pop("time_to_live_attribute"), True),
        None if on_demand else (table.pop("read_capacity"), table.pop("write_capacity")),
        table.pop("deletion_protection", False),
    )
    assert not table
    return found


READERS = {"cloudformation": read_cloudformation, "terraform": read_terraform, "cdk": read_cdk}


def read_all(*args):
    """Print the table in each language; return what all of them say."""
    (found,) = {read(printed("template", language, *args)) for language, read in READERS.items()}
    return found


def created_by(model):
    """Create the model's table; return what DynamoDB says of it."""
    model.create_table()
    client = boto3.client("dynamodb")
    name = model.Meta.table_name
    table = client.describe_table(TableName=name)["Table"]
    ttl = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    client.delete_table(TableName=name)
    table["BillingMode"] = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    enabled = ttl["AttributeName"], ttl["TimeToLiveStatus"] == "ENABLED"
    protected = table.get("DeletionProtectionEnabled", False)
    return as_described(table, enabled, protected=protected)


@pytest.mark.real("embedded")
@pytest.mark.parametrize("model", [LockItem, Stored, Provisioned])
def test_template_is_the_table_that_create_table_creates(engine, monkeypatch, model):
    monkeypatch.setattr(model, "_connection", None)
    monkeypatch.setattr(model.Meta, "table_name", f"locks-{uuid.uuid4().hex}")
    given = [] if model is LockItem else ["--model", f"{__name__}:{model.__name__}"]
    assert read_all(*given) == created_by(model)


def test_template_quotes_names_that_a_language_would_misread():
    assert read_all("--model", f"{__name__}:Odd") == Described(
        "1e3", (("no", "S"), ('${a} %{b} "c" \\ é', "N")), ("# ttl: 1", True), None
    )


def test_template_with_options():
    found = read_all(
        "--table", "mine", "--read-capacity", "5", "--write-capacity", "6", "--deletion-protection"
    )
    assert found == Described("mine", (("key", "S"),), ("ttl", True), (5, 6), protected=True)


@pytest.mark.parametrize(("model", "lacks"), [("Indexed", "indexes"), ("Tagged", "tags")])
def test_template_of_a_model_with_more_settings_is_refused(model, lacks):
    refusal = printed("template", "terraform", "--model", f"{__name__}:{model}", code=1)
    assert f"{model} has {lacks}" in refusal


# -- policy ----------------------------------------------------------------------------------------


def policy(*args, env=None):
    (statement,) = json.loads(printed("policy", *args, env=env))["Statement"]
    assert statement["Effect"] == "Allow"
    return statement


def allowed(role):
    actions = policy("--role", role)["Action"]
    assert actions == sorted(actions)
    return {action.removeprefix("dynamodb:") for action in actions}


def actions_of(operation, request):
    """Return the tables and the actions that a request needs there."""
    if operation == "TransactWriteItems":
        items = [pair for item in request["TransactItems"] for pair in item.items()]
        return {(each["TableName"], IN_TRANSACTIONS[kind]) for kind, each in items}
    if operation == "BatchExecuteStatement":
        texts = [each["Statement"] for each in request["Statements"]]
        return {(re.match('UPDATE "(.*?)"', text)[1], "PartiQLUpdate") for text in texts}
    if operation == "BatchGetItem":
        return {(table, operation) for table in request["RequestItems"]}
    return {(request["TableName"], operation)}


@pytest.fixture
def needed(monkeypatch):
    """The tables and the actions that were needed there since the test cleared it."""
    needed = set()
    original = BaseClient._make_api_call

    def send(client, operation, request):
        needed.update(actions_of(operation, request))
        return original(client, operation, request)

    monkeypatch.setattr(BaseClient, "_make_api_call", send)
    return needed


def on(table, needed):
    return {action for name, action in needed if name == table.Meta.table_name}


def renew_together(*holds):
    """Send what the renewer sends when these are due."""
    first, *others = holds
    assert batch_of(first) is not None
    send_renewal(first, *others)


def single_lock():
    with Mutex.for_key("a") as mutex:
        assert not Mutex.for_key("a").acquire(blocking=False)
        assert not Mutex.for_key("a").acquire(timeout=0.2)
        mutex.renew()
        mutex.save_data(1)
        assert mutex.locked()
        with mutex.transaction():
            pass
        ticket = mutex.detach()
    with Mutex.attach(ticket):
        pass
    with held_elsewhere("a"):
        assert not Mutex.for_key("a", fair=True).acquire(timeout=0.2)
        assert LockItem.force_release("a")


def several_locks():
    single_lock()
    with Mutex.for_keys(["b", "c"]), held_elsewhere("d"):
        assert not Mutex.for_keys(["b", "c", "d"]).acquire(timeout=0.2)
        with Mutex.any_of(["d", "e"]):
            assert not Mutex.any_of(["d", "e"]).acquire(timeout=0.2)
    with Semaphore.for_key("f", permits=2):
        pass
    first, second = Mutex.for_key("g"), Mutex.for_key("h")
    with first, second:
        renew_together(first._latest, second._latest)


def delete_on_release():
    single_lock()
    with Mutex.for_key("z", delete_on_release=True):
        pass


def create_and_delete():
    LockItem.create_table()
    LockItem.delete_table()
    LockItem.create_table()


@pytest.mark.parametrize(
    ("role", "use"),
    [
        ("locker", single_lock),
        ("several", several_locks),
        ("deleter", delete_on_release),
        ("admin", create_and_delete),
    ],
)
def test_a_role_has_the_actions_of_its_requests_and_no_others(table, needed, role, use):
    use()
    assert on(table, needed) == allowed(role)


def test_roles_of_who_looks_and_of_who_breaks_a_claim(table, needed):
    def look():
        needed.clear()
        assert [item.key for item in LockItem.held()] == ["a"]
        assert run_cli("ls", "a").exit_code == 0

    with held_elsewhere("a"):
        look()
        assert Mutex.for_key("a").locked()
        assert on(table, needed) == allowed("viewer")
        look()
        assert LockItem.force_release("a")
        described = {"DescribeTable", "DescribeTimeToLive"}  # by the doctor
        assert on(table, needed) | described == allowed("operator")
    assert described <= set(USES)


def accounts(**more):
    """Return a model of rows that can be locked, with its table."""
    attributes = {"name": UnicodeAttribute(hash_key=True), "balance": NumberAttribute(default=0)}
    return created(made(attributes | more, LOCKABLE))


def work_on_rows(model):
    model("a").save()
    model("b").save()
    model("c").save()
    with model.locked("a") as row:
        row.save()
        row.update([model.balance.set(1)])
        row.delete()
    model.get("b").update([model.balance.set(1)])
    with model.locked_all(["b", "c"]) as (first, second):
        first.save()
        assert not model.locked("b").acquire(timeout=0.2)
        assert not model.locked_all(["b", "c"]).acquire(timeout=2)  # and reads
        second.refresh()
    model.get("c").delete()


def test_role_of_rows(table, needed):
    model = accounts()
    needed.clear()
    work_on_rows(model)
    model("d").save()
    with model.locked("b") as first, model.locked("d") as second:
        renew_together(first.row_lock._latest, second.row_lock._latest)
    assert on(model, needed) == allowed("rows")
    assert not on(table, needed)


def test_role_of_rows_with_a_lock_model(table, needed):
    model = accounts(lock_model=LockItem)
    needed.clear()
    work_on_rows(model)
    first, second = Mutex.for_key("g"), Mutex.for_key("h")
    with first, second:
        renew_together(first._latest, second._latest)
    assert on(table, needed) == allowed("lock-model")
    assert on(model, needed) <= allowed("rows")


def test_every_action_that_the_doctor_tries_is_in_a_role():
    for action, use in USES.items():
        assert action in ROLES[use.role].actions
    assert {action for action, use in USES.items() if use.vital} == set(ROLES["locker"].actions)


@pytest.mark.parametrize(
    ("args", "settings", "resource"),
    [
        ([], {}, "arn:aws:dynamodb:*:*:table/pynamodb-mutex"),
        ([], {"AWS_DEFAULT_REGION": "cn-north-1"}, "arn:aws-cn:dynamodb:cn-north-1:*:table/{}"),
        (
            ["--region", "us-gov-west-1", "--account", "123456789012", "--table", "locks"],
            {"AWS_DEFAULT_REGION": "cn-north-1"},
            "arn:aws-us-gov:dynamodb:us-gov-west-1:123456789012:table/locks",
        ),
    ],
)
def test_arn_of_the_policy(monkeypatch, args, settings, resource):
    monkeypatch.setattr(LockItem.Meta, "table_name", "pynamodb-mutex")
    unset = dict.fromkeys(("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"))
    unset |= {"AWS_CONFIG_FILE": "/nowhere"}
    statement = policy(*args, env=unset | settings)
    assert statement["Resource"] == resource.format("pynamodb-mutex")


def test_several_roles_in_one_policy():
    both = set(policy("--role", "viewer", "--role", "deleter")["Action"])
    assert both == {f"dynamodb:{each}" for each in allowed("viewer") | allowed("deleter")}
