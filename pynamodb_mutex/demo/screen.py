"""What the terminal shows: a live view, or a line for each event."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pynamodb_mutex.demo.story import Story

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

REDRAW = 0.1
STATES = {
    "starts": ("starts", "dim"),
    "ready": ("is ready", "dim"),
    "away": ("does something else", "dim"),
    "waits": ("waits for the lock", "yellow"),
    "holds": ("HOLDS THE LOCK", "bold green"),
    "writes": ("HOLDS THE LOCK, writes", "bold green"),
    "killed": ("killed", "bold red"),
    "stopped": ("stopped: cannot run", "bold magenta"),
    "resumed": ("runs on", "bold magenta"),
    "lost": ("knows that it lost the lock", "bold magenta"),
    "done": ("done", "dim"),
}


@contextmanager
def live(console: Console, seconds: float) -> Iterator[Callable[[Story], None]]:
    """Show the story as it goes on.

    Args:
        console: Where.
        seconds: How long the show is.

    Yields:
        What to call with the story.
    """
    drawn = 0.0
    latest = Story()
    with Live(console=console, auto_refresh=False) as view:

        def draw() -> None:
            picture = frame(latest, time.monotonic_ns(), seconds, console.height)
            view.update(picture, refresh=True)

        def watch(story: Story) -> None:
            nonlocal drawn, latest
            latest = story
            if time.monotonic() - drawn >= REDRAW:
                drawn = time.monotonic()
                draw()

        yield watch
        draw()


def frame(story: Story, now: int, seconds: float, height: int) -> Group:
    """Draw the story as of now, for a terminal of so many lines."""
    workers = _workers(story, now)
    rows = max(3, height - len(story.workers) - 11)
    bold = [line for line in story.lines if line.bold][-rows:]
    last = Text("\n", no_wrap=True, overflow="ellipsis").join(
        Text.assemble((f"{_ago(story.begin, line.t):5.1f} s  ", "dim"), line.text) for line in bold
    )
    return Group(
        Panel(_holder(story, now, seconds), title="pynamodb-mutex: one lock, many processes"),
        workers,
        Panel(last, title="what happened", height=rows + 2),
    )


def _holder(story: Story, now: int, seconds: float) -> Text:
    section = story.current
    if not story.begin:
        return Text("the processes start")
    clock = (f"{min(_ago(story.begin, now), seconds):4.1f} of {seconds:g} s   ", "dim")
    if section is None:
        return Text.assemble(clock, "the lock is free\n", "")
    if now > section.until:
        words = (f"nobody; the lease of {section.worker} is over", "bold red")
    elif story.workers[section.worker].state in ("killed", "stopped"):
        words = (f"{section.worker}, which cannot run", "bold magenta")
    else:
        words = (section.worker, "bold green")
    since = f"for {_ago(section.entered, now):.1f} s, fencing token {section.fence}"
    return Text.assemble(clock, "held by ", words, f"\n{'':15}{since}")


def _workers(story: Story, now: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 1), expand=True, header_style="dim")
    table.add_column("process", no_wrap=True)
    table.add_column("state", no_wrap=True, ratio=1)
    for name in ("for", "sections", "requests"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in sorted(story.workers, key=lambda name: (len(name), name)):
        worker = story.workers[name]
        words, style = STATES[worker.state]
        requests = str(worker.reads + worker.writes)
        since = f"{_ago(worker.since, now):.1f} s"
        table.add_row(name, Text(words, style), since, str(worker.sections), requests)
    return table


def _ago(then: int, now: int) -> float:
    return (now - then) / 1e9


def plain() -> Callable[[Story], None]:
    """Return a watcher that prints a line for each event."""
    printed = 0

    def watch(story: Story) -> None:
        nonlocal printed
        for line in story.lines[printed:]:
            print(f"{_ago(story.begin, line.t):6.2f} s  {line.text}", flush=True)
        printed = len(story.lines)

    return watch
