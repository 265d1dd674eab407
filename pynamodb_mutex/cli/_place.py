"""What all commands have in common: the options that say where the locks are, and the report of failures.

`Place` collects the options and makes a model of them: the lock table, or a model of rows that carry locks. Each
command is an `AppCommand`, which takes these options and turns errors into one line on standard error. How locks are
read from a model is in `_locks`.
"""

from __future__ import annotations

import os
import sys
from functools import update_wrapper
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from botocore.exceptions import BotoCoreError, ClientError
from pynamodb.exceptions import PynamoDBException, TableDoesNotExist
from pynamodb.models import Model

from pynamodb_mutex._lock.dynamodb.answers import explained
from pynamodb_mutex._lock.dynamodb.connection import client_of
from pynamodb_mutex._lock.dynamodb.layout import Layout
from pynamodb_mutex._lock.protocol.messages import one_line
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._once.rows import OnceLayout
from pynamodb_mutex.cli._app import chosen, place_options
from pynamodb_mutex.cli._exit_codes import FAILED, INTERRUPTED
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.rows import RowLockMixin
from pynamodb_mutex.runs import OnceItem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Failure(click.ClickException):
    """Ends a command with a message on standard error."""

    exit_code = FAILED


_WRONG_PLACE = "wrong region or profile?"

IF_NO_TABLE = f"{_WRONG_PLACE} If not, pynamodb-mutex create-table creates it"
"""Advice where there is no lock table: often it exists in another region or account."""


class Place:
    """Where the locks are, according to the options.

    Attributes:
        environment: Environment variables before an option changed any; `run` passes them on to its command.
        chosen: Values of the options that were given, by their names.
    """

    def __init__(self, chosen: Mapping[str, str] = MappingProxyType({})) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self.chosen = chosen
        self._model: type[Model] | None = None

    def lock_model(self) -> type[LockItem]:
        """Return the model of the lock table.

        Raises:
            click.BadParameter: If there is no such class, or it is a model of rows that carry locks.
        """
        model = self.model()
        if not issubclass(model, LockItem):
            msg = f"{model.__name__} is a model of rows; this needs a lock table, a LockItem"
            raise click.BadParameter(msg, param_hint="--model")
        return model

    def model(self) -> type[Model]:
        """Return the model of the lock table, or the model whose rows carry locks.

        Raises:
            click.BadParameter: If there is no such class.
        """
        if self._model is None:
            self._model = self._located(LockItem)
        return self._model

    def once_model(self) -> type[OnceItem]:
        """Return the model of the keys of `once`, by default in the lock table.

        Raises:
            click.BadParameter: If there is no such class, or it is another model.
        """
        if "model" not in self.chosen:
            self._model = self._located(OnceItem)
        model = self.model()
        if not issubclass(model, OnceItem):
            msg = f"{model.__name__} is a model of locks; this needs one of once, an OnceItem"
            raise click.BadParameter(msg, param_hint="--model")
        return model

    def _located(self, default: type[Model]) -> type[Model]:
        if "profile" in self.chosen:
            # In the environment, for each session that PynamoDB opens takes it from there. Credentials put into the
            # model's Meta instead would not be refreshed when they expire.
            os.environ["AWS_PROFILE"] = self.chosen["profile"]
            for name in _BEFORE_A_PROFILE:
                os.environ.pop(name, None)
        base = _imported(self.chosen["model"]) if "model" in self.chosen else default
        settings: dict[str, Any] = {
            name: self.chosen[option]
            for option, name in (
                ("table", "table_name"),
                ("region", "region"),
                ("endpoint_url", "host"),
            )
            if option in self.chosen
        }
        return elsewhere(base, settings) if settings else base

    def __str__(self) -> str:
        """Return the table and its region or endpoint, for people."""
        connection = current_process().store(self.model()).connection
        meta = client_of(connection.pynamodb).meta
        where = f"table {connection.table_name} in {meta.region_name}"
        endpoint: str = meta.endpoint_url
        return where if endpoint.endswith(_AWS) else f"{where} at {endpoint}"

    def without_table(self) -> str:
        """Return the message for a missing table: where there is none, and what to do."""
        model = self.model()
        # create-table creates no tables of users' rows, so it is no advice for them
        advice = IF_NO_TABLE if issubclass(model, LockItem) else _WRONG_PLACE
        connection = current_process().store(model).connection
        connection.open()
        return f"there is no table {model.Meta.table_name} in {connection.where}: {advice}"


