"""What the tests of `pynamodb_mutex.aio` share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from scene import Scene
from stores import QueueFor

from pynamodb_mutex._dynamodb.store import Request
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.aio import AsyncMutex

LONG = 60.0
"""Seconds that nothing takes here, however busy the machine."""


Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run(engine_name: str) -> Run:
    """Runs a coroutine on an event loop of its own: on uvloop's with DynamoDB Local, else on asyncio's."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        loop = (uvloop if engine_name == "local" else asyncio).new_event_loop()
        try:
            return loop.run_until_complete(main)
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    return run


@pytest.fixture
def sent_on_a_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operations that were sent on the thread of an event loop, which stood still meanwhile."""
    operations: list[str] = []
    send = Request.send

    def watched(self: Request) -> Any:
        if asyncio._get_running_loop() is not None:
            operations.append(self.operation)
        return send(self)

    monkeypatch.setattr(Request, "send", watched)
    return operations


def async_mutex(scene: Scene, **options: Any) -> AsyncMutex:
    """Return a mutex of the client with the bad network."""
    return AsyncMutex.for_key(scene.key, **{"model": scene.here, **options})


async def until(condition: Any) -> None:
    """Await a condition that another thread or task brings about."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.002)


async def until_cancelled() -> None:
    """Sleep until the task is cancelled."""
    await asyncio.sleep(50)
    pytest.fail("it was not cancelled")


def queue_of(scene: Scene) -> Any:
    """Return where this process's threads and tasks wait for the lock."""
    return QueueFor(scene.here, scene.key)


def left_behind(scene: Scene) -> list[str]:
    """Say what is left of a lock that nobody should hold or wait for."""
    queue = queue_of(scene)
    found = []
    if not scene.gone and scene.row.expires_at is not None:
        found.append("a claim")
    if queue.holder is not None or queue.turns or queue.watchers:
        found.append("a holder or waiter of this process")
    if [
        claim
        for held in list(current_process().schedule._due)
        for claim in held.claims
        if claim.store.model is scene.here and claim.key == scene.key
    ]:
        found.append("a renewal")
    return found
