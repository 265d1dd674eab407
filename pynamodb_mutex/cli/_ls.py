"""The command ``ls``: who holds what."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pynamodb_mutex._messages import escaped
from pynamodb_mutex.cli._locks import ABANDONED, HELD, Lock, Locks
from pynamodb_mutex.cli._output import (
    clock_time,
    duration,
    instant,
    iso,
    json_option,
    on_terminal,
    print_json,
    progress,
    zone_option,
)
from pynamodb_mutex.cli._place import AppCommand, Place, pass_place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

COLUMNS = ("KEY", "OWNER", "SINCE", "UNTIL", "REMAINING", "TOKEN", "STATE")

_NEEDS = {"SINCE": 72, "TOKEN": 100}
"""Columns that a terminal must have for those of the table that are left out first."""

ORDERS = {
    "key": lambda lock: (lock.key, lock.range_key or ""),
    "owner": lambda lock: (lock.claim.owner or "", lock.key, lock.range_key or ""),
    "expiry": lambda lock: (math.inf if lock.until is None else lock.until, lock.key),
}

sort_option = click.option(
    "--sort",
    type=click.Choice(list(ORDERS)),
    default="key",
    show_default=True,
    help="What the locks are sorted by.",
)


@click.command(cls=AppCommand)
@click.option("--held", "only", flag_value=HELD, help="Only those that are held.")
@click.option("--abandoned", "only", flag_value=ABANDONED, help="Only those that are abandoned.")
@sort_option
@zone_option
@json_option
@pass_place
def ls(place: Place, *, only: str | None, sort: str, zone: tzinfo | None, as_json: bool) -> None:
    """List who holds what.

    Shown are the locks that are held, and those that are abandoned: their claim ended, and nobody took
    them since. An abandoned lock is free: the next taker gets it at once. Times are DynamoDB's, as its
    answers tell, not this machine's. UNTIL moves with each renewal.

    To a terminal a table is printed, else a line for each lock, with tabs between the columns.

    It reads the whole table: 1 read unit for each 4 KB.

    \b
    Examples:
      pynamodb-mutex ls
      pynamodb-mutex ls --abandoned --sort expiry
      pynamodb-mutex ls --json | jq -r '.[] | select(.remaining > 600) | .key'

    \b
    Exit codes:
      0  done, also if there are none
      1  the table could not be read
    """
    locks = Locks(place.model())
    with progress("reading the table") as news:
        found = [lock for lock in locks.all(news) if only in (None, lock.state)]
    locks.warn()
    found.sort(key=ORDERS[sort])
    if as_json:
        print_json([lock.document(zone) for lock in found])
    elif not found:
        click.echo(f"no lock is {only or 'held or abandoned'} in {place}", err=True)
    elif on_terminal():
        console = Console()
        console.print(table_of(found, zone, console.width))
    else:
        click.echo("\t".join(COLUMNS))
        for lock in found:
            click.echo("\t".join(line_of(lock, zone)))


def line_of(lock: Lock, zone: tzinfo | None) -> list[str]:
    """Return a lock's columns for programs."""
    return [
        escaped(lock.name),
        escaped(lock.claim.owner or "-"),
        iso(instant(lock.since, zone), "seconds") or "-",
        iso(instant(lock.until, zone), "seconds") or "-",
        "-" if lock.remaining is None else f"{lock.remaining:.1f}",
        str(lock.claim.version),
        lock.state,
    ]


def table_of(locks: Sequence[Lock], zone: tzinfo | None, width: int) -> Table:
    """Return locks as a table for people, on a terminal of so many columns."""
    names = [name for name in COLUMNS if width >= _NEEDS.get(name, 0)]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in names:
        if name in ("KEY", "OWNER"):
            # they must come out whole, for they are to be copied
            table.add_column(name, overflow="fold", min_width=8)
        else:
            right = name in ("REMAINING", "TOKEN")
            table.add_column(name, no_wrap=True, justify="right" if right else "left")
    for lock in locks:
        now = instant(lock.seen_at, zone)
        cells = {
            "KEY": escaped(lock.name),
            "OWNER": escaped(lock.claim.owner or "-"),
            "SINCE": clock_time(instant(lock.since, zone), now),
            "UNTIL": clock_time(instant(lock.until, zone), now),
            "REMAINING": duration(lock.remaining) if lock.remaining else "-",
            "TOKEN": str(lock.claim.version),
            "STATE": lock.state,
        }
        style = "yellow" if lock.state == ABANDONED else ""
        table.add_row(*(Text(cells[name]) for name in names), style=style)
    return table
