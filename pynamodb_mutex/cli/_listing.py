"""The commands ``ls`` and ``watch``: list locks once, and report how they change.

``ls`` prints a table for people or lines for programs. ``watch`` reads the locks again and again and compares: it
reports what differs between two reads, so it misses what happens and ends between them. How locks are read, and
their states, is in `_locks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pynamodb_mutex._lock.protocol.messages import escaped, one_line
from pynamodb_mutex._lock.runtime.clock import read_clock
from pynamodb_mutex._lock.runtime.run_on_thread import ThreadSleeper
from pynamodb_mutex.cli._locks import (
    ABANDONED,
    FREE,
    HELD,
    INVALID,
    RECORDED,
    RUNNING,
    UNKNOWN,
    Lock,
    Locks,
    TransientError,
    keys_argument,
    locks_of,
    once_option,
    range_option,
    rows_of,
)
from pynamodb_mutex.cli._output import (
    clock_time,
    cut,
    duration,
    finite,
    instant,
    iso,
    json_option,
    on_terminal,
    print_json,
    progress,
)
from pynamodb_mutex.cli._place import AppCommand, Place, pass_place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COLUMNS = ("KEY", "OWNER", "SINCE", "UNTIL", "REMAINING", "FENCING TOKEN", "STATE", "WAITERS")
"""Columns of lines for programs, in this order."""

_COLUMNS = ("KEY", "STATE", "OWNER", "SINCE", "LEFT", "UNTIL", "FENCING TOKEN", "WAITERS")
"""Columns of a table for people, in this order."""

_NEEDS = {"OWNER": 40, "SINCE": 50}
"""Least width of a terminal on which the table has these columns."""

_OMITTED = ("FENCING TOKEN", "UNTIL", "WAITERS")
"""Columns that are omitted, in this order, as long as keys and owners have less room than `_ENOUGH`."""

_ENOUGH = {"KEY": 32, "OWNER": 20}
"""Width to which keys and owners are cut only when no column is left to be omitted."""

_NUMBERS = frozenset({"LEFT", "FENCING TOKEN", "WAITERS"})
"""Columns that are aligned to the right."""

_GAP = 2
"""Blanks between two columns of the table."""

_NEWS = 6
"""Most changes that the live view shows, the latest ones."""


def by_key(lock: Lock) -> tuple[str, str]:
    """Return the key by which locks are sorted."""
    return lock.key, lock.range_key or ""


@click.command(cls=AppCommand)
@keys_argument
@range_option
@once_option
@json_option
@pass_place
def ls(
    place: Place, *, keys: tuple[str, ...], range_key: str | None, once: bool, as_json: bool
) -> None:
    """List held and abandoned locks.

    A lock is abandoned if its lease has expired and nobody has acquired it since: the next process that polls
    acquires it. Times are those of DynamoDB's clock, not of this machine. UNTIL moves with each renewal. Given
    KEYs, lists exactly these, also if they are free.

    WAITERS is the number of those who wait in line (fair=True).

    A run of once is listed as a lock whose key begins with once#, which release leaves alone. With --once, lists the
    keys of once instead: recorded, with UNTIL as the end of the result; running; unknown, if somebody has to decide
    by forget or record; or abandoned, so that the next call does the work.

    On a terminal the output is a table. To fit, it leaves out FENCING TOKEN, UNTIL and WAITERS, and cuts the widest
    keys and owners. Otherwise each lock is one complete line with tabs between the columns.

    Reads the whole table: 1 read unit for each 4 KB. With KEYs, up to 100, 1 read unit for each.

    \b
    Examples:
      pynamodb-mutex ls
      pynamodb-mutex ls deploy nightly-report
      pynamodb-mutex ls --once
      pynamodb-mutex ls --json | jq -r '.[] | select(.remaining > 600) | .key'

    \b
    Exit codes:
      0  done, also if there are no locks
      1  the table could not be read
    """
    locks = locks_of(place, keys, once=once)
    rows = rows_of(locks, keys, range_key)
    with progress("reading the table") as news:
        found = locks.read_several(rows) if rows else list(locks.all(news))
    locks.warn()
    found.sort(key=by_key)
    if as_json:
        print_json([lock.document() for lock in found])
    elif not found:
        none = "key is recorded or running" if locks.of_once else "lock is held or abandoned"
        click.echo(f"no {none} in {place}", err=True)
    elif on_terminal():
        console = Console()
        console.print(table_of(found, console.width))
        console.print(counts_of(found, of_once=locks.of_once), highlight=False)
    else:
        click.echo("\t".join(COLUMNS))
        for lock in found:
            click.echo("\t".join(line_of(lock)))


def line_of(lock: Lock) -> list[str]:
    """Return the columns of a lock for programs: all of them, complete, in the order of COLUMNS."""
    return [
        escaped(lock.name),
        escaped(lock.claim.owner or "-"),
        iso(instant(lock.since), "seconds") or "-",
        iso(instant(lock.until), "seconds") or "-",
        "-" if lock.remaining is None else f"{lock.remaining:.1f}",
        str(lock.fencing_token or "-"),
        lock.state,
        str(len(lock.waiters) or "-"),
    ]


def table_of(locks: Sequence[Lock], width: int) -> Table:
    """Return a table for a terminal of this width, one line for each lock."""
    names = [name for name in _COLUMNS if width >= _NEEDS.get(name, 0)]
    if "WAITERS" in names and not any(lock.waiters for lock in locks):
        names.remove("WAITERS")
    rows = [_cells(lock) for lock in locks]
    widths = {name: max(map(cell_len, [name, *(row[name] for row in rows)])) for name in names}
    _fit(widths, width)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    for name in widths:
        table.add_column(name, no_wrap=True, justify="right" if name in _NUMBERS else "left")
    for lock, row in zip(locks, rows, strict=True):
        style = "yellow" if lock.state in (ABANDONED, UNKNOWN) else ""
        table.add_row(*(Text(cut(row[name], room)) for name, room in widths.items()), style=style)
    return table


def counts_of(locks: Sequence[Lock], *, of_once: bool = False) -> str:
    """Return a line with the numbers of held and abandoned locks, or of the keys of `once` in each state."""
    states = (RECORDED, RUNNING, UNKNOWN, ABANDONED) if of_once else (HELD, ABANDONED)
    return "   ".join(f"{each}: {sum(lock.state == each for lock in locks)}" for each in states)


def _cells(lock: Lock) -> dict[str, str]:
    now = instant(lock.seen_at)
    return {
        "KEY": escaped(lock.name),
        "OWNER": escaped(lock.claim.owner or "-"),
        "SINCE": clock_time(instant(lock.since), now),
        "UNTIL": clock_time(instant(lock.until), now),
        "LEFT": duration(lock.remaining) if lock.remaining else "-",
        "FENCING TOKEN": str(lock.fencing_token or "-"),
        "STATE": lock.state,
        "WAITERS": str(len(lock.waiters) or "-"),
    }


def _fit(widths: dict[str, int], width: int) -> None:
    """Make the columns fit a terminal of this width: omit some, then cut the wider of keys and owners.

    Args:
        widths: Widths of the columns by name; changed in place.
        width: Width of the terminal.
    """

    def room() -> int:
        """Return what is left for keys and owners."""
        return width + _GAP - sum(_GAP + widths[name] * (name not in _ENOUGH) for name in widths)

    enough = sum(min(widths.get(name, 0), most) for name, most in _ENOUGH.items())
    for name in _OMITTED:
        if room() < enough:
            widths.pop(name, None)
    owner = widths.get("OWNER", 0)
    cut_to = max(room() // 2, room() - widths["KEY"])
    if "OWNER" in widths:
        widths["OWNER"] = owner = min(owner, cut_to)
    widths["KEY"] = min(widths["KEY"], room() - owner)


class Change(NamedTuple):
    """A change of a lock between two reads.

    Attributes:
        event: "taken", "renewed", "freed", or the new state of the lock; at the first read, its state.
        lock: The lock as the later read showed it; if its row is gone, as the earlier one did.
        before: The lock as the earlier read showed it; None if it showed none.
    """

    event: str
    lock: Lock
    before: Lock | None

    def words(self, longest: int | None = None) -> str:
        """Return the change as text for people, with keys and owners cut to ``longest`` columns, None for no limit."""

        def name(text: str) -> str:
            return escaped(text) if longest is None else cut(escaped(text), longest)

        owner = name(self.lock.claim.owner or self.lock.claim.holder)
        said = {
            HELD: f"held by {owner}, fencing token {self.lock.claim.version}",
            FREE: "free",
            "taken": f"taken by {owner}, fencing token {self.lock.claim.version}",
            "renewed": f"renewed late by {owner}",
            ABANDONED: f"abandoned by {owner}",
            "freed": "freed",
            UNKNOWN: f"unknown: what became of the run by {owner}",
            INVALID: f"invalid: {self.lock.claim.fault}",
        }
        words = said[self.event]
        former = self.before
        if self.event == "taken" and former is not None and former.state != FREE:
            words += f"; before: {name(former.claim.owner or former.claim.holder)}"
        return f"{name(self.lock.name)}  {words}"


@click.command(cls=AppCommand)
@keys_argument
@range_option
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    callback=finite,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two reads.",
)
@json_option
@pass_place
def watch(
    place: Place, *, keys: tuple[str, ...], range_key: str | None, interval: float, as_json: bool
) -> None:
    """Watch locks change.

    Reports when all locks, or those of the KEYs, are taken, freed and abandoned. On a terminal this is a live view;
    otherwise one line for each lock at the start and one for each change. Renewals are not reported, nor is a lock that
    is acquired and released between two reads.

    A read of all locks costs 1 read unit for each 4 KB of the table. With KEYs, up to 100, it costs 1 read unit for each.

    Throttling and transient network failures do not end the command; Ctrl-C does.

    \b
    Examples:
      pynamodb-mutex watch
      pynamodb-mutex watch deploy nightly-report --interval 5
      pynamodb-mutex watch --json | jq -r 'select(.event == "abandoned") | .key'

    \b
    Exit codes:
      0  ended by Ctrl-C
      1  DynamoDB refused a read
    """
    locks = Locks(place.model())
    rows = rows_of(locks, keys, range_key)
    watching = _Watching(
        lambda: locks.read_several(rows) if rows else list(locks.standing()), interval
    )
    try:
        if on_terminal() and not as_json:
            _live(watching, place)
        else:
            _lines(watching, as_json=as_json)
    except KeyboardInterrupt:
        return


class _Watching:
    """Reads locks at regular times, and compares each read with the one before.

    Attributes:
        locks: The locks at the last successful read, by key and range key.
        trouble: Failure of the latest read, for people; None if it succeeded.
        begun: Whether a read has succeeded.
    """

    def __init__(self, read: Callable[[], list[Lock]], interval: float) -> None:
        self.locks: dict[tuple[Any, ...], Lock] = {}
        self.trouble: str | None = None
        self.begun = False
        self._read = read
        self._interval = interval
        self._due = read_clock()

    def look(self) -> list[Change]:
        """Read the locks again, and return the changes; none if the read fails and a retry may succeed."""
        try:
            seen = {(lock.key, lock.range_key): lock for lock in self._read()}
        except TransientError as failure:
            self.trouble = one_line(failure)
            return []
        self.trouble = None
        gone = {name: lock for name, lock in self.locks.items() if name not in seen}
        changes = [_change(self.locks.get(name), lock) for name, lock in seen.items()]
        # A scan returns no rows without a claim, so a lock that was released is missing.
        changes += [Change("freed", lock, lock) for lock in gone.values() if lock.state != FREE]
        self.locks = seen
        if not self.begun:
            self.begun = True
            return [Change(lock.state, lock, None) for lock in seen.values()]
        return [change for change in changes if change is not None]

    def rest(self) -> None:
        """Wait until the next read is due."""
        # After a read that took longer than the interval, the next one is due at once, and those that were due
        # meanwhile are skipped.
        self._due = max(self._due + self._interval, read_clock())
        ThreadSleeper().sleep(self._due)


def _change(before: Lock | None, now: Lock) -> Change | None:
    """Return how a lock has changed between two reads; None if it has not, or was only renewed in time."""
    # The state alone shows too little: between two reads a lock may be released and acquired by another holder. The
    # token is that of one acquisition.
    state = FREE if before is None else before.state
    same = before is not None and before.claim.token == now.claim.token
    if now.state == state and (same or now.state == FREE):
        return None
    if now.state == HELD:
        return Change("renewed" if same else "taken", now, before)
    if now.state in (ABANDONED, UNKNOWN, INVALID):
        return Change(now.state, now, before)
    return Change("freed", now, before)


def _lines(watching: _Watching, *, as_json: bool) -> None:
    """Print a line for each change, and one on standard error when reads begin to fail or to succeed again."""
    trouble = None
    while True:
        for change in watching.look():
            at = instant(change.lock.seen_at)
            if as_json:
                print_json(
                    {"at": iso(at), "event": change.event, **change.lock.document()}, line=True
                )
            else:
                click.echo(f"{iso(at, 'seconds') or '-'}  {change.words()}")
        if watching.trouble != trouble:
            trouble = watching.trouble
            click.echo(f"{trouble}; retrying" if trouble else "DynamoDB answers again", err=True)
        watching.rest()


def _frame(place: Place, watching: _Watching, news: list[Text], console: Console) -> Group:
    """Return the live view of ``watch``, with as many locks as fit the terminal."""
    locks = sorted(watching.locks.values(), key=by_key)
    room = max(3, console.height - _NEWS - 8)
    parts: list[Any] = [_line(str(place), "bold"), _line(counts_of(locks))]
    if watching.trouble is not None:
        parts.append(_line(f"{watching.trouble}; retrying", "red"))
    parts.append(Text())
    if locks:
        parts.append(table_of(locks[:room], console.width))
    if len(locks) > room:
        parts.append(Text(f"and {len(locks) - room} more", style="dim"))
    return Group(*parts, Text(), *news)


def _news(change: Change, width: int) -> Text:
    """Return a change as one line for a terminal of this width."""
    now = instant(change.lock.seen_at)
    return _line(f"{clock_time(now, now)}  {change.words(width // 3)}")


def _line(text: str, style: str = "") -> Text:
    """Return a text that is cut to one line of the terminal."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _live(watching: _Watching, place: Place) -> None:
    """Show the live view until Ctrl-C."""
    news: list[Text] = []
    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        watching.look()
        while True:
            live.update(_frame(place, watching, news, console), refresh=True)
            watching.rest()
            news.extend(_news(change, console.width) for change in watching.look())
            del news[:-_NEWS]
