"""What the signals tell of row locks, whose end may be a write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hearing import Heard, hearing
from pynamodb.exceptions import PutError
from row_scene import Rows, RowScene, Write, add_to_all, save, save_or_update

from dev.faultproxy import deny, drop_answer
from pynamodb_mutex import Loss, MutexLostError, signals


@pytest.fixture
def heard(any_scene: RowScene) -> Iterator[Heard]:
    with hearing(any_scene.key) as heard:
        yield heard


@save_or_update
def test_a_write_that_unlocks_releases(any_scene: RowScene, heard: Heard, write: Write) -> None:
    told = []
    lock = any_scene.lock()

    def ask(sender, **_):
        told.append((sender, lock.held))
        # no write waits for another while it is told
        with any_scene.there.locked(any_scene.key) as row:
            row.save()

    model = any_scene.here.lock_model or any_scene.here
    with signals.released.connected_to(ask, model), lock as row:
        write(row, unlock=True)
    assert told == [(model, False)]
    released = [event.told for event in heard.events if event.sender is model]
    assert [each["token"] for each in released] == [lock.token] * 2
    assert heard.events[0].told["key"] == lock.key


def test_a_write_that_unlocks_and_whose_answer_is_lost_releases_once(
    any_scene: RowScene, heard: Heard
) -> None:
    with any_scene.lock() as row:
        any_scene.proxy.next(drop_answer(), op=any_scene.op("save"))
        save(row, unlock=True)
    assert heard.names == ["acquired", "released"]


def test_an_unlock_of_unknown_outcome_is_reported_by_the_release_after_it(
    row_scene: RowScene,
) -> None:
    with hearing(row_scene.key) as heard:
        lock = row_scene.lock()
        row_scene.proxy.next(drop_answer(), deny(), op="PutItem")
        with pytest.raises(PutError), lock as row:
            save(row, unlock=True)
        assert heard.names == ["acquired", "released"]
        assert heard.the("released")["error"] is None


def test_a_delete_ends_the_lock_that_stands_in_the_row(any_scene: RowScene, heard: Heard) -> None:
    with any_scene.lock() as row:
        row.delete()
        assert heard.names == (["acquired"] if any_scene.in_table else ["acquired", "released"])
    assert heard.names == ["acquired", "released"]


def test_a_guarded_save_renews_what_stands_in_the_row(row_scene: RowScene) -> None:
    with hearing(row_scene.key) as heard, row_scene.lock() as row:
        save(row)
        assert heard.the("renewed")["expires_at"] == row_scene.row.lock_expires_at


def test_a_guarded_write_that_finds_a_loss_shows_it_once(any_scene: RowScene, heard: Heard) -> None:
    row = any_scene.locked(auto_renew=False)
    any_scene.force()
    for _ in range(2):
        with pytest.raises(MutexLostError):
            save(row, unlock=True)
    with pytest.raises(MutexLostError):
        row.row_lock.release()
    assert heard.the("lost")["loss"] is Loss.FORCED
    assert heard.names == ["acquired", "lost"]


def test_a_transaction_that_unlocks_releases_each(rows: Rows) -> None:
    with hearing(rows.scene.key) as heard, rows.locks() as locked:
        add_to_all(locked, unlock=True)
        assert sum(name == "released" for name in heard.names) == 3
        assert heard.keys("released") == heard.keys("acquired")


def test_a_row_that_is_missing_is_not_acquired(row_scene: RowScene) -> None:
    model = row_scene.here
    with hearing("no-such-row") as heard:
        with pytest.raises(model.DoesNotExist):
            model.locked("no-such-row").acquire()
        assert isinstance(heard.the("not_acquired")["error"], model.DoesNotExist)
