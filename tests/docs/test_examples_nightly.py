"""The example of a nightly job does what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("moto")

FLEET = Path(__file__).parents[2] / "examples" / "nightly_job" / "fleet.py"
pytestmark = [
    pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="sends signals"),
]


def test_the_report_is_made_once():
    done = subprocess.run(
        [sys.executable, FLEET], capture_output=True, check=True, text=True, timeout=100
    )
    lines = done.stdout.splitlines()
    (made,) = (line for line in lines if "made the report of 2026-11-22" in line)
    assert made.startswith(("machine 1: ", "machine 2: "))
    assert "machine 3, late: the report of 2026-11-22 was made already" in lines
    assert len([line for line in lines if line.endswith("exit code 0")]) == 3
