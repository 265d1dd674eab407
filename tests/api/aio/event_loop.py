"""The event loop of a test. Not in conftest.py, for the simulated engine leaves the names of that alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from pynamodb_mutex._lock.dynamodb.store import Request

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run(engine_name: str) -> Run:
    """Runs a coroutine on an event loop of its own: uvloop's with DynamoDB Local, else asyncio's."""

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
    """Operations of the requests that were sent on the thread of an event loop, and blocked it."""
    operations: list[str] = []
    send = Request.send

    def watched(self: Request) -> Any:
        if asyncio._get_running_loop() is not None:
            operations.append(self.operation)
        return send(self)

    monkeypatch.setattr(Request, "send", watched)
    return operations
