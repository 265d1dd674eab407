"""Metrics of locks for CloudWatch: lines of JSON in its embedded metric format, as Lambda logs them.

Needs neither a client nor a permission: CloudWatch Logs makes the metrics from the lines.

==================  ============================================================================
``Acquired``        1 for a lock acquired; with it ``WaitTime`` in seconds, ``Attempts``, and
                    ``Abandoned``, 1 if the previous holder never released it
``Contended``       1 for an acquisition that found the lock held
``Marked``          1 for a mark by which a writer holds new readers back
``NotAcquired``     1 for an acquisition that failed; with it ``WaitTime``
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
    from typing_extensions import Unpack

    from pynamodb_mutex import signals

__all__ = ["CloudWatchReceiver", "install"]

_UNITS = {"WaitTime": "Seconds", "HoldTime": "Seconds"}


def install(
    namespace: str = "pynamodb-mutex",
    *,
    stream: TextIO | None = None,
    key_label: Callable[[str], str] | None = None,
) -> CloudWatchReceiver:
    """Write a line for each event of this process's locks, except successful renewals.

    Args:
        namespace: Namespace of the metrics.
        stream: Where to write the lines; by default ``sys.stdout``, as it is at the time of each line.
        key_label: Maps a key to a dimension with few values, such as the key's prefix. CloudWatch charges
            each value as a metric.

    Returns:
        The receiver; call its ``uninstall`` to stop.

    Raises:
        ImportError: If blinker is not installed.
    """
    return CloudWatchReceiver(namespace, stream, key_label)._connect()


class CloudWatchReceiver(Receiver):
    """The receiver that `install` returns. As a context manager it is uninstalled at the end of the block."""

    def __init__(
        self, namespace: str, stream: TextIO | None, key_label: Callable[[str], str] | None
    ) -> None:
        """Use `install`."""
        super().__init__(key_label)
        self._namespace = namespace
        self._stream = stream

    def acquired(self, sender: type[Model], **event: Unpack[signals.Acquired]) -> None:
        """Write the line for a lock that was acquired."""
        more: dict[str, Any] = (
            {} if not event["abandoned"] else {"abandoned_by": event["abandoned_by"]}
        )
        metrics = {
            "Acquired": 1,
            "WaitTime": event["waited"],
            "Attempts": event["attempts"],
            "Abandoned": int(event["abandoned"]),
        }
        self._write(sender, "acquired", event, metrics, more)

    def contended(self, sender: type[Model], **event: Unpack[signals.Contended]) -> None:
        """Write the line for an acquisition that found the lock held."""
        more = {
            "holder": event["holder"],
            "holder_fencing_token": event["holder_fencing_token"],
        }
        self._write(sender, "contended", event, {"Contended": 1}, more)

    def marked(self, sender: type[Model], **event: Unpack[signals.Marked]) -> None:
        """Write the line for a writer that holds new readers back."""
        self._write(sender, "marked", event, {"Marked": 1}, {"readers": event["readers"]})

    def not_acquired(self, sender: type[Model], **event: Unpack[signals.NotAcquired]) -> None:
        """Write the line for an acquisition that failed."""
        metrics = {"NotAcquired": 1, "WaitTime": event["waited"]}
        self._write(sender, "not_acquired", event, metrics, _error(event["error"]))

    def renewal_failed(self, sender: type[Model], **event: Unpack[signals.RenewalFailed]) -> None:
        """Write the line for a renewal that failed."""
        more = _error(event["error"])
        self._write(sender, "renewal_failed", event, {"RenewalFailed": 1}, more)

    def danger(self, sender: type[Model], **event: Unpack[signals.Danger]) -> None:
        """Write the line for a lock that may soon be lost."""
        more = {"remaining": event["remaining"]}
        self._write(sender, "danger", event, {"Danger": 1}, more)

    def lost(self, sender: type[Model], **event: Unpack[signals.Lost]) -> None:
        """Write the line for a lock that was lost."""
        metrics = {"Lost": 1, "HoldTime": event["held_for"]}
        more = {"loss": event["loss"].name, "taker": event["taker"]}
        self._write(sender, "lost", event, metrics, more)

    def released(self, sender: type[Model], **event: Unpack[signals.Released]) -> None:
        """Write the line for a lock that was released."""
        metrics = {"Released": 1, "HoldTime": event["held_for"]}
        self._write(sender, "released", event, metrics, _error(event["error"]))

    def handed_over(self, sender: type[Model], **event: Unpack[signals.HandedOver]) -> None:
        """Write the line for a lock that was handed over."""
        metrics = {"HandedOver": 1, "HoldTime": event["held_for"]}
        self._write(sender, "handed_over", event, metrics, {"to": event["to"]})

    def once_called(self, sender: type[Model], **event: Unpack[signals.OnceCalled]) -> None:
        """Write the line for a call of ``once`` that has ended."""
        more = {"outcome": event["outcome"]}
        self._write(sender, "once_called", event, {"OnceCalled": 1}, more)

    def clocks_disagree(self, sender: type[Model], **event: Unpack[signals.ClocksDisagree]) -> None:
        """Write the line for answers that contradict earlier ones about the time."""
        more = {"endpoint": event["endpoint"], "behind": event["behind"]}
        self._write(sender, "clocks_disagree", event, {"ClocksDisagree": event["answers"]}, more)

    def _write(
        self,
        sender: type[Model],
        name: str,
        event: Any,
        metrics: dict[str, float],
        more: dict[str, Any],
    ) -> None:
        table, *label = self._labels(sender, event["key"])
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
        dimensions += [["table", name] for name in ("loss", "outcome") if name in line]
        described = [{"Name": each, "Unit": _UNITS.get(each, "Count")} for each in metrics]
        directive = {"Namespace": self._namespace, "Dimensions": dimensions, "Metrics": described}
        metadata = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
        stream = self._stream or sys.stdout
        # In one call, because other threads write to the stream as well.
        stream.write(json.dumps({"_aws": metadata, **line}) + "\n")
        stream.flush()


def _error(error: BaseException | None) -> dict[str, Any]:
    return {} if error is None else {"error": repr(error)}
