"""Notifications: emits blinker signals and log records for lock events, and calls ``on_lost`` and ``on_danger``.

Operations only note events (`pynamodb_mutex._lock.operations.events`); the runner hands them to `deliver` after the step. No
receiver is called inside the monitor, and if a receiver raises, that is logged here. Without a receiver an event costs two
look-ups. The public names of the signals are in `pynamodb_mutex.signals`.
"""

from __future__ import annotations

import logging
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn

from pynamodb.signals import Namespace, signals_available  # type: ignore[attr-defined]  # imported there

from pynamodb_mutex._lock.operations.events import WARNED, Call, Do, LockEvent, Log
from pynamodb_mutex._lock.protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex._lock.protocol.server_time import HOST_SKEW
from pynamodb_mutex._lock.runtime.threads import log

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence
    from typing import Protocol

    from blinker import NamedSignal
    from pynamodb.models import Model

    from pynamodb_mutex._lock.operations.events import Event, HeldClaim
    from pynamodb_mutex._lock.runtime.threads import Threads, Workers

    class State(Protocol):
        """The parts of `Process` that are needed here."""

        inherited: bool
        monitor: threading.RLock
        threads: Threads
        notifier: Workers
        reporter: Workers


_log = logging.getLogger("pynamodb_mutex")

logs_details = partial(_log.isEnabledFor, logging.DEBUG)
"""Returns whether log records of level debug are written."""

MOST_UNDELIVERED = 1000
"""Most events of renewals that wait for a slow receiver. Further events are dropped."""

# -- signals ---------------------------------------------------------------------------------------


