"""The record: fresh schedules of each kind, and each broken variant in a few, on all cores.

``make record ARGS="--seed 1"`` writes the tables of ``docs/proof`` that have the outcome. At the same commit the same seed writes
the same tables.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from dev.broken import KIND, MEANING, broken
from dev.simulation.schedule import KINDS, Size, play

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor

PROOF = Path(__file__).parents[2] / "docs" / "proof"
"""Where the tables stand."""


def bite(name: str, seed: int, size: Size) -> str:
    """Return the violation of a broken variant in a schedule; empty if there is none, or the library has one as it is."""
    with broken(name):
        found = play(seed, size).violation
    return found.partition(": ")[2][:90] if found and not play(seed, size).violation else ""


def first_bite(name: str, seeds: range, size_of: Callable[[int], Size]) -> tuple[str, str]:
    """Return the number of the first schedule that shows a broken variant, from 1, and its violation; a dash for none."""
    found = ((str(number), bite(name, at, size_of(at))) for number, at in enumerate(seeds, 1))
    return next((each for each in found if each[1]), ("-", "not caught"))


def play_one(kind: str, seed: int) -> tuple[Counter[str], Counter[str]]:
    """Play a schedule; return its figures, and how often the judge asked each rule."""
    played = play(seed, Size.of(seed, kind))
    if played.violation:
        print(f"{kind}, seed {seed}: {played.violation}", flush=True)
    figures = {
        "Schedules": 1,
        "Requests": played.requests,
        "Acquisitions": played.acquisitions,
        "Seconds of requests": round(played.seconds),
        "Violations": int(played.violation is not None),
    }
    return Counter(figures), Counter(played.asked)


def play_all(pool: Executor, kind: str, seeds: range) -> tuple[Counter[str], Counter[str]]:
    """Play schedules; return their figures, and how often the judge asked each rule."""
    figures, asked = Counter[str](), Counter[str]()
    for its_figures, its_asked in pool.map(partial(play_one, kind), seeds, chunksize=8):
        figures.update(its_figures)
        asked.update(its_asked)
    print(kind, *(f"{count:,} {what.lower()}" for what, count in figures.items()), flush=True)
    return figures, asked


def write_counts(name: str, head: str, by_kind: Sequence[Counter[str]]) -> None:
    """Write a table with a column for each kind."""
    rows = sorted({what for counts in by_kind for what in counts})
    numbers = {
        what: [f"{counts[what]:,}" * (what in counts) for counts in by_kind] for what in rows
    }
    write(name, [head, *map(str.title, KINDS)], [[what, *row] for what, row in numbers.items()])


def write_variants(pool: Executor, seed: int, schedules: int) -> None:
    """Play each broken variant from three seeds until a schedule shows it, and write the number of that."""
    name = "variants.csv"
    with (PROOF / name).open(encoding="utf-8") as file:
        trial = {row["Variant"]: row["Trial"] for row in csv.DictReader(file)}
    visits = [range(at, at + schedules) for at in range(seed, seed + 3 * schedules, schedules)]
    size_of = [partial(Size.of, kind=kind) for kind in KIND.values()]
    shown = zip(
        *[pool.map(first_bite, KIND, repeat(seeds), size_of) for seeds in visits], strict=True
    )
    rows = []
    for variant, found in zip(KIND, shown, strict=True):
        title, numbers = f"``{variant}``", ", ".join(number for number, _ in found)
        rows.append([title, MEANING[variant], numbers, trial.get(title, "")])
    write(name, ["Variant", "What is broken", "Schedules", "Trial"], rows)
    for kind in KINDS:
        own = [row[2].split(", ") for row in rows if KIND[row[0].strip("`")] == kind]
        caught = [sum(number != "-" for number in visit) for visit in zip(*own, strict=True)]
        print(kind, *caught, "of", len(own), "variants were caught", flush=True)


def write(name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a table."""
    with (PROOF / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


def main() -> int:
    """Run the command line; return 1 if a schedule has a violation."""
    parser = argparse.ArgumentParser(prog="make record", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, required=True, help="the first seed of each kind; the next ones follow")
    add("--schedules", type=int, nargs=3, default=[20_000, 3_000, 2_000], help=", ".join(KINDS))
    add("--teeth", type=int, default=100, help="schedules of a variant, at most, three times")
    options = parser.parse_args()
    seed = options.seed
    with ProcessPoolExecutor() as pool:
        many = zip(KINDS, options.schedules, strict=True)
        played = [play_all(pool, kind, range(seed, seed + number)) for kind, number in many]
        figures, asked = zip(*played, strict=True)
        write_counts("record.csv", "", figures)
        write_counts("asked.csv", "Rule", asked)
        write_variants(pool, seed, options.teeth)
    return 1 if any(each["Violations"] for each in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
