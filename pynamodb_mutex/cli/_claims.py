"""The commands ``show``, ``wait``, ``release``, ``close`` and ``open``: print a claim, wait for its end, break it, refuse others.

``show`` and ``wait`` only read. ``release`` ends claims of other processes. Each of its writes is conditional on the
claim that it has read and printed, because a person may take minutes to answer its question. How locks are read is in
`_locks`; the request that breaks a claim is in `pynamodb_mutex._admin.force`.
"""

from __future__ import annotations

import json
import math
import random
import reprlib
import time
from typing import TYPE_CHECKING, Any

import click
from pynamodb.exceptions import PynamoDBException
from rich.console import Console

from pynamodb_mutex._admin.force import break_seen, set_closed
from pynamodb_mutex._lock.operations.options import FOREVER, check_reason
from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, ObservedClaim
from pynamodb_mutex._lock.protocol.messages import escaped, one_line, shown, shown_owner
from pynamodb_mutex._lock.protocol.schedule import next_wait, poll_at_end
from pynamodb_mutex._lock.runtime.clock import read_clock
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import ThreadSleeper, execute
from pynamodb_mutex._writes.requests import WriteTemplates
from pynamodb_mutex.cli._locks import (
    ABANDONED,
    CLOSED,
    FREE,
    HELD,
    INVALID,
    NOTHING,
    PATIENCE,
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
    retried,
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
    zone_option,
)
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place
from pynamodb_mutex.runs import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, tzinfo

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.protocol.claim import Claim

NOT_FREE = 75
"""Exit code when the lock is still held after the timeout: EX_TEMPFAIL of sysexits.h."""

_POLL = (0.05, 1.0)
"""Shortest and longest seconds between two polls, as a mutex has them by default."""

_INDENT = 16
"""Columns before the values that ``show`` prints."""

_WAITER = "waiter "
"""Beginning of the name of a line that shows a waiter; its number in line follows."""

_READER = "reader "
"""The same of a line that shows one of those who share the lock."""

_LABELS = ("key", "owner", "closed", "taken over from", "wanted by", _WAITER, _READER)
"""Beginnings of the names of lines whose values may be cut to fit a terminal: a part identifies a key or an owner."""

_WHOLE = reprlib.Repr()
_WHOLE.maxdict = _WHOLE.maxstring = _WHOLE.maxother = 100
"""Shows a row that another program wrote, with very long values shortened."""

