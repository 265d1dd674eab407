"""The conditional requests, sent. The only module that talks to PynamoDB's connection.

botocore's own retries are off: the library repeats, so that it knows which attempt an answer
belongs to and which ones may have been applied.
"""

from __future__ import annotations

import copy
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

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

from pynamodb_mutex import _attempts
from pynamodb_mutex._answers import (
    PASSING_REASONS,
    UNWRAPPED,
    Answer,
    Cancelled,
    Page,
    came_from_the_body,
    date_of,
    explained,
    instant_of,
    is_conflict,
    is_dynamodbs,
    is_made_up,
    missing_tables,
    outcome,
)
from pynamodb_mutex._claim import NO_SERVER_TIME, TICK, YEAR_10000
from pynamodb_mutex._clock import HOST_SKEW, ServerTime, local_clock
from pynamodb_mutex._expressions import ClaimRows
from pynamodb_mutex._repeat import Transient, persist
from pynamodb_mutex._templates import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pynamodb.connection import Connection
    from pynamodb.models import Model

    from pynamodb_mutex._claim import Claim, Tenure
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._templates import Template

_log = logging.getLogger("pynamodb_mutex")

T = TypeVar("T")

CONNECT_TIMEOUT = 1.0
"""Seconds. One hung request must not eat a lease; PynamoDB's own defaults add up to minutes."""

READ_TIMEOUT = 2.0
"""Seconds."""

SCAN_PATIENCE = 30.0
"""Seconds for which a page of a scan is asked for again."""

SHORTEST_RETENTION = 3600.0
"""Seconds from the end of a claim to its row's TTL, at least: never near a live claim."""

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


