"""Sending requests through PynamoDB's connection, each once, and saying what came of it.

botocore's own retries are off: the library retries, so that it knows which attempt an answer
belongs to and which ones may have been applied. Only a caller's connection, by which writes without a lock
are sent, retries as the caller has set it up.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from pynamodb.connection.table import TableConnection
from pynamodb.exceptions import (
    DeleteError,
    GetError,
    PutError,
    PynamoDBException,
    ScanError,
    TableDoesNotExist,
    TransactWriteError,
    UpdateError,
    VerboseClientError,
)

from pynamodb_mutex._dynamodb.answers import (
    TRANSIENT_REASONS,
    UNWRAPPED,
    Answer,
    Failure,
    came_from_the_body,
    explained,
    is_conflict,
    is_made_up,
    may_pass,
    missing_tables,
)
from pynamodb_mutex._dynamodb.pynamodb_private import (
    access_key_of,
    connection_of,
    without_retry_modes,
)
from pynamodb_mutex._protocol.server_time import ServerTime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.connection import Connection as PynamoDBConnection
    from pynamodb.models import Model
    from typing_extensions import Self

CONNECT_TIMEOUT = 1.0
"""Seconds. One hung request must not eat a lease; PynamoDB's own defaults add up to minutes."""

READ_TIMEOUT = 2.0
"""Seconds."""

_REFUSED = "ConditionalCheckFailedException"
_ERRORS: dict[str, type[PynamoDBException]] = {
    "UpdateItem": UpdateError,
    "PutItem": PutError,
    "DeleteItem": DeleteError,
    "GetItem": GetError,
    "BatchGetItem": GetError,
    "BatchExecuteStatement": UpdateError,
    "Scan": ScanError,
    "TransactWriteItems": TransactWriteError,
}

_Credentials = tuple[str | None, str | None, str | None]


