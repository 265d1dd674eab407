"""What the signals and the log say of each kind of lock, and on which thread."""

import asyncio
import contextvars
import logging
import sys
import threading
import time
from email.utils import formatdate, mktime_tz, parsedate_tz

import pytest
from operations_by_hand import send_renewal
from processes import Worker, run_script
from pynamodb.exceptions import PutError, PynamoDBException, TransactWriteError, UpdateError
from row_models import add_to_all, save, save_or_update
from signal_receivers import Event, hearing
from this_process import QueueFor, current_process
from two_clients import held
from waits import until

from dev import faultproxy as net
from dev.faultproxy import apply_then_500, delay, deny, drop_answer, server_error
from pynamodb_mutex import Loss, Mutex, MutexError, MutexLostError, MutexTimeoutError, signals
from pynamodb_mutex._lock.protocol.claim import Claim
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex.aio import AsyncSemaphore
from pynamodb_mutex.testing import FakeClock, expire


@pytest.fixture
def holder(scene, heard):
    """A holder of another process."""
    holder = scene.taken(auto_renew=False)
    heard.events.clear()
    return holder


@pytest.fixture
def logged(scene, caplog):
    """The log records of a key with a text: first word after the key, level, owner, token."""
    caplog.set_level(logging.DEBUG, "pynamodb_mutex")

    def logged(text="", key=scene.key):
        records = [r for r in caplog.records if getattr(r, "lock_key", "") == key]
        assert {record.name for record in records} <= {"pynamodb_mutex"}
        return [
            (
                record.getMessage().removeprefix(f"{key!r} ").split()[0],
                *(record.levelname, record.lock_owner, record.fencing_token),
            )
            for record in records
            if text in record.getMessage()
        ]

    return logged


def about(lock, **more):
    """What each signal says of an acquisition, and what some say besides."""
    about = {name: getattr(lock, name) for name in ("key", "owner", "token", "fencing_token")}
    return about | {"attributes": None} | more


def test_acquired_and_released_show_all_there_is(scene, heard):
    scene.proxy.next(net.delay(0.25), op="acquire")
    with scene.mutex(owner="me", lease=20, reentrant=True) as mutex:
        end = scene.row.expires_at
        time.sleep(3)
        with mutex:  # which is no acquisition
            pass
    acquired = about(mutex, attempts=1, abandoned=False, abandoned_by=None, forced=False, lease=20)
    acquired |= {"expires_at": end, "waited": pytest.approx(0.25)}
    released = about(mutex, error=None, held_for=pytest.approx(3))
    assert heard.events == [
        Event("acquired", scene.here, acquired, threading.current_thread()),
        Event("released", scene.here, released, threading.current_thread()),
    ]


def test_receiver_sees_the_state_that_is_reported(scene):
    seen = []
    mutex = scene.mutex()

    def look(sender, **fields):
        seen.append((mutex.held, mutex.remaining > 0, scene.other().locked()))
        # and nothing is kept that another lock needs
        with Mutex.for_key(f"{fields['key']}-another", model=scene.there):
            pass

    for signal in (signals.acquired, signals.released):
        with signal.connected_to(look, scene.here), mutex:
            pass
    assert seen == [(True, True, True), (False, False, False)]


def test_contended_is_reported_once_and_names_the_holder(scene, heard, logged, holder):
    with pytest.raises(MutexTimeoutError), scene.mutex(owner="me", timeout=3, poll=(0.1, 0.2)):
        pass
    assert heard.names == ["contended", "not_acquired"]
    me = {"key": scene.key, "owner": "me", "attributes": None}
    assert heard.the("contended") == me | {
        "holder": "other",
        "holder_token": holder.token,
        "holder_fencing_token": holder.fencing_token,
        "expires_at": scene.row.expires_at,
    }
    failed = {"error": None, "attempts": len(scene.proxy.log), "waited": pytest.approx(3)}
    assert heard.the("not_acquired") == me | failed
    who = ("DEBUG", "me", None)
    assert logged("is waited for by 'me', and held by 'other'") == [("is", *who)]
    assert logged("not acquired by 'me'") == [("not", *who)]
    # also of an acquire that does not wait
    assert not scene.mutex().acquire(blocking=False)
    assert heard.names == ["contended", "not_acquired"] * 2


