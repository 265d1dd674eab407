"""``ls``, ``show``, ``watch`` and ``wait``: which locks are held by whom, until when, and what changes."""

import ipaddress
import json
import re
import time
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest
from command_line import BROKEN, change, cli, entry, json_of, on_terminal, plain, put, stored
from two_clients import Elsewhere

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._fair.waiting_line import new_entry
from pynamodb_mutex._lock.dynamodb.store import Store
from pynamodb_mutex._lock.protocol.claim import NO_SERVER_TIME
from pynamodb_mutex.cli._listing import _Watching
from pynamodb_mutex.cli._output import clock_time, cut, duration
from pynamodb_mutex.testing import expire, held_elsewhere, unknown_run

instant_of = datetime.fromisoformat


@pytest.fixture
def held(table):
    """Three locks, one of them abandoned, and two that are free."""
    with ExitStack() as stack:
        for key, owner, lease in (("b", "zoe", 60), ("a", "max", 600), ("c", "amy", 30)):
            stack.enter_context(held_elsewhere(key, owner=owner, lease=lease))
        expire("c")
        with Mutex.for_key("released"), held_elsewhere("forced"):
            table.force_release("forced")
        yield table


def lock(key, owner="me"):
    return Mutex.for_key(key, owner=owner, model=Elsewhere, auto_renew=False)


def cut_connection(_answer=None):
    raise ConnectionResetError("cut")


def interrupt(_answer=None):
    raise KeyboardInterrupt


@pytest.mark.real
def test_commands_on_a_real_engine(table):
    with held_elsewhere("a", owner="me", lease=60), held_elsewhere("b"):
        expire("b")
        assert [found["state"] for found in json_of("ls")] == ["held", "abandoned"]
        assert [found["state"] for found in json_of("ls", "a", "c")] == ["held", "free"]
        assert json_of("show", "a")["owner"] == "me"
        cli("wait", "b")
        cli("wait", "a", "--timeout", "0", code=75)
        for key in "ab":
            assert json_of("release", key, "--force", "--yes")["freed"] is True
    assert cli("ls", "--json").output == "[]\n"
    done = cli("ls")
    where = f"table {table.Meta.table_name} in us-east-1 at http"
    assert done.stderr.startswith(f"no lock is held or abandoned in {where}")
    assert done.stdout == ""


def rows(*options):
    done = cli("ls", *options)
    assert done.stderr == ""
    return [line.split("\t") for line in done.stdout.splitlines()]


def keys(*options, **more):
    return [document["key"] for document in json_of("ls", *options, **more)]


def test_ls_prints_holders_and_times_as_lines_and_as_json(held):
    header, a, b, c = rows()
    assert header == [
        "KEY",
        "OWNER",
        "SINCE",
        "UNTIL",
        "REMAINING",
        "FENCING TOKEN",
        "STATE",
        "WAITERS",
    ]
    item = LockItem.get("a")
    since, until = (
        time.astimezone().isoformat(timespec="seconds") for time in (item.since, item.expires)
    )
    assert a == ["a", "max", since, until, a[4], str(item.version), "held", "-"]
    assert 599 < float(a[4]) < 602
    assert (*b[:2], b[6]) == ("b", "zoe", "held")
    assert (*c[:2], c[4], c[6]) == ("c", "amy", "0.0", "abandoned")
    a, _, c = json_of("ls")
    since, until, left = (a.pop(name) for name in ("since", "until", "remaining"))
    others = {"fencing_token": item.version, "abandoned_by": None, "waiters": [], "problem": None}
    others |= {"readers": [], "wanted_by": None}
    assert a == {"key": "a", "state": "held", "owner": "max", "lease": 600.0, **others}
    assert instant_of(since) == item.since
    assert left == pytest.approx(600, abs=2)
    assert abs(instant_of(until) - item.expires) < timedelta(seconds=0.002)
    assert (c["state"], c["remaining"]) == ("abandoned", 0.0)


def test_ls_of_named_keys_reads_these_alone_and_prints_free_ones_too(held, wire):
    assert keys("c", "a", "never", "a") == ["a", "c", "never"]
    assert wire.sent == ["BatchGetItem"]
    (_, row) = rows("released")
    assert (row[0], row[1], row[6]) == ("released", "-", "free")
    assert int(row[5]) == LockItem.get("released").version
    assert rows("never")[1] == ["never", "-", "-", "-", "-", "-", "free", "-"]
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
            assert json_of("ls")[0]["since"][-6:] in ("+12:00", "+13:00")
    finally:
        system.tzset()
    now = system.time
    for wrong in (1e6, -1e6):
        monkeypatch.setattr(system, "time", lambda wrong=wrong: now() + wrong)
        assert [found["state"] for found in json_of("ls")] == ["held", "held", "abandoned"]


