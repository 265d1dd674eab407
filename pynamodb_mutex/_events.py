"""What happens to locks, told: by signals to those who listen, and in the log.

Nobody is told while a lock of this package is kept, and what a receiver raises ends here. Without a
listener an event costs two look-ups. The signals have their public names in `pynamodb_mutex.signals`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from pynamodb.signals import Namespace, signals_available  # type: ignore[attr-defined]  # imported there

from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._messages import one_line, shown, shown_owner
from pynamodb_mutex._threads import LINGER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from blinker import NamedSignal
    from pynamodb.models import Model

    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._threads import Threads
    from pynamodb_mutex._wanted import Wanted

    class Effort(Protocol):
        """What an acquisition took."""

        @property
        def since(self) -> float:
            """Local time at which it began."""

        @property
        def attempts(self) -> int:
            """Requests that were sent for it."""


_log = logging.getLogger("pynamodb_mutex")

MOST_UNTOLD = 1000
"""Events of renewals that wait for a slow receiver, at most."""


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


# -- what is told ----------------------------------------------------------------------------------


def acquired(hold: Hold, effort: Effort) -> None:
    """Tell that an acquisition was handed out; only from now on is anything else told of it."""
    abandoned_by = hold.abandoned_by or None
    waited = max(0.0, hold.since - effort.since)
    if abandoned_by is not None:
        _log.warning(
            "%s acquired by %s: abandoned by %s",
            *(*_who(hold.wanted), shown(abandoned_by)),
            extra=hold.log_fields,
        )
    elif _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "%s acquired by %s after %.3f s",
            *(*_who(hold.wanted), waited),
            extra=hold.log_fields,
        )
    try:
        if on_acquired.receivers:
            more = {
                "waited": waited,
                "attempts": effort.attempts,
                "abandoned": abandoned_by is not None,
                "abandoned_by": abandoned_by,
                "lease": hold.terms.lease,
                "expires_at": hold.tenure.expires_at,
            }
            _send(on_acquired, hold.wanted, _about(hold) | more)
    finally:
        hold.events.go_on()


def contended(wanted: Wanted, holder: Claim | None) -> None:
    """Tell that a lock that is asked for is held; once for each acquisition."""
    if _log.isEnabledFor(logging.DEBUG):
        key, owner = _who(wanted)
        _log.debug(
            "%s is held by %s, and wanted by %s",
            *(key, shown_owner(None if holder is None else holder.owner), owner),
            extra=wanted.log_fields,
        )
    if on_contended.receivers:
        fields = {
            "key": wanted.terms.key,
            "owner": wanted.owner,
            "holder": None if holder is None else holder.owner,
            "holder_token": None if holder is None else holder.token,
            "holder_fencing_token": None if holder is None else holder.version,
            "expires_at": None if holder is None else holder.expires_at,
        }
        _send(on_contended, wanted, fields)


def not_acquired(wanted: Wanted, effort: Effort, error: BaseException | None) -> None:
    """Tell that an acquisition came to nothing.

    Args:
        wanted: What was asked for.
        effort: What it took.
        error: What it failed with; None if another holds the lock.
    """
    if not (on_not_acquired.receivers or _log.isEnabledFor(logging.DEBUG)):
        return
    waited = max(0.0, local_clock().now() - effort.since)
    _log.debug(
        "%s not acquired by %s after %.3f s: %s",
        *(*_who(wanted), waited),
        "it is held" if error is None else repr(error),
        extra=wanted.log_fields,
    )
    if on_not_acquired.receivers:
        fields = {
            "key": wanted.terms.key,
            "owner": wanted.owner,
            "waited": waited,
            "attempts": effort.attempts,
            "error": error,
        }
        _send(on_not_acquired, wanted, fields)


def renewed(hold: Hold) -> None:
    """Tell that a claim was renewed, soon and on another thread."""
    _log_renewed(hold)
    if on_renewed.receivers:
        _tell_soon(hold, _renewed(hold, won_back=False))


def note_won_back(hold: Hold) -> None:
    """Note the event of a lost lock that is held again, where its state changes: as `note_lost`."""
    if on_renewed.receivers:
        hold.events.put(_renewed(hold, won_back=True))


def won_back(hold: Hold) -> None:
    """Tell that a lost lock is held again, as was noted, on this thread."""
    _log_renewed(hold)
    hold.events.report()


def _log_renewed(hold: Hold) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s renewed by %s", *_who(hold.wanted), extra=hold.log_fields)


def _renewed(hold: Hold, *, won_back: bool) -> Event:
    more = {"expires_at": hold.tenure.expires_at, "won_back": won_back}
    return Event(on_renewed, _about(hold) | more, soon=not won_back)


def renewal_failed(hold: Hold, error: BaseException) -> None:
    """Tell that a renewal failed, soon and on another thread."""
    _log.warning(
        "renewal of %s by %s failed: %s",
        *(*_who(hold.wanted), one_line(error)),
        extra=hold.log_fields,
    )
    if on_renewal_failed.receivers:
        more = {"expires_at": hold.tenure.expires_at, "error": error}
        _tell_soon(hold, Event(on_renewal_failed, _about(hold) | more, soon=True))


def _tell_soon(hold: Hold, event: Event) -> None:
    if not hold.events.put_behind(event):
        hold.events.send(event)


def note_lost(hold: Hold) -> None:
    """Note the event of a loss, where its state changes: the acquisition's lock is kept."""
    if on_lost.receivers:
        taker = None if hold.taker is None else hold.taker.owner
        more = {"loss": hold.cause, "taker": taker, "held_for": _held_for(hold)}
        hold.events.put(Event(on_lost, _about(hold) | more))


