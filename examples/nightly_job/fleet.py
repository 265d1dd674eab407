"""Two machines run the nightly job at the same time, and a third comes late.

    pip install 'pynamodb-mutex[cli,testing]'
    python examples/nightly_job/fleet.py

It runs on an embedded DynamoDB; the machines are processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from report import Job

from pynamodb_mutex import LockItem
from pynamodb_mutex.testing import embedded_dynamodb, use


def machine(day: str) -> subprocess.Popen[str]:
    scripts = Path(sys.executable).parent
    return subprocess.Popen(
        [Path(__file__).with_name("nightly.sh"), day],
        env=os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def show(name: str, process: subprocess.Popen[str]) -> None:
    output = process.communicate()[0]
    for line in output.splitlines():
        print(f"{name}: {line}")
    print(f"{name}: exit code {process.returncode}")


def main() -> None:
    with embedded_dynamodb() as engine, use(engine):
        LockItem.create_table()
        Job.create_table(wait=True)
        fleet = {f"machine {n}": machine("2026-11-22") for n in (1, 2)}
        for name, process in fleet.items():
            show(name, process)
        show("machine 3, late", machine("2026-11-22"))


if __name__ == "__main__":
    main()
