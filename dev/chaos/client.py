"""A client of a run: the process that works, and those that take its place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from dev.chaos import ROOT
from dev.chaos.network import Wire
from dev.chaos.shim import Clock

END_SECONDS = 60.0
"""Seconds within which a client must end: it may still wait for locks, up to its own timeout, and then work."""


class Client:
    """A client: a worker process, and those that take its place when it is killed.

    Args:
        name: Name of the client.
        wire: Its proxy.
        folder: The folder for its history, logs and configurations.
        shim: The library that falsifies clocks; None to leave them alone.
        **config: More of the configuration of its workers.

    Attributes:
        proc: Name of the present process.
        killed: Whether the present process was killed by the harness.
        clock: Falsified clocks of the present process; None if clocks are left alone.
    """

    def __init__(
        self, name: str, wire: Wire, folder: Path, shim: Path | None, **config: Any
    ) -> None:
        self.name = self.proc = name
        self.wire = wire
        self.killed = False
        self.clock: Clock | None = None
        self._folder, self._shim = folder, shim
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
        if self._shim is not None:
            self.clock = Clock(self._shim, self._folder / f"{self.proc}.clock")
            env |= self.clock.environment
        with (self._folder / f"{self.proc}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dev.chaos.worker", str(path)],
                env=env, stdin=subprocess.PIPE, stderr=log, start_new_session=True,
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
        self._forget()

    def _forget(self) -> None:
        with suppress(OSError):
            self._process.stdin.close()
        if self.clock is not None:
            self.clock.close()

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
        self._forget()
        return True
