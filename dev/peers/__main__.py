"""The command line: runs each library, judges its history, and prints a table. See the package."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import dev.peers
from dev.chaos.history import Event, read
from dev.peers import JAVA, LIBRARIES, java
from dev.peers.judge import hand_overs, judge, newcomers, takeovers
from dev.peers.run import PeerOptions, PeerRun
from dev.peers.table import lines


def main(arguments: list[str] | None = None) -> None:
    """Run and judge each library, print a table, and write the figures and the picture."""
    parser = argparse.ArgumentParser("dev.peers", description=dev.peers.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--runs", type=int, default=1, help="attacks, with this seed and those after it"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of each attack")
    parser.add_argument("--kills", type=int, default=5, help="of holders, in the calm")
    parser.add_argument("--engine", choices=("embedded", "local"), default="embedded")
    parser.add_argument(
        "--only", choices=list(LIBRARIES), action="append", help="one library, or several"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="of the environment with the peers"
    )
    parser.add_argument("--keep", type=Path, help="folder for the histories")
    parser.add_argument(
        "--out", type=Path, default=Path("build/peers"), help="folder for the figures"
    )
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {
        "engine": options.engine, "lease": PeerOptions.lease, "seconds": options.seconds,
        "seeds": list(range(options.seed, options.seed + options.runs)), "libraries": {},
    }  # fmt: skip
    for library in options.only or LIBRARIES:
        reason = java.why_not() if library == JAVA else None
        if reason:
            print(f"{library} is left out: {reason}")
            continue
        figures["libraries"][library] = _tried(library, options, figures["seeds"])
        (options.out / "peers.json").write_text(json.dumps(figures, indent=1) + "\n")
        (options.out / "peers.txt").write_text("\n".join(lines(figures)) + "\n")
    print("\n".join(lines(figures)))
    if options.kills:
        _picture(figures, options.out / "peers.png")


def _tried(library: str, options: argparse.Namespace, seeds: list[int]) -> dict[str, Any]:
    """Inject faults into clients of a library, then kill holders without other faults; return the figures of both."""
    classes = java.build(options.out / "classes") if library == JAVA else ""
    common = {
        "library": library, "python": options.python, "engine": options.engine, "classes": classes,
    }  # fmt: skip
    lease, version = PeerOptions.lease, ""
    attacks = []
    for seed in seeds if options.seconds else []:
        asked = PeerOptions(seed=seed, seconds=options.seconds, **common)
        events = _history(asked, options.keep and options.keep / f"{library}-{seed}")
        version = _version(events)
        attacks.append(judge(events, lease))
        print(f"{library} {version}, seed {seed}: {attacks[-1]}")
    calm = {}
    if options.kills:
        asked = PeerOptions(seed=seeds[0], seconds=0, faults=0.0, kills=options.kills, **common)
        events = _history(asked, options.keep and options.keep / f"{library}-calm")
        version = _version(events)
        calm = judge(events, lease) | {
            "takeovers": takeovers(events), "hand_overs": hand_overs(events),
        }  # fmt: skip
        alone = replace(asked, clients=1)
        events = _history(alone, options.keep and options.keep / f"{library}-alone")
        calm["newcomers"] = newcomers(events)
        print(f"{library} {version}, calm: {calm}")
    return {"version": version, "attacks": attacks, "calm": calm}


def _history(asked: PeerOptions, keep: Path | None) -> list[Event]:
    """Make a run and return its history, which stays in a folder if one is given."""
    folder = keep or Path(tempfile.mkdtemp(prefix="peers-"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.jsonl"):
        old.unlink()
    PeerRun(asked, folder)()
    events = read(folder)
    if keep is None:
        shutil.rmtree(folder)
    return events


def _version(events: list[Event]) -> str:
    """Return the version of the library that a run has used."""
    return str(next(event["version"] for event in events if event["op"] == "start"))


def _picture(figures: dict[str, Any], path: Path) -> None:
    """Draw the picture, if matplotlib is installed."""
    try:
        from dev.peers.picture import draw
    except ImportError as missing:
        print(f"no picture: {missing}")
        return
    print(f"figures in {path.with_suffix('.json')}, picture in {draw(figures, path)}")


if __name__ == "__main__":
    main()
