"""What the library offers for its users' own tests: clock, foreign claims, engines, fixtures."""

import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from pynamodb.exceptions import UpdateError
from pynamodb.models import Model
from this_process import current_process
from two_clients import held
from waits import until

from dev.faultproxy import after
from pynamodb_mutex import LockItem, Loss, Mutex, exceptions
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex._lock.runtime.run_on_thread import ThreadSleeper
from pynamodb_mutex.testing import Engine, FakeClock, expire, held_elsewhere, use

real = pytest.mark.real("embedded")


def test_fake_clock_stands_until_it_is_moved_and_clocks_nest():
    with FakeClock() as clock:
        start = local_clock().now()
        time.sleep(0.02)
        assert local_clock().now() == start
        clock.advance(1e6)
        assert local_clock().now() == start + 1e6
        with FakeClock() as inner:
            assert local_clock() is inner
        assert local_clock() is clock
    assert local_clock() is not clock
    assert local_clock().now() < start + 1e6
    # a thread may have asked for it just before; and it may be used again
    with clock:
        assert local_clock().now() == start + 1e6


def asleep(pool, clock, end):
    """Let a thread sleep; return its outcome, and what wakes it."""
    sleeper = ThreadSleeper()
    sleeping = pool.submit(sleeper.sleep, end)
    # a thread that renews a lock which another test did not release may wait for this clock, too
    until(lambda: sleeper._asleep in [lock for _, lock in clock._waiting])
    return sleeping, sleeper.wake


def test_sleeper_wakes_at_its_time_when_it_is_woken_and_at_the_end_of_the_clock():
    with ThreadPoolExecutor() as pool:
        with FakeClock() as clock:
            need_not = ThreadSleeper()
            need_not.sleep(clock.now())
            need_not.wake()
            need_not.sleep(math.inf)
            timed, _ = asleep(pool, clock, clock.now() + 10)
            woken, wake = asleep(pool, clock, math.inf)
            forever, _ = asleep(pool, clock, math.inf)
            clock.advance(9)
            time.sleep(0.05)
            assert not timed.done()
            clock.advance(1)
            timed.result(60)
            wake()
            woken.result(60)
            clock.advance(1e6)
            time.sleep(0.05)
            assert not forever.done()
        forever.result(60)


def test_sleeper_does_not_oversleep_when_the_clock_is_moved_as_it_falls_asleep(monkeypatch):
    with ThreadPoolExecutor(thread_name_prefix="sleeper") as pool, FakeClock() as clock:
        now = clock.now
        end = now() + 5

        def read_and_move():
            read = now()
            # others that read the clock, of locks that another test left, would move it past the end
            if threading.current_thread().name.startswith("sleeper"):
                clock.advance(1)
            return read

        monkeypatch.setattr(clock, "now", read_and_move)
        sleeping, _ = asleep(pool, clock, end)
        clock.advance(end - now())
        sleeping.result(60)


@real
def test_leases_renewals_and_waits_go_by_the_fake_clock(table, fake_clock):
    with Mutex.for_key("a", lease=600, auto_renew=False) as mutex:
        fake_clock.advance(300)
        mutex.renew()
        fake_clock.advance(300)
        assert mutex.held
        fake_clock.advance(301)
        assert (mutex.held, mutex.loss) == (False, Loss.EXPIRED)
        mutex.renew()
    with Mutex.for_key("a", lease=3000) as mutex:
        end = table.get("a").expires_at
        for _ in range(12):
            fake_clock.advance(1000)
            until(lambda: mutex.remaining > 2500)
        assert mutex.held
        # the engine's own time went on for real
        assert table.get("a").expires_at < end + 6000
    # no lease that ends before the clock, which is moved as long as an answer takes
    with held_elsewhere("a", lease=1e8), ThreadPoolExecutor() as pool:
        waiting = pool.submit(Mutex.for_key("a").acquire, timeout=3600)
        until(lambda: fake_clock._waiting)
        time.sleep(0.1)
        assert not waiting.done()
        until(lambda: fake_clock.advance(60) or waiting.done())
        assert waiting.result(60) is False


@pytest.mark.real
def test_held_elsewhere_is_held_as_if_by_another_process(table):
    mutex = Mutex.for_key("a", timeout=0, data={"page": 1})
    held(mutex).release()
    with held_elsewhere("a", owner="cron", lease=12) as item:
        assert (item.key, item.owner, item.is_held) == ("a", "cron", True)
        assert item.lease == pytest.approx(12, abs=0.01)
        assert item.data == {"page": 1}
        assert mutex.locked()
        with pytest.raises(exceptions.MutexTimeoutError, match="cron"):
            mutex.__enter__()
        assert table.get("a").attribute_values == item.attribute_values
    assert not mutex.locked()
    with mutex:
        assert (mutex.fencing_token, mutex.abandoned) == (item.version + 1, False)
        with held_elsewhere("a") as item:
            assert item.version > mutex.fencing_token
            assert not mutex.held
            with pytest.raises(exceptions.MutexLostError):
                mutex.release()
        held(mutex)


def test_held_elsewhere_says_when_somebody_was_faster(here, proxy):
    fast = Mutex.for_key("a")
    proxy.next(after(fast.acquire), op="acquire")
    with pytest.raises(exceptions.MutexTimeoutError, match="'a' was taken before"):
        held_elsewhere("a", model=here).__enter__()
    assert fast.held


def test_held_elsewhere_frees_the_key_whatever_the_test_does(table):
    with held_elsewhere("a"):
        table.force_release("a")
    with pytest.raises(LookupError), held_elsewhere("a"):
        raise LookupError
    assert not Mutex.for_key("a").locked()
    with held_elsewhere("b"):
        expire("b")
        with Mutex.for_key("b") as mutex:
            assert mutex.abandoned_by == "elsewhere"
    with held_elsewhere("c") as item:
        item.delete(add_version_condition=False)
    with held_elsewhere("d"):
        expire("d")
        next_holder = held(Mutex.for_key("d"))
    assert next_holder.locked()


