"""Scenario: threads of one process that all want the same key, alone and next to a second process.

Alone: how many sections a second they get, and with how many requests. Next to a second process of one thread: what
share of the sections that process gets, because threads of one process might hand the lock to each other for ever.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any, NamedTuple

from dev.bench import LATENCY, OURS, WAITERS, Setting, of_each
from dev.bench.children import Child
from dev.bench.libraries import made
from dev.bench.tables import Table, named, table
from dev.bench.wire import Counts, Wire, wired

SECTION = 0.002
"""Seconds for which each thread holds the lock."""


class Sizes(NamedTuple):
    """Sizes of the scenario.

    Attributes:
        ours: Numbers of threads that are measured with this library.
        competing: Number of threads with other libraries, and in the process that competes with a second one.
        seconds: Seconds of each measurement of one process.
        fairness: Seconds of the competition of two processes.
    """

    ours: list[int]
    competing: int
    seconds: float
    fairness: float


FULL = Sizes([1, 2, 4, 8, 16, 32], competing=8, seconds=5.0, fairness=15.0)
QUICK = Sizes([1, 4], competing=4, seconds=1.0, fairness=2.0)


def measure(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    names = [OURS, *setting.those(*WAITERS)]
    alone = []
    with wired(setting.engine_url, LATENCY) as wire:
        for name in names:
            for threads in sizes.ours if name == OURS else [sizes.competing]:
                found = of_each(
                    [name], lambda name, n=threads: _alone(wire, name, n, sizes.seconds)
                )
                alone.append({"library": name, "threads": threads, **found[name]})
        fairness = of_each(names, lambda name: _beside(wire, name, sizes))
    return {
        "alone": alone, "fairness": fairness, "competing": sizes.competing, "section_ms": 1000 * SECTION,
        "latency_ms": 1000 * LATENCY, "seconds": sizes.seconds, "fairness_s": sizes.fairness,
    }  # fmt: skip


def _alone(wire: Wire, name: str, threads: int, seconds: float) -> dict[str, Any]:
    (done,), counts = _competed(wire, name, f"threads-{name}-{threads}", [threads], seconds)
    sections = done["sections"]
    return done | {
        "per_second": sections / seconds,
        "requests_each": counts.requests / sections if sections else None,
    }


def _beside(wire: Wire, name: str, sizes: Sizes) -> dict[str, Any]:
    threads = [sizes.competing, 1]
    (theirs, own), _ = _competed(wire, name, f"fairness-{name}", threads, sizes.fairness)
    total = own["sections"] + theirs["sections"]
    return {
        "sections": own["sections"],
        "of": total,
        "share": own["sections"] / total if total else None,
        "longest_wait": own["longest_wait"],
        "longest_wait_of_the_many": theirs["longest_wait"],
        "errors": own["errors"] + theirs["errors"],
    }


def _competed(
    wire: Wire, name: str, key: str, threads: list[int], seconds: float
) -> tuple[list[dict[str, Any]], Counts]:
    """Let processes with so many threads each compete for a key; return what each reports, and what passed."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(Child(wire.engine, _compete, name, key, count, seconds))
            for count in threads
        ]
        for child in children:
            child.hear()
        wire.counted()
        for child in children:
            child.send(None)
        return [child.hear() for child in children], wire.counted()


def _compete(pipe: Any, name: str, key: str, threads: int, seconds: float) -> dict[str, Any]:
    """Let threads acquire and release the key; return their sections, errors and longest wait."""
    library = made(name)
    library.release(library.take(f"{key}-own-{threads}"))  # opens the connection
    began: dict[int, float] = {}
    waits, sections, errors = list[float](), list[int](), list[Exception]()

    def run(me: int) -> None:
        while True:
            began[me] = time.monotonic()
            try:
                lock = library.take(key)
                waits.append(time.monotonic() - began.pop(me))
                time.sleep(SECTION)
                library.release(lock)
                sections.append(me)
            except Exception as error:
                errors.append(error)

    pipe.say(None)
    pipe.wait()
    for me in range(threads):
        threading.Thread(target=run, args=(me,), daemon=True).start()
    time.sleep(seconds)
    # a wait that has not ended counts too
    waits += [time.monotonic() - at for at in list(began.values())]
    return {"sections": len(sections), "longest_wait": max(waits), "errors": len(errors)}


def tables(found: dict[str, Any]) -> list[Table]:
    return [
        table(
            "Threads of one process on one key", ["Library", "Threads"],
            [
                ("Sections a second", "per_second"), ("Requests a section", "requests_each"),
                ("Longest wait, s", "longest_wait"), ("Errors", lambda run: str(run["errors"])),
            ],
            (([run["library"], str(run["threads"])], run) for run in found["alone"]),
            f"Each thread acquires the key, holds it for {found['section_ms']:g} ms and releases it, again and again,"
            f" for {found['seconds']:g} s; {found['latency_ms']:g} ms.",
        ),
        table(
            "A second process of one thread, on the same key", ["Library"],
            [
                ("Its sections", lambda each: str(each["sections"])), ("Of all", lambda each: str(each["of"])),
                ("Its share", lambda each: f"{each['share']:.1%}" if each["of"] else "-"),
                ("Its longest wait, s", "longest_wait"),
                ("Longest of the first, s", "longest_wait_of_the_many"),
                ("Errors", lambda each: str(each["errors"])),
            ],
            named(found["fairness"]),
            f"Next to {found['competing']} threads of the first, for {found['fairness_s']:g} s."
            f" By head its share would be {1 / (found['competing'] + 1):.1%}, by process 50.0%.",
        ),
    ]  # fmt: skip
