"""The group ``app`` of all commands, the options that all of them take, and the command ``completion``.

A new command is written in a module of its own, or next to its relatives, and named in `_COMMANDS`. Its module is imported
when the command is called: the list of commands, the version and the completion of a command's name need neither botocore nor
PynamoDB, whose imports take ten times as long as all else.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from pynamodb_mutex.cli._exit_codes import UNREAD

_MEANT = {"free": "release", "unlock": "release", "kill": "release", "status": "ls or show"}
"""Commands of ours by names that people try."""


_COMMANDS = {
    "run": ("_run", "run", "Run a command under a lock."),
    "once": ("_once", "once", "Run a command once: a repeat prints the first output."),
    "ls": ("_listing", "ls", "List held and abandoned locks."),
    "show": ("_claims", "show", "Print all that is known of one lock."),
    "watch": ("_listing", "watch", "Watch locks change."),
    "wait": ("_claims", "wait", "Wait until a lock is free, without acquiring it."),
    "release": ("_claims", "release", "Free a lock by force."),
    "forget": ("_once", "forget", "Forget the result of a key of once, or a run that died."),
    "record": ("_once", "record", "Record the result of a key of once."),
    "create-table": ("_infrastructure", "create_table", "Create the lock table, and wait for it."),
    "delete-table": ("_infrastructure", "delete_table", "Delete the lock table, and wait for it."),
    "doctor": ("_doctor", "doctor", "Check credentials, endpoint, clocks, table and permissions."),
    "policy": ("_infrastructure", "policy", "Print the least IAM policy for the table."),
    "template": ("_infrastructure", "template", "Print the table for CloudFormation or Terraform."),
}
"""The module and function of each command but ``completion``, and what the list of commands says of it."""


def _choose(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Check and store the value of an option.

    click calls this for the group first and then for the command. So an option after the name of the command
    overrides the same one before it, and one that is missing there (None) overrides nothing.
    """
    if value is None:
        return
    if not value.strip():
        raise click.BadParameter("is empty")
    if parameter.name == "endpoint_url":
        try:
            parts = urlsplit(value)
            # a port that is no number or too high raises as well, but only when it is read
            is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_url = False
        if not is_url:
            # without the value, in which there may be a password
            raise click.BadParameter("give a URL such as http://localhost:8000")
    chosen(context)[parameter.name or ""] = value


def chosen(context: click.Context) -> dict[str, str]:
    """Return the values of the options of `place_options` that were given, by their names."""
    found: dict[str, str] = context.meta.setdefault("pynamodb_mutex.chosen", {})
    return found


def place_options() -> list[click.Parameter]:
    """Return the options that may stand before or after the name of a command."""
    return [
        click.Option(
            [f"--{name}"],
            help=text,
            metavar=metavar,
            expose_value=False,
            callback=_choose,
            # LockItem itself reads PYNAMODB_MUTEX_TABLE. As an option it would override the table of a --model, too.
            allow_from_autoenv=name != "table",
        )
        for name, metavar, text in (
            ("table", "NAME", "Lock table; PYNAMODB_MUTEX_TABLE or pynamodb-mutex by default."),
            ("region", "NAME", "AWS region; by default that of boto3."),
            ("endpoint-url", "URL", "Another endpoint, such as that of DynamoDB Local."),
            ("profile", "NAME", "AWS profile; by default that of boto3."),
            ("model", "MODULE:CLASS", "Your own LockItem, or a model with row locks."),
        )
    ]


class AppGroup(click.Group):
    """A group of commands that takes the options of `place_options` before the name of the command, too."""

    def __init__(self, name: str | None = None, **more: Any) -> None:
        more["params"] = [*(more.get("params") or []), *place_options()]
        super().__init__(name, **more)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for a name that other tools have, name ours."""
        if args[0] in _MEANT:
            context.fail(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]}?")
        name, command, rest = super().resolve_command(context, args)
        if name in _COMMANDS:
            module, function, _ = _COMMANDS[name]
            command = getattr(import_module(f"pynamodb_mutex.cli.{module}"), function)
        return name, command, rest

    def invoke(self, context: click.Context) -> Any:
        """Run a command; end silently, with exit code UNREAD, when the reader of the output has gone."""
        try:
            return super().invoke(context)
        except BrokenPipeError:
            # Python flushes its buffer at exit. Into the broken pipe that would fail once more, with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            context.exit(UNREAD)


@click.group(
    cls=AppGroup,
    context_settings={
        "auto_envvar_prefix": "PYNAMODB_MUTEX",
        "help_option_names": ["-h", "--help"],
    },
)
@click.version_option(package_name="pynamodb-mutex")
def app() -> None:
    """Run commands under locks on DynamoDB, read locks, and free stuck ones.

    Options can also come from the environment: PYNAMODB_MUTEX_TABLE and so on for the options below,
    PYNAMODB_MUTEX_RUN_LEASE and so on for those of a command; never --force and --yes.

    \b
    Exit codes:
      0    done
      1    failed; standard error says why
      2    wrong usage
      130  interrupted by Ctrl-C
      141  the reader of the output has gone, as in ls | head -1
    """


_SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    With it SHELL completes commands, options and keys. The keys are those of held and abandoned locks among the first
    500 rows of the table.

    \b
    Examples:
      eval "$(pynamodb-mutex completion bash)"    # in ~/.bashrc
      eval "$(pynamodb-mutex completion zsh)"     # in ~/.zshrc
      pynamodb-mutex completion fish | source     # in config.fish
    """
    root = context.find_root()
    kind = _SHELLS[shell]
    click.echo(kind(root.command, {}, "pynamodb-mutex", "_PYNAMODB_MUTEX_COMPLETE").source())


for _name, (_, _, _help) in _COMMANDS.items():
    app.add_command(click.Command(_name, short_help=_help))
app.add_command(completion)
