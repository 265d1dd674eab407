"""Sends the requests of simulated schedules to a real engine, and compares its answers with the simulated ones.

It proves that the simulated DynamoDB answers the library's own requests as an engine does. `recording` records them,
and `answers` brings both answers into one form. Answers for which engines have a choice are not compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import boto3
from botocore.config import Config

from dev.simulation.answers import answer_of_engine, comparable, documented, response_of
from dev.simulation.recording import Applied, recorded
from dev.simulation.schedule import Size, play
from dev.simulation.values import Refusal

ABOUT_TABLES = {"CreateTable", "DescribeTable", "DescribeTimeToLive", "UpdateTimeToLive"}
READS = {"BatchGetItem", "GetItem", "Query", "Scan"}
BY_TABLE = {"RequestItems", "Responses", "UnprocessedItems", "UnprocessedKeys"}


def expected(applied: Applied) -> Any:
    """Return the recorded answer or refusal in the form to compare."""
    outcome = applied.outcome
    return comparable(response_of(outcome) if isinstance(outcome, Refusal) else outcome)


def is_any_answer_right(applied: Applied) -> bool:
    """Return whether an engine may answer differently: descriptions, late reads, and pages in another order."""
    if applied.operation in ABOUT_TABLES:
        return True
    if applied.operation == "Scan" and not {"Limit", "Segment"}.isdisjoint(applied.kwargs):
        return True
    is_late = applied.as_of is not None and not applied.kwargs.get("ConsistentRead")
    return applied.operation in READS and is_late


def renamed(part: Any, prefix: str, schedule: str) -> Any:
    """Return a request or an answer with a prefix to the names of its tables, and with the token of another schedule."""
    if isinstance(part, list):
        return [renamed(each, prefix, schedule) for each in part]
    if not isinstance(part, dict):
        return part
    made: dict[str, Any] = {}
    for name, value in part.items():
        if name == "TableName" and isinstance(value, str):
            made[name] = prefix + value
        elif name == "ClientRequestToken":
            # The engine may have seen it minutes ago, when another schedule was replayed, or the same. It would take the
            # transaction for a repetition, and not apply it.
            made[name] = uuid.uuid5(uuid.NAMESPACE_OID, schedule + value).hex
        elif name in BY_TABLE and isinstance(value, dict):
            made[name] = {
                prefix + table: renamed(each, prefix, schedule) for table, each in value.items()
            }
        else:
            made[name] = renamed(value, prefix, schedule)
    return made


def client_of(url: str) -> Any:
    """Return a client of an engine that checks no parameters: what is refused, the engine refuses."""
    return boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
        config=Config(parameter_validation=False, retries={"total_max_attempts": 1}),
    )


def replay(client: Any, requests: Iterable[Applied]) -> None:
    """Send recorded requests to an engine, and compare its answers.

    Raises:
        AssertionError: If an answer differs.
    """
    prefix = f"{uuid.uuid4().hex}-"
    for number, applied in enumerate(requests):
        is_compared = not is_any_answer_right(applied)
        if not is_compared and applied.operation in READS:
            continue
        found, wanted = compared(client, applied, prefix, prefix)
        if is_compared:
            assert found == wanted, f"{number}: {applied.operation} {applied.kwargs}"


def compared(client: Any, applied: Applied, prefix: str, schedule: str) -> tuple[Any, Any]:
    """Send a recorded request, for tables of a prefix; return the answer, and the one that was recorded.

    Args:
        client: A client of the engine.
        applied: The request.
        prefix: Prefix of the names of the tables.
        schedule: What no other replay in these tables has: see `renamed`.
    """
    found = answer_of_engine(client, applied.operation, renamed(applied.kwargs, prefix, schedule))
    wanted = renamed(expected(applied), prefix, schedule)
    if applied.operation == "TransactWriteItems" and found != wanted:
        wanted = documented(wanted)
    return found, wanted


def requests_of(seed: int, size: Size | None = None) -> list[Applied]:
    """Play the schedule of a seed; return its requests, and at their end a read of the whole lock table."""
    with recorded() as requests:
        violation = play(seed, size).violation
    assert violation is None, violation
    # compare the final rows of the lock table too, some of which nobody may have read
    created = requests[0]
    kwargs = {"TableName": created.kwargs["TableName"], "ConsistentRead": True}
    found = created.tables.apply("Scan", kwargs)
    return [*requests, created._replace(operation="Scan", kwargs=kwargs, outcome=found)]


def replay_schedule(client: Any, seed: int, size: Size | None = None) -> int:
    """Play the schedule of a seed, and replay it on an engine; return the number of its requests."""
    requests = requests_of(seed, size)
    replay(client, requests)
    return len(requests)
