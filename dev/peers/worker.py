"""A client of any library: acquires the lock, reads and writes rows, releases the lock, and records each outcome.

    python -m dev.peers.worker CONFIG.json

It ends as `dev.chaos.worker` does: after its section at a line on standard input, at once at the end of that.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import boto3

from dev.chaos.history import Recorder
from dev.chaos.tables import control_of
from dev.chaos.worker import Beliefs
from dev.peers import KEY, LIBRARIES
from dev.peers.adapters import Peer
from dev.peers.java import JavaError
from dev.peers.ours import OurMutex

TIMEOUT = 15.0
"""Seconds for which an acquire waits."""


class Holding:
    """One acquisition, as `Beliefs` polls it.

    Attributes:
        locks: Token and fencing token by lock; the other libraries have no fencing tokens.
        peer: The library.
        released: Whether the release has begun.
    """

    def __init__(self, peer: Peer, token: str) -> None:
        self.locks = {KEY: (token, 0)}
        self.peer = peer
        self.released = False

    @property
    def held(self) -> bool:
        return not self.released and self.peer.held()


class Worker:
    """One thread that works until it has to stop.

    In addition to its history it keeps a file with its present state, in which a fault injector finds the holder:
    "waits", "holds", or nothing.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        self.proc, self.lease, self.calm = config["proc"], config["lease"], config["calm"]
        folder = Path(config["folder"])
        self.record = Recorder(folder / f"{self.proc}.jsonl", self.proc)
        self.doing = folder / f"{self.proc}.doing"
        self.chance = random.Random(config["seed"])
        self.stopping = threading.Event()
        self.beliefs = Beliefs(self.record)
        module, adapter = LIBRARIES[config["library"]].adapter
        made: type[Peer] = getattr(importlib.import_module(f"dev.peers.{module}"), adapter)
        self.peer = made(f"{config['prefix']}-peers", self.lease, self.proc)
        self.rows = boto3.resource("dynamodb").Table(f"{config['prefix']}-rows")
        self._numbers = itertools.count(1)

    def run(self) -> None:
        self.record("start", pid=os.getpid(), version=self.peer.version)
        while not self.stopping.is_set():
            self._section()
            self.doing.write_text("")
            # A long pause in the calm: another client acquires the lock meanwhile, and its hand-over is measured.
            time.sleep(self.chance.uniform(0, self.lease if self.calm else 0.02))
        self.peer.close()
        self.record("end")

    def _section(self) -> None:
        token = f"{self.proc}-{next(self._numbers)}"
        call = {"names": [KEY], "token": token}
        self.doing.write_text("waits")
        self.record("acquire", phase="invoke", **call)
        try:
            taken = self.peer.acquire(KEY, TIMEOUT)
        except Exception as error:
            self._failed("acquire", error, **call)
            self.doing.write_text("")
            # As a program would: trying again at once would soon use up the SDK's quota of retries.
            time.sleep(self.chance.uniform(0.5, 1.5))
            return
        if not taken:
            self.record("acquire", phase="fail", **call)
            return
        self.record("acquire", phase="ok", locks={KEY: (token, 0)}, **call)
        holding = Holding(self.peer, token)
        self.beliefs.start(holding)
        self.doing.write_text("holds")
        try:
            self._work(holding)
        finally:
            self.doing.write_text("")
            # Before the request: the release may be applied, and another client acquire the lock, while the library
            # still waits for the answer and says "held". That is no overlap: this client does not work any more.
            holding.released = True
            self._release(token)
            self.beliefs.stop()

    def _work(self, holding: Holding) -> None:
        control = control_of(KEY)
        try:
            item = self.rows.get_item(Key={"name": control}, ConsistentRead=True)["Item"]
            if isinstance(self.peer, OurMutex):
                self.peer.read(KEY)
        except Exception as error:
            self._failed("read", error)
            return
        for _ in range(self.chance.randrange(1, 4)):
            longest = self.lease if self.chance.random() < 1 / 8 else 0.06
            time.sleep(
                self.chance.uniform(0.2, 0.4) if self.calm else self.chance.uniform(0, longest)
            )
            if not holding.held:
                return
            value = f"{self.proc}-{next(self._numbers)}"
            item |= {"read": item["last"], "last": value}
            if not self._write("control", value, partial(self.rows.put_item, Item=item)):
                return
            ours = isinstance(self.peer, OurMutex)
            if ours and not self._write("write", value, partial(self.peer.write, value)):
                return

    def _write(self, op: str, value: str, write: Callable[[], object]) -> bool:
        values = {KEY: value}
        self.record(op, phase="invoke", values=values)
        try:
            write()
        except Exception as error:
            self._failed(op, error, values=values)
            return False
        self.record(op, phase="ok", values=values)
        return True

    def _release(self, token: str) -> None:
        self.record("release", phase="invoke", token=token)
        try:
            self.peer.release()
        except Exception as error:
            self._failed("release", error, token=token)
        else:
            self.record("release", phase="ok", token=token)

    def _failed(self, op: str, error: Exception, **call: Any) -> None:
        kind = error.kind if isinstance(error, JavaError) else type(error).__name__
        self.record(op, phase="info", error=kind, text=str(error)[:300], **call)


def main(path: str) -> None:
    worker = Worker(json.loads(Path(path).read_text()))

    def listen() -> None:
        if sys.stdin.readline():
            worker.stopping.set()
            sys.stdin.readline()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    worker.run()


if __name__ == "__main__":
    main(sys.argv[1])
