"""The network of a run: one proxy for each client, the faults of requests, and one ledger of all that was applied.

The ledger lets one request at a time through to the store and reads the rows after it. So the history has the requests
in the order in which they were applied, which `checker` takes for the truth.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dev.chaos.history import Recorder
from dev.chaos.tables import PATIENT, as_they_stand, create, tables
from dev.faultproxy import (
    Body,
    Exchange,
    Fault,
    FaultProxy,
    Reply,
    Seen,
    apply_after,
    apply_then_500,
    delay,
    delay_answer,
    deny,
    drop_answer,
    drop_request,
    duplicate,
    late_by,
    pass_on,
    server_error,
    stall,
    throttle,
)
from pynamodb_mutex.testing import Engine

_WRITES = {"UpdateItem", "PutItem", "DeleteItem", "TransactWriteItems"}
_CLAIM = ("token", "version", "expires_at", "writes", "lease", "ttl")
_WRITTEN = ("last", "read", "count", "ticks", "by", "fence")
_KEYS = {"locks": "key", "rows": "name"}
"""Name of the key of each table whose rows are recorded."""


class Ledger:
    """Passes one request at a time to the store, and records the rows after it.

    Attributes:
        lock: Held from before a request is passed to the store until its rows are recorded.
        record: Writes the events.
        states: The rows after the last write, by table and key.
        owners: The client that made each acquisition, by its token.
    """

    def __init__(self, engine: Engine, prefix: str, record: Recorder) -> None:
        self.lock = threading.Lock()
        self.record = record
        self.states: dict[tuple[str, str], dict[str, Any]] = {}
        self.owners: dict[str, str] = {}
        self._prefix = prefix
        self._address = urlsplit(engine.endpoint_url)
        self._connection: http.client.HTTPConnection | None = None
        self._sequence = 0

    def ask(self, headers: dict[str, str], raw: bytes) -> Reply:
        """Pass a request to the store, and return the reply; the caller holds the lock."""
        # twice: the store may have closed the connection while it was idle
        for last in (False, True):
            if self._connection is None:
                self._connection = http.client.HTTPConnection(
                    self._address.hostname or "", self._address.port, timeout=30
                )
            try:
                self._connection.request("POST", "/", raw, headers)
                response = self._connection.getresponse()
                return Reply(response.status, response.read(), tuple(response.getheaders()))
            except (http.client.HTTPException, OSError):
                self.close()
                if last:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def note(self, client: str, exchange: Exchange, fault: str | None, reply: Reply | None) -> None:
        """Record a request, its fault and its reply; the caller holds the lock if it was passed to the store."""
        applied = reply is not None and reply.status == 200
        rows = []
        if applied and exchange.op in _WRITES:
            rows = [self._row(exchange, *target) for target in self._targets(exchange)]
        self._sequence += 1
        for row in rows:
            self.states[row["table"], row["key"]] = row
            if row.get("token"):
                self.owners.setdefault(row["token"], client)
        more = {} if reply is None or applied else {"error": reply.error}
        self.record(
            "wire", proc=client, seq=self._sequence, name=exchange.op, kind=exchange.kind, fault=fault,
            applied=applied, status=reply and reply.status, rows=rows, wall=time.time(),
            keys=self._keys(exchange), **self._elsewhere(exchange), **more,
        )  # fmt: skip

    def _keys(self, exchange: Exchange) -> list[str]:
        return [f"{table}/{key}" for table, key, _ in self._targets(exchange)]

    def _targets(self, exchange: Exchange) -> Iterator[tuple[str, str, Body]]:
        """Yield the rows that a request names in recorded tables: table, key, and the typed key."""
        body = exchange.body
        requests = [body]
        if exchange.op == "TransactWriteItems":
            requests = [
                request
                for item in body["TransactItems"]
                for kind, request in item.items()
                if kind != "ConditionCheck"
            ]
        for request in requests:
            if "TableName" not in request or not ("Key" in request or "Item" in request):
                continue
            table = self._table(request)
            if table in _KEYS:
                name = _KEYS[table]
                key = (request.get("Key") or request["Item"])[name]
                yield table, key["S"], {name: key}

    def _table(self, request: Body) -> str:
        return str(request["TableName"]).removeprefix(f"{self._prefix}-")

    def _elsewhere(self, exchange: Exchange) -> dict[str, Any]:
        """Return the table and the values of a request to a table that is not recorded; else nothing."""
        body = exchange.body
        if "TableName" not in body or self._table(body) in _KEYS:
            return {}
        values = {**body.get("Item", {}), **body.get("ExpressionAttributeValues", {})}
        said = [text for value in values.values() for text in value.values()]
        return {"table": self._table(body), "says": said}

    def _row(self, exchange: Exchange, table: str, key: str, raw_key: Body) -> dict[str, Any]:
        """Read a row after a request that has written it; the caller holds the lock, so nothing comes between."""
        target = exchange.headers["X-Amz-Target"].rpartition(".")[0] + ".GetItem"
        body = {"TableName": f"{self._prefix}-{table}", "Key": raw_key, "ConsistentRead": True}
        raw = json.dumps(body).encode()
        headers = exchange.headers | {"X-Amz-Target": target, "Content-Length": str(len(raw))}
        item = self.ask(headers, raw).body.get("Item", {})
        lock_prefix = "" if table == "locks" else "lock_"
        row: dict[str, Any] = {"table": table, "key": key, "there": bool(item)}
        for name, stored in [(n, lock_prefix + n) for n in _CLAIM] + [(n, n) for n in _WRITTEN]:
            if stored in item:
                ((kind, value),) = item[stored].items()
                row[name] = _number(value) if kind == "N" else value
        return row

    def holder(self, table: str, key: str) -> str | None:
        """Return the client that holds a key according to the store; None if it is free."""
        row = self.states.get((table, key), {})
        return self.owners.get(row["token"]) if row.get("expires_at") else None


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


class Wire(FaultProxy):
    """The proxy of one client; it sends its requests through the ledger.

    Attributes:
        client: Name of the client.
        partitioned: Whether the client is cut off.
    """

    def __init__(self, engine: Engine, ledger: Ledger, client: str) -> None:
        super().__init__(engine.endpoint_url)
        self.client = client
        self.partitioned = False
        self._ledger = ledger
        self._forwarding = ledger.lock

    def _ask(self, headers: dict[str, str], raw: bytes) -> Reply:
        return self._ledger.ask(headers, raw)

    def note(self, exchange: Exchange, fault: str | None, reply: Reply | None) -> None:
        if self.partitioned and reply is None:
            fault = "partition"
        self._ledger.note(self.client, exchange, fault, reply)
        with self._logged:
            # only the last one, for `wait`: the history has them all, and this would grow without end
            self.log[:] = [Seen(exchange.op, {}, exchange.kind, False, None, fault, None, b"", {})]
            self._logged.notify_all()


@contextmanager
def store(
    engine: Engine, folder: Path, prefix: str, record: Recorder, clients: list[str]
) -> Iterator[tuple[Ledger, list[Wire]]]:
    """Create the tables, and run a proxy for each client inside the block; records the rows before and after."""
    made = tables(prefix, engine.endpoint_url, read_timeout=PATIENT)
    rows = create(made)
    record("init", rows=rows)
    with ExitStack() as stack:
        wire_record = stack.enter_context(closing(Recorder(folder / "wire.jsonl", "wire")))
        ledger = stack.enter_context(closing(Ledger(engine, prefix, wire_record)))
        wires = [Wire(engine, ledger, client) for client in clients]
        for wire in wires:
            stack.enter_context(wire.serving())
        yield ledger, wires
    record("final", rows=as_they_stand(made, rows))


def late(chance: random.Random, lease: float) -> Fault:
    """Return a fault: the connection is reset, and the request applied later, perhaps after the lease."""
    return late_by(lambda: _random_delay(chance, lease))


def twice(chance: random.Random, lease: float) -> Fault:
    """Return a fault: the request is applied and answered, and applied once more later, perhaps after the lease."""

    def meet(exchange: Exchange) -> None:
        exchange.answer(exchange.apply(None))
        apply_after(exchange, _random_delay(chance, lease), "late_duplicate")

    return Fault("late_duplicate", meet)


def _random_delay(chance: random.Random, lease: float) -> float:
    """Return a random delay in seconds of up to three leases, often a short one."""
    return chance.uniform(0, chance.choice([0.1, lease, 3 * lease]))


def faults(chance: random.Random, lease: float) -> list[Fault]:
    """Return the faults of requests; those that occur more often in the list are chosen more often."""
    return [
        *[drop_request()] * 2,
        *[drop_answer()] * 3,
        *[apply_then_500()] * 2,
        server_error(),
        *[throttle()] * 2,
        deny(),
        *[delay(lease / 3), delay_answer(lease / 3)],
        *[duplicate(), duplicate("second")],
        *[late(chance, lease)] * 2,
        *[twice(chance, lease)] * 3,
        stall(lease),
        stall(lease, apply=True),
    ]


def trouble(seed: int, lease: float, rate: float) -> Fault:
    """Return a fault that drops all requests of a client that is cut off, and gives others a random fault at a rate."""
    chance = random.Random(seed)
    kinds = faults(chance, lease)
    cut = drop_request()

    def meet(exchange: Exchange) -> None:
        if exchange.proxy.partitioned:
            cut.meet(exchange)
            return
        fault = chance.choice(kinds) if chance.random() < rate else pass_on()
        fault.meet(exchange)

    return Fault("trouble", meet)
