"""Runs commands in this process, for programs, for people and on terminals; and reads and writes rows of the lock table."""

import json
import sys
from functools import partial

import click
import pytest
from botocore.exceptions import ClientError
from click.testing import CliRunner, Result, _NamedTextIOWrapper

from pynamodb_mutex import LockItem
from pynamodb_mutex._fair.waiting_line import new_entry
from pynamodb_mutex.cli._app import app

COMMAND = (sys.executable, "-m", "pynamodb_mutex.cli")
"""Starts a command in a process of its own."""

BROKEN = {"token": {"S": "t"}, "version": {"N": "7"}, "expires_at": {"S": "soon"}}
"""Attributes of a row that no mutex can read."""


def run_cli(*args, code=None, typed=None, meanwhile=None, **more) -> Result:
    """Run a command with the engine in use; an exception other than its exit fails the test.

    Args:
        args: The arguments after ``pynamodb-mutex``.
        code: The exit code that is expected, if any.
        typed: What a user types at a terminal; None if there is no terminal.
        meanwhile: Called while the command asks its question; then the user types yes.
        more: Options of `CliRunner.invoke`.
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
    """Run a command with ``--json``; return the object that it prints, if need be after a question."""
    printed = cli(*args, "--json", **more).stdout
    return json.loads(printed[printed.find("\n{") + 1 :])


def on_terminal(*args, columns=80, lines=24, **more):
    """Run a command on a terminal; return its output, as it is and without colours."""
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(lines), "NO_COLOR": None}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_NamedTextIOWrapper, "isatty", lambda _: True)
        sent = cli(*args, env=env, **more).output
    return sent, plain(sent)


def plain(sent):
    """Return a terminal's output without colours."""
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
    """Write attributes of a lock's row by hand."""
    actions = [getattr(LockItem, name).set(value) for name, value in values.items()]
    LockItem.get(key).update(actions, add_version_condition=False)


def entry(owner, began=None):
    """Return an entry of the waiting line, as a row stores it."""
    return new_entry(began, "0123456789abcdef", owner)


def refuse_request(operation, code, message):
    """Raise the error of a client for a request that DynamoDB refuses."""
    error = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}
    raise ClientError(error, operation)
