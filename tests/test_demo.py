"""The demo: what it shows, what it finds, and that it leaves no process behind."""

import importlib.util
import io
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("matplotlib")

from pynamodb.signals import pre_dynamodb_send
from rich.console import Console

from pynamodb_mutex.demo import __main__ as cli
from pynamodb_mutex.demo import chart, director, screen, summary, worker
from pynamodb_mutex.demo.director import Options
from pynamodb_mutex.demo.story import Section, Story
from pynamodb_mutex.testing import held_elsewhere

signals = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops processes")
sees_processes = pytest.mark.skipif(not shutil.which("ps"), reason="needs ps")
DEMO = [sys.executable, "-m", "pynamodb_mutex.demo"]
START = 1_000_000_000_000
SECOND = 1_000_000_000


# Histories, made up


def event(t, who, what, **details):
    return {"t": START + int(t * SECOND), "who": who, "what": what, **details}


def entered(t, who, fence, abandoned_by=None):
    until = START + int((t + 2) * SECOND)
    details = {"fence": fence, "abandoned_by": abandoned_by, "seconds": 0.5, "until": until}
    return event(t, who, "entered", **details)


def left(t, who, until=99.0):
    return event(t, who, "left", until=START + int(until * SECOND))


def opening(*names):
    for name in names:
        yield event(-0.5, name, "ready")
    yield event(0, "", "begin", workers=len(names), lease=2.0)
    for name in names:
        yield event(0.1, name, "asked")


def a_show():
    """All that is promised, at its shortest."""
    return [
        *opening("worker 1", "worker 2"),
        event(0.9, "worker 1", "write"),
        entered(1.0, "worker 1", 10),
        event(1.05, "worker 1", "killed"),
        event(1.06, "worker 1", "ended", status=-9),
        event(1.3, "worker 3", "replaces", whom="worker 1"),
        event(2.0, "worker 2", "read"),
        event(3.1, "worker 2", "read"),
        event(3.2, "worker 2", "write"),
        entered(3.25, "worker 2", 11, "worker 1"),
        event(3.5, "worker 2", "sending", until=START + int(5.2 * SECOND)),
        event(3.6, "worker 2", "stopped"),
        event(3.7, "worker 3", "asked"),
        entered(5.6, "worker 3", 12, "worker 2"),
        left(6.1, "worker 3"),
        event(6.2, "worker 3", "asked"),
        event(8.6, "worker 2", "resumed"),
        event(8.61, "worker 2", "sent", until=START + int(5.3 * SECOND)),
        event(8.62, "worker 2", "lost", loss="its lease ended"),
        event(8.7, "worker 2", "refused", loss="another holder has taken it"),
        event(8.71, "worker 2", "ousted", loss="another holder has taken it"),
        event(9.0, "worker 3", "gave_up"),
        event(9.1, "worker 3", "ended", status=0),
        event(9.2, "", "counted", counter=1),
    ]


def without(what, who):
    return [told for told in a_show() if (told["what"], told["who"]) != (what, who)]


def section(who, fence, start, over, until=None):
    until = start + 2 if until is None else until
    return Section(who, fence, 0, start, until, over or until, None, over)


def test_story_in_words():
    story = Story.of(reversed(a_show()[::2] + a_show()[1::2]))
    assert [(round((line.t - START) / SECOND, 1), line.text) for line in story.lines] == [
        (0.0, "2 processes compete for one lock; its lease is 2 s"),
        (1.0, "worker 1 took the lock: fencing token 10"),
        (1.1, "worker 1 was killed while it held the lock"),
        (1.3, "worker 3 was started in place of worker 1"),
        (3.2, "worker 2 took it over 2.2 s later: abandoned by worker 1"),
        (3.6, "worker 2 was stopped while it held the lock, about to write"),
        (5.6, "worker 3 took it over 2.0 s later: abandoned by worker 2"),
        (6.1, "worker 3 gives it back after 0.5 s"),
        (8.6, "worker 2 runs on, 5.0 s later"),
        (8.6, "worker 2 lost the lock: its lease ended"),
        (8.7, "worker 2 wrote too late: refused by DynamoDB"),
    ]
    assert {name[-1]: found.state for name, found in story.workers.items()} == {
        "1": "killed",
        "2": "away",
        "3": "done",
    }
    assert story.current is None
    assert Story().current is None


