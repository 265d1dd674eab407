"""A PynamoDB transaction with rows that can be locked goes where its connection says, as it asks."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
from row_scene import TRANSACT, RowScene, Write, every_write, save, update

from pynamodb_mutex import MutexError, MutexLostError, RowLockedError, RowLockMixin
from pynamodb_mutex.testing import Engine, use

FAR = "eu-west-1"


def send(transaction: TransactWrite) -> None:
    """Send what was put into a transaction."""
    with transaction:
        pass


class Row(RowLockMixin, Model):
    class Meta:
        table_name = f"rows-{uuid.uuid4().hex}"
        billing_mode = "PAY_PER_REQUEST"

    pk = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


@pytest.fixture
def two_regions(embedded_engine: Engine) -> Iterator[Any]:
    """The table in two regions; DynamoDB Local would have one for both."""
    with use(embedded_engine):
        Row.create_table(wait=True)
        far = boto3.client("dynamodb", region_name=FAR)
        far.create_table(
            TableName=Row.Meta.table_name,
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        yield far
        far.delete_table(TableName=Row.Meta.table_name)
        Row.delete_table()


def test_row_lands_where_the_connection_leads(two_regions: Any) -> None:
    with TransactWrite(connection=Connection(region=FAR)) as transaction:
        transaction.save(Row("a", balance=1))
        transaction.update(Row("b"), [Row.balance.set(2)])
    assert [row.pk for row in Row.scan()] == []
    found = two_regions.scan(TableName=Row.Meta.table_name)["Items"]
    assert sorted(row["pk"]["S"] for row in found) == ["a", "b"]


def test_lock_there_counts_not_the_one_at_home(two_regions: Any) -> None:
    class There(Row):
        class Meta(Row.Meta):
            table_name = Row.Meta.table_name
            region = FAR

    def save_there() -> None:
        with TransactWrite(connection=Connection(region=FAR)) as transaction:
            transaction.save(Row("a"))

    Row("a").save()
    with Row.locked("a"):
        save_there()
    with There.locked("a"), pytest.raises(RowLockedError):
        save_there()


@pytest.mark.parametrize("unlock", [False, True])
def test_row_that_is_locked_elsewhere_is_an_error(two_regions: Any, unlock: bool) -> None:
    Row("a").save()
    Row("b").save()
    with Row.locked_all(["a", "b"]) as rows:
        row = rows[0]
        transaction = TransactWrite(connection=Connection(region=FAR))
        transaction.save(row)
        transaction.save(Row("c"))
        message = f"goes to {FAR} at .*'.*/a' is locked in us-east-1 at"
        with pytest.raises(MutexError, match=message):
            send(transaction)
        assert row.row_lock.held
        with rows.transaction(unlock=unlock) as transaction:
            transaction.update(row, [Row.balance.add(1)])
    assert {row.pk: row.balance for row in Row.scan()} == {"a": 1, "b": 0}
    assert two_regions.scan(TableName=Row.Meta.table_name)["Count"] == 0


def test_row_that_is_locked_with_other_credentials_is_an_error(row_scene: RowScene) -> None:
    host = row_scene.here.Meta.host
    other = Connection(host=host, aws_access_key_id="other", aws_secret_access_key="secret")
    with row_scene.lock() as row:
        with (
            pytest.raises(MutexError, match="with other credentials"),
            TransactWrite(connection=other) as transaction,
        ):
            transaction.save(row)
        assert row.row_lock.held
    assert row_scene.proxy.of(TRANSACT) == []


def test_lock_in_a_lock_table_elsewhere_is_an_error(table_scene: RowScene) -> None:
    with table_scene.lock() as row:
        with (
            pytest.raises(MutexError, match=r"is locked in .*row_lock\.transaction"),
            TransactWrite(connection=Connection()) as transaction,
        ):
            transaction.save(row)
        assert row.row_lock.held


@pytest.mark.real
def test_connection_that_leads_nowhere_is_pynamodbs_error(row_scene: RowScene) -> None:
    with (
        row_scene.lock() as row,
        pytest.raises(TransactWriteError, match="Invalid endpoint"),
        TransactWrite(connection=Connection(host="nowhere")) as transaction,
    ):
        transaction.save(row)


# -- what else it asks for --------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("locked", [False, True])
def test_request_asks_for_what_the_caller_asked_for(any_scene: RowScene, locked: bool) -> None:
    def transaction(**options: Any) -> TransactWrite:
        connection = Connection(host=any_scene.here.Meta.host)
        made = TransactWrite(connection=connection, **options)
        made.update(row, [any_scene.here.balance.add(1)])
        return made

    row = any_scene.locked() if locked else any_scene.here(any_scene.key)
    asked = transaction(return_consumed_capacity="INDEXES", return_item_collection_metrics="SIZE")
    answer = asked._commit()
    (sent,) = any_scene.proxy.of(TRANSACT)
    assert sent.body["ReturnConsumedCapacity"] == "INDEXES"
    assert sent.body["ReturnItemCollectionMetrics"] == "SIZE"
    assert "ConsumedCapacity" in answer
    transaction()._commit()
    sent = any_scene.proxy.of(TRANSACT)[-1]
    # as PynamoDB's own
    assert sent.body["ReturnConsumedCapacity"] == "TOTAL"
    assert "ReturnItemCollectionMetrics" not in sent.body
    for options in (
        {"return_consumed_capacity": "MUCH"},
        {"return_item_collection_metrics": "MUCH"},
    ):
        with pytest.raises(ValueError, match="must be one of"):
            transaction(**options)._commit()
    assert len(any_scene.proxy.of(TRANSACT)) == 2


@pytest.mark.parametrize("locked", [False, True])
@every_write
def test_error_shows_the_row_only_if_asked_for(
    any_scene: RowScene, locked: bool, write: Write
) -> None:
    model = any_scene.here
    row = any_scene.locked() if locked else model(any_scene.key)
    no = model.balance == 99

    def refused(**options: Any) -> Any:
        transaction = TransactWrite(connection=Connection(host=model.Meta.host))
        transaction.condition_check(any_scene.old, f"{any_scene.key}-2", condition=~no)
        if write is save:
            transaction.save(row, condition=no, **options)
        elif write is update:
            transaction.update(row, [model.balance.add(1)], condition=no, **options)
        else:
            transaction.delete(row, condition=no)
        with pytest.raises(TransactWriteError) as raised:
            send(transaction)
        return raised.value.cancellation_reasons

    reasons = refused()
    assert reasons[0] is None or reasons[0].raw_item is None
    assert reasons[1].code == "ConditionalCheckFailed"
    assert all(reason is None or reason.raw_item is None for reason in reasons)
    if write in (save, update):
        assert refused(return_values="ALL_OLD")[1].raw_item["name"] == {"S": any_scene.key}
        assert refused(return_values="NONE")[1].raw_item is None


def test_error_still_shows_the_row_of_a_model_without_locks(row_scene: RowScene) -> None:
    old = row_scene.old
    transaction = TransactWrite(connection=Connection(host=row_scene.here.Meta.host))
    transaction.save(row_scene.here(f"{row_scene.key}-2"))
    transaction.save(old(row_scene.key), condition=old.balance == 99, return_values="ALL_OLD")
    with pytest.raises(TransactWriteError) as raised:
        send(transaction)
    assert raised.value.cancellation_reasons[1].raw_item["name"] == {"S": row_scene.key}


def test_loss_still_shows_in_a_transaction_of_its_own_connection(row_scene: RowScene) -> None:
    row = row_scene.locked()
    row_scene.forced_and_taken()
    with (
        pytest.raises(MutexLostError) as raised,
        TransactWrite(connection=Connection(host=row_scene.here.Meta.host)) as transaction,
    ):
        transaction.save(row)
    assert raised.value.applied is False