class _NoSignal:
    """Stands in for a signal if blinker is not installed: nobody can receive it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.receivers: dict[Any, Any] = {}

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        msg = "signals need blinker: pip install 'pynamodb-mutex[signals]'"
        raise RuntimeError(msg)

    connect = connect_via = connected_to = disconnect = send = _refuse


_namespace = Namespace()


def _signal(name: str) -> NamedSignal:
    """Return the signal of a name."""
    signal: Any = _namespace.signal(name) if signals_available else _NoSignal(name)
    named: NamedSignal = signal
    return named


SIGNALS: Mapping[str, NamedSignal] = {
    name: _signal(name)
    for name in (
        "acquired",
        "contended",
        "not_acquired",
        "renewed",
        "renewal_failed",
        "danger",
        "lost",
        "released",
        "handed_over",
        "marked",
        "once_called",
        "clocks_disagree",
    )
}
"""All signals by name. `pynamodb_mutex.signals` says what each is for."""

RECEIVERS: Mapping[str, Mapping[Any, Any]] = {
    name: signal.receivers for name, signal in SIGNALS.items()
}
"""Receivers by name of the signal. Operations ask it whether anybody receives an event at all."""


def _send(process: State, event: LockEvent, caught: type[BaseException] = Exception) -> None:
    """Call each receiver of an event. If one raises, log that; it affects neither the others nor the lock.

    Other exceptions than ``caught`` are raised. On a thread of the library it should be BaseException, because nobody else would
    see the exception there.
    """
    signal = SIGNALS[event.name]
    if not signal.receivers:
        return
    contender, claim = event.contender, event.claim
    fields = {"key": contender.key, "owner": contender.owner, **event.fields}
    fields["attributes"] = contender.options.attributes
    if claim is not None:
        fields |= {"token": claim.own.token, "fencing_token": claim.fencing_token}
    sender: type[Model] = contender.model
    try:
        receivers = [] if signal.is_muted else list(signal.receivers_for(sender))
    except Exception:  # noqa: BLE001 - blinker's tables may change while they are read
        text = "%s of %s was not reported"
        log(logging.ERROR, text, signal.name, shown(contender.key), exc_info=True)
        return
    for receiver in receivers:
        if process.inherited:
            # the last receiver has forked, and this is the child: the events belong to the parent's locks
            return
        try:
            result = receiver(sender, **fields)
            # it would never be awaited, and the receiver would seem to work
            if isinstance(result, CoroutineType):
                result.close()
                raise TypeError("a coroutine function cannot receive signals")
        except caught:
            text, extra = "a receiver of the signal %s failed: %r", contender.log_fields
            log(logging.ERROR, text, signal.name, receiver, exc_info=True, extra=extra)


# -- delivery --------------------------------------------------------------------------------------


def deliver(process: State, events: Sequence[Event]) -> None:
    """Deliver the events of a step to the log and to receivers. Called outside the monitor.

    Signals about one acquisition keep their order, whatever threads do (see `_Delivery`); log records may not.
    """
    # First: the output of the log may block for a minute, or Ctrl-C may come meanwhile. A loss must be reported all the same.
    _report_at_once(process, events)
    _deliver_others(process, events)


def deliver_aside(process: State, events: Sequence[Event]) -> None:
    """Deliver the events of a step as `deliver` does, but wait neither for the log nor for a receiver.

    For threads that serve renewals. Suppose the output of the log blocks, and renewals fail for a few seconds: the warning about
    each would block its thread, until no thread is left for further renewals, and locks are lost.
    """
    _report_at_once(process, events)
    process.reporter.post(partial(_deliver_others, process, events))


def _report_at_once(process: State, events: Sequence[Event]) -> None:
    """Run each `Do`, and start the threads that report losses and call ``on_lost`` and ``on_danger``."""
    for event in events:
        if isinstance(event, Do):
            event.call()
        elif isinstance(event, Call):
            name = f"pynamodb-mutex-{event.name.replace('_', '-')}"
            process.threads.put(name, partial(_call, event))
            process.threads.start()
        elif isinstance(event, LockEvent) and event.claim is not None and event.name == "lost":
            _Delivery(process, event.claim).start(is_loss=True)


def _deliver_others(process: State, events: Sequence[Event]) -> None:
    """Write the log records of events, and report all but losses."""
    for event in events:
        if isinstance(event, (Call, Do)):
            continue
        _log_record(event)
        if isinstance(event, Log):
            continue
        if event.name == "clocks_disagree":
            # a renewal may have noticed it, and this thread may deliver the events of all renewals
            _notify(process, event)
        elif event.claim is None:
            _send(process, event)
        elif event.name == "acquired" and event.claim.delivery == "reserved":
            # Reserved for this thread since the claim was made: no other thread delivers, say, a loss before the acquisition.
            _Delivery(process, event.claim).run()
        elif event.name not in {"acquired", "lost"}:
            _Delivery(process, event.claim).start(is_loss=False)


class _Delivery:
    """Delivers the events of one acquisition, one after the other, in the order in which things happened.

    Events are queued where the state changes, inside the monitor. The first thread that gets here delivers them until the queue is
    empty. If each thread delivered its own events, the thread that noted a loss could be delayed, and a win-back after the loss
    would be reported first. If a receiver is slow, or calls the lock, it delays the later events of the same acquisition and
    nothing else.
    """

    def __init__(self, process: State, claim: HeldClaim) -> None:
        self._process = process
        self._claim = claim

    def start(self, *, is_loss: bool) -> None:
        """Deliver on this thread, unless another thread is delivering.

        Args:
            is_loss: Whether this thread has just noted a loss: then another thread delivers, and this one goes on.
        """
        with self._process.monitor:
            if self._claim.delivery != "none" or not self._claim.events:
                return
            self._claim.delivery = "under way"
        if is_loss:
            self._run_aside()
        else:
            self.run()

    def _run_aside(self) -> None:
        """Deliver on a new thread, for a loss: the thread that noted it, such as the renewal loop's, must wait for no receiver."""
        self._process.threads.put("pynamodb-mutex-lost", partial(self.run, aside=True))
        self._process.threads.start()

    def run(self, *, aside: bool = False) -> None:
        """Deliver the queued events until none is left; the claim's ``delivery`` must be reserved or under way for this thread.

        Args:
            aside: Whether this thread was started for the delivery. Only such a thread delivers a loss.
        """
        process, claim = self._process, self._claim
        # Stop in a child that a receiver has forked: the events belong to the parent's locks. And another thread of the parent
        # may have held the notifier's lock, which nobody releases here.
        while not process.inherited:
            with process.monitor:
                event = claim.events[0] if claim.events else None
                if event is None:
                    # Inside the monitor, with the check of the queue: if a thread adds an event after this, it finds nobody
                    # delivering, and delivers the event itself.
                    claim.delivery = "none"
                    return
                if aside or event.name != "lost":
                    claim.events = claim.events[1:]
            if not aside and event.name == "lost":
                # The loss stays first in the queue, and the delivery stays under way, so that nothing overtakes it.
                self._run_aside()
                return
            try:
                # Renewals go to the notifier: they come often, on threads that have the next renewals to send. If a renewal wins
                # the lock back, it does not: its signal must come after the signal of the loss.
                if event.name in {"renewal_failed", "danger"} or (
                    event.name == "renewed" and not event.fields["won_back"]
                ):
                    _notify(process, event)
                else:
                    _send(process, event, BaseException if aside else Exception)
            except BaseException:
                # A receiver was interrupted, such as by Ctrl-C. Deliver the later events all the same: the delivery is still
                # under way, so no other thread would ever deliver them.
                self.run()
                raise


