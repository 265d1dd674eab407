"""The examples keep what they promise: each checks itself, run as a user would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8"))

by_processes = pytest.mark.skipif(os.name == "nt", reason="they stop and kill processes by signals")


def output_of(path, folder):
    """Run a program in an empty folder, which it leaves empty, and return what it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=500,
    )
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
