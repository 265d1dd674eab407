"""Judges a history: pure functions from events to a report.

The requests in the order of the store, with the rows after each, are the truth. The answers that clients got are
compared with it here (P1 to P3, P7, P8, and the claims of P4), their beliefs in `beliefs` (P4), and their progress in
`liveness` (P6). `verdicts` describes the properties. All of it takes O(n log n).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any

from dev.chaos.beliefs import check_beliefs, lost_by_controls
from dev.chaos.figures import figures
from dev.chaos.history import Event, in_order
from dev.chaos.liveness import check_liveness
from dev.chaos.tables import START, lock_of
from dev.chaos.verdicts import CONTROLS, Report, judge_control

State = dict[str, Any]
Lock = str
Acquisition = tuple[Lock, str, int]
"""Lock, token and version. The token alone is not enough: a repeated request may take the lock twice, with acquisitions
of others in between."""

NEVER = 253370764800.0
"""The ``expires_at`` that a holder writes if it knows no server time."""


def check(events: list[Event], facts: dict[str, Any]) -> Report:
    """Judge a run, and return the report.

    Args:
        events: The history.
        facts: The options of the run, as in `run.Options`.
    """
    events = in_order(events)
    report = Report()
    for prop in ("P1", "P2", "P3", "P4", "P7", "P8"):
        report.count(prop, 0)
    store = Store(report)
    for event in events:
        if event["op"] in {"wire", "init"}:
            store.see(event)
        elif (event["op"], event.get("phase")) == ("acquire", "ok"):
            store.reported |= {token for token, _ in event["locks"].values()}
    check_reports(events, store, report)
    taken = {acquisition: t for acquisition, (t, _) in store.taken.items()}
    ends = {acquisition: how for acquisition, (_, how) in store.ends.items()}
    check_beliefs(events, taken, ends, report)
    check_liveness(events, facts, report)
    report.figures["orphaned claims"] = store.orphans
    report.figures["locks taken again by a repeated acquire"] = store.again
    report.figures |= {CONTROLS: lost_by_controls(events), **figures(events, facts)}
    judge_control(report, events[-1]["t"])
    report.violations.sort(key=lambda violation: violation.t)
    report.seeds.append(f"{facts.get('seed')} ({facts.get('engine')})")
    return report


class Store:
    """Follows the rows from request to request, and judges each change.

    Attributes:
        taken: Time at which each acquisition appeared in the store, and the fault of its request, empty for none.
        ends: Time at which the claim of each acquisition ended, and the kind of request that ended it.
        applied: Times at which each guarded write was applied, by row and value.
        rows: The rows that clients write, as they are now.
        claims: The rows with a lock, as they are now, by lock.
        owners: The client that made each acquisition, by its token.
        reported: Tokens of acquisitions that were reported to their client as successful. A client uses such a token
            for no other acquire; and if another thread of the client is refused, that is right.
        orphans: Number of claims made by a late copy of an acquire whose token was known already.
        again: Number of acquires that took the lock once more when they were repeated, after the first claim was lost.
        disowned: Time at which each client last asked to end a claim of unknown outcome.
    """

    def __init__(self, report: Report) -> None:
        self.taken: dict[Acquisition, tuple[int, str]] = {}
        self.ends: dict[Acquisition, tuple[int, str]] = {}
        self.applied: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.rows: dict[str, State] = {}
        self.claims: dict[Lock, State] = {}
        self._report = report
        self.disowned: dict[str, int] = {}
        self.orphans = self.again = 0
        self._steps: dict[Lock, tuple[list[int], list[State]]] = defaultdict(lambda: ([], []))
        self._looked: dict[tuple[str, Lock], str | None] = {}
        self._versions: dict[Lock, int] = {}
        self.owners: dict[str, str] = {}
        self.reported: set[str] = set()
        self._tenures: dict[str, set[str]] = defaultdict(set)

    def see(self, event: Event) -> None:
        """Process the next request, or the rows at the beginning of the run."""
        before = dict(self.claims)
        if event.get("kind") == "disown":
            self.disowned[event["proc"]] = event["t"]
        if event.get("name") == "GetItem":
            for key in event["keys"]:
                lock = key.partition("/")[2]
                self._looked[event["proc"], lock] = self.claims.get(lock, {}).get("token")
        for row in event["rows"]:
            lock = lock_of(row)
            if lock is not None and event["op"] == "wire":
                self._claim(event, lock, self.claims.get(lock, {}), row)
                self.claims[lock] = row
                times, states = self._steps[lock]
                times.append(event["t"])
                states.append(row)
        for row in event["rows"]:
            if row["table"] == "rows":
                self._row(event, row, before)

    def at(self, lock: Lock, t: int) -> State:
        """Return a lock's row as it was at a time; empty if it was not written before."""
        times, states = self._steps[lock]
        place = bisect_right(times, t)
        return states[place - 1] if place else {}

    # -- claims ------------------------------------------------------------------------------------

    def _claim(self, event: Event, lock: Lock, old: State, new: State) -> None:
        """Judge a change of a lock's row: who begins, extends or ends a claim."""
        report, t = self._report, event["t"]
        token, seen = new.get("token"), old.get("token")
        before = (lock, str(seen), old.get("version") or 0)
        if token != seen and seen is not None and old.get("expires_at") is not None:
            how = event["kind"] if event["kind"] in {"force", "hand_over"} else "taken"
            self.ends.setdefault(before, (t, how if token else "deleted"))
        if token is not None and token != seen:
            self._taken(event, lock, old, new)
            return
        if token is None or new.get("version") != old.get("version"):
            if token is not None and before in self.taken:
                report.violate("P7", t, f"{lock}: the token {token} came twice")
            return
        end, was = new.get("expires_at"), old.get("expires_at")
        owner = self.owners.get(token, event["proc"])
        if end != was and event["proc"] != owner:
            text = f"{lock}: {event['kind']} of {event['proc']} changed the claim of {owner}"
            report.violate("P7", t, text)
        if was is not None and end is None:
            self.ends.setdefault(before, (t, event["kind"]))
        if was is None and end is not None:
            report.violate("P4", t, f"{lock}: {event['kind']} of {owner} revived what was released")
        if end is not None and was is not None:
            report.count("P4")
            if end < was:
                text = f"{lock}: {event['kind']} moved the end back by {was - end:.3f} s"
                report.violate("P4", t, text)

    def _taken(self, event: Event, lock: Lock, old: State, new: State) -> None:
        """Judge a write that puts another token into a lock's row: an acquisition, a hand-over or a force release."""
        report, t, token = self._report, event["t"], new["token"]
        version, highest = new.get("version") or 0, self._versions.get(lock, 0)
        report.count("P3")
        if version <= highest:
            report.violate("P3", t, f"{lock}: fencing token {version} after {highest}")
        self._versions[lock] = max(version, highest)
        if event["kind"] == "force":
            report.count("P7")
            if self._looked.get((event["proc"], lock)) != old.get("token"):
                report.violate("P7", t, f"{lock}: force broke a claim that it had not seen")
            return
        end = old.get("expires_at")
        report.count("P4")
        if event["kind"] != "hand_over" and end is not None and event["wall"] < end < NEVER:
            left = end - event["wall"]
            text = f"{lock}: {event['proc']} took a claim that had {left:.3f} s left"
            report.violate("P4", t, text)
        if token in self.owners:
            # A late copy of an acquire that finds the lock free makes a claim in which nobody believes. No condition
            # can prevent that: the copy comes after another's whole cycle. That is the one exception of I4.
            is_late = event.get("fault") in {"late", "late_duplicate"}
            self.orphans, self.again = self.orphans + is_late, self.again + (not is_late)
            if token in self.reported and not is_late:
                report.violate("P7", t, f"{lock}: the token {token} came twice")
        self.owners.setdefault(token, event["proc"])
        self.taken[lock, token, version] = (t, event.get("fault") or "")

    # -- rows --------------------------------------------------------------------------------------

    def _row(self, event: Event, new: State, before: dict[Lock, State]) -> None:
        """Judge a guarded write of a row, against the claims before the request: P1 and P2."""
        report, t, name = self._report, event["t"], new["key"]
        old = self.rows.get(name)
        self.rows[name] = new
        if old is None or name.startswith("control-"):
            return
        if (new.get("last"), new.get("ticks")) == (old.get("last"), old.get("ticks")):
            return
        value, token = new.get("last"), new.get("by") or ""
        report.count("P1")
        report.count("P2")
        claim = before.get(name, {})
        if claim.get("token") != token or claim.get("expires_at") is None:
            report.violate("P1", t, f"{name}: {value} written without the lock, by {event['proc']}")
        if new.get("fence", 0) < old.get("fence", 0):
            fences = f"{new.get('fence')} after {old.get('fence')}"
            report.violate("P1", t, f"{name}: {value} written with fencing token {fences}")
        if token != old.get("by"):
            if token in self._tenures[name]:
                report.violate(
                    "P1", t, f"{name}: {value} written by a tenure after another's write"
                )
            self._tenures[name].add(token)
        if self.applied[name, str(value)]:
            report.violate("P2", t, f"{name}: {value} was applied twice")
        elif new.get("read") != old.get("last", START):
            text = (
                f"{name}: {value} was made from {new.get('read')}, and replaced {old.get('last')}"
            )
            report.violate("P2", t, text)
        elif any(new.get(each, 0) != old.get(each, 0) + 1 for each in ("count", "ticks")):
            counts = f"count {new.get('count')}, ticks {new.get('ticks')}"
            report.violate("P2", t, f"{name}: {value} has {counts}, after {old.get('count')}")
        self.applied[name, str(value)].append(t)