def test_ls_reads_many_locks_page_by_page(table, wire, monkeypatch):
    monkeypatch.setattr("pynamodb_mutex.cli._locks.PAGE", 3)
    names = [f"{number:02}" for number in range(20)]
    for name in names:
        Mutex.for_key(name, auto_renew=False).acquire()
    wire.sent.clear()
    assert keys() == names
    assert wire.sent == ["Scan"] * 7


def test_ls_of_rows_that_another_program_wrote(table):
    key = "odd\x1b[2J\t\n\u202e"
    with held_elsewhere(key), held_elsewhere("unknown"):
        change(key, token="not ours", owner="x\x07")
        change("unknown", expires_at=NO_SERVER_TIME + 30, owner="")
        _, odd, unknown = rows()
        assert odd[:3] == [r"odd\x1b[2J\t\n\u202e", r"x\x07", "-"]
        assert (unknown[0], unknown[1], unknown[3]) == ("unknown", "-", "-")
        odd, unknown = json_of("ls")
        assert (odd["key"], odd["owner"], odd["since"]) == (key, "x\x07", None)
        assert (odd["state"], unknown["state"]) == ("held", "held")
        assert (unknown["until"], unknown["remaining"]) == (None, None)
        change(key, expires_at=1e18)
        change("unknown", expires_at=-1e15)
        with held_elsewhere("a"):
            done = cli("ls", "--json")
    assert [found["key"] for found in json.loads(done.stdout)] == ["a"]
    before, far = sorted(done.stderr.splitlines(), reverse=True)
    assert far.startswith(r"left out: the row of 'odd\x1b[2J\t\n\u202e' in table ")
    assert "'expires_at' is not in seconds" in far
    assert "'expires_at' is not a number of seconds: {'N': '-1" in before


@pytest.mark.parametrize(
    ("waits", "columns", "header"),
    [
        (False, 200, "KEY,STATE,OWNER,SINCE,LEFT,UNTIL,FENCING TOKEN"),
        (False, 120, "KEY,STATE,OWNER,SINCE,LEFT,UNTIL,FENCING TOKEN"),
        (False, 100, "KEY,STATE,OWNER,SINCE,LEFT,UNTIL"),
        (False, 80, "KEY,STATE,OWNER,SINCE,LEFT"),
        (False, 60, "KEY,STATE,OWNER,SINCE,LEFT"),
        (False, 49, "KEY,STATE,OWNER,LEFT"),
        (False, 39, "KEY,STATE,LEFT"),
        (True, 200, "KEY,STATE,OWNER,SINCE,LEFT,UNTIL,FENCING TOKEN,WAITERS"),
        (True, 120, "KEY,STATE,OWNER,SINCE,LEFT,UNTIL,FENCING TOKEN,WAITERS"),
        (True, 100, "KEY,STATE,OWNER,SINCE,LEFT,WAITERS"),
        (True, 60, "KEY,STATE,OWNER,SINCE,LEFT"),
    ],
)
def test_table_fits_the_terminal_by_fewer_columns_and_cuts_in_the_widest(
    table, waits, columns, header
):
    key, names = "begin-of-a-key-" + "x" * 40 + "-end", header.split(",")
    with held_elsewhere(key, owner="w" * 1000), held_elsewhere("dead", owner="[red]gone\x1b[2J"):
        expire("dead")
        if waits:
            change(key, waiting=[entry("first"), entry("second")])
        sent, shown = on_terminal("ls", columns=columns)
        piped = cli("ls").stdout
    assert "\x1b[2J" not in sent
    *lines, counts = shown[shown.index("KEY") :].splitlines()
    assert counts == "held: 1   abandoned: 1"
    # keys and owners take what is left
    assert max(map(len, lines)) == columns or columns < 40
    titles, *cells = ([cell.strip() for cell in re.split(" {2,}", line.strip())] for line in lines)
    long, dead = (dict(zip(names, line, strict=True)) for line in cells)
    assert (titles, long["STATE"], dead["STATE"]) == (names, "held", "abandoned")
    assert (long["KEY"] == key) == (columns == 200)
    assert re.fullmatch(r"begin[-a-z]*…?[-x]*-end|be.*….*d", long["KEY"])
    assert dead["KEY"] == "dead"
    if "OWNER" in names:
        assert re.fullmatch("w+…w+", long["OWNER"])
        assert dead["OWNER"].startswith("[re")
    if "WAITERS" in names:
        assert (long["WAITERS"], dead["WAITERS"]) == ("2", "-")
    assert f"{key}\t{'w' * 1000}\t" in piped


