#!/usr/bin/env python3
"""Check the formal models of the protocol with Spin, and the variants that must violate a property.

Each line of ``runs.csv`` is one run: a model and a variant, its macros, and the numbers of the properties of which one must
be violated; without numbers, all must hold. The macros and the numbers are explained in ``claim.pml`` and ``time.pml``.
This needs only Python, spin and gcc, and builds in a temporary folder.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
MEMORY = 6000
"""Most memory that one run may use, in megabytes."""

DEPTH = 200_000
"""Largest depth of the search, in steps."""


class Run(NamedTuple):
    """One run of a model.

    Attributes:
        model: File name of the model, without its ending.
        variant: Description of the variant, for people.
        macros: Definitions of macros, as in ``"FAULTS=2 REN_LATER=0"``.
        violates: Numbers of the properties of which one must be violated; empty if all must hold.
        size: Whether the search is small, as those are that ``--small`` makes, or large.
    """

    model: str
    variant: str
    macros: str
    violates: str
    size: str


class Result(NamedTuple):
    """The result of a run.

    Attributes:
        violated: Number of the property that was violated; 0 if all held; None if there is no result.
        states: Number of states that were stored.
        seconds: Duration of the search, without the compiler.
        trouble: Why there is no result; else empty.
    """

    violated: int | None
    states: int
    seconds: float
    trouble: str = ""


def check(run: Run, folder: Path, limit: float, *, quick: bool) -> Result:
    """Build and run a model.

    Args:
        run: The run.
        folder: The folder for generated files.
        limit: Longest duration of the search, in seconds.
        quick: Whether to spend less on the compiler and on memory, for a small search.
    """
    macros = [f"-D{macro}" for macro in run.macros.split()]
    flags = ["-O0" if quick else "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-DNOFAIR"]
    for command in (
        ["spin", "-a", *macros, str(HERE / f"{run.model}.pml")],
        ["gcc", *flags, f"-DMEMLIM={MEMORY}", "-o", "pan", "pan.c"],
    ):
        built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if built.returncode:
            return Result(None, 0, 0.0, f"{command[0]}: {built.stdout}{built.stderr}")
    started = time.monotonic()
    try:
        pan = subprocess.run(
            ["./pan", "-E", f"-m{DEPTH}", "-w20" if quick else "-w24"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return Result(None, 0, time.monotonic() - started, f"no result within {limit:.0f} s")
    seconds = time.monotonic() - started
    out = pan.stdout + pan.stderr
    found = re.search(r"(\d+) states, stored", out)
    states = int(found[1]) if found else 0
    property_ = re.search(r"assertion violated .*\|\|\((\d+)==0\)", out)
    if property_:
        return Result(int(property_[1]), states, seconds)
    whole = not re.search(r"out of memory|reached -DMEMLIM|too small|Search not completed", out)
    if whole and re.search(r"errors: 0\n", out):
        return Result(0, states, seconds)
    return Result(None, states, seconds, out)


def verdict(violated: int | None) -> str:
    """Return the verdict in words for the number of a violated property."""
    if violated is None:
        return "no result"
    return f"violated ({violated})" if violated else "holds"


def main() -> int:
    """Run the models; return 1 if a result is not as expected."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="small sizes: about a minute")
    parser.add_argument("--only", default="", help="only runs whose model and variant match this")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for each search")
    args = parser.parse_args()
    missing = [tool for tool in ("spin", "gcc") if shutil.which(tool) is None]
    if missing:
        print(
            f"models left out: no {' and no '.join(missing)} (apt-get install {' '.join(missing)})"
        )
        return 0 if args.small and not os.environ.get("PYNAMODB_MUTEX_REQUIRE_TOOLS") else 1
    surprises = 0
    with (HERE / "runs.csv").open(encoding="utf-8") as lines:
        runs = [Run(**row) for row in csv.DictReader(lines)]
    for run in runs:
        is_small = run.size == "small"
        if (args.small and not is_small) or not re.search(args.only, f"{run.model} {run.variant}"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = check(run, Path(folder), args.limit, quick=is_small)
        expected = str(result.violated) in (run.violates.split() or ["0"])
        surprises += not expected
        print(
            f"{'ok ' if expected else 'NOT AS EXPECTED'} {run.model:6}{run.variant:66}"
            f"{verdict(result.violated):15}{result.states:>12,} states {result.seconds:8.1f} s",
            flush=True,
        )
        if not expected:
            print(f"   macros: {run.macros}\n   {result.trouble}".rstrip(), flush=True)
    print(f"{surprises} not as expected" if surprises else "all as expected")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
