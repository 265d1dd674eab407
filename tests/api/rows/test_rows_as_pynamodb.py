"""Rows that can be locked, where no lock is meant: they behave as PynamoDB's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from pynamodb.attributes import BinaryAttribute, UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.models import Model
from row_scene import RowScene
from row_tables import LOCKABLE, created, hashed, lock_names, made

from dev.faultproxy import drop_answer
from pynamodb_mutex import LockItem, RowLockMixin

# -- what an instance shows of itself -------------------------------------------------------------


class Nowhere(RowLockMixin, Model):
    """A model of no table, in no region."""

    class Meta:
        table_name = "nowhere"
        region = ""

    pk = UnicodeAttribute(hash_key=True)
    note = UnicodeAttribute(null=True)


@pytest.fixture
def no_region(monkeypatch):
    """An environment that names no region."""
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)


def test_serialized_row_has_no_lock_and_needs_no_region(no_region):
    row = Nowhere("a", note="n")
    assert row.serialize() == {"pk": {"S": "a"}, "note": {"S": "n"}}
    assert row.serialize() == row.serialize()
    with pytest.raises(ValueError, match="pk"):
        Nowhere().serialize(null_check=True)


@pytest.mark.parametrize("lock_model", [None, LockItem])
def test_instance_shows_its_lock_only_if_asked_for(table, lock_model):
    photo = BinaryAttribute(legacy_encoding=False, null=True)
    own = {**hashed()(), "photo": photo, "lock_model": lock_model}
    model = created(made(own, LOCKABLE))
    model("a", note="n", photo=b"\x00").save()
    with model.locked("a", owner="me") as row:
        assert row.serialize() == {
            "pk": {"S": "a"},
            "note": {"S": "n"},
            "photo": {"B": b"\x00"},
        }
        assert row.to_dynamodb_dict() == {
            "pk": {"S": "a"},
            "note": {"S": "n"},
            "photo": {"B": "AA=="},
        }
        assert row.to_simple_dict(force=True) == {"pk": "a", "note": "n", "photo": "AA=="}
        shown = [
            row.serialize(with_lock=True),
            row.to_dynamodb_dict(with_lock=True),
            row.to_simple_dict(force=True, with_lock=True),
        ]
        of_the_lock = lock_names(model) if lock_model is None else set()
        for each in shown:
            assert set(each) == {"pk", "note", "photo"} | of_the_lock
            if lock_model is None:
                assert row.row_lock.token in json.dumps(each["lock_token"])


# -- what a write returns -------------------------------------------------------------------------


def do_save(row: Model) -> Any:
    return row.save()


def do_update(row: Model) -> Any:
    return row.update(actions=[type(row).balance.add(1)])


def do_delete(row: Model) -> Any:
    return row.delete()


returning = pytest.mark.parametrize("write", [do_save, do_update, do_delete])
Returning = Callable[[Model], Any]


@pytest.mark.real
@returning
def test_write_returns_what_pynamodb_returns(row_scene: RowScene, write: Returning) -> None:
    expected = write(row_scene.old(f"{row_scene.key}-plain"))
    without = write(row_scene.here(f"{row_scene.key}-without"))
    with row_scene.lock() as row:
        under_lock = write(row)
    for returned in (without, under_lock):
        assert set(returned) == set(expected) >= {"ConsumedCapacity"}
        assert returned["ConsumedCapacity"]["TableName"] == row_scene.old.Meta.table_name
    if write is do_update:
        assert without["Attributes"]["balance"] == expected["Attributes"]["balance"]


@pytest.mark.real
@returning
def test_write_next_to_a_lock_table_returns_what_its_transaction_used(
    table_scene: RowScene, write: Returning
) -> None:
    without = write(table_scene.here(f"{table_scene.key}-without"))
    with table_scene.lock() as row:
        under_lock = write(row)
    for returned in (without, under_lock):
        of_tables = {used["TableName"] for used in returned["ConsumedCapacity"]}
        # the embedded engine says of none
        assert table_scene.old.Meta.table_name in of_tables or table_scene.engine.name != "local"
        assert ("Attributes" in returned) is (write is do_update)


@pytest.mark.parametrize("write", [do_save, do_update])
def test_write_whose_answer_was_lost_returns_what_is_known(
    row_scene: RowScene, write: Returning
) -> None:
    with row_scene.lock() as row:
        row_scene.proxy.next(drop_answer(), op=row_scene.op(write.__name__.removeprefix("do_")))
        returned = write(row)
        assert "ConsumedCapacity" not in returned
        if write is do_update:
            assert returned["Attributes"] == row_scene.raw
            assert row.balance == 1


# -- stand-ins for PynamoDB's connection ----------------------------------------------------------


@pytest.mark.parametrize("answer", [{}, None])
def test_answer_that_a_test_made_up_is_one(answer: Any, no_region: None) -> None:
    with patch.object(Connection, "_make_api_call", return_value=answer) as call:
        assert not Nowhere("a").save()
        assert not Nowhere("a").delete()
        assert [each.args[0] for each in call.call_args_list] == [
            "GetItem",
            "PutItem",
            "DeleteItem",
        ]


def test_update_takes_over_the_row_that_a_test_made_up(no_region: None) -> None:
    row = Nowhere("a")
    answer = {"Attributes": {"pk": {"S": "a"}, "note": {"S": "made up"}}}
    with patch.object(Connection, "_make_api_call", return_value=answer):
        assert row.update([Nowhere.note.set("n")]) == answer
    assert row.note == "made up"
