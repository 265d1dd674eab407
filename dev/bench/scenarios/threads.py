"""Scenario: threads of one process that all want the same key, alone and next to a second process.

Alone: how many sections a second they get, and with how many requests. Next to a second process of one thread: what
share of the sections that process gets, because threads of one process might hand the lock to each other for ever.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

from dev.bench import BLOCK_LOCK, OURS, PYTHON_CLIENT, Library, Setting, failure
from dev.bench.children import Child, preload
from dev.bench.libraries import made
from dev.bench.tables import Table, number
from dev.bench.wire import Wire, wired

LATENCY = 0.005
"""Seconds that the proxy adds to each request."""

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
    preload()
    alone: list[dict[str, Any]] = []
    fairness: dict[str, Any] = {}
    others = setting.those(PYTHON_CLIENT, BLOCK_LOCK)
    with wired(setting.engine_url, LATENCY) as wire:
        for name, threads in [(OURS, n) for n in sizes.ours] + [
            (n, sizes.competing) for n in others
        ]:
            run = {"library": name, "threads": threads}
            try:
                run |= _alone(wire, name, threads, sizes.seconds)
            except Exception as error:
                run |= failure(error)
            alone.append(run)
        for name in (OURS, *others):
            try:
                fairness[name] = _beside(wire, name, sizes)
            except Exception as error:
                fairness[name] = failure(error)
    return {
        "alone": alone, "fairness": fairness, "competing": sizes.competing, "section_ms": 1000 * SECTION,
        "latency_ms": 1000 * LATENCY, "seconds": sizes.seconds, "fairness_s": sizes.fairness,
    }  # fmt: skip


def _alone(wire: Wire, name: str, threads: int, seconds: float) -> dict[str, Any]:
    child = Child(wire.engine, _compete, name, f"threads-{name}-{threads}", threads, seconds)
    try:
        child.hear()
        wire.counted()
        child.send()
        done = child.hear()
        counts = wire.counted()
    finally:
        child.kill()
    sections = done["sections"]
    return {
        "sections": sections,
        "per_second": sections / seconds,
        "requests_each": counts.requests / sections if sections else None,
        "longest_wait": done["longest_wait"],
        "errors": done["errors"],
    }


def _beside(wire: Wire, name: str, sizes: Sizes) -> dict[str, Any]:
    key = f"fairness-{name}"
    many = Child(wire.engine, _compete, name, key, sizes.competing, sizes.fairness)
    one = Child(wire.engine, _compete, name, key, 1, sizes.fairness)
    try:
        for child in (many, one):
            child.hear()
        for child in (many, one):
            child.send()
        theirs, own = many.hear(), one.hear()
    finally:
        many.kill()
        one.kill()
    total = own["sections"] + theirs["sections"]
    return {
        "sections": own["sections"],
        "of": total,
        "share": own["sections"] / total if total else None,
        "longest_wait": own["longest_wait"],
        "longest_wait_of_the_many": theirs["longest_wait"],
        "errors": own["errors"] + theirs["errors"],
    }


class _Competitor:
    """One thread that acquires and releases the key: counts its sections and errors, and measures its longest wait."""

    def __init__(self, library: Library, key: str) -> None:
        self._library, self._key = library, key
        self.sections = self.errors = 0
        self._longest = 0.0
        self._since: float | None = None

    def run(self) -> None:
        while True:
            self._since = time.monotonic()
            try:
                lock = self._library.take(self._key)
                self._waited()
                time.sleep(SECTION)
                self._library.release(lock)
                self.sections += 1
            except Exception:
                self.errors += 1

    def _waited(self) -> None:
        if self._since is not None:
            self._longest = max(self._longest, time.monotonic() - self._since)
        self._since = None

    def result(self) -> tuple[int, float, int]:
        """Return the numbers of sections, the longest wait in seconds, and the number of errors."""
        self._waited()  # a wait that has not ended counts too
        return self.sections, self._longest, self.errors


def _compete(pipe: Any, name: str, key: str, threads: int, seconds: float) -> dict[str, Any]:
    library = made(name)
    library.release(library.take(f"{key}-own-{threads}"))  # opens the connection
    competitors = [_Competitor(library, key) for _ in range(threads)]
    pipe.say()
    pipe.wait()
    for competitor in competitors:
        threading.Thread(target=competitor.run, daemon=True).start()
    time.sleep(seconds)
    sections, waits, errors = zip(*(each.result() for each in competitors), strict=True)
    return {"sections": sum(sections), "longest_wait": max(waits), "errors": sum(errors)}


def tables(found: dict[str, Any]) -> list[Table]:
    return [_alone_table(found), _fairness_table(found)]


def _alone_table(found: dict[str, Any]) -> Table:
    columns = [
        "Library", "Threads", "Sections a second", "Requests a section", "Longest wait, s", "Errors",
    ]  # fmt: skip
    rows = []
    for run in found["alone"]:
        start = [run["library"], str(run["threads"])]
        if "failed" in run:
            rows.append([*start, f"failed: {run['failed']}", "", "", ""])
            continue
        keys = ("per_second", "requests_each", "longest_wait")
        rows.append([*start, *(number(run[key]) for key in keys), str(run["errors"])])
    note = (
        f"Each thread acquires the key, holds it for {found['section_ms']:g} ms and releases it, again and again,"
        f" for {found['seconds']:g} s; {found['latency_ms']:g} ms."
    )
    return Table("Threads of one process on one key", columns, rows, note)


def _fairness_table(found: dict[str, Any]) -> Table:
    columns = [
        "Library", "Its sections", "Of all", "Its share", "Its longest wait, s", "Longest of the first, s",
        "Errors",
    ]  # fmt: skip
    rows = []
    for name, each in found["fairness"].items():
        if "failed" in each:
            rows.append([name, f"failed: {each['failed']}", "", "", "", "", ""])
            continue
        counts = [str(each["sections"]), str(each["of"])]
        share = "-" if each["share"] is None else f"{each['share']:.1%}"
        waits = [number(each[what]) for what in ("longest_wait", "longest_wait_of_the_many")]
        rows.append([name, *counts, share, *waits, str(each["errors"])])
    note = (
        f"Next to {found['competing']} threads of the first, for {found['fairness_s']:g} s."
        f" By head its share would be {1 / (found['competing'] + 1):.1%}, by process 50.0%."
    )
    return Table("A second process of one thread, on the same key", columns, rows, note)
