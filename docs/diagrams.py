"""Draw the diagrams of the concept pages: ``python docs/diagrams.py`` writes them into docs/pictures.

Each is an SVG on a background of its own, so that it reads the same in light and in dark.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 760
INK, PALE, BLUE, GREEN, RED, AMBER = (
    "#1f2933",
    "#7b8794",
    "#1d5fa8",
    "#1c7c4a",
    "#b3261e",
    "#b06a00",
)


class Drawing:
    """Lines, boxes and words, top to bottom."""

    def __init__(self, height: int, title: str) -> None:
        self.height = height
        self.title = title
        self.parts: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, ink: str = INK, **more: str) -> None:
        """Draw a line; ``arrow="yes"`` gives it a head, ``dash`` its dashes."""
        style = f' stroke-dasharray="{more["dash"]}"' if "dash" in more else ""
        if "arrow" in more:
            style += f' marker-end="url(#head-{ink[1:]})"'
        width = more.get("width", "1.6")
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{ink}"'
            f' stroke-width="{width}"{style}/>'
        )

    def text(self, x: float, y: float, words: str, ink: str = INK, **more: str) -> None:
        """Write words, centred on x unless ``anchor`` says otherwise."""
        anchor = more.get("anchor", "middle")
        size, weight = more.get("size", "13"), more.get("weight", "normal")
        halo = more.get("halo", "4")  # what the words cross stays away from them
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{ink}" text-anchor="{anchor}" font-size="{size}"'
            f' font-weight="{weight}" stroke="#ffffff" stroke-width="{halo}" paint-order="stroke">'
            f"{escape(words)}</text>"
        )

    def box(  # noqa: PLR0917 - as SVG has them
        self, x: float, y: float, width: float, height: float, ink: str, fill: str
    ) -> None:
        """Draw a box."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
            f' fill="{fill}" stroke="{ink}"/>'
        )

    def svg(self) -> str:
        """Return the picture."""
        heads = "".join(
            f'<marker id="head-{ink[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
            f' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{ink}"/></marker>'
            for ink in (INK, PALE, BLUE, GREEN, RED, AMBER)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}"'
            f' viewBox="0 0 {WIDTH} {self.height}" font-family="DejaVu Sans, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n"
            f'<rect width="{WIDTH}" height="{self.height}" rx="8" fill="#ffffff"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


class Sequence(Drawing):
    """Who sends what to whom: lifelines, and arrows between them."""

    def __init__(self, height: int, title: str, lives: dict[str, float]) -> None:
        super().__init__(height, title)
        self.lives = lives
        self.at = 84.0
        for name, x in lives.items():
            self.box(x - 92, 18, 184, 32, INK, "#eef2f6")
            self.text(x, 39, name, weight="bold", halo="0")
            self.line(x, 50, x, height - 18, PALE, dash="3 4", width="1.2")

    def send(
        self, start: str, end: str, words: str, ink: str = BLUE, *, lost: bool = False
    ) -> None:
        """Draw a message; one that is lost ends half way."""
        x1, x2 = self.lives[start], self.lives[end]
        stop = x1 + (x2 - x1) * 0.55 if lost else x2
        self.text((x1 + x2) / 2, self.at - 7, words, ink)
        self.line(x1, self.at, stop, self.at, ink, arrow="yes")
        if lost:
            self.line(stop + 2, self.at - 7, stop + 16, self.at + 7, RED, width="2.5")
            self.line(stop + 2, self.at + 7, stop + 16, self.at - 7, RED, width="2.5")
        self.at += 34

    def state(self, name: str, words: str, ink: str = INK, fill: str = "#f7f9fb") -> None:
        """Say how things stand at a lifeline."""
        width = 7.3 * len(words) + 22
        x = min(max(self.lives[name] - width / 2, 8), WIDTH - width - 8)
        self.box(x, self.at - 18, width, 24, ink, fill)
        self.text(x + width / 2, self.at - 1.5, words, ink, size="12", halo="0")
        self.at += 36

    def gap(self, words: str) -> None:
        """Let time pass."""
        self.line(24, self.at - 8, WIDTH - 24, self.at - 8, PALE, dash="8 6", width="1")
        width = 7 * len(words) + 24
        self.box(WIDTH / 2 - width / 2, self.at - 20, width, 24, "#ffffff", "#ffffff")
        self.text(WIDTH / 2, self.at - 4, words, PALE, size="12")
        self.at += 36


