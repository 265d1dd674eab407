"""``create-table``, ``delete-table``, ``template`` and ``policy``: the table, and permissions on it."""

import json
import re
import sys
import textwrap
import uuid
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from command_line import cli, json_of, refuse_request
from pynamodb.attributes import BinaryAttribute, NumberAttribute, TTLAttribute, UnicodeAttribute
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from row_models import LOCKABLE, created, made
from tables import create_plain_table

from pynamodb_mutex import LockItem, Mutex, Once, Semaphore
from pynamodb_mutex.cli import _infrastructure
from pynamodb_mutex.cli._infrastructure import ROLES, USES
from pynamodb_mutex.testing import expire, held_elsewhere


@pytest.fixture
def name(engine):
    """The name of a table that does not exist."""
    return f"locks-{uuid.uuid4().hex}"


@pytest.fixture
def requests(monkeypatch):
    """The operations that were sent, and what with."""
    sent = []
    original = BaseClient._make_api_call

    def send(client, operation, request):
        sent.append((operation, request))
        return original(client, operation, request)

    monkeypatch.setattr(BaseClient, "_make_api_call", send)
    return sent


def exists(name):
    pages = boto3.client("dynamodb").get_paginator("list_tables").paginate()
    return any(name in page["TableNames"] for page in pages)


@pytest.mark.real
def test_create_table_with_and_without_settings_and_delete_a_protected_one(name, engine):
    client = boto3.client("dynamodb")
    created = cli("--table", name, "create-table").stdout
    assert re.fullmatch(f"table {name} in us-east-1 at http://.* is created\n", created)
    found = client.describe_table(TableName=name)["Table"]
    assert found["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert (ttl["AttributeName"], ttl["TimeToLiveStatus"]) == ("ttl", "ENABLED")
    assert cli("--table", name, "create-table").stdout.endswith(" already exists\n")
    again = cli("create-table", "--table", name, "--tag", "a=b").stdout
    assert again.endswith(" already exists; its settings were not changed\n")
    assert json_of("--table", name, "create-table") == {"table": name, "created": False}
    cli("--table", name, "delete-table", "--yes")
    assert not exists(name)
    options = ("--read-capacity", "3", "--write-capacity", "4", "--tag", "team=pay", "--tag", "x=")
    made = json_of("--table", name, "create-table", *options, "--deletion-protection")
    assert made == {"table": name, "created": True}
    found = client.describe_table(TableName=name)["Table"]
    throughput = found["ProvisionedThroughput"]
    assert (throughput["ReadCapacityUnits"], throughput["WriteCapacityUnits"]) == (3, 4)
    if engine.name != "local":  # which keeps no tags
        tags = client.list_tags_of_resource(ResourceArn=found["TableArn"])["Tags"]
        assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "pay", "x": ""}
    error = cli("--table", name, "delete-table", "--yes", code=1).stderr
    assert "protected against deletion; to change that: aws dynamodb update-table" in error
    assert exists(name)


@pytest.mark.real("embedded")
def test_a_table_with_other_keys_is_left_alone(name):
    for key, kind in (("id", "S"), ("key", "N")):
        other = f"{name}-{kind}"
        create_plain_table(boto3.client("dynamodb"), other, {key: kind})
        error = cli("--table", other, "delete-table", "--yes", "--force", code=1).stderr
        assert f"is not a lock table: it has hash key '{key}' ({kind})" in error
        assert exists(other)
        error = cli("--table", other, "create-table", code=1).stderr
        assert "exists with other keys" in error


@pytest.mark.real("embedded")
def test_delete_table_asks_for_the_name_and_refuses_while_locks_are_held(table):
    name = table.Meta.table_name
    Mutex.for_key("a", owner="one\x1b", auto_renew=False).acquire()
    Mutex.for_key("b", owner="two", auto_renew=False).acquire()
    for typed, options, refusal in (
        (None, ("--yes",), "locks are held; --force deletes the table nevertheless"),
        (None, ("--force",), "there is no terminal to ask on; see --yes"),
        ("y\n", ("--force",), "that is not the name of the table"),
        ("\n", ("--force",), "that is not the name of the table"),
    ):
        error = cli("delete-table", *options, typed=typed, code=1).stderr
        assert f"nothing was done: {refusal}" in error
        assert "  locks held:  2\n    'a' by 'one\\x1b'\n" in error
    assert exists(name)
    cli("delete-table", "--yes", "--force")
    assert not exists(name)
    table.create_table()
    Mutex.for_key("c", auto_renew=False).acquire()
    expire("c")
    done = cli("delete-table", typed=f"{name}\n")
    assert re.search("  rows: .*\n  locks held:  0\n", done.stderr)
    assert done.stdout.endswith(" is deleted\n")
    assert not exists(name)
    assert f"there is no table {name} in" in cli("delete-table", "--yes", code=1).stderr


