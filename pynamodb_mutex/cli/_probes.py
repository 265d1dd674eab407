"""Probes: requests that change nothing and find out about the table, the clocks and the permissions."""

from __future__ import annotations

import enum
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError

from pynamodb_mutex._dynamodb import answers
from pynamodb_mutex._dynamodb.answers import UNWRAPPED, came_from_the_body, instant_of
from pynamodb_mutex._dynamodb.connection import CONNECT_TIMEOUT, READ_TIMEOUT
from pynamodb_mutex._dynamodb.keys import key_of
from pynamodb_mutex._protocol.messages import one_line
from pynamodb_mutex._protocol.server_time import GRAIN
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex.cli._infrastructure import USES
from pynamodb_mutex.cli._place import IF_NO_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb_mutex.models import LockItem

MISSING = "ResourceNotFoundException"
"""Error code where there is no table."""

NOT_DYNAMODBS = "NotDynamoDBs"
"""In place of an error code: something other than DynamoDB answered."""

UNREACHABLE = "Unreachable"
"""In place of an error code: no answer."""

UNSENT = "Unsent"
"""In place of an error code: not sent, for lack of credentials, region or a valid endpoint."""

_ANSWERS = {
    "BatchExecuteStatement": "Responses",
    "BatchGetItem": "Responses",
    "DescribeTable": "Table",
    "DescribeTimeToLive": "TimeToLiveDescription",
    "Scan": "Items",
}
"""A field that each answer has: botocore returns an empty answer where it cannot read one."""

_PATIENCE = 2
"""Consecutive requests without an answer after which no further ones are sent."""

_REFUSED = {"ConditionalCheckFailedException", "TransactionCanceledException"}
_NOT_UNDERSTOOD = {"UnknownOperationException", "ValidationException"}
_TRANSACTIONS = "transaction() and for_keys"
_CODES = {
    "AccessDenied": "AccessDeniedException",
    "ConditionalCheckFailed": "ConditionalCheckFailedException",
    "ValidationError": "ValidationException",
}
"""Error codes of a statement in a batch, and those of a single request."""