def test_table_of_short_names_is_whole(table):
    with held_elsewhere("a", owner="max"):
        for columns in (60, 80, 120):
            shown = on_terminal("ls", columns=columns)[1]
            line = next(line for line in shown.splitlines() if line.startswith("a "))
            assert re.match(r"a +held +max +\d\d:\d\d:\d\d +\d+\.\ds", line)
            assert "…" not in line


def test_long_names_of_one_lock_are_cut_on_a_terminal(table):
    with held_elsewhere("k" * 500, owner="w" * 1000):
        change("k" * 500, waiting=[entry("v" * 100, LockItem.get("k" * 500).since.timestamp())])
        for command, code, columns in (("show", 0, 80), ("show", 0, 50), ("release", 1, 60)):
            shown = on_terminal(command, "k" * 500, columns=columns, code=code)[1]
            for name, letter in (("key", "k"), ("owner", "w")):
                (line,) = re.findall(rf"^{name}: +{letter}+…{letter}+$", shown, re.MULTILINE)
                assert len(line) == columns
            lines = re.findall(r"^waiter 1: +v+….*\d:\d\d[+-]\d\d:\d\d$", shown, re.MULTILINE)
            assert [len(line) <= columns for line in lines] == [True] * (command == "show")


def test_times_durations_and_cut_texts():
    midnight = datetime(2026, 11, 23, tzinfo=timezone.utc)
    for seconds in (-20, 0, 20):
        now = midnight + timedelta(seconds=seconds)
        assert clock_time(now + timedelta(seconds=30), now) == f"00:00:{seconds + 30:02}"
    assert clock_time(midnight, midnight + timedelta(hours=13)) == "2026-11-23"
    assert (clock_time(midnight, None), clock_time(None, None)) == ("2026-11-23", "-")
    texts = [duration(seconds) for seconds in (0.04, 59.96, 61, 3725, 90000, 1e6)]
    assert texts == ["0.0s", "60.0s", "1m 1s", "1h 2m", "1d 1h", "11d 13h"]
    texts = [cut("日本語日本語", width) for width in (12, 9, 8)]
    assert texts == ["日本語日本語", "日本…本語", "日本… 語"]
    assert (cut("abcdef", 1), cut("abcdef", 0)) == ("…", "…")


def shown(key, *options):
    done = cli("show", key, *options)
    assert done.stderr == ""
    pairs = (line.partition(":") for line in done.stdout.splitlines())
    return {name: value.strip() for name, _, value in pairs}


def test_show_of_a_held_lock(table):
    with Mutex.for_key("a", owner="me", lease=90, data={"page": [1, None]}) as mutex:
        mutex.save_data({"page": [2, None]})
        lines = shown("a")
        item, found = LockItem.get("a"), json_of("show", "a")
    names = "state,owner,since,until,lease,fencing token,token,row kept until,data"
    assert list(lines) == ["key", *names.split(",")]
    assert (lines["key"], lines["state"], lines["owner"]) == ("a", "held", "me")
    assert lines["lease"] == "90 s"
    assert (lines["fencing token"], lines["token"]) == (str(mutex.fencing_token), mutex.token)
    assert instant_of(lines["since"][:25]) == item.since.replace(microsecond=0)
    assert lines["since"].endswith("s ago)")
    assert lines["until"].endswith(", unless renewed)")
    assert json.loads(lines["data"]) == found["data"] == {"page": [2, None]}
    assert (found["token"], found["state"]) == (mutex.token, "held")
    assert found["forced"] is False
    assert instant_of(found["row_kept_until"]) == item.ttl


