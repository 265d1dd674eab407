"""The whole library in virtual time: schedules without a violation, the same each time, and broken ones caught."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dev.chaos.broken import broken
from dev.simulation.__main__ import main
from dev.simulation.explore import Choices, explore
from dev.simulation.explore import play as play_small
from dev.simulation.picture import draw
from dev.simulation.schedule import kind_of, play, shrink

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_schedules_have_no_violation(first: int) -> None:
    for seed in range(first, first + 20):
        assert play(seed).violation is None


def test_schedule_is_the_same_in_another_process_with_other_hashes() -> None:
    code = "from dev.simulation.schedule import play; print(*play(7, keep_trace=True).trace, sep='\\n')"
    traces = []
    for hashes in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=env,
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        traces.append(done.stdout)
    assert traces[0] == traces[1]
    assert len(traces[0].splitlines()) > 100


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("release-by-key", 30),
        ("token-per-client", 20),
        ("no-guard", 50),
        ("counter-reset", 20),
        ("early-taker", 50),
        ("renewal-revives", 50),
        ("force-breaks-any", 50),
        ("held-is-a-flag", 50),
    ],
)
def test_broken_library_is_caught_within_few_schedules(name: str, most: int) -> None:
    with broken(name):
        assert any(play(seed).violation for seed in range(most))


@pytest.mark.parametrize("name", ["no-own-token", "guard-by-token"])
def test_broken_library_is_caught_in_a_small_world_with_one_fault(name: str) -> None:
    with broken(name):
        assert explore(1).violation is not None


def test_small_world_without_faults_has_no_violation() -> None:
    explored = explore(0)
    assert explored.violation is None
    assert explored.worlds > 50


def test_violation_of_a_small_world_is_found_again_by_its_choices() -> None:
    with broken("no-own-token"):
        found = explore(1)
        violation, trace = play_small(Choices(found.path), 1, set(), keep_trace=True)
    assert violation == found.violation
    assert "p1.client" in trace[1]


def test_schedule_with_a_violation_is_shrunk_to_one_of_the_same_kind() -> None:
    with broken("release-by-key"):
        seed, played = next((s, p) for s in range(30) if (p := play(s)).violation)
        smaller, size = shrink(seed, played.size, played.violation)
        again = play(smaller, size)
    assert kind_of(again.violation) == kind_of(played.violation)
    assert size.processes <= played.size.processes
    assert size != played.size


def test_picture_shows_a_schedule(tmp_path: Path) -> None:
    draw(play(12, keep_trace=True), str(tmp_path / "schedule.png"))
    assert (tmp_path / "schedule.png").read_bytes().startswith(b"\x89PNG")


def test_command_prints_a_smaller_schedule_for_each_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--seed", "0", "--schedules", "30"])
    with broken("release-by-key"):
        assert main() == 1
    lines = capsys.readouterr().out.splitlines()
    again = next(line for line in lines if line.startswith("smaller: "))
    _, seed, _, size = shlex.split(again.partition("--trace ")[2])
    monkeypatch.setattr(sys, "argv", ["simulation", "--trace", "--seed", seed, "--size", size])
    with broken("release-by-key"):
        assert main() == 1
    monkeypatch.setattr(sys, "argv", ["simulation", "--trace", "--seed", seed, "--size", size])
    assert main() == 0
