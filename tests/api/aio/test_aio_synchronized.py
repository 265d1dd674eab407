"""`synchronized` on coroutine functions."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from pynamodb_mutex import MutexLostError, MutexTimeoutError, synchronized
from pynamodb_mutex.testing import held_elsewhere


def keys_of(table):
    return sorted(item.key for item in table.held())


@pytest.mark.real
def test_a_coroutine_function_stays_one_and_runs_under_its_lock(table):
    @synchronized("order-{order_id}")
    async def ship(order_id):
        await asyncio.sleep(0)
        return keys_of(table)

    assert inspect.iscoroutinefunction(ship)
    assert asyncio.run(ship(order_id=7)) == ["order-7"]
    assert keys_of(table) == []


def test_calls_of_one_key_exclude_each_other_and_others_do_not(table):
    inside = []

    @synchronized("order-{order_id}", poll=(0.02, 0.05))
    async def ship(order_id):
        assert order_id not in inside
        inside.append(order_id)
        await asyncio.sleep(0.01)
        inside.remove(order_id)
        return order_id

    async def ship_all():
        return await asyncio.gather(*map(ship, [1, 1, 2, 1, 2]))

    assert asyncio.run(ship_all()) == [1, 1, 2, 1, 2]


def test_a_held_key_is_waited_for_or_skipped(table):
    async def ship():
        return "shipped"

    waiting = synchronized("a", timeout=0)(ship)
    skipping = synchronized("a", on_locked="skip")(ship)
    with held_elsewhere("a"):
        with pytest.raises(MutexTimeoutError):
            asyncio.run(waiting())
        assert asyncio.run(skipping()) is None
    assert asyncio.run(waiting()) == asyncio.run(skipping()) == "shipped"


def test_what_the_call_raises_is_raised_and_a_loss_is_reported(table):
    @synchronized("a", on_locked="skip")
    async def ship(error):
        if error is not None:
            raise error
        table.force_release("a")

    with pytest.raises(MutexTimeoutError, match="own"):
        asyncio.run(ship(MutexTimeoutError("of the body's own")))
    assert keys_of(table) == []
    with pytest.raises(MutexLostError):
        asyncio.run(ship(None))
