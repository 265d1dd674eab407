#!/usr/bin/env python3
"""Check the formal models of the protocol with Spin, and the variants that must violate a property.

Each line of `RUNS` is one run: a model and a variant, its macros, and the numbers of the properties of which one must
be violated; without numbers, all must hold. The macros and the numbers are explained in ``claim.pml`` and ``time.pml``.
This needs only Python, spin and gcc, and builds in a temporary folder.
"""

from __future__ import annotations

import argparse
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
        small: Whether ``--small`` includes it.
    """

    model: str
    variant: str
    macros: str = ""
    violates: tuple[int, ...] = ()
    small: bool = True


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


def claim(variant: str, macros: str = "", *violates: int) -> Run:
    """Return a run of the model of claims and writes."""
    return Run("claim", variant, macros, violates)


def timed(variant: str, macros: str = "", *violates: int, small: bool = True) -> Run:
    """Return a run of the model of leases and time."""
    return Run("time", variant, macros, violates, small)


FREEZE = "FREEZE=1 PINGS=1 LEASE=1 RENEWS=0 DELAY=1"

RUNS = [
    claim("the design", "FAULTS=1"),
    claim("the design, no renewals, two faults", "FAULTS=2 RENEWS=0"),
    claim("the design, a force release", "FAULTS=1 FORCES=1 WRITES=0"),
    claim("the design, a save without the lock", "FAULTS=1 PUTS=1 WRITES=0"),
    claim("the design, a write or release that lands twice", "FAULTS=1 TWICE=1 RENEWS=0"),
    claim("a guarded write asks for nothing", "WR_MINE=0 WR_EXISTS=0 WR_NUMBER=0", 20),
    claim("a guarded write does not ask for its number", "WR_NUMBER=0", 20),
    claim("a guarded write does not ask for a claim", "WR_EXISTS=0 FAULTS=2 RENEWS=0", 20),
    claim("a guarded write asks for the number alone", "WR_MINE=0", 20),
    claim("a guarded write asks for the token, not for the version", "WR_MINE=1 ROUNDS=2", 20),
    claim("the number is the known one + 1", "WR_FRESH=0 WRITES=2 FAULTS=2", 21),
    claim("no own-result rule for writes", "WR_OWN=0", 20, 21),
    claim("another own number counts as lost", "WR_RENUMBER=0 FAULTS=2", 23),
    claim("refused by another's write counts as not applied", "WR_UNKNOWN=0", 21),
    claim("an acquire resets the number of the last write", "WR_KEPT=0", 21),
    claim("a save may move the end back", "SAVE_LATER=0", 40),
    claim("a save that met a later renewal counts as lost", "SAVE_AGAIN=0", 23),
    claim("a renewal may move the end back", "REN_LATER=0", 40, 41),
    claim("a renewal that met a later one counts as lost", "REN_OWN=0", 23),
    claim("a renewal asks for the token, not for the version", "REN_MINE=1", 41),
    claim("a renewal asks for neither", "REN_MINE=0", 50),
    claim("an acquire does not ask for another token", "ACQ_NEW=0", 42),
    claim("no own-result rule for acquires", "ACQ_OWN=0", 43),
    claim("a release asks for nothing", "REL_MINE=0", 50),
    claim("a release removes the token", "REL_KEEP=0", 42),
    claim("a release deletes the row, and the version starts anew", "REL_VERSION=0 FAULTS=0", 30),
    claim("a first release that is refused counts as released", "REL_FIRST=0 FORCES=1", 22),
    claim("a release ignores that a copy of it was applied", "REL_SHOWN=0 TWICE=1 RENEWS=0", 23),
    claim("a release does not read who broke the claim", "REL_FORCED=0 FORCES=1", 22),
    claim("force keeps the token", "FORCE_TOKEN=0 FORCES=1", 22),
    claim("force keeps the version", "FORCE_VERSION=0 FORCES=1", 22),
    claim("force breaks what it finds", "FORCE_SEEN=0 FORCES=1", 50),
    claim("a save without the lock may lower the version", "PUT_BELOW=0 PUTS=1", 30),
    timed("the design", "RENEWS=0 TMAX=6"),
    timed("nobody sees a Date, no watch grace", "BLIND=3 WGRACE=0 TMAX=8"),
    timed("the holder sees no Date", "BLIND=1 RENEWS=0 TMAX=8"),
    timed("the taker uses its upper bound", "TAKE=2 RENEWS=0", 10),
    timed("the lease counts from the answer", "FROM=3 BLIND=3 WGRACE=0 TMAX=8", 10),
    timed(
        "the lease counts from the last send",
        "FROM=2 BLIND=3 WGRACE=0 TMAX=8 FAULTS=1 RENEWS=0",
        10,
    ),
    timed("watched from before the read was sent", "WATCH=2 BLIND=3 WGRACE=0 TMAX=8", 10),
    timed("the token alone is watched", "WATCH_END=0 BLIND=3 TMAX=8", 10),
    timed("a renewal may leave the end equal", "LATER=2 BUMP=0 BLIND=3 TMAX=8", 10),
    timed(
        "a renewal may move the end back",
        "LATER=0 FAULTS=1 BLIND=3 RENEWS=2 TMAX=6 DELAY=1",
        40,
    ),
    timed("hosts disagree, the taker keeps a margin", "SKEW=1 LEASE=1 RENEWS=0 TMAX=6 DELAY=1"),
    timed("the same, no margin", "SKEW=1 MARGIN=0 LEASE=1 RENEWS=0 TMAX=6 DELAY=1", 10),
    timed("a dead holder's lock is free after the bound", "DEATH=1 BUMP=2"),
    timed("the same, a tick earlier", "DEATH=1 BUMP=2 BOUND=3", 70),
    timed("a client freezes (few ticks)", f"{FREEZE} TMAX=5", small=False),
    timed("the end in server time not looked at", f"{FREEZE} TMAX=6 REACH=0", 10, 11),
    timed("upper bound the lowest of all", f"{FREEZE} TMAX=6 UPPER=3", 10, 11, small=False),
    timed("a client freezes", f"{FREEZE} TMAX=6", small=False),
    timed(
        "an answer about another row, watch grace of zero",
        f"{FREEZE.replace('FREEZE=1', 'FREEZE=2')} TMAX=6 WGRACE=0 CAP=0",
        10,
        11,
        small=False,
    ),
    timed("the design, with renewals", "TMAX=7 DELAY=1", small=False),
]


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
        return 0 if args.small and not os.environ.get("PYNAMODB_MUTEX_REQUIRE_SPIN") else 1
    surprises = 0
    for run in RUNS:
        if (args.small and not run.small) or not re.search(args.only, f"{run.model} {run.variant}"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = check(run, Path(folder), args.limit, quick=run.small)
        expected = result.violated in (run.violates or (0,))
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
