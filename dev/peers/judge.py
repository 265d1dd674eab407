"""What a history shows of a library: pure functions, the same for all of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from dev.chaos.beliefs import beliefs, overlaps
from dev.chaos.history import SECOND, Event, outages
from dev.chaos.tables import control_of
from dev.peers.spans import Span, length, union, without

LOCK_TABLE = "peers"
KEY = "m0"
LATE = {"late", "late_duplicate"}
"""Faults by which a request arrives when its sender has long gone on: no lock can help it there."""

AWAY = ("stop_client", "stand_still", "partition")
"""Outages in which a client cannot get a lock."""

_WRITES = {"UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"}


class Call(NamedTuple):
    """One acquire, to its end; that of one who was killed meanwhile ends then, as "killed"."""

    since: int
    until: int
    proc: str
    phase: str

    @property
    def client(self) -> str:
        return self.proc.split(".")[0]


def judge(events: list[Event], lease: float) -> dict[str, Any]:
    """Return all figures of a history."""
    acquires = calls(events)
    ok = [call for call in acquires if call.phase == "ok"]
    requests = [
        event
        for event in events
        if event["op"] == "wire" and event.get("table") == LOCK_TABLE and event["fault"] not in LATE
    ]
    return {
        "acquired": len(ok),
        **overlapping(events, lease),
        "unwritten": unwritten(events),
        "lost": lost(events, "control", control_of(KEY)),
        "lost_guarded": lost(events, "write", KEY),
        "errors": dict(errors(events).most_common()),
        "timed_out": sum(call.phase == "fail" for call in acquires),
        "blocked": len(blocked(events, lease)),
        "idle": longest_idle(events),
        "hung": sum(event["op"] == "hung" for event in events),
        "died": sum(event["op"] == "died" for event in events),
        "requests": len(requests) / len(ok) if ok else None,
        "deeds": dict(Counter(event["op"] for event in events if event["proc"] == "run")),
    }


def calls(events: list[Event]) -> list[Call]:
    """Return all acquires, in order of their ends."""
    open_calls: dict[str, int] = {}
    found = []
    for event in events:
        proc = event.get("proc_killed", event["proc"])
        if event["op"] == "acquire" and event["phase"] == "invoke":
            open_calls[proc] = event["t"]
        elif proc in open_calls and event["op"] in {"acquire", "kill"}:
            phase = event.get("phase", "killed")
            found.append(Call(open_calls.pop(proc), event["t"], proc, phase))
    return found


def _spans(events: list[Event], *deeds: str) -> dict[str, list[Span]]:
    """Return when each client met one of these outages."""
    found: dict[str, list[Span]] = defaultdict(list)
    for since, until, client, deed in outages(events):
        if deed in deeds:
            found[client].append((since, until))
    return found


def overlapping(events: list[Event], lease: float) -> dict[str, Any]:
    """Measure, in ms, how long two clients believed at one time, both awake: who is stopped can do no harm.

    Excused is what lies between the end of a freeze that the local clock did not see and the time at which
    a heartbeat, at a third of the lease, must have been answered: a second after it was due.
    """
    grace = int((lease / 3 + 1.0) * SECOND)
    asleep = _spans(events, "stop_client", "stand_still")
    resumed = {
        client: [(resumed_at, resumed_at + grace) for _, resumed_at in spans]
        for client, spans in _spans(events, "stand_still").items()
    }
    found: list[float] = []
    excused: list[float] = []
    for one, other in overlaps(beliefs(events).get(KEY, [])):
        clients = {each.proc.split(".")[0] for each in (one, other)}
        if len(clients) == 1:
            continue
        whole = [(other.since, min(one.until, other.until))]
        awake = without(whole, [span for client in clients for span in asleep.get(client, [])])
        left = without(awake, [span for client in clients for span in resumed.get(client, [])])
        if left:
            found.append(length(left) / 1e6)
        if length(left) < length(awake):
            excused.append((length(awake) - length(left)) / 1e6)
    return {"overlaps": found, "overlaps_excused": excused}


def unwritten(events: list[Event]) -> int:
    """Count acquires that succeeded though no write with their owner's name reached the lock table meanwhile."""
    writes: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["op"] == "wire" and event["applied"] and event["name"] in _WRITES:
            writes[event["proc"]].append(event)
    found = 0
    for call in calls(events):
        owner = re.compile(re.escape(call.proc) + r"(-\d+)?")
        found += call.phase == "ok" and not any(
            call.since <= event["t"] <= call.until
            and any(owner.fullmatch(str(said)) for said in event.get("says", ()))
            for event in writes[call.client]
        )
    return found


