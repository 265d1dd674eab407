"""Scenario: the memory that each held and renewed lock takes, and each thread that waits for a lock."""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dev.bench import OURS, PYTHON_CLIENT, Setting, of_each
from dev.bench.children import Child
from dev.bench.libraries import Library, made
from dev.bench.tables import Table, named, table
from dev.bench.wire import wired

TAKERS = 8
"""Number of threads that acquire locks."""

# locks that are held, threads that wait, and seconds after which all of them surely wait
FULL = 1000, 100, 2.0
QUICK = 50, 10, 0.5


def measure(setting: Setting) -> dict[str, Any]:
    held, waiting, settle = QUICK if setting.quick else FULL
    with wired(setting.engine_url) as wire:

        def asked(function: Callable[..., float], *arguments: Any) -> float:
            with Child(wire.engine, function, *arguments) as child:
                return child.hear()

        def of(name: str) -> dict[str, Any]:
            return {
                "held": asked(_held, name, held, _traced),
                # in another process, because tracing takes memory of its own
                "held_rss": asked(_held, name, held, _resident),
                "waiting": asked(_waiting, name, waiting, settle) if name == OURS else None,
            }

        found = of_each(setting.those(OURS, PYTHON_CLIENT), of)
    return {"libraries": found, "held": held, "waiting": waiting, "settle": settle}


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _held(pipe: Connection, name: str, count: int, used: Callable[[], int]) -> float:
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


def _waiting(pipe: Connection, name: str, count: int, settle: float) -> float:
    library, key = made(name), "memory-waiting"
    held = library.take(key)
    go = threading.Event()

    def wait() -> None:
        go.wait()
        library.take(key)

    tracemalloc.start()
    # the first of them polls for all
    threading.Thread(target=library.take, args=(key,), daemon=True).start()
    for _ in range(count):
        threading.Thread(target=wait, daemon=True).start()
    time.sleep(settle)
    before = _traced()
    go.set()
    time.sleep(settle)
    each = (_traced() - before) / count
    library.release(held)
    return each


def tables(found: dict[str, Any]) -> list[Table]:
    return [
        table(
            "Memory", ["Library"],
            [
                ("A held lock, bytes", "held"), ("The same, of the process (RSS)", "held_rss"),
                ("A waiting thread, bytes", "waiting"),
            ],
            named(found["libraries"]),
            f"Python objects as tracemalloc counts them, for each of {found['held']:,} locks that are held and"
            f" renewed, and of {found['waiting']} threads that wait for one key; a thread's stack and its"
            " Thread are not in it.",
        )
    ]  # fmt: skip