class Store:
    """The rows of one model, as one process reaches them.

    Attributes:
        hangs_for: Seconds after which a request that is not answered fails, at most.
        repeats: Whether the connection itself repeats what failed, as a caller has set it up.
        batches: Whether to send batches: until one turns out not to be understood, or not allowed.
    """

    def __init__(self, model: type[Model], server_times: dict[str, ServerTime]) -> None:
        meta: Any = model.Meta
        self.model = model
        self.address = self.address_of(model)
        connect = self._tight(meta.connect_timeout_seconds, CONNECT_TIMEOUT)
        read = self._tight(meta.read_timeout_seconds, READ_TIMEOUT)
        self.hangs_for = connect + read
        self._connection = partial(
            TableConnection,
            meta.table_name,
            meta_table=model._get_connection().get_meta_table(),
            region=meta.region,
            host=meta.host,
            connect_timeout_seconds=connect,
            read_timeout_seconds=read,
            max_retry_attempts=0,
            max_pool_connections=meta.max_pool_connections,
            extra_headers=meta.extra_headers,
        )
        self._credentials = self._credentials_of(model)
        self.connection = self._connected(self._credentials)
        self.repeats = False
        self.rows = ClaimRows(model, self.connection)
        self._server_times = server_times
        self._server: ServerTime | None = None
        self.region: str | None = None  # both known with `server`
        self.endpoint = ""
        self._lock = threading.Lock()
        self._numbers = _Numbers()
        self._date: tuple[str | None, float] = (None, 0.0)
        self.on_thaw: Callable[[], None] = lambda: None
        self.batches = True

    @staticmethod
    def address_of(model: type[Model]) -> tuple[str, str | None, str | None]:
        """Return what makes a connection another one when it changes."""
        meta = model.Meta
        return meta.table_name, meta.region, meta.host

    @staticmethod
    def _credentials_of(model: type[Model]) -> tuple[str | None, str | None, str | None]:
        """Return the credentials that a model names, if it does."""
        meta = model.Meta
        return meta.aws_access_key_id, meta.aws_secret_access_key, meta.aws_session_token

    def _connected(self, credentials: tuple[str | None, str | None, str | None]) -> TableConnection:
        """Return a connection that signs with these credentials."""
        key_id, secret, token = credentials
        connection = self._connection(
            aws_access_key_id=key_id, aws_secret_access_key=secret, aws_session_token=token
        )
        # PynamoDB's settings may ask for botocore's own retry modes: not here
        connection.connection._retry_configuration = "LEGACY"
        return connection

    def _follow_credentials(self) -> None:
        """Sign with what the model's Meta names now: temporary credentials are replaced in time.

        It stays the same store. Who holds a lock goes on under the new credentials, and who waits stays in
        the same queue.
        """
        if self._credentials_of(self.model) == self._credentials:
            return
        with self._lock:
            credentials = self._credentials_of(self.model)
            if credentials != self._credentials:  # else another thread has done it meanwhile
                connection = self._connected(credentials)
                _ = connection.connection.client  # made here, and not by two threads
                self.connection, self._credentials = connection, credentials

    def _tight(self, seconds: float, most: float) -> float:
        """Bound a timeout in a user's table; that of the lock table is the caller's own choice."""
        prefix: str = getattr(self.model, "_claim_prefix", "")
        return min(seconds, most) if prefix else seconds

    def through(self, connection: Connection) -> Store:
        """Return the same rows as they are reached by a caller's connection.

        For writes without a lock: they have the retries and timeouts that the caller chose. A lock's own
        requests have not, for one that hangs must not eat a lease.
        """
        other = copy.copy(self)
        other.connection = copy.copy(self.connection)
        other.connection.connection = connection
        other.repeats = True
        other._server = None
        return other

    @property
    def server(self) -> ServerTime:
        """What is known of the time of this table's endpoint.

        Nothing, as long as there can be no client, as without a region: the next request says why.
        """
        if self._server is not None:
            return self._server
        try:
            return self._open()
        except (BotoCoreError, ValueError):
            return ServerTime()

    def _open(self) -> ServerTime:
        """Make the client, if there is none yet; return what is known of its endpoint's time.

        Raises:
            BotoCoreError: If there can be none, as without a region.
            ValueError: If what should be its endpoint is no URL.
        """
        if self._server is None:
            with self._lock:  # PynamoDB's client is made at first use, and not by two threads
                client = self.connection.connection.client
                if self.repeats:
                    _attempts.watch(client)
                self.region = client.meta.region_name
                self.endpoint = client.meta.endpoint_url
                self._server = self._server_times.setdefault(self.endpoint, ServerTime())
        return self._server

    def reaches_the_same_as(self, other: Store) -> bool:
        """Say whether requests go to the same database as another store's.

        Raises:
            TransactWriteError: If this one's cannot be sent at all.
        """
        try:
            self._open()
        except (BotoCoreError, ValueError) as error:
            raise self._failed("TransactWriteItems", error) from error
        other._open()
        # accounts differ if credentials do; those of the environment are the same for all
        own = self.connection.connection._aws_access_key_id
        others = other._credentials_of(other.model)[0]
        return (self.region, self.endpoint, own) == (other.region, other.endpoint, others)

    @property
    def where(self) -> str:
        """Region and endpoint, for messages.

        Raises:
            BotoCoreError: If there can be no client; ValueError as `_open` says.
        """
        self._open()
        return f"{self.region} at {self.endpoint}"

    def knows_time(self, lease: float) -> bool:
        """Say whether server time is known well enough to propose the end of a lease."""
        bounds = self.server.bounds
        return bounds is not None and bounds.suffices(lease, local_clock().now())

    def shares_table_with(self, other: Store) -> bool:
        """Whether both are known to reach one table. Makes no client to find out."""
        same_endpoint = self._server is not None and self._server is other._server
        return same_endpoint and self.connection.table_name == other.connection.table_name

    # -- requests -------------------------------------------------------------------------------

    def read(self, key: RawItem, *, consistent: bool) -> Answer:
        """Read a row."""
        table = self.connection.table_name
        return self.send("GetItem", {"TableName": table, "Key": key, "ConsistentRead": consistent})

    def learn_time(self, key: RawItem) -> None:
        """Read a row for the server time that the answer shows. An error's answer shows it as well.

        Raises:
            Transient: If there was none, which may pass.
            PynamoDBException: If there was none, and cannot be.
        """
        try:
            self.read(key, consistent=False)
        except (Transient, PynamoDBException):
            if self.server.bounds is None:
                raise

    def acquire(
        self,
        key: RawItem,
        tenure: Tenure,
        values: dict[str, Any],
        *,
        now: float,
        watched: Claim | None,
    ) -> Answer:
        """Take a row.

        Args:
            key: Of the row.
            tenure: The acquisition.
            values: What the claim carries, as `claiming` makes it.
            now: Local time.
            watched: A claim that is dead because it stayed as it is for its whole lease.
        """
        values = {
            **values,
            "token": tenure.token,
            "seed": str(self.next_version(now)),
            "now_low": self.now_low(now),
        }
        if watched is not None:
            values |= self.seen(watched)
        template = self.rows.acquire(watched=watched is not None, data="data" in values)
        return self.write(template, key, values)

    def next_version(self, now: float) -> int:
        """Return a number from which a row without fencing tokens counts them; higher at each call.

        Server time in milliseconds, so that it is above the tokens of a row of the same key that was
        deleted. Another row's version has no part in it: a single huge one would spread to every row
        made from then on, in other processes too, until there is no higher number. Nor has a wall clock:
        where no answer has a ``Date``, the number starts from 1.
        """
        return self._numbers.next(int((self.server_now(now) or 0.0) * 1000))

    def server_now(self, now: float | None = None) -> float | None:
        """Return server time as the latest answer showed it; None if no answer did."""
        bounds = self.server.bounds
        if bounds is None:
            return None
        return bounds.estimate(local_clock().now() if now is None else now)

    def now_low(self, now: float) -> str:
        """Serialise the end before which a claim is surely over."""
        bounds = self.server.bounds
        return seconds(0.0 if bounds is None else bounds.lowest(now) - HOST_SKEW - TICK)

    @staticmethod
    def seen(watched: Claim) -> dict[str, Any]:
        """Serialise what makes a claim that was watched still the same."""
        return {"seen": watched.token, "seen_until": seconds(watched.expires_at or 0.0)}

    def write(self, template: Template, key: RawItem, values: Mapping[str, Any]) -> Answer:
        """Send one of the prebuilt updates."""
        return self.send("UpdateItem", template.fill(key, values))

    def delete(self, key: RawItem, values: Mapping[str, Any]) -> Answer:
        """Delete a row under our claim."""
        return self.send("DeleteItem", self.rows.delete.fill(key, values))

    def force(self, key: RawItem, seen: Claim, token: str) -> Answer:
        """Break the claim that was seen, and put a token there that no holder has."""
        ttl = self.ttl(seen.expires_at or 0.0)
        return self.write(self.rows.force, key, {"seen": seen.token, "token": token, "ttl": ttl})

    def put_right(self, key: RawItem, seen: RawItem, token: str) -> Answer:
        """Break the claim in a row whose lock attributes cannot be right, if they still are as they were seen.

        The fencing token grows where there was one to count from.
        """
        version = self.rows.version_above(seen) or self.next_version(local_clock().now())
        template, values = self.rows.put_right(seen)
        values |= {"token": token, "new_version": str(version), "ttl": self.ttl_from_now()}
        return self.write(template, key, values)

    def scan_claims(self) -> Iterator[RawItem]:
        """Read all rows that carry a claim, dead or alive."""
        until = local_clock().now() + SCAN_PATIENCE
        page = persist(self.scan_page, until)
        yield from page.items
        while (start := page.end) is not None:
            page = persist(lambda: self.scan_page(start), until)
            yield from page.items

    def scan_page(self, start: RawItem | None = None, limit: int | None = None) -> Page:
        """Read the rows that carry a claim, dead or alive, from one page of the table.

        Args:
            start: The end of the page before; None for the first.
            limit: Rows to look at, whatever they carry.

        Raises:
            Transient: If it may pass.
            PynamoDBException: If it cannot.
        """
        condition = self.rows.has_claim
        names: dict[str, str] = {}
        kwargs: dict[str, Any] = {
            "TableName": self.connection.table_name,
            "FilterExpression": condition.serialize(names, {}),
            "ConsistentRead": True,
        }
        kwargs["ExpressionAttributeNames"] = {short: name for name, short in names.items()}
        if start is not None:
            kwargs["ExclusiveStartKey"] = start
        if limit is not None:
            kwargs["Limit"] = limit
        data, _, received = self.call("Scan", kwargs)
        return Page(data["Items"], data.get("LastEvaluatedKey"), received)

    def transact(self, items: list[dict[str, Any]], request_token: str) -> Cancelled | None:
        """Send a transaction; return None if it was applied: see `write_together`."""
        answer = self.write_together(items, {"ClientRequestToken": request_token})
        return answer if isinstance(answer, Cancelled) else None

    def write_together(
        self, items: list[dict[str, Any]], options: Mapping[str, str]
    ) -> Cancelled | dict[str, Any]:
        """Send a transaction; return DynamoDB's answer if it was applied.

        Raises:
            Transient: If it may pass.
            PynamoDBException: If it cannot.
        """
        for item in items:
            for kwargs in item.values():
                # what single writes may ask for
                kwargs.pop("ReturnValues", None)
        request: dict[str, Any] = {"TransactItems": items, **options}
        sent = local_clock().now()
        try:
            return self.call("TransactWriteItems", request)[0]
        except TransactWriteError as error:
            codes = [reason.code if reason else "None" for reason in error.cancellation_reasons]
            if any(code in PASSING_REASONS and code != "None" for code in codes):
                # it may be the guard that was not looked at, and an own earlier attempt that refuses
                raise Transient(error, maybe_applied=False) from error
            refused = {
                place: (reason.raw_item if reason else None) or {}
                for place, reason in enumerate(error.cancellation_reasons)
                if codes[place] == "ConditionalCheckFailed"
            }
            if not refused:
                raise
            return Cancelled(refused, sent, local_clock().now(), error)

    def read_all(
        self, keys: dict[str, list[RawItem]], *, consistent: bool
    ) -> dict[str, list[RawItem]]:
        """Read up to 100 rows of one or more tables; those that there are, in no order.

        Raises:
            Transient: If it may pass.
            PynamoDBException: If it cannot.
        """
        wanted = {name: {"Keys": rows, "ConsistentRead": consistent} for name, rows in keys.items()}
        found: dict[str, list[RawItem]] = {table: [] for table in keys}
        while wanted:
            data = self.call("BatchGetItem", {"RequestItems": wanted})[0]
            for table, rows in data["Responses"].items():
                found[table] += rows
            wanted = data.get("UnprocessedKeys") or {}
        return found

    def ttl_from_now(self) -> str:
        """Return when DynamoDB may delete a row whose claim is ended now."""
        bounds = self.server.bounds
        return self.ttl(NO_SERVER_TIME if bounds is None else bounds.highest(local_clock().now()))

    def ttl(self, end: float) -> str:
        """Return when DynamoDB may delete a row whose claim ends or ended at ``end``."""
        # in a user's row nothing expires, and an attribute of that name is the user's
        retention: float = 0.0 if self.rows.must_exist else getattr(self.model, "retention", 0.0)
        # PynamoDB could not read a row whose TTL is no date
        return str(int(min(end + max(retention, SHORTEST_RETENTION), YEAR_10000 - 2)) + 1)

    # -- sending --------------------------------------------------------------------------------

    def send(self, operation: str, kwargs: dict[str, Any]) -> Answer:
        """Send one request for one row.

        Raises:
            Transient: If it may pass.
            PynamoDBException: If it cannot.
        """
        try:
            data, sent, received = self.call(operation, kwargs)
        except _Refused as refused:
            claim = self.rows.claim(refused.item)
            error = _ERRORS[operation](f"{operation} refused: {refused.error}", refused.error)
            return Answer(
                False,
                claim,
                refused.item,
                refused.sent,
                refused.received,
                error,
                maybe_applied=refused.maybe_applied,
            )
        item: RawItem = data.get("Attributes") or data.get("Item") or {}
        return Answer(True, self.rows.claim(item), item, sent, received, data=data)

    def call(self, operation: str, kwargs: dict[str, Any]) -> tuple[dict[str, Any], float, float]:
        """Send one request of any kind; return its answer and when it was sent and received."""
        if not self.repeats:
            # PynamoDB would ask for it, only to log it
            kwargs.setdefault("ReturnConsumedCapacity", "NONE")
        self._open_for(operation)
        clock = local_clock()
        sent = clock.now()
        watched = _attempts.Watched()
        try:
            with watched:
                data: dict[str, Any] = self.connection.connection.dispatch(operation, kwargs)
        except (AttributeError, TypeError) as error:
            if not came_from_the_body(error):
                raise
            raise self.not_dynamodbs(operation, error) from error
        except (BotoCoreError, ClientError, *UNWRAPPED) as error:
            received = clock.now()
            raised = error.__cause__ if isinstance(error, VerboseClientError) else error
            response: Any = getattr(raised, "response", None) or {}
            if getattr(raised, "operation_name", operation) != operation:
                # another service's, asked for credentials
                response = {}
            self._observe(response, sent, received)
            code = response.get("Error", {}).get("Code")
            if code == _REFUSED:
                item = response.get("Item") or {}
                raise _Refused(item, sent, received, error, watched.maybe_applied) from error
            failure = self._translated(operation, kwargs, code, error, raised)
            if isinstance(failure, Transient):
                failure.maybe_applied |= watched.maybe_applied
            raise failure from error
        received = clock.now()
        if self.repeats and is_made_up(data):
            return data or {}, sent, received
        if not is_dynamodbs(data):
            raise self.not_dynamodbs(operation)
        self._observe(data, sent, received)
        return data, sent, received

    def _open_for(self, operation: str) -> None:
        """Make the client, if there is none yet and there can be one."""
        try:
            if not self.repeats:
                self._follow_credentials()
            self._open()
        except (BotoCoreError, ValueError) as error:
            # a test's stand-in for a caller's connection needs none
            if not self.repeats:
                raise self._failed(operation, error) from error

    def not_dynamodbs(self, operation: str, cause: Exception | None = None) -> Exception:
        """Return the failure of a request that something else than DynamoDB answered."""
        return self._passing(operation, "the answer is not DynamoDB's", cause, maybe_applied=True)

    def _passing(
        self,
        operation: str,
        why: str,
        cause: Exception | None,
        *,
        maybe_applied: bool,
        conflict: bool = False,
    ) -> Exception:
        """Return a failure that may pass: as Transient, unless it was repeated often enough."""
        answered = self.server.answered
        if not answered:
            why = (
                f"DynamoDB has not answered yet in {self.where} (wrong region or endpoint?): {why}"
            )
        error = _ERRORS[operation](f"{operation} failed: {why}", cause)
        if self.repeats and not conflict:
            # as often as the caller chose
            return error
        # botocore repeats nothing for a conflict, and who locks the same rows brings conflicts about
        return Transient(error, maybe_applied=maybe_applied, answered=answered)

    def _translated(
        self,
        operation: str,
        kwargs: dict[str, Any],
        code: str | None,
        error: Exception,
        raised: Any,
    ) -> Exception:
        missing = missing_tables(kwargs, code, error)
        if missing:
            return self._missing(missing, error)
        transient, maybe_applied = outcome(raised)
        if transient:
            conflict = is_conflict(raised)
            return self._passing(
                operation, str(error), error, maybe_applied=maybe_applied, conflict=conflict
            )
        return self._failed(operation, error)

    def _missing(self, tables: Sequence[str], error: Exception) -> TableDoesNotExist:
        """Return the error for a table that is not there, one of those given.

        It asks for the place before it advises to create the table: often that is there, in another region.
        """
        if len(tables) > 1:
            # DynamoDB does not say which one it was, so each is asked for
            tables = [table for table in tables if self._is_missing(table)] or tables
        own = self.connection.table_name
        call = f"{self.model.__name__}.create_table()" if [*tables] == [own] else "create_table()"
        # PynamoDB puts it between backticks
        missing = TableDoesNotExist(
            f"{'` or `'.join(tables)}` in {self.where}: wrong region or profile? "
            f"If not, create it with `{call}"
        )
        missing.cause = error
        return missing

    def _is_missing(self, table: str) -> bool:
        """Whether a table is not there, as far as a read can tell: the role may not be allowed to."""
        # a key that fits no table: DynamoDB compares keys only where there is a table to compare with
        key = {"-": {"S": "-"}}
        try:
            self.call("GetItem", {"TableName": table, "Key": key})
        except TableDoesNotExist:
            return True
        except (Transient, PynamoDBException):
            pass  # there is one, or it cannot be found out
        return False

    @staticmethod
    def _failed(operation: str, error: Exception) -> PynamoDBException:
        """Return PynamoDB's error for a request that failed."""
        return _ERRORS[operation](f"{operation} failed: {explained(error)}", error)

    def _observe(self, response: Any, sent: float, received: float) -> None:
        """Note that DynamoDB answered, if it did, and learn server time from its Date header."""
        if is_dynamodbs(response):
            self.server.answered = True
        date = date_of(response)
        if date is None:
            return
        text, instant = self._date
        if date != text:
            try:
                instant = instant_of(date)
            except ValueError:
                return
            self._date = (date, instant)
        if self.server.observe(instant, sent, received):
            self.on_thaw()


class _Numbers:
    """Numbers that only grow, for all by which one process reaches the same rows."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, least: int) -> int:
        """Return the next one."""
        # two threads may get the same: then the later one is refused, and told what stands there
        self._last = max(self._last + 1, least)
        return self._last


class _Refused(Exception):  # noqa: N818 - an answer, not an error
    def __init__(
        self, item: RawItem, sent: float, received: float, error: Exception, maybe_applied: bool
    ) -> None:
        super().__init__()
        self.maybe_applied = maybe_applied
        self.error = error
        self.item = item
        self.sent = sent
        self.received = received