A, ROW, B = "process A", "the lock's row", "process B"
THREE = {A: 118.0, ROW: 380.0, B: 642.0}
HELD, FREE = "#e8f3ec", "#f7f9fb"


def protocol() -> Drawing:
    """Take, be refused, renew, write, release: each one conditional write."""
    draw = Sequence(672, "The requests of a lock", THREE)
    draw.state(ROW, "version 41, no end: free")
    draw.send(A, ROW, "acquire, token a: if there is no claim")
    draw.state(ROW, "token a, version 42, end 12:00:30", GREEN, HELD)
    draw.send(ROW, A, "applied: held", GREEN)
    draw.send(B, ROW, "acquire, token b: if there is no claim")
    draw.send(ROW, B, "refused, with the row: held by A", RED)
    draw.send(A, ROW, "renew: if token a, version 42")
    draw.state(ROW, "token a, version 42, end 12:00:40", GREEN, HELD)
    draw.send(B, ROW, "poll: a read, half a unit", PALE)
    draw.send(A, ROW, "write: if a, 42, and writes = 0")
    draw.state(ROW, "token a, version 42, writes 1, and the data", GREEN, HELD)
    draw.send(A, ROW, "release: if token a, version 42")
    draw.state(ROW, "token a, version 42, no end: free", INK, FREE)
    draw.send(B, ROW, "poll: it is free", PALE)
    draw.send(B, ROW, "acquire, token b: if there is no claim")
    draw.state(ROW, "token b, version 43, end 12:01:07", GREEN, HELD)
    draw.send(ROW, B, "applied: held, fencing token 43", GREEN)
    return draw


def lost_answer() -> Drawing:
    """An answer is lost: the repeat is refused by its own first attempt."""
    draw = Sequence(330, "An answer is lost", {A: 118.0, ROW: 560.0})
    draw.send(A, ROW, "acquire, token a: if there is no claim")
    draw.state(ROW, "token a, version 42, end 12:00:30", GREEN, HELD)
    draw.send(ROW, A, "applied", PALE, lost=True)
    draw.send(A, ROW, "the same again, token a: if there is no claim, and the token is not a")
    draw.send(ROW, A, "refused, with the row: token a", RED)
    draw.state(A, "a is mine: it was applied. Held", GREEN, HELD)
    draw.text(24, draw.at, "The lease counts from the first sending.", PALE, anchor="start")
    return draw


def hand_over() -> Drawing:
    """Threads of one process: a release gives the lock on by one write."""
    lives = {"thread 1": 118.0, "thread 2": 330.0, ROW: 620.0}
    draw = Sequence(392, "Hand-over within a process", lives)
    draw.send("thread 1", ROW, "acquire, token a")
    draw.state(ROW, "token a, version 42", GREEN, HELD)
    draw.state("thread 2", "wants it too: queues here, sends nothing")
    draw.text(118, draw.at, "releases", BLUE)
    draw.at += 22
    draw.send("thread 1", ROW, "if token a, version 42: token b, version 43, a new end")
    draw.state(ROW, "token b, version 43", GREEN, HELD)
    draw.send(ROW, "thread 1", "applied", GREEN)
    draw.send("thread 1", "thread 2", "it is yours", GREEN)
    draw.text(24, draw.at, "One write in place of release, poll and acquire.", PALE, anchor="start")
    return draw


def take_over() -> Drawing:
    """A holder dies, and a newcomer takes the lock at first sight; a late write is refused."""
    draw = Sequence(484, "A dead holder's lock", THREE)
    draw.send(A, ROW, "acquire, token a")
    draw.state(ROW, "token a, version 42, end 12:00:30, owner A", GREEN, HELD)
    draw.state(A, "is stopped, or dies", RED, "#fbeceb")
    draw.gap("a minute passes")
    draw.send(B, ROW, "acquire b: no claim, or end < 12:01:31")
    draw.state(ROW, "token b, version 43, end 12:02:03, abandoned by A", GREEN, HELD)
    draw.send(ROW, B, "applied at once: held", GREEN)
    draw.gap("A wakes up")
    draw.send(A, ROW, "write: if token a, version 42, writes = 0")
    draw.send(ROW, A, "refused, with the row: lost, TAKEN", RED)
    words = "12:01:31 is B's lower bound of DynamoDB's time, less 0.1 s. No wall clock of A or B."
    draw.text(WIDTH - 24, draw.at, words, PALE, anchor="end", size="12")
    return draw


