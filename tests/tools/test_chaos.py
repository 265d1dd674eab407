"""The chaos harness: its checker on histories made by hand, falsified clocks, the page, and whole runs."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
import uuid

import pytest
from pynamodb.exceptions import PynamoDBException

from dev.chaos import __main__ as command
from dev.chaos import page
from dev.chaos.broken import BROKEN, OF_HINTS, OF_ONCE, broken
from dev.chaos.checker import check
from dev.chaos.figures import DEEDS
from dev.chaos.history import SECOND, Recorder, read
from dev.chaos.network import faults
from dev.chaos.scenarios import CASES as BREAKS
from dev.chaos.scenarios import judged
from dev.chaos.scenarios import scene as stage_of
from dev.chaos.shim import Shim
from dev.chaos.timeline import draw
from dev.chaos.verdicts import in_all
from dev.faultproxy import deny
from pynamodb_mutex._runtime.process import current_process

FACTS = {"lease": 1.5, "injector": True}
WALL = 1_000_000.0


class History:
    """Events as a run would leave them, a tenth of a second apart."""

    def __init__(self):
        self.events = []
        self.t = 0
        names = ("m0", "control-m0")
        self.add("init", "run", rows=[self.row("rows", n, last="start", count=0) for n in names])

    @staticmethod
    def row(table, key, **state):
        return {"table": table, "key": key, "ticks": state.get("count", 0), **state}

    def add(self, op, proc, *, step=0.1, **more):
        self.t += int(step * SECOND)
        self.events.append({"t": self.t, "proc": proc, "op": op, **more})
        return self

    def wire(self, client, kind, *rows, applied=True, fault=None, step=0.1, name="UpdateItem"):
        wall = WALL + (self.t + step * SECOND) / SECOND
        keys = [f"{row['table']}/{row['key']}" for row in rows] or ["locks/m0"]
        return self.add(
            "wire", client, step=step, kind=kind, name=name, rows=list(rows), applied=applied,
            fault=fault, status=200, wall=wall, keys=keys, seq=len(self.events),
        )  # fmt: skip

    def reads(self, client):
        return self.wire(client, "GetItem", name="GetItem")

    def claim(self, client, kind, token, version, *, ends=2.0, **how):
        end = None if ends is None else WALL + self.t / SECOND + ends
        state = {"token": token, "version": version, "expires_at": end}
        return self.wire(client, kind, self.row("locks", "m0", **state), **how)

    def acquire(self, client, token, version, **how):
        return self.claim(client, "acquire", token, version, **how)

    def force(self, version):
        return self.claim("operator", "force", "forced-x", version, ends=None)

    def written(self, client, lock, value, read, count):
        token, fence = lock
        state = {"last": value, "read": read, "count": count, "by": token, "fence": fence}
        return self.wire(client, "TransactWriteItems", self.row("rows", "m0", **state))

    def final(self, value, count):
        row = {"table": "rows", "key": "m0", "last": value, "count": count, "ticks": count}
        return self.add("final", "run", rows=[row])

    def asks(self, proc, **how):
        return self.add("acquire", proc, phase="invoke", names=["m0"], way="mutex", **how)

    def holds(self, proc, token, fence):
        locks = {"m0": [token, fence]}
        return self.add("acquire", proc, phase="ok", locks=locks, names=["m0"])

    def refused(self, proc):
        return self.add("acquire", proc, phase="fail", names=["m0"])

    def released(self, proc, token, fence):
        return self.add("release", proc, phase="ok", locks={"m0": [token, fence]})

    def wrote(self, proc, phase, value):
        return self.add("write", proc, phase=phase, values={"m0": value})

    def believes(self, proc, token, fence, since):
        locks = {"m0": [token, fence]}
        return self.add("belief", proc, locks=locks, since=since, until=self.t)

    def tenure(self, proc, token, fence, *writes):
        """Acquire, write in turn (value, what was read, count), believe and release."""
        client = proc.split(".")[0]
        self.asks(proc).acquire(client, token, fence).holds(proc, token, fence)
        since = self.t
        for value, seen, count in writes:
            self.written(client, (token, fence), value, seen, count).wrote(proc, "ok", value)
        self.believes(proc, token, fence, since)
        self.claim(client, "release", token, fence, ends=None)
        return self.released(proc, token, fence)

    def report(self, **facts):
        return check(self.events, FACTS | facts)


def two_tenures():
    history = History().tenure("c0.0", "a", 1, ("v1", "start", 1), ("v2", "v1", 2))
    return history.tenure("c1.0", "b", 2, ("v3", "v2", 3))


def two_believers(*, answered=False, **resumed):
    history = History().acquire("c0", "a", 1, ends=1.0)
    if resumed:
        history.add("resume", "run", client="c0", **resumed)
    if answered:
        history.wire("c0", "renew")
    history.acquire("c1", "b", 2, step=1.5)
    for proc, token, fence, back in (("c0.0", "a", 1, 1.4), ("c1.0", "b", 2, 0.2)):
        history.believes(proc, token, fence, history.t - int(back * SECOND))
    return history


def controls(*steps, stopped=15):
    """A row without a lock is written in turn (value, what was read), while clients are stopped."""
    history = two_tenures()
    for value, seen in steps:
        history.wire("c0", "PutItem", history.row("rows", "control-m0", last=value, read=seen))
        history.add("control", "c0.0", phase="ok", values={"m0": value})
    for _ in range(stopped):
        history.add("stop_client", "run", client="c0")
    return history


KEPT = ("t1", "start"), ("t2", "t1")
LOST = ("t1", "start"), ("t2", "start")


def killed():
    """A holder is killed, while another client waits."""
    history = History().acquire("c0", "a", 1).add("kill", "run", client="c0", last=True)
    return history.asks("c1.0")


def taken_again(*, told_before, fault=None):
    """A client's acquire is applied, the lease passes, another has its turn, and the acquire is repeated."""
    history = History().asks("c0.0").acquire("c0", "a", 1, ends=0.5, fault="drop_answer")
    if told_before:
        history.holds("c0.0", "a", 1)
    history.add("start", "c1.0", step=1.0).tenure("c1.0", "b", 2)
    return history.acquire("c0", "a", 3, fault=fault)


