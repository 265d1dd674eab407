"""Tasks that nobody refers to any more: Python closes their coroutines, wherever the garbage collector runs."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aio_scene import async_mutex, left_behind, queue_of
from scene import Scene

from dev.faultproxy import delay, delay_answer
from pynamodb_mutex import MutexError, signals
from pynamodb_mutex._operations.effects import Operation, Wait
from pynamodb_mutex._runtime import run_in_task
from pynamodb_mutex._runtime.process import Process, current_process
from pynamodb_mutex._runtime.run_on_thread import run


def inside_a_step(act: Callable[[], object]) -> None:
    """Let the garbage collector run in the middle of a step."""

    def interrupted() -> Operation[None]:
        act()
        yield Wait(0.0)

    run(current_process(), interrupted())


def between_steps(act: Callable[[], object]) -> None:
    act()


close_at = pytest.mark.parametrize("close_at", [inside_a_step, between_steps])
in_time = pytest.mark.timeout(30, method="thread")
"""For what would go on for ever."""


def abandon(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Let a task run for 0.1 s, and close its loop."""

    async def main() -> None:
        _tasks.append(asyncio.create_task(coroutine))
        await asyncio.sleep(0.1)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()
    assert not _tasks[-1].done()


_tasks: list[Any] = []
"""So that it is the test that closes their coroutines."""


@pytest.fixture(autouse=True)
def forget_tasks() -> Any:
    yield
    _tasks.clear()


@in_time
@close_at
@pytest.mark.parametrize("late", [delay, delay_answer])
def test_abandoned_acquire_leaves_nothing_held(scene: Scene, close_at: Any, late: Any) -> None:
    scene.proxy.next(late(0.3), op="acquire")
    acquiring = async_mutex(scene).acquire()
    abandon(acquiring)
    close_at(acquiring.close)
    time.sleep(5)
    assert left_behind(scene) == []
    assert scene.mutex().acquire(blocking=False)


@in_time
@close_at
def test_abandoned_waiter_leaves_the_line(scene: Scene, close_at: Any) -> None:
    queue = queue_of(scene)
    acquiring = async_mutex(scene).acquire()
    with scene.mutex():
        abandon(acquiring)
        assert queue.turns
        close_at(acquiring.close)
        time.sleep(1)
        assert not queue.turns
    assert left_behind(scene) == []


@in_time
@close_at
def test_abandoned_release_releases(scene: Scene, close_at: Any) -> None:
    async def block() -> None:
        async with async_mutex(scene):
            scene.proxy.next(delay(0.3), op="release")

    section = block()
    abandon(section)
    close_at(section.close)
    time.sleep(5)
    assert left_behind(scene) == []


@in_time
@close_at
@pytest.mark.parametrize("event", ["acquired", "released"])
def test_lock_is_released_if_its_task_is_abandoned_while_receivers_run(
    scene: Scene, close_at: Any, event: str
) -> None:
    come, go = threading.Event(), threading.Event()

    def receiver(sender: object, **_: Any) -> None:
        come.set()
        go.wait()

    async def section() -> None:
        mutex = async_mutex(scene)
        await mutex.acquire()
        await mutex.release()

    running = section()
    with getattr(signals, event).connected_to(receiver):
        abandon(running)
        assert come.is_set()
        close_at(running.close)
        go.set()
        time.sleep(5)
    assert left_behind(scene) == []


def test_what_an_abandoned_operation_returns_in_spite_of_it_is_taken_back(scene: Scene) -> None:
    taken_back = []

    def stubborn() -> Operation[str]:
        try:
            yield Wait(math.inf)
        except asyncio.CancelledError:
            return "done"
        pytest.fail("it was not interrupted")

    def undo(result: str) -> Operation[None]:
        taken_back.append(result)
        yield Wait(0.0)

    for how in (undo, None):
        running = run_in_task.run(current_process(), stubborn(), how)
        abandon(running)
        running.close()
        time.sleep(1)
    assert taken_back == ["done"]


def test_what_an_operation_returned_before_its_task_was_abandoned_is_taken_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_back = []

    def quick() -> Operation[str]:
        yield Wait(0.0)
        return "done"

    def undo(result: str) -> Operation[None]:
        taken_back.append(result)
        yield Wait(0.0)

    async def closed(*_: Any) -> None:
        raise GeneratorExit

    async def main() -> None:
        with pytest.raises(GeneratorExit):
            await run_in_task.run(current_process(), quick(), undo)

    monkeypatch.setattr(run_in_task, "_after", closed)
    asyncio.run(main())
    time.sleep(1)
    assert taken_back == ["done"]


def test_operation_of_a_parents_task_is_not_ended_by_a_forked_child() -> None:
    parent = Process()

    def waiting() -> Operation[None]:
        yield Wait(0.0)

    async def begin(running: Coroutine[Any, Any, None]) -> None:
        running.send(None)

    running = run_in_task.run(parent, waiting())
    asyncio.run(begin(running))
    parent.inherited = True
    running.close()
    assert not parent.task_workers._outbox


@in_time
def test_loop_inside_a_step_is_refused(scene: Scene) -> None:
    refused = []

    def handler() -> None:
        with pytest.raises(MutexError, match="interrupted this library"):
            asyncio.run(async_mutex(scene).acquire())
        refused.append(True)

    inside_a_step(handler)
    assert refused
    assert left_behind(scene) == []
