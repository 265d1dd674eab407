"""Which locks a command is about: the table, where it is, and as whom it is reached."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from botocore.exceptions import BotoCoreError, ClientError
from pynamodb.exceptions import PynamoDBException, TableDoesNotExist

from pynamodb_mutex.models import LockItem

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = 1
"""Exit code: something went wrong; what, is on standard error."""


class Failure(click.ClickException):
    """What ends a command with a message on standard error."""

    exit_code = FAILED


class Place:
    """Where the locks are, as the options say.

    Attributes:
        environment: This process's, before any option changed it: what a command that is run gets.
    """

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = dict(os.environ)
        self.chosen: dict[str, str] = {}
        self._model: type[LockItem] | None = None

    def lock_model(self) -> type[LockItem]:
        """Return the lock table.

        Raises:
            click.BadParameter: If there is no such class.
        """
        if self._model is None:
            self._model = self._lock_model()
        return self._model

    def _lock_model(self) -> type[LockItem]:
        if "profile" in self.chosen:
            # also for what PynamoDB opens later, and so that credentials are refreshed
            os.environ["AWS_PROFILE"] = self.chosen["profile"]
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
        return type(base.__name__, (base,), {"Meta": type("Meta", (base.Meta,), settings)})


def _imported(name: str) -> type[LockItem]:
    """Import ``module:Class``, also from the current directory."""
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise click.BadParameter("as in shop.locks:ShopLock", param_hint="--model")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise click.BadParameter(str(error), param_hint="--model") from error
    if not (isinstance(found, type) and issubclass(found, LockItem)):
        raise click.BadParameter(f"{name} is no LockItem", param_hint="--model")
    return found


def _choose(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Note an option's value: of the command, else of the group before it, else of the environment."""
    place = context.find_root().ensure_object(Place)
    if value is not None:
        place.chosen[parameter.name or ""] = value


def place_options() -> list[click.Parameter]:
    """Return the options that stand before or after the command's name."""
    return [
        click.Option(
            [f"--{name}"], help=text, metavar=metavar, expose_value=False, callback=_choose
        )
        for name, metavar, text in (
            ("table", "NAME", "The lock table; pynamodb-mutex by default."),
            ("region", "NAME", "AWS region; as boto3 finds it by default."),
            ("endpoint-url", "URL", "Another endpoint, such as DynamoDB Local's."),
            ("profile", "NAME", "AWS profile; as boto3 finds it by default."),
            ("model", "MODULE:CLASS", "A LockItem of your own, with its table and names."),
        )
    ]


class AppCommand(click.Command):
    """A command that takes the options of place too, and tells failures in one line."""

    def __init__(self, name: str | None = None, **more: Any) -> None:
        more["params"] = [*(more.get("params") or []), *place_options()]
        super().__init__(name, **more)

    def invoke(self, context: click.Context) -> Any:
        """Run the command; what DynamoDB refuses is told without a traceback."""
        try:
            return super().invoke(context)
        except TableDoesNotExist as error:
            name = context.ensure_object(Place).lock_model().Meta.table_name
            raise Failure(
                f"there is no table {name}; pynamodb-mutex create-table makes it"
            ) from error
        except (PynamoDBException, BotoCoreError, ClientError) as error:
            raise Failure(str(error)) from error


class AppGroup(click.Group):
    """The group of all commands."""

    command_class = AppCommand

    def __init__(self, name: str | None = None, **more: Any) -> None:
        more["params"] = [*(more.get("params") or []), *place_options()]
        super().__init__(name, **more)


pass_place = click.make_pass_decorator(Place, ensure=True)
