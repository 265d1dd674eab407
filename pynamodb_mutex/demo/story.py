"""What happened, told by events. Nothing here does I/O or reads a clock.

An event is what a worker or the director says: a dict with ``t`` (CLOCK_MONOTONIC in ns, the same
for all processes of a host), ``who`` and ``what``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass
class Section:
    """One worker's time inside what the lock protects. Times are in ns.

    Attributes:
        worker: Whose.
        fence: The fencing token.
        asked: When it asked for the lock.
        entered: When it had it.
        until: When its lease ends, or ended, by its own clock: it believes no longer than that.
        planned: When it means to leave.
        abandoned_by: Who had the lock before and never gave it back.
        over: When it gave the lock back, or was killed.
        stage: Of its guarded write: "before", "sending" (checked, not yet sent), "sent", "applied",
            "refused by DynamoDB", or "refused before it was sent".
    """

    worker: str
    fence: int
    asked: int
    entered: int
    until: int
    planned: int
    abandoned_by: str | None
    over: int | None = None
    stage: str = "before"

    @property
    def end(self) -> int:
        """When the worker stopped to believe that it holds the lock."""
        return self.until if self.over is None else min(self.until, self.over)


@dataclass
class Scene:
    """A holder that was killed or stopped, and who took the lock over."""

    section: Section
    at: int
    resumed: int | None = None
    heir: Section | None = None

    @property
    def gap(self) -> float:
        """Seconds until another worker had the lock."""
        return float("nan") if self.heir is None else (self.heir.entered - self.at) / 1e9


@dataclass
class Worker:
    """What is known of one worker."""

    state: str = "starts"
    since: int = 0
    asked: int = 0
    sections: int = 0
    reads: int = 0
    writes: int = 0


@dataclass
class Line:
    """One line of the story in words; the ones that matter most are ``bold``."""

    t: int
    text: str
    bold: bool = False


@dataclass
class Story:
    """All that happened so far. Feed it by `tell`, in the order of time where that matters."""

    begin: int = 0
    now: int = 0
    counter: int = 0
    workers: dict[str, Worker] = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    waits: list[tuple[str, int, int]] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)
    killed: Scene | None = None
    stopped: Scene | None = None

    @classmethod
    def of(cls, events: Iterable[Event]) -> Story:
        """Tell the whole story in the order of time."""
        story = cls()
        for event in sorted(events, key=lambda event: int(event["t"])):
            story.tell(event)
        return story

    @property
    def current(self) -> Section | None:
        """The section that was entered last, unless it is over."""
        return next((section for section in self.sections[-1:] if section.over is None), None)

    def tell(self, event: Event) -> None:
        """Take note of one event."""
        self.now = max(self.now, event["t"])
        if event["who"]:
            self.workers.setdefault(event["who"], Worker())
        getattr(self, f"_{event['what']}")(event)

    def _last(self, who: str) -> Section:
        """Return the section that a worker entered last."""
        return next(section for section in reversed(self.sections) if section.worker == who)

    def _note(self, event: Event, state: str, text: str = "", *, bold: bool = False) -> None:
        worker = self.workers[event["who"]]
        worker.state, worker.since = state, event["t"]
        if text:
            self.lines.append(Line(event["t"], f"{event['who']} {text}", bold))

    # -- what the director says --------------------------------------------------------------------

    def _begin(self, event: Event) -> None:
        self.begin = event["t"]
        text = (
            f"{event['workers']} processes compete for one lock; its lease is {event['lease']:g} s"
        )
        self.lines.append(Line(event["t"], text, bold=True))

    def _killed(self, event: Event) -> None:
        section = self._last(event["who"])
        section.over = section.over or event["t"]
        self.killed = Scene(section, event["t"])
        self._note(event, "killed", "was killed while it held the lock", bold=True)

    def _replaces(self, event: Event) -> None:
        self.replaced[event["who"]] = event["whom"]
        self._note(event, "starts", f"was started in place of {event['whom']}", bold=True)

    def _stopped(self, event: Event) -> None:
        self.stopped = Scene(self._last(event["who"]), event["t"])
        text = "was stopped while it held the lock, about to write"
        self._note(event, "stopped", text, bold=True)

    def _resumed(self, event: Event) -> None:
        scene = self.stopped
        assert scene is not None  # noqa: S101 - what is resumed was stopped
        scene.resumed = event["t"]
        self._note(event, "resumed", f"runs on, {_gap(scene.at, event)} later", bold=True)

    def _ended(self, event: Event) -> None:
        self._note(event, "killed" if event["status"] else "done")

    def _counted(self, event: Event) -> None:
        self.counter = event["counter"]

    # -- what a worker says ------------------------------------------------------------------------

    def _ready(self, event: Event) -> None:
        self._note(event, "ready")

    def _read(self, event: Event) -> None:
        self.workers[event["who"]].reads += 1

    def _write(self, event: Event) -> None:
        self.workers[event["who"]].writes += 1

    def _asked(self, event: Event) -> None:
        self.workers[event["who"]].asked = event["t"]
        self._note(event, "waits")

    def _waited(self, event: Event) -> int:
        asked = self.workers[event["who"]].asked
        self.waits.append((event["who"], asked, event["t"]))
        return asked

    def _gave_up(self, event: Event) -> None:
        self._waited(event)
        self._note(event, "done")

    def _entered(self, event: Event) -> None:
        who, t, fence, former = event["who"], event["t"], event["fence"], event["abandoned_by"]
        planned = t + int(event["seconds"] * 1e9)
        section = Section(who, fence, self._waited(event), t, event["until"], planned, former)
        self.sections.append(section)
        self.workers[who].sections += 1
        gap = ""
        for scene in filter(None, (self.killed, self.stopped)):
            if scene.heir is None:
                scene.heir = section
                gap = f" {_gap(scene.at, event)} later"
        if former is None:
            self._note(event, "holds", f"took the lock: fencing token {fence}")
        else:
            self._note(event, "holds", f"took it over{gap}: abandoned by {former}", bold=True)

    def _sending(self, event: Event) -> None:
        section = self._last(event["who"])
        section.stage, section.until = "sending", event["until"]
        self._note(event, "writes")

    def _sent(self, event: Event) -> None:
        section = self._last(event["who"])
        section.stage, section.until = "sent", event["until"]

    def _left(self, event: Event) -> None:
        section = self._last(event["who"])
        section.stage, section.until, section.over = "applied", event["until"], event["t"]
        self._note(event, "away", f"gives it back after {_gap(section.entered, event)}")

    def _lost(self, event: Event) -> None:
        self._note(event, "lost", f"lost the lock: {event['loss']}", bold=True)

    def _refused(self, event: Event) -> None:
        section = self._last(event["who"])
        by = "by DynamoDB" if section.stage == "sent" else "before it was sent"
        section.stage = f"refused {by}"
        self._note(event, "lost", f"wrote too late: refused {by}", bold=True)

    def _ousted(self, event: Event) -> None:
        section = self._last(event["who"])
        section.over = section.over or event["t"]
        self._note(event, "away")


def _gap(since: int, event: Event) -> str:
    return f"{(event['t'] - since) / 1e9:.1f} s"
