"""The event loop of a test. Not in conftest.py, for the simulated engine leaves the names of that alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

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
