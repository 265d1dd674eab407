"""The commands ``show``, ``wait`` and ``release``: print a claim, wait for its end, break it.

``show`` and ``wait`` only read. ``release`` ends claims of other processes. Each of its writes is conditional on the
claim that it has read and printed, because a person may take minutes to answer its question. How locks are read is in
`_locks`; the request that breaks a claim is in `pynamodb_mutex._admin.force`.
"""

from __future__ import annotations

import json
import math
import reprlib
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from pynamodb_mutex._admin.force import break_seen
from pynamodb_mutex._lock.operations.options import FOREVER
from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, ObservedClaim
from pynamodb_mutex._lock.protocol.messages import escaped, one_line, shown
from pynamodb_mutex._lock.runtime.clock import read_clock
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import ThreadSleeper, execute
from pynamodb_mutex._once.rows import OnceRow
from pynamodb_mutex.cli._locks import (
    ABANDONED,
    FREE,
    HELD,
    INVALID,
    NOTHING,
    RECORDED,
    RUNNING,
    UNKNOWN,
    Lock,
    Locks,
    TransientError,
    found,
    key_argument,
    once_option,
    range_option,
    sent,
)
from pynamodb_mutex.cli._output import (
    clock_time,
    confirm,
    cut,
    duration,
    instant,
    iso,
    json_option,
    on_terminal,
    plain,
    print_json,
    progress,
    timeout_option,
    yes_option,
)
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pynamodb_mutex._lock.protocol.claim import Claim

NOT_FREE = 75
"""Exit code when the lock is still held after the timeout: EX_TEMPFAIL of sysexits.h."""

_POLL = 1.0
"""Seconds between two reads of a lock that ``wait`` waits for."""

_INDENT = 16
"""Columns before the values that ``show`` prints."""

_WAITER = "waiter "
"""Beginning of the name of a line that shows a waiter; its number in line follows."""

_READER = "reader "
"""The same of a line that shows one of those who share the lock."""

_LABELS = ("key", "owner", "taken over from", "wanted by", _WAITER, _READER)
"""Beginnings of the names of lines whose values may be cut to fit a terminal: a part identifies a key or an owner."""

_WHOLE = reprlib.Repr()
_WHOLE.maxdict = _WHOLE.maxstring = _WHOLE.maxother = 100
"""Shows a row that another program wrote, with very long values shortened."""

_STATES = {
    FREE: "free",
    HELD: "held",
    ABANDONED: "abandoned: its lease has expired; the next process that polls acquires it",
    INVALID: "invalid: no mutex acquires this row",
    RECORDED: "recorded: the work is done, and all callers get its result",
    RUNNING: "running",
    UNKNOWN: "unknown: a run ended without a result; forget or record decides about it",
    NOTHING: "nothing: the next call does the work",
}
"""States of a lock, or a key of `once`, as ``show`` prints them."""

_DOUBT = 60.0
"""Seconds after which an end that is later than the lease allows is called doubtful: a clock, or a hand, was wrong."""

_NEVER = "never acquired, or deleted since; the lock in a row of a model is shown with --model"
"""What a lock without a row is."""


@click.command(cls=AppCommand)
@key_argument
@range_option
@once_option
@json_option
@pass_place
def show(place: Place, *, key: str, range_key: str | None, once: bool, as_json: bool) -> None:
    """Print all that is known of one lock.

    Prints the holder of the lock KEY, or what the last holder stored, and those who wait for it in line
    (fair=True), first come first. With --once, and for a key of once that no lock has, prints the result or the run
    of that key. Sends a strongly consistent read, and a second one if there is no row.

    \b
    Examples:
      pynamodb-mutex show invoice-42
      pynamodb-mutex show charge-o-1 --once
      pynamodb-mutex show invoice-42 --json | jq .owner
      pynamodb-mutex --model shop.models:Account show alice

    \b
    Exit codes:
      0  done, whatever the state of the lock
      1  the lock could not be read
    """
    locks, lock = found(place, key, range_key, once=once)
    more = _more(lock, locks)
    if as_json:
        print_json({**lock.document(), **more})
        return
    print_lines([*about(lock), *_waiters(lock), *_rest(lock, locks, more)])


