"""I3: fencing tokens only grow, whatever ends a claim."""

import threading
import time

import pytest
from hearing import until
from worker import workers

from dev.faultproxy import fault_proxy, through
from pynamodb_mutex import LockItem, Mutex, MutexError
from pynamodb_mutex.testing import expire


def another_client(table):
    """Return a model whose mutexes are like those of another process."""

    class Client(table):
        class Meta(table.Meta):
            table_name = table.Meta.table_name

    return Client


def held(model=LockItem, **options):
    mutex = Mutex.for_key("k", model=model, **{"auto_renew": False, "timeout": 20, **options})
    assert mutex.acquire()
    return mutex


def stored(table):
    return table.get("k", consistent_read=True)


def test_each_acquisition_has_a_greater_one(table):
    clients = [table, another_client(table), another_client(table)]
    tokens = []
    for i in range(9):
        with Mutex.for_key("k", model=clients[i % 3]) as mutex:
            tokens.append(mutex.fencing_token)
            assert stored(table).version == mutex.fencing_token
    assert tokens == sorted(set(tokens))


def test_who_takes_over_from_a_dead_holder_has_a_greater_one(table):
    dead = held()
    expire("k")
    assert held(another_client(table)).fencing_token > dead.fencing_token


def test_force_makes_it_grow_and_so_does_the_next_acquisition(table):
    broken = held(another_client(table))
    assert table.force_release("k")
    forced = stored(table).version
    assert broken.fencing_token < forced < held().fencing_token


def test_a_hand_over_makes_it_grow(engine, table):
    with fault_proxy(engine) as proxy:
        client = through(proxy, table)
        first, then = held(client), []
        waiter = threading.Thread(target=lambda: then.append(held(client).fencing_token))
        waiter.start()
        until(lambda: first._latest.contender.queue.turns)
        first.release()
        waiter.join(60)
        assert proxy.kinds() == ["GetItem", "acquire", "hand_over"]
    assert then[0] > first.fencing_token


def test_a_renewal_leaves_it_as_it_is(table):
    mutex = held()
    before = mutex.fencing_token
    mutex.renew()
    mutex.renew(60)
    assert mutex.fencing_token == stored(table).version == before


@pytest.mark.real
def test_it_grows_over_the_deletion_of_its_row_even_for_a_wall_clock_that_is_behind(table):
    """As TTL deletes it, days after the release."""
    with workers(-3600.0) as (other,):
        first = held()
        first.release()
        table("k").delete(add_version_condition=False)
        time.sleep(1.1)  # server time is known to a second
        other.ask("m = Mutex.for_key('k')")
        assert other.ask("m.acquire(timeout=20)")
        second = other.ask("m.fencing_token")
        assert second > first.fencing_token
        other.ask("m.release()")
        assert held().fencing_token > second


def test_it_grows_in_the_order_in_which_competitors_hold_the_lock(table):
    tokens = []

    def compete(model):
        for _ in range(8):
            with Mutex.for_key("k", model=model, poll=(0.005, 0.02)) as mutex:
                tokens.append(mutex.fencing_token)

    threads = [
        threading.Thread(target=compete, args=(model,))
        for model in [table, table, another_client(table), another_client(table)]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tokens) == 32
    assert tokens == sorted(set(tokens))


def test_there_is_none_where_the_row_is_deleted_at_release(table):
    mutex = held(delete_on_release=True)
    with pytest.raises(MutexError, match="delete_on_release"):
        _ = mutex.fencing_token
    mutex.release()
    with pytest.raises(table.DoesNotExist):
        stored(table)
