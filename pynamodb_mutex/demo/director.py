"""The director: starts the workers, plays the scenes with them, and ends them all."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import IO, TYPE_CHECKING, TypeVar, cast

from pynamodb_mutex import LockItem
from pynamodb_mutex.demo.story import Story
from pynamodb_mutex.demo.summary import taken_over
from pynamodb_mutex.demo.worker import KEY
from pynamodb_mutex.testing import embedded_dynamodb, use

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from typing import Any

    from typing_extensions import Self

    from pynamodb_mutex.demo.story import Event, Section

TICK = 0.05
SEEN, SURE = 0.1, 0.2
"""Seconds for which a worker must have held the lock before a signal, and must go on, so that the
signal hits it there."""

Found = TypeVar("Found")

COMMAND = (sys.executable, "-m", "pynamodb_mutex.demo.worker")


class ShowError(RuntimeError):
    """A worker broke down; the message is what it said."""


@dataclass(frozen=True)
class Options:
    """What can be chosen; see ``--help``."""

    seconds: float = 20.0
    workers: int = 6
    lease: float = 2.0
    seed: int = 1
    out: Path = Path("demo-who-held-the-lock.png")
    plain: bool = False

    @property
    def shortest(self) -> float:
        """Seconds in which both scenes have room."""
        return 2 * self.lease + 9


class Troupe:
    """The worker processes, as a context manager that leaves none behind."""

    def __init__(self, options: Options) -> None:
        self.end = 0
        self._options = options
        self._events: queue.Queue[Event] = queue.Queue()
        self._processes: dict[str, Popen[bytes]] = {}
        self._readers: dict[str, threading.Thread] = {}
        self._wakers: list[Popen[bytes]] = []
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()  # also one that is stopped, or has ended
        for reader in self._readers.values():
            reader.join()
        for process in (*self._processes.values(), *self._wakers):
            with process:  # closes its pipes and waits
                pass
        self._log.close()

    @property
    def busy(self) -> bool:
        """Whether workers are there, or events of theirs not yet told."""
        return any(reader.is_alive() for reader in self._readers.values()) or bool(
            self._events.qsize()
        )

    def say(self, what: str, who: str = "", **details: Any) -> None:
        """Add an event to the workers' own."""
        self._events.put({"t": time.monotonic_ns(), "who": who, "what": what, **details})

    def hear(self) -> Iterator[Event]:
        """Wait a moment for events.

        Raises:
            ShowError: If a worker broke down.
        """
        try:
            event = self._events.get(timeout=TICK)
        except queue.Empty:
            return
        if event["what"] == "ended" and event["status"] not in (0, -signal.SIGKILL):
            self._log.seek(0)
            raise ShowError(f"{event['who']} broke down:\n{self._log.read().decode()}")
        yield event

    def start(self) -> str:
        """Start one more worker, and return its name."""
        name = f"worker {len(self._processes) + 1}"
        command = [*COMMAND, name, str(self._options.seed), str(self._options.lease)]
        # a session of its own: Ctrl-C is for the director
        process = self._processes[name] = Popen(
            command, stdin=PIPE, stdout=PIPE, stderr=self._log, start_new_session=True
        )
        reader = threading.Thread(target=self._read, args=(name, process), daemon=True)
        self._readers[name] = reader
        reader.start()
        return name

    def _read(self, name: str, process: Popen[bytes]) -> None:
        for line in cast("IO[bytes]", process.stdout):
            self._events.put(json.loads(line))
        self.say("ended", name, status=process.wait())

    def go(self, *names: str) -> None:
        """Let workers begin."""
        for name in names:
            stdin = cast("IO[bytes]", self._processes[name].stdin)
            stdin.write(b"%d\n" % self.end)
            stdin.flush()

    def kill(self, name: str) -> None:
        """End a worker in the middle of what it does."""
        self._processes[name].kill()
        self._readers[name].join()
        self.say("killed", name)

    def stop(self, name: str) -> None:
        """Stop a worker, as an overloaded or frozen machine does."""
        pid = self._processes[name].pid
        # It resumes the worker when we close the pipe, or are no more: a stopped process cannot
        # notice that its parent has ended.
        waker = ["sh", "-c", f"read _; kill -CONT {pid}"]
        self._wakers.append(Popen(waker, stdin=PIPE, stderr=DEVNULL, start_new_session=True))
        os.kill(pid, signal.SIGSTOP)
        self.say("stopped", name)

    def resume(self, name: str) -> None:
        """Let the stopped worker run on."""
        self.say("resumed", name)
        with self._wakers.pop():
            pass


def scenes(troupe: Troupe, story: Story, options: Options) -> Iterator[None]:
    """Play the show; resumed after each event and each tick."""
    names = [troupe.start() for _ in range(options.workers)]
    yield from _awaited(lambda: len(story.workers) >= len(names))
    begin = time.monotonic()
    troupe.end = time.monotonic_ns() + int(options.seconds * 1e9)
    troupe.say("begin", workers=options.workers, lease=options.lease)
    troupe.go(*names)

    yield from _until(begin + 0.12 * options.seconds)
    victim = yield from _awaited(lambda: _caught(story, "before", "sending"))
    troupe.kill(victim.worker)
    successor = troupe.start()
    troupe.say("replaces", successor, whom=victim.worker)
    troupe.go(successor)
    yield from _awaited(lambda: taken_over(story.killed))

    yield from _until(max(begin + 0.4 * options.seconds, time.monotonic() + 1))
    victim = yield from _awaited(lambda: _caught(story, "sending"))
    troupe.stop(victim.worker)
    yield from _until(time.monotonic() + options.lease + 3)
    yield from _awaited(lambda: taken_over(story.stopped) or time.monotonic_ns() > troupe.end)
    troupe.resume(victim.worker)


def _awaited(look: Callable[[], Found | None]) -> Generator[None, None, Found]:
    """Look at each event and each tick until there is something to see."""
    while not (found := look()):
        yield
    return found


def _until(instant: float) -> Generator[None, None, bool]:
    return _awaited(lambda: time.monotonic() >= instant)


def _caught(story: Story, *stages: str) -> Section | None:
    """Return the section under way if it is in the middle of one of these stages."""
    section = story.current
    if section is None or section.stage not in stages:
        return None
    now = time.monotonic_ns()
    is_in = section.entered + SEEN * 1e9 < now < section.planned - SURE * 1e9
    return section if is_in else None


def play(options: Options, watch: Callable[[Story], None]) -> Story:
    """Give the show.

    Args:
        options: What was chosen.
        watch: Called with what has happened so far, after each event and each tick.

    Returns:
        All that happened, in the order of time.
    """
    events: list[Event] = []
    story = Story()
    with embedded_dynamodb() as engine, use(engine), Troupe(options) as troupe:
        LockItem.create_table()
        script = scenes(troupe, story, options)
        next(script)
        while troupe.busy:
            for event in troupe.hear():
                events.append(event)
                story.tell(event)
            next(script, None)
            watch(story)
        troupe.say("counted", counter=LockItem.get(KEY).data)
        events.extend(troupe.hear())
    return Story.of(events)
