"""What executes operations: interruptions, signal handlers, and the states of a claim."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
from typing import Any

import pytest
from driving import Driven
from hearing import Heard, hearing, until
from scene import Scene
from worker import Fork

from dev.faultproxy import drop_answer
from pynamodb_mutex import Loss, Mutex, MutexError, MutexLostError, MutexNotHeldError, signals
from pynamodb_mutex._operations.effects import Operation, Wait
from pynamodb_mutex._operations.held import TRANSITIONS, Belief, Change, State
from pynamodb_mutex._runtime import run_in_task
from pynamodb_mutex._runtime.process import InsideMonitor, current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import FakeClock


@pytest.fixture
def heard(scene: Scene) -> Any:
    with hearing(scene.key) as heard:
        yield heard


def inside(act: Any) -> None:
    """Let something be called in the middle of a step, as a signal handler may be."""

    def interrupted() -> Operation[None]:
        signal.raise_signal(signal.SIGUSR1)
        yield Wait(0.0)

    before = signal.signal(signal.SIGUSR1, lambda *_: act())
    try:
        run(current_process(), interrupted())
    finally:
        signal.signal(signal.SIGUSR1, before)


# -- signal handlers ---------------------------------------------------------------------------


def test_release_in_a_handler_inside_a_step_is_done_right_after_it(scene: Scene) -> None:
    mutex = scene.mutex()
    assert mutex.acquire()
    seen = []

    def handler() -> None:
        mutex.release()
        seen.append((mutex.held, mutex.remaining > 0, mutex.lost))

    inside(handler)
    # in the handler it is not released yet, and nothing hangs
    assert seen == [(True, True, False)]
    assert not mutex.held
    assert scene.row.expires_at is None


def test_leaving_a_block_in_a_handler_inside_a_step_releases_too(scene: Scene) -> None:
    mutex = scene.mutex()
    inside_block = mutex.__enter__()
    inside(lambda: inside_block.__exit__(None, None, None))
    assert scene.row.expires_at is None


def test_release_in_a_handler_that_fails_is_logged(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    mutex = scene.mutex()
    assert mutex.acquire()
    scene.force()
    inside(mutex.release)
    assert "a release by a signal handler failed" in caplog.text
    assert mutex.loss is Loss.FORCED


@pytest.mark.parametrize("call", [Mutex.acquire, Mutex.renew, Mutex.locked, Mutex.force_release])
def test_other_calls_in_a_handler_inside_a_step_are_refused(scene: Scene, call: Any) -> None:
    mutex = scene.mutex(reentrant=True)
    assert mutex.acquire()
    before, refused = scene.everything, []

    def handler() -> None:
        with pytest.raises(MutexError, match="interrupted this library"):
            call(mutex)
        refused.append(True)

    inside(handler)
    assert refused
    assert scene.everything == before
    assert mutex.held
    mutex.release()


def test_step_within_a_step_is_refused_and_leaves_the_outer_one_alone() -> None:
    process = current_process()

    def outer() -> Operation[str]:
        with pytest.raises(InsideMonitor):
            process.step(iter(()).__next__, None, None, 0.0, [])
        yield Wait(0.0)
        return "done"

    assert run(process, outer()) == "done"


def test_child_of_a_fork_inside_the_monitor_does_not_hang(scene: Scene) -> None:
    with current_process().monitor:
        entered, leave = threading.Event(), threading.Event()

        def enter() -> None:
            entered.set()
            leave.wait(60)

        thread = threading.Thread(target=enter)
        thread.start()
        entered.wait(60)
        mutex = scene.mutex()

        def child() -> bool:
            with pytest.raises(MutexNotHeldError):
                mutex.release()
            return Mutex.for_key(f"{scene.key}-child", model=scene.there).acquire()

        fork = Fork(child)
    assert fork.value(30) is True
    leave.set()
    thread.join(60)


# -- interruptions -----------------------------------------------------------------------------


def test_interruption_of_a_wait_is_thrown_into_the_operation() -> None:
    seen: list[BaseException] = []

    def waiting() -> Operation[None]:
        try:
            yield Wait()
        except KeyboardInterrupt as error:
            seen.append(error)
            yield Wait(0.0)
            raise

    timer = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT))
    main = threading.main_thread().ident or 0
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(current_process(), waiting())
    assert len(seen) == 1


def test_interruption_while_an_acquiring_write_is_sent_gives_it_back(scene: Scene) -> None:
    driven = Driven(scene.mutex()._acquiring(_attempt(scene), 1))
    driven.step()
    while driven.effect.request.operation != "UpdateItem":
        driven.go_on()
    driven.effect.request.send()
    driven.interrupt()
    assert scene.row.expires_at is None


def _attempt(scene: Scene) -> Any:
    from pynamodb_mutex._runtime.callers import caller

    return scene.mutex()._attempt(caller(), 30.0, blocks=True)


def test_receiver_of_acquired_that_is_interrupted_leaves_nothing_held(scene: Scene) -> None:
    def receiver(sender: object, **fields: Any) -> None:
        if fields["key"] == scene.key:
            raise KeyboardInterrupt

    with signals.acquired.connected_to(receiver), pytest.raises(KeyboardInterrupt):
        scene.mutex().acquire()
    assert scene.row.expires_at is None


# -- tasks -------------------------------------------------------------------------------------


def test_task_cancelled_while_its_events_are_delivered_leaves_nothing_held(scene: Scene) -> None:
    come, go = threading.Event(), threading.Event()

    def receiver(sender: object, **fields: Any) -> None:
        if fields["key"] == scene.key:
            come.set()
            go.wait(60)

    async def main() -> None:
        task = asyncio.create_task(AsyncMutex.for_key(scene.key, model=scene.here).acquire())
        await asyncio.to_thread(come.wait, 30)
        task.cancel()
        await asyncio.sleep(0.05)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with signals.acquired.connected_to(receiver):
        asyncio.run(main())
    assert scene.row.expires_at is None


def test_task_cancelled_as_its_operation_ends_takes_it_back() -> None:
    taken_back = []

    def quick() -> Operation[str]:
        yield Wait(0.0)
        return "done"

    def undo(result: str) -> Operation[None]:
        taken_back.append(result)
        yield Wait(0.0)

    async def main() -> None:
        async def cancelled_meanwhile(*_: Any) -> asyncio.CancelledError:
            return asyncio.CancelledError()

        before, run_in_task._after = run_in_task._after, cancelled_meanwhile
        try:
            await run_in_task.run(current_process(), quick(), undo)
        finally:
            run_in_task._after = before

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
    assert taken_back == ["done"]


def test_task_cancelled_in_an_operation_that_is_seen_to_its_end_goes_on_to_it() -> None:
    ended = []

    def patient() -> Operation[None]:
        yield Wait(current_process().now + 0.2)
        ended.append(True)

    async def main() -> None:
        task = asyncio.create_task(run_in_task.run(current_process(), patient()))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ended


# -- the state machine -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "change"), list(itertools.product(State, Change)), ids=lambda each: each.name
)
def test_change_does_what_the_table_says_and_nothing_else(
    scene: Scene, state: State, change: Change
) -> None:
    mutex = scene.mutex(auto_renew=False)
    assert mutex.acquire()
    claim = mutex._latest
    before = claim.belief = Belief(state, Loss.EXPIRED if state is State.LOST else None)
    after = TRANSITIONS.get((state, change))
    assert claim.change(change) is (after is not None)
    if after is None:
        assert claim.belief is before
    else:
        assert claim.belief.state is after
        assert (claim.belief.loss is None) is (change is Change.WON_BACK or before.loss is None)
    claim.belief = Belief(State.HELD)
    mutex.release()


def test_states_have_a_way_out_but_for_the_last_one() -> None:
    assert {state for state, _ in TRANSITIONS} == set(State) - {State.RELEASED, State.INHERITED}
    assert State.INHERITED not in TRANSITIONS.values()


def test_lease_that_ends_while_a_write_unlocks_is_a_loss_and_no_release(
    scene: Scene, heard: Heard
) -> None:
    from pynamodb_mutex._operations.guarded_write import Guard, Refusal, write

    with FakeClock() as clock:
        mutex = scene.mutex(auto_renew=False, lease=30)
        assert mutex.acquire()
        claim = mutex._latest
        guard, store = Guard(claim, ends=True), claim.store
        writing = Driven(
            write(
                claim.shared,
                [guard],
                lambda: store.update(
                    store.requests.guard_and_end, claim.options.row, guard.values()
                ),
                lambda answer: Refusal([(guard, answer.item)], answer.refusal),
                "unlock",
            )
        )
        answer = writing.step().request.send()
        assert not mutex.held
        clock.advance(31)
        heard.wait("lost")
        writing.step(answer)
    assert claim.is_released
    assert mutex.loss is Loss.EXPIRED
    until(lambda: heard.names == ["acquired", "lost"])


def test_lost_answer_of_a_release_is_no_loss(scene: Scene) -> None:
    mutex = scene.mutex()
    assert mutex.acquire()
    scene.proxy.next(drop_answer(), op="release")
    mutex.release()
    assert not mutex.lost
    with pytest.raises(MutexNotHeldError) as raised:
        mutex.release()
    assert not isinstance(raised.value, MutexLostError)
