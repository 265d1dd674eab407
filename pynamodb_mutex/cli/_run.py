"""The command ``run``: acquires a lock, runs another command under it, and releases it.

This module has the options, the wait for the lock, and the exit codes. While the command runs, `_child` supervises it
and `_watchdog` stands by. The rule that connects them: the lock is released only when the command has ended, or was
never started; in any other case it is left to expire.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
from botocore.exceptions import BotoCoreError
from pynamodb.exceptions import PynamoDBException
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from pynamodb_mutex._fair.hints import Hints
from pynamodb_mutex._fair.waiting_line import in_line, label_of
from pynamodb_mutex._lock.handles import HandleOfOne
from pynamodb_mutex._lock.operations.options import FOREVER, check_duration
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.protocol.claim import Claim, token_time
from pynamodb_mutex._lock.protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex._lock.runtime import run_on_thread
from pynamodb_mutex._lock.runtime.callers import caller
from pynamodb_mutex._lock.runtime.clock import read_clock
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex.cli._child import (
    ENDING,
    OF_SIGNALS,
    Child,
    EndReason,
    NoCommandError,
    Signals,
    Supervisor,
    find_command,
    has_terminal,
    say,
)
from pynamodb_mutex.cli._locks import Locks, range_option
from pynamodb_mutex.cli._output import seconds, wait_time
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place
from pynamodb_mutex.cli._watchdog import Watchdog
from pynamodb_mutex.exceptions import InvalidKeyError, MutexLostError
from pynamodb_mutex.mutex import Mutex
from pynamodb_mutex.runs import PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb_mutex._lock.operations.acquire import Acquisition
    from pynamodb_mutex._lock.operations.contender import Caller
    from pynamodb_mutex._lock.operations.effects import Operation

T = TypeVar("T")

DONE = 0
"""Exit code: the lock was held by another process, and the command was to be skipped then."""

LOCKED = 75
"""Exit code: another process held the lock; EX_TEMPFAIL of sysexits.h."""

LOST = 76
"""Exit code: the lock was lost, or could not be renewed, while the command ran."""

TIMED_OUT = 124
"""Exit code: the command ran beyond its deadline; the same as that of GNU ``timeout``."""

NOT_RUN = 125
"""Exit code: the lock could not be requested, so the command was not started."""

_LONGEST_SLEEP = 1.0
"""Most seconds between two updates of the line that shows a wait."""

_LONG = 1.0
"""Seconds after which a wait is worth a line in the log of a job; most waits are shorter."""


class NotRunError(Failure):
    """The lock could not be requested, so the command was not started."""

    exit_code = NOT_RUN


class RunCommand(AppCommand):
    """A command whose last arguments are another command."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments: the first word after KEY that is no option of ours begins the command, as with flock."""
        options: list[click.Parameter] = [
            each for each in self.get_params(context) if isinstance(each, click.Option)
        ]
        context.allow_interspersed_args = False
        parser = click.Command(self.name, params=options).make_parser(context)
        context.allow_interspersed_args = True
        _, words, _ = parser.parse_args([*args])
        _, command, _ = parser.parse_args(words[1:])
        ours = args[: len(args) - len(command)]
        return super().parse_args(context, [*ours, *["--"] * ("--" not in ours), *command])

    def invoke(self, context: click.Context) -> Any:
        """Run the command; our own failures exit with NOT_RUN instead of 1, which the command itself may return."""
        if not hasattr(os, "posix_spawn"):
            raise NotRunError(f"{self.name} needs a POSIX system: it sends signals")
        try:
            return super().invoke(context)
        except Failure as failure:
            raise NotRunError(failure.message) from failure


class _LogHandler(logging.Handler):
    """Prints log records with `say`: a StreamHandler would write into the line that shows a wait."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


def _duration(
    context: click.Context, parameter: click.Parameter, value: float | None
) -> float | None:
    """Check an option that is a duration in seconds."""
    if value is not None:
        try:
            check_duration(parameter.name or "", value)
        except ValueError as error:
            raise click.BadParameter(str(error), context, parameter) from error
        if value < 0:
            raise click.BadParameter(f"cannot be negative, got {value:g}", context, parameter)
        if value == 0 and parameter.name != "grace":
            raise click.BadParameter("must be above 0", context, parameter)
    return value


_EXIT_CODES = """\
\b
Exit codes:
  0    the command succeeded, or was skipped (--if-locked skip)
  n    that of the command; 128 + n if signal n ended it
  75   another process held the lock (--if-locked wait and fail)
  76   the lock was lost, or could not be renewed
  124  the command ran beyond its deadline
  125  the lock could not be requested: the command was not started
  126  the command cannot be executed
  127  the command does not exist
  2    wrong usage
