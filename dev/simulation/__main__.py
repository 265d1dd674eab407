"""Play schedules in virtual time, and print each violation with a smaller schedule that shows it too.

Other modes explore a small world, break the library to see that it is caught, print one schedule, or compare the
simulated DynamoDB with DynamoDB Local. `schedule` and `explore` do the work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from dev.broken import BROKEN, KIND
from dev.dynamodb_local import dynamodb_local
from dev.simulation.calls import counted, public_calls, table
from dev.simulation.explore import LOCKS, Choices, explore
from dev.simulation.explore import play as play_small
from dev.simulation.record import first_bite
from dev.simulation.replay import client_of, replay_schedule
from dev.simulation.schedule import Played, Size, play, shrink

if TYPE_CHECKING:
    from collections.abc import Callable

_PRINTED = 80
"""Number of lines at the end of the trace that are printed for a schedule with a violation."""


def main() -> int:
    """Run the command line; return 1 if something was violated, answered otherwise, or not caught."""
    parser = argparse.ArgumentParser(prog="python -m dev.simulation", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, help="the first seed; the next ones follow. At random by default")
    add("--schedules", type=int, help="how many to play")
    add("--seconds", type=float, default=10.0, help="play for so long, if not so many")
    add("--size", type=_size, help="how much happens, as it is printed for a violation")
    add("--once", action="store_true", help="play schedules of once, in place of locks")
    add("--shared", action="store_true", help="play schedules of shared locks")
    add("--calls", action="store_true", help="print how often each call and option ran; 1 if never")
    add("--trace", action="store_true", help="print all that happens in one schedule")
    add(
        "--explore",
        type=int,
        metavar="FAULTS",
        help="play all worlds of two clients, one lock and so many faults",
    )
    add("--lock", choices=LOCKS, default="key", help="the kind of lock of these worlds")
    add(
        "--teeth",
        nargs="*",
        choices=BROKEN,
        metavar="NAME",
        help="break the library in these ways, or in each known one, and see it caught, each in 100 schedules at most",
    )
    add("--at-least", type=int, help="how many of these ways must be caught, if not all")
    add(
        "--local",
        action="store_true",
        help="send the same to DynamoDB Local, and compare its answers",
    )
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**40) if options.seed is None else options.seed

    kind = "once" if options.once else "shared" if options.shared else "locks"

    def size_of(seed: int) -> Size:
        """Return how much happens in a schedule."""
        return Size.of(seed, kind) if options.size is None else options.size

    if options.calls:
        return _count_calls(seed, options.schedules or 1000)
    if options.explore is not None:
        return _explore(options.explore, options.lock)
    if options.trace:
        return _print(play(seed, size_of(seed), keep_trace=True))
    if options.teeth is not None:
        names = options.teeth or [name for name in BROKEN if KIND[name] == kind]
        at_least = len(names) if options.at_least is None else options.at_least
        return _try_teeth(names, range(seed, seed + (options.schedules or 100)), at_least, size_of)
    if options.local:
        return _replay(seed, options.schedules or 30, size_of)
    return _play_many(seed, options.schedules, options.seconds, size_of)


def _size(text: str) -> Size:
    """Return a size from the JSON that is printed for a violation."""
    fields: dict[str, Any] = json.loads(text)
    return Size(**{**fields, "ways": tuple(fields["ways"])})


def _print(played: Played, last: int | None = None) -> int:
    """Print the last lines of a trace, by default all, and the verdict; return 1 for a violation."""
    print("\n".join(played.trace[-last if last else None :]))
    print(played.violation or "no violation")
    return 1 if played.violation else 0


def _replay(seed: int, schedules: int, size_of: Callable[[int], Size]) -> int:
    """Replay schedules on DynamoDB Local; return 1 if it answers a request differently."""
    with dynamodb_local() as engine:
        client, requests = client_of(engine.endpoint_url), 0
        for at in range(seed, seed + schedules):
            try:
                requests += replay_schedule(client, at, size_of(at))
            except AssertionError as error:
                print(f"seed {at}: {error}")
                return 1
    print(f"seeds {seed} to {seed + schedules - 1}: {requests:,} requests answered alike")
    return 0


def _play_many(
    seed: int, schedules: int | None, seconds: float, size_of: Callable[[int], Size]
) -> int:
    """Play so many schedules, None for as many as fit into a time; return 1 if one has a violation."""
    begun, total, violations = time.monotonic(), Counter[str](), 0
    counts, asked = Counter[str](), Counter[str]()
    while total["schedules"] < schedules if schedules else time.monotonic() - begun < seconds:
        at = seed + total["schedules"]
        played = play(at, size_of(at))
        total["schedules"] += 1
        total["requests"] += played.requests
        total["acquisitions"] += played.acquisitions
        total["seconds"] += round(played.seconds)
        counts.update(played.counts)
        asked.update(played.asked)
        if played.violation:
            violations += 1
            _print_smallest(at, played)
    took = time.monotonic() - begun
    print(
        f"seeds {seed} to {seed + total['schedules'] - 1}: {total['schedules']:,} schedules, "
        f"{total['requests']:,} requests, {total['acquisitions']:,} acquisitions, "
        f"{total['seconds'] / 3600:,.1f} hours of requests in {took:.0f} s; "
        f"{violations} violations"
    )
    for figures in (counts, asked):
        print(", ".join(f"{what} {count:,}" for what, count in sorted(figures.items())))
    return 1 if violations else 0


def _count_calls(seed: int, schedules: int) -> int:
    """Play schedules, every fourth one of `once`, and print the public calls and options; return 1 if one was never made or given."""
    counts = Counter[tuple[str, str]]()
    with counted(counts):
        for at in range(seed, seed + schedules):
            play(at, Size.of(at, "once" if at % 4 == 1 else "locks"))
    print(table(counts))
    return 0 if all(counts[call] for call in public_calls()) else 1


def _print_smallest(seed: int, played: Played) -> None:
    """Print the command that repeats a violation, and the trace of a smaller schedule with the same kind of it."""
    assert played.violation is not None
    kind = " --once" * played.size.is_of_once + " --shared" * played.size.is_shared
    print(f"{played.violation}\nagain: python -m dev.simulation{kind} --trace --seed {seed}")
    seed, size = shrink(seed, played.size, played.violation)
    _print(play(seed, size, keep_trace=True), _PRINTED)
    fields = json.dumps(size._asdict())
    print(f"smaller: python -m dev.simulation --trace --seed {seed} --size '{fields}'\n")


def _explore(faults: int, kind: str) -> int:
    """Explore the small world; print the trace of a violation, and return 1 for one."""
    begun = time.monotonic()
    found = explore(faults, kind)
    took = time.monotonic() - begun
    print(
        f"two clients, one lock ({kind}), up to {faults} faults: {found.worlds:,} worlds, "
        f"{found.states:,} states in {took:.0f} s; {found.violation or 'no violation'}"
    )
    if found.violation is None:
        return 0
    print("\n".join(play_small(Choices(found.path), faults, set(), kind, keep_trace=True)[1]))
    return 1


def _try_teeth(
    names: list[str], seeds: range, at_least: int, size_of: Callable[[int], Size]
) -> int:
    """Play each broken variant until a schedule shows it, and print the number of that; return 1 if too few are caught."""
    print(f"seeds {seeds[0]} to {seeds[-1]}")
    caught = 0
    for name in names:
        number, said = first_bite(name, seeds, size_of)
        caught += number != "-"
        print(f"{name:26} {number:>5}  {said}", flush=True)
    print(f"{caught} of {len(names)} were caught")
    return 0 if caught >= at_least else 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