def test_show_of_abandoned_and_free_locks(table):
    with held_elsewhere("a", owner="crashed"):
        expire("a")
        lines = shown("a")
        assert lines["state"].startswith("abandoned: its lease has expired")
        assert lines["until"].endswith(" ago)")
        with Mutex.for_key("a", data="left") as mutex:
            assert shown("a")["taken over from"] == "crashed, which never released it"
            assert json_of("show", "a")["abandoned_by"] == "crashed"
    lines, found = shown("a"), json_of("show", "a")
    assert (lines["state"], lines["token"], lines["data"]) == ("free", mutex.token, '"left"')
    assert lines["fencing token"] == str(mutex.fencing_token)
    assert "owner" not in lines
    assert (found["owner"], found["since"], found["until"], found["lease"]) == (None,) * 4
    kept = instant_of(found["row_kept_until"]).timestamp()
    assert abs(kept - time.time() - LockItem.retention) < 3600
    with held_elsewhere("a"):
        table.force_release("a")
    assert shown("a")["broken"] == "the last claim was broken by force"
    assert json_of("show", "a")["forced"] is True
    never = {
        "key": "b",
        "state": "free",
        "row": "none: never acquired, or deleted since; the lock in a row of a model is shown with --model",
    }
    assert shown("b") == never
    assert json_of("show", "b")["fencing_token"] is None


def test_readers_and_the_writer_that_waits_are_shown(table, script):
    one, two = (Mutex.for_key("a", owner=name, shared=True, model=Elsewhere) for name in "xy")
    script(one.acquire, two.acquire, one.release, two.release, lambda: None)
    taken = "a  taken by 1 reader(s): 'x', fencing token {}"
    assert printed(cli("watch")) == [taken.format(one.fencing_token), "a  freed"]
    with Mutex.for_key("a", owner="x", shared=True, lease=60), two:
        near = LockItem.wanted_until.set(table.get("a").expires_at - 50)
        actions = [LockItem.wanted_by.set("w"), near]
        LockItem._get_connection().update_item("a", actions=actions)
        lines, found = shown("a"), json_of("show", "a")
        assert lines["owner"] == "2 reader(s)"  # whose lines follow
        assert [lines["reader 1"][:9], lines["reader 2"][:9]] == ["x, until ", "y, until "]
        assert lines["wanted by"] == "w, who waits for the readers"
        assert [found["wanted_by"], *(each["owner"] for each in found["readers"])] == [*"wxy"]
        ends = [instant_of(each["until"]) for each in found["readers"]]
        assert instant_of(found["until"]) == max(ends) > min(ends)
        assert [row[1] for row in rows()] == ["OWNER", "2 reader(s): 'x', 'y'"]
        assert json_of("ls")[0]["readers"] == found["readers"]


def test_times_have_one_form_and_an_end_that_cannot_be_is_called_doubtful(table):
    with Mutex.for_key("a"):
        lines = shown("a")
        for name in ("since", "until", "row kept until"):
            assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d", lines[name])
        assert "doubtful" not in lines["until"]
        change("a", expires_at=32503680000.0)  # the year 3000
        lines = shown("a")
        until = datetime(3000, 1, 1, tzinfo=timezone.utc).astimezone()
        assert lines["until"].startswith(f"{until} (in ")
        assert lines["until"].endswith(", unless renewed; doubtful, for its lease is shorter)")
        expire("a")
    with Mutex.for_key("b", hold_at_least=86400):
        pass
    assert "doubtful" not in shown("b")["until"]


def test_waiters_are_shown_in_order_with_the_time_at_which_each_began_to_wait(table, script):
    with held_elsewhere("a"), held_elsewhere("b"):
        began = LockItem.get("a").since.replace(microsecond=0)
        others = [entry("x\x1b[2J", began.timestamp() - 86400), entry("third"), "theirs"]
        change("a", waiting=[entry("first", began.timestamp()), *others])
        lines = shown("a")
        first = f"first, since {began.astimezone()}"
        second = rf"x\x1b[2J, since {(began - timedelta(days=1)).astimezone()}"
        names = ["fencing token", "waiter 1", "waiter 2", "waiter 3", "waiter 4", "token"]
        assert [name for name in lines if name in names] == names
        assert [lines[name] for name in names[1:5]] == [first, second, "third", "theirs"]
        found = json_of("show", "a")["waiters"]
        assert [each["owner"] for each in found] == ["first", "x\x1b[2J", "third", "theirs"]
        assert instant_of(found[0]["since"]) == began
        assert (found[2]["since"], found[3]["since"]) == (None, None)
        assert [row[7] for row in rows()] == ["WAITERS", "4", "-"]
        listed = json_of("ls")
        assert [each["waiters"] for each in listed] == [found, []]
        script()
        assert json_of("watch", "a")["waiters"] == found
    LockItem.force_release("a")
    change("a", waiting=[entry("first"), entry("second")])
    lines = shown("a")
    assert (lines["state"], lines["waiter 1"], lines["waiter 2"]) == ("free", "first", "second")
    assert json_of("ls") == []
    (found,) = json_of("ls", "a")
    assert (found["state"], len(found["waiters"])) == ("free", 2)
    change("a", waiting=[])  # as the last one leaves it
    assert not any(name.startswith("waiter") for name in shown("a"))


