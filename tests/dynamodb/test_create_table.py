"""LockItem.create_table: safe to call again, and CreateTable's options by boto3's names."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.client import BaseClient
from botocore.errorfactory import ClientExceptionsFactory
from botocore.exceptions import ClientError
from botocore.session import get_session
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.exceptions import TableError
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from pynamodb.models import Model

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._dynamodb import create_table as _table

UNDERSTOOD = ("TableName", "AttributeDefinitions", "KeySchema", "BillingMode")


@pytest.fixture
def fresh(engine, monkeypatch):
    """LockItem without its table."""
    monkeypatch.setattr(LockItem.Meta, "table_name", f"locks-{uuid.uuid4().hex}")
    return LockItem


class Wire:
    """The requests that go out, and what the test wants them to be answered."""

    def __init__(self, monkeypatch):
        self.sent = []
        self.answers = {}
        original = BaseClient._make_api_call

        def send(client, operation, kwargs):
            self.sent.append((operation, kwargs))

            def forward(**changed):
                return original(client, operation, {**kwargs, **changed})

            answer = self.answers.get(operation)
            return forward() if answer is None else answer(client, forward, kwargs)

        monkeypatch.setattr(BaseClient, "_make_api_call", send)

    def of(self, operation):
        return [kwargs for name, kwargs in self.sent if name == operation]

    def understand_only_keys(self):
        """Let CreateTable go out in full, and its engine see what every engine understands."""

        def create(client, forward, kwargs):
            dropped = set(kwargs) - set(UNDERSTOOD)
            kept = {name: value for name, value in kwargs.items() if name not in dropped}
            return client._make_api_call("CreateTable", {**kept, "BillingMode": "PAY_PER_REQUEST"})

        def once(client, forward, kwargs):
            del self.answers["CreateTable"]
            return create(client, forward, kwargs)

        self.answers["CreateTable"] = once


@pytest.fixture
def wire(monkeypatch):
    return Wire(monkeypatch)


def client():
    return LockItem._get_connection().connection.client


def described():
    return client().describe_table(TableName=LockItem.Meta.table_name)["Table"]


def ttl():
    return client().describe_time_to_live(TableName=LockItem.Meta.table_name)[
        "TimeToLiveDescription"
    ]


# -- again and again ----------------------------------------------------------------------------


@pytest.mark.real
def test_it_creates_an_on_demand_table_with_its_ttl(fresh):
    fresh.create_table()
    table = described()
    assert table["TableStatus"] == "ACTIVE"
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert table["KeySchema"] == [{"AttributeName": "key", "KeyType": "HASH"}]
    assert ttl() == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}


def test_the_second_call_changes_nothing(fresh, wire):
    fresh.create_table()
    with Mutex.for_key("a") as mutex:
        fresh.create_table()
        fresh.create_table(wait=False)
        assert mutex.locked()
    assert len(wire.of("UpdateTimeToLive")) == 1
    assert ttl()["TimeToLiveStatus"] == "ENABLED"


@pytest.mark.real
def test_many_may_call_it_at_once(fresh):
    with ThreadPoolExecutor(4) as pool:
        for created in [pool.submit(fresh.create_table) for _ in range(4)]:
            created.result(60)
    assert ttl()["TimeToLiveStatus"] == "ENABLED"


@pytest.mark.real
def test_errors_are_reported_by_their_code(fresh, monkeypatch):
    """Botocore makes a client's error classes at first use, where two threads may each get their own."""

    def made_anew(client):
        return ClientExceptionsFactory().create_client_exceptions(client.meta.service_model)

    monkeypatch.setattr(BaseClient, "exceptions", property(made_anew))
    fresh.create_table()
    fresh.create_table()
    assert ttl()["TimeToLiveStatus"] == "ENABLED"


def creating(times):
    """Answer that the table is being created, as it takes seconds on AWS."""
    left = [times]

    def answer(client, forward, kwargs):
        described = forward()
        if left[0] > 0:
            left[0] -= 1
            described["Table"]["TableStatus"] = "CREATING"
        return described

    return answer


def test_it_waits_until_the_table_is_active(fresh, wire):
    wire.answers["DescribeTable"] = creating(2)
    fresh.create_table()
    assert len(wire.of("DescribeTable")) == 3
    assert ttl()["TimeToLiveStatus"] == "ENABLED"


def test_a_table_that_another_is_just_creating_is_waited_for(fresh, wire):
    fresh.create_table(wait=False)
    wire.answers["DescribeTable"] = creating(2)
    fresh.create_table()
    assert len(wire.of("CreateTable")) == 2
    assert ttl()["TimeToLiveStatus"] == "ENABLED"


def test_without_waiting_ttl_comes_with_a_later_call(fresh, wire):
    wire.answers["DescribeTable"] = creating(1)
    fresh.create_table(wait=False)
    assert wire.of("UpdateTimeToLive") == []
    fresh.create_table(wait=False)
    assert ttl()["TimeToLiveStatus"] == "ENABLED"


