"""Child processes for scenarios, forked from the one that measures.

That one has imported everything before, so that many children start quickly. Clients are made after the fork:
parent and child must not share a connection. They talk through a pipe.
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
"""Seconds after which a child that sends nothing is taken for hung."""


class ChildError(Exception):
    """A child has raised an error, has ended, or sends nothing."""


def preload() -> None:
    """Read botocore's description of DynamoDB once, before the fork; each client would read it again otherwise."""
    loader = botocore.loaders.create_loader()
    botocore.session.create_loader = lambda *_: loader
    session = botocore.session.get_session()
    session.create_client("dynamodb")
    import boto3

    boto3.Session(botocore_session=session).resource("dynamodb")


class Child:
    """A child process that runs a function.

    The function gets its end of the pipe (`_Pipe`) and then the arguments. `hear` returns what it sends and, in the
    end, what it returns. The process ends then, whatever threads of it still run.

    Args:
        engine: The engine that the clients of the child use.
        function: The function.
        *arguments: More arguments of the function.
    """

    def __init__(self, engine: Engine, function: Callable[..., Any], *arguments: Any) -> None:
        self._pipe, theirs = _FORK.Pipe()
        self._process = _FORK.Process(
            target=_body, args=(engine, function, theirs, arguments), daemon=True
        )
        self._process.start()
        theirs.close()

    def send(self, value: Any = None) -> None:
        """Send a value, for which the child waits."""
        self._pipe.send(value)

    def hear(self, patience: float = PATIENCE) -> Any:
        """Return the next value that the child sends.

        Args:
            patience: Longest wait in seconds.

        Raises:
            ChildError: If the child has raised an error, has ended, or sends nothing.
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
        """Return the descriptor that becomes readable when the child sends: for `multiprocessing.connection.wait`."""
        return self._pipe.fileno()

    def kill(self) -> None:
        """Kill the child: it gets no chance to release anything, as if its machine failed."""
        self._process.kill()
        self._process.join()


class _Pipe:
    """A child's end of the pipe: ``wait`` returns the next value that the parent sends."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.wait = connection.recv

    def say(self, value: Any = None, error: str | None = None) -> None:
        """Send a value, or an error, to the parent."""
        self._connection.send((value, error))


def _body(
    engine: Engine, function: Callable[..., Any], connection: Any, arguments: tuple[Any, ...]
) -> None:
    """Run a function in the child, and end the process."""
    pipe = _Pipe(connection)
    try:
        found = environment(engine)
        os.environ.clear()
        os.environ.update(found)
        pipe.say(function(pipe, *arguments))
    except Exception as error:
        pipe.say(error=f"{type(error).__name__}: {error}"[:300])
        traceback.print_exc()
    os._exit(0)  # not sys.exit, which would wait for the threads of the libraries
