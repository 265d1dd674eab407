"""Waiting for a lock where people look on, until a signal comes."""

from __future__ import annotations

import signal
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from pynamodb_mutex._protocol.claim import made_at
from pynamodb_mutex._protocol.messages import shown, shown_owner
from pynamodb_mutex._runtime.callers import caller
from pynamodb_mutex._runtime.clock import read_clock
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import ThreadSleeper, run
from pynamodb_mutex.cli._overseer import say
from pynamodb_mutex.cli._signals import ENDING
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from pynamodb_mutex._operations.acquire import Acquisition
    from pynamodb_mutex._operations.contender import Caller
    from pynamodb_mutex._protocol.claim import Claim
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

    def _attempt(self, who: Caller, patience: float, *, blocks: bool) -> Acquisition:
        self._seen = super()._attempt(who, patience, blocks=blocks)
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
        connection = current_process().store(self._options.model).connection
        if connection.server.answered:
            return f"DynamoDB is throttling or failing, in {connection.where}"
        return f"no answer from DynamoDB yet, in {connection.where}"


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
    sleeper = _ShowingSleeper(mutex, signals, verbose=verbose)
    who = caller()
    attempt = mutex._attempt(who, mutex._options.patience(True, None), blocks=True)
    try:
        claim = run(current_process(), mutex._acquiring(attempt, who.number), sleeper)
    finally:
        sleeper.stop()
    return claim is not None


class _ShowingSleeper(ThreadSleeper):
    """Shows what is waited for, while the thread that acquires the lock sleeps."""

    def __init__(self, mutex: SeenMutex, signals: Signals, *, verbose: bool) -> None:
        super().__init__()
        self._mutex = mutex
        self._signals = signals
        self._verbose = verbose
        self._started = read_clock()
        self._console = Console(stderr=True)
        self._status = Status("", console=self._console)
        self._said: set[bool] = set()

    def stop(self) -> None:
        """Show nothing any more."""
        self._status.stop()

    def sleep(self, until: float) -> None:
        """Sleep until a local time; nobody else in this process wants a lock, so nothing wakes it before.

        Raises:
            InterruptedWaitError: When a signal comes.
        """
        key = shown(self._mutex.key)
        awaited, for_answer = self._mutex.awaited, self._mutex.in_the_way is None
        is_long = read_clock() - self._started >= _LONG
        is_terminal = self._console.is_terminal
        if for_answer not in self._said and (self._verbose or (is_long and not is_terminal)):
            self._said.add(for_answer)
            say(f"waiting for {key}: {awaited}")
        while (now := read_clock()) < until:
            if is_terminal:
                text = f"waiting for {key} for {now - self._started:.0f} s: {awaited}"
                self._status.update(escape(text))
                self._status.start()
            heed(self._signals, min(until - now, _LONGEST_SLEEP))
