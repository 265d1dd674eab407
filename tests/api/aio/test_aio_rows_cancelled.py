"""A task that is cancelled in a call of a row: what was sent is answered, nothing is sent after it, and the instance shows it."""

import asyncio
import logging
import threading

import pytest
from pynamodb.attributes import VersionAttribute
from pynamodb.exceptions import PutError, UpdateError
from sent_requests import TRANSACT

from dev.faultproxy import (
    apply_then_500,
    delay,
    delay_answer,
    deny,
    drop_answer,
    drop_request,
    throttle,
)
from pynamodb_mutex import MutexNotHeldError

pytestmark = pytest.mark.unmeasured


async def asave(row):
    row.balance += 1
    await row.asave()


async def aupdate(row):
    await row.aupdate([type(row).balance.add(1)])


async def adelete(row):
    await row.adelete()


async def cancelled_after(seconds, call):
    """Cancel a task that makes a call, some time later."""
    task = asyncio.create_task(call)
    await asyncio.sleep(seconds)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("call", [asave, aupdate, adelete])
@pytest.mark.parametrize("late", [delay, delay_answer])
async def test_cancelled_at_any_moment(any_scene, late, call):
    scene, applied = any_scene, []

    async def section(rows):
        async with scene.here.alocked(scene.key) as row:
            rows.append(row)
            await call(row)

    # 10 ms for each request: the acquire, a read with a lock table, the write, the read behind an update, and the release
    for step in range(60):
        scene.old(scene.key).save()
        scene.proxy.always(late(0.010))
        rows = []
        task = asyncio.create_task(section(rows))
        await asyncio.sleep(0.0005 + 0.001 * step)
        task.cancel()
        await asyncio.wait({task})
        sent = len(scene.proxy.log)
        await asyncio.sleep(40)
        # no retry, no renewal, nothing that a thread still does
        assert len(scene.proxy.log) == sent
        assert scene.is_free
        if call is adelete:
            applied.append("name" not in scene.raw)
            continue
        balance = scene.row.balance
        assert balance in {0, 1}
        applied.append(balance == 1)
        if rows and call is aupdate:
            assert rows[0].balance == balance
    # at first it is cancelled before the write is sent, at last after it
    assert applied == sorted(applied)
    assert set(applied) == {False, True}


async def test_applied_save_of_a_cancelled_task_counts_the_version(any_scene):
    class Versioned(any_scene.here):
        Meta = any_scene.here.Meta
        edition = VersionAttribute(null=True)

    async with Versioned.alocked(any_scene.key) as row:
        for edition in (1, 2):
            any_scene.proxy.next(delay_answer(1), op=any_scene.op("save"))
            await cancelled_after(0.5, row.asave())
            assert row.edition == edition
        await row.asave()
    assert any_scene.raw["edition"] == {"N": "3"}


@pytest.mark.parametrize("kind", ["read", "read late", "missed"])
async def test_applied_update_of_a_cancelled_task_is_read(table_scene, caplog, kind):
    scene = table_scene
    async with scene.here.alocked(scene.key) as row:
        # it is cancelled while one of both is under way
        scene.proxy.next(delay_answer(1), op="GetItem" if kind == "read late" else TRANSACT)
        if kind == "missed":
            scene.proxy.next(deny(), op="GetItem")
        await cancelled_after(0.5, aupdate(row))
        assert (scene.row.balance, row.balance) == (1, kind != "missed")
        missed = [r for r in caplog.records if r.levelno == logging.ERROR]
        assert [str(r.exc_info[1]).split(": ")[2:] for r in missed] == (
            [["refresh() it"]] if kind == "missed" else []
        )
        if kind == "missed":
            await row.arefresh()
        # a save of what the row was before would undo the update
        await asave(row)
    assert scene.row.balance == 2


FAULTS = {
    "late": delay(2),
    "late answer": delay_answer(2),
    "request lost": drop_request(),
    "answer lost": drop_answer(),
    "500": apply_then_500(),
    "throttled": throttle(),
}
APPLIED = {"late", "late answer", "answer lost", "500"}
UNKNOWN = {"answer lost", "500"}
"""Of these the task has no answer before it is cancelled."""


@pytest.mark.parametrize("again", ["asave", "aupdate", "adelete", "arefresh"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_row_goes_on_after_a_timeout_in_its_block(any_scene, fault, again):
    scene = any_scene
    add = [scene.here.balance.add(1)]
    async with scene.here.alocked(scene.key, timeout=20) as row:
        scene.proxy.next(*[FAULTS[fault]] * 20, op=scene.op("update"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(row.aupdate(add), 0.01)
        scene.proxy.clear()
        applied, known = fault in APPLIED, fault not in UNKNOWN
        assert (scene.row.balance, row.balance) == (applied, applied and known)
        if again == "asave":
            row.balance += 10
            await row.asave()
            # nobody knows of an update whose answer was lost
            assert scene.row.balance == 10 + (applied and known)
        elif again == "aupdate":
            await row.aupdate([scene.here.balance.add(10)])
            assert scene.row.balance == row.balance == 10 + applied
        elif again == "adelete":
            await row.adelete()
            assert "name" not in scene.raw
        else:
            await row.arefresh()
            assert row.balance == scene.row.balance == applied
    assert scene.is_free


async def test_own_method_is_waited_for_when_its_task_is_cancelled(any_scene):
    goes_on, ends = threading.Event(), []

    class Own(any_scene.here):
        Meta = any_scene.here.Meta

        def save(self):
            goes_on.wait(50)
            ends.append(super().save())

    async with Own.alocked(any_scene.key) as row:
        row.balance = 5
        task = asyncio.create_task(row.asave())
        await asyncio.sleep(1)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.1)
            assert not task.done()
        goes_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(ends) == 1
    assert any_scene.row.balance == 5


async def test_refresh_that_is_cancelled_is_done_first(any_scene):
    async with any_scene.here.alocked(any_scene.key) as row:
        any_scene.set_claim(any_scene.there.balance.set(7))
        any_scene.proxy.next(delay_answer(1), op="GetItem")
        await cancelled_after(0.5, row.arefresh())
        assert row.balance == 7


@pytest.mark.parametrize("unlock", [False, True])
async def test_transaction_of_rows_is_sent_though_its_task_is_cancelled(any_scene, unlock):
    scene = any_scene

    async def transact():
        locks = scene.here.alocked_all([scene.key])
        async with locks as rows, rows.transaction(unlock=unlock) as transaction:
            transaction.update(rows[0], [scene.here.balance.add(1)])

    for _ in range(2):
        scene.proxy.next(delay(1), delay_answer(1), op=TRANSACT)
        await cancelled_after(1.5, transact())
    assert scene.row.balance == 2
    assert scene.is_free


@pytest.mark.parametrize("error", [PutError, UpdateError])
async def test_failure_of_a_call_is_the_one_of_threads(row_scene, error):
    call = asave if error is PutError else aupdate
    async with row_scene.here.alocked(row_scene.key) as row:
        row_scene.proxy.next(deny(), op="PutItem" if error is PutError else "update")
        with pytest.raises(error):
            await call(row)
    with pytest.raises(MutexNotHeldError, match=r"asave.* was released at the end of its block"):
        await asave(row)
