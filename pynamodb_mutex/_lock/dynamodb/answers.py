"""The outcome of a request: an `Answer`, which shows whether it was applied or refused, or a `Failure`.

Decides whether a failure may pass if the request is retried, and whether the request may have been applied. Nothing here sends
anything: see `connection`. `pynamodb_mutex._lock.protocol.outcome` decides what the row in an answer means for our attempt.
"""

from __future__ import annotations

from datetime import timezone
from email.utils import parsedate_to_datetime
from traceback import walk_tb
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from botocore import endpoint, exceptions, parsers
from botocore.exceptions import ClientError, HTTPClientError

from pynamodb_mutex._lock.protocol.claim import Claim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.exceptions import PynamoDBException

    from pynamodb_mutex._lock.dynamodb.keys import RawItem

NO_CLAIM = Claim()

UNWRAPPED = (parsers.ResponseParserError, OSError, UnicodeDecodeError)
"""Exceptions of its HTTP library and parser that botocore does not wrap."""

_OF_CONNECTIONS = frozenset({"builtins", "http", "socket", "ssl", "OpenSSL", "urllib3", "botocore"})
"""Packages whose exceptions a broken connection raises.

botocore also wraps other exceptions: Celery's SoftTimeLimitExceeded, for example, if its signal handler raises it while a request
is under way.
"""

_CANCELLED = "TransactionCanceledException"
_DENIED = "AccessDeniedException"
_NO_TABLE = "ResourceNotFoundException"
_CONFLICTS = frozenset({
    _CANCELLED,
    "TransactionConflictException",
    "ReplicatedWriteConflictException",
})  # fmt: skip
# An earlier attempt with the same ClientRequestToken is still being executed, and may yet be applied.
_UNDER_WAY = "TransactionInProgressException"
# With these codes DynamoDB refuses a request before it writes anything, and may accept it later.
_NOT_APPLIED = frozenset({
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TransactionConflictException",
    "ReplicatedWriteConflictException",
    "LimitExceededException",
})  # fmt: skip
# Reasons of a cancelled transaction. "None" stands for an item that was not to blame.
TRANSIENT_REASONS = frozenset({
    "None",
    "TransactionConflict",
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
})  # fmt: skip


class Reply:
    """The outcome of a request, as far as this process can see.

    Attributes:
        sent: Local time before the request was sent. If the connection leaves it at 0, `Store.learn` fills it in.
        received: Local time after the answer was received; 0 until `Store.learn` fills it in.
        date: The ``Date`` header of DynamoDB's answer; None if it has none, or if something else answered.
        is_dynamodbs: Whether DynamoDB answered, if only by an error.
    """

    __slots__ = ("date", "is_dynamodbs", "received", "sent")

    def __init__(self, response: Any) -> None:
        headers: dict[str, str] = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        # A proxy or a portal on the way may have answered. botocore takes any body of status 200 for an answer, and a page of
        # HTML for an empty answer: a conditional write would count as applied. And the `Date` would come from another clock, and
        # spoil the bounds of server time.
        self.is_dynamodbs = "x-amzn-requestid" in headers or headers.get(
            "content-type", ""
        ).startswith("application/x-amz-json")
        self.date = headers.get("date") if self.is_dynamodbs else None
        self.sent = self.received = 0.0


@final
class Answer(Reply):
    """DynamoDB's answer to a request: it was applied, or refused because a condition did not hold.

    Attributes:
        applied: Whether the request was applied: all its conditions held.
        claim: The claim in ``item``; `NO_CLAIM` if the answer shows no row. For requests that concern one row.
        item: The raw row, if the answer shows it: as read, as an applied write left it, or as it was when DynamoDB refused
            the write.
        data: The whole answer to an applied request; empty if it was refused.
        error: The exception that PynamoDB would raise for the refusal; None if the request was applied.
        refused: The raw rows whose conditions refused a transaction, by their places in it.
    """

    __slots__ = ("applied", "claim", "data", "error", "item", "refused")

    def __init__(
        self,
        response: Any,
        *,
        claim: Claim = NO_CLAIM,
        item: RawItem | None = None,
        error: PynamoDBException | None = None,
        refused: Mapping[int, RawItem] = MappingProxyType({}),
    ) -> None:
        super().__init__(response)
        self.applied = error is None
        self.claim = claim
        self.item: RawItem = item or {}
        self.data: dict[str, Any] = response if error is None else {}
        self.error = error
        self.refused = refused

    @property
    def refusal(self) -> PynamoDBException:
        """The error of a refusal. Only for an answer whose ``applied`` is false."""
        error: Any = self.error
        refusal: PynamoDBException = error
        return refusal


@final
class Failure(Reply):
    """The failure of a request: an error other than a condition that did not hold, or no answer at all.

    Attributes:
        error: The exception to raise if the request is not retried.
        transient: Whether a retry may succeed.
        conflict: Whether it failed because another request, perhaps one of a lock, was using the same row.
        maybe_applied: Whether the request may have been applied; valid only if ``transient``.
        answered: Whether DynamoDB has ever answered at this endpoint. If not, the region or the host may be mistyped.
    """

    __slots__ = ("answered", "conflict", "error", "maybe_applied", "transient")

    def __init__(
        self,
        response: Any,
        error: Exception,
        *,
        transient: bool = False,
        conflict: bool = False,
        maybe_applied: bool = False,
        answered: bool = True,
    ) -> None:
        super().__init__(response)
        self.error = error
        self.transient = transient
        self.conflict = conflict
        self.maybe_applied = maybe_applied
        self.answered = answered


