"""The command ``ls``: who holds what."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pynamodb_mutex._protocol.messages import escaped, shown
from pynamodb_mutex.cli._completion import keys_argument, prefix_option, rows_of
from pynamodb_mutex.cli._locks import ABANDONED, HELD, Lock, Locks
from pynamodb_mutex.cli._output import (
    clock_time,
    cut,
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

_NEEDS = {"OWNER": 30, "REMAINING": 48, "UNTIL": 60, "SINCE": 72, "TOKEN": 100}
"""Columns that a terminal must have for those of the table that are left out first: never KEY and STATE."""

_GAP = 2
"""Columns between those of the table."""

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
@keys_argument
@prefix_option
@click.option("--held", "only", flag_value=HELD, help="Only those that are held.")
@click.option("--abandoned", "only", flag_value=ABANDONED, help="Only those that are abandoned.")
@click.option("--count", is_flag=True, help="Print how many there are, and nothing else.")
@sort_option
@zone_option
@json_option
@pass_place
def ls(
    place: Place,
    *,
    keys: tuple[str, ...],
    prefix: str,
    only: str | None,
    count: bool,
    sort: str,
    zone: tzinfo | None,
    as_json: bool,
) -> None:
    """List who holds what.

    Shown are the locks that are held, and those that are abandoned: their claim ended, and nobody took
    them since. An abandoned lock is free: the next taker gets it at once. Times are DynamoDB's, as its
    answers tell, not this machine's. UNTIL moves with each renewal. Of the KEYs, each is shown, also if it is free.

    To a terminal a table is printed: it leaves out columns, and the middle of long keys and owners, as it must to
    fit. Else there is a line for each lock, whole, with tabs between the columns.

    It reads the whole table, also with --prefix: 1 read unit for each 4 KB. With KEYs, up to 100, it is 1 read
    unit for each.

    \b
    Examples:
      pynamodb-mutex ls
      pynamodb-mutex ls deploy nightly-report
      pynamodb-mutex ls --prefix invoice- --held --count
      pynamodb-mutex ls --abandoned --sort expiry
      pynamodb-mutex ls --json | jq -r '.[] | select(.remaining > 600) | .key'

    \b
    Exit codes:
      0  done, also if there are none
      1  the table could not be read
    """
    locks = Locks(place.model())
    rows = rows_of(locks, keys, prefix)
    with progress("reading the table") as news:
        seen = locks.read_several(rows) if rows else list(locks.all(news, prefix))
    found = [lock for lock in seen if only in (None, lock.state)]
    locks.warn()
    found.sort(key=ORDERS[sort])
    if count:
        click.echo(len(found))
    elif as_json:
        print_json([lock.document(zone) for lock in found])
    elif not found:
        which = "of these " if rows else f"with the prefix {shown(prefix)} " if prefix else ""
        click.echo(f"no lock {which}is {only or 'held or abandoned'} in {place}", err=True)
    elif on_terminal():
        console = Console()
        console.print(table_of(found, zone, console.width))
        console.print(counts_of(found), highlight=False)
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
        str(lock.fencing_token or "-"),
        lock.state,
    ]


def table_of(locks: Sequence[Lock], zone: tzinfo | None, width: int) -> Table:
    """Return locks as a table for people, on a terminal of so many columns: a line for each."""
    names = [name for name in COLUMNS if width >= _NEEDS.get(name, 0)]
    rows = [_cells(lock, zone) for lock in locks]
    widths = {name: max(map(cell_len, [name, *(row[name] for row in rows)])) for name in names}
    _shorten(widths, width - _GAP * (len(names) - 1))
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for name in names:
        right = name in ("REMAINING", "TOKEN")
        table.add_column(name, no_wrap=True, justify="right" if right else "left")
    for lock, row in zip(locks, rows, strict=True):
        style = "yellow" if lock.state == ABANDONED else ""
        table.add_row(*(Text(cut(row[name], widths[name])) for name in names), style=style)
    return table


def counts_of(locks: Sequence[Lock]) -> str:
    """Say how many are held, and how many abandoned."""
    held, abandoned = (sum(lock.state == state for lock in locks) for state in (HELD, ABANDONED))
    return f"held: {held}   abandoned: {abandoned}"


def _cells(lock: Lock, zone: tzinfo | None) -> dict[str, str]:
    now = instant(lock.seen_at, zone)
    return {
        "KEY": escaped(lock.name),
        "OWNER": escaped(lock.claim.owner or "-"),
        "SINCE": clock_time(instant(lock.since, zone), now),
        "UNTIL": clock_time(instant(lock.until, zone), now),
        "REMAINING": duration(lock.remaining) if lock.remaining else "-",
        "TOKEN": str(lock.fencing_token or "-"),
        "STATE": lock.state,
    }


def _shorten(widths: dict[str, int], room: int) -> None:
    """Let the columns fit: keys, which are to be copied, give way only where owners have two fifths already."""
    shared = room - sum(width for name, width in widths.items() if name not in ("KEY", "OWNER"))
    if "OWNER" in widths:
        widths["OWNER"] = min(widths["OWNER"], max(shared - widths["KEY"], shared * 2 // 5))
    widths["KEY"] = min(widths["KEY"], shared - widths.get("OWNER", 0))