def _call(event: Call) -> None:
    """Call a caller's function; an error in it is logged."""
    try:
        event.call()
    except Exception:  # noqa: BLE001 - the caller's code, on a thread of ours
        claim = event.claim
        key, extra = shown(claim.contender.key), claim.log_fields
        log(logging.ERROR, "%s of %s failed", event.name, key, exc_info=True, extra=extra)


def _notify(process: State, event: LockEvent) -> None:
    """Send the signal of a renewal soon, on a thread of its own; if MOST_UNDELIVERED wait already, drop it and log that.

    A slow receiver delays the later signals, but no renewal.
    """
    send = partial(_send, process, event, BaseException)
    if not process.notifier.post(send, MOST_UNDELIVERED):
        text, key = "a receiver is too slow: %s of %s not reported", shown(event.contender.key)
        log(logging.WARNING, text, event.name, key, extra=_log_fields(event))


# -- log records -----------------------------------------------------------------------------------


def _log_fields(event: LockEvent) -> dict[str, Any]:
    """Return the fields by which a log record names its lock."""
    return event.contender.log_fields if event.claim is None else event.claim.log_fields


def _log_record(event: LockEvent | Log) -> None:
    """Write the record of an event, or the record that an operation asked for."""
    if isinstance(event, LockEvent):
        level, message, *args = _record_of(event)
        if _log.isEnabledFor(level):
            who = shown(event.contender.key), shown(event.contender.owner)
            log(level, message, *who, *args, extra=_log_fields(event))
        return
    # `exc_info` is not True: the operation has handled the error, and passes it as the first argument.
    level = logging.ERROR if event.level == "exception" else logging.WARNING
    error = event.args[0] if event.args and isinstance(event.args[0], BaseException) else None
    log(level, event.message, *event.args, exc_info=error, extra=event.fields)


def _record_of(event: LockEvent) -> tuple[Any, ...]:  # noqa: C901, PLR0911, PLR0912 - one for each message
    """Return the level of an event's record, its message, and what the message shows after the key and the owner."""
    fields = event.fields
    match event.name:
        case "acquired" if fields["abandoned"]:
            by = shown(fields["abandoned_by"])
            return logging.WARNING, "%s acquired by %s: abandoned by %s", by
        case "acquired":
            return logging.DEBUG, "%s acquired by %s after %.3f s", fields["waited"]
        case "contended":
            holder = shown_owner(fields["holder"])
            return logging.DEBUG, "%s is waited for by %s, and held by %s", holder
        case "not_acquired":
            why = "it is held" if fields["error"] is None else repr(fields["error"])
            return logging.DEBUG, "%s not acquired by %s after %.3f s: %s", fields["waited"], why
        case "renewed":
            return logging.DEBUG, "%s renewed by %s"
        case "renewal_failed":
            return logging.WARNING, "renewal of %s by %s failed: %s", one_line(fields["error"])
        case "danger":
            message = (
                "%s held by %s may be lost: %.1f s of its lease are left, and it was not renewed"
            )
            return logging.WARNING, message, fields["remaining"]
        case "lost":
            claim: Any = event.claim
            return logging.WARNING, "%s lost by %s: %s", claim.explain(fields["loss"])
        case "released" if fields["error"] is None:
            return logging.DEBUG, "%s released by %s"
        case "released":
            message = "%s given up by %s, and expires with its lease: %r"
            return logging.WARNING, message, fields["error"]
        case "marked":
            return logging.DEBUG, "%s marked by %s, who waits for %s readers", fields["readers"]
        case "once_called":
            level = logging.WARNING if fields["outcome"] in WARNED else logging.DEBUG
            return level, "once %s called by %s: %s", fields["outcome"]
        case "clocks_disagree":
            message = (
                "%.0s%.0s"  # no key and owner
                "answers of %s contradict each other about the time, %d of them by up to %.2f s: "
                f"if clocks of DynamoDB's differ by more than {HOST_SKEW} s, a lock may have two holders. "
                "Other causes are a local clock that runs wrong, and a proxy that writes its own Date"
            )
            return logging.WARNING, message, *map(fields.get, ("endpoint", "answers", "behind"))
        case _:  # handed_over
            to = "the bearer of a ticket" if fields["to"] is None else shown(fields["to"])
            return logging.DEBUG, "%s handed over by %s to %s", to