def test_contended_is_reported_if_the_first_answer_comes_at_the_deadline(scene, heard, holder):
    scene.proxy.next(delay(3), op="acquire")
    assert not scene.mutex().acquire(timeout=2)
    assert heard.names == ["contended", "not_acquired"]
    assert heard.the("contended")["holder"] == "other"


def test_all_in_line_report_contention_once_the_first_has_its_answer(scene, heard, holder):
    async def main():
        entering = (scene.async_mutex(owner=who, timeout=0.5).__aenter__() for who in "abc")
        return await asyncio.gather(*entering, return_exceptions=True)

    # one of them asked, and all learned it
    assert [error.owner for error in asyncio.run(main())] == ["other"] * 3
    assert sorted(fields["owner"] for fields in heard.of("contended")) == ["a", "b", "c"]
    assert {fields["holder"] for fields in heard.of("contended")} == {"other"}


def test_permits_are_reported_by_their_keys_and_free_ones_without_contention(scene, heard):
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
    fields = heard.the("acquired")
    assert 0.1 <= fields["waited"] <= 0.15  # until the next poll
    assert fields["attempts"] == len(scene.proxy.of("GetItem", "acquire"))
    assert heard.names == ["contended", "released", "acquired"]


def test_acquired_after_a_dead_holder_names_it(scene, heard, logged, holder):
    expire(scene.key, scene.there)
    mutex = held(scene.mutex(owner="me"))
    fields = heard.the("acquired")
    assert (fields["abandoned"], fields["abandoned_by"]) == (True, "other")
    abandoned = [("acquired", "WARNING", "me", mutex.fencing_token)]
    assert logged("acquired by 'me': abandoned by 'other'") == abandoned
    assert mutex.fencing_token > holder.fencing_token
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.release()
    lost = [("lost", "WARNING", "me", mutex.fencing_token)]
    assert logged("lost by 'me': its claim was broken by force") == lost


def test_without_a_tombstone_there_is_no_fencing_token(scene, heard):
    refused = pytest.raises(MutexError, match="delete_on_release")
    with scene.mutex(delete_on_release=True) as mutex, refused:
        _ = mutex.fencing_token
    assert scene.gone
    assert [event.fields["fencing_token"] for event in heard.events] == [None, None]


def test_cancelled_wait_is_reported_as_not_acquired(scene, heard, holder):
    async def impatient():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(scene.async_mutex().acquire(), 1)

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
            async with scene.async_mutex():
                pass

    asyncio.run(work())
    assert seen == ["r-1", "r-1"]


def test_hand_over_is_reported_of_both_sides(scene, heard, logged):
    giver, taker = held(scene.mutex(owner="giver")), scene.mutex(owner="taker")
    waiting = threading.Thread(target=taker.acquire)
    waiting.start()
    fields = heard.the("contended")
    holder = [fields[name] for name in ("holder", "holder_token", "expires_at")]
    assert holder == ["giver", giver.token, scene.row.expires_at]
    time.sleep(2)
    giver.release()
    waiting.join(60)
    acquired = heard.wait("acquired", 2)
    assert (acquired.thread, acquired.fields["token"]) == (waiting, taker.token)
    waited = acquired.fields["waited"]
    assert waited == pytest.approx(2, abs=0.02)
    assert acquired.fields["attempts"] == len(scene.proxy.of("GetItem"))
    to = {"to": "taker", "to_token": taker.token, "to_fencing_token": taker.fencing_token}
    assert heard.the("handed_over") == about(giver, held_for=waited, **to)
    by_giver = ("handed", "DEBUG", "giver", giver.fencing_token)
    assert logged("handed over by 'giver' to 'taker'") == [by_giver]
    taker.release()
    # the two may be reported at the same time
    assert sorted(heard.names) == ["acquired"] * 2 + ["contended", "handed_over", "released"]


