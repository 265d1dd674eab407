"""What DynamoDB says of a table, against what locks need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._dynamodb.create_table import keys_needed, keys_of
from pynamodb_mutex.cli._findings import Finding, ok, problem, unchecked, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb_mutex.cli._asking import Reply
    from pynamodb_mutex.models import LockItem

LOW_CAPACITY = 5
"""Capacity units below which somebody should know: taking a lock and giving it back are two writes."""

_THROTTLED = "throttled locks are taken later, or lost for want of renewal"
_MULTI_REGION = "see docs/howto/multi_region.rst"


def table_findings(model: type[LockItem], region: str, table: dict[str, Any]) -> Iterator[Finding]:
    """Judge a table by its description.

    Args:
        model: Whose table it is.
        region: From which it is described.
        table: As DescribeTable returns it.
    """
    yield _status(table)
    yield _keys(model, table)
    yield _billing(table)
    yield _protection(table)
    yield _replicas(region, table)
    yield _stream(table)


def _status(table: dict[str, Any]) -> Finding:
    name, status = table["TableName"], table["TableStatus"]
    if status in ("ACTIVE", "UPDATING"):
        return ok("table", f"{name} is {status}")
    advice = f"aws dynamodb describe-table --table-name {name} says more; locks need it ACTIVE"
    return problem("table", f"{name} is {status}", advice)


def _keys(model: type[LockItem], table: dict[str, Any]) -> Finding:
    needed, found = keys_needed(model), keys_of(table)
    if needed == found:
        return ok("keys", found)
    advice = "give --model with the names in use there, or --table with another table"
    return problem("keys", f"the table has {found}, {model.__name__} needs {needed}", advice)


def _billing(table: dict[str, Any]) -> Finding:
    if table.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST":
        limits = table.get("OnDemandThroughput", {})
        most = (limits.get("MaxReadRequestUnits", -1), limits.get("MaxWriteRequestUnits", -1))
        if any(0 <= units < LOW_CAPACITY for units in most):
            what = f"on demand, but at most {most[0]} reads and {most[1]} writes a second (-1: any number)"
            return warning("billing", what, f"raise the limits: {_THROTTLED}")
        return ok("billing", "on demand")
    provisioned = table["ProvisionedThroughput"]
    reads, writes = provisioned["ReadCapacityUnits"], provisioned["WriteCapacityUnits"]
    what = f"{reads} read and {writes} write capacity units"
    if min(reads, writes) < LOW_CAPACITY:
        return warning("billing", what, f"raise them, or bill on demand: {_THROTTLED}")
    return ok("billing", what)


def _protection(table: dict[str, Any]) -> Finding:
    if table.get("DeletionProtectionEnabled"):
        return ok("deletion protection", "on")
    name = table["TableName"]
    advice = f"aws dynamodb update-table --table-name {name} --deletion-protection-enabled"
    what = "off: who deletes the table ends every lock in it"
    return warning("deletion protection", what, advice)


def _replicas(region: str, table: dict[str, Any]) -> Finding:
    version = table.get("GlobalTableVersion")
    others = sorted({each["RegionName"] for each in table.get("Replicas", ())} - {region})
    places = ", ".join(others) or "other regions"
    if _is_strong(table):
        what = (
            f"a global table with {places}, strongly consistent: DynamoDB has neither transactions (for_keys, "
            "transaction, lock_model) nor TTL there, and this library was not tried on one"
        )
        return warning("replicas", what, _MULTI_REGION)
    if others or version == "2017.11.29":
        what = f"a global table with {places}, eventually consistent: two regions can each give out the same lock"
        advice = f"let each key be locked in one region only, or use a table without replicas; {_MULTI_REGION}"
        return problem("replicas", what, advice)
    return ok("replicas", "none: the table is in one region")


def _is_strong(table: dict[str, Any]) -> bool:
    return table.get("MultiRegionConsistency") == "STRONG"


def _stream(table: dict[str, Any]) -> Finding:
    stream = table.get("StreamSpecification", {})
    if stream.get("StreamEnabled"):
        view = stream.get("StreamViewType")
        return ok("stream", f"on ({view}): each write of a lock, renewals too, is a record of it")
    return ok("stream", "off")


def ttl_finding(model: type[LockItem], table: dict[str, Any], reply: Reply) -> Finding:
    """Judge a table's TTL.

    Args:
        model: Whose table it is.
        table: As DescribeTable returns it; empty if it did not.
        reply: To DescribeTimeToLive.
    """
    name = model.Meta.table_name
    attribute = model.ttl.attr_name
    if reply.code is not None:
        return unchecked("ttl", reply.told)
    found = reply.data["TimeToLiveDescription"]
    status, on = found["TimeToLiveStatus"], found.get("AttributeName", attribute)
    if status in ("DISABLED", "DISABLING"):
        what = f"{status}: rows of keys that are not used any more stay for ever"
        advice = "pynamodb-mutex create-table enables it, also on a table that is there"
        if _is_strong(table):
            advice = "DynamoDB has no TTL on such a table: delete old rows yourself"
        return warning("ttl", what, advice)
    if on != attribute:
        what = f"{status} on {on!r}, not on {attribute!r}"
        advice = (
            f"aws dynamodb update-time-to-live --table-name {name} "
            f"--time-to-live-specification Enabled=false,AttributeName={on}, and enable the other"
        )
        return problem("ttl", what, advice)
    return ok("ttl", f"{status} on {attribute!r}")
