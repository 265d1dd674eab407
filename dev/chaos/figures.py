"""The figures of a run: how much happened, how long it took, and how often each fault came.

They can be added up over several runs. `checker` adds figures of its own; `verdicts` prints them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from dev.chaos.history import SECOND, Event

DEEDS = (
    "stop_client", "stand_still", "step_wall", "kill", "partition", "fork", "force", "reap",
)  # fmt: skip


class Samples(list[float]):
    """Measured values of one kind; as text: mean, percentiles, maximum and number."""

    def __str__(self) -> str:
        if not self:
            return "none"
        ranked = sorted(self)
        high = ranked[min(len(ranked) - 1, math.ceil(0.99 * len(ranked)) - 1)]
        middle, mean = ranked[len(ranked) // 2], sum(ranked) / len(ranked)
        return (
            f"mean {mean:.3f}, p50 {middle:.3f}, p99 {high:.3f}, max {ranked[-1]:.3f}"
            f" ({len(ranked)})"
        )


class Counts(Counter[str]):
    """Number of times that each thing happened; as text: a list."""

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {count:,}" for name, count in self.most_common())
        return f"{self.total():,}: {listed}" if self else "none"


Figures = dict[str, "int | float | Samples | Counts"]


def added_up(each: Iterable[Figures]) -> Figures:
    """Return the sum of the figures of several runs."""
    whole: Figures = {}
    for figures in each:
        for name, value in figures.items():
            so_far = whole.get(name)
            if isinstance(value, Counts):
                whole[name] = Counts(value if so_far is None else so_far + value)
            elif isinstance(value, Samples):
                whole[name] = Samples(value if so_far is None else so_far + value)
            else:
                whole[name] = value + (so_far or 0)
    return whole


def figures(events: list[Event], facts: dict[str, Any]) -> Figures:
    """Return the figures of a run from its history and its facts."""
    wire = [event for event in events if event["op"] == "wire"]
    calls = _Calls()
    for event in events:
        calls.see(event)
    return {
        "seconds of attack": facts.get("seconds", 0.0),
        "requests in all": len(wire),
        **{f"{op}s": _outcomes(events, op) for op in ("acquire", "write", "release")},
        "errors reported": Counts(event["error"] for event in events if "typed" in event),
        "faults": Counts(event["fault"] for event in wire if event["fault"]),
        "injector": Counts(event["op"] for event in events if event["op"] in DEEDS),
        "requests of clients": Counts(e["kind"] for e in wire if e["proc"].startswith("c")),
        "requests per acquire, free": calls.requests[False],
        "requests per acquire, contended": calls.requests[True],
        "acquire latency, free, s": calls.waits[False],
        "acquire latency, contended, s": calls.waits[True],
        "fairness (Jain)": Samples([jain(list(map(float, calls.served.values())))]),
    }


class _Calls:
    """Requests and waiting times of acquires that succeeded, by whether the lock was held when they began.

    Requests are counted for clients with one thread only: the proxy does not see which thread of a client sent one.

    Attributes:
        waits: Durations in seconds, by whether the lock was held.
        requests: Numbers of requests, by whether the lock was held.
        served: Number of acquires that succeeded, by client and thread.
    """

    def __init__(self) -> None:
        self.waits = {False: Samples(), True: Samples()}
        self.requests = {False: Samples(), True: Samples()}
        self.served: Counter[str] = Counter()
        self._standing: dict[str, bool] = {}
        self._sent: Counter[str] = Counter()
        self._begun: dict[str, tuple[int, int, bool]] = {}
        self._threads: dict[str, set[str]] = {}

    def see(self, event: Event) -> None:
        """Process the next event of the history."""
        proc = event["proc"]
        client, thread = proc.split(".")[0], proc.partition("t")[2]
        if event["op"] == "start":
            self._threads.setdefault(client, set()).add(thread)
        elif event["op"] == "wire":
            if event.get("fault") not in {"late", "late_duplicate"}:
                self._sent[client] += 1
            for row in event["rows"]:
                self._standing[row["key"]] = row.get("expires_at") is not None
        elif event["op"] == "acquire" and event["phase"] == "invoke":
            held = any(self._standing.get(name) for name in event["names"])
            self._begun[proc] = (event["t"], self._sent[client], held)
        elif event["op"] == "acquire" and event["phase"] == "ok":
            since, sent, held = self._begun[proc]
            self.waits[held].append((event["t"] - since) / SECOND)
            if len(self._threads.get(client, ())) < 2:
                self.requests[held].append(self._sent[client] - sent)
            self.served[client + thread] += 1


def _outcomes(events: list[Event], op: str) -> Counts:
    names = {"ok": "ok", "fail": "refused", "info": "unknown"}
    phases = (event["phase"] for event in events if event["op"] == op)
    return Counts(names[phase] for phase in phases if phase in names)


def jain(values: list[float]) -> float:
    """Return Jain's index of fairness: 1 if all of n values are equal, 1/n if all but one are zero."""
    squares = len(values) * sum(value * value for value in values)
    return sum(values) ** 2 / squares if squares else 1.0