@pytest.mark.parametrize(
    ("address", "place"), [("10.0.3.7", "10.0.3.7:4711"), ("fd00::7", "[fd00::7]:4711")]
)
def test_waiters_are_shown_with_the_address_at_which_they_are_called(table, address, place):
    packed = ipaddress.ip_address(address).packed + (4711).to_bytes(2, "big")
    with held_elsewhere("a"):
        change("a", waiting=[new_entry(None, "0" * 32, "first", packed), entry("second")])
        lines = shown("a")
        assert (lines["waiter 1"], lines["waiter 2"]) == (f"first, called at {place}", "second")
        assert [each["called_at"] for each in json_of("show", "a")["waiters"]] == [place, None]


def set_attributes(**values):
    """Write attributes of the row of "a" as DynamoDB has them; None removes one."""
    row = {name: value for name, value in (stored("a") | values).items() if value is not None}
    put(row.pop("key")["S"], **row)


def test_show_of_what_another_program_wrote(table, wire):
    with held_elsewhere("a"), held_elsewhere("b"):
        for written in ({"S": "{no"}, {"S": "NaN"}, {"S": '["Infinity", -Infinity]'}, {"M": {}}):
            set_attributes(data=written, owner={"S": "\x1b[2J"}, ttl=None)
            lines = shown("a")
            assert json_of("show", "a")["data"].startswith("cannot be read: ")
            assert lines["data"].startswith('"cannot be read: ')
        assert (lines["owner"], "row kept until" in lines) == (r"\x1b[2J", False)
        set_attributes(token={"S": "theirs"}, owner=None)
        lines = shown("a")
        assert (lines["state"], "since" in lines) == ("held", False)
        # as each claim without an owner
        assert re.fullmatch(r"nobody \(released, and kept until .*\)", lines["owner"])
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
        wire.drop_dates("GetItem")
        assert re.search(r"[+-]\d\d:\d\d$", shown("b")["since"])  # without its age


def test_row_of_another_application_is_shown_and_not_waited_for(table):
    put("a", owner={"S": "Ann"}, version={"N": "3"})
    lines, found = shown("a"), json_of("show", "a")
    assert list(lines) == ["key", "state", "problem", "row"]
    assert lines["state"] == "invalid: no mutex acquires this row"
    assert "'token' is missing" in lines["problem"]
    assert "'owner': {'S': 'Ann'}" in lines["row"]
    assert (found["state"], found["problem"]) == ("invalid", lines["problem"])
    assert {found[name] for name in ("owner", "since", "until", "fencing_token")} == {None}
    done = cli("wait", "a", code=1)
    assert done.stdout == ""
    assert re.match("Error: the row of 'a' in table .*'token' is missing", done.stderr)


def test_wait_returns_at_once_if_the_lock_is_free_or_with_75_after_the_timeout(held, wire):
    wire.sent.clear()
    for key in ("never", "released", "c"):  # whose holder is dead
        cli("wait", key)
    done = cli("wait", "a", "--timeout", "0", code=75)
    # the first read of each key, and one of the key of once where the lock is free; and writes nothing
    assert wire.sent == ["GetItem"] * 6
    assert done.stdout == ""
    assert re.fullmatch("'a' is still held by 'max' until [-:0-9]+, unless renewed\n", done.stderr)
    still = json.loads(cli("wait", "a", "--timeout", "0", "--json", code=75).stdout)
    assert (still["key"], still["state"], still["owner"]) == ("a", "held", "max")
    free = json_of("wait", "released")
    assert (free["state"], free["owner"], free["waited"] >= 0) == ("free", None, True)
    begun = time.monotonic()
    cli("wait", "a", "--timeout", "0.3", code=75)
    assert time.monotonic() - begun == pytest.approx(0.3)