def test_a_table_that_describe_does_not_know_yet_is_waited_for(fresh, wire):
    left = [2]

    def answer(client, forward, kwargs):
        left[0] -= 1
        if left[0] >= 0:
            raise not_found(client)
        return forward()

    wire.answers["DescribeTable"] = answer
    fresh.create_table()
    assert left[0] < 0
    assert ttl()["TimeToLiveStatus"] == "ENABLED"


def not_found(client):
    error = {"Error": {"Code": "ResourceNotFoundException", "Message": "not found"}}
    return ClientError(error, "DescribeTable")


def test_it_does_not_wait_for_ever(fresh, wire, monkeypatch):
    monkeypatch.setattr(_table, "_LONGEST_WAIT", 0.2)
    wire.answers["DescribeTable"] = creating(1000)
    with pytest.raises(TableError, match="still CREATING"):
        fresh.create_table()

    def unknown(client, forward, kwargs):
        raise not_found(client)

    wire.answers["DescribeTable"] = unknown
    with pytest.raises(TableError, match="could not be created"):
        fresh.create_table()


def test_ttl_that_another_enabled_meanwhile_is_fine(fresh, wire):
    fresh.create_table()

    def not_yet(client, forward, kwargs):
        return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}

    wire.answers["DescribeTimeToLive"] = not_yet
    fresh.create_table()
    assert len(wire.of("UpdateTimeToLive")) == 2


def test_ttl_that_is_being_enabled_is_fine(fresh, wire):
    fresh.create_table()

    def soon(client, forward, kwargs):
        return {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLING", "AttributeName": "ttl"}}

    wire.answers["DescribeTimeToLive"] = soon
    fresh.create_table()
    assert len(wire.of("UpdateTimeToLive")) == 1


# -- what cannot work ---------------------------------------------------------------------------


def denied(client, forward, kwargs):
    error = {"Error": {"Code": "AccessDeniedException", "Message": "you may not"}}
    raise ClientError(error, "Denied")


@pytest.mark.parametrize("operation", ["CreateTable", "DescribeTable", "UpdateTimeToLive"])
def test_a_refusal_is_a_table_error_with_its_cause(fresh, wire, operation):
    wire.answers[operation] = denied
    with pytest.raises(TableError, match="you may not") as caught:
        fresh.create_table()
    assert fresh.Meta.table_name in str(caught.value)
    assert caught.value.cause_response_code == "AccessDeniedException"


@pytest.mark.real
def test_ttl_on_another_attribute_is_a_clear_error(fresh):
    class Plain(Model):
        class Meta:
            table_name = fresh.Meta.table_name
            billing_mode = "PAY_PER_REQUEST"

        key = UnicodeAttribute(hash_key=True)

    Plain.create_table(wait=True)
    client().update_time_to_live(
        TableName=fresh.Meta.table_name,
        TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"},
    )
    with pytest.raises(TableError, match=r"'expires', not on 'ttl'"):
        fresh.create_table()


@pytest.mark.real
def test_table_whose_key_has_another_type_is_an_error(fresh):
    class Numbered(Model):
        class Meta:
            table_name = fresh.Meta.table_name
            billing_mode = "PAY_PER_REQUEST"

        key = NumberAttribute(hash_key=True)

    Numbered.create_table(wait=True)
    message = r"exists with other keys: hash key 'key' \(N\), not hash key 'key' \(S\)"
    for wait in (True, False):
        with pytest.raises(TableError, match=message):
            fresh.create_table(wait=wait)
    # nor was anything else done to it
    ttl = client().describe_time_to_live(TableName=fresh.Meta.table_name)
    assert ttl["TimeToLiveDescription"]["TimeToLiveStatus"] == "DISABLED"


@pytest.mark.real
def test_a_table_with_other_keys_is_a_clear_error(fresh):
    class Other(Model):
        class Meta:
            table_name = fresh.Meta.table_name
            billing_mode = "PAY_PER_REQUEST"

        pk = UnicodeAttribute(hash_key=True)
        number = NumberAttribute(range_key=True)

    Other.create_table(wait=True)
    with pytest.raises(TableError, match="exists with other keys"):
        fresh.create_table()
    assert ttl()["TimeToLiveStatus"] == "DISABLED"


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("billing_mode", "PAY_PER_REQUEST", "BillingMode"),
        ("read_capacity_units", 5, "ProvisionedThroughput"),
        ("write_capacity_units", 5, "ProvisionedThroughput"),
        ("tags", {"a": "b"}, "Tags"),
        ("stream_view_type", "NEW_IMAGE", "StreamSpecification"),
        ("BilingMode", "PAY_PER_REQUEST", "BillingMode"),
        ("TableName", "elsewhere", "TableClass"),
        ("KeySchema", [], "TableClass"),
        ("AttributeDefinitions", [], "TableClass"),
        ("ignore_update_ttl_errors", True, "TableClass"),
    ],
)
def test_an_unknown_option_is_refused_and_the_known_ones_are_reported(
    fresh, wire, name, value, hint
):
    with pytest.raises(TypeError, match=name) as caught:
        fresh.create_table(**{name: value})
    told = str(caught.value)
    assert hint in told
    for option in OPTIONS:
        assert option in told
    if name in ("billing_mode", "tags"):
        assert f"boto3 calls it {hint}" in told
    assert wire.sent == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DeletionProtectionEnabled", "yes"),
        ("Tags", {"a": "b"}),
        ("Tags", [{"key": "a"}]),
        ("ProvisionedThroughput", {"ReadCapacityUnits": "many", "WriteCapacityUnits": 1}),
        ("ProvisionedThroughput", {"ReadCapacityUnits": 1}),
        ("StreamSpecification", {"StreamEnabled": True, "StreamView": "NEW_IMAGE"}),
        ("BillingMode", None),
    ],
)
def test_a_value_that_create_table_would_not_take_is_refused(fresh, wire, name, value):
    with pytest.raises(ValueError, match="create_table"):
        fresh.create_table(**{name: value})
    assert wire.sent == []


