"""Injects faults other than those of requests: it stops, kills and forks processes, cuts clients off, deletes rows,
and breaks claims by force. `client` has the faults of requests.
"""

from __future__ import annotations

import argparse
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pynamodb.exceptions import DoesNotExist, PynamoDBException

from dev.chaos.client import Client
from dev.chaos.history import Recorder, now
from dev.chaos.sections import KEYS, ROWS, Tables


class FaultInjector:
    """Injects one fault after another until its time is over.

    The kinds of faults come from the run's seed. Which client each one meets depends on who holds a lock at that
    moment, so a seed does not determine a run.

    Args:
        options: The options of the run.
        clients: Its clients.
        made: Models whose requests meet no faults.
        record: Writes the events.
    """

    def __init__(
        self, options: argparse.Namespace, clients: list[Client], made: Tables, record: Recorder
    ) -> None:
        self._clients, self._tables, self._record = clients, made, record
        self._seed, self._lease = options.seed, options.lease
        self._chance = random.Random(self._seed + 1)
        self._interrupted = threading.Event()

    def inject(self, ends: float) -> None:
        """Inject faults of processes, and at the same time others, until a time of `time.monotonic`.

        Those that occur more often in a list are chosen more often.
        """
        processes = [*[self._stop] * 4, *[self._kill] * 2, *[self._fork] * 2]
        others = [*[self._cut_off] * 2, self._force, *[self._reap] * 2]
        with ThreadPoolExecutor(2) as pool:
            doing = [pool.submit(self._do, deeds, ends) for deeds in (processes, others)]
            try:
                for each in doing:
                    each.result()
            finally:
                self._interrupted.set()

    def _do(self, deeds: list[Callable[[], None]], ends: float) -> None:
        chance = random.Random(f"{self._seed}-{len(deeds)}")
        while time.monotonic() < ends and not self._interrupted.is_set():
            time.sleep(chance.uniform(0.1, 0.8))
            # a client that was killed may not be working again yet
            if any(client.working for client in self._clients):
                chance.choice(deeds)()

    # -- choice of a client ------------------------------------------------------------------------

    def _holder(self) -> Client | None:
        """Return a client that holds a lock; None if none does."""
        keys = [*KEYS, *ROWS]
        self._chance.shuffle(keys)
        for key in keys:
            try:
                if key in KEYS:
                    owner = self._tables.locks.get(key, consistent_read=True).owner
                else:
                    owner = self._tables.row.get(key, consistent_read=True).lock_owner
            except DoesNotExist:
                continue
            for client in self._clients:
                if owner and owner.split(".")[0] == client.name and client.working:
                    return client
        return None

    def _victim(self) -> Client:
        """Return a client: three times in four one that holds a lock, where a fault does most harm."""
        anyone = self._chance.choice([client for client in self._clients if client.working])
        if self._chance.random() < 1 / 4:
            return anyone
        return self._holder() or anyone

    # -- faults ------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """Stop a client, mostly for so long that another takes its lock; its clock runs on."""
        leases = (1.8, 3.5) if self._chance.random() < 3 / 4 else (0.3, 1.8)
        client, seconds = self._victim(), self._chance.uniform(*leases) * self._lease
        self._record("stop_client", client=client.name, seconds=seconds)
        client.signal(signal.SIGSTOP)
        time.sleep(seconds)
        client.signal(signal.SIGCONT)
        self._record("resume", client=client.name)

    def _kill(self) -> None:
        """Kill a client, and start another in its place."""
        client = self._victim()
        self._record("kill", client=client.name, killed=client.proc)
        client.kill()
        client.start()

    def _fork(self) -> None:
        """Ask a client to fork while it holds a lock."""
        client = self._victim()
        client.signal(signal.SIGUSR1)
        self._record("ask_fork", client=client.name)

    def _cut_off(self) -> None:
        """Cut a client off from the store for a while: none of its requests gets through."""
        client, seconds = self._victim(), self._chance.uniform(0.5, 2.5) * self._lease
        self._record("cut_off", client=client.name, seconds=seconds)
        client.wire.partitioned = True
        time.sleep(seconds)
        client.wire.partitioned = False

    def _force(self) -> None:
        """Break a claim by force, whoever holds it."""
        key, since = self._chance.choice(KEYS + ROWS), now()
        try:
            if key in KEYS:
                broken = self._tables.locks.force_release(key)
            else:
                broken = self._tables.row.locked(key).force_release()
        except PynamoDBException as error:
            self._record("force", key=key, since=since, unknown=True, error=str(error))
        else:
            if broken:
                self._record("force", key=key, since=since)

    def _reap(self) -> None:
        """Delete a row of the lock table that is free or expired, as the TTL does, though earlier than after days.

        A new row's fencing token starts from server time in milliseconds, which the process that creates the row knows to
        two seconds. So no row is deleted whose fencing token is not some seconds lower than the present time: its
        successor could have a lower one.
        """
        key, table, wall = self._chance.choice(KEYS), self._tables.locks, time.time()
        over = table.expires_at.does_not_exist() | (table.expires_at < wall)
        old = table.version < int((wall - 6.0) * 1000)
        try:
            condition = over & table.ttl.exists() & old
            table(key).delete(condition=condition, add_version_condition=False)
        except PynamoDBException:
            return
        self._record("reap", key=key)
