"""The demonstration finds what is wrong with a run, and leaves no process behind. test_examples.py runs all of it."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
signals = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops processes")


@pytest.fixture(scope="module")
def demo():
    spec = importlib.util.spec_from_file_location("examples_demo", DEMO)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DEMO.parent)
        spec.loader.exec_module(module)
    return module


def holds(who, fence, start, end):
    return [(t, who, "holds", fence) for t in (start, (start + end) / 2, end)]


TAKEN = "another holder has taken it"

# A run as it should be. A is killed, C takes over; B is stopped, C takes over; B's write is refused.
START = [*holds("C", 6, 0.1, 0.3), (0.3, "C", "writes", 6, 1)]
KILL = [*holds("A", 7, 1.0, 1.4), (1.2, "A", "sleeps", 7), (1.5, "A", "kills", 7)]
TAKEOVER = [*holds("C", 8, 3.6, 3.9), (3.9, "C", "writes", 8, 2)]
STOP = [*holds("B", 9, 5.0, 5.4), (5.5, "B", "stops", 9)]
SECOND_TAKEOVER = [*holds("C", 10, 8.0, 8.3), (8.3, "C", "writes", 10, 3)]
CONTINUE = [(8.1, "B", "continues", 9)]
REFUSAL = [(8.2, "B", "refused", 9, 0, TAKEN)]
COUNT = [(9.0, "", "counts", 0, 3)]
RUN = (START, KILL, TAKEOVER, STOP, SECOND_TAKEOVER, CONTINUE, REFUSAL, COUNT)


def run(*more, without=(), instead=None):
    parts = [part for part in RUN if not any(part is left_out for left_out in without)]
    events = [event for part in [*parts, list(more)] for event in part]
    return [(instead or {}).get(event, event) for event in events]


def judged(demo, events):
    return demo.judge([demo.Event(*event) for event in events])


def test_a_run_as_it_should_be(demo):
    assert judged(demo, run()) == []
    assert judged(demo, reversed(run())) == []


WRONG = {
    "there are no events": (
        [],
        [
            "nobody was killed while it held the lock",
            "nobody was stopped while it held the lock",
        ],
    ),
    "two sections overlap": (
        run(*holds("D", 11, 8.25, 8.5)),
        ["C and D held the lock at the same time"],
    ),
    "the stopped one believes that it holds the lock when it goes on": (
        run((8.15, "B", "holds", 9)),
        ["B and C held the lock at the same time"],
    ),
    "a token comes twice": (
        run(*holds("D", 10, 8.5, 8.6)),
        ["the fencing token of D is not above that of C"],
    ),
    "a late write is applied": (
        # B has read 2 and writes 3 over the 3 that C has written
        run((8.4, "B", "writes", 9, 3), without=[REFUSAL]),
        [
            "the late write of B was not refused",
            "an addition was lost: the counter was set to [1, 2, 3, 3]",
            "a holder wrote after a later one",
            "the counter is 3 after 4 writes",
        ],
    ),
    "a holder does not see what the one before wrote": (
        run(instead={(8.3, "C", "writes", 10, 3): (8.3, "C", "writes", 10, 2)}),
        ["an addition was lost: the counter was set to [1, 2, 2]"],
    ),
    "an addition is not in the counter": (
        run((9.0, "", "counts", 0, 2), without=[COUNT]),
        ["the counter is 2 after 3 writes"],
    ),
    "an addition is in the counter twice": (
        run((9.0, "", "counts", 0, 4), without=[COUNT]),
        ["the counter is 4 after 3 writes"],
    ),
    "writes are in the wrong order": (
        run(
            instead={
                (0.3, "C", "writes", 6, 1): (0.3, "C", "writes", 6, 2),
                (3.9, "C", "writes", 8, 2): (3.9, "C", "writes", 8, 1),
            }
        ),
        ["a holder wrote after a later one"],
    ),
    "nobody is killed": (
        run(without=[KILL]),
        ["nobody was killed while it held the lock"],
    ),
    "the killed one does not hold the lock": (
        run((1.5, "A", "kills", 5), without=[KILL]),
        ["nobody was killed while it held the lock"],
    ),
    "nobody takes over from the dead": (
        [*START, *KILL, (9.0, "", "counts", 0, 1)],
        [
            "nobody took the lock over from A, which was killed",
            "nobody was stopped while it held the lock",
        ],
    ),
    "nobody is stopped": (
        run(without=[STOP, CONTINUE, REFUSAL]),
        ["nobody was stopped while it held the lock"],
    ),
    "the stopped one is not continued": (
        run(without=[CONTINUE]),
        ["B was stopped, and not continued"],
    ),
    "it is continued too early": (
        run((7.9, "B", "continues", 9), without=[CONTINUE]),
        ["nobody took the lock over while B was stopped"],
    ),
    "DynamoDB did not see the late write": (
        run((8.2, "B", "refused", 9, 0, "its lease ended"), without=[REFUSAL]),
        ["the late write of B was not refused"],
    ),
}


@pytest.mark.parametrize(("events", "failures"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_found(demo, events, failures):
    assert judged(demo, events) == failures


def test_a_run_is_shown(demo, capsys):
    events = [demo.Event(*event) for event in run()]
    assert demo.report(events, "ABC", begin=0.05) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()[3:9]] == [
        ["from", "till", "fencing", "token", "A", "B", "C"],
        ["0.05", "0.25", "6", ".", ".", "1"],
        ["0.95", "1.35", "7", "killed", ".", "."],
        ["3.55", "3.85", "8", ".", ".", "2"],
        ["4.95", "5.35", "9", ".", "refused", "."],
        ["7.95", "8.25", "10", ".", ".", "3"],
    ]
    assert "The counter is 3" in shown


def test_a_run_that_is_wrong_fails(demo, capsys):
    events = [demo.Event(*event) for event in run(without=[KILL])]
    assert demo.report(events, "ABC", begin=0.0) == 1
    assert capsys.readouterr().out.endswith(
        "\n\nBROKEN: nobody was killed while it held the lock\n"
    )


def test_help_says_what_it_is_and_what_can_be_chosen(demo, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["demo.py", "--help"])
    with pytest.raises(SystemExit):
        demo.main()
    shown = capsys.readouterr().out
    assert "Several processes compete for one lock." in shown
    assert "--processes {3,4,5,6,7,8}" in shown
    assert "(default: 10)" in shown


def is_left(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@signals
def test_ctrl_c_ends_all_processes_also_one_that_is_stopped(tmp_path):
    environment = {name: value for name, value in os.environ.items() if "AWS_" not in name}
    command = [sys.executable, DEMO, "--processes", "3", "--seconds", "1"]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # a group of its own, as a shell makes one
        cwd=tmp_path,
        env=environment,
    )
    with started as parent:
        while "is stopped" not in (line := parent.stdout.readline()):
            assert line, parent.stderr.read()
        os.killpg(parent.pid, signal.SIGINT)
        rest = parent.communicate(timeout=60)
    assert (parent.returncode, *rest) == (130, "", "")
    end = time.monotonic() + 60
    while is_left(parent.pid):
        assert time.monotonic() < end
        time.sleep(0.05)
