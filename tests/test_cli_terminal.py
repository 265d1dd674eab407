"""The command line on a terminal: tables that fit, the live view, questions, Ctrl-C."""

from __future__ import annotations

import io
import re
import sys

import pytest
from cli import COMMAND, eventually
from rich.console import Console
from rich.text import Text
from test_models import Elsewhere

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.cli._locks import Locks
from pynamodb_mutex.cli._place import Place
from pynamodb_mutex.cli._watch import View, _Watching
from pynamodb_mutex.testing import environment, expire, held_elsewhere

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals", allow_module_level=True)

import pexpect

# what reaches the engine is the same without a terminal, and tested on both there
pytestmark = pytest.mark.parametrize("engine", ["embedded"], indirect=True)

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


def test_a_table_fits_the_terminal(table, spawn):
    key = "a-key-that-is-longer-than-its-column-" + "x" * 40
    with held_elsewhere(key, owner="worker-7\x1b[2J"), held_elsewhere("dead", owner="[red]gone"):
        expire("dead")
        for columns, last in ((120, "TOKEN"), (60, "REMAINING")):
            child = spawn("ls", columns=columns)
            code, shown = rest(child)
            assert code == 0
            lines = shown.replace("\r", "\n").splitlines()
            assert max(map(len, lines)) <= columns
            assert last in shown
            assert ("SINCE" in shown) == (columns == 120)
            assert "[red]gone" in shown
            assert "…" not in shown
            assert "\x1b[2J" not in child.before
        folded = "".join(line.split("  ")[0] for line in lines[2:])
        assert folded.count("x") == 40


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
        child.sendintr()
        code, shown = rest(child)
        assert code == 130
        assert "interrupted" in shown
        assert LockItem.get("a").token == item.token
        child = spawn("release", "a", "--force")
        child.expect(r"\[y/N\]")
        child.sendline("y")
        assert rest(child)[0] == 0
        eventually(lambda: LockItem.get("a").expires_at is None)


def frame(watching, height=24):
    place = Place()
    place.chosen = {}
    console = Console(file=io.StringIO(), width=100, height=height)
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


def test_a_look_that_takes_longer_than_the_interval_is_followed_by_no_hurry(table, fake_clock):
    watching = _Watching(list, 1.0)
    begun = fake_clock.now()
    fake_clock.advance(10)
    watching.rest()
    assert watching._due == begun + 10
