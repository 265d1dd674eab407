"""Command line of the trial: makes a run and prints what it found. `dev.chaos` describes the whole."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import dev.chaos
from dev.broken import BROKEN, NOT_OF_THE_TRIAL
from dev.chaos.history import figures, problems, read
from dev.chaos.run import Run
from dev.dynamodb_local import dynamodb_local
from pynamodb_mutex.testing import Engine, embedded_dynamodb, use

PORCUPINE = Path(__file__).with_name("porcupine")

ENGINES = {"embedded": embedded_dynamodb, "local": dynamodb_local}


def main(arguments: list[str] | None = None) -> int:
    """Make and judge a run; return 1 if something is wrong."""
    options = parsed(arguments)
    with ENGINES[options.engine]() as engine, use(engine):
        return trial(options, engine, f"chaos-{options.seed}-{os.getpid()}")


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line, by default of this process's."""
    parser = argparse.ArgumentParser("dev.chaos", description=dev.chaos.__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=30.0, help="before the quiet at the end")
    parser.add_argument("--engine", choices=ENGINES, default="embedded")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--lease", type=float, default=1.5)
    parser.add_argument("--faults", type=float, default=0.08, help="share of requests")
    parser.add_argument("--calm", action="store_true", help="no faults")
    parser.add_argument(
        "--break",
        dest="broken",
        choices=sorted(BROKEN.keys() - NOT_OF_THE_TRIAL),
        help="break the library in this way",
    )
    parser.add_argument("--keep", type=Path, help="folder for the history")
    return parser.parse_args(arguments)


def trial(options: argparse.Namespace, engine: Engine, prefix: str) -> int:
    """Make and judge a run in tables of a prefix; return 1 if something is wrong. Its files are kept then, or if a folder is given."""
    folder = options.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.jsonl"), *folder.glob("*.html")):
        old.unlink()
    Run(options, folder, prefix)(engine)
    events = read(folder)
    wrong = problems(events)
    print("\n".join([f"seed {options.seed}, {engine.name}", *figures(events), *wrong]))
    if not judged([folder]) or wrong:
        print(f"FAILED: the history is in {folder}")
        return 1
    if options.keep is None:
        shutil.rmtree(folder)
    return 0


def judged(folders: list[Path]) -> bool:
    """Let Porcupine judge histories, and print what it says; return False if one is not linearizable.

    Without Go none is judged, and the result is False if the environment requires the tools.
    """
    if shutil.which("go") is None:
        print("NOT JUDGED: there is no Go, in which Porcupine is written")
        return not os.environ.get("PYNAMODB_MUTEX_REQUIRE_TOOLS")
    command = ["go", "run", ".", *(str(folder.resolve()) for folder in folders)]
    done = subprocess.run(command, cwd=PORCUPINE, capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr, end="")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