def test_summary_of_a_show_as_promised():
    story = Story.of(a_show())
    assert summary.failures(story) == []
    assert dict(summary.table(story)) == {
        "sections entered": "3, by 3 workers",
        "overlaps found": "none",
        "fencing tokens": "strictly increasing: yes (10 to +2)",
        "killed while holding": "worker 1; worker 2 took over 2.2 s later",
        "stopped while holding": "worker 2; worker 3 took over 2.0 s later",
        "guarded writes": "1 applied, 1 refused",
        "counter in the row": "1: counts each applied write once",
        "requests per section": "1.3: 0.7 writes, 0.7 looks of who waits",
    }


def test_belief_ends_with_the_lease_the_release_or_the_kill():
    story = Story.of(a_show())
    assert [(found.end - START) / SECOND for found in story.sections] == [1.05, 5.3, 6.1]


def test_overlap_is_found():
    first, second = section("a", 1, start=0, over=10, until=20), section("b", 2, start=9, over=11)
    within, after = section("c", 3, start=3, over=4), section("d", 4, start=11, over=12)
    assert summary.overlaps([first, after]) == []
    assert summary.overlaps([second, first]) == [(first, second)]
    # also behind a shorter one
    assert summary.overlaps([first, within, second]) == [(first, within), (first, second)]
    # who was stopped did not believe any more
    assert summary.overlaps([section("a", 1, start=0, over=None, until=8), second]) == []
    assert summary.overlaps([section("a", 1, start=0, over=30, until=8), second]) == []


def test_show_with_an_overlap_fails():
    events = [*a_show(), entered(6.0, "worker 4", 13), left(6.2, "worker 4")]
    found = summary.failures(Story.of([*events, COUNTED]))
    assert found == ["worker 4 entered while worker 3 believed that it held the lock"]


def test_tokens_that_do_not_grow_are_found():
    grown = [section("b", 2, 20, 21), section("a", 1, 10, 11)]
    assert summary.tokens_grow(grown)
    assert not summary.tokens_grow([*grown, section("a", 2, 30, 31)])
    events = [told | {"fence": 10} if told["what"] == "entered" else told for told in a_show()]
    assert summary.failures(Story.of(events)) == ["the fencing tokens do not grow"]
    assert "increasing: NO" in str(summary.table(Story.of(events)))


COUNTED = event(9.3, "", "counted", counter=2)
NOT_KILLED = "no holder was killed and its lock taken over"
NOT_STOPPED = "no holder was stopped and its lock taken over"
NOT_REFUSED = "no late write was refused by DynamoDB"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([*a_show(), event(9.3, "", "counted", counter=0)], ["1 writes were applied, 0 are there"]),
        (a_show()[:7], [NOT_KILLED, NOT_STOPPED, NOT_REFUSED]),
        (a_show()[:10], [NOT_KILLED, NOT_STOPPED, NOT_REFUSED]),
        (a_show()[:15], [NOT_STOPPED, NOT_REFUSED]),
        (a_show()[:17], [NOT_STOPPED, NOT_REFUSED]),
        (without("sent", "worker 2"), [NOT_REFUSED]),
        ([*a_show()[:6], left(1.04, "worker 1"), *a_show()[6:], COUNTED], [NOT_KILLED]),
    ],
)
def test_broken_promise_is_found(events, expected, tmp_path):
    story = Story.of(events)
    assert summary.failures(story) == expected
    assert ("nobody" in str(summary.table(story))) == (NOT_STOPPED in expected)
    chart.save(story, Options(out=tmp_path / "chart.png"))
    assert_picture(tmp_path / "chart.png")


