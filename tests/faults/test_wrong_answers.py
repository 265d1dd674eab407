"""I8: answers that hang, that come without a Date, or that are not DynamoDB's, never mean "held"."""

import time

import pytest
from driving import acquiring
from hearing import until
from pynamodb.exceptions import UpdateError

from dev.faultproxy import Fault, after, no_date, page, set_date, stall, through
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.testing import FakeClock

# -- answers that hang -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "apply"),
    [
        ("acquire", False),
        ("acquire", True),
        ("renew", True),
        ("save_data", True),
        ("release", True),
    ],
)
def test_request_that_hangs_is_repeated(scene, kind, apply):
    with scene.fresh(read_timeout=2) as hasty:
        hasty.proxy.next(stall(apply=apply), op=kind)
        with hasty.mutex(timeout=60) as mutex:
            mutex.renew()
            mutex.save_data("mine")
            assert mutex.held
            assert scene.row.token == mutex.token
        # more than twice if another answer took as long
        assert hasty.proxy.kinds().count(kind) >= 2
        assert (scene.row.expires_at, scene.row.data) == (None, "mine")


@pytest.mark.parametrize("apply", [False, True])
def test_acquire_that_hangs_to_the_end_is_not_held(scene, apply):
    with scene.fresh(read_timeout=2) as hasty:
        hasty.proxy.always(stall(apply=apply), op="acquire")
        mutex = hasty.mutex()
        with pytest.raises(UpdateError):
            mutex.acquire(timeout=0.1)
        assert not mutex.held
        assert hasty.applied("disown") == [apply]
        assert scene.gone or scene.row.expires_at is None


def test_renewal_that_hangs_does_not_delay_its_successor(scene):
    # it hangs for longer than the lease: one that was waited for would lose the lock
    with scene.fresh() as patient, FakeClock() as clock, patient.mutex() as mutex:
        patient.proxy.next(stall(), op="renew")
        clock.advance(11)
        patient.proxy.wait(1, "renew")
        assert mutex.remaining < 20
        for _ in range(3):
            clock.advance(10.5)
            until(lambda: mutex.remaining > 25)


# -- no Date ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dateless", ["holder", "taker", "both"])
def test_without_date_a_dead_lock_is_taken_after_it_was_watched_for_its_lease(scene, dateless):
    with scene.fresh() as a, scene.fresh() as b:
        if dateless != "taker":
            a.proxy.always(no_date())
        if dateless != "holder":
            b.proxy.always(no_date())
        dead = a.mutex(lease=0.6, auto_renew=False, owner="dead")
        dead.acquire()
        started = local_clock().now()
        taker = b.mutex()
        assert not taker.acquire(blocking=False)
        assert taker.acquire(timeout=60)
        assert not dead.held
        # its first poll came after that, and the watch lasts as long as the lease
        assert local_clock().now() - started >= 0.6
        assert taker.abandoned_by == "dead"
        assert taker.fencing_token == dead.fencing_token + 1


def test_without_date_a_claim_that_changes_is_watched_anew(scene):
    with scene.fresh() as a, scene.fresh() as b:
        a.proxy.always(no_date())
        b.proxy.always(no_date())
        with FakeClock() as clock:
            holder = a.mutex(lease=30, auto_renew=False)
            holder.acquire()
            waiter = acquiring(b.mutex(), True, 100)
            assert waiter.until_it_waits()
            clock.advance(20)
            holder.renew()
            for seconds in (0, 30):
                clock.advance(seconds)
                waiter.step()
                assert waiter.until_it_waits()
            clock.advance(3)
            waiter.step()
            assert waiter.until_it_waits() is None
            assert waiter.result is not None
            assert not holder.held


@pytest.mark.parametrize("date", ["", "yesterday", "0", "Sun, 99 Foo 2026 99:99:99 GMT"])
def test_date_that_cannot_be_read_is_none(scene, date):
    with scene.fresh() as odd:
        odd.proxy.always(set_date(lambda _: date))
        with odd.mutex() as mutex:
            mutex.renew()
            assert mutex.held
            assert not scene.other().acquire(blocking=False)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="needs time zones of processes")
@pytest.mark.parametrize("zone", ["-0000", "+0000", "GMT", ""])
def test_date_is_that_of_utc_whatever_the_zone_here(scene, zone, monkeypatch):
    # "-0000" says that nothing is known of the sender's zone; this process's is another matter
    monkeypatch.setenv("TZ", "XXX-5")
    time.tzset()
    try:
        with scene.fresh() as far:
            far.proxy.always(set_date(lambda date: date.replace("GMT", zone)))
            with far.mutex(lease=60):
                assert 55 < scene.row.expires_at - time.time() < 65
                assert not scene.other().acquire(blocking=False)
    finally:
        monkeypatch.undo()
        time.tzset()


# -- answers that are not DynamoDB's ---------------------------------------------------------------


def test_date_of_a_wrong_answer_is_not_dynamodbs(scene):
    # believed, it would show the holder's lease long over
    scene.taken()
    with scene.fresh() as first:
        ahead = "Fri, 31 Dec 2049 00:00:00 GMT"
        first.proxy.next(page(502, date=ahead), op="GetItem")
        mutex = first.mutex()
        assert not mutex.acquire(blocking=False)
        first.proxy.next(page(502, date=ahead), op="acquire")
        assert not mutex.acquire(timeout=3)


@pytest.mark.real("embedded")
def test_answer_that_breaks_off_is_no_answer(scene):
    scene.proxy.next(broken_off(), op="acquire")
    with scene.mutex(timeout=30) as mutex:
        assert scene.row.token == mutex.token
    assert scene.applied("acquire") == [True, False]


def broken_off():
    """Half of the answer, then a reset."""

    def meet(exchange):
        reply = exchange.apply("broken_off")
        handler = exchange._handler
        length = str(len(reply.content)).encode()
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n")
        handler.wfile.write(reply.content[: len(reply.content) // 2])
        handler.wfile.flush()
        exchange.reset()

    return Fault("broken_off", meet)


def test_second_client_sees_only_what_dynamodb_did(scene):
    # a page in place of the answer, while another takes the lock before the repeat
    others = []
    wrong = page(200, apply=True)
    scene.proxy.next(wrong, op="acquire")
    scene.proxy.next(after(lambda: others.append(scene.forced_and_taken())), op="acquire")
    mutex = scene.mutex()
    assert not mutex.acquire(timeout=3)
    assert not mutex.held
    assert others[0].held
    assert through(scene.proxy, scene.there).get(scene.key).owner == "other"
    others[0].release()


@pytest.mark.real("embedded")
def test_bug_in_a_hook_of_the_caller_is_not_taken_for_a_wrong_answer(scene):
    met = []

    def hook(**_):
        met.append(True)
        raise TypeError("a bug of the caller's")

    with scene.fresh() as hooked, hooked.mutex() as mutex:
        events = current_process().store(hooked.here).connection.pynamodb.client.meta.events
        events.register("before-send.dynamodb", hook)
        with pytest.raises(TypeError, match="a bug of the caller's"):
            mutex.renew()
        events.unregister("before-send.dynamodb", hook)
        assert met == [True]
        assert mutex.held
