"""LockItem.create_table: safe to call again, and CreateTable's options by boto3's names."""

import re
import uuid
from collections import defaultdict
from functools import partial
from itertools import repeat
from types import SimpleNamespace

import pytest
from botocore.client import BaseClient
from botocore.errorfactory import ClientExceptionsFactory
from botocore.exceptions import ClientError
from botocore.session import get_session
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import TableError
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from row_models import made
from tables import create_plain_table

from pynamodb_mutex import LockItem, Mutex


@pytest.fixture
def fresh(engine, monkeypatch):
    """LockItem without its table."""
    monkeypatch.setattr(LockItem.Meta, "table_name", f"locks-{uuid.uuid4().hex}")
    return LockItem


@pytest.fixture
def wire(monkeypatch):
    """The requests that go out, by operation, and `answer`: how some are answered, by a function of what gets the true answer."""
    sent, answers = defaultdict(list), {}
    original = BaseClient._make_api_call

    def send(client, operation, kwargs):
        sent[operation].append(kwargs)
        answer = next(answers.get(operation, iter(())), lambda truly: truly())
        return answer(partial(original, client, operation, kwargs))

    def answer(operation, answer, times=1):
        answers[operation] = repeat(answer, times)

    monkeypatch.setattr(BaseClient, "_make_api_call", send)
    return SimpleNamespace(sent=sent, answer=answer)


def ask(operation, **more):
    """Send a request about the table."""
    client = LockItem._get_connection().connection.client
    return client._make_api_call(operation, {"TableName": LockItem.Meta.table_name, **more})


def created(fresh, **options):
    """Create the table, and see that its TTL is enabled."""
    fresh.create_table(**options)
    ttl = ask("DescribeTimeToLive")["TimeToLiveDescription"]
    assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}


@pytest.mark.real
def test_it_creates_an_on_demand_table_with_its_ttl(fresh):
    created(fresh)
    table = ask("DescribeTable")["Table"]
    assert table["TableStatus"] == "ACTIVE"
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert table["KeySchema"] == [{"AttributeName": "key", "KeyType": "HASH"}]


def test_further_calls_also_at_once_change_nothing(fresh, wire, pool):
    list(pool.map(lambda _: created(fresh), range(4)))
    wire.sent.clear()
    with Mutex.for_key("a") as mutex:
        created(fresh)
        created(fresh, wait=False)
        assert mutex.locked()
    assert wire.sent["UpdateTimeToLive"] == []


@pytest.mark.real("embedded")
def test_errors_are_reported_by_their_code(fresh, monkeypatch):
    """Botocore makes a client's error classes at first use, where two threads may each get their own."""

    def made_anew(client):
        return ClientExceptionsFactory().create_client_exceptions(client.meta.service_model)

    monkeypatch.setattr(BaseClient, "exceptions", property(made_anew))
    fresh.create_table()
    created(fresh)


def shown_as(status, truly):
    """Answer that the table has another status: to be created, or deleted, takes seconds on AWS."""
    described = truly()
    described["Table"]["TableStatus"] = status
    return described


creating = partial(shown_as, "CREATING")


def refused(code, _):
    raise ClientError({"Error": {"Code": code, "Message": "you may not"}}, "")


# as AWS does just after it is created
not_found = partial(refused, "ResourceNotFoundException")


@pytest.mark.parametrize(
    ("not_yet", "message"), [(creating, "still CREATING"), (not_found, "could not be created")]
)
@pytest.mark.parametrize("by_another", [False, True])
def test_table_that_is_being_created_is_waited_for_but_not_for_ever(
    fresh, wire, not_yet, message, by_another
):
    if by_another:
        fresh.create_table(wait=False)
        wire.sent.clear()
    wire.answer("DescribeTable", not_yet, 2)
    created(fresh)
    assert len(wire.sent["DescribeTable"]) == 3
    # again only if there may be none
    assert len(wire.sent["CreateTable"]) == (3 if by_another and not_yet is not_found else 1)
    wire.answer("DescribeTable", not_yet, 10_000)
    with pytest.raises(TableError, match=message):
        fresh.create_table()


