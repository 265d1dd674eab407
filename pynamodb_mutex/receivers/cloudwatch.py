"""Metrics of locks for CloudWatch: lines of JSON in its embedded metric format, as Lambda logs them.

Needs neither a client nor a permission: CloudWatch Logs makes the metrics from the lines.

==================  ============================================================================
``Acquired``        1 for a lock acquired; with it ``WaitTime`` in seconds, ``Attempts``, and
                    ``Abandoned``, 1 if the previous holder never released it
``Contended``       1 for an acquisition that found the lock held
``Marked``          1 for a mark by which a writer holds new readers back
``NotAcquired``     1 for an acquisition that failed; with it ``WaitTime`` and ``Attempts``
``RenewalFailed``   1 for a renewal that failed
``Danger``          1 each time that little was left of a lease, and no renewal had helped
``Lost``            1 for a lock lost; with it ``HoldTime`` in seconds
``Released``        1 for a lock released; with it ``HoldTime``
``HandedOver``      1 for a lock handed over; with it ``HoldTime``
``OnceCalled``      1 for a call of ``once`` that has ended
``ClocksDisagree``  the number of answers that contradict earlier ones about the time
==================  ============================================================================

The dimension is ``table``, with ``key_label`` also ``table`` and ``key_label`` together, and for
``Lost`` also ``table`` and ``loss`` together, for ``OnceCalled`` ``table`` and ``outcome``. Key, owner and fencing token are properties of the line, to be
searched by CloudWatch Logs Insights; they are not metrics.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from pynamodb_mutex.receivers._receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

__all__ = ["CloudWatchReceiver", "install"]

_MEASURES = {
    "waited": ("WaitTime", "Seconds"),
    "held_for": ("HoldTime", "Seconds"),
    "attempts": ("Attempts", "Count"),
    "abandoned": ("Abandoned", "Count"),
}
"""Further metrics that signals carry, and their units, by the names of their arguments."""

_PROPERTIES = (
    *("abandoned_by", "holder", "holder_fencing_token", "readers", "remaining", "error", "loss"),
    *("taker", "to", "outcome", "endpoint", "behind"),
)
"""What else of a signal is written, unless it is None."""


def install(
    namespace: str = "pynamodb-mutex",
    *,
    stream: TextIO | None = None,
    key_label: Callable[[str], str] | None = None,
) -> CloudWatchReceiver:
    """Write a line for each event of your process's locks, except successful renewals.

    Args:
        namespace: Namespace of the metrics.
        stream: Where to write the lines; by default ``sys.stdout``, as it is at the time of each line.
        key_label: Your function that maps a key to a dimension with few values, for example to the key's prefix. CloudWatch
            charges each value as a metric.

    Returns:
        The receiver; call its ``uninstall`` to stop.

    Raises:
        ImportError: blinker is not installed.
    """
    return CloudWatchReceiver(namespace, stream, key_label)._connect()


class CloudWatchReceiver(Receiver):
    """The receiver that you get by `install`. As a context manager it is uninstalled at the end of your block."""

    def __init__(
        self, namespace: str, stream: TextIO | None, key_label: Callable[[str], str] | None
    ) -> None:
        """Use `install`."""
        super().__init__(key_label)
        self._namespace = namespace
        self._stream = stream

    def _receive(self, name: str, sender: type[Model], **event: Any) -> None:
        if name == "renewed":
            return
        table, *label = self._labels(sender, event["key"])
        first = name.title().replace("_", "")
        metrics, units = {first: event.get("answers", 1)}, {first: "Count"}
        for argument, (metric, unit) in _MEASURES.items():
            if argument in event:
                metrics[metric], units[metric] = float(event[argument]), unit
        more = {each: event[each] for each in _PROPERTIES if event.get(each) is not None}
        if name == "lost":
            more["loss"] = event["loss"].name
        line: dict[str, Any] = {
            "event": name,
            "table": table,
            "key": event["key"],
            "owner": event["owner"],
            "fencing_token": event.get("fencing_token"),
            **more,
            **metrics,
        }
        dimensions = [["table"]]
        if label:
            line["key_label"] = label[0]
            dimensions.append(["table", "key_label"])
        dimensions += [["table", each] for each in ("loss", "outcome") if each in line]
        described = [{"Name": metric, "Unit": unit} for metric, unit in units.items()]
        directive = {"Namespace": self._namespace, "Dimensions": dimensions, "Metrics": described}
        metadata = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
        stream = self._stream or sys.stdout
        # In one call, because other threads write to the stream as well. An error is written as its repr.
        stream.write(json.dumps({"_aws": metadata, **line}, default=repr) + "\n")
        stream.flush()
