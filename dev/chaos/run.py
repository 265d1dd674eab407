"""One run of the trial: it starts a store, proxies, clients and a fault injector, and ends them again.

A run has three parts: a time with faults; a quiet time, until each client has acquired a lock and dead holders' locks
are free; and the end, when the clients finish. It leaves a history. `worker` is what a client runs.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, closing
from pathlib import Path

from dev.chaos.client import Client, Wire, trouble
from dev.chaos.history import Recorder, read, unserved
from dev.chaos.injector import FaultInjector
from dev.chaos.sections import KEYS, ROWS, tables
from pynamodb_mutex.testing import Engine

START_SECONDS = 60.0
"""Seconds within which all clients must have started to work."""

PATIENCE = 90.0
"""Seconds of the quiet time within which each client must acquire a lock.

It is long because waiters have no promised turn: a client that wants several keys waits until it finds them all free.
"""


class Run:
    """A run, to be called once; it leaves its history in a folder.

    Args:
        options: The options of the command line.
        folder: The folder for the history, logs and configurations.
        prefix: Prefix of the names of its tables.

    Attributes:
        record: Writes the events of the harness.
    """

    def __init__(self, options: argparse.Namespace, folder: Path, prefix: str) -> None:
        self.options, self.folder, self.prefix = options, folder, prefix
        self.record = Recorder(folder / "run.jsonl", "run")
        self.clients: list[Client] = []

    def __call__(self, engine: Engine) -> None:
        """Make the run in an engine that the process uses."""
        with closing(self.record):
            self._in(engine)

    def _in(self, engine: Engine) -> None:
        options = self.options
        # patient: a store that has just started is slow
        made = tables(self.prefix, engine.endpoint_url, read_timeout=30.0)
        made.locks.create_table()
        made.row.create_table(wait=True)
        for name in (*KEYS, *ROWS):
            made.plain(name).save()
        self.record("init", lease=options.lease)
        with ExitStack() as stack:
            wire_record = stack.enter_context(closing(Recorder(self.folder / "wire.jsonl", "wire")))
            for place in range(options.clients):
                wire = Wire(engine.endpoint_url, f"c{place}", wire_record)
                stack.enter_context(wire.serving())
                config = {
                    "prefix": self.prefix, "lease": options.lease, "break": options.broken,
                    "threads": 2 if place < options.clients // 2 else 1,
                    "seed": options.seed * 10_000 + place * 100,
                }  # fmt: skip
                client = Client(f"c{place}", wire, self.folder, **config)
                self.clients.append(client)
            try:
                self._start()
                self._disturb(FaultInjector(options, self.clients, made, self.record))
                self._calm_down()
                self._end()
            finally:
                for client in self.clients:
                    if client.alive:
                        client.kill()
            # until no late request is left, which comes three leases late at most
            time.sleep(0.2 if options.calm else 3 * options.lease + 0.5)
        rows = {name: made.plain.get(name, consistent_read=True) for name in (*KEYS, *ROWS)}
        self.record("final", values={name: row.state() for name, row in rows.items()})

    def _start(self) -> None:
        for client in self.clients:
            client.start()
        until = time.monotonic() + START_SECONDS
        while not all(client.working for client in self.clients):
            if time.monotonic() > until or not all(client.alive for client in self.clients):
                raise RuntimeError(f"a client does not start: see the logs in {self.folder}")
            time.sleep(0.05)

    def _disturb(self, injector: FaultInjector) -> None:
        options = self.options
        ends = time.monotonic() + options.seconds
        if options.calm:
            time.sleep(options.seconds)
            return
        for place, client in enumerate(self.clients):
            client.wire.always(trouble(options.seed * 100 + place, options.lease, options.faults))
        injector.inject(ends)
        for client in self.clients:
            client.wire.clear()

    def _calm_down(self) -> None:
        """Wait without faults until dead holders' locks are free and each client and lock had an acquisition."""
        self.record("quiet")
        until = time.monotonic() + PATIENCE
        # until a dead holder's lock is free (I7), and some more
        time.sleep(1.01 * self.options.lease + 2.5 + 4.0)
        while unserved(read(self.folder)) and time.monotonic() < until:
            time.sleep(1.0)
        self.record("stop")

    def _end(self) -> None:
        for client in self.clients:
            if not client.alive and not client.killed:
                self.record("died", client=client.name)
            if client.alive and not client.end():
                self.record("hung", client=client.name)
