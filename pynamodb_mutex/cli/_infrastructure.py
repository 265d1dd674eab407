"""The commands ``create-table``, ``delete-table``, ``template`` and ``policy``: the lock table and its permissions.

``template`` and ``policy`` only print: the table as code for CloudFormation or Terraform, and what a role must allow. The
IAM actions that the library uses are written down here once, in ROLES and USES; `_probes` tries them. How a table is created
is in `pynamodb_mutex._admin.create_table`.
"""

from __future__ import annotations

import json
import re
import time
from textwrap import indent
from typing import TYPE_CHECKING, Any, NamedTuple

import botocore.session
import click
from botocore.exceptions import ClientError, UnknownRegionError

from pynamodb_mutex._admin import create_table as _table
from pynamodb_mutex._admin.create_table import is_code, keys_needed, keys_of
from pynamodb_mutex._lock.dynamodb.connection import client_of
from pynamodb_mutex._lock.dynamodb.pynamodb_private import connection_of, schema_of
from pynamodb_mutex._lock.protocol.messages import shown, shown_owner
from pynamodb_mutex.cli._locks import HELD, Locks
from pynamodb_mutex.cli._output import check_terminal, json_option, print_json, progress, yes_option
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb_mutex.models import LockItem

_POLL = 0.5
"""Seconds between two polls of a table that is being deleted."""

_LONGEST_WAIT = 600.0
"""Seconds after which a table that is still being deleted is no longer waited for."""

_SHOWN = 5
"""Most held locks that are named before their table is deleted."""

_ACCOUNT = re.compile(r"\d{12}")
"""Id of an AWS account."""


