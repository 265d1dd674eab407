"""The command ``wait``: until a lock is free."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from pynamodb_mutex._claim import Claim, Watch
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._messages import one_line, shown, shown_owner
from pynamodb_mutex._repeat import Transient, persist
from pynamodb_mutex._terms import FOREVER
from pynamodb_mutex._waiting import Alarm, frees_soon, next_wait
from pynamodb_mutex.cli._completion import key_argument, range_option
from pynamodb_mutex.cli._locks import PATIENCE, Locks
from pynamodb_mutex.cli._output import (
    clock_time,
    duration,
    instant,
    progress,
    wait_time,
    zone_option,
)
from pynamodb_mutex.cli._place import AppCommand, Place, pass_place

if TYPE_CHECKING:
    from datetime import tzinfo

    from pynamodb_mutex._keys import RawItem

NOT_FREE = 75
"""Exit code: EX_TEMPFAIL, time was up."""

_POLL = (0.05, 1.0)
"""Seconds between two looks: as a mutex waits."""


@click.command(cls=AppCommand)
@key_argument()
@range_option
@click.option(
    "--timeout",
    type=float,
    callback=wait_time,
    default=FOREVER,
    metavar="SECONDS",
    help="How long to wait, at most; -1 for ever, the default.",
)
@zone_option
@pass_place
def wait(
    place: Place, *, key: str, range_key: str | None, timeout: float, zone: tzinfo | None
) -> None:
    """Wait until a lock is free.

    Nothing is taken: somebody else may have it at once. To do something under the lock, let it be taken: see
    pynamodb-mutex run. The lock of a holder that died counts as free when its claim has ended.

    A look costs half a read unit; there are two or three in a second.

    \b
    Examples:
      pynamodb-mutex wait deploy && echo "free"
      pynamodb-mutex wait deploy --timeout 60 || echo "still held"

    \b
    Exit codes:
      0    it is free
      1    DynamoDB refused, or could not be reached at the first look
      75   the timeout passed, and it was still held
      130  interrupted by Ctrl-C
    """
    locks = Locks(place.model())
    row = locks.row(key, range_key)
    begun = local_clock().now()
    deadline = math.inf if timeout == FOREVER else begun + timeout
    waiter = _Waiter(locks, row)
    persist(waiter.look, begun + PATIENCE)  # what is wrong from the start is told at once
    with progress(f"waiting for {shown(key)}") as news:
        while not waiter.free():
            now = local_clock().now()
            if now >= deadline:
                click.echo(f"{shown(key)} is still {waiter.holder(zone)}", err=True)
                click.get_current_context().exit(NOT_FREE)
            waited = f"waited {duration(now - begun)}"
            news(f"{waited} for {shown(key)}, {waiter.holder(zone)}{waiter.trouble}")
            waiter.rest(deadline)


class _Waiter:
    """Looks at a row again and again, as those do who wait for the lock.

    Attributes:
        trouble: What went wrong at the last look, and may pass.
    """

    def __init__(self, locks: Locks, row: RawItem) -> None:
        self.trouble = ""
        self._claim = Claim()
        self._locks = locks
        self._row = row
        self._watch = Watch()
        self._waited = 0.0

    def look(self, *, consistent: bool = False) -> bool:
        """Look once; return whether the lock seems free."""
        answer = self._locks.store.read(self._row, consistent=consistent)
        self._claim = answer.claim
        self._watch.see(answer.claim, answer.received)
        return self._seems_free()

    def _seems_free(self) -> bool:
        return local_clock().now() >= self._watch.free_at(self._locks.store.server.bounds)

    def free(self) -> bool:
        """Say whether the lock is free, by a read that misses nothing."""
        try:
            free = self._seems_free() and self.look(consistent=True)
        except Transient as failure:
            self.trouble = f" ({one_line(failure)})"
            return False
        return free

    def rest(self, deadline: float) -> None:
        """Wait a while, and look again."""
        now = local_clock().now()
        self._waited = next_wait(self._waited, _POLL)
        frees_at = self._watch.free_at(self._locks.store.server.bounds)
        until = min(now + self._waited, frees_soon(now, frees_at, _POLL), deadline)
        Alarm().wait_until(until)
        try:
            self.look()
        except Transient as failure:
            self.trouble = f" ({one_line(failure)})"
        else:
            self.trouble = ""

    def holder(self, zone: tzinfo | None) -> str:
        """Say who holds it, for people."""
        now = instant(self._locks.store.server_now(), zone)
        until = clock_time(instant(self._claim.expires_at, zone), now)
        return f"held by {shown_owner(self._claim.owner)} until {until}"
