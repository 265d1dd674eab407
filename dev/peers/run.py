"""Runs of any of the libraries: an attack on it, and holders killed in the calm."""

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
"""Within which somebody must hold the lock while another waits, and then within which it must be taken over."""

LONG_DEAD = 3.0
"""Leases after which one comes along who has not seen that the holder is dead."""

BREAK_SECONDS = 5.0
"""Between one kill and the next: the client that was killed is back at work."""


@dataclass
class PeerOptions(Options):
    """What a run is to be.

    Attributes:
        library: Its name.
        python: Interpreter of the environment that has it.
        classes: Class path of the Java client.
        kills: How many holders to kill in the calm, instead of an attack; of one client, so that
            nobody waits.
    """

    clients: int = 3
    lease: float = 4.0
    library: str = OURS
    python: str = sys.executable
    classes: str = ""
    kills: int = 0


class PeerClient(Client):
    """A worker that may have a Java process next to it: what is done to it is done to both."""

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
        """What it says that it is doing."""
        path = self.run.folder / f"{self.proc}.doing"
        return path.read_text() if self.working and path.exists() else ""


class PeerFaultInjector(FaultInjector):
    """One that knows nothing of the library: the holder is who says so."""

    def holder(self) -> PeerClient | None:
        clients = self._chance.sample(self._run.clients, len(self._run.clients))
        return next((client for client in clients if client.doing == "holds"), None)


class Killer(PeerFaultInjector):
    """Kills one holder after another while another client waits, and waits until it has taken over."""

    def inject(self, ends: float) -> None:
        for _ in range(self._run.options.kills):
            time.sleep(BREAK_SECONDS)
            holder = self._kill_holder()
            self._until(lambda holder=holder: any(c.doing == "holds" for c in self._but(holder)))
            holder.start()

    def last_kill(self) -> None:
        """Leave it at those."""
        time.sleep(BREAK_SECONDS)

    def _but(self, holder: PeerClient) -> list[PeerClient]:
        return [client for client in self._run.clients if client is not holder]

    def _until(self, happened: Any) -> None:
        until = time.monotonic() + KILL_SECONDS
        while not happened() and time.monotonic() < until:
            time.sleep(0.01)

    def _may_die(self, holder: PeerClient) -> bool:
        return any(client.doing == "waits" for client in self._but(holder))

    def _kill_holder(self) -> PeerClient:
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            holder = self.holder()
            if holder and self._may_die(holder):
                # stopped first, to see whether it has not begun to give it back meanwhile
                holder.signal(signal.SIGSTOP)
                if holder.doing == "holds":
                    self._kill(holder, last=False)
                    return holder
                holder.signal(signal.SIGCONT)
            time.sleep(0.01)
        raise RuntimeError(f"nobody holds while another waits: see {self._run.folder}")


class Desert(Killer):
    """Kills the only client while it holds, and starts another when the lease has long been over."""

    def inject(self, ends: float) -> None:
        for _ in range(self._run.options.kills):
            holder = self._kill_holder()
            time.sleep(LONG_DEAD * self._lease)
            holder.start()
            self._until(lambda holder=holder: holder.doing == "holds")

    def _may_die(self, holder: PeerClient) -> bool:
        return True


class PeerRun(Run):
    """See `PeerOptions`; leaves its history in a folder."""

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
        """Leave everybody alone for a while: nobody is waited for, since one may be blocked for an hour."""
        self.record("quiet")
        time.sleep(0 if self.options.kills else self.options.quiet)
        self.record("stop")