@pytest.mark.real("embedded")
def test_delete_table_while_another_process_deletes_it_and_if_it_fails(table, monkeypatch, wire):
    monkeypatch.setattr(_infrastructure, "_POLL", 0.01)
    client, name = boto3.client("dynamodb"), table.Meta.table_name
    wire.before["DeleteTable"] = lambda: client.delete_table(TableName=name)
    assert cli("delete-table", "--yes").stdout.endswith(" is deleted\n")
    table.create_table()

    def deleting(answer):
        answer["Table"]["TableStatus"] = "DELETING"
        if wire.sent.count("DescribeTable") == 3:
            wire.after.clear()
            client.delete_table(TableName=name)

    wire.after["DescribeTable"] = deleting
    wire.sent.clear()
    cli("delete-table", "--yes")
    assert wire.sent.count("DescribeTable") >= 4
    table.create_table()
    for operation in ("DeleteTable", "DescribeTable"):
        refuse = partial(refuse_request, operation, "AccessDeniedException", "not you")
        wire.before[operation] = refuse
        assert "not you" in cli("delete-table", "--yes", code=1).stderr
    monkeypatch.setattr(_infrastructure, "_LONGEST_WAIT", 0.03)
    wire.after["DescribeTable"] = lambda answer: answer["Table"].update(TableStatus="DELETING")
    assert "is still DELETING after 0 s" in cli("delete-table", "--yes", code=1).stderr
    assert exists(name)


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
    Meta = type("Meta", (), {"table_name": "locks-tagged", "tags": {"team": "billing"}})


def read_request(table, ttl):
    """Read what CreateTable takes: name, keys, TTL, capacity, and whether it is protected."""
    kinds = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
    assert [each["KeyType"] for each in table["KeySchema"]] == ["HASH", "RANGE"][: len(kinds)]
    keys = tuple(
        (each["AttributeName"], kinds[each["AttributeName"]]) for each in table["KeySchema"]
    )
    units = table.get("ProvisionedThroughput", {}).values()
    assert table["BillingMode"] == ("PROVISIONED" if units else "PAY_PER_REQUEST")
    protected = table.get("DeletionProtectionEnabled", False)
    return table["TableName"], keys, (ttl["AttributeName"], ttl["Enabled"]), *units, protected


def read_cloudformation(text):
    (resource,) = json.loads(text)["Resources"].values()
    assert resource["Type"] == "AWS::DynamoDB::Table"
    table = resource["Properties"]
    ttl = table.pop("TimeToLiveSpecification")
    known = {"TableName", "BillingMode", "KeySchema", "AttributeDefinitions"}
    assert table.keys() - {"ProvisionedThroughput", "DeletionProtectionEnabled"} == known
    return read_request(table, ttl)


def read_hcl(text: str) -> dict[str, Any]:
    """Read a part of HCL: blocks, of which one kind may stand there twice, strings, numbers and booleans."""
    root: dict[str, Any] = {}
    open_blocks = [root]
    for line in filter(None, map(str.strip, text.splitlines())):
        if start := re.fullmatch(r'(\w+)((?: "[\w-]+")*) \{', line):
            inner: dict[str, Any] = {}
            name = " ".join([start[1], *re.findall(r'"([^"]+)"', start[2])])
            open_blocks[-1].setdefault(name, []).append(inner)
            open_blocks.append(inner)
        elif setting := re.fullmatch(
            r'(\w+) += ("(?:[^"$%\\]|\$\$|%%|\\.)*"|\d+|true|false)', line
        ):
            value = json.loads(setting[2])
            if isinstance(value, str):
                value = value.replace("$${", "${").replace("%%{", "%{")
            assert setting[1] not in open_blocks[-1]
            open_blocks[-1][setting[1]] = value
        else:
            assert line == "}", f"not understood: {line}"
            open_blocks.pop()
    assert open_blocks == [root], "a block is not closed"
    return root