def lost(holds: Sequence[Hold]) -> None:
    """Tell of losses that were noted, at once and each on a thread of its own: no receiver delays it."""
    for hold in holds:
        _log.warning("%s lost by %s: %s", *(*_who(hold.wanted), hold.why), extra=hold.log_fields)
        hold.events.report_aside()


def released(hold: Hold, error: BaseException | None = None) -> None:
    """Tell that a lock was given back, unless it was lost before.

    Args:
        hold: The acquisition.
        error: Why DynamoDB may not know: then the lock ends with its lease.
    """
    if hold.cause is not None:
        return
    if error is not None:
        _log.warning(
            "%s given up by %s, and ends with its lease: %r",
            *(*_who(hold.wanted), error),
            extra=hold.log_fields,
        )
    elif _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s released by %s", *_who(hold.wanted), extra=hold.log_fields)
    if on_released.receivers:
        more = {"held_for": _held_for(hold), "error": error}
        _tell_end(hold, Event(on_released, _about(hold) | more))


def handed_over(hold: Hold, heir: Hold | None = None) -> None:
    """Tell that a lock goes on with another holder: the next in line, or whoever has the ticket.

    Nothing if it was lost before: that was its end here.
    """
    if hold.cause is not None:
        return
    to = None if heir is None else heir.wanted.owner
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug(
            "%s handed over by %s to %s",
            *(*_who(hold.wanted), "the bearer of a ticket" if to is None else shown(to)),
            extra=hold.log_fields,
        )
    if on_handed_over.receivers:
        more = {
            "held_for": _held_for(hold),
            "to": to,
            "to_token": None if heir is None else heir.tenure.token,
            "to_fencing_token": None if heir is None else heir.fencing_token,
        }
        _tell_end(hold, Event(on_handed_over, _about(hold) | more))


def _tell_end(hold: Hold, event: Event) -> None:
    hold.events.add(event)
    hold.events.report()


def _who(wanted: Wanted) -> tuple[str, str]:
    """Return the key and the owner, as messages show them."""
    return shown(wanted.terms.key), shown(wanted.owner)


def _about(hold: Hold) -> dict[str, Any]:
    return {
        "key": hold.terms.key,
        "owner": hold.wanted.owner,
        "token": hold.tenure.token,
        "fencing_token": hold.fencing_token,
    }


def _held_for(hold: Hold) -> float:
    return max(0.0, local_clock().now() - hold.since)


# -- telling it ------------------------------------------------------------------------------------


def _send(
    signal: NamedSignal,
    wanted: Wanted,
    fields: dict[str, Any],
    caught: type[BaseException] = Exception,
) -> None:
    """Call each receiver; what one raises is logged, and hurts neither the others nor the lock.

    Args:
        signal: What to send.
        wanted: Of which lock; the signal's sender is its model.
        fields: The keyword arguments.
        caught: What is logged. On a thread of ours nothing else would see the rest.
    """
    sender: type[Model] = wanted.terms.model
    try:
        receivers = [] if signal.is_muted else list(signal.receivers_for(sender))
    except Exception:  # noqa: BLE001 - blinker's tables may change while they are read
        _log.exception("%s was not told of %s", signal.name, shown(wanted.terms.key))
        return
    for receiver in receivers:
        if wanted.process.left_behind:
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
                extra=wanted.log_fields,
            )


