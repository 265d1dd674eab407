"""What a history shows next to what Porcupine judges: progress, errors and forks; and how much happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dev.chaos.history import SECOND, Event
from dev.chaos.sections import KEYS, ROWS

SLACK = 3.0
"""Seconds that are allowed in addition for polling and for a busy machine."""

DEEDS = ("stop_client", "stand_still", "step_wall", "kill", "cut_off", "fork", "force", "reap")


def unserved(events: list[Event]) -> set[str]:
    """Return the living threads and the locks that had no acquisition in the quiet time at the end."""
    waiting = {*KEYS, *ROWS}
    quiet = False
    for event in events:
        if event["op"] == "start" and not quiet:
            waiting.add(event["proc"])
        elif event["op"] == "kill":
            waiting = {each for each in waiting if not each.startswith(event["killed"] + "t")}
        elif event["op"] == "quiet":
            quiet = True
        elif event["op"] == "stop":
            break
        elif quiet and event["op"] == "acquire" and event["phase"] == "ok":
            waiting -= {event["proc"], *event["locks"]}
    return waiting


def takeovers(events: list[Event]) -> Iterator[tuple[float, bool]]:
    """Yield for each lock of a killed holder the seconds until the next had it, who had waited since before the kill.

    And whether that was the last kill, after which there are no faults.
    """
    holders: dict[str, str] = {}
    dead: dict[str, Event] = {}
    called: dict[str, Event] = {}
    for event in events:
        op, phase, proc = event["op"], event.get("phase"), event["proc"]
        if op == "acquire" and phase == "invoke":
            called[proc] = event
        elif op == "acquire" and phase == "ok":
            for key in event["locks"]:
                kill = dead.pop(key, None)
                # a waiter for several keys may have waited for another of them
                if kill and called[proc]["t"] < kill["t"] and len(called[proc]["names"]) == 1:
                    yield (event["t"] - kill["t"]) / SECOND, kill["last"]
                holders[key] = proc
        elif op == "release" and phase == "invoke":
            holders = {key: holder for key, holder in holders.items() if holder != proc}
        elif op == "kill":
            mine = event["killed"] + "t"
            dead |= {key: event for key, holder in holders.items() if holder.startswith(mine)}


def problems(events: list[Event], lease: float) -> list[str]:
    """Return what is wrong in a history, for people; Porcupine judges the rest."""
    found = [f"{each} was not served in the quiet at the end" for each in sorted(unserved(events))]
    bound = 1.01 * lease + 2.5 + SLACK
    for seconds, last in takeovers(events):
        if last and seconds > bound:
            found.append(f"a dead holder's lock was taken {seconds:.1f} s after the kill")
    for event in events:
        if event["op"] in {"hung", "died"}:
            found.append(f"{event['client']} {event['op']}")
        if event.get("typed") is False:
            found.append(f"{event['proc']}: {event['op']} raised {event['error']}: {event['text']}")
        if event["op"] == "fork" and (event["held"] or len(event["refused"]) < 2):
            found.append(f"{event['proc']}: a forked child could use its parent's lock")
    return found


def figures(events: list[Event]) -> list[str]:
    """Return how much happened, as lines of text."""
    calls = ("acquire", "renew", "write", "release")
    lines = [
        _counts(op, (e["phase"] for e in events if e["op"] == op and e["phase"] != "invoke"))
        for op in calls
    ]
    lines.append(_counts("errors", (event["error"] for event in events if "typed" in event)))
    lines.append(_counts("requests with faults", (e["fault"] for e in events if e.get("fault"))))
    lines.append(_counts("injector", (event["op"] for event in events if event["op"] in DEEDS)))
    times = sorted(seconds for seconds, _ in takeovers(events))
    if times:
        lines.append(
            f"killed holders' locks: taken after {times[0]:.1f} to {times[-1]:.1f} s ({len(times)})"
        )
    written = [
        (name, read)
        for event in events
        if event["op"] == "control" and event["phase"] == "ok"
        for name, read in event["read"].items()
    ]
    lost = len(written) - len(set(written))
    lines.append(f"unguarded controls: {lost} of {len(written)} updates lost")
    return lines


def _counts(name: str, each: Iterator[str]) -> str:
    counts = Counter(each)
    listed = ", ".join(f"{what} {count:,}" for what, count in counts.most_common())
    return f"{name}: {counts.total():,}" + (f" ({listed})" if listed else "")
