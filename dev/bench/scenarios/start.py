"""Scenario: the start of a process, that is the import of a library and the first lock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from dev.bench import (
    BLOCK_LOCK,
    DYNDB_MUTEX,
    FLOOR,
    OURS,
    PYTHON_CLIENT,
    Setting,
    failure,
    table_of,
)
from dev.bench.tables import Table, number, rows_of, times
from dev.bench.wire import Wire, wired

LATENCY = 0.005


FULL, QUICK = 11, 1
"""Number of processes for each library. One more comes first and is not counted: it compiles and caches modules."""

IMPORTS = {
    OURS: ("pynamodb.models", "pynamodb_mutex"),
    PYTHON_CLIENT: ("boto3", "python_dynamodb_lock.python_dynamodb_lock"),
    BLOCK_LOCK: ("boto3", "dynamodblock"),
    DYNDB_MUTEX: ("boto3", "dyndbmutex.dyndbmutex"),
}
"""By library: the module that a program which uses it has imported anyway, and the module whose import is measured."""

_IMPORT = """
import sys, time
import {there}
before, since = len(sys.modules), time.perf_counter()
import {added}
print([time.perf_counter() - since, len(sys.modules) - before])
"""

_BEGIN = {
    FLOOR: """
import boto3
client = boto3.client("dynamodb")
client.update_item(
    TableName={table!r},
    Key={{"key": {{"S": {key!r}}}}},
    UpdateExpression="SET #0 = :0",
    ConditionExpression="attribute_not_exists (#0)",
    ExpressionAttributeNames={{"#0": "expires_at"}},
    ExpressionAttributeValues={{":0": {{"N": "1"}}}},
)
""",
    OURS: """
from pynamodb_mutex import Mutex
Mutex.for_key({key!r}).acquire()
""",
    PYTHON_CLIENT: """
import boto3
from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient
DynamoDBLockClient(boto3.resource("dynamodb"), table_name={table!r}).acquire_lock({key!r})
""",
    BLOCK_LOCK: """
import boto3
from dynamodblock import DynamoDBLock
DynamoDBLock({key!r}, boto3.resource("dynamodb").Table({table!r})).acquire()
""",
    DYNDB_MUTEX: """
import os
os.environ["DD_MUTEX_TABLE_NAME"] = {table!r}
from dyndbmutex.dyndbmutex import DynamoDbMutex
assert DynamoDbMutex({key!r}, region_name=os.environ["AWS_DEFAULT_REGION"]).lock()
""",
}

# _exit, so that what a library does at the end of a process is not measured
_HELD = "import os, time; print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True); os._exit(0)"


def measure(setting: Setting) -> dict[str, Any]:
    processes = QUICK if setting.quick else FULL
    imports: dict[str, list[list[float]]] = {name: [] for name in setting.libraries}
    begins: dict[str, list[dict[str, float]]] = {name: [] for name in setting.libraries}
    failed: dict[str, Any] = {}
    with wired(setting.engine_url, LATENCY) as wire:
        for turn in range(1 + processes):
            for name in setting.libraries:
                if name in failed:
                    continue
                try:
                    if name in IMPORTS:
                        there, added = IMPORTS[name]
                        imports[name].append(_told(_IMPORT.format(there=there, added=added)))
                    begins[name].append(_begun(name, f"start-{turn}", wire))
                except Exception as error:
                    failed[name] = failure(error)
    return {
        "libraries": {
            name: failed.get(name)
            or _summary(imports[name][1:], begins[name][1:], begins[FLOOR][1:])
            for name in setting.libraries
        },
        "latency_ms": 1000 * LATENCY, "processes": processes,
    }  # fmt: skip


def _told(code: str) -> Any:
    """Run a program in a process of its own, and return the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    return json.loads(done.stdout)


def _begun(name: str, key: str, wire: Wire) -> dict[str, float]:
    """Measure the time from the start of a process to its first lock, and its requests."""
    wire.counted()
    since = time.clock_gettime(time.CLOCK_MONOTONIC)
    held = _told(_BEGIN[name].format(key=key, table=table_of(name)) + _HELD)
    return {"seconds": held - since, "requests": wire.counted().requests}


def _summary(
    imports: list[list[float]], begins: list[dict[str, float]], floor: list[dict[str, float]]
) -> dict[str, Any]:
    ratios = [own["seconds"] / least["seconds"] for own, least in zip(begins, floor, strict=False)]
    return {
        "import_ms": 1000 * median(seconds for seconds, _ in imports) if imports else None,
        "modules": imports[-1][1] if imports else None,
        "cold_ms": 1000 * median(each["seconds"] for each in begins),
        "ratio": median(ratios),
        "requests": begins[-1]["requests"],
    }


def tables(found: dict[str, Any]) -> list[Table]:
    columns = [
        "Library", "Import, ms", "Modules", "From start to the first lock, ms", "Of the floor's",
        "Requests till then",
    ]  # fmt: skip

    def cells(each: dict[str, Any]) -> list[str]:
        counts = [number(each[what]) for what in ("import_ms", "modules", "cold_ms")]
        return [*counts, times(each["ratio"]), str(each["requests"])]

    note = (
        f"Medians of {found['processes']} fresh processes each, {found['latency_ms']:g} ms. The import of"
        " ours comes after pynamodb.models, that of the others after boto3. The floor imports boto3 and"
        " sends one conditional write."
    )
    rows = rows_of(found["libraries"], cells, len(columns))
    return [Table("Start of a process", columns, rows, note)]
