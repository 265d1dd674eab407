"""Waiting for a lock where people look on, until a signal comes."""

from __future__ import annotations

import signal
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from pynamodb_mutex._claim import made_at
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._messages import shown, shown_owner
from pynamodb_mutex._process import store_for
from pynamodb_mutex._waiting import Alarm
from pynamodb_mutex.cli._overseer import say
from pynamodb_mutex.cli._signals import ENDING
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from pynamodb_mutex._acquire import Acquisition
    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex.cli._signals import Signals

_LONGEST_SLEEP = 1.0
"""Seconds: so often the time waited is shown anew."""


_LONG = 1.0
"""Seconds after which a wait is worth a line in the log of a job; most are over before."""


class InterruptedWaitError(Exception):
    """A signal came before the command was started.

    Attributes:
        number: The signal's.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class SeenMutex(Mutex):
    """A mutex that shows what it waits for."""

    _seen: Acquisition | None = None

    def _acquisition(self, deadline: float) -> Acquisition:
        self._seen = super()._acquisition(deadline)
        return self._seen

    @property
    def in_the_way(self) -> Claim | None:
        """The claim that stood in the way, as it was seen last."""
        return None if self._seen is None else self._seen.holder

    @property
    def awaited(self) -> str:
        """What is waited for, for people: who holds the lock, or an answer."""
        if self.in_the_way is not None:
            return describe(self.in_the_way)
        store = store_for(self._terms.model)
        if store.server.answered:
            return f"DynamoDB is throttling or failing, in {store.where}"
        return f"no answer from DynamoDB yet, in {store.where}"


def describe(claim: Claim) -> str:
    """Say who holds a lock, and since when."""
    if claim.expires_at is None:
        # left just now and taken by another, or the write that takes it fails for a while
        return "it was free a moment ago"
    text = f"held by {shown_owner(claim.owner)}"
    made = made_at(claim.token)
    if made is not None:
        since = datetime.fromtimestamp(made, tz=timezone.utc)
        text += f" since {since:%Y-%m-%d %H:%M:%S} UTC"
    return text


def heed(signals: Signals, seconds: float = 0.0) -> None:
    """Wait so long.

    Raises:
        InterruptedWaitError: As soon as a signal asks this process to end.
    """
    for number in signals.next(seconds):
        if number in (*ENDING, signal.SIGHUP):
            raise InterruptedWaitError(number)


def acquire(mutex: SeenMutex, signals: Signals, *, verbose: bool) -> bool:
    """Take a lock; return whether it was free in time.

    At a terminal a line shows who holds it, and how long it has been waited for. Elsewhere a line that stays
    says so once the wait is a long one, and another one if it is then for something else: first for
    DynamoDB's answer, then for a holder.

    Args:
        mutex: The lock.
        signals: Those that may end the wait; one that comes during a request is heeded after the answer.
        verbose: Say it in a line that stays at once, and at a terminal too.

    Raises:
        InterruptedWaitError: When a signal came. Then nothing is held.
        pynamodb.exceptions.PynamoDBException: As `Mutex.acquire`.
    """
    started = local_clock().now()
    console = Console(stderr=True)
    status = Status("", console=console)
    said: set[bool] = set()
    # nobody else in this process wants a lock, so no alarm rings
    with closing(mutex._acquiring(True, None, Alarm())) as steps:
        try:
            next(steps)  # in line: whether there is anything to wait for it does not know yet
            while True:
                until = next(steps)
                awaited, for_answer = mutex.awaited, mutex.in_the_way is None
                is_long = local_clock().now() - started >= _LONG
                if for_answer not in said and (verbose or (is_long and not console.is_terminal)):
                    said.add(for_answer)
                    say(f"waiting for {shown(mutex.key)}: {awaited}")
                while (now := local_clock().now()) < until:
                    if console.is_terminal:
                        text = (
                            f"waiting for {shown(mutex.key)} for {now - started:.0f} s: {awaited}"
                        )
                        status.update(escape(text))
                        status.start()
                    heed(signals, min(until - now, _LONGEST_SLEEP))
        except StopIteration as done:
            return done.value is None
        finally:
            status.stop()
