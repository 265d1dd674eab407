"""Batches, which carry no conditions: what they refuse, and what they leave out."""

from __future__ import annotations

import uuid

import pytest
from row_scene import RowScene, save

from pynamodb_mutex import MutexError, MutexLostError


@pytest.mark.parametrize("what", ["save", "delete"])
def test_batch_refuses_a_row_that_is_locked_here(any_scene: RowScene, what: str) -> None:
    with any_scene.lock() as row:
        with (
            pytest.raises(MutexError, match="batch") as raised,
            any_scene.here.batch_write() as batch,
        ):
            getattr(batch, what)(row)
        assert raised.value.key == row.row_lock.key
        assert any_scene.proxy.of("BatchWriteItem") == []
    with any_scene.here.batch_write() as batch:
        getattr(batch, what)(row)
    assert any_scene.gone is (what == "delete")


def test_batch_refuses_a_row_whose_lock_was_lost(any_scene: RowScene) -> None:
    row = any_scene.locked()
    any_scene.forced_and_taken()
    with pytest.raises(MutexLostError):
        save(row)
    with pytest.raises(MutexError, match="batch"), any_scene.here.batch_write() as batch:
        batch.save(row)


@pytest.mark.real
def test_batch_takes_no_claim_along(row_scene: RowScene) -> None:
    with row_scene.lock():
        row = row_scene.row
    name = f"copy-{uuid.uuid4().hex}"
    row.name = name
    with row_scene.here.batch_write() as batch:
        batch.save(row)
    copied = row_scene.there._get_connection().get_item(name, consistent_read=True)["Item"]
    assert {key for key in copied if key.startswith("lock_")} == set()
