"""What locks cost, in counts: threads, objects that are kept, modules. For requests see dynamodb/test_requests.py."""

import json
import sys
from contextlib import ExitStack

from worker import run_script

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.testing import held_elsewhere

MODULES = 38
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
        *("_operations.acquire_several", "_operations.attach", "_operations.guarded_write"),
        *("_operations.row_write", "_operations.transaction", "_runtime.run_in_task"),
        *("_synchronized", "aio", "groups", "receivers", "rows", "signals", "testing"),
    ):
        assert f"pynamodb_mutex.{seldom}" not in own
