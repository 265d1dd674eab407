"""Completion in shells: the script that turns it on, and keys as the table has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from pynamodb_mutex.cli._locks import MOST_READ, PAGE, Locks, sent
from pynamodb_mutex.cli._place import Place, elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pynamodb_mutex._dynamodb.keys import RawItem

MOST_KEYS = 50
_SECONDS = 0.5
"""For each of connecting and reading."""


def complete_keys(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return keys of locks that are held or abandoned; none if anything is in the way."""
    try:
        model = context.find_root().ensure_object(Place).model()
        names = ("connect_timeout_seconds", "read_timeout_seconds")
        locks = Locks(elsewhere(model, dict.fromkeys(names, _SECONDS)))
        page = sent(locks.store.scan(limit=PAGE))  # no more: each press of the key costs
        keys = {lock.key for lock in locks.of_page(page.data["Items"], page.received)}
    except Exception:  # noqa: BLE001 - a traceback in the middle of a command line helps nobody
        return []
    # a shell would take spaces and control characters for something else
    good = (key for key in keys if key.startswith(incomplete) and key.isprintable())
    return sorted(key for key in good if " " not in key)[:MOST_KEYS]


def key_argument(**more: Any) -> Callable[[Any], Any]:
    """Return the argument KEY, completed from the table."""
    return click.argument("key", shell_complete=complete_keys, **more)


keys_argument = click.argument("keys", nargs=-1, shell_complete=complete_keys, metavar="[KEY]...")

prefix_option = click.option(
    "--prefix", default="", metavar="TEXT", help="Only keys that begin like this."
)


def rows_of(locks: Locks, keys: Iterable[str], prefix: str) -> list[RawItem]:
    """Return the primary keys of the locks that were named, each once; none if all of a prefix are meant.

    Raises:
        click.UsageError: If both were given, or more KEYs than one request can ask for.
    """
    unique = list(dict.fromkeys(keys))
    if unique and prefix:
        raise click.UsageError("give KEYs, or --prefix")
    if len(unique) > MOST_READ:
        raise click.UsageError(f"up to {MOST_READ} KEYs; for more there is --prefix")
    return [locks.row(key) for key in unique]


range_option = click.option(
    "--range-key", metavar="TEXT", help="Of the row, if --model is of rows that have one."
)


_SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


@click.command()
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Complete keys in a shell.

    The script that is printed lets SHELL complete commands, options and keys. Keys are those of the locks that are held or abandoned, as a look at a part of the table shows them.

    \b
    Examples:
      eval "$(pynamodb-mutex completion bash)"    # in ~/.bashrc
      eval "$(pynamodb-mutex completion zsh)"     # in ~/.zshrc
      pynamodb-mutex completion fish > ~/.config/fish/completions/pynamodb-mutex.fish
    """
    root = context.find_root()
    kind = _SHELLS[shell]
    click.echo(kind(root.command, {}, "pynamodb-mutex", "_PYNAMODB_MUTEX_COMPLETE").source())
