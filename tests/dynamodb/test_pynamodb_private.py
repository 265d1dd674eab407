"""Each private name of PynamoDB in use still means what the library takes it for."""

import ast
import inspect
from pathlib import Path

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute, VersionAttribute
from pynamodb.connection import Connection, TableConnection
from pynamodb.models import Model
from pynamodb.settings import default_settings_dict
from pynamodb.transactions import TransactWrite

from pynamodb_mutex._lock.dynamodb import pynamodb_private as private


class Order(Model):
    class Meta:
        table_name = "orders"
        region = "eu-west-1"
        host = "http://127.0.0.1:9"  # nothing is sent
        aws_access_key_id = "model's"
        aws_secret_access_key = "x"

    shop = UnicodeAttribute(hash_key=True, attr_name="s")
    number = NumberAttribute(range_key=True, attr_name="n")
    version = VersionAttribute(attr_name="v")
    note = UnicodeAttribute(null=True)


class Shop(Model):
    class Meta:
        table_name = "shops"
        region = "eu-west-1"

    name = UnicodeAttribute(hash_key=True)


@pytest.fixture
def connection():
    return Connection(region="eu-west-1", host="http://127.0.0.1:9")


def test_keys_are_named_serialized_and_created_as_in_a_request():
    assert (private.hash_key_name(Order), private.range_key_name(Order)) == ("shop", "number")
    assert (private.hash_key_name(Shop), private.range_key_name(Shop)) == ("name", None)
    assert private.serialized_key(Order("a", 1)) == ("a", "1")
    assert private.serialized_key(Shop("a")) == ("a", None)
    schema = private.schema_of(Order)
    keys = {each["AttributeName"]: each["KeyType"] for each in schema["key_schema"]}
    definitions = schema["attribute_definitions"]
    types = {each["AttributeName"]: each["AttributeType"] for each in definitions}
    assert (keys, types) == ({"s": "HASH", "n": "RANGE"}, {"s": "S", "n": "N"})


def test_connection_is_the_models_own_until_it_is_forgotten():
    own = private.connection_of(Order)
    assert own is private.connection_of(Order)
    assert (own.table_name, own.connection.host) == ("orders", "http://127.0.0.1:9")
    assert private.access_key_of(own.connection) == "model's"
    assert private.access_key_of(Connection(region="eu-west-1")) is None
    assert private.credentials_of(own.connection.client).method == "explicit"
    private.forget_connection(Order)
    assert private.connection_of(Order) is not own

    moved = private.client_elsewhere(own.connection, "http://127.0.0.1:8")
    assert moved is own.connection.client
    assert moved.meta.endpoint_url == "http://127.0.0.1:8"

    # a subclass would have its parent's
    class Copy(Order):
        class Meta:
            table_name = "orders"
            region = "us-east-1"
            host = None

    private.forget_connection(Copy)
    regions = [private.connection_of(model).connection.region for model in (Copy, Order)]
    assert regions == ["us-east-1", "eu-west-1"]


@pytest.mark.parametrize(("is_left_alone", "attempts"), [(False, 1), (True, 4)])
def test_client_makes_one_attempt_whatever_the_settings_say(monkeypatch, is_left_alone, attempts):
    standard = {"max_attempts": 3, "mode": "standard"}
    monkeypatch.setitem(default_settings_dict, "retry_configuration", standard)
    table = TableConnection("orders", region="eu-west-1", max_retry_attempts=0)
    if not is_left_alone:
        private.without_retry_modes(table)
    config = table.connection.client.meta.config  # type: ignore[attr-defined]  # botocore's
    assert config.retries["total_max_attempts"] == attempts


def test_version_condition_adds_the_next_version_to_a_put_and_to_an_update():
    row, attributes, actions = Order("a", 1, version=3), {}, []
    condition = private.version_condition(row, attributes, None)
    assert (str(condition), attributes) == ("v = {'N': '3'}", {"v": {"N": "4"}})
    private.version_condition(row, None, actions)
    assert [str(action) for action in actions] == ["v {'N': '1'}"]
    assert str(private.version_condition(Order("a", 1), {}, None)) == "attribute_not_exists (v)"
    assert private.version_condition(Shop("a"), {}, None) is None


def test_transaction_knows_its_connection_token_and_items_in_the_order_of_the_request(connection):
    """A reason of a cancellation has no more than its place to say which item it is about."""
    sent = []
    connection.dispatch = lambda _, kwargs: sent.append(kwargs) or {}  # type: ignore[method-assign, assignment]
    assert private.request_token_of(TransactWrite(connection=connection)) is None
    with TransactWrite(connection=connection, client_request_token="t") as transaction:
        assert private.connection_of_transaction(transaction) is connection
        assert private.request_token_of(transaction) == "t"
        transaction.save(Order("a", 2))
        transaction.condition_check(Order, "a", 4, Order.note.exists())
        transaction.delete(Order("a", 3, version=1))
        transaction.update(Order("a", 1, version=1), [Order.note.set("x")])
        items = list(private.items_of(transaction))
    assert len(items) == 4
    assert [next(iter(each.items())) for each in sent[0]["TransactItems"]] == items


def test_options_are_what_the_caller_asked_to_be_shown(connection):
    assert private.options_of(TransactWrite(connection=connection)) == {}
    options = {"return_consumed_capacity": "TOTAL", "return_item_collection_metrics": "SIZE"}
    shown = {"ReturnConsumedCapacity": "TOTAL", "ReturnItemCollectionMetrics": "SIZE"}
    assert private.options_of(TransactWrite(connection=connection, **options)) == shown


def test_commit_that_is_put_in_place_commits_each_transaction_and_versions_follow(connection):
    committed = []

    def commit(transaction):
        committed.append(transaction)

    before = private.replace_commit(TransactWrite, commit)
    new, old = Order("a", 1), Order("a", 2, version=5)
    try:
        with TransactWrite(connection=connection) as transaction:
            transaction.save(new)
            transaction.save(old)
        assert committed == [transaction]
    finally:
        assert private.replace_commit(TransactWrite, before) is commit
    private.update_local_versions(transaction)
    assert (new.version, old.version) == (1, 6)


def test_each_function_has_a_test():
    functions = {name for name, _ in inspect.getmembers(private, inspect.isfunction)}
    own = {name for name in functions if getattr(private, name).__module__ == private.__name__}
    tree = ast.parse(Path(__file__).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert own - used == set()


def test_private_names_of_pynamodb_are_in_that_module_alone():
    own = Path(inspect.getfile(private))
    found = {
        (node.attr, path)
        for path in own.parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
    }
    # our own modules have connections and credentials too
    names = {name for name, path in found if path == own} - {"_connection", "_credentials"}
    assert len(names) >= 14
    assert [each for each in found if each[0] in names and each[1] != own] == []
