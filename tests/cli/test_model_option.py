"""``--model``: lock tables of one's own, and models whose rows carry their locks."""

from __future__ import annotations

import base64
import json
import sys
import uuid
from datetime import datetime, timezone
from decimal import Decimal

import cli_models
import pytest
from cli import run_cli
from pynamodb.attributes import MapAttribute

from pynamodb_mutex import LockItem
from pynamodb_mutex.cli._output import plain
from pynamodb_mutex.testing import expire, held_elsewhere


@pytest.fixture
def made(engine, monkeypatch):
    """Makes a model's table, under a name of its own."""

    def make(model):
        monkeypatch.setattr(model.Meta, "table_name", f"locks-{uuid.uuid4().hex}")
        monkeypatch.setattr(model, "_connection", None)
        model.create_table(wait=True)
        return model

    return make


def documents(model, *args):
    where = "pynamodb_mutex:LockItem" if model is LockItem else f"cli_models:{model.__name__}"
    done = run_cli("--model", where, *args, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_a_lock_table_with_other_names_a_range_key_and_other_data(made):
    model = made(cli_models.ShopLock)
    with held_elsewhere("a", owner="me", model=model):
        model("stray", kind="ORDER", owner="they", token="t", expires_at=1.0).save()
        model("other", kind="ORDER").save()
        model.get("a", "LOCK").update(
            [model.data.set(MapAttribute(page=3))], add_version_condition=False
        )
        (lock,) = documents(model, "ls")
        assert (lock["key"], lock["owner"], lock["state"]) == ("a", "me", "held")
        assert "range_key" not in lock
        assert documents(model, "show", "a")["data"] == {"page": 3}
        assert documents(model, "release", "a", "--force", "--yes")["freed"] is True
        assert model.get("a", "LOCK").expires_at is None
        assert model.get("stray", "ORDER").expires_at == 1.0


def test_rows_with_a_range_key(made):
    model = made(cli_models.Order)
    model("alice", 7).save()
    model("bob", 1).save()
    with held_elsewhere(("alice", 7), owner="me", model=model):
        (lock,) = documents(model, "ls")
        assert (lock["key"], lock["range_key"], lock["owner"]) == ("alice", "7", "me")
        name = ("--model", "cli_models:Order")
        assert run_cli(*name, "ls").stdout.splitlines()[1].startswith("alice 7\tme\t")
        shown = documents(model, "show", "alice", "--range-key", "7.0")
        assert (shown["state"], shown["row_kept_until"], shown["data"]) == ("held", None, None)
        assert run_cli(*name, "wait", "alice", "--range-key", "7", "--timeout", "0").exit_code == 75
        expire(("alice", 7), model)
        freed = documents(model, "release", "--all-abandoned", "--yes")["freed"]
        assert [lock["range_key"] for lock in freed] == ["7"]
    row = model.get("alice", 7)
    assert (row.lock_expires_at, row.number) == (None, 7)
    assert documents(model, "show", "bob", "--range-key", "1")["token"] is None
    lines = run_cli(*name, "show", "carol", "--range-key", "1").stdout
    assert "none: there is no such row" in lines
    assert not list(model.query("carol"))


def test_rows_with_binary_keys(made):
    model = made(cli_models.Blob)
    model(b"\xff\x00").save()
    model(b"\x01").save()
    text = base64.b64encode(b"\xff\x00").decode()
    with held_elsewhere(b"\xff\x00", model=model):
        assert [lock["key"] for lock in documents(model, "ls")] == [text]
        assert documents(model, "release", text, "--force", "--yes")["freed"] is True
    lines = run_cli("--model", "cli_models:Blob", "show", "AQ==").stdout
    assert "never taken" in lines


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--model", "cli_models", "ls"), "as in shop.locks:ShopLock"),
        (("--model", ":x", "ls"), "as in shop.locks:ShopLock"),
        (("--model", "cli_models:Nothing", "ls"), "AttributeError"),
        (("--model", "no_such_module:X", "ls"), "ModuleNotFoundError"),
        (("--model", "cli_models:uuid", "ls"), "AttributeError"),
        (("--model", "os:path", "ls"), "neither a LockItem nor a model with row locks"),
        (("--model", "cli_models:Kept", "ls"), "keeps its locks in LockItem"),
        (("--model", "cli_models:Order", "create-table"), "is a model of rows"),
        (("--model", "cli_models:Order", "show", "a"), "Order has a range key"),
        (("--model", "cli_models:Order", "watch", "a"), "Order has a range key"),
        (("--model", "cli_models:Blob", "show", "AQ==", "--range-key", "1"), "no range key"),
        (("--model", "cli_models:Blob", "show", "A"), "is not base64"),
        (("--model", "cli_models:Order", "show", "a", "--range-key", "x"), "is not a number"),
    ],
)
def test_what_cannot_be_meant(args, message):
    done = run_cli(*args)
    assert done.exit_code == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_models_own_table_counts_not_that_of_the_environment(made, table):
    model = made(cli_models.Order)
    with held_elsewhere("a"):
        assert documents(model, "ls") == []
        assert [lock["key"] for lock in documents(LockItem, "ls")] == ["a"]
        named = run_cli("--model", "cli_models:Order", "--table", model.Meta.table_name, "ls")
        assert named.exit_code == 0


def test_a_model_in_the_working_directory(table, tmp_path, monkeypatch):
    module = "from pynamodb_mutex import LockItem\nclass Here(LockItem):\n    pass\n"
    (tmp_path / "cli_models_here.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with held_elsewhere("a"):
        for _ in range(2):
            assert "a\t" in run_cli("--model", "cli_models_here:Here", "ls").stdout


def test_what_json_has_for_values_of_attributes():
    when = datetime(2026, 1, 2, tzinfo=timezone.utc)
    values = [MapAttribute(a=1), {2, 1}, b"\xff", Decimal("1.5"), when, uuid.UUID(int=1)]
    assert [plain(value) for value in values] == [
        {"a": 1},
        [1, 2],
        "/w==",
        1.5,
        "2026-01-02T00:00:00+00:00",
        "00000000-0000-0000-0000-000000000001",
    ]
