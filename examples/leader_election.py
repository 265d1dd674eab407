"""Three processes, one of which leads. A leader is frozen, one is killed, one is asked for the lead: each time another leads.

What the leaders write goes into a log that refuses a leader who was replaced. Run it:
python examples/leader_election.py
"""

import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path

from playground import dynamodb
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex import LockItem, Mutex, MutexTimeoutError

KEY = "example-leader"
PLEASE = f"{KEY}#please"  # is held by whoever asks for the lead
NAMES = ["red", "green", "blue"]
LEASE = 1.5  # seconds: short, so that nobody waits long for the next leader
STEP = 0.5  # seconds that a step may take
PAUSE = 0.05
PATIENCE = 30.0

Entry = tuple[int, str]


class Log:
    """A log outside DynamoDB. It keeps the highest fencing token, and refuses what comes with a lower one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=PATIENCE)) as database, database:
            yield database

    def create(self) -> None:
        with self._database() as database:
            database.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, fence INTEGER, name TEXT)")

    def append(self, fence: int, name: str) -> None:
        """Append an entry, in one statement with the check."""
        with self._database() as database:
            written = database.execute(
                "INSERT INTO log (fence, name) SELECT ?, ?"
                " WHERE NOT EXISTS (SELECT 1 FROM log WHERE fence > ?)",
                (fence, name, fence),
            )
            if written.rowcount == 0:
                raise PermissionError("a later leader was here")

    def entries(self) -> list[Entry]:
        with self._database() as database:
            return database.execute("SELECT fence, name FROM log ORDER BY id").fetchall()


def candidate(name: str, path: Path, freezes: bool) -> None:
    """Lead whenever it is our turn, until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with ThreadPoolExecutor(1) as pool:  # a handler must not interrupt a wait for what it sets
        pool.submit(stand_for_election, name, Log(path), stop, freezes).result()


def stand_for_election(name: str, log: Log, stop: threading.Event, freezes: bool) -> None:
    while not stop.is_set():
        mutex = Mutex.for_key(KEY, lease=LEASE, timeout=2, owner=name)
        try:
            with mutex:
                print(f"{name} leads", flush=True)
                lead(mutex, log, stop, freezes)
        except MutexTimeoutError:
            continue  # another leads
        except PermissionError as error:
            print(f"{name} wrote too late, and was refused: {error}", flush=True)
        except PynamoDBException as error:
            print(f"{name} does not lead any more: {error}", flush=True)
            stop.wait(random.uniform(0, 0.5))
        freezes = False
    print(f"{name} steps down", flush=True)


def lead(mutex: Mutex, log: Log, stop: threading.Event, freezes: bool) -> None:
    please = Mutex.for_key(PLEASE)
    for step in range(sys.maxsize):
        if stop.is_set():
            return
        if please.locked():
            print(f"{mutex.owner} is asked to step down", flush=True)
            mutex.release()
            while please.locked() and not stop.wait(PAUSE):
                pass  # let the other one have it
            return
        mutex.ensure_held(at_least=STEP)
        if freezes and step == 3:
            print(f"{mutex.owner} is frozen, right after it saw that it leads", flush=True)
            signal.raise_signal(signal.SIGSTOP)  # to this thread, which is in no write now
        log.append(mutex.fencing_token, mutex.owner)
        stop.wait(PAUSE)


def take_over(log: Log) -> Entry:
    """Lead next, for a single step."""
    mutex = Mutex.for_key(KEY, lease=LEASE, timeout=PATIENCE, owner="white")
    with Mutex.for_key(PLEASE), mutex:
        entry = mutex.fencing_token, mutex.owner
        log.append(*entry)
    return entry


def next_leader(log: Log, after: int) -> Entry:
    """Wait until somebody has written with a higher token than this one."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        entries = log.entries()
        if entries and entries[-1][0] > after:
            return entries[-1]
        time.sleep(0.05)
    raise TimeoutError("nobody leads")


def main() -> int:
    with dynamodb(), tempfile.TemporaryDirectory() as folder:
        LockItem.create_table()
        log = Log(Path(folder, "log"))
        log.create()
        spawn = multiprocessing.get_context("spawn")
        processes = {
            name: spawn.Process(target=candidate, args=(name, log.path, name == "red"), daemon=True)
            for name in NAMES
        }
        try:
            return play(log, processes)
        finally:
            for process in processes.values():
                if process.pid is not None:
                    process.kill()  # ends a frozen one, too
                    process.join()


def play(log: Log, processes: dict[str, SpawnProcess]) -> int:
    processes["red"].start()
    first = next_leader(log, 0)
    for name in NAMES[1:]:
        processes[name].start()
    second = next_leader(log, first[0])  # red is frozen by now
    os.kill(processes["red"].pid or 0, signal.SIGCONT)
    time.sleep(0.5)  # it wakes, writes too late, and stands for election again
    processes[second[1]].kill()
    print(f"{second[1]} is killed")
    third = next_leader(log, second[0])
    fourth = take_over(log)
    last = next_leader(log, fourth[0])
    for name in {*NAMES} - {second[1]}:
        processes[name].terminate()
    for process in processes.values():
        process.join(PATIENCE)
    entries = log.entries()
    leaders = list(dict.fromkeys(entries))
    print("the log:", ", ".join(f"{entries.count(leader)} by {leader[1]}" for leader in leaders))
    in_order = entries == sorted(entries, key=lambda entry: entry[0])
    ended = sorted(process.exitcode or 0 for process in processes.values())
    as_seen = leaders[:2] == [first, second] and {third, fourth, last} <= {*leaders[2:]}
    free = not Mutex.for_key(KEY).locked()
    if in_order and as_seen and ended == [-signal.SIGKILL, 0, 0] and free:
        print("One led after another, and no late word of an old leader is in the log.")
        return 0
    print(f"BROKEN: {entries}, exits {ended}, lock free: {free}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
