"""The command line, run in this process: by programs, by people, or on a terminal; and rows of other programs."""

import json
import sys
from functools import partial

import click
import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner, Result, _NamedTextIOWrapper

from pynamodb_mutex import LockItem
from pynamodb_mutex._protocol.waiting_line import new_entry
from pynamodb_mutex.cli._app import app

COMMAND = (sys.executable, "-m", "pynamodb_mutex.cli")
"""The same in a process of its own."""

BROKEN = {"token": {"S": "t"}, "version": {"N": "7"}, "expires_at": {"S": "soon"}}
"""Lock attributes that no mutex reads."""


def run_cli(*args, code=None, typed=None, meanwhile=None, **more) -> Result:
    """Run a command with the engine in use; what it raises but an exit fails the test.

    Args:
        args: What follows ``pynamodb-mutex``.
        code: The exit code that it has to end with, if one.
        typed: What somebody types at a terminal; None if there is nobody.
        meanwhile: What is done while it asks; then yes is typed.
        more: As `CliRunner.invoke` takes it.
    """
    asks = click.confirm

    def confirm(*question, **options):
        meanwhile()
        return asks(*question, **options)

    with pytest.MonkeyPatch.context() as patch:
        if meanwhile is not None:
            typed = "y\n"
            patch.setattr(click, "confirm", confirm)
        if typed is not None:
            patch.setattr(_NamedTextIOWrapper, "isatty", lambda stream: stream.name == "<stdin>")
        texts = [str(each) for each in args]
        done = CliRunner().invoke(app, texts, input=typed, catch_exceptions=False, **more)
    assert code in (None, done.exit_code), done.output
    return done


cli = partial(run_cli, code=0)
run_here = partial(run_cli, "run")


def json_of(*args, **more):
    """Run a command with ``--json``; return what it prints, after a question if it asks one."""
    printed = cli(*args, "--json", **more).stdout
    return json.loads(printed[printed.find("\n{") + 1 :])


def on_terminal(*args, columns=80, lines=24, **more):
    """Run a command on a terminal; return what it shows as sent, and without colours."""
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines), "NO_COLOR": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_NamedTextIOWrapper, "isatty", lambda _: True)
        sent = cli(*args, env=env, **more).output
    return sent, plain(sent)


def plain(sent):
    """Return what a terminal shows of a text, without colours."""
    return click.unstyle(sent).replace("\r", "")


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
    """Return an entry of the waiting line, as a row stores it."""
    return new_entry(began, "0123456789abcdef", owner)


def refuse_request(operation, code, message):
    """Raise what a client raises if DynamoDB refuses a request."""
    error = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}
    raise ClientError(error, operation)
