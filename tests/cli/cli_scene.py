"""What the tests of commands share: rows as other programs write them, changes at a question, a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress

import click
import pytest
from botocore.exceptions import ClientError
from cli import run_cli, terminal

from pynamodb_mutex import LockItem
from pynamodb_mutex._protocol.waiting_line import new_entry
from pynamodb_mutex.cli._app import app

BROKEN = {"token": {"S": "t"}, "version": {"N": "7"}, "expires_at": {"S": "soon"}}
"""Lock attributes that no mutex reads."""


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


def json_of(*args, **more):
    """Run a command with ``--json``; return what it prints."""
    done = run_cli(*args, "--json", **more)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def refuse_request(operation, code, message):
    """Raise what a client raises if DynamoDB refuses a request."""
    error = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}
    raise ClientError(error, operation)


def wrong_usage(*args):
    """Run a command that is used wrongly; return what it says."""
    done = run_cli(*args)
    assert (done.exit_code, "Traceback" in done.stderr) == (2, False), done.output
    return done.stderr


def while_it_asks(meanwhile, *args):
    """Run a command; when it asks, do something, and only then answer yes."""
    asks = click.confirm
    with terminal() as (ours, theirs), pytest.MonkeyPatch.context() as patch:

        def confirm(*question, **more):
            meanwhile()
            os.write(ours, b"y\n")
            return asks(*question, **more)

        patch.setattr(click, "confirm", confirm)
        return run_cli(*args, keyboard=theirs)


def on_terminal(*args, columns=80):
    """Run a command in this process on a terminal; return its exit code, and what it shows as sent and without colours."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("COLUMNS", str(columns))
        patch.delenv("NO_COLOR", raising=False)
        with pytest.raises(SystemExit) as exited:
            app(args, prog_name="pynamodb-mutex")
    with os.fdopen(ours, "rb", buffering=0) as screen:
        chunks = []
        with suppress(OSError):  # Linux ends what a closed terminal has shown by an error
            while chunk := screen.read(4096):
                chunks.append(chunk)
    sent = b"".join(chunks).decode()
    return exited.value.code or 0, sent, plain(sent)


def end_of(process):
    """Read what a terminal shows to the end; return the exit code, and what was shown, without colours."""
    sent = process.read()
    process.close()
    return process.exitstatus, plain(sent)


def plain(sent):
    """Return what a terminal shows of a text, without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", sent)
