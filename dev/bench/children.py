"""Processes that are forked from the one that measures, which has imported everything and made nothing.

So starting many of them is cheap; clients are made after the fork.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from typing import Any

import botocore.loaders
import botocore.session

from pynamodb_mutex.testing import Engine, environment

_FORK = multiprocessing.get_context("fork")

PATIENCE = 120.0
"""Seconds within which a child must have said what it is asked for."""


class ChildError(Exception):
    """What a child raised, or that it is gone."""


def preload() -> None:
    """Read once, before the fork, what botocore reads for each client: the description of DynamoDB."""
    loader = botocore.loaders.create_loader()
    botocore.session.create_loader = lambda *_: loader
    session = botocore.session.get_session()
    session.create_client("dynamodb")
    import boto3

    boto3.Session(botocore_session=session).resource("dynamodb")


class Child:
    """A process that runs a function, whose first argument is the pipe to us.

    What it sends, and in the end returns, is heard here. It never waits for its threads.
    """

    def __init__(self, engine: Engine, function: Callable[..., Any], *arguments: Any) -> None:
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(
            target=_body, args=(engine, function, theirs, arguments), daemon=True
        )
        self._process.start()
        theirs.close()

    def send(self, value: Any = None) -> None:
        self._pipe.send(value)

    def hear(self, patience: float = PATIENCE) -> Any:
        """Return what it says next.

        Raises:
            ChildError: It raised, has ended, or says nothing.
        """
        if not self._pipe.poll(patience):
            raise ChildError(f"nothing was heard of it for {patience:g} s")
        try:
            value, error = self._pipe.recv()
        except EOFError:
            raise ChildError("it has ended") from None
        if error is not None:
            raise ChildError(error)
        return value

    def fileno(self) -> int:
        """Return what becomes readable when it says something: for `multiprocessing.connection.wait`."""
        return self._pipe.fileno()

    def kill(self) -> None:
        """End it as a machine that fails would."""
        self._process.kill()
        self._process.join()


class _Pipe:
    """What a child has of the pipe."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.wait = connection.recv

    def say(self, value: Any = None, error: str | None = None) -> None:
        self._connection.send((value, error))


def _body(
    engine: Engine, function: Callable[..., Any], connection: Any, arguments: tuple[Any, ...]
) -> None:
    pipe = _Pipe(connection)
    try:
        found = environment(engine)
        os.environ.clear()
        os.environ.update(found)
        pipe.say(function(pipe, *arguments))
    except Exception as error:
        pipe.say(error=f"{type(error).__name__}: {error}"[:300])
        traceback.print_exc()
    os._exit(0)
