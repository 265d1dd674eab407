"""``ls``, ``show``, ``watch`` and ``wait``: which locks are held by whom, until when, and what changes."""

from __future__ import annotations

import io
import json
import re
import time
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone

import pytest
from botocore.client import BaseClient
from cli import run_cli
from cli_scene import BROKEN, change, entry, json_of, on_terminal, put, stored, wrong_usage
from lock_items import Elsewhere
from rich.console import Console, Group
from rich.text import Text

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._protocol.claim import NO_SERVER_TIME
from pynamodb_mutex.cli._listing import View, _Watching
from pynamodb_mutex.cli._locks import Locks
from pynamodb_mutex.cli._output import clock_time, cut, duration
from pynamodb_mutex.cli._place import Place
from pynamodb_mutex.testing import expire, held_elsewhere


@pytest.fixture
def held(table):
    """Three locks, one of them abandoned, and two that are free."""
    with ExitStack() as stack:
        for key, owner, lease in (("b", "zoe", 60), ("a", "max", 600), ("c", "amy", 30)):
            stack.enter_context(held_elsewhere(key, owner=owner, lease=lease))
        expire("c")
        with Mutex.for_key("released"):
            pass
        with held_elsewhere("forced"):
            table.force_release("forced")
        yield table


def lock(key, owner="me"):
    return Mutex.for_key(key, owner=owner, model=Elsewhere, auto_renew=False)


def cut_connection(_answer=None):
    raise ConnectionResetError("cut")


@pytest.mark.real
def test_commands_on_a_real_engine(table):
    with held_elsewhere("a", owner="me", lease=60), held_elsewhere("b"):
        expire("b")
        assert [found["state"] for found in json_of("ls")] == ["held", "abandoned"]
        assert [found["state"] for found in json_of("ls", "a", "c")] == ["held", "free"]
        assert json_of("show", "a")["owner"] == "me"
        assert run_cli("wait", "b").exit_code == 0
        assert run_cli("wait", "a", "--timeout", "0").exit_code == 75
        assert json_of("release", "a", "--force", "--yes")["freed"] is True
        (freed,) = json_of("release", "--all-abandoned", "-y")["freed"]
        assert freed["key"] == "b"
    assert json_of("ls") == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("ls", "a", "--prefix", "b"), "give KEYs, or --prefix"),
        (("ls", *map(str, range(101))), "give up to 100 KEYs"),
        (("ls", "x" * 3000), "KEY"),
        (("ls", "--sort", "no"), "--sort"),
        *(
            (("ls", "--tz", zone), f"'--tz': there is no time zone {zone!r}")
            for zone in ("Nowhere", "Europe", "../etc/passwd", "")
        ),
        (("show", ""), "a key takes 1 to 2048 bytes"),
        (("show", "x" * 3000), "a key takes 1 to 2048 bytes"),
        (("show", "a", "--range-key", "1"), "is for row locks only"),
        (("watch", "a", "--prefix", "b"), "give KEYs, or --prefix"),
        (("watch", *map(str, range(101))), "give up to 100 KEYs"),
        (("watch", "--interval", "0"), "--interval"),
        (("watch", "--interval", "nan"), "--interval"),
        (("watch", "x" * 3000), "KEY"),
        *((("wait", "a", "--timeout", no), "--timeout") for no in ("-2", "soon", "nan", "inf")),
    ],
)
def test_wrong_usage(table, args, message):
    assert message in wrong_usage(*args)


# -- ls --------------------------------------------------------------------------------------------


def rows(*options):
    done = run_cli("ls", *options)
    assert (done.exit_code, done.stderr) == (0, "")
    return [line.split("\t") for line in done.stdout.splitlines()]


def keys(*options, **more):
    return [document["key"] for document in json_of("ls", *options, **more)]


