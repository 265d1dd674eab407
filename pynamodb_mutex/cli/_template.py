"""The command ``template``: the lock table as infrastructure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

import click

from pynamodb_mutex._dynamodb.pynamodb_private import schema_of
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place
from pynamodb_mutex.cli._tables import capacity_of, settings_options

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb_mutex.models import LockItem

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_NOT_STRINGS = {"y", "n", "yes", "no", "true", "false", "on", "off", "null"}
_TYPES = {"S": "STRING", "N": "NUMBER", "B": "BINARY"}


class Key(NamedTuple):
    """An attribute of the primary key, as it is stored."""

    name: str
    kind: str
    """S, N or B."""
    role: str
    """HASH or RANGE."""


class Table(NamedTuple):
    """What a snippet says of the table."""

    name: str
    keys: list[Key]
    ttl: str
    capacity: tuple[int, int] | None
    """Units of reading and writing; None: on demand."""
    protected: bool


def table_of(model: type[LockItem], capacity: tuple[int, int] | None, *, protected: bool) -> Table:
    """Return a model's table as `LockItem.create_table` would make it.

    Raises:
        Failure: If the model asks for more than keys, billing and TTL.
    """
    meta = model.Meta
    more = [name for name in ("tags", "stream_view_type") if getattr(meta, name, None)]
    schema = schema_of(model)
    if more or schema["global_secondary_indexes"] or schema["local_secondary_indexes"]:
        raise Failure(
            f"{model.__name__} has {more[0] if more else 'indexes'}: the snippet would lack that. "
            "Put its keys and TTL into a template of yours"
        )
    kinds = {
        each["AttributeName"]: each["AttributeType"] for each in schema["attribute_definitions"]
    }
    keys = [
        Key(each["AttributeName"], kinds[each["AttributeName"]], each["KeyType"])
        for each in sorted(schema["key_schema"], key=lambda key: key["KeyType"])
    ]
    if capacity is None and meta.billing_mode == "PROVISIONED":
        capacity = meta.read_capacity_units, meta.write_capacity_units  # type: ignore[attr-defined]  # PynamoDB's, of such a table
    return Table(meta.table_name, keys, model.ttl.attr_name, capacity, protected)


def cloudformation(table: Table) -> str:
    """Return a CloudFormation template in YAML."""
    billing = "PAY_PER_REQUEST" if table.capacity is None else "PROVISIONED"
    lines = [
        "Resources:",
        "  LockTable:",
        "    Type: AWS::DynamoDB::Table",
        "    Properties:",
        f"      TableName: {_yaml(table.name)}",
        f"      BillingMode: {billing}",
    ]
    if table.capacity is not None:
        lines += [
            "      ProvisionedThroughput:",
            f"        ReadCapacityUnits: {table.capacity[0]}",
            f"        WriteCapacityUnits: {table.capacity[1]}",
        ]
    if table.protected:
        lines.append("      DeletionProtectionEnabled: true")
    lines.append("      AttributeDefinitions:")
    for key in table.keys:
        lines.append(f"        - AttributeName: {_yaml(key.name)}")
        lines.append(f"          AttributeType: {_yaml(key.kind)}")
    lines.append("      KeySchema:")
    for key in table.keys:
        lines.append(f"        - AttributeName: {_yaml(key.name)}")
        lines.append(f"          KeyType: {key.role}")
    lines += [
        "      TimeToLiveSpecification:",
        f"        AttributeName: {_yaml(table.ttl)}",
        "        Enabled: true",
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """Return a literal in double quotes, as JSON, YAML and Python have them."""
    return json.dumps(text, ensure_ascii=False)


def _yaml(text: str) -> str:
    """Quote what YAML would take for something else than this string."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_STRINGS
    return text if plain else _quoted(text)


def terraform(table: Table) -> str:
    """Return a resource of Terraform's AWS provider."""
    settings = [("name", _hcl(table.name))]
    if table.capacity is None:
        settings.append(("billing_mode", '"PAY_PER_REQUEST"'))
    else:
        settings.append(("billing_mode", '"PROVISIONED"'))
        settings.append(("read_capacity", str(table.capacity[0])))
        settings.append(("write_capacity", str(table.capacity[1])))
    settings += [(f"{key.role.lower()}_key", _hcl(key.name)) for key in table.keys]
    if table.protected:
        settings.append(("deletion_protection_enabled", "true"))
    width = max(len(name) for name, _ in settings)
    lines = ['resource "aws_dynamodb_table" "locks" {']
    lines += [f"  {name:{width}} = {value}" for name, value in settings]
    for key in table.keys:
        lines += [
            "",
            "  attribute {",
            f"    name = {_hcl(key.name)}",
            f"    type = {_hcl(key.kind)}",
            "  }",
        ]
    lines += [
        "",
        "  ttl {",
        f"    attribute_name = {_hcl(table.ttl)}",
        "    enabled        = true",
        "  }",
        "}",
    ]
    return "\n".join(lines)


def _hcl(text: str) -> str:
    return _quoted(text).replace("${", "$${").replace("%{", "%%{")


def cdk(table: Table) -> str:
    """Return a stack for the CDK, in Python."""
    settings = [("table_name", _quoted(table.name))]
    for key in table.keys:
        name = "partition_key" if key.role == "HASH" else "sort_key"
        kind = f"dynamodb.AttributeType.{_TYPES[key.kind]}"
        settings.append((name, f"dynamodb.Attribute(name={_quoted(key.name)}, type={kind})"))
    if table.capacity is None:
        settings.append(("billing_mode", "dynamodb.BillingMode.PAY_PER_REQUEST"))
    else:
        settings.append(("billing_mode", "dynamodb.BillingMode.PROVISIONED"))
        settings.append(("read_capacity", str(table.capacity[0])))
        settings.append(("write_capacity", str(table.capacity[1])))
    settings.append(("time_to_live_attribute", _quoted(table.ttl)))
    if table.protected:
        settings.append(("deletion_protection", "True"))
    return "\n".join(
        [
            "from aws_cdk import Stack, aws_dynamodb as dynamodb",
            "",
            "",
            "class LockStack(Stack):",
            "    def __init__(self, scope, construct_id, **options):",
            "        super().__init__(scope, construct_id, **options)",
            "        self.table = dynamodb.Table(",
            "            self,",
            '            "LockTable",',
            *(f"            {name}={value}," for name, value in settings),
            "        )",
        ]
    )


_LANGUAGES: dict[str, Callable[[Table], str]] = {
    "cloudformation": cloudformation,
    "terraform": terraform,
    "cdk": cdk,
}


@click.command(cls=AppCommand)
@click.argument("language", type=click.Choice(list(_LANGUAGES)))
@settings_options
@pass_place
def template(
    place: Place,
    *,
    language: str,
    read_capacity: int | None,
    write_capacity: int | None,
    deletion_protection: bool,
) -> None:
    """Print the table for CloudFormation (YAML), Terraform or the CDK (Python).

    It is the table that LockItem.create_table() makes, of --table or of --model with its stored names and its
    range key. Nothing is sent to AWS.

    \b
    Examples:
      pynamodb-mutex template cloudformation > locks.yaml
      pynamodb-mutex template terraform --deletion-protection

    \b
    Exit codes:
      0    printed
      2    wrong usage
    """
    capacity = capacity_of(read_capacity, write_capacity)
    table = table_of(place.lock_model(), capacity, protected=deletion_protection)
    click.echo(_LANGUAGES[language](table))
