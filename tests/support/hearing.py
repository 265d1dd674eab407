"""Receivers of signals: a listener to all, of some keys, and a slow one; and a callback for `on_lost`."""

import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from pynamodb_mutex import signals
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex._runtime.notifications import RECEIVERS

GENEROUS = 60.0


class Event(NamedTuple):
    name: str
    sender: Any
    told: dict[str, Any]
    thread: threading.Thread


class Heard:
    """What was told of keys in which one of a test's own occurs."""

    def __init__(self, key):
        self.key = key
        self.events = []
        self._changed = threading.Condition()

    def hear(self, name, sender, **told):
        if self.key in told["key"]:
            with self._changed:
                self.events.append(Event(name, sender, told, threading.current_thread()))
                self._changed.notify_all()

    @property
    def names(self):
        return [event.name for event in self.events]

    def of(self, name):
        return [event.told for event in self.events if event.name == name]

    def the(self, name):
        """What was told by the one signal of a name; it may be about to come."""
        self.wait(name)
        (told,) = self.of(name)
        return told

    def wait(self, name, count=1):
        """Wait for so many signals of a name; return the last of them."""
        with self._changed:
            came = self._changed.wait_for(lambda: self.names.count(name) >= count, GENEROUS)
        assert came, f"{name} was not told: {self.names}"
        return [event for event in self.events if event.name == name][count - 1]

    def keys(self, name):
        return sorted(told["key"] for told in self.of(name))


@contextmanager
def hearing(key):
    """Listen inside the block."""
    heard = Heard(key)
    with ExitStack() as stack:
        for name in RECEIVERS:
            signal = getattr(signals, name)
            stack.enter_context(signal.connected_to(partial(heard.hear, name)))
        yield heard


class Slow:
    """A receiver that returns, for one key, only when it may: `come` says that it was called, `go` lets it return."""

    def __init__(self, key):
        self.key, self.come, self.go = key, threading.Event(), threading.Event()

    def __call__(self, sender, **told):
        if told["key"] == self.key:
            self.come.set()
            assert self.go.wait(GENEROUS)


class OnLost:
    """A callback for `on_lost`; notes in `calls` the lock, the loss, the thread and the local time of each."""

    def __init__(self):
        self.calls = []
        self.came = threading.Semaphore(0)

    def __call__(self, lock):
        self.calls.append((lock, lock.loss, threading.current_thread(), local_clock().now()))
        self.came.release()

    def wait(self):
        """Wait for a call that was not waited for yet; return the last one."""
        assert self.came.acquire(timeout=GENEROUS), "on_lost was not called"
        return self.calls[-1]

    @property
    def threads(self):
        """The names of the threads that called it."""
        return [thread.name for _, _, thread, _ in self.calls]

    @property
    def locks(self):
        """The locks that it was called with."""
        return [lock for lock, *_ in self.calls]


def until(condition):
    """Wait for a condition that others bring about; return what it then is."""
    deadline = time.monotonic() + GENEROUS
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)
    return found
