"""The benchmarks: what is counted, how it is shown, and a run of everything at tiny sizes."""

import shutil
import subprocess
import sys

import boto3
import pytest
from botocore.exceptions import ClientError
from docutils.core import publish_doctree
from pynamodb.exceptions import UpdateError

import dev.bench.__main__ as command
from dev.bench import BY_HAND, FAIR, FLOOR, HINTED, OURS, ROOT, UPDATE, Setting, table_of, turns
from dev.bench.children import ChildError
from dev.bench.libraries import Dispatched, Floor, Ours, keys_of, made
from dev.bench.scenarios import cycle, row, start
from dev.bench.tables import as_rst, as_text, named, table
from dev.bench.wire import Counts, price, wired
from dev.faultproxy import fault_proxy
from pynamodb_mutex import LockItem
from pynamodb_mutex.testing import Engine, use

CONSISTENT = {"ConsistentRead": True}
FIGURES = ROOT / "docs" / "speed"


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("operation", "body", "wcu", "rcu"),
    [
        *((operation, {}, 1, 0) for operation in ("PutItem", "UpdateItem", "DeleteItem")),
        ("TransactWriteItems", {"TransactItems": [{}]}, 2, 0),
        ("TransactWriteItems", {"TransactItems": [{}, {}]}, 4, 0),
        *((operation, {}, 0, 0.5) for operation in ("GetItem", "Query", "Scan")),
        *((operation, CONSISTENT, 0, 1) for operation in ("GetItem", "Query", "Scan")),
        ("DescribeTable", {}, 0, 0),
    ],
)
def test_price_of_a_request(operation, body, wcu, rcu):
    assert price(operation, body) == Counts(1, wcu, rcu)


def test_wire_counts_and_delays_what_passes(embedded_engine):
    with wired(embedded_engine.endpoint_url) as wire:
        client = boto3.client("dynamodb")
        command.create_table(client, "priced", ("k",))
        item, key = ({"TableName": "priced", name: {"k": {"S": "a"}}} for name in ("Item", "Key"))
        wire.counted()
        client.put_item(**item)
        with pytest.raises(ClientError):
            client.put_item(**item, ConditionExpression="attribute_exists(nothing)")
        client.get_item(**key)
        assert wire.counted() == Counts(3, 2, 0.5)
        # what has no price is not taken for free
        client.list_tables()
        with pytest.raises(ValueError, match="ListTables"):
            wire.counted()
        assert wire.counted().requests == 0
    with wired(embedded_engine.endpoint_url, 0.2) as wire:
        client = boto3.client("dynamodb")
        assert wire.cost(lambda: client.get_item(**key), 2)["wall"] >= 0.2
        client.delete_table(TableName="priced")  # a worker may come back to this engine


def test_floor_sends_what_we_send(embedded_engine, monkeypatch):
    """If this fails because a request of ours has changed, the floor has to follow."""

    def shape(body):
        """What a request asks for, without the values that it carries."""
        values = {name: [*value] for name, value in body["ExpressionAttributeValues"].items()}
        # of the last one NONE is what it is when nothing is said
        changed = {"TableName": "", "ExpressionAttributeValues": values}
        return {**body, **changed, "ReturnConsumedCapacity": "NONE"}

    assert keys_of(FLOOR) == keys_of(OURS) == ("key",)
    assert keys_of("python-dynamodb-lock") == ("lock_key", "sort_key")
    monkeypatch.setattr(LockItem.Meta, "table_name", table_of(OURS))
    with fault_proxy(embedded_engine) as proxy, use(Engine("proxy", proxy.url)):
        command.make_tables((FLOOR, OURS))
        sent = []
        for library in (Floor(), Dispatched(), Ours()):
            library.release(library.take("warm"))
            proxy.start_anew()
            library.release(library.take("key"))
            sent.append([shape(seen.body) for seen in proxy.of("UpdateItem")])
            assert len(proxy.log) == 2
    assert sent[0] == sent[1] == sent[2]


