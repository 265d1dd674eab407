"""``wait``: until a lock is free, as those wait who want it."""

from __future__ import annotations

import time

import pytest
from cli import run_cli
from lock_items import Elsewhere, Wire

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import expire, held_elsewhere


@pytest.fixture
def wire(monkeypatch):
    return Wire(monkeypatch)


def test_a_free_lock_is_not_waited_for(table, wire):
    wire.sent.clear()
    assert run_cli("wait", "never").exit_code == 0
    assert wire.sent == ["GetItem", "GetItem"]
    with Mutex.for_key("a"):
        pass
    assert run_cli("wait", "a").exit_code == 0


def test_the_lock_of_a_dead_holder_is_free(table):
    with held_elsewhere("a"):
        expire("a")
        assert run_cli("wait", "a").exit_code == 0
        assert LockItem.get("a").expires_at is not None


def test_exit_code_75_when_time_is_up(table):
    with held_elsewhere("a", owner="worker-7"):
        done = run_cli("wait", "a", "--timeout", "0")
        assert (done.exit_code, done.stdout) == (75, "")
        assert done.stderr.startswith("'a' is still held by 'worker-7' until ")
        begun = time.monotonic()
        assert run_cli("wait", "a", "--timeout", "0.3").exit_code == 75
        assert time.monotonic() - begun >= 0.3


@pytest.mark.parametrize("options", [[], ["--timeout", "-1"]])
def test_waits_until_it_is_released_by_cheap_reads(table, wire, options):
    mutex = Mutex.for_key("a", model=Elsewhere, auto_renew=False)
    mutex.acquire()
    looked = 0

    def count(_answer):
        nonlocal looked
        looked += 1
        if looked == 3:
            mutex.release()

    wire.after["GetItem"] = count
    assert run_cli("wait", "a", *options).exit_code == 0
    assert looked >= 4
    assert wire.sent.count("UpdateItem") == 2
    assert mutex.loss is None


def test_a_failure_that_passes_is_waited_out(table, wire):
    mutex = Mutex.for_key("a", model=Elsewhere, auto_renew=False)
    mutex.acquire()
    looked = 0

    def fail(_answer):
        nonlocal looked
        looked += 1
        if looked == 3:
            mutex.release()
        # one that polls, and the one that makes sure
        if looked in (2, 5):
            raise ConnectionResetError

    wire.after["GetItem"] = fail
    assert run_cli("wait", "a").exit_code == 0
    assert looked >= 6


def test_what_fails_at_the_first_look_is_reported(table):
    table.delete_table(wait=True)
    done = run_cli("wait", "a")
    assert done.exit_code == 1
    assert "create-table makes it" in done.stderr


@pytest.mark.parametrize("timeout", ["-2", "soon", "nan", "inf"])
def test_a_timeout_that_is_none(timeout):
    done = run_cli("wait", "a", "--timeout", timeout)
    assert done.exit_code == 2
    assert "--timeout" in done.stderr


def test_row_that_is_no_locks_is_not_waited_for(table):
    client = LockItem._get_connection().connection.client
    row = {"key": {"S": "a"}, "user": {"S": "Ann"}}
    client.put_item(TableName=LockItem.Meta.table_name, Item=row)
    done = run_cli("wait", "a")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: the row of 'a' in table ")
    assert "'token' is missing" in done.stderr