class Connection:
    """A way to one table, and to the others in its region and account.

    Attributes:
        retries: Whether the connection itself retries what failed, as a caller has set it up.
        hangs_for: Seconds after which a request that is not answered fails, at most.
        is_open: Whether the client was made, and so the endpoint is known.
        server: What is known of the time of the endpoint: nothing, as long as it is not open.
        region: Known once it is open, as is the endpoint.
        endpoint: The URL that requests are sent to.
    """

    retries = False

    def __init__(
        self,
        model: type[Model],
        server_times: dict[str, ServerTime],
        now: Callable[[], float],
    ) -> None:
        """Make a connection, which is opened by its first request.

        Args:
            model: Of the rows.
            server_times: What is known of the time of each endpoint.
            now: Reads the local clock.
        """
        self._now = now
        meta: Any = model.Meta
        self._model = model
        connect = self._tight(meta.connect_timeout_seconds, CONNECT_TIMEOUT)
        read = self._tight(meta.read_timeout_seconds, READ_TIMEOUT)
        self.hangs_for = connect + read
        self._make = partial(
            TableConnection,
            meta.table_name,
            meta_table=connection_of(model).get_meta_table(),
            region=meta.region,
            host=meta.host,
            connect_timeout_seconds=connect,
            read_timeout_seconds=read,
            max_retry_attempts=0,
            max_pool_connections=meta.max_pool_connections,
            extra_headers=meta.extra_headers,
        )
        self._credentials = _credentials_of(model)
        self.table = self._connected(self._credentials)
        self.pynamodb = self.table.connection
        self.table_name: str = meta.table_name
        self._server_times = server_times
        self.is_open = False
        self.server = ServerTime()
        self.region: str | None = None
        self.endpoint = ""
        # PynamoDB's client is made at first use, in a tenth of a second, and not by two threads
        self._opening = threading.Lock()

    def _tight(self, seconds: float, most: float) -> float:
        """Bound a timeout in a user's table; that of the lock table is the caller's own choice."""
        prefix: str = getattr(self._model, "_claim_prefix", "")
        return min(seconds, most) if prefix else seconds

    def _connected(self, credentials: _Credentials) -> TableConnection:
        """Return a connection that signs with these credentials."""
        key_id, secret, token = credentials
        table = self._make(
            aws_access_key_id=key_id, aws_secret_access_key=secret, aws_session_token=token
        )
        without_retry_modes(table)
        return table

    def open(self) -> None:
        """Make the client, if there is none yet and there can be one."""
        with suppress(BotoCoreError, ValueError):  # the request that follows says so
            self._open()

    def _open(self) -> None:
        """Make the client, if there is none yet.

        Raises:
            BotoCoreError: If there can be none, as without a region.
            ValueError: If what should be its endpoint is no URL.
        """
        if not self.is_open:
            with self._opening:
                client = self.pynamodb.client
                self._observe_attempts(client)
                self.region = client.meta.region_name
                self.endpoint = client.meta.endpoint_url
                self.server = self._server_times.setdefault(self.endpoint, ServerTime())
                self.is_open = True

    def _observe_attempts(self, client: Any) -> None:
        """Observe the attempts of a client that retries."""

    def reaches_the_same_as(self, other: Connection) -> bool:
        """Say whether requests go to the same database as another connection's.

        Raises:
            TransactWriteError: If this one's cannot be sent at all.
        """
        try:
            self._open()
        except (BotoCoreError, ValueError) as error:
            raise _failed("TransactWriteItems", error) from error
        other.open()
        # accounts differ if credentials do; those of the environment are the same for all
        own, others = access_key_of(self.pynamodb), _credentials_of(other._model)[0]
        return (self.region, self.endpoint, own) == (other.region, other.endpoint, others)

    def shares_table_with(self, other: Connection) -> bool:
        """Whether both are known to reach one table. Makes no client to find out."""
        same_endpoint = self.is_open and self.server is other.server
        return same_endpoint and self.table_name == other.table_name

    @property
    def where(self) -> str:
        """Region and endpoint, for messages. It is open."""
        return f"{self.region} at {self.endpoint}"

    # -- sending ------------------------------------------------------------------------------------

    def send(self, operation: str, kwargs: dict[str, Any]) -> Answer | Failure:
        """Send one request of any kind; return what came of it. Raises nothing of DynamoDB's."""
        # PynamoDB would ask for it, only to log it
        kwargs.setdefault("ReturnConsumedCapacity", "NONE")
        was_open = self.is_open
        try:
            if not was_open or self._has_new_credentials():
                self._prepare()
        except (BotoCoreError, ValueError) as error:
            return Failure({}, _failed(operation, error))
        sent = 0.0 if was_open else self._now()
        reply = self._exchange(operation, kwargs)
        # To make the client took a tenth of a second, by which server time would seem to be less well known.
        reply.sent = sent
        return reply

    def _exchange(self, operation: str, kwargs: dict[str, Any]) -> Answer | Failure:
        try:
            data: dict[str, Any] = self.pynamodb.dispatch(operation, kwargs)
        except (AttributeError, TypeError) as error:
            if not came_from_the_body(error):
                raise
            return self.not_dynamodbs(operation, error)
        except (BotoCoreError, ClientError, *UNWRAPPED) as error:
            return self._refused_or_failed(operation, kwargs, error)
        if self.retries and is_made_up(data):
            return Answer(data or {})
        answer = Answer(data)
        return answer if answer.is_dynamodbs else self.not_dynamodbs(operation)

    def _has_new_credentials(self) -> bool:
        meta, (key_id, secret, token) = self._model.Meta, self._credentials
        return (
            meta.aws_access_key_id != key_id
            or meta.aws_secret_access_key != secret
            or meta.aws_session_token != token
        )

    def _prepare(self) -> None:
        """Make the client, if there is none yet; sign with what the model's Meta names now.

        Temporary credentials are replaced in time. It stays the same connection: a holder
        keeps its lock under the new credentials, and a waiter keeps its place in the queue.

        Raises:
            BotoCoreError: If there can be no client, as without a region.
            ValueError: If what should be its endpoint is no URL.
        """
        with self._opening:
            credentials = _credentials_of(self._model)
            if credentials != self._credentials:  # else another thread has done it meanwhile
                table = self._connected(credentials)
                _ = table.connection.client  # made here, and not by two threads
                self.table, self._credentials = table, credentials
                self.pynamodb = table.connection
        self._open()

    def _refused_or_failed(
        self, operation: str, kwargs: dict[str, Any], error: Exception
    ) -> Answer | Failure:
        raised: Any = error.__cause__ if isinstance(error, VerboseClientError) else error
        response: Any = getattr(raised, "response", None) or {}
        if getattr(raised, "operation_name", operation) != operation:
            # another service's, which was asked for credentials
            response = {}
        code = response.get("Error", {}).get("Code")
        if code == _REFUSED:
            refused = _ERRORS[operation](f"{operation} refused: {error}", error)
            refused.__cause__ = error
            return Answer(response, error=refused, item=response.get("Item"))
        missing = missing_tables(kwargs, code, error)
        if missing:
            return Failure(response, self._missing(missing, error))
        transient, maybe_applied = may_pass(raised)
        if transient:
            conflict = is_conflict(raised)
            return self._transient(
                operation,
                str(error),
                error,
                response,
                maybe_applied=maybe_applied,
                conflict=conflict,
            )
        failed = _failed(operation, error)
        if isinstance(failed, TransactWriteError):
            return _cancelled(failed, response)
        return Failure(response, failed)

    def not_dynamodbs(self, operation: str, cause: Exception | None = None) -> Failure:
        """Return the failure of a request that something else than DynamoDB answered."""
        return self._transient(
            operation, "the answer is not DynamoDB's", cause, {}, maybe_applied=True
        )

    def _transient(
        self,
        operation: str,
        why: str,
        cause: Exception | None,
        response: Any,
        *,
        maybe_applied: bool,
        conflict: bool = False,
    ) -> Failure:
        """Return a failure that may pass, unless it was retried often enough."""
        answered = self.server.answered
        if not answered:
            why = (
                f"DynamoDB has not answered yet in {self.where} (wrong region or endpoint?): {why}"
            )
        error = _ERRORS[operation](f"{operation} failed: {why}", cause)
        error.__cause__ = cause
        return Failure(
            response,
            error,
            # A caller's connection has retried as often as the caller chose; but botocore retries nothing for
            # a conflict, and whoever locks the same rows causes conflicts.
            transient=conflict or not self.retries,
            maybe_applied=maybe_applied,
            answered=answered,
        )

    def _missing(self, tables: Sequence[str], error: Exception) -> TableDoesNotExist:
        """Return the error for a table that does not exist, one of those given.

        It asks about the place before it advises to create the table: often that exists in another region.
        """
        if len(tables) > 1:
            # DynamoDB does not say which one it was, so each is asked for
            tables = [table for table in tables if self._is_missing(table)] or tables
        own = self.table_name
        call = f"{self._model.__name__}.create_table()" if [*tables] == [own] else "create_table()"
        # PynamoDB puts it between backticks
        missing = TableDoesNotExist(
            f"{'` or `'.join(tables)}` in {self.where}: wrong region or profile? "
            f"If not, create it with `{call}"
        )
        missing.cause = missing.__cause__ = error
        return missing

    def _is_missing(self, table: str) -> bool:
        """Whether a table does not exist, as far as a read can show: the role may not be allowed to."""
        # a key that fits no table: DynamoDB compares keys only where there is a table to compare with
        key = {"-": {"S": "-"}}
        reply = self.send("GetItem", {"TableName": table, "Key": key})
        return isinstance(reply.error, TableDoesNotExist)