def test_take_over_that_was_not_staged():
    """As may happen on a machine that stands still for longer than the lease."""
    events = [*opening("a", "b"), entered(1, "a", 1), entered(9, "b", 2, "a"), left(9.5, "b")]
    events += [event(9.8, "a", "refused", loss="x"), event(9.9, "a", "ousted", loss="x")]
    story = Story.of(events)
    assert [line.text for line in story.lines if line.bold][1:] == [
        "b took it over: abandoned by a",
        "a wrote too late: refused before it was sent",
    ]
    assert summary.overlaps(story.sections) == []


# The terminal


def shown(events, now, height=24):
    console = Console(file=io.StringIO(), width=80, height=height)
    console.print(screen.frame(Story.of(events), START + int(now * SECOND), 20.0, height))
    lines = console.file.getvalue().splitlines()
    assert all(len(line) == 80 for line in lines)
    return lines


@pytest.mark.parametrize(
    ("until", "now", "expected"),
    [
        (2, -0.1, "the processes start"),
        (6, 0.5, "0.5 of 20 s   the lock is free"),
        (7, 1.1, "1.1 of 20 s   held by worker 1 "),
        (8, 1.3, "the lock is free"),
        (16, 4.0, "4.0 of 20 s   held by worker 2, which cannot run"),
        (16, 5.5, "nobody; the lease of worker 2 is over"),
        (25, 25.0, "20.0 of 20 s   the lock is free"),
    ],
)
def test_screen_tells_who_holds_the_lock(until, now, expected):
    lines = shown(a_show()[:until], now)
    assert expected in lines[1] + lines[2]
    assert len(lines) < 24


def test_screen_tells_what_happened():
    lines = shown(a_show(), 20.0)
    assert any("worker 1 was killed while it held the lock" in line for line in lines)
    row = next(line for line in lines if line.startswith(" worker 2")).split()
    assert row[-2:] == ["1", "3"]
    assert len(shown(a_show(), 20.0, height=12)) == 4 + 4 + 5


def test_live_screen_ends_with_the_last_state():
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    story = Story()
    with screen.live(console, 20.0) as watch:
        for told in a_show():
            story.tell(told)
            watch(story)
        assert "refused by DynamoDB" not in console.file.getvalue()
    assert "refused by DynamoDB" in console.file.getvalue()


# The command line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--workers", "1"], "--workers: 2 to 12"),
        (["--lease", "0.4"], "--lease: 0.5 to 10"),
        (["--lease", "3", "--seconds", "14"], "--seconds: at least 15"),
        (["--out", "missing/chart.png"], "no directory missing"),
    ],
)
def test_options_that_make_no_show(arguments, expected, capsys):
    with pytest.raises(SystemExit):
        cli.main(arguments)
    assert expected in capsys.readouterr().err


def test_options_by_default():
    assert cli.options([]) == Options()


def test_needs_the_extra_and_posix(monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name != "matplotlib" or None)
    assert cli.main([]) == 1
    assert capsys.readouterr().err == (
        "Error: the demo needs matplotlib: pip install 'pynamodb-mutex[demo]'\n"
    )
    monkeypatch.delattr(signal, "SIGSTOP", raising=False)
    assert cli.main([]) == 1
    assert "POSIX" in capsys.readouterr().err


HIDES = """
import sys
hidden = ("rich", "matplotlib", "blinker", "moto", "flask", "flask_cors", "waitress")
sys.modules.update(dict.fromkeys(hidden))
from pynamodb_mutex.demo.__main__ import main
main(["--help"])
"""


