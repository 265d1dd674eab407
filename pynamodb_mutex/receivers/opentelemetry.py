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
from typing import TYPE_CHECKING, Any

from pynamodb_mutex.receivers._receiver import (
    BUCKETS,
    COUNTERS,
    DURATIONS,
    LABELS,
    Counting,
    Holding,
    label_of,
    missing,
)

try:
    from opentelemetry import metrics, trace
except ImportError as error:
    raise missing(__name__, "opentelemetry-api", "opentelemetry") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Span, TracerProvider
    from pynamodb.models import Model

__all__ = ["OpenTelemetryReceiver", "install"]

_OURS = "pynamodb_mutex"
_UNITS = {"once_called": "{call}", "clocks_disagree": "{answer}"}
"""Units of counters that do not count locks."""


def install(
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    key_label: Callable[[str], str] | None = None,
) -> OpenTelemetryReceiver:
    """Trace and count the lock events of your process from now on.

    Args:
        tracer_provider: Receives the spans; the global one by default.
        meter_provider: Receives the metrics; the global one by default.
        key_label: Your function that maps a key to an attribute of metrics with few values, for example to the key's prefix.

    Returns:
        The receiver; call its ``uninstall`` to stop.

    Raises:
        ImportError: blinker or opentelemetry-api is not installed.
    """
    return OpenTelemetryReceiver(tracer_provider, meter_provider, key_label)._connect()


class OpenTelemetryReceiver(Counting):
    """The receiver that you get by `install`. As a context manager it is uninstalled at the end of your block."""

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

        self._counters = {
            name: meter.create_counter(f"{_OURS}.{name}", _UNITS.get(name, "{lock}"), text)
            for name, text in COUNTERS.items()
        }
        buckets = {"explicit_bucket_boundaries_advisory": [*BUCKETS]}
        self._histograms = {
            name: meter.create_histogram(f"{_OURS}.{name}.duration", "s", text, **buckets)
            for name, text in DURATIONS.items()
        }
        self._now_held = meter.create_up_down_counter(
            f"{_OURS}.held", "{lock}", "Locks held by this process"
        )

    def uninstall(self) -> None:
        """Stop receiving signals, and end the spans of locks that you hold. You may call it again."""
        super().uninstall()
        for holding in self._held.clear():
            self._count_held(holding.labels, -1)
            if holding.span is not None:
                holding.span.end()

    def _receive(self, name: str, sender: type[Model], **event: Any) -> None:
        super()._receive(name, sender, **event)
        if name == "not_acquired":
            waiting = self._waited(sender, event, {"outcome": label_of(name, event)})
            _blame(waiting, event["error"])
            waiting.end()

    def _count(
        self, name: str, labels: tuple[str, ...], label: str | None = None, number: int = 1
    ) -> None:
        more = {} if label is None else {f"{_OURS}.{LABELS[name]}": label}
        self._counters[name].add(number, _attributes(labels) | more)

    def _measure(self, name: str, labels: tuple[str, ...], seconds: float) -> None:
        self._histograms[name].record(seconds, _attributes(labels))

    def _count_held(self, labels: tuple[str, ...], change: int) -> None:
        self._now_held.add(change, _attributes(labels))

    def _begin(self, name: str, sender: type[Model], event: Any) -> Span | None:
        """End the span of an acquisition, and return that of the hold."""
        if name != "acquired":
            # A lock that was won back was reported as lost: its span has ended, and it is held again without one.
            return None
        more = {name: event[name] for name in ("token", "fencing_token", "abandoned_by")}
        waiting = self._waited(sender, event, {**more, "outcome": "acquired"})
        waiting.end()
        links = [trace.Link(waiting.get_span_context())]
        return self._span("hold", sender, event, more, links=links)

    def _end(self, name: str, event: Any, holding: Holding) -> None:
        """End the span of a hold. Those of a parent process are for the parent to end."""
        span: Span | None = holding.span
        if span is None:
            return
        if name == "lost":
            span.set_attribute(f"{_OURS}.loss", event["loss"].name)
            span.set_status(trace.StatusCode.ERROR, event["loss"].value)
        if name == "handed_over":
            span.set_attribute(f"{_OURS}.to", event["to"] or "a ticket")
        _blame(span, event.get("error"))
        span.end()

    def _span(
        self, what: str, sender: type[Model], event: Any, more: Mapping[str, Any], **options: Any
    ) -> Span:
        attributes: dict[str, Any] = _attributes(self._labels(sender, event["key"]))
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


def _attributes(labels: tuple[str, ...]) -> dict[str, str]:
    names = ("db.collection.name", f"{_OURS}.key_label")
    return {"db.system.name": "aws.dynamodb", **dict(zip(names, labels, strict=False))}


def _blame(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(trace.StatusCode.ERROR, str(error))