def stand_ins() -> dict[str, Any]:
    """Return modules with as much of the CDK as the page uses: the CDK itself needs Node.js."""

    class Stack:
        def __init__(self, scope: Any, construct_id: str) -> None:
            self.tables: list[dict[str, Any]] = []

    dynamodb = SimpleNamespace(
        Attribute=lambda *, name, type: (name, type),  # noqa: A006 - the CDK's
        AttributeType=SimpleNamespace(STRING="S", NUMBER="N", BINARY="B"),
        BillingMode=SimpleNamespace(PAY_PER_REQUEST="PAY_PER_REQUEST", PROVISIONED="PROVISIONED"),
        Table=lambda stack, construct_id, **settings: stack.tables.append(settings),
    )
    cdk = SimpleNamespace(Stack=Stack, aws_dynamodb=dynamodb)
    return {"aws_cdk": cdk, "aws_cdk.aws_dynamodb": dynamodb}


def read_terraform(text):
    ((name, (table,)),) = read_hcl(text).items()
    assert name == "resource aws_dynamodb_table locks"
    kinds = {each["name"]: each["type"] for each in table.pop("attribute")}
    keys = [table.pop(key) for key in ("hash_key", "range_key") if key in table]
    assert set(keys) == set(kinds)
    (ttl,) = table.pop("ttl")
    protected = table.pop("deletion_protection_enabled", False)
    keys = tuple((key, kinds[key]) for key in keys)
    return read_rest(table, "name", keys, (ttl["attribute_name"], ttl["enabled"]), protected)


def read_cdk(text):
    namespace = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in stand_ins().items():
            patch.setitem(sys.modules, name, module)
        exec(text, namespace)
    (table,) = namespace["LockStack"](None, "locks").tables
    keys = tuple(table.pop(key) for key in ("partition_key", "sort_key") if key in table)
    ttl = table.pop("time_to_live_attribute"), True
    return read_rest(table, "table_name", keys, ttl, table.pop("deletion_protection", False))


def read_rest(table, name, keys, ttl, protected):
    """Read name and capacity as Terraform and the CDK have them; nothing else may be left."""
    on_demand = table.pop("billing_mode") == "PAY_PER_REQUEST"
    units = () if on_demand else (table.pop("read_capacity"), table.pop("write_capacity"))
    assert table.keys() == {name}
    return table[name], keys, ttl, *units, protected


PAGE = (Path(__file__).parents[2] / "docs/table.rst").read_text(encoding="utf-8")
CDK = textwrap.dedent(re.search(r"(?ms)^   from aws_cdk.*?^ +\)$", PAGE)[0])

READERS = {"cloudformation": read_cloudformation, "terraform": read_terraform}


@pytest.mark.real("embedded")
@pytest.mark.parametrize(
    "args",
    [
        "--table pynamodb-mutex",
        f"--model {__name__}:Odd",
        f"--model {__name__}:Provisioned",
        "--table mine --read-capacity 5 --write-capacity 6 --deletion-protection",
    ],
)
def test_template_is_the_table_that_create_table_creates(engine, requests, args):
    cli("create-table", *args.split())
    sent = dict(requests)
    ttl = sent["UpdateTimeToLive"]["TimeToLiveSpecification"]
    for language, read in READERS.items():
        found = read(cli("template", language, *args.split()).stdout)
        assert found == read_request(sent["CreateTable"], ttl)
    if args == "--table pynamodb-mutex":
        assert read_cdk(CDK) == found


def test_template_of_a_model_with_more_settings_is_refused():
    for model, lacks in (("Indexed", "indexes"), ("Tagged", "tags")):
        error = cli("template", "terraform", "--model", f"{__name__}:{model}", code=1).stderr
        assert f"{model} has {lacks}" in error


