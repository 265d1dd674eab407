"""The figures of a run."""

from __future__ import annotations

from collections import Counter
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
    calls = _Calls()
    for event in events:
        calls.see(event)
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
        "requests per acquire, free": _mean(calls.requests[False]),
        "requests per acquire, contended": _mean(calls.requests[True]),
        "acquire latency, free": percentiles(calls.waits[False]),
        "acquire latency, contended": percentiles(calls.waits[True]),
        "fairness (Jain)": f"{jain(list(map(float, calls.served.values()))):.3f}",
    }


class _Calls:
    """Acquires that succeeded: their requests and their time, by whether somebody held a lock then."""

    def __init__(self) -> None:
        self.waits: dict[bool, list[float]] = {False: [], True: []}
        self.requests: dict[bool, list[int]] = {False: [], True: []}
        self.served: Counter[str] = Counter()
        self._standing: dict[str, bool] = {}
        self._sent: Counter[str] = Counter()
        self._begun: dict[str, tuple[int, int, bool]] = {}

    def see(self, event: Event) -> None:
        client = event["proc"].split(".")[0]
        if event["op"] == "wire":
            if event.get("fault") not in {"late", "late_duplicate"}:
                self._sent[client] += 1
            for row in event["rows"]:
                self._standing[row["key"]] = row.get("expires_at") is not None
        elif event["op"] == "acquire" and event["phase"] == "invoke":
            held = any(self._standing.get(name) for name in event["names"])
            self._begun[event["proc"]] = (event["t"], self._sent[client], held)
        elif event["op"] == "acquire" and event["phase"] == "ok":
            since, sent, held = self._begun[event["proc"]]
            self.waits[held].append((event["t"] - since) / SECOND)
            self.requests[held].append(self._sent[client] - sent)
            self.served[client] += 1


def _mean(values: list[int]) -> str:
    return f"{sum(values) / len(values):.2f}" if values else "none"


def _phases(phases: Counter[Any], op: str) -> str:
    ok, fail, info = (phases[op, phase] for phase in ("ok", "fail", "info"))
    return f"{ok} ok, {fail} refused, {info} unknown"


def _listed(counted: Counter[Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.most_common()) or "none"
