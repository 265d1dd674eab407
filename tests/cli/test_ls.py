"""``ls``: who holds what, for people and for programs."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone

import pytest
from botocore.client import BaseClient
from cli import run_cli
from lock_items import Wire

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._protocol.claim import NO_SERVER_TIME
from pynamodb_mutex.cli._output import clock_time, cut, duration
from pynamodb_mutex.testing import expire, held_elsewhere

pytestmark = pytest.mark.real


@pytest.fixture
def held(table):
    """Three locks, one of them abandoned, and two that are free."""
    with ExitStack() as stack:
        for key, owner, lease in (("b", "zoe", 60), ("a", "max", 600), ("c", "amy", 30)):
            stack.enter_context(held_elsewhere(key, owner=owner, lease=lease))
        expire("c")
        with Mutex.for_key("given-back"):
            pass
        with held_elsewhere("forced"):
            table.force_release("forced")
        yield table


def rows(*options):
    done = run_cli("ls", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    return [line.split("\t") for line in done.stdout.splitlines()]


def documents(*options):
    return json.loads(run_cli("ls", "--json", *options).stdout)


def keys(*options):
    return [document["key"] for document in documents(*options)]


def test_lists_who_holds_what_since_and_until_when(held):
    header, a, b, c = rows("--tz", "UTC")
    assert header == ["KEY", "OWNER", "SINCE", "UNTIL", "REMAINING", "TOKEN", "STATE"]
    item = LockItem.get("a")
    assert a[:2] == ["a", "max"]
    assert datetime.fromisoformat(a[2]) == item.since.replace(microsecond=0)
    assert datetime.fromisoformat(a[3]) == item.expires.replace(microsecond=0)
    assert 500 < float(a[4]) < 603
    assert a[5:] == [str(item.version), "held"]
    assert (b[0], b[6]) == ("b", "held")
    assert (c[0], c[1], c[4], c[6]) == ("c", "amy", "0.0", "abandoned")


def test_json_has_times_with_an_offset_and_numbers_as_numbers(held):
    a, _, c = documents("--tz", "Asia/Kolkata")
    item = LockItem.get("a")
    assert a == {
        "key": "a",
        "state": "held",
        "owner": "max",
        "since": a["since"],
        "until": a["until"],
        "remaining": pytest.approx(600, abs=60),
        "lease": 600.0,
        "fencing_token": item.version,
        "abandoned_by": None,
        "problem": None,
    }
    since = datetime.fromisoformat(a["since"])
    assert since.utcoffset() == timedelta(hours=5, minutes=30)
    assert since == item.since
    assert abs(datetime.fromisoformat(a["until"]) - item.expires) < timedelta(seconds=0.002)
    assert (c["state"], c["remaining"]) == ("abandoned", 0.0)


def test_sorted_and_filtered(held):
    assert keys() == ["a", "b", "c"]
    assert keys("--sort", "owner") == ["c", "a", "b"]
    assert keys("--sort", "expiry") == ["c", "b", "a"]
    assert keys("--held") == ["a", "b"]
    assert keys("--abandoned") == ["c"]


def test_named_keys_are_read_alone_and_shown_also_if_free(held, monkeypatch):
    wire = Wire(monkeypatch)
    assert keys("c", "a", "never", "a") == ["a", "c", "never"]
    assert wire.sent == ["BatchGetItem"]
    (_, row) = rows("given-back")
    assert (row[0], row[1], row[6]) == ("given-back", "-", "free")
    assert int(row[5]) == LockItem.get("given-back").version
    assert rows("never")[1] == ["never", "-", "-", "-", "-", "-", "free"]
    assert keys("a", "c", "never", "--abandoned") == ["c"]
    assert "no lock of these is held in table" in run_cli("ls", "c", "--held").stderr


def test_prefix_leaves_out_other_keys(table):
    with held_elsewhere("jobs/1"), held_elsewhere("jobs/2"), held_elsewhere("other"):
        assert keys("--prefix", "jobs/") == ["jobs/1", "jobs/2"]
        said = run_cli("ls", "--prefix", "job-").stderr
        assert said.startswith("no lock with the prefix 'job-' is held or abandoned in table")


def test_count_is_printed_alone(held):
    for options, count in (
        ((), 3),
        (("--held",), 2),
        (("--abandoned", "--json"), 1),
        (("--prefix", "x"), 0),
        (("a", "never"), 2),
    ):
        done = run_cli("ls", "--count", *options)
        assert (done.exit_code, done.stdout, done.stderr) == (0, f"{count}\n", "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("a", "--prefix", "b"), "give KEYs, or --prefix"),
        (tuple(map(str, range(101))), "up to 100 KEYs"),
        (("x" * 3000,), "KEY"),
    ],
)
def test_keys_that_cannot_be_listed(table, args, message):
    done = run_cli("ls", *args)
    assert done.exit_code == 2
    assert message in done.stderr


def test_throttling_of_named_keys_is_repeated(held, monkeypatch):
    wire = Wire(monkeypatch)

    def fail(_answer):
        wire.after.clear()
        raise ConnectionResetError("cut")

    wire.after["BatchGetItem"] = fail
    assert keys("a") == ["a"]
    assert wire.sent == ["BatchGetItem"] * 2


def test_times_are_local_by_default(held, monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        offset = datetime.fromisoformat(documents()[0]["since"]).utcoffset()
    finally:
        monkeypatch.undo()
        time.tzset()
    assert offset in (timedelta(hours=12), timedelta(hours=13))


def test_an_empty_table_is_no_failure(table):
    done = run_cli("ls")
    assert (done.exit_code, done.stdout) == (0, "")
    name = table.Meta.table_name
    assert done.stderr.startswith(
        f"no lock is held or abandoned in table {name} in us-east-1 at http"
    )
    assert "no lock is abandoned in" in run_cli("ls", "--abandoned").stderr
    done = run_cli("ls", "--json")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_hosts_clock_decides_nothing(held, monkeypatch):
    real = time.time
    for wrong in (1e6, -1e6):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: real() + wrong)
        assert [document["state"] for document in documents()] == ["held", "held", "abandoned"]


def test_control_characters_do_nothing_to_a_terminal(table):
    with held_elsewhere("a\x1b[2Jb\tc\nd\u202e", owner="x\x07"):
        (_, row) = rows()
        assert row[:2] == [r"a\x1b[2Jb\tc\nd\u202e", r"x\x07"]
        (document,) = documents()
        assert (document["key"], document["owner"]) == ("a\x1b[2Jb\tc\nd\u202e", "x\x07")


def test_many_locks_come_page_by_page_and_whole(table, monkeypatch):
    names = [f"{number:03}-{'x' * 300}" for number in range(20)]
    for name in names:
        Mutex.for_key(name, auto_renew=False).acquire()
    original = BaseClient._make_api_call
    pages = []

    def by_three(client, operation, kwargs):
        if operation == "Scan":
            pages.append(kwargs)
            kwargs = {**kwargs, "Limit": 3}
        return original(client, operation, kwargs)

    monkeypatch.setattr(BaseClient, "_make_api_call", by_three)
    assert [row[0] for row in rows()[1:]] == names
    assert len(pages) >= 7


def change(key, **values):
    """Write attributes that nobody but another program would."""
    store = LockItem.get(key)
    actions = [getattr(LockItem, name).set(value) for name, value in values.items()]
    store.update(actions, add_version_condition=False)


def test_rows_that_another_program_wrote(table):
    with held_elsewhere("odd"), held_elsewhere("unknown"):
        change("odd", token="not ours", owner="")
        change("unknown", expires_at=NO_SERVER_TIME + 30)
        odd, unknown = documents()
        assert rows()[2][3] == "-"
    assert (unknown["state"], unknown["until"], unknown["remaining"]) == ("held", None, None)
    assert (odd["since"], odd["state"]) == (None, "held")


def test_instants_near_midnight_have_a_time_and_far_ones_a_date():
    midnight = datetime(2026, 11, 23, tzinfo=timezone.utc)
    for seconds in (-20, 0, 20):
        now = midnight + timedelta(seconds=seconds)
        assert clock_time(now + timedelta(seconds=30), now) == f"00:00:{seconds + 30:02}"
    assert clock_time(midnight, midnight + timedelta(hours=13)) == "2026-11-23"
    assert clock_time(midnight, None) == "2026-11-23"
    assert clock_time(None, None) == "-"


def test_rows_that_cannot_be_a_locks_are_left_out_and_named(table):
    with held_elsewhere("a"), held_elsewhere("far"), held_elsewhere("before"):
        change("far", expires_at=1e18, owner="\x1b[2J")
        change("before", expires_at=-1e15)
        done = run_cli("ls", "--json")
    assert [lock["key"] for lock in json.loads(done.stdout)] == ["a"]
    far, before = sorted(done.stderr.splitlines(), reverse=True)
    assert far.startswith("left out: the row of 'far' in table ")
    assert "'expires_at' is not in seconds" in far
    assert "'expires_at' is not a number of seconds: {'N': '-1" in before
    assert done.exit_code == 0


@pytest.mark.parametrize("zone", ["Nowhere", "Europe", "../etc/passwd", ""])
def test_a_time_zone_that_there_is_not(zone):
    done = run_cli("ls", "--tz", zone)
    assert done.exit_code == 2
    assert f"'--tz': there is no time zone {zone!r}" in done.stderr


def test_options_come_from_the_environment(held):
    env = {"PYNAMODB_MUTEX_LS_SORT": "owner", "PYNAMODB_MUTEX_TZ": "Asia/Tokyo"}
    document = json.loads(run_cli("ls", "--json", env=env).stdout)[0]
    assert (document["key"], document["since"][-6:]) == ("c", "+09:00")
    assert run_cli("ls", "--sort", "no").exit_code == 2


def test_durations_for_people():
    said = [duration(seconds) for seconds in (0.04, 59.96, 61, 3725, 90000, 1e6)]
    assert said == ["0.0s", "60.0s", "1m 1s", "1h 2m", "1d 1h", "11d 13h"]


def test_text_is_cut_by_columns_not_characters():
    assert cut("日本語日本語", 12) == "日本語日本語"
    assert cut("日本語日本語", 9) == "日本…本語"
    assert cut("日本語日本語", 8) == "日本… 語"
    assert cut("abcdef", 1) == "…"
    assert cut("abcdef", 0) == "…"