_STATES = {
    FREE: "free",
    HELD: "held",
    ABANDONED: "abandoned: its lease has expired; the next process that polls acquires it",
    INVALID: "invalid: no mutex acquires this row",
    CLOSED: "closed: nobody acquires it until it is opened",
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

_PAUSE = 0.2
"""Seconds between two attempts at one request."""


@click.command(cls=AppCommand)
@key_argument()
@range_option
@once_option
@zone_option
@json_option
@pass_place
def show(
    place: Place, *, key: str, range_key: str | None, once: bool, zone: tzinfo | None, as_json: bool
) -> None:
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
    more = _more(lock, locks, zone)
    if as_json:
        print_json({**lock.document(zone), **more})
        return
    print_lines([*about(lock, zone), *_waiters(lock, zone), *_rest(lock, locks, more)])


def print_lines(lines: Iterable[tuple[str, str]], *, err: bool = False) -> None:
    """Print named values, one a line; on a terminal, keys and owners are cut to fit.

    Args:
        lines: Names and values.
        err: Whether to print on standard error.
    """
    room = Console(stderr=err).width - _INDENT if on_terminal(err=err) else None
    for name, value in lines:
        text = escaped(value)
        if room is not None and name.startswith(_LABELS):
            text = cut(text, room)
        click.echo(f"{name + ':':{_INDENT}}{text}", err=err)


def about(lock: Lock, zone: tzinfo | None) -> list[tuple[str, str]]:
    """Return the lines that every state of a lock has: key, state, holder, times and fencing token."""
    claim = lock.claim
    state = "recorded: the work is done, but its result could not be stored"
    state = state if lock.state == RECORDED and claim.unstored else _STATES[lock.state]
    lines = [("key", lock.name), ("state", state)]
    if lock.state == INVALID:
        return [*lines, ("problem", str(claim.fault)), ("row", _WHOLE.repr(lock.raw))]
    if claim.closed is not None:
        lines.append(("closed", claim.closed))
    if lock.state not in (FREE, CLOSED, NOTHING):
        since, until = instant(lock.since, zone), _until(lock, zone)
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


def _until(lock: Lock, zone: tzinfo | None) -> str | None:
    """Return when the claim of a lock ends, or the result of a key of `once`; None if that is not known."""
    until = instant(lock.until, zone)
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


def _waiters(lock: Lock, zone: tzinfo | None) -> list[tuple[str, str]]:
    """Return a line for each reader and each waiter, first come first; a lock that was just released may have waiters, too."""
    lines = []
    for number, (reader, ends) in enumerate(lock.readers, 1):
        until = instant(ends, zone)
        lines.append(
            (f"{_READER}{number}", reader + (f", until {_second(until)}" if until else ""))
        )
    if lock.claim.wanted_by is not None:
        lines.append(("wanted by", f"{lock.claim.wanted_by}, who waits for the readers"))
    for place, (owner, began, called_at) in enumerate(lock.waiters, 1):
        since = instant(began, zone)
        waited = "" if since is None else f", since {_second(since)}"
        called = "" if called_at is None else f", called at {called_at}"
        lines.append((f"{_WAITER}{place}", owner + waited + called))
    return lines


def _more(lock: Lock, locks: Locks, zone: tzinfo | None) -> dict[str, Any]:
    """Return the JSON fields that only ``show`` prints."""
    claim = lock.claim
    of_once = {"result": claim.result, "unstored": claim.unstored} if locks.of_once else {}
    return {
        **of_once,
        "token": claim.token,
        "forced": (claim.token or "").startswith(FORCED_MARK),
        "row_kept_until": iso(instant(locks.ttl(lock.raw), zone), "seconds"),
        "data": locks.data(lock.raw),
        "attributes": locks.attributes(lock.raw),
    }


def _rest(lock: Lock, locks: Locks, more: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines for the fields that only ``show`` prints."""
    claim = lock.claim
    if lock.state == INVALID:
        return []
    if not lock.raw:
        return [
            (
                "row",
                "none: " + ("there is no such row" if locks.in_rows else _NEVER),
            )
        ]
    if claim.token is None:
        return [("lock", "never acquired")]
    results = (("result", claim.result), ("unstored", claim.unstored))
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
@key_argument()
@range_option
@timeout_option
@zone_option
@json_option
@pass_place
def wait(
    place: Place,
    *,
    key: str,
    range_key: str | None,
    timeout: float,
    zone: tzinfo | None,
    as_json: bool,
) -> None:
    """Wait until a lock is free, without acquiring it.

    Another process may acquire the lock at once. To do something under the lock use pynamodb-mutex run. The lock
    of a dead holder is free when its lease has expired.

    Polls two or three times a second; a poll costs half a read unit. Does not wait for a lock that is closed. For a key
    of once, waits until no run of it is under way.

    \b
    Examples:
      pynamodb-mutex wait deploy && echo "free"
      pynamodb-mutex wait deploy --timeout 60 || echo "still held"
      pynamodb-mutex wait deploy --timeout 60 --json | jq .owner

    \b
    Exit codes:
      0    the lock is free
      1    DynamoDB refused a read, or could not be reached for the first one
      75   the lock was still held after the timeout, or is closed; or it is
           unknown what became of a run of once
      130  interrupted by Ctrl-C
    """
    locks, lock = found(place, key, range_key)
    if not (lock.raw or locks.in_rows):
        click.echo(f"{shown(lock.name)}: {_NEVER}", err=True)
    name = shown(key if range_key is None else f"{key} {range_key}")
    begun = read_clock()
    deadline = math.inf if timeout == FOREVER else begun + timeout
    waiter = _Waiter(locks, lock.row)
    waiter.begin()
    with progress(f"waiting for {name}") as news:
        while not waiter.free():
            closed, now = waiter.closed(), read_clock()
            if now >= deadline or closed is not None:
                if as_json:
                    waiter.print_json(zone, now - begun)
                text = f"still {waiter.holder(zone)}"
                if closed is not None:
                    text = f"closed: {one_line(closed)}"
                click.echo(f"{name} is {text}", err=True)
                click.get_current_context().exit(NOT_FREE)
            waited = f"waited {duration(now - begun)}"
            news(f"{waited} for {name}, {waiter.holder(zone)}{waiter.trouble}")
            waiter.rest(deadline)
    if as_json:
        waiter.print_json(zone, read_clock() - begun)
    if waiter.lock.state == UNKNOWN:
        click.echo(f"{name} is {_STATES[UNKNOWN]}", err=True)
        click.get_current_context().exit(NOT_FREE)


class _Waiter:
    """Polls the row of a lock at the times at which a mutex that waits for it would, but acquires nothing.

    Attributes:
        trouble: Transient failure of the last poll, in parentheses, for people; empty if it succeeded.
    """

    def __init__(self, locks: Locks, row: RawItem) -> None:
        self.trouble = ""
        self._locks = locks
        self._row = row
        self._observed = ObservedClaim()
        self._waited = 0.0
        self._sleeper = ThreadSleeper()

    def begin(self) -> None:
        """Poll for the first time.

        Raises:
            PynamoDBException: If it fails for good. Later polls are repeated after transient failures.
        """
        self._see(retried(self._locks.store.read(self._row, consistent=False)))

    def _poll(self, *, consistent: bool = False) -> None:
        try:
            self._see(sent(self._locks.store.read(self._row, consistent=consistent)))
        except TransientError as failure:
            self.trouble = f" ({one_line(failure)})"
        else:
            self.trouble = ""

    def _see(self, answer: Answer) -> None:
        self._answer = answer
        self._observed.see(answer.claim, answer.received)

    def closed(self) -> str | None:
        """Return why the lock is closed, confirmed by a strongly consistent read; None if it is open."""
        if self._answer.claim.closed is not None:
            self._poll(consistent=True)
        return self._answer.claim.closed

    def _seems_free(self) -> bool:
        """Return whether the row that was read last shows that the lock is free by now."""
        return read_clock() >= self._observed.free_at(self._locks.store.bounds)

    def free(self) -> bool:
        """Return whether the lock is free, confirmed by a strongly consistent read."""
        # Polls are eventually consistent and may return an older row: one from before an acquisition, which shows a
        # free lock, or one from before a renewal, whose lease seems to have expired.
        if not self._seems_free():
            return False
        self._poll(consistent=True)
        return not self.trouble and self._seems_free()

    def rest(self, deadline: float) -> None:
        """Sleep until the next poll is due, or until a local time if that is earlier, and poll again."""
        now = read_clock()
        self._waited = next_wait(self._waited, _POLL, random.uniform)
        frees_at = self._observed.free_at(self._locks.store.bounds)
        end = poll_at_end(now, frees_at, _POLL, random.uniform)
        self._sleeper.sleep(min(now + self._waited, end, deadline))
        self._poll()

    @property
    def lock(self) -> Lock:
        """The lock as it was read last."""
        return self._locks.shown(self._row, self._answer.item, self._answer.received)

    def holder(self, zone: tzinfo | None) -> str:
        """Return who holds the lock and until when, as text for people."""
        claim = self._answer.claim
        now = instant(self._locks.store.server_now(read_clock()), zone)
        until = clock_time(instant(claim.expires_at, zone), now)
        return f"held by {claim.holder}" + (
            "" if claim.is_reserved else f" until {until}, unless renewed"
        )

    def print_json(self, zone: tzinfo | None, waited: float) -> None:
        """Print the lock as it was read last, and the seconds waited, as JSON."""
        print_json({**self.lock.document(zone), "waited": round(waited, 3)})


@click.command(cls=AppCommand)
@key_argument(required=False)
@range_option
@click.option(
    "--force", is_flag=True, allow_from_autoenv=False, help="Break the claim of the holder of KEY."
)
@click.option("--all-abandoned", is_flag=True, help="Free each lock whose lease has expired.")
@yes_option
@zone_option
@json_option
@pass_place
def release(
    place: Place,
    *,
    key: str | None,
    range_key: str | None,
    force: bool,
    all_abandoned: bool,
    yes: bool,
    zone: tzinfo | None,
    as_json: bool,
) -> None:
    """Free a lock by force, or all abandoned locks.

    Prints the holder of KEY, asks, and breaks exactly the claim that was printed, even if the holder has renewed it
    since. If another holder has acquired the lock since, nothing is broken.

    A holder that is alive goes on until its next request to DynamoDB. Its guarded writes are refused from this
    moment on; anything else that it does is not.

    A row with invalid lock attributes, which no mutex acquires, is repaired. A row that does not belong to a lock is
    never changed.

    --all-abandoned frees each lock whose lease has expired and which nobody has acquired since. It skips locks
    that are renewed or acquired meanwhile. It is seldom needed: the next process that polls acquires such a lock,
    and learns that it was abandoned, which it does not after this command.

    \b
    Examples:
      pynamodb-mutex release invoice-42 --force
      pynamodb-mutex release invoice-42 --force --yes --json
      pynamodb-mutex release --all-abandoned

    \b
    Exit codes:
      0    nobody holds the lock: its claim was broken, or it was free already
      1    nothing was freed: no --force, not confirmed, another holder, not a
           row of a lock, or DynamoDB refused
      130  interrupted by Ctrl-C
    """
    if (key is None) != all_abandoned:
        raise click.UsageError("give KEY, or --all-abandoned")
    if key is None:
        _release_abandoned(Locks(place.model()), place, yes=yes, zone=zone, as_json=as_json)
        return
    locks, seen = found(place, key, range_key)
    if locks.of_once:
        raise Failure(f"nothing was done: {shown(key)} is a key of once: see show and forget")
    if seen.state in (FREE, CLOSED):
        if as_json:
            print_json({"freed": False, "lock": seen.document(zone), "now": None})
        never = "" if seen.raw or locks.in_rows else f" ({_NEVER})"
        click.echo(f"{shown(seen.name)} is {seen.state}: nothing to release{never}", err=True)
        return
    print_lines(about(seen, zone), err=True)
    _check(locks, seen, force=force)
    confirm(f"{_question(seen)} in {place}?", yes=yes)
    now = _broken(locks, seen, key)
    if as_json:
        after = None if now is None else now.document(zone)
        print_json({"freed": now is None, "lock": seen.document(zone), "now": after})
    if now is None:
        state = _STATES[FREE if seen.claim.closed is None else CLOSED]
        click.echo(f"{shown(seen.name)} is {state}", err=True)
    elif now.state in (FREE, CLOSED):
        click.echo(f"{shown(seen.name)} is {now.state}: that claim has ended meanwhile", err=True)
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


def _closing(command: Any) -> Any:
    """Add the options that the commands ``close`` and ``open`` have in common."""
    for option in (pass_place, json_option, zone_option, yes_option, range_option, key_argument()):
        command = option(command)
    return command


@click.command("close", cls=AppCommand)
@click.option("--reason", required=True, metavar="TEXT", help="Why, for those who ask for it.")
@_closing
def close(place: Place, /, *, reason: str, **options: Any) -> None:
    """Close a key: nobody acquires its lock until open.

    Who waits for KEY or asks for it gets the reason as an error. A holder keeps the lock until it releases it: wait for
    that with show. A key that is closed gets the new reason.

    \b
    Examples:
      pynamodb-mutex close nightly-report --reason "migration until 14:00"
      pynamodb-mutex close nightly-report --reason "migration" --yes --json

    \b
    Exit codes:
      0    the key is closed
      1    not confirmed, not a row of a lock, or DynamoDB refused
      130  interrupted by Ctrl-C
    """
    _set_closed(place, reason, **options)


@click.command("open", cls=AppCommand)
@_closing
def open_(place: Place, /, **options: Any) -> None:
    """Open a key that was closed.

    Without a row for KEY, one is created, of a free lock: for those who acquire it with must_exist=True.

    \b
    Examples:
      pynamodb-mutex open nightly-report --yes

    \b
    Exit codes:
      0    the key is open
      1    not confirmed, not a row of a lock, or DynamoDB refused
      130  interrupted by Ctrl-C
    """
    _set_closed(place, None, **options)


def _set_closed(
    place: Place,
    reason: str | None,
    *,
    key: str,
    range_key: str | None,
    yes: bool,
    zone: tzinfo | None,
    as_json: bool,
) -> None:
    """Close a key, or open it without a reason, after a question; print the lock as it is then."""
    if reason is not None:
        try:
            check_reason(reason)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--reason") from error
    if key.startswith(PREFIX):
        # a lock's requests would set a TTL, and the row of a run of unknown outcome be deleted
        raise click.BadParameter(f"{shown(key)} is a key of once", param_hint="KEY")
    locks = Locks(place.lock_model())
    row = locks.row(key, range_key)
    print_lines(about(locks.read(row), zone), err=True)
    confirm(f"{'Open' if reason is None else 'Close'} this key in {place}?", yes=yes)
    process = current_process()
    execute(process, set_closed(process, locks.store, row, reason))
    now = locks.read(row)
    if as_json:
        print_json(now.document(zone))
    said = "open" if now.claim.closed is None else f"closed: {one_line(now.claim.closed)}"
    if now.state in (HELD, ABANDONED):
        said += f" ({now.state} by {now.claim.holder})"
    click.echo(f"{shown(now.name)} is {said}", err=True)


def _release_abandoned(
    locks: Locks, place: Place, *, yes: bool, zone: tzinfo | None, as_json: bool
) -> None:
    """Free all abandoned locks, after a question, and report each."""
    with progress("reading the table") as news:
        # a run that died is for the next call
        abandoned = (lock for lock in locks.all(news) if lock.state == ABANDONED)
        found = [lock for lock in abandoned if not lock.key.startswith(PREFIX)]
    locks.warn()
    results: dict[str, list[dict[str, Any]]] = {"freed": [], "skipped": []}
    try:
        if not found:
            click.echo(f"no lock is abandoned in {place}; for runs of once see ls --once", err=True)
            return
        for lock in found:
            owner = shown_owner(lock.claim.owner)
            click.echo(f"{shown(lock.name)}  abandoned by {owner}", err=True)
        confirm(f"Free these {len(found)} in {place}?", yes=yes)
        refused = 0
        for lock in found:
            instead = _freed(locks, lock)
            results["skipped" if instead else "freed"].append(lock.document(zone))
            refused += isinstance(instead, PynamoDBException)
            said = f"skipped: {one_line(instead)}" if instead else "freed"
            click.echo(f"{shown(lock.name)}  {said}", err=True)
        if refused:
            raise Failure(f"DynamoDB refused to free {refused} of {len(found)}")
    finally:
        # In any case, so that programs learn what was done before Ctrl-C or a refusal, too.
        if as_json:
            print_json(results)


def _freed(locks: Locks, lock: Lock) -> str | PynamoDBException | None:
    """Remove a claim whose lease has expired by server time, and no other claim.

    Returns:
        None if the lock is free now, else why not: a reason, or the error by which DynamoDB refused.
    """
    store = locks.store
    # The condition names the token that was seen and an end before now. A holder that renews after the table was
    # read moves its end beyond that; one that acquires the lock writes another token. Both keep their claim.
    now = read_clock()
    values = store.ending(now) | {"mine": lock.claim.token, "now_low": store.now_low(now)}
    request = store.update(store.of(WriteTemplates).end_dead, lock.row, values)
    answer: Answer | None = None
    is_repeated = False
    while answer is None:
        try:
            answer = sent(request)
        except TransientError as failure:
            if read_clock() >= now + PATIENCE:
                raise failure.__cause__ or failure from None
            is_repeated = True
            time.sleep(_PAUSE)
        except PynamoDBException as error:
            # It may concern this row alone, as a policy does that excludes its key: go on with the others.
            return error
    claim = answer.claim
    if claim.fault is not None:
        return str(claim.fault)
    # Refused because there is no claim any more: an earlier attempt was applied and its answer lost, or the holder
    # has released the lock itself. Either way it is free.
    ended = answer.applied or claim.expires_at is None
    # Suppose an earlier attempt was applied, and another process has acquired the lock before the retry: it was free
    # then, for the next holder would name the one from whom it takes the lock over.
    was_free = claim.version == lock.claim.version + 1 and not claim.abandoned_by
    return None if ended or (is_repeated and was_free) else "renewed or acquired meanwhile"
