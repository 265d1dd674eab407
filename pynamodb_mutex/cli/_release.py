"""The command ``release``: breaking the claim that was seen, and no later one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._operations.release import break_seen
from pynamodb_mutex._protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex._runtime.clock import read_clock
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.cli._completion import key_argument, range_option
from pynamodb_mutex.cli._locks import (
    ABANDONED,
    FREE,
    HELD,
    INVALID,
    PATIENCE,
    Lock,
    Locks,
    TransientError,
    sent,
)
from pynamodb_mutex.cli._output import (
    confirm,
    json_option,
    print_json,
    progress,
    zone_option,
)
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place
from pynamodb_mutex.cli._show import about, print_lines

if TYPE_CHECKING:
    from datetime import tzinfo

    from pynamodb_mutex._dynamodb.answers import Answer


_PAUSE = 0.2
"""Seconds from one attempt at a request to the next."""


@click.command(cls=AppCommand)
@key_argument(required=False)
@range_option
@click.option(
    "--force", is_flag=True, allow_from_autoenv=False, help="Break the claim of KEY's holder."
)
@click.option("--all-abandoned", is_flag=True, help="Free each lock whose claim has ended.")
@click.option(
    "--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask, for scripts."
)
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
    """Free a lock by force.

    The lock KEY, or all that are abandoned. The holder is shown, and broken only if you say so: that very claim, also if it was renewed
    meanwhile, and no later one. If the lock changed hands meanwhile, nothing is broken.

    A holder that is alive goes on until it next asks DynamoDB. Its guarded writes are refused from this
    moment on; anything else it does is not.

    A row whose lock attributes cannot be right, so that no mutex takes it, is put right; one that is no
    lock's is never changed.

    With --all-abandoned, claims are freed that ended and that nobody took; one that is renewed or
    taken meanwhile is left alone. There is seldom a need: the next taker gets such a lock at
    once, and is told that it was abandoned, which it is not after this.

    \b
    Examples:
      pynamodb-mutex release invoice-42 --force
      pynamodb-mutex release invoice-42 --force --yes --json
      pynamodb-mutex release --all-abandoned

    \b
    Exit codes:
      0    the lock is free: broken, or it was free already
      1    it was not freed: no --force, not confirmed, changed hands, not a lock's row, or DynamoDB refused
      130  interrupted by Ctrl-C
    """
    if (key is None) != all_abandoned:
        raise click.UsageError("give KEY, or --all-abandoned")
    locks = Locks(place.model())
    if key is None:
        _release_abandoned(locks, place, yes=yes, zone=zone, as_json=as_json)
        return
    row = locks.row(key, range_key)
    seen = locks.read(row)
    if seen.state == FREE:
        if as_json:
            print_json({"freed": False, "lock": seen.document(zone), "now": None})
        click.echo(f"{shown(seen.name)} is free: nothing to release", err=True)
        return
    print_lines(about(seen, zone), err=True)
    _check(locks, seen, force=force)
    confirm(
        f"{'Put this row right' if seen.state == INVALID else 'Break this claim'} in {place}?",
        yes=yes,
    )
    now = _broken(locks, seen, key)
    if as_json:
        after = None if now is None else now.document(zone)
        print_json({"freed": now is None, "lock": seen.document(zone), "now": after})
    if now is None:
        click.echo(f"{shown(seen.name)} is free", err=True)
    elif now.state == FREE:
        click.echo(f"{shown(seen.name)} is free: that claim had ended meanwhile", err=True)
    elif now.state == INVALID:
        raise Failure(f"nothing was broken, for it has changed meanwhile: {now.claim.fault}")
    else:
        raise Failure(
            f"that claim is over, and nothing else was broken: {shown(seen.name)} is now {now.state}, "
            f"by {shown_owner(now.claim.owner)}, fencing token {now.claim.version}"
        )


def _check(locks: Locks, seen: Lock, *, force: bool) -> None:
    """Check that a lock may be freed by force.

    Raises:
        Failure: If not; it says what else there is.
    """
    if not locks.was_a_locks(seen):
        raise Failure("nothing was done: the row is not a lock's")
    if force:
        return
    raise Failure(
        {
            ABANDONED: "nothing was done. The next taker gets this lock at once; --force frees it now",
            INVALID: "nothing was done. Find out what wrote this; --force puts the row right, and frees the lock",
            HELD: "nothing was done: only its holder gives a lock back. If that one is dead, the lock frees "
            "itself at its end; --force breaks its claim now",
        }[seen.state]
    )


def _broken(locks: Locks, seen: Lock, key: str) -> Lock | None:
    """Break a claim; return what stands there instead if it is over otherwise."""
    process = current_process()
    instead = run(process, break_seen(process, locks.store, seen.row, key, seen.raw))
    return None if instead is None else locks.shown(seen.row, instead.item, instead.received)


def _release_abandoned(
    locks: Locks, place: Place, *, yes: bool, zone: tzinfo | None, as_json: bool
) -> None:
    with progress("reading the table") as news:
        found = [lock for lock in locks.all(news) if lock.state == ABANDONED]
    locks.warn()
    results: dict[str, list[dict[str, Any]]] = {"freed": [], "skipped": []}
    try:
        if not found:
            click.echo(f"no lock is abandoned in {place}", err=True)
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
        # also what was done before Ctrl-C, or before DynamoDB refused
        if as_json:
            print_json(results)


def _freed(locks: Locks, lock: Lock) -> str | PynamoDBException | None:
    """End a claim that has ended by server time, and nothing else.

    Returns:
        None if the lock is free now; else why it is not, in words or as an error that says so for good.
    """
    store = locks.store
    now = read_clock()
    values = {
        "mine": lock.claim.token,
        "now_low": store.now_low(now),
        "ttl": store.ttl_from_now(now),
    }
    request = store.update(store.requests.end_dead, lock.row, values)
    answer: Answer | None = None
    while answer is None:
        try:
            answer = sent(request)
        except TransientError as failure:
            if read_clock() >= now + PATIENCE:
                raise failure.__cause__ or failure from None
            time.sleep(_PAUSE)
        except PynamoDBException as error:
            # about this row, such as a policy that leaves it out: the others are not given up for it
            return error
    claim = answer.claim
    if claim.fault is not None:
        return str(claim.fault)
    ended = answer.applied or claim.expires_at is None
    return None if ended else "renewed or taken meanwhile"
