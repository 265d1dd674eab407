"""Child processes for scenarios, forked from the one that measures.

That one has imported everything before, so that many children start quickly. Clients are made after the fork:
parent and child must not share a connection. They talk through a pipe.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from typing import Any

import boto3
import botocore.loaders
import botocore.session

from pynamodb_mutex.testing import Engine, environment

_FORK = multiprocessing.get_context("fork")

PATIENCE = 120.0
"""Seconds after which a child that sends nothing is taken for hung."""


class ChildError(Exception):
    """A child has raised an error, has ended, or sends nothing."""


def preload() -> None:
    """Read botocore's description of DynamoDB once, before the fork; each client would read it again otherwise."""
    loader = botocore.loaders.create_loader()
    botocore.session.create_loader = lambda *_: loader
    session = botocore.session.get_session()
    session.create_client("dynamodb", region_name="us-east-1")
    boto3.Session(region_name="us-east-1", botocore_session=session).resource("dynamodb")


class Child(AbstractContextManager["Child"]):
    """A child process that runs a function, and is killed on leaving the block: as if its machine failed.

    The function gets its end of the pipe and then the arguments. `hear` returns what it sends and, in the
    end, what it returns. The process ends then, whatever threads of it still run.

    Args:
        engine: The engine that the clients of the child use.
        function: The function.
        *arguments: More arguments of the function.
    """

    def __init__(self, engine: Engine, function: Callable[..., Any], *arguments: Any) -> None:
        self._pipe, theirs = _FORK.Pipe()
        # sends a value, for which the child waits; and for `multiprocessing.connection.wait`
        self.send, self.fileno = self._pipe.send, self._pipe.fileno
        body = (engine, function, theirs, arguments)
        self._process = _FORK.Process(target=_body, args=body, daemon=True)
        self._process.start()
        self.pid = self._process.pid
        theirs.close()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def hear(self) -> Any:
        """Return the next value that the child sends.

        Raises:
            ChildError: If the child has raised an error, has ended, or sends nothing.
        """
        if not self._pipe.poll(PATIENCE):
            raise ChildError(f"nothing was heard of it for {PATIENCE:g} s")
        try:
            value = self._pipe.recv()
        except EOFError:
            raise ChildError("it has ended") from None
        if isinstance(value, ChildError):
            raise value
        return value

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _body(
    engine: Engine, function: Callable[..., Any], pipe: Connection, arguments: tuple[Any, ...]
) -> None:
    """Run a function in the child, and end the process."""
    # libraries log a warning for each lock that is held or lost; the scenarios count these
    logging.lastResort = logging.NullHandler()
    try:
        found = environment(engine)
        os.environ.clear()
        os.environ.update(found)
        pipe.send(function(pipe, *arguments))
    except Exception as error:
        pipe.send(ChildError(f"{type(error).__name__}: {error}"[:300]))
        traceback.print_exc()
    os._exit(0)  # not sys.exit, which would wait for the threads of the libraries