class CallersConnection(Connection):
    """A connection of a caller's, with the caller's retries and timeouts.

    For writes without a lock. A lock's own requests are not sent by it, for one that hangs must not eat a lease.
    """

    retries = True

    def __init__(self, pynamodb: PynamoDBConnection, own: Connection) -> None:
        self._model = own._model
        self._now = own._now
        self.pynamodb = pynamodb
        self.table_name = own.table_name
        self._server_times = own._server_times
        self.is_open = False
        self.server = ServerTime()
        self.region = None
        self.endpoint = ""
        self._opening = own._opening

    def send(self, operation: str, kwargs: dict[str, Any]) -> Answer | Failure:
        """Send one request, by as many attempts as botocore makes; the reply is that to the last of them."""
        self.open()  # a test's stand-in for a connection needs no client
        with _ObservedAttempts(self._now) as attempts:
            reply = self._exchange(operation, kwargs)
        reply.sent = attempts.sent
        reply.maybe_applied = reply.maybe_applied or attempts.maybe_applied
        return reply

    def _observe_attempts(self, client: Any) -> None:
        service = client.meta.service_model.service_id.hyphenize()
        events = client.meta.events
        # doing so again, as another model of the connection may, changes nothing
        events.register(f"before-send.{service}", _note_sending, unique_id="pynamodb_mutex sends")
        events.register(f"needs-retry.{service}", _note_failure, unique_id="pynamodb_mutex fails")


