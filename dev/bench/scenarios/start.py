"""Scenario: the start of a process, that is the import of a library and the first lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from statistics import median
from typing import Any

from dev.bench import FLOOR, LATENCY, ROOT, Setting, in_turns, median_ratio
from dev.bench.libraries import IMPORTS
from dev.bench.tables import Table, named, table, times
from dev.bench.wire import Wire, wired

FULL, QUICK = 11, 1
"""Number of processes for each library. One more comes first and is not counted: it compiles and caches modules."""

_IMPORT = """
import sys, time
import {there}
before, since = len(sys.modules), time.perf_counter()
import {added}
print([time.perf_counter() - since, len(sys.modules) - before])
"""

# _exit, so that what a library does at the end of a process is not measured
_BEGIN = """
import os, time
from dev.bench.libraries import made
assert made({name!r}).take({key!r}) is not None
print([time.monotonic(), time.process_time()], flush=True)
os._exit(0)
"""


def measure(setting: Setting) -> dict[str, Any]:
    processes = QUICK if setting.quick else FULL
    with wired(setting.engine_url, LATENCY) as wire:
        found = in_turns(setting.libraries, 1 + processes, partial(_started, wire))
    return {
        "libraries": {name: _summary(each[1:], found[FLOOR][1:]) for name, each in found.items()},
        "latency_ms": 1000 * LATENCY,
        "processes": processes,
    }


def _ran(code: str) -> Any:
    """Run a program in a process of its own, and return the JSON that it prints."""
    # an import in production does not compile all modules anew
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    return json.loads(done.stdout)


def _started(wire: Wire, name: str, turn: int) -> dict[str, Any]:
    """Measure an import; and the time from the start of a process to its first lock, its CPU and its requests."""
    seconds = modules = None
    if name in IMPORTS:
        there, added = IMPORTS[name]
        seconds, modules = _ran(_IMPORT.format(there=there, added=added))
    wire.counted()
    since = time.monotonic()
    at, cpu = _ran(_BEGIN.format(name=name, key=f"start-{turn}"))
    requests = wire.counted().requests
    return {
        "import": seconds, "modules": modules, "cold": at - since, "cpu": cpu, "requests": requests,
    }  # fmt: skip


def _summary(own: list[dict[str, Any]], floor: list[dict[str, Any]]) -> dict[str, Any]:
    last = own[-1]
    return {
        "import_ms": last["import"] and 1000 * median(each["import"] for each in own),
        "modules": last["modules"],
        "cold_ms": 1000 * median(each["cold"] for each in own),
        "ratio": median_ratio(own, floor, "cold"),
        "cpu_ms": 1000 * median(each["cpu"] for each in own),
        "cpu_ratio": median_ratio(own, floor, "cpu"),
        "requests": last["requests"],
    }


def tables(found: dict[str, Any]) -> list[Table]:
    return [
        table(
            "Start of a process", ["Library"],
            [
                ("Import, ms", "import_ms"), ("Modules", "modules"),
                ("From start to the first lock, ms", "cold_ms"),
                ("Of the floor's", lambda each: times(each["ratio"])),
                ("CPU, ms", "cpu_ms"), ("Of the floor's", lambda each: times(each["cpu_ratio"])),
                ("Requests till then", lambda each: str(each["requests"])),
            ],
            named(found["libraries"]),
            f"Medians of {found['processes']} fresh processes each, {found['latency_ms']:g} ms. The import of"
            " ours comes after pynamodb.models, that of the others after boto3. The floor imports boto3 and"
            " sends one conditional write.",
        )
    ]  # fmt: skip
