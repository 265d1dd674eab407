"""Creates the table of a lock model, and enables its TTL. Safe to repeat, also by several processes at once.

Sends by the model's own connection, with the retries of its Meta: no lock depends on these requests. Also compares the keys of two
tables.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from botocore.validate import ParamValidator
from pynamodb.connection import Connection
from pynamodb.exceptions import TableError

from pynamodb_mutex._lock.dynamodb.answers import explained
from pynamodb_mutex._lock.dynamodb.connection import client_of
from pynamodb_mutex._lock.dynamodb.pynamodb_private import connection_of, schema_of

if TYPE_CHECKING:
    from pynamodb.models import Model

_SHORTEST_POLL = 0.1
_LONGEST_POLL = 2.0
_LONGEST_WAIT = 300.0

_USABLE = ("ACTIVE", "UPDATING")

_SETTINGS = {
    # PynamoDB's names of options, which callers may try here, and boto3's names, which are accepted
    "billing_mode": "BillingMode",
    "read_capacity_units": "ProvisionedThroughput",
    "write_capacity_units": "ProvisionedThroughput",
    "tags": "Tags",
    "stream_view_type": "StreamSpecification",
}


class _Described(Connection):
    """Returns the parameters of a request as PynamoDB makes them, and does not send it."""

    def dispatch(self, _: str, operation_kwargs: dict[str, Any]) -> dict[str, Any]:
        return operation_kwargs


def create(model: type[Model], *, wait: bool, options: dict[str, Any]) -> bool:
    """Create a model's table unless it exists, and enable its TTL unless it is enabled.

    Returns:
        Whether this call created the table. False also if the answer that says so was lost: botocore repeats the
        request, and finds the table there.

    Raises:
        TypeError: For an option that CreateTable does not have.
        ValueError: For a value that CreateTable would not accept.
        pynamodb.exceptions.TableError: If DynamoDB refuses or cannot be reached, or an existing table has other keys
            or another TTL attribute, or is being deleted.
    """
    name: str = model.Meta.table_name
    try:
        client = client_of(connection_of(model).connection)
    except (BotoCoreError, ValueError) as error:
        raise _failed(f"table {name}", error) from error
    request = _request(model, client, options)
    try:
        created, table = _existing(client, request, wait=wait)
        found, needed = keys_of(table), keys_of(request)
        if found != needed:
            msg = f"table {name} exists with other keys: {found}, not {needed}"
            raise TableError(msg)
        if table["TableStatus"] in _USABLE:
            _enable_ttl(client, name, model.get_attributes()["ttl"].attr_name)
    except (BotoCoreError, ClientError) as error:
        where = f"{client.meta.region_name} at {client.meta.endpoint_url}"
        raise _failed(f"table {name} in {where}", error) from error
    return created


def _failed(table: str, error: Exception) -> TableError:
    return TableError(f"{table} could not be created: {explained(error)}", error)


def keys_of(table: dict[str, Any]) -> str:
    """Return names and types of a table's keys, in words; two tables have the same words only if they have the same keys.

    ``table`` is a description as in CreateTable's parameters or DescribeTable's answer.
    """
    definitions = table["AttributeDefinitions"]
    kinds = {each["AttributeName"]: each["AttributeType"] for each in definitions}
    names = {each["KeyType"]: each["AttributeName"] for each in table["KeySchema"]}
    return ", ".join(
        f"{role.lower()} key {names[role]!r} ({kinds[names[role]]})"
        for role in ("HASH", "RANGE")
        if role in names
    )


def keys_needed(model: type[Model]) -> str:
    """Return names and types of the keys that a model's table needs, in the words of `keys_of`."""
    schema = schema_of(model)
    return keys_of(
        {
            "AttributeDefinitions": schema["attribute_definitions"],
            "KeySchema": schema["key_schema"],
        }
    )


