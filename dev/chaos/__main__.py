"""Command line of the trial: makes runs, judges them and prints the verdicts. `dev.chaos` describes the whole."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import dev.chaos
from dev.chaos.checker import check
from dev.chaos.history import Event, read
from dev.chaos.injector import LockRun
from dev.chaos.run import Options
from dev.chaos.verdicts import Report, in_all
from pynamodb_mutex.testing import why_no_dynamodb_local

ENGINES = ("embedded", "local")


def main(arguments: list[str] | None = None) -> int:
    """Make the runs, judge them and print the verdicts; return 1 if a property was violated."""
    parser = argparse.ArgumentParser("dev.chaos", description=dev.chaos.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1, help="with this seed and those after it")
    parser.add_argument("--seconds", type=float, default=30.0, help="before the quiet at the end")
    parser.add_argument("--engine", choices=("both", *ENGINES), default="both", help="by turns")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--lease", type=float, default=1.5)
    parser.add_argument("--faults", type=float, default=0.08, help="share of requests")
    parser.add_argument(
        "--calm", action="store_true", help="no faults, no fault injection to processes"
    )
    parser.add_argument("--break", dest="broken", help="break the library in this way")
    parser.add_argument("--keep", type=Path, help="folder for the histories")
    options = parser.parse_args(arguments)
    reports = []
    engines = chosen_engines(options.engine)
    for seed in range(options.seed, options.seed + options.runs):
        asked = Options(
            seed=seed, seconds=options.seconds, engine=engines[seed % len(engines)], clients=options.clients,
            lease=options.lease, faults=0.0 if options.calm else options.faults,
            injector=not options.calm, broken=options.broken,
        )  # fmt: skip
        keep = options.keep
        reports.append(_run(asked, keep and (keep / str(seed) if options.runs > 1 else keep)))
    whole = in_all(reports)
    if len(reports) > 1:
        print("\n".join(["", f"all {len(reports)} runs", *whole.lines()]))
    return 1 if whole.violations else 0


def chosen_engines(engine: str) -> tuple[str, ...]:
    """Return the engines to run on; "both" leaves DynamoDB Local out where it is not available, and prints why."""
    if engine != "both":
        return (engine,)
    reason = why_no_dynamodb_local()
    if reason is None or os.environ.get("PYNAMODB_MUTEX_REQUIRE_LOCAL"):
        return ENGINES
    print(f"on the embedded engine alone: {reason}")
    return ENGINES[:1]


def _run(asked: Options, keep: Path | None) -> Report:
    """Make and judge one run; its files are kept if a folder was given, or if a property was violated."""
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    folder = keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    for old in folder.glob("*.jsonl"):
        old.unlink()
    facts = LockRun(asked, folder)()
    events = read(folder)
    report = check(events, facts)
    text = "\n".join(report.lines())
    (folder / "report.txt").write_text(text + "\n")
    print(text)
    if report.violations:
        print(f"seed {asked.seed}; history in {folder}")
        _picture(folder, events, report)
    elif keep is None:
        shutil.rmtree(folder)
    return report


def _picture(folder: Path, events: list[Event], report: Report) -> None:
    """Draw the first violation, if matplotlib is installed."""
    try:
        from dev.chaos.timeline import draw
    except ImportError as missing:
        print(f"no picture: {missing}")
        return
    print(f"timeline in {draw(events, report, folder / 'timeline.png')}")


if __name__ == "__main__":
    sys.exit(main())
