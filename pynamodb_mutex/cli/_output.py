"""Commands print times, JSON, questions and progress; they share the options that say how."""

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
        msg = f"there is no time zone {shown(value)}; one is Europe/Berlin"
        raise click.BadParameter(msg) from error


zone_option = click.option(
    "--tz",
    "zone",
    callback=_zone,
    metavar="ZONE",
    envvar="PYNAMODB_MUTEX_TZ",
    help="Time zone of what is shown, as in Europe/Berlin; local by default.",
)


def finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuse a number of seconds that is none; click takes it for one in range."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is no number of seconds")
    return value


def wait_time(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Check how long to wait as a mutex does: -1 is for ever."""
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
    """Return an instant of server time in a zone, None for the local one; None for what is none."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, tz=timezone.utc).astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return None  # a row that another program wrote


def iso(when: datetime | None, timespec: str = "milliseconds") -> str | None:
    """Return an instant as JSON has it."""
    return None if when is None else when.isoformat(timespec=timespec)


def clock_time(when: datetime | None, now: datetime | None) -> str:
    """Return an instant for people: the time if it is less than half a day away, else the date.

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
    """Return a text without its middle, if it does not fit into so many columns of a terminal."""
    if cell_len(text) <= width:
        return text
    end = max(0, width - 1) // 2
    return f"{set_cell_size(text, max(0, width - 1 - end))}…{set_cell_size(text[::-1], end)[::-1]}"


def print_json(document: Any, *, line: bool = False) -> None:
    """Print a JSON document, on one line if more are to follow."""
    click.echo(json.dumps(document, default=plain, indent=None if line else 2))
    if line:
        sys.stdout.flush()


def plain(value: Any) -> Any:
    """Return what JSON has for a value of an attribute."""
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
    """Say whether a person looks at standard output, or at standard error."""
    return (sys.stderr if err else sys.stdout).isatty()


def check_terminal() -> None:
    """Check that there is somebody to ask.

    Raises:
        Failure: If not.
    """
    if not sys.stdin.isatty():
        raise Failure(
            "not confirmed, for there is no terminal to ask on: nothing was done; see --yes"
        )


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if somebody says so.

    Raises:
        Failure: If not, or if there is nobody to ask.
    """
    if yes:
        return
    check_terminal()
    if not click.confirm(question, err=True):
        raise Failure("not confirmed: nothing was done")


@contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being waited for; gives what to call with the latest news."""
    console = Console(stderr=True)
    if not on_terminal(err=True):
        yield lambda _: None
        return
    with console.status(Text(text)) as status:
        yield lambda news: status.update(Text(news))
