"""The command ``demo``."""

from __future__ import annotations

import click


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
    from pynamodb_mutex.demo.__main__ import main  # noqa: PLC0415 - seldom needed

    context.exit(main(arguments, "pynamodb-mutex demo"))
