"""What locks cost, in counts: requests, capacity units, threads, modules. Times are for benchmarks."""

import functools
import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from botocore.client import BaseClient
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, Mutex, RowLockMixin
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.testing import held_elsewhere

MODULES = 38
"""Of the package, for a lock that is taken and released. More of them make each cold start longer."""

on_dynamodb_local = pytest.mark.real("local")
"""The embedded engine counts half a unit for an update, and the simulated one none."""


class Cost:
    """What was sent, and what the engine says that it used.

    Attributes:
        sent: Requests, by operation.
        units: Capacity units, of reads and writes, of what was applied.
    """

    def __init__(self):
        self.sent = Counter()
        self.units = Counter()

    def clear(self):
        self.sent.clear()
        self.units.clear()

    def add(self, operation, answer):
        used = answer.get("ConsumedCapacity", [])
        kind = "read" if operation in {"GetItem", "BatchGetItem"} else "write"
        for each in used if isinstance(used, list) else [used]:
            self.units[kind] += each["CapacityUnits"]


@pytest.fixture
def cost(monkeypatch):
    cost = Cost()
    original = BaseClient._make_api_call

    def count(self, operation, kwargs):
        if "ReturnConsumedCapacity" not in kwargs:  # it is about a table
            return original(self, operation, kwargs)
        cost.sent[operation] += 1
        answer = original(self, operation, kwargs | {"ReturnConsumedCapacity": "TOTAL"})
        cost.add(operation, answer)
        return answer

    with Mutex.for_key("warm"):  # the first contact has a read more
        pass
    monkeypatch.setattr(BaseClient, "_make_api_call", count)
    return cost


@on_dynamodb_local
def test_a_cycle_is_two_requests_and_two_write_units(table, cost):
    for key in ("a", "a", "b"):
        cost.clear()
        with Mutex.for_key(key):
            pass
        assert cost.sent == {"UpdateItem": 2}
        assert cost.units == {"write": 2}


@on_dynamodb_local
def test_a_locked_row_is_read_and_written_by_two_requests(table, cost):
    class Account(RowLockMixin, Model):
        class Meta:
            table_name = f"accounts-{LockItem.Meta.table_name}"
            billing_mode = "PAY_PER_REQUEST"

        name = UnicodeAttribute(hash_key=True)
        balance = NumberAttribute(default=0)

    Account.create_table(wait=True)
    Account("alice", balance=100).save()
    with Account.locked("alice"):  # the first contact
        pass
    cost.clear()
    with Account.locked("alice") as account:
        account.balance -= 10
        account.save(unlock=True)
    assert sum(cost.sent.values()) == 2
    assert cost.units == {"write": 2}
    assert Account.get("alice").balance == 90


@on_dynamodb_local
def test_a_poll_is_half_a_read_unit_and_waiting_writes_nothing(table, cost):
    with held_elsewhere("a"):
        waiter = Mutex.for_key("a", poll=(0.1, 0.1))
        assert not waiter.acquire(blocking=False)
        cost.clear()
        assert not waiter.acquire(timeout=1.0)
        polls = cost.sent.pop("GetItem")
        # its first attempt is a write; then it polls each 0.1 s, and once at its deadline
        assert cost.sent == {"UpdateItem": 1}
        assert 1 <= polls <= 11
        assert cost.units == {"read": polls / 2}


def test_polls_do_not_grow_with_the_waiting_threads(table, cost):
    def wait(_):
        return Mutex.for_key("a", poll=(0.25, 0.25)).acquire(timeout=2.0)

    with held_elsewhere("a"):
        assert not Mutex.for_key("a").acquire(blocking=False)
        cost.clear()
        with ThreadPoolExecutor(32) as pool:
            assert not any(pool.map(wait, range(32)))
    # eight polls of the first in line, and a first and a last look of each
    assert sum(cost.sent.values()) <= 8 + 2 * 32 + 4


def test_waiting_processes_poll_for_themselves_alone(table, cost):
    """Requests grow with the waiters, not with their square: nobody wakes or disturbs another."""

    def client(number):
        meta = type("Meta", (), {"table_name": LockItem.Meta.table_name})
        return type(f"Client{number}", (LockItem,), {"Meta": meta})

    def polled(count):
        waiters = [Mutex.for_key("a", model=m, poll=(0.1, 0.1)) for m in models[:count]]
        cost.clear()
        with ThreadPoolExecutor(count) as pool:
            assert not any(pool.map(lambda waiter: waiter.acquire(timeout=1.0), waiters))
        return sum(cost.sent.values())

    models = [client(number) for number in range(8)]
    for model in models:
        with Mutex.for_key("warm", model=model):
            pass
    with held_elsewhere("a"):
        # a first poll, ten polls and a last one each, however many they are
        assert polled(8) <= 8 * 12
        assert polled(2) <= 2 * 12


def test_no_thread_for_a_lock_that_needs_none_and_few_for_many(table, cost, monkeypatch):
    # not those that run: they may renew what tests before have left behind
    asked_for = []
    threads = current_process().threads
    put = threads.put
    monkeypatch.setattr(threads, "put", lambda name, run: asked_for.append(name) or put(name, run))
    with Mutex.for_key("a", auto_renew=False):
        assert asked_for == []
    # none is due before the last is taken, however long that takes
    mutexes = [Mutex.for_key(f"k{number}", lease=3600) for number in range(100)]
    for mutex in mutexes:
        mutex.acquire()
    assert asked_for in ([], ["pynamodb-mutex-renewer"])
    assert cost.sent == {"UpdateItem": 101 + 1}
    for mutex in mutexes:
        mutex.release()


def test_polls_of_held_locks_leave_nothing_behind(table, cost):
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


# -- importing the package -------------------------------------------------------------------------

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
    "missing": [name for name in pynamodb_mutex.__all__ if not hasattr(pynamodb_mutex, name)],
}))
"""


@functools.cache
def imported():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=100
    )
    return json.loads(done.stdout)


def packages(names):
    return {name.partition(".")[0] for name in names}


def test_importing_loads_little_starts_nothing_and_opens_nothing():
    found = imported()
    loaded = found["loaded"]
    own = {name for name in loaded if packages([name]) == {"pynamodb_mutex"}}
    assert "pynamodb_mutex.mutex" in own
    assert len(own) <= MODULES
    allowed = {*sys.stdlib_module_names, "botocore", "pynamodb", "typing_extensions"}
    assert packages(set(loaded) - own) <= allowed - {"asyncio"}
    for seldom in (
        *("_operations.acquire_several", "_operations.attach", "_operations.guarded_write"),
        *("_operations.row_write", "_operations.transaction", "_runtime.run_in_task"),
        *("_synchronized", "aio", "groups", "receivers", "rows", "signals", "testing"),
    ):
        assert f"pynamodb_mutex.{seldom}" not in own
    assert found["threads"] == 1
    assert found["opened"] == []


def test_every_public_name_is_there():
    found = imported()
    assert found["missing"] == []
    assert {"LockItem", "Mutex", "MutexError", "Loss"} <= set(found["public"])