def print_lines(lines: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Print named values, one a line; on a terminal, keys and owners are cut to fit."""
    room = Console(stderr=err).width - _INDENT if on_terminal(err=err) else None
    for name, value in lines:
        text = escaped(value)
        if room is not None and name.startswith(_LABELS):
            text = cut(text, room)
        click.echo(f"{name + ':':{_INDENT}}{text}", err=err)


def about(lock: Lock) -> list[tuple[str, str]]:
    """Return the lines that every state of a lock has: key, state, holder, times and fencing token."""
    claim = lock.claim
    state = "recorded: the work is done, but its result could not be stored"
    state = state if lock.state == RECORDED and claim.of(OnceRow).unstored else _STATES[lock.state]
    lines = [("key", lock.name), ("state", state)]
    if lock.state == INVALID:
        return [*lines, ("problem", str(claim.fault)), ("row", _WHOLE.repr(lock.raw))]
    if lock.state not in (FREE, NOTHING):
        since, until = instant(lock.since), _until(lock)
        if lock.readers:
            lines.append(("owner", f"{len(lock.readers)} reader(s)"))
        elif lock.state != RECORDED:
            lines.append(("owner", claim.holder if claim.is_reserved else claim.owner or "-"))
        if since is not None:
            ago = "" if lock.seen_at is None else f" ({_ago(lock, lock.since)})"
            lines.append(("since", _second(since) + ago))
        if until is not None:
            lines.append(("until", until))
        if claim.lease:
            lines.append(("lease", f"{round(claim.lease, 1):g} s"))
    if lock.fencing_token is not None:
        lines.append(("fencing token", str(lock.fencing_token)))
    return lines


def _until(lock: Lock) -> str | None:
    """Return when the claim of a lock ends, or the result of a key of `once`; None if that is not known."""
    until = instant(lock.until)
    if until is None:
        return "for ever" if lock.state == RECORDED else None
    end = _ago(lock, lock.until)
    if lock.state in (HELD, RUNNING, RECORDED):
        renewed = "" if lock.state == RECORDED else _unless_renewed(lock.claim)
        end = f"in {duration(lock.remaining or 0.0)}{renewed}"
        if renewed and (lock.remaining or 0.0) > lock.claim.lease + _DOUBT:
            end += "; doubtful, for its lease is shorter"
    return f"{_second(until)} ({end})"


def _unless_renewed(claim: Claim) -> str:
    return "" if claim.is_reserved else ", unless renewed"


def _ago(lock: Lock, instant: float | None) -> str:
    """Return how long before the read of a lock a server time was, for people."""
    return f"{duration(max(0.0, (lock.seen_at or 0.0) - (instant or 0.0)))} ago"


def _second(when: datetime) -> str:
    return when.isoformat(sep=" ", timespec="seconds")


def _waiters(lock: Lock) -> list[tuple[str, str]]:
    """Return a line for each reader and each waiter, first come first; a lock that was just released may have waiters, too."""
    lines = []
    for number, (reader, ends) in enumerate(lock.readers, 1):
        until = instant(ends)
        lines.append(
            (f"{_READER}{number}", reader + (f", until {_second(until)}" if until else ""))
        )
    if lock.claim.wanted_by is not None:
        lines.append(("wanted by", f"{lock.claim.wanted_by}, who waits for the readers"))
    for place, (owner, began, called_at) in enumerate(lock.waiters, 1):
        since = instant(began)
        waited = "" if since is None else f", since {_second(since)}"
        called = "" if called_at is None else f", called at {called_at}"
        lines.append((f"{_WAITER}{place}", owner + waited + called))
    return lines


def _more(lock: Lock, locks: Locks) -> dict[str, Any]:
    """Return the JSON fields that only ``show`` prints."""
    claim = lock.claim
    known = claim.of(OnceRow)
    of_once = {"result": known.result, "unstored": known.unstored} if locks.of_once else {}
    return {
        **of_once,
        "token": claim.token,
        "forced": (claim.token or "").startswith(FORCED_MARK),
        "row_kept_until": iso(instant(locks.ttl(lock.raw)), "seconds"),
        "data": locks.data(lock.raw),
        "attributes": locks.attributes(lock.raw),
    }


def _rest(lock: Lock, locks: Locks, more: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines for the fields that only ``show`` prints."""
    claim = lock.claim
    if lock.state == INVALID:
        return []
    if not lock.raw:
        none = "there is no such row" if locks.in_rows else _NEVER
        return [("row", f"none: {none}")]
    if claim.token is None:
        return [("lock", "never acquired")]
    known = claim.of(OnceRow)
    results = (("result", known.result), ("unstored", known.unstored))
    lines = [(name, text) for name, text in results if text is not None]
    lines.append(("token", claim.token))
    if more["forced"]:
        lines.append(("broken", "the last claim was broken by force"))
    if claim.abandoned_by:
        lines.append(("taken over from", f"{claim.abandoned_by}, which never released it"))
    if more["row_kept_until"] is not None:
        lines.append(("row kept until", more["row_kept_until"].replace("T", " ")))
    if more["data"] is not None:
        lines.append(("data", json.dumps(more["data"], default=plain, ensure_ascii=False)))
    for name, value in more["attributes"].items():
        lines.append((name, json.dumps(value, default=plain, ensure_ascii=False)))
    return lines


@click.command(cls=AppCommand)
@key_argument
@range_option
@timeout_option
@json_option
@pass_place
def wait(
    place: Place,
    *,
    key: str,
    range_key: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Wait until a lock is free, without acquiring it.

    Another process may acquire the lock at once. To do something under the lock use pynamodb-mutex run. The lock
    of a dead holder is free when its lease has expired.

    Sends a strongly consistent read each second: 1 read unit. For a key of once, waits until no run of it is
    under way.

    \b
    Examples:
      pynamodb-mutex wait deploy && echo "free"
      pynamodb-mutex wait deploy --timeout 60 || echo "still held"
      pynamodb-mutex wait deploy --timeout 60 --json | jq .owner

    \b
    Exit codes:
      0    the lock is free
      1    DynamoDB refused a read, or could not be reached for the first one
      75   the lock was still held after the timeout; or it is unknown what
           became of a run of once
      130  interrupted by Ctrl-C
    """
    begun = read_clock()
    locks, lock = found(place, key, range_key)
    if not (lock.raw or locks.in_rows):
        click.echo(f"{shown(lock.name)}: {_NEVER}", err=True)
    name = shown(key if range_key is None else f"{key} {range_key}")
    deadline = math.inf if timeout == FOREVER else begun + timeout
    observed, trouble = ObservedClaim(), ""
    with progress(f"waiting for {name}") as news:
        while True:
            observed.see(locks.store.layout.claim(lock.raw), lock.received)
            # Judged as of the answer. Suppose that reads fail from now on: the lease that the last one showed ends, but
            # the holder may have renewed it.
            is_free = lock.received >= observed.free_at(locks.store.bounds)
            now = read_clock()
            if is_free or now >= deadline:
                break
            news(f"waited {duration(now - begun)} for {name}, {_held_by(lock)}{trouble}")
            ThreadSleeper().sleep(min(now + _POLL, deadline))
            try:
                answer = sent(locks.store.read(lock.row, consistent=True))
                lock, trouble = locks.shown(lock.row, answer.item, answer.received), ""
            except TransientError as failure:
                trouble = f" ({one_line(failure)})"
    if as_json:
        print_json({**lock.document(), "waited": round(now - begun, 3)})
    if is_free and lock.state != UNKNOWN:
        return
    text = _STATES[UNKNOWN] if is_free else f"still {_held_by(lock)}"
    click.echo(f"{name} is {text}", err=True)
    click.get_current_context().exit(NOT_FREE)


def _held_by(lock: Lock) -> str:
    """Return the holder of a lock and the end of its lease, as text for people."""
    until = clock_time(instant(lock.until), instant(lock.seen_at))
    renewed = _unless_renewed(lock.claim)
    return f"held by {lock.claim.holder}" + (renewed and f" until {until}{renewed}")


@click.command(cls=AppCommand)
@key_argument
@range_option
@click.option(
    "--force", is_flag=True, allow_from_autoenv=False, help="Break the claim of the holder of KEY."
)
@yes_option
@json_option
@pass_place
def release(
    place: Place,
    *,
    key: str,
    range_key: str | None,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Free a lock by force.

    Prints the holder of KEY, asks, and breaks exactly the claim that was printed, even if the holder has renewed it
    since. If another holder has acquired the lock since, nothing is broken.

    A holder that is alive goes on until its next request to DynamoDB. Its guarded writes are refused from this
    moment on; anything else that it does is not.

    A row with invalid lock attributes, which no mutex acquires, is repaired. A row that does not belong to a lock is
    never changed.

    \b
    Examples:
      pynamodb-mutex release invoice-42 --force
      pynamodb-mutex release invoice-42 --force --yes --json

    \b
    Exit codes:
      0    nobody holds the lock: its claim was broken, or it was free already
      1    nothing was freed: no --force, not confirmed, another holder, not a
           row of a lock, or DynamoDB refused
      130  interrupted by Ctrl-C
    """
    locks, seen = found(place, key, range_key)
    if locks.of_once:
        raise Failure(f"nothing was done: {shown(key)} is a key of once: see show and forget")
    if seen.state == FREE:
        if as_json:
            print_json({"freed": False, "lock": seen.document(), "now": None})
        never = "" if seen.raw or locks.in_rows else f" ({_NEVER})"
        click.echo(f"{shown(seen.name)} is free: nothing to release{never}", err=True)
        return
    print_lines(about(seen), err=True)
    _check(locks, seen, force=force)
    confirm(f"{_question(seen)} in {place}?", yes=yes)
    now = _broken(locks, seen, key)
    if as_json:
        after = None if now is None else now.document()
        print_json({"freed": now is None, "lock": seen.document(), "now": after})
    if now is None:
        click.echo(f"{shown(seen.name)} is free", err=True)
    elif now.state == FREE:
        click.echo(f"{shown(seen.name)} is free: that claim has ended meanwhile", err=True)
    elif now.state == INVALID:
        raise Failure(f"nothing was broken: the row has changed meanwhile: {now.claim.fault}")
    else:
        raise Failure(
            f"nothing was broken: that claim has ended meanwhile, and {shown(seen.name)} is now {now.state} "
            f"by {now.claim.holder}, fencing token {now.claim.version}"
        )


def _check(locks: Locks, seen: Lock, *, force: bool) -> None:
    """Check that a lock may be freed by force.

    Raises:
        Failure: If not; its message says what to do instead.
    """
    if not locks.was_a_locks(seen):
        raise Failure("nothing was done: this row does not belong to a lock")
    if force:
        return
    raise Failure(
        {
            ABANDONED: "nothing was done: the next process that polls acquires this lock; --force frees it now",
            INVALID: "nothing was done: find out what wrote this row; --force repairs it and frees the lock",
            HELD: "nothing was done: only the holder releases a lock. If the holder is dead, the lock becomes free "
            "when its lease expires; --force breaks the claim now",
        }[seen.state]
    )


def _question(seen: Lock) -> str:
    """Return what to ask before a claim is broken, without the place."""
    if seen.state == INVALID:
        return "Repair this row"
    claim, alive = seen.claim, ""
    renewed = (seen.until or -math.inf) - claim.lease
    # a holder renews its claim each third of the lease
    if (
        claim.lease
        and not claim.is_reserved
        and (seen.seen_at or math.inf) < renewed + claim.lease / 3
    ):
        alive = f"its holder is alive: it acquired or renewed the lock {_ago(seen, renewed)}\n"
    return f"{alive}A holder that is alive goes on until its next request. Break this claim"


def _broken(locks: Locks, seen: Lock, key: str) -> Lock | None:
    """Break the claim that was seen, and no later one.

    Returns:
        None if it was broken; if it had ended otherwise, the lock as it is now.
    """
    process = current_process()
    instead = execute(process, break_seen(process, locks.store, seen.row, key, seen.raw))
    return None if instead is None else locks.shown(seen.row, instead.item, instead.received)
