"""Draws a simulated schedule: who held which key, who stood still, and which requests met a fault.

It reads the trace that `schedule` keeps, line by line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dev.simulation.network import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dev.simulation.schedule import Played

_LINE = re.compile(r"\s*([\d.]+) (\S+)\s+(.*)")
_HOLDS = re.compile(r"HOLDS (\S+) by (\d+)")
_ENDS = re.compile(r"holds (\S+) no more: (\w+)")
_STANDS_STILL = re.compile(r"(STOP|FREEZE) for ([\d.]+) s")
_COLORS: Any = plt.get_cmap("tab10")
_MARKS = {"CRASH": "x", "interrupted": "v", "fault": "|"}


def draw(played: Played, path: str) -> None:
    """Draw a schedule whose trace was kept into a file: one lane for each process, one colour for each key."""
    lines = [found.groups() for found in map(_LINE.fullmatch, played.trace) if found is not None]
    processes = sorted({_process_of(who) for _, who, _ in lines} - {"JUDGE", "deletes"})
    lanes = {name: place for place, name in enumerate(processes[::-1])}
    end = max((float(at) for at, _, what in lines if "HOLDS" in what), default=0.0) + 2
    figure, axes = plt.subplots(figsize=(14, 1.5 + 0.6 * len(lanes)), layout="constrained")
    keys: dict[str, int] = {}
    for since, until, process, key, version in _held(lines, end):
        color = _COLORS(keys.setdefault(key, len(keys)) % 10)
        axes.barh(lanes[process], until - since, left=since, height=0.5, color=color, alpha=0.7)
        axes.text(since, lanes[process] + 0.28, version[-5:], fontsize=6)
    for at, who, what in lines:
        lane = lanes.get(_process_of(who))
        still = _STANDS_STILL.match(what)
        if still is not None and lane is not None:
            axes.barh(lane, float(still[2]), left=float(at), height=0.8, color="0.85", zorder=0)
        mark = _MARKS.get(what.split()[0]) or (_MARKS["fault"] if what in KINDS else None)
        if mark is not None and lane is not None and float(at) < end:
            axes.plot(float(at), lane - 0.32, mark, color="black", markersize=5)
        if who == "JUDGE":
            axes.axvline(min(float(at), end), color="red")
    axes.set_yticks(list(lanes.values()), list(lanes))
    axes.set_xlim(0, end)
    axes.set_xlabel("seconds")
    axes.set_title(played.violation or "no violation", fontsize=9)
    legend: list[Any] = [
        Patch(color=_COLORS(n % 10), label=f"holds {key}") for key, n in keys.items()
    ]
    legend += [
        Patch(color="0.85", label="stands still"),
        Line2D([], [], color="black", marker="|", linestyle="", label="a request meets a fault"),
        Line2D([], [], color="black", marker="x", linestyle="", label="crash"),
    ]
    axes.legend(handles=legend, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path)
    plt.close(figure)


def _process_of(who: str) -> str:
    """Return the process of a thread, as the trace names them."""
    return who.partition(".")[0]


def _held(lines: list[Any], end: float) -> Iterator[tuple[float, float, str, str, str]]:
    """Yield the times for which a key was held: since, until, process, key, fencing token."""
    begun: dict[tuple[str, str], tuple[float, str]] = {}
    for at, who, what in lines:
        process = _process_of(who)
        if holds := _HOLDS.match(what):
            begun[process, holds[1]] = float(at), holds[2]
        elif (ends := _ENDS.match(what)) and (process, ends[1]) in begun:
            since, version = begun.pop((process, ends[1]))
            yield since, float(at), process, ends[1], version
    for (process, key), (since, version) in begun.items():
        yield since, max(end, since), process, key, version
