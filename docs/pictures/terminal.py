"""Makes the pictures of the terminal: python docs/pictures/terminal.py. Not run by the tests.

Each shows what the command printed: ls and watch of a table with a few locks, and the demonstration, on a terminal so
narrow that it can be read on a phone.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from pathlib import Path
from textwrap import fill

from rich.console import Console

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.cli._listing import _frame, _news, _Watching, by_key, counts_of, table_of
from pynamodb_mutex.cli._locks import Locks
from pynamodb_mutex.cli._place import Place
from pynamodb_mutex.testing import embedded_dynamodb, use

FOLDER = Path(__file__).parent
HELD = (
    ("deploy/shop", "ci-runner-17", 900),
    ("invoice-4711", "worker-3", 30),
    ("invoice-4712", "worker-7", 7),
    ("nightly-report", "cron@host-1", 600),
)


def terminal(height: int) -> Console:
    return Console(record=True, file=io.StringIO(), width=60, height=height, force_terminal=True)


def save(console: Console, name: str, title: str) -> None:
    # without fonts from the network: the reader's own will do
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title=title), flags=re.DOTALL)
    (FOLDER / f"{name}.svg").write_text(drawn, encoding="utf-8")


def locks() -> None:
    LockItem.create_table()
    for key, owner, lease in HELD:
        Mutex.for_key(key, owner=owner, lease=lease, auto_renew=False).acquire()
    Mutex.for_key("import/rates", owner="worker-1", lease=1, auto_renew=False).acquire()
    time.sleep(4)
    table = Locks(LockItem)
    console = terminal(24)
    found = sorted(table.standing(), key=by_key)
    console.print(table_of(found, console.width))
    console.print(counts_of(found), highlight=False)
    save(console, "ls", "pynamodb-mutex ls")
    news = []
    watching = _Watching(lambda: list(table.standing()), 1.0)
    watching.look()
    for step in (
        lambda: LockItem.force_release("invoice-4711"),
        lambda: Mutex.for_key("invoice-4711", owner="worker-9", auto_renew=False).acquire(),
        lambda: time.sleep(4),  # invoice-4712 ends
    ):
        step()
        time.sleep(1)
        news += [_news(change, console.width) for change in watching.look()]
    console = terminal(24)
    console.print(_frame(Place(), watching, news, console))
    save(console, "watch", "pynamodb-mutex watch")


def demo() -> None:
    program = FOLDER.parents[1] / "examples" / "demo.py"
    command = [sys.executable, str(program), "--processes", "3", "--seconds", "4"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    _, _, story = done.stdout.rstrip().partition("\n\n")
    console = terminal(60)
    for line in story.splitlines():
        indent = " " * 9 * line.startswith(" ")
        console.print(fill(line, 59, subsequent_indent=indent), highlight=False, markup=False)
    save(console, "demo", "make demo")


if __name__ == "__main__":
    demo()
    with embedded_dynamodb(8000) as engine, use(engine):
        locks()
