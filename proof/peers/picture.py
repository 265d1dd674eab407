"""How long a dead holder's lock stays closed, library by library."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from proof.peers import JAVA, OURS

_SPREAD = 0.16


def draw(figures: dict[str, Any], path: Path) -> Path:
    """Draw each take-over as a dot, the median of each library as a line, and the lease; return the path."""
    tried = {
        name: found
        for name, found in figures["libraries"].items()
        if found["calm"].get("takeovers")
    }
    figure, axes = plt.subplots(figsize=(2.0 + 1.7 * len(tried), 4.8), layout="constrained")
    for place, (name, found) in enumerate(tried.items()):
        times = found["calm"]["takeovers"]
        color = "tab:blue" if name == OURS else "dimgrey"
        middle = median(times)
        axes.scatter(
            _beside(place, len(times)), times, s=36, color=color, alpha=0.75, lw=0, zorder=3
        )
        axes.hlines(middle, place - 0.3, place + 0.3, color=color, lw=2.5, zorder=2)
        axes.annotate(
            f"{middle:.1f} s", (place + 0.33, middle), va="center", color=color, fontsize=9
        )
    lease = figures["lease"]
    axes.axhline(lease, color="tab:red", ls="--", lw=1.5, zorder=1, label=f"the lease, {lease:g} s")
    axes.set_xticks(
        range(len(tried)),
        [
            f"{name}\n{found['version']}{' (Java)' * (name == JAVA)}"
            for name, found in tried.items()
        ],
        fontsize=8,
    )
    axes.set_xlim(-0.6, len(tried) - 0.3)
    axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    axes.set_ylabel("seconds from the kill to the next holder")
    axes.set_title("A holder is killed while others wait", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="gainsboro")
    axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1.0, 1.08))
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _beside(place: int, count: int) -> list[float]:
    """Set the dots of a library side by side, in the order of their kills."""
    step = 2 * _SPREAD / max(1, count - 1)
    return [place - _SPREAD + number * step for number in range(count)]