def server_time() -> Drawing:
    """What the Date of an answer says of DynamoDB's time."""
    draw = Drawing(400, "Bounds of DynamoDB's time")
    left, bottom, x_scale, y_scale = 96, 340, 118, 56

    def at(local: float, server: float) -> tuple[float, float]:
        return left + local * x_scale, bottom - server * y_scale

    draw.line(left, bottom, WIDTH - 24, bottom, INK, arrow="yes")
    draw.line(left, bottom, left, 24, INK, arrow="yes")
    draw.text(WIDTH - 28, bottom + 20, "local clock", anchor="end")
    draw.text(left, 18, "DynamoDB's time", anchor="middle")
    for second in range(1, 6):
        x, y = at(0, second)
        draw.line(x, y, WIDTH - 30, y, "#dde3ea", width="1")
        draw.text(x - 8, y + 4, f"12:00:0{second}", PALE, anchor="end", size="11")
    for sent, received, date, name in (
        (0.5, 0.9, 1, "first answer"),
        (2.6, 2.9, 3, "second answer"),
    ):
        (x1, top), (x2, low) = at(sent, date + 1), at(received, date)
        draw.box(x1, top, x2 - x1, low - top, AMBER, "#fdf3e1")
        draw.line(x1, bottom, x1, low, AMBER, dash="2 3", width="1")
        draw.line(x2, bottom, x2, low, AMBER, dash="2 3", width="1")
        draw.text(x1 - 4, bottom + 16, "sent", AMBER, anchor="end", size="11")
        draw.text(x2 + 4, bottom + 16, "received", AMBER, anchor="start", size="11")
        draw.text(x2 + 6, low + 16, f"{name}: Date 12:00:0{date}", AMBER, anchor="start", size="11")
    draw.line(*at(0.0, 0.95), *at(4.25, 5.2), INK, dash="6 4")
    draw.text(*at(4.28, 5.26), "true", anchor="start", size="12")
    draw.line(*at(0.5, 2.0), *at(2.6, 4.16), RED, width="2.2")
    draw.line(*at(2.6, 4.0), *at(4.1, 5.56), RED, width="2.2")
    draw.text(*at(3.25, 5.25), "upper bound", RED, anchor="end", size="12")
    draw.line(*at(0.9, 1.0), *at(2.9, 2.95), BLUE, width="2.2")
    draw.line(*at(2.9, 3.0), *at(4.6, 4.66), BLUE, width="2.2")
    draw.text(*at(3.98, 3.72), "lower bound", BLUE, anchor="start", size="12")
    draw.text(
        left,
        388,
        "Somewhere between sending and receiving, DynamoDB's time was within [Date, Date + 1 s).",
        INK,
        anchor="start",
        size="12",
    )
    return draw


def ends() -> Drawing:
    """The holder stops before anybody else may begin."""
    draw = Drawing(286, "When a holder stops, and when another may begin")
    sent, stops, end, takes = 120.0, 470.0, 540.0, 640.0
    rows = (
        (64, "A believes", sent, stops, GREEN, HELD),
        (124, "the row's claim", sent + 26, end, INK, "#eef2f6"),
        (184, "B may take it", takes, WIDTH - 14, BLUE, "#e6eff9"),
    )
    for y, name, start, stop, ink, fill in rows:
        draw.box(start, y, stop - start, 30, ink, fill)
        draw.text(sent - 10, y + 20, name, ink, anchor="end", size="12")
    for x, top, words, ink in (
        (sent, 34, "A sends", GREEN),
        (stops, 34, "A stops: 0.99 leases after sending", GREEN),
        (end, 111, "end: A's upper bound when it sent, + lease", INK),
        (takes, 172, "B's lower bound - 0.1 s is past the end", BLUE),
    ):
        draw.line(x, top + 8, x, 236, ink, dash="3 4", width="1.2")
        anchor = "start" if x == sent else "end"
        draw.text(x + (-4 if anchor == "start" else 4), top, words, ink, anchor=anchor, size="12")
    draw.line(40, 236, WIDTH - 14, 236, INK, arrow="yes")
    draw.text(WIDTH - 16, 256, "true time", anchor="end", size="12")
    draw.text(
        40,
        274,
        "A also stops when its upper bound reaches the end, should that come first: never after it.",
        PALE,
        anchor="start",
        size="12",
    )
    return draw


DIAGRAMS = {
    drawn.__name__.replace("_", "-"): drawn
    for drawn in (protocol, lost_answer, hand_over, take_over, server_time, ends)
}


def main() -> None:
    """Write all of them."""
    for name, drawn in DIAGRAMS.items():
        (PICTURES / f"{name}.svg").write_text(drawn().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