class Event(NamedTuple):
    """A signal to be sent.

    Attributes:
        signal: Which.
        fields: The keyword arguments.
        soon: Whether the thread that tells of renewals is to send it, in its own time.
    """

    signal: NamedSignal
    fields: dict[str, Any]
    soon: bool = False


class EventQueue:
    """The events of one acquisition, reported one after the other, in the order in which they happened.

    An event is noted under the lock under which the state changes, and reported later, under no lock: by
    whichever thread comes first, which then goes on until nothing is left. So two threads cannot report
    in another order than things happened, and a receiver that is slow, or calls the lock, delays the
    events behind it, of the same acquisition, and nothing else.

    Until `acquired` is reported, whoever acquires is the one who reports.

    Args:
        wanted: Which lock.
        changing: The lock under which the state changes.
    """

    __slots__ = ("_changing", "_noted", "_reporting", "_wanted")

    def __init__(self, wanted: Wanted, changing: threading.Lock) -> None:
        self._wanted = wanted
        self._changing = changing
        self._noted: tuple[Event, ...] = ()
        self._reporting = True

    def put(self, event: Event) -> None:
        """Note an event. The lock is kept; whoever does so reports it after that."""
        self._noted = (*self._noted, event)

    def add(self, event: Event) -> None:
        """Note an event of a state that changed before."""
        with self._changing:
            self.put(event)

    def put_behind(self, event: Event) -> bool:
        """Note an event behind those that others report; return whether there are any."""
        with self._changing:
            if self._reporting or self._noted:
                self.put(event)
                return True
            return False

    def report(self) -> None:
        """Report what was noted, on this thread, unless another is at it."""
        if self._is_ours():
            self.go_on()

    def report_aside(self) -> None:
        """Report what was noted, on a thread of its own, unless another is at it."""
        if self._is_ours():
            self._go_on_aside()

    def _is_ours(self) -> bool:
        with self._changing:
            if self._reporting or not self._noted:
                return False
            self._reporting = True
            return True

    def _go_on_aside(self) -> None:
        threads = self._wanted.process.threads
        threads.put("pynamodb-mutex-lost", partial(self.go_on, aside=True))
        threads.start()

    def go_on(self, *, aside: bool = False) -> None:
        """Report until nothing is left, and then leave it to others.

        Args:
            aside: Whether this is a thread of ours. A loss is reported by such a one alone.
        """
        while (event := self._first()) is not None:
            if event.signal is on_lost and not aside:
                self._go_on_aside()
                return
            with self._changing:
                self._noted = self._noted[1:]
            try:
                self.send(event, BaseException if aside else Exception)
            except BaseException:
                # a receiver was interrupted: what is behind its event is reported all the same
                self.go_on()
                raise

    def send(self, event: Event, caught: type[BaseException] = Exception) -> None:
        """Send a signal, or let the thread that tells of renewals do so (see `_send`)."""
        if event.soon:
            self._wanted.process.teller.put(event.signal, self._wanted, event.fields)
        else:
            _send(event.signal, self._wanted, event.fields, caught)

    def _first(self) -> Event | None:
        """Return what is to be reported next; None if that is left to others from now on."""
        with self._changing:
            self._reporting = bool(self._noted)
            return self._noted[0] if self._noted else None


class Teller:
    """Sends the signals of renewals, in their order, on a thread that it starts when there are any.

    A slow receiver delays those behind it, but no renewal.

    Args:
        threads: Starts the thread.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._changed = threading.Condition()
        self._untold: deque[tuple[NamedSignal, Wanted, dict[str, Any]]] = deque()
        self._runs = False

    def put(self, signal: NamedSignal, wanted: Wanted, fields: dict[str, Any]) -> None:
        """Send a signal soon; not at all if very many wait already."""
        with self._changed:
            full = len(self._untold) >= MOST_UNTOLD
            if not full:
                self._untold.append((signal, wanted, fields))
            if self._runs:
                self._changed.notify()
            else:
                self._threads.put("pynamodb-mutex-teller", self._run)
                self._runs = True
        self._threads.start()
        if full:
            _log.warning(
                "a receiver is too slow: %s of %s not told",
                *(signal.name, shown(wanted.terms.key)),
                extra=wanted.log_fields,
            )

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._untold:
                    self._changed.wait(LINGER)
                if not self._untold:
                    self._runs = False
                    return
                news = self._untold.popleft()
            _send(*news, caught=BaseException)
