"""A client of a run: the process that works, those that take its place, and its proxy with the faults of requests."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dev import faultproxy as net
from dev.chaos import ROOT
from dev.chaos.history import Recorder
from dev.faultproxy import Exchange, Fault, FaultProxy, Reply

END_SECONDS = 60.0
"""Seconds within which a client must end: it may still wait for locks, up to its own timeout, and then work."""


class Wire(FaultProxy):
    """The proxy of one client, which records the requests.

    Attributes:
        partitioned: Whether the client is cut off.
    """

    def __init__(self, engine_url: str, client: str, record: Recorder) -> None:
        super().__init__(engine_url)
        self.partitioned = False
        self._client, self._record = client, record

    def note(self, exchange: Exchange, fault: str | None, reply: Reply | None) -> None:
        fault = "partition" if self.partitioned and reply is None else fault
        self._record("wire", proc=self._client, kind=exchange.kind, fault=fault)


def trouble(seed: int, lease: float, rate: float) -> Fault:
    """Return a fault that drops all requests of a client that is cut off, and gives others a random fault at a rate."""
    chance = random.Random(seed)

    def seconds() -> float:
        return chance.uniform(0, chance.choice([0.1, 0.1, lease, 3 * lease]))

    def answer_and_repeat(exchange: Exchange) -> None:
        exchange.answer(exchange.apply(None))
        net.apply_after(exchange, seconds(), "late_duplicate")

    repeat = Fault("late_duplicate", answer_and_repeat)
    kinds = [
        *[net.drop_request()] * 2,
        *[net.drop_answer()] * 3,
        *[net.apply_then_500()] * 2,
        net.server_error(),
        *[net.throttle()] * 2,
        net.deny(),
        *[net.delay(lease / 3), net.delay_answer(lease / 3)],
        *[net.duplicate(), net.duplicate("second")],
        *[net.late_by(seconds)] * 2,
        *[repeat] * 3,
        net.stall(lease),
        net.stall(lease, apply=True),
    ]

    def meet(exchange: Exchange) -> None:
        fault = chance.choice(kinds) if chance.random() < rate else net.pass_on()
        is_write = exchange.kind == "update" or exchange.op in {"PutItem", "TransactWriteItems"}
        if is_write:
            # A write that comes late or twice is what guards are for; few requests are one.
            fault = chance.choice([*kinds, *[repeat] * 12]) if chance.random() < 4 * rate else fault
        if exchange.proxy.partitioned:
            fault = kinds[0]
        fault.meet(exchange)

    return Fault("trouble", meet)


class Client:
    """A client: a worker process, and those that take its place when it is killed.

    Args:
        name: Name of the client.
        wire: Its proxy.
        folder: The folder for its history, logs and configurations.
        **config: More of the configuration of its workers.

    Attributes:
        proc: Name of the present process.
        killed: Whether the present process was killed by the harness.
    """

    def __init__(self, name: str, wire: Wire, folder: Path, **config: Any) -> None:
        self.name = self.proc = name
        self.wire = wire
        self.killed = False
        self._folder = folder
        self._config = {"folder": str(folder), "url": wire.url, **config}
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process for the client, the first or the next one."""
        self.killed = False
        self.proc = f"{self.name}.{self._lives}"
        seed = self._config["seed"] + self._lives
        path = self._folder / f"{self.proc}.json"
        path.write_text(json.dumps({**self._config, "proc": self.proc, "seed": seed}))
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        with (self._folder / f"{self.proc}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dev.chaos.worker", str(path)],
                env=env, stdin=subprocess.PIPE, stdout=log, stderr=log,
            )  # fmt: skip
        self._lives += 1

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def working(self) -> bool:
        """Whether the process lives and has recorded its first event."""
        history = self._folder / f"{self.proc}t0.jsonl"
        return self.alive and history.exists() and history.stat().st_size > 0

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it lives."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process, and wait until it is gone."""
        self.killed = True
        self.signal(signal.SIGKILL)
        self._process.wait()
        with suppress(OSError):
            self._process.stdin.close()

    def end(self) -> bool:
        """Ask the process to end after its section, kill it if it does not; return whether it ended itself."""
        # it may be stopped
        self.signal(signal.SIGCONT)
        with suppress(OSError):
            self._process.stdin.write(b"stop\n")
            self._process.stdin.flush()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        self._process.stdin.close()
        return True