@pytest.mark.parametrize("wait", [False, True])
def test_table_that_is_being_deleted_is_not_waited_for(fresh, wire, wait):
    # the description of a table before it, for DescribeTable is eventually consistent
    wire.answer("DescribeTable", partial(shown_as, "DELETING"))
    created(fresh)
    wire.answer("DescribeTable", partial(shown_as, "DELETING"), 10_000)
    with pytest.raises(TableError, match="is being deleted"):
        fresh.create_table(wait=wait)
    assert len(wire.sent["DescribeTable"]) == 3


@pytest.mark.parametrize("wait", [False, True])
def test_table_whose_deletion_ends_after_it_was_refused_is_created(fresh, wire, wait):
    wire.answer("CreateTable", partial(refused, "ResourceInUseException"))
    created(fresh, wait=wait)
    assert len(wire.sent["CreateTable"]) == len(wire.sent["DescribeTable"]) == 2


def test_ttl_may_come_with_a_later_call_or_by_another(fresh, wire):
    wire.answer("DescribeTable", creating)
    fresh.create_table(wait=False)
    assert wire.sent["UpdateTimeToLive"] == []
    created(fresh, wait=False)
    for status, updates in ("DISABLED", 2), ("ENABLING", 2):
        shown = {"TimeToLiveStatus": status, "AttributeName": "ttl"}
        wire.answer("DescribeTimeToLive", lambda _, shown=shown: {"TimeToLiveDescription": shown})
        fresh.create_table()
        assert len(wire.sent["UpdateTimeToLive"]) == updates


@pytest.mark.parametrize("operation", ["CreateTable", "DescribeTable", "UpdateTimeToLive"])
def test_a_refusal_is_a_table_error_with_its_cause(fresh, wire, operation):
    wire.answer(operation, partial(refused, "AccessDeniedException"))
    with pytest.raises(TableError, match="you may not") as caught:
        fresh.create_table()
    assert fresh.Meta.table_name in str(caught.value)
    assert caught.value.cause_response_code == "AccessDeniedException"


@pytest.mark.real
def test_table_with_ttl_on_another_attribute_is_an_error(fresh):
    create_plain_table(
        LockItem._get_connection().connection.client, fresh.Meta.table_name, {"key": "S"}
    )
    ttl = {"Enabled": True, "AttributeName": "expires"}
    ask("UpdateTimeToLive", TimeToLiveSpecification=ttl)
    with pytest.raises(TableError, match=r"'expires', not on 'ttl'"):
        fresh.create_table()


@pytest.mark.parametrize("keys", [{"key": "N"}, {"key": "S", "number": "N"}])
def test_table_with_other_keys_is_an_error(fresh, keys):
    create_plain_table(LockItem._get_connection().connection.client, fresh.Meta.table_name, keys)
    found = ", range key 'number' (N)" if "number" in keys else ""
    message = (
        f"exists with other keys: hash key 'key' ({keys['key']}){found}, not hash key 'key' (S)"
    )
    for wait in (True, False):
        with pytest.raises(TableError, match=re.escape(message)):
            fresh.create_table(wait=wait)
    # nor was anything else done to it
    assert ask("DescribeTimeToLive")["TimeToLiveDescription"]["TimeToLiveStatus"] == "DISABLED"