def test_ls_prints_holders_and_times_as_lines_and_as_json(held):
    header, a, b, c = rows("--tz", "UTC")
    assert header == ["KEY", "OWNER", "SINCE", "UNTIL", "REMAINING", "TOKEN", "STATE", "WAITERS"]
    item = LockItem.get("a")
    assert a[:2] == ["a", "max"]
    assert datetime.fromisoformat(a[2]) == item.since.replace(microsecond=0)
    assert datetime.fromisoformat(a[3]) == item.expires.replace(microsecond=0)
    assert 599 < float(a[4]) < 602
    assert a[5:] == [str(item.version), "held", "-"]
    assert (b[0], b[6]) == ("b", "held")
    assert (c[0], c[1], c[4], c[6]) == ("c", "amy", "0.0", "abandoned")
    a, _, c = json_of("ls", "--tz", "Asia/Kolkata")
    assert a == {
        "key": "a",
        "state": "held",
        "owner": "max",
        "since": a["since"],
        "until": a["until"],
        "remaining": pytest.approx(600, abs=2),
        "lease": 600.0,
        "fencing_token": item.version,
        "abandoned_by": None,
        "waiters": [],
        "problem": None,
    }
    since = datetime.fromisoformat(a["since"])
    assert since.utcoffset() == timedelta(hours=5, minutes=30)
    assert since == item.since
    assert abs(datetime.fromisoformat(a["until"]) - item.expires) < timedelta(seconds=0.002)
    assert (c["state"], c["remaining"]) == ("abandoned", 0.0)


def test_ls_sorts_filters_and_counts(held):
    assert keys() == ["a", "b", "c"]
    assert keys("--sort", "owner") == ["c", "a", "b"]
    assert keys("--sort", "expiry") == ["c", "b", "a"]
    assert keys("--held") == ["a", "b"]
    assert keys("--abandoned") == ["c"]
    for options, count in (
        ((), 3),
        (("--held",), 2),
        (("--abandoned", "--json"), 1),
        (("--prefix", "x"), 0),
        (("a", "never"), 2),
    ):
        done = run_cli("ls", "--count", *options)
        assert (done.exit_code, done.stdout, done.stderr) == (0, f"{count}\n", "")
    with held_elsewhere("jobs/1"), held_elsewhere("jobs/2"):
        assert keys("--prefix", "jobs/") == ["jobs/1", "jobs/2"]
        printed = run_cli("ls", "--prefix", "job-").stderr
        assert printed.startswith("no lock with the prefix 'job-' is held or abandoned in table")
    env = {"PYNAMODB_MUTEX_LS_SORT": "owner", "PYNAMODB_MUTEX_TZ": "Asia/Tokyo"}
    document = json_of("ls", env=env)[0]
    assert (document["key"], document["since"][-6:]) == ("c", "+09:00")


def test_ls_reads_named_keys_alone_and_prints_free_ones_too(held, wire):
    assert keys("c", "a", "never", "a") == ["a", "c", "never"]
    assert wire.sent == ["BatchGetItem"]
    (_, row) = rows("released")
    assert (row[0], row[1], row[6]) == ("released", "-", "free")
    assert int(row[5]) == LockItem.get("released").version
    assert rows("never")[1] == ["never", "-", "-", "-", "-", "-", "free", "-"]
    assert keys("a", "c", "never", "--abandoned") == ["c"]
    assert "no lock of these is held in table" in run_cli("ls", "c", "--held").stderr
    wire.sent.clear()
    wire.before["BatchGetItem"] = cut_connection  # once
    assert keys("a") == ["a"]
    assert wire.sent == ["BatchGetItem"] * 2


def test_ls_prints_local_times_and_judges_by_server_time(held, monkeypatch):
    import time as system

    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "Pacific/Auckland")
            system.tzset()
            offset = datetime.fromisoformat(json_of("ls")[0]["since"]).utcoffset()
    finally:
        system.tzset()
    assert offset in (timedelta(hours=12), timedelta(hours=13))
    now = system.time
    for wrong in (1e6, -1e6):
        monkeypatch.setattr(system, "time", lambda wrong=wrong: now() + wrong)
        assert [found["state"] for found in json_of("ls")] == ["held", "held", "abandoned"]