"""


command_argument = click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENT]..."
)

lease_option = click.option(
    "--lease",
    type=seconds,
    default=30.0,
    show_default=True,
    metavar="DURATION",
    help="How long the lock stays held if this process dies. It is renewed each third of this.",
)


@click.command("run", cls=RunCommand, epilog=_EXIT_CODES)
@click.argument("key")
@command_argument
@range_option
@click.option(
    "--if-locked",
    type=click.Choice(["wait", "skip", "fail"]),
    default="wait",
    show_default=True,
    help="What to do if another process holds the lock: wait for it, exit with 0, or exit with 75.",
)
@click.option(
    "--timeout",
    type=seconds,
    callback=wait_time,
    metavar="DURATION",
    help="How long to wait for the lock; -1 waits for ever, the default with --if-locked wait; 0 is the "
    "default with skip and fail.",
)
@click.option(
    "--fair",
    is_flag=True,
    help="Wait in line: the lock is acquired in the order of arrival, among all that wait like this.",
)
@click.option(
    "--hints",
    is_flag=True,
    help="Wait in line like this, and be called when the lock is released, at a UDP port, instead of finding it out.",
)
@click.option(
    "--shared",
    is_flag=True,
    help="Share the lock with all that use this option; without it, the command runs alone.",
)
@click.option(
    "--force",
    is_flag=True,
    allow_from_autoenv=False,
    help="Take the lock from its holder, if there is one, without a question.",
)
@lease_option
@click.option(
    "--hold-at-least",
    type=seconds,
    metavar="DURATION",
    callback=_duration,
    help="How long nobody else gets the lock, from when it is acquired, also if the command ends sooner.",
)
@click.option(
    "--deadline",
    type=seconds,
    metavar="DURATION",
    callback=_duration,
    help="How long the command may run; then it is ended, and the exit code is 124.",
)
@click.option(
    "--grace",
    type=seconds,
    default=10.0,
    show_default=True,
    metavar="DURATION",
    callback=_duration,
    help="How long the command may take to end: from SIGTERM to SIGKILL.",
)
@click.option(
    "--owner", help="Label of the holder, for people; host, process and command by default."
)
@click.option("--verbose", is_flag=True, help="Report each step on standard error.")
@click.pass_context
@pass_place
def run(
    place: Place,
    context: click.Context,
    *,
    key: str,
    range_key: str | None,
    command: Sequence[str],
    if_locked: str,
    timeout: float | None,
    fair: bool,
    hints: bool,
    shared: bool,
    force: bool,
    lease: float,
    hold_at_least: float | None,
    deadline: float | None,
    grace: float,
    owner: str | None,
    verbose: bool,
) -> None:
    """Run a command under a lock.

    The lock is renewed while the command runs and released when the command has ended. If the lock cannot be
    renewed, the command is ended before the lease expires; if the lock is lost, as soon as that is noticed.
    Signals are forwarded to the command.

    The first word after KEY that is no option of run begins the command; -- may stand before it.

    The environment of the command has PYNAMODB_MUTEX_KEY, PYNAMODB_MUTEX_FENCING_TOKEN,
    PYNAMODB_MUTEX_TOKEN and PYNAMODB_MUTEX_OWNER.

    \b
    Examples:
      pynamodb-mutex run nightly-report ./report.sh
      pynamodb-mutex run report --if-locked skip --hold-at-least 10m ./report.sh
      pynamodb-mutex run deploy --timeout 600 --deadline 1800 make deploy
      pynamodb-mutex run --fair deploy make deploy
      pynamodb-mutex run --shared catalog ./export.sh
      pynamodb-mutex run --force deploy make rollback
    """
    if verbose:  # the library logs failures that it retries
        logging.basicConfig(handlers=[_LogHandler()], format="%(message)s", level=logging.WARNING)
    job = Job(find_command(command[0], place.environment), command, lease, grace, deadline, verbose)
    if key.startswith(PREFIX):
        # a lock's requests would set a TTL, and the row of a run of unknown outcome be deleted
        raise click.UsageError(f"{shown(key)} is a key of once", context)
    if shared and force:
        raise click.UsageError("--force takes a lock alone: leave out --shared", context)
    if timeout is None:
        timeout = FOREVER if if_locked == "wait" else 0.0
    # Before anything is requested: from here on SIGTERM and the like are data, and do not end this process while it
    # holds the lock.
    with Signals() as signals:
        try:
            mutex = cast(
                "ObservedMutex",
                ObservedMutex.for_key(
                    key,
                    range_key=range_key and Locks(place.lock_model()).range_value(range_key),
                    model=place.lock_model(),
                    lease=lease,
                    timeout=timeout,
                    fair=Hints() if hints else fair,
                    shared=shared,
                    hold_at_least=hold_at_least,
                    owner=owner or default_owner(command[0]),
                    on_lost=lambda _: signals.wake(),
                ),
            )
        except (InvalidKeyError, TypeError, ValueError) as error:
            raise click.UsageError(str(error), context) from error
        try:
            if acquire(mutex, signals, verbose=verbose, force=force):
                code = _under_lock(job, mutex, place.environment, signals)
            else:
                code = _not_free(mutex, timeout, skip=if_locked == "skip", verbose=verbose)
        except InterruptedWaitError as interrupt:
            code = OF_SIGNALS + interrupt.number
    context.exit(code)


def default_owner(command: str) -> str:
    """Return the label of the holder: host, process and command, whose name may not be UTF-8."""
    text = f"{socket.gethostname()}:{os.getpid()}:{Path(command).name}"
    return text.encode(errors="backslashreplace").decode()


@dataclass
class Job:
    """The command, and how to run it.

    Attributes:
        path: Path of the executable.
        command: Name and arguments of the command.
        lease: Lease of the lock in seconds.
        grace: Seconds from SIGTERM to SIGKILL.
        deadline: Seconds that the command may run; None for any time.
        verbose: Whether each step is reported.
        started: Whether the command was started.
    """

    path: str
    command: Sequence[str]
    lease: float
    grace: float = 10.0
    deadline: float | None = None
    verbose: bool = False
    started: bool = False


def _not_free(mutex: ObservedMutex, timeout: float, *, skip: bool, verbose: bool) -> int:
    """Report that another process holds the lock, unless the command is skipped then; return the exit code."""
    if verbose or not skip:
        waited = f" after {timeout:g} s" if timeout else ""
        say(f"{shown(mutex._name)} is locked{waited}: {mutex.waits_for}")
    return DONE if skip else LOCKED


def _under_lock(
    job: Job, mutex: ObservedMutex, environment: Mapping[str, str], signals: Signals
) -> int:
    """Run the command, and release the lock; return the exit code.

    Raises:
        InterruptedWaitError: If a signal arrived before the command was started.
        NoCommandError: If the command cannot be started.
    """
    if job.verbose:
        say(f"acquired {shown(mutex._name)}, fencing token {mutex.fencing_token}")
    try:
        code, reason = supervise(job, mutex, environment, signals)
    except BaseException:
        # Not if the command was started. The watchdog ends it after an error of ours, but cannot always: the command
        # may run as another user. So the lock is not released then, and expires with its lease.
        if not job.started:
            # nor does --hold-at-least count, as another host may have the command
            end_claim(mutex, release(mutex._last("release"), at_least=False), verbose=job.verbose)
        raise
    if reason is EndReason.LOST:
        return LOST
    # The release may show that the lock was lost while the command ran, though no renewal has noticed it.
    is_lost = end_claim(mutex, release(mutex._last("release")), verbose=job.verbose)
    if is_lost or reason is EndReason.IN_DANGER:
        return LOST
    return TIMED_OUT if reason is EndReason.DEADLINE else code


def supervise(
    job: Job,
    lock: HandleOfOne,
    environment: Mapping[str, str],
    signals: Signals,
    output: int | None = None,
) -> tuple[int, EndReason | None]:
    """Run the command under a lock.

    Args:
        job: The command.
        lock: The lock, held.
        environment: Its variables, without those that describe the lock.
        signals: Receives the signals.
        output: File descriptor of its standard output; None for that of this process.

    Returns:
        The exit code, and why the command was asked to end; None if it was not.

    Raises:
        InterruptedWaitError: If a signal arrived before the command was started.
        NoCommandError: If the command cannot be started.
    """
    # A signal may have arrived during the request that acquired the lock: do not start the command then.
    wait_or_raise(signals)
    # The watchdog comes first: if it cannot be started, no command runs without one. It learns the process id only
    # after the start; if this process is killed in between, nothing ends the command.
    try:
        watchdog = Watchdog(click.get_current_context().info_name or "")
    except OSError as error:
        # the system refuses a process or a descriptor, as it then would for the command
        raise NoCommandError(f"cannot start the watchdog: {error.strerror}") from error
    with watchdog:
        loss = lock.loss
        if loss is not None:
            # This process was stopped for longer than the lease since it acquired the lock.
            say(f"the lock was lost before the command was started: {loss.value}")
            return LOST, EndReason.LOST
        child = Child(
            job.path,
            job.command,
            {**environment, **_variables(lock)},
            own_group=not has_terminal(),
            adopts=os.getpid() == 1,
            output=output,
        )
        job.started = True
        target = -child.pid if child.own_group else child.pid
        watchdog.guard(target, job.grace, lock.deadline)
        supervisor = Supervisor(
            child,
            lock,
            signals,
            watchdog,
            lease=job.lease,
            grace=job.grace,
            deadline=math.inf if job.deadline is None else job.deadline,
        )
        return supervisor.wait(), supervisor.reason


def _variables(mutex: HandleOfOne) -> dict[str, str]:
    """Return the environment variables that describe the lock to the command."""
    return {
        "PYNAMODB_MUTEX_KEY": mutex.key,
        "PYNAMODB_MUTEX_FENCING_TOKEN": str(mutex.fencing_token),
        "PYNAMODB_MUTEX_TOKEN": mutex.token,
        "PYNAMODB_MUTEX_OWNER": mutex.owner,
    }


def end_claim(lock: HandleOfOne, operation: Operation[None], *, verbose: bool = False) -> bool:
    """Release the lock, by an operation, and report what goes wrong; return whether it turned out to be lost."""
    try:
        run_on_thread.execute(current_process(), operation)
    except MutexLostError as error:
        say(f"the lock was lost while the command ran: {error.loss.value}")
        return True
    except (PynamoDBException, BotoCoreError) as error:
        say(f"the lock could not be released and will expire: {one_line(error)}")
    else:
        if verbose:
            say(f"released {shown(lock._name)}")
    return False


class InterruptedWaitError(Exception):
    """A signal arrived before the command was started.

    Attributes:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Observed(HandleOfOne):
    """A lock that reports what it waits for."""

    _seen: Acquisition | None = None

    @property
    def blocking_claim(self) -> Claim | None:
        """The claim that was read last of those that were in the way; None before the first such answer."""
        return None if self._seen is None else self._seen.holder

    @property
    def waits_for(self) -> str:
        """What the mutex waits for, as text for people: the holder, the first in line, or an answer of DynamoDB."""
        claim = self.blocking_claim
        if claim is not None:
            first = in_line(claim.waiting)[:1]
            if self._options.fair and claim.expires_at is None and first:
                return f"it is the turn of {shown_owner(label_of(first[0]))}, who waits in line"
            return describe(claim)
        connection = current_process().store(self._options.model).connection
        if connection.server.answered:
            return f"DynamoDB is throttling or failing, in {connection.where}"
        return f"no answer from DynamoDB yet, in {connection.where}"