HINTS = {
    "billing_mode": "BillingMode",
    "read_capacity_units": "ProvisionedThroughput",
    "write_capacity_units": "ProvisionedThroughput",
    "tags": "Tags",
    "stream_view_type": "StreamSpecification",
    **dict.fromkeys(("BilingMode", "ignore_update_ttl_errors", "TableName", "KeySchema")),
    "AttributeDefinitions": None,
}
WRONG = [
    ("DeletionProtectionEnabled", "yes"),
    ("Tags", {"a": "b"}),
    ("Tags", [{"key": "a"}]),
    ("ProvisionedThroughput", {"ReadCapacityUnits": "many", "WriteCapacityUnits": 1}),
    ("ProvisionedThroughput", {"ReadCapacityUnits": 1}),
    ("StreamSpecification", {"StreamEnabled": True, "StreamView": "NEW_IMAGE"}),
    ("BillingMode", None),
]


def test_unknown_options_and_values_are_refused_and_the_known_ones_are_reported(fresh, wire):
    for name, hint in HINTS.items():
        with pytest.raises(TypeError, match=name) as caught:
            fresh.create_table(**{name: 5})
        told = str(caught.value)
        assert all(option in told for option in (*OPTIONS, "BillingMode"))
        assert (f"boto3 calls it {hint}" in told) == (hint is not None)
    for name, value in WRONG:
        with pytest.raises(ValueError, match="create_table"):
            fresh.create_table(**{name: value})
    assert not wire.sent


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


PROVISIONED = {"ProvisionedThroughput": {"ReadCapacityUnits": 3, "WriteCapacityUnits": 2}}


@pytest.mark.real
def test_options_that_engines_know_reach_the_table(fresh):
    options = {name: OPTIONS[name] for name in ("StreamSpecification", "DeletionProtectionEnabled")}
    created(fresh, **PROVISIONED, **options)  # throughput needs no billing mode with it
    table = ask("DescribeTable")["Table"]
    assert table["ProvisionedThroughput"].items() >= PROVISIONED["ProvisionedThroughput"].items()
    assert {name: table[name] for name in options} == options


def test_options_go_out_under_their_names_from_the_caller_or_from_meta(fresh, wire):
    fresh.create_table()
    wire.sent.clear()
    # as if the table were there already: engines do not know each option
    wire.answer("CreateTable", partial(refused, "ResourceInUseException"), 4)
    fresh.create_table(**OPTIONS)
    settings = {"table_name": fresh.Meta.table_name, "billing_mode": "PROVISIONED"}
    settings |= {"read_capacity_units": 3, "write_capacity_units": 2}
    settings |= {"tags": {"team": "locks", "stage": "dev"}, "stream_view_type": "NEW_IMAGE"}
    model = type("Configured", (LockItem,), {"Meta": type("Meta", (), settings)})
    model.create_table()
    given = {"Tags": [{"Key": "a", "Value": "b"}]}
    model.create_table(**given)
    on_demand = {"BillingMode": "PAY_PER_REQUEST"}
    model.create_table(**on_demand)
    expected = PROVISIONED | {"BillingMode": "PROVISIONED"}
    expected["Tags"] = [{"Key": "team", "Value": "locks"}, {"Key": "stage", "Value": "dev"}]
    expected["StreamSpecification"] = {"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"}
    first, *requests = wire.sent["CreateTable"]
    own = {name: first.pop(name) for name in ("TableName", "AttributeDefinitions", "KeySchema")}
    assert first == OPTIONS | on_demand
    assert requests[:2] == [own | expected, own | expected | given]
    del expected["ProvisionedThroughput"]
    assert requests[2:] == [own | expected | on_demand]


@pytest.mark.real
@pytest.mark.parametrize("options", [{}, PROVISIONED])
def test_indexes_of_a_subclass_are_created(engine, options):
    class ByOwner(GlobalSecondaryIndex):
        class Meta:
            index_name = "by-owner"
            projection = AllProjection()

        owner = UnicodeAttribute(hash_key=True)

    Indexed = made({"by_owner": ByOwner()}, (LockItem,))  # noqa: N806 - it is a class
    Indexed.create_table(**options)
    with Mutex.for_key("a", model=Indexed, owner="me"):
        assert [item.key for item in Indexed.by_owner.query("me")] == ["a"]
    assert list(Indexed.by_owner.query("me")) == []
