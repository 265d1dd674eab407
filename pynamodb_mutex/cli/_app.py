"""The group ``app`` of all commands, and the command ``completion``.

A new command is written in a module of its own, or next to its relatives, and added here at the end.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from pynamodb_mutex.cli._claims import close, open_, release, show, wait
from pynamodb_mutex.cli._doctor import doctor
from pynamodb_mutex.cli._exit_codes import UNREAD
from pynamodb_mutex.cli._infrastructure import create_table, delete_table, policy, template
from pynamodb_mutex.cli._listing import ls, watch
from pynamodb_mutex.cli._once import forget, once, record
from pynamodb_mutex.cli._place import AppCommand, place_options
from pynamodb_mutex.cli._run import run

_MEANT = {"free": "release", "unlock": "release", "kill": "release", "status": "ls or show"}
"""Commands of ours by names that people try."""


class AppGroup(click.Group):
    """A group of commands that takes the options of `Place` before the name of the command, too."""

    command_class = AppCommand

    def __init__(self, name: str | None = None, **more: Any) -> None:
        more["params"] = [*(more.get("params") or []), *place_options()]
        super().__init__(name, **more)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for a name that other tools have, name ours."""
        if args[0] in _MEANT:
            context.fail(f"No such command {args[0]!r}. Did you mean {_MEANT[args[0]]}?")
        return super().resolve_command(context, args)

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
    PYNAMODB_MUTEX_LS_SORT and so on for those of a command; never --force and --yes.

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

    With it SHELL completes commands, options and keys. The keys are those of held and abandoned locks among the first 500 rows of the table.

    \b
    Examples:
      eval "$(pynamodb-mutex completion bash)"    # in ~/.bashrc
      eval "$(pynamodb-mutex completion zsh)"     # in ~/.zshrc
      pynamodb-mutex completion fish > ~/.config/fish/completions/pynamodb-mutex.fish
    """
    root = context.find_root()
    kind = _SHELLS[shell]
    click.echo(kind(root.command, {}, "pynamodb-mutex", "_PYNAMODB_MUTEX_COMPLETE").source())


for command in (
    run,
    once,
    ls,
    show,
    watch,
    wait,
    release,
    close,
    open_,
    forget,
    record,
    create_table,
    delete_table,
    doctor,
    policy,
    template,
    completion,
):
    app.add_command(command)
