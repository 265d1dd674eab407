"""Row locks that are awaited."""

from __future__ import annotations

import asyncio

import pytest
from aio_scene import Run, run, sent_on_a_loop
from row_scene import RowScene

from pynamodb_mutex import MutexLostError, MutexTimeoutError
from pynamodb_mutex.aio import AsyncRowLock, locked, locked_all
from pynamodb_mutex.testing import FakeClock

__all__ = ["run", "sent_on_a_loop"]


@pytest.mark.real
def test_entering_gives_the_row_and_leaving_gives_it_back(row_scene: RowScene, run: Run) -> None:
    before = row_scene.row.balance

    async def main() -> None:
        lock = locked(row_scene.here, row_scene.key)
        assert type(lock) is AsyncRowLock
        async with lock as account:
            assert account.name == row_scene.key
            assert lock.held
            with pytest.raises(MutexTimeoutError):
                async with locked(row_scene.there, row_scene.key, timeout=0.1):
                    pass
            account.balance += 5
            await asyncio.to_thread(account.save)
            assert account.is_locked
        assert not account.is_locked

    run(main())
    assert row_scene.row.balance == before + 5


def test_a_missing_row_is_reported_and_nothing_is_held(row_scene: RowScene, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(row_scene.here.DoesNotExist):
            async with locked(row_scene.here, "nobody"):
                pass

    run(main())
    assert row_scene.there.count("nobody") == 0


def test_a_cancelled_task_writes_no_more(row_scene: RowScene, run: Run) -> None:
    rows = []

    async def work() -> None:
        async with locked(row_scene.here, row_scene.key) as account:
            rows.append(account)
            await asyncio.sleep(50)

    async def main() -> None:
        task = asyncio.create_task(work())
        while not rows:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    with row_scene.there.locked(row_scene.key, timeout=0) as account:
        account.balance = 7
        account.save()
    assert row_scene.row.balance == 7


def test_loss_cancels_the_task_of_a_row(
    row_scene: RowScene, run: Run, fake_clock: FakeClock
) -> None:
    async def main() -> None:
        with pytest.raises(MutexLostError):
            async with locked(row_scene.here, row_scene.key, cancel_on_loss=True):
                assert row_scene.there.locked(row_scene.key).force_release()
                fake_clock.advance(11)
                await asyncio.sleep(50)

    run(main())


def test_a_row_is_detached_and_attached(row_scene: RowScene, run: Run) -> None:
    async def main() -> None:
        lock = locked(row_scene.here, row_scene.key)
        async with lock:
            ticket = await lock.detach()
        attached = await AsyncRowLock.attach(ticket, model=row_scene.here)
        async with attached as account:
            assert account.name == row_scene.key
            await asyncio.to_thread(account.save)

    run(main())
    assert row_scene.there.locked(row_scene.key).acquire(blocking=False)


@pytest.mark.real
def test_several_rows_are_locked_and_read_together(row_scene: RowScene, run: Run) -> None:
    names = [f"{row_scene.key}-{letter}" for letter in "ab"]
    for name in names:
        row_scene.old(name).save()

    async def main() -> None:
        locks = locked_all(row_scene.here, names)
        async with locks as rows:
            row_scene.proxy.start_anew()
            first, second = rows
            # they have been read
            assert row_scene.proxy.kinds() == []
            first.balance, second.balance = 3, 4
            async with locks.transaction() as transaction:
                transaction.save(first)
                transaction.save(second)
            assert not locks.held
        with pytest.raises(row_scene.here.DoesNotExist):
            async with locked_all(row_scene.here, [names[0], "nobody"]):
                pass

    run(main())
    assert [row_scene.there.get(name).balance for name in names] == [3, 4]
    assert row_scene.there.locked(names[0]).acquire(blocking=False)


def test_rows_that_cannot_be_read_are_released(table_scene: RowScene, run: Run) -> None:
    async def main() -> None:
        # their locks stand in a lock table, so that only reading them shows that one is missing
        with pytest.raises(table_scene.here.DoesNotExist):
            async with locked_all(table_scene.here, [table_scene.key, "nobody"]):
                pass

    run(main())
    assert table_scene.there.locked(table_scene.key).acquire(blocking=False)


def test_row_of_a_lock_that_is_entered_again_is_the_same(row_scene: RowScene, run: Run) -> None:
    async def main() -> None:
        lock = locked(row_scene.here, row_scene.key, reentrant=True)
        async with lock as outer, lock as inner:
            assert inner is outer

    run(main())
    assert row_scene.there.locked(row_scene.key).acquire(blocking=False)


def test_row_that_cannot_be_read_is_released(table_scene: RowScene, run: Run) -> None:
    lock = locked(table_scene.here, "nobody")

    async def main() -> None:
        with pytest.raises(table_scene.here.DoesNotExist):
            async with lock:
                pass

    run(main())
    assert not lock.held
    assert not lock.lost
    assert locked_all(table_scene.here, ["nobody", "else"]).__repr__().count("nobody") == 1


def test_no_row_is_read_on_the_loops_thread(
    table_scene: RowScene, run: Run, sent_on_a_loop: list[str]
) -> None:
    async def main() -> None:
        lock = locked(table_scene.here, table_scene.key, reentrant=True)
        assert await lock.acquire()
        async with lock as account:
            assert account.name == table_scene.key
        ticket = await lock.detach()
        async with await AsyncRowLock.attach(ticket, model=table_scene.here) as account:
            assert account.name == table_scene.key
        locks = locked_all(table_scene.here, [table_scene.key], reentrant=True)
        assert await locks.acquire()
        async with locks as rows:
            assert rows[0].name == table_scene.key
        await locks.release()

    run(main())
    assert sent_on_a_loop == []
