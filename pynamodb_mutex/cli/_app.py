"""The command line, put together."""

from __future__ import annotations

import click

from pynamodb_mutex.cli._doctor import doctor
from pynamodb_mutex.cli._place import AppGroup
from pynamodb_mutex.cli._policy import policy
from pynamodb_mutex.cli._run import run
from pynamodb_mutex.cli._template import template


@click.group(cls=AppGroup, context_settings={"auto_envvar_prefix": "PYNAMODB_MUTEX"})
@click.version_option(package_name="pynamodb-mutex")
def app() -> None:
    """Look at locks on DynamoDB, run commands under them, and free stuck ones."""


app.add_command(doctor)
app.add_command(policy)
app.add_command(template)
app.add_command(run)