def check_reports(events: list[Event], store: Store, report: Report) -> None:
    """Compare what clients were answered with what the store did (P2, P3, P7, P8)."""
    invoked: dict[tuple[str, str], int] = {}
    acquired: dict[Lock, list[tuple[int, int, int]]] = defaultdict(list)
    for event in events:
        op, phase, proc, t = event["op"], event.get("phase"), event["proc"], event["t"]
        if phase == "invoke":
            invoked[proc, op] = t
            continue
        since = invoked.get((proc, op), t)
        if event.get("typed") is False:
            report.violate("P7", t, f"{proc}: {op} raised {event['error']}: {event['text']}")
        if (op, phase) == ("acquire", "ok"):
            for lock, (_, fence) in event["locks"].items():
                acquired[lock].append((since, t, fence))
        answer = _ANSWERS.get((op, phase))
        if answer is not None:
            answer(event, since, store, report)
    for lock, each in acquired.items():
        _fences_grow(lock, each, report)


def _check_write(event: Event, since: int, store: Store, report: Report) -> None:
    """Check the answer to a guarded write: applied, or not applied. A write of unknown outcome is not judged."""
    report.count("P2")
    for row, value in event["values"].items():
        times, t = store.applied.get((row, value), []), event["t"]
        if event["phase"] == "ok" and not any(at <= t for at in times):
            report.violate("P2", t, f"{row}: {value} was reported as applied, and was not")
        if event["phase"] == "fail" and times:
            report.violate("P2", t, f"{row}: {value} was reported as not applied, and was")