def lost(events: list[Event], op: str, row: str) -> dict[str, int]:
    """Count updates of a row that were reported as applied, and those of them that were overwritten unseen.

    Those overwritten by a request that arrived late are counted apart. What a request leaves that is applied
    for a second time is no update again: the next write need not have seen it.
    """
    reported = {
        value
        for event in events
        if event["op"] == op and event["phase"] == "ok"
        for value in event["values"].values()
    }
    seen: set[str] = set()
    last, again = "", False
    unseen = by_late = 0
    for event in events:
        for there in event.get("rows", ()) if event["op"] == "wire" else ():
            value = there.get("last", "")
            if there["key"] != row or value == last:
                continue
            if not again and last in reported and (there.get("read") != last or value in seen):
                unseen += event["fault"] not in LATE
                by_late += event["fault"] in LATE
            again = value in seen
            seen.add(value)
            last = value
    return {"acked": len(reported), "lost": unseen, "lost_by_late": by_late}


def errors(events: list[Event]) -> Counter[str]:
    """Count acquires that raised, by the error's class."""
    return Counter(
        event["error"] for event in events if event["op"] == "acquire" and event["phase"] == "info"
    )


def blocked(events: list[Event], lease: float) -> list[Call]:
    """Return the acquires that timed out though nobody had believed for two leases, and nothing kept them."""
    held = [(belief.since, belief.until) for belief in beliefs(events).get(KEY, [])]
    away = _spans(events, *AWAY)
    found = []
    for call in calls(events):
        window = (call.until - int(2 * lease * SECOND), call.until)
        others = held + away.get(call.client, [])
        if (
            call.phase == "fail"
            and call.since <= window[0]
            and without([window], others) == [window]
        ):
            found.append(call)
    return found


def longest_idle(events: list[Event]) -> float:
    """Return the longest time, in seconds, in which somebody could wait and nobody believed."""
    away = _spans(events, *AWAY)
    waiting = [
        span
        for call in calls(events)
        for span in without([(call.since, call.until)], away.get(call.client, []))
    ]
    held = [(belief.since, belief.until) for belief in beliefs(events).get(KEY, [])]
    return max((length([span]) for span in without(union(waiting), held)), default=0) / SECOND


def takeovers(events: list[Event]) -> list[float]:
    """Return the seconds from each kill of a holder to the next acquire of another client."""
    found = []
    kills = [event for event in events if event["op"] == "kill"]
    ok = [call for call in calls(events) if call.phase == "ok"]
    for kill in kills:
        after = (c.until for c in ok if c.until > kill["t"] and c.client != kill["client"])
        taken = next(after, None)
        if taken is not None:
            found.append((taken - kill["t"]) / SECOND)
    return found


def newcomers(events: list[Event]) -> list[float]:
    """Return the seconds for which each client that took a dead one's place asked for the lock at first."""
    first: dict[str, Call] = {}
    for call in calls(events):
        first.setdefault(call.proc, call)
    return [
        (call.until - call.since) / SECOND
        for proc, call in first.items()
        if call.phase == "ok" and not proc.endswith(".0")
    ]


def hand_overs(events: list[Event]) -> list[float]:
    """Return the seconds from each release to the next acquire, if that is of a client that waited already."""
    kills = [event["t"] for event in events if event["op"] == "kill"]
    ok = [call for call in calls(events) if call.phase == "ok"]
    found = []
    for event in events:
        if event["op"] != "release" or event["phase"] != "ok":
            continue
        taken = next((call for call in ok if call.until > event["t"]), None)
        if taken is None or taken.since > event["t"] or taken.proc == event["proc"]:
            continue
        if not any(event["t"] < kill < taken.until for kill in kills):
            found.append((taken.until - event["t"]) / SECOND)
    return found
