"""Metrics of locks for Prometheus, by prometheus_client.

==============================================  =========  ===================================================
``pynamodb_mutex_acquired_total``               counter    locks acquired
``pynamodb_mutex_contended_total``              counter    acquisitions that found the lock held
``pynamodb_mutex_marked_total``                 counter    marks by which writers held new readers back
``pynamodb_mutex_not_acquired_total``           counter    acquisitions that failed; ``outcome`` is
                                                           ``held`` or ``error``
``pynamodb_mutex_abandoned_total``              counter    locks taken over from a holder that never released
                                                           them
``pynamodb_mutex_lost_total``                   counter    locks lost; ``loss`` is the name of the ``Loss``
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

from pynamodb_mutex.receivers._receiver import (
    BUCKETS,
    COUNTERS,
    DURATIONS,
    LABELS,
    Counting,
    missing,
)

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise missing(__name__, "prometheus_client", "prometheus") from error

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PrometheusReceiver", "install"]


def install(
    registry: CollectorRegistry = REGISTRY, *, key_label: Callable[[str], str] | None = None
) -> PrometheusReceiver:
    """Count the lock events of your process from now on.

    Args:
        registry: Registry for the metrics.
        key_label: Your function that maps a key to a label with few values, for example to the key's prefix. Without it, you
            get metrics per table.

    Returns:
        The receiver; call its ``uninstall`` to stop.

    Raises:
        ImportError: blinker or prometheus_client is not installed.
        ValueError: A receiver is already installed in this registry.
    """
    return PrometheusReceiver(registry, key_label)._connect()


class PrometheusReceiver(Counting):
    """The receiver that you get by `install`. As a context manager it is uninstalled at the end of your block."""

    def __init__(self, registry: CollectorRegistry, key_label: Callable[[str], str] | None) -> None:
        """Use `install`."""
        super().__init__(key_label)
        self._registry = registry
        self._metrics: dict[str, Any] = {}
        for name, text in COUNTERS.items():
            self._register(Counter, name, text, *filter(None, [LABELS.get(name)]))
        for name, text in DURATIONS.items():
            self._register(Histogram, f"{name}_seconds", text, buckets=BUCKETS)
        self._register(Gauge, "held", "Locks held by this process", multiprocess_mode="livesum")

    def _register(self, kind: Any, name: str, text: str, *labels: str, **options: Any) -> None:
        names = ["table", *(["key"] if self._key_label else []), *labels]
        metric = kind(f"pynamodb_mutex_{name}", text, names, registry=self._registry, **options)
        self._metrics[name] = metric

    def uninstall(self) -> None:
        """Stop receiving signals, and remove the metrics from the registry. You may call it again."""
        super().uninstall()
        while self._metrics:
            self._registry.unregister(self._metrics.popitem()[1])

    def _count(
        self, name: str, labels: tuple[str, ...], label: str | None = None, number: int = 1
    ) -> None:
        more = () if label is None else (label,)
        self._metrics[name].labels(*labels, *more).inc(number)

    def _measure(self, name: str, labels: tuple[str, ...], seconds: float) -> None:
        self._metrics[f"{name}_seconds"].labels(*labels).observe(seconds)

    def _count_held(self, labels: tuple[str, ...], change: int) -> None:
        self._metrics["held"].labels(*labels).inc(change)

    def _forget(self, labels: tuple[str, ...]) -> None:
        # A forked child inherits the parent's gauge. In its mode for several processes, prometheus_client starts the
        # child's gauge at 0 by itself.
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            super()._forget(labels)
