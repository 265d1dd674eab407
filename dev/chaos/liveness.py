"""Checks P6, liveness: dead holders' locks are taken in time, all clients get locks, and free keys are acquired."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from dev.chaos.figures import Samples
from dev.chaos.history import SECOND, Event
from dev.chaos.tables import lock_of
from dev.chaos.verdicts import Report

SLACK = 3.0
"""Seconds that are allowed in addition for polling and for a busy machine."""

ANSWERS = 3
"""Number of answers for each key after which a client that waits for free keys must have acquired them."""


def check_liveness(events: list[Event], facts: dict[str, Any], report: Report) -> None:
    """Judge P6 by a history, and add violations and figures to a report."""
    _takeovers(events, facts, report)
    _everybody(events, report)
    _free_keys(events, report)


def _claims(event: Event) -> list[tuple[int, str, dict[str, Any]]]:
    """Return the rows with a lock that a request has written: time, lock, and the row after it."""
    return [
        (event["t"], row["key"], row)
        for row in (event["rows"] if event["op"] == "wire" else ())
        if lock_of(row) is not None
    ]


class _Deaths:
    """Follows the claims in the store, and those whose holders were killed.

    Attributes:
        owners: The client that made each acquisition, by its token.
        claims: The last write of each lock's row: its time, and the row after it.
        dead: Claims of killed clients, by lock: time of the last write, token, and whether it was the last kill.
    """

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.claims: dict[str, tuple[int, dict[str, Any]]] = {}
        self.dead: dict[str, tuple[int, str, bool]] = {}

    def see(self, event: Event) -> list[tuple[str, str, int, bool]]:
        """Process the next event; return the dead holders' locks that it takes.

        Returns:
            For each of them the lock, the token of the taker, the time of the dead holder's last write, and whether
            that holder was the last to be killed.
        """
        if event["op"] == "kill":
            for lock, (since, row) in self.claims.items():
                if row.get("expires_at") and self.owners.get(row["token"]) == event["client"]:
                    self.dead[lock] = (since, row["token"], event["last"])
        taken = []
        for t, lock, row in _claims(event):
            token = row.get("token")
            if lock in self.dead and token != self.dead[lock][1]:
                since, _, last = self.dead.pop(lock)
                taken.append((lock, str(token), since, last))
            self.owners.setdefault(str(token), event["proc"])
            self.claims[lock] = (t, row)
        return taken


def _takeovers(events: list[Event], facts: dict[str, Any], report: Report) -> None:
    """Measure for how long dead holders kept others waiting; judge it for the last kill, after which faults end.

    An acquire that began after the lock was free did not wait for the dead holder. One of several locks may have waited
    for another of them, and is not judged.
    """
    free_after = int((1.01 * facts.get("lease", 0.0) + 2.5) * SECOND)
    bound = free_after / SECOND + SLACK
    times = Samples()
    deaths, calls = _Deaths(), _calls(events)
    for event in events:
        for lock, token, since, last in deaths.see(event):
            call = calls.get(token)
            if call is None or call["t"] >= since + free_after:
                continue
            times.append((event["t"] - since) / SECOND)
            if last and len(call["names"]) == 1:
                report.count("P6")
                if times[-1] > bound:
                    text = f"{lock}: taken {times[-1]:.3f} s after the dead holder's last renewal"
                    report.violate("P6", event["t"], text)
    report.figures[f"takeover of the killed, s (bound {bound:.2f})"] = times


def _calls(events: list[Event]) -> dict[str, Event]:
    """Return the ``acquire`` event that led to each token, for the acquires that were answered with success."""
    asked: dict[str, Event] = {}
    calls: dict[str, Event] = {}
    for event in events:
        if event["op"] == "acquire" and event["phase"] == "invoke":
            asked[event["proc"]] = event
        elif event["op"] == "acquire" and event["phase"] == "ok":
            calls |= {token: asked[event["proc"]] for token, _ in event["locks"].values()}
    return calls


def unserved(events: list[Event]) -> tuple[set[str], set[str]]:
    """Return the living threads and the locks, and those that had no acquisition in the quiet time at the end."""
    living: set[str] = set()
    served: set[str] = set()
    locks: set[str] = set()
    quiet = stop = False
    for event in events:
        quiet, stop = quiet or event["op"] == "quiet", stop or event["op"] == "stop"
        if event["op"] == "start" and not quiet:
            living.add(event["proc"])
        if event["op"] == "kill":
            living = {proc for proc in living if proc.split(".")[0] != event["client"]}
        if event["op"] == "acquire" and event["phase"] == "ok" and quiet and not stop:
            served |= {event["proc"], *event["locks"]}
        locks |= {lock for _, lock, _ in _claims(event)}
    everybody = {*living, *locks}
    return everybody, everybody - served


def _everybody(events: list[Event], report: Report) -> None:
    """Check that no client hung or died, and that in the quiet time each gets a lock and each lock is acquired."""
    for event in events:
        if event["op"] in {"hung", "died"}:
            report.violate("P6", event["t"], f"{event['client']} {event['op']}")
    stop = next((event["t"] for event in events if event["op"] == "stop"), None)
    if stop is None:
        return
    everybody, without = unserved(events)
    report.count("P6", len(everybody))
    for each in sorted(without):
        report.violate("P6", stop, f"{each} was not served in the quiet at the end")


def _free_keys(events: list[Event], report: Report) -> None:
    """Check that no acquire of a key that was free all the time fails, if its client had answers from the store."""
    taken_at: dict[str, int] = {}
    standing: dict[str, bool] = {}
    answers: dict[tuple[str, str], int] = defaultdict(int)
    calls: dict[str, tuple[int, int]] = {}
    for event in events:
        client = event["proc"].split(".")[0]
        for t, lock, row in _claims(event):
            is_free = row.get("expires_at") is None
            # the last time at which the key was known not to be free
            if not is_free or standing.get(lock):
                taken_at[lock] = t
            standing[lock] = not is_free
        if event["op"] == "wire" and event["status"] is not None and event["fault"] is None:
            for key in event["keys"]:
                answers[client, key.partition("/")[2]] += 1
        if event["op"] != "acquire":
            continue
        answered = sum(answers[client, name] for name in event["names"])
        if event["phase"] == "invoke":
            calls[event["proc"]] = (event["t"], answered)
        elif event["phase"] == "fail" or event.get("error") == "MutexTimeoutError":
            since, before = calls[event["proc"]]
            report.count("P6")
            was_free = (
                not standing.get(lock) and taken_at.get(lock, 0) <= since for lock in event["names"]
            )
            # one free permit of a semaphore is enough
            free = any(was_free) if event.get("way") == "permit" else all(was_free)
            if free and answered - before >= ANSWERS * len(event["names"]):
                text = f"{event['proc']} waited for {event['names']}, which nobody held"
                report.violate("P6", event["t"], text)
