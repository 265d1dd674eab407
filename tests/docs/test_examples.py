"""The examples keep what they promise: each checks itself, run as a user would run it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path for path in FOLDER.glob("*.py") if "__main__" in path.read_text("utf-8"))


@pytest.mark.skipif(os.name == "nt", reason="they stop and kill processes by signals")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_keeps_its_promise(path, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_example_is_listed():
    listed = (FOLDER / "README.rst").read_text("utf-8")
    assert EXAMPLES
    for path in EXAMPLES:
        assert f"\n``{path.name}``" in listed
