"""Run the demo: ``python -m pynamodb_mutex.demo``."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex.demo.director import Options
    from pynamodb_mutex.demo.story import Story

MOST_WORKERS = 12

_NEEDED = ("rich", "matplotlib", "blinker", "moto", "flask", "flask_cors", "waitress")

PROGRAM = "python -m pynamodb_mutex.demo"


def options(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Processes compete for one lock; one of them is killed and another one "
        "stopped while it holds it. The terminal shows it live, a picture afterwards.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    from pynamodb_mutex.demo.director import Options  # noqa: PLC0415 - slow to load

    add = parser.add_argument
    add("--seconds", type=float, default=Options.seconds, help="length of the show")
    add("--workers", type=int, default=Options.workers, help="processes that compete")
    add("--lease", type=float, default=Options.lease, help="seconds a lock outlives its holder")
    add("--seed", type=int, default=Options.seed, help="of the workers' random numbers")
    add("--out", type=Path, default=Options.out, metavar="PICTURE", help="PNG to write")
    add("--plain", action="store_true", help="print lines; also where there is no terminal")
    chosen = Options(**vars(parser.parse_args(arguments)))
    if not 2 <= chosen.workers <= MOST_WORKERS:  # noqa: PLR2004 - one has nobody to compete with
        parser.error(f"--workers: 2 to {MOST_WORKERS}")
    if not 0.5 <= chosen.lease <= 10:  # noqa: PLR2004 - the library's shortest; and nobody waits longer
        parser.error("--lease: 0.5 to 10")
    if not chosen.seconds >= chosen.shortest:
        parser.error(f"--seconds: at least {chosen.shortest:g} with this lease")
    if not chosen.out.absolute().parent.is_dir():
        parser.error(f"--out: there is no directory {chosen.out.parent}")
    return chosen


def main(arguments: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run the demo.

    Args:
        arguments: Of the command line; this process's by default.
        program: What they follow.

    Returns:
        0, or 1 if something promised did not happen, or the extra is not installed.
    """
    chosen = options(arguments, program)
    lacking = _lacking()
    if lacking is not None:
        print(f"Error: the demo needs {lacking}", file=sys.stderr)
        return 1
    from pynamodb_mutex.demo import chart, director  # noqa: PLC0415 - imports need the extra

    try:
        story = _play(chosen)
    except KeyboardInterrupt:
        print("\ninterrupted; all processes are ended")
        return 130
    except director.ShowError as error:
        print(error, file=sys.stderr)
        return 1
    chart.save(story, chosen)
    return _report(story, chosen.out)


def _lacking() -> str | None:
    """Return what is missing here, and how to get it."""
    if not hasattr(signal, "SIGSTOP"):
        return "a POSIX system: it stops and resumes processes"
    missing = [name for name in _NEEDED if not importlib.util.find_spec(name)]
    return f"{' and '.join(missing)}: pip install 'pynamodb-mutex[demo]'" if missing else None


def _play(chosen: Options) -> Story:
    from rich.console import Console  # noqa: PLC0415 - imports need the extra

    from pynamodb_mutex.demo import director, screen  # noqa: PLC0415 - imports need the extra

    if chosen.plain or not sys.stdout.isatty():
        return director.play(chosen, screen.plain())
    with screen.live(Console(), chosen.seconds) as watch:
        return director.play(chosen, watch)


def _report(story: Story, picture: Path) -> int:
    from pynamodb_mutex.demo import summary  # noqa: PLC0415 - imports need the extra

    print()
    for name, value in [*summary.table(story), ("picture", str(picture))]:
        print(f"{name + ':':24}{value}")
    failures = summary.failures(story)
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