_BEFORE_A_PROFILE = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Variables that botocore prefers to AWS_PROFILE, but that an explicit --profile must override."""

_AWS = (".amazonaws.com", ".amazonaws.com.cn")
"""Ends of AWS's own endpoints, which messages do not show: the region identifies them."""


def elsewhere(base: type[Model], settings: dict[str, Any]) -> type[Model]:
    """Return a subclass of a model, with other settings in its Meta."""
    own: Any = base.Meta
    meta = type("Meta", (own,), settings)
    # None: otherwise the subclass would inherit the connection that PynamoDB has opened for the base class, and send
    # its requests to the table and endpoint of that.
    return type(base.__name__, (base,), {"Meta": meta, "_connection": None})


def _imported(name: str) -> type[Model]:
    """Import the model that ``module:Class`` names, also from the current directory.

    Raises:
        click.BadParameter: If it cannot be imported, or its locks are not in its own table.
    """
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise click.BadParameter(
            "give MODULE:CLASS, such as shop.locks:ShopLock", param_hint="--model"
        )
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:
        # a user's module may raise anything while it is imported
        msg = f"{name}: {type(error).__name__}: {one_line(error)}"
        raise click.BadParameter(msg, param_hint="--model") from error
    if not (isinstance(found, type) and issubclass(found, (LockItem, RowLockMixin))):
        msg = f"{name} is neither a LockItem nor a model with row locks"
        raise click.BadParameter(msg, param_hint="--model")
    kept_in = getattr(found, "lock_model", None)
    if kept_in is not None:
        msg = (
            f"{name} keeps its locks in {kept_in.__name__}: name that model; "
            "its keys have the form TABLE/HASH-KEY/RANGE-KEY"
        )
        raise click.BadParameter(msg, param_hint="--model")
    return found


class AppCommand(click.Command):
    """A command that takes the options of `Place` too, and reports failures in one line."""

    def __init__(self, name: str | None = None, **more: Any) -> None:
        more["params"] = [*(more.get("params") or []), *place_options()]
        super().__init__(name, **more)

    def invoke(self, context: click.Context) -> Any:
        """Run the command; report errors of DynamoDB, and Ctrl-C, without a traceback."""
        try:
            return super().invoke(context)
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            context.exit(INTERRUPTED)
        except TableDoesNotExist as error:
            raise Failure(place_of(context).without_table()) from error
        except BotoCoreError as error:
            # From a client that a command has made itself. The library explains the failures of its own requests.
            raise Failure(one_line(explained(error))) from error
        except (PynamoDBException, ClientError) as error:
            raise Failure(with_commands(one_line(error))) from error
        except ValueError as error:
            # botocore, or Python as it parses the URL, raises this for an invalid endpoint in the environment or in a
            # profile; --endpoint-url was checked. Any other ValueError is a defect, and shows its traceback.
            if not str(error).startswith(("Invalid endpoint", "Invalid IPv6 URL")):
                raise
            raise Failure(one_line(error)) from error


def with_commands(text: str) -> str:
    """Return an error's text with our commands in place of the calls of Python that put a row right."""
    for layout, command in ((Layout, "release --force"), (OnceLayout, "forget --force")):
        text = text.replace(layout.put_right_by, command)
    return text


def place_of(context: click.Context) -> Place:
    """Return the `Place` of the options, one for a call of the command line."""
    root = context.find_root()
    if root.obj is None:
        root.obj = Place(chosen(context))
    place: Place = root.obj
    return place


def pass_place(command: Callable[..., object]) -> Callable[..., object]:
    """Decorate the function of a command: pass the `Place` of the options as first argument."""

    def call(*args: Any, **kwargs: Any) -> object:
        return command(place_of(click.get_current_context()), *args, **kwargs)

    return update_wrapper(call, command)
