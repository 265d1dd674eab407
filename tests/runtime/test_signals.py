"""What the signals report of each kind of lock, and on which thread."""

import asyncio
import contextvars
import threading
import time

import pytest
from aio_scene import async_mutex
from driving import send_renewal
from hearing import hearing, until
from pynamodb.exceptions import PutError
from row_scene import add_to_all, save, save_or_update
from stores import QueueFor
from worker import run_script

from dev.faultproxy import delay, deny, drop_answer
from pynamodb_mutex import Loss, Mutex, MutexLostError, MutexTimeoutError, signals
from pynamodb_mutex.aio import AsyncSemaphore
from pynamodb_mutex.testing import expire


@pytest.fixture
def holder(scene, heard):
    """A holder of another process."""
    holder = scene.taken(auto_renew=False)
    heard.events.clear()
    return holder


def test_acquired_and_released_show_all_there_is(scene, heard):
    scene.proxy.next(delay(0.25), op="acquire")
    with scene.mutex(owner="me", lease=20, reentrant=True) as mutex:
        taken = scene.row
        time.sleep(3)
        with mutex:  # which is no acquisition
            pass
    assert heard.names == ["acquired", "released"]
    acquired, released = heard.events
    assert acquired.sender is released.sender is scene.here
    assert acquired.thread is released.thread is threading.current_thread()
    about = {"key": scene.key, "owner": "me"}
    about |= {"token": mutex.token, "fencing_token": mutex.fencing_token}
    assert acquired.told.pop("waited") == pytest.approx(0.25)
    of_acquired = {"attempts": 1, "abandoned": False, "abandoned_by": None}
    of_acquired |= {"lease": 20, "expires_at": taken.expires_at}
    assert acquired.told == about | of_acquired
    assert released.told.pop("held_for") == pytest.approx(3)
    assert released.told == about | {"error": None}


def test_receiver_sees_the_state_that_is_reported(scene):
    seen = []
    mutex = scene.mutex()

    def look(sender, **told):
        seen.append((mutex.held, mutex.remaining > 0, scene.other().locked()))
        # and nothing is kept that another lock needs
        with Mutex.for_key(f"{told['key']}-another", model=scene.there):
            pass

    for signal in (signals.acquired, signals.released):
        with signal.connected_to(look, scene.here), mutex:
            pass
    assert seen == [(True, True, True), (False, False, False)]


def test_contended_is_reported_once_and_names_the_holder(scene, heard, holder):
    with pytest.raises(MutexTimeoutError), scene.mutex(owner="me", timeout=3, poll=(0.1, 0.2)):
        pass
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
    assert told.pop("waited") == pytest.approx(3)
    requests = len(scene.proxy.log)
    assert told == {"key": scene.key, "owner": "me", "error": None, "attempts": requests}
    # also of an acquire that does not wait
    assert not scene.mutex().acquire(blocking=False)
    assert heard.names == ["contended", "not_acquired"] * 2


def test_all_in_line_report_contention_once_the_first_has_its_answer(scene, heard, holder):
    async def main():
        entering = (async_mutex(scene, owner=who, timeout=0.5).__aenter__() for who in "abc")
        return await asyncio.gather(*entering, return_exceptions=True)

    # one of them asked, and all learned it
    assert [error.owner for error in asyncio.run(main())] == ["other"] * 3
    assert sorted(told["owner"] for told in heard.of("contended")) == ["a", "b", "c"]
    assert {told["holder"] for told in heard.of("contended")} == {"other"}


def test_permits_are_reported_by_their_keys_and_those_that_are_free_without_contention(
    scene, heard
):
    async def work():
        async with AsyncSemaphore.for_key(scene.key, permits=3, model=scene.here):
            await asyncio.sleep(1)

    async def main():
        await asyncio.gather(work(), work(), work())

    asyncio.run(main())
    assert heard.names == ["acquired"] * 3 + ["released"] * 3
    permits = [f"{scene.key}#permit-{number}" for number in (1, 2, 3)]
    assert heard.keys("acquired") == heard.keys("released") == permits


