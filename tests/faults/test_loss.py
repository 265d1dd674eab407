"""I6: a loss is reported with its cause, in four ways, and nothing that hangs delays the report."""

import threading
import time
from contextlib import ExitStack, contextmanager
from email.utils import formatdate
from unittest.mock import ANY

import pytest
from hearing import OnLost, hearing, until
from scene import held

from dev.faultproxy import drop_request, set_date, stall, through
from pynamodb_mutex import LockItem, Mutex, MutexLostError
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock, held_elsewhere

CAUSES = list(Loss)
GENEROUS = 60.0
LONG = 100.0
"""Seconds for which an answer is waited for: longer than anything here waits for other reasons."""


@contextmanager
def broken(cause, table, proxy, key="k"):
    """Let a holder lose its lock in the store, or never reach it again."""
    with ExitStack() as stack:
        if cause is Loss.TAKEN:
            stack.enter_context(held_elsewhere(key, model=table))
        if cause is Loss.FORCED:
            assert table.force_release(key)  # not the holder's model: as from another process
        if cause is Loss.DELETED:
            table(key).delete(add_version_condition=False)
        if cause is Loss.UNREACHABLE:
            proxy.always(drop_request())
        yield


# -- the four ways ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_reported_in_each_of_the_four_ways(table, proxy, here, cause):
    on_lost = OnLost()
    max_hold = 0.01 if cause is Loss.EXPIRED else None
    mutex = Mutex.for_key("k", model=here, on_lost=on_lost, max_hold=max_hold)
    with FakeClock() as clock, pytest.raises(MutexLostError) as leaving, mutex:  # noqa: PT012 - the block is what is left
        with broken(cause, table, proxy):
            clock.advance(11)
            if cause is not Loss.EXPIRED:
                proxy.wait(1, "renew")
            if cause in {Loss.EXPIRED, Loss.UNREACHABLE}:
                clock.advance(20)
            lock, loss, thread, _ = on_lost.wait()
        assert (lock, loss) == (mutex, cause)
        assert thread is not threading.current_thread()
        assert mutex.lost
        assert mutex.loss is cause
        assert not mutex.held
        with pytest.raises(MutexLostError) as asking:
            mutex.ensure_held()
        assert asking.value.loss is cause
    assert leaving.value.loss is cause
    assert leaving.value.key == "k"
    assert len(on_lost.calls) == 1


IN_THE_STORE = [Loss.TAKEN, Loss.FORCED, Loss.DELETED]


@pytest.mark.parametrize("cause", IN_THE_STORE)
def test_leaving_a_clean_block_finds_a_loss_that_was_not_reported(table, proxy, here, cause):
    mutex = Mutex.for_key("k", model=here, auto_renew=False)
    with ExitStack() as others:
        with pytest.raises(MutexLostError) as leaving, mutex:  # noqa: PT012 - as above
            others.enter_context(broken(cause, table, proxy))
            assert mutex.held
        assert leaving.value.loss is cause
        assert mutex.loss is cause
        assert leaving.value.owner == ("elsewhere" if cause is Loss.TAKEN else None)


@pytest.mark.parametrize("cause", CAUSES)
def test_loss_never_replaces_what_the_body_raised(table, proxy, here, cause):
    class OwnError(Exception):
        pass

    def body():
        others.enter_context(broken(cause, table, proxy))
        if cause is Loss.EXPIRED:
            time.sleep(1.0)
        raise OwnError

    mutex = Mutex.for_key("k", model=here, lease=1.0, auto_renew=False)
    with ExitStack() as others, pytest.raises(OwnError), mutex:
        body()


def test_end_of_the_lease_is_reported_without_background_renewal(table):
    on_lost = OnLost()
    with FakeClock() as clock:
        mutex = held(Mutex.for_key("k", auto_renew=False, on_lost=on_lost))
        clock.advance(29)
        assert mutex.held
        assert not on_lost.came.acquire(timeout=0.2)
        clock.advance(0.8)
        assert not mutex.held  # asked first, before any thread could report it
        lock, loss, thread, _ = on_lost.wait()
        assert (lock, loss) == (mutex, Loss.EXPIRED)
        assert thread is not threading.current_thread()
        with pytest.raises(MutexLostError):
            mutex.ensure_held()


def test_on_lost_comes_in_time_when_an_answer_brought_the_end_nearer(table, proxy, here):
    on_lost, date = OnLost(), time.time()
    proxy.always(set_date(lambda _: formatdate(date, usegmt=True)))
    with FakeClock() as clock:
        mutex = held(Mutex.for_key("k", model=here, lease=3.0, auto_renew=False, on_lost=on_lost))
        assert mutex.remaining > 2.9
        date += 1  # the first answers came at the end of a second
        assert not Mutex.for_key("another", model=here).locked()
        assert 2 < mutex.remaining < 2.5
        clock.advance(mutex.remaining + 0.001)
        assert not mutex.held
        on_lost.wait()


def test_loss_that_a_guarded_write_finds_is_reported_without_background_renewal(table, here):
    on_lost = OnLost()
    mutex = held(Mutex.for_key("k", model=here, auto_renew=False, on_lost=on_lost))
    with held_elsewhere("k"), pytest.raises(MutexLostError):
        mutex.save_data("late")
    assert on_lost.wait()[:2] == (mutex, Loss.TAKEN)


def test_force_in_the_same_process_is_reported_at_once(table):
    on_lost = OnLost()
    mutex = held(Mutex.for_key("k", auto_renew=False, on_lost=on_lost))
    with hearing("k") as heard:
        assert LockItem.force_release("k")
        assert not mutex.held
        assert on_lost.wait()[:2] == (mutex, Loss.FORCED)
        assert heard.the("lost")["loss"] is Loss.FORCED


