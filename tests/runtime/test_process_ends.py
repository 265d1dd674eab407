"""What becomes of a lock when its process ends: docs/locks.rst has the table."""

import json
import signal
import sys

import pytest
from worker import run_script

pytestmark = [
    pytest.mark.real("embedded"),  # it is the process that ends
    pytest.mark.unmeasured,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes otherwise"),
]

# one interpreter starts; the processes that hold locks and end are forked from it, before it has used any lock
PROGRAM = """
import json, os, signal, sys, threading, time
from pynamodb_mutex import Mutex

codes = []
for key, ending in enumerate(json.loads(sys.argv[1])):
    pid = os.fork()
    if not pid:
        break
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
else:
    print(json.dumps(codes))
    sys.exit()

mutex = Mutex.for_key(str(key))
held = threading.Event()

def hold():
    with mutex:
        held.set()
        time.sleep(seconds)

exec(ending)
"""

HANDLED = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))"
ENDINGS = [  # what it does, its exit code, and whether the lock stays held
    ("with mutex: raise ValueError", 1, False),
    ("with mutex: sys.exit(3)", 3, False),
    ("with mutex: os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT, False),
    (f"{HANDLED}\nwith mutex: os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", 143, False),
    ("seconds = 0.5; threading.Thread(target=hold).start(); held.wait()", 0, False),
    ("with mutex: os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, True),
    ("mutex.acquire()", 0, True),
    ("seconds = 60; threading.Thread(target=hold, daemon=True).start(); held.wait()", 0, True),
    ("with mutex: os._exit(0)", 0, True),
    ("with mutex: os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, True),
]


def test_locks_of_processes_that_end(table):
    endings = [ending for ending, _, _ in ENDINGS]
    done = run_script(PROGRAM, json.dumps(endings))
    assert done.returncode == 0, done.stderr
    rows = [table.get(str(key), consistent_read=True) for key in range(len(ENDINGS))]
    stays = [row.expires_at is not None for row in rows]
    assert list(zip(endings, json.loads(done.stdout), stays, strict=True)) == ENDINGS, done.stderr
