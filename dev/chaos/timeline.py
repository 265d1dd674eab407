"""Draws the seconds around a violation: claims in the store, beliefs, outages, writes and faults.

`page` and the command line draw with it; it needs matplotlib.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from dev.chaos.beliefs import beliefs
from dev.chaos.history import SECOND, Event, outages
from dev.chaos.tables import lock_of
from dev.chaos.verdicts import Report

WINDOW = 2.0
"""Seconds that are shown before and after the middle of the picture."""

_COLORS = plt.get_cmap("tab10").colors


def draw(events: list[Event], report: Report, path: Path, around: int | None = None) -> Path:
    """Draw the time around the first violation; without one, around a given time, or else the end. Return the path."""
    middle = report.violations[0].t if report.violations else around or events[-1]["t"]
    picture = _Picture(events, middle)
    picture.claims()
    picture.beliefs()
    picture.marks()
    picture.violations(report)
    picture.save(path)
    return path


class _Picture:
    """A picture that is being drawn: one lane for each lock and each client.

    Args:
        events: The history.
        middle: The time in its middle, in nanoseconds.
    """

    def __init__(self, events: list[Event], middle: int) -> None:
        self._events, self._middle = events, middle
        self._start, self._end = (middle + sign * int(WINDOW * SECOND) for sign in (-1, 1))
        self._held = _claims(events, self._end)
        wires = {event["proc"] for event in events if event["op"] == "wire"}
        clients = sorted(wires - {"operator", "reaper"})
        self._lanes = {
            name: place for place, name in enumerate([*sorted(self._held)[::-1], *clients[::-1]])
        }
        self._colors = {client: _COLORS[place % 10] for place, client in enumerate(clients)}
        # narrow enough to be read on a phone that is 400 pixels wide
        size = (4.8, 2.6 + 0.6 * len(self._lanes))
        self._figure, self._axes = plt.subplots(figsize=size, layout="constrained")

    def _at(self, t: int) -> float:
        return (min(max(t, self._start), self._end) - self._middle) / SECOND

    def _shows(self, since: int, until: int) -> bool:
        return until > self._start and since < self._end

    def _bar(self, lane: str, since: int, until: int, **style: Any) -> None:
        if self._shows(since, until):
            left, right = self._at(since), self._at(until)
            self._axes.barh(self._lanes[lane], right - left, left=left, **style)

    def claims(self) -> None:
        for lock, spans in self._held.items():
            for since, until, client in spans:
                color = self._colors.get(client, "grey")
                self._bar(lock, since, until, height=0.5, color=color, edgecolor="white")

    def beliefs(self) -> None:
        """Draw them above the claims of their lock, those of each client at a height of its own."""
        clients = list(self._colors)
        for lock, found in beliefs(self._events).items():
            for belief in found:
                client = belief.proc.split(".")[0]
                if not self._shows(belief.since, belief.until) or client not in clients:
                    continue
                height = self._lanes[lock] + 0.3 + 0.16 * clients.index(client) / len(clients)
                left, right = self._at(belief.since), self._at(belief.until)
                self._axes.plot([left, right], [height] * 2, lw=2, color=self._colors[client])

    def marks(self) -> None:
        """Mark outages of clients, writes to rows, faults, kills and steps of a clock."""
        for since, until, client, deed in outages(self._events):
            hatch = {"stop_client": "//", "stand_still": "xx", "partition": ".."}[deed]
            style = {"fill": False, "hatch": hatch, "edgecolor": "silver", "lw": 0, "zorder": 0}
            self._bar(client, since, until, height=0.9, **style)
        named = dict.fromkeys(self._colors, -2 * WINDOW)  # where the last name of a fault stands
        for event in self._events:
            if self._start <= event["t"] <= self._end:
                x = self._at(event["t"])
                _mark(self._axes, event, x, self._lanes, self._colors)
                client, fault = event["proc"], event.get("fault")
                if fault in {None, "partition"} or client not in named:
                    continue
                left = min(x, WINDOW - 0.9)  # so that it ends within the picture
                if left > named[client] + 0.3:  # or else it would cross the one before it
                    place = (left, self._lanes[client] + 0.1)
                    self._axes.annotate(fault, place, fontsize=8, rotation=30)
                    named[client] = left

    def violations(self, report: Report) -> None:
        for violation in report.violations:
            if self._start <= violation.t <= self._end:
                self._axes.axvline(self._at(violation.t), color="red", lw=1, zorder=5)
        if report.violations:
            first = report.violations[0]
            title = f"{first.property}: {first.text}"
            self._axes.set_title(title, fontsize=8, color="red", wrap=True, loc="left")

    def save(self, path: Path) -> None:
        self._axes.set_yticks(list(self._lanes.values()), list(self._lanes))
        self._axes.set_xlim(-WINDOW, WINDOW)
        self._axes.set_xlabel(f"seconds from {self._middle / SECOND:.3f}")
        place = {"loc": "outside lower center", "ncols": 2, "fontsize": 8, "frameon": False}
        self._figure.legend(handles=_legend(), **place)
        self._figure.savefig(path, dpi=170)
        plt.close(self._figure)


def _claims(events: list[Event], end: int) -> dict[str, list[tuple[int, int, str]]]:
    """Return the claims in the store, for each lock: since, until, client."""
    owners: dict[str, str] = {}
    standing: dict[str, tuple[int, str]] = {}
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for event in events:
        if event["op"] != "wire":
            continue
        for row in event["rows"]:
            lock, token = lock_of(row), row.get("token")
            if lock is None:
                continue
            spans.setdefault(lock, [])
            if token:
                owners.setdefault(token, event["proc"])
            before = standing.get(lock)
            if before is not None and (before[1] != token or row.get("expires_at") is None):
                spans[lock].append((before[0], event["t"], owners.get(before[1], "")))
                del standing[lock]
            if token and row.get("expires_at") is not None and lock not in standing:
                standing[lock] = (event["t"], token)
    for lock, (since, token) in standing.items():
        spans[lock].append((since, end, owners.get(token, "")))
    return spans


def _mark(axes: Any, event: Event, x: float, lanes: dict[str, int], colors: dict[str, Any]) -> None:
    """Mark a write or a force release in its lock's lane, and a fault, a kill or a clock step in its client's."""
    if event["op"] == "wire":
        for row in event["rows"]:
            if row["table"] == "rows" and row["key"] in lanes and event["kind"] in _WRITES:
                axes.plot(x, lanes[row["key"]], "o", ms=4, color="black")
        if event.get("fault") and event["proc"] in lanes:
            axes.plot(x, lanes[event["proc"]], "v", ms=4, color=colors[event["proc"]])
    elif event["op"] == "force" and event.get("key") in lanes:
        axes.plot(x, lanes[event["key"]], "P", ms=9, color="black", mec="white")
    elif event["op"] in {"kill", "step_wall"} and event["client"] in lanes:
        axes.plot(
            x, lanes[event["client"]], "X" if event["op"] == "kill" else "D", ms=8, color="black"
        )


_WRITES = {"update", "PutItem", "TransactWriteItems"}


def _legend() -> list[Any]:
    def dot(marker: str, label: str) -> Line2D:
        return Line2D([], [], ls="", marker=marker, color="black", label=label)

    return [
        Patch(color="grey", label="claim in the store, by its client's colour"),
        Line2D([], [], lw=2, color="grey", label="a client's belief, above the claim"),
        Patch(fill=False, hatch="//", label="stopped"),
        Patch(fill=False, hatch="xx", label="frozen, its clock too"),
        Patch(fill=False, hatch="..", label="cut off"),
        dot("o", "write"),
        dot("P", "broken by force"),
        dot("v", "fault"),
        dot("X", "killed"),
        dot("D", "wall clock stepped"),
        Line2D([], [], color="red", label="violation"),
    ]