def test_nothing_is_reported_of_a_lock_that_was_released(table):
    on_lost = OnLost()
    with FakeClock() as clock:
        with Mutex.for_key("k", on_lost=on_lost) as mutex:
            pass
        clock.advance(100)
        assert not mutex.lost
        assert not on_lost.came.acquire(timeout=0.2)


def test_ensure_held_shows_a_loss_that_its_renewal_finds(table, proxy, here):
    mutex = held(Mutex.for_key("k", model=here, auto_renew=False))
    mutex.ensure_held(5)
    assert proxy.of("renew") == []
    with held_elsewhere("k"), pytest.raises(MutexLostError) as caught:
        mutex.ensure_held(29.9)
    assert caught.value.loss is Loss.TAKEN


# -- what hangs ------------------------------------------------------------------------------------


def test_renewals_that_hang_do_not_delay_the_report_beyond_the_local_end(table, proxy):
    on_lost = OnLost()
    proxy.always(stall(), op="renew")
    here = through(proxy, table, read_timeout=LONG)
    with FakeClock() as clock:
        mutex = held(Mutex.for_key("k", model=here, on_lost=on_lost))
        clock.advance(11)
        proxy.wait(1, "renew")
        clock.advance(mutex.remaining - 0.01)
        assert mutex.held
        clock.advance(0.02)
        assert on_lost.wait()[1:] == (Loss.UNREACHABLE, ANY, clock.now())
        assert not mutex.held


def key_is(key):
    return lambda body: body["Key"]["key"]["S"] == key


def test_hanging_renewal_delays_neither_renewal_nor_loss_of_another_lock(table, proxy):
    on_lost = OnLost()
    proxy.always(stall(), op="renew", when=key_is("hangs"))
    here = through(proxy, table, read_timeout=LONG)
    hangs = Mutex.for_key("hangs", model=here)
    lives = Mutex.for_key("lives", model=here)
    dies = Mutex.for_key("dies", model=here, on_lost=on_lost)
    with FakeClock() as clock:
        for mutex in (hangs, lives, dies):
            assert mutex.acquire()
        clock.advance(11)
        proxy.wait(3, "renew")
        until(lambda: min(lives.remaining, dies.remaining) > 25)
        table("dies").delete(add_version_condition=False)
        clock.advance(11)
        assert on_lost.wait()[1] is Loss.DELETED
        until(lambda: lives.remaining > 25)
        clock.advance(9)
        assert hangs.lost
        assert lives.held


def test_on_lost_that_blocks_or_raises_hurts_nothing(table, caplog):
    blocks, on_lost = threading.Event(), OnLost()

    def fail(_):
        raise ZeroDivisionError

    with FakeClock() as clock:
        lives = held(Mutex.for_key("lives"))
        for name, callback in (
            ("blocks", lambda _: blocks.wait(GENEROUS)),
            ("fails", fail),
            ("dies", on_lost),
        ):
            held(Mutex.for_key(name, max_hold=0.01, on_lost=callback))
        for _ in range(2):
            clock.advance(11)
            until(lambda: lives.remaining > 25)
        clock.advance(9)
        assert on_lost.wait()[1] is Loss.EXPIRED
        until(lambda: "on_lost of 'fails' failed" in caplog.text)
        clock.advance(2)
        until(lambda: lives.remaining > 25)
        blocks.set()
        lives.release()


# -- ends of renewal, and winning back -------------------------------------------------------------


def test_max_hold_ends_renewal_and_then_the_lock_is_free(table, proxy, here, caplog):
    on_lost = OnLost()
    with FakeClock() as clock:
        mutex = held(Mutex.for_key("k", model=here, max_hold=25, on_lost=on_lost))
        for count in (1, 2):  # each third of the lease
            clock.advance(10.1)
            proxy.wait(count, "renew")
            until(lambda: mutex.remaining > 25)
        clock.advance(10.1)
        until(lambda: mutex._latest.together.ended_by_max_hold)
        assert mutex.held
        clock.advance(20)
        assert on_lost.wait()[1] is Loss.EXPIRED
        assert len(proxy.of("renew")) == 2
        # nobody shall suspect a slow network
        assert "lost by" in caplog.text
        assert "its lease ended, for it was held for longer than max_hold, 25 s" in caplog.text
        assert "held for longer than max_hold, 25 s" in repr(mutex)
        with pytest.raises(MutexLostError, match="held for longer than max_hold, 25 s"):
            mutex.release()


def test_renew_wins_back_a_lease_that_ended_if_nobody_took_it(table):
    on_lost = OnLost()
    with FakeClock() as clock:
        mutex = held(Mutex.for_key("k", auto_renew=False, on_lost=on_lost))
        fence = mutex.fencing_token
        for losses in (1, 2):
            clock.advance(31)
            on_lost.wait()
            assert mutex.lost
            assert not mutex.held
            mutex.renew()
            assert mutex.held
            assert not mutex.lost
            assert len(on_lost.calls) == losses  # the next loss is reported again
        assert mutex.fencing_token == fence
        mutex.release()
        assert table.get("k", consistent_read=True).expires_at is None


@pytest.mark.parametrize("cause", IN_THE_STORE)
def test_renew_does_not_win_back_what_is_gone(table, proxy, here, cause):
    on_lost = OnLost()
    with FakeClock() as clock:
        mutex = held(Mutex.for_key("k", model=here, auto_renew=False, on_lost=on_lost))
        clock.advance(31)
        assert on_lost.wait()[1] is Loss.EXPIRED
        with broken(cause, table, proxy):
            for _ in range(2):
                with pytest.raises(MutexLostError) as caught:
                    mutex.renew()
                assert caught.value.loss is cause
            assert not mutex.held
        assert not on_lost.came.acquire(timeout=0.2)  # it was reported already
