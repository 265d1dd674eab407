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
from typing import TYPE_CHECKING, Any, NoReturn

from pynamodb.signals import Namespace, signals_available  # type: ignore[attr-defined]  # imported there

from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._messages import one_line, shown, shown_owner
from pynamodb_mutex._threads import LINGER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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
        hold.announced.set()


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


def renewed(hold: Hold, *, won_back: bool = False) -> None:
    """Tell that a claim was renewed, soon and on another thread; at once, if the lock is held again."""
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s renewed by %s", *_who(hold.wanted), extra=hold.log_fields)
    if on_renewed.receivers:
        more = {"expires_at": hold.tenure.expires_at, "won_back": won_back}
        # what begins anew must not be told after its end
        tell = _send_in_order if won_back else _tell_soon
        tell(on_renewed, hold, _about(hold) | more)


def renewal_failed(hold: Hold, error: BaseException) -> None:
    """Tell that a renewal failed, soon and on another thread."""
    _log.warning(
        "renewal of %s by %s failed: %s",
        *(*_who(hold.wanted), one_line(error)),
        extra=hold.log_fields,
    )
    if on_renewal_failed.receivers:
        more = {"expires_at": hold.tenure.expires_at, "error": error}
        _tell_soon(on_renewal_failed, hold, _about(hold) | more)


def lost(holds: Sequence[Hold]) -> None:
    """Tell that locks were lost, at once and on a thread of its own: no receiver delays it."""
    for hold in holds:
        loss = hold.cause
        _log.warning(
            "%s lost by %s: %s",
            *(*_who(hold.wanted), None if loss is None else loss.value),
            extra=hold.log_fields,
        )
    if not on_lost.receivers:
        return
    untold = []
    for hold in holds:
        taker = None if hold.taker is None else hold.taker.owner
        more = {"loss": hold.cause, "taker": taker, "held_for": _held_for(hold)}
        news = (on_lost, hold.wanted, _about(hold) | more)
        if not hold.announced.defer(partial(_tell_losses, [news])):
            untold.append(news)
    if untold:
        _tell_losses(untold)


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
        _send_in_order(on_released, hold, _about(hold) | more)


def handed_over(hold: Hold, heir: Hold | None = None) -> None:
    """Tell that a lock goes on with another holder: the next in line, or whoever has the ticket."""
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
        _send_in_order(on_handed_over, hold, _about(hold) | more)


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


def _send_in_order(signal: NamedSignal, hold: Hold, fields: dict[str, Any]) -> None:
    """Send a signal on this thread, or if `acquired` is being told on another, after that."""
    tell = partial(_send, signal, hold.wanted, fields)
    if not hold.announced.defer(tell):
        tell()


def _tell_soon(signal: NamedSignal, hold: Hold, fields: dict[str, Any]) -> None:
    tell = partial(hold.wanted.process.teller.put, signal, hold.wanted, fields)
    if not hold.announced.defer(tell):
        tell()


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


def _tell_losses(news: list[tuple[NamedSignal, Wanted, dict[str, Any]]]) -> None:
    def tell() -> None:
        for each in news:
            _send(*each, caught=BaseException)

    threads = news[0][1].process.threads
    threads.put("pynamodb-mutex-lost", tell)
    threads.start()


class Announced:
    """Whether it was told that a lock was acquired. Until then nothing else is told of it.

    Args:
        changing: Kept while this changes.
    """

    __slots__ = ("_changing", "_untold")

    def __init__(self, changing: threading.Lock) -> None:
        self._changing = changing
        self._untold: tuple[Callable[[], None], ...] | None = ()

    def defer(self, tell: Callable[[], None]) -> bool:
        """Keep what is to be told for later; return whether it was not too late for that."""
        with self._changing:
            if self._untold is None:
                return False
            self._untold = (*self._untold, tell)
            return True

    def set(self) -> None:
        """Tell what was kept; from now on it is told at once."""
        with self._changing:
            untold, self._untold = self._untold or (), None
        for tell in untold:
            tell()


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
