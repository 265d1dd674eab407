"""Rows for tasks: their locks, their awaited calls, and what they answer to wrong use."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from pynamodb.connection import Connection
from pynamodb.transactions import TransactWrite
from row_models import Account, changed
from two_clients import RowScene
from waits import until_async, until_cancelled

from dev.faultproxy import delay, delay_answer, fault_proxy, through
from pynamodb_mutex import (
    Loss,
    Mutex,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    RowLockedError,
)
from pynamodb_mutex.aio import AsyncLockedRows, AsyncMutex, AsyncRowLock, AsyncRowLocks


async def asave(row, **options):
    row.balance += 1
    return await row.asave(**options)


async def aupdate(row, **options):
    return await row.aupdate([type(row).balance.add(1)], **options)


# -- plain use -------------------------------------------------------------------------------------


@pytest.mark.real
async def test_row_is_locked_written_read_and_unlocked(any_scene):
    lock = any_scene.here.alocked(any_scene.key)
    async with lock as row:
        assert (type(lock), type(row)) == (AsyncRowLock, any_scene.here)
        assert row.row_lock.held
        assert "ResponseMetadata" in await asave(row)
        assert (await aupdate(row))["Attributes"]["balance"] == {"N": "2"}
        any_scene.set_claim(any_scene.there.balance.set(7))
        assert await row.arefresh() is None
        assert row.balance == 7
        await asave(row, unlock=True)
        assert any_scene.is_free
    async with lock as row, lock.transaction() as transaction:
        transaction.update(row, [any_scene.here.balance.add(1)])
    assert any_scene.row.balance == 9
    async with lock as row:
        await row.adelete(any_scene.here.balance == 9)
    assert "name" not in any_scene.raw
    # without the lock as well
    row = any_scene.here(any_scene.key, balance=1)
    await row.asave(any_scene.here.name.does_not_exist())
    await aupdate(row, add_version_condition=False)
    assert any_scene.row.balance == row.balance == 2
    assert await row.adelete() is not None
    assert "name" not in any_scene.raw


@pytest.mark.real
async def test_rows_are_written_and_unlocked_by_one_transaction(any_scene):
    keys = [f"{any_scene.key}-{letter}" for letter in "ab"]
    for key in keys:
        any_scene.old(key).save()
    locks = any_scene.here.alocked_all(iter(keys), on_lost=print)
    async with locks as rows, rows.transaction() as transaction:
        assert (type(locks), type(rows), len(rows)) == (AsyncRowLocks, AsyncLockedRows, 2)
        for row in rows:
            transaction.update(row, [any_scene.here.balance.add(1)])
    assert [any_scene.there.get(key).balance for key in keys] == [1, 1]
    async with locks as (_, second), locks.transaction(unlock=False) as transaction:
        transaction.delete(second)
    assert not await locks.locked()
    assert [row.name for row in any_scene.there.scan() if row.name in keys] == keys[:1]


async def test_rows_and_locks_that_are_held_are_listed(any_scene, sent_on_a_loop):
    keys = [f"{any_scene.key}-{number}" for number in range(3)]
    for key in keys:
        any_scene.old(key).save()
    table = any_scene.here.lock_model
    async with any_scene.here.alocked_all(keys[:2]):
        if table is None:
            assert {row.name async for row in any_scene.here.aheld()} == set(keys[:2])
        else:
            with pytest.raises(TypeError, match="keeps its locks in"):
                any_scene.here.aheld()
            listed = [item.key async for item in table.aheld()]
            assert sorted(listed) == sorted(any_scene.here.locked(key).key for key in keys[:2])
            assert [item.key async for item in table.aheld(listed[0])] == listed[:1]
    assert sent_on_a_loop == []


# -- after the block -------------------------------------------------------------------------------


async def of_task(row, write):
    """Return a task of the block, which writes when the block has ended."""
    return asyncio.create_task(until_released(row, write))


async def shielded(row, write):
    return asyncio.shield(until_released(row, write))


async def kept(row, write):
    """Return a coroutine that was made in the block."""
    return write(row)


async def thread(row, write):
    return asyncio.to_thread(lambda: asyncio.run(write(row)))


async def until_released(row, write):
    await until_async(lambda: not row.row_lock.held)
    return await write(row)


async def adelete(row):
    await row.adelete()


async def transact(row):
    with TransactWrite(connection=Connection()) as transaction:
        transaction.save(row)


async def batch(row):
    with type(row).batch_write() as writes:
        writes.save(row)


async def save(row):
    row.save()


WRITES = [asave, aupdate, adelete, transact, batch, save]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("late", [of_task, shielded, kept, thread])
async def test_row_is_not_written_after_its_block(any_scene, late, write):
    async with any_scene.here.alocked(any_scene.key) as row:
        row.balance = 90
        late_write = await late(row, write)
        await row.asave()
    async with any_scene.there.alocked(any_scene.key) as theirs:
        theirs.balance += 1010
        await theirs.asave()
    with pytest.raises(MutexNotHeldError, match=r"at the end of its block: .* refresh\(\)"):
        await late_write
    assert any_scene.row.balance == 1100


@pytest.mark.parametrize("write", WRITES)
def test_row_is_not_written_by_a_thread_of_its_block(any_scene, write):
    goes_on = threading.Event()

    def late(row):
        goes_on.wait(50)
        return asyncio.run(write(row))

    with ThreadPoolExecutor() as pool:
        with any_scene.lock() as row:
            row.balance = 90
            future = pool.submit(late, row)
            row.save()
        with any_scene.there.locked(any_scene.key) as theirs:
            theirs.balance += 1010
            theirs.save()
        goes_on.set()
        with pytest.raises(MutexNotHeldError, match=r"at the end of its block: .* refresh\(\)"):
            future.result()
    assert any_scene.row.balance == 1100


async def test_refreshed_row_is_an_ordinary_one_after_its_block(any_scene):
    async with any_scene.here.alocked(any_scene.key) as row:
        await asave(row, unlock=True)
        await row.arefresh()
        # in the block it is one that was read under the lock
        with pytest.raises(MutexNotHeldError, match="before, in its block"):
            await row.asave()
    with pytest.raises(MutexNotHeldError, match="at the end of its block"):
        await row.asave()
    async with any_scene.there.alocked(any_scene.key) as theirs:
        await row.arefresh()
        with pytest.raises(RowLockedError):
            await row.asave()
        await asave(theirs)
    await row.arefresh()
    assert not row.is_locked
    with pytest.raises(MutexNotHeldError, match="was read without its lock"):
        _ = row.row_lock
    await asave(row)
    assert any_scene.row.balance == 3


async def test_row_that_is_read_while_its_block_ends_is_not_written(any_scene):
    async with any_scene.here.alocked(any_scene.key) as row:
        any_scene.proxy.next(delay_answer(2), op="GetItem")
        reads = asyncio.create_task(row.arefresh())
        await asyncio.sleep(1)
    async with any_scene.there.alocked(any_scene.key, timeout=0) as theirs:
        await asave(theirs)
    await reads
    assert row.balance == 0
    with pytest.raises(MutexNotHeldError):
        await row.asave()
    assert any_scene.row.balance == 1


# -- a model's own methods -------------------------------------------------------------------------


async def test_methods_of_the_model_are_called_and_not_passed_by(any_scene, sent_on_a_loop):
    calls = []

    class Own(any_scene.here):
        Meta = any_scene.here.Meta

        def save(self):
            calls.append(("save", self.row_lock.held))
            return super().save()

        def update(self, actions, condition=None, **options):
            calls.append(("update", condition is not None, options))
            return super().update([*actions, Own.last.set("own")], condition, **options)

        def delete(self):
            calls.append(("delete",))
            return super().delete()

        def refresh(self):
            calls.append(("refresh",))
            return super().refresh()

    async with Own.alocked(any_scene.key, timeout=20) as row:
        await asave(row)
        await row.aupdate([Own.balance.add(1)], Own.balance == 1, add_version_condition=False)
        assert (row.balance, row.last) == (2, "own")
        with pytest.raises(TypeError, match="unlock"):
            await row.asave(unlock=True)
        with pytest.raises(TypeError, match="consistent_read"):
            await row.arefresh(consistent_read=True)
        await row.arefresh()
        await row.adelete()
    assert calls == [
        ("save", True),
        ("update", True, {"add_version_condition": False}),
        ("refresh",),
        ("delete",),
    ]
    assert sent_on_a_loop == []


async def test_method_of_the_model_that_is_async_is_awaited(any_scene):
    class Own(any_scene.here):
        Meta = any_scene.here.Meta

        async def save(self):
            return await asyncio.to_thread(super().save)

    async with Own.alocked(any_scene.key, timeout=20) as row:
        row.balance = 7
        await row.asave()
        row.balance = 8
        await row.arefresh()
        assert row.balance == 7


async def test_method_of_the_model_may_wait_for_a_lock_that_another_task_has(any_scene, table):
    """It waits on a worker, and blocks no loop."""

    class Own(any_scene.here):
        Meta = any_scene.here.Meta

        def save(self):
            with Mutex.for_key("audit"):
                return super().save()

    async with Own.alocked(any_scene.key, timeout=20) as row:
        holder = AsyncMutex.for_key("audit")
        async with holder:
            saving = asyncio.create_task(row.asave())
            await asyncio.sleep(0.5)
            assert not saving.done()
        await saving


async def test_mock_of_a_method_is_called(any_scene):
    row = any_scene.here(any_scene.key)
    with mock.patch.object(any_scene.here, "save", return_value={"of": "the class"}) as save:
        assert await row.asave(add_version_condition=False) == {"of": "the class"}
    save.assert_called_once_with(add_version_condition=False)
    with mock.patch.object(row, "update") as update:
        await row.aupdate(["actions"], unlock=True)
    update.assert_called_once_with(["actions"], unlock=True)
    assert any_scene.proxy.log == []


@pytest.mark.parametrize("actions", [[], None, "balance"])
async def test_update_without_actions_is_refused(any_scene, actions):
    row = any_scene.here(any_scene.key)
    for call in (row.aupdate(actions), asyncio.to_thread(row.update, actions)):
        with pytest.raises(TypeError, match="non-empty list"):
            await call


# -- the event loop --------------------------------------------------------------------------------


async def test_no_call_of_a_row_blocks_the_loop(any_scene, sent_on_a_loop):
    # a client that has sent nothing yet
    with fault_proxy(any_scene.engine) as proxy:
        here = through(proxy, any_scene.there)
        here.lock_model = through(proxy, any_scene.locks) if any_scene.in_table else None
        scene = RowScene(
            any_scene.engine, proxy, here, any_scene.there, any_scene.old, any_scene.in_table, "new"
        )
        row = scene.here(scene.key)
        await row.asave()
        async with scene.here.alocked(scene.key) as row:
            await asave(row)
            await aupdate(row)
            await row.arefresh()
        async with scene.here.alocked_all([scene.key]) as rows, rows.transaction() as transaction:
            transaction.delete(rows[0])
        assert sent_on_a_loop == []


async def test_row_and_lock_in_two_regions_are_refused(table_scene, monkeypatch):
    row = table_scene.here(table_scene.key)
    monkeypatch.setattr(table_scene.here.lock_model.Meta, "region", "eu-west-3", raising=False)
    with pytest.raises(MutexError, match="must be in one region"):
        await row.asave()


async def test_tasks_write_one_instance_in_order_and_each_once(any_scene):
    scene = any_scene
    scene.proxy.always(delay(0.5), op=scene.op("update"))
    async with scene.here.alocked(scene.key) as row:
        writes = [asyncio.create_task(aupdate(row)) for _ in range(5)]
        await asyncio.sleep(0.1)
        # it would wait for a write that waits for this thread
        with pytest.raises(MutexError, match="under way on this thread, which this call blocks"):
            changed(row)
        await asyncio.gather(*writes)
        assert row.balance == scene.row.balance == 5


# -- losses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [asave, aupdate, adelete])
@pytest.mark.parametrize("cancels", [False, True])
async def test_loss_meets_a_write(any_scene, write, cancels):
    met = []

    async def section():
        async with any_scene.here.alocked(any_scene.key, cancel_on_loss=cancels) as row:
            await asyncio.to_thread(any_scene.forced_and_taken)
            try:
                await write(row)
            except MutexLostError as error:
                met.append((error.loss, error.applied))
                raise

    with pytest.raises(MutexLostError) as raised:
        await section()
    assert met == [(Loss.TAKEN, False)]
    assert raised.value.loss is Loss.TAKEN
    assert any_scene.row.balance == 0


async def test_loss_cancels_the_task_and_calls_a_coroutine_function(any_scene, clock):
    told = []

    async def on_lost(lock):
        told.append((lock, asyncio.get_running_loop()))

    lock = any_scene.here.alocked(
        any_scene.key, cancel_on_loss=True, on_lost=on_lost, auto_renew=False
    )
    with pytest.raises(MutexLostError) as raised:
        async with lock as row:
            clock.advance(31)
            await until_cancelled()
    assert raised.value.loss is Loss.EXPIRED
    await until_async(lambda: told)
    assert told == [(lock, asyncio.get_running_loop())]
    with pytest.raises(MutexLostError):
        await row.asave()


# -- wrong use -------------------------------------------------------------------------------------


async def test_awaited_save_of_threads_says_that_it_was_applied(any_scene):
    async with any_scene.here.alocked(any_scene.key) as row:
        row.balance = 5
        with pytest.raises(TypeError, match=r"was applied, and blocked .* await asave\(\)"):
            await row.save()
        assert any_scene.row.balance == 5
        with pytest.raises(TypeError, match="was applied"):
            await changed(row)
        with pytest.raises(TypeError, match="was applied"):
            await row.delete()
    assert "name" not in any_scene.raw


async def test_block_of_the_other_kind_names_the_right_call(accounts):
    threads = {
        Account.locked("a"): "RowLock is for threads: use 'with', or the model's alocked(...)",
        Account.locked_all(
            ["a"]
        ): "RowLocks is for threads: use 'with', or the model's alocked_all(...)",
        Mutex.for_key("a"): "Mutex is for threads: use 'with', or an AsyncMutex",
    }
    for lock, message in threads.items():
        with pytest.raises(TypeError) as raised:
            async with lock:
                pytest.fail("it is entered")
        assert str(raised.value) == message
    tasks = {
        Account.alocked(
            "a"
        ): "AsyncRowLock is for tasks: use 'async with', or the model's locked(...)",
        Account.alocked_all(
            ["a"]
        ): "AsyncRowLocks is for tasks: use 'async with', or the model's locked_all(...)",
        AsyncMutex.for_key("a"): "AsyncMutex is for tasks: use 'async with', or a Mutex",
    }
    for lock, message in tasks.items():
        with pytest.raises(TypeError) as raised, lock:
            pytest.fail("it is entered")
        assert str(raised.value) == message
    async with Account.alocked_all(["a"]) as rows:
        refused = pytest.raises(TypeError, match="AsyncTransaction is for tasks: use 'async with'")
        with refused, rows.transaction():
            pytest.fail("it is entered")
        with pytest.raises(
            TypeError, match=r"is for threads: use 'with', or the transaction\(\) of an async"
        ):
            async with rows[0].row_lock.transaction():
                pytest.fail("it is entered")


def test_call_without_a_loop_is_refused(any_scene):
    call = any_scene.here(any_scene.key).asave()
    with pytest.raises(RuntimeError, match=r"no asyncio loop runs: in trio, .* by trio\.to_thread"):
        call.send(None)
    assert any_scene.proxy.log == []
