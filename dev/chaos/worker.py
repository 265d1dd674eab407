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
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pynamodb.exceptions import PynamoDBException

from dev.chaos.history import Recorder, now
from dev.chaos.sections import WAYS, Section
from dev.chaos.tables import MUTEXES, PERMITS, ROWS, Tables, tables
from pynamodb_mutex import MutexLostError, MutexNotHeldError, MutexTimeoutError

POLL_SECONDS = 0.008
REPORT_SECONDS = 0.1


class Beliefs:
    """Polls on a thread of its own whether a section believes to hold its locks, and records that.

    Args:
        record: Writes the events.
    """

    def __init__(self, record: Recorder) -> None:
        self._record = record
        self.section: Section | None = None
        self._changed = threading.Lock()
        self._since = self._until = 0
        self._over = threading.Event()
        threading.Thread(target=self._poll, daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def start(self, section: Section) -> None:
        with self._changed:
            self.section, self._since, self._until = section, 0, 0

    def stop(self) -> None:
        with self._changed:
            self._ask()
            self._report()
            self.section = None

    def _ask(self) -> None:
        if self.section is None:
            return
        # Read before the question. If it were read after the answer, the thread could be suspended in between, and a
        # belief would be recorded that lasts longer than the real one.
        at = now()
        if self.section.held:
            self._since, self._until = self._since or at, at

    def _report(self) -> None:
        if self.section is not None and self._until > self._since:
            locks = self.section.locks
            self._record("belief", locks=locks, since=self._since, until=self._until)

    def _poll(self) -> None:
        for turn in itertools.count():
            if self._over.wait(POLL_SECONDS):
                return
            with self._changed:
                self._ask()
                if turn % int(REPORT_SECONDS / POLL_SECONDS) == 0:
                    self._report()


class Worker:
    """One thread of a client, which runs sections until it is asked to stop.

    Args:
        config: The configuration, as `run.Client.config` makes it.
        made: Models to share with another worker of this process; None for new ones.

    Attributes:
        forks: Number of forks that were asked for and not made yet.
    """

    def __init__(self, config: dict[str, Any], made: Tables | None = None) -> None:
        self.folder, self.proc = Path(config["folder"]), config["proc"]
        self.record = Recorder(self.folder / f"{self.proc}.jsonl", self.proc)
        self.tables = made or tables(
            config["prefix"], config["url"], read_timeout=config.get("read_timeout", 1.0)
        )
        self.lease = config["lease"]
        self.chance = random.Random(config["seed"])
        self.stopping = threading.Event()
        self.forks = 0
        self.beliefs = Beliefs(self.record)
        self._numbers = itertools.count(1)

    def run(self) -> None:
        self.record("start", pid=os.getpid())
        while not self.stopping.is_set():
            self._section()
            time.sleep(self.chance.uniform(0, 0.02))
        self.record("end")

    def _section(self) -> None:
        chance = self.chance
        way = chance.choice(["mutex", "mutex", "keys", "permit", "permit", "row", "row", "many"])
        asked = {"mutex": MUTEXES, "keys": MUTEXES, "permit": PERMITS}.get(way, ROWS)
        names = chance.sample(asked, 1 if way in {"mutex", "row"} else 2)
        section = self.take(way, names, timeout=15, auto_renew=chance.random() < 0.8)
        if section is None:
            time.sleep(0.05)
            return
        try:
            self._work(section)
        finally:
            self.release(section)

    def take(self, way: str, names: list[str], **options: Any) -> Section | None:
        """Acquire locks in a way, and record the outcome; return the section, or None if that failed."""
        options = {"lease": self.lease, "owner": self.proc, **options}
        section = WAYS[way](self.tables, names, **options)
        call = {"way": way, "names": names}
        self.record("acquire", phase="invoke", **call)
        try:
            taken = section.acquire()
        except Exception as error:
            self._failed("acquire", error, call, unknown=True)
            return None
        if not taken:
            self.record("acquire", phase="fail", **call)
            return None
        self.record("acquire", phase="ok", locks=section.locks, **call)
        self.beliefs.start(section)
        return section

    def _work(self, section: Section) -> None:
        chance = self.chance
        if not self.read(section):
            return
        for _ in range(chance.randrange(1, 4)):
            longest = self.lease if chance.random() < 1 / 16 else 0.06
            time.sleep(chance.uniform(0, longest))
            if self.forks:
                self.forks -= 1
                self._fork(section)
            values = {name: f"{self.proc}-{next(self._numbers)}" for name in section.names}
            if not self._write_controls(section, values):
                return
            if not self.write(section, values) or not section.held:
                return

    def read(self, section: Section) -> bool:
        """Read the rows of a section; return whether that succeeded."""
        try:
            section.read()
        except Exception as error:
            self._failed("read", error, {"locks": section.locks}, unknown=False)
            return False
        return True

    def write(self, section: Section, values: dict[str, str] | None = None) -> bool:
        """Write the rows of a section under the guard, and record the outcome; return whether it was applied."""
        if values is None:
            values = {name: f"{self.proc}-{next(self._numbers)}" for name in section.names}
        call = {"locks": section.locks}
        self.record("write", phase="invoke", values=values, **call)
        try:
            section.write(values, self.chance)
        except MutexLostError as error:
            self._failed("write", error, call | {"values": values}, unknown=error.applied is None)
        except MutexNotHeldError as error:
            self._failed("write", error, call | {"values": values}, unknown=False)
        except Exception as error:
            self._failed("write", error, call | {"values": values}, unknown=True)
        else:
            self.record("write", phase="ok", values=values, **call)
            return True
        return False

    def _write_controls(self, section: Section, values: dict[str, str]) -> bool:
        self.record("control", phase="invoke", values=values)
        try:
            section.write_controls(values)
        except PynamoDBException as error:
            self._failed("control", error, {"values": values}, unknown=True)
            return False
        self.record("control", phase="ok", values=values)
        return True

    def release(self, section: Section) -> None:
        """Release the locks of a section, and end its beliefs."""
        self._release(section)
        self.beliefs.stop()

    def _release(self, section: Section) -> None:
        call = {"locks": section.locks}
        self.record("release", phase="invoke", **call)
        try:
            section.release()
        except MutexLostError as error:
            self._failed("release", error, call, unknown=False)
        except MutexNotHeldError:
            # a write has released the lock already
            self.record("release", phase="ok", before=True, **call)
        except Exception as error:
            self._failed("release", error, call, unknown=True)
        else:
            self.record("release", phase="ok", **call)

    def _failed(self, op: str, error: Exception, call: dict[str, Any], *, unknown: bool) -> None:
        loss = getattr(error, "loss", None)
        typed = isinstance(error, PynamoDBException)
        if isinstance(error, MutexTimeoutError):
            unknown = False
        self.record(
            op, phase="info" if unknown else "fail", error=type(error).__name__, typed=typed,
            loss=loss and loss.name, text=str(error)[:300], **call,
        )  # fmt: skip

    def _fork(self, section: Section) -> None:
        """Fork; the child records whether it believes to hold the locks, and which calls it is refused."""
        sys.stdout.flush()
        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
            return
        status = 1
        try:
            record = Recorder(self.folder / f"{self.proc}-fork{now()}.jsonl", f"{self.proc}-fork")
            held, refused = section.held, {}
            for what, call in (("release", section.release), ("ensure", section.lock.ensure_held)):
                try:
                    call()
                except Exception as error:
                    refused[what] = type(error).__name__
            record("fork", held=held, refused=refused, locks=section.locks)
            status = 0
        finally:
            os._exit(status)


def main(path: str) -> None:
    config = json.loads(Path(path).read_text())
    with ExitStack() as stack:
        if config.get("break"):
            from dev.chaos.broken import broken

            stack.enter_context(broken(config["break"]))
        _work(config)


def _work(config: dict[str, Any]) -> None:
    """Run the workers of a process: they share its models, and with them the queue for each key."""
    first = Worker(config)
    workers = [first]
    for number in range(1, config["threads"]):
        more = {"proc": f"{first.proc}t{number}", "seed": config["seed"] * 10 + number}
        workers.append(Worker(config | more, first.tables))

    def fork_soon(*_: object) -> None:
        first.chance.choice(workers).forks += 1

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
