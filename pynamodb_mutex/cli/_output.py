"""Times, JSON, questions and progress as commands print them, and the options for these."""

from __future__ import annotations

import base64
import json
import math
import sys
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from pynamodb_mutex._operations.options import check_timeout
from pynamodb_mutex._protocol.messages import shown
from pynamodb_mutex.cli._place import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_HALF_A_DAY = timedelta(hours=12)


def _zone(_: click.Context, __: click.Parameter, value: str | None) -> tzinfo | None:
    """Return a time zone by its name."""
    if value is None:
        return None
    if value == "UTC":
        return timezone.utc  # also where Python has no list of zones
    try:
        return ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        msg = f"there is no time zone {shown(value)}; an example is Europe/Berlin"
        raise click.BadParameter(msg) from error


zone_option = click.option(
    "--tz",
    "zone",
    callback=_zone,
    metavar="ZONE",
    envvar="PYNAMODB_MUTEX_TZ",
    help="Time zone of printed times, such as Europe/Berlin; local by default.",
)


def finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuse nan and inf, which click takes for numbers in range."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number of seconds")
    return value


def wait_time(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Check a timeout as a mutex does: -1 waits for ever."""
    try:
        return None if value is None else check_timeout(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="PYNAMODB_MUTEX_JSON",
    help="Print JSON, for scripts.",
)


def instant(seconds: float | None, zone: tzinfo | None) -> datetime | None:
    """Return server time as a datetime in a zone, the local one for None; None if it is no valid time."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, tz=timezone.utc).astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return None  # another program wrote it


def iso(when: datetime | None, timespec: str = "milliseconds") -> str | None:
    """Return a time in ISO 8601, for JSON."""
    return None if when is None else when.isoformat(timespec=timespec)


def clock_time(when: datetime | None, now: datetime | None) -> str:
    """Return a time for people: without the date if it is less than half a day away, else the date alone.

    Not "the time if it is today": at 23:59:50 a claim that expires in 29 s would have a date only.
    """
    if when is None:
        return "-"
    near = now is not None and abs(when - now) < _HALF_A_DAY
    return when.strftime("%H:%M:%S" if near else "%Y-%m-%d")


def duration(seconds: float) -> str:
    """Return a duration for people."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{seconds:.1f}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE}m"
    return f"{whole // _DAY}d {whole % _DAY // _HOUR}h"


def cut(text: str, width: int) -> str:
    """Return a text, without its middle if it is wider than so many columns of a terminal."""
    if cell_len(text) <= width:
        return text
    end = max(0, width - 1) // 2
    return f"{set_cell_size(text, max(0, width - 1 - end))}…{set_cell_size(text[::-1], end)[::-1]}"


def print_json(document: Any, *, line: bool = False) -> None:
    """Print a JSON document; as one line, and at once, if further ones follow."""
    click.echo(json.dumps(document, default=plain, indent=None if line else 2))
    if line:
        sys.stdout.flush()


def plain(value: Any) -> Any:
    """Return a JSON value for the value of an attribute."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def on_terminal(*, err: bool = False) -> bool:
    """Return whether standard output, or standard error, is a terminal."""
    return (sys.stderr if err else sys.stdout).isatty()


def check_terminal() -> None:
    """Check that standard input is a terminal.

    Raises:
        Failure: If not: there is no person to ask.
    """
    if not sys.stdin.isatty():
        raise Failure("nothing was done: there is no terminal to ask on; see --yes")


def confirm(question: str, *, yes: bool) -> None:
    """Ask a question, unless ``yes`` is true.

    Raises:
        Failure: If the answer is no, or there is no terminal.
    """
    if yes:
        return
    check_terminal()
    if not click.confirm(question, err=True):
        raise Failure("nothing was done: not confirmed")


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show a text on a terminal while the block runs; yields a function that replaces the text."""
    console = Console(stderr=True)
    if not on_terminal(err=True):
        yield lambda _: None
        return
    with console.status(Text(text)) as status:
        yield lambda news: status.update(Text(news))
