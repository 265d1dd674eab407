"""Spans and metrics of locks for OpenTelemetry.

The span ``acquire TABLE`` lasts from the call of ``acquire`` to its end; the span ``hold TABLE`` from then until
the lock is released, handed over or lost. Both are children of the span that is current where the lock is
acquired; the second has a link to the first. A loss sets the second one's status to error.

=======================================  ==================  =================================================
``pynamodb_mutex.acquired``              counter             locks acquired
``pynamodb_mutex.contended``             counter             acquisitions that found the lock held
``pynamodb_mutex.marked``                counter             marks by which writers held new readers back
``pynamodb_mutex.not_acquired``          counter             acquisitions that failed;
                                                             ``pynamodb_mutex.outcome`` is ``held`` or ``error``
``pynamodb_mutex.abandoned``             counter             locks taken over from a holder that never
                                                             released them
``pynamodb_mutex.lost``                  counter             locks lost; ``pynamodb_mutex.loss`` is the name of
                                                             the ``Loss``
``pynamodb_mutex.renewal_failures``      counter             renewals that failed
``pynamodb_mutex.danger``                counter             times that little was left of a lease, and no
                                                             renewal had helped
``pynamodb_mutex.once_called``           counter             calls of ``once`` that have ended;
                                                             ``pynamodb_mutex.outcome`` is that of
                                                             `~pynamodb_mutex.signals.OnceCalled`
``pynamodb_mutex.clocks_disagree``       counter             answers that contradict earlier ones about the time:
                                                             see `~pynamodb_mutex.signals.clocks_disagree`
``pynamodb_mutex.wait.duration``         histogram, seconds  from the call until the lock was acquired
``pynamodb_mutex.hold.duration``         histogram, seconds  from the acquisition to its end, however it ended
``pynamodb_mutex.held``                  up-down counter     locks held by this process now
=======================================  ==================  =================================================

Metrics have the attributes ``db.system.name`` and ``db.collection.name`` (the table), and with ``key_label``
``pynamodb_mutex.key_label``. The keys themselves, of which there may be any number, are attributes of spans
only: ``pynamodb_mutex.key``, next to ``.owner``, ``.fencing_token``, ``.token``, ``.attempts``, ``.outcome``,
``.abandoned_by`` and ``.loss``.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb_mutex.receivers._receiver import Held, Receiver, missing

try:
    from opentelemetry import metrics, trace
except ImportError as error:
    raise missing(__name__, "opentelemetry-api", "opentelemetry") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider
    from pynamodb.models import Model
    from typing_extensions import Unpack

    from pynamodb_mutex import signals

__all__ = ["OpenTelemetryReceiver", "install"]

_OURS = "pynamodb_mutex"
_BUCKETS = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600]


def install(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    key_label: Callable[[str], str] | None = None,
) -> OpenTelemetryReceiver:
    """Trace and count the lock events of this process from now on.

    Args:
        tracer_provider: Receives the spans; the global one by default.
        meter_provider: Receives the metrics; the global one by default.
        key_label: Maps a key to an attribute of metrics with few values, such as the key's prefix.

    Returns:
        The receiver; call its ``uninstall`` to stop.

    Raises:
        ImportError: If blinker or opentelemetry-api is not installed.
    """
    return OpenTelemetryReceiver(tracer_provider, meter_provider, key_label)._connect()


class _Holding(NamedTuple):
    attributes: dict[str, str]
    span: Span | None


class OpenTelemetryReceiver(Receiver):
    """The receiver that `install` returns. As a context manager it is uninstalled at the end of the block."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        key_label: Callable[[str], str] | None,
    ) -> None:
        """Use `install`."""
        super().__init__(key_label)
        ours = version("pynamodb-mutex")
        self._tracer = trace.get_tracer(_OURS, ours, tracer_provider)
        meter = metrics.get_meter(_OURS, ours, meter_provider)

        def count(name: str, text: str) -> metrics.Counter:
            return meter.create_counter(f"{_OURS}.{name}", "{lock}", text)

        def measure(name: str, text: str) -> metrics.Histogram:
            return meter.create_histogram(
                f"{_OURS}.{name}", "s", text, explicit_bucket_boundaries_advisory=_BUCKETS
            )

        self._acquired = count("acquired", "Locks acquired")
        self._contended = count("contended", "Acquisitions that found the lock held")
        self._marked = count("marked", "Marks by which writers held new readers back")
        self._not_acquired = count("not_acquired", "Acquisitions that failed")
        self._abandoned = count(
            "abandoned", "Locks taken over from a holder that never released them"
        )
        self._lost = count("lost", "Locks lost before they were released")
        self._failures = count("renewal_failures", "Renewals that failed")
        self._dangers = count(
            "danger", "Times that little was left of a lease, and no renewal had helped"
        )
        self._called = meter.create_counter(
            f"{_OURS}.once_called", "{call}", "Calls of once that ended"
        )
        self._contradictions = meter.create_counter(
            f"{_OURS}.clocks_disagree", "{answer}", "Answers that contradict earlier ones"
        )
        self._waits = measure("wait.duration", "Time until a lock was acquired")
        self._holds = measure("hold.duration", "Time for which locks were held")
        self._now_held = meter.create_up_down_counter(
            f"{_OURS}.held", "{lock}", "Locks held by this process"
        )
        # A forked child only takes the locks of its parent out of the count. Their spans are for the parent to end.
        self._held: Held[_Holding] = Held(self._uncount)

    def uninstall(self) -> None:
        """Stop receiving signals, and end the spans of locks that are held. May be called again."""
        super().uninstall()
        for holding in self._held.clear():
            self._uncount(holding)
            if holding.span is not None:
                holding.span.end()

    def acquired(self, sender: type[Model], **event: Unpack[signals.Acquired]) -> None:
        """Count a lock that was acquired, end the span of the acquisition, and start that of the hold."""
        attributes = self._attributes(sender, event["key"])
        self._acquired.add(1, attributes)
        self._waits.record(event["waited"], attributes)
        if event["abandoned"]:
            self._abandoned.add(1, attributes)
        more = {
            "token": event["token"],
            "fencing_token": event["fencing_token"],
            "abandoned_by": event["abandoned_by"],
        }
        waiting = self._waited(sender, event, {**more, "outcome": "acquired"})
        waiting.end()
        holding = self._span(
            "hold", sender, event, more, links=[trace.Link(waiting.get_span_context())]
        )
        self._now_held.add(1, attributes)
        self._held.add(event["token"], _Holding(attributes, holding))

    def contended(self, sender: type[Model], **event: Unpack[signals.Contended]) -> None:
        """Count an acquisition that found the lock held."""
        self._contended.add(1, self._attributes(sender, event["key"]))

    def marked(self, sender: type[Model], **event: Unpack[signals.Marked]) -> None:
        """Count a writer that holds new readers back."""
        self._marked.add(1, self._attributes(sender, event["key"]))

    def not_acquired(self, sender: type[Model], **event: Unpack[signals.NotAcquired]) -> None:
        """Count an acquisition that failed, and end its span."""
        error = event["error"]
        outcome = "held" if error is None else "error"
        attributes = self._attributes(sender, event["key"])
        self._not_acquired.add(1, {**attributes, f"{_OURS}.outcome": outcome})
        waiting = self._waited(sender, event, {"outcome": outcome})
        _blame(waiting, error)
        waiting.end()

    def renewed(self, sender: type[Model], **event: Unpack[signals.Renewed]) -> None:
        """Count a lock as held again if this renewal won it back."""
        if event["won_back"]:
            # The lock was reported as lost, and counted as such: its span has ended, and it is held again without one.
            attributes = self._attributes(sender, event["key"])
            self._now_held.add(1, attributes)
            self._held.add(event["token"], _Holding(attributes, None))

    def renewal_failed(self, sender: type[Model], **event: Unpack[signals.RenewalFailed]) -> None:
        """Count a renewal that failed."""
        self._failures.add(1, self._attributes(sender, event["key"]))

    def danger(self, sender: type[Model], **event: Unpack[signals.Danger]) -> None:
        """Count a lock that may soon be lost."""
        self._dangers.add(1, self._attributes(sender, event["key"]))

    def lost(self, sender: type[Model], **event: Unpack[signals.Lost]) -> None:
        """Count a lock that was lost, and end its span with an error."""
        loss = {f"{_OURS}.loss": event["loss"].name}
        self._lost.add(1, {**self._attributes(sender, event["key"]), **loss})
        span = self._ended(sender, event)
        if span is not None:
            span.set_attributes(loss)
            span.set_status(trace.StatusCode.ERROR, event["loss"].value)
            span.end()

    def released(self, sender: type[Model], **event: Unpack[signals.Released]) -> None:
        """Record for how long a lock was held that was released, and end its span."""
        span = self._ended(sender, event)
        if span is not None:
            _blame(span, event["error"])
            span.end()

    def handed_over(self, sender: type[Model], **event: Unpack[signals.HandedOver]) -> None:
        """Record for how long a lock was held that was handed over, and end its span."""
        span = self._ended(sender, event)
        if span is not None:
            span.set_attribute(f"{_OURS}.to", event["to"] or "a ticket")
            span.end()

    def once_called(self, sender: type[Model], **event: Unpack[signals.OnceCalled]) -> None:
        """Count a call of ``once`` that has ended."""
        outcome = {f"{_OURS}.outcome": event["outcome"]}
        self._called.add(1, {**self._attributes(sender, event["key"]), **outcome})

    def clocks_disagree(self, sender: type[Model], **event: Unpack[signals.ClocksDisagree]) -> None:
        """Count answers that contradict earlier ones about the time."""
        self._contradictions.add(event["answers"], self._attributes(sender, event["key"]))

    def _attributes(self, sender: type[Model], key: str) -> dict[str, str]:
        table, *label = self._labels(sender, key)
        attributes = {"db.system.name": "aws.dynamodb", "db.collection.name": table}
        return attributes | ({f"{_OURS}.key_label": label[0]} if label else {})

    def _span(
        self, what: str, sender: type[Model], event: Any, more: Mapping[str, Any], **options: Any
    ) -> Span:
        attributes: dict[str, Any] = self._attributes(sender, event["key"])
        ours = {"key": event["key"], "owner": event["owner"], **more}
        attributes |= {
            f"{_OURS}.{name}": value for name, value in ours.items() if value is not None
        }
        name = f"{what} {attributes['db.collection.name']}"
        return self._tracer.start_span(name, attributes=attributes, **options)

    def _waited(self, sender: type[Model], event: Any, more: Mapping[str, Any]) -> Span:
        """Return the span of an acquisition that ends now. No signal reports its start, so it is made at the end."""
        more = {**more, "attempts": event["attempts"]}
        start = time.time_ns() - int(event["waited"] * 1e9)
        return self._span("acquire", sender, event, more, start_time=start)

    def _ended(self, sender: type[Model], event: Any) -> Span | None:
        """Record that a lock is no longer held; return its span, None if it has none."""
        self._holds.record(event["held_for"], self._attributes(sender, event["key"]))
        holding = self._held.pop(event["token"])
        if holding is None:
            return None
        self._uncount(holding)
        return holding.span

    def _uncount(self, holding: _Holding) -> None:
        self._now_held.add(-1, holding.attributes)


def _blame(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, str(error))
