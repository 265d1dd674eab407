"""What becomes of a lock when its process ends: docs/locks.rst has the table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pynamodb_mutex import LockItem

pytestmark = [
    pytest.mark.real("embedded"),  # it is the process that ends
    pytest.mark.unmeasured,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes otherwise"),
]

PROGRAM = """
import os, signal, sys, threading, time
from pynamodb_mutex import Mutex

mutex = Mutex.for_key("k")
held = threading.Event()


def hold():
    with mutex:
        held.set()
        time.sleep(seconds)


"""


HANDLER = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with mutex: os.kill(os.getpid(), signal.SIGTERM)"""


@pytest.mark.parametrize(
    ("ending", "code", "stays"),
    [
        ("with mutex: raise ValueError", 1, False),
        ("with mutex: sys.exit(3)", 3, False),
        ("with mutex: os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT, False),
        (f"{HANDLER}; time.sleep(60)", 143, False),
        ("seconds = 0.5; threading.Thread(target=hold).start(); held.wait()", 0, False),
        ("with mutex: os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, True),
        ("mutex.acquire()", 0, True),
        ("seconds = 60; threading.Thread(target=hold, daemon=True).start(); held.wait()", 0, True),
        ("with mutex: os._exit(0)", 0, True),
        ("with mutex: os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, True),
    ],
    ids=[
        "exception", "sys.exit", "Ctrl-C", "SIGTERM handled", "thread",
        "SIGTERM", "no release", "daemon thread", "os._exit", "SIGKILL",
    ],
)  # fmt: skip
def test_lock_of_a_process_that_ends(table: type[LockItem], ending, code, stays) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + ending],
        env=os.environ | {"PYNAMODB_MUTEX_TABLE": table.Meta.table_name},
        capture_output=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == code, done.stderr
    assert (table.get("k", consistent_read=True).expires_at is not None) == stays
