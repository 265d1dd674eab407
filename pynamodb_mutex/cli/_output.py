"""How commands print times, durations, JSON and progress, and how they ask; with the options for these.

Nothing here knows what a lock is. Results go to standard output, where programs read them; questions, progress
and messages go to standard error.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from pynamodb_mutex._lock.operations.options import FOREVER, check_timeout
from pynamodb_mutex.cli._place import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_HALF_A_DAY = timedelta(hours=12)


def finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuse nan and inf, which click takes for numbers in range."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number of seconds")
    return value


def seconds(value: Any) -> float:
    """Return a duration in seconds, which is a number of them, or one with a unit: 50, 50s, 5m, 2h, 1d."""
    text = str(value)
    unit = _UNITS.get(text[-1:])
    try:
        return float(text) if unit is None else float(text[:-1]) * unit
    except ValueError:
        msg = f"{text!r} is no duration, such as 50, 50s, 5m, 2h or 1d"
        raise click.BadParameter(msg) from None


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def wait_time(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Check a timeout as a mutex does: -1 waits for ever."""
    try:
        return None if value is None else check_timeout(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


timeout_option = click.option(
    "--timeout",
    type=seconds,
    callback=wait_time,
    default=FOREVER,
    metavar="DURATION",
    help="How long to wait at most; -1, the default, waits for ever.",
)

yes_option = click.option(
    "--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask, for scripts."
)

json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="PYNAMODB_MUTEX_JSON",
    help="Print JSON, for scripts.",
)


def instant(seconds: float | None) -> datetime | None:
    """Return server time as a local datetime; None for None, and for a number that no datetime can show."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, tz=timezone.utc).astimezone()
    except (ValueError, OverflowError, OSError):
        return None  # not written by this library


def iso(when: datetime | None, timespec: str = "milliseconds") -> str | None:
    """Return a time in ISO 8601, for programs; None for None."""
    return None if when is None else when.isoformat(timespec=timespec)


def clock_time(when: datetime | None, now: datetime | None) -> str:
    """Return a time for people: the time of day if it is less than half a day away, else the date; "-" for None.

    The rule is not "the time of day if the date is today's": at 23:59:50 a claim that expires in 29 s would be shown
    by its date alone.
    """
    if when is None:
        return "-"
    near = now is not None and abs(when - now) < _HALF_A_DAY
    return when.strftime("%H:%M:%S" if near else "%Y-%m-%d")


def duration(seconds: float) -> str:
    """Return a duration for people, in its largest unit or two."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{seconds:.1f}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE}m"
    return f"{whole // _DAY}d {whole % _DAY // _HOUR}h"


def cut(text: str, width: int) -> str:
    """Return a text, without its middle if it is wider than ``width`` columns of a terminal."""
    if cell_len(text) <= width:
        return text
    end = max(0, width - 1) // 2
    return f"{set_cell_size(text, max(0, width - 1 - end))}…{set_cell_size(text[::-1], end)[::-1]}"


def print_json(document: Any, *, line: bool = False) -> None:
    """Print a JSON document.

    Args:
        document: The document; values of attributes are converted by `plain`.
        line: Whether it is one of several, printed as they come: then it is one line, and flushed.
    """
    click.echo(json.dumps(document, default=plain, indent=None if line else 2))
    if line:
        sys.stdout.flush()


def plain(value: Any) -> Any:
    """Return a value that JSON can show, for the value of an attribute that it cannot."""
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
    """Return whether standard output, or with ``err`` standard error, is a terminal."""
    return (sys.stderr if err else sys.stdout).isatty()


def check_terminal() -> None:
    """Check that standard input is a terminal.

    Raises:
        Failure: If it is not: there is no person to ask.
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
    """Show a text on a terminal while the block runs; yield a function that replaces the text."""
    console = Console(stderr=True)
    if not on_terminal(err=True):
        yield lambda _: None
        return
    with console.status(Text(text)) as status:
        yield lambda news: status.update(Text(news))
