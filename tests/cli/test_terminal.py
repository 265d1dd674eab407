"""The command line on a terminal: tables that fit, the live view, questions, Ctrl-C."""

from __future__ import annotations

import io
import re
import sys

import pytest
from cli import COMMAND, eventually
from lock_items import Elsewhere
from rich.console import Console, Group
from rich.text import Text

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.cli._listing import View, _Watching
from pynamodb_mutex.cli._locks import Locks
from pynamodb_mutex.cli._place import Place
from pynamodb_mutex.testing import environment, expire, held_elsewhere

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals", allow_module_level=True)

import pexpect

# what reaches the engine is the same without a terminal, and tested on both there
pytestmark = pytest.mark.real("embedded")

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def spawn(engine):
    """Starts the command on a terminal of its own."""
    children = []

    def start(*args, columns=80):
        env = {**environment(engine), "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None)
        child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], *args],
            env=env,
            encoding="utf-8",
            timeout=30,
            dimensions=(24, columns),
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


def rest(child):
    """Read to the end; return the exit code and what was shown, without colours."""
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus, _CONTROL.sub("", child.before)


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
def test_table_fits_the_terminal_and_keeps_the_state(table, spawn, columns, header):
    key = "begin-of-a-key-" + "x" * 40 + "-end"
    with held_elsewhere(key, owner="w" * 1000), held_elsewhere("dead", owner="[red]gone\x1b[2J"):
        expire("dead")
        child = spawn("ls", columns=columns)
        code, shown = rest(child)
    assert code == 0
    assert "\x1b[2J" not in child.before
    *lines, counts = shown[shown.index("KEY") :].replace("\r", "").splitlines()
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


def test_owners_give_way_to_keys(table, spawn):
    key = "k" * 24
    with held_elsewhere(key, owner="w" * 50):
        _, shown = rest(spawn("ls", columns=80))
    assert f"{key}  www" in shown
    with held_elsewhere("k" * 50, owner="ci-runner-17"):
        _, shown = rest(spawn("ls", columns=80))
    assert "  ci-runner-17  " in shown


@pytest.mark.parametrize("command", [["show"], ["release"]])
def test_long_labels_of_one_lock_are_cut(table, spawn, command):
    key = "k" * 500
    with held_elsewhere(key, owner="w" * 1000):
        _, shown = rest(spawn(*command, key, columns=60))
    lines = shown.replace("\r", "").splitlines()
    (first,) = (line for line in lines if line.startswith("key:"))
    (owner,) = (line for line in lines if line.startswith("owner:"))
    assert re.fullmatch(r"key: +k+…k+", first)
    assert re.fullmatch(r"owner: +w+…w+", owner)
    assert len(first) == len(owner) == 60


def test_the_live_view(table, spawn):
    mutex = Mutex.for_key("deploy", owner="me", model=Elsewhere)
    with held_elsewhere("other"):
        child = spawn("watch", "--interval", "0.1")
        child.expect("held: 1 ")
        mutex.acquire()
        child.expect("deploy  taken by me, fencing token")
        mutex.release()
        child.expect("deploy  freed")
        child.sendintr()
        code, shown = rest(child)
        assert code == 0
        assert "Traceback" not in shown


def test_ctrl_c_ends_a_wait(table, spawn):
    with held_elsewhere("a", owner="they"):
        child = spawn("wait", "a")
        child.expect("waited .* for 'a', held by 'they' until")
        child.sendintr()
        code, shown = rest(child)
        assert code == 130
        assert shown.endswith("interrupted\r\n")


def test_ctrl_c_at_the_question_breaks_nothing(table, spawn):
    with held_elsewhere("a", owner="they") as item:
        child = spawn("release", "a", "--force")
        child.expect("owner: +they")
        child.expect("Break this claim in")
        child.expect(r"\[y/N\]")
        # Python misses a signal in the instant in which it begins to read a line
        while True:
            child.sendintr()
            if child.expect(["interrupted", pexpect.TIMEOUT], timeout=5) == 0:
                break
        assert rest(child)[0] == 130
        assert LockItem.get("a").token == item.token
        child = spawn("release", "a", "--force")
        child.expect(r"\[y/N\]")
        child.sendline("y")
        assert rest(child)[0] == 0
        eventually(lambda: LockItem.get("a").expires_at is None)


def frame(watching, height=24, width=100):
    place = Place()
    place.chosen = {}
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(View(place, "key", None).frame(watching, [Text("the news")], console))
    return console.file.getvalue()


def test_what_does_not_fit_is_counted_and_trouble_is_shown(table):
    watching = _Watching(lambda: list(Locks(LockItem).standing()), 1.0)
    watching.look()
    shown = frame(watching)
    assert "held: 0   abandoned: 0" in shown
    assert "KEY" not in shown
    for number in range(6):
        Mutex.for_key(f"k{number}", auto_renew=False).acquire()
    expire("k0")
    watching.look()
    shown = frame(watching, height=18)
    assert "held: 5   abandoned: 1" in shown
    assert "and 2 more" in shown
    assert shown.endswith("the news\n")
    watching.trouble = "Scan failed: cut"
    assert "Scan failed: cut; repeated" in frame(watching)


def test_long_names_do_not_fill_the_live_view(table):
    watching = _Watching(lambda: list(Locks(LockItem).standing()), 1.0)
    with held_elsewhere("k" * 500, owner="w" * 1000):
        (change,) = watching.look()
        line = View(Place(), "key", None).line(change, 60)
        for width in (80, 40):
            shown = frame(watching, width=width)
            assert shown.count("kkk…kkk") == shown.count("www…www") == 1
            assert len(shown.splitlines()) == 7
    assert re.search(" k+…k+  held by w+…w+, fencing token", line.plain)
    assert len(change.words()) > 1500
    console = Console(file=io.StringIO(), width=40)
    console.print(Group(line))
    assert console.file.getvalue().count("\n") == 1


def test_a_look_that_takes_longer_than_the_interval_is_followed_by_no_hurry(table, fake_clock):
    watching = _Watching(list, 1.0)
    begun = fake_clock.now()
    fake_clock.advance(10)
    watching.rest()
    assert watching._due == begun + 10
