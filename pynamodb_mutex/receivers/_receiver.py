"""What the receivers share: connecting to the signals, and a record of the locks that are held.

Each receiver is a module of its own next to this one. The signals and what they carry are in `pynamodb_mutex.signals`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb_mutex._lock.runtime.notifications import SIGNALS
from pynamodb_mutex.signals import signals_available

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pynamodb.models import Model
    from typing_extensions import Self

T = TypeVar("T")


def missing(module: str, what: str, extra: str) -> ImportError:
    """Return the error that names a library that is not installed, and the extra that installs it."""
    return ImportError(f"{module} needs {what}: pip install 'pynamodb-mutex[{extra}]'")


class Receiver:
    """Receives signals until it is uninstalled. As a context manager it is uninstalled at the end of the block.

    A subclass receives the signals for which it has a method of the same name.
    """

    def __init__(self, key_label: Callable[[str], str] | None) -> None:
        """Use ``install``."""
        if not signals_available:
            raise missing(type(self).__module__, "blinker", "signals")
        self._key_label = key_label

    def _connect(self) -> Self:
        for name, signal in SIGNALS.items():
            method = getattr(self, name, None)
            if method is not None:
                # Not weakly: many callers do not keep the receiver that `install` returns.
                signal.connect(method, weak=False)
        return self

    def uninstall(self) -> None:
        """Stop receiving signals. What was counted remains. Safe to call again."""
        for name, signal in SIGNALS.items():
            method = getattr(self, name, None)
            if method is not None:
                signal.disconnect(method)

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


class Held(Generic[T]):
    """A value for each lock that is held, by the lock's token, until the lock's end is reported.

    Uses no `threading.Lock`, which a fork could leave locked in the child: each step is one dict operation.

    Args:
        forget: Called in a forked child with the value of each lock of the parent, which the child does not hold.
    """

    def __init__(self, forget: Callable[[T], None]) -> None:
        self._held: dict[str, T] = {}
        self._process = os.getpid()
        self._forget = forget

    def add(self, token: str, what: T) -> None:
        """Add the value of a lock that is held from now on."""
        self._forget_parents()
        self._held[token] = what

    def pop(self, token: str) -> T | None:
        """Remove a lock whose end was reported, and return its value; None for one acquired before ``install``."""
        self._forget_parents()
        return self._held.pop(token, None)

    def clear(self) -> list[T]:
        """Remove all locks, and return their values."""
        # A forked child that leaves a block with the receiver would end the spans of its parent's locks.
        self._forget_parents()
        held, self._held = self._held, {}
        return list(held.values())

    def _forget_parents(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            for each in self.clear():
                self._forget(each)