class ObservedMutex(Observed, Mutex):
    """A mutex that reports what it waits for."""

    def _acquisition(self, who: Caller, timeout: float, *, blocks: bool) -> Acquisition:
        self._seen = super()._acquisition(who, timeout, blocks=blocks)
        return self._seen


def describe(claim: Claim) -> str:
    """Return who holds a lock and since when, as text for people."""
    if claim.expires_at is None:
        # The lock was read as free; since then another process was faster, or our own write has failed so far.
        return "it was free a moment ago"
    text = f"held by {claim.holder}"
    at = token_time(claim.token)
    if at is not None:
        since = datetime.fromtimestamp(at, tz=timezone.utc)
        text += f" since {since:%Y-%m-%d %H:%M:%S} UTC"
    return text


def wait_or_raise(signals: Signals, seconds: float = 0.0) -> None:
    """Wait, or only see which signals have arrived.

    Args:
        signals: Receives the signals.
        seconds: Longest wait; a wake-up ends it earlier.

    Raises:
        InterruptedWaitError: As soon as a signal asks this process to end.
    """
    for number in signals.next(seconds):
        if number in (*ENDING, signal.SIGHUP):
            raise InterruptedWaitError(number)


def acquire(mutex: ObservedMutex, signals: Signals, *, verbose: bool, force: bool = False) -> bool:
    """Acquire a lock; return whether this succeeded in time.

    On a terminal a line that is updated shows the holder, the time waited and the place in line. Elsewhere a
    line is printed once the wait is long, and a second one if the reason changes: first DynamoDB did not answer,
    then another process held the lock, or the reverse.

    Args:
        mutex: The lock.
        signals: Receives the signals that end the wait. One that arrives during a request takes effect after the
            answer.
        verbose: Print the line at once, and on a terminal too.
        force: Take the lock from its holder, and print who that was.

    Raises:
        InterruptedWaitError: When a signal arrived. Then nothing is held.
        pynamodb.exceptions.PynamoDBException: As `Mutex.acquire`.
    """
    who = caller()
    acquisition = mutex._acquisition(who, mutex._options.seconds_to_wait(True, None), blocks=True)
    if force:
        acquisition.by_force()
    claim = wait_for(mutex, mutex._acquiring(acquisition, who), signals, verbose=verbose)
    if acquisition.displaced is not None:
        say(f"took {shown(mutex._name)} by force: {describe(acquisition.displaced)}")
    return claim is not None


