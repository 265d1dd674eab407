"""Scenario: the memory that each held and renewed lock takes, and each thread that waits for a lock."""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from dev.bench import OURS, PYTHON_CLIENT, Library, Setting, failure
from dev.bench.children import Child, preload
from dev.bench.libraries import made
from dev.bench.tables import Table, number, rows_of
from dev.bench.wire import Wire, wired

TAKERS = 8
"""Number of threads that acquire locks."""

STATM = Path("/proc/self/statm")
"""File in which Linux shows the memory of a process."""


class Sizes(NamedTuple):
    """Sizes of the scenario.

    Attributes:
        held: Number of locks that are held.
        waiting: Number of threads that wait.
        settle: Seconds after which all of them surely wait.
    """

    held: int
    waiting: int
    settle: float


FULL = Sizes(1000, 100, 2.0)
QUICK = Sizes(50, 10, 0.5)


def measure(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    preload()
    found: dict[str, Any] = {}
    with wired(setting.engine_url) as wire:
        for name in setting.those(OURS, PYTHON_CLIENT):
            try:
                found[name] = _of(name, wire, sizes)
            except Exception as error:
                found[name] = failure(error)
    return {"libraries": found, **sizes._asdict()}


def _of(name: str, wire: Wire, sizes: Sizes) -> dict[str, Any]:
    waiting = None
    if name == OURS:
        holder = Child(wire.engine, _holder, name)
        try:
            holder.hear()
            waiting = _asked(wire, _waiting, name, sizes.waiting, sizes.settle)
        finally:
            holder.kill()
    return {
        "held": _asked(wire, _held, name, sizes.held, _traced),
        # in another process, because tracing takes memory of its own
        "held_rss": _asked(wire, _held, name, sizes.held, _resident) if STATM.exists() else None,
        "waiting": waiting,
    }


def _asked(wire: Wire, function: Callable[..., float], *arguments: Any) -> float:
    child = Child(wire.engine, function, *arguments)
    try:
        bytes_each: float = child.hear()
        return bytes_each
    finally:
        child.kill()


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _resident() -> int:
    gc.collect()
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _held(pipe: Any, name: str, count: int, used: Callable[[], int]) -> float:
    library = made(name)
    if used is _traced:
        tracemalloc.start()
    warm = _all_taken(library, [f"memory-warm-{os.getpid()}-{n}" for n in range(TAKERS)])
    before = used()
    locks = _all_taken(library, [f"memory-{os.getpid()}-{n}" for n in range(count)])
    each = (used() - before) / count
    if not all(library.held(lock) for lock in warm + locks):
        raise RuntimeError("some were lost meanwhile")
    return each


def _all_taken(library: Library, keys: list[str]) -> list[Any]:
    with ThreadPoolExecutor(TAKERS) as takers:
        return list(takers.map(library.take, keys))


KEY = "memory-waiting"


def _holder(pipe: Any, name: str) -> None:
    made(name).take(KEY)
    pipe.say()
    threading.Event().wait()


def _waiting(pipe: Any, name: str, count: int, settle: float) -> float:
    library = made(name)
    library.release(library.take(f"{KEY}-own"))
    go = threading.Event()

    def wait() -> None:
        go.wait()
        library.take(KEY)

    tracemalloc.start()
    threading.Thread(target=library.take, args=(KEY,), daemon=True).start()
    for _ in range(count):
        threading.Thread(target=wait, daemon=True).start()
    time.sleep(settle)
    before = _traced()
    go.set()
    time.sleep(settle)
    return (_traced() - before) / count


def tables(found: dict[str, Any]) -> list[Table]:
    columns = [
        "Library", "A held lock, bytes", "The same, of the process (RSS)", "A waiting thread, bytes",
    ]  # fmt: skip

    def cells(each: dict[str, Any]) -> list[str]:
        return [number(each[what]) for what in ("held", "held_rss", "waiting")]

    note = (
        f"Python objects as tracemalloc counts them, for each of {found['held']:,} locks that are held and"
        f" renewed, and of {found['waiting']} threads that wait for one key; a thread's stack and its"
        " Thread are not in it."
    )
    rows = rows_of(found["libraries"], cells, len(columns))
    return [Table("Memory", columns, rows, note)]
