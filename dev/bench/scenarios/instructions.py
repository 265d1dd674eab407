"""Scenario: the processor's instructions for a lock that nobody else wants, counted by valgrind.

Unlike its time they do not depend on caches, nor on what else the machine does. No request leaves the process: a stub
answers in the place of HTTP. What a fork takes for a number of cycles, less what another takes for fewer, is theirs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from typing import Any

from dev.bench import BY_HAND, FLOOR, OURS, ROOT, Setting
from dev.bench.libraries import made
from dev.bench.tables import Table, named, number, table, times

FEWER, MORE = 30, 90
"""Cycles of the two forks."""


def measure(setting: Setting) -> dict[str, Any]:
    """Return the instructions of a cycle, in millions, by library; of none if there is no valgrind."""
    names = (FLOOR, *BY_HAND, OURS) if shutil.which("valgrind") else ()
    cycles = (1, 2) if setting.quick else (FEWER, MORE)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        counted = threads.map(lambda name: _counted(name, *cycles), names)
        each = dict(zip(names, counted, strict=True))
    return {
        "libraries": {
            name: {
                "millions": own / 1e6,
                "ratio": own / each[FLOOR],
                "of_update": own / each[BY_HAND[1]],
            }
            for name, own in each.items()
        }
    }


def _counted(name: str, fewer: int, more: int) -> float:
    """Return the instructions of a cycle, by two forks of one process that make some of them."""
    valgrind = [
        "valgrind",
        "--tool=cachegrind",
        "--cache-sim=no",
        "--cachegrind-out-file=/dev/null",
    ]
    command = [*valgrind, sys.executable, "-m", __name__, name, str(fewer), str(more)]
    env = {**os.environ, "PYTHONHASHSEED": "0", "AWS_DEFAULT_REGION": "us-east-1"}
    env |= {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    env |= {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}  # nothing is sent there
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    # each with what was before the fork, and at last the process itself
    counted = re.findall(r"I +refs: +([\d,]+)", done.stderr)
    first, second, _ = (int(each.replace(",", "")) for each in counted)
    return (second - first) / (more - fewer)


def answer(request: Any) -> Any:
    """Answer a write as DynamoDB does that applies it, in the place of HTTP."""
    import botocore.awsrequest

    asked = json.loads(request.body)
    row: dict[str, Any] = {}
    if asked.get("ReturnValues") == "ALL_NEW":
        names, values = asked["ExpressionAttributeNames"], asked["ExpressionAttributeValues"]
        row = {**asked["Key"]}
        assigned = r"(#\d+) = (?:if_not_exists \([^,]*, )?(:\d+)"
        for changed, value in re.findall(assigned, asked["UpdateExpression"]):
            row[names[changed]] = values[value]
    body = json.dumps({"Attributes": row}).encode()
    headers = {"Date": formatdate(usegmt=True), "x-amzn-requestid": "bench"}
    raw = type("Raw", (), {"stream": lambda _: iter([body])})()
    return botocore.awsrequest.AWSResponse(request.url, 200, headers, raw)


def _cycle(name: str, *times_each: int) -> None:
    """Acquire and release a lock some times, in one fork after the other, as the process that is counted."""
    from botocore.httpsession import URLLib3Session

    URLLib3Session.send = lambda _, request: answer(request)
    library = made(name)
    for cycles in times_each:
        child = os.fork()
        if child == 0:
            for _ in range(cycles):
                library.release(library.take("cycle"))
            os._exit(0)  # as in `start`
        if os.waitpid(child, 0)[1]:
            os._exit(1)
    os._exit(0)


def tables(found: dict[str, Any]) -> list[Table]:
    return [
        table(
            "Instructions for a lock that nobody else wants", ["Take and release"],
            [
                ("Millions", lambda each: number(each["millions"])),
                ("Of the floor's", lambda each: times(each["ratio"])),
                ("Of PynamoDB's update()", lambda each: times(each["of_update"])),
            ],
            named(found["libraries"]),
            "Counted by valgrind in processes of one thread in which a stub answers in the place of HTTP.",
        )
    ]  # fmt: skip


if __name__ == "__main__":
    _cycle(sys.argv[1], *map(int, sys.argv[2:]))