def test_claim_that_is_kept_is_not_renewed(table):
    with Mutex.for_key("a", hold_at_least=600):
        pass
    done = cli("wait", "a", "--timeout", "0", code=75)
    kept = r"'a' is still held by nobody \(released, and kept until \S+ .* by hold_at_least\)\n"
    assert re.fullmatch(kept, done.stderr)
    assert "renewed" not in done.stderr + cli("show", "a").stdout


def test_wait_shows_the_holder_on_a_terminal_until_ctrl_c(held, wire):
    poll = partial(wire.after.update, GetItem=interrupt)
    wire.after["GetItem"] = lambda _: wire.after.update(GetItem=lambda _: poll())
    shown = on_terminal("wait", "a", code=130)[1]
    assert shown.endswith("interrupted\n")
    assert re.search(r"waited \S+ for 'a', held by 'max' until \d\d:\d\d:\d\d", shown)
    wire.after.clear()


@pytest.mark.parametrize(("options", "failing"), [([], ()), (["--timeout", "-1"], (2, 4))])
def test_wait_reads_once_a_second_until_the_release(table, wire, options, failing):
    """And again after transient failures."""
    mutex = lock("a")
    mutex.acquire()
    reads = []

    def read(_answer):
        reads.append(time.monotonic())
        if len(reads) == 3:
            mutex.release()
        if len(reads) in failing:
            raise ConnectionResetError

    wire.after["GetItem"] = read
    cli("wait", "a", *options)
    assert [round(instant - reads[0]) for instant in reads] == [*range(5 if failing else 4)]
    assert wire.sent.count("UpdateItem") == 2
    assert mutex.loss is None


def test_wait_takes_no_lease_for_expired_while_reads_fail(table, wire):
    """Its holder, which reaches DynamoDB, may have renewed it."""
    lock("a").acquire()
    wire.after["GetItem"] = lambda _: wire.after.update(GetItem=cut_connection)
    assert "still held by 'me'" in cli("wait", "a", "--timeout", "60", code=75).stderr


def test_wait_reads_consistently(table, monkeypatch):
    """An older row may show a free lock that is held, or a lease that was renewed."""
    asked = []
    read = Store.read
    lock("a").acquire()
    monkeypatch.setattr(Store, "read", lambda *of, **how: asked.append(how) or read(*of, **how))
    cli("wait", "a", "--timeout", "1.5", code=75)
    assert asked == [{"consistent": True}] * 3


@pytest.fixture
def script(monkeypatch):
    """Plays steps, one after each read, in place of the sleep; then Ctrl-C."""

    def play(*steps):
        rest = iter(steps)
        sleeper = type("Steps", (), {"sleep": lambda _, __: next(rest, interrupt)()})
        # in this command alone: a mutex that is acquired in a step has sleepers, too
        monkeypatch.setattr("pynamodb_mutex.cli._listing.ThreadSleeper", sleeper)

    return play


def printed(done):
    return [line.partition("  ")[2] for line in done.stdout.splitlines()]


def test_watch_prints_a_line_for_each_change(table, script):
    one, two, dead = lock("a", "one"), lock("a", "two"), lock("b", "dead")
    dead.acquire()
    steps = [one.acquire, one.renew, lambda: (one.release(), two.acquire()), lambda: expire("b")]
    script(*steps, dead.renew, lambda: expire("a"), two.release, lambda: None)
    done = cli("watch")
    assert done.stderr == ""
    assert printed(done) == [
        f"b  held by dead, fencing token {dead.fencing_token}",
        f"a  taken by one, fencing token {one.fencing_token}",
        f"a  taken by two, fencing token {two.fencing_token}; before: one",
        "b  abandoned by dead",
        "b  renewed late by dead",
        "a  abandoned by two",
        "a  freed",
    ]


def test_watch_says_that_a_run_of_once_has_an_unknown_outcome(table, script):
    script(partial(unknown_run, "k", owner="they"), lambda: None)
    line = "once#k  unknown: what became of the run by they"
    assert printed(cli("watch")) == [line]
    script()
    assert printed(cli("watch")) == [line]


