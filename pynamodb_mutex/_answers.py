"""What an answer means, or a failure in place of one. `_store` asks; nothing here sends anything."""

from __future__ import annotations

from datetime import timezone
from email.utils import parsedate_to_datetime
from traceback import walk_tb
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore import endpoint, exceptions, parsers
from botocore.exceptions import ClientError, HTTPClientError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.exceptions import PynamoDBException, TransactWriteError

    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._keys import RawItem

UNWRAPPED = (parsers.ResponseParserError, OSError, UnicodeDecodeError)
"""botocore wraps most of what its HTTP library and its parser raise, not all."""

_CANCELLED = "TransactionCanceledException"
_NO_TABLE = "ResourceNotFoundException"
_CONFLICTS = frozenset({
    _CANCELLED,
    "TransactionConflictException",
    "ReplicatedWriteConflictException",
})  # fmt: skip
_UNDER_WAY = "TransactionInProgressException"
_NOT_APPLIED = frozenset({
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "TransactionConflictException",
    "ReplicatedWriteConflictException",
    "LimitExceededException",
})  # fmt: skip
PASSING_REASONS = frozenset({
    "None",
    "TransactionConflict",
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
})  # fmt: skip


class Answer(NamedTuple):
    """What came back.

    Attributes:
        applied: Whether the condition held.
        claim: What the row shows: after an applied acquisition, else before.
        item: The raw row.
        sent: Local time before the request was sent.
        received: Local time after the answer was received.
        error: What PynamoDB would raise for a condition that did not hold.
        data: All of it, if it was applied.
        maybe_applied: Whether an attempt before it, which the connection itself repeated, may have been
            applied.
    """

    applied: bool
    claim: Claim
    item: RawItem
    sent: float
    received: float
    error: PynamoDBException | None = None
    data: Mapping[str, Any] = MappingProxyType({})
    maybe_applied: bool = False


class Cancelled(NamedTuple):
    """A transaction that was not applied, because a condition in it did not hold.

    Attributes:
        items: By its place in the transaction, what a row shows whose condition did not hold.
        sent: Local time before the request was sent.
        received: Local time after the answer was received.
        error: What PynamoDB would raise.
    """

    items: dict[int, RawItem]
    sent: float
    received: float
    error: TransactWriteError


class Page(NamedTuple):
    """A part of a table.

    Attributes:
        items: The rows that were asked for.
        end: Where the next page starts; None if this is the last one.
        received: Local time after the answer was received.
    """

    items: list[RawItem]
    end: RawItem | None
    received: float


def _headers(response: Any) -> dict[str, str]:
    headers: dict[str, str] = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return headers


def is_dynamodbs(response: Any) -> bool:
    """Say whether an answer came from DynamoDB, not from a proxy or portal on the way.

    botocore takes any body of status 200 for an answer, a page of HTML for an empty one.
    """
    headers = _headers(response)
    json = headers.get("content-type", "").startswith("application/x-amz-json")
    return json or "x-amzn-requestid" in headers


def is_made_up(response: Any) -> bool:
    """Say whether an answer is none of botocore's, but what a test put in place of one."""
    return not response or "ResponseMetadata" not in response


def came_from_the_body(error: Exception) -> bool:
    """Say whether botocore fell over JSON that has not the shape of an answer, such as a list.

    Its parser takes the shape for granted, and its endpoint that the parser returned something.
    """
    modules = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
    return parsers.__name__ in modules or modules[-1] == endpoint.__name__


def date_of(response: Any) -> str | None:
    """Return the ``Date`` header of DynamoDB's answer; None if it has none, or is another's."""
    return _headers(response).get("date") if is_dynamodbs(response) else None


def instant_of(date: str) -> float:
    """Return the seconds since the epoch that a ``Date`` header tells.

    Raises:
        ValueError: If it cannot be read.
    """
    at = parsedate_to_datetime(date)
    # naive for the zone -0000, and without one: timestamp() would take it for local time
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
    """Return what a failure says and, where a request could not be sent, what to set."""
    remedy = _REMEDIES.get(type(error))
    return str(error) if remedy is None else f"{str(error).rstrip('.')}. {remedy}"


def missing_tables(request: dict[str, Any], code: str | None, error: Exception) -> list[str]:
    """Return the tables of which one is not there, if a failure says so; DynamoDB seldom says which.

    Args:
        request: What was sent.
        code: Of the failure.
        error: PynamoDB's for it.
    """
    tables = _tables_of(request)
    if code == _CANCELLED:
        # not DynamoDB's way to say it, but that of some engines
        reasons: list[Any] = getattr(error, "cancellation_reasons", [])
        named = zip(tables, reasons, strict=False)
        tables = [table for table, reason in named if reason and reason.code == _NO_TABLE]
    elif code != _NO_TABLE:
        return []
    return list(dict.fromkeys(tables))


def _tables_of(request: dict[str, Any]) -> list[str]:
    """Return the tables that a request names; in a transaction one for each of its parts."""
    if "TransactItems" in request:
        return [part["TableName"] for item in request["TransactItems"] for part in item.values()]
    if "RequestItems" in request:
        return list(request["RequestItems"])
    return [request["TableName"]] if "TableName" in request else []


def is_conflict(error: Exception) -> bool:
    """Say whether a failure is that of a request which met another one at the same row."""
    return (
        isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") in _CONFLICTS
    )


def outcome(error: Exception) -> tuple[bool, bool]:
    """Say whether a failure may pass, and whether the request may have been applied."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == _CANCELLED:
            reasons: list[dict[str, Any]] = error.response.get("CancellationReasons", [])  # type: ignore[assignment]  # untyped in botocore's stubs
            return bool(reasons) and all(r.get("Code") in PASSING_REASONS for r in reasons), False
        if code in _NOT_APPLIED:
            return True, False
        return status >= 500 or code == _UNDER_WAY, True  # noqa: PLR2004 - the server's own
    if isinstance(error, exceptions.SSLError):
        return True, True  # a ConnectionError to botocore, yet it may come with the answer
    if isinstance(error, exceptions.ConnectionError):
        return True, False
    return isinstance(error, (HTTPClientError, *UNWRAPPED)), True