def _check_held(event: Event, since: int, store: Store, report: Report) -> None:
    """Check an acquire that was reported as successful: the claim was made, and made during the call."""
    for lock, (token, fence) in event["locks"].items():
        report.count("P7")
        report.count("P8")
        at, _ = store.taken.get((lock, token, fence), (None, ""))
        if at is None or at > event["t"]:
            text = f"{lock}: {event['proc']} is said to hold it, with fencing token {fence}"
            report.violate("P7", event["t"], text)
        elif at < since:
            report.violate("P8", event["t"], f"{lock}: taken before it was asked for")


def _check_not_held(event: Event, since: int, store: Store, report: Report) -> None:
    """Check an acquire that failed: it left no claim, unless its request came late or the client ended the claim."""
    client, t = event["proc"].split(".")[0], event["t"]
    report.count("P7")
    for lock in event["names"]:
        claim = store.at(lock, t)
        token = claim.get("token", "")
        at, fault = store.taken.get((lock, token, claim.get("version", 0)), (0, ""))
        mine = claim.get("expires_at") is not None and store.owners.get(token) == client
        if token in store.reported:
            continue
        if mine and since <= at <= t and fault not in {"late", "stall"}:
            ended = store.disowned.get(client, 0)
            if not at <= ended <= t:
                report.violate(
                    "P7", t, f"{lock}: {client} was answered that another holds it: it does itself"
                )


def _check_released(event: Event, since: int, store: Store, report: Report) -> None:
    """Check a release that was reported as successful: the claim had ended."""
    for lock, (token, fence) in event["locks"].items():
        report.count("P8")
        if (lock, token, fence) not in store.taken:
            continue
        ended, _ = store.ends.get((lock, token, fence), (None, ""))
        if ended is None or ended > event["t"]:
            report.violate("P7", event["t"], f"{lock}: reported as released, and was not")


def _fences_grow(lock: Lock, acquired: list[tuple[int, int, int]], report: Report) -> None:
    """Check that an acquire that began after another was reported as successful has the higher fencing token."""
    ends = sorted((until, fence) for _, until, fence in acquired)
    highest, place = 0, 0
    for since, t, fence in sorted(acquired):
        while place < len(ends) and ends[place][0] < since:
            highest, place = max(highest, ends[place][1]), place + 1
        report.count("P3")
        if fence <= highest:
            report.violate("P3", t, f"{lock}: reported fencing token {fence} after {highest}")


def _check_final(event: Event, since: int, store: Store, report: Report) -> None:
    """Check that the rows at the end are those of the last writes that were seen."""
    for row in event["rows"]:
        seen = store.rows.get(row["key"], {})
        if any(seen.get(name) != row[name] for name in ("last", "count", "ticks")):
            report.violate("P2", event["t"], f"{row['key']}: in the end {row}, last seen {seen}")


def _check_forked(event: Event, since: int, store: Store, report: Report) -> None:
    """Check that a forked child neither held nor could use its parent's lock."""
    report.count("P7")
    if event["held"] or len(event["refused"]) < 2:
        report.violate(
            "P7", event["t"], f"{event['proc']}: a forked child could use its parent's lock"
        )


_ANSWERS = {
    ("acquire", "ok"): _check_held,
    ("acquire", "fail"): _check_not_held,
    ("write", "ok"): _check_write,
    ("write", "fail"): _check_write,
    ("release", "ok"): _check_released,
    ("fork", None): _check_forked,
    ("final", None): _check_final,
}