REFUSED = {"release": "x", "ensure": "x"}
CASES = {
    "P1 written without the lock": two_tenures().written("c0", ("a", 1), "v4", "v3", 4),
    "P2 made from what was overwritten": two_tenures().tenure("c0.0", "c", 3, ("v4", "v2", 4)),
    "P2 reported as applied, and it is not there": two_tenures().wrote("c0.0", "ok", "v9"),
    "P2 reported as not applied, and it is there": two_tenures().wrote("c0.0", "fail", "v2"),
    "none: reported as unknown, and it is there": two_tenures().wrote("c0.0", "info", "v2"),
    "none: reported as unknown, and it is not there": two_tenures().wrote("c0.0", "info", "v9"),
    "P2 applied twice":
        History().tenure("c0.0", "a", 1, ("v1", "start", 1), ("v2", "v1", 2), ("v1", "start", 1)),
    "P2 another end than the last seen": two_tenures().final("v2", 2),
    "P3 token falls": History().tenure("c0.0", "a", 7).tenure("c1.0", "b", 7),
    "P3 token falls over a deletion": History().tenure("c0.0", "a", 7)
        .wire("reaper", "DeleteItem", History.row("locks", "m0")).tenure("c1.0", "b", 1),
    "P4 live, and taken": History().acquire("c0", "a", 1).acquire("c1", "b", 2),
    "none: dead, and taken": History().acquire("c0", "a", 1).acquire("c1", "b", 2, step=2.5),
    "P4 its end moves back": History().acquire("c0", "a", 1).claim("c0", "PutItem", "a", 1, ends=1.0),
    "P4 revived": two_tenures().claim("c1", "renew", "b", 2),
    "P4 two believe": two_believers(),
    "P4 two believe, one resumed with a clock that ran on": two_believers(still=False),
    "none: two believe, one resumed with a clock that stood still": two_believers(still=True),
    "P4 two believe, one resumed and was answered": two_believers(still=True, answered=True),
    "none: a belief that is broken by force, and another one":
        History().acquire("c0", "a", 1).reads("operator").force(2).acquire("c1", "b", 3)
        .believes("c0.0", "a", 1, SECOND // 5).believes("c1.0", "b", 1, SECOND // 5),
    "P5 the control loses nothing": controls(*KEPT),
    "none: the control loses something": controls(*LOST),
    "none: the control loses nothing, and few were stopped": controls(*KEPT, stopped=8),
    "none: a dead holder's lock is taken":
        killed().acquire("c1", "b", 2, step=4.0).holds("c1.0", "b", 2),
    "P6 a dead holder's lock is taken late":
        killed().acquire("c1", "b", 2, step=8.0).holds("c1.0", "b", 2),
    "none: who came later waited for nothing": killed().asks("c1.0t1", step=7.5)
        .acquire("c1", "b", 2, step=0.5).holds("c1.0t1", "b", 2),
    "P6 a free key is waited for":
        two_tenures().asks("c0.0").reads("c0").reads("c0").reads("c0").refused("c0.0"),
    "P7 reported as held, and not": two_tenures().asks("c0.0").holds("c0.0", "c", 3),
    "P7 reported as another's, and its own": two_tenures().asks("c0.0")
        .acquire("c0", "c", 3, fault="drop_answer").refused("c0.0"),
    "none: reported as another's, and another thread's": History().asks("c0.0").asks("c0.0t1")
        .acquire("c0", "a", 1).holds("c0.0", "a", 1).refused("c0.0t1"),
    "P7 a token comes again after its acquire was answered": taken_again(told_before=True),
    "none: it comes again late": taken_again(told_before=True, fault="late"),
    "P7 another's claim is released": two_tenures().acquire("c0", "c", 3)
        .claim("c1", "release", "c", 3, ends=None),
    "P7 reported as released, and not": History().acquire("c0", "a", 1).released("c0.0", "a", 1),
    "none: a token comes twice, late": two_tenures().acquire("c0", "a", 3, fault="late_duplicate"),
    "P7 a token comes twice": two_tenures().acquire("c0", "a", 3, fault="late_duplicate")
        .acquire("c1", "b", 4, step=3.0),
    "P7 force breaks what it has not seen":
        History().reads("operator").acquire("c0", "a", 1).force(2),
    "P7 an error that is not typed": two_tenures()
        .add("read", "c0.0", phase="fail", error="KeyError", typed=False, text="'x'"),
    "none: a fork holds nothing": two_tenures().add("fork", "c0.0-fork", held=False, refused=REFUSED),
    "P7 a fork holds something": two_tenures().add("fork", "c0.0-fork", held=True, refused=REFUSED),
    "P8 taken before it was asked for":
        History().acquire("c0", "a", 1).asks("c0.0").holds("c0.0", "a", 1),
}  # fmt: skip
"""Histories, each called by the property that it violates."""


@pytest.mark.parametrize("name", CASES)
def test_violation_is_found(name):
    assert CASES[name].report().found() == (set() if name.startswith("none") else {name[:2]})


def test_good_history_passes():
    report = two_tenures().final("v3", 3).report()
    assert report.violations == []
    assert report.checked["P1"] == 3
    assert any(line.startswith("P3  holds") for line in report.lines())


def test_p1_tenures_interleave():
    history = History().acquire("c0", "a", 1).written("c0", ("a", 1), "v1", "start", 1)
    history.claim("c1", "hand_over", "b", 2).written("c1", ("b", 2), "v2", "v1", 2)
    report = history.written("c0", ("a", 1), "v3", "v2", 3).report()
    assert any("after another's write" in violation.text for violation in report.of("P1"))


@pytest.mark.parametrize("other", ["c1.0", "c0.0t1"], ids=["client", "thread"])
def test_p6_everybody_is_served_in_the_end(other):
    history = History().add("start", "c0.0").add("start", other).add("quiet", "run")
    (violation,) = history.tenure("c0.0", "a", 1).add("stop", "run").report().violations
    assert violation.text == f"{other} was not served in the quiet at the end"


def test_p7_repeated_acquire_may_take_the_lock_again():
    report = taken_again(told_before=False).holds("c0.0", "a", 3).report()
    assert report.violations == []
    assert report.figures["locks taken again by a repeated acquire"] == 1
    assert report.figures["orphaned claims"] == 0


def test_runs_count_together():
    good, bad = two_tenures().report(), two_believers().report()
    whole = in_all([good, bad])
    assert whole.found() == {"P4"}
    assert whole.checked["P3"] == good.checked["P3"] + bad.checked["P3"]
    one, lost = (controls(*each, stopped=8).report() for each in (KEPT, LOST))
    assert in_all([one, one]).found() == {"P5"}
    both = in_all([one, lost])
    assert (both.found(), both.checked["P5"]) == (set(), 1)


def test_figures_add_up():
    history = two_tenures()
    history.events += [{"t": 0, "op": "start", "proc": proc} for proc in ("c0.0", "c0.0t1", "c1.0")]
    report = history.report(seconds=5.0)
    figures, twice = report.figures, in_all([report, report]).figures
    assert str(figures["acquires"]) == "2: ok 2"
    assert str(twice["acquires"]) == "4: ok 4"
    assert twice["seconds of attack"] == 10.0
    # whose of a client's threads a request is cannot be seen
    assert figures["requests per acquire, free"] == [1]
    assert twice["requests per acquire, free"] == [1, 1]


CLOCKS = """
import threading, time
def clocks():
    kinds = time.CLOCK_REALTIME, time.CLOCK_MONOTONIC, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC_RAW
    return [time.clock_gettime(kind) for kind in kinds]
before = clocks()
print("ready", flush=True)
input()
time.sleep(0.2)
threading.Event().wait(0.2)
print(*(now - then for now, then in zip(clocks(), before)), flush=True)
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc to build the shim with")
def test_clocks_are_moved_and_waits_are_right(tmp_path):
    clock = Shim.build(tmp_path).clock("c0")
    process = subprocess.Popen(
        [sys.executable, "-c", CLOCKS], env=os.environ | clock.environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "ready\n"
        # longer than the machine may have run: its clocks began when it started
        clock.stand_still(100_000.0)
        clock.step_wall(360_000.0)
        began = time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        wall, local, boot, true = map(float, process.stdout.readline().split())
        # a wait by the clock that stands still would last for a day
        assert 0.39 < time.monotonic() - began < 500
    moved = [clock - true for clock in (wall, local, boot)]
    assert moved == pytest.approx([260_000.0, -100_000.0, -100_000.0], abs=1.0)


def test_without_a_compiler_clocks_are_left_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert Shim.build(tmp_path) is None
    assert "no gcc" in capsys.readouterr().out


def test_history_survives_a_line_cut_short(tmp_path):
    record = Recorder(tmp_path / "c0.jsonl", "c0")
    record("start", pid=1)
    record.close()
    with record.path.open("a") as file:
        file.write('{"t": 1, "pro')
    assert [event["op"] for event in read(tmp_path)] == ["start"]


def test_picture_is_drawn(tmp_path):
    history = two_believers(still=False).add("stop_client", "run", client="c0")
    history.add("resume", "run", client="c0", still=False)
    history.add("kill", "run", client="c0", last=False)
    history.wire("c1", "update", history.row("rows", "r0", token="x"), fault="late")
    report = history.report()
    assert draw(history.events, report, tmp_path / "it.png").stat().st_size > 10_000
    assert abs(report.violations[0].t - history.t) < 4 * SECOND


def test_made_up_answer_has_the_date_of_its_own_second(scene):
    # a fault may stand for a whole run: the Date of its beginning would put a new process's server time back
    scene.proxy.next(deny())
    time.sleep(30)
    with pytest.raises(PynamoDBException):
        scene.mutex().acquire()
    store = current_process().store(scene.here)
    assert store.server_now(store.connection._now()) == pytest.approx(time.time(), abs=1.5)


def keep(folder, seed, history):
    """Leave a history as a run does."""
    run = folder / str(seed)
    run.mkdir(parents=True)
    facts = {**FACTS, "engine": "embedded", "seconds": 10.0, "seed": seed}
    (run / "run.json").write_text(json.dumps(facts))
    (run / "wire.jsonl").write_text("".join(json.dumps(event) + "\n" for event in history.events))


def test_page_adds_up_what_it_finds(tmp_path, capsys):
    kept, out = tmp_path / "kept", tmp_path / "page"

    def shown():
        assert page.main([str(out), str(kept)]) == 0
        return (out / "report.html").read_text()

    assert page.main([str(out), str(tmp_path)]) == 1
    assert "no runs found" in capsys.readouterr().out
    assert not out.exists()
    for seed in (31, 32):
        keep(kept / "deep", seed, two_tenures())
    text = shown()
    assert "20 seconds of attack in 2\nruns" in text
    assert "31 (embedded), 32 (embedded)" in text
    assert '<td>P1</td>\n<td class="holds">holds</td>\n<td class="number">0</td><td class="number">6</td>' in text  # fmt: skip
    for part in ("P5", "not tried", "What was not tried", "make models"):
        assert part in text
    assert "violated" not in text.partition("</style>")[2]
    assert (out / "timeline.png").stat().st_size > 10_000
    assert "2 runs" in capsys.readouterr().out
    (out / "models.txt").write_text("all as <expected>\n")
    (out / "peers.txt").write_text("median <5.00> s\n")
    text = shown()
    assert "all as &lt;expected&gt;" in text
    assert "median &lt;5.00&gt; s" in text
    assert "peers.png" not in text
    (out / "peers.png").touch()
    assert "peers.png" in shown()
    # a violation is named, and drawn
    good = (out / "timeline.png").read_bytes()
    keep(kept, 2, two_believers())
    assert page.main([str(out), str(kept)]) == 1
    text = (out / "report.html").read_text()
    assert "both believed" in text
    assert "around the first violation" in text
    assert (out / "timeline.png").read_bytes() != good


def test_page_has_words_for_all_that_is_done():
    names = {fault.name for fault in faults(random.Random(), 1.0)}
    assert page.INJECTED["faults"].keys() == {*names, "partition"}
    assert page.INJECTED["injector"].keys() == set(DEEDS)


def test_runs_take_turns_on_the_chosen_engines(monkeypatch, capsys):
    monkeypatch.delenv("PYNAMODB_MUTEX_REQUIRE_LOCAL", raising=False)
    monkeypatch.setattr(command, "why_no_dynamodb_local", lambda: None)
    assert command.chosen_engines("both") == command.ENGINES
    monkeypatch.setattr(command, "why_no_dynamodb_local", lambda: "there is no Java")
    assert command.chosen_engines("both") == ("embedded",)
    assert "there is no Java" in capsys.readouterr().out
    assert command.chosen_engines("local") == ("local",)
    monkeypatch.setenv("PYNAMODB_MUTEX_REQUIRE_LOCAL", "1")
    assert command.chosen_engines("both") == command.ENGINES


@pytest.mark.timeout(1200)
@pytest.mark.lengthy
def test_run_of_a_broken_library_leaves_its_history_and_a_picture(tmp_path, capsys):
    folder = tmp_path / "kept"
    asked = ["--seed=6", "--seconds=6", "--calm", "--break=counter-reset", f"--keep={folder}"]
    status = command.main(asked)
    said = capsys.readouterr().out
    assert status == 1, said
    assert "P3  VIOLATED" in said
    assert "seed 6; history in" in said
    assert (folder / "timeline.png").exists()


@pytest.mark.real("embedded")
@pytest.mark.lengthy
@pytest.mark.parametrize("case", BREAKS, ids=lambda case: case.broken)
def test_broken_library_is_caught_and_the_library_as_it_is_is_not(case, engine, tmp_path):
    def reported(folder):
        folder.mkdir()
        with stage_of(engine, folder, f"chaos-{uuid.uuid4().hex}") as stage:
            case.schedule(stage)
        return judged(folder)

    with broken(case.broken):
        report = reported(tmp_path / "broken")
    assert case.finds in report.found(), "\n".join(report.lines())
    report = reported(tmp_path / "as it is")
    assert report.violations == [], "\n".join(report.lines())


def test_every_way_to_break_it_has_a_case():
    simulated_only = {
        "upper-bound-of-all", "lost-wake-up", "queued-twice", "renewal-forgotten", "no-own-watch",
        "closed-to-newcomers", "closed-is-handed-over", "closed-by-date",
        # of the order of waiters, which the trial does not judge
        "join-compares-lists", "take-leaves-the-dead", "release-undated", "skip-by-old-date",
        "impatient", "place-kept", "leave-trusts-a-read",
        # of options that the trial does not use
        "kept-is-renewed", "kept-by-own-clock", "kept-is-handed-over", "force-takes-any",
        "danger-repeated", "danger-unnoticed", "release-all-of-anyone",
    }  # fmt: skip
    simulated_only |= {made.__name__.replace("_", "-") for made in (*OF_HINTS, *OF_ONCE)}
    assert {case.broken for case in BREAKS} == BROKEN.keys() - simulated_only
