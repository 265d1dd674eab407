"""The judge: figures of a library, from the history of a run, by the same rules for all of them.

The history has three sources: what the clients recorded of their calls and beliefs, what the proxies recorded of each
request and of the rows that it left, and the faults. `judge` returns all figures of a run with faults; `takeovers`,
`newcomers` and `hand_overs` are for a run in which only holders are killed. All functions are pure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from dev.chaos.beliefs import beliefs, overlaps
from dev.chaos.history import SECOND, Event, outages
from dev.chaos.tables import control_of
from dev.peers import KEY
from dev.peers.spans import Span, length, union, without

LOCK_TABLE = "peers"
"""Name of the lock table in the history."""

LATE = {"late", "late_duplicate"}
"""Faults by which a request arrives long after its sender has given it up: a lock alone cannot prevent what it does."""

AWAY = ("stop_client", "stand_still", "partition")
"""Outages in which a client cannot acquire a lock."""

_WRITES = {"UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"}


class Call(NamedTuple):
    """One call of acquire by a client.

    Attributes:
        since: Nanoseconds at which it began.
        until: Nanoseconds at which it ended, or the client was killed.
        proc: Process of the client: each that takes the place of a killed one has another.
        phase: Outcome: "ok", "fail" for a timeout, "info" for an error, or "killed".
    """

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
    """Return all calls of acquire that have ended, in the order of their ends."""
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
    """Return the spans of the outages of some kinds, by client."""
    found: dict[str, list[Span]] = defaultdict(list)
    for since, until, client, deed in outages(events):
        if deed in deeds:
            found[client].append((since, until))
    return found


def overlapping(events: list[Event], lease: float) -> dict[str, Any]:
    """Measure how long two clients believed at the same time that they hold the lock.

    Only time in which both are awake counts: a client that is stopped can do no harm. Excused is the time after a
    freeze that the local clock did not count, until a heartbeat must have been answered: a third of the lease, after
    which it is due, and a second. Before that no library can know that its lease is over.

    Returns:
        Lists of milliseconds, one for each pair of beliefs: ``overlaps`` and ``overlaps_excused``.
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
    """Count acquires that were reported as successful, though no write with their owner was applied meanwhile."""
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
    """Count the updates of a row that were reported as applied, and those of them that were lost.

    Each update writes a value of its own (``last``), and the value that its client had read (``read``). It is lost if
    the next write was made by a client that had not read it.

    Args:
        events: The history.
        op: Name of the updates in the history.
        row: Key of the row.

    Returns:
        Numbers of updates that were reported as applied (``acked``), that were overwritten unseen (``lost``), and that
        were overwritten unseen by a request that arrived late (``lost_by_late``).
    """
    reported = {
        value
        for event in events
        if event["op"] == op and event["phase"] == "ok"
        for value in event["values"].values()
    }
    seen: set[str] = set()
    # `again`: the value in the row is that of a request that was applied for a second time. It is no new update, and
    # the next write need not have read it: what it has overwritten was counted when it arrived.
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
    """Count the acquires that raised an error, by its class."""
    return Counter(
        event["error"] for event in events if event["op"] == "acquire" and event["phase"] == "info"
    )


def blocked(events: list[Event], lease: float) -> list[Call]:
    """Return the acquires that timed out although the lock was free.

    That is, in their last two leases no client believed that it held the lock, and their own client had no outage.
    """
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
    """Return the longest time, in seconds, in which a client without an outage waited and none believed."""
    away = _spans(events, *AWAY)
    waiting = [
        span
        for call in calls(events)
        for span in without([(call.since, call.until)], away.get(call.client, []))
    ]
    held = [(belief.since, belief.until) for belief in beliefs(events).get(KEY, [])]
    return max((length([span]) for span in without(union(waiting), held)), default=0) / SECOND


def takeovers(events: list[Event]) -> list[float]:
    """Return the seconds from each kill of a holder to the next acquisition of another client."""
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
    """Return the seconds of the first acquisition of each process that has replaced a killed one."""
    first: dict[str, Call] = {}
    for call in calls(events):
        first.setdefault(call.proc, call)
    return [
        (call.until - call.since) / SECOND
        for proc, call in first.items()
        if call.phase == "ok" and not proc.endswith(".0")
    ]


def hand_overs(events: list[Event]) -> list[float]:
    """Return the seconds from each release to the next acquisition.

    Only if that is made by another client which waited before the release, and none was killed in between.
    """
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
