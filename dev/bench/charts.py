"""Pictures of the figures, one for each scenario.

Each function here returns one that draws a panel from the figures that the scenario's ``measure`` returns. It is
imported only at the end of a run, for it needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from dev.bench import BLOCK_LOCK, DYNDB_MUTEX, FLOOR, OURS, PYTHON_CLIENT, engine_title
from dev.bench.tables import number

_COLORS = {
    FLOOR: "black", OURS: "tab:blue", PYTHON_CLIENT: "tab:orange", BLOCK_LOCK: "tab:green",
    DYNDB_MUTEX: "tab:red",
}  # fmt: skip
_PLAIN = FuncFormatter(lambda value, _: f"{value:,.6g}")

Found = dict[str, Any]
Panel = Callable[[Any, Found], None]


def draw(scenarios: dict[str, Any], folder: Path) -> list[Path]:
    """Draw a picture of each scenario that could be measured; return the paths of the pictures."""
    drawn = []
    for name, found in scenarios.items():
        if "failed" in found:
            continue
        panels = _PICTURES[name]
        # one below the other: so they can be read on a telephone, 400 pixels wide
        size = 4.6, 3.3 * len(panels)
        figure, axes = plt.subplots(len(panels), figsize=size, layout="constrained", squeeze=False)
        for each, panel in zip(axes[:, 0], panels, strict=True):
            each.spines[["top", "right"]].set_visible(False)
            each.set_axisbelow(True)
            each.grid(axis="y", color="gainsboro")
            panel(each, found)
        engine = engine_title(found["measured"]["engine"])
        figure.suptitle(f"on {engine}", x=0.995, ha="right", fontsize=7, color="grey")
        drawn.append(folder / f"{name}.png")
        figure.savefig(drawn[-1], dpi=174)
        plt.close(figure)
    return drawn


def _those(found: Found) -> Found:
    """Return the libraries that could be measured."""
    return {name: each for name, each in found["libraries"].items() if "failed" not in each}


def _color(name: str) -> str:
    return _COLORS.get(name.partition(",")[0], "grey")


def _named(axes: Any, names: Collection[str], title: str, label: str) -> None:
    """Write the names of libraries below a panel, a title above it, and what is shown at its side."""
    axes.margins(y=0.12)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel(label)


def _bars(title: str, label: str, *values: Callable[[Found], float | None]) -> Panel:
    """Draw bars for each library that has the first value, with the figures on them; the second bar is paler."""

    def panel(axes: Any, found: Found) -> None:
        libraries = {name: e for name, e in _those(found).items() if values[0](e) is not None}
        width = 0.8 / len(values)
        for turn, value in enumerate(values):
            heights = [value(each) for each in libraries.values()]
            places = [n + width * (turn - (len(values) - 1) / 2) for n in range(len(heights))]
            colors = [_color(name) for name in libraries]
            alpha = 1.0 - 0.55 * turn
            shown = [height or 0 for height in heights]
            bars = axes.bar(places, shown, width=0.95 * width, color=colors, alpha=alpha)
            axes.bar_label(bars, [number(height) for height in heights], padding=2, fontsize=8)
        _named(axes, libraries, title, label)

    return panel


def _counts(title: str) -> Panel:
    label = "requests; pale: capacity units"
    return _bars(title, label, itemgetter("requests"), lambda each: each["wcu"] + each["rcu"])


def _dots(kind: str, title: str) -> Panel:
    """Draw each of the seconds that a library took, and their median."""

    def panel(axes: Any, found: Found) -> None:
        libraries = {name: each[kind] for name, each in _those(found).items() if each[kind]}
        highest = max((max(each) for each in libraries.values()), default=1)
        for place, (name, each) in enumerate(libraries.items()):
            dots = [place + 0.4 * (turn + 0.5) / len(each) - 0.2 for turn in range(len(each))]
            axes.scatter(dots, each, s=22, color=_color(name), alpha=0.7, lw=0, zorder=3)
            middle = median(each)
            axes.hlines(middle, place - 0.3, place + 0.3, color=_color(name), lw=2)
            axes.annotate(
                f"{number(middle, 2)} s", (place, max(each)), textcoords="offset points", xytext=(0, 7),
                ha="center", fontsize=8, zorder=4, bbox={"fc": "white", "ec": "none", "pad": 1},
            )  # fmt: skip
        if kind in ("waiting", "newcomer"):
            highest = max(highest, found["lease"])
            axes.axhline(found["lease"], color="dimgrey", ls="--", lw=1, label="the lease")
            axes.legend(frameon=False, fontsize=8, loc="upper right")
        _named(axes, libraries, title, "seconds")
        axes.set_xlim(-0.6, max(0.6, len(libraries) - 0.4))
        axes.set_ylim(0, 1.25 * highest)

    return panel


def _lines(
    title: str, x: str, y: str, points: Callable[[Found], Iterator[tuple[str, float, float]]], *, log: str = ""
) -> Panel:  # fmt: skip
    """Draw a line for each name among points (name, place and value); the axes in ``log`` are logarithmic."""

    def panel(axes: Any, found: Found) -> None:
        lines: dict[str, list[tuple[float, float]]] = {}
        for name, *point in points(found):
            lines.setdefault(name, []).append((point[0], point[1]))
        for name, each in lines.items():
            style = "s--" if name.endswith(("threads", "20 ms")) else "o-"
            axes.plot(*zip(*each, strict=True), style, color=_color(name), label=name)
        if "y" not in log:
            axes.set_ylim(bottom=0)
        for letter, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            if letter in log:
                axes.set(**{f"{letter}scale": "log"})
                axis.set_major_formatter(_PLAIN)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set(xlabel=x, ylabel=y)
        axes.legend(frameon=False, fontsize=8, handlelength=3.5)

    return panel


def _points(found: Found, by: str, what: str) -> Iterator[tuple[str, float, float]]:
    for name, each in _those(found).items():
        yield from ((name, float(place), at[what]) for place, at in each[by].items())


def _many(title: str, y: str, value: Callable[[Found], float], log: str) -> Panel:
    def points(found: Found) -> Iterator[tuple[str, float, float]]:
        for run in found["runs"]:
            if "failed" not in run:
                yield f"{run['library']}, {run['latency']} ms", run["locks"], value(run)

    return _lines(title, "locks held and renewed", y, points, log=log)


def _threads(what: str, y: str) -> Panel:
    def points(found: Found) -> Iterator[tuple[str, float, float]]:
        for run in found["alone"]:
            if run.get("sections"):
                yield run["library"], run["threads"], run[what]

    return _lines("Threads of one process on one key", "threads", y, points, log="x")


_PICTURES: dict[str, tuple[Panel, ...]] = {
    "cycle": (
        _counts("Acquire and release: requests and units"),
        _bars("CPU of the client", "times that of bare boto3", lambda each: each["cpu"]["ratio"]),
        _lines(
            "Time to acquire and release",
            "latency added to each request, ms",
            "ms",
            lambda found: _points(found, "wall", "ms"),
        ),
    ),
    "row": (
        _counts("Lock, read, write, unlock a row: requests and units"),
        _bars("Time at 5 ms of latency", "ms", itemgetter("ms")),
    ),
    "hand_over": (
        _dots("short", "From a release to the next\nprocess, which waited up to 1 s"),
        _dots("long", "From a release to the next\nprocess, which waited 5 s"),
        _dots("waiting", "From a holder's death to\none who waited already"),
        _dots("newcomer", "A newcomer, three leases\nafter a holder's death"),
    ),
    "waiting": (
        _lines(
            "One holds the lock, others wait",
            "waiters (processes, if nothing else is said)",
            "requests a minute, of all together",
            lambda found: _points(found, "waiters", "total"),
            log="xy",
        ),
    ),
    "threads": (
        _threads("per_second", "sections a second"),
        _threads("requests_each", "requests a section"),
    ),
    "many": (
        _many("CPU", "% of one processor", lambda run: 100 * run["cpu_share"], "xy"),
        _many("Renewals", "requests a second", itemgetter("requests"), "xy"),
        _many("Lost", "% of the locks", lambda run: 100 * run["lost"] / run["locks"], "x"),
    ),
    "start": (
        _bars("Import, boto3 or pynamodb being there", "ms", itemgetter("import_ms")),
        _bars("From a process's start to its first lock", "ms", itemgetter("cold_ms")),
    ),
    "memory": (
        _bars(
            "Memory",
            "a held lock; pale: a waiting thread",
            itemgetter("held"),
            itemgetter("waiting"),
        ),
    ),
}