def test_detach_and_attach_are_reported(scene, heard, logged):
    mutex = held(scene.mutex(owner="me"))
    ticket = mutex.detach()
    fields = heard.the("handed_over")
    assert (fields["token"], fields["to"], fields["to_token"]) == (mutex.token, None, None)
    who = ("DEBUG", "me", mutex.fencing_token)
    assert logged("handed over by 'me' to the bearer of a ticket") == [("handed", *who)]
    with Mutex.attach(ticket, model=scene.here) as attached:
        fields = heard.of("acquired")[-1]
        assert (fields["token"], fields["attempts"]) == (attached.token, 1)
    with pytest.raises(MutexLostError) as raised:
        Mutex.attach(ticket, model=scene.here)
    assert heard.the("not_acquired")["error"] is raised.value
    # the renewal by detach is not reported: a receiver may write under the lock
    assert heard.names == ["acquired", "handed_over", "acquired", "released", "not_acquired"]


def test_renewals_are_reported_on_a_thread_of_their_own(scene, heard, logged, clock):
    with scene.mutex(owner="me") as mutex:
        clock.advance(11)
        heard.wait("renewed")
        mutex.renew(lease=60)
        event = heard.wait("renewed", 2)
        end = scene.row.expires_at
    assert event.thread.name == "pynamodb-mutex-notifier"
    assert event.fields == about(mutex, expires_at=end, won_back=False)
    words = ("acquired", "renewed", "renewed", "released")
    assert logged() == [(word, "DEBUG", "me", mutex.fencing_token) for word in words]


def test_failed_renewals_are_reported_and_then_one_that_succeeds(scene, heard, logged, clock):
    scene.proxy.always(server_error(), op="renew")
    with scene.mutex(owner="me") as mutex:
        clock.advance(11)
        event = heard.wait("renewal_failed")
        scene.proxy.clear()
        clock.advance(1)
        heard.wait("renewed")
        # also one that was asked for
        scene.proxy.next(deny(), op="renew")
        with pytest.raises(UpdateError) as raised:
            mutex.renew()
        until(lambda: heard.of("renewal_failed")[-1]["error"] is raised.value)
    assert event.thread.name == "pynamodb-mutex-notifier"
    assert event.fields["token"] == mutex.token
    assert isinstance(event.fields["error"], UpdateError)
    assert event.fields["expires_at"] < heard.of("renewed")[0]["expires_at"]
    assert set(logged("renewal of")) == {("renewal", "WARNING", "me", mutex.fencing_token)}


def test_renewal_that_comes_too_late_is_not_reported(scene, heard, clock):
    mutex = held(scene.mutex(auto_renew=False))
    scene.proxy.next(net.after(lambda: clock.advance(31)), op="renew")
    send_renewal(mutex._latest)
    assert scene.applied("renew") == [True]
    heard.wait("lost")
    mutex.renew()
    # the one that was waited for
    assert heard.the("renewed")["won_back"]


def test_release_that_is_refused_shows_no_loss_that_was_reported(scene, heard, logged):
    mutex = held(scene.mutex(owner="me", auto_renew=False))
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.renew()
    # it may have begun before that
    with current_process().monitor:
        mutex._latest.lost_at_release(Claim())
    heard.wait("lost")
    assert heard.names == ["acquired", "lost"]
    lost = [("lost", "WARNING", "me", mutex.fencing_token)]
    assert logged("lost by 'me': its claim was broken by force") == lost


# -- requests that fail ----------------------------------------------------------------------------


def test_repeated_requests_are_logged_and_count_as_attempts(scene, heard, logged):
    scene.proxy.next(drop_answer(), apply_then_500(), op="acquire")
    scene.proxy.next(server_error(), op="renew")
    scene.proxy.next(drop_answer(), apply_then_500(), op="release")
    with scene.mutex() as mutex:
        mutex.renew()
    fields = heard.the("acquired")
    assert (fields["attempts"], fields["token"]) == (3, scene.row.token)
    assert heard.the("released")["error"] is None
    heard.wait("renewed")
    assert sorted(heard.names) == ["acquired", "released", "renewed"]
    token = mutex.fencing_token
    assert [of for *_, of in logged("to be retried")] == [None, None, token, token, token]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("fault", [deny, drop_answer])
