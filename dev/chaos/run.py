"""One run of the trial: it starts a store, proxies, clients and a fault injector, and ends them again.

A run has three parts: a time with faults; a quiet time, until each client has acquired a lock and dead holders' locks
are free; and the end, when the clients finish. It leaves a history, which `checker` judges. `worker` is what a client
runs.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dev.chaos import ROOT
from dev.chaos.history import Recorder, read
from dev.chaos.liveness import unserved
from dev.chaos.network import Ledger, Wire, store, trouble
from dev.chaos.shim import Clock, Shim
from pynamodb_mutex.testing import Engine, dynamodb_local, embedded_dynamodb, use

START_SECONDS = 60.0
"""Seconds within which all clients must have started to work."""

END_SECONDS = 60.0
"""Seconds within which a client must end: it may still wait for locks, up to its own timeout, and then work."""

PATIENCE = 90.0
"""Seconds of the quiet time within which each client must acquire a lock.

It is long because waiters have no promised turn: a client that wants several keys waits until it finds them all free.
"""

LATEST = 3.0
"""Longest delay of a late request, in leases."""


@dataclass
class Options:
    """The options of a run.

    Attributes:
        seed: Seed of the random choices.
        seconds: Duration of the time with faults.
        engine: Store to run on: embedded or local.
        clients: Number of client processes.
        lease: Lease of the clients, in seconds.
        faults: Share of requests that meet a fault.
        injector: Whether there is a fault injector, which stops and kills clients and so on.
        broken: Name of a broken variant of the library, for tests of the trial itself; None for the library as it is.
    """

    seed: int
    seconds: float
    engine: str = "embedded"
    clients: int = 4
    lease: float = 1.5
    faults: float = 0.08
    injector: bool = True
    broken: str | None = None

    @property
    def quiet(self) -> float:
        """Shortest quiet time in seconds: the time until a dead holder's lock is free (I7), and some more."""
        return 1.01 * self.lease + 2.5 + 4.0


class Client:
    """A client: a worker process, and those that take its place when it is killed.

    Attributes:
        command: Command of the worker, without its configuration.
        name: Name of the client.
        proc: Name of the present process, and of its files.
        lives: Number of processes that were started.
        killed: Whether the present process was killed by the harness.
        clock: Falsified clocks of the present process; None if clocks are left alone.
    """

    command = (sys.executable, "-m", "dev.chaos.worker")

    def __init__(self, run: Run, place: int, wire: Wire) -> None:
        self.run, self.place, self.wire = run, place, wire
        self.name = self.proc = wire.client
        self.lives = 0
        self.killed = False
        self.clock: Clock | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process for the client, the first or the next one."""
        self.killed = False
        self.proc = f"{self.name}.{self.lives}"
        path = self.run.folder / f"{self.proc}.json"
        path.write_text(json.dumps(self.config()))
        self.clock = self.run.shim.clock(self.proc) if self.run.shim else None
        env = self.environment() | (self.clock.environment if self.clock else {})
        with (self.run.folder / f"{self.proc}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, str(path)], env=env, stdin=subprocess.PIPE, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self.lives += 1

    def config(self) -> dict[str, Any]:
        """Return the configuration of the next worker process."""
        options = self.run.options
        return {
            "folder": str(self.run.folder), "proc": self.proc, "url": self.wire.url,
            "prefix": self.run.prefix, "lease": options.lease, "break": options.broken,
            "threads": 2 if self.place < options.clients // 2 else 1,
            "seed": options.seed * 10_000 + self.place * 100 + self.lives,
        }  # fmt: skip

    def environment(self) -> dict[str, str]:
        here = [str(ROOT), *filter(None, sys.path)]
        return os.environ | {"PYTHONPATH": os.pathsep.join(here)}

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def working(self) -> bool:
        """Whether the process lives and has recorded its first event."""
        history = self.run.folder / f"{self.proc}.jsonl"
        return self.alive and history.exists() and history.stat().st_size > 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it lives."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, and wait until it is gone."""
        self.killed = True
        self.signal(signal.SIGKILL)
        self.process.wait()
        self._forget()

    def _forget(self) -> None:
        with suppress(OSError):
            self.process.stdin.close()
        if self.clock is not None:
            self.clock.close()

    def end(self, patience: float) -> bool:
        """Ask the process to end after its section, kill it after so many seconds; return whether it ended itself."""
        if not self.alive:
            return True
        # it may be stopped
        self.signal(signal.SIGCONT)
        with suppress(OSError):
            self.process.stdin.write(b"stop\n")
            self.process.stdin.flush()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._forget()
        return True


