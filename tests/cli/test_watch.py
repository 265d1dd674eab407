"""``watch``: what changes, line by line; the live view is in test_terminal."""

from __future__ import annotations

import json

import pytest
from cli import run_cli
from lock_items import Elsewhere, Wire

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import expire, held_elsewhere


@pytest.fixture
def script(monkeypatch):
    """Plays steps, one after each look, in place of the wait; then Ctrl-C."""

    def play(*steps):
        rest = list(steps)

        class Steps:
            def sleep(self, _until):
                if not rest:
                    raise KeyboardInterrupt
                rest.pop(0)()

        # in this command alone: those who acquire in a step have alarms, too
        monkeypatch.setattr("pynamodb_mutex.cli._listing.ThreadSleeper", Steps)

    return play


def lock(key, owner):
    return Mutex.for_key(key, owner=owner, model=Elsewhere, auto_renew=False)


def said(done):
    return [line.partition("  ")[2] for line in done.stdout.splitlines()]


def test_a_line_for_each_change(table, script):
    one, two, dead = lock("a", "one"), lock("a", "two"), lock("b", "dead")
    dead.acquire()
    script(
        one.acquire,
        one.renew,
        lambda: (one.release(), two.acquire()),
        lambda: expire("b"),
        dead.renew,
        lambda: expire("a"),
        two.release,
        lambda: None,
    )
    done = run_cli("watch")
    assert (done.exit_code, done.stderr) == (0, "")
    assert said(done) == [
        f"b  held by dead, fencing token {dead.fencing_token}",
        f"a  taken by one, fencing token {one.fencing_token}",
        f"a  taken by two, fencing token {two.fencing_token}; before: one",
        "b  abandoned by dead",
        "b  renewed late by dead",
        "a  abandoned by two",
        "a  freed",
    ]


def test_keys_are_read_not_scanned(table, script, monkeypatch):
    wire = Wire(monkeypatch)
    mutex = lock("a", "me")
    script(mutex.acquire, mutex.release, lambda: lock("other", "x").acquire())
    wire.sent.clear()
    done = run_cli("watch", "a", "b", "a", "--json")
    assert done.exit_code == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["event"], line["key"], line["state"]) for line in lines] == [
        ("free", "a", "free"),
        ("free", "b", "free"),
        ("taken", "a", "held"),
        ("freed", "a", "free"),
    ]
    assert all(line["at"][-6:][0] in "+-" for line in lines)
    assert wire.sent.count("BatchGetItem") == 4
    assert "Scan" not in wire.sent
    script()
    assert said(run_cli("watch", "a")) == ["a  free"]


def test_change_has_no_time_where_server_time_is_not_known(table, script, monkeypatch):
    wire = Wire(monkeypatch)
    script()
    with held_elsewhere("a"):
        wire.drop_dates("Scan")
        done = run_cli("watch")
    assert done.stdout.startswith("-  a  held by elsewhere")


def test_a_prefix_leaves_the_others_out(table, script):
    script()
    with held_elsewhere("jobs/1"), held_elsewhere("other"):
        assert [line[:6] for line in said(run_cli("watch", "--prefix", "jobs/"))] == ["jobs/1"]


def test_failures_that_pass_do_not_end_it(table, script, monkeypatch):
    wire = Wire(monkeypatch)

    def fail(_answer):
        raise ConnectionResetError("cut")

    mutex = lock("a", "me")
    script(
        lambda: wire.after.update(Scan=fail),
        lambda: None,
        wire.after.clear,
        mutex.acquire,
    )
    done = run_cli("watch")
    assert done.exit_code == 0
    assert said(done) == [f"a  taken by me, fencing token {mutex.fencing_token}"]
    assert done.stderr.splitlines() == ["Scan failed: cut; repeated", "DynamoDB answers again"]


def test_what_does_not_pass_ends_it(table, script):
    script(lambda: LockItem.delete_table(wait=True))
    done = run_cli("watch")
    assert done.exit_code == 1
    assert "create-table makes it" in done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("a", "--prefix", "b"), "give KEYs, or --prefix"),
        (tuple(map(str, range(101))), "up to 100 KEYs"),
        (("--interval", "0"), "--interval"),
        (("--interval", "nan"), "--interval"),
        (("x" * 3000,), "KEY"),
    ],
)
def test_wrong_usage(args, message):
    done = run_cli("watch", *args)
    assert done.exit_code == 2
    assert message in done.stderr


def put(key, **attributes):
    client = LockItem._get_connection().connection.client
    row = {"key": {"S": key}, **attributes}
    client.put_item(TableName=LockItem.Meta.table_name, Item=row)


BROKEN = {"token": {"S": "t"}, "version": {"N": "7"}, "expires_at": {"S": "soon"}}


@pytest.mark.parametrize("keys", [(), ("a", "b")])
def test_row_that_cannot_be_a_locks_is_shown_as_invalid_once(table, script, keys):
    mutex = lock("a", "one")
    mutex.acquire()
    put("b", user={"S": "Ann"}, expires_at={"N": "1"})
    script(
        lambda: put("a", **BROKEN),
        lambda: None,
        lambda: LockItem.force_release("a"),
    )
    done = run_cli("watch", *keys)
    assert (done.exit_code, done.stderr) == (0, "")
    first, second, broken, freed = said(done)
    held = f"a  held by one, fencing token {mutex.fencing_token}"
    assert held in (first, second)
    assert any(line.startswith("b  invalid: the row of 'b' in table ") for line in (first, second))
    assert broken.startswith("a  invalid: the row of 'a' in table ")
    assert "'expires_at' is not a number of seconds" in broken
    assert freed == "a  freed"


def test_json_says_what_is_wrong_with_a_row(table, script):
    put("a", **BROKEN)
    script()
    (line,) = run_cli("watch", "--json").stdout.splitlines()
    found = json.loads(line)
    assert (found["event"], found["state"], found["owner"]) == ("invalid", "invalid", None)
    assert "'expires_at' is not a number of seconds" in found["problem"]