# -- options ------------------------------------------------------------------------------------

OPTIONS = {
    "TableClass": "STANDARD_INFREQUENT_ACCESS",
    "DeletionProtectionEnabled": True,
    "OnDemandThroughput": {"MaxReadRequestUnits": 100, "MaxWriteRequestUnits": 50},
    "WarmThroughput": {"ReadUnitsPerSecond": 12000, "WriteUnitsPerSecond": 4000},
    "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"},
    "SSESpecification": {"Enabled": True, "SSEType": "KMS"},
    "ResourcePolicy": '{"Version": "2012-10-17", "Statement": []}',
    "Tags": [{"Key": "team", "Value": "locks"}],
}
# the oldest botocore that is allowed knows the first, and not yet all of them
_MEMBERS = get_session().get_service_model("dynamodb").operation_model("CreateTable").input_shape
OPTIONS = {name: value for name, value in OPTIONS.items() if name in _MEMBERS.members}
assert len(OPTIONS) >= 5


def test_every_option_goes_out_under_its_name(fresh, wire):
    wire.understand_only_keys()
    fresh.create_table(**OPTIONS)
    request = wire.of("CreateTable")[0]
    assert {name: request[name] for name in OPTIONS} == OPTIONS
    assert request["BillingMode"] == "PAY_PER_REQUEST"
    assert set(request) == {*OPTIONS, *UNDERSTOOD}


@pytest.mark.real
def test_provisioned_throughput_needs_no_billing_mode_next_to_it(fresh):
    fresh.create_table(ProvisionedThroughput={"ReadCapacityUnits": 3, "WriteCapacityUnits": 2})
    throughput = described()["ProvisionedThroughput"]
    assert (throughput["ReadCapacityUnits"], throughput["WriteCapacityUnits"]) == (3, 2)


@pytest.mark.real
def test_options_that_engines_know_reach_the_table(fresh):
    fresh.create_table(
        BillingMode="PROVISIONED",
        ProvisionedThroughput={"ReadCapacityUnits": 3, "WriteCapacityUnits": 2},
        StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"},
        DeletionProtectionEnabled=True,
    )
    table = described()
    assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == 3
    assert table["StreamSpecification"]["StreamViewType"] == "NEW_IMAGE"
    assert table["DeletionProtectionEnabled"] is True


def subclass(**settings):
    settings = {"table_name": f"locks-{uuid.uuid4().hex}", **settings}
    return type("Configured", (LockItem,), {"Meta": type("Meta", (), settings)})


def test_tags_and_stream_of_meta_are_taken(engine, wire):
    wire.understand_only_keys()
    model = subclass(tags={"team": "locks", "stage": "dev"}, stream_view_type="NEW_IMAGE")
    model.create_table()
    request = wire.of("CreateTable")[0]
    assert sorted(request["Tags"], key=str) == [
        {"Key": "stage", "Value": "dev"},
        {"Key": "team", "Value": "locks"},
    ]
    assert request["StreamSpecification"] == {
        "StreamEnabled": True,
        "StreamViewType": "NEW_IMAGE",
    }


def test_the_callers_options_come_before_those_of_meta(engine, wire):
    wire.understand_only_keys()
    subclass(tags={"team": "locks"}).create_table(Tags=[{"Key": "a", "Value": "b"}])
    assert wire.of("CreateTable")[0]["Tags"] == [{"Key": "a", "Value": "b"}]


def test_provisioned_billing_of_meta_is_taken(engine, wire):
    model = subclass(billing_mode="PROVISIONED", read_capacity_units=3, write_capacity_units=2)
    model.create_table()
    assert wire.of("CreateTable")[0]["ProvisionedThroughput"] == {
        "ReadCapacityUnits": 3,
        "WriteCapacityUnits": 2,
    }


@pytest.mark.real
def test_indexes_of_a_subclass_are_created(engine):
    class ByOwner(GlobalSecondaryIndex):
        class Meta:
            index_name = "by-owner"
            projection = AllProjection()

        owner = UnicodeAttribute(hash_key=True)

    class Indexed(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

        by_owner = ByOwner()

    Indexed.create_table()
    with Mutex.for_key("a", model=Indexed, owner="me"):
        assert [item.key for item in Indexed.by_owner.query("me")] == ["a"]
    assert list(Indexed.by_owner.query("me")) == []