def is_made_up(response: Any) -> bool:
    """Return whether an answer does not come from botocore, but, for example, from a test that replaces the connection."""
    return not response or "ResponseMetadata" not in response


def came_from_the_body(error: Exception) -> bool:
    """Return whether botocore raised an error because the body is JSON without the shape of an answer, such as a list.

    botocore's parser does not check the shape, and its endpoint does not check that the parser returned something.
    """
    modules = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
    return parsers.__name__ in modules or modules[-1] == endpoint.__name__


def instant_of(date: str) -> float:
    """Return the instant that a ``Date`` header shows, in seconds since the epoch.

    Raises:
        ValueError: If the header cannot be read.
    """
    at = parsedate_to_datetime(date)
    # If the zone is -0000 or missing, the result is naive, and timestamp() would take it for local time.
    return at.replace(tzinfo=at.tzinfo or timezone.utc).timestamp()


_REMEDIES: dict[type[Exception], str] = {
    exceptions.NoRegionError: (
        "Set the region: by `region` in the model's Meta, by AWS_DEFAULT_REGION, or in the AWS profile."
    ),
    **dict.fromkeys(
        (exceptions.NoCredentialsError, exceptions.PartialCredentialsError),
        "Give credentials as boto3 finds them: by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, by an AWS "
        "profile, by the role of the machine, container or function, or in the model's Meta.",
    ),
}


def explained(error: Exception) -> str:
    """Return the message of an error, with advice if region, credentials or permissions are missing."""
    remedy = _REMEDIES.get(type(error))
    if isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") == _DENIED:
        remedy = "`pynamodb-mutex doctor` shows which permissions are missing, and `pynamodb-mutex policy` prints them"
    return str(error) if remedy is None else f"{str(error).rstrip('.')}. {remedy}"


def missing_tables(request: dict[str, Any], code: str | None, error: Exception) -> list[str]:
    """Return the tables of which at least one is missing, if an error says so. DynamoDB seldom says which one.

    Returns:
        The tables, each once; none if the error is about something else.
    """
    tables = _tables_of(request)
    if code == _CANCELLED:
        # Some engines, though not DynamoDB, report a missing table as the reason of a cancellation.
        reasons: list[Any] = getattr(error, "cancellation_reasons", [])
        named = zip(tables, reasons, strict=False)
        tables = [table for table, reason in named if reason and reason.code == _NO_TABLE]
    elif code != _NO_TABLE:
        return []
    return list(dict.fromkeys(tables))


def _tables_of(request: dict[str, Any]) -> list[str]:
    """Return the tables that a request names; for a transaction one for each of its items, in their order."""
    if "TransactItems" in request:
        return [part["TableName"] for item in request["TransactItems"] for part in item.values()]
    if "RequestItems" in request:
        return list(request["RequestItems"])
    return [request["TableName"]] if "TableName" in request else []


def is_conflict(error: Exception) -> bool:
    """Return whether a request failed because another request was using the same row."""
    return (
        isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _CONFLICTS
    )


_NOT_REFRESHED = (
    exceptions.CredentialRetrievalError,
    exceptions.MetadataRetrievalError,
    exceptions.TokenRetrievalError,
)
"""Errors that botocore raises in place of signing if the source of its credentials fails: a metadata service, a process, SSO."""


def may_pass(error: Exception, *, answered: bool = False) -> tuple[bool, bool]:
    """Return whether a retry may succeed, and whether the failed request may have been applied.

    The second value counts only if the first is true: it is also true for a definite refusal.

    Args:
        error: What botocore raised.
        answered: Whether DynamoDB has ever answered at this endpoint. If it has, there were credentials before, and if they are
            missing now, their source has an outage. Otherwise it is probably configured wrongly.

    Raises:
        Exception: The exception of a signal handler, if botocore has wrapped it.
    """
    inner: Any = error.kwargs.get("error") if isinstance(error, HTTPClientError) else None
    if inner is not None and type(inner).__module__.partition(".")[0] not in _OF_CONNECTIONS:
        raise inner
    if isinstance(error, _NOT_REFRESHED):
        return answered, False
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == _CANCELLED:
            reasons: list[dict[str, Any]] = error.response.get("CancellationReasons", [])  # type: ignore[assignment]  # untyped in botocore's stubs
            return bool(reasons) and all(r.get("Code") in TRANSIENT_REASONS for r in reasons), False
        if code in _NOT_APPLIED:
            return True, False
        # 5xx: the write may have been applied before the failure.
        return status >= 500 or code == _UNDER_WAY, True  # noqa: PLR2004 - the server's own
    unconnected = isinstance(error, exceptions.ConnectionError)
    # botocore's ConnectionErrors mean that there was no connection, but for SSLError: TLS can also break while the answer is
    # read, and then the request may have been applied.
    maybe_applied = not unconnected or isinstance(error, exceptions.SSLError)
    return unconnected or isinstance(error, (HTTPClientError, *UNWRAPPED)), maybe_applied
