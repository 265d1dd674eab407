"""What a history shows next to what Porcupine judges: progress, errors and forks; and how much happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dev.chaos.history import Event
from dev.chaos.sections import KEYS, ROWS

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


def problems(events: list[Event]) -> list[str]:
    """Return what is wrong in a history, for people; Porcupine judges the rest."""
    found = [f"{each} was not served in the quiet at the end" for each in sorted(unserved(events))]
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
    return lines


def _counts(name: str, each: Iterator[str]) -> str:
    counts = Counter(each)
    listed = ", ".join(f"{what} {count:,}" for what, count in counts.most_common())
    return f"{name}: {counts.total():,}" + (f" ({listed})" if listed else "")
