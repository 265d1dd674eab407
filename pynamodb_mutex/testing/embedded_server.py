"""The embedded DynamoDB: moto behind HTTP, in a process of its own.

Started by :func:`pynamodb_mutex.testing.engines.embedded_dynamodb` as
``python -m pynamodb_mutex.testing.embedded_server [PORT]``. Prints its URL on stdout once it
listens, and ends by itself when its parent does or closes its standard input.

moto checks a condition and then writes the item without a lock around both, so two concurrent conditional
writes can both be applied. Here one thread serves all requests, which makes each of them atomic.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import waitress
from moto.dynamodb import comparisons
from moto.dynamodb.exceptions import MockValidationException
from moto.dynamodb.responses import DynamoHandler
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.wrappers import Response

from pynamodb_mutex.testing.engines import when_parent_ends

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_DYNAMODB = "com.amazonaws.dynamodb.v20120810"
_TARGET = "HTTP_X_AMZ_TARGET"
_TOKEN_SECONDS = 600.0  # how long DynamoDB remembers a ClientRequestToken
_MAX_CONNECTIONS = 1000  # at waitress' own limit, 100, the next client gets no answer
_MOST_WRITTEN = 25
_DUPLICATES = "Provided list of item keys contains duplicates"
_TWICE = "Transaction request cannot include multiple operations on one item"
_IDLE_SECONDS = 24 * 3600  # no client of a test is to find its connection closed while idle


class DynamoDBRules:
    """WSGI middleware that adds to moto 5.2 what DynamoDB does and moto does not.

    A ``ClientRequestToken`` makes TransactWriteItems idempotent, and UpdateTimeToLive refuses a request that
    changes nothing. For a server with a single thread only: it has no lock.

    Args:
        app: moto's application.
        clock: A clock in seconds that never goes back.
    """

    def __init__(self, app: WSGIApplication, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        # (caller, token) -> (when it was answered, the items requested, the answer), oldest first
        self._answers: OrderedDict[tuple[str, str], tuple[float, Any, Response]] = OrderedDict()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request, as WSGI defines it."""
        operation = environ.get(_TARGET, "").rpartition(".")[2]
        if operation == "TransactWriteItems":
            return self._transact_write(environ)(environ, start_response)
        if operation == "UpdateTimeToLive":
            return self._update_ttl(environ)(environ, start_response)
        if operation == "DescribeTimeToLive":
            return self._describe_ttl(environ)(environ, start_response)
        return self._app(environ, start_response)

    def _transact_write(self, environ: WSGIEnvironment) -> Response:
        request = _read_json(environ)
        token = request.get("ClientRequestToken")
        if not isinstance(token, str):
            return self._forward(environ)
        # As in DynamoDB Local, only the items are compared: the options of the answer may differ.
        items = request.get("TransactItems")
        key = (_caller(environ), token)
        self._forget_old_answers()
        if key in self._answers:
            _, before, answer = self._answers[key]
            return answer if before == items else _mismatch(token)
        answer = self._forward(environ)
        if answer.status_code == HTTPStatus.OK:  # a cancelled transaction may be sent again
            # Clients learn server time from the Date. Without one here, waitress adds the current one to each answer.
            answer.headers.pop("Date", None)
            self._answers[key] = (self._clock(), items, answer)
        return answer

    def _forget_old_answers(self) -> None:
        while self._answers:
            key, (answered, _, _) = next(iter(self._answers.items()))
            if self._clock() - answered < _TOKEN_SECONDS:
                return
            del self._answers[key]

    def _update_ttl(self, environ: WSGIEnvironment) -> Response:
        request = _read_json(environ)
        requested = request.get("TimeToLiveSpecification", {})
        table = {"TableName": request.get("TableName")}
        found = self._describe_ttl(_instead(environ, "DescribeTimeToLive", table))
        if found.status_code != HTTPStatus.OK:
            return found
        present = json.loads(found.data)["TimeToLiveDescription"]
        enabled = present["TimeToLiveStatus"] == "ENABLED"
        if enabled and requested.get("AttributeName") != present["AttributeName"]:
            return _invalid("TimeToLive is active on a different AttributeName")
        if requested.get("Enabled") == enabled:
            return _invalid(f"TimeToLive is already {'enabled' if enabled else 'disabled'}")
        return self._forward(environ)

    def _describe_ttl(self, environ: WSGIEnvironment) -> Response:
        answer = self._forward(environ)
        if answer.status_code == HTTPStatus.OK:
            return answer
        # moto calls the error ResourceNotFound, which clients do not recognise as that of a missing table.
        return _error(f"{_DYNAMODB}#ResourceNotFoundException", "Requested resource not found")

    def _forward(self, environ: WSGIEnvironment) -> Response:
        return Response.from_app(self._app, environ, buffered=True)


