"""A picture of what happened around a violation: who held, who believed, who was stopped, what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from proof.beliefs import beliefs
from proof.checker import lock_of
from proof.history import SECOND, Event
from proof.verdicts import Report

WINDOW = 4.0
"""Seconds shown before and after the first violation."""

_COLORS = plt.get_cmap("tab10").colors


def draw(events: list[Event], report: Report, path: Path) -> Path:
    """Draw the time around the first violation, or the end if there is none; return the path."""
    middle = report.violations[0].t if report.violations else events[-1]["t"]
    start, end = middle - int(WINDOW * SECOND), middle + int(WINDOW * SECOND)
    clients = sorted({event["proc"] for event in events if event["op"] == "wire"})
    held = _claims(events, end)
    locks = sorted(held)
    lanes = {name: place for place, name in enumerate([*reversed(locks), *reversed(clients)])}
    colors = {client: _COLORS[place % 10] for place, client in enumerate(clients)}
    figure, axes = plt.subplots(figsize=(14, 1.5 + 0.55 * len(lanes)), layout="constrained")

    def at(t: int) -> float:
        return (t - middle) / SECOND

    def bar(lane: str, since: int, until: int, **look: Any) -> None:
        since, until = max(since, start), min(until, end)
        if until > since:
            axes.barh(lanes[lane], at(until) - at(since), left=at(since), **look)

    for lock, spans in held.items():
        for since, until, client in spans:
            bar(lock, since, until, height=0.7, color=colors.get(client, "grey"), edgecolor="white")
    places = {lock: place for place, lock in enumerate(locks)}
    step = 0.7 / max(1, len(locks))
    for lock, found in beliefs(events).items():
        for belief in found:
            client = belief.proc.split(".")[0]
            since, until = max(belief.since, start), min(belief.until, end)
            if until > since and client in lanes:
                height = lanes[client] - 0.3 + places.get(lock, 0) * step
                axes.plot([at(since), at(until)], [height] * 2, lw=3, color=colors[client])
                axes.annotate(lock, (at(since), height), fontsize=6, va="center", ha="right")
    for since, until, client, what in _outages(events):
        look = {"stopped": "//", "frozen": "xx", "cut off": ".."}[what]
        bar(
            client,
            since,
            until,
            height=0.9,
            fill=False,
            hatch=look,
            edgecolor="silver",
            lw=0,
            zorder=0,
        )
    for event in events:
        if start <= event["t"] <= end:
            _mark(axes, event, at(event["t"]), lanes, colors)
    for violation in report.violations:
        if start <= violation.t <= end:
            axes.axvline(at(violation.t), color="red", lw=1, zorder=5)
    if report.violations:
        first = report.violations[0]
        axes.set_title(f"{first.property}: {first.text}", fontsize=10, color="red", loc="left")
    axes.set_yticks(list(lanes.values()), list(lanes))
    axes.set_xlim(-WINDOW, WINDOW)
    axes.set_xlabel(f"seconds from {middle / SECOND:.3f}")
    figure.legend(handles=_legend(), loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _claims(events: list[Event], end: int) -> dict[str, list[tuple[int, int, str]]]:
    """When the store showed whose claim, for each lock."""
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


def _outages(events: list[Event]) -> list[tuple[int, int, str, str]]:
    begun: dict[str, tuple[int, str]] = {}
    names = {"stop_client": "stopped", "stand_still": "frozen", "partition": "cut off"}
    found = []
    for event in events:
        if event["op"] in names:
            begun[event["client"]] = (event["t"], names[event["op"]])
        elif event["op"] in {"resume", "heal"} and event["client"] in begun:
            since, what = begun.pop(event["client"])
            found.append((since, event["t"], event["client"], what))
    return found


def _mark(axes: Any, event: Event, x: float, lanes: dict[str, int], colors: dict[str, Any]) -> None:
    """Mark a write in its row's lane, and a fault, a kill or a step of a clock in its client's."""
    if event["op"] == "wire":
        for row in event["rows"]:
            if row["table"] == "rows" and row["key"] in lanes and event["kind"] in _WRITES:
                axes.plot(x, lanes[row["key"]], "o", ms=4, color="black")
        if event.get("fault"):
            y = lanes[event["proc"]] + 0.38
            axes.plot(x, y, "v", ms=4, color=colors[event["proc"]])
            axes.annotate(event["fault"], (x, y), fontsize=5, rotation=45)
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
        Line2D([], [], lw=3, color="grey", label="a client's belief"),
        Patch(fill=False, hatch="//", label="stopped"),
        Patch(fill=False, hatch="xx", label="frozen, its clock too"),
        Patch(fill=False, hatch="..", label="cut off"),
        dot("o", "write"),
        dot("v", "fault"),
        dot("X", "killed"),
        dot("D", "wall clock stepped"),
        Line2D([], [], color="red", label="violation"),
    ]