class Verdict(enum.Enum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    """Locks work, but some features do not, or not for ever."""
    PROBLEM = "problem"
    """Locks do not work, or are not safe."""
    UNCHECKED = "unchecked"
    """The check was not possible."""


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        check: Name of the check.
        verdict: The result.
        what: The reason, one line.
        advice: What to do, one line; empty if nothing.
    """

    check: str
    verdict: Verdict
    what: str
    advice: str = ""


def ok(check: str, what: str) -> Finding:
    """Return a finding without a fault."""
    return Finding(check, Verdict.OK, what)


def warning(check: str, what: str, advice: str) -> Finding:
    """Return a warning."""
    return Finding(check, Verdict.WARNING, what, advice)


def problem(check: str, what: str, advice: str) -> Finding:
    """Return a problem."""
    return Finding(check, Verdict.PROBLEM, what, advice)


def unchecked(check: str, what: str, advice: str = "") -> Finding:
    """Return that a check was not possible, and why."""
    return Finding(check, Verdict.UNCHECKED, what, advice)


class Reply(NamedTuple):
    """The outcome of one request.

    Attributes:
        data: The answer, also that of an error.
        code: Code of the error, or None.
        message: Message of the error, or empty.
    """

    data: dict[str, Any]
    code: str | None = None
    message: str = ""

    @property
    def answered(self) -> bool:
        """Whether DynamoDB answered, be it by an error."""
        return self.code not in {NOT_DYNAMODBS, UNREACHABLE, UNSENT}

    @property
    def denied(self) -> bool:
        """Whether the permission is missing."""
        return self.code == "AccessDeniedException"

    @property
    def described(self) -> str:
        """The failure, one line."""
        text = {
            NOT_DYNAMODBS: "the answer is not from DynamoDB: check for a proxy or portal",
            UNREACHABLE: self.message,
            UNSENT: self.message,
        }.get(self.code or "", f"{self.code}: {self.message}")
        return one_line(text)


class Asker:
    """Sends requests about one table, each once and with short timeouts, whatever those of the model are.

    Attributes:
        table: Name of the table.
        store: The requests that the library would send.
        fastest: Seconds of the fastest round trip; None before the first answer.
        offset: Bounds in seconds of how far the clock of this host is ahead of DynamoDB's; None before
            the first answer with a date.
    """

    def __init__(self, model: type[LockItem]) -> None:
        timeouts = {
            "connect_timeout_seconds": CONNECT_TIMEOUT,
            "read_timeout_seconds": READ_TIMEOUT,
        }
        hurried = type("Meta", (model.Meta,), timeouts)
        self.store = current_process().store(type(model.__name__, (model,), {"Meta": hurried}))
        self.table: str = model.Meta.table_name
        self.fastest: float | None = None
        self.offset: tuple[float, float] | None = None
        self._silences = 0

    @property
    def client(self) -> Any:
        """The client of botocore.

        Raises:
            BotoCoreError: If there is none, as without a region.
        """
        return self.store.connection.pynamodb.client

    @property
    def where(self) -> str:
        """Region and endpoint."""
        connection = self.store.connection
        connection.open()
        return connection.where

    def ask(self, operation: str, request: dict[str, Any]) -> Reply:
        """Send one request, and return its outcome."""
        if self._silences >= _PATIENCE:
            return Reply({}, UNREACHABLE, "not sent: earlier requests were not answered")
        started, sent = time.monotonic(), time.time()
        reply = self._send(operation, request)
        took = time.monotonic() - started
        if reply.answered:
            self._silences = 0
            self.fastest = took if self.fastest is None else min(took, self.fastest)
            self._compare_clocks(reply, sent, sent + took)
        else:
            self._silences += 1
        return reply

    def _send(self, operation: str, request: dict[str, Any]) -> Reply:
        try:
            send = getattr(self.client, xform_name(operation))
            reply = Reply(send(**request))
        except ClientError as error:
            if error.operation_name != operation:
                # a request for credentials, such as AssumeRole
                return Reply({}, UNSENT, str(error))
            answer: Any = error.response
            reply = Reply(answer, answer["Error"]["Code"], answer["Error"]["Message"])
        except (NoConnectionError, HTTPClientError) as error:
            return Reply({}, UNREACHABLE, str(error))
        except UNWRAPPED:
            reply = Reply({})
        except (AttributeError, TypeError) as error:
            if not came_from_the_body(error):
                raise
            reply = Reply({})
        except (BotoCoreError, ValueError) as error:
            # no region, no credentials, or an invalid endpoint
            return Reply({}, UNSENT, str(error))
        whole = reply.code is not None or _ANSWERS.get(operation, "ResponseMetadata") in reply.data
        seen = answers.Reply(reply.data)
        return reply if whole and seen.is_dynamodbs else Reply({}, NOT_DYNAMODBS)

    def _compare_clocks(self, reply: Reply, sent: float, received: float) -> None:
        """Narrow the bounds: at some instant between sending and receiving, server time was in [Date, Date + 1 s)."""
        try:
            instant = instant_of(answers.Reply(reply.data).date or "")
        except ValueError:
            return
        low, high = sent - instant - GRAIN, received - instant
        if self.offset is not None and low <= self.offset[1] and self.offset[0] <= high:
            low, high = max(low, self.offset[0]), min(high, self.offset[1])
        self.offset = low, high


class Probes:
    """The requests, about one key."""

    def __init__(self, model: type[LockItem], asker: Asker, key: str) -> None:
        """Make the requests.

        Args:
            model: The lock table.
            asker: Sends them.
            key: Key of a row, which need not exist.

        Raises:
            InvalidKeyError: If the model cannot have this key.
        """
        self._ask = asker.ask
        self._table = asker.table
        self._rows = asker.store.requests
        self._key = key_of(model, key)
        self._values = {"mine": uuid.uuid4().hex, "version": "0", "known": "0", "next": "1"}
        self._values |= {"ttl": "1", "end": "1", "lease": "1", "free_since": "1"}

    def findings(self) -> Iterator[Finding]:
        """Try each permission, and transactions."""
        for action, use in USES.items():
            reply = self._send(action)
            if reply.denied and use.vital:
                advice = (
                    f"allow dynamodb:{action}: pynamodb-mutex policy --role {use.role} prints it"
                )
                yield problem(
                    action, f"not allowed; for {use.by}: {one_line(reply.message)}", advice
                )
            elif reply.code == MISSING and use.vital:
                # without the permission to describe the table, this is how its absence is noticed
                yield problem(action, "there is no such table", IF_NO_TABLE)
            elif reply.denied:
                advice = f"if you use that: pynamodb-mutex policy --role {use.role}"
                yield warning(action, f"not allowed; for {use.by}", advice)
            else:
                yield _judged(action, use.by, reply)
        reply = self._transact({"Update": self._rows.guard.fill(self._key, self._values)})
        if reply.denied:
            what = f"UpdateItem is not allowed within transactions; for {_TRANSACTIONS}"
            advice = "check the policies of the role for the condition dynamodb:EnclosingOperation"
            yield warning("transactions", what, advice)
        else:
            yield _judged("transactions", _TRANSACTIONS, reply)

    def _send(self, action: str) -> Reply:
        table, rows, key, values = self._table, self._rows, self._key, self._values
        if action == "ConditionCheckItem":
            return self._transact({"ConditionCheck": rows.delete.fill(key, values)})
        if action == "PartiQLUpdate":
            statement = rows.renew_in_batch.fill(key, values)
            return _alone(self._ask("BatchExecuteStatement", {"Statements": [statement]}))
        requests: dict[str, dict[str, Any]] = {
            "UpdateItem": rows.release.fill(key, values),
            "DeleteItem": rows.delete.fill(key, values),
            "GetItem": {"TableName": table, "Key": key},
            "BatchGetItem": {"RequestItems": {table: {"Keys": [key]}}},
            "Scan": {"TableName": table, "Limit": 1},
        }
        return self._ask(action, requests.get(action, {"TableName": table}))

    def _transact(self, item: dict[str, Any]) -> Reply:
        return self._ask("TransactWriteItems", {"TransactItems": [item]})


def _alone(reply: Reply) -> Reply:
    """Return the answer to the only statement of a batch as that to a single request."""
    for statement in reply.data.get("Responses", ()):
        error = statement.get("Error", {})
        code = error.get("Code")
        return reply._replace(
            code=code and _CODES.get(code, code), message=error.get("Message", "")
        )
    return reply


def _judged(check: str, by: str, reply: Reply) -> Finding:
    """Judge a reply that is not a denial."""
    if reply.code is None or reply.code in _REFUSED:
        return ok(check, f"allowed; for {by}")
    if reply.code in _NOT_UNDERSTOOD:
        return warning(
            check, f"not supported ({reply.described}); for {by}", "do not use it at this endpoint"
        )
    return unchecked(check, reply.described)
