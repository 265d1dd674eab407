"""`pynamodb-mutex policy`: what each role's features send is what its policy allows, no more and no less."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from botocore.client import BaseClient
from cli import run_cli
from click.testing import CliRunner
from driving import batch_of, send_renewal
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from row_tables import LOCKABLE, created, made

from pynamodb_mutex import LockItem, Mutex, Semaphore
from pynamodb_mutex.cli._app import app
from pynamodb_mutex.cli._infrastructure import ROLES, USES
from pynamodb_mutex.testing import held_elsewhere

PAGE = Path(__file__).parents[2] / "docs/table.rst"
IN_TRANSACTIONS = {
    "ConditionCheck": "ConditionCheckItem",
    "Delete": "DeleteItem",
    "Put": "PutItem",
    "Update": "UpdateItem",
}


def policy(*args: str, env: dict[str, str | None] | None = None) -> dict:
    done = CliRunner().invoke(app, ["policy", *args], env=env)
    assert done.exit_code == 0, done.output
    (statement,) = json.loads(done.output)["Statement"]
    assert statement["Effect"] == "Allow"
    return statement


def allowed(role: str) -> set[str]:
    actions = policy("--role", role)["Action"]
    assert actions == sorted(actions)
    return {action.removeprefix("dynamodb:") for action in actions}


def actions_of(operation: str, request: dict) -> set[tuple[str, str]]:
    """Return the tables and the actions that a request needs there."""
    if operation == "TransactWriteItems":
        items = [pair for item in request["TransactItems"] for pair in item.items()]
        return {(each["TableName"], IN_TRANSACTIONS[kind]) for kind, each in items}
    if operation == "BatchExecuteStatement":
        texts = [each["Statement"] for each in request["Statements"]]
        return {(re.match('UPDATE "(.*?)"', text)[1], "PartiQLUpdate") for text in texts}
    if operation == "BatchGetItem":
        return {(table, operation) for table in request["RequestItems"]}
    return {(request["TableName"], operation)}


@pytest.fixture
def needed(monkeypatch):
    """The tables and the actions that were needed there since the test cleared it."""
    needed = set()
    original = BaseClient._make_api_call

    def send(client, operation, request):
        needed.update(actions_of(operation, request))
        return original(client, operation, request)

    monkeypatch.setattr(BaseClient, "_make_api_call", send)
    return needed


def on(table: type, needed: set[tuple[str, str]]) -> set[str]:
    return {action for name, action in needed if name == table.Meta.table_name}


def renew_together(*holds) -> None:
    """Send what the renewer sends when these are due."""
    first, *others = holds
    assert batch_of(first) is not None
    send_renewal(first, *others)


def take_and_give_back() -> None:
    with Mutex.for_key("a") as mutex:
        assert not Mutex.for_key("a").acquire(blocking=False)
        assert not Mutex.for_key("a").acquire(timeout=0.2)
        mutex.renew()
        mutex.save_data(1)
        assert mutex.locked()
        with mutex.transaction():
            pass
        ticket = mutex.detach()
    with Mutex.attach(ticket):
        pass
    with held_elsewhere("a"):
        assert LockItem.force_release("a")


def take_several() -> None:
    take_and_give_back()
    with Mutex.for_keys(["b", "c"]), held_elsewhere("d"):
        assert not Mutex.for_keys(["b", "c", "d"]).acquire(timeout=0.2)
        with Mutex.any_of(["d", "e"]):
            assert not Mutex.any_of(["d", "e"]).acquire(timeout=0.2)
    with Semaphore.for_key("f", permits=2):
        pass
    first, second = Mutex.for_key("g"), Mutex.for_key("h")
    with first, second:
        renew_together(first._latest, second._latest)


def delete_on_release() -> None:
    take_and_give_back()
    with Mutex.for_key("z", delete_on_release=True):
        pass


def create_and_delete() -> None:
    LockItem.create_table()
    LockItem.delete_table()
    LockItem.create_table()


@pytest.mark.parametrize(
    ("role", "use"),
    [
        ("locker", take_and_give_back),
        ("several", take_several),
        ("deleter", delete_on_release),
        ("admin", create_and_delete),
    ],
)
def test_a_role_may_do_what_it_does_and_nothing_else(table, needed, role, use):
    use()
    assert on(table, needed) == allowed(role)


def test_a_viewer_reads(table, needed):
    with held_elsewhere("a"):
        needed.clear()
        assert Mutex.for_key("a").locked()
        assert [item.key for item in LockItem.held()] == ["a"]
        assert run_cli("ls", "a").exit_code == 0
    # held_elsewhere gives its lock back from a thread of its own
    assert on(table, needed) - {"UpdateItem"} == allowed("viewer")


def test_an_operator_looks_breaks_locks_and_sees_how_the_table_is(table, needed):
    with held_elsewhere("a"):
        needed.clear()
        assert [item.key for item in LockItem.held()] == ["a"]
        assert run_cli("ls", "a").exit_code == 0
        assert LockItem.force_release("a")
    described = {"DescribeTable", "DescribeTimeToLive"}
    assert on(table, needed) | described == allowed("operator")
    assert described <= set(USES)


def accounts(**more) -> type:
    """Return a model of rows that can be locked, with its table."""
    attributes = {"name": UnicodeAttribute(hash_key=True), "balance": NumberAttribute(default=0)}
    return created(made(attributes | more, LOCKABLE))


def work_on_rows(model) -> None:
    model("a").save()
    model("b").save()
    model("c").save()
    with model.locked("a") as row:
        row.save()
        row.update([model.balance.set(1)])
        row.delete()
    model.get("b").update([model.balance.set(1)])
    with model.locked_all(["b", "c"]) as (first, second):
        first.save()
        assert not model.locked("b").acquire(timeout=0.2)
        assert not model.locked_all(["b", "c"]).acquire(timeout=2)  # and looks
        second.refresh()
    model.get("c").delete()


def test_rows(table, needed):
    model = accounts()
    needed.clear()
    work_on_rows(model)
    model("d").save()
    with model.locked("b") as first, model.locked("d") as second:
        renew_together(first.row_lock._latest, second.row_lock._latest)
    assert on(model, needed) == allowed("rows")
    assert not on(table, needed)


def test_rows_whose_locks_are_in_the_lock_table(table, needed):
    model = accounts(lock_model=LockItem)
    needed.clear()
    work_on_rows(model)
    first, second = Mutex.for_key("g"), Mutex.for_key("h")
    with first, second:
        renew_together(first._latest, second._latest)
    assert on(table, needed) == allowed("lock-model")
    assert on(model, needed) <= allowed("rows")


def test_what_is_tried_is_in_some_role():
    for action, use in USES.items():
        assert action in ROLES[use.role].actions
    assert {action for action, use in USES.items() if use.vital} == set(ROLES["locker"].actions)


@pytest.mark.parametrize(
    ("args", "settings", "resource"),
    [
        ([], {}, "arn:aws:dynamodb:*:*:table/pynamodb-mutex"),
        ([], {"AWS_DEFAULT_REGION": "cn-north-1"}, "arn:aws-cn:dynamodb:cn-north-1:*:table/{}"),
        (
            ["--region", "us-gov-west-1", "--account", "123456789012", "--table", "locks"],
            {"AWS_DEFAULT_REGION": "cn-north-1"},
            "arn:aws-us-gov:dynamodb:us-gov-west-1:123456789012:table/locks",
        ),
    ],
)
def test_arn(monkeypatch, args, settings, resource):
    monkeypatch.setattr(LockItem.Meta, "table_name", "pynamodb-mutex")
    unset = dict.fromkeys(("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"))
    unset |= {"AWS_CONFIG_FILE": "/nowhere"}
    statement = policy(*args, env=unset | settings)
    assert statement["Resource"] == resource.format("pynamodb-mutex")


def test_several_roles_in_one():
    both = set(policy("--role", "viewer", "--role", "deleter")["Action"])
    assert both == {f"dynamodb:{each}" for each in allowed("viewer") | allowed("deleter")}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--role", "king"], "'king' is not one of"),
        (["--account", "me"], "twelve digits"),
        (["--region", "middle-earth-1"], "no AWS region: middle-earth-1"),
    ],
)
def test_bad_usage(args, message):
    done = CliRunner().invoke(app, ["policy", *args])
    assert done.exit_code == 2
    assert message in done.output


def test_the_documentation_shows_what_is_printed(monkeypatch):
    monkeypatch.setattr(LockItem.Meta, "table_name", "pynamodb-mutex")
    written = PAGE.read_text(encoding="utf-8")
    command = re.search(r"^   pynamodb-mutex (policy .*)$", written, re.MULTILINE)[1]
    done = CliRunner().invoke(app, command.split())
    shown = "".join(f"   {line}".rstrip() + "\n" for line in done.output.splitlines())
    assert f"\n\n{shown}\n" in written