def _read_json(environ: WSGIEnvironment) -> dict[str, Any]:
    """Return the request's body, and leave it to be read again; an empty dict if it is no JSON object."""
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    try:
        content = json.loads(body)
    except ValueError:
        return {}  # moto gets the same body, and answers with the right error
    return content if isinstance(content, dict) else {}


def _instead(environ: WSGIEnvironment, operation: str, content: dict[str, Any]) -> WSGIEnvironment:
    """Return a request of the same caller for another operation."""
    body = json.dumps(content).encode()
    return {
        **environ,
        _TARGET: environ[_TARGET].rpartition(".")[0] + f".{operation}",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }


def _caller(environ: WSGIEnvironment) -> str:
    """Return who signed the request, and for which region. A ClientRequestToken counts within these only."""
    signed = re.search(r"Credential=([^/]*)/[^/]*/([^/]*)/", environ.get("HTTP_AUTHORIZATION", ""))
    return "/".join(signed.groups()) if signed else ""


def _mismatch(token: str) -> Response:
    return _error(
        f"{_DYNAMODB}#IdempotentParameterMismatchException",
        f"ClientRequestToken {token} was used for other TransactItems",
    )


def _invalid(message: str) -> Response:
    return _error("com.amazon.coral.validate#ValidationException", message)


def _error(kind: str, message: str) -> Response:
    return _answer({"__type": kind, "message": message}, HTTPStatus.BAD_REQUEST)


def _answer(content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(json.dumps(content), status, content_type="application/x-amz-json-1.0")


def _false_between_types(comparison: type[Any]) -> None:
    """Make a comparison of values of different types false, as it is for DynamoDB. moto raises an error."""
    plain = comparison.expr

    def expr(self: Any, item: Any) -> bool:
        try:
            holds: bool = plain(self, item)
        except TypeError:
            return False
        return holds

    comparison.expr = expr


def _requested_rows(handler: Any) -> list[list[tuple[str, str]]]:
    """Return the rows that a batch or transaction names: for each of its lists, the tables and keys."""

    def row(name: str, part: dict[str, Any]) -> tuple[str, str]:
        key = part.get("Key")
        if key is None:  # a Put
            names = handler.dynamodb_backend.get_table(name).table_key_attrs
            key = {each: part["Item"].get(each) for each in names}
        return name, json.dumps(key, sort_keys=True)

    parts = handler.body.get("TransactItems")
    if parts is not None:
        return [[row(part["TableName"], part) for each in parts for part in each.values()]]
    return [
        [row(name, part) for each in asked for part in each.values()]
        if isinstance(asked, list)  # writes; keys that are to be read stand in a dict
        else [row(name, {"Key": key}) for key in asked["Keys"]]
        for name, asked in handler.body["RequestItems"].items()
    ]


def _refuse_unfit(operation: str) -> None:
    """Make a batch or a transaction refuse to be empty, to name a row twice, and to write too much. moto accepts most of these."""
    plain = getattr(DynamoHandler, operation)

    def checked(self: Any) -> Any:
        lists = _requested_rows(self)
        if not lists or not all(lists):
            raise MockValidationException("a batch or transaction must have at least one item")
        rows = [row for each in lists for row in each]
        if operation == "batch_write_item" and len(rows) > _MOST_WRITTEN:
            raise MockValidationException(f"at most {_MOST_WRITTEN} items in a BatchWriteItem")
        if len(set(rows)) < len(rows):
            is_batch = operation.startswith("batch")
            raise MockValidationException(_DUPLICATES if is_batch else _TWICE)
        return plain(self)

    setattr(DynamoHandler, operation, checked)


def main(port: int = 0) -> None:
    """Serve until the parent process ends.

    Args:
        port: The port on 127.0.0.1; 0 for one that is free.
    """
    when_parent_ends(lambda: os._exit(0))
    # waitress warns whenever a request has to wait for another one. With one thread that is intended.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    for sign in ("<", "<=", ">", ">="):
        _false_between_types(comparisons.COMPARATOR_CLASS[sign])
    _false_between_types(comparisons.FuncBetween)
    for operation in (
        "batch_get_item",
        "batch_write_item",
        "transact_get_items",
        "transact_write_items",
    ):
        _refuse_unfit(operation)
    server = waitress.create_server(
        DynamoDBRules(DomainDispatcherApplication(create_backend_app)),
        host="127.0.0.1",
        port=port,
        threads=1,
        connection_limit=_MAX_CONNECTIONS,
        channel_timeout=_IDLE_SECONDS,
        asyncore_use_poll=True,  # select() fails beyond 1024 file descriptors
    )
    print(f"http://127.0.0.1:{server.effective_port}", flush=True)
    server.run()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
