"""Runs of clients of any library: with all faults, or with none but holders that are killed ("in the calm").

The run, its faults and its history are those of dev.chaos. This module replaces what depends on the library: the
clients (`worker`), and how the fault injector finds the holder of the lock.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import boto3

from dev.chaos import ROOT
from dev.chaos.injector import FaultInjector
from dev.chaos.network import Wire
from dev.chaos.run import Client, Options, Run
from dev.peers import LIBRARIES, OURS, create_table
from dev.peers.java import CLASSES
from pynamodb_mutex.testing import Engine, environment

KILL_SECONDS = 60.0
"""Seconds within which there must be a holder that may be killed, and then within which its lock must be taken over."""

LONG_DEAD = 3.0
"""Number of leases after which a client comes that has never seen the claim of the dead holder."""

BREAK_SECONDS = 5.0
"""Seconds between two kills, in which the client that was killed first is back at work."""


@dataclass
class PeerOptions(Options):
    """Options of a run.

    Attributes:
        library: Name of the library.
        python: Interpreter of the environment that has it.
        classes: Class path of the Java client; empty for other libraries.
        kills: Number of holders to kill, without other faults; 0 for a run with all faults. With one client, nobody
            waits when it is killed.
    """

    clients: int = 3
    lease: float = 4.0
    library: str = OURS
    python: str = sys.executable
    classes: str = ""
    kills: int = 0


class PeerClient(Client):
    """A worker that may have a Java process next to it: signals go to the process group, and so to both."""

    run: PeerRun

    @property
    def command(self) -> tuple[str, ...]:
        return (self.run.options.python, "-m", "dev.peers.worker")

    def config(self) -> dict[str, Any]:
        options = self.run.options
        return super().config() | {"library": options.library, "calm": options.kills > 0}

    def environment(self) -> dict[str, str]:
        return environment(Engine("proxy", self.wire.url)) | {
            "PYTHONPATH": str(ROOT),
            CLASSES: self.run.options.classes,
        }

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    @property
    def doing(self) -> str:
        """State that the worker has written to its file: "waits", "holds", or empty."""
        path = self.run.folder / f"{self.proc}.doing"
        return path.read_text() if self.working and path.exists() else ""


class PeerFaultInjector(FaultInjector):
    """A fault injector that knows nothing of the library: the holder is the client that says so."""

    def holder(self) -> PeerClient | None:
        clients = self._chance.sample(self._run.clients, len(self._run.clients))
        return next((client for client in clients if client.doing == "holds"), None)


class Killer(PeerFaultInjector):
    """Kills one holder after another, each while another client waits, and waits until that one holds the lock."""

    def inject(self, ends: float) -> None:
        for _ in range(self._run.options.kills):
            time.sleep(BREAK_SECONDS)
            holder = self._kill_holder()
            self._until(lambda holder=holder: any(c.doing == "holds" for c in self._but(holder)))
            holder.start()

    def last_kill(self) -> None:
        """Kill no holder at the end of the run, where a run with all faults does."""
        time.sleep(BREAK_SECONDS)

    def _but(self, holder: PeerClient) -> list[PeerClient]:
        return [client for client in self._run.clients if client is not holder]

    def _until(self, happened: Any) -> None:
        """Wait for a condition, for KILL_SECONDS at most."""
        until = time.monotonic() + KILL_SECONDS
        while not happened() and time.monotonic() < until:
            time.sleep(0.01)

    def _may_die(self, holder: PeerClient) -> bool:
        """Return whether a holder may be killed now."""
        return any(client.doing == "waits" for client in self._but(holder))

    def _kill_holder(self) -> PeerClient:
        """Kill a client that holds the lock, as soon as it may be killed, and return it."""
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            holder = self.holder()
            if holder and self._may_die(holder):
                # Stopped first: the holder may have begun to release since its state was read, and its death would
                # then not be that of a holder. While it is stopped, its state cannot change any more.
                holder.signal(signal.SIGSTOP)
                if holder.doing == "holds":
                    self._kill(holder, last=False)
                    return holder
                holder.signal(signal.SIGCONT)
            time.sleep(0.01)
        raise RuntimeError(f"nobody holds while another waits: see {self._run.folder}")


class Desert(Killer):
    """Kills the only client while it holds the lock, and starts another long after the lease has expired."""

    def inject(self, ends: float) -> None:
        for _ in range(self._run.options.kills):
            holder = self._kill_holder()
            time.sleep(LONG_DEAD * self._lease)
            holder.start()
            self._until(lambda holder=holder: holder.doing == "holds")

    def _may_die(self, holder: PeerClient) -> bool:
        return True


class PeerRun(Run):
    """A run as `PeerOptions` describe it; writes its history to a folder."""

    client = PeerClient
    options: PeerOptions

    def _start(self) -> None:
        keys = LIBRARIES[self.options.library].keys
        create_table(boto3.client("dynamodb"), f"{self.prefix}-peers", keys)
        super()._start()

    def injector(self, proxies: list[Wire]) -> FaultInjector:
        if not self.options.kills:
            return PeerFaultInjector(self)
        return Desert(self) if self.options.clients == 1 else Killer(self)

    def _calm_down(self) -> None:
        """Inject no faults for a while. Unlike dev.chaos, do not wait for clients: some may be blocked for an hour."""
        self.record("quiet")
        time.sleep(0 if self.options.kills else self.options.quiet)
        self.record("stop")
