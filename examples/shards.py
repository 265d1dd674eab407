"""Shards spread over the workers that live: each shard has one worker, and its checkpoint never goes back.

Run without arguments, it starts workers, kills one, freezes one for longer than its lease, ends one by SIGTERM, and checks
what they did. Run a worker of your own with the name of a group, and more of them elsewhere:
python examples/shards.py work GROUP
"""

import json
import logging
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from playground import dynamodb
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex import LockItem, Mutex, MutexError

log = logging.getLogger("shards")

SHARDS = [f"shard-{number:02}" for number in range(10)]
STEP = 0.1  # seconds of work on a record
LEASE = 3.0  # seconds, in the trial: short, so that nobody waits long for the dead
PATIENCE = 60.0

Work = Callable[[str, Mutex, threading.Event], None]


class PoolLock(LockItem):
    """The locks of a group have its name as their hash key."""

    class Meta:
        table_name = "worker-pool"

    retention = 365 * 86400.0  # the checkpoint of a shard that nobody works on stays for a year
    row = UnicodeAttribute(range_key=True)  # member#ID or shard#NAME


class MemberLock(PoolLock):
    retention = 3600.0


def share_out(
    me: str,
    shards: Sequence[str],
    members: Collection[str],
    owners: Mapping[str, str],
    mine: Sequence[str],
) -> tuple[Sequence[str], Sequence[str], int]:
    """Return which shards I give away, which I take, and how many I lack. ``mine`` has the oldest first."""
    counts = Counter(owner for owner in owners.values() if owner != me)
    counts[me] = len(mine)
    share, odd = divmod(len(shards), len(members))
    most_first = sorted(members, key=lambda member: (-counts[member], member))
    due = {member: share + (place < odd) for place, member in enumerate(most_first)}
    takers = [member for member in sorted(members) for _ in range(due[member] - counts[member])]
    free = [shard for shard in shards if shard not in owners and shard not in mine]
    take = [shard for shard, taker in zip(free, takers, strict=False) if taker == me]
    return mine[due[me] :], take, max(0, due[me] - len(mine))


class Task(NamedTuple):
    mutex: Mutex
    stop: threading.Event
    thread: threading.Thread


class Worker:
    """Works on its share of the shards of a group, each on a thread of its own, until ``stop`` is set."""

    def __init__(self, group: str, shards: Sequence[str], work: Work, lease: float = 30) -> None:
        self.group, self.shards, self.work, self.lease = group, shards, work, lease
        self.me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.stop = threading.Event()
        self.tasks: dict[str, Task] = {}  # by shard, the oldest first
        self.members: set[str] = set()
        self.since = 0.0  # when these members were first seen

    def lock(self, row: str, model: type[PoolLock], **options: Any) -> Mutex:
        options |= {"lease": self.lease, "timeout": 0, "owner": self.me}
        return Mutex.for_key(self.group, range_key=row, model=model, **options)

    def run(self) -> None:
        member = self.lock(f"member#{self.me}", MemberLock, delete_on_release=True)
        pause = 0.0
        try:
            while not self.stop.wait(pause):
                pause = 1.0
                try:
                    if member.held:
                        pause = self.turn()
                    else:
                        member.acquire()  # and the first turn is a second later
                except PynamoDBException:
                    log.exception("%s: a turn failed", self.me)
        finally:
            for task in self.tasks.values():
                task.stop.set()
            for task in self.tasks.values():
                task.thread.join()
            with suppress(PynamoDBException):
                member.release()

    def turn(self) -> float:
        """Give shards away or take some; return the seconds until the next turn."""
        rows = {str(item.row): str(item.owner) for item in PoolLock.held(self.group)}
        members = {owner for row, owner in rows.items() if row.startswith("member#")}
        owners = {row[6:]: owner for row, owner in rows.items() if row.startswith("shard#")}
        if self.me not in members:
            return 1.0  # somebody has released it by force: the next renewal will notice
        if members != self.members:
            self.members, self.since = members, time.monotonic()
        self.tasks = {shard: task for shard, task in self.tasks.items() if task.thread.is_alive()}
        mine = [shard for shard, task in self.tasks.items() if task.mutex.held]
        give, take, lacks = share_out(self.me, self.shards, members, owners, mine)
        if time.monotonic() - self.since > self.lease / 3:
            for shard in give:
                self.tasks[shard].stop.set()
        for shard in take:
            if shard not in self.tasks:
                self.begin(shard)
        return 1.0 if lacks else self.lease / 6 * random.uniform(0.8, 1.2)

    def begin(self, shard: str) -> None:
        stop = threading.Event()
        mutex = self.lock(f"shard#{shard}", PoolLock, on_lost=lambda _: stop.set())
        thread = threading.Thread(target=self.hold, args=(shard, mutex, stop))
        thread.start()
        self.tasks[shard] = Task(mutex, stop, thread)

    def hold(self, shard: str, mutex: Mutex, stop: threading.Event) -> None:
        try:
            with mutex:
                try:
                    self.work(shard, mutex, stop)
                finally:
                    stop.wait(1)  # work that fails at once must not begin again at once
        except MutexError as error:  # another was faster, or the lock was lost
            log.warning("%s: no more work on %s: %s", self.me, shard, error)
        except Exception:
            log.exception("%s: the work on %s failed", self.me, shard)


