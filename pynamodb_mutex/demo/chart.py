"""The picture: who held the lock when."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from pynamodb_mutex.demo.summary import marks, overlaps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pynamodb_mutex.demo.director import Options
    from pynamodb_mutex.demo.story import Scene, Section, Story
    from pynamodb_mutex.demo.summary import Mark

# Okabe and Ito's colours, which colour-blind people tell apart; lanes are labelled besides
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#0072B2", "#F0E442", "#D55E00", "#444444")
DARK = frozenset({"#009E73", "#0072B2", "#D55E00", "#444444"})
WAITING = "#E6E6E6"
STOPPED: dict[str, Any] = {
    "facecolor": "none",
    "edgecolor": "#888888",
    "hatch": "////",
    "linewidth": 0.8,
}
CIRCLE: dict[str, Any] = {"boxstyle": "circle,pad=0.25", "facecolor": "black", "edgecolor": "white"}
DEAD: dict[str, Any] = {
    "facecolor": "white",
    "edgecolor": "#B00020",
    "hatch": "....",
    "linewidth": 0.8,
}

WIDTH = 15.0
"""Inches."""

HEAD, FOOT, LEFT = 1.3, 2.25, 0.012

DIGIT = 0.085
"""Inches that one digit in a bar needs."""


def save(story: Story, options: Options) -> None:
    """Write the picture as PNG."""
    names = sorted(story.workers, key=lambda name: (len(name), name))
    lanes = {name: 1.2 + lane for lane, name in enumerate(names)}
    height = HEAD + FOOT + 0.5 * (len(lanes) + 1.4)
    figure = Figure(figsize=(WIDTH, height), dpi=110)
    axes = figure.add_axes((0.105, FOOT / height, 0.888, 1 - (HEAD + FOOT) / height))
    _Picture(story, axes, lanes).draw()
    axes.set(xlim=(0, _last(story)), ylim=(len(lanes) + 0.8, -0.6))
    axes.set_xlabel("seconds since the start", fontsize=11)
    labels = [
        f"{name}\n(replaces {story.replaced[name]})" if name in story.replaced else name
        for name in names
    ]
    axes.set_yticks([0, *lanes.values()], ["the lock", *labels], fontsize=10)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.axhline(0.52, color="black", linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=24, integer=True))
    axes.grid(axis="x", color="#DDDDDD")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    _explain(figure, story, height)
    figure.savefig(options.out, format="png")


def _seconds(story: Story, t: int) -> float:
    return (t - story.begin) / 1e9


def _last(story: Story) -> float:
    ends = [wait[2] for wait in story.waits] + [section.end for section in story.sections]
    return _seconds(story, max(ends)) + 0.2


class _Picture:
    def __init__(self, story: Story, axes: Axes, lanes: dict[str, float]) -> None:
        self._story = story
        self._axes = axes
        self._lanes = lanes
        self._colours = dict(zip(lanes, cycle(COLOURS), strict=False))
        self._inches = axes.get_position().width * WIDTH / _last(story)

    def draw(self) -> None:
        story = self._story
        for who, asked, until in story.waits:
            self._bar(self._lanes[who], asked, until, 0.34, color=WAITING)
        for section in story.sections:
            self._section(section)
        for number, mark in enumerate(marks(story), start=1):
            self._mark(number, mark)

    def _mark(self, number: int, mark: Mark) -> None:
        spot: dict[str, Any] = {
            "xy": (_seconds(self._story, mark.t), self._lanes[mark.worker] - 0.43)
        }
        common: dict[str, Any] = {
            "va": "center",
            "fontsize": 9,
            "fontweight": "bold",
            "zorder": 5,
            **spot,
        }
        self._axes.annotate(str(number), ha="center", color="white", bbox=CIRCLE, **common)
        # what follows on a lane has room on the other side
        left = mark.label in ("stopped", "takes over")
        self._axes.annotate(
            mark.label,
            ha="right" if left else "left",
            color="#B00020",
            xytext=(-9 if left else 9, 0),
            textcoords="offset points",
            **common,
        )

    def _bar(self, y: float, start: int, end: int, height: float, **style: Any) -> None:
        x = _seconds(self._story, start)
        self._axes.barh(y, (end - start) / 1e9, height, left=x, **style)

    def _section(self, section: Section) -> None:
        colour = self._colours[section.worker]
        lane = self._lanes[section.worker]
        scene = self._scene(section)
        if scene is not None:
            self._interrupted(scene, lane)
        for y in (0, lane):
            style = {"color": colour, "edgecolor": "white", "linewidth": 0.6, "zorder": 3}
            self._bar(y, section.entered, section.end, 0.62, **style)
        text = str(section.fence - self._story.sections[0].fence + 1)
        if (section.end - section.entered) / 1e9 * self._inches > DIGIT * len(text) + 0.04:
            middle = _seconds(self._story, (section.entered + section.end) // 2)
            ink = "white" if colour in DARK else "black"
            for y in (0, lane):
                self._axes.text(
                    middle, y, text, ha="center", va="center", fontsize=9, color=ink, zorder=4
                )

    def _scene(self, section: Section) -> Scene | None:
        scenes = (self._story.killed, self._story.stopped)
        return next((scene for scene in scenes if scene and scene.section is section), None)

    def _interrupted(self, scene: Scene, lane: float) -> None:
        if scene.resumed is not None:
            self._bar(lane, scene.at, scene.resumed, 0.62, **STOPPED, zorder=3.5)
        if scene.heir is not None:
            self._bar(0, scene.section.end, scene.heir.entered, 0.62, **DEAD, zorder=2)


def _explain(figure: Figure, story: Story, height: float) -> None:
    """Say around the axes what there is to see."""

    def write(inches: float, text: str, **style: Any) -> None:
        figure.text(LEFT, inches / height, text, va="center", **style)

    write(
        height - 0.3,
        f"One lock, {len(story.workers)} processes: who held it when",
        fontsize=17,
        fontweight="bold",
    )
    found = overlaps(story.sections)
    verdict = "No two of them overlap" if not found else f"{len(found)} OVERLAPS WERE FOUND"
    write(
        height - 0.65,
        "Each coloured bar is a process inside the section that the lock protects, from when it took the "
        f"lock until it gave it back, or had to stop believing that it holds it. {verdict}.",
        fontsize=11,
    )
    first = story.sections[0].fence - 1
    handles = [
        Patch(color=COLOURS[0], label=f"holds the lock; in it, the fencing token less {first}"),
        Patch(color=WAITING, label="waits for the lock"),
        Patch(**STOPPED, label="stopped: cannot run"),
        Patch(**DEAD, label="nobody: the last holder is dead or stopped"),
    ]
    place = (LEFT - 0.004, (height - 1.05) / height)
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=place,
        ncols=4,
        frameon=False,
        fontsize=10.5,
        handlelength=1.6,
        columnspacing=1.6,
        borderpad=0,
    )
    for number, mark in enumerate(marks(story), start=1):
        text = f"{number}   {_seconds(story, mark.t):.1f} s: {mark.text}"
        write(FOOT - 0.45 - 0.24 * number, text, fontsize=11)
