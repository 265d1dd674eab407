"""What the tests of commands share: models, rows as other programs write them, changes at a question, a terminal."""

import json
import re

import click
import pytest
from botocore.exceptions import ClientError
from cli import run_cli
from click.testing import _NamedTextIOWrapper
from pynamodb.attributes import BinaryAttribute, MapAttribute, NumberAttribute, UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import LockItem, RowLockMixin
from pynamodb_mutex._protocol.waiting_line import new_entry

BROKEN = {"token": {"S": "t"}, "version": {"N": "7"}, "expires_at": {"S": "soon"}}
"""Lock attributes that no mutex reads."""


class ShopLock(LockItem):
    """Other stored names, a range key, another kind of payload."""

    class Meta:
        table_name = "shop"

    key = UnicodeAttribute(hash_key=True, attr_name="pk")
    kind = UnicodeAttribute(range_key=True, attr_name="sk", default="LOCK")
    owner = UnicodeAttribute(null=True, attr_name="who")
    expires_at = NumberAttribute(null=True, attr_name="until")
    data = MapAttribute(null=True, attr_name="payload")


class Order(RowLockMixin, Model):
    class Meta:
        table_name = "orders"
        billing_mode = "PAY_PER_REQUEST"

    customer = UnicodeAttribute(hash_key=True)
    number = NumberAttribute(range_key=True)


class Blob(RowLockMixin, Model):
    class Meta:
        table_name = "blobs"
        billing_mode = "PAY_PER_REQUEST"

    digest = BinaryAttribute(hash_key=True, legacy_encoding=False)


class Kept(RowLockMixin, Model):
    lock_model = LockItem
    name = UnicodeAttribute(hash_key=True)


def client():
    return LockItem._get_connection().connection.client


def put(key, **attributes):
    row = {"key": {"S": key}, **attributes}
    client().put_item(TableName=LockItem.Meta.table_name, Item=row)
    return row


def stored(key):
    where = {"TableName": LockItem.Meta.table_name, "Key": {"key": {"S": key}}}
    return client().get_item(**where, ConsistentRead=True)["Item"]


def change(key, **values):
    """Write attributes of a lock as another program might."""
    actions = [getattr(LockItem, name).set(value) for name, value in values.items()]
    LockItem.get(key).update(actions, add_version_condition=False)


def entry(owner, began=None):
    """Return what stands in a row for one who waits in line."""
    return new_entry(began, "0123456789abcdef", owner)


def cli(*args, code=0, **more):
    """Run a command that ends with this exit code."""
    done = run_cli(*args, **more)
    assert done.exit_code == code, done.output
    return done


def json_of(*args, **more):
    """Run a command with ``--json``; return what it prints, after a question if it asks one."""
    printed = cli(*args, "--json", **more).stdout
    return json.loads(printed[printed.find("\n{") + 1 :])


def refuse_request(operation, code, message):
    """Raise what a client raises if DynamoDB refuses a request."""
    error = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}
    raise ClientError(error, operation)


def while_it_asks(meanwhile, *args, **more):
    """Run a command; when it asks, do something, and only then answer yes."""
    asks = click.confirm

    def confirm(*question, **options):
        meanwhile()
        return asks(*question, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(click, "confirm", confirm)
        return cli(*args, typed="y\n", **more)


def on_terminal(*args, columns=80, lines=24, **more):
    """Run a command on a terminal; return what it shows as sent, and without colours."""
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines), "NO_COLOR": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_NamedTextIOWrapper, "isatty", lambda _: True)
        sent = cli(*args, env=env, **more).output
    return sent, plain(sent)


def end_of(process):
    """Read what a terminal shows to the end; return the exit code, and what was shown, without colours."""
    sent = process.read()
    process.close()
    return process.exitstatus, plain(sent)


def plain(sent):
    """Return what a terminal shows of a text, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", sent)
