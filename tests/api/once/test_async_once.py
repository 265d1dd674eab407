"""`AsyncOnce`: `Once` for tasks."""

import asyncio
import gc
import threading
import time

import pytest
from once_scene import SpecialError, There
from waits import until, until_async, until_cancelled

from dev.faultproxy import delay, drop_answer, drop_request, stall
from pynamodb_mutex import LockItem, MutexError, Once, OnceItem, ResultUnavailableError, aio
from pynamodb_mutex.aio import AsyncOnce


@pytest.fixture
def once(scene_of_once):
    """Return the async once of the scene's key."""
    return lambda **options: AsyncOnce.for_key("a", model=scene_of_once.here, **options)


async def never():
    raise AssertionError("the work is done a second time")


@pytest.mark.real
def test_work_is_done_once_for_tasks_and_threads(table):
    done = []

    async def work(number, *, more):
        await asyncio.sleep(0.1)
        done.append(number)
        return (number, more)

    async def main():
        calls = (AsyncOnce.for_key("a").call(work, 1, more="x") for _ in range(4))
        return await asyncio.gather(*calls)

    assert asyncio.run(main()) == [[1, "x"]] * 4
    assert done == [1]
    assert Once.for_key("a").call(int) == [1, "x"]


def test_first_caller_gets_the_value_that_cannot_be_decoded(once):
    async def work():
        return (1,)

    async def main():
        with pytest.raises(ResultUnavailableError) as raised:
            await once(decode=int).call(work)
        assert raised.value.value == (1,)

    asyncio.run(main())


def test_requests(scene_of_once, once):
    async def work():
        return 1

    async def main():
        await AsyncOnce.for_key("b", model=scene_of_once.here).call(work)
        scene_of_once.proxy.start_anew()
        assert await once().call(work) == 1
        assert await once().call(never) == 1

    asyncio.run(main())
    assert scene_of_once.proxy.kinds() == ["acquire", "complete", "acquire"]


def test_block_by_hand(scene_of_once, once):
    async def main():
        async with once() as run:
            assert run.held
            assert await run.complete((1,)) == [1]
        async with once() as run:
            assert (run.done, run.result) == (True, [1])
        with pytest.raises(MutexError, match="without complete"):
            async with AsyncOnce.for_key("b"):
                pass
        async with AsyncOnce.for_key("c") as run:
            async with run.transaction(result=3) as transaction:
                transaction.save(LockItem("effect", token="x"))
            assert (run.done, run.result) == (True, 3)

    asyncio.run(main())
    assert OnceItem.get("effect").token == "x"


def test_work_that_raises_is_done_by_the_next_call(scene_of_once, once):
    async def failing():
        raise SpecialError

    with pytest.raises(SpecialError):
        asyncio.run(once().call(failing))
    assert scene_of_once.known.state == "nothing"


def test_exception_of_the_block_is_not_replaced(scene_of_once, once):
    async def failing():
        assert There.force_release("once#a")
        raise SpecialError

    with pytest.raises(SpecialError) as raised:
        asyncio.run(once().call(failing))
    if hasattr(raised.value, "__notes__"):
        assert "the lock could not be released" in raised.value.__notes__[0]


@pytest.mark.parametrize(("how", "state"), [("run", "nothing"), ("raise", "running")])
def test_cancelled_work_may_be_done_again(scene_of_once, once, how, state):
    async def main():
        task = asyncio.ensure_future(once(on_abandoned=how).call(until_cancelled))
        await until_async(lambda: scene_of_once.known.state == "running")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert scene_of_once.known.state == state


def test_call_that_is_cancelled_while_it_begins_leaves_nothing(scene_of_once, once):
    scene_of_once.call(keep=0.001)
    time.sleep(5)

    async def main():
        held = threading.Event()
        scene_of_once.proxy.next(stall(held, apply=True), op="acquire")
        task = asyncio.ensure_future(once().call(never))
        await until_async(lambda: scene_of_once.known.state == "running")
        task.cancel()
        held.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert scene_of_once.known.state == "nothing"


def test_call_that_is_cancelled_while_it_records_records(scene_of_once, once):
    async def work():
        asyncio.current_task().cancel()
        return 1

    for fault in (None, drop_answer(), drop_request()):
        if fault is not None:
            scene_of_once.proxy.next(fault, op="complete")
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(once().call(work))
        assert scene_of_once.known.result == 1
        Once.forget("a", model=There)


def test_abandoned_coroutine_ends_its_run(scene_of_once, once):
    coroutine = once().call(until_cancelled)
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    loop.call_later(5, loop.stop)
    loop.run_forever()
    loop.close()
    del task, coroutine
    gc.collect()
    until(lambda: scene_of_once.known.state == "nothing")


def test_what_is_for_threads_is_refused(scene_of_once, once):
    with pytest.raises(TypeError, match="AsyncOnce is for tasks"), once():
        pass
    with pytest.raises(TypeError, match="takes a coroutine function"):
        asyncio.run(once().call(int))
    with pytest.raises(AttributeError, match="no attribute 'AsyncNonsense'"):
        print(aio.AsyncNonsense)


def test_what_is_known_is_asked_for_forgotten_and_recorded(scene_of_once, sent_on_a_loop):
    model = scene_of_once.here

    async def main():
        assert (await AsyncOnce.peek("a", model=model)).state == "nothing"
        assert await AsyncOnce.record("a", [1], model=model, keep=60)
        known = await AsyncOnce.peek("a", model=model, decode=len)
        assert (known.state, known.result) == ("recorded", 3)
        assert await AsyncOnce.forget("a", model=model)
        assert not await AsyncOnce.forget("a", model=model)
        run = asyncio.ensure_future(AsyncOnce.for_key("a", model=model).call(until_cancelled))
        await asyncio.sleep(1)
        with pytest.raises(MutexError, match="under way"):
            await AsyncOnce.forget("a", model=model)
        assert await AsyncOnce.forget("a", model=model, force=True)
        run.cancel()
        await asyncio.wait({run})

    asyncio.run(main())
    assert sent_on_a_loop == []
    assert scene_of_once.known.state == "nothing"


def test_decision_of_a_cancelled_task_is_made_first(scene_of_once):
    model = scene_of_once.here

    async def cancelled(call):
        scene_of_once.proxy.next(delay(1))
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main():
        await cancelled(AsyncOnce.record("a", 1, model=model))
        assert scene_of_once.known.result == 1
        await cancelled(AsyncOnce.forget("a", model=model))
        assert scene_of_once.known.state == "nothing"

    asyncio.run(main())
