"""What the demo promised, and whether it came true. Pure functions over a story."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamodb_mutex.demo.story import Scene, Section, Story

REFUSED = "refused by DynamoDB"


class Mark(NamedTuple):
    """A moment worth a word, whose, and the word."""

    t: int
    worker: str
    label: str
    text: str


def overlaps(sections: Iterable[Section]) -> list[tuple[Section, Section]]:
    """Find the sections that began while another worker believed that it holds the lock."""
    found = []
    latest: Section | None = None
    for section in sorted(sections, key=lambda section: section.entered):
        if latest is not None and section.entered < latest.end:
            found.append((latest, section))
        if latest is None or section.end > latest.end:
            latest = section
    return found


def tokens_grow(sections: Iterable[Section]) -> bool:
    """Say whether each section's fencing token is greater than that of the one before."""
    inorder = sorted(sections, key=lambda section: section.entered)
    return all(before.fence < after.fence for before, after in pairwise(inorder))


def failures(story: Story) -> list[str]:
    """Return what was promised and did not happen, in words."""
    found = [
        f"{second.worker} entered while {first.worker} believed that it held the lock"
        for first, second in overlaps(story.sections)
    ]
    applied = _count(story, "applied")
    checks = [
        (tokens_grow(story.sections), "the fencing tokens do not grow"),
        (story.counter == applied, f"{applied} writes were applied, {story.counter} are there"),
        (_as_promised(story.killed), "no holder was killed and its lock taken over"),
        (_as_promised(story.stopped), "no holder was stopped and its lock taken over"),
        (
            story.stopped is not None and story.stopped.section.stage == REFUSED,
            "no late write was refused by DynamoDB",
        ),
    ]
    return found + [words for kept, words in checks if not kept]


def table(story: Story) -> list[tuple[str, str]]:
    """Sum the story up, as names and values."""
    sections = len(story.sections)
    fences = [section.fence for section in story.sections] or [0]
    grow = "yes" if tokens_grow(story.sections) else "NO"
    reads = sum(worker.reads for worker in story.workers.values())
    writes = sum(worker.writes for worker in story.workers.values())
    per = max(sections, 1)
    refused = sum(section.stage.startswith("refused") for section in story.sections)
    return [
        ("sections entered", f"{sections}, by {len(story.workers)} workers"),
        ("overlaps found", str(len(overlaps(story.sections)) or "none")),
        (
            "fencing tokens",
            f"strictly increasing: {grow} ({fences[0]} to +{fences[-1] - fences[0]})",
        ),
        ("killed while holding", _scene(story.killed)),
        ("stopped while holding", _scene(story.stopped)),
        ("guarded writes", f"{_count(story, 'applied')} applied, {refused} refused"),
        ("counter in the row", f"{story.counter}: counts each applied write once"),
        (
            "requests per section",
            f"{(reads + writes) / per:.1f}: {writes / per:.1f} writes, {reads / per:.1f} looks of who waits",
        ),
    ]


def _count(story: Story, stage: str) -> int:
    return sum(section.stage == stage for section in story.sections)


def taken_over(scene: Scene | None) -> bool:
    """Say whether another worker took the lock over."""
    return scene is not None and scene.heir is not None


def _as_promised(scene: Scene | None) -> bool:
    return scene is not None and taken_over(scene) and scene.at <= scene.section.end


def _scene(scene: Scene | None) -> str:
    if scene is None:
        return "nobody"
    if scene.heir is None:
        return f"{scene.section.worker}; nobody took over"
    return f"{scene.section.worker}; {scene.heir.worker} took over {scene.gap:.1f} s later"


def marks(story: Story) -> list[Mark]:
    """Return the moments that explain the picture, in the order of time."""
    found = []
    if story.killed is not None:
        who = story.killed.section.worker
        words = f"{who} is killed (SIGKILL) while it holds the lock: it can give nothing back."
        found.append(Mark(story.killed.at, who, "killed", words))
    scene = story.stopped
    if scene is not None:
        who = scene.section.worker
        words = f"{who} is stopped (SIGSTOP): it has just checked that it holds the lock, and is about to write."
        found.append(Mark(scene.at, who, "stopped", words))
        words = f"the lease of {who} ends: from here on it would not believe to hold the lock, if it could run."
        found.append(Mark(scene.section.end, who, "lease over", words))
        words = f"{who} runs on (SIGCONT), is told that it lost the lock"
        refused = scene.section.stage == REFUSED
        words += ", and its late write is refused by DynamoDB." if refused else "."
        label = "resumed: write refused" if refused else "resumed"
        found.extend([Mark(scene.resumed, who, label, words)] if scene.resumed else [])
    for name, scene in (("kill", story.killed), ("stop", story.stopped)):
        if scene is not None and scene.heir is not None:
            heir = scene.heir
            words = f"{heir.worker} takes the lock over, {scene.gap:.1f} s after the {name}, and is told that it was abandoned."
            found.append(Mark(heir.entered, heir.worker, "takes over", words))
    return sorted(found)
