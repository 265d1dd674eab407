"""The examples keep what they promise: each checks itself, run as a user would run it.

The demonstration and the trial of shards also find what is wrong with a run; the former leaves no process behind.
"""

import importlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamodb_mutex import Loss

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8"))
DEMO = FOLDER / "demo.py"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}

by_processes = pytest.mark.skipif(os.name == "nt", reason="they stop and kill processes by signals")


def output_of(path, folder):
    """Run a program in an empty folder, which it leaves empty, and return what it prints."""
    options = {"cwd": folder, "env": ENVIRONMENT, "stdin": subprocess.DEVNULL, "text": True}
    done = subprocess.run([sys.executable, path], **options, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert list(folder.iterdir()) == []
    return done.stdout


@pytest.mark.lengthy
@by_processes
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_keeps_its_promise(path, tmp_path):
    output_of(path, tmp_path)


@pytest.mark.lengthy
@by_processes
def test_nightly_report_is_made_once(tmp_path):
    lines = output_of(FOLDER / "nightly_job" / "fleet.py", tmp_path).splitlines()
    (made,) = (line for line in lines if "made the report of 2026-11-22" in line)
    assert made.startswith(("machine 1: ", "machine 2: "))
    assert "machine 3, late: the report of 2026-11-22 was made already" in lines
    assert len([line for line in lines if line.endswith("exit code 0")]) == 3


def test_every_example_is_listed():
    listed = (FOLDER / "README.rst").read_text("utf-8")
    assert EXAMPLES
    for path in EXAMPLES:
        assert f"\n``{path.name}``" in listed


# -- the demonstration -----------------------------------------------------------------------------


def imported(name):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def demo():
    return imported("demo")


def holds(who, fence, start, end):
    return [(t, who, "holds", fence) for t in (start, (start + end) / 2, end)]


# A run as it should be. A is killed, C takes over; B is stopped, C takes over; B's write is refused.
START = [*holds("C", 6, 0.1, 0.3), (0.3, "C", "writes", 6)]
KILL = [*holds("A", 7, 1.0, 1.4), (1.2, "A", "sleeps", 7), (1.5, "A", "kills", 7)]
TAKEOVER = [*holds("C", 8, 3.6, 3.9), (3.9, "C", "writes", 8)]
STOP = [*holds("B", 9, 5.0, 5.4), (5.5, "B", "stops", 9)]
SECOND_TAKEOVER = [*holds("C", 10, 8.0, 8.3), (8.3, "C", "writes", 10)]
CONTINUE = [(8.1, "B", "continues", 9)]
REFUSAL = [(8.2, "B", "refused", 9, 0, Loss.TAKEN.value)]
COUNT = [(9.0, "", "counts", 0, 3)]
RUN = (START, KILL, TAKEOVER, STOP, SECOND_TAKEOVER, CONTINUE, REFUSAL, COUNT)


def run(*more, without=(), written=(1, 2, 3)):
    """Return a run without some parts, and what was written in it by the three holders."""
    values = iter(written)
    events = [event for part in RUN if part not in without for event in part]
    return [(*e[:4], next(values)) if e[2] == "writes" else e for e in events] + list(more)


NOT_KILLED = "nobody was killed while it held the lock"
NOT_STOPPED = "nobody was stopped while it held the lock"
NOT_REFUSED = "the late write of B was not refused"

JUDGED = [
    (run(), []),
    ([*reversed(run())], []),
    ([], [NOT_KILLED, NOT_STOPPED]),
    # two sections overlap
    (run(*holds("D", 11, 8.25, 8.5)), ["C and D held the lock at the same time"]),
    # the stopped one believes that it holds the lock when it goes on
    (run((8.15, "B", "holds", 9)), ["B and C held the lock at the same time"]),
    # a token comes twice
    (run(*holds("D", 10, 8.5, 8.6)), ["the fencing token of D is not above that of C"]),
    # a late write is applied: B has read 2 and writes 3 over the 3 that C has written
    (
        run((8.4, "B", "writes", 9, 3), without=[REFUSAL]),
        [
            *(NOT_REFUSED, "an addition was lost: the counter was set to [1, 2, 3, 3]"),
            *("a holder wrote after a later one", "the counter is 3 after 4 writes"),
        ],
    ),
    # a holder does not see what the one before wrote
    (run(written=(1, 2, 2)), ["an addition was lost: the counter was set to [1, 2, 2]"]),
    # an addition is not in the counter, or in it twice
    (run((9.0, "", "counts", 0, 2), without=[COUNT]), ["the counter is 2 after 3 writes"]),
    (run((9.0, "", "counts", 0, 4), without=[COUNT]), ["the counter is 4 after 3 writes"]),
    # writes are in the wrong order
    (run(written=(2, 1, 3)), ["a holder wrote after a later one"]),
    # nobody is killed, or one that does not hold the lock
    (run(without=[KILL]), [NOT_KILLED]),
    (run((1.5, "A", "kills", 5), without=[KILL]), [NOT_KILLED]),
    # nobody takes over from the dead
    (
        run((9.0, "", "counts", 0, 1), without=RUN[2:]),
        ["nobody took the lock over from A, which was killed", NOT_STOPPED],
    ),
    # nobody is stopped, or not continued, or too early
    (run(without=[STOP, CONTINUE, REFUSAL]), [NOT_STOPPED]),
    (run(without=[CONTINUE]), ["B was stopped, and not continued"]),
    (
        run((7.9, "B", "continues", 9), without=[CONTINUE]),
        ["nobody took the lock over while B was stopped"],
    ),
    # DynamoDB did not see the late write
    (run((8.2, "B", "refused", 9, 0, "its lease ended"), without=[REFUSAL]), [NOT_REFUSED]),
]


@pytest.mark.parametrize(("events", "failures"), JUDGED)
def test_run_is_judged(demo, events, failures):
    assert demo.judge([demo.Event(*event) for event in events]) == failures


def test_report_of_a_run(demo, capsys):
    def report(events):
        return demo.report([demo.Event(*event) for event in events], "ABC", begin=0.05)

    assert report(run()) == 0
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
    assert report(run(without=[KILL])) == 1
    assert capsys.readouterr().out.endswith(f"\n\nBROKEN: {NOT_KILLED}\n")


def test_help_says_what_it_is_and_what_can_be_chosen(demo, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["demo.py", "--help"])
    with pytest.raises(SystemExit):
        demo.main()
    shown = capsys.readouterr().out
    assert "Several processes compete for one lock." in shown
    assert "--processes {3,4,5,6,7,8}" in shown
    assert "(default: 10)" in shown


@by_processes
def test_ctrl_c_ends_all_processes_also_one_that_is_stopped(tmp_path):
    command = [sys.executable, DEMO, "--processes", "3", "--seconds", "1"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ENVIRONMENT}
    # a group of its own, as a shell makes one
    options |= {"text": True, "cwd": tmp_path, "start_new_session": True}
    with subprocess.Popen(command, **options) as parent:
        while "is stopped" not in (line := parent.stdout.readline()):
            assert line, parent.stderr.read()
        os.killpg(parent.pid, signal.SIGINT)
        rest = parent.communicate(timeout=60)
    assert (parent.returncode, *rest) == (130, "", "")
    with suppress(ProcessLookupError):
        while True:  # until none of them is left
            os.killpg(parent.pid, 0)
            time.sleep(0.05)


# -- shards ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards():
    return imported("shards")


IDS = "abcdef"


def turns(share_out, names, members, owners):
    """Yield what each member gives and takes in a turn, until nobody does; all see the same."""
    owners = dict(owners)
    while True:
        plans = {}
        for me in members:
            mine = [name for name, owner in owners.items() if owner == me]
            plans[me] = share_out(me, names, members, owners, mine)
        yield owners, plans
        if not any(give or take for give, take, _ in plans.values()):
            return
        for me, (give, take, _) in plans.items():
            for name in give:
                assert owners.pop(name) == me
            for name in take:
                assert name not in owners, f"{name} has two takers, or was not free"
                owners[name] = me


@given(st.data(), st.integers(0, 20), st.sets(st.sampled_from(IDS), min_size=1))
def test_shards_are_shared_out_with_as_few_moves_as_possible(shards, data, count, members):
    names = [f"shard-{number:02}" for number in range(count)]
    owner = st.sampled_from(sorted(members)) | st.none()
    drawn = {name: data.draw(owner) for name in data.draw(st.permutations(names))}
    before = {name: owner for name, owner in drawn.items() if owner}
    every = list(turns(shards.share_out, names, members, before))
    # one turn to give and to take what is free, one to take what was given, and one in which nothing is to do
    assert len(every) <= 3
    first, (after, _) = every[0][1], every[-1]
    assert [*after] and {*after} == {*names} if names else not after
    counts = sorted((list(after.values()).count(me) for me in members), reverse=True)
    assert counts[0] - counts[-1] <= 1
    # Moves: the even shares laid over the uneven ones, the largest over the largest.
    had = sorted((list(before.values()).count(me) for me in members), reverse=True)
    least = sum(max(0, old - new) for old, new in zip(had, counts, strict=True))
    assert sum(len(give) for give, _, _ in first.values()) == least
    assert sum(before[name] != after[name] for name in before) <= least
    # each gives its youngest
    for me, (give, _, _) in first.items():
        mine = [name for name, owner in before.items() if owner == me]
        assert give == mine[len(mine) - len(give) :]


@given(st.data(), st.integers(0, 20), st.sets(st.sampled_from(IDS), min_size=1))
def test_each_free_shard_has_one_taker(shards, data, count, members):
    """A shard whose owner is no member, and so probably dead, is not free before its lease has ended."""
    names = [f"shard-{number:02}" for number in range(count)]
    owner = st.sampled_from([*sorted(members), "dead"]) | st.none()
    drawn = {name: data.draw(owner) for name in names}
    owners = {name: owner for name, owner in drawn.items() if owner}
    _, plans = next(turns(shards.share_out, names, members, owners))
    taken = [name for _, take, _ in plans.values() for name in take]
    free = [name for name in names if name not in owners]
    lacking = sum(lacks for _, _, lacks in plans.values())
    assert sorted(taken) == free[:lacking]
    assert all(len(take) <= lacks for _, take, lacks in plans.values())
    assert not any(give and lacks for give, _, lacks in plans.values())
    # the members share out all shards, also those that will be free
    held = sum(owner in members for owner in owners.values())
    assert held - sum(len(give) for give, _, _ in plans.values()) + lacking == count


def test_what_a_worker_holds_counts_not_what_it_has_read(shards):
    # it has just lost two that the table still gives to it, and got one that the table does not show yet
    names, owners = [*"abcdef"], {"a": "me", "b": "me", "c": "other"}
    assert shards.share_out("me", names, ["me", "other"], owners, ["d"]) == ([], ["e", "f"], 2)


STEPS = [("x", "A", 7, 1, 0.0, 0.1), ("x", "A", 7, 2, 0.1, 0.2), ("x", "B", 8, 3, 0.3, 0.4)]
"""A works on shard x, and then B: owner, fencing token, checkpoint, begin and end of each step."""


@pytest.mark.parametrize(
    ("steps", "stored", "faults"),
    [
        (STEPS, 3, []),
        ([*reversed(STEPS)], 3, []),
        # a killed worker has no time to report a checkpoint; and A may be frozen before it reads an answer
        ([STEPS[0], STEPS[2]], 4, []),
        ([STEPS[0], ("x", "A", 7, 2, 0.1, 9.0), STEPS[2]], 3, []),
        ([], 0, ["x: nobody worked on it"]),
        (STEPS, 2, ["x: the checkpoint 3 went back to 2"]),
        ([*STEPS, ("x", "A", 9, 3, 0.5, 0.6)], 3, ["x: checkpoint 3 was reached twice"]),
        ([*STEPS, ("x", "A", 7, 4, 0.5, 0.6)], 4, ["x: B and A had it at the same time"]),
        ([*STEPS, ("x", "A", 8, 4, 0.5, 0.6)], 4, ["x: B and A had it at the same time"]),
        ([*STEPS, ("x", "A", 9, 4, 0.1, 0.2)], 4, ["x: B and A had it at the same time"]),
    ],
)
def test_steps_are_judged(shards, steps, stored, faults):
    assert shards.judge([shards.Step(*step) for step in steps], {"x": stored}) == faults


def test_guide_shows_the_worker_of_the_example():
    guide = (FOLDER.parent / "docs" / "howto" / "worker_pool.rst").read_text("utf-8")
    example = (FOLDER / "shards.py").read_text("utf-8")
    begin, end = example.index("class PoolLock("), example.index("def work(")
    for part in re.split(r"\n\n\n(?=def |class )", example[begin:end].rstrip()):
        assert textwrap.indent(part, "   ") in guide, part