def test_ls_of_an_empty_table_is_no_failure(table):
    done = run_cli("ls")
    assert (done.exit_code, done.stdout) == (0, "")
    where = f"table {table.Meta.table_name} in us-east-1 at http"
    assert done.stderr.startswith(f"no lock is held or abandoned in {where}")
    assert "no lock is abandoned in" in run_cli("ls", "--abandoned").stderr
    done = run_cli("ls", "--json")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "[]\n", "")


def test_ls_escapes_control_characters_and_json_has_them(table):
    with held_elsewhere("a\x1b[2Jb\tc\nd\u202e", owner="x\x07"):
        (_, row) = rows()
        assert row[:2] == [r"a\x1b[2Jb\tc\nd\u202e", r"x\x07"]
        (document,) = json_of("ls")
        assert (document["key"], document["owner"]) == ("a\x1b[2Jb\tc\nd\u202e", "x\x07")


def test_ls_reads_many_locks_page_by_page(table, monkeypatch):
    names = [f"{number:03}-{'x' * 300}" for number in range(20)]
    for name in names:
        Mutex.for_key(name, auto_renew=False).acquire()
    original, pages = BaseClient._make_api_call, []

    def by_three(client, operation, kwargs):
        if operation == "Scan":
            pages.append(kwargs)
            kwargs = {**kwargs, "Limit": 3}
        return original(client, operation, kwargs)

    monkeypatch.setattr(BaseClient, "_make_api_call", by_three)
    assert [row[0] for row in rows()[1:]] == names
    assert len(pages) >= 7


def test_ls_of_rows_that_another_program_wrote(table):
    with held_elsewhere("odd"), held_elsewhere("unknown"):
        change("odd", token="not ours", owner="")
        change("unknown", expires_at=NO_SERVER_TIME + 30)
        odd, unknown = json_of("ls")
        assert rows()[2][3] == "-"
        assert (unknown["state"], unknown["until"], unknown["remaining"]) == ("held", None, None)
        assert (odd["since"], odd["state"]) == (None, "held")
        change("odd", expires_at=1e18, owner="\x1b[2J")
        change("unknown", expires_at=-1e15)
        with held_elsewhere("a"):
            done = run_cli("ls", "--json")
    assert (done.exit_code, [found["key"] for found in json.loads(done.stdout)]) == (0, ["a"])
    before, far = sorted(done.stderr.splitlines(), reverse=True)
    assert far.startswith("left out: the row of 'odd' in table ")
    assert "'expires_at' is not in seconds" in far
    assert "'expires_at' is not a number of seconds: {'N': '-1" in before


@pytest.mark.parametrize(
    ("columns", "header"),
    [
        (120, ["KEY", "OWNER", "SINCE", "UNTIL", "REMAINING", "TOKEN", "STATE"]),
        (80, ["KEY", "OWNER", "SINCE", "UNTIL", "REMAINING", "STATE"]),
        (60, ["KEY", "OWNER", "UNTIL", "REMAINING", "STATE"]),
        (40, ["KEY", "OWNER", "STATE"]),
        (22, ["KEY", "STATE"]),
    ],
)
def test_table_fits_the_terminal_and_keeps_key_and_state(table, columns, header):
    key = "begin-of-a-key-" + "x" * 40 + "-end"
    with held_elsewhere(key, owner="w" * 1000), held_elsewhere("dead", owner="[red]gone\x1b[2J"):
        expire("dead")
        code, sent, shown = on_terminal("ls", columns=columns)
    assert (code, "\x1b[2J" in sent) == (0, False)
    *lines, counts = shown[shown.index("KEY") :].splitlines()
    assert counts == "held: 1   abandoned: 1"
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == header
    long, dead = (line.split() for line in lines[1:3])
    assert (long[-1], dead[-1]) == ("held", "abandoned")
    assert re.fullmatch(r"begin[-a-z]*…[-x]*-end", long[0])
    assert dead[0] == "dead"
    if "OWNER" in header:
        assert re.fullmatch("w+…w+", long[1])
        assert dead[1].startswith("[red")


