"""Checks P4, that no two clients believe to hold a lock at the same time, and counts for P5 what the controls lost.

`worker` records the beliefs. `checker` judges the claims in the store, and calls this.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import NamedTuple

from dev.chaos.figures import Counts, Samples
from dev.chaos.history import SECOND, Event
from dev.chaos.verdicts import Report

RESUMED = 0.5
"""Seconds from the first answer after a freeze within which a client must have stopped believing wrongly."""


EARLIEST = SECOND // 20
"""Nanoseconds after a freeze in which an answer may belong to a request that was under way before it."""


class Belief(NamedTuple):
    """A time in which a client believed that it held a lock.

    Attributes:
        since: Its beginning, in nanoseconds of the harness's clock.
        until: Its end, in the same nanoseconds.
        proc: The thread of the client.
        token: Token of the acquisition.
        fence: Fencing token of the acquisition.
    """

    since: int
    until: int
    proc: str
    token: str
    fence: int


def beliefs(events: list[Event]) -> dict[str, list[Belief]]:
    """Return the beliefs of all clients for each lock, in the order of time."""
    spans: dict[tuple[str, str, str, int], tuple[int, int]] = {}
    for event in events:
        if event["op"] == "belief":
            for lock, (token, fence) in event["locks"].items():
                key = lock, event["proc"], token, fence
                since, until = spans.get(key, (event["since"], event["until"]))
                spans[key] = min(since, event["since"]), max(until, event["until"])
    found: dict[str, list[Belief]] = defaultdict(list)
    for (lock, proc, token, fence), (since, until) in spans.items():
        found[lock].append(Belief(since, until, proc, token, fence))
    return {lock: sorted(each) for lock, each in found.items()}


def overlaps(found: list[Belief]) -> list[tuple[Belief, Belief]]:
    """Return the pairs of beliefs in one lock that overlap, by a sweep over their beginnings."""
    pairs: list[tuple[Belief, Belief]] = []
    standing: list[tuple[int, Belief]] = []
    for belief in sorted(found):
        while standing and standing[0][0] <= belief.since:
            heapq.heappop(standing)
        pairs += [(other, belief) for _, other in standing]
        heapq.heappush(standing, (belief.until, belief))
    return pairs


def check_beliefs(
    events: list[Event],
    taken: dict[tuple[str, str, int], int],
    ends: dict[tuple[str, str, int], str],
    report: Report,
) -> None:
    """Report beliefs that overlap, unless one of the claims was broken by force, or its client had been frozen.

    A client whose clock stood still may believe until the library has the answer to a request that it sent afterwards.

    Args:
        events: The history.
        taken: Time at which each acquisition appeared in the store, by lock, token and version.
        ends: How its claim ended there, by the same.
        report: The report to which violations and figures are added.
    """
    excused = _thaws(events)
    lengths = {kind: Samples() for kind in ("violating", "of forced", "of resumed")}
    for lock, found in beliefs(events).items():
        report.count("P4", len(found))
        for one, other in overlaps(found):
            start, end = other.since, min(one.until, other.until)
            length = (end - start) / SECOND
            if any(ends.get((lock, each.token, each.fence)) == "force" for each in (one, other)):
                lengths["of forced"].append(length)
                continue
            if any(
                taken.get((lock, each.token, each.fence), each.since) < resumed and end <= until
                for each in (one, other)
                for resumed, until in excused.get(each.proc.split(".")[0], [])
            ):
                lengths["of resumed"].append(length)
                continue
            lengths["violating"].append(length)
            text = f"{lock}: {one.proc} and {other.proc} both believed for {length * 1000:.1f} ms"
            report.violate("P4", start, text)
    for kind, each in lengths.items():
        report.figures[f"beliefs overlapping, {kind}, s"] = each


def _thaws(events: list[Event]) -> dict[str, list[tuple[int, int]]]:
    """Return for each client the times after a freeze in which it may believe wrongly: since, until."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    resumed: dict[str, int] = {}
    for event in events:
        if event["op"] == "resume" and event["still"]:
            resumed.setdefault(event["client"], event["t"])
        since = resumed.get(event["proc"])
        if since is not None and _shows_time(event) and event["t"] - since > EARLIEST:
            found[event["proc"]].append((since, event["t"] + int(RESUMED * SECOND)))
            del resumed[event["proc"]]
    for client, since in resumed.items():
        found[client].append((since, 1 << 62))
    return found


def _shows_time(event: Event) -> bool:
    """Return whether the library learned server time from a request; it does not see those of plain models."""
    return (
        event["op"] == "wire"
        and event.get("fault") is None
        and event["status"] is not None
        and any(key.startswith(("locks/", "rows/r")) for key in event["keys"])
    )


def lost_by_controls(events: list[Event]) -> Counts:
    """Count the writes to the controls that were reported as applied: those kept, and those lost.

    A write is lost if the next one was made from an older value, and has overwritten it unseen.
    """
    reported = {
        (row, value)
        for event in events
        if event["op"] == "control" and event["phase"] == "ok"
        for row, value in event["values"].items()
    }
    last: dict[str, str] = {}
    lost = 0
    for event in events:
        if event["op"] != "wire":
            continue
        for row in event["rows"]:
            name = row["key"].removeprefix("control-")
            if name == row["key"] or row.get("last") == last.get(name):
                continue
            before = last.get(name)
            if before is not None and row.get("read") != before and (name, before) in reported:
                lost += 1
            last[name] = row.get("last", "")
    return Counts({"kept": len(reported) - lost, "lost": lost})
