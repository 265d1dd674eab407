"""The table of all figures, for people: a line for each measure, a column for each library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any

Attacks = list[dict[str, Any]]


def lines(figures: dict[str, Any]) -> list[str]:
    """Return the lines of the table; figures of several runs with faults of one library are added up."""
    libraries = figures["libraries"]
    heads = [f"{name} {found['version']}" for name, found in libraries.items()]
    rows = [[_title(figures), *heads]]
    for name, measure in _ATTACKED.items():
        rows.append([name, *(_of(measure, found["attacks"]) for found in libraries.values())])
    for name, key in (
        ("take-over of the killed, calm", "takeovers"),
        ("newcomer, the holder long dead", "newcomers"),
        ("hand-over, calm", "hand_overs"),
    ):
        rows.append([name, *(_times(found["calm"].get(key, [])) for found in libraries.values())])
    calm = [[found["calm"]] if found["calm"] else [] for found in libraries.values()]
    rows.append(["requests per acquire, calm", *(_of(_requests, each) for each in calm)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    raised = [f"{name} raised {_raised(found['attacks'])}" for name, found in libraries.items()]
    return [*table, "", *raised]


def _title(figures: dict[str, Any]) -> str:
    seeds = ", ".join(map(str, figures["seeds"]))
    return (
        f"{figures['engine']}, lease {figures['lease']:g} s, seed {seeds}, {figures['seconds']:g} s"
    )


def _of(measure: Callable[[Attacks], str], attacks: Attacks) -> str:
    return measure(attacks) if attacks else "-"


def _sum(key: str) -> Callable[[Attacks], str]:
    return lambda attacks: str(sum(attack[key] for attack in attacks))


def _overlaps(key: str) -> Callable[[Attacks], str]:
    def measure(attacks: Attacks) -> str:
        found = [ms for attack in attacks for ms in attack[key]]
        return f"{len(found)}, {sum(found):.0f} ms, max {max(found):.0f}" if found else "0"

    return measure


def _lost(key: str) -> Callable[[Attacks], str]:
    def measure(attacks: Attacks) -> str:
        total: Counter[str] = Counter()
        for attack in attacks:
            total.update(attack[key])
        late = f" (+{total['lost_by_late']} late)" if total["lost_by_late"] else ""
        return f"{total['lost']} of {total['acked']}{late}" if total["acked"] else "-"

    return measure


def _errors(attacks: Attacks) -> Counter[str]:
    total: Counter[str] = Counter()
    for attack in attacks:
        total.update(attack["errors"])
    return total


def _raised(attacks: Attacks) -> str:
    counted = [f"{error} {count}" for error, count in _errors(attacks).most_common()]
    return ", ".join(counted) or "nothing"


def _idle(attacks: Attacks) -> str:
    return f"{max(attack['idle'] for attack in attacks):.1f} s"


def _requests(attacks: Attacks) -> str:
    found = [attack["requests"] for attack in attacks if attack["requests"] is not None]
    return f"{sum(found) / len(found):.1f}" if found else "-"


def _times(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    return f"median {median(seconds):.2f} s, max {max(seconds):.2f} s, n {len(seconds)}"


_ATTACKED: dict[str, Callable[[Attacks], str]] = {
    "acquired": _sum("acquired"),
    "two believers": _overlaps("overlaps"),
    "  excused, after a freeze": _overlaps("overlaps_excused"),
    "reported held, nothing written": _sum("unwritten"),
    "plain row, updates lost": _lost("lost"),
    "guarded row, updates lost": _lost("lost_guarded"),
    "acquires that raised": lambda attacks: str(_errors(attacks).total()),
    "acquires that timed out": _sum("timed_out"),
    "  though nobody held": _sum("blocked"),
    "longest wait, nobody held": _idle,
    "clients hung": _sum("hung"),
    "clients died": _sum("died"),
    "requests per acquire": _requests,
}