class _ObservedAttempts:
    """Attempts that botocore makes by itself, on the thread that sends the request.

    Whether one before the last may have been applied is to be seen only in the events of the client.

    Attributes:
        maybe_applied: Whether an attempt that failed may have been applied.
        sent: Local time before the last attempt was sent.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.maybe_applied = False
        self.sent = 0.0

    def __enter__(self) -> Self:
        # whoever receives PynamoDB's signals may send requests of its own in between
        self._before, _observed.attempts = _observed.attempts, self
        return self

    def __exit__(self, *_: object) -> None:
        _observed.attempts = self._before


class _Observed(threading.local):
    attempts: _ObservedAttempts | None = None


_observed = _Observed()


def _note_sending(**_: Any) -> None:
    """Note that an attempt is sent."""
    if _observed.attempts is not None:
        _observed.attempts.sent = _observed.attempts.now()


def _note_failure(
    operation: Any = None, response: Any = None, caught_exception: Any = None, **_: Any
) -> None:
    """Note that an attempt failed, as botocore is about to decide whether to retry."""
    error = caught_exception
    if response is not None and response[1].get("Error"):
        error = ClientError(response[1], operation.name)
    if _observed.attempts is not None and error is not None and may_pass(error) == (True, True):
        _observed.attempts.maybe_applied = True


# -- errors ----------------------------------------------------------------------------------------


def _credentials_of(model: type[Model]) -> _Credentials:
    """Return the credentials that a model names, if it does."""
    meta = model.Meta
    return meta.aws_access_key_id, meta.aws_secret_access_key, meta.aws_session_token


def _failed(operation: str, error: Exception) -> PynamoDBException:
    """Return PynamoDB's error for a request that failed."""
    failed = _ERRORS[operation](f"{operation} failed: {explained(error)}", error)
    # it may be returned as a value, and raised where the cause is not being handled any more
    failed.__cause__ = error
    return failed


def _cancelled(error: TransactWriteError, response: Any) -> Answer | Failure:
    """Return what came of a transaction that was not applied."""
    codes = [reason.code if reason else "None" for reason in error.cancellation_reasons]
    if any(code in TRANSIENT_REASONS and code != "None" for code in codes):
        # it may be the guard that was not evaluated, and an own earlier attempt that refuses
        return Failure(response, error, transient=True)
    refused = {
        place: (reason.raw_item if reason else None) or {}
        for place, reason in enumerate(error.cancellation_reasons)
        if codes[place] == "ConditionalCheckFailed"
    }
    if not refused:
        return Failure(response, error)
    return Answer(response, error=error, refused=refused)
