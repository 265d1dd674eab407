"""Options choose the table, where it is, and as whom it is reached; each command takes them."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from botocore.exceptions import BotoCoreError, ClientError
from pynamodb.exceptions import PynamoDBException, TableDoesNotExist
from pynamodb.models import Model

from pynamodb_mutex._dynamodb.answers import explained
from pynamodb_mutex._protocol.messages import one_line, shown
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.cli import INTERRUPTED
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.rows import RowLockMixin

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = 1
"""Exit code: something went wrong; what, is on standard error."""


class Failure(click.ClickException):
    """What ends a command with a message on standard error."""

    exit_code = FAILED


_WRONG_PLACE = "wrong region or profile?"

IF_NO_TABLE = f"{_WRONG_PLACE} If not, pynamodb-mutex create-table makes it"
"""What to do where there is no lock table. Often there is one, elsewhere."""


class Place:
    """Where the locks are, as the options say.

    Attributes:
        environment: This process's, before any option changed it: what a command that is run gets.
    """

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self.chosen: dict[str, str] = {}
        self._model: type[Model] | None = None

    def lock_model(self) -> type[LockItem]:
        """Return the lock table.

        Raises:
            click.BadParameter: If there is no such class, or it is a model of rows.
        """
        model = self.model()
        if not issubclass(model, LockItem):
            msg = f"{model.__name__} is a model of rows; this needs a lock table, a LockItem"
            raise click.BadParameter(msg, param_hint="--model")
        return model

    def model(self) -> type[Model]:
        """Return the lock table, or the model whose rows carry locks.

        Raises:
            click.BadParameter: If there is no such class.
        """
        if self._model is None:
            self._model = self._located()
        return self._model

    def _located(self) -> type[Model]:
        if "profile" in self.chosen:
            # also for what PynamoDB opens later, and so that credentials are refreshed
            os.environ["AWS_PROFILE"] = self.chosen["profile"]
            for name in _BEFORE_A_PROFILE:
                os.environ.pop(name, None)
        base = _imported(self.chosen["model"]) if "model" in self.chosen else LockItem
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
        """Name the table and where it is, for people."""
        connection = current_process().store(self.model()).connection
        meta = connection.pynamodb.client.meta
        where = f"table {connection.table_name} in {meta.region_name}"
        endpoint: str = meta.endpoint_url
        return where if endpoint.endswith(_AWS) else f"{where} at {endpoint}"

    def without_table(self) -> str:
        """Say that the table is not there, where it was sought, and what to do."""
        model = self.model()
        # the command makes lock tables alone
        advice = IF_NO_TABLE if issubclass(model, LockItem) else _WRONG_PLACE
        connection = current_process().store(model).connection
        connection.open()
        return f"there is no table {model.Meta.table_name} in {connection.where}: {advice}"


_BEFORE_A_PROFILE = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""What botocore prefers to a profile that is named by a variable, but not to one that is asked for."""

_AWS = (".amazonaws.com", ".amazonaws.com.cn")


def elsewhere(base: type[Model], settings: dict[str, Any]) -> type[Model]:
    """Return a model with other settings in its Meta."""
    own: Any = base.Meta
    meta = type("Meta", (own,), settings)
    # PynamoDB would go on with the connection of the model that this one is made from
    return type(base.__name__, (base,), {"Meta": meta, "_connection": None})


def _imported(name: str) -> type[Model]:
    """Import ``module:Class``, also from the current directory."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise click.BadParameter("as in shop.locks:ShopLock", param_hint="--model")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:
        # whatever a user's module raises
        msg = f"{name}: {type(error).__name__}: {one_line(error)}"
        raise click.BadParameter(msg, param_hint="--model") from error
    if not (isinstance(found, type) and issubclass(found, (LockItem, RowLockMixin))):
        msg = f"{name} is neither a LockItem nor a model with row locks"
        raise click.BadParameter(msg, param_hint="--model")
    kept_in = getattr(found, "lock_model", None)
    if kept_in is not None:
        msg = (
            f"{name} keeps its locks in {kept_in.__name__}: name that one; "
            "the keys there are as in TABLE/HASH-KEY/RANGE-KEY"
        )
        raise click.BadParameter(msg, param_hint="--model")
    return found


def _choose(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Note an option's value: of the command, else of the group before it, else of the environment."""
    place = context.find_root().ensure_object(Place)
    if value is None:
        return
    if not value.strip():
        raise click.BadParameter("is empty")
    if parameter.name == "endpoint_url":
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise click.BadParameter(f"{shown(value)} is no URL as in http://localhost:8000")
    place.chosen[parameter.name or ""] = value


def place_options() -> list[click.Parameter]:
    """Return the options that stand before or after the command's name."""
    return [
        click.Option(
            [f"--{name}"],
            help=text,
            metavar=metavar,
            expose_value=False,
            callback=_choose,
            # LockItem reads the variable itself; a model of one's own has a table of its own
            allow_from_autoenv=name != "table",
        )
        for name, metavar, text in (
            ("table", "NAME", "The table; pynamodb-mutex, or PYNAMODB_MUTEX_TABLE, by default."),
            ("region", "NAME", "AWS region; as boto3 finds it by default."),
            ("endpoint-url", "URL", "Another endpoint, such as DynamoDB Local's."),
            ("profile", "NAME", "AWS profile; as boto3 finds it by default."),
            ("model", "MODULE:CLASS", "A LockItem, or a model with row locks, of your own."),
        )
    ]


class AppCommand(click.Command):
    """A command that takes the options of place too, and reports failures in one line."""

    def __init__(self, name: str | None = None, **more: Any) -> None:
        more["params"] = [*(more.get("params") or []), *place_options()]
        super().__init__(name, **more)

    def invoke(self, context: click.Context) -> Any:
        """Run the command; what DynamoDB refuses is reported without a traceback, as Ctrl-C is."""
        try:
            return super().invoke(context)
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted", err=True)
            context.exit(INTERRUPTED)
        except TableDoesNotExist as error:
            raise Failure(context.ensure_object(Place).without_table()) from error
        except BotoCoreError as error:
            # of a client that a command makes itself: the library's own requests say what to set
            raise Failure(one_line(explained(error))) from error
        except (PynamoDBException, ClientError) as error:
            raise Failure(one_line(error)) from error
        except ValueError as error:
            # botocore's, of an endpoint that the environment or a profile names
            if not str(error).startswith("Invalid endpoint"):
                raise
            raise Failure(one_line(error)) from error


pass_place = click.make_pass_decorator(Place, ensure=True)
