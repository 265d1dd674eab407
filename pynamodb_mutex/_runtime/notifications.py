"""Emits blinker signals and log records for lock events, and calls ``on_lost``.

Nothing here runs inside the monitor, and what a receiver raises ends here. Without a receiver an event
costs two look-ups. The signals have their public names in `pynamodb_mutex.signals`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NoReturn

from pynamodb.signals import Namespace, signals_available  # type: ignore[attr-defined]  # imported there

from pynamodb_mutex._operations.events import CallOnLost, LockEvent, Log
from pynamodb_mutex._protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex._runtime.threads import LINGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from blinker import NamedSignal
    from pynamodb.models import Model

    from pynamodb_mutex._operations.events import Event, HeldClaim
    from pynamodb_mutex._runtime.threads import Threads

    class State(Protocol):
        """The state of a process, as far as it is needed here."""

        inherited: bool
        monitor: threading.RLock
        threads: Threads
        notifier: Notifier


_log = logging.getLogger("pynamodb_mutex")

MOST_UNDELIVERED = 1000
"""Events of renewals that wait for a slow receiver, at most."""

# -- signals ---------------------------------------------------------------------------------------


class _NoSignal:
    """Stands in for a signal where blinker is missing: nobody can receive it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.receivers: dict[Any, Any] = {}

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        msg = "signals need blinker: pip install 'pynamodb-mutex[signals]'"
        raise RuntimeError(msg)

    connect = connect_via = connected_to = disconnect = send = _refuse


_namespace = Namespace()


def _signal(name: str) -> NamedSignal:
    signal: Any = _namespace.signal(name) if signals_available else _NoSignal(name)
    named: NamedSignal = signal
    return named


on_acquired = _signal("acquired")
on_contended = _signal("contended")
on_not_acquired = _signal("not_acquired")
on_renewed = _signal("renewed")
on_renewal_failed = _signal("renewal_failed")
on_lost = _signal("lost")
on_released = _signal("released")
on_handed_over = _signal("handed_over")

_SIGNALS: Mapping[str, NamedSignal] = {
    signal.name: signal
    for signal in (
        on_acquired,
        on_contended,
        on_not_acquired,
        on_renewed,
        on_renewal_failed,
        on_lost,
        on_released,
        on_handed_over,
    )
}

RECEIVERS: Mapping[str, Mapping[Any, Any]] = {
    name: signal.receivers for name, signal in _SIGNALS.items()
}
"""By name of a signal, those who receive it."""


def _send(process: State, event: LockEvent, caught: type[BaseException] = Exception) -> None:
    """Call each receiver; what one raises is logged, and hurts neither the others nor the lock.

    Args:
        process: The state of the process.
        event: What happened; the signal's sender is the model of the lock's row.
        caught: What is logged. On a thread of ours nothing else would see the rest.
    """
    signal = _SIGNALS[event.name]
    if not signal.receivers:
        return
    contender, claim = event.contender, event.claim
    fields = {"key": contender.key, "owner": contender.owner, **event.fields}
    if claim is not None:
        fields |= {"token": claim.own.token, "fencing_token": claim.fencing_token}
    sender: type[Model] = contender.model
    try:
        receivers = [] if signal.is_muted else list(signal.receivers_for(sender))
    except Exception:  # noqa: BLE001 - blinker's tables may change while they are read
        _log.exception("%s of %s was not reported", signal.name, shown(contender.key))
        return
    for receiver in receivers:
        if process.inherited:
            # a receiver has forked: the child has no part in what its parent's locks do
            return
        try:
            result = receiver(sender, **fields)
            if isinstance(result, CoroutineType):
                result.close()
                raise TypeError("a coroutine function cannot receive signals")
        except caught:
            _log.exception(
                "a receiver of the signal %s failed: %r",
                *(signal.name, receiver),
                extra=contender.log_fields,
            )


# -- delivery --------------------------------------------------------------------------------------


def deliver(process: State, events: Sequence[Event]) -> None:
    """Deliver what happened in a step: in the log, and to receivers. The monitor is not held."""
    for event in events:
        if isinstance(event, LockEvent):
            _RECORDS[event.name](event)
            if event.claim is None:
                _send(process, event)
            elif event.name != "acquired":
                _report(process, event.claim, is_loss=event.name == "lost")
            elif event.claim.delivering and event.claim.events:
                # from the acquisition on it was this thread's
                _deliver_in_order(process, event.claim)
        elif isinstance(event, CallOnLost):
            call = partial(_call_on_lost, event)
            process.threads.put("pynamodb-mutex-on-lost", call)
            process.threads.start()
        else:
            _log_record(event)


def _report(process: State, claim: HeldClaim, *, is_loss: bool) -> None:
    """Deliver the events of an acquisition, on this thread, unless another is at it.

    The events of one acquisition are delivered one after the other, in the order in which they happened:
    they are noted where the state changes, inside the monitor, and delivered by whichever thread comes first,
    which then goes on until nothing is left. So two threads cannot deliver in another order than things
    happened, and a receiver that is slow, or calls the lock, delays the events behind it, of the same
    acquisition, and nothing else.
    """
    with process.monitor:
        if claim.delivering or not claim.events:
            return
        claim.delivering = True
    if is_loss:
        _deliver_aside(process, claim)
    else:
        _deliver_in_order(process, claim)


def _deliver_aside(process: State, claim: HeldClaim) -> None:
    """Deliver on a thread of its own: a loss, which no receiver delays."""
    call = partial(_deliver_in_order, process, claim, aside=True)
    process.threads.put("pynamodb-mutex-lost", call)
    process.threads.start()


