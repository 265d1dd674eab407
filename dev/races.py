"""Real threads in orders that frontrun draws: after each bytecode it decides which thread runs.

Operations are atomic between two effects, and the simulation draws the orders of those. What is left are the
places where threads meet outside the monitor: wake-ups, workers, the start of threads, notifications.

Run by ``make races``, as ``frontrun python -m dev.races SCHEDULES SEED [SCENE ...]``.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from types import SimpleNamespace

import frontrun

from pynamodb_mutex import LockItem
from pynamodb_mutex._operations.effects import Wait, Wakeup
from pynamodb_mutex._runtime import clock, notifications, run_on_thread, threads
from pynamodb_mutex._runtime.process import Process


class Clock(clock.LocalClock):
    """Stands still, so that only the schedule decides. A wait for a time takes a millisecond."""

    def now(self):
        return 0.0

    def acquire(self, lock, until):
        lock.acquire(timeout=-1 if until == math.inf else 0.001)


class Started:
    """Stands for `Threads`: what is to run is run at the end, one after the other."""

    refusing = False

    def __init__(self):
        self.jobs = []

    def put(self, name, run):
        self.jobs.append(run)

    def start(self):
        pass

    def run_one(self):
        self.jobs.pop(0)()

    def run_all(self):
        while self.jobs:
            self.run_one()


class WakeUp:
    """A waiter sleeps, or is about to, or its time is up, while another thread wakes it."""

    def __init__(self, until):
        self.until = until
        self.wakeup, self.sleeper = Wakeup(), run_on_thread.ThreadSleeper()
        self.woken = False

    def wait(self):
        run_on_thread._wait(Wait(self.until, self.wakeup), self.sleeper)
        self.woken = True

    def ring(self):
        self.wakeup.ring()

    threads = (wait, ring)

    def holds(self):
        return self.woken


class Deferred:
    """Two threads leave the monitor when a signal handler's release is to be done."""

    def __init__(self):
        self.process, self.done = Process(), []
        self.process.deferred.append(self.operation("release"))

    def operation(self, name):
        self.done.append(name)
        return
        yield

    def run(self):
        run_on_thread.run(self.process, self.operation("own"))

    threads = (run, run)

    def holds(self):
        return sorted(self.done) == ["own", "own", "release"]


class Posts:
    """Calls are posted while a worker is at work, idle, or about to end."""

    def __init__(self):
        self.started, self.made = Started(), []
        self.workers = threads.Workers(self.started, "worker", 8)
        self.post("first")

    def post(self, name="later"):
        self.workers.post(lambda: self.made.append(name))

    def work(self):
        self.started.run_one()

    threads = (work, post, post)

    def holds(self):
        self.started.run_all()
        workers = self.workers
        left = (workers._running, workers._asked_for, workers._idle)
        return sorted(self.made) == ["first", "later", "later"] and left == (0, 0, 0)


class Starts:
    """Two threads ask for threads at once, and the system may refuse the first of them."""

    def __init__(self, refused):
        self.refused, self.started, self.ran = refused, [], []
        self.threads = threads.Threads()
        threads.threading.Thread = self.thread

    def thread(self, target, args, name, daemon):
        return SimpleNamespace(start=lambda: self.start(functools.partial(target, *args)))

    def start(self, run):
        if self.refused:
            self.refused -= 1
            raise RuntimeError("can't start new thread")
        self.started.append(run)

    def put(self, name):
        self.threads.put(name, lambda: self.ran.append(name))
        self.threads.start()

    workers = (functools.partial(put, name="a"), functools.partial(put, name="b"))

    def holds(self):
        if self.threads._waiting and not self.threads.refusing:
            return False  # nobody would try again
        self.threads.start()
        for run in self.started:
            run()
        return sorted(self.ran) == ["a", "b"]


class Signals:
    """A signal of a renewal comes while the thread that sends them is idle, or about to end."""

    def __init__(self):
        self.started, self.sent = Started(), []
        notifications._send = lambda process, event, caught: self.sent.append(event)
        self.notifier = notifications.Notifier(self.started)
        self.put("first")

    def put(self, event="second"):
        self.notifier.put(None, event)

    def run(self):
        self.started.run_one()

    threads = (run, put)

    def holds(self):
        self.started.run_all()
        return self.sent == ["first", "second"]


class Stores:
    """Two threads use a model for the first time: two stores would be two queues."""

    def __init__(self):
        self.process, self.stores = Process(), []

    def get(self):
        self.stores.append(self.process.store(LockItem))

    threads = (get, get)

    def holds(self):
        return self.stores[0] is self.stores[1]


class Renewals:
    """Two threads find that the renewal loop is needed: one loop begins."""

    def __init__(self):
        self.process = Process()
        self.process.threads = self.started = Started()
        self.process.schedule.is_wanted = True

    def start(self):
        run_on_thread.start_renewals(self.process)

    threads = (start, start)

    def holds(self):
        return len(self.started.jobs) == 1


SCENES = {
    "wake-up": (functools.partial(WakeUp, math.inf), WakeUp.threads),
    "wake-up at the end of a wait": (functools.partial(WakeUp, 1.0), WakeUp.threads),
    "deferred release": (Deferred, Deferred.threads),
    "calls for workers": (Posts, Posts.threads),
    "threads": (functools.partial(Starts, 0), Starts.workers),
    "threads, one refused": (functools.partial(Starts, 1), Starts.workers),
    "signals of renewals": (Signals, Signals.threads),
    "stores": (Stores, Stores.threads),
    "start of the renewal loop": (Renewals, Renewals.threads),
}


def main():
    """Draw so many schedules for each scene, from a seed; return 1 if one has another end than it should."""
    schedules, seed, *names = sys.argv[1:]
    clock.replace_local_clock(Clock())
    threads.LINGER = notifications.LINGER = 0.001
    threads.threading = SimpleNamespace(**vars(threading))
    failed = 0
    for name in names or SCENES:
        setup, workers = SCENES[name]
        result = frontrun.explore(
            setup,
            workers,
            lambda scene: scene.holds(),
            strategy="random",
            max_attempts=int(schedules),
            max_ops=20_000,
            seed=int(seed),
            trace_packages=["pynamodb_mutex*"],
            detect_io=False,
            reproduce_on_failure=0,
            total_timeout=600,
        )
        print(name, result.num_explored, "ok" if result.property_holds else result.explanation)
        failed += not result.property_holds
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
