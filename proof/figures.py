"""The figures of a run."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from proof.history import SECOND, Event
from proof.verdicts import Report, jain, percentiles

_DEEDS = (
    "stop_client", "stand_still", "step_wall", "kill", "partition", "fork", "force", "reap",
)  # fmt: skip


def figures(events: list[Event], facts: dict[str, Any], report: Report) -> dict[str, Any]:
    """Count what happened."""
    phases = Counter((event["op"], event.get("phase")) for event in events)
    wire = [event for event in events if event["op"] == "wire"]
    faults = Counter(event["fault"] for event in wire if event["fault"])
    deeds = Counter(event["op"] for event in events if event["op"] in _DEEDS)
    requests = Counter(event["kind"] for event in wire if event["proc"].startswith("c"))
    waits: list[float] = []
    invoked: dict[str, int] = {}
    served: dict[str, int] = defaultdict(int)
    for event in events:
        if event["op"] != "acquire":
            continue
        if event["phase"] == "invoke":
            invoked[event["proc"]] = event["t"]
        elif event["phase"] == "ok":
            waits.append((event["t"] - invoked[event["proc"]]) / SECOND)
            served[event["proc"].split(".")[0]] += 1
    acquired = phases["acquire", "ok"]
    errors = Counter(event["error"] for event in events if "typed" in event)
    return {
        "seed": facts.get("seed"),
        "engine": facts.get("engine"),
        "seconds": facts.get("seconds"),
        "wall time": f"{facts.get('wall_seconds', 0.0):.0f} s",
        "requests in all": len(wire),
        "acquires": f"{acquired} ok, {phases['acquire', 'fail']} not free, {phases['acquire', 'info']} unknown",
        "guarded writes": _phases(phases, "write"),
        "releases": _phases(phases, "release"),
        "faults": f"{sum(faults.values())}: {_listed(faults)}",
        "nemesis": _listed(deeds),
        "clocks falsified": facts.get("clocks"),
        "errors told": _listed(errors),
        "requests of clients": _listed(requests),
        "acquire requests per acquire": f"{requests['acquire'] / max(1, acquired):.2f}",
        "acquire latency": percentiles(waits),
        "fairness (Jain)": f"{jain(list(map(float, served.values()))):.3f}",
    }


def _phases(phases: Counter[Any], op: str) -> str:
    ok, fail, info = (phases[op, phase] for phase in ("ok", "fail", "info"))
    return f"{ok} ok, {fail} refused, {info} unknown"


def _listed(counted: Counter[Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.most_common()) or "none"
