"""I3: fencing tokens only grow, whatever ends a claim; those of new rows come from DynamoDB's time alone."""

import time

import pytest
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError, TransactWriteError
from pynamodb.transactions import TransactWrite
from sent_requests import DAY, NOW, another_process
from two_clients import Elsewhere

from dev.faultproxy import deny, drop_request, no_date, throttle
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import FakeClock, expire

HUGE = 2**63 - 10


def acquired(model=LockItem, **options):
    mutex = Mutex.for_key("k", model=model, **{"auto_renew": False, "timeout": 20, **options})
    assert mutex.acquire()
    return mutex


def next_token(model, key):
    lock = Mutex.for_key(key, model=model) if issubclass(model, LockItem) else model.locked(key)
    with lock:
        return lock.fencing_token


def test_token_grows_by_each_end_and_by_each_acquisition_and_not_by_a_renewal(table):
    dead = acquired()
    expire("k")
    broken = acquired(Elsewhere)
    assert broken.fencing_token > dead.fencing_token
    assert table.force_release("k")
    forced = table.get("k", consistent_read=True).version
    last = acquired()
    assert broken.fencing_token < forced < last.fencing_token
    last.renew()
    last.renew(60)
    before = last.fencing_token
    assert table.get("k", consistent_read=True).version == before
    last.release()
    assert acquired().fencing_token > before


def save_alone(row):
    row.save()


def save_in_transaction(row):
    meta = row.Meta
    connection = Connection(host=meta.host, max_retry_attempts=meta.max_retry_attempts)
    with TransactWrite(connection=connection) as transaction:
        transaction.save(row)


saves = pytest.mark.parametrize("save", [save_alone, save_in_transaction])


@saves
def test_first_save_of_a_process_takes_its_token_from_server_time(row_scene, save, monkeypatch):
    key = f"{row_scene.key}-new"
    with another_process(row_scene, NOW) as (first, _):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: NOW + DAY)
            save(first(key))
        before, of_existing_row = next_token(first, key), next_token(first, row_scene.key)
        first(key).delete()
    with another_process(row_scene, NOW + 2) as (second, _):
        save(second(key))
        assert next_token(second, key) > before
    with another_process(row_scene, NOW - DAY) as (third, _):
        save(third(row_scene.key))
        assert next_token(third, row_scene.key) > of_existing_row + 1


@saves
@pytest.mark.parametrize("fault", [deny, throttle, drop_request])
def test_first_save_needs_no_more_than_an_errors_answer_to_know_the_time(row_scene, save, fault):
    key = f"{row_scene.key}-new"
    with another_process(row_scene, NOW) as (client, dates):
        client.Meta.max_retry_attempts = 0  # else botocore asks again
        dates.proxy.always(fault(), op="GetItem")
        if fault is drop_request:
            with pytest.raises(PutError if save is save_alone else TransactWriteError):
                save(client(key))
            assert row_scene.there.count(key) == 0
            return
        save(client(key))
        assert len(dates.proxy.of("GetItem")) == 1
    assert NOW - 1 < next_token(row_scene.there, key) / 1000 < NOW + 1


def test_save_after_an_idle_hour_takes_no_token_ahead_of_server_time(row_scene):
    key = f"{row_scene.key}-new"
    with FakeClock() as clock, another_process(row_scene, NOW) as (first, dates):
        first(row_scene.key).save()
        clock.advance(3600)
        dates.now += 3600
        first(key).save()
        before = next_token(first, key)
        first(key).delete()
    with another_process(row_scene, NOW + 3602) as (second, _):
        assert NOW + 3600 < before / 1000 < NOW + 3602
        second(key).save()
        assert next_token(second, key) > before


def test_token_grows_over_deletions_of_the_row(scene, monkeypatch):
    """At one instant, and for a process whose wall clock is behind."""
    tokens = []
    for now, count in ((NOW, 3), (NOW + 2, 1)):
        with FakeClock(), another_process(scene, now) as (client, _):
            for _ in range(count):
                tokens.append(next_token(client, scene.key))
                scene.delete()
        monkeypatch.setattr(time, "time", lambda: NOW - 3600)
    assert tokens == sorted(set(tokens))


def of_group(model, key):
    with Mutex.for_keys([key], model=model) as mutexes:
        return mutexes.fencing_tokens[key]


@pytest.mark.parametrize("next_token", [next_token, of_group])
def test_huge_version_of_a_row_does_not_reach_another_row(scene, next_token):
    there = scene.there
    with another_process(scene, NOW) as (client, _):
        # another program has written the row
        actions = [there.version.set(HUGE), there.token.set("another's")]
        there._get_connection().update_item(scene.key, actions=actions)
        assert not Mutex.for_key(scene.key, model=client).locked()
        assert next_token(client, scene.key) == HUGE + 1
        assert NOW - 1 < next_token(client, f"{scene.key}-other") / 1000 < NOW + 600


def test_huge_version_of_a_row_does_not_reach_a_save_of_another_row(row_scene):
    other = f"{row_scene.key}-other"
    with another_process(row_scene, NOW) as (client, _):
        row_scene.set_claim(client.lock_version.set(HUGE))
        assert next_token(client, row_scene.key) == HUGE + 1
        client(other).save()
        assert NOW - 1 < next_token(client, other) / 1000 < NOW + 1


@pytest.mark.parametrize("next_token", [next_token, of_group])
def test_token_of_a_new_row_grows_although_the_first_answer_has_no_date(scene, next_token):
    with another_process(scene, NOW) as (client, _):
        before = next_token(client, scene.key)
    scene.delete()
    with another_process(scene, NOW + 2) as (client, dates):
        dates.proxy.next(no_date())
        assert next_token(client, scene.key) > before


@saves
def test_token_of_a_first_save_grows_although_the_first_answer_has_no_date(row_scene, save):
    key = f"{row_scene.key}-new"
    with another_process(row_scene, NOW) as (client, dates):
        dates.proxy.next(no_date())
        save(client(key))
    assert next_token(row_scene.there, key) / 1000 > NOW - 1


def test_without_a_date_tokens_of_a_new_row_start_from_one_and_grow(scene):
    tokens = []
    with scene.fresh() as fresh:
        fresh.proxy.always(no_date())
        for _ in range(3):
            with fresh.mutex() as mutex:
                tokens.append(mutex.fencing_token)
                assert scene.row.since is None
    assert tokens == [2, 3, 4]


def test_without_a_date_a_save_takes_the_next_token_of_an_existing_row(row_scene):
    before = next_token(row_scene.there, row_scene.key)
    with another_process(row_scene, NOW) as (client, dates):
        dates.proxy.always(no_date())
        client(row_scene.key).save()
        assert next_token(client, row_scene.key) == before + 2
