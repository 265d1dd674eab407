"""Writes the report page: which faults were injected, how often, what was violated and what was not tried.

    python -m dev.chaos.page build/proof build/proof/runs

Reads the histories of all runs below the given folders, judges them again, and writes ``report.html`` and its pictures
into the first folder. Results of `dev.peers` and of the models are shown too, if that folder has any.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dev.chaos.checker import check
from dev.chaos.figures import Counts
from dev.chaos.history import Event, outages, read
from dev.chaos.timeline import draw
from dev.chaos.verdicts import PROPERTIES, Report, in_all

_HERE = Path(__file__).parent
INJECTED = {
    "faults": {
        "partition": "lost, with all others of a client that was cut off",
        "drop_request": "lost",
        "drop_answer": "applied, the answer lost",
        "apply_then_500": "applied, and answered with 500",
        "server_error": "answered with 500, not applied",
        "throttle": "throttled",
        "deny": "refused for want of permission",
        "delay": "applied and answered only after a while",
        "delay_answer": "applied, and answered only after a while",
        "duplicate": "applied twice in a row",
        "late": "connection reset, and applied up to three leases later",
        "late_duplicate": "answered, and applied once more up to three leases later",
        "stall": "never answered, half of them applied",
    },
    "injector": {
        "stop_client": "process stopped for up to 3.5 leases",
        "stand_still": "the same, and its local clock stood still meanwhile",
        "step_wall": "wall clock set wrong by up to an hour",
        "kill": "process killed",
        "partition": "client cut off for up to 2.5 leases",
        "fork": "process forked while it held a lock, and its child tried to use it",
        "force": "claim broken by hand",
        "reap": "free or expired row deleted as by TTL, but early",
    },
}
"""Descriptions of the faults of requests, and of those of processes and rows."""


def main(arguments: list[str] | None = None) -> int:
    """Write the page; return 1 if a run violated a property, or if there was none."""
    parser = argparse.ArgumentParser("dev.chaos.page", description=__doc__)
    parser.add_argument("folder", type=Path, help="for the page")
    parser.add_argument("histories", type=Path, nargs="+", help="folders with runs, at any depth")
    options = parser.parse_args(arguments)
    runs = sorted({path.parent for each in options.histories for path in each.rglob("run.json")})
    if not runs:
        print("no runs found")
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    reports = [check(read(run), json.loads((run / "run.json").read_text())) for run in runs]
    # the first run with a violation, or else the first run
    shown = next((place for place, report in enumerate(reports) if report.violations), 0)
    _timeline(read(runs[shown]), reports[shown], options.folder)
    whole = in_all(reports)
    page = options.folder / "report.html"
    page.write_text(_rendered(whole, len(reports), options.folder))
    print("\n".join([f"{len(reports)} runs", *whole.lines(), f"report in {page}"]))
    return 1 if whole.violations else 0


def _timeline(events: list[Event], report: Report, folder: Path) -> None:
    """Draw the first violation; if there is none, the end of the longest outage of a client."""
    longest = max(outages(events), key=lambda outage: outage.until - outage.since, default=None)
    draw(events, report, folder / "timeline.png", around=longest and longest.until)


def _rendered(whole: Report, runs: int, folder: Path) -> str:
    """Return the page as HTML."""
    environment = Environment(
        loader=FileSystemLoader(_HERE), undefined=StrictUndefined, autoescape=True
    )
    versions = {name: version(name) for name in ("pynamodb-mutex", "pynamodb", "botocore")}
    peers, models = folder / "peers.txt", folder / "models.txt"
    return environment.get_template("page.html").render(
        whole=whole,
        runs=runs,
        properties=PROPERTIES,
        injected={name: _of(whole, name) for name in INJECTED},
        figures={name: str(v) for name, v in whole.figures.items() if name not in INJECTED},
        versions={"Python": platform.python_version(), **versions},
        peers=peers.read_text() if peers.exists() else None,
        peers_drawn=(folder / "peers.png").exists(),
        models=models.read_text() if models.exists() else None,
    )


def _of(whole: Report, name: str) -> list[tuple[str, int]]:
    """Return the faults of one kind, in words, with their numbers, the most frequent first."""
    counts: Any = whole.figures[name]
    assert isinstance(counts, Counts)
    return [(INJECTED[name][what], times) for what, times in counts.most_common()]


if __name__ == "__main__":
    raise SystemExit(main())
