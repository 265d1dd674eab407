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

from pynamodb_mutex._operations.events import (
    Acquired,
    CallOnLost,
    Contended,
    HandedOver,
    Log,
    Lost,
    NotAcquired,
    Released,
    RenewalFailed,
    Renewed,
)
from pynamodb_mutex._protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex._runtime.threads import LINGER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from blinker import NamedSignal
    from pynamodb.models import Model

    from pynamodb_mutex._operations.events import ClaimEvent, Contender, Event, HeldClaim
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

_SIGNALS: Mapping[type, NamedSignal] = {
    Acquired: on_acquired,
    Contended: on_contended,
    NotAcquired: on_not_acquired,
    Renewed: on_renewed,
    RenewalFailed: on_renewal_failed,
    Lost: on_lost,
    Released: on_released,
    HandedOver: on_handed_over,
}

RECEIVERS: Mapping[type, Mapping[Any, Any]] = {
    kind: signal.receivers for kind, signal in _SIGNALS.items()
}
"""By type of event, those who receive its signal."""


def _fields_of(event: ClaimEvent) -> dict[str, Any]:
    """Return the keyword arguments of the signal for an event of an acquisition."""
    claim = event.claim
    fields: dict[str, Any] = {
        "key": claim.contender.key,
        "owner": claim.contender.owner,
        "token": claim.own.token,
        "fencing_token": claim.fencing_token,
    }
    if isinstance(event, Acquired):
        abandoned_by = claim.abandoned_by or None
        return fields | {
            "waited": event.waited,
            "attempts": event.attempts,
            "abandoned": abandoned_by is not None,
            "abandoned_by": abandoned_by,
            "lease": claim.lease,
            "expires_at": event.expires_at,
        }
    if isinstance(event, Renewed):
        return fields | {"expires_at": event.expires_at, "won_back": event.won_back}
    if isinstance(event, RenewalFailed):
        return fields | {"expires_at": event.expires_at, "error": event.error}
    if isinstance(event, Lost):
        return fields | {"loss": event.loss, "taker": event.taker, "held_for": event.held_for}
    if isinstance(event, Released):
        return fields | {"held_for": event.held_for, "error": event.error}
    successor = event.successor
    return fields | {
        "held_for": event.held_for,
        "to": None if successor is None else successor.contender.owner,
        "to_token": None if successor is None else successor.own.token,
        "to_fencing_token": None if successor is None else successor.fencing_token,
    }


def _send(
    process: State,
    event: ClaimEvent | Contended | NotAcquired,
    caught: type[BaseException] = Exception,
) -> None:
    """Call each receiver; what one raises is logged, and hurts neither the others nor the lock.

    Args:
        process: The state of the process.
        event: What happened; the signal's sender is the model of the lock's row.
        caught: What is logged. On a thread of ours nothing else would see the rest.
    """
    signal = _SIGNALS[type(event)]
    if not signal.receivers:
        return
    if isinstance(event, (Contended, NotAcquired)):
        contender = event.contender
        fields = _fields_of_waiting(event)
    else:
        contender = event.claim.contender
        fields = _fields_of(event)
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


def _fields_of_waiting(event: Contended | NotAcquired) -> dict[str, Any]:
    """Return the keyword arguments of the signal for an event of one who asks for a lock."""
    contender = event.contender
    fields: dict[str, Any] = {"key": contender.key, "owner": contender.owner}
    if isinstance(event, NotAcquired):
        return fields | {
            "waited": event.waited,
            "attempts": event.attempts,
            "error": event.error,
        }
    holder = event.holder
    return fields | {
        "holder": None if holder is None else holder.owner,
        "holder_token": None if holder is None else holder.token,
        "holder_fencing_token": None if holder is None else holder.version,
        "expires_at": None if holder is None else holder.expires_at,
    }


# -- delivery --------------------------------------------------------------------------------------