def test_acquired_shows_how_long_it_waited(scene, heard, holder):
    waiter = scene.waiting()
    time.sleep(0.1)
    holder.release()
    waiter.join(60)
    told = heard.the("acquired")
    assert 0.1 <= told["waited"] <= 0.15  # until the next poll
    assert told["attempts"] == len(scene.proxy.of("GetItem", "acquire"))
    assert heard.names == ["contended", "released", "acquired"]


def test_acquired_after_a_dead_holder_names_it(scene, heard, holder):
    expire(scene.key, scene.there)
    # and without a tombstone there is no fencing token
    with scene.mutex(delete_on_release=True):
        pass
    told = heard.the("acquired")
    assert (told["abandoned"], told["abandoned_by"]) == (True, "other")
    assert told["fencing_token"] is heard.the("released")["fencing_token"] is None


def test_cancelled_wait_is_reported_as_not_acquired(scene, heard, holder):
    async def impatient():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(async_mutex(scene).acquire(), 1)

    asyncio.run(impatient())
    assert heard.names == ["contended", "not_acquired"]
    assert isinstance(heard.the("not_acquired")["error"], asyncio.CancelledError)


def test_signals_of_tasks_are_sent_in_their_context(scene):
    request = contextvars.ContextVar("request", default="none")
    seen = []

    def look(sender, **_):
        seen.append(request.get())

    async def work():
        request.set("r-1")
        with signals.acquired.connected_to(look), signals.released.connected_to(look):
            async with async_mutex(scene):
                pass

    asyncio.run(work())
    assert seen == ["r-1", "r-1"]


def test_hand_over_is_reported_of_both_sides(scene, heard):
    giver, taker = scene.mutex(owner="giver"), scene.mutex(owner="taker")
    assert giver.acquire()
    waiting = threading.Thread(target=taker.acquire)
    waiting.start()
    contended = heard.the("contended")
    assert (contended["holder"], contended["holder_token"]) == ("giver", giver.token)
    assert contended["expires_at"] == scene.row.expires_at
    time.sleep(2)
    giver.release()
    waiting.join(60)
    told = heard.the("handed_over")
    assert (told["token"], told["owner"], told["to"]) == (giver.token, "giver", "taker")
    assert (told["to_token"], told["to_fencing_token"]) == (taker.token, taker.fencing_token)
    acquired = heard.wait("acquired", 2)
    assert acquired.thread is waiting
    assert acquired.told["token"] == taker.token
    assert told["held_for"] == acquired.told["waited"] == pytest.approx(2, abs=0.02)
    assert acquired.told["attempts"] == len(scene.proxy.of("GetItem"))
    taker.release()
    # the two may be reported at the same time
    assert sorted(heard.names) == ["acquired"] * 2 + ["contended", "handed_over", "released"]


def test_detach_and_attach_are_reported(scene, heard):
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
    # the renewal by detach is not reported: a receiver may write under the lock
    assert heard.names == ["acquired", "handed_over", "acquired", "released", "not_acquired"]


def test_renewals_are_reported_on_a_thread_of_their_own(scene, heard, clock):
    with scene.mutex() as mutex:
        clock.advance(11)
        heard.wait("renewed")
        mutex.renew(lease=60)
        event = heard.wait("renewed", 2)
        end = scene.row.expires_at
    assert event.thread.name == "pynamodb-mutex-notifier"
    about = {"key": scene.key, "owner": mutex.owner, "token": mutex.token}
    about |= {"fencing_token": mutex.fencing_token}
    assert event.told == about | {"expires_at": end, "won_back": False}


