"""Answers of DynamoDB, and failures to get one: what they mean. Nothing here sends anything."""

from __future__ import annotations

from datetime import timezone
from email.utils import parsedate_to_datetime
from traceback import walk_tb
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from botocore import endpoint, exceptions, parsers
from botocore.exceptions import ClientError, HTTPClientError

from pynamodb_mutex._protocol.claim import Claim

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.exceptions import PynamoDBException

    from pynamodb_mutex._dynamodb.keys import RawItem

NO_CLAIM = Claim()

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
TRANSIENT_REASONS = frozenset({
    "None",
    "TransactionConflict",
    "ThrottlingError",
    "ProvisionedThroughputExceeded",
})  # fmt: skip


class Reply:
    """What became of a request, as it was seen here.

    Attributes:
        sent: Local time before the request was sent.
        received: Local time after the answer was received.
        date: The ``Date`` header of DynamoDB's answer; None if it has none, or is another's.
        is_dynamodbs: Whether DynamoDB answered, if only by an error.
        maybe_applied: Whether the request may have been applied though its answer does not show it.
    """

    __slots__ = ("date", "is_dynamodbs", "maybe_applied", "received", "sent")

    def __init__(self, response: Any, *, maybe_applied: bool = False) -> None:
        headers: dict[str, str] = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        # Not from a proxy or portal on the way: botocore takes any body of status 200 for an answer, a page of
        # HTML for an empty one.
        self.is_dynamodbs = "x-amzn-requestid" in headers or headers.get(
            "content-type", ""
        ).startswith("application/x-amz-json")
        self.date = headers.get("date") if self.is_dynamodbs else None
        self.maybe_applied = maybe_applied
        self.sent = self.received = 0.0


@final
class Answer(Reply):
    """DynamoDB's answer to a request: its conditions held, or did not.

    Attributes:
        applied: Whether the conditions held.
        claim: What the row shows: after an applied acquisition, else before. Of a request for one row.
        item: The raw row.
        data: All of the answer, if the request was applied.
        error: What PynamoDB would raise for a condition that did not hold.
        refused: Of a transaction: by its place in it, what each row shows whose condition did not hold.
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
        maybe_applied: bool = False,
    ) -> None:
        super().__init__(response, maybe_applied=maybe_applied)
        self.applied = error is None
        self.claim = claim
        self.item: RawItem = item or {}
        self.data: dict[str, Any] = response if error is None else {}
        self.error = error
        self.refused = refused

    @property
    def refusal(self) -> PynamoDBException:
        """The error of an answer that is known to be a refusal."""
        error: Any = self.error
        refusal: PynamoDBException = error
        return refusal


@final
class Failure(Reply):
    """A request that has no answer which shows its outcome.

    Attributes:
        error: What to raise if it is not retried.
        transient: Whether it may pass.
        answered: Whether DynamoDB has ever answered there: else there may be nothing.
    """

    __slots__ = ("answered", "error", "transient")

    def __init__(
        self,
        response: Any,
        error: Exception,
        *,
        transient: bool = False,
        maybe_applied: bool = False,
        answered: bool = True,
    ) -> None:
        super().__init__(response, maybe_applied=maybe_applied)
        self.error = error
        self.transient = transient
        self.answered = answered


def is_made_up(response: Any) -> bool:
    """Say whether an answer is none of botocore's, but what a test put in place of one."""
    return not response or "ResponseMetadata" not in response


def came_from_the_body(error: Exception) -> bool:
    """Say whether botocore fell over JSON that has not the shape of an answer, such as a list.

    Its parser takes the shape for granted, and its endpoint that the parser returned something.
    """
    modules = [frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__)]
    return parsers.__name__ in modules or modules[-1] == endpoint.__name__


def instant_of(date: str) -> float:
    """Return the seconds since the epoch that a ``Date`` header shows.

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


def may_pass(error: Exception) -> tuple[bool, bool]:
    """Say whether a failure may pass, and whether the request may have been applied."""
    if isinstance(error, ClientError):
        code = error.response.get("Error", {}).get("Code", "")
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code == _CANCELLED:
            reasons: list[dict[str, Any]] = error.response.get("CancellationReasons", [])  # type: ignore[assignment]  # untyped in botocore's stubs
            return bool(reasons) and all(r.get("Code") in TRANSIENT_REASONS for r in reasons), False
        if code in _NOT_APPLIED:
            return True, False
        return status >= 500 or code == _UNDER_WAY, True  # noqa: PLR2004 - the server's own
    if isinstance(error, exceptions.SSLError):
        return True, True  # a ConnectionError to botocore, yet it may come with the answer
    if isinstance(error, exceptions.ConnectionError):
        return True, False
    return isinstance(error, (HTTPClientError, *UNWRAPPED)), True
