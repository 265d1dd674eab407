"""Metrics of locks for Prometheus, by prometheus_client.

==============================================  =========  ===================================================
``pynamodb_mutex_acquired_total``               counter    locks acquired
``pynamodb_mutex_contended_total``              counter    acquisitions that found the lock held
``pynamodb_mutex_marked_total``                 counter    marks by which writers held new readers back
``pynamodb_mutex_not_acquired_total``           counter    acquisitions that failed; ``reason`` is
                                                           ``held`` or ``error``
``pynamodb_mutex_abandoned_total``              counter    locks taken over from a holder that never released
                                                           them
``pynamodb_mutex_lost_total``                   counter    locks lost; ``cause`` is the name of the ``Loss``
``pynamodb_mutex_renewal_failures_total``       counter    renewals that failed
``pynamodb_mutex_danger_total``                 counter    times that little was left of a lease, and no renewal
                                                           had helped
``pynamodb_mutex_once_called_total``            counter    calls of ``once`` that have ended; ``outcome`` is that
                                                           of `~pynamodb_mutex.signals.OnceCalled`
``pynamodb_mutex_clocks_disagree_total``        counter    answers that contradict earlier ones about the time: see
                                                           `~pynamodb_mutex.signals.clocks_disagree`
``pynamodb_mutex_wait_seconds``                 histogram  from the call until the lock was acquired
``pynamodb_mutex_hold_seconds``                 histogram  from the acquisition to its end, however it ended
``pynamodb_mutex_held``                         gauge      locks held by this process now
==============================================  =========  ===================================================

All have the label ``table``, and with ``key_label`` the label ``key``. Keys themselves are not used as labels,
because their number has no limit.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pynamodb_mutex.receivers._receiver import Held, Receiver, missing

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise missing(__name__, "prometheus_client", "prometheus") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model
    from typing_extensions import Unpack

    from pynamodb_mutex import signals

__all__ = ["PrometheusReceiver", "install"]

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)


def install(
    registry: CollectorRegistry = REGISTRY, *, key_label: Callable[[str], str] | None = None
) -> PrometheusReceiver:
    """Count the lock events of this process from now on.

    Args:
        registry: Registry for the metrics.
        key_label: Maps a key to a label with few values, such as the key's prefix. Without it, metrics are
            per table.

    Returns:
        The receiver; call its ``uninstall`` to stop.

    Raises:
        ImportError: If blinker or prometheus_client is not installed.
        ValueError: If a receiver is already installed in this registry.
    """
    return PrometheusReceiver(registry, key_label)._connect()


class PrometheusReceiver(Receiver):
    """The receiver that `install` returns. As a context manager it is uninstalled at the end of the block."""

    def __init__(self, registry: CollectorRegistry, key_label: Callable[[str], str] | None) -> None:
        """Use `install`."""
        super().__init__(key_label)
        self._registry = registry
        self._metrics: list[Any] = []
        self._acquired = self._metric(Counter, "acquired", "Locks acquired")
        self._contended = self._metric(
            Counter, "contended", "Acquisitions that found the lock held"
        )
        self._marked = self._metric(
            Counter, "marked", "Marks by which writers held new readers back"
        )
        self._not_acquired = self._metric(
            Counter, "not_acquired", "Acquisitions that failed", "reason"
        )
        self._abandoned = self._metric(
            Counter, "abandoned", "Locks taken over from a holder that never released them"
        )
        self._lost = self._metric(Counter, "lost", "Locks lost before they were released", "cause")
        self._failures = self._metric(Counter, "renewal_failures", "Renewals that failed")
        self._dangers = self._metric(
            Counter, "danger", "Times that little was left of a lease, and no renewal had helped"
        )
        self._called = self._metric(Counter, "once_called", "Calls of once that ended", "outcome")
        self._contradictions = self._metric(
            Counter, "clocks_disagree", "Answers that contradict earlier ones about the time"
        )
        self._waits = self._metric(
            Histogram, "wait_seconds", "Seconds until a lock was acquired", buckets=_SECONDS
        )
        self._holds = self._metric(
            Histogram, "hold_seconds", "Seconds for which locks were held", buckets=_SECONDS
        )
        self._gauge = self._metric(
            Gauge, "held", "Locks held by this process", multiprocess_mode="livesum"
        )
        self._held: Held[tuple[str, ...]] = Held(self._forget)

    def _metric(self, kind: Any, name: str, text: str, *labels: str, **options: Any) -> Any:
        names = ["table", *(["key"] if self._key_label else []), *labels]
        metric = kind(f"pynamodb_mutex_{name}", text, names, registry=self._registry, **options)
        self._metrics.append(metric)
        return metric

    def uninstall(self) -> None:
        """Stop receiving signals, and remove the metrics from the registry. Safe to call again."""
        super().uninstall()
        while self._metrics:
            self._registry.unregister(self._metrics.pop())

    def _forget(self, labels: tuple[str, ...]) -> None:
        # A forked child inherits the parent's gauge. In its mode for several processes, prometheus_client starts the
        # child's gauge at 0 by itself.
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            self._gauge.labels(*labels).dec()

    def acquired(self, sender: type[Model], **event: Unpack[signals.Acquired]) -> None:
        """Count a lock that was acquired, and how long that took."""
        labels = self._labels(sender, event["key"])
        self._held.add(event["token"], labels)
        self._gauge.labels(*labels).inc()
        self._acquired.labels(*labels).inc()
        self._waits.labels(*labels).observe(event["waited"])
        if event["abandoned"]:
            self._abandoned.labels(*labels).inc()

    def contended(self, sender: type[Model], **event: Unpack[signals.Contended]) -> None:
        """Count an acquisition that found the lock held."""
        self._contended.labels(*self._labels(sender, event["key"])).inc()

    def marked(self, sender: type[Model], **event: Unpack[signals.Marked]) -> None:
        """Count a writer that holds new readers back."""
        self._marked.labels(*self._labels(sender, event["key"])).inc()

    def not_acquired(self, sender: type[Model], **event: Unpack[signals.NotAcquired]) -> None:
        """Count an acquisition that failed."""
        reason = "held" if event["error"] is None else "error"
        self._not_acquired.labels(*self._labels(sender, event["key"]), reason).inc()

    def renewed(self, sender: type[Model], **event: Unpack[signals.Renewed]) -> None:
        """Count a lock as held again if this renewal won it back."""
        if event["won_back"]:
            # The lock was reported as lost, and the gauge lowered.
            labels = self._labels(sender, event["key"])
            self._held.add(event["token"], labels)
            self._gauge.labels(*labels).inc()

    def renewal_failed(self, sender: type[Model], **event: Unpack[signals.RenewalFailed]) -> None:
        """Count a renewal that failed."""
        self._failures.labels(*self._labels(sender, event["key"])).inc()

    def danger(self, sender: type[Model], **event: Unpack[signals.Danger]) -> None:
        """Count a lock that may soon be lost."""
        self._dangers.labels(*self._labels(sender, event["key"])).inc()

    def lost(self, sender: type[Model], **event: Unpack[signals.Lost]) -> None:
        """Count a lock that was lost, and for how long it was held."""
        labels = self._labels(sender, event["key"])
        self._lost.labels(*labels, event["loss"].name).inc()
        self._ended(labels, event["token"], event["held_for"])

    def released(self, sender: type[Model], **event: Unpack[signals.Released]) -> None:
        """Count for how long a lock was held that was released."""
        self._ended(self._labels(sender, event["key"]), event["token"], event["held_for"])

    def handed_over(self, sender: type[Model], **event: Unpack[signals.HandedOver]) -> None:
        """Count for how long a lock was held that was handed over."""
        self._ended(self._labels(sender, event["key"]), event["token"], event["held_for"])

    def once_called(self, sender: type[Model], **event: Unpack[signals.OnceCalled]) -> None:
        """Count a call of ``once`` that has ended."""
        self._called.labels(*self._labels(sender, event["key"]), event["outcome"]).inc()

    def clocks_disagree(self, sender: type[Model], **event: Unpack[signals.ClocksDisagree]) -> None:
        """Count answers that contradict earlier ones about the time."""
        labels = self._labels(sender, event["key"])
        self._contradictions.labels(*labels).inc(event["answers"])

    def _ended(self, labels: tuple[str, ...], token: str, held_for: float) -> None:
        self._holds.labels(*labels).observe(held_for)
        held = self._held.pop(token)
        if held is not None:
            self._gauge.labels(*held).dec()
