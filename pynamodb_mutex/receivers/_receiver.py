"""What the receivers share: connecting to the signals, and a record of the locks that are held.

Each receiver is a module of its own next to this one. The signals and what they carry are in `pynamodb_mutex.signals`.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb_mutex._lock.runtime.notifications import SIGNALS
from pynamodb_mutex.signals import signals_available

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pynamodb.models import Model
    from typing_extensions import Self


def missing(module: str, what: str, extra: str) -> ImportError:
    """Return the error that names a library that is not installed, and the extra that installs it."""
    return ImportError(f"{module} needs {what}: pip install 'pynamodb-mutex[{extra}]'")


COUNTERS = {
    "acquired": "Locks acquired",
    "contended": "Acquisitions that found the lock held",
    "marked": "Marks by which writers held new readers back",
    "not_acquired": "Acquisitions that failed",
    "abandoned": "Locks taken over from a holder that never released them",
    "lost": "Locks lost before they were released",
    "renewal_failures": "Renewals that failed",
    "danger": "Times that little was left of a lease, and no renewal had helped",
    "once_called": "Calls of once that ended",
    "clocks_disagree": "Answers that contradict earlier ones about the time",
}
"""What is counted, by name: that of the signal, if there is one."""

LABELS = {"not_acquired": "outcome", "lost": "loss", "once_called": "outcome"}
"""Labels by which counters are divided, besides the table."""

DURATIONS = {
    "wait": "Time until a lock was acquired",
    "hold": "Time for which locks were held",
}
"""What is measured in seconds, by name."""

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""Bounds of the histograms of these, in seconds."""


class Receiver:
    """Receives signals until it is uninstalled. As a context manager it is uninstalled at the end of the block."""

    def __init__(self, key_label: Callable[[str], str] | None) -> None:
        """Use ``install``."""
        if not signals_available:
            raise missing(type(self).__module__, "blinker", "signals")
        self._key_label = key_label
        self._receivers = {name: partial(self._receive, name) for name in SIGNALS}

    def _receive(self, name: str, sender: type[Model], **event: Any) -> None:
        """Receive the signal of this name."""

    def _connect(self) -> Self:
        for name, signal in SIGNALS.items():
            # Not weakly: many callers do not keep the receiver that `install` returns.
            signal.connect(self._receivers[name], weak=False)
        return self

    def uninstall(self) -> None:
        """Stop receiving signals. Your counts remain. You may call it again."""
        for name, signal in SIGNALS.items():
            signal.disconnect(self._receivers[name])

    def __enter__(self) -> Self:
        """Return the receiver."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Uninstall the receiver."""
        self.uninstall()

    def _labels(self, sender: type[Model], key: str) -> tuple[str, ...]:
        """Return the table and, if there is a ``key_label``, the label that it gives the key; never the key itself.

        Without a key, the label is "-": for CloudWatch it must not be empty.
        """
        table: Any = sender.Meta
        if self._key_label is None:
            return (table.table_name,)
        return (table.table_name, str(self._key_label(key)) if key else "-")


class Holding(NamedTuple):
    """A lock that is held: the labels with which it is counted, and what `Counting._begin` returned."""

    labels: tuple[str, ...]
    span: Any


class Held:
    """The locks that are held, by their tokens, until their ends are reported.

    Uses no `threading.Lock`, which a fork could leave locked in the child: each step is one dict operation.

    Args:
        forget: Called in a forked child with the labels of each lock of the parent, which the child does not hold.
    """

    def __init__(self, forget: Callable[[tuple[str, ...]], None]) -> None:
        self._held: dict[str, Holding] = {}
        self._process = os.getpid()
        self._forget = forget

    def add(self, token: str, holding: Holding) -> None:
        """Add a lock that is held from now on."""
        self._forget_parents()
        self._held[token] = holding

    def pop(self, token: str) -> Holding | None:
        """Remove a lock whose end was reported, and return it; None for one acquired before ``install``."""
        self._forget_parents()
        return self._held.pop(token, None)

    def clear(self) -> list[Holding]:
        """Remove all locks, and return them."""
        # A forked child that leaves a block with the receiver would end the spans of its parent's locks.
        self._forget_parents()
        held, self._held = self._held, {}
        return list(held.values())

    def _forget_parents(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            for holding in self.clear():
                self._forget(holding.labels)


class Counting(Receiver):
    """A receiver for a system whose counters and histograms are registered, and changed one by one."""

    def __init__(self, key_label: Callable[[str], str] | None) -> None:
        super().__init__(key_label)
        self._held = Held(self._forget)

    def _receive(self, name: str, sender: type[Model], **event: Any) -> None:
        labels = self._labels(sender, event["key"])
        counter = "renewal_failures" if name == "renewal_failed" else name
        if counter in COUNTERS:
            self._count(counter, labels, label_of(name, event), event.get("answers", 1))
        if name == "acquired":
            self._measure("wait", labels, event["waited"])
            if event["abandoned"]:
                self._count("abandoned", labels)
        if name == "acquired" or event.get("won_back"):
            self._held.add(event["token"], Holding(labels, self._begin(name, sender, event)))
            self._count_held(labels, 1)
        if "held_for" in event:  # lost, released or handed over
            self._measure("hold", labels, event["held_for"])
            holding = self._held.pop(event["token"])
            if holding is not None:
                self._count_held(holding.labels, -1)
                self._end(name, event, holding)

    def _count(
        self, name: str, labels: tuple[str, ...], label: str | None = None, number: int = 1
    ) -> None:
        """Count something; the label is its value of that in `LABELS`, None if it has none there."""

    def _measure(self, name: str, labels: tuple[str, ...], seconds: float) -> None:
        """Record a duration."""

    def _count_held(self, labels: tuple[str, ...], change: int) -> None:
        """Change how many locks are held."""

    def _forget(self, labels: tuple[str, ...]) -> None:
        """Take a lock of the parent out of what a forked child holds."""
        self._count_held(labels, -1)

    def _begin(self, name: str, sender: type[Model], event: Any) -> Any:
        """Return what `_end` needs of a lock that is held from now on."""

    def _end(self, name: str, event: Any, holding: Holding) -> None:
        """End what `_begin` has begun."""


def label_of(name: str, event: Any) -> str | None:
    """Return the value of a counter's label in `LABELS`; None if it has none."""
    if name == "not_acquired":
        return "held" if event["error"] is None else "error"
    label: str | None = event["loss"].name if name == "lost" else event.get("outcome")
    return label
