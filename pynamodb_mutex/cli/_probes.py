"""Probes: requests that change nothing, and show what is wrong with the table, the clocks or the permissions.

`Asker` sends single requests and says of each what became of it, also if there was no answer or one that is not
from DynamoDB. `Probes` tries the permissions with it. DynamoDB checks the permission before the condition, so a write
whose condition is never met shows whether it is allowed. `_doctor` decides what is checked, and judges the rest.
"""

from __future__ import annotations

import enum
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore import xform_name
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError

from pynamodb_mutex._admin.listing import scan
from pynamodb_mutex._lock.dynamodb import answers
from pynamodb_mutex._lock.dynamodb.answers import UNWRAPPED, came_from_the_body, instant_of
from pynamodb_mutex._lock.dynamodb.connection import CONNECT_TIMEOUT, READ_TIMEOUT, client_of
from pynamodb_mutex._lock.dynamodb.keys import check_key, hash_key_of, key_of
from pynamodb_mutex._lock.dynamodb.pynamodb_private import range_key_name
from pynamodb_mutex._lock.protocol.messages import one_line
from pynamodb_mutex._lock.protocol.server_time import GRAIN, ServerTime
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._writes.requests import WriteTemplates
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
"""In place of an error code: there was no answer."""

UNSENT = "Unsent"
"""In place of an error code: the request was not sent, for lack of credentials, a region or a valid endpoint."""

_ANSWERS = {
    "BatchGetItem": "Responses",
    "DescribeTable": "Table",
    "DescribeTimeToLive": "TimeToLiveDescription",
    "Query": "Items",
    "Scan": "Items",
}
"""A field that each answer to an operation has. From a page that is no answer botocore makes an empty one."""

_RANGE_KEYS: dict[str, Any] = {"S": "doctor", "N": 0, "B": b"doctor"}
"""Range keys of rows that need not exist, by type, for a model whose range key has no default."""

_PATIENCE = 2
"""Consecutive requests without an answer after which no further ones are sent."""

_REFUSED = {"ConditionalCheckFailedException", "TransactionCanceledException"}
"""Error codes of a write that is allowed, but whose condition is not met."""

_NOT_UNDERSTOOD = {"UnknownOperationException", "ValidationException"}
"""Error codes of an endpoint that does not know an operation, or a part of the request."""

