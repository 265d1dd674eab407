"""The fencing tokens of new rows: from DynamoDB's time, and from nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

import pytest
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError, TransactWriteError
from pynamodb.transactions import TransactWrite
from row_scene import Account, RowScene
from scene import Scene

from dev.faultproxy import (
    Fault,
    FaultProxy,
    deny,
    drop_request,
    fault_proxy,
    no_date,
    set_date,
    throttle,
    through,
)
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import FakeClock

DAY = 86_400.0
NOW = 1_800_000_000.0
HUGE = 2**63 - 10


def shows(proxy: FaultProxy, server_time: float) -> None:
    """Let all answers show a server time."""
    proxy.clear()
    proxy.always(set_date(lambda _: formatdate(server_time, usegmt=True)))


@contextmanager
def another_process(
    scene: Scene | RowScene, server_time: float
) -> Iterator[tuple[Any, FaultProxy]]:
    """Make a client that has had no answer yet, to whom all answers show a server time."""
    with fault_proxy(scene.engine) as proxy:
        shows(proxy, server_time)
        yield through(proxy, scene.there), proxy


def save_alone(row: Account) -> None:
    row.save()


def save_in_transaction(row: Account) -> None:
    meta = row.Meta
    connection = Connection(host=meta.host, max_retry_attempts=meta.max_retry_attempts)
    with TransactWrite(connection=connection) as transaction:
        transaction.save(row)


def next_token(model: type[Account], key: str) -> int:
    with model.locked(key) as row:
        return row.row_lock.fencing_token


saves = pytest.mark.parametrize("save", [save_alone, save_in_transaction])
Save = Callable[[Account], None]


@saves
def test_first_save_of_a_process_takes_no_token_from_the_wall_clock(
    row_scene: RowScene, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"{row_scene.key}-new"
    with another_process(row_scene, NOW) as (first, _):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: NOW + DAY)
            save(first(key))
        before = next_token(first, key)
        first(key).delete()
    with another_process(row_scene, NOW + 2) as (second, _):
        save(second(key))
        assert next_token(second, key) > before


@saves
@pytest.mark.parametrize("fault", [deny, throttle])
def test_first_save_needs_no_more_than_an_errors_answer_to_know_the_time(
    row_scene: RowScene, save: Save, fault: Callable[[], Fault]
) -> None:
    key = f"{row_scene.key}-new"
    with another_process(row_scene, NOW) as (client, proxy):
        client.Meta.max_retry_attempts = 0  # else botocore asks again
        proxy.always(fault(), op="GetItem")
        save(client(key))
        assert len(proxy.of("GetItem")) == 1
    assert NOW - 1 < next_token(row_scene.there, key) / 1000 < NOW + 1


@saves
def test_first_save_without_any_answer_fails(row_scene: RowScene, save: Save) -> None:
    key = f"{row_scene.key}-new"
    with another_process(row_scene, NOW) as (client, proxy):
        proxy.always(drop_request(), op="GetItem")
        with pytest.raises(PutError if save is save_alone else TransactWriteError):
            save(client(key))
    assert row_scene.there.count(key) == 0


@saves
def test_first_save_of_a_process_takes_the_next_token_of_an_existing_row(
    row_scene: RowScene, save: Save
) -> None:
    with another_process(row_scene, NOW) as (first, _):
        before = next_token(first, row_scene.key)
    with another_process(row_scene, NOW - DAY) as (second, _):
        save(second(row_scene.key))
        assert next_token(second, row_scene.key) > before + 1


def test_save_after_an_idle_hour_takes_no_token_ahead_of_server_time(row_scene: RowScene) -> None:
    key = f"{row_scene.key}-new"
    with FakeClock() as clock, another_process(row_scene, NOW) as (first, proxy):
        first(row_scene.key).save()
        clock.advance(3600)
        shows(proxy, NOW + 3600)
        first(key).save()
        before = next_token(first, key)
        first(key).delete()
    with another_process(row_scene, NOW + 3602) as (second, _):
        assert NOW + 3600 < before / 1000 < NOW + 3602
        second(key).save()
        assert next_token(second, key) > before


def test_lock_of_a_row_made_anew_has_a_greater_token(scene: Scene) -> None:
    with (
        another_process(scene, NOW) as (first, _),
        Mutex.for_key(scene.key, model=first) as mutex,
    ):
        before = mutex.fencing_token
    scene.delete()
    with (
        another_process(scene, NOW + 2) as (second, _),
        Mutex.for_key(scene.key, model=second) as mutex,
    ):
        assert mutex.fencing_token > before


def test_locks_of_one_instant_have_growing_tokens(scene: Scene) -> None:
    tokens = []
    with FakeClock(), another_process(scene, NOW) as (client, _):
        for _ in range(3):
            with Mutex.for_key(scene.key, model=client) as mutex:
                tokens.append(mutex.fencing_token)
            scene.delete()
    assert tokens == sorted(set(tokens))


# -- other rows ------------------------------------------------------------------------------------


def take(model: type[LockItem], key: str) -> int:
    with Mutex.for_key(key, model=model) as mutex:
        return mutex.fencing_token


def take_together(model: type[LockItem], key: str) -> int:
    with Mutex.for_keys([key], model=model) as mutexes:
        return mutexes.fencing_tokens[key]


def set_version(scene: Scene, version: int) -> None:
    """Let another program have written the row of the scene's key."""
    there = scene.there
    actions = [there.version.set(version), there.token.set("another's")]
    there._get_connection().update_item(scene.key, actions=actions)


@pytest.mark.parametrize("locks", [take, take_together])
def test_huge_version_of_a_row_does_not_reach_another_row(
    scene: Scene, locks: Callable[[type[LockItem], str], int]
) -> None:
    other = f"{scene.key}-other"
    with another_process(scene, NOW) as (client, _):
        set_version(scene, HUGE)
        assert not Mutex.for_key(scene.key, model=client).locked()
        assert locks(client, scene.key) == HUGE + 1
        assert NOW - 1 < locks(client, other) / 1000 < NOW + 600


def test_huge_version_of_a_row_does_not_reach_a_save_of_another_row(row_scene: RowScene) -> None:
    other = f"{row_scene.key}-other"
    with another_process(row_scene, NOW) as (client, _):
        row_scene.set_claim(client.lock_version.set(HUGE))
        assert next_token(client, row_scene.key) == HUGE + 1
        client(other).save()
        assert NOW - 1 < next_token(client, other) / 1000 < NOW + 1


# -- an endpoint without Date ----------------------------------------------------------------------


def test_without_a_date_tokens_of_a_new_row_start_from_one_and_grow(scene: Scene) -> None:
    tokens = []
    with fault_proxy(scene.engine) as proxy:
        proxy.always(no_date())
        client = through(proxy, scene.there)
        for _ in range(3):
            with Mutex.for_key(scene.key, model=client) as mutex:
                tokens.append(mutex.fencing_token)
                assert scene.row.since is None
    assert tokens == [2, 3, 4]


def test_without_a_date_a_save_takes_the_next_token_of_an_existing_row(
    row_scene: RowScene,
) -> None:
    before = next_token(row_scene.there, row_scene.key)
    with fault_proxy(row_scene.engine) as proxy:
        proxy.always(no_date())
        client = through(proxy, row_scene.there)
        client(row_scene.key).save()
        assert next_token(client, row_scene.key) == before + 2