def test_locks_renewed_together_are_reported_one_by_one(scene, keys, heard):
    mutexes = [Mutex.for_key(key, model=scene.here, lease=120) for key in keys.keys]
    for mutex in mutexes:
        assert mutex.acquire()
    send_renewal(*[mutex._latest for mutex in mutexes])
    assert scene.proxy.kinds()[-1] == "BatchExecuteStatement"
    heard.wait("renewed", 3)
    assert heard.keys("renewed") == keys.keys


def test_end_of_a_lease_is_reported_although_nothing_renews_it(scene, heard, clock):
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


def test_locks_taken_together_are_reported_one_by_one(keys, heard):
    group = keys.group()
    with group:
        group.renew()
    heard.wait("renewed", 3)
    for name in ("acquired", "renewed", "released"):
        assert heard.keys(name) == keys.keys
    assert {told["attempts"] for told in heard.of("acquired")} == {1}
    tokens = {told["key"]: told["fencing_token"] for told in heard.of("acquired")}
    assert tokens == group.fencing_tokens


def test_contention_of_a_group_is_reported_of_the_key_that_is_held(keys, heard):
    keys.taken(1)
    heard.events.clear()
    for count, options in ((1, {"timeout": 0.3}), (2, {"blocking": False})):
        assert not keys.group().acquire(**options)
        assert heard.keys("contended") == [keys.keys[1]] * count
        assert heard.keys("not_acquired") == sorted(keys.keys * count)
    assert heard.of("contended")[0]["holder"] == "other"


def test_group_that_waits_behind_another_reports_contention_once_it_is_known(
    scene, keys, heard, pool
):
    def work():
        with keys.group():
            pass

    held = keys.taken(0)
    first = pool.submit(work)
    heard.wait("contended")
    queue = QueueFor(scene.here, keys.keys[0])
    until(lambda: queue.watchers)
    # this one waits behind the first, and has not asked yet
    second = pool.submit(work)
    heard.wait("contended", 2)
    assert heard.keys("contended") == [keys.keys[0]] * 2
    held.release()
    for each in (first, second):
        each.result(60)
    assert len(heard.of("acquired")) == len(heard.of("released")) == 1 + 2 * 3


@pytest.mark.parametrize("renewals", [0, 2])
def test_loss_of_one_of_a_group_is_reported(keys, heard, renewals):
    group = keys.group(auto_renew=False)
    assert group.acquire()
    keys.force(1)
    for call in [group.renew] * renewals + [group.release]:
        with pytest.raises(MutexLostError):
            call()
    first, lost, last = keys.keys
    # after a renewal it is the loss of all
    heard.wait("lost", 3 if renewals else 1)
    assert heard.keys("lost") == (keys.keys if renewals else [lost])
    assert heard.keys("released") == ([] if renewals else [first, last])
    assert {told["loss"] for told in heard.of("lost")} == {Loss.FORCED}


def test_any_of_several_is_reported_by_the_key_it_got(scene, keys, heard):
    keys.taken(0)
    keys.taken(1)
    heard.events.clear()
    one = Mutex.any_of(keys.keys, model=scene.here)
    with one:
        # that others are held is no contention as long as one is free
        assert heard.names == ["acquired"]
        assert not Mutex.any_of(keys.keys, model=scene.here).acquire(blocking=False)
        contended = heard.the("contended")
        assert contended["key"] in keys.keys
        assert contended["holder"] is not None
        assert heard.keys("not_acquired") == [contended["key"]]
    assert heard.keys("acquired") == heard.keys("released") == [keys.keys[2]] == [one.key]


def test_holder_of_this_process_in_a_group_is_named(scene, keys, heard):
    with keys.group(owner="me"):
        waiter = Mutex.for_key(keys.keys[0], model=scene.here, timeout=0.2)
        with pytest.raises(MutexTimeoutError) as raised, waiter:
            pass
    assert heard.the("contended")["holder"] == raised.value.owner == "me"


@pytest.fixture
def of_row(any_scene):
    with hearing(any_scene.key) as heard:
        yield heard


