"""The command ``run`` takes a lock, runs another command under it, and gives it back."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from botocore.exceptions import BotoCoreError
from pynamodb.exceptions import PynamoDBException
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from pynamodb_mutex._operations.options import FOREVER, check_duration
from pynamodb_mutex._protocol.claim import Claim, made_at
from pynamodb_mutex._protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex._runtime import run_on_thread
from pynamodb_mutex._runtime.callers import caller
from pynamodb_mutex._runtime.clock import read_clock
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.cli._child import (
    ENDING,
    OF_SIGNALS,
    Child,
    Overseer,
    Signals,
    Why,
    find_command,
    has_terminal,
    say,
)
from pynamodb_mutex.cli._output import wait_time
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place
from pynamodb_mutex.cli._watchdog import Watchdog
from pynamodb_mutex.exceptions import InvalidKeyError, MutexLostError
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb_mutex._operations.acquire import Acquisition
    from pynamodb_mutex._operations.contender import Caller

DONE = 0
LOCKED = 75
"""Exit code: another held the lock; EX_TEMPFAIL of sysexits.h."""

LOST = 76
"""Exit code: the lock was lost, or could not be renewed, while the command ran."""

TIMED_OUT = 124
"""Exit code: the command ran beyond its deadline, as `timeout` of GNU says it."""

NOT_RUN = 125
"""Exit code: the command was not started, for the lock could not be asked for."""

_LONGEST_SLEEP = 1.0
"""Seconds: so often the time waited is shown anew."""

_LONG = 1.0
"""Seconds after which a wait is worth a line in the log of a job; most are over before."""


class NotRunError(Failure):
    """The command was not started, for the lock could not be asked for."""

    exit_code = NOT_RUN


class RunCommand(AppCommand):
    """A command whose last arguments are another's."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Read the arguments; those behind ``--`` are the command's alone.

        Raises:
            click.UsageError: If there is no ``--``: an option might be meant for either.
        """
        marked = "--" in args
        rest = super().parse_args(context, args)
        if not marked:
            raise click.UsageError("put -- before the command", context)
        return rest

    def invoke(self, context: click.Context) -> Any:
        """Run it; a failure of ours is kept apart from the command's."""
        try:
            return super().invoke(context)
        except Failure as failure:
            raise NotRunError(failure.message) from failure


class _Saying(logging.Handler):
    """Says what is logged. A StreamHandler would write into the line that shows a wait."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


def _duration(
    context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    if value is not None:
        try:
            check_duration(parameter.name or "", value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error
        if value < 0:
            raise click.BadParameter(f"cannot be negative, got {value:g}", context, parameter)
        if value == 0 and parameter.name == "deadline":
            raise click.BadParameter("must be above 0", context, parameter)
    return value


_EXIT_CODES = """\
\b
Exit codes:
  0    the command succeeded, or was skipped; what it fails with is passed on,
       and 128 + n if signal n ended it
  75   another holds the lock (--if-locked wait and fail)
  76   the lock was lost, or could not be renewed
  124  the command ran beyond its deadline
  125  the lock could not be asked for: the command was not started
  126  the command cannot be executed
  127  there is no such command
  2    wrong usage
