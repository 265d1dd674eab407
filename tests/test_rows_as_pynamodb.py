"""Rows that can be locked, where no lock is meant: they behave as PynamoDB's own."""

from __future__ import annotations

import json

import pytest
from pynamodb.attributes import BinaryAttribute, UnicodeAttribute
from pynamodb.models import Model
from row_tables import LOCKABLE, created, hashed, lock_names, made

from pynamodb_mutex import LockItem, RowLockMixin

# -- what an instance shows of itself -------------------------------------------------------------


class Nowhere(RowLockMixin, Model):
    """A model of no table, in no region."""

    class Meta:
        table_name = "nowhere"
        region = ""

    pk = UnicodeAttribute(hash_key=True)
    note = UnicodeAttribute(null=True)


def test_serialized_row_has_no_lock_and_needs_no_region(monkeypatch):
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
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
