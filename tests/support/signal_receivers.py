"""Receivers of signals: `Heard` records those of some keys, `Slow` blocks; and a callback for `on_lost`."""

import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
from waits import LONG

from pynamodb_mutex import signals
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex._lock.runtime.notifications import RECEIVERS


class Event(NamedTuple):
    name: str
    sender: Any
    fields: dict[str, Any]
    thread: threading.Thread


class Heard:
    """The signals about locks whose key contains `key`."""

    def __init__(self, key):
        self.key = key
        self.events = []
        self._changed = threading.Condition()

    def hear(self, name, sender, **fields):
        if self.key in fields["key"]:
            with self._changed:
                self.events.append(Event(name, sender, fields, threading.current_thread()))
                self._changed.notify_all()

    @property
    def names(self):
        return [event.name for event in self.events]

    def of(self, name):
        """Return the fields of each signal of a name."""
        return [event.fields for event in self.events if event.name == name]

    def the(self, name):
        """Wait for the one signal of a name; return its fields."""
        self.wait(name)
        (fields,) = self.of(name)
        return fields

    def wait(self, name, count=1):
        """Wait for so many signals of a name; return the last of them."""
        with self._changed:
            came = self._changed.wait_for(lambda: self.names.count(name) >= count, LONG)
        assert came, f"{name} was not emitted: {self.names}"
        return [event for event in self.events if event.name == name][count - 1]

    def keys(self, name):
        return sorted(fields["key"] for fields in self.of(name))


@contextmanager
def hearing(key):
    """Record the signals that are emitted inside the block."""
    heard = Heard(key)
    with ExitStack() as stack:
        for name in RECEIVERS:
            signal = getattr(signals, name)
            stack.enter_context(signal.connected_to(partial(heard.hear, name)))
        yield heard


class Slow:
    """A receiver that blocks for one key: it sets `come` when it is called, and returns when `go` is set."""

    def __init__(self, key):
        self.key, self.come, self.go = key, threading.Event(), threading.Event()

    def __call__(self, sender, **fields):
        if fields["key"] == self.key:
            self.come.set()
            assert self.go.wait(LONG)


class OnLost:
    """A callback for `on_lost`; `calls` has the lock, the loss, the thread and the local time of each call."""

    def __init__(self):
        self.calls = []
        self.came = threading.Semaphore(0)

    def __call__(self, lock):
        self.calls.append((lock, lock.loss, threading.current_thread(), local_clock().now()))
        self.came.release()

    def wait(self):
        """Wait for one call more than before; return the last one."""
        assert self.came.acquire(timeout=LONG), "on_lost was not called"
        return self.calls[-1]

    @property
    def threads(self):
        """The names of the threads that called it."""
        return [thread.name for _, _, thread, _ in self.calls]

    @property
    def locks(self):
        """The locks that it was called with."""
        return [lock for lock, *_ in self.calls]


@pytest.fixture
def heard(scene):
    """The signals about the scene's key."""
    with hearing(scene.key) as heard:
        yield heard


@pytest.fixture
def on_lost(engine):
    """A callback that records its calls."""
    return OnLost()
