"""One run: a store, its proxies, clients and a fault injector, for so many seconds."""

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
from dev.chaos.injector import FaultInjector, LockFaultInjector
from dev.chaos.liveness import unserved
from dev.chaos.network import Ledger, Wire, store, trouble
from dev.chaos.shim import Clock, Shim
from pynamodb_mutex.testing import Engine, dynamodb_local, embedded_dynamodb, use

START_SECONDS = 60.0
"""Within which all clients must be at work."""

END_SECONDS = 60.0
"""Within which a client must end: it may wait for locks, which has its own timeout, and then work."""

PATIENCE = 90.0
"""Seconds within which everybody must get on in the quiet at the end.

Long, for nobody is promised a turn: who wants several keys may wait until one finds them all free.
"""

LATEST = 3.0
"""Leases after which nothing comes late any more."""


@dataclass
class Options:
    """What a run is to be.

    Attributes:
        faults: Share of requests that meet a fault.
        injector: Whether clients are stopped, killed and so on.
        broken: Name of what is to be broken in the library, for tests of the harness.
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
        """Seconds at the end without faults, at least."""
        return 1.01 * self.lease + 2.5 + 4.0


class Client:
    """A worker and those that take its place when it is killed."""

    command = (sys.executable, "-m", "dev.chaos.worker")

    def __init__(self, run: Run, place: int, wire: Wire) -> None:
        self.run, self.place, self.wire = run, place, wire
        self.name = self.proc = wire.client
        self.lives = 0
        self.killed = False
        self.clock: Clock | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
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
        """What the worker gets."""
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
        """Whether it lives, and has come so far that it can be harmed."""
        history = self.run.folder / f"{self.proc}.jsonl"
        return self.alive and history.exists() and history.stat().st_size > 0

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
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
        """Let it end its section and itself; say whether it did."""
        if not self.alive:
            return True
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
    """See `Options`; leaves its history in a folder.

    Attributes:
        client: What its clients are.
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
        """Run it; return what the checker needs to know next to the history."""
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

    def injector(self, proxies: list[Wire]) -> FaultInjector:
        return LockFaultInjector(self, *proxies)

    def _calm_down(self) -> None:
        """Leave everybody alone until each has got on, and dead holders' locks are free."""
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
