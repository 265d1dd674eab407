"""Probes ask DynamoDB, by requests that change nothing, about the table, the clocks and the permissions."""

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
"""The error's code where there is no table."""

NOT_DYNAMODBS = "NotDynamoDBs"
"""Instead of an error's code: something else answered."""

UNREACHABLE = "Unreachable"
"""Instead of an error's code: nothing answered."""

UNSENT = "Unsent"
"""Instead of an error's code: there is nothing to sign a request with, or no region to send it to."""

_ANSWERS = {
    "BatchExecuteStatement": "Responses",
    "BatchGetItem": "Responses",
    "DescribeTable": "Table",
    "DescribeTimeToLive": "TimeToLiveDescription",
    "Scan": "Items",
}
"""What an answer has at least: botocore takes one that it cannot read for an empty one."""

_PATIENCE = 2
"""Requests without an answer, one after the other, before the rest is given up."""

_REFUSED = {"ConditionalCheckFailedException", "TransactionCanceledException"}
_NOT_UNDERSTOOD = {"UnknownOperationException", "ValidationException"}
_TRANSACTIONS = "transaction() and for_keys"
_CODES = {
    "AccessDenied": "AccessDeniedException",
    "ConditionalCheckFailed": "ConditionalCheckFailedException",
    "ValidationError": "ValidationException",
}
"""Codes that a statement in a batch is answered by, and a request by itself."""


class Verdict(enum.Enum):
    """How it stands."""

    OK = "ok"
    WARNING = "warning"
    """Locks work, but not everything does, or not for ever."""
    PROBLEM = "problem"
    """Locks do not work, or are not safe."""
    UNCHECKED = "unchecked"
    """It could not be found out."""


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        check: Its name.
        verdict: How it stands.
        what: In a line, why.
        advice: What to do, in a line; empty if nothing is to be done.
    """

    check: str
    verdict: Verdict
    what: str
    advice: str = ""


def ok(check: str, what: str) -> Finding:
    """Return that a check found nothing wrong."""
    return Finding(check, Verdict.OK, what)


def warning(check: str, what: str, advice: str) -> Finding:
    """Return what somebody should know."""
    return Finding(check, Verdict.WARNING, what, advice)


def problem(check: str, what: str, advice: str) -> Finding:
    """Return what must be changed."""
    return Finding(check, Verdict.PROBLEM, what, advice)


def unchecked(check: str, what: str, advice: str = "") -> Finding:
    """Return that nothing is known, and why."""
    return Finding(check, Verdict.UNCHECKED, what, advice)


class Reply(NamedTuple):
    """What came of one request.

    Attributes:
        data: The answer; that of an error too, for what it says in addition to its code.
        code: Of the error, or None.
        message: Of the error, or empty.
    """

    data: dict[str, Any]
    code: str | None = None
    message: str = ""

    @property
    def answered(self) -> bool:
        """Whether DynamoDB answered, if only by an error."""
        return self.code not in {NOT_DYNAMODBS, UNREACHABLE, UNSENT}

    @property
    def denied(self) -> bool:
        """Whether the role may not do this."""
        return self.code == "AccessDeniedException"

    @property
    def described(self) -> str:
        """What failed, in a line."""
        text = {
            NOT_DYNAMODBS: "what answers is not DynamoDB: a proxy or portal on the way",
            UNREACHABLE: self.message,
            UNSENT: self.message,
        }.get(self.code or "", f"{self.code}: {self.message}")
        return one_line(text)


class Asker:
    """Asks about one table, each request once and with tight timeouts, whatever the model's are.

    Attributes:
        table: Its name.
        store: The requests that the library would send.
        fastest: Seconds of the fastest round trip, once there was an answer.
        offset: Bounds of how far this host's clock is ahead of DynamoDB's, in seconds; None as long as no
            answer had a date.
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
            BotoCoreError: If there can be none, as without a region.
        """
        return self.store.connection.pynamodb.client

    @property
    def where(self) -> str:
        """Region and endpoint."""
        connection = self.store.connection
        connection.open()
        return connection.where

    def ask(self, operation: str, request: dict[str, Any]) -> Reply:
        """Send one request, and return what came of it."""
        if self._silences >= _PATIENCE:
            return Reply({}, UNREACHABLE, "not asked, for nothing answered any more")
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
                # such as AssumeRole, on the way to credentials
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
            # no region, no credentials, or an endpoint that is no URL
            return Reply({}, UNSENT, str(error))
        whole = reply.code is not None or _ANSWERS.get(operation, "ResponseMetadata") in reply.data
        seen = answers.Reply(reply.data)
        return reply if whole and seen.is_dynamodbs else Reply({}, NOT_DYNAMODBS)

    def _compare_clocks(self, reply: Reply, sent: float, received: float) -> None:
        """Narrow down the offset: at some instant between the two, the time was within a second of the date."""
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
            model: Whose table it is.
            asker: Asks there.
            key: Of a row, which need not exist.

        Raises:
            InvalidKeyError: If the model can have no such key.
        """
        self._ask = asker.ask
        self._table = asker.table
        self._rows = asker.store.requests
        self._key = key_of(model, key)
        self._values = {"mine": uuid.uuid4().hex, "version": "0", "known": "0", "next": "1"}
        self._values |= {"ttl": "1", "end": "1", "lease": "1"}

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
                # a role that may not describe the table learns it here
                yield problem(action, "there is no such table", IF_NO_TABLE)
            elif reply.denied:
                advice = f"if you use that: pynamodb-mutex policy --role {use.role}"
                yield warning(action, f"not allowed; for {use.by}", advice)
            else:
                yield _unanswered(action, use.by, reply)
        reply = self._transact({"Update": self._rows.guard.fill(self._key, self._values)})
        if reply.denied:
            what = f"UpdateItem is not allowed within them; for {_TRANSACTIONS}"
            advice = "look for the condition dynamodb:EnclosingOperation in the role's policies"
            yield warning("transactions", what, advice)
        else:
            yield _unanswered("transactions", _TRANSACTIONS, reply)

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
    """Return the answer to the only statement of a batch, as that to a request by itself."""
    for statement in reply.data.get("Responses", ()):
        error = statement.get("Error", {})
        code = error.get("Code")
        return reply._replace(
            code=code and _CODES.get(code, code), message=error.get("Message", "")
        )
    return reply


def _unanswered(check: str, by: str, reply: Reply) -> Finding:
    """Judge what was not denied."""
    if reply.code is None or reply.code in _REFUSED:
        return ok(check, f"allowed; for {by}")
    if reply.code in _NOT_UNDERSTOOD:
        return warning(check, f"not understood ({reply.described}); for {by}", "do without it here")
    return unchecked(check, reply.described)
