"""The chaos harness around its checker: falsified clocks, histories, pictures, the page; and whole runs."""

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
from stores import store_for
from test_chaos_checker import FACTS, two_believers, two_tenures
from test_peers import figures

from dev.chaos import __main__ as command
from dev.chaos import page
from dev.chaos.broken import BROKEN, broken
from dev.chaos.checker import check
from dev.chaos.figures import DEEDS
from dev.chaos.history import SECOND, Recorder, read
from dev.chaos.network import _addressed, faults
from dev.chaos.scenarios import CASES, judged
from dev.chaos.scenarios import scene as stage_of
from dev.chaos.shim import Shim
from dev.chaos.timeline import draw
from dev.faultproxy import deny
from pynamodb_mutex import Mutex
from pynamodb_mutex._runtime.process import current_process

# -- its parts ------------------------------------------------------------------------------------

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
        clock.stand_still(1000.0)
        clock.step_wall(3600.0)
        began = time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        wall, local, boot, true = map(float, process.stdout.readline().split())
        # a wait by the clock that stands still would last for a quarter of an hour
        assert 0.39 < time.monotonic() - began < 500
    moved = [clock - true for clock in (wall, local, boot)]
    assert moved == pytest.approx([2600.0, -1000.0, -1000.0], abs=1.0)


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
    report = check(history.events, FACTS)
    assert draw(history.events, report, tmp_path / "it.png").stat().st_size > 10_000
    assert abs(report.violations[0].t - history.t) < 4 * SECOND


def test_renewals_in_a_batch_are_followed_row_by_row(table):
    with Mutex.for_key('where "key" = ?', model=table) as mutex:
        hold = mutex._latest
        values = hold.propose_renewal().values
        statement = store_for(table).requests.renew_in_batch.fill(hold.options.row, values)
        addressed = {"TableName": table.Meta.table_name, "Key": hold.options.row}
        assert _addressed(statement) == addressed


def test_made_up_answer_has_the_date_of_its_own_second(scene):
    # a fault may stand for a whole run: the Date of its beginning would put a new process's server time back
    scene.proxy.next(deny())
    time.sleep(30)
    with pytest.raises(PynamoDBException):
        scene.mutex().acquire()
    store = current_process().store(scene.here)
    assert store.server_now(store.connection._now()) == pytest.approx(time.time(), abs=1.5)


# -- the page -------------------------------------------------------------------------------------


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
    (out / "peers.json").write_text(json.dumps(figures(takeovers=[5.0])))
    text = shown()
    assert "all as &lt;expected&gt;" in text
    assert "median 5.00 s, max 5.00 s, n 1" in text
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


# -- runs -----------------------------------------------------------------------------------------


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
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.broken)
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
        # of the order of waiters, which the trial does not judge
        "join-compares-lists", "take-leaves-the-dead", "release-undated", "skip-by-old-date",
        "impatient", "place-kept", "leave-trusts-a-read",
    }  # fmt: skip
    assert {case.broken for case in CASES} == BROKEN.keys() - simulated_only