def _deliver_in_order(process: State, claim: HeldClaim, *, aside: bool = False) -> None:
    """Deliver until nothing is left, and then leave it to others.

    Args:
        process: The state of the process.
        claim: The acquisition.
        aside: Whether this is a thread of ours. A loss is delivered by such a one alone.
    """
    while True:
        with process.monitor:
            event = claim.events[0] if claim.events else None
            if event is None:
                claim.delivering = False
                return
            if aside or event.name != "lost":
                claim.events = claim.events[1:]
        if not aside and event.name == "lost":
            _deliver_aside(process, claim)
            return
        try:
            if event.name == "renewal_failed" or (
                event.name == "renewed" and not event.fields["won_back"]
            ):
                process.notifier.put(process, event)
            else:
                _send(process, event, BaseException if aside else Exception)
        except BaseException:
            # a receiver was interrupted: what is behind its event is delivered all the same
            _deliver_in_order(process, claim)
            raise


def _call_on_lost(event: CallOnLost) -> None:
    try:
        event.call()
    except Exception:  # noqa: BLE001 - the caller's code, on a thread of ours
        claim = event.claim
        _log.exception("on_lost of %s failed", shown(claim.contender.key), extra=claim.log_fields)


class Notifier:
    """Sends the signals of renewals, in their order, on a thread that it starts when there are any.

    A slow receiver delays those behind it, but no renewal.

    Args:
        threads: Starts the thread.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._changed = threading.Condition()
        self._undelivered: deque[tuple[State, LockEvent]] = deque()
        self._runs = False

    def put(self, process: State, event: LockEvent) -> None:
        """Send a signal soon; not at all if very many wait already."""
        with self._changed:
            is_full = len(self._undelivered) >= MOST_UNDELIVERED
            if not is_full:
                self._undelivered.append((process, event))
            if self._runs:
                self._changed.notify()
            else:
                self._threads.put("pynamodb-mutex-notifier", self._run)
                self._runs = True
        self._threads.start()
        if is_full:
            _log.warning(
                "a receiver is too slow: %s of %s not reported",
                *(event.name, shown(event.contender.key)),
                extra=_log_fields(event),
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._undelivered:
                    self._changed.wait(LINGER)
                if not self._undelivered:
                    self._runs = False
                    return
                process, event = self._undelivered.popleft()
            _send(process, event, BaseException)


# -- log records -----------------------------------------------------------------------------------


def _who(event: LockEvent) -> tuple[str, str]:
    """Return the key and the owner, as messages show them."""
    return shown(event.contender.key), shown(event.contender.owner)


def _log_fields(event: LockEvent) -> dict[str, Any]:
    """Return what a record says of the lock."""
    return event.contender.log_fields if event.claim is None else event.claim.log_fields


def _log_record(event: Log) -> None:
    # "exception": what was raised is among the arguments, and no longer being handled
    level = logging.ERROR if event.level == "exception" else logging.WARNING
    error = event.args[0] if event.args and isinstance(event.args[0], BaseException) else None
    _log.log(level, event.message, *event.args, exc_info=error, extra=event.fields)


def _warn(event: LockEvent, message: str, *args: object) -> None:
    _log.warning(message, *_who(event), *args, extra=_log_fields(event))


def _debug(event: LockEvent, message: str, *args: object) -> None:
    _log.debug(message, *_who(event), *args, extra=_log_fields(event))


def _log_acquired(event: LockEvent) -> None:
    if event.fields["abandoned"]:
        _warn(event, "%s acquired by %s: abandoned by %s", shown(event.fields["abandoned_by"]))
    elif _log.isEnabledFor(logging.DEBUG):
        _debug(event, "%s acquired by %s after %.3f s", event.fields["waited"])


def _log_contended(event: LockEvent) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        holder = shown_owner(event.fields["holder"])
        _debug(event, "%s is waited for by %s, and held by %s", holder)


def _log_not_acquired(event: LockEvent) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        error = event.fields["error"]
        why = "it is held" if error is None else repr(error)
        _debug(event, "%s not acquired by %s after %.3f s: %s", event.fields["waited"], why)


def _log_renewed(event: LockEvent) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _debug(event, "%s renewed by %s")


def _log_renewal_failed(event: LockEvent) -> None:
    _warn(event, "renewal of %s by %s failed: %s", one_line(event.fields["error"]))


def _log_lost(event: LockEvent) -> None:
    claim: Any = event.claim
    _warn(event, "%s lost by %s: %s", claim.explain(event.fields["loss"]))


def _log_released(event: LockEvent) -> None:
    error = event.fields["error"]
    if error is not None:
        _warn(event, "%s given up by %s, and expires with its lease: %r", error)
    elif _log.isEnabledFor(logging.DEBUG):
        _debug(event, "%s released by %s")


def _log_handed_over(event: LockEvent) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        to = event.fields["to"]
        _debug(
            event,
            "%s handed over by %s to %s",
            "the bearer of a ticket" if to is None else shown(to),
        )


_RECORDS: Mapping[str, Callable[[LockEvent], None]] = {
    "acquired": _log_acquired,
    "contended": _log_contended,
    "not_acquired": _log_not_acquired,
    "renewed": _log_renewed,
    "renewal_failed": _log_renewal_failed,
    "lost": _log_lost,
    "released": _log_released,
    "handed_over": _log_handed_over,
}