_TRANSACTIONS = "transaction() and for_keys"
"""Features that need transactions."""


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
    """The result of one check.

    Attributes:
        check: Name of the check.
        verdict: The verdict.
        what: Reason of the verdict, one line.
        advice: Advice what to do, one line; empty if there is nothing to do.
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
    """Return a finding for a check that was not possible, with the reason."""
    return Finding(check, Verdict.UNCHECKED, what, advice)


class Reply(NamedTuple):
    """The outcome of one request.

    Attributes:
        data: The answer, also if it is an error; empty if there was none.
        code: Code of the error, or what stands in its place; None for a request that succeeded.
        message: Message of the error; empty if there is none.
    """

    data: dict[str, Any]
    code: str | None = None
    message: str = ""

    @property
    def answered(self) -> bool:
        """Whether DynamoDB answered, even if by an error."""
        return self.code not in {NOT_DYNAMODBS, UNREACHABLE, UNSENT}

    @property
    def denied(self) -> bool:
        """Whether the request was refused because a permission is missing."""
        return self.code == "AccessDeniedException"

    @property
    def described(self) -> str:
        """The failure as text for people, one line."""
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
        store: Builds the requests that the library would send.
        fastest: Seconds of the fastest round trip; None before the first answer.
        offset: Lower and upper bound, in seconds, of how far the wall clock of this host is ahead of DynamoDB's; None
            before the first answer with a date.
        server: What the answers show of DynamoDB's time.
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
        self.server = ServerTime()
        self._silences = 0

    @property
    def client(self) -> Any:
        """The client of botocore.

        Raises:
            BotoCoreError: If it cannot be made, as without a region.
            ValueError: If the endpoint is not a URL.
        """
        self.store.connection.open()  # it notes where requests go
        return client_of(self.store.connection.pynamodb)

    def ask(self, operation: str, request: dict[str, Any]) -> Reply:
        """Send one request, and return its outcome; after _PATIENCE requests without an answer, send none any more."""
        if self._silences >= _PATIENCE:
            return Reply({}, UNREACHABLE, "not sent: earlier requests were not answered")
        started, sent = time.monotonic(), time.time()
        reply = self._send(operation, request)
        took = time.monotonic() - started
        if reply.answered:
            self._silences = 0
            self.fastest = took if self.fastest is None else min(took, self.fastest)
            # received at sent + took: a wall clock that is set meanwhile must not change how long it took
            self._compare_clocks(reply, sent, sent + took, started)
        else:
            self._silences += 1
        return reply

    def _send(self, operation: str, request: dict[str, Any]) -> Reply:
        try:
            send = getattr(self.client, xform_name(operation))
            reply = Reply(send(**request))
        except ClientError as error:
            if error.operation_name != operation:
                # Refused was not this request, but one that botocore has sent for credentials, such as AssumeRole.
                return Reply({}, UNSENT, str(error))
            answer: Any = error.response
            reply = Reply(answer, answer["Error"]["Code"], answer["Error"]["Message"])
        except (NoConnectionError, HTTPClientError) as error:
            return Reply({}, UNREACHABLE, str(error))
        # A body that botocore cannot parse, as a proxy or portal sends it. Empty replies become NOT_DYNAMODBS below.
        except UNWRAPPED:
            reply = Reply({})
        except (AttributeError, TypeError) as error:
            if not came_from_the_body(error):
                raise  # a defect of ours
            reply = Reply({})
        except (BotoCoreError, ValueError) as error:
            # no region, no credentials, or an invalid endpoint
            return Reply({}, UNSENT, str(error))
        whole = reply.code is not None or _ANSWERS.get(operation, "ResponseMetadata") in reply.data
        seen = answers.Reply(reply.data)
        return reply if whole and seen.is_dynamodbs else Reply({}, NOT_DYNAMODBS)

    def _compare_clocks(self, reply: Reply, sent: float, received: float, started: float) -> None:
        """Narrow the bounds of the clock's offset by an answer, and learn DynamoDB's time from it.

        At some instant between sending and receiving, server time was in [Date, Date + 1 s).

        Args:
            reply: The answer; one without a readable date changes nothing.
            sent: Time by the wall clock before the request was sent.
            received: Time by the wall clock after the answer was received.
            started: Time by the monotonic clock before the request was sent.
        """
        try:
            instant = instant_of(answers.Reply(reply.data).date or "")
        except ValueError:
            return
        self.server.learn(instant, started, started + received - sent)
        low, high = sent - instant - GRAIN, received - instant
        # Bounds that contradict earlier ones replace them: the clock of this host was set meanwhile.
        if self.offset is not None and low <= self.offset[1] and self.offset[0] <= high:
            low, high = max(low, self.offset[0]), min(high, self.offset[1])
        self.offset = low, high


class Probes:
    """Tries the permissions, by requests about one key that change nothing."""

    def __init__(self, model: type[LockItem], asker: Asker, key: str) -> None:
        """Prepare the requests.

        Args:
            model: Model of the lock table.
            asker: Sends the requests.
            key: Key of a row, which need not exist.

        Raises:
            InvalidKeyError: If the model cannot have this key.
        """
        self._ask = asker.ask
        self._table = asker.table
        self._rows = asker.store.requests
        self._guard = asker.store.of(WriteTemplates).guard
        name, sample = range_key_name(model), None
        if name is not None and model(key).attribute_values.get(name) is None:
            sample = _RANGE_KEYS[model.get_attributes()[name].attr_type]
        self._key = key_of(model, check_key(key), sample)
        self._query = scan(asker.store, limit=1, hash_key=hash_key_of(model, key)).kwargs
        # All writes are conditional on "mine", a random token that no row has: none is ever applied, not even if a
        # process holds the lock of this key.
        self._values = {"mine": uuid.uuid4().hex, "version": "0", "known": "0", "next": "1"}
        self._values |= {"ttl": "1", "free_since": "1"}

    def findings(self) -> Iterator[Finding]:
        """Try each permission, and a transaction; return a finding for each."""
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
                # With the permission to describe the table, its absence was found before; without, it shows only here.
                yield problem(action, "there is no such table", IF_NO_TABLE)
            elif reply.denied:
                advice = f"if you use that: pynamodb-mutex policy --role {use.role}"
                yield warning(action, f"not allowed; for {use.by}", advice)
            else:
                yield _judged(action, use.by, reply)
        reply = self._transact({"Update": self._guard.fill(self._key, self._values)})
        if reply.denied:
            what = f"UpdateItem is not allowed within transactions; for {_TRANSACTIONS}"
            advice = "check the policies of the role for the condition dynamodb:EnclosingOperation"
            yield warning("transactions", what, advice)
        else:
            yield _judged("transactions", _TRANSACTIONS, reply)

    def _send(self, action: str) -> Reply:
        """Send the request that tries an IAM action."""
        table, rows, key, values = self._table, self._rows, self._key, self._values
        if action == "ConditionCheckItem":
            # a delete has the same parameters: key and condition
            return self._transact({"ConditionCheck": rows.delete.fill(key, values)})
        requests: dict[str, dict[str, Any]] = {
            "UpdateItem": rows.end[False, False].fill(key, values),
            "DeleteItem": rows.delete.fill(key, values),
            "GetItem": {"TableName": table, "Key": key},
            "BatchGetItem": {"RequestItems": {table: {"Keys": [key]}}},
            "Query": self._query,
            "Scan": {"TableName": table, "Limit": 1},
        }
        return self._ask(action, requests.get(action, {"TableName": table}))

    def _transact(self, item: dict[str, Any]) -> Reply:
        return self._ask("TransactWriteItems", {"TransactItems": [item]})


def _judged(check: str, by: str, reply: Reply) -> Finding:
    """Return the finding for a reply that does not say that a permission is missing."""
    if reply.code is None or reply.code in _REFUSED:
        return ok(check, f"allowed; for {by}")
    if reply.code in _NOT_UNDERSTOOD:
        return warning(
            check, f"not supported ({reply.described}); for {by}", "do not use it at this endpoint"
        )
    return unchecked(check, reply.described)
