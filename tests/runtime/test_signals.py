"""What the signals tell of each kind of lock, and on which thread."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from driving import send_renewal
from group_scene import Keys
from hearing import Heard, hearing, until
from scene import Scene
from stores import QueueFor

from dev.faultproxy import delay
from pynamodb_mutex import (
    Loss,
    Mutex,
    MutexLostError,
    MutexTimeoutError,
    Semaphore,
    signals,
)
from pynamodb_mutex.aio import AsyncMutex, AsyncSemaphore
from pynamodb_mutex.testing import FakeClock, expire


@pytest.fixture
def heard(scene: Scene) -> Iterator[Heard]:
    with hearing(scene.key) as heard:
        yield heard


# -- taking and releasing ------------------------------------------------------------------------


def test_acquired_and_released_show_all_there_is(scene: Scene, heard: Heard) -> None:
    scene.proxy.next(delay(0.25), op="acquire")
    with scene.mutex(owner="me", lease=20) as mutex:
        taken = scene.row
        time.sleep(3)
    assert heard.names == ["acquired", "released"]
    acquired, released = heard.events
    assert acquired.sender is released.sender is scene.here
    assert acquired.thread is released.thread is threading.current_thread()
    about = {
        "key": scene.key,
        "owner": "me",
        "token": mutex.token,
        "fencing_token": mutex.fencing_token,
    }
    assert acquired.told.pop("waited") == pytest.approx(0.25)
    assert acquired.told == about | {
        "attempts": 1,
        "abandoned": False,
        "abandoned_by": None,
        "lease": 20,
        "expires_at": taken.expires_at,
    }
    assert released.told.pop("held_for") == pytest.approx(3)
    assert released.told == about | {"error": None}


def test_a_receiver_sees_what_it_is_about(scene: Scene) -> None:
    seen = []
    mutex = scene.mutex()

    def look(sender, **told):
        seen.append((mutex.held, mutex.remaining > 0, scene.other().locked()))
        # and nothing is kept that another lock needs
        with Mutex.for_key(f"{told['key']}-another", model=scene.there):
            pass

    with signals.acquired.connected_to(look, scene.here), mutex:
        pass
    with signals.released.connected_to(look, scene.here), mutex:
        pass
    assert seen == [(True, True, True), (False, False, False)]


def test_a_receiver_may_ask_for_those_of_one_table(scene: Scene) -> None:
    heard = []

    def receiver(sender, **told):
        heard.append(told["owner"])

    with signals.acquired.connected_to(receiver, sender=scene.there):
        with scene.mutex(owner="here"):
            pass
        with scene.other(owner="there"):
            pass
    assert heard == ["there"]


def test_contended_is_reported_once_and_names_the_holder(scene: Scene, heard: Heard) -> None:
    holder = scene.taken()
    heard.events.clear()
    with pytest.raises(MutexTimeoutError), scene.mutex(owner="me", timeout=3, poll=(0.1, 0.2)):
        pass
    polls = len(scene.proxy.of("GetItem"))
    assert 3 / 0.2 <= polls <= 3 / 0.1
    assert heard.names == ["contended", "not_acquired"]
    assert heard.the("contended") == {
        "key": scene.key,
        "owner": "me",
        "holder": "other",
        "holder_token": holder.token,
        "holder_fencing_token": holder.fencing_token,
        "expires_at": scene.row.expires_at,
    }
    told = heard.the("not_acquired")
    assert told["waited"] == pytest.approx(3)
    assert told["attempts"] == len(scene.proxy.log) == polls + 1
    assert (told["key"], told["owner"], told["error"]) == (scene.key, "me", None)


def test_one_try_that_finds_it_held_is_reported_too(scene: Scene, heard: Heard) -> None:
    scene.taken()
    heard.events.clear()
    assert not scene.mutex().acquire(blocking=False)
    assert heard.names == ["contended", "not_acquired"]


def test_all_in_line_report_contention_once_the_first_has_its_answer(
    scene: Scene, heard: Heard
) -> None:
    holder = scene.taken()
    heard.events.clear()

    async def main() -> None:
        mutexes = [AsyncMutex.for_key(scene.key, model=scene.here, owner=who) for who in "abc"]
        waiting = [asyncio.create_task(mutex.acquire()) for mutex in mutexes]
        await asyncio.to_thread(heard.wait, "contended", 3)
        holder.release()
        for task, mutex in zip(waiting, mutexes, strict=True):
            assert await task
            await mutex.release()

    asyncio.run(main())
    # one of them asked, and all learned it
    assert sorted(told["owner"] for told in heard.of("contended")) == ["a", "b", "c"]
    assert {told["holder"] for told in heard.of("contended")} == {"other"}


def test_timeout_in_line_names_the_holder_that_the_first_has_seen(
    scene: Scene, heard: Heard
) -> None:
    scene.taken()

    async def main() -> list[BaseException | bool]:
        mutexes = [AsyncMutex.for_key(scene.key, model=scene.here, timeout=0.5) for _ in range(3)]
        entering = (mutex.__aenter__() for mutex in mutexes)
        return await asyncio.gather(*entering, return_exceptions=True)

    errors = asyncio.run(main())
    assert [error.owner for error in errors] == ["other"] * 3


def test_those_in_line_for_permits_that_are_free_report_no_contention(
    scene: Scene, heard: Heard
) -> None:
    async def main() -> None:
        semaphores = [
            AsyncSemaphore.for_key(scene.key, permits=3, model=scene.here) for _ in range(3)
        ]
        assert all(await asyncio.gather(*(semaphore.acquire() for semaphore in semaphores)))
        for semaphore in semaphores:
            await semaphore.release()

    asyncio.run(main())
    assert heard.names == ["acquired"] * 3 + ["released"] * 3


def test_one_that_waited_shows_how_long(scene: Scene, heard: Heard) -> None:
    holder = scene.taken()
    waiter = scene.waiting()
    heard.wait("contended")
    time.sleep(0.1)
    holder.release()
    waiter.join(60)
    told = heard.of("acquired")[-1]
    assert told["token"] == waiter.mutex.token
    assert 0.1 <= told["waited"] <= 0.15  # until the next poll
    assert told["attempts"] == len(scene.proxy.of("GetItem", "acquire"))
    waiter.mutex.release()
    assert heard.names == ["acquired", "contended", "released", "acquired", "released"]


def test_who_takes_over_from_a_dead_holder_shows_whose_it_was(scene: Scene, heard: Heard) -> None:
    scene.taken(auto_renew=False)
    expire(scene.key, scene.there)
    heard.events.clear()
    with scene.mutex():
        pass
    told = heard.the("acquired")
    assert (told["abandoned"], told["abandoned_by"]) == (True, "other")


def test_without_the_tombstone_there_is_no_fencing_token(scene: Scene, heard: Heard) -> None:
    with scene.mutex(delete_on_release=True):
        pass
    assert heard.the("acquired")["fencing_token"] is None
    assert heard.the("released")["fencing_token"] is None


def test_entering_again_is_no_acquisition(scene: Scene, heard: Heard) -> None:
    with scene.mutex(reentrant=True) as mutex, mutex, scene.mutex(reentrant=True):
        pass
    assert heard.names == ["acquired", "released"]


def test_waiting_ends_in_not_acquired_when_it_is_interrupted(scene: Scene, heard: Heard) -> None:
    scene.taken()
    heard.events.clear()

    async def impatient():
        waiting = asyncio.create_task(AsyncMutex.for_key(scene.key, model=scene.here).acquire())
        await asyncio.to_thread(heard.wait, "contended")
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(impatient())
    assert heard.names == ["contended", "not_acquired"]
    assert isinstance(heard.the("not_acquired")["error"], asyncio.CancelledError)


def test_of_tasks_it_is_reported_in_their_context(scene: Scene, heard: Heard) -> None:
    request = contextvars.ContextVar("request", default="none")
    seen = []

    def look(sender, **_):
        seen.append(request.get())

    async def work():
        request.set("r-1")
        async with AsyncMutex.for_key(scene.key, model=scene.here):
            pass

    with (
        signals.acquired.connected_to(look, scene.here),
        signals.released.connected_to(look, scene.here),
    ):
        asyncio.run(work())
    assert seen == ["r-1", "r-1"]
    assert heard.names == ["acquired", "released"]


# -- handing over ----------------------------------------------------------------------------------


def test_the_next_in_line_is_reported_of_on_both_sides(scene: Scene, heard: Heard) -> None:
    giver, taker = scene.mutex(owner="giver"), scene.mutex(owner="taker")
    assert giver.acquire()
    expires_at = scene.row.expires_at
    waiting = threading.Thread(target=taker.acquire)
    waiting.start()
    contended = heard.the("contended")
    assert (contended["holder"], contended["holder_token"]) == ("giver", giver.token)
    assert contended["expires_at"] == expires_at
    queue = QueueFor(scene.here, scene.key)
    until(lambda: queue.turns)
    time.sleep(2)
    giver.release()
    waiting.join(60)
    told = heard.the("handed_over")
    assert (told["token"], told["owner"], told["to"]) == (giver.token, "giver", "taker")
    assert (told["to_token"], told["to_fencing_token"]) == (taker.token, taker.fencing_token)
    assert told["held_for"] == pytest.approx(2, abs=0.02)
    acquired = heard.wait("acquired", 2)
    assert acquired.thread is waiting
    assert acquired.told["token"] == taker.token
    assert acquired.told["waited"] == pytest.approx(2, abs=0.02)
    assert acquired.told["attempts"] == len(scene.proxy.of("GetItem"))
    taker.release()
    assert heard.names.count("released") == 1
    assert "lost" not in heard.names


def test_a_ticket_ends_it_here_and_begins_it_there(scene: Scene, heard: Heard) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    ticket = mutex.detach()
    told = heard.the("handed_over")
    assert (told["token"], told["to"], told["to_token"]) == (mutex.token, None, None)
    with Mutex.attach(ticket, model=scene.here) as attached:
        told = heard.of("acquired")[-1]
        assert (told["token"], told["attempts"]) == (attached.token, 1)
    with pytest.raises(MutexLostError) as raised:
        Mutex.attach(ticket, model=scene.here)
    assert heard.the("not_acquired")["error"] is raised.value
    order = ["acquired", "handed_over", "acquired", "released", "not_acquired"]
    # that detach renews is not told: a receiver may write under the lock
    assert heard.names == order


# -- renewing --------------------------------------------------------------------------------------


def test_renewals_are_reported_on_a_thread_of_their_own(scene: Scene, heard: Heard) -> None:
    with FakeClock() as clock, scene.mutex() as mutex:
        clock.advance(11)
        first = heard.wait("renewed").told
        clock.advance(10.5)
        heard.wait("renewed", 2)
        mutex.renew(lease=60)
        told = scene.row.expires_at
        until(lambda: heard.of("renewed")[-1]["expires_at"] == told)
    assert set(first) == {"key", "owner", "token", "fencing_token", "expires_at", "won_back"}
    assert first["token"] == mutex.token
    assert not any(each["won_back"] for each in heard.of("renewed"))
    threads = {event.thread.name for event in heard.events if event.name == "renewed"}
    assert threads == {"pynamodb-mutex-notifier"}


def test_those_renewed_together_are_reported_one_by_one(scene: Scene, heard: Heard) -> None:
    mutexes = [Mutex.for_key(f"{scene.key}.{n}", model=scene.here, lease=120) for n in range(3)]
    for mutex in mutexes:
        assert mutex.acquire()
    first, *others = [mutex._latest for mutex in mutexes]
    send_renewal(first, *others)
    assert scene.proxy.kinds()[-1] == "BatchExecuteStatement"
    heard.wait("renewed", 3)
    assert heard.keys("renewed") == [mutex.key for mutex in mutexes]


def test_the_end_is_reported_although_nothing_renews_it(scene: Scene, heard: Heard) -> None:
    with FakeClock() as clock:
        mutex = scene.mutex(auto_renew=False)
        assert mutex.acquire()
        clock.advance(31)
        event = heard.wait("lost")
        assert event.thread.name == "pynamodb-mutex-lost"
        assert event.told["loss"] is Loss.EXPIRED
        assert event.told["held_for"] >= 0
        # and that it goes on, if nobody has taken it
        mutex.renew()
        assert heard.the("renewed")["won_back"]
        mutex.release()
    assert heard.names == ["acquired", "lost", "renewed", "released"]


# -- several ---------------------------------------------------------------------------------------


def test_locks_taken_together_are_reported_one_by_one(
    scene: Scene, keys: Keys, heard: Heard
) -> None:
    group = keys.group()
    with group:
        group.renew()
    heard.wait("renewed", 3)
    for name in ("acquired", "renewed", "released"):
        assert heard.keys(name) == keys.keys
    assert {told["attempts"] for told in heard.of("acquired")} == {1}
    tokens = {told["key"]: told["fencing_token"] for told in heard.of("acquired")}
    assert tokens == group.fencing_tokens


def test_of_a_group_it_is_reported_which_lock_is_held(
    scene: Scene, keys: Keys, heard: Heard
) -> None:
    keys.taken(1)
    heard.events.clear()
    assert not keys.group().acquire(timeout=0.3)
    assert heard.keys("contended") == [keys.keys[1]]
    assert heard.the("contended")["holder"] == "other"
    assert heard.keys("not_acquired") == keys.keys
    assert not keys.group().acquire(blocking=False)
    assert heard.keys("contended") == [keys.keys[1]] * 2


def test_a_group_that_waits_for_others_shows_when_it_knows_why(
    scene: Scene, keys: Keys, heard: Heard
) -> None:
    def work():
        with keys.group():
            pass

    held = keys.taken(0)
    threads = [threading.Thread(target=work) for _ in range(2)]
    threads[0].start()
    heard.wait("contended")
    queue = QueueFor(scene.here, keys.keys[0])
    until(lambda: queue.watchers)
    # this one waits behind the first, and has not asked yet
    threads[1].start()
    heard.wait("contended", 2)
    assert heard.keys("contended") == [keys.keys[0]] * 2
    held.release()
    for thread in threads:
        thread.join(60)
    assert len(heard.of("acquired")) == len(heard.of("released")) == 1 + 2 * 3


def test_losing_one_of_a_group_is_reported_of_all_once(
    scene: Scene, keys: Keys, heard: Heard
) -> None:
    group = keys.group()
    assert group.acquire()
    keys.force(1)
    for _ in range(2):
        with pytest.raises(MutexLostError):
            group.renew()
    with pytest.raises(MutexLostError):
        group.release()
    heard.wait("lost", 3)
    assert heard.keys("lost") == keys.keys
    assert {told["loss"] for told in heard.of("lost")} == {Loss.FORCED}
    assert "released" not in heard.names


def test_a_group_that_finds_one_lost_as_it_is_released(
    scene: Scene, keys: Keys, heard: Heard
) -> None:
    group = keys.group(auto_renew=False)
    assert group.acquire()
    keys.force(1)
    with pytest.raises(MutexLostError):
        group.release()
    assert heard.the("lost")["key"] == keys.keys[1]
    assert heard.keys("released") == [keys.keys[0], keys.keys[2]]


def test_any_of_several_is_reported_by_the_key_it_got(
    scene: Scene, keys: Keys, heard: Heard
) -> None:
    keys.taken(0)
    keys.taken(1)
    heard.events.clear()
    one = Mutex.any_of(keys.keys, model=scene.here)
    with one:
        assert heard.the("acquired")["key"] == keys.keys[2] == one.key
        # that others are held is no contention as long as one is free
        assert "contended" not in heard.names
        assert not Mutex.any_of(keys.keys, model=scene.here).acquire(blocking=False)
        assert heard.the("contended")["key"] in keys.keys
        assert heard.the("contended")["holder"] is not None
        assert heard.the("not_acquired")["key"] == heard.the("contended")["key"]
    assert heard.the("released")["key"] == keys.keys[2]


def test_a_semaphores_permit_is_reported_by_its_key(scene: Scene, heard: Heard) -> None:
    with Semaphore.for_key(scene.key, permits=1, model=scene.here):
        pass
    assert heard.keys("acquired") == heard.keys("released") == [f"{scene.key}#permit-1"]


def test_a_holder_of_this_process_in_a_group_is_named(
    scene: Scene, keys: Keys, heard: Heard
) -> None:
    with keys.group(owner="me"):
        heard.events.clear()
        waiter = Mutex.for_key(keys.keys[0], model=scene.here, timeout=0.2)
        with pytest.raises(MutexTimeoutError) as raised, waiter:
            pass
    assert heard.the("contended")["holder"] == "me"
    assert raised.value.owner == "me"


# -- without blinker ---------------------------------------------------------------------------------


def test_without_blinker_locks_work_and_connecting_is_refused(embedded_engine) -> None:
    script = """
import sys
sys.modules["blinker"] = None
from pynamodb_mutex import LockItem, Mutex, signals
from pynamodb_mutex.testing import use, Engine
assert not signals.signals_available
engine = Engine("embedded", sys.argv[1])
with use(engine):
    LockItem.create_table()
    with Mutex.for_key("a") as mutex:
        mutex.renew()
    LockItem.delete_table()
for name in ("connect", "connect_via", "connected_to"):
    try:
        getattr(signals.acquired, name)(print)
    except RuntimeError as error:
        print("refused:", error)
for name in ("prometheus", "opentelemetry", "cloudwatch"):
    receivers = __import__(f"pynamodb_mutex.receivers.{name}", fromlist=["install"])
    try:
        receivers.install()
    except ImportError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, embedded_engine.endpoint_url],
        check=False, capture_output=True, text=True, timeout=100,
        env=os.environ | {"PYNAMODB_MUTEX_TABLE": f"no-blinker-{time.time_ns()}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    refused = "refused: signals need blinker: pip install 'pynamodb-mutex[signals]'\n"
    assert done.stdout.startswith(refused * 3)
    assert done.stdout.count("needs blinker: pip install 'pynamodb-mutex[signals]'") == 3
    assert done.stderr == ""