def _tags(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[dict[str, str]]:
    """Return tags in the form of CreateTable, from options of the form KEY=VALUE."""
    tags = []
    for value in values:
        name, equals, text = value.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{shown(value)} is not KEY=VALUE, such as team=payments")
        tags.append({"Key": name, "Value": text})
    return tags


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the settings of a table to a command; `settings_of` checks them."""
    units = click.IntRange(min=1)
    for option in (
        click.option(
            "--deletion-protection", is_flag=True, help="Let DynamoDB refuse to delete the table."
        ),
        click.option(
            "--write-capacity", type=units, metavar="UNITS", help="Provisioned write units."
        ),
        click.option(
            "--read-capacity",
            type=units,
            metavar="UNITS",
            help="Provisioned read units, with --write-capacity; on-demand billing by default.",
        ),
    ):
        command = option(command)
    return command


def settings_of(
    read_capacity: int | None, write_capacity: int | None, *, deletion_protection: bool = False
) -> dict[str, Any]:
    """Return the settings in the form of CreateTable; those that were not given are missing.

    Raises:
        click.UsageError: If only one of the capacities was given.
    """
    settings: dict[str, Any] = {}
    if (read_capacity is None) != (write_capacity is None):
        raise click.UsageError("give --read-capacity and --write-capacity together")
    if read_capacity is not None:
        units = {"ReadCapacityUnits": read_capacity, "WriteCapacityUnits": write_capacity}
        settings["ProvisionedThroughput"] = units
    if deletion_protection:
        settings["DeletionProtectionEnabled"] = True
    return settings


@click.command(cls=AppCommand)
@settings_options
@click.option(
    "--tag",
    "tags",
    multiple=True,
    callback=_tags,
    metavar="KEY=VALUE",
    help="A tag; may be repeated.",
)
@json_option
@pass_place
def create_table(
    place: Place, *, tags: list[dict[str, str]], as_json: bool, **settings: Any
) -> None:
    """Create the lock table, and wait for it.

    The table is billed on demand and has TTL enabled, and is active when the command ends. Running the command again is
    safe: of an existing table it changes nothing, except that it enables TTL.

    \b
    Examples:
      pynamodb-mutex create-table
      pynamodb-mutex create-table --deletion-protection --tag team=payments

    \b
    Exit codes:
      0    the table exists and is active
      1    DynamoDB refused, or a table of that name has other keys
    """
    options = settings_of(**settings)
    model = place.lock_model()
    if tags:
        options["Tags"] = tags
    with progress(f"creating {place}"):
        created = _table.create(model, wait=True, options=options)
    if as_json:
        print_json({"table": model.Meta.table_name, "created": created})
        return
    note = "" if created or not options else "; its settings were not changed"
    click.echo(f"{place} is created" if created else f"{place} already exists{note}")


@click.command(cls=AppCommand)
@click.option("--force", is_flag=True, allow_from_autoenv=False, help="Also while locks are held.")
@yes_option
@pass_place
def delete_table(place: Place, *, force: bool, yes: bool) -> None:
    """Delete the lock table, and wait for it.

    Prints the rows and the held locks, and asks for the name of the table. Refused while locks are held, unless
    --force is given; a holder then learns of the loss from its next request. Fencing tokens of a table that
    is created again are higher than before, because they start from the time.

    \b
    Examples:
      pynamodb-mutex --table locks-of-a-test delete-table
      pynamodb-mutex --table locks-of-a-test delete-table --yes --force

    \b
    Exit codes:
      0    the table is deleted
      1    locks are held, not confirmed, protected, DynamoDB refused, or there is
           no such table
      130  interrupted by Ctrl-C
    """
    model = place.lock_model()
    name = model.Meta.table_name
    client = client_of(connection_of(model).connection)
    table = _described(client, name)
    if table is None:
        raise Failure(f"there is no {place}: wrong region or profile?")
    found = keys_of(table)
    if found != keys_needed(model):
        raise Failure(f"{place} is not a lock table: it has {found}")
    if table["TableStatus"] != "DELETING":
        _check(place, table, force=force)
        if not yes:
            _typed(name)
        _delete(client, name)
    _gone(client, name, place)
    click.echo(f"{place} is deleted")


def _described(client: Any, name: str) -> dict[str, Any] | None:
    """Return a table as DescribeTable does; None if there is none."""
    try:
        table: dict[str, Any] = client.describe_table(TableName=name)["Table"]
    except ClientError as error:
        if not is_code(error, "ResourceNotFoundException"):
            raise
        return None
    return table


def _check(place: Place, table: dict[str, Any], *, force: bool) -> None:
    """Print the contents of the table.

    Raises:
        Failure: If a lock in it is held, unless ``force`` is true.
    """
    locks = Locks(place.model())
    with progress("reading the table") as news:
        held = [lock for lock in locks.all(news) if lock.state == HELD]
    locks.warn()
    click.echo(f"{place}", err=True)
    click.echo(f"  rows:        {table['ItemCount']}, as DynamoDB last counted", err=True)
    click.echo(f"  locks held:  {len(held)}", err=True)
    for lock in held[:_SHOWN]:
        owner = shown_owner(lock.claim.owner)
        click.echo(f"    {shown(lock.name)} by {owner}", err=True)
    if held and not force:
        raise Failure("nothing was done: locks are held; --force deletes the table nevertheless")


def _typed(name: str) -> None:
    """Ask for the name of the table.

    Raises:
        Failure: If another one was typed, or there is no terminal.
    """
    check_terminal()
    if (
        click.prompt("Type the table's name to delete it", err=True, default="", show_default=False)
        != name
    ):
        raise Failure("nothing was done: that is not the name of the table")


def _delete(client: Any, name: str) -> None:
    """Begin to delete the table; do nothing if that has begun already, or it is gone."""
    try:
        client.delete_table(TableName=name)
    except ClientError as error:
        if "deletion" in str(error).lower() and is_code(error, "ValidationException"):
            raise Failure(
                f"table {name} is protected against deletion; to change that: aws dynamodb update-table "
                f"--table-name {name} --no-deletion-protection-enabled"
            ) from error
        # both mean that another process deletes the table too, or an earlier attempt whose answer was lost
        if not (
            is_code(error, "ResourceNotFoundException") or is_code(error, "ResourceInUseException")
        ):
            raise


def _gone(client: Any, name: str, place: Place) -> None:
    """Wait until the table is deleted.

    Raises:
        Failure: If this takes longer than _LONGEST_WAIT.
    """
    waited = 0.0
    with progress(f"waiting until {place} is deleted"):
        while (table := _described(client, name)) is not None:
            if waited >= _LONGEST_WAIT:
                raise Failure(f"{place} is still {table['TableStatus']} after {waited:.0f} s")
            time.sleep(_POLL)
            waited += _POLL


def properties_of(model: type[LockItem], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the table that `LockItem.create_table` creates for a model, as CloudFormation has it.

    Args:
        model: The model of the lock table.
        settings: Those of `settings_of`; without capacities, the billing is that of the model.

    Raises:
        Failure: If the model has more settings than keys, billing and TTL, which a snippet would lack.
    """
    meta: Any = model.Meta
    more = [name for name in ("tags", "stream_view_type") if getattr(meta, name, None)]
    schema = schema_of(model)
    if more or schema["global_secondary_indexes"] or schema["local_secondary_indexes"]:
        raise Failure(
            f"{model.__name__} has {more[0] if more else 'indexes'}, which the snippet would lack. "
            "Put the keys and the TTL of this model into a template of your own"
        )
    if meta.billing_mode == "PROVISIONED":
        settings = settings_of(meta.read_capacity_units, meta.write_capacity_units) | settings
    return {
        "TableName": meta.table_name,
        "BillingMode": "PROVISIONED" if "ProvisionedThroughput" in settings else "PAY_PER_REQUEST",
        "AttributeDefinitions": schema["attribute_definitions"],
        "KeySchema": sorted(schema["key_schema"], key=lambda key: key["KeyType"]),  # HASH, RANGE
        "TimeToLiveSpecification": {"AttributeName": model.ttl.attr_name, "Enabled": True},
        **settings,
    }


def cloudformation(table: dict[str, Any]) -> str:
    """Return a table as a CloudFormation template."""
    resource = {"Type": "AWS::DynamoDB::Table", "Properties": table}
    return json.dumps({"Resources": {"LockTable": resource}}, indent=2, ensure_ascii=False)


def terraform(table: dict[str, Any]) -> str:
    """Return a table as a resource of Terraform's AWS provider."""
    settings = {"name": table["TableName"], "billing_mode": table["BillingMode"]}
    if units := table.get("ProvisionedThroughput"):
        settings["read_capacity"] = units["ReadCapacityUnits"]
        settings["write_capacity"] = units["WriteCapacityUnits"]
    for key in table["KeySchema"]:
        settings[f"{key['KeyType'].lower()}_key"] = key["AttributeName"]
    if "DeletionProtectionEnabled" in table:
        settings["deletion_protection_enabled"] = True
    attributes = [
        _block("attribute", {"name": each["AttributeName"], "type": each["AttributeType"]})
        for each in table["AttributeDefinitions"]
    ]
    attribute = table["TimeToLiveSpecification"]["AttributeName"]
    ttl = _block("ttl", {"attribute_name": attribute, "enabled": True})
    return _block('resource "aws_dynamodb_table" "locks"', settings, *attributes, ttl)


def _block(name: str, settings: dict[str, Any], *blocks: str) -> str:
    """Return a block of Terraform's language, with the blocks inside it."""
    width = max(map(len, settings))
    lines = [f"{each:{width}} = {_hcl(value)}" for each, value in settings.items()]
    inside = "\n".join([*lines, *(f"\n{block}" for block in blocks)])
    return f"{name} {{\n{indent(inside, '  ')}\n}}"


def _hcl(value: Any) -> str:
    """Return a value in Terraform's language: as in JSON, but that ``${`` and ``%{`` begin templates there."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


_LANGUAGES = {"cloudformation": cloudformation, "terraform": terraform}
"""Functions that write a table in a language, by the name of the language."""


@click.command(cls=AppCommand)
@click.argument("language", type=click.Choice(list(_LANGUAGES)))
@settings_options
@pass_place
def template(place: Place, *, language: str, **settings: Any) -> None:
    """Print the table for CloudFormation or Terraform.

    It is the table that LockItem.create_table() creates, or that of --model with its attribute names and range key.
    CloudFormation is JSON. Nothing is sent to AWS.

    \b
    Examples:
      pynamodb-mutex template cloudformation > locks.json
      pynamodb-mutex template terraform --deletion-protection

    \b
    Exit codes:
      0    printed
      2    wrong usage
    """
    table = properties_of(place.lock_model(), settings_of(**settings))
    click.echo(_LANGUAGES[language](table))


class Role(NamedTuple):
    """A use of the table, and the IAM actions that it needs.

    Attributes:
        does: Description of the use, one line.
        actions: Names of the actions without ``dynamodb:``. A transaction has none of its own: it needs those of its
            parts.
    """

    does: str
    actions: tuple[str, ...]


_READING = ("BatchGetItem", "GetItem", "Query", "Scan")

ROLES = {
    "locker": Role(
        "acquire, renew and release single locks, guarded writes; once",
        ("GetItem", "UpdateItem"),
    ),
    "several": Role(
        "the same with for_keys, any_of and Semaphore",
        ("BatchGetItem", "GetItem", "UpdateItem"),
    ),
    "deleter": Role(
        "like locker, with delete_on_release=True",
        ("DeleteItem", "GetItem", "UpdateItem"),
    ),
    "rows": Role(
        "lock, read and write the rows of a RowLockMixin model in --table",
        ("BatchGetItem", "DeleteItem", "GetItem", "PutItem", "UpdateItem"),
    ),
    "lock-model": Role(
        "what such rows need in --table if it is their lock_model",
        ("BatchGetItem", "ConditionCheckItem", "GetItem", "UpdateItem"),
    ),
    "viewer": Role("read locks", _READING),
    "operator": Role(
        "read locks and the table, break locks, forget and record",
        (*_READING, "DescribeTable", "DescribeTimeToLive", "UpdateItem"),
    ),
    "admin": Role(
        "create the table and delete it",
        (
            "CreateTable",
            "DeleteTable",
            "DescribeTable",
            "DescribeTimeToLive",
            "Scan",
            "UpdateTimeToLive",
        ),
    ),
}


class Use(NamedTuple):
    """The use of an IAM action on the lock table.

    Attributes:
        by: Features that do not work without the action, for people.
        role: Name of the smallest role that includes the action.
        vital: Whether no lock can be acquired without it.
    """

    by: str
    role: str
    vital: bool = False


USES = {
    "GetItem": Use("every lock", "locker", vital=True),
    "UpdateItem": Use("every lock", "locker", vital=True),
    "BatchGetItem": Use("Mutex.for_keys, Mutex.any_of and Semaphore", "several"),
    "ConditionCheckItem": Use("rows whose lock_model is this table", "lock-model"),
    "DeleteItem": Use("delete_on_release=True", "deleter"),
    "Query": Use("LockItem.held(key)", "viewer"),
    "Scan": Use("LockItem.held(), and the check of rows here", "viewer"),
    "DescribeTable": Use("LockItem.create_table(), and the checks of the table here", "operator"),
    "DescribeTimeToLive": Use("LockItem.create_table(), and the check of TTL here", "operator"),
}
"""Actions that `doctor` tries, and their uses.

Actions that create, change or delete a table are missing: a request that tries one would do it.
"""


def _account(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Check the id of an AWS account."""
    if value is not None and _ACCOUNT.fullmatch(value) is None:
        raise click.BadParameter("twelve digits")
    return value


_EPILOG = "\b\nROLE is one of:\n" + "\n".join(
    f"  {name:11} {role.does}" for name, role in ROLES.items()
)


@click.command(cls=AppCommand, epilog=_EPILOG)
@click.option(
    "--role",
    "roles",
    type=click.Choice(list(ROLES)),
    metavar="ROLE",
    multiple=True,
    default=("locker",),
    help="What the policy is for; locker by default. May be repeated.",
)
@click.option("--account", callback=_account, metavar="ID", help="AWS account; any by default.")
@pass_place
def policy(place: Place, roles: tuple[str, ...], account: str | None) -> None:
    """Print the least IAM policy for the table.

    The region is that of --region, of the model or of boto3's settings; without any of them the policy is valid
    in every region. Nothing is sent to AWS.

    \b
    Examples:
      pynamodb-mutex policy --region eu-central-1 --account 123456789012
      pynamodb-mutex policy --role several --role admin

    \b
    Exit codes:
      0    printed
      2    wrong usage
    """
    resource = table_arn(place, account)
    actions = sorted({action for role in roles for action in ROLES[role].actions})
    document = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": [f"dynamodb:{action}" for action in actions],
                "Resource": resource,
            }
        ],
    }
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def table_arn(place: Place, account: str | None) -> str:
    """Return the ARN of the lock table, with an asterisk for an unknown region or account."""
    meta: Any = place.lock_model().Meta
    # with an asterisk the policy would allow other tables as well
    if re.fullmatch("[a-zA-Z0-9_.-]+", meta.table_name) is None:
        raise click.BadParameter(f"no table name: {shown(meta.table_name)}", param_hint="--table")
    session = botocore.session.get_session()
    region = meta.region or session.get_config_variable("region")
    partition = "aws"
    if region:
        try:
            partition = session.get_partition_for_region(region)
        except UnknownRegionError as error:
            raise click.BadParameter(f"no AWS region: {region}", param_hint="--region") from error
    return f"arn:{partition}:dynamodb:{region or '*'}:{account or '*'}:table/{meta.table_name}"