"""


@click.command("run", cls=RunCommand, epilog=_EXIT_CODES)
@click.argument("key")
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]..."
)
@click.option(
    "--if-locked",
    type=click.Choice(["wait", "skip", "fail"]),
    default="wait",
    show_default=True,
    help="What to do when another holds the lock: wait for it, exit with 0, or exit with 75.",
)
@click.option(
    "--timeout",
    type=float,
    callback=wait_time,
    metavar="SECONDS",
    help="How long to wait for the lock, -1 for ever; by default for ever with --if-locked wait, and not at "
    "all with skip and fail.",
)
@click.option(
    "--lease",
    type=float,
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the lock outlives this process. It is renewed at a third of this.",
)
@click.option(
    "--deadline",
    type=float,
    metavar="SECONDS",
    callback=_duration,
    help="How long the command may run: then it is ended, and the exit code is 124.",
)
@click.option(
    "--grace",
    type=float,
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    callback=_duration,
    help="How long the command may take to end, from SIGTERM to SIGKILL.",
)
@click.option(
    "--owner", help="Who holds the lock, for people; host, process and command by default."
)
@click.option("--verbose", is_flag=True, help="Say on standard error what is done.")
@click.pass_context
@pass_place
def run(
    place: Place,
    context: click.Context,
    *,
    key: str,
    command: Sequence[str],
    if_locked: str,
    timeout: float | None,
    lease: float,
    deadline: float | None,
    grace: float,
    owner: str | None,
    verbose: bool,
) -> None:
    """Run a command while this process holds a lock.

    The lock is renewed as long as the command runs, and released when it has ended. If it is lost,
    or cannot be renewed, the command is ended before or as soon as another may have it. Signals are
    passed on.

    The command finds PYNAMODB_MUTEX_KEY, PYNAMODB_MUTEX_FENCING_TOKEN, PYNAMODB_MUTEX_TOKEN and
    PYNAMODB_MUTEX_OWNER in its environment.

    \b
    Examples:
      pynamodb-mutex run nightly-report --if-locked skip -- ./report.sh
      pynamodb-mutex run deploy --timeout 600 --deadline 1800 -- make deploy
    """
    if not hasattr(os, "posix_spawn"):
        raise Failure("run needs a POSIX system, for it sends signals")
    if verbose:  # what the library repeats, too
        logging.basicConfig(handlers=[_Saying()], format="%(message)s", level=logging.WARNING)
    job = _Job(
        find_command(command[0], place.environment), command, lease, grace, deadline, verbose
    )
    if timeout is None:
        timeout = FOREVER if if_locked == "wait" else 0.0
    with Signals() as signals:
        try:
            mutex = cast(
                "SeenMutex",
                SeenMutex.for_key(
                    key,
                    model=place.lock_model(),
                    lease=lease,
                    timeout=timeout,
                    owner=owner or f"{socket.gethostname()}:{os.getpid()}:{Path(command[0]).name}",
                    on_lost=lambda _: signals.wake(),
                ),
            )
        except (InvalidKeyError, ValueError) as error:
            raise click.UsageError(str(error), context) from error
        try:
            if acquire(mutex, signals, verbose=verbose):
                code = _under_lock(job, mutex, place.environment, signals)
            else:
                code = _not_free(mutex, timeout, skip=if_locked == "skip", verbose=verbose)
        except InterruptedWaitError as interrupt:
            code = OF_SIGNALS + interrupt.number
    context.exit(code)


@dataclass
class _Job:
    """What is to be run, and how."""

    path: str
    command: Sequence[str]
    lease: float
    grace: float
    deadline: float | None
    verbose: bool


def _not_free(mutex: SeenMutex, timeout: float, *, skip: bool, verbose: bool) -> int:
    """Say that another holds the lock, unless that is nothing to speak of; return the exit code."""
    if verbose or not skip:
        waited = f" after {timeout:g} s" if timeout else ""
        say(f"{shown(mutex.key)} is locked{waited}: {mutex.awaited}")
    return DONE if skip else LOCKED


def _under_lock(
    job: _Job, mutex: SeenMutex, environment: Mapping[str, str], signals: Signals
) -> int:
    """Run the command, and give the lock back; return the exit code.

    Raises:
        InterruptedWaitError: If a signal came before it was started.
        NoCommandError: If it cannot be started.
    """
    if job.verbose:
        say(f"took {shown(mutex.key)}, fencing token {mutex.fencing_token}")
    child = None
    try:
        heed(signals)
        with Watchdog() as watchdog:
            child = Child(
                job.path,
                job.command,
                {**environment, **_about(mutex)},
                own_group=not has_terminal(),
                adopts=os.getpid() == 1,
            )
            watchdog.guard(-child.pid if child.own_group else child.pid, job.grace)
            overseer = Overseer(
                child,
                mutex,
                signals,
                watchdog,
                lease=job.lease,
                grace=job.grace,
                deadline=math.inf if job.deadline is None else job.deadline,
            )
            code = overseer.wait()
    except BaseException:
        # never before a command that was started has ended: after an error of ours the lease runs out
        if child is None:
            _give_back(mutex, verbose=job.verbose)
        raise
    if overseer.why is Why.LOST:
        return LOST
    is_lost = _give_back(mutex, verbose=job.verbose)
    if is_lost or overseer.why is Why.IN_DANGER:
        return LOST
    return TIMED_OUT if overseer.why is Why.DEADLINE else code


def _about(mutex: SeenMutex) -> dict[str, str]:
    """Return what the command learns of its lock."""
    return {
        "PYNAMODB_MUTEX_KEY": mutex.key,
        "PYNAMODB_MUTEX_FENCING_TOKEN": str(mutex.fencing_token),
        "PYNAMODB_MUTEX_TOKEN": mutex.token,
        "PYNAMODB_MUTEX_OWNER": mutex.owner,
    }


def _give_back(mutex: SeenMutex, *, verbose: bool) -> bool:
    """Release the lock; return whether it had been lost."""
    try:
        mutex.release()
    except MutexLostError as error:
        say(f"the lock had been lost when the command ended: {error.loss.value}")
        return True
    except (PynamoDBException, BotoCoreError) as error:
        say(f"the lock could not be released, and expires with its lease: {one_line(error)}")
    else:
        if verbose:
            say(f"gave {shown(mutex.key)} back")
    return False


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
        claim = run_on_thread.run(current_process(), mutex._acquiring(attempt, who.number), sleeper)
    finally:
        sleeper.stop()
    return claim is not None


class _ShowingSleeper(run_on_thread.ThreadSleeper):
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
