"""The way from the libraries to the engine: a proxy that adds latency and counts, for the length of a block.

`wired` starts the proxy (`proxy`) and `Wire` controls it. What this process, or a child of it, makes
inside the block goes through the proxy.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dev.bench.proxy import CONTROL
from pynamodb_mutex.testing import Engine, use
from pynamodb_mutex.testing.engines import run_server

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Counts:
    """What passed through the proxy.

    Attributes:
        by_operation: Number of requests, by operation.
        wcu: Write capacity units.
        rcu: Read capacity units.
    """

    by_operation: dict[str, int]
    wcu: float
    rcu: float

    @property
    def requests(self) -> int:
        return sum(self.by_operation.values())

    def per(self, count: float) -> dict[str, Any]:
        """Return the counts divided by a number, such as that of cycles or minutes."""
        return {
            "requests": self.requests / count,
            "wcu": self.wcu / count,
            "rcu": self.rcu / count,
            "operations": {name: n / count for name, n in self.by_operation.items()},
        }


class Wire:
    """The controls of a proxy, for the process that measures.

    Attributes:
        engine: The proxy as an engine, for clients.
    """

    def __init__(self, url: str) -> None:
        self.engine = Engine("proxy", url)
        self._address = urlsplit(url)

    def set(self, latency: float) -> None:
        """Delay every request by ``latency`` seconds from now on, and begin to count anew."""
        self._ask(latency=latency)

    def counted(self) -> Counts:
        """Return what passed since the last call of this method or of `set`.

        Raises:
            ValueError: If there was a request whose capacity units are not known.
        """
        answer = self._ask()
        if answer["unknown"]:
            raise ValueError(f"no price is known for {sorted(set(answer['unknown']))}")
        return Counts(answer["requests"], answer["wcu"], answer["rcu"])

    def _ask(self, **asked: Any) -> Any:
        proxy = http.client.HTTPConnection(self._address.hostname or "", self._address.port)
        try:
            proxy.request("POST", CONTROL.decode(), json.dumps(asked))
            return json.loads(proxy.getresponse().read())
        finally:
            proxy.close()


@contextmanager
def wired(engine_url: str, latency: float = 0.0) -> Iterator[Wire]:
    """Run a proxy to the engine inside the block; clients that this process makes there go through it.

    Args:
        engine_url: URL of the engine.
        latency: Seconds by which each request is delayed.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dev.bench.proxy", engine_url]
    with run_server(command, env) as (_, url):
        wire = Wire(url)
        with use(wire.engine):
            wire.set(latency)
            yield wire
