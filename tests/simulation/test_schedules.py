"""The whole library in virtual time: schedules without a violation, the same each time, and broken ones caught."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dev.chaos.broken import broken
from dev.simulation.schedule import play

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
        ("release-by-key", 20),
        ("token-per-client", 20),
        ("no-guard", 400),
        ("counter-reset", 20),
        ("wall-clock", 200),
        ("early-taker", 50),
    ],
)
def test_broken_library_is_caught_within_few_schedules(name: str, most: int) -> None:
    with broken(name):
        assert any(play(seed).violation for seed in range(most))