def test_requests_that_do_not_get_through_show_why(scene, keys, heard, several, fault):
    lock = keys.group(timeout=0) if several else scene.mutex(timeout=0)
    for name, call in (("not_acquired", lock.acquire), ("released", lock.release)):
        if name == "released":
            scene.proxy.clear()
            held(lock)
            heard.events.clear()
        scene.proxy.always(fault())
        with pytest.raises(PynamoDBException) as raised:
            call()
        assert heard.names == [name] * (3 if several else 1)
        assert heard.keys(name) == (keys.keys if several else [scene.key])
        assert all(fields["error"] is raised.value for fields in heard.of(name))
        if (name, fault) == ("not_acquired", deny):
            assert {fields["attempts"] for fields in heard.of(name)} == {1}


class Interrupted(logging.Handler):
    """Raises KeyboardInterrupt, as if Ctrl-C came while it writes a record."""

    def emit(self, record):
        raise KeyboardInterrupt(record.getMessage())


def test_interrupted_log_record_of_an_acquisition_leaves_no_lock_behind(scene, monkeypatch):
    handlers = [Interrupted()]
    monkeypatch.setattr(logging.getLogger("pynamodb_mutex"), "handlers", handlers)
    scene.taken(auto_renew=False)
    scene.expire()
    with pytest.raises(KeyboardInterrupt, match="abandoned by"):
        scene.mutex().acquire()
    handlers.clear()
    assert scene.leftovers() == []


def test_what_nobody_may_have_released_is_a_warning(scene, logged):
    mutex = held(scene.mutex(lease=4, timeout=0, owner="me"))
    scene.proxy.always(net.drop_request(), op="release")
    with pytest.raises(PynamoDBException):
        mutex.release()
    given_up = [("given", "WARNING", "me", mutex.fencing_token)]
    assert logged("given up by 'me', and expires with its lease") == given_up
    time.sleep(10)
    scene.proxy.always(drop_answer(), op="acquire")
    scene.proxy.always(net.drop_request(), op="disown")
    with pytest.raises(PynamoDBException):
        mutex.acquire()
    assert logged("may be held by nobody") == [("may", "WARNING", "me", None)]


def test_locks_taken_together_are_reported_one_by_one(scene, keys, heard, logged):
    with keys.group(owner="me") as group:
        group.renew()
        scene.proxy.next(deny(), op="TransactWriteItems")
        with pytest.raises(PynamoDBException):
            group.renew()
    heard.wait("renewal_failed", 3)
    for name in ("acquired", "renewed", "renewal_failed", "released"):
        assert heard.keys(name) == keys.keys
    assert {fields["attempts"] for fields in heard.of("acquired")} == {1}
    tokens = {fields["key"]: fields["fencing_token"] for fields in heard.of("acquired")}
    assert tokens == group.fencing_tokens
    for key in keys.keys:
        words = [word for word, *_ in logged(key=key)]
        assert words == ["acquired", "renewed", "renewal", "released"]


def test_contention_of_a_group_is_reported_of_the_key_that_is_held(keys, heard):
    keys.taken(1)
    heard.events.clear()
    for count, options in ((1, {"timeout": 0.3}), (2, {"blocking": False})):
        assert not keys.group().acquire(**options)
        assert heard.keys("contended") == [keys.keys[1]] * count
        assert heard.keys("not_acquired") == sorted(keys.keys * count)
    assert heard.of("contended")[0]["holder"] == "other"


def test_group_that_waits_behind_another_reports_contention_once_known(scene, keys, heard, pool):
    def work():
        with keys.group():
            pass

    holder = keys.taken(0)
    first = pool.submit(work)
    heard.wait("contended")
    queue = QueueFor(scene.here, keys.keys[0])
    until(lambda: queue.watchers)
    # this one waits behind the first, and has not asked yet
    second = pool.submit(work)
    heard.wait("contended", 2)
    assert heard.keys("contended") == [keys.keys[0]] * 2
    holder.release()
    for each in (first, second):
        each.result(60)
    assert len(heard.of("acquired")) == len(heard.of("released")) == 1 + 2 * 3