def test_help_needs_no_extra():
    done = subprocess.run(
        [sys.executable, "-c", HIDES], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "--workers" in done.stdout


# The show


def assert_picture(picture):
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    assert 1200 < width < 2400
    assert 500 < height < 1600


def processes_with(mark):
    listing = subprocess.run(
        ["ps", "-Aww", "-o", "args"], capture_output=True, text=True, check=True
    )
    return [line for line in listing.stdout.splitlines() if mark in line]


def eventually(condition, seconds=10):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@signals
def test_demo_without_a_terminal(tmp_path):
    picture = tmp_path / "chart.png"
    arguments = ["--seconds", "11", "--lease", "1", "--workers", "4", "--out", str(picture)]
    run = subprocess.run([*DEMO, *arguments], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    for words in (
        " was killed while it held the lock",
        "worker 5 was started in place of worker ",
        " was stopped while it held the lock, about to write",
        " lost the lock: ",  # what it hears first depends on the machine
        " wrote too late: refused by DynamoDB",
        "\noverlaps found:         none\n",
        "\nfencing tokens:         strictly increasing: yes (",
        " applied, 1 refused\n",
        f"\npicture:                {picture}\n",
    ):
        assert words in run.stdout
    assert " took it over " in run.stdout
    assert_picture(picture)


@signals
@sees_processes
def test_interrupted_demo_leaves_no_process(tmp_path):
    """Ctrl-C at a terminal, while a worker is stopped."""
    import pty

    seed = f"{os.getpid()}01"
    arguments = ["--lease", "0.5", "--seconds", "10", "--workers", "2", "--seed", seed]
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [*DEMO, *arguments])
    output = b""
    while b"was stopped" not in output:
        assert select.select([terminal], [], [], 30)[0]
        output += os.read(terminal, 65536)
    assert processes_with(seed)
    os.write(terminal, b"\x03")
    while select.select([terminal], [], [], 30)[0]:
        try:
            output += os.read(terminal, 65536)
        except OSError:
            break  # that is how the end looks to who holds the other side
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert output.endswith(b"\r\ninterrupted; all processes are ended\r\n")
    assert not processes_with(seed)
    assert not list(tmp_path.iterdir())


LOST_DIRECTOR = """
import os, signal, sys, time
from pynamodb_mutex import LockItem
from pynamodb_mutex.demo.director import Options, Troupe
from pynamodb_mutex.testing import embedded_dynamodb, use
with embedded_dynamodb() as engine, use(engine), Troupe(Options(seed=int(sys.argv[1]))) as troupe:
    LockItem.create_table()
    names = [troupe.start(), troupe.start()]
    ready = 0
    while ready < 2:
        ready += len(list(troupe.hear()))
    troupe.end = time.monotonic_ns() + 60 * 10**9
    troupe.go(*names)
    while next(troupe.hear(), {}).get("what") != "entered":
        pass
    troupe.stop(names[0])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@signals
@sees_processes
def test_workers_end_with_their_director():
    """Also the one that is stopped, and could not notice."""
    seed = f"{os.getpid()}02"
    run = subprocess.run([sys.executable, "-c", LOST_DIRECTOR, seed], check=False)
    assert run.returncode == -signal.SIGKILL
    eventually(lambda: not processes_with(seed))


def test_worker_gives_up_at_the_end(lock_table, monkeypatch, capfd):
    monkeypatch.setattr(worker, "PAUSE", 0.01)
    with held_elsewhere(worker.KEY):
        late = worker.Worker("late", 1, 2.0)
        late.compete(time.monotonic_ns() + SECOND // 2)
        pre_dynamodb_send.disconnect(late._sends)
    told = [json.loads(line)["what"] for line in capfd.readouterr().out.splitlines()]
    assert told[0] == "asked"
    assert told[-1] == "gave_up"


@signals
def test_worker_that_breaks_down(monkeypatch, capsys, tmp_path):
    broken = (sys.executable, "-c", "import sys; sys.exit('no luck')")
    monkeypatch.setattr(director, "COMMAND", broken)
    assert cli.main(["--plain", "--out", str(tmp_path / "chart.png")]) == 1
    assert "broke down:\nno luck" in capsys.readouterr().err


def test_report_of_a_broken_promise(capsys):
    assert cli._report(Story.of(without("sent", "worker 2")), Path("chart.png")) == 1
    assert "FAILED: no late write was refused by DynamoDB" in capsys.readouterr().out
