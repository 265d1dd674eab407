"""The command ``wait``: until a lock is free."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import click

from pynamodb_mutex._operations.options import FOREVER
from pynamodb_mutex._protocol.claim import Claim, ObservedClaim
from pynamodb_mutex._protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex._protocol.schedule import next_wait, poll_at_end
from pynamodb_mutex._runtime.clock import read_clock
from pynamodb_mutex._runtime.run_on_thread import ThreadSleeper
from pynamodb_mutex.cli._completion import key_argument, range_option
from pynamodb_mutex.cli._locks import Locks, TransientError, retried, sent
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

    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.keys import RawItem

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
    begun = read_clock()
    deadline = math.inf if timeout == FOREVER else begun + timeout
    waiter = _Waiter(locks, row)
    waiter.begin()
    with progress(f"waiting for {shown(key)}") as news:
        while not waiter.free():
            now = read_clock()
            if now >= deadline:
                click.echo(f"{shown(key)} is still {waiter.holder(zone)}", err=True)
                click.get_current_context().exit(NOT_FREE)
            waited = f"waited {duration(now - begun)}"
            news(f"{waited} for {shown(key)}, {waiter.holder(zone)}{waiter.trouble}")
            waiter.rest(deadline)


class _Waiter:
    """Polls a row, as those do who wait for the lock.

    Attributes:
        trouble: What went wrong at the last poll, and may pass.
    """

    def __init__(self, locks: Locks, row: RawItem) -> None:
        self.trouble = ""
        self._claim = Claim()
        self._locks = locks
        self._row = row
        self._observed = ObservedClaim()
        self._waited = 0.0
        self._sleeper = ThreadSleeper()

    def begin(self) -> None:
        """Poll for the first time: what is wrong from the start is reported at once."""
        self._see(retried(self._locks.store.read(self._row, consistent=False)))

    def _poll(self, *, consistent: bool = False) -> None:
        try:
            self._see(sent(self._locks.store.read(self._row, consistent=consistent)))
        except TransientError as failure:
            self.trouble = f" ({one_line(failure)})"
        else:
            self.trouble = ""

    def _see(self, answer: Answer) -> None:
        self._claim = answer.claim
        self._observed.see(answer.claim, answer.received)

    def _seems_free(self) -> bool:
        return read_clock() >= self._observed.free_at(self._locks.store.bounds)

    def free(self) -> bool:
        """Say whether the lock is free, by a read that misses nothing."""
        if not self._seems_free():
            return False
        self._poll(consistent=True)
        return not self.trouble and self._seems_free()

    def rest(self, deadline: float) -> None:
        """Wait a while, and poll again."""
        now = read_clock()
        self._waited = next_wait(self._waited, _POLL, random.uniform)
        frees_at = self._observed.free_at(self._locks.store.bounds)
        end = poll_at_end(now, frees_at, _POLL, random.uniform)
        self._sleeper.sleep(min(now + self._waited, end, deadline))
        self._poll()

    def holder(self, zone: tzinfo | None) -> str:
        """Say who holds it, for people."""
        now = instant(self._locks.store.server_now(read_clock()), zone)
        until = clock_time(instant(self._claim.expires_at, zone), now)
        return f"held by {shown_owner(self._claim.owner)} until {until}"