class Run:
    """A run, to be called once; it leaves its history in a folder.

    Args:
        options: The options.
        folder: The folder for the history, logs and configurations.

    Attributes:
        client: The class of its clients; subclasses run other programs.
        prefix: Prefix of the names of its tables.
        record: Writes the events of the harness.
        shim: Falsifies clocks; None without an injector or a compiler.
        ledger: Knows the rows in the store.
    """

    client = Client

    def __init__(self, options: Options, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.prefix = f"chaos-{options.seed}-{os.getpid()}"
        self.record = Recorder(folder / "run.jsonl", "run")
        self.clients: list[Client] = []
        self.chance = random.Random(options.seed)
        self.shim: Shim | None = None
        self.ledger: Ledger

    def __call__(self) -> dict[str, Any]:
        """Make the run; return the facts that the checker needs in addition to the history."""
        engines = {"embedded": embedded_dynamodb, "local": dynamodb_local}
        started = time.monotonic()
        with closing(self.record), engines[self.options.engine]() as engine, use(engine):
            self._in(engine)
        facts = asdict(self.options) | {
            "wall_seconds": time.monotonic() - started,
            "clocks": self.shim is not None,
        }
        (self.folder / "run.json").write_text(json.dumps(facts, indent=1))
        return facts

    def _in(self, engine: Engine) -> None:
        options = self.options
        self.shim = Shim.build(self.folder) if options.injector else None
        names = [f"c{place}" for place in range(options.clients)] + ["operator", "reaper"]
        with store(engine, self.folder, self.prefix, self.record, names) as (self.ledger, proxies):
            for place, wire in enumerate(proxies[: options.clients]):
                self.clients.append(self.client(self, place, wire))
            try:
                self._start()
                self._disturb(proxies)
                self._end()
            finally:
                for client in self.clients:
                    if client.alive:
                        client.kill()
            # until no late request is left, so that the history has all of them
            time.sleep(LATEST * options.lease + 0.5 if options.faults else 0.2)

    def _start(self) -> None:
        for client in self.clients:
            client.start()
        until = time.monotonic() + START_SECONDS
        while not all(client.working for client in self.clients):
            if time.monotonic() > until or not all(client.alive for client in self.clients):
                raise RuntimeError(f"a client does not start: see the logs in {self.folder}")
            time.sleep(0.05)

    def _disturb(self, proxies: list[Wire]) -> None:
        options = self.options
        if options.faults:
            for place, client in enumerate(self.clients):
                client.wire.always(
                    trouble(options.seed * 100 + place, options.lease, options.faults)
                )
        ends = time.monotonic() + options.seconds
        if not options.injector:
            time.sleep(options.seconds)
        else:
            injector = self.injector(proxies[options.clients :])
            injector.inject(ends)
            injector.last_kill()
        for client in self.clients:
            client.wire.clear()
            client.wire.partitioned = False
        self._calm_down()

    def injector(self, proxies: list[Wire]) -> Any:
        """Return a new `FaultInjector` for this run, which may send requests through these proxies."""
        raise NotImplementedError

    def _calm_down(self) -> None:
        """Wait without faults until dead holders' locks are free and each client and lock had an acquisition."""
        self.record("quiet")
        until = time.monotonic() + PATIENCE
        time.sleep(self.options.quiet)
        while unserved(read(self.folder))[1] and time.monotonic() < until:
            time.sleep(1.0)
        self.record("stop")

    def _end(self) -> None:
        for client in self.clients:
            if not client.alive and not client.killed:
                self.record("died", client=client.name)
            if client.alive and not client.end(END_SECONDS):
                self.record("hung", client=client.name)