def wait_for(
    lock: Observed, operation: Operation[T], signals: Signals, *, verbose: bool = False
) -> T:
    """Acquire a lock by an operation, as `acquire` does; return what that returns."""
    # As `Mutex.acquire` does, but with a sleeper that shows the wait and raises when a signal arrives. The runner
    # throws the error into the operation, which releases what it may have acquired, or leaves the line.
    sleeper = _WaitSleeper(lock, signals, verbose=verbose)
    try:
        return run_on_thread.execute(current_process(), operation, sleeper)
    finally:
        sleeper.stop()


class _WaitSleeper(run_on_thread.ThreadSleeper):
    """Lets the thread that acquires the lock sleep, shows what it waits for, and ends the sleep when a signal arrives.

    `wake` has no effect on it: no other thread of this process waits for a lock and could wake this one.
    """

    def __init__(self, mutex: Observed, signals: Signals, *, verbose: bool) -> None:
        super().__init__()
        self._mutex = mutex
        self._signals = signals
        self._verbose = verbose
        self._started = read_clock()
        self._console = Console(stderr=True)
        self._status = Status("", console=self._console)
        self._said: set[bool] = set()

    def stop(self) -> None:
        """Remove the line that shows the wait."""
        self._status.stop()

    def sleep(self, until: float) -> None:
        """Sleep until a local time.

        Raises:
            InterruptedWaitError: When a signal arrives.
        """
        key = shown(self._mutex._name)
        waits_for, for_answer = self._mutex.waits_for, self._mutex.blocking_claim is None
        position = getattr(self._mutex, "position", None)  # a run has none
        place = "" if position is None else f", number {position + 1} in line"
        is_long = read_clock() - self._started >= _LONG
        is_terminal = self._console.is_terminal
        # once for each reason, or a long wait would fill the log of a job
        if for_answer not in self._said and (self._verbose or (is_long and not is_terminal)):
            self._said.add(for_answer)
            say(f"waiting for {key}{place}: {waits_for}")
        while (now := read_clock()) < until:
            if is_terminal:
                text = f"waiting for {key} for {now - self._started:.0f} s{place}: {waits_for}"
                self._status.update(escape(text))
                self._status.start()
            wait_or_raise(self._signals, min(until - now, _LONGEST_SLEEP))
