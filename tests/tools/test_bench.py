"""The benchmarks: what is counted, how it is shown, and a run of everything at tiny sizes."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from docutils.core import publish_doctree

import dev.bench.__main__ as command
from dev.bench import FAIR, FLOOR, OURS, Setting, failure, turns
from dev.bench.charges import UnknownOperationError, units
from dev.bench.floor import Floor
from dev.bench.libraries import Ours, keys_of, table_of
from dev.bench.scenarios import cycle, row, start
from dev.bench.tables import Table, as_rst, as_text, number, rows_of
from dev.bench.turns import Line, Run
from dev.bench.wire import ROOT, Counts, wired
from dev.faultproxy import fault_proxy
from pynamodb_mutex import LockItem
from pynamodb_mutex.testing import Engine, use

ROW = {"TableName": "priced", "Key": {"k": {"S": "a"}}}
ITEM = {"TableName": "priced", "Item": {"k": {"S": "a"}}}
CHANGED = ROW | {"UpdateExpression": "REMOVE n"}
PUT = {"Put": ITEM}
NEVER = {"ConditionExpression": "attribute_exists(nothing)"}
SELECTED = {"KeyConditionExpression": "k = :k", "ExpressionAttributeValues": {":k": {"S": "a"}}}


@pytest.fixture(scope="module")
def wire(embedded_engine):
    with wired(embedded_engine.endpoint_url) as wire:
        client = boto3.client("dynamodb")
        client.create_table(
            TableName="priced",
            KeySchema=[{"AttributeName": "k", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "k", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield wire
        client.delete_table(TableName="priced")  # a worker may come back to this file


@pytest.mark.parametrize(
    ("operation", "request_", "wcu", "rcu"),
    [
        ("put_item", ITEM, 1, 0),
        ("update_item", CHANGED, 1, 0),
        ("delete_item", {"TableName": "priced", "Key": {"k": {"S": "other"}}}, 1, 0),
        ("put_item", ITEM | NEVER, 1, 0),
        ("update_item", CHANGED | NEVER, 1, 0),
        ("delete_item", ROW | NEVER, 1, 0),
        ("transact_write_items", {"TransactItems": [PUT]}, 2, 0),
        (
            "transact_write_items",
            {"TransactItems": [PUT, {"ConditionCheck": ROW | NEVER | {"Key": {"k": {"S": "b"}}}}]},
            4,
            0,
        ),
        ("get_item", ROW, 0, 0.5),
        ("get_item", ROW | {"ConsistentRead": True}, 0, 1),
        ("query", {"TableName": "priced"} | SELECTED, 0, 0.5),
        ("scan", {"TableName": "priced", "ConsistentRead": True}, 0, 1),
        (
            "batch_get_item",
            {"RequestItems": {"priced": {"Keys": [{"k": {"S": key}} for key in "abc"]}}},
            0,
            1.5,
        ),
        (
            "batch_get_item",
            {"RequestItems": {"priced": {"Keys": [ROW["Key"]], "ConsistentRead": True}}},
            0,
            1,
        ),
        ("describe_table", {"TableName": "priced"}, 0, 0),
    ],
)
def test_a_request_is_counted_and_priced(wire, operation, request_, wcu, rcu):
    client = boto3.client("dynamodb")
    client.put_item(**ITEM)
    wire.counted()
    with ExitStack() as refused:
        if NEVER["ConditionExpression"] in json.dumps(request_):
            refused.enter_context(pytest.raises(ClientError))
        getattr(client, operation)(**request_)
    counts = wire.counted()
    assert counts.by_operation == {client.meta.method_to_api_mapping[operation]: 1}
    assert (counts.wcu, counts.rcu) == (wcu, rcu)
    assert wire.counted().requests == 0


def test_the_price_of_a_batch_of_statements():
    """The embedded engine does not take one."""
    statement = {"Statement": "UPDATE priced SET n = 1 WHERE k = 'a'"}
    assert units("BatchExecuteStatement", {"Statements": [statement] * 3}) == (3, 0)


def test_what_has_no_price_is_not_taken_for_free(wire):
    with pytest.raises(UnknownOperationError):
        units("DeleteBackup", {})
    wire.counted()
    boto3.client("dynamodb").list_tables()
    with pytest.raises(ValueError, match="ListTables"):
        wire.counted()
    assert wire.counted().requests == 0


def test_each_request_takes_the_latency(wire):
    client = boto3.client("dynamodb")
    client.get_item(**ROW)
    wire.set(0.2)
    since = time.monotonic()
    client.get_item(**ROW)
    client.get_item(**ROW)
    took = time.monotonic() - since
    wire.set(0)
    assert took >= 0.4


def test_for_each():
    counts = Counts({"A": 2, "B": 4}, 6, 3)
    assert counts.per(2) == {
        "requests": 3, "wcu": 3, "rcu": 1.5, "operations": {"A": 1, "B": 2},
    }  # fmt: skip


def test_the_floor_sends_what_we_send(embedded_engine, monkeypatch):
    """If this fails because a request of ours has changed, the floor has to follow."""
    monkeypatch.setattr(LockItem.Meta, "table_name", table_of(OURS))
    with fault_proxy(embedded_engine) as proxy, use(Engine("proxy", proxy.url)):
        command._make_tables((FLOOR, OURS))
        sent = []
        for library in (Floor(), Ours()):
            library.release(library.take("warm"))
            proxy.start_anew()
            library.release(library.take("key"))
            sent.append([_shape(seen.body) for seen in proxy.of("UpdateItem")])
            assert len(proxy.log) == 2
    assert sent[0] == sent[1]


def _shape(body: dict) -> dict:
    """What a request asks for, without the values that it carries."""
    values = body["ExpressionAttributeValues"]
    return {
        **body,
        "TableName": "",
        "ExpressionAttributeValues": {name: list(value) for name, value in values.items()},
        "ReturnConsumedCapacity": "NONE",  # as it is when nothing is said
    }


@pytest.mark.parametrize("scenario", [cycle, row, start])
def test_a_library_that_fails_stops_no_other(embedded_engine, scenario, monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", table_of(OURS))
    monkeypatch.setenv("PYNAMODB_MUTEX_TABLE", table_of(OURS))
    with use(embedded_engine):
        command._make_tables((FLOOR, OURS))
    names = (FLOOR, "no such", OURS)
    found = scenario.measure(Setting(embedded_engine.endpoint_url, names, quick=True))
    assert found["libraries"][OURS]["requests"] == 2
    assert list(command._failures(found)) == [("libraries/no such", "KeyError: 'no such'")]
    for table in scenario.tables(found):
        assert all(len(line) == len(table.columns) for line in table.rows)
        assert ["no such", "failed: KeyError: 'no such'"] in [line[:2] for line in table.rows]


def test_whoever_is_overtaken_is_counted():
    line = Line()
    line.see([1, 2, 3])
    assert line.take(1) == 0
    line.see([2, 3, 1])
    assert line.take(3) == 1
    line.see([2, 1, 3])
    assert [line.take(who) for who in (2, 1, 3)] == [0, 0, 0]
    # whoever was not seen has overtaken all
    line = Line()
    line.see([1, 2])
    assert [line.take(who) for who in (3, 2, 1)] == [2, 1, 0]


def test_waiters_in_turn_of_a_library_that_fails(embedded_engine):
    found = turns.measure(
        [Run("no such", 2, 0.1)], settle=0, seconds=0, engine_url=embedded_engine.endpoint_url
    )
    assert list(command._failures(found)) == [("0", "ChildError: KeyError: 'no such'")]
    for table in turns.tables(found):
        assert [len(line) for line in table.rows] == [len(table.columns)]
        assert table.rows[0][:4] == [
            "no such",
            "2",
            "0.1",
            "failed: ChildError: KeyError: 'no such'",
        ]


def test_keys_of_the_tables():
    assert keys_of(FLOOR) == keys_of(OURS) == ("key",)
    assert keys_of("python-dynamodb-lock") == ("lock_key", "sort_key")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (None, "-"), (2.0, "2"), (0.5, "0.5"), (1.2345, "1.23"), (123.4, "123"),
     (999.7, "1,000"), (12345.6, "12,346"), (0.0000123, "0.000012")],
)  # fmt: skip
def test_figures_are_short(value, shown):
    assert number(value) == shown


ROWS = rows_of(
    {"a_lib": {"x": "-"}, "b*": failure(ValueError("no *luck*"))}, lambda e: [e["x"], ""], 3
)
SHOWN = Table("What it is", ["Library", "X", "Y"], ROWS, "Note this_.")


def test_a_table_on_the_terminal():
    assert ROWS == [["a_lib", "-", ""], ["b*", "failed: ValueError: no *luck*", ""]]
    lines = as_text(SHOWN).splitlines()
    assert lines[0] == "What it is"
    assert lines[2].split() == ["Library", "X", "Y"]
    assert lines[4].startswith("a_lib    -")
    assert lines[2].index("X") == lines[4].index("-")
    assert lines[-1] == "Note this_."


def test_a_table_as_restructuredtext(capsys):
    tree = publish_doctree(as_rst(SHOWN) + "\n\n" + as_rst(SHOWN))
    assert capsys.readouterr().err == ""
    text = [each.astext().replace("\\", "") for each in tree.findall() if each.tagname == "entry"]
    assert text == 2 * ["Library", "X", "Y", *ROWS[0], *ROWS[1]]
    assert [each.astext() for each in tree.children if each.tagname == "paragraph"] == 2 * [
        "Note this_."
    ]


def test_failures_are_found_wherever_they_are():
    found = {
        "cycle": {"libraries": {"a": {"failed": "x"}, "b": {}}},
        "many": {"runs": [{}, {"failed": "y"}]},
    }
    assert list(command._failures(found)) == [("cycle/libraries/a", "x"), ("many/runs/1", "y")]


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/nowhere/python", "No such file"),
        (sys.executable, "has no python-dynamodb-lock, dynamodblock"),
    ],
)
def test_an_environment_without_the_peers_is_refused(python, says, tmp_path, capsys):
    assert command.main(["--python", python, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_refused(tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.touch()
    assert command.main(["--out", str(taken)]) == 2
    assert f"--out {taken}: File exists" in capsys.readouterr().err


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "dev.bench", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.lengthy
def test_everything_runs(tmp_path: Path):
    done = run("--quick", "--engine", "embedded", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())["scenarios"]
    counted = ("requests", "wcu", "rcu")

    for name in (FLOOR, OURS):
        assert [found["cycle"]["libraries"][name][what] for what in counted] == [2, 2, 0]
    assert [found["row"]["libraries"][OURS][what] for what in counted] == [2, 2, 0]
    handed_over = found["hand_over"]["libraries"][OURS]
    assert {kind: len(times) for kind, times in handed_over.items()} == {
        "short": 2, "long": 2, "waiting": 1, "newcomer": 1,
    }  # fmt: skip
    waiting = found["waiting"]["libraries"]
    assert [list(each["waiters"]) for each in waiting.values()] == [["1", "8"]] * 2
    by_kind = [waiting[kind]["waiters"]["8"]["total"] for kind in (OURS, f"{OURS}, threads")]
    assert by_kind[0] > 2 * by_kind[1] > 0
    in_turn = {run["library"]: run for run in found["waiting"]["in_turn"]}
    assert set(in_turn) == {FAIR, OURS}
    assert in_turn[FAIR]["inversions"] == 0
    for each in in_turn.values():
        assert each["takes"] > 0
        assert 0 < each["idle"]["median"] <= each["idle"]["p99"] < each["longest_wait"]
        assert each["each_take"]["requests"] >= 3
    alone = {run["threads"]: run for run in found["threads"]["alone"]}
    assert alone[1]["requests_each"] > alone[4]["requests_each"] >= 1
    assert found["threads"]["fairness"][OURS]["of"] > 0
    assert [run["lost"] for run in found["many"]["runs"]] == [0] * len(found["many"]["runs"])
    assert found["many"]["runs"][0]["operations"]
    assert {name: each["requests"] for name, each in found["start"]["libraries"].items()} == {
        FLOOR: 1, OURS: 2,
    }  # fmt: skip
    assert found["memory"]["libraries"][OURS]["held"] > 0

    assert {path.stem for path in tmp_path.glob("*.png")} == set(found)
    tables = {path.stem: path.read_text() for path in tmp_path.glob("*.rst")}
    assert set(tables) == {*found, "circumstances"}
    assert sum(table.count(".. list-table::") for table in tables.values()) == 13
    assert "these are left out: python-dynamodb-lock, dynamodblock, dyndbmutex" in done.stdout
