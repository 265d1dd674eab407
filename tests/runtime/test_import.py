"""Importing the package is light: it loads little, starts nothing, opens nothing."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import json, os, socket, sys, threading

opened = []
def audit(event, args):
    if event.startswith(("socket.", "subprocess.", "os.fork", "os.posix_spawn")):
        opened.append(event)

import pynamodb.models
before = set(sys.modules)
sys.addaudithook(audit)
import pynamodb_mutex
print(json.dumps({
    "loaded": sorted(set(sys.modules) - before),
    "threads": threading.active_count(),
    "opened": opened,
    "public": sorted(pynamodb_mutex.__all__),
    "there": [name for name in pynamodb_mutex.__all__ if not hasattr(pynamodb_mutex, name)],
}))
"""

HEAVY = (
    "asyncio",
    "click",
    "hypothesis",
    "matplotlib",
    "moto",
    "numpy",
    "pytest",
    "rich",
    "waitress",
    "flask",
    "opentelemetry",
    "prometheus_client",
    "pynamodb_mutex.receivers",
    "pynamodb_mutex.signals",
    "pynamodb_mutex._synchronized",
    "pynamodb_mutex.testing",
)


def imported():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=100
    )
    return json.loads(done.stdout)


def test_importing_the_package_loads_starts_and_opens_nothing():
    found = imported()
    assert not set(HEAVY) & set(found["loaded"])
    assert found["threads"] == 1
    assert found["opened"] == []


def test_every_public_name_is_there():
    found = imported()
    assert found["there"] == []
    assert {"LockItem", "Mutex", "MutexError", "Loss"} <= set(found["public"])


def test_importing_loads_only_what_is_the_packages_own_or_the_standard_librarys():
    ours = [name for name in imported()["loaded"] if name.partition(".")[0] == "pynamodb_mutex"]
    others = {name.partition(".")[0] for name in imported()["loaded"]} - {"pynamodb_mutex"}
    assert "pynamodb_mutex.mutex" in ours
    assert others <= {*sys.stdlib_module_names, "botocore", "pynamodb", "typing_extensions"}
