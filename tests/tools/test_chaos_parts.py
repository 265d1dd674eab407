"""The parts of the chaos harness: falsified clocks, the picture, a whole run."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pynamodb.exceptions import PynamoDBException
from scene import Scene
from test_chaos_checker import FACTS, two_believers

from dev.chaos.__main__ import main
from dev.chaos.checker import check
from dev.chaos.history import SECOND, Recorder, read
from dev.chaos.shim import Shim
from dev.chaos.timeline import draw
from dev.faultproxy import deny
from pynamodb_mutex._runtime.process import current_process

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
def test_clocks_are_moved_and_waits_are_right(tmp_path: Path) -> None:
    clock = Shim.build(tmp_path).clock("c0")
    process = subprocess.Popen(
        [sys.executable, "-c", CLOCKS], env=os.environ | clock.environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "ready\n"
        clock.stand_still(100.0)
        clock.step_wall(3600.0)
        began = time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        wall, local, boot, true = map(float, process.stdout.readline().split())
        took = time.monotonic() - began
    assert 0.39 < took < 20
    assert wall - true == pytest.approx(3500.0, abs=1.0)
    assert local - true == pytest.approx(-100.0, abs=1.0)
    assert boot - true == pytest.approx(-100.0, abs=1.0)


def test_without_a_compiler_clocks_are_left_alone(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", "")
    assert Shim.build(tmp_path) is None
    assert "no gcc" in capsys.readouterr().out


def test_history_survives_a_line_cut_short(tmp_path: Path) -> None:
    record = Recorder(tmp_path / "c0.jsonl", "c0")
    record("start", pid=1)
    record.close()
    with record.path.open("a") as file:
        file.write('{"t": 1, "pro')
    assert [event["op"] for event in read(tmp_path)] == ["start"]


def test_picture_is_drawn(tmp_path: Path) -> None:
    history = two_believers(still=False)
    history.add("stop_client", "run", client="c0")
    history.add("resume", "run", client="c0", still=False)
    history.add("kill", "run", client="c0", last=False)
    history.wire("c1", "update", history.row("rows", "r0", token="x"), fault="late")
    report = check(history.events, FACTS)
    assert draw(history.events, report, tmp_path / "it.png").stat().st_size > 10_000
    assert abs(report.violations[0].t - history.t) < 4 * SECOND


@pytest.mark.timeout(1200)
@pytest.mark.lengthy
def test_a_run_of_a_broken_library_leaves_its_history_and_a_picture(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "kept"
    status = main([
        "--seed", "6", "--seconds", "6", "--calm", "--break", "counter-reset", "--keep", str(folder)
    ])  # fmt: skip
    said = capsys.readouterr().out
    assert status == 1, said
    assert "P3  VIOLATED" in said
    assert "seed 6; history in" in said
    assert (folder / "timeline.png").exists()


def test_renewals_in_a_batch_are_followed_row_by_row(table) -> None:
    from stores import store_for

    from dev.chaos.network import _addressed
    from pynamodb_mutex import Mutex

    with Mutex.for_key('where "key" = ?', model=table) as mutex:
        hold = mutex._latest
        values = hold.propose_renewal().values
        statement = store_for(table).requests.renew_in_batch.fill(hold.options.row, values)
        addressed = {"TableName": table.Meta.table_name, "Key": hold.options.row}
        assert _addressed(statement) == addressed


def test_made_up_answer_has_the_date_of_its_own_second(scene: Scene) -> None:
    # a fault may stand for a whole run: the Date of its beginning would put a new process's server time back
    scene.proxy.next(deny())
    time.sleep(30)
    with pytest.raises(PynamoDBException):
        scene.mutex().acquire()
    store = current_process().store(scene.here)
    assert store.server_now(store.connection._now()) == pytest.approx(time.time(), abs=1.5)
