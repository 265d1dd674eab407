"""Injects faults other than those of requests: it stops, kills and forks processes, falsifies clocks, cuts clients off,
deletes rows, and breaks claims by force.

`network` has the faults of requests, and `shim` the clocks. `LockRun` is a run with the injector of this module.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pynamodb.exceptions import PynamoDBException

from dev.chaos.network import Wire
from dev.chaos.run import Client, Run
from dev.chaos.tables import KEYS, ROWS, tables

HOUR = 3600.0

Deed = Callable[[], None]


class FaultInjector:
    """Injects one fault after another until its time is over.

    The kinds of faults come from the run's seed. Which client each one meets depends on who holds a lock at that
    moment, so a seed does not determine a run.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._record = run, run.record
        self._chance = random.Random(run.options.seed + 1)
        self._lease = run.options.lease

    def to_processes(self) -> list[Deed]:
        """Return the faults of processes; those that occur more often in the list are chosen more often."""
        return [*[self.stop] * 4, *[self.kill] * 2, *self._to_clocks()]

    def _to_clocks(self) -> list[Deed]:
        if self._run.shim is None:
            return []
        return [*[self.step_wall] * 2, *[self.stand_still] * 2]

    def to_the_rest(self) -> list[Deed]:
        """Return the faults that are injected at the same time to the network and the rows."""
        return [self.cut_off]

    def holder(self) -> Client | None:
        """Return a client that holds a lock; None if none does."""
        raise NotImplementedError

    def inject(self, ends: float) -> None:
        """Inject faults of processes, and at the same time the others, until a time of `time.monotonic`."""
        doing = []
        with ThreadPoolExecutor(2) as pool:
            for number, deeds in enumerate((self.to_processes(), self.to_the_rest())):
                chance = random.Random(f"{self._run.options.seed}-{number}")
                doing.append(pool.submit(self._do, deeds, chance, ends))
        for each in doing:
            each.result()

    def _do(self, deeds: list[Deed], chance: random.Random, ends: float) -> None:
        while time.monotonic() < ends:
            time.sleep(chance.uniform(0.1, 0.8))
            # a client that was killed may not be working again yet
            if any(client.working for client in self._run.clients):
                chance.choice(deeds)()

    def last_kill(self) -> None:
        """Kill a client that holds a lock, for good, so that the others must take the lock of a dead holder."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            client = self.holder()
            if client is not None:
                self._kill(client, last=True)
                return
            time.sleep(0.01)

    # -- choice of a client ------------------------------------------------------------------------

    def _victim(self) -> Client:
        """Return a client: three times in four one that holds a lock, where a fault does most harm."""
        anyone = self._chance.choice([client for client in self._run.clients if client.working])
        if self._chance.random() < 1 / 4:
            return anyone
        return self.holder() or anyone

    def _long_enough(self) -> float:
        """Return the seconds for which to stop a client: mostly so long that another takes its lock."""
        leases = (1.8, 3.5) if self._chance.random() < 3 / 4 else (0.3, 1.8)
        return self._chance.uniform(*leases) * self._lease

    # -- faults ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop a process, mostly for longer than its lease; its clock runs on."""
        self._pause("stop_client", still=False)

    def stand_still(self) -> None:
        """Freeze a process as if its machine was suspended: its local clock stands still too."""
        self._pause("stand_still", still=True)

    def _pause(self, deed: str, *, still: bool) -> None:
        client, seconds = self._victim(), self._long_enough()
        client.signal(signal.SIGSTOP)
        self._record(deed, client=client.name, seconds=seconds)
        time.sleep(seconds)
        if still:
            # before it resumes, so that it never sees a clock that has run on
            client.clock.stand_still(seconds)
        client.signal(signal.SIGCONT)
        self._record("resume", client=client.name, still=still)

    def kill(self) -> None:
        """Kill a client, and start another in its place."""
        client = self._victim()
        self._kill(client, last=False)
        client.start()

    def _kill(self, client: Client, *, last: bool) -> None:
        client.kill()
        self._record("kill", client=client.name, proc_killed=client.proc, last=last)

    def step_wall(self) -> None:
        """Move a client's wall clock by up to an hour."""
        client = self._chance.choice([client for client in self._run.clients if client.working])
        seconds = self._chance.choice([-1, 1]) * HOUR ** self._chance.random()
        client.clock.step_wall(seconds)
        self._record("step_wall", client=client.name, seconds=seconds)

    def cut_off(self) -> None:
        """Cut a client off from the store for a while: none of its requests gets through."""
        client, seconds = self._victim(), self._chance.uniform(0.5, 2.5) * self._lease
        client.wire.partitioned = True
        self._record("partition", client=client.name, seconds=seconds)
        time.sleep(seconds)
        client.wire.partitioned = False
        self._record("heal", client=client.name)


class LockFaultInjector(FaultInjector):
    """A fault injector that knows the locks of `dev.chaos.tables`: who holds them, and further faults of them.

    Args:
        run: The run.
        operator: The proxy for requests that break claims by force.
        reaper: The proxy for requests that delete rows.
    """

    def __init__(self, run: Run, operator: Wire, reaper: Wire) -> None:
        super().__init__(run)
        self._operator = tables(run.prefix, operator.url)
        self._reaper = tables(run.prefix, reaper.url)

    def to_processes(self) -> list[Deed]:
        return [*[self.stop] * 4, *[self.kill] * 2, *[self.fork] * 2, *self._to_clocks()]

    def to_the_rest(self) -> list[Deed]:
        return [*[self.cut_off] * 2, self.force, *[self.reap] * 2]

    def holder(self) -> Client | None:
        keys = [("locks", name) for name in KEYS] + [("rows", name) for name in ROWS]
        self._chance.shuffle(keys)
        for table, key in keys:
            name = self._run.ledger.holder(table, key)
            client = next((c for c in self._run.clients if c.name == name and c.working), None)
            if client is not None:
                return client
        return None

    def fork(self) -> None:
        """Ask a client to fork while it holds a lock."""
        client = self._victim()
        client.signal(signal.SIGUSR1)
        self._record("ask_fork", client=client.name)

    def force(self) -> None:
        """Break a claim by force, whoever holds it."""
        key = self._chance.choice(KEYS + ROWS)
        try:
            if key in KEYS:
                broken = self._operator.locks.force_release(key)
            else:
                broken = self._operator.row.locked(key).force_release()
        except PynamoDBException as error:
            self._record("force", key=key, error=str(error))
        else:
            self._record("force", key=key, broken=broken)

    def reap(self) -> None:
        """Delete a row of the lock table that is free or expired, as the TTL does, though earlier than after days.

        A new row's fencing token starts from server time in milliseconds. The process that creates the row may have had
        its clock frozen for some seconds, and so know an old time. So no row is deleted whose fencing token is not some
        seconds lower than the present time: its successor could have a lower one.
        """
        key, table, wall = self._chance.choice(KEYS), self._reaper.locks, time.time()
        over = table.expires_at.does_not_exist() | (table.expires_at < wall)
        old = table.version < int((wall - 6.0) * 1000)
        try:
            condition = over & table.ttl.exists() & old
            table(key).delete(condition=condition, add_version_condition=False)
        except PynamoDBException:
            return
        self._record("reap", key=key)


class LockRun(Run):
    """A run whose injector knows the locks of `dev.chaos.tables`, as its clients do."""

    def injector(self, proxies: list[Wire]) -> LockFaultInjector:
        return LockFaultInjector(self, *proxies)