def _request(model: type[Model], client: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return CreateTable's parameters: the model's keys and settings, then the caller's options."""
    shape = client.meta.service_model.operation_model("CreateTable").input_shape
    own = {"TableName", "KeySchema", "AttributeDefinitions"}
    for name in options:
        if name in own or name not in shape.members:
            hint = f"; boto3 calls it {_SETTINGS[name]}" if name in _SETTINGS else ""
            known = ", ".join(sorted(set(shape.members) - own))
            msg = f"create_table has no option {name!r}{hint}. Its options: {known}"
            raise TypeError(msg)
    meta: Any = model.Meta
    throughput = options.get("ProvisionedThroughput")
    mode = "PROVISIONED" if throughput else options.get("BillingMode", meta.billing_mode)
    view = getattr(meta, "stream_view_type", None)
    request = _Described().create_table(
        meta.table_name,
        **schema_of(model),
        billing_mode="PROVISIONED" if mode == "PROVISIONED" else "PAY_PER_REQUEST",
        read_capacity_units=getattr(meta, "read_capacity_units", None),
        write_capacity_units=getattr(meta, "write_capacity_units", None),
        stream_specification=view and {"stream_enabled": True, "stream_view_type": view},
        tags=getattr(meta, "tags", None),
    )
    request |= {"BillingMode": mode, **options}
    if mode == "PROVISIONED":
        for index in request.get("GlobalSecondaryIndexes", []):
            # Each index needs its own throughput: DynamoDB has no default. If its Meta has none, it gets the table's.
            index["ProvisionedThroughput"] = (
                index["ProvisionedThroughput"] or request["ProvisionedThroughput"]
            )
    # PynamoDB's client does not validate parameters, and would drop a misspelt parameter.
    report = ParamValidator().validate(request, shape)
    if report.has_errors():
        msg = f"create_table: {report.generate_report()}"
        raise ValueError(msg)
    return request


def _existing(client: Any, request: dict[str, Any], *, wait: bool) -> tuple[bool, dict[str, Any]]:
    """Create a table unless it exists; return whether this created it, and its description; with ``wait``, once it is active."""
    name = request["TableName"]
    created = _is_created(client, request)
    pause, waited = _SHORTEST_POLL, 0.0
    while True:
        try:
            table: dict[str, Any] = client.describe_table(TableName=name)["Table"]
        except ClientError as error:
            # DescribeTable is eventually consistent: it may not find a table that was created just now.
            if not is_code(error, "ResourceNotFoundException") or waited > _LONGEST_WAIT:
                raise
            # Or suppose DynamoDB refused CreateTable because the table was being deleted, and now it is gone: nobody else would
            # create it, and this would wait for five minutes.
            created = created or _is_created(client, request)
        else:
            # DynamoDB refuses CreateTable as long as the deletion lasts. If this call has created the table, the description is
            # that of the old table.
            if table["TableStatus"] == "DELETING" and not created:
                msg = f"table {name} is being deleted: create it once it is gone"
                raise TableError(msg)
            if not wait or table["TableStatus"] in _USABLE:
                return created, table
            if waited > _LONGEST_WAIT:
                msg = f"table {name} is still {table['TableStatus']} after {waited:.0f} s"
                raise TableError(msg)
        time.sleep(pause)
        waited += pause
        pause = min(2 * pause, _LONGEST_POLL)


def _is_created(client: Any, request: dict[str, Any]) -> bool:
    """Send CreateTable; return False if the table is in use: it exists, or another process is just creating it."""
    try:
        client.create_table(**request)
    except ClientError as error:
        if not is_code(error, "ResourceInUseException"):
            raise
        return False
    return True


def is_code(error: ClientError, code: str) -> bool:
    """Return whether an error has this code. Its class is no sign: botocore may give two threads different classes."""
    return error.response["Error"]["Code"] == code


def _enable_ttl(client: Any, name: str, attribute: str) -> None:
    """Enable TTL unless it is enabled: DynamoDB refuses to enable it twice.

    Raises:
        TableError: If it is enabled on another attribute.
    """
    found = client.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    if found["TimeToLiveStatus"] in ("ENABLED", "ENABLING"):
        if found["AttributeName"] != attribute:
            msg = f"table {name} has its TTL on {found['AttributeName']!r}, not on {attribute!r}"
            raise TableError(msg)
        return
    try:
        client.update_time_to_live(
            TableName=name,
            TimeToLiveSpecification={"Enabled": True, "AttributeName": attribute},
        )
    except ClientError as error:
        # Another process has enabled it between the two requests.
        if "already enabled" not in str(error):
            raise
