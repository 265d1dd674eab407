"""Draw the diagrams of the concept pages: ``python docs/diagrams.py`` writes them into docs/pictures.

Each is an SVG on white; ``_static/site.css`` inverts it in the dark theme. They are as wide as a
phone's screen: a wider drawing would be scaled down there, and its words with it. What is drawn lower makes a drawing
higher. Nothing makes it wider: ``tests/docs/test_pictures.py`` measures whether all of it is inside.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

PICTURES = Path(__file__).parent / "pictures"
WIDTH = 440
INK, PALE, GREY, BLUE, GREEN, RED, AMBER = (
    "#1f2933",
    "#7b8794",
    "#55606d",
    "#1d5fa8",
    "#1c7c4a",
    "#b3261e",
    "#b06a00",
)


class Drawing:
    """Lines, boxes and words, top to bottom."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []
        self.lowest = 0.0

    def line(self, x1: float, y1: float, x2: float, y2: float, ink: str = INK, **more: str) -> None:
        """Draw a line; ``arrow="yes"`` gives it a head, ``dash`` its dashes."""
        style = f' stroke-dasharray="{more["dash"]}"' if "dash" in more else ""
        if "arrow" in more:
            style += f' marker-end="url(#head-{ink[1:]})"'
        width = more.get("width", "1.6")
        self.lowest = max(self.lowest, y1, y2)
        self.parts.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{ink}"'
            f' stroke-width="{width}"{style}/>'
        )

    def text(self, x: float, y: float, words: str, ink: str = INK, **more: str) -> None:
        """Write words, centred on x unless ``anchor`` says otherwise."""
        anchor = more.get("anchor", "middle")
        size, weight = more.get("size", "13"), more.get("weight", "normal")
        halo = more.get("halo", "4")  # what the words cross stays away from them
        self.lowest = max(self.lowest, y + 4)
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" fill="{ink}" text-anchor="{anchor}" font-size="{size}"'
            f' font-weight="{weight}" stroke="#ffffff" stroke-width="{halo}" paint-order="stroke">'
            f"{escape(words)}</text>"
        )

    def box(  # noqa: PLR0917 - as SVG has them
        self, x: float, y: float, width: float, height: float, ink: str, fill: str
    ) -> None:
        """Draw a box."""
        self.lowest = max(self.lowest, y + height)
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"'
            f' fill="{fill}" stroke="{ink}"/>'
        )

    def note(self, *lines: str) -> None:
        """Write a remark below all that is drawn."""
        top = self.lowest + 28
        for place, words in enumerate(lines):
            self.text(8, top + 18 * place, words, GREY, anchor="start")

    def svg(self) -> str:
        """Return the picture."""
        height = round(self.lowest) + 14
        heads = "".join(
            f'<marker id="head-{ink[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8"'
            f' markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{ink}"/></marker>'
            for ink in (INK, PALE, GREY, BLUE, GREEN, RED, AMBER)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" font-family="DejaVu Sans, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{heads}</defs>\n"
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


class Sequence(Drawing):
    """Requests and answers: lifelines, and arrows between them."""

    def __init__(self, title: str, lives: dict[str, float]) -> None:
        super().__init__(title)
        self.lives = lives
        self.at = 76.0
        for name, x in lives.items():
            self.box(x - 58, 14, 116, 30, INK, "#eef2f6")
            self.text(x, 34, name, weight="bold", halo="0")

    def svg(self) -> str:
        """Return the picture, with lifelines below all else; they end above the notes."""
        drawn, self.parts = self.parts, []
        for x in self.lives.values():
            self.line(x, 44, x, self.at - 24, PALE, dash="3 4", width="1.2")
        self.parts += drawn
        return super().svg()

    def _beside(self, x: float) -> tuple[float, str]:
        """Return where words at a lifeline begin, or end: those at an outer one begin at the edge."""
        if x < WIDTH / 3:
            return 8, "start"
        return (WIDTH - 8, "end") if x > WIDTH * 2 / 3 else (x, "middle")

    def send(
        self, start: str, end: str, words: str, ink: str = BLUE, *, lost: bool = False
    ) -> None:
        """Draw a message; one that is lost ends half way."""
        x1, x2 = self.lives[start], self.lives[end]
        stop = x1 + (x2 - x1) * 0.55 if lost else x2
        outer = max(x1, x2, key=lambda each: abs(each - WIDTH / 2)) if len(self.lives) > 2 else x1
        at, anchor = self._beside(outer)
        self.text(at, self.at - 7, words, ink, anchor=anchor)
        self.line(x1, self.at, stop, self.at, ink, arrow="yes")
        if lost:
            middle = stop + (10 if x2 > x1 else -10)
            for side in (-7, 7):
                self.line(middle - 7, self.at - side, middle + 7, self.at + side, RED, width="2.5")
        self.at += 36

    def state(self, name: str, words: str, ink: str = INK, fill: str = "#f7f9fb") -> None:
        """Say how things stand at a lifeline."""
        width = 7.6 * len(words) + 16
        x = min(max(self.lives[name] - width / 2, 6), WIDTH - width - 6)
        self.box(x, self.at - 20, width, 25, ink, fill)
        self.text(x + width / 2, self.at - 3, words, ink, halo="0")
        self.at += 36

    def gap(self, words: str) -> None:
        """Let time pass."""
        self.line(12, self.at - 8, WIDTH - 12, self.at - 8, PALE, dash="8 6", width="1")
        width = 7.6 * len(words) + 20
        self.box(WIDTH / 2 - width / 2, self.at - 20, width, 24, "#ffffff", "#ffffff")
        self.text(WIDTH / 2, self.at - 4, words, GREY)
        self.at += 34


A, ROW, B = "process A", "the row", "process B"
THREE = {A: 66.0, ROW: 220.0, B: 374.0}
TWO = {A: 66.0, ROW: 350.0}
HELD, FREE = "#e8f3ec", "#f7f9fb"


def protocol() -> Drawing:
    """Acquire, be refused, renew, write, release: each one conditional write."""
    draw = Sequence("The requests of a lock", THREE)
    draw.state(ROW, "version 41, no end: free")
    draw.send(A, ROW, "acquire with token a: if there is no claim")
    draw.state(ROW, "token a, version 42, end 12:00:30", GREEN, HELD)
    draw.send(ROW, A, "applied: held", GREEN)
    draw.send(B, ROW, "acquire with token b: if there is no claim")
    draw.send(ROW, B, "refused, with the row: A holds it", RED)
    draw.send(A, ROW, "renew: if token a, version 42")
    draw.state(ROW, "token a, version 42, end 12:00:40", GREEN, HELD)
    draw.send(B, ROW, "poll: a read, half a unit", GREY)
    draw.send(A, ROW, "write: if token a, version 42, and writes = 0")
    draw.state(ROW, "token a, version 42, writes 1, and the data", GREEN, HELD)
    draw.send(A, ROW, "release: if token a, version 42")
    draw.state(ROW, "token a, version 42, no end: free", INK, FREE)
    draw.send(B, ROW, "poll: it is free", GREY)
    draw.send(B, ROW, "acquire with token b: if there is no claim")
    draw.state(ROW, "token b, version 43, end 12:01:07", GREEN, HELD)
    draw.send(ROW, B, "applied: held, fencing token 43", GREEN)
    return draw


def lost_answer() -> Drawing:
    """An answer is lost: the retry is refused, and the row shows why."""
    draw = Sequence("An answer is lost", TWO)
    draw.send(A, ROW, "acquire with token a: if there is no claim")
    draw.state(ROW, "token a, version 42, end 12:00:30", GREEN, HELD)
    draw.send(ROW, A, "applied", GREEN, lost=True)
    draw.at += 16
    draw.text(8, draw.at - 25, "retry, token a: if there is no claim,", BLUE, anchor="start")
    draw.send(A, ROW, "and the row has another token")
    draw.send(ROW, A, "refused, with the row: token a", RED)
    draw.state(A, "token a is mine: it was applied. Held", GREEN, HELD)
    draw.note("The lease counts from the first sending.")
    return draw


def hand_over() -> Drawing:
    """Threads of one process: a release hands the lock over by one write."""
    lives = {"thread 1": 66.0, "thread 2": 220.0, ROW: 374.0}
    draw = Sequence("Hand-over within a process", lives)
    draw.send("thread 1", ROW, "acquire with token a")
    draw.state(ROW, "token a, version 42", GREEN, HELD)
    draw.state("thread 2", "waits in the queue, and sends nothing")
    draw.at += 16
    draw.text(8, draw.at - 25, "release: if token a, version 42:", BLUE, anchor="start")
    draw.send("thread 1", ROW, "token b, version 43, a new end")
    draw.state(ROW, "token b, version 43", GREEN, HELD)
    draw.send(ROW, "thread 1", "applied", GREEN)
    draw.send("thread 1", "thread 2", "hands the lock over", GREEN)
    draw.note("One write instead of release, poll and acquire.")
    return draw


def take_over() -> Drawing:
    """A holder dies, and a newcomer acquires the lock at once; a late write is refused."""
    draw = Sequence("A dead holder's lock", THREE)
    draw.send(A, ROW, "acquire with token a")
    draw.state(ROW, "token a, version 42, end 12:00:30, owner A", GREEN, HELD)
    draw.state(A, "is paused, or dies", RED, "#fbeceb")
    draw.gap("a minute passes")
    draw.send(B, ROW, "acquire with token b: no claim, or end < 12:01:31")
    draw.state(ROW, "token b, version 43, end 12:02:03, abandoned by A", GREEN, HELD)
    draw.send(ROW, B, "applied at once: held", GREEN)
    draw.gap("A resumes")
    draw.send(A, ROW, "write: if token a, version 42, and writes = 0")
    draw.send(ROW, A, "refused, with the row: lost, TAKEN", RED)
    draw.note(
        "12:01:31 is B's lower bound of DynamoDB's time, less 0.1 s.",
        "No wall clock of A or B is used.",
    )
    return draw


def server_time() -> Drawing:
    """What the Date of an answer says about DynamoDB's time."""
    draw = Drawing("Bounds of DynamoDB's time")
    left, bottom, x_scale, y_scale = 66, 320, 73, 52

    def at(local: float, server: float) -> tuple[float, float]:
        return left + local * x_scale, bottom - server * y_scale

    draw.line(left, bottom, WIDTH - 10, bottom, INK, arrow="yes")
    draw.line(left, bottom, left, 26, INK, arrow="yes")
    draw.text(WIDTH - 10, bottom + 34, "local clock", anchor="end")
    draw.text(8, 18, "DynamoDB's time", anchor="start")
    for second in range(1, 6):
        x, y = at(0, second)
        draw.line(x, y, WIDTH - 12, y, "#dde3ea", width="1")
        draw.text(x - 6, y + 4, f"12:00:0{second}", GREY, anchor="end", size="12")
    # the 2nd one's lines go behind the words of the 1st
    for sent, received, date, name in ((2.6, 3.0, 3, "2nd"), (0.5, 1.0, 1, "1st")):
        (x1, top), (x2, low) = at(sent, date + 1), at(received, date)
        draw.box(x1, top, x2 - x1, low - top, AMBER, "#fdf3e1")
        draw.line(x1, bottom, x1, low, AMBER, dash="2 3", width="1")
        draw.line(x2, bottom, x2, low, AMBER, dash="2 3", width="1")
        draw.text(x1 + 5, bottom + 16, "sent", AMBER, anchor="end")
        draw.text(x2 - 5, bottom + 16, "received", AMBER, anchor="start")
        words = f"{name} answer: Date 12:00:0{date}"
        place, anchor = (x2 + 5, "start") if date == 1 else (WIDTH - 10, "end")
        draw.text(place, low + (16 if date == 1 else 48), words, AMBER, anchor=anchor)
    draw.line(*at(0.0, 0.95), *at(4.25, 5.2), INK, dash="6 4")
    draw.text(*at(4.3, 5.22), "true", anchor="start")
    draw.line(*at(0.5, 2.0), *at(2.6, 4.16), RED, width="2.2")
    draw.line(*at(2.6, 4.0), *at(4.1, 5.56), RED, width="2.2")
    draw.text(*at(3.2, 5.25), "upper bound", RED, anchor="end")
    draw.line(*at(1.0, 1.0), *at(3.0, 2.95), BLUE, width="2.2")
    draw.line(*at(3.0, 3.0), *at(4.7, 4.66), BLUE, width="2.2")
    draw.text(*at(3.75, 3.4), "lower bound", BLUE, anchor="start")
    draw.note("Between sending and receiving,", "DynamoDB's time was within [Date, Date + 1 s).")
    return draw


def ends() -> Drawing:
    """The holder stops before anybody else may begin."""
    draw = Drawing("When a holder stops, and when another may begin")
    sent, stops, end, takes = 20.0, 250.0, 290.0, 328.0
    rows = (
        (46, "A believes that it holds", sent, stops, GREEN, HELD),
        (126, "the claim in the row", sent + 16, end, INK, "#eef2f6"),
        (206, "B may acquire", takes, WIDTH - 8, BLUE, "#e6eff9"),
    )
    for x, top, ink in ((sent, 30, GREEN), (stops, 46, GREEN), (end, 126, INK), (takes, 206, BLUE)):
        draw.line(x, top, x, 262, ink, dash="3 4", width="1.2")
    for y, name, start, stop, ink, fill in rows:
        draw.box(start, y, stop - start, 28, ink, fill)
        draw.text((start + stop) / 2, y + 19, name, ink, halo="0", size="12" if y > 200 else "13")
    draw.text(sent - 8, 24, "A sends", GREEN, anchor="start")
    draw.text(stops + 6, 58, "A stops 0.99 leases", GREEN, anchor="start")
    draw.text(stops + 6, 75, "after sending", GREEN, anchor="start")
    draw.text(end + 6, 138, "A's upper bound", anchor="start")
    draw.text(end + 6, 155, "when it sent + lease", anchor="start")
    draw.text(takes - 6, 217, "B's lower bound - 0.1 s", BLUE, anchor="end")
    draw.text(takes - 6, 234, "has passed that end", BLUE, anchor="end")
    draw.line(8, 262, WIDTH - 8, 262, INK, arrow="yes")
    draw.text(WIDTH - 10, 282, "true time", anchor="end")
    draw.note(
        "A stops earlier if its upper bound of DynamoDB's",
        "time reaches the end first. It never stops later.",
    )
    return draw


def which_lock() -> Drawing:
    """Ask one question after another; the first yes chooses."""
    questions = (
        (
            "Is it harmless to do the work twice, or can",
            "a conditional write refuse the second try?",
            "no lock",
        ),
        (
            "Is one row changed, and may a conflict",
            "make you read it and start again?",
            "version\nattribute",
        ),
        (
            "Must every job be done, in order,",
            "and may it wait in a queue?",
            "a queue:\nSQS FIFO",
        ),
        ("Does the work need several resources", "at the same time?", "several\nlocks"),
        ("Is there a pool of resources,", "and will any of them do?", "any of"),
        ("May several holders work at once,", "up to a limit?", "semaphore"),
        ("May many read at the same time,", "while nobody writes?", "shared\nlock"),
        ("Is the resource one row", "of a PynamoDB model?", "row lock"),
    )
    left, width, answers, step, top = 8, 284, 332, 72, 14
    middle = left + width / 2
    draw = Drawing("Which lock do I need?")
    for number, (first, second, answer) in enumerate(questions):
        y = top + number * step
        is_other = number < 3  # no lock of this library
        draw.box(left, y, width, 48, INK, "#eef2f6")
        draw.text(middle, y + 20, first, halo="0")
        draw.text(middle, y + 38, second, halo="0")
        draw.line(left + width, y + 24, answers, y + 24, GREEN, arrow="yes")
        draw.text((left + width + answers) / 2 - 4, y + 18, "yes", GREEN, halo="0")
        box = (AMBER, "#fdf3e1") if is_other else (GREEN, HELD)
        draw.box(answers, y + 1, WIDTH - 8 - answers, 46, *box)
        lines = answer.split("\n")
        for place, words in enumerate(lines):
            low = y + 38 - 9 * len(lines) + 18 * place
            draw.text((answers + WIDTH - 8) / 2, low, words, weight="bold", halo="0")
        draw.line(middle, y + 48, middle, y + step, RED, arrow="yes")
        draw.text(middle + 18, y + 64, "no", RED, halo="0")
    y = top + step * len(questions)
    draw.box(middle - 60, y, 120, 36, GREEN, HELD)
    draw.text(middle, y + 23, "mutex", weight="bold", halo="0")
    return draw


def time_line() -> Drawing:
    """A lock with the default lease, from the renewal after which DynamoDB cannot be reached."""
    draw = Drawing("A lock whose renewals fail")
    axis, scale, top = 84, 8, 204
    events = (
        (-20, "acquired, for 30 s", BLUE),
        (-10, "renewed, after a third of the lease", BLUE),
        (0, "renewed: the last time that succeeds", BLUE),
        (10, "this renewal fails, and is repeated", RED),
        (19.7, "danger: on_danger is called", AMBER),
        (29.7, "lost: held is False, on_lost is called", RED),
        (33, "at the latest, the next caller acquires the lock", BLUE),
    )
    for start, end, ink, fill in ((-20, 19.7, GREEN, HELD), (19.7, 29.7, AMBER, "#fdf3e1")):
        draw.box(axis - 9, top + start * scale, 18, (end - start) * scale, ink, fill)
    draw.box(axis - 9, top + 33 * scale, 18, 40, BLUE, "#e6eff9")
    for at, words, ink in events:
        y = top + at * scale
        draw.line(axis - 14, y, axis + 14, y, ink)
        draw.text(axis - 20, y + 5, f"{at:g} s", GREY, anchor="end")
        draw.text(axis + 22, y + 5, words, ink, anchor="start")
    draw.note("Seconds from the last renewal that succeeded.")
    return draw


def shards() -> Drawing:
    """Three workers share six shards; one of them dies."""
    steps = (
        ("three workers, six shards: each has two", GREY, ("01", "23", "45")),
        ("ben dies: nobody works on its shards", RED, ("01", "23", "45")),
        ("33 s later ben's locks have expired", BLUE, ("012", "", "453")),
        ("ben starts again, and 18 s later has its share", BLUE, ("01", "23", "45")),
    )
    step, top, width = 76, 74, 136
    draw = Drawing("Three workers, of which one dies")
    for place, name in enumerate(("ann", "ben", "cho")):
        draw.text(76 + place * 144, 26, name, weight="bold")
    for number, (words, ink, workers) in enumerate(steps):
        y = top + number * step
        draw.text(8, y - 12, words, ink, anchor="start")
        for place, owned in enumerate(workers):
            left, is_dead = 8 + place * 144, place == 1 and number in {1, 2}
            draw.box(left, y, width, 36, *((RED, "#fbeceb") if is_dead else (GREEN, HELD)))
            for at, shard in enumerate(owned):
                x = left + 8 + at * 41
                draw.box(x, y + 6, 36, 24, RED if is_dead else GREEN, "#ffffff")
                draw.text(x + 18, y + 23, shard, RED if is_dead else INK, halo="0")
    return draw


def waiting_line() -> Drawing:
    """Those who wait in line: join at the end, acquire at the front, pass the dead."""
    steps = (
        ("ann holds the lock. ben and cho wait", GREY, "ann", ("ben", "cho")),
        ("dan joins: one write puts dan at the end", BLUE, "ann", ("ben", "cho", "dan")),
        ("ann releases the lock", BLUE, "", ("ben", "cho", "dan")),
        ("ben is first and acquires it; that write removes ben", BLUE, "ben", ("cho", "dan")),
        ("cho dies. ben releases: the lock stays free for 6 s", RED, "", ("cho", "dan")),
        ("dan acquires it; that write removes cho and dan", BLUE, "dan", ()),
    )
    step, top, left, width = 72, 74, 156, 84
    draw = Drawing("Those who wait in line, in the row of the lock")
    draw.text(76, 26, "holder", weight="bold")
    draw.text(left, 26, "waiting, first come first", weight="bold", anchor="start")
    for number, (words, ink, holder, waiting) in enumerate(steps):
        y = top + number * step
        draw.text(8, y - 12, words, ink, anchor="start")
        draw.box(8, y, 136, 34, *((GREEN, HELD) if holder else (PALE, FREE)))
        token = {"ann": 42, "ben": 43, "dan": 44}.get(holder)
        state = f"{holder}, version {token}" if holder else "free"
        draw.text(76, y + 22, state, GREEN if holder else GREY, halo="0")
        for place, name in enumerate(waiting):
            is_dead = ink == RED and name == "cho"
            x = left + place * (width + 8)
            draw.box(x, y, width, 34, *((RED, "#fbeceb") if is_dead else (INK, "#eef2f6")))
            draw.text(x + width / 2, y + 22, name, RED if is_dead else INK, halo="0")
        if not waiting:
            draw.text(left, y + 22, "nobody", GREY, anchor="start", halo="0")
    draw.note(
        "The first one polls most often, every 0.05 to 0.2 s.",
        "The others poll the less, the further back: up to 2 s.",
    )
    return draw


def once() -> Drawing:
    """One call does the work; whoever calls meanwhile waits for its result, and whoever calls later finds it."""
    draw = Sequence("The work is done once", THREE)
    draw.send(A, ROW, "begin with token a: if no result counts, no claim")
    draw.state(ROW, "token a, version 42, end 12:00:30", GREEN, HELD)
    draw.state(A, "charges the card", GREEN, HELD)
    draw.send(B, ROW, "begin with token b: if no result counts, no claim")
    draw.send(ROW, B, "refused, with the row: A does it. B waits", RED)
    draw.send(A, ROW, "complete: if token a, version 42")
    draw.state(ROW, "the result, which counts until tomorrow", GREEN, HELD)
    draw.send(B, ROW, "poll: it is done", GREY)
    draw.send(ROW, B, "the result", GREEN)
    draw.gap("an hour later")
    draw.send(B, ROW, "begin with token c: if no result counts, no claim")
    draw.send(ROW, B, "refused, with the row: the result", GREEN)
    draw.note(
        "If A dies, its claim ends by itself, and B does",
        "the work; or B raises, with on_abandoned = raise.",
    )
    return draw


DIAGRAMS = {
    drawn.__name__.replace("_", "-"): drawn
    for drawn in (
        protocol,
        once,
        lost_answer,
        hand_over,
        time_line,
        shards,
        waiting_line,
        take_over,
        server_time,
        ends,
        which_lock,
    )
}


def main() -> None:
    """Write all of them."""
    for name, drawn in DIAGRAMS.items():
        (PICTURES / f"{name}.svg").write_text(drawn().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
