"""The command ``watch``: the locks as they change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pynamodb_mutex._protocol.messages import escaped, one_line
from pynamodb_mutex._runtime.clock import read_clock
from pynamodb_mutex._runtime.run_on_thread import ThreadSleeper
from pynamodb_mutex.cli._completion import keys_argument, prefix_option, rows_of
from pynamodb_mutex.cli._locks import ABANDONED, FREE, HELD, INVALID, Lock, Locks, TransientError
from pynamodb_mutex.cli._ls import ORDERS, counts_of, sort_option, table_of
from pynamodb_mutex.cli._output import (
    clock_time,
    cut,
    finite,
    instant,
    iso,
    json_option,
    on_terminal,
    print_json,
    zone_option,
)
from pynamodb_mutex.cli._place import AppCommand, Place, pass_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import tzinfo


_NEWS = 6
"""Changes that stay on the screen."""


class Change(NamedTuple):
    """What became of a lock between two looks."""

    event: str
    lock: Lock
    before: Lock | None

    def words(self, longest: int | None = None) -> str:
        """Say it, for people; of keys and owners at most so many columns."""

        def name(text: str) -> str:
            return escaped(text) if longest is None else cut(escaped(text), longest)

        owner = name(self.lock.claim.owner or "an unnamed owner")
        said = {
            HELD: f"held by {owner}, fencing token {self.lock.claim.version}",
            FREE: "free",
            "taken": f"taken by {owner}, fencing token {self.lock.claim.version}",
            "renewed": f"renewed late by {owner}",
            ABANDONED: f"abandoned by {owner}",
            "freed": "freed",
            INVALID: f"invalid: {self.lock.claim.fault}",
        }
        words = said[self.event]
        former = self.before
        if self.event == "taken" and former is not None and former.state != FREE:
            words += f"; before: {name(former.claim.owner or 'an unnamed owner')}"
        return f"{name(self.lock.name)}  {words}"


@click.command(cls=AppCommand)
@keys_argument
@prefix_option
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1, max=3600),
    callback=finite,
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@sort_option
@zone_option
@json_option
@pass_place
def watch(
    place: Place,
    *,
    keys: tuple[str, ...],
    prefix: str,
    interval: float,
    sort: str,
    zone: tzinfo | None,
    as_json: bool,
) -> None:
    """Watch locks change.

    All locks, or those of the KEYs, as they are taken, freed and abandoned. On a terminal it is a live view; else a line is printed for each change, with what there is to
    begin with. Renewals are no change. What comes and goes between two looks is not seen.

    What a look costs: without KEYs the whole table is read, 1 read unit for each 4 KB, also with
    --prefix; with KEYs, up to 100, 1 read unit for each.

    Throttling and failures of the network that pass do not end it; Ctrl-C does.

    \b
    Examples:
      pynamodb-mutex watch
      pynamodb-mutex watch deploy nightly-report --interval 5
      pynamodb-mutex watch --json | jq -r 'select(.event == "abandoned") | .key'

    \b
    Exit codes:
      0  ended by Ctrl-C
      1  DynamoDB refused
    """
    locks = Locks(place.model())
    look = _looker(locks, keys, prefix)
    try:
        if on_terminal() and not as_json:
            _live(_Watching(look, interval), View(place, sort, zone))
        else:
            _lines(_Watching(look, interval), zone, as_json=as_json)
    except KeyboardInterrupt:
        return


def _looker(locks: Locks, keys: Iterable[str], prefix: str) -> Callable[[], list[Lock]]:
    """Return what looks once at the locks that are watched."""
    rows = rows_of(locks, keys, prefix)
    if rows:
        return lambda: locks.read_several(rows)
    return lambda: [lock for lock in locks.standing() if lock.key.startswith(prefix)]


class _Watching:
    """The locks as they were seen last, and what went wrong if the latest look failed."""

    def __init__(self, look: Callable[[], list[Lock]], interval: float) -> None:
        self.locks: dict[tuple[Any, ...], Lock] = {}
        self.trouble: str | None = None
        self.begun = False
        self._look = look
        self._interval = interval
        self._due = read_clock()

    def look(self) -> list[Change]:
        """Look again, and return what has changed."""
        try:
            seen = {(lock.key, lock.range_key): lock for lock in self._look()}
        except TransientError as failure:
            self.trouble = one_line(failure)
            return []
        self.trouble = None
        gone = {name: lock for name, lock in self.locks.items() if name not in seen}
        changes = [_change(self.locks.get(name), lock) for name, lock in seen.items()]
        changes += [Change("freed", lock, lock) for lock in gone.values() if lock.state != FREE]
        self.locks = seen
        if not self.begun:
            self.begun = True
            return [Change(lock.state, lock, None) for lock in seen.values()]
        return [change for change in changes if change is not None]

    def rest(self) -> None:
        """Wait until it is time for the next look."""
        # a slow look is not followed by a hurry
        self._due = max(self._due + self._interval, read_clock())
        ThreadSleeper().sleep(self._due)


def _change(before: Lock | None, now: Lock) -> Change | None:
    state = FREE if before is None else before.state
    same = before is not None and before.claim.token == now.claim.token
    if now.state == state and (same or now.state == FREE):
        return None
    if now.state == HELD:
        return Change("renewed" if same else "taken", now, before)
    if now.state in (ABANDONED, INVALID):
        return Change(now.state, now, before)
    return Change("freed", now, before)


def _lines(watching: _Watching, zone: tzinfo | None, *, as_json: bool) -> None:
    """Print a line for each change."""
    trouble = None
    while True:
        for change in watching.look():
            at = instant(change.lock.seen_at, zone)
            if as_json:
                print_json(
                    {"at": iso(at), "event": change.event, **change.lock.document(zone)}, line=True
                )
            else:
                click.echo(f"{iso(at, 'seconds') or '-'}  {change.words()}")
        if watching.trouble != trouble:
            trouble = watching.trouble
            click.echo(f"{trouble}; repeated" if trouble else "DynamoDB answers again", err=True)
        watching.rest()


class View(NamedTuple):
    """How the live view shows locks."""

    place: Place
    order: str
    zone: tzinfo | None

    def line(self, change: Change, width: int) -> Text:
        """Tell a change, in a line of so many columns."""
        now = instant(change.lock.seen_at, self.zone)
        return _line(f"{clock_time(now, now)}  {change.words(width // 3)}")

    def frame(self, watching: _Watching, news: list[Text], console: Console) -> Group:
        """Draw what is known, to fit a terminal."""
        locks = sorted(watching.locks.values(), key=ORDERS[self.order])
        room = max(3, console.height - _NEWS - 8)
        parts: list[Any] = [_line(str(self.place), "bold"), _line(counts_of(locks))]
        if watching.trouble is not None:
            parts.append(_line(f"{watching.trouble}; repeated", "red"))
        parts.append(Text())
        if locks:
            parts.append(table_of(locks[:room], self.zone, console.width))
        if len(locks) > room:
            parts.append(Text(f"and {len(locks) - room} more", style="dim"))
        return Group(*parts, Text(), *news)


def _line(text: str, style: str = "") -> Text:
    """Return a text that takes one line of the terminal, whatever its width."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _live(watching: _Watching, view: View) -> None:
    """Show the locks, and what changed last."""
    news: list[Text] = []
    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        watching.look()
        while True:
            live.update(view.frame(watching, news, console), refresh=True)
            watching.rest()
            news.extend(view.line(change, console.width) for change in watching.look())
            del news[:-_NEWS]