def test_what_pynamodb_sends_for_the_floor_is_a_lock(embedded_engine):
    with use(embedded_engine):
        command.make_tables((FLOOR,))
        first, other = made(UPDATE), made(FLOOR)
        row = first.take("key")
        with pytest.raises(ClientError, match="conditional"):
            other.take("key")
        first.release(row)
        assert other.take("key")
        with pytest.raises(UpdateError, match="conditional"):
            first.take("key")


def test_whoever_is_overtaken_is_counted():
    line = turns.Line()
    for seen, takes in (
        ([1, 2, 3], {1: 0}),
        ([2, 3, 1], {3: 1}),
        ([2, 1, 3], {2: 0, 1: 0, 3: 0}),
        ([1, 2], {3: 2, 2: 1, 1: 0}),  # whoever was not seen has overtaken all
    ):
        line.see(seen)
        assert {who: line.take(who) for who in takes} == takes


@pytest.mark.parametrize("scenario", [cycle, row, start])
def test_scenario_in_this_process(embedded_engine, scenario, monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", table_of(OURS))
    with use(embedded_engine):
        command.make_tables((FLOOR, OURS))
    found = scenario.measure(Setting(embedded_engine.endpoint_url, (FLOOR, OURS), quick=True))
    assert found["libraries"][OURS]["requests"] == 2
    for each in scenario.tables(found):
        assert all(len(line) == len(each.columns) for line in each.rows)
        assert OURS in [line[0] for line in each.rows]


def test_scenario_that_fails_stops_no_other(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(start, "measure", lambda _: 1 / 0)
    monkeypatch.setattr(row, "measure", lambda _: {"libraries": {}, "latency_ms": 1})
    arguments = ["--quick", "--engine=embedded", "--only=start", "--only=row", f"--out={tmp_path}"]
    assert command.main(arguments) == 1
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().out
    assert ["failed" in each for each in command.figures(tmp_path).values()] == [True, False]


def test_child_that_fails_says_why(embedded_engine):
    run = turns.Run("no such", 2, 0.1)
    with pytest.raises(ChildError, match="KeyError: 'no such'"):
        turns.measure(run, 0, 0, embedded_engine.endpoint_url)


def test_tables_on_the_terminal_and_as_restructuredtext(capsys):
    libraries = {"a_lib": {"x": None}, "b*": {"x": 1_234.5}}
    columns = [("X", "x"), ("Y", lambda found: "")]
    made = table("What it is", ["Library"], columns, named(libraries), "Note this_.")
    rows = made.rows
    assert rows == [["a_lib", "-", ""], ["b*", "1,234", ""]]
    title, _, head, _, first, *_, last = as_text(made).splitlines()
    assert (title, head.split(), last) == ("What it is", ["Library", "X", "Y"], "Note this_.")
    assert first.startswith("a_lib    -")
    assert head.index("X") == first.index("-")
    tree = publish_doctree(as_rst(made) + "\n\n" + as_rst(made))
    assert capsys.readouterr().err == ""
    text = [each.astext().replace("\\", "") for each in tree.findall() if each.tagname == "entry"]
    assert text == 2 * ["Library", "X", "Y", *rows[0], *rows[1]]
    notes = [each.astext() for each in tree.children if each.tagname == "paragraph"]
    assert notes == 2 * ["Note this_."]


def test_partial_run_keeps_other_scenarios_with_their_commits(tmp_path):
    before = command.figures(FIGURES)
    (tmp_path / "results.json").write_text((FIGURES / "results.json").read_text())
    arguments = ["--quick", "--engine", "embedded", "--only", "start", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    after = command.figures(tmp_path)
    stamp = after.pop("start")["measured"]
    assert stamp["commit"].rstrip("+") == git("rev-parse", "--short", "HEAD")
    assert after == {name: found for name, found in before.items() if name != "start"}
    last = command.circumstances(stamp)
    assert last.startswith(
        f"Measured at commit {stamp['commit']} on {stamp['date']}, on the embedded engine"
    )
    assert (tmp_path / "start.rst").read_text().endswith(f"\n\n{last}")


def test_commit_of_a_changed_tree_has_a_plus(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "ROOT", tmp_path)
    assert command._commit() == "unknown"
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "a").touch()
    by = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for arguments in (["init", "-q"], ["add", "."], [*by, "commit", "-qm", "-"]):
        git("-C", str(tmp_path), *arguments)
    head = git("-C", str(tmp_path), "rev-parse", "--short", "HEAD")
    (tmp_path / "notes").touch()  # changes nothing that is measured
    assert command._commit() == head
    (tmp_path / "dev" / "a").write_text("changed")
    assert command._commit() == f"{head}+"


def test_published_tables_are_those_of_the_published_figures(tmp_path):
    found = command.figures(FIGURES)
    for name in found:
        command.write(tmp_path, found, name)
    for path in [FIGURES / "results.json", *FIGURES.glob("*.rst")]:
        assert (tmp_path / path.name).read_text() == path.read_text(), path.name


@pytest.mark.lengthy
@pytest.mark.timeout(1200)
def test_everything_runs(tmp_path):
    asked = [sys.executable, "-m", "dev.bench", "--quick", "--engine", "embedded"]
    asked += ["--out", str(tmp_path)]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = command.figures(tmp_path)

    def requests(scenario):
        counted, libraries = ("requests", "wcu", "rcu"), found[scenario]["libraries"]
        return {name: [each[what] for what in counted] for name, each in libraries.items()}

    assert requests("cycle") == {name: [2, 2, 0] for name in (*BY_HAND, FLOOR, OURS)}
    assert requests("row")[OURS] == [2, 2, 0]
    counted = found["instructions"]["libraries"]
    assert list(counted) == ([FLOOR, *BY_HAND, OURS] if shutil.which("valgrind") else [])
    for name, each in counted.items():
        assert each["millions"] > 1
        assert each["ratio"] == 1 or name != FLOOR
        assert each["of_update"] == 1 or name != UPDATE
    handed_over = found["hand_over"]["libraries"][OURS]
    assert all(handed_over[kind] for kind in ("short", "long"))
    assert [len(handed_over[kind]) for kind in ("waiting", "newcomer")] == [1, 1]
    waiting = found["waiting"]["libraries"]
    assert [list(each["waiters"]) for each in waiting.values()] == [["1", "8"]] * 2
    by_kind = [waiting[kind]["waiters"]["8"]["total"] for kind in (OURS, f"{OURS}, threads")]
    assert by_kind[0] > 2 * by_kind[1] > 0
    in_turn = {run["library"]: run for run in found["waiting"]["in_turn"]}
    assert in_turn.keys() == {FAIR, HINTED, OURS}
    assert in_turn[FAIR]["inversions"] == in_turn[HINTED]["inversions"] == 0
    for each in in_turn.values():
        assert (each["takes"] > 0, each["each_take"]["requests"] >= 3) == (True, True)
        assert 0 < each["idle"]["median"] <= each["idle"]["p99"] < each["longest_wait"]
    alone = {run["threads"]: run["requests_each"] for run in found["threads"]["alone"]}
    assert alone[1] > alone[4] >= 1
    assert found["threads"]["fairness"][OURS]["of"] > 0
    assert {run["lost"] for run in found["many"]["runs"]} == {0}
    assert found["many"]["runs"][0]["requests"] > 0
    started = found["start"]["libraries"].items()
    assert {name: each["requests"] for name, each in started} == {FLOOR: 1, OURS: 2}
    assert found["many"]["memory"]["libraries"][OURS]["held"] > 0
    tables = {path.stem: path.read_text() for path in tmp_path.glob("*.rst")}
    assert set(tables) == set(found)
    assert sum(table.count(".. list-table::") for table in tables.values()) == 12
    assert (
        "not installed, and left out: python-dynamodb-lock, dynamodblock, dyndbmutex" in done.stdout
    )
