"""The command ``show``: all that is known of one lock."""

from __future__ import annotations

import json
import reprlib
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from pynamodb_mutex._protocol.claim import FORCED_MARK
from pynamodb_mutex._protocol.messages import escaped
from pynamodb_mutex.cli._completion import key_argument, range_option
from pynamodb_mutex.cli._locks import FREE, HELD, INVALID, Lock, Locks
from pynamodb_mutex.cli._output import (
    cut,
    duration,
    instant,
    iso,
    json_option,
    on_terminal,
    plain,
    print_json,
    zone_option,
)
from pynamodb_mutex.cli._place import AppCommand, Place, pass_place

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, tzinfo


_INDENT = 16
_LABELS = frozenset({"key", "owner", "taken over from"})
"""Lines that may be of any length, and of which a part tells enough."""


@click.command(cls=AppCommand)
@key_argument()
@range_option
@zone_option
@json_option
@pass_place
def show(
    place: Place, *, key: str, range_key: str | None, zone: tzinfo | None, as_json: bool
) -> None:
    """Show one lock.

    All that is known of the lock KEY: of its holder, or of what the last one left. It is one strongly consistent read.

    \b
    Examples:
      pynamodb-mutex show invoice-42
      pynamodb-mutex show invoice-42 --json | jq .owner
      pynamodb-mutex --model shop.models:Account show alice

    \b
    Exit codes:
      0  done, whatever the lock's state
      1  it could not be read
    """
    locks = Locks(place.model())
    lock = locks.read(locks.row(key, range_key))
    more = _more(lock, locks, zone)
    if as_json:
        print_json({**lock.document(zone), **more})
        return
    print_lines([*about(lock, zone), *_rest(lock, locks, more)])


def print_lines(lines: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Print what is known of a lock; on a terminal, its key and its owners are cut to fit."""
    room = Console(stderr=err).width - _INDENT if on_terminal(err=err) else None
    for name, value in lines:
        text = escaped(value)
        if room is not None and name in _LABELS:
            text = cut(text, room)
        click.echo(f"{name + ':':{_INDENT}}{text}", err=err)


def about(lock: Lock, zone: tzinfo | None) -> list[tuple[str, str]]:
    """Return what people ask of a lock first."""
    claim = lock.claim
    lines = [("key", lock.name), ("state", _STATES[lock.state])]
    if lock.state == INVALID:
        return [*lines, ("problem", str(claim.fault)), ("row", _WHOLE.repr(lock.raw))]
    if lock.state != FREE:
        since, until = instant(lock.since, zone), instant(lock.until, zone)
        lines.append(("owner", claim.owner or "-"))
        if since is not None:
            ago = "" if lock.seen_at is None else f" ({_ago(lock, lock.since)})"
            lines.append(("since", _second(since) + ago))
        if until is not None:
            lines.append(("until", f"{_second(until)} ({_end(lock)})"))
        lines.append(("lease", f"{round(claim.lease, 1):g} s"))
    if lock.fencing_token is not None:
        lines.append(("fencing token", str(lock.fencing_token)))
    return lines


_WHOLE = reprlib.Repr()
_WHOLE.maxdict = _WHOLE.maxstring = _WHOLE.maxother = 100
"""Shows what somebody else wrote, but for what is very long."""

_STATES = {
    FREE: "free",
    HELD: "held",
    "abandoned": "abandoned: its claim has ended, the next taker gets it at once",
    INVALID: "invalid: no mutex takes this row",
}


def _end(lock: Lock) -> str:
    if lock.state == HELD:
        return f"in {duration(lock.remaining or 0.0)}, unless renewed"
    return _ago(lock, lock.until)


def _ago(lock: Lock, instant: float | None) -> str:
    return f"{duration(max(0.0, (lock.seen_at or 0.0) - (instant or 0.0)))} ago"


def _second(when: datetime) -> str:
    return when.isoformat(sep=" ", timespec="seconds")


def _more(lock: Lock, locks: Locks, zone: tzinfo | None) -> dict[str, Any]:
    """Return what only this command tells, as JSON has it."""
    claim = lock.claim
    return {
        "token": claim.token,
        "forced": (claim.token or "").startswith(FORCED_MARK),
        "guarded_writes": claim.writes,
        "row_kept_until": iso(instant(locks.ttl(lock.raw), zone), "seconds"),
        "data": locks.data(lock.raw),
    }


def _rest(lock: Lock, locks: Locks, more: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the same for people, and what it means."""
    claim = lock.claim
    if lock.state == INVALID:
        return []
    if not lock.raw:
        return [
            (
                "row",
                "none: "
                + ("there is no such row" if locks.in_rows else "never taken, or long ago"),
            )
        ]
    if claim.token is None:
        return [("lock", "never taken")]
    lines = [("token", claim.token), ("guarded writes", str(claim.writes))]
    if more["forced"]:
        lines.append(("broken", "the last claim was broken by force"))
    if claim.abandoned_by:
        lines.append(("taken over from", f"{claim.abandoned_by}, which never gave it back"))
    if more["row_kept_until"] is not None:
        lines.append(("row kept until", more["row_kept_until"]))
    if more["data"] is not None:
        lines.append(("data", json.dumps(more["data"], default=plain, ensure_ascii=False)))
    return lines
