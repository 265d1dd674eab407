"""P5 and P6: the positive control, and that everybody gets on."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from proof.beliefs import lost_by_twins
from proof.history import SECOND, Event
from proof.verdicts import Report, percentiles

SLACK = 1.0
"""Seconds for polling and for a busy machine."""

FREE = 3.0
"""Seconds for which nobody must be kept waiting for a key that is free."""


def check_liveness(events: list[Event], facts: dict[str, Any], report: Report) -> None:
    """Judge P5 and P6."""
    twins = lost_by_twins(events)
    report.figures["unguarded twin"] = f"{twins['lost']} of {twins['acked']} acknowledged lost"
    pauses = sum(event["op"] in {"stop_client", "stand_still"} for event in events)
    if facts.get("nemesis") and pauses >= 3:
        report.count("P5")
        if not twins["lost"]:
            report.violate("P5", events[-1]["t"], "the unguarded twin lost nothing")
    _takeovers(events, facts, report)
    _everybody(events, report)
    _free_keys(events, report)


def _claims(events: list[Event]) -> list[tuple[int, str, dict[str, Any], Event]]:
    """Return each row of a claim, in order: time, lock, state."""
    return [
        (event["t"], row["key"], row, event)
        for event in events
        if event["op"] == "wire"
        for row in event["rows"]
        if row["table"] == "locks" or row["key"].startswith("r")
    ]


def _takeovers(events: list[Event], facts: dict[str, Any], report: Report) -> None:
    """How long dead holders kept others waiting; judged for the last kill, in the quiet after it.

    Who came later than the lock was free waited for nothing; who wants several may wait for another.
    """
    free_after = int((1.01 * facts.get("lease", 0.0) + 2.5) * SECOND)
    bound = free_after / SECOND + SLACK
    report.figures["takeover bound"] = f"{bound:.3f} s (1.01 lease + 2.5 s + {SLACK} s)"
    times: list[float] = []
    owners: dict[str, str] = {}
    claims: dict[str, tuple[int, dict[str, Any]]] = {}
    dead: dict[str, tuple[int, str, bool]] = {}
    asked: dict[str, Event] = {}
    for event in events:
        if event["op"] == "acquire" and event["phase"] == "invoke":
            asked[event["proc"].split(".")[0]] = event
        if event["op"] == "kill":
            for lock, (since, row) in claims.items():
                if row.get("expires_at") and owners.get(row["token"]) == event["client"]:
                    dead[lock] = (since, row["token"], event["last"])
        for t, lock, row, _ in _claims([event]):
            token = row.get("token")
            if lock in dead and token != dead[lock][1]:
                since, _, last = dead.pop(lock)
                call = asked.get(event["proc"])
                if call is not None and call["t"] < since + free_after:
                    times.append((t - since) / SECOND)
                    if last and len(call["names"]) == 1:
                        report.count("P6")
                        if times[-1] > bound:
                            text = f"{lock}: taken {times[-1]:.3f} s after the dead holder's last renewal"
                            report.violate("P6", t, text)
            owners.setdefault(token, event["proc"])
            claims[lock] = (t, row)
    report.figures["takeover of the killed"] = percentiles(times)


def _everybody(events: list[Event], report: Report) -> None:
    """In the quiet at the end each client that lives gets a lock, and each lock is had."""
    quiet = next((event["t"] for event in events if event["op"] == "quiet"), None)
    stop = next((event["t"] for event in events if event["op"] == "stop"), None)
    if quiet is None or stop is None:
        return
    living: dict[str, str] = {}
    served: set[str] = set()
    for event in events:
        if event["op"] == "start" and event["t"] < quiet:
            living[event["proc"].split(".")[0]] = event["proc"]
        if event["op"] == "kill":
            living.pop(event["client"], None)
        if event["op"] == "acquire" and event["phase"] == "ok" and quiet < event["t"] < stop:
            served |= {event["proc"], *event["locks"]}
        if event["op"] == "hung":
            report.violate("P6", event["t"], f"{event['client']} did not end when told to")
    locks = {lock for _, lock, _, _ in _claims(events)}
    for each in sorted({*living.values(), *locks}):
        report.count("P6")
        if each not in served:
            report.violate("P6", stop, f"{each} was not served in the quiet at the end")


def _free_keys(events: list[Event], report: Report) -> None:
    """Nobody who can reach the store waits long for a key that is free."""
    free: dict[str, list[tuple[int, bool]]] = defaultdict(list)
    for t, lock, row, _ in _claims(events):
        free[lock].append((t, row.get("expires_at") is None))
    answered: dict[str, list[int]] = defaultdict(list)
    invoked: dict[str, Event] = {}
    for event in events:
        if event["op"] == "wire" and event["status"] is not None and event["fault"] is None:
            answered[event["proc"]].append(event["t"])
        if event["op"] != "acquire":
            continue
        if event["phase"] == "invoke":
            invoked[event["proc"]] = event
        elif event["phase"] == "fail" or event.get("error") == "MutexTimeoutError":
            since = invoked[event["proc"]]["t"] if event["proc"] in invoked else event["t"]
            asked = sum(since < t < event["t"] for t in answered[event["proc"].split(".")[0]])
            idle = all(_always_free(free[lock], since, event["t"]) for lock in event["names"])
            report.count("P6")
            if asked >= 3 and idle:
                report.violate(
                    "P6", event["t"], f"{event['proc']} waited for the free {event['names']}"
                )


def _always_free(steps: list[tuple[int, bool]], since: int, until: int) -> bool:
    before = [is_free for t, is_free in steps if t <= since]
    return (before[-1] if before else True) and all(
        is_free for t, is_free in steps if since < t <= until
    )
