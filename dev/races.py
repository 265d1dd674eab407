"""Runs real threads of the library in random orders: after each bytecode, frontrun decides which thread runs next.

Operations are atomic between two effects, and the simulation interleaves those. This covers what the simulation
cannot interleave, namely the places where threads meet outside the monitor: wake-ups, workers, and the start of
threads.

Each scene is a class. A new instance is made for each order, ``threads`` (or ``workers``) are the functions that run
at the same time, and ``holds`` returns whether the outcome is right.

``make races`` runs this, as ``frontrun python -m dev.races SCHEDULES SEED [SCENE ...]``.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
from types import SimpleNamespace

import frontrun

from pynamodb_mutex import LockItem
from pynamodb_mutex._lock.operations.effects import Wait, Wakeup
from pynamodb_mutex._lock.runtime import clock, run_on_thread, threads
from pynamodb_mutex._lock.runtime.process import Process


class Clock(clock.LocalClock):
    """A clock that stands still, so that the order of the threads alone decides. A limited wait takes a millisecond."""

    def now(self):
        return 0.0

    def acquire(self, lock, until):
        lock.acquire(timeout=-1 if until == math.inf else 0.001)


class Started:
    """Stand-in for `Threads` that starts no thread: the scene runs the functions itself, when it likes."""

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
    """A thread wakes a waiter that sleeps, is about to sleep, or has just reached its time. It must go on in any case.

    `ring` sets ``rung`` and then reads ``sleeper``; the waiter sets ``sleeper`` and then reads ``rung``. In another
    order a ring between the two would be noticed by neither, and the waiter would sleep for ever.
    """

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
    """Two threads leave the monitor while a release that a signal handler began waits to be run.

    Both may find it: it must run once, and the thread that comes second must not fail.
    """

    def __init__(self):
        self.process, self.done = Process(), []
        self.process.deferred.append(self.operation("release"))

    def operation(self, name):
        self.done.append(name)
        return
        yield  # makes it a generator, which ends without an effect

    def run(self):
        run_on_thread.execute(self.process, self.operation("own"))

    threads = (run, run)

    def holds(self):
        return sorted(self.done) == ["own", "own", "release"]


class Posts:
    """Calls are posted while a worker is busy, idle, or about to end.

    A call that is posted just as the only worker decides to end must not be left to it. And all workers must be counted
    out at the end: one too many would take the place of a thread for ever.
    """

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
    """Two threads ask for new threads at once, and the system may refuse the first of these.

    One of the two starts threads for both, as the other does not wait for it. So nothing may be added just after the
    first has looked for the last time. After a refusal both functions wait, and ``refusing`` says so: else nobody would
    try again.
    """

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
        if self.threads.waiting and not self.threads.refusing:
            # something waits for a thread, and nobody would try again
            return False
        self.threads.start()
        for run in self.started:
            run()
        return sorted(self.ran) == ["a", "b"]


class Stores:
    """Two threads use a model for the first time. They must get one store: with two, each would have its own queue."""

    def __init__(self):
        self.process, self.stores = Process(), []

    def get(self):
        self.stores.append(self.process.store(LockItem))

    threads = (get, get)

    def holds(self):
        return self.stores[0] is self.stores[1]


class Renewals:
    """Two threads find at once that the renewal loop is needed. One loop must begin, not two."""

    def __init__(self):
        self.process = Process()
        self.process.threads = self.started = Started()
        self.process.schedule.add(object(), 1e9)

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
    "stores": (Stores, Stores.threads),
    "start of the renewal loop": (Renewals, Renewals.threads),
}


def main():
    """Run each scene in so many random orders from a seed; return 1 if one of them has a wrong outcome."""
    schedules, seed, *names = sys.argv[1:]
    clock.replace_local_clock(Clock())
    threads.LINGER = 0.001
    # A copy of the module: `Starts` replaces ``Thread`` in it, for the library alone.
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