@pytest.mark.parametrize("renewals", [0, 2])
def test_loss_of_one_of_a_group_is_reported(keys, heard, renewals):
    group = held(keys.group(auto_renew=False))
    keys.force(1)
    for call in [group.renew] * renewals + [group.release]:
        with pytest.raises(MutexLostError):
            call()
    first, lost, last = keys.keys
    # after a renewal it is the loss of all
    heard.wait("lost", 3 if renewals else 1)
    assert heard.keys("lost") == (keys.keys if renewals else [lost])
    assert heard.keys("released") == ([] if renewals else [first, last])
    assert {fields["loss"] for fields in heard.of("lost")} == {Loss.FORCED}


def test_any_of_several_is_reported_by_the_key_it_got(scene, keys, heard):
    keys.taken(0)
    keys.taken(1)
    heard.events.clear()
    with Mutex.any_of(keys.keys, model=scene.here) as one:
        # that others are held is no contention as long as one is free
        assert heard.names == ["acquired"]
        assert not Mutex.any_of(keys.keys, model=scene.here).acquire(blocking=False)
        contended = heard.the("contended")
        assert contended["key"] in keys.keys
        assert contended["holder"] is not None
        assert heard.keys("not_acquired") == [contended["key"]]
        assert one.key == keys.keys[2]
    assert heard.keys("acquired") == heard.keys("released") == [one.key]


def test_holder_of_this_process_in_a_group_is_named(scene, keys, heard):
    with keys.group(owner="me"):
        waiter = Mutex.for_key(keys.keys[0], model=scene.here, timeout=0.2)
        with pytest.raises(MutexTimeoutError) as raised, waiter:
            pass
    assert heard.the("contended")["holder"] == raised.value.owner == "me"


# -- rows ------------------------------------------------------------------------------------------


@pytest.fixture
def of_row(any_scene):
    with hearing(any_scene.key) as heard:
        yield heard


@save_or_update
@pytest.mark.parametrize("faults", [[], [drop_answer()]])
def test_write_that_unlocks_releases(any_scene, of_row, write, faults):
    received = []
    lock = any_scene.lock()

    def ask(sender, **_):
        received.append((sender, lock.held))
        # no write waits for another while receivers run
        with any_scene.there.locked(any_scene.key) as row:
            row.save()

    model = any_scene.here.lock_model or any_scene.here
    with signals.released.connected_to(ask, model), lock as row:
        any_scene.proxy.next(*faults, op=any_scene.op(write.__name__))
        write(row, unlock=True)
    assert received == [(model, False)]
    released = [event.fields for event in of_row.events if event.sender is model]
    assert [each["token"] for each in released] == [lock.token] * 2
    ends = [event.fields for event in of_row.events if event.name == "released"]
    assert all(end["held_for"] >= 0 and end["error"] is None for end in ends)
    assert of_row.events[0].fields["key"] == lock.key


def test_unlock_of_unknown_outcome_is_reported_by_the_release_after_it(any_scene, of_row):
    any_scene.proxy.next(drop_answer(), deny(), op=any_scene.op("save"))
    error = TransactWriteError if any_scene.in_table else PutError
    with pytest.raises(error), any_scene.lock() as row:
        save(row, unlock=True)
    assert of_row.names == ["acquired", "released"]
    assert of_row.the("released")["error"] is None


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


def test_transaction_that_unlocks_releases_each(rows, of_row):
    with rows.locks() as locked:
        add_to_all(locked, unlock=True)
        assert of_row.names.count("released") == 3
        assert of_row.keys("released") == of_row.keys("acquired")


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
assert not [name for name in sys.modules if name.startswith("pynamodb_mutex.receivers")]
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
    assert (done.returncode, done.stderr) == (0, "")
    refused = "refused: signals need blinker: pip install 'pynamodb-mutex[signals]'\n"
    assert done.stdout.startswith("lost\n" + refused * 3)
    assert done.stdout.count("needs blinker: pip install 'pynamodb-mutex[signals]'") == 3


# -- clocks that disagree --------------------------------------------------------------------------