@pytest.mark.real
def test_expire_lets_the_next_one_in_at_once(table):
    with held_elsewhere("a", lease=3600, owner="dead"):
        before = table.get("a")
        expire("a")
        after = table.get("a")
        assert after.expires_at < before.expires_at
        after.expires_at = before.expires_at
        assert after.attribute_values == before.attribute_values
        assert held(Mutex.for_key("a", timeout=0)).abandoned_by == "dead"


def test_expire_needs_somebody_who_holds_it(table):
    held(Mutex.for_key("free")).release()
    for key in ("unknown", "free"):
        with pytest.raises(UpdateError):
            expire(key)
    assert [(item.key, item.is_held) for item in table.scan()] == [("free", False)]
    for wrong in ("", 7):
        for call in (expire, lambda key: held_elsewhere(key).__enter__()):
            with pytest.raises(exceptions.InvalidKeyError):
                call(wrong)


def test_expire_and_held_elsewhere_take_rows(model):
    with held_elsewhere("a", model=model, owner="worker-7", lease=5) as row:
        assert isinstance(row, model)
        assert row.balance == 0
        assert not model.locked("a").acquire(blocking=False)
        with pytest.raises(exceptions.RowLockedError, match="worker-7"):
            model("a").save()
    lock = model.locked("a", timeout=0, auto_renew=False, owner="worker-7")
    with (
        pytest.raises(exceptions.MutexLostError) as raised,
        lock as row,
        held_elsewhere("a", model=model),
    ):
        row.save()
    assert raised.value.loss is Loss.FORCED
    with pytest.raises(UpdateError):
        expire("a", model)  # nobody holds it
    assert lock.acquire()
    expire("a", model)
    with model.locked("a", timeout=0) as taken:
        assert taken.row_lock.abandoned_by == "worker-7"
    with pytest.raises(exceptions.MutexLostError):
        lock.row.save()
    for call in (expire, held_elsewhere):
        with pytest.raises(TypeError, match="RowLockMixin"):
            call("a", model=Model)


@real
def test_use_forgets_what_was_known_of_another_endpoint(engine, table):
    nowhere = Engine("external", "http://127.0.0.1:9")
    with Mutex.for_key("a") as mutex:
        before = current_process()
        with use(nowhere) as used:
            assert used is nowhere
            assert os.environ["AWS_ENDPOINT_URL_DYNAMODB"] == nowhere.endpoint_url
            assert current_process() is not before
            assert not mutex.held
            client = LockItem._get_connection().connection.client
            assert client.meta.endpoint_url == nowhere.endpoint_url
        assert os.environ["AWS_ENDPOINT_URL_DYNAMODB"] == engine.endpoint_url
        LockItem.force_release("a")
        mutex.acquire()
    assert not Mutex.for_key("a").locked()


SUITE = """
import os
import pytest
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex.testing import FakeClock, held_elsewhere

UNRELEASED = []


@pytest.fixture
def dynamodb():
    raise AssertionError("another plugin's, such as pytest-dynamodb's")


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_table(mutex_dynamodb, lock_table, turn):
    assert mutex_dynamodb.name == "embedded"
    assert os.environ["AWS_ENDPOINT_URL_DYNAMODB"] == mutex_dynamodb.endpoint_url
    assert lock_table is LockItem
    assert lock_table.Meta.table_name == "mine"
    assert lock_table._get_connection().describe_table()["TableName"] == "mine"
    assert list(LockItem.scan()) == []
    UNRELEASED.append(Mutex.for_key("never released"))
    UNRELEASED[-1].acquire()


def test_without_a_table(lock_table):
    with held_elsewhere("a"):
        lock_table.delete_table(wait=True)


def test_clock(lock_table, fake_clock):
    assert local_clock() is fake_clock
    with Mutex.for_key("a", lease=10, auto_renew=False) as mutex:
        fake_clock.advance(11)
        assert not mutex.held
        mutex.renew()


def test_clock_is_real_again():
    assert not isinstance(local_clock(), FakeClock)
    assert "AWS_ENDPOINT_URL_DYNAMODB" in os.environ
"""
# the plugin has imported the package by then
CONFTEST = """
import os, sys
assert "pynamodb_mutex.models" in sys.modules
os.environ["PYNAMODB_MUTEX_TABLE"] = "mine"
"""
UNUSED = """
import sys, threading


def test_light():
    ours = {name for name in sys.modules if name.startswith("pynamodb_mutex.testing")}
    assert ours == {"pynamodb_mutex.testing", "pynamodb_mutex.testing.fixtures"}
    assert threading.active_count() == 1
    from pynamodb_mutex.testing import engines
    assert {"moto", "waitress", "flask"}.isdisjoint(sys.modules)
"""


@pytest.mark.parametrize(
    ("suite", "conftest", "passed"), [(SUITE, CONFTEST, "5 passed"), (UNUSED, "", "1 passed")]
)
def test_plugin_is_there_as_soon_as_the_package_is_installed(tmp_path, suite, conftest, passed):
    """A conftest can name the table. Unused, the plugin starts nothing and loads little."""
    (tmp_path / "test_theirs.py").write_text(suite)
    (tmp_path / "conftest.py").write_text(conftest)
    # hypothesis takes longer to load than all the rest
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest"]
    command += ["-W", "error", "-W", "ignore:unclosed <socket:ResourceWarning"]
    ours = ("AWS_", "PYNAMODB_MUTEX_TABLE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    run = subprocess.run
    done = run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert passed in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