def test_the_documentation_shows_what_is_printed(monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", "pynamodb-mutex")
    policy = re.search(r"^   pynamodb-mutex (policy .*)$", PAGE, re.MULTILINE)[1]
    for command in (policy, *(f"template {language}" for language in READERS)):
        lines = cli(*command.split()).stdout.splitlines()
        assert "\n\n" + "".join(f"   {line}".rstrip() + "\n" for line in lines) + "\n" in PAGE


def policy(*args, env=None):
    (statement,) = json.loads(cli("policy", *args, env=env).stdout)["Statement"]
    assert statement["Effect"] == "Allow"
    return statement


def allowed(*roles):
    actions = policy(*(f"--role={role}" for role in roles))["Action"]
    assert actions == sorted(actions)
    return {action.removeprefix("dynamodb:") for action in actions}


def actions_of(operation, request):
    """Return the tables and the actions that a request needs there."""
    if operation == "TransactWriteItems":
        items = [pair for item in request["TransactItems"] for pair in item.items()]
        return {(each["TableName"], f"{kind}Item") for kind, each in items}
    if operation == "BatchGetItem":
        return {(table, operation) for table in request["RequestItems"]}
    return {(request["TableName"], operation)}


def needed(table, requests):
    actions = {each for request in requests for each in actions_of(*request)}
    return {action for name, action in actions if name == table.Meta.table_name}


def test_roles_have_the_actions_of_their_requests_and_no_others(table, requests):
    requests.clear()
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
    single = list(requests)
    requests.clear()
    once = Once.for_key("a", timeout=0)
    with once as run, run.transaction(result=1):
        pass
    assert once.call(int) == 1
    assert Once.forget("a")
    assert once.call(int) == 0
    assert needed(table, requests) == allowed("locker")
    requests[:] = single
    assert needed(table, single) == allowed("locker")
    with Mutex.for_key("z", delete_on_release=True):
        pass
    assert needed(table, requests) == allowed("deleter")
    requests[:] = single
    with Mutex.for_keys(["b", "c"]), held_elsewhere("d"):
        assert not Mutex.for_keys(["b", "c", "d"]).acquire(timeout=0.2)
        with Mutex.any_of(["d", "e"]):
            assert not Mutex.any_of(["d", "e"]).acquire(timeout=0.2)
    with Semaphore.for_key("f", permits=2):
        pass
    assert needed(table, requests) == allowed("several")
    requests.clear()
    assert list(LockItem.held()) == []  # `delete-table` asks for it first
    LockItem.delete_table()
    LockItem.create_table()
    assert needed(table, requests) == allowed("admin")


def test_roles_of_who_looks_and_of_who_breaks_a_claim(table, requests):
    with held_elsewhere("a"):
        requests.clear()
        assert [item.key for item in LockItem.held()] == ["a"]
        assert [item.key for item in LockItem.held("a")] == ["a"]
        cli("ls", "a")
        cli("ls", "--once", "a")
        cli("show", "--once", "a")
        looking = list(requests)
        assert Mutex.for_key("a").locked()
        assert needed(table, requests) == allowed("viewer")
        requests[:] = looking
        assert LockItem.force_release("a")
        cli("record", "a", "--yes")
        cli("forget", "a", "--yes")
    described = {"DescribeTable", "DescribeTimeToLive"}  # by the doctor
    assert needed(table, requests) | described == allowed("operator")
    # every action that the doctor tries is in a role
    assert described <= set(USES)
    assert all(action in ROLES[use.role].actions for action, use in USES.items())
    assert {action for action, use in USES.items() if use.vital} == set(ROLES["locker"].actions)


@pytest.mark.parametrize("lock_model", [None, LockItem])
def test_roles_of_rows(table, requests, lock_model):
    attributes = {"name": UnicodeAttribute(hash_key=True), "balance": NumberAttribute(default=0)}
    model = created(made(attributes | {"lock_model": lock_model}, LOCKABLE))
    requests.clear()
    for name in "abcd":
        model(name).save()
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
    if lock_model is None:
        assert needed(model, requests) == allowed("rows")
        assert not needed(table, requests)
    else:
        assert needed(model, requests) <= allowed("rows")
        assert needed(table, requests) == allowed("lock-model")


def test_policy_names_the_table_and_the_actions_of_all_roles(monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", "pynamodb-mutex")
    china = {"AWS_DEFAULT_REGION": "cn-north-1"}
    given = ("--region", "us-gov-west-1", "--account", "123456789012", "--table", "locks")
    for args, env, resource in (
        ((), {}, "arn:aws:dynamodb:*:*:table/pynamodb-mutex"),
        ((), china, "arn:aws-cn:dynamodb:cn-north-1:*:table/pynamodb-mutex"),
        (given, china, "arn:aws-us-gov:dynamodb:us-gov-west-1:123456789012:table/locks"),
    ):
        assert policy(*args, env=env)["Resource"] == resource
    assert allowed("viewer", "deleter") == allowed("viewer") | allowed("deleter")