def deliver(process: State, events: Sequence[Event]) -> None:
    """Deliver what happened in a step: in the log, and to receivers. The monitor is not held."""
    for event in events:
        kind = type(event)
        record = _RECORDS.get(kind)
        if record is not None:
            record(event)
        if isinstance(event, (Contended, NotAcquired)):
            _send(process, event)
        elif isinstance(event, CallOnLost):
            call = partial(_call_on_lost, event)
            process.threads.put("pynamodb-mutex-on-lost", call)
            process.threads.start()
        elif isinstance(event, Acquired):
            if event.claim.delivering and event.claim.events:
                # from the acquisition on it was this thread's
                _deliver_in_order(process, event.claim)
        elif not isinstance(event, Log):
            _report(process, event.claim, is_loss=isinstance(event, Lost))


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
            if aside or not isinstance(event, Lost):
                claim.events = claim.events[1:]
        if not aside and isinstance(event, Lost):
            _deliver_aside(process, claim)
            return
        try:
            if isinstance(event, RenewalFailed) or (
                isinstance(event, Renewed) and not event.won_back
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
        self._undelivered: deque[tuple[State, Renewed | RenewalFailed]] = deque()
        self._runs = False

    def put(self, process: State, event: Renewed | RenewalFailed) -> None:
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
                *(_SIGNALS[type(event)].name, shown(event.claim.contender.key)),
                extra=event.claim.log_fields,
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


def _who(event: ClaimEvent | Contended | NotAcquired) -> tuple[str, str]:
    """Return the key and the owner, as messages show them."""
    is_waiting = isinstance(event, (Contended, NotAcquired))
    contender: Contender = event.contender if is_waiting else event.claim.contender  # type: ignore[union-attr]  # as it says
    return shown(contender.key), shown(contender.owner)


def _log_record(event: Log) -> None:
    # "exception": what was raised is among the arguments, and no longer being handled
    level = logging.ERROR if event.level == "exception" else logging.WARNING
    error = event.args[0] if event.args and isinstance(event.args[0], BaseException) else None
    _log.log(level, event.message, *event.args, exc_info=error, extra=event.fields)


def _log_acquired(event: Acquired) -> None:
    claim = event.claim
    if claim.abandoned_by:
        _log.warning(
            "%s acquired by %s: abandoned by %s",
            *(*_who(event), shown(claim.abandoned_by)),
            extra=claim.log_fields,
        )
    elif _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "%s acquired by %s after %.3f s", *(*_who(event), event.waited), extra=claim.log_fields
        )


def _log_contended(event: Contended) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        key, owner = _who(event)
        holder = shown_owner(None if event.holder is None else event.holder.owner)
        _log.debug(
            "%s is held by %s, and wanted by %s",
            *(key, holder, owner),
            extra=event.contender.log_fields,
        )


def _log_not_acquired(event: NotAcquired) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        why = "it is held" if event.error is None else repr(event.error)
        _log.debug(
            "%s not acquired by %s after %.3f s: %s",
            *(*_who(event), event.waited, why),
            extra=event.contender.log_fields,
        )


def _log_renewed(event: Renewed) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s renewed by %s", *_who(event), extra=event.claim.log_fields)


def _log_renewal_failed(event: RenewalFailed) -> None:
    _log.warning(
        "renewal of %s by %s failed: %s",
        *(*_who(event), one_line(event.error)),
        extra=event.claim.log_fields,
    )


def _log_lost(event: Lost) -> None:
    _log.warning("%s lost by %s: %s", *(*_who(event), event.why), extra=event.claim.log_fields)


def _log_released(event: Released) -> None:
    if event.error is not None:
        _log.warning(
            "%s given up by %s, and expires with its lease: %r",
            *(*_who(event), event.error),
            extra=event.claim.log_fields,
        )
    elif _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s released by %s", *_who(event), extra=event.claim.log_fields)


def _log_handed_over(event: HandedOver) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        successor = event.successor
        to = "the bearer of a ticket" if successor is None else shown(successor.contender.owner)
        _log.debug("%s handed over by %s to %s", *(*_who(event), to), extra=event.claim.log_fields)


_RECORDS: Mapping[type, Callable[[Any], None]] = {
    Log: _log_record,
    Acquired: _log_acquired,
    Contended: _log_contended,
    NotAcquired: _log_not_acquired,
    Renewed: _log_renewed,
    RenewalFailed: _log_renewal_failed,
    Lost: _log_lost,
    Released: _log_released,
    HandedOver: _log_handed_over,
}
