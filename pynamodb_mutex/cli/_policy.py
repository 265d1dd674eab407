"""The command ``policy``: the least that a role needs."""

from __future__ import annotations

import json
import re
from typing import Any

import botocore.session
import click
from botocore.exceptions import UnknownRegionError

from pynamodb_mutex.cli._permissions import ROLES
from pynamodb_mutex.cli._place import AppCommand, Place, pass_place

_ACCOUNT = re.compile(r"\d{12}")


def _account(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
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
    help="What the policy is for; locker by default. Several together if given more than once.",
)
@click.option("--account", callback=_account, metavar="ID", help="AWS account; any by default.")
@pass_place
def policy(place: Place, roles: tuple[str, ...], account: str | None) -> None:
    """Print the least IAM policy for the table.

    The region is that of --region, of the model or of boto3's settings; without any of them the policy holds
    in each region. Nothing is sent to AWS.

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
    """Return the ARN of the lock table, with an asterisk for what is not known."""
    meta: Any = place.lock_model().Meta
    session = botocore.session.get_session()
    region = meta.region or session.get_config_variable("region")
    partition = "aws"
    if region:
        try:
            partition = session.get_partition_for_region(region)
        except UnknownRegionError as error:
            raise click.BadParameter(f"no AWS region: {region}", param_hint="--region") from error
    return f"arn:{partition}:dynamodb:{region or '*'}:{account or '*'}:table/{meta.table_name}"
