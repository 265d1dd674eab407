"""Pictures of the figures, one for each scenario.

Each function here draws the figures that the scenario's ``measure`` returns. It is imported only at the end of a run,
for it needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Callable
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

_STYLES = {5: "o-", 20: "s--"}
"""Styles of lines by the latency in ms."""

Libraries = dict[str, dict[str, Any]]
"""Figures of a scenario, by the name of the library."""


def draw(scenarios: dict[str, Any], folder: Path) -> list[Path]:
    """Draw a picture of each scenario that could be measured; return the paths of the pictures."""
    drawn = []
    for name, picture in _PICTURES.items():
        found = scenarios.get(name)
        if found is None or "failed" in found:
            continue
        figure = picture(found)
        engine = engine_title(found["measured"]["engine"])
        figure.suptitle(f"on {engine}", x=0.995, ha="right", fontsize=7, color="grey")
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=174)
        plt.close(figure)
        drawn.append(path)
    return drawn


def _panels(count: int) -> tuple[Any, list[Any]]:
    """Return a figure and its panels, one below the other: so they can be read on a telephone, 400 pixels wide."""
    figure, axes = plt.subplots(
        count, 1, figsize=(4.6, 3.3 * count), layout="constrained", squeeze=False
    )
    for each in axes[:, 0]:
        each.spines[["top", "right"]].set_visible(False)
        each.set_axisbelow(True)
        each.grid(axis="y", color="gainsboro")
    return figure, list(axes[:, 0])


def _those(libraries: Libraries) -> Libraries:
    """Return the libraries that could be measured."""
    return {name: found for name, found in libraries.items() if "failed" not in found}


def _color(name: str) -> str:
    return _COLORS.get(name.partition(",")[0], "grey")


def _bars(axes: Any, values: dict[str, float], label: str, title: str) -> None:
    """Draw a bar for each library, with its figure on it."""
    bars = axes.bar(range(len(values)), list(values.values()), color=[_color(n) for n in values])
    axes.bar_label(bars, [number(value) for value in values.values()], padding=2, fontsize=8)
    axes.margins(y=0.12)
    axes.set_ylabel(label)
    _named(axes, list(values), title)


def _counts(axes: Any, libraries: Libraries, title: str) -> None:
    """Draw two bars for each library: its requests and, paler, its capacity units."""
    colors = [_color(name) for name in libraries]
    for side, alpha in ((-0.2, 1.0), (0.2, 0.45)):
        values = [e["requests"] if side < 0 else e["wcu"] + e["rcu"] for e in libraries.values()]
        places = [place + side for place in range(len(values))]
        bars = axes.bar(places, values, width=0.38, color=colors, alpha=alpha)
        axes.bar_label(bars, [number(value) for value in values], padding=2, fontsize=8)
    axes.margins(y=0.12)
    axes.set_ylabel("requests; pale: capacity units")
    _named(axes, list(libraries), title)


def _named(axes: Any, names: list[str], title: str) -> None:
    """Write the names of libraries below a panel, and a title above it."""
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
    axes.set_title(title, loc="left", fontsize=10)


def _cycle(found: dict[str, Any]) -> Any:
    libraries = _those(found["libraries"])
    figure, panels = _panels(3)
    _counts(panels[0], libraries, "Acquire and release: requests and units")
    cpu = {name: each["cpu"]["ratio"] for name, each in libraries.items()}
    _bars(panels[1], cpu, "times that of bare boto3", "CPU of the client")
    for name, each in libraries.items():
        latencies = [float(latency) for latency in each["wall"]]
        walls = [at["ms"] for at in each["wall"].values()]
        panels[2].plot(latencies, walls, "o-", color=_color(name), label=name)
    panels[2].set_xlabel("latency added to each request, ms")
    panels[2].set_ylabel("ms")
    panels[2].set_ylim(bottom=0)
    panels[2].set_title("Time to acquire and release", loc="left", fontsize=10)
    panels[2].legend(frameon=False, fontsize=8, handlelength=3.5)
    return figure


def _row(found: dict[str, Any]) -> Any:
    libraries = _those(found["libraries"])
    figure, panels = _panels(2)
    _counts(panels[0], libraries, "Lock, read, write, unlock a row: requests and units")
    walls = {name: each["ms"] for name, each in libraries.items()}
    _bars(panels[1], walls, "ms", f"Time at {found['latency_ms']:g} ms of latency")
    return figure


def _hand_over(found: dict[str, Any]) -> Any:
    figure, panels = _panels(4)
    titles = {
        "short": "From a release to the next\nprocess, which waited up to 1 s",
        "long": "From a release to the next\nprocess, which waited 5 s",
        "waiting": "From a holder's death to\none who waited already",
        "newcomer": "A newcomer, three leases\nafter a holder's death",
    }
    for axes, (kind, title) in zip(panels, titles.items(), strict=True):
        libraries = {name: e for name, e in _those(found["libraries"]).items() if e[kind]}
        highest = max((max(each[kind]) for each in libraries.values()), default=1)
        for place, (name, each) in enumerate(libraries.items()):
            color, count = _color(name), len(each[kind])
            dots = [place + 0.4 * (turn + 0.5) / count - 0.2 for turn in range(count)]
            axes.scatter(dots, each[kind], s=22, color=color, alpha=0.7, lw=0, zorder=3)
            middle = median(each[kind])
            axes.hlines(middle, place - 0.3, place + 0.3, color=color, lw=2)
            axes.annotate(
                f"{number(middle, 2)} s", (place, max(each[kind])), textcoords="offset points",
                xytext=(0, 7), ha="center", fontsize=8, color=color, zorder=4,
                bbox={"fc": "white", "ec": "none", "pad": 1},
            )  # fmt: skip
        if kind in ("waiting", "newcomer"):
            highest = max(highest, found["lease"])
            axes.axhline(found["lease"], color="dimgrey", ls="--", lw=1, label="the lease")
            axes.legend(frameon=False, fontsize=8, loc="upper right")
        _named(axes, list(libraries), title)
        axes.set_xlim(-0.6, max(0.6, len(libraries) - 0.4))
        axes.set_ylim(0, 1.25 * highest)
    panels[0].set_ylabel("seconds")
    return figure


def _waiting(found: dict[str, Any]) -> Any:
    figure, (axes,) = _panels(1)
    for name, each in _those(found["libraries"]).items():
        counts = [int(count) for count in each["waiters"]]
        totals = [counted["total"] for counted in each["waiters"].values()]
        threads = name.endswith("threads")
        label = f"{OURS}, threads of one process" if threads else name
        axes.plot(counts, totals, "s:" if threads else "o-", color=_color(name), label=label)
    _logarithmic(axes)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(_PLAIN)
    axes.set_xlabel("waiters (processes, if nothing else is said)")
    axes.set_ylabel("requests a minute, of all together")
    axes.set_title("One holds the lock, others wait", loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8, handlelength=3.5)
    return figure


def _threads(found: dict[str, Any]) -> Any:
    figure, panels = _panels(2)
    runs = [run for run in found["alone"] if run.get("sections")]
    for name in dict.fromkeys(run["library"] for run in runs):
        own = [run for run in runs if run["library"] == name]
        threads = [run["threads"] for run in own]
        for axes, what in zip(panels, ("per_second", "requests_each"), strict=True):
            axes.plot(threads, [run[what] for run in own], "o-", color=_color(name), label=name)
    for axes in panels:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(_PLAIN)
        axes.set_xlabel("threads")
        axes.set_ylim(bottom=0)
        axes.margins(y=0.15)
        axes.legend(frameon=False, fontsize=8, handlelength=3.5)
    panels[0].set_ylabel("sections a second")
    panels[0].set_title("Threads of one process on one key", loc="left", fontsize=10)
    panels[1].set_ylabel("requests a section")
    return figure


def _many(found: dict[str, Any]) -> Any:
    figure, panels = _panels(3)
    runs = [run for run in found["runs"] if "failed" not in run]
    for name, latency in dict.fromkeys((run["library"], run["latency"]) for run in runs):
        own = [run for run in runs if (run["library"], run["latency"]) == (name, latency)]
        locks = [run["locks"] for run in own]
        style = _STYLES.get(latency, "o-")
        options = {"color": _color(name), "label": f"{name}, {latency} ms"}
        panels[0].plot(locks, [100 * run["cpu_share"] for run in own], style, **options)
        panels[1].plot(locks, [run["requests"] for run in own], style, **options)
        panels[2].plot(locks, [100 * run["lost"] / run["locks"] for run in own], style, **options)
    for axes in panels:
        axes.set_xlabel("locks held and renewed")
    for axes in panels[:2]:
        _logarithmic(axes)
    panels[0].set_ylabel("CPU, % of one processor")
    panels[1].set_ylabel("requests a second")
    panels[2].set_ylabel("% of the locks")
    panels[2].set_xscale("log")
    panels[2].xaxis.set_major_formatter(_PLAIN)
    panels[2].set_ylim(-3, 103)
    panels[0].set_title("Many locks of one process", loc="left", fontsize=10)
    panels[2].set_title(f"Lost within {found['held_s']:g} s", loc="left", fontsize=10)
    panels[0].legend(frameon=False, fontsize=8, handlelength=3.5)
    return figure


def _start(found: dict[str, Any]) -> Any:
    libraries = _those(found["libraries"])
    figure, panels = _panels(2)
    imports = {name: e["import_ms"] for name, e in libraries.items() if e["import_ms"]}
    _bars(panels[0], imports, "ms", "Import, boto3 or pynamodb being there")
    cold = {name: each["cold_ms"] for name, each in libraries.items()}
    _bars(panels[1], cold, "ms", "From a process's start to its first lock")
    return figure


def _memory(found: dict[str, Any]) -> Any:
    libraries = _those(found["libraries"])
    figure, (axes,) = _panels(1)
    held = {name: each["held"] for name, each in libraries.items()}
    held |= {
        f"{name}, waiting thread": each["waiting"]
        for name, each in libraries.items()
        if each["waiting"]
    }
    _bars(axes, held, "bytes", "Memory of a held lock, and of a waiting thread")
    return figure


def _logarithmic(axes: Any) -> None:
    for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
        scale("log")
        axis.set_major_formatter(_PLAIN)


_PICTURES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "cycle": _cycle,
    "row": _row,
    "hand_over": _hand_over,
    "waiting": _waiting,
    "threads": _threads,
    "many": _many,
    "start": _start,
    "memory": _memory,
}
