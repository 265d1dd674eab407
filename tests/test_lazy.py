"""What is loaded at first contention alone: by Ctrl-C and forks in the middle of it, all goes on."""

from __future__ import annotations

import subprocess
import sys

SLOW = """
import os, signal, sys, threading, time
import pynamodb_mutex
from pynamodb_mutex._lazy import load_tenacity

class Slow:
    "Makes the import of tenacity take a while, in the middle of it."
    def find_spec(self, name, path=None, target=None):
        if name == "tenacity.wait":
            under_way.set()
            time.sleep(0.5)

under_way = threading.Event()
sys.meta_path.insert(0, Slow())
assert "tenacity" not in sys.modules
"""

INTERRUPTED = """
threading.Thread(
    target=lambda: (under_way.wait(), os.kill(os.getpid(), signal.SIGINT)), daemon=True
).start()
try:
    load_tenacity()
except KeyboardInterrupt:
    print("interrupted")
load_tenacity()
import tenacity
assert tenacity.Retrying
"""

FORKED = """
threading.Thread(target=load_tenacity).start()
under_way.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    load_tenacity()
    import tenacity
    os._exit(0 if tenacity.Retrying else 1)
print("child ended with", os.waitpid(child, 0)[1])
"""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SLOW + script],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_ctrl_c_in_the_middle_leaves_it_whole() -> None:
    assert run(INTERRUPTED) == "interrupted"


def test_a_fork_in_the_middle_leaves_no_child_hanging() -> None:
    assert run(FORKED) == "child ended with 0"
