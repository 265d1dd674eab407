"""Scenario: threads of one process that all want the same key, alone and next to a second process.

Alone: how many sections a second they get, and with how many requests. Next to a second process of one thread: what
share of the sections that process gets, because threads of one process might hand the lock to each other for ever.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

from dev.bench import LATENCY, OURS, WAITERS, Setting
from dev.bench.children import Child
from dev.bench.libraries import made
from dev.bench.tables import Table, named, table
from dev.bench.wire import Wire, wired

SECTION = 0.002
"""Seconds for which each thread holds the lock."""


# numbers of threads that are measured with this library; threads of other libraries, and of a process that competes with
# a second one; seconds of each measurement of one process, and of two
FULL = [1, 2, 4, 8, 16, 32], 8, 5.0, 15.0
QUICK = [1, 4], 4, 1.0, 2.0


def measure(setting: Setting) -> dict[str, Any]:
    ours, competing, seconds, fairness_s = QUICK if setting.quick else FULL
    names = [OURS, *setting.those(*WAITERS)]
    runs = [(name, n) for name in names for n in (ours if name == OURS else [competing])]
    with wired(setting.engine_url, LATENCY) as wire:
        alone = [_alone(wire, *run, seconds) for run in runs]
        fairness = {name: _next_to(wire, name, competing, fairness_s) for name in names}
    return {
        "alone": alone,
        "fairness": fairness, "competing": competing, "section_ms": 1000 * SECTION,
        "latency_ms": 1000 * LATENCY, "seconds": seconds, "fairness_s": fairness_s,
    }  # fmt: skip


def _alone(wire: Wire, name: str, threads: int, seconds: float) -> dict[str, Any]:
    (done,), requests = _competed(wire, name, [threads], seconds)
    sections = done["sections"]
    each = requests / sections if sections else None
    speed = {"per_second": sections / seconds, "requests_each": each}
    return {"library": name, "threads": threads} | done | speed


def _next_to(wire: Wire, name: str, threads: int, seconds: float) -> dict[str, Any]:
    (theirs, own), _ = _competed(wire, name, [threads, 1], seconds)
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
    wire: Wire, name: str, threads: list[int], seconds: float
) -> tuple[list[dict[str, Any]], float]:
    """Let processes with so many threads each compete for a key; return what each reports, and the requests."""
    key = uuid.uuid4().hex
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
        return [child.hear() for child in children], wire.counted().requests


def _compete(pipe: Connection, name: str, key: str, threads: int, seconds: float) -> dict[str, Any]:
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

    pipe.send(None)
    pipe.recv()
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