@pytest.mark.parametrize(
    ("columns", "header"),
    [
        (109, ["KEY", "OWNER", "SINCE", "UNTIL", "REMAINING", "TOKEN", "STATE", "WAITERS"]),
        (81, ["KEY", "OWNER", "SINCE", "UNTIL", "REMAINING", "STATE", "WAITERS"]),
        (80, ["KEY", "OWNER", "UNTIL", "REMAINING", "STATE", "WAITERS"]),
        (48, ["KEY", "OWNER", "STATE", "WAITERS"]),
        (47, ["KEY", "OWNER", "STATE"]),
    ],
)
def test_table_makes_room_for_the_number_of_waiters(table, columns, header):
    with held_elsewhere("k" * 100, owner="w" * 100), held_elsewhere("z"):
        change("k" * 100, waiting=[entry("first"), entry("second")])
        lines = on_terminal("ls", columns=columns)[2]
    head, long, short, _ = lines[lines.index("KEY") :].splitlines()
    assert (max(map(len, (head, long, short))), head.split()) == (columns, header)
    assert long.split()[0].startswith("kkkk")
    if "WAITERS" in header:
        assert (long.split()[-1], short.split()[-1]) == ("2", "-")


def test_table_shortens_owners_before_keys(table):
    with held_elsewhere("k" * 24, owner="w" * 50):
        assert f"{'k' * 24}  www" in on_terminal("ls")[2]
    with held_elsewhere("k" * 50, owner="ci-runner-17"):
        assert "  ci-runner-17  " in on_terminal("ls")[2]


@pytest.mark.parametrize("command", ["show", "release"])
def test_long_keys_and_owners_of_one_lock_are_cut(table, command):
    with held_elsewhere("k" * 500, owner="w" * 1000):
        lines = on_terminal(command, "k" * 500, columns=60)[2].splitlines()
    (first,) = (line for line in lines if line.startswith("key:"))
    (owner,) = (line for line in lines if line.startswith("owner:"))
    assert re.fullmatch(r"key: +k+…k+", first)
    assert re.fullmatch(r"owner: +w+…w+", owner)
    assert len(first) == len(owner) == 60


def test_times_durations_and_cut_texts():
    midnight = datetime(2026, 11, 23, tzinfo=timezone.utc)
    for seconds in (-20, 0, 20):
        now = midnight + timedelta(seconds=seconds)
        assert clock_time(now + timedelta(seconds=30), now) == f"00:00:{seconds + 30:02}"
    assert clock_time(midnight, midnight + timedelta(hours=13)) == "2026-11-23"
    assert clock_time(midnight, None) == "2026-11-23"
    assert clock_time(None, None) == "-"
    texts = [duration(seconds) for seconds in (0.04, 59.96, 61, 3725, 90000, 1e6)]
    assert texts == ["0.0s", "60.0s", "1m 1s", "1h 2m", "1d 1h", "11d 13h"]
    assert cut("日本語日本語", 12) == "日本語日本語"
    assert cut("日本語日本語", 9) == "日本…本語"
    assert cut("日本語日本語", 8) == "日本… 語"
    assert (cut("abcdef", 1), cut("abcdef", 0)) == ("…", "…")


# -- show ------------------------------------------------------------------------------------------