def work(shard: str, mutex: Mutex, stop: threading.Event) -> None:
    """Go on from the checkpoint of a shard, and print each step."""
    checkpoint, fence = int(mutex.data or 0), mutex.fencing_token
    while not stop.is_set():
        begin = time.monotonic()
        if mutex.held:
            time.sleep(STEP)  # stands for what is done with the next record
            checkpoint += 1
            mutex.save_data(checkpoint)
            step = (shard, mutex.owner, fence, checkpoint, begin, time.monotonic())
            print(
                f"{json.dumps(step)}\n", end="", flush=True
            )  # in one piece, as other threads print


def work_until_asked_to_end(group: str, lease: float) -> None:
    PoolLock.create_table()
    worker = Worker(group, SHARDS, work, lease)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.stop.set())
    with ThreadPoolExecutor(1) as pool:  # a handler must not interrupt a wait for what it sets
        pool.submit(worker.run).result()


# -- the trial -------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What a worker did with a record, between two times on the clock that all processes share."""

    shard: str
    owner: str
    fence: int
    checkpoint: int
    begin: float
    end: float


def judge(steps: Iterable[Step], stored: Mapping[str, int]) -> list[str]:
    """Return what is wrong with the steps that were done and the checkpoints that are stored."""
    faults = []
    done: dict[str, list[Step]] = {shard: [] for shard in stored}
    for step in sorted(steps, key=lambda step: (step.checkpoint, step.end)):
        done[step.shard].append(step)
    for shard, mine in done.items():
        for one, other in pairwise(mine):
            if one.checkpoint == other.checkpoint:
                faults.append(f"{shard}: checkpoint {one.checkpoint} was reached twice")
            same = one.fence == other.fence
            if (
                other.fence < one.fence
                or other.end < one.begin
                or (same and one.owner != other.owner)
            ):
                faults.append(f"{shard}: {one.owner} and {other.owner} had it at the same time")
        if not mine:
            faults.append(f"{shard}: nobody worked on it")
        elif stored[shard] < mine[-1].checkpoint:
            faults.append(
                f"{shard}: the checkpoint {mine[-1].checkpoint} went back to {stored[shard]}"
            )
    return faults


class Trial:
    def __init__(self) -> None:
        self.group = f"trial-{secrets.token_hex(4)}"
        self.processes: list[subprocess.Popen[str]] = []
        self.readers: list[threading.Thread] = []
        self.steps: list[Step] = []
        self.owners: dict[str, str] = {}

    def start(self) -> None:
        command = [sys.executable, __file__, "work", self.group, str(LEASE)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        reader = threading.Thread(target=self.read, args=(process.stdout,), daemon=True)
        reader.start()
        self.processes.append(process)
        self.readers.append(reader)

    def read(self, lines: Iterable[str]) -> None:
        self.steps += (Step(*json.loads(line)) for line in lines if line.endswith("\n"))

    def expect(self, what: str, *counts: int) -> None:
        """Wait until each living worker has so many shards."""
        begin = time.monotonic()
        while True:
            held = {str(item.row): str(item.owner) for item in PoolLock.held(self.group)}
            owners = {row: owner for row, owner in held.items() if row.startswith("shard#")}
            if sorted(Counter(owners.values()).values()) == [*counts]:
                break
            if time.monotonic() > begin + PATIENCE:
                raise TimeoutError(f"{what}: {owners}")
            time.sleep(0.1)
        moved = sum(owner != self.owners.get(row) for row, owner in owners.items())
        self.owners = owners
        print(f"{what}: after {time.monotonic() - begin:4.1f} s {counts}, {moved} shards moved")

    def play(self) -> None:
        for _ in range(3):
            self.start()
        self.expect("three workers start", 3, 3, 4)
        self.start()
        self.expect("a fourth one starts", 2, 2, 3, 3)
        killed, frozen, ended, last = self.processes
        killed.kill()
        self.expect("one is killed", 3, 3, 4)
        frozen.send_signal(signal.SIGSTOP)
        self.expect("one is frozen", 5, 5)
        time.sleep(1)  # the others get on
        frozen.send_signal(signal.SIGCONT)
        self.expect("it goes on", 3, 3, 4)
        ended.terminate()
        self.expect("one is asked to end", 5, 5)
        frozen.terminate()
        last.terminate()
        self.expect("all are asked to end")

    def faults(self) -> list[str]:
        """End all processes, and return what went wrong."""
        exits = [process.wait(PATIENCE) for process in self.processes]
        for reader in self.readers:
            reader.join()
        rows = {
            str(item.row): item.data for item in PoolLock.query(self.group, consistent_read=True)
        }
        stored = {shard: int(rows.get(f"shard#{shard}") or 0) for shard in SHARDS}
        faults = judge(self.steps, stored)
        if exits != [-signal.SIGKILL, 0, 0, 0]:
            faults.append(f"exits: {exits}")
        if (members := len(rows) - len(SHARDS)) != 1:  # who was killed could not delete its row
            faults.append(f"{members} rows of members are left")
        print(f"{len(self.steps)} steps, {sum(stored.values())} by the checkpoints")
        return faults


def main() -> int:
    if sys.argv[1:2] == ["work"]:
        work_until_asked_to_end(sys.argv[2], float(sys.argv[3]) if sys.argv[3:] else 30)
        return 0
    with dynamodb():
        PoolLock.create_table()
        trial = Trial()
        try:
            trial.play()
            faults = trial.faults()
        finally:
            for process in trial.processes:
                process.kill()  # ends a frozen one, too
                process.wait()
    if faults:
        print("BROKEN:", *faults, sep="\n")
        return 1
    print("Each shard had one worker at a time, and no checkpoint went back.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
