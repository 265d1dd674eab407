"""A client process: it locks, reads, writes and releases, and records what it was answered and what it believed.

    python -m dev.chaos.worker CONFIG.json

It may have several threads, which wait for each other as well as for other clients. A line on its standard input makes
it end after its present sections; the end of its standard input ends it at once. SIGUSR1 makes it fork within a
section. `sections` has the ways of locking, and `run` starts the processes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pynamodb.exceptions import PynamoDBException

from dev.broken import broken
from dev.chaos.history import Recorder, now
from dev.chaos.sections import WAYS, Section, Tables, tables
from pynamodb_mutex import MutexLostError, MutexNotHeldError, MutexTimeoutError

POLL_SECONDS = 0.008
POLLS = 12
"""Polls from one recorded belief to the next."""


class Beliefs:
    """Polls on a thread of its own whether a section believes to hold its locks, and records when it last did."""

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self._section: Section | None = None
        self._changed = threading.Lock()
        self._last: tuple[int, int] | None = None
        threading.Thread(target=self._poll, daemon=True).start()

    def start(self, section: Section) -> None:
        with self._changed:
            self._section = section

    def stop(self) -> None:
        with self._changed:
            self._ask()
            self._report()
            self._section = None

    def _ask(self) -> None:
        since = now()
        if self._section is not None and self._section.lock.held:
            self._last = since, now()

    def _report(self) -> None:
        if self._section is not None and self._last is not None:
            since, until = self._last
            self._record("held", since=since, until=until, locks=self._section.locks)
            self._last = None

    def _poll(self) -> None:
        for turn in itertools.count():
            time.sleep(POLL_SECONDS)
            with self._changed:
                self._ask()
                if turn % POLLS == 0:
                    self._report()


class Worker:
    """One thread of a client, which runs sections until it is asked to stop.

    Args:
        config: The configuration, as `client.Client.start` makes it.
        made: The models of the process, which its workers share, and with them the queue for each key.
        thread: Number of the thread in its process.

    Attributes:
        forks: Number of forks that were asked for and not made yet.
    """

    def __init__(self, config: dict[str, Any], made: Tables, thread: int) -> None:
        self.folder, self.proc = Path(config["folder"]), config["proc"] + f"t{thread}"
        self.record = Recorder(self.folder / f"{self.proc}.jsonl", self.proc)
        self.tables = made
        self.lease = config["lease"]
        self.chance = random.Random(config["seed"] * 10 + thread)
        self.stopping = threading.Event()
        self.forks = 0
        self.beliefs = Beliefs(self.record)
        self._numbers = itertools.count(1)

    def run(self) -> None:
        self.record("start")
        while not self.stopping.is_set():
            self._section()
            time.sleep(self.chance.uniform(0, 0.02))
        self.record("end")

    def _section(self) -> None:
        way, names, count = self.chance.choice(WAYS)
        auto_renew = self.chance.random() < 0.8
        section = way(
            self.tables, self.chance.sample(names, count), lease=self.lease, owner=self.proc, timeout=15,
            auto_renew=auto_renew,
        )  # fmt: skip
        call = {"names": section.names, "locks": section.locks}
        if not self._call("acquire", section.acquire, **call):
            time.sleep(0.05)
            return
        self.beliefs.start(section)
        try:
            self._work(section)
        finally:
            self._call("release", section.lock.release, locks=section.locks)
            self.beliefs.stop()

    def _work(self, section: Section) -> None:
        chance, call = self.chance, {"locks": section.locks}
        if not self._call("read", section.read):
            return
        # what is not renewed may be held past its end, and whoever believes on then is seen
        pause = self.lease * (1 if section.options["auto_renew"] else 3)
        for _ in range(chance.randrange(1, 8)):
            longest = pause if chance.random() < 1 / 24 else 0.04
            time.sleep(chance.uniform(0, longest))
            if self.forks:
                self.forks -= 1
                self._fork(section)
            if chance.random() < 1 / 8 and not self._call("renew", section.lock.renew, **call):
                return
            written = () if section.is_shared else section.names
            values = {name: f"{self.proc}-{next(self._numbers)}" for name in written}
            rows, write = section.rows, partial(section.write, values, chance)
            seen = {name: row.state() for name, row in rows.items()}
            left = {name: f"{values[name]}/{rows[name].ticks + 1}" for name in written}
            if not self._call("write", write, values=left, read=seen, **call):
                return
            if not section.lock.held:
                return

    def _call(self, op: str, call: Callable[[], object], **more: Any) -> bool:
        """Make a call and record its outcome; return whether it succeeded."""
        self.record(op, phase="invoke", **more)
        try:
            phase = "fail" if call() is False else "ok"
        except Exception as error:
            refused = isinstance(error, MutexTimeoutError | MutexNotHeldError)
            if isinstance(error, MutexLostError) and op == "write":
                refused = error.applied is not None
            phase = "fail" if refused else "info"
            more |= {
                "error": type(error).__name__, "typed": isinstance(error, PynamoDBException),
                "text": str(error)[:300],
            }  # fmt: skip
        self.record(op, phase=phase, **more)
        return phase == "ok"

    def _fork(self, section: Section) -> None:
        """Fork; the child records whether it believes to hold the locks, and which calls it is refused."""
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return
        try:
            record = Recorder(self.folder / f"{self.proc}-fork{now()}.jsonl", f"{self.proc}-fork")
            held, refused = section.lock.held, []
            for call in (section.lock.release, section.lock.ensure_held):
                try:
                    call()
                except Exception as error:
                    refused.append(type(error).__name__)
            record("fork", held=held, refused=refused)
        finally:
            os._exit(0)


def main(path: str) -> None:
    config = json.loads(Path(path).read_text())
    with broken(config["break"]) if config["break"] else nullcontext():
        made = tables(config["prefix"], config["url"])
        _work([Worker(config, made, thread) for thread in range(config["threads"])])


def _work(workers: list[Worker]) -> None:
    def fork_soon(*_: object) -> None:
        random.choice(workers).forks += 1

    def listen() -> None:
        if sys.stdin.readline():
            for worker in workers:
                worker.stopping.set()
            sys.stdin.readline()
        os._exit(0)

    signal.signal(signal.SIGUSR1, fork_soon)
    threading.Thread(target=listen, daemon=True).start()
    pool = ThreadPoolExecutor(len(workers))
    done, _ = wait([pool.submit(worker.run) for worker in workers], return_when=FIRST_EXCEPTION)
    for each in done:
        if each.exception() is not None:  # all go, so that it is seen
            traceback.print_exception(each.exception())
            os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
