"""The command ``demo``."""

from __future__ import annotations

from importlib.util import find_spec

import click

from pynamodb_mutex.cli._place import Failure

_NEEDED = ("rich", "matplotlib", "blinker", "moto", "flask", "flask_cors", "waitress")


@click.command(
    context_settings={"ignore_unknown_options": True},
    add_help_option=False,
    options_metavar="[OPTIONS]",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="")
@click.pass_context
def demo(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Watch processes compete.

    They want one lock; one of them is killed, and another one stopped, while it has it. It runs on a DynamoDB of its own, on this machine. Options: pynamodb-mutex demo --help.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise Failure(f"the demo needs {' and '.join(missing)}: pip install 'pynamodb-mutex[demo]'")
    from pynamodb_mutex.demo.__main__ import main  # noqa: PLC0415 - needs the extra

    context.exit(main(arguments, "pynamodb-mutex demo"))
