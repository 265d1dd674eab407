"""Requests that were sent or are held back, their kinds, and the server time that the answers show."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import contextmanager
from email.utils import formatdate

import pytest
from botocore.client import BaseClient
from this_process import forget_everything

from dev.faultproxy import Body, FaultProxy, When, fault_proxy, kind_of, late, set_date, through
from pynamodb_mutex._lock.dynamodb.store import Request

TRANSACT = "TransactWriteItems"
REFUSALS = {"ConditionalCheckFailedException", "TransactionCanceledException"}
NOW = 1_800_000_000.0
DAY = 86_400.0


def _parts(body: Body) -> list[str]:
    """Return the kind of each operation of a transaction."""
    return [
        kind_of(f"{kind}Item", part)
        for item in body.get("TransactItems", ())
        for kind, part in item.items()
    ]


def that(kind: str) -> When:
    """Return a condition of a fault: the request is a transaction with a part of this kind."""
    return lambda body: kind in _parts(body)


def kinds(proxy: FaultProxy) -> list[str]:
    """Return the kinds of the requests in order; of a transaction, the number of its parts and the kind of the first."""
    return [
        seen.kind if seen.op != TRANSACT else f"{len(_parts(seen.body))} {_parts(seen.body)[0]}"
        for seen in proxy.log
    ]


def kept_from(proxy, *faults, **rule):
    """Let the network hold the next request back, and faults befall those after it; return what is held back."""
    kept = late()
    proxy.next(kept, *faults, **rule)
    return kept


def assert_changes_nothing(scene, kept):
    """Send a request that the network held back to the engine, and check that it changes nothing."""
    before = scene.everything
    reply = kept.apply()
    # DynamoDB knows a transaction again by its token for ten minutes, and answers as it did at first
    assert reply.error in REFUSALS or (reply.status == 200 and kept.kept.op == TRANSACT)
    for each in (kept.kept, *scene.proxy.of(TRANSACT)):
        if each.op == TRANSACT:
            scene.proxy.replay(each, ClientRequestToken=str(uuid.uuid4()))
    assert scene.everything == before


class Dates:
    """Sets the Date of all answers that pass a proxy to a server time, `now`."""

    def __init__(self, proxy, now=NOW):
        self.proxy, self.now = proxy, now
        proxy.always(set_date(lambda _: formatdate(self.now, usegmt=True)))


@contextmanager
def another_process(scene, now):
    """Make a client that has had no answer yet, and the server time that its answers show."""
    with fault_proxy(scene.engine) as proxy:
        yield through(proxy, scene.there), Dates(proxy, now)


class Wire:
    """Records the requests that this process sends.

    Attributes:
        sent: Their operations.
        instants: The local time of each.
        before: For an operation, what is done once before its next request.
        after: For an operation, what is done with each answer.
    """

    def __init__(self, monkeypatch):
        self.sent = []
        self.instants = []
        self.before = {}
        self.after = {}
        original = BaseClient._make_api_call

        def send(client, operation, kwargs):
            self.sent.append(operation)
            self.instants.append(time.monotonic())
            if operation in self.before:
                self.before.pop(operation)()
            answer = original(client, operation, kwargs)
            if operation in self.after:
                self.after[operation](answer)
            return answer

        monkeypatch.setattr(BaseClient, "_make_api_call", send)

    def drop_dates(self, *operations):
        """Remove the Date from each answer to these operations, and forget what earlier Dates showed."""
        forget_everything()
        for operation in operations:
            self.after[operation] = lambda answer: answer["ResponseMetadata"]["HTTPHeaders"].pop(
                "date"
            )


@pytest.fixture
def wire(monkeypatch):
    """Records the requests that this process sends."""
    return Wire(monkeypatch)


@pytest.fixture
def sent(wire):
    """The operations of the requests that this process sends."""
    return wire.sent


@pytest.fixture
def sent_on_a_loop(monkeypatch):
    """Operations of the requests that were sent on the thread of an event loop, and blocked it."""
    operations = []
    send = Request.send

    def watched(self):
        if asyncio._get_running_loop() is not None:
            operations.append(self.operation)
        return send(self)

    monkeypatch.setattr(Request, "send", watched)
    return operations
