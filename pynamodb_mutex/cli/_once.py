"""The commands ``once``, ``forget`` and ``record``: work that is done one time, and what people decide about it.

``once`` runs its command as `_run` does, under the claim of a run in place of a lock. The result is what the command
has printed. Which keys there are, and in which state, is printed by ``ls --once`` and ``show --once``.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from pynamodb_mutex import exceptions
from pynamodb_mutex._lock.operations.options import made
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.runtime.callers import caller
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex._once.rows import OnceRow
from pynamodb_mutex._once.run import decide, peek
from pynamodb_mutex.cli import _output, _run
from pynamodb_mutex.cli._child import OF_SIGNALS, EndReason, Signals, find_command, say
from pynamodb_mutex.cli._claims import about, print_lines
from pynamodb_mutex.cli._locks import NOTHING, RECORDED, RUNNING, locks_of, once_key
from pynamodb_mutex.cli._place import AppCommand, Failure, Place, pass_place
from pynamodb_mutex.runs import LONGEST_RESULT, Once, Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb_mutex._once.run import Result

_CHUNK = 1 << 20
"""Bytes of a read: no pipe holds more, so one read returns all that the command has written."""


keep_option = click.option(
    "--keep",
    type=lambda text: math.inf if text == "forever" else _output.seconds(text),
    default="1d",
    show_default=True,
    metavar="DURATION",
    help="How long the result counts; forever has no end.",
)


class Output(Signals):
    """Signals, and the standard output of the command: it is kept, and passed on while `next` waits.

    Nothing here waits for whoever reads our standard output. If nobody does, the command waits, as it would on a pipe of
    its own; and whatever it has written when it ends is recorded before it is passed on.

    Attributes:
        end: File descriptor for the command to write to.
    """

    def __init__(self) -> None:
        self._pipe, self.end = os.pipe()
        os.set_blocking(self._pipe, False)
        self._kept = bytearray()
        self._ahead = b""
        # None if it was closed when this process started: that descriptor may be a socket's by now
        self._passes_on = sys.__stdout__ is not None

    def next(self, seconds: float) -> list[int]:
        """Wait as `Signals.next` does, or until there is output to read, or to pass on."""
        reads, writes = ([], [1]) if self._ahead else ([self._pipe], [])
        _, ready, _ = select.select([self._read_end, *reads], writes, [], max(0.0, seconds))
        if ready:
            self._pass_on()
        elif reads:
            self.read()
        return super().next(0.0)

    def read(self) -> None:
        """Read what the command has written until now."""
        with suppress(BlockingIOError):
            chunk = os.read(self._pipe, _CHUNK)
            self._kept += chunk[
                : LONGEST_RESULT - len(self._kept)
            ]  # one as long is too long as JSON
            if self._passes_on:
                self._ahead += chunk

    def _pass_on(self) -> None:
        try:  # by so much, a write does not wait once there is room
            self._ahead = self._ahead[os.write(1, self._ahead[: select.PIPE_BUF]) :]
        except OSError:
            # Its reader has gone, as in ``| head``. The command goes on: its output is the result for all others.
            self._ahead, self._passes_on = b"", False

    def flush(self) -> None:
        """Pass on what is left, and wait for whoever reads it."""
        while self._ahead:
            select.select(
                [], [1], []
            )  # a write may not do it: others can have made the pipe non-blocking
            self._pass_on()

    @property
    def text(self) -> str:
        """The output as text, in which a byte that is not UTF-8 is a lone surrogate."""
        return self._kept.decode(errors="surrogateescape")


class ObservedRun(_run.Observed, Run):
    """A run that reports what it waits for."""


_CODES: dict[type[Exception], int] = {
    exceptions.MutexTimeoutError: _run.LOCKED,
    exceptions.PayloadMismatchError: 65,  # EX_DATAERR of sysexits.h
    exceptions.OutcomeUnknownError: 70,
    exceptions.ResultUnavailableError: 69,  # EX_UNAVAILABLE
    exceptions.NotRecordedError: _run.LOST,
}
"""Exit codes for errors that are answers."""


@click.command("once", cls=_run.RunCommand)
@click.argument("key", callback=once_key)
@_run.command_argument
@keep_option
@click.option(
    "--payload", metavar="TEXT", help="What the work is about; another one exits with 65."
)
@click.option(
    "--on-abandoned",
    type=click.Choice(["run", "raise"]),
    default="run",
    show_default=True,
    help="After a run that died: run the command, or exit with 70 until forget or record decides.",
)
@_output.timeout_option
@_run.lease_option
@click.pass_context
@pass_place
def once(
    place: Place, context: click.Context, /, *, key: str, command: Sequence[str], **options: Any
) -> None:
    """Run a command once: a repeat prints the first output.

    If the command exits with 0, what it has printed on standard output is recorded and counts for --keep. Until then a
    repeat prints it, exits with 0, and does not run the command. Another exit code is a failure: it is passed on,
    nothing is recorded, and the next call runs the command. Up to 350 KB of output are kept.

    The command runs as with pynamodb-mutex run, which says what becomes of it when the key is lost or a signal arrives.
    Its standard output is a pipe.

    \b
    Examples:
      pynamodb-mutex once "report-$(date +%F)" ./report.sh
      pynamodb-mutex once charge-o-1 --payload "5 EUR" --keep forever ./charge.sh
      pynamodb-mutex once migrate-17 --on-abandoned raise ./migrate.sh

    \b
    Exit codes:
      0    the command succeeded, now or before
      n    that of the command, which failed; 128 + n if signal n ended it
      65   the result or the run of KEY is one of another --payload
      69   the command succeeded before, but its output was not kept
      70   it is unknown what became of the last run: see --on-abandoned
      75   another run did not end within --timeout
      76   the key was lost while the command ran, or the output was not recorded
      125  DynamoDB refused or could not be reached: the command was not started
      126  the command cannot be executed
      127  the command does not exist
      2    wrong usage
    """
    job = _run.Job(find_command(command[0], place.environment), command, options["lease"])
    options |= {"model": place.once_model(), "owner": _run.default_owner(command[0])}
    with Output() as output:
        try:
            asked: Once = Once.for_key(key, on_lost=lambda _: output.wake(), **options)
        except (exceptions.InvalidKeyError, ValueError) as error:
            raise click.UsageError(str(error), context) from error
        began = made(ObservedRun, asked._terms)
        try:
            _run.wait_for(began, began._beginning(caller(), blocks=True), output)
            if began.done:
                code = _print_result(began)
            else:
                code = _do(job, began, place.environment, output)
        except _run.InterruptedWaitError as interrupt:
            code = OF_SIGNALS + interrupt.number
        except tuple(_CODES) as error:
            say(one_line(error))
            code = _CODES[type(error)]
    output.flush()
    context.exit(code)


def _print_result(began: Run) -> int:
    """Print a recorded result: the output of a command, or what a function of Python has returned."""
    result = began.result
    if isinstance(result, str):
        click.echo(result.encode(errors="surrogateescape"), nl=False)
    elif result is not None:
        click.echo(json.dumps(result))
    return 0


def _do(job: _run.Job, began: Run, environment: Mapping[str, str], output: Output) -> int:
    """Run the command, and record its output if it succeeds; return the exit code.

    Raises:
        InterruptedWaitError: If a signal arrived before the command was started.
        NoCommandError: If the command cannot be started.
        NotRecordedError: If it has succeeded, and its output was not recorded, or that is unknown.
    """
    try:
        code, reason = _run.supervise(job, began, environment, output, output.end)
    except BaseException as error:
        # A command that was started may run on, as in `run`: its claim ends with its lease.
        if not job.started:
            _run.end_claim(began, began._ending(error))
        raise
    output.read()
    if code == 0:
        # Also if the key is lost by now: DynamoDB decides. The work is done, and perhaps nobody else has begun.
        try:
            began.complete(output.text)
        except exceptions.ResultUnavailableError as error:
            say(one_line(error))
        return 0
    # With --on-abandoned raise, a command that has not ended by itself is no failure that can be repeated: it may have
    # done its work, as a Python function that is interrupted may.
    is_cut_short = reason is not None or code > OF_SIGNALS
    if reason is not EndReason.LOST:
        _run.end_claim(began, began._ending(KeyboardInterrupt() if is_cut_short else Failure("")))
    return _run.LOST if reason in (EndReason.LOST, EndReason.IN_DANGER) else code


# -- by people ---------------------------------------------------------------------------------------


@click.command(cls=AppCommand)
@click.argument("key", callback=once_key)
@click.option(
    "--force", is_flag=True, allow_from_autoenv=False, help="Forget a run that is under way, too."
)
@_output.yes_option
@_output.json_option
@pass_place
def forget(place: Place, /, *, key: str, force: bool, **options: Any) -> None:
    """Forget the result of a key of once, or a run that died.

    The next call does the work again. Prints what is known of KEY, asks, and forgets exactly that. A result that was
    recorded since is kept. A run that is forgotten by force goes on, and its result is not recorded.

    \b
    Examples:
      pynamodb-mutex forget charge-o-1
      pynamodb-mutex forget charge-o-1 --yes --json

    \b
    Exit codes:
      0    nothing is known of the key
      1    nothing was forgotten: not confirmed, a run is under way, the key has
           changed, or DynamoDB refused
      130  interrupted by Ctrl-C
    """
    _decided(place, key, None, force=force, **options)


@click.command(cls=AppCommand)
@click.argument("key", callback=once_key)
@click.argument("result", default="null")
@keep_option
@_output.yes_option
@_output.json_option
@click.pass_context
@pass_place
def record(
    place: Place, context: click.Context, /, *, key: str, result: str, keep: float, **options: Any
) -> None:
    """Record the result of a key of once.

    For work that was done elsewhere, or by a run that died. RESULT is JSON, null by default; the output of a command is
    a text. Prints what is known of KEY, asks, and records the result if that is still so. It replaces a result that could
    not be stored, and no other.

    \b
    Examples:
      pynamodb-mutex record charge-o-1 '{"id": 7}'
      pynamodb-mutex record report-2026-11-23 '"done\\n"' --keep forever --yes

    \b
    Exit codes:
      0    recorded
      1    nothing was recorded: not confirmed, a run is under way, there is a
           result, the key has changed, or DynamoDB refused
      130  interrupted by Ctrl-C
    """
    try:
        made_of = Once.for_key("-", keep=keep)._terms.encoded(json.loads(result))
    except ValueError as error:
        msg = f"{error}; RESULT is JSON, in which a text has quotes"
        raise click.UsageError(msg, context) from error
    _decided(place, key, made_of, force=False, **options)


def _decided(
    place: Place,
    key: str,
    result: Result | None,
    *,
    force: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget what is known of a key, or record a result, after a question; print the key as it is then.

    Raises:
        Failure: If that is not possible, or the key has changed since it was printed.
    """
    process, locks = current_process(), locks_of(place, once=True)
    row = locks.row(key)
    seen = execute(process, peek(process, locks.store, row, forces=force))
    before = locks.shown(row, seen.item, seen.received)
    print_lines(about(before), err=True)
    is_kept = before.state == RECORDED and before.claim.of(OnceRow).unstored is None
    if (before.state == RUNNING and not force) or (is_kept and result):
        raise Failure(f"nothing was done: {shown(key)} is {before.state}")
    is_done = result is None and before.state == NOTHING
    if not is_done:
        _output.confirm(f"{'Record this result' if result else 'Forget this'} in {place}?", yes=yes)
        operation = decide(process, locks.store, row, key, result, answer=seen, forces=force)
        is_done = execute(process, operation)
    now = locks.read(row)
    if as_json:
        _output.print_json(now.document())
    if not is_done:
        raise Failure(f"nothing was done: {shown(key)} has changed meanwhile, and is {now.state}")
    click.echo(f"{shown(key)}: {now.state}", err=True)
