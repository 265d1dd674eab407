"""Plays schedules in virtual time: ``python -m dev.simulation --help``."""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import sys
import time
from collections import Counter

from dev.chaos.broken import BROKEN, broken
from dev.simulation.schedule import Played, play

_SHOWN = 80
"""Lines of the trace that are shown of a schedule with a violation."""


def main() -> int:
    """Play schedules; return 1 if one has a violation."""
    parser = argparse.ArgumentParser(prog="python -m dev.simulation", description=__doc__)
    parser.add_argument(
        "--seed", type=int, help="the first seed; the next ones follow. At random by default"
    )
    parser.add_argument("--schedules", type=int, help="how many to play")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="play for so long, if not so many"
    )
    parser.add_argument(
        "--trace", action="store_true", help="print all that happens in one schedule"
    )
    parser.add_argument(
        "--teeth",
        action="store_true",
        help="break the library in each known way, and see it caught",
    )
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**40) if options.seed is None else options.seed
    if options.trace:
        return _show(play(seed, keep_trace=True), None)
    if options.teeth:
        return _try_teeth(seed, options.schedules or 300, options.seconds)
    return _play_many(seed, options.schedules, options.seconds)


def _show(played: Played, last: int | None) -> int:
    lines = played.trace[-last:] if last else played.trace
    print("\n".join(lines))
    print(played.violation or "no violation")
    return 1 if played.violation else 0


def _play_many(seed: int, schedules: int | None, seconds: float) -> int:
    begun, total, counts, violations = time.monotonic(), Counter[str](), Counter[str](), 0
    while total["schedules"] < schedules if schedules else time.monotonic() - begun < seconds:
        at = seed + total["schedules"]
        played = play(at)
        total["schedules"] += 1
        total["requests"] += played.requests
        total["acquisitions"] += played.acquisitions
        total["seconds"] += round(played.seconds)
        counts.update(played.counts)
        if played.violation:
            violations += 1
            _show(play(at, keep_trace=True), _SHOWN)
            print(f"again: python -m dev.simulation --trace --seed {at}\n")
    took = time.monotonic() - begun
    print(
        f"seeds {seed} to {seed + total['schedules'] - 1}: {total['schedules']:,} schedules, "
        f"{total['requests']:,} requests, {total['acquisitions']:,} acquisitions, "
        f"{total['seconds'] / 3600:,.1f} simulated hours in {took:.0f} s; {violations} violations"
    )
    print(", ".join(f"{what} {count:,}" for what, count in sorted(counts.items())))
    return 1 if violations else 0


def _try_teeth(seed: int, most: int, seconds: float) -> int:
    """Print for each broken variant how many schedules it took to catch it, three times over."""
    for name in BROKEN:
        took: list[int] = []
        found = ""
        for turn in range(3):
            begun = time.monotonic()
            for number in range(most):
                with broken(name):
                    played = play(seed + turn * most + number)
                if played.violation:
                    took.append(number + 1)
                    found = played.violation.partition(": ")[2]
                    break
                if time.monotonic() - begun > seconds:
                    break
        median = f"{statistics.median(took):.0f}" if took else "-"
        print(f"{name:24} caught {len(took)} of 3  schedules {median:>4}  {found[:90]}", flush=True)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
