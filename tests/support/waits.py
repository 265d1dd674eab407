"""Waits for what other threads, tasks or processes do; they end when it is done, however slow the machine is."""

import asyncio
import time

import pytest

LONG = 60.0
"""Seconds that nothing takes here, however busy the machine."""


def until(condition):
    """Wait until a condition is true; return its value."""
    deadline = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.005)
    return found


async def until_async(condition):
    """Let a task wait until a condition is true."""
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "it did not become true"
        await asyncio.sleep(0.002)


async def until_cancelled():
    """Sleep until the task is cancelled."""
    await asyncio.sleep(50)
    pytest.fail("it was not cancelled")