@save_or_update
@pytest.mark.parametrize("faults", [[], [drop_answer()]])
def test_write_that_unlocks_releases(any_scene, of_row, write, faults):
    told = []
    lock = any_scene.lock()

    def ask(sender, **_):
        told.append((sender, lock.held))
        # no write waits for another while receivers run
        with any_scene.there.locked(any_scene.key) as row:
            row.save()

    model = any_scene.here.lock_model or any_scene.here
    with signals.released.connected_to(ask, model), lock as row:
        any_scene.proxy.next(*faults, op=any_scene.op(write.__name__))
        write(row, unlock=True)
    assert told == [(model, False)]
    released = [event.told for event in of_row.events if event.sender is model]
    assert [each["token"] for each in released] == [lock.token] * 2
    assert of_row.events[0].told["key"] == lock.key


def test_unlock_of_unknown_outcome_is_reported_by_the_release_after_it(row_scene):
    row_scene.proxy.next(drop_answer(), deny(), op="PutItem")
    with hearing(row_scene.key) as heard:
        with pytest.raises(PutError), row_scene.lock() as row:
            save(row, unlock=True)
        assert heard.names == ["acquired", "released"]
        assert heard.the("released")["error"] is None


def test_delete_ends_the_lock_that_stands_in_the_row_and_a_save_renews_it(any_scene, of_row):
    with any_scene.lock() as row:
        save(row)
        if not any_scene.in_table:
            assert of_row.the("renewed")["expires_at"] == any_scene.row.lock_expires_at
        before = len(of_row.events)
        row.delete()
        assert of_row.names[before:] == ([] if any_scene.in_table else ["released"])
    assert of_row.names[before:] == ["released"]


def test_loss_found_by_guarded_writes_is_reported_once(any_scene, of_row):
    row = any_scene.locked(auto_renew=False)
    any_scene.force()
    for _ in range(2):
        with pytest.raises(MutexLostError):
            save(row, unlock=True)
    with pytest.raises(MutexLostError):
        row.row_lock.release()
    assert of_row.the("lost")["loss"] is Loss.FORCED
    assert of_row.names == ["acquired", "lost"]


def test_transaction_that_unlocks_releases_each(rows):
    with hearing(rows.scene.key) as heard, rows.locks() as locked:
        add_to_all(locked, unlock=True)
        assert heard.names.count("released") == 3
        assert heard.keys("released") == heard.keys("acquired")


def test_missing_row_is_not_acquired(row_scene):
    model = row_scene.here
    with hearing("no-such-row") as heard:
        with pytest.raises(model.DoesNotExist) as raised:
            model.locked("no-such-row").acquire()
        assert heard.the("not_acquired")["error"] is raised.value


SCRIPT = """
import sys
sys.modules["blinker"] = None
from pynamodb_mutex import LockItem, Mutex, MutexLostError, signals, testing
assert not signals.signals_available
with Mutex.for_key("a") as mutex:
    mutex.renew()
try:
    with mutex:
        LockItem.force_release("a")
except MutexLostError:
    print("lost")
for connect in (signals.acquired.connect, signals.acquired.connect_via, signals.acquired.connected_to):
    try:
        connect(print)
    except RuntimeError as error:
        print("refused:", error)
for name in ("prometheus", "opentelemetry", "cloudwatch"):
    receivers = __import__(f"pynamodb_mutex.receivers.{name}", fromlist=["install"])
    try:
        receivers.install()
    except ImportError as error:
        print(error)
"""


@pytest.mark.real("embedded")
def test_without_blinker_locks_work_and_connecting_is_refused(table):
    """And nothing is printed, not even a loss, unless the program sets up logging."""
    done = run_script(SCRIPT)
    assert done.returncode == 0, done.stderr
    refused = "refused: signals need blinker: pip install 'pynamodb-mutex[signals]'\n"
    assert done.stdout.startswith("lost\n" + refused * 3)
    assert done.stdout.count("needs blinker: pip install 'pynamodb-mutex[signals]'") == 3
    assert done.stderr == ""
