"""`pynamodb-mutex template`: three snippets of one table, which is that of create_table()."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
import yaml
from click.testing import CliRunner
from pynamodb.attributes import (
    BinaryAttribute,
    NumberAttribute,
    TTLAttribute,
    UnicodeAttribute,
)
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from snippets import read_hcl, stand_ins

from pynamodb_mutex import LockItem
from pynamodb_mutex.cli._app import app

pytestmark = pytest.mark.real

PAGE = Path(__file__).parents[2] / "docs/table.rst"
LANGUAGES = ["cloudformation", "terraform", "cdk"]


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


def printed(*args: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["template", *args])
    assert done.exit_code == code, done.output
    return done.output


def read_cloudformation(text: str) -> Described:
    (resource,) = yaml.safe_load(text)["Resources"].values()
    assert resource["Type"] == "AWS::DynamoDB::Table"
    table = resource["Properties"]
    ttl = table.pop("TimeToLiveSpecification")
    protected = table.pop("DeletionProtectionEnabled", False)
    found = as_described(table, (ttl["AttributeName"], ttl["Enabled"]), protected=protected)
    known = {"TableName", "BillingMode", "KeySchema", "AttributeDefinitions"}
    assert set(table) - {"ProvisionedThroughput"} == known
    return found


def as_described(table: dict[str, Any], ttl: tuple[str, bool], *, protected: bool) -> Described:
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


def read_terraform(text: str) -> Described:
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


def read_cdk(text: str) -> Described:
    namespace: dict[str, Any] = {}
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


READERS = dict(
    zip(LANGUAGES, (read_cloudformation, read_terraform, read_cdk), strict=True),
)


def read_all(*args: str) -> Described:
    """Print the table in each language; return what all of them say."""
    (found,) = {READERS[language](printed(language, *args)) for language in LANGUAGES}
    return found


def created(model: type[LockItem]) -> Described:
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


@pytest.mark.parametrize("model", [LockItem, Stored, Provisioned])
def test_it_is_the_table_that_create_table_makes(engine, monkeypatch, model):
    monkeypatch.setattr(model, "_connection", None)
    monkeypatch.setattr(model.Meta, "table_name", f"locks-{uuid.uuid4().hex}")
    given = [] if model is LockItem else ["--model", f"{__name__}:{model.__name__}"]
    assert read_all(*given) == created(model)


def test_names_that_a_language_would_take_for_something_else():
    assert read_all("--model", f"{__name__}:Odd") == Described(
        "1e3",
        (("no", "S"), ('${a} %{b} "c" \\ é', "N")),
        ("# ttl: 1", True),
        None,
    )


def test_options():
    found = read_all(
        "--table", "mine", "--read-capacity", "5", "--write-capacity", "6", "--deletion-protection"
    )
    assert found == Described("mine", (("key", "S"),), ("ttl", True), (5, 6), protected=True)


@pytest.mark.parametrize(("model", "lacks"), [("Indexed", "indexes"), ("Tagged", "tags")])
def test_what_a_snippet_would_lack_is_refused(model, lacks):
    told = printed("terraform", "--model", f"{__name__}:{model}", code=1)
    assert f"{model} has {lacks}" in told


def test_bad_usage():
    assert "'pulumi' is not one of" in printed("pulumi", code=2)
    assert "'--read-capacity': 0" in printed("cdk", "--read-capacity", "0", code=2)
    assert "go together" in printed("cdk", "--write-capacity", "1", code=2)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_documentation_shows_what_is_printed(language, monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", "pynamodb-mutex")
    shown = "".join(f"   {line}".rstrip() + "\n" for line in printed(language).splitlines())
    assert f"\n\n{shown}\n" in PAGE.read_text(encoding="utf-8")
