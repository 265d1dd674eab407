"""The picture: how long it takes until a dead holder's lock is acquired again, by library."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from dev.peers import OURS

_SPREAD = 0.16
"""Width, on each side, over which the dots of a library are spread."""


PANELS = {
    "takeovers": "A holder is killed while others wait:\nseconds from the kill to the next holder",
    "newcomers": "A newcomer, three leases after a holder died:\nseconds until it holds the lock",
}


def draw(figures: dict[str, Any], path: Path) -> Path:
    """Draw each time as a dot, and the median of each library and the lease as lines; return the path."""
    count = len(figures["libraries"])
    figure, panels = plt.subplots(
        1, 2, figsize=(3.0 + 2.4 * count, 4.8), sharey=True, layout="constrained"
    )
    for axes, (kind, title) in zip(panels, PANELS.items(), strict=True):
        _panel(axes, figures, kind)
        axes.set_title(title, loc="left", fontsize=10)
    panels[0].set_ylim(0, 1.1 * panels[0].get_ylim()[1])
    panels[0].set_ylabel("seconds")
    panels[1].legend(frameon=False, loc="upper right")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def _panel(axes: Any, figures: dict[str, Any], kind: str) -> None:
    libraries = figures["libraries"]
    for place, (name, found) in enumerate(libraries.items()):
        times = found["calm"].get(kind)
        if not times:
            continue
        color, middle = "tab:blue" if name == OURS else "dimgrey", median(times)
        dots = _beside(place, len(times))
        axes.scatter(dots, times, s=36, color=color, alpha=0.75, lw=0, zorder=3)
        axes.hlines(middle, place - 0.3, place + 0.3, color=color, lw=2.5, zorder=2)
        label = f"{middle:.1f} s" if middle >= 0.1 else f"{1000 * middle:.0f} ms"
        above = {"textcoords": "offset points", "xytext": (0, 8), "ha": "center"}
        above["bbox"] = {"fc": "white", "ec": "none", "pad": 1}
        axes.annotate(label, (place, max(times)), color=color, fontsize=9, **above)
    lease = figures["lease"]
    axes.axhline(lease, color="tab:red", ls="--", lw=1.5, zorder=1, label=f"the lease, {lease:g} s")
    labels = [f"{name}\n{found['version']}" for name, found in libraries.items()]
    axes.set_xticks(range(len(labels)), labels, fontsize=7)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="gainsboro")


def _beside(place: int, count: int) -> list[float]:
    """Return the places of the dots of a library, side by side in the order of the kills."""
    step = 2 * _SPREAD / max(1, count - 1)
    return [place - _SPREAD + number * step for number in range(count)]