@pytest.fixture
def disagreements(caplog):
    """The signals, each with its sender and thread; the log must say the same."""
    found = []

    def hear(sender, **event):
        found.append((sender, event, threading.current_thread()))

    with signals.clocks_disagree.connected_to(hear):
        yield found
    records = caplog.get_records("call")
    said = [r.getMessage() for r in records if "contradict each other" in r.msg]
    assert len(said) == len(found)
    for (_, event, _), message in zip(found, said, strict=True):
        endpoint, answers, behind = (event[name] for name in ("endpoint", "answers", "behind"))
        which = f"the time, {answers} of them by up to {behind:.2f} s: if"
        assert message.startswith(f"answers of {endpoint} contradict each other about {which}")
        assert "a local clock that runs wrong, and a proxy that writes its own Date" in message


def shifted(seconds):
    """Answer as a host whose clock differs by so much, or a proxy that writes its own Date."""
    return net.set_date(
        lambda date: formatdate(mktime_tz(parsedate_tz(date)) + seconds, usegmt=True)
    )


@pytest.mark.parametrize("ahead", [20, -20])
def test_clocks_that_disagree_are_reported_once_a_minute(scene, disagreements, ahead):
    def ask(*faults):
        for fault in faults:
            time.sleep(0.01)
            scene.proxy.next(fault)
            scene.mutex().locked()

    ask(net.pass_on(), shifted(ahead), net.pass_on())
    until(lambda: disagreements)
    ((sender, event, thread),) = disagreements
    assert sender is scene.here
    about = {"endpoint": scene.proxy.url, "answers": 1, "key": "", "owner": "", "attributes": None}
    assert event == about | {"behind": pytest.approx(19.5, abs=0.5)}
    # a renewal may see it, too, and waits for no receiver
    assert thread is not threading.current_thread()
    # those of the next minute are counted
    ask(*[shifted(ahead), net.pass_on()] * 3)
    time.sleep(59.5)
    ask(net.pass_on())
    time.sleep(1)
    assert len(disagreements) == 1
    ask(net.pass_on())
    until(lambda: len(disagreements) == 2)
    assert disagreements[-1][1]["answers"] == 3
    time.sleep(61)
    ask(net.pass_on())


def test_renewal_reports_that_clocks_disagree(scene, disagreements):
    with scene.mutex(lease=30):
        scene.proxy.next(shifted(-20), op="renew")
        scene.proxy.wait(1, "renew")
        until(lambda: disagreements)


def test_hosts_that_agree_well_enough_are_not_reported(scene, disagreements):
    for _ in range(60):
        scene.proxy.next(net.set_date(lambda _: formatdate(time.time() - 0.08, usegmt=True)))
        with scene.mutex():
            time.sleep(0.37)
    assert not disagreements


@pytest.mark.real("embedded")
def test_clock_that_a_test_moves_accuses_nobody(scene, disagreements, monkeypatch):
    monkeypatch.setattr(local_clock(), "by_hand", False)  # an earlier test may have moved it
    with FakeClock() as clock:
        time.sleep(2.5)
        assert not scene.mutex().locked()
    # the real clock is ahead of the one that stood still
    assert not scene.mutex().locked()
    with FakeClock() as clock:
        clock.advance(3600)
        assert not scene.mutex().locked()
    assert not disagreements


@pytest.mark.real("embedded")
@pytest.mark.unmeasured
@pytest.mark.skipif(sys.platform == "win32", reason="stops a process by a signal")
def test_process_that_is_stopped_and_goes_on_accuses_nobody(table):
    worker = Worker()
    worker.send("compete('key', 8.0, 2.0)")
    for stopped in (0.2, 1.3, 2.4):
        time.sleep(0.8)
        worker.stop()
        time.sleep(stopped)
        worker.go_on()
    assert worker.answer()
    worker.send("from pynamodb_mutex._lock.runtime.process import current_process as process")
    worker.answer()
    # on a busy machine it may have had few answers so far
    while worker.ask("max(s.answered for s in process().server_times.values())") <= 20:
        worker.send("compete('key', 1.0, 2.0)")
        assert worker.answer()
    servers = worker.ask(
        "[(s.answered > 20, s.contradictions) for s in process().server_times.values()]"
    )
    worker.end()
    assert servers == [[True, 0]]
