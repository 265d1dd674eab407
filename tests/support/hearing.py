"""Receivers of signals: a listener to all, of some keys, and a slow one; and a callback for `on_lost`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from pynamodb_mutex import signals
from pynamodb_mutex._runtime.clock import local_clock

NAMES = (
    "acquired",
    "contended",
    "not_acquired",
    "renewed",
    "renewal_failed",
    "lost",
    "released",
    "handed_over",
)
GENEROUS = 60.0


class Event(NamedTuple):
    name: str
    sender: Any
    told: dict[str, Any]
    thread: threading.Thread


class Heard:
    """What was told of keys in which one of a test's own occurs."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def hear(self, name: str, sender: Any, **told: Any) -> None:
        if self.key in told["key"]:
            with self._changed:
                self.events.append(Event(name, sender, told, threading.current_thread()))
                self._changed.notify_all()

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event.told for event in self.events if event.name == name]

    def the(self, name: str) -> dict[str, Any]:
        """What was told by the one signal of a name; it may be about to come."""
        self.wait(name)
        (told,) = self.of(name)
        return told

    def wait(self, name: str, count: int = 1) -> Event:
        """Wait for so many signals of a name; return the last of them."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.of(name)) >= count, GENEROUS)
        assert came, f"{name} was not told: {self.names}"
        return [event for event in self.events if event.name == name][count - 1]

    def keys(self, name: str) -> list[str]:
        return sorted(told["key"] for told in self.of(name))


@contextmanager
def hearing(key: str) -> Iterator[Heard]:
    """Listen inside the block."""
    heard = Heard(key)
    with ExitStack() as stack:
        for name in NAMES:
            receiver = partial(heard.hear, name)
            stack.enter_context(getattr(signals, name).connected_to(receiver))
        yield heard


class Slow:
    """A receiver that returns, for one key, only when it may.

    Attributes:
        come: It was called.
        go: It may return.
    """

    def __init__(self, key: str) -> None:
        self.key, self.come, self.go = key, threading.Event(), threading.Event()

    def __call__(self, sender: Any, **told: Any) -> None:
        if told["key"] == self.key:
            self.come.set()
            assert self.go.wait(GENEROUS)


class OnLost:
    """A callback for `on_lost`, which notes its calls.

    Attributes:
        calls: The lock, the loss, the thread and the local time of each.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, threading.Thread, float]] = []
        self.came = threading.Semaphore(0)

    def __call__(self, lock: Any) -> None:
        self.calls.append((lock, lock.loss, threading.current_thread(), local_clock().now()))
        self.came.release()

    def wait(self) -> tuple[Any, Any, threading.Thread, float]:
        """Wait for a call that was not waited for yet; return the last one."""
        assert self.came.acquire(timeout=GENEROUS), "on_lost was not called"
        return self.calls[-1]

    @property
    def threads(self) -> list[str]:
        """The names of the threads that called it."""
        return [call[2].name for call in self.calls]

    @property
    def locks(self) -> list[Any]:
        """The locks that it was called with."""
        return [call[0] for call in self.calls]


def until(condition: Callable[[], Any]) -> Any:
    """Wait for a condition that others bring about; return what it then is."""
    deadline = time.monotonic() + GENEROUS
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)
    return found
