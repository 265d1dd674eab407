"""Sends requests through PynamoDB's connections, each once, and returns the answer or the failure as a value.

botocore's own retries are off: the library retries, in `pynamodb_mutex._lock.operations.retry`, so that it knows which
attempt an answer belongs to and which attempts may have been applied. `answers` decides what an error means.
"""

from __future__ import annotations

import re
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from zlib import crc32

from botocore.exceptions import BotoCoreError, ClientError, NoRegionError
from botocore.parsers import ResponseParserError
from pynamodb import exceptions
from pynamodb.connection.table import TableConnection

from pynamodb_mutex._lock.dynamodb import answers
from pynamodb_mutex._lock.dynamodb.answers import Answer, Failure
from pynamodb_mutex._lock.dynamodb.pynamodb_private import (
    access_key_of,
    client_elsewhere,
    connection_of,
    credentials_of,
    without_retry_modes,
)
from pynamodb_mutex._lock.protocol.server_time import ServerTime

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.connection import Connection as PynamoDBConnection
    from pynamodb.models import Model

CONNECT_TIMEOUT = 1.0
"""Seconds. One hung request must not use up a lease; PynamoDB's own defaults add up to minutes."""

READ_TIMEOUT = 2.0
"""Seconds. See `CONNECT_TIMEOUT`."""

POOL_CONNECTIONS = 90
"""Connections of a client that stay open for the next request: one for each of the library's own threads that send requests, and
some for the application's. botocore closes any further connection after its request, with a warning in the log, and the next
request pays for a TLS handshake. PynamoDB's default is 10."""

_REFUSED = "ConditionalCheckFailedException"
_ERRORS: dict[str, type[exceptions.PynamoDBException]] = {
    "UpdateItem": exceptions.UpdateError,
    "PutItem": exceptions.PutError,
    "DeleteItem": exceptions.DeleteError,
    "GetItem": exceptions.GetError,
    "BatchGetItem": exceptions.GetError,
    "Query": exceptions.QueryError,
    "Scan": exceptions.ScanError,
    "TransactWriteItems": exceptions.TransactWriteError,
}

_Credentials = tuple[str | None, str | None, str | None]


def client_of(connection: PynamoDBConnection) -> Any:
    """Return botocore's client of one of PynamoDB's connections; PynamoDB makes it at first use.

    Raises:
        BotoCoreError: If it cannot be made, such as without a region.
        ValueError: If the endpoint is not a URL. botocore itself would notice an invalid port only when it signs a request.
    """
    import gc  # noqa: PLC0415 - seldom needed

    invalid, collects = "", gc.isenabled()
    try:
        # This makes many objects, which all stay. They would cause a full collection, of all modules: 30 ms, a sixth of the
        # time until a process holds its first lock.
        gc.disable()
        client: Any = connection.client
        invalid = f"Invalid endpoint: {client.meta.endpoint_url}"  # botocore's words
        urlsplit(client.meta.endpoint_url).port  # noqa: B018 - raises
    except ValueError as error:
        # without user and password: Python's error may show a part of them
        raise ValueError(re.sub(r"\S*@", "", invalid or str(error))) from None
    finally:
        if collects:
            gc.enable()
    # Without user and password: botocore does not send them, but its errors would show them.
    host = re.sub("//[^/]*@", "//", client.meta.endpoint_url)
    return client if host == client.meta.endpoint_url else client_elsewhere(connection, host)


