"""Private names of PynamoDB: what other tests do not notice of them, and that they are in one module.

Those of keys, connections, schemas and versions are noticed wherever rows and tables are used.
"""

import ast
import inspect
from pathlib import Path

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute, VersionAttribute
from pynamodb.connection import Connection, TableConnection
from pynamodb.models import Model
from pynamodb.settings import default_settings_dict
from pynamodb.transactions import TransactWrite

from pynamodb_mutex._dynamodb import pynamodb_private as private


class Order(Model):
    class Meta:
        table_name = "orders"
        region = "eu-west-1"
        host = "http://127.0.0.1:9"  # nothing is sent

    shop = UnicodeAttribute(hash_key=True, attr_name="s")
    number = NumberAttribute(range_key=True, attr_name="n")
    version = VersionAttribute(attr_name="v")
    note = UnicodeAttribute(null=True)


@pytest.mark.parametrize(("is_left_alone", "attempts"), [(False, 1), (True, 4)])
def test_client_makes_one_attempt_whatever_the_settings_say(monkeypatch, is_left_alone, attempts):
    standard = {"max_attempts": 3, "mode": "standard"}
    monkeypatch.setitem(default_settings_dict, "retry_configuration", standard)
    table = TableConnection("orders", region="eu-west-1", max_retry_attempts=0)
    if not is_left_alone:
        private.without_retry_modes(table)
    assert table.connection.client.meta.config.retries["total_max_attempts"] == attempts


def test_transaction_knows_its_token_and_its_items_in_the_order_of_the_request():
    """A reason of a cancellation has no more than its place to say which item it is about."""
    sent = []
    connection = Connection(region="eu-west-1")
    connection.dispatch = lambda _, kwargs: sent.append(kwargs) or {}
    assert private.request_token_of(TransactWrite(connection=connection)) is None
    with TransactWrite(connection=connection, client_request_token="t") as transaction:
        assert private.request_token_of(transaction) == "t"
        transaction.save(Order("a", 2))
        transaction.condition_check(Order, "a", 4, Order.note.exists())
        transaction.delete(Order("a", 3, version=1))
        transaction.update(Order("a", 1, version=1), [Order.note.set("x")])
        items = list(private.items_of(transaction))
    assert len(items) == 4
    assert [next(iter(each.items())) for each in sent[0]["TransactItems"]] == items


def private_names(text):
    return {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
    }


def test_private_names_of_pynamodb_are_in_that_module_alone():
    # our own modules have connections too
    names = private_names(inspect.getsource(private)) - {"_connection"}
    assert len(names) >= 14
    own = Path(inspect.getfile(private))
    for path in set(own.parents[1].rglob("*.py")) - {own}:
        assert names.isdisjoint(private_names(path.read_text())), path