def shown(key, *options):
    done = run_cli("show", key, *options)
    assert (done.exit_code, done.stderr) == (0, "")
    pairs = (line.partition(":") for line in done.stdout.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def test_show_of_a_held_lock(table):
    with Mutex.for_key("a", owner="me", lease=90, data={"page": [1, None]}) as mutex:
        mutex.save_data({"page": [2, None]})
        lines = shown("a", "--tz", "Europe/Berlin")
        item, found = LockItem.get("a"), json_of("show", "a")
    names = (
        "key,state,owner,since,until,lease,fencing token,token,guarded writes,row kept until,data"
    )
    assert list(lines) == names.split(",")
    assert (lines["key"], lines["state"], lines["owner"]) == ("a", "held", "me")
    assert (lines["lease"], lines["guarded writes"]) == ("90 s", "1")
    assert lines["fencing token"] == str(mutex.fencing_token)
    assert json.loads(lines["data"]) == found["data"] == {"page": [2, None]}
    assert lines["since"].endswith("s ago)")
    assert datetime.fromisoformat(lines["since"][:25]) == item.since.replace(microsecond=0)
    assert lines["until"].endswith(", unless renewed)")
    assert found["token"] == mutex.token
    assert (found["forced"], found["guarded_writes"], found["state"]) == (False, 1, "held")
    assert datetime.fromisoformat(found["row_kept_until"]) == item.ttl


def test_show_of_an_abandoned_lock_and_of_one_that_was_taken_over(table):
    with held_elsewhere("a", owner="crashed"):
        expire("a")
        lines = shown("a")
        assert lines["state"].startswith("abandoned: its lease has expired")
        assert lines["until"].endswith(" ago)")
        with Mutex.for_key("a"):
            assert shown("a")["taken over from"] == "crashed, which never released it"
            assert json_of("show", "a")["abandoned_by"] == "crashed"


def test_show_of_free_locks(table):
    with Mutex.for_key("a", data="left") as mutex:
        pass
    lines, found = shown("a"), json_of("show", "a")
    assert (lines["state"], lines["token"], lines["data"]) == ("free", mutex.token, '"left"')
    assert lines["fencing token"] == str(mutex.fencing_token)
    assert "owner" not in lines
    assert (found["owner"], found["since"], found["until"], found["lease"]) == (None,) * 4
    kept = datetime.fromisoformat(found["row_kept_until"]).timestamp()
    assert abs(kept - time.time() - LockItem.retention) < 3600
    with held_elsewhere("a"):
        table.force_release("a")
    assert shown("a")["broken"] == "the last claim was broken by force"
    assert json_of("show", "a")["forced"] is True
    never = {"key": "b", "state": "free", "row": "none: never acquired, or deleted since"}
    assert shown("b") == never
    assert json_of("show", "b")["fencing_token"] is None


def test_waiters_are_shown_in_order_with_the_time_at_which_each_began_to_wait(table, script):
    with held_elsewhere("a"), held_elsewhere("b"):
        began = LockItem.get("a").since.replace(microsecond=0)
        others = [entry("x\x1b[2J", began.timestamp() - 86400), entry("third"), "theirs"]
        change("a", waiting=[entry("first", began.timestamp()), *others])
        lines = list(shown("a", "--tz", "UTC").items())
        at = [name for name, _ in lines].index("waiter 1")
        assert lines[at - 1][0] == "fencing token"
        assert lines[at : at + 5] == [
            ("waiter 1", f"first, since {began:%H:%M:%S}"),
            ("waiter 2", rf"x\x1b[2J, since {began - timedelta(days=1):%Y-%m-%d}"),
            ("waiter 3", "third"),
            ("waiter 4", "theirs"),
            ("token", LockItem.get("a").token),
        ]
        found = json_of("show", "a", "--tz", "Asia/Tokyo")["waiters"]
        assert [each["owner"] for each in found] == ["first", "x\x1b[2J", "third", "theirs"]
        assert datetime.fromisoformat(found[0]["since"]) == began
        assert found[0]["since"].endswith("+09:00")
        assert (found[2]["since"], found[3]["since"]) == (None, None)
        assert [row[7] for row in rows()] == ["WAITERS", "4", "-"]
        listed = json_of("ls", "--tz", "Asia/Tokyo")
        assert [each["waiters"] for each in listed] == [found, []]
        script()
        watched = run_cli("watch", "a", "--json", "--tz", "Asia/Tokyo")
        assert json.loads(watched.stdout)["waiters"] == found


def test_waiters_of_a_free_lock(table):
    with Mutex.for_key("a"):
        pass
    change("a", waiting=[entry("first"), entry("second")])
    lines = shown("a")
    assert (lines["state"], lines["waiter 1"], lines["waiter 2"]) == ("free", "first", "second")
    assert json_of("ls") == []
    (found,) = json_of("ls", "a")
    assert (found["state"], len(found["waiters"])) == ("free", 2)
    change("a", waiting=[])  # as the last one leaves it
    assert not any(name.startswith("waiter") for name in shown("a"))


def test_the_longest_label_of_a_waiter_fits_a_terminal_of_80_columns(table):
    with held_elsewhere("a"):
        change("a", waiting=[entry("w" * 100, LockItem.get("a").since.timestamp())])
        for columns in (80, 50):
            lines = on_terminal("show", "a", columns=columns)[2].splitlines()
            (line,) = (line for line in lines if line.startswith("waiter 1:"))
            cut = "" if columns == 80 else "…w*"
            assert len(line) <= columns
            assert re.fullmatch(rf"waiter 1: +w+{cut}, since \d\d:\d\d:\d\d", line)


def set_attributes(**values):
    """Write attributes of the row of "a" as DynamoDB has them; None removes one."""
    row = {name: value for name, value in (stored("a") | values).items() if value is not None}
    put(row.pop("key")["S"], **row)


@pytest.mark.parametrize(
    "written", [{"S": "{no"}, {"S": "NaN"}, {"S": '["Infinity", -Infinity]'}, {"M": {}}]
)
def test_show_of_data_that_is_not_json(table, written):
    with held_elsewhere("a"):
        set_attributes(data=written, owner={"S": "\x1b[2J"}, ttl=None)
        lines = shown("a")
        assert json_of("show", "a")["data"].startswith("cannot be read: ")
    assert lines["data"].startswith('"cannot be read: ')
    assert lines["owner"] == r"\x1b[2J"
    assert "row kept until" not in lines


def test_show_of_claims_that_another_program_wrote(table, wire):
    with held_elsewhere("a"):
        set_attributes(token={"S": "theirs"}, owner=None)
        lines = shown("a")
        assert (lines["state"], lines["owner"]) == ("held", "-")
        assert "since" not in lines
        # an end from before its holder knew server time
        set_attributes(ttl={"N": "1e18"}, expires_at={"N": str(NO_SERVER_TIME + 30)})
        lines, found = shown("a"), json_of("show", "a")
        assert lines["state"] == "held"
        assert not {"since", "until", "row kept until"} & set(lines)
        assert {found[name] for name in ("since", "until", "row_kept_until")} == {None}
        set_attributes(expires_at={"N": "1e18"})
        lines = shown("a")
        assert lines["state"].startswith("invalid: ")
        assert "'expires_at' is not in seconds" in lines["problem"]
    with held_elsewhere("b"):
        wire.drop_dates("GetItem")
        assert shown("b", "--tz", "UTC")["since"].endswith("+00:00")  # without its age


def test_show_of_a_row_of_another_application(table):
    put("a", owner={"S": "Ann"}, version={"N": "3"})
    lines, found = shown("a"), json_of("show", "a")
    assert list(lines) == ["key", "state", "problem", "row"]
    assert lines["state"] == "invalid: no mutex acquires this row"
    assert "'token' is missing" in lines["problem"]
    assert "'owner': {'S': 'Ann'}" in lines["row"]
    assert (found["state"], found["problem"]) == ("invalid", lines["problem"])
    assert {found[name] for name in ("owner", "since", "until", "fencing_token")} == {None}


# -- wait ------------------------------------------------------------------------------------------


def test_wait_returns_at_once_if_the_lock_is_free_or_its_holder_dead(table, wire):
    wire.sent.clear()
    assert run_cli("wait", "never").exit_code == 0
    assert wire.sent == ["GetItem", "GetItem"]
    with Mutex.for_key("a"):
        pass
    assert run_cli("wait", "a").exit_code == 0
    with held_elsewhere("a"):
        expire("a")
        assert run_cli("wait", "a").exit_code == 0
        assert LockItem.get("a").expires_at is not None


def test_wait_exits_with_75_after_the_timeout(table):
    with held_elsewhere("a", owner="worker-7"):
        done = run_cli("wait", "a", "--timeout", "0")
        assert (done.exit_code, done.stdout) == (75, "")
        assert done.stderr.startswith("'a' is still held by 'worker-7' until ")
        begun = time.monotonic()
        assert run_cli("wait", "a", "--timeout", "0.3").exit_code == 75
        assert time.monotonic() - begun == pytest.approx(0.3)


def test_wait_shows_the_holder_on_a_terminal_until_ctrl_c(table, wire):
    with held_elsewhere("a", owner="they"):

        def interrupt(_answer):
            if wire.sent.count("GetItem") == 3:
                raise KeyboardInterrupt

        wire.sent.clear()
        wire.after["GetItem"] = interrupt
        code, _, shown = on_terminal("wait", "a")
        wire.after.clear()
    assert (code, shown.endswith("interrupted\n")) == (130, True)
    assert re.search(r"waited \S+ for 'a', held by 'they' until \d\d:\d\d:\d\d", shown)


@pytest.mark.parametrize("options", [[], ["--timeout", "-1"]])
@pytest.mark.parametrize("failing", [(), (2, 5)], ids=["answers", "failures"])
def test_wait_polls_until_the_release_and_retries_transient_failures(table, wire, options, failing):
    mutex = lock("a")
    mutex.acquire()
    polls = 0

    def poll(_answer):
        nonlocal polls
        polls += 1
        if polls == 3:
            mutex.release()
        if polls in failing:  # a poll, and the consistent read after it
            raise ConnectionResetError

    wire.after["GetItem"] = poll
    assert run_cli("wait", "a", *options).exit_code == 0
    assert polls >= 4 + len(failing)
    assert wire.sent.count("UpdateItem") == 2
    assert mutex.loss is None


def test_wait_on_a_row_that_is_not_a_lock_fails(table):
    put("a", user={"S": "Ann"})
    done = run_cli("wait", "a")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: the row of 'a' in table ")
    assert "'token' is missing" in done.stderr


# -- watch -----------------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch):
    """Plays steps, one after each read, in place of the sleep; then Ctrl-C."""

    def play(*steps):
        rest = list(steps)

        class Steps:
            def sleep(self, _until):
                if not rest:
                    raise KeyboardInterrupt
                rest.pop(0)()

        # in this command alone: a mutex that is acquired in a step has sleepers, too
        monkeypatch.setattr("pynamodb_mutex.cli._listing.ThreadSleeper", Steps)

    return play


def printed(done):
    return [line.partition("  ")[2] for line in done.stdout.splitlines()]


def test_watch_prints_a_line_for_each_change(table, script):
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
    assert printed(done) == [
        f"b  held by dead, fencing token {dead.fencing_token}",
        f"a  taken by one, fencing token {one.fencing_token}",
        f"a  taken by two, fencing token {two.fencing_token}; before: one",
        "b  abandoned by dead",
        "b  renewed late by dead",
        "a  abandoned by two",
        "a  freed",
    ]


def test_watch_of_keys_does_not_scan_and_a_prefix_leaves_out_others(table, script, wire):
    mutex = lock("a")
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
    assert printed(run_cli("watch", "a")) == ["a  free"]
    with held_elsewhere("jobs/1"):
        assert [line[:6] for line in printed(run_cli("watch", "--prefix", "jobs/"))] == ["jobs/1"]
        wire.drop_dates("Scan")  # then server time is not known
        assert run_cli("watch").stdout.startswith("-  jobs/1  held by elsewhere")


def test_watch_retries_transient_failures_and_reports_others(table, script, wire):
    mutex = lock("a")
    script(
        lambda: wire.after.update(Scan=cut_connection),
        lambda: None,
        wire.after.clear,
        mutex.acquire,
    )
    done = run_cli("watch")
    assert done.exit_code == 0
    assert printed(done) == [f"a  taken by me, fencing token {mutex.fencing_token}"]
    assert done.stderr.splitlines() == ["Scan failed: cut; retrying", "DynamoDB answers again"]
    script(lambda: LockItem.delete_table(wait=True))
    done = run_cli("watch")
    assert (done.exit_code, "create-table creates it" in done.stderr) == (1, True)


@pytest.mark.parametrize("keys", [(), ("a", "b")])
def test_watch_prints_an_invalid_row_once(table, script, keys):
    mutex = lock("a", "one")
    mutex.acquire()
    put("b", user={"S": "Ann"}, expires_at={"N": "1"})
    script(lambda: put("a", **BROKEN), lambda: None, lambda: LockItem.force_release("a"))
    done = run_cli("watch", *keys)
    assert (done.exit_code, done.stderr) == (0, "")
    first, second, broken, freed = printed(done)
    assert f"a  held by one, fencing token {mutex.fencing_token}" in (first, second)
    assert any(line.startswith("b  invalid: the row of 'b' in table ") for line in (first, second))
    assert broken.startswith("a  invalid: the row of 'a' in table ")
    assert "'expires_at' is not a number of seconds" in broken
    assert freed == "a  freed"
    put("a", **BROKEN)
    script()
    found = json.loads(run_cli("watch", "a", "--json").stdout)
    assert (found["event"], found["state"], found["owner"]) == ("invalid", "invalid", None)
    assert "'expires_at' is not a number of seconds" in found["problem"]


def frame(watching, height=24, width=100):
    place = Place()
    place.chosen = {}
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(View(place, "key", None).frame(watching, [Text("the news")], console))
    return console.file.getvalue()


@pytest.fixture
def watching(table):
    return _Watching(lambda: list(Locks(table).standing()), 1.0)


def test_live_view_counts_what_does_not_fit_and_shows_failures(watching):
    watching.look()
    view = frame(watching)
    assert "held: 0   abandoned: 0" in view
    assert "KEY" not in view
    for number in range(6):
        Mutex.for_key(f"k{number}", auto_renew=False).acquire()
    expire("k0")
    watching.look()
    view = frame(watching, height=18)
    assert "held: 5   abandoned: 1" in view
    assert ("k3" in view, "k4" in view, "and 2 more" in view) == (True, False, True)
    assert view.endswith("the news\n")
    watching.trouble = "Scan failed: cut"
    assert "Scan failed: cut; retrying" in frame(watching)


def test_live_view_shortens_long_names(watching):
    with held_elsewhere("k" * 500, owner="w" * 1000):
        (change,) = watching.look()
    line = View(Place(), "key", None).line(change, 60)
    for width in (80, 40):
        view = frame(watching, width=width)
        assert view.count("kkk…kkk") == view.count("www…www") == 1
        assert len(view.splitlines()) == 7
    assert re.search(" k+…k+  held by w+…w+, fencing token", line.plain)
    assert len(change.words()) > 1500
    console = Console(file=io.StringIO(), width=40)
    console.print(Group(line))
    assert console.file.getvalue().count("\n") == 1


def test_live_view_does_not_hurry_after_a_slow_read(table, fake_clock):
    watching = _Watching(list, 1.0)
    begun = fake_clock.now()
    fake_clock.advance(10)
    watching.rest()
    assert watching._due == begun + 10