class Connection:
    """A connection to one table, through which the other tables of its region and account can be reached, too.

    A connection "by Meta" is for writes without a lock. It has the timeouts of the model's Meta, and retries a failure as often
    as Meta says. It sends no requests of a lock's own: a request that hangs for long would use up a lease.

    Attributes:
        retries: Most retries of a failure; None if that depends on the time, as for a lock's own requests.
        is_open: Whether the client has been made, so that region and endpoint are known.
        server: Server time of the endpoint; without bounds as long as the connection is not open.
        region: Region that requests are sent to; None as long as the connection is not open.
        endpoint: URL of the client; empty as long as the connection is not open. See `url`.
        place: Region and host in Meta. Known before the connection is open; as a rule, one for each endpoint.
    """

    def __init__(
        self,
        model: type[Model],
        server_times: dict[str, ServerTime],
        now: Callable[[], float],
        *,
        by_meta: bool = False,
    ) -> None:
        """Make a connection; its first request opens it.

        Args:
            model: Model of the rows.
            server_times: Each endpoint's server time, by URL. Connections to one endpoint share it.
            now: Function that returns the local time.
            by_meta: Whether it is for writes without a lock.
        """
        self._now = now
        meta: Any = model.Meta
        self._model = model
        connect, read = meta.connect_timeout_seconds, meta.read_timeout_seconds
        self.retries: int | None = meta.max_retry_attempts if by_meta else None
        if not by_meta:
            connect, read = self._tight(connect, CONNECT_TIMEOUT), self._tight(read, READ_TIMEOUT)
        self._make = partial(
            TableConnection,
            meta.table_name,
            meta_table=connection_of(model).get_meta_table(),
            region=meta.region,
            host=meta.host,
            connect_timeout_seconds=connect,
            read_timeout_seconds=read,
            max_retry_attempts=0,
            max_pool_connections=max(meta.max_pool_connections or 0, POOL_CONNECTIONS),
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
        self._latest: dict[str, Any] = {}
        self.place = f"{meta.region} {meta.host}"
        # PynamoDB makes its client at first use, which takes about 0.1 s; two threads at once would make two. Reentrant, because
        # a signal handler may release a lock just then.
        self._opening = threading.RLock()

    def _tight(self, seconds: float | None, most: float) -> float:
        """Cap a timeout of a user's table. A lock table's is kept: the user chose it for locks."""
        if seconds is None:  # for botocore no timeout: a request that hangs would outlast the lease
            return most
        prefix: str = getattr(self._model, "_claim_prefix", "")
        return min(seconds, most) if prefix else seconds

    def _connected(self, credentials: _Credentials) -> TableConnection:
        key_id, secret, token = credentials
        table = self._make(
            aws_access_key_id=key_id, aws_secret_access_key=secret, aws_session_token=token
        )
        without_retry_modes(table)
        return table

    def open(self) -> None:
        """Make the client, if there is none yet. If that fails, the next request fails with the reason."""
        with suppress(BotoCoreError, ValueError):
            self._open()

    def _open(self) -> None:
        """Make the client, if there is none yet; raise as `client_of`."""
        if not self.is_open:
            with self._opening:
                client = client_of(self.pynamodb)
                self._observe(client)
                self.region = client.meta.region_name
                self.endpoint = client.meta.endpoint_url
                self.server = self._server_times.setdefault(self.endpoint, ServerTime())
                # Last: other threads read it without the lock, and then use the attributes that are set above. False if there
                # are no credentials, such as while a metadata service fails: PynamoDB replaces that client at the next request,
                # and nothing would observe the new client.
                self.is_open = credentials_of(client) is not None

    def elsewhere(self, callers: PynamoDBConnection) -> str:
        """Return where a caller's connection leads, for messages; empty if it leads to the same database as this one.

        Raises:
            TransactWriteError: If the caller's connection cannot send anything.
        """
        try:
            meta = client_of(callers).meta
        except (BotoCoreError, ValueError) as error:
            raise _failed("TransactWriteItems", error) from error
        self.open()
        there = f"{meta.region_name} at {meta.endpoint_url}"
        if there != f"{self.region} at {self.endpoint}":
            return there
        # Other credentials may belong to another account. A connection without its own (None) uses the environment's.
        own = _credentials_of(self._model)[0]
        return "" if access_key_of(callers) == own else f"{there} with other credentials"

    def shares_table_with(self, other: Connection) -> bool:
        """Return whether both connections are known to reach one table; do not make a client to find out."""
        same_endpoint = self.is_open and self.server is other.server
        return same_endpoint and self.table_name == other.table_name

    @property
    def where(self) -> str:
        """Region and endpoint, for messages. The connection must be open."""
        return f"{self.region} at {self.url}"

    @property
    def url(self) -> str:
        """URL that the latest request was sent to; before the first request, the URL of the client.

        They differ if the credentials name their account: botocore then sends to a host of that account.
        """
        request = self._latest.get("request")
        return self.endpoint if request is None else request.url.rstrip("/")

    def _observe(self, client: Any) -> None:
        """Let botocore's client check each answer, and keep the latest request."""
        # With a unique_id, registering twice changes nothing: this may run again for a client without credentials.
        register, name = client.meta.events.register, "pynamodb_mutex"
        register("response-received.dynamodb", _refuse_what_is_cut_off, unique_id=f"{name} answers")
        # botocore calls `dict.update` itself: a function of ours would cost more, for each request.
        register("before-send.dynamodb", self._latest.update, unique_id=f"{name} requests")

    # -- sending ------------------------------------------------------------------------------------

    def send(self, operation: str, kwargs: dict[str, Any]) -> Answer | Failure:
        """Send one request, once, and return its outcome. It returns DynamoDB's errors, and does not raise them."""
        # Otherwise PynamoDB would request the consumed capacity, only to log it.
        kwargs.setdefault("ReturnConsumedCapacity", "NONE")
        try:
            if not self.is_open or _credentials_of(self._model) != self._credentials:
                self._prepare()
        except NoRegionError:
            # The request itself raises this error, too, unless a caller's tests replace the sender: that needs no client.
            pass
        except (BotoCoreError, ValueError) as error:
            return Failure({}, _failed(operation, error))
        # Not the time of the step that asked for the request. Suppose that in between a client was made, a receiver of the
        # step's events was slow, or all workers for tasks were busy, perhaps for 20 s. If the time of the step counted, the
        # answer's upper bound of server time would be 20 s too high, and all leases at this endpoint would end 20 s too early.
        sent = self._now()
        reply = self._exchange(operation, kwargs)
        reply.sent = sent
        return reply

    def _exchange(self, operation: str, kwargs: dict[str, Any]) -> Answer | Failure:
        try:
            data: dict[str, Any] = self.pynamodb.dispatch(operation, kwargs)
        except (AttributeError, TypeError) as error:
            if not answers.came_from_the_body(error):
                raise
            return self.not_dynamodbs(operation, error)
        except (BotoCoreError, ClientError, *answers.UNWRAPPED) as error:
            return self._refused_or_failed(operation, kwargs, error)
        except StopIteration as error:
            # A mock in a caller's tests raises this when its answers have run out. A runner would take it for the end of its
            # operation: a release that was never sent would return as if it were done. And a task would wait for ever, because
            # asyncio refuses to raise it in a task.
            raise RuntimeError("sending a request raised StopIteration") from error
        if self.retries is not None and answers.is_made_up(data):
            # A caller's tests may replace the sender of writes without a lock. Anything that it returns counts as an answer.
            return Answer(data or {})
        answer = Answer(data)
        return answer if answer.is_dynamodbs else self.not_dynamodbs(operation)

    def _prepare(self) -> None:
        """Make the client, if there is none yet, and sign with the credentials that the model's Meta names now.

        A program replaces temporary credentials there before they expire. This object stays the same: a holder keeps its lock
        under the new credentials, and a waiter keeps its place in the queue. Raises as `client_of`.
        """
        with self._opening:
            credentials = _credentials_of(self._model)
            if credentials != self._credentials:  # else another thread has done it meanwhile
                table = self._connected(credentials)
                # under the lock: two threads would make two clients
                client = client_of(table.connection)
                self._observe(client)
                # As in `_open`: if this client found no credentials, PynamoDB replaces it, and nothing would observe the next
                # client. Otherwise `is_open` stays true: other threads read it without the lock (`shares_table_with`).
                if credentials_of(client) is None:
                    self.is_open = False
                self.table, self._credentials = table, credentials
                self.pynamodb = table.connection
        self._open()

    def _refused_or_failed(
        self, operation: str, kwargs: dict[str, Any], error: Exception
    ) -> Answer | Failure:
        raised: Any = error.__cause__ if isinstance(error, exceptions.VerboseClientError) else error
        response: Any = getattr(raised, "response", None) or {}
        if getattr(raised, "operation_name", operation) != operation:
            # The error comes from another service, such as STS, which botocore asked for credentials. Its code and its `Date`
            # are not DynamoDB's.
            response = {}
        code = response.get("Error", {}).get("Code")
        if code == _REFUSED:
            refused = _ERRORS[operation](f"{operation} refused: {error}", error)
            refused.__cause__ = error
            return Answer(response, error=refused, item=response.get("Item"))
        missing = answers.missing_tables(kwargs, code, error)
        if missing:
            return Failure(response, self._missing(missing, error))
        transient, maybe_applied = answers.may_pass(raised, answered=self.server.answered > 0)
        if transient:
            conflict = answers.is_conflict(raised)
            return self._transient(
                operation,
                str(error),
                error,
                response,
                maybe_applied=maybe_applied,
                conflict=conflict,
            )
        failed = _failed(operation, error)
        if isinstance(failed, exceptions.TransactWriteError):
            return _cancelled(failed, response)
        return Failure(response, failed)

    def not_dynamodbs(self, operation: str, cause: Exception | None = None) -> Failure:
        """Return the failure of a request that something other than DynamoDB answered."""
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
        """Return the failure of a request that may succeed if it is retried."""
        answered = self.server.answered > 0
        if not answered:
            why = (
                f"DynamoDB has not answered yet in {self.where} (wrong region or endpoint?): {why}"
            )
        error = _ERRORS[operation](f"{operation} failed: {why}", cause)
        error.__cause__ = cause
        return Failure(
            response,
            error,
            transient=True,
            conflict=conflict,
            maybe_applied=maybe_applied,
            answered=answered,
        )

    def _missing(self, tables: Sequence[str], error: Exception) -> exceptions.TableDoesNotExist:
        """Return the error for a missing table, which is at least one of those given.

        Its message questions region and profile before it advises to create the table: often the table exists in
        another region.
        """
        if len(tables) > 1:
            # DynamoDB does not say which table is missing, so read each.
            tables = [table for table in tables if self._is_missing(table)] or tables
        own = self.table_name
        call = f"{self._model.__name__}.create_table()" if [*tables] == [own] else "create_table()"
        # PynamoDB puts the text between backticks: this closes them and opens them again.
        missing = exceptions.TableDoesNotExist(
            f"{'` or `'.join(tables)}` in {self.where}: wrong region or profile? "
            f"If not, create it with `{call}"
        )
        missing.cause = missing.__cause__ = error
        return missing

    def _is_missing(self, table: str) -> bool:
        """Return whether a table is missing, as far as a read can show: the role may not be allowed to read it."""
        # This key fits no table. DynamoDB notices that only if the table exists.
        key = {"-": {"S": "-"}}
        reply = self.send("GetItem", {"TableName": table, "Key": key})
        return isinstance(reply.error, exceptions.TableDoesNotExist)


def _refuse_what_is_cut_off(response_dict: Any, **_: Any) -> None:
    """Raise an error if the body of an answer did not arrive whole. botocore calls this for each answer.

    Suppose the connection is closed in the middle of an answer. botocore cannot parse the half that arrived, and
    returns an answer without content: a row that exists would count as missing, and a lock that is held as free. Or suppose a
    hand-over is applied, and its answer shows no claim: the key stays locked, and nobody holds it. botocore itself compares the
    checksum only to decide whether to retry.

    Raises:
        ResponseParserError: If the body does not have the checksum that DynamoDB sent with it.
    """
    if response_dict is None:
        return
    checksum = response_dict["headers"].get("x-amz-crc32")
    if checksum is not None and checksum != str(crc32(response_dict["body"])):
        raise ResponseParserError("the answer is cut off")


# -- errors ----------------------------------------------------------------------------------------


def _credentials_of(model: type[Model]) -> _Credentials:
    """Return access key, secret key and session token in a model's Meta; None for each that is missing."""
    meta = model.Meta
    return meta.aws_access_key_id, meta.aws_secret_access_key, meta.aws_session_token


def _failed(operation: str, error: Exception) -> exceptions.PynamoDBException:
    failed = _ERRORS[operation](f"{operation} failed: {answers.explained(error)}", error)
    # Set by hand: the error is returned as a value, and raised where its cause is no longer being handled.
    failed.__cause__ = error
    return failed


def _cancelled(error: exceptions.TransactWriteError, response: Any) -> Answer | Failure:
    """Return the refusal, or the failure, of a transaction that was cancelled."""
    codes = [reason.code if reason else "None" for reason in error.cancellation_reasons]
    if any(code in answers.TRANSIENT_REASONS and code != "None" for code in codes):
        # Suppose the first attempt is applied and its answer is lost. At the retry the guard's row is in conflict with another
        # request, so DynamoDB does not check it, and a condition on another row fails because of the first attempt's write. If
        # that counted as a refusal, the write would be reported as "not applied". The next retry shows the guard's row.
        return Failure(response, error, transient=True, conflict=True)
    refused = {
        place: (reason.raw_item if reason else None) or {}
        for place, reason in enumerate(error.cancellation_reasons)
        if codes[place] == "ConditionalCheckFailed"
    }
    if not refused:
        return Failure(response, error)
    return Answer(response, error=error, refused=refused)