def test_watch_of_keys_does_not_scan(table, script, wire):
    mutex = lock("a")
    script(mutex.acquire, mutex.release, lambda: lock("other", "x").acquire())
    wire.sent.clear()
    lines = [json.loads(line) for line in cli("watch", "a", "b", "a", "--json").stdout.splitlines()]
    events = [" ".join((line["key"], line["event"], line["state"])) for line in lines]
    assert events == ["a free free", "b free free", "a taken held", "a freed free"]
    assert all(line["at"][-6:][0] in "+-" for line in lines)
    assert wire.sent.count("BatchGetItem") == 4
    assert "Scan" not in wire.sent
    script()
    assert printed(cli("watch", "a")) == ["a  free"]
    with held_elsewhere("jobs/1"):
        wire.drop_dates("Scan")  # then server time is not known
        assert cli("watch").stdout.startswith("-  jobs/1  held by elsewhere")


def test_watch_retries_transient_failures_and_reports_others(table, script, wire):
    mutex = lock("a")
    fail = partial(wire.after.update, Scan=cut_connection)
    script(fail, lambda: None, wire.after.clear, mutex.acquire)
    done = cli("watch")
    assert printed(done) == [f"a  taken by me, fencing token {mutex.fencing_token}"]
    assert done.stderr.splitlines() == ["Scan failed: cut; retrying", "DynamoDB answers again"]
    script(lambda: LockItem.delete_table(wait=True))
    assert "create-table creates it" in cli("watch", code=1).stderr


@pytest.mark.parametrize("keys", [(), ("a", "b")])
def test_watch_prints_an_invalid_row_once(table, script, keys):
    mutex = lock("a", "one")
    mutex.acquire()
    put("b", user={"S": "Ann"}, expires_at={"N": "1"})
    script(lambda: put("a", **BROKEN), lambda: None, lambda: LockItem.force_release("a"))
    done = cli("watch", *keys)
    assert done.stderr == ""
    held, b, broken, freed = sorted(printed(done)[:2]) + printed(done)[2:]
    assert held == f"a  held by one, fencing token {mutex.fencing_token}"
    assert b.startswith("b  invalid: the row of 'b' in table ")
    assert broken.startswith("a  invalid: the row of 'a' in table ")
    assert "'expires_at' is not a number of seconds" in broken
    assert freed == "a  freed"
    put("a", **BROKEN)
    script()
    found = json_of("watch", "a")
    assert (found["event"], found["state"], found["owner"]) == ("invalid", "invalid", None)
    assert "'expires_at' is not a number of seconds" in found["problem"]


def frames(**more):
    """Return what the live view shows after each read; the last one comes twice."""
    sent = on_terminal("watch", **more)[0]
    return [plain(frame) for frame in re.split(r"(?:\x1b\[1A|\r?\x1b\[2K)+", sent)]


def test_live_view_counts_what_does_not_fit_and_shows_news_and_failures(table, script, wire):
    def acquire_six():
        for number in range(6):
            Mutex.for_key(f"k{number}", auto_renew=False).acquire()
        expire("k0")

    fail = partial(wire.after.update, Scan=cut_connection)
    script(acquire_six, partial(LockItem.force_release, "k5"), fail)
    none, six, five, failing, _ = frames(lines=18)
    assert "held: 0   abandoned: 0" in none
    assert "KEY" not in none
    assert "held: 5   abandoned: 1" in six
    assert re.findall(r"^k\d|and . more", six, re.MULTILINE) == [
        "k0",
        "k1",
        "k2",
        "k3",
        "and 2 more",
    ]
    news = five.rpartition("\n\n")[2].splitlines()  # the latest six
    assert [line.split()[1] for line in news] == ["k1", "k2", "k3", "k4", "k5", "k5"]
    assert five.endswith("k5  freed")
    assert "Scan failed: cut; retrying" in failing


@pytest.mark.parametrize("columns", [80, 40])
def test_live_view_shortens_long_names(table, script, columns):
    script(lock("k" * 500, "w" * 1000).acquire)
    *_, view = frames(columns=columns)
    _, _, _, _, row, _, news = view.splitlines()
    assert re.match(r"k+…k+ +held +w+…w+ ", row)
    assert re.match(r"\d\d:\d\d:\d\d  k+…k+  taken by w+…", news)


def test_live_view_does_not_hurry_after_a_slow_read(table, fake_clock):
    watching = _Watching(list, 1.0)
    begun = fake_clock.now()
    fake_clock.advance(10)
    watching.rest()
    assert watching._due == begun + 10
