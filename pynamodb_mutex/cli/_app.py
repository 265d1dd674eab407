"""The command line, put together."""

from __future__ import annotations

import click

from pynamodb_mutex.cli._completion import completion
from pynamodb_mutex.cli._demo import demo
from pynamodb_mutex.cli._doctor import doctor
from pynamodb_mutex.cli._ls import ls
from pynamodb_mutex.cli._place import AppGroup
from pynamodb_mutex.cli._policy import policy
from pynamodb_mutex.cli._release import release
from pynamodb_mutex.cli._run import run
from pynamodb_mutex.cli._show import show
from pynamodb_mutex.cli._tables import create_table, delete_table
from pynamodb_mutex.cli._template import template
from pynamodb_mutex.cli._wait import wait
from pynamodb_mutex.cli._watch import watch


@click.group(
    cls=AppGroup,
    context_settings={
        "auto_envvar_prefix": "PYNAMODB_MUTEX",
        "help_option_names": ["-h", "--help"],
    },
)
@click.version_option(package_name="pynamodb-mutex")
def app() -> None:
    """Look at locks on DynamoDB, run commands under them, and free stuck ones.

    Options can also come from the environment: PYNAMODB_MUTEX_TABLE and the like for those below,
    PYNAMODB_MUTEX_LS_SORT and the like for those of a command; never --force and --yes.

    \b
    Exit codes:
      0    done
      1    failed; what happened is on standard error
      2    wrong usage
      130  interrupted by Ctrl-C
      141  nobody reads what is printed, as in ls | head -1
    """


app.add_command(run)
app.add_command(ls)
app.add_command(show)
app.add_command(watch)
app.add_command(wait)
app.add_command(release)
app.add_command(create_table)
app.add_command(delete_table)
app.add_command(doctor)
app.add_command(policy)
app.add_command(template)
app.add_command(demo)
app.add_command(completion)
