"""What locks cost a process, in counts, and what becomes of them when it ends.

For the cost in requests see dynamodb/test_requests.py.
"""

import json
import signal
import sys
from contextlib import ExitStack

import pytest
from processes import run_script
from this_process import current_process

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import held_elsewhere

MODULES = 47
"""Of the package, for a lock that is taken and released. More of them make each cold start longer."""


def test_polls_of_held_locks_leave_nothing_behind(table):
    keys = [f"k{number}" for number in range(5)]
    with ExitStack() as held:
        for key in keys:
            held.enter_context(held_elsewhere(key))
        for key in keys:
            assert not Mutex.for_key(key).acquire(blocking=False)
        assert not Mutex.for_keys(keys).acquire(blocking=False)
        assert not Mutex.any_of(keys).acquire(blocking=False)
        assert [key for _, key in current_process().queues if key in keys] == []
    assert LockItem.force_release("k0") is False
    assert [key for _, key in current_process().queues if key in keys] == []


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
loaded = sorted(set(sys.modules) - before)
missing = [name for name in pynamodb_mutex.__all__ if not hasattr(pynamodb_mutex, name)]
import pynamodb_mutex.signals
assert not [name for name in sys.modules if name.startswith("pynamodb_mutex.receivers")]
print(json.dumps([loaded, threading.active_count(), opened, missing]))
"""


def test_importing_loads_little_starts_nothing_opens_nothing_and_brings_every_public_name():
    loaded, threads, opened, missing = json.loads(run_script(SCRIPT).stdout)
    assert (threads, opened, missing) == (1, [], [])
    own = {name for name in loaded if name.startswith("pynamodb_mutex")}
    assert len(own) <= MODULES
    allowed = {*sys.stdlib_module_names, "botocore", "pynamodb", "typing_extensions"}
    assert {name.partition(".")[0] for name in set(loaded) - own} <= allowed - {"asyncio"}
    assert "pynamodb_mutex.mutex" in own
    for seldom in (
        *("_several.acquire_all", "_attach.attach", "_writes.guarded_write"),
        *("_writes.row_write", "_writes.transaction", "_tasks.run_in_task"),
        *("_synchronized", "aio", "groups", "receivers", "rows", "signals", "testing"),
        *("_called_once", "_once.run", "runs"),
    ):
        assert f"pynamodb_mutex.{seldom}" not in own


# one interpreter starts; the processes that hold locks and end are forked from it, before it has used any lock
PROGRAM = """
import json, os, signal, sys, threading, time
from pynamodb_mutex import Mutex, release_all

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
RELEASED = "signal.signal(signal.SIGTERM, lambda *_: os._exit(len(release_all())))"
ENDINGS = [  # what it does, its exit code, whether the lock stays held; docs/howto/graceful_shutdown.rst has it
    ("with mutex: raise ValueError", 1, False),
    ("with mutex: sys.exit(3)", 3, False),
    ("with mutex: os.kill(os.getpid(), signal.SIGINT); time.sleep(60)", -signal.SIGINT, False),
    (f"{HANDLED}\nwith mutex: os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", 143, False),
    ("seconds = 0.5; threading.Thread(target=hold).start(); held.wait()", 0, False),
    ("with mutex: os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, True),
    ("mutex.acquire()", 0, False),
    ("seconds = 60; threading.Thread(target=hold, daemon=True).start(); held.wait()", 0, False),
    ("mutex = Mutex.for_key(str(key), auto_renew=False); mutex.acquire()", 0, True),
    (f"{RELEASED}\nmutex.acquire(); os.kill(os.getpid(), signal.SIGTERM)", 0, False),
    ("with mutex: os._exit(0)", 0, True),
    ("with mutex: os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, True),
]


@pytest.mark.real("embedded")  # it is the process that ends
@pytest.mark.unmeasured
@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes otherwise")
def test_locks_of_processes_that_end(table):
    endings = [ending for ending, _, _ in ENDINGS]
    done = run_script(PROGRAM, json.dumps(endings))
    assert done.returncode == 0, done.stderr
    rows = [table.get(str(key), consistent_read=True) for key in range(len(ENDINGS))]
    stays = [row.expires_at is not None for row in rows]
    assert list(zip(endings, json.loads(done.stdout), stays, strict=True)) == ENDINGS, done.stderr


def test_interpreter_without_arguments_imports_all_but_what_is_seldom_needed():
    script = "import sys; sys.argv.clear(); import pynamodb_mutex; print(pynamodb_mutex.mutex)"
    assert "pynamodb_mutex.mutex" in run_script(script).stdout
