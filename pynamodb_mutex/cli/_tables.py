"""The commands ``create-table`` and ``delete-table``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from botocore.exceptions import ClientError

from pynamodb_mutex._dynamodb import create_table as _table
from pynamodb_mutex._dynamodb.create_table import is_code, keys_needed, keys_of
from pynamodb_mutex._dynamodb.pynamodb_private import connection_of
from pynamodb_mutex._protocol.messages import shown, shown_owner
from pynamodb_mutex.cli._locks import HELD, Locks
from pynamodb_mutex.cli._output import check_terminal, json_option, print_json, progress
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL = 0.5
_LONGEST_WAIT = 600.0
_SHOWN = 5


def _tags(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[dict[str, str]]:
    tags = []
    for value in values:
        name, equals, text = value.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{shown(value)} is not as in team=payments")
        tags.append({"Key": name, "Value": text})
    return tags


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of how a table is made; it reads the first two by `capacity_of`."""
    for option in (
        click.option("--deletion-protection", is_flag=True, help="Refuse to delete the table."),
        click.option(
            "--write-capacity", type=click.IntRange(min=1), metavar="UNITS", help="Provisioned."
        ),
        click.option(
            "--read-capacity",
            type=click.IntRange(min=1),
            metavar="UNITS",
            help="Provisioned; with --write-capacity, in place of on-demand billing.",
        ),
    ):
        command = option(command)
    return command


def capacity_of(reading: int | None, writing: int | None) -> tuple[int, int] | None:
    """Return the units of reading and writing; None for billing on demand.

    Raises:
        click.UsageError: If there is but one of them.
    """
    if reading is None and writing is None:
        return None
    if reading is None or writing is None:
        raise click.UsageError("--read-capacity and --write-capacity go together")
    return reading, writing


@click.command(cls=AppCommand)
@settings_options
@click.option("--tag", "tags", multiple=True, callback=_tags, metavar="KEY=VALUE", help="A tag.")
@json_option
@pass_place
def create_table(
    place: Place,
    *,
    read_capacity: int | None,
    write_capacity: int | None,
    deletion_protection: bool,
    tags: list[dict[str, str]],
    as_json: bool,
) -> None:
    """Create the lock table.

    It waits until the table can be used. It is made on-demand, with TTL enabled. It is safe to run again: a table that is there stays as it is,
    but for its TTL, which is enabled if it is not.

    \b
    Examples:
      pynamodb-mutex create-table
      pynamodb-mutex create-table --deletion-protection --tag team=payments

    \b
    Exit codes:
      0    the table is there, and active
      1    it is not: DynamoDB refused, or a table of that name has other keys
    """
    capacity = capacity_of(read_capacity, write_capacity)
    model = place.lock_model()
    options: dict[str, Any] = {}
    if capacity is not None:
        options["ProvisionedThroughput"] = {
            "ReadCapacityUnits": capacity[0],
            "WriteCapacityUnits": capacity[1],
        }
    if deletion_protection:
        options["DeletionProtectionEnabled"] = True
    if tags:
        options["Tags"] = tags
    with progress(f"creating {place}"):
        created = _table.create(model, wait=True, options=options)
    if as_json:
        print_json({"table": model.Meta.table_name, "created": created})
        return
    note = "" if created or not options else "; its settings are left as they are"
    click.echo(f"{place} is created" if created else f"{place} was there{note}")


@click.command(cls=AppCommand)
@click.option(
    "--force", is_flag=True, allow_from_autoenv=False, help="Also while locks are held in it."
)
@click.option(
    "--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask, for scripts."
)
@pass_place
def delete_table(place: Place, *, force: bool, yes: bool) -> None:
    """Delete the lock table.

    It waits until the table is gone. You are shown what is in it, and asked for its name. While locks are held it is refused without
    --force; who holds one then learns that it is lost from its next request. Fencing tokens of a
    table that is made anew are higher than those before, for they count from the time.

    \b
    Examples:
      pynamodb-mutex --table locks-of-a-test delete-table
      pynamodb-mutex --table locks-of-a-test delete-table --yes --force

    \b
    Exit codes:
      0    it is gone
      1    it is not: locks are held, not confirmed, protected, or DynamoDB refused; or it never was there
      130  interrupted by Ctrl-C
    """
    model = place.lock_model()
    name = model.Meta.table_name
    client: Any = connection_of(model).connection.client
    table = _described(client, name)
    if table is None:
        raise Failure(f"there is no {place}: wrong region or profile?")
    found = keys_of(table)
    if found != keys_needed(model):
        raise Failure(f"{place} is no lock table: it has {found}")
    if table["TableStatus"] != "DELETING":
        _check(place, table, force=force)
        if not yes:
            _typed(name)
        _delete(client, name)
    _gone(client, name, place)
    click.echo(f"{place} is gone")


def _described(client: Any, name: str) -> dict[str, Any] | None:
    try:
        table: dict[str, Any] = client.describe_table(TableName=name)["Table"]
    except ClientError as error:
        if not is_code(error, "ResourceNotFoundException"):
            raise
        return None
    return table


def _check(place: Place, table: dict[str, Any], *, force: bool) -> None:
    """Tell what goes with the table; refuse if somebody holds a lock in it."""
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
        raise Failure(
            f"{len(held)} locks are held: nothing was done; --force deletes it all the same"
        )


def _typed(name: str) -> None:
    check_terminal()
    if (
        click.prompt("Type the table's name to delete it", err=True, default="", show_default=False)
        != name
    ):
        raise Failure("that is not its name: nothing was done")


def _delete(client: Any, name: str) -> None:
    try:
        client.delete_table(TableName=name)
    except ClientError as error:
        if "deletion" in str(error).lower() and is_code(error, "ValidationException"):
            raise Failure(
                f"table {name} is protected against deletion; to end that: aws dynamodb update-table "
                f"--table-name {name} --no-deletion-protection-enabled"
            ) from error
        # gone, or going: somebody else deletes it too
        if not (
            is_code(error, "ResourceNotFoundException") or is_code(error, "ResourceInUseException")
        ):
            raise


def _gone(client: Any, name: str, place: Place) -> None:
    waited = 0.0
    with progress(f"waiting until {place} is gone"):
        while (table := _described(client, name)) is not None:
            if waited >= _LONGEST_WAIT:
                raise Failure(f"{place} is still {table['TableStatus']} after {waited:.0f} s")
            time.sleep(_POLL)
            waited += _POLL
