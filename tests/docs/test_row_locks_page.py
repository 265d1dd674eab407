"""The figures and rules of docs/row_locks.rst that its snippets do not show: requests, sizes, names, unnoticed writes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator

import boto3
import pytest
from pynamodb.attributes import (
    Attribute,
    NumberAttribute,
    TTLAttribute,
    UnicodeAttribute,
    VersionAttribute,
)
from pynamodb.connection import Connection
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from pynamodb.signals import pre_dynamodb_send
from pynamodb.transactions import TransactWrite

from pynamodb_mutex import LockItem, Mutex, MutexError, MutexLostError, RowLockedError, RowLockMixin
from pynamodb_mutex.testing import Engine, expire, use


class Account(RowLockMixin, Model):
    class Meta:
        table_name = "page-accounts"
        billing_mode = "PAY_PER_REQUEST"

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute()


class Old(Model):
    """The same table, as a program without the mixin has it."""

    class Meta:
        table_name = "page-accounts"

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute()


class Advisory(Old, RowLockMixin):
    class Meta:
        table_name = "page-accounts"

    lock_enforced = False


class Document(RowLockMixin, Model):
    class Meta:
        table_name = "page-documents"
        billing_mode = "PAY_PER_REQUEST"

    lock_model = LockItem

    path = UnicodeAttribute(hash_key=True)
    text = UnicodeAttribute(default="")


class Page(RowLockMixin, Model):
    class Meta:
        table_name = "page-pages"
        billing_mode = "PAY_PER_REQUEST"

    name = UnicodeAttribute(hash_key=True)
    version = VersionAttribute()
    ttl = TTLAttribute(null=True)


class Entity(RowLockMixin, Model):
    class Meta:
        table_name = "page-app"
        billing_mode = "PAY_PER_REQUEST"

    pk = UnicodeAttribute(hash_key=True)
    sk = UnicodeAttribute(range_key=True)
    lock_abandoned_by = UnicodeAttribute(null=True, attr_name="lab")


class Requests:
    """The requests that PynamoDB sends, by operation."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()

    def note(self, sender: object, operation_name: str, **_: object) -> None:
        self._sent[operation_name] += 1

    def forget(self) -> None:
        self._sent.clear()

    def were(self, **expected: int) -> None:
        sent = dict(self._sent)
        self._sent.clear()
        assert sent == expected


@pytest.fixture(scope="module", autouse=True)
def engine(embedded_engine: Engine) -> Iterator[None]:
    models = (Account, Document, Page, Entity)
    with use(embedded_engine):
        LockItem._connection = None  # PynamoDB keeps a connection, also to an engine that has gone
        LockItem.create_table()
        for model in models:
            model.create_table(wait=True)
        Account("alice", balance=100).save()
        Account("bob", balance=0).save()
        Document("readme").save()
        yield
        for model in (*models, LockItem):
            model.delete_table()
        LockItem._connection = None


@pytest.fixture
def requests() -> Iterator[Requests]:
    requests = Requests()
    with pre_dynamodb_send.connected_to(requests.note):
        yield requests


def long_unchanged(**balances: int) -> None:
    """Write rows without a fencing token, so that the first token chosen for them is high enough."""
    for name, balance in balances.items():
        row = {"name": {"S": name}, "balance": {"N": str(balance)}}
        boto3.client("dynamodb").put_item(TableName="page-accounts", Item=row)


def test_costs_of_locks_in_the_rows(requests):
    long_unchanged(alice=100)
    requests.forget()
    Account("alice", balance=100).save()
    requests.were(PutItem=1)
    Account("alice").update([Account.balance.set(100)])
    requests.were(UpdateItem=1)
    Account("dave").delete()
    requests.were(DeleteItem=1)
    with Account.locked("alice") as account:
        requests.were(UpdateItem=1)
        account.save()
        requests.were(PutItem=1)
        account.update([Account.balance.set(100)])
        requests.were(UpdateItem=1)
        account.row_lock.renew()
        requests.were(UpdateItem=1)
        with account.row_lock.transaction() as transaction:
            transaction.save(Account("carol", balance=0))
        requests.were(TransactWriteItems=1)
        account.update([Account.balance.set(100)], unlock=True)
        requests.were(UpdateItem=1)
    requests.were()
    with Account.locked("carol") as account:
        account.delete()
    requests.were(UpdateItem=1, DeleteItem=1)
    with Account.locked("alice"):
        requests.were(UpdateItem=1)
    requests.were(UpdateItem=1)


def test_costs_of_several_rows(requests):
    long_unchanged(alice=100, bob=0)
    requests.forget()
    with Account.locked_all(["alice", "bob"]) as rows:
        requests.were(TransactWriteItems=1)
        assert len(list(rows)) == 2
        requests.were(BatchGetItem=1)
    requests.were(TransactWriteItems=1)

    long_unchanged(alice=100, bob=0)
    requests.forget()
    with Account.locked_all(["alice", "bob"]) as rows, rows.transaction() as transaction:
        transaction.update(Account("bob"), actions=[Account.balance.add(10)])
    requests.were(TransactWriteItems=2)

    long_unchanged(alice=100, bob=0)
    requests.forget()
    with (
        Account.locked_all(["alice", "bob"]) as (alice, bob),
        TransactWrite(connection=Connection()) as transaction,
    ):
        transaction.save(alice)
        transaction.save(bob)
    requests.were(TransactWriteItems=3, BatchGetItem=1)


def test_costs_of_locks_in_the_lock_table(requests, monkeypatch):
    requests.forget()
    Document("readme").save()
    requests.were(TransactWriteItems=1)
    Document("readme").update([Document.text.set("x")])
    requests.were(TransactWriteItems=1, GetItem=1)
    Document("other").delete()
    requests.were(TransactWriteItems=1)
    Document("licence").save()
    requests.were(TransactWriteItems=1)
    monkeypatch.setattr(Document, "lock_enforced", False)
    Document("readme").update([Document.text.set("x")])
    requests.were(UpdateItem=1)
    monkeypatch.setattr(Document, "lock_enforced", True)
    with Document.locked("readme") as document:
        requests.were(UpdateItem=1, GetItem=1)
        document.save()
        requests.were(TransactWriteItems=1)
        document.update([Document.text.set("x")])
        requests.were(TransactWriteItems=1, GetItem=1)
        document.row_lock.renew()
        requests.were(UpdateItem=1)
    requests.were(UpdateItem=1)
    Document("authors").save()
    requests.forget()
    with Document.locked_all(["authors", "licence"]) as rows:
        requests.were(TransactWriteItems=1)
        assert len(list(rows)) == 2
        requests.were(BatchGetItem=1)
        with rows.transaction() as transaction:
            transaction.save(rows[0])
        requests.were(TransactWriteItems=1)
    requests.were()


def test_size_of_the_attributes_of_a_lock():
    def size() -> int:
        stored = boto3.client("dynamodb").get_item(
            TableName="page-accounts", Key={"name": {"S": "bob"}}
        )
        return sum(
            len(attribute) + (len(typed["S"]) if "S" in typed else len(typed["N"]) // 2 + 2)
            for attribute, typed in stored["Item"].items()
            if attribute.startswith("lock_")
        )

    with Account.locked("bob"):
        assert 150 < size() < 230
    assert 90 < size() < 120


def test_which_writes_of_others_the_holder_notices():
    def batch(row: Account) -> None:
        with Account.batch_write() as writes:
            writes.save(row)

    def noticed(write: Callable[[], object]) -> bool:
        lock = Account.locked("alice")
        assert lock.acquire()
        write()
        try:
            lock.row.save()
        except MutexLostError as error:
            return error.applied is False
        lock.release()
        return False

    assert noticed(Old("alice", balance=100).save)
    assert noticed(Old("alice").delete)
    Old("alice", balance=100).save()
    assert not noticed(lambda: Old("alice").update([Old.balance.set(100)]))
    assert noticed(Advisory("alice", balance=100).save)
    assert noticed(Advisory("alice").delete)
    Account("alice", balance=100).save()
    assert not noticed(lambda: Advisory("alice").update([Old.balance.set(100)]))
    assert noticed(lambda: batch(Account("alice", balance=100)))
    Account("alice", balance=100).save()
    with Account.locked("alice") as account:
        with pytest.raises(MutexError):
            batch(account)
        for other in (copy.copy(account), copy.deepcopy(account)):
            with pytest.raises(RowLockedError):
                other.save()


def test_expired_claim_is_removed_by_a_write_without_the_lock():
    lock = Account.locked("bob", auto_renew=False)
    assert lock.acquire()
    expire("bob", Account)
    Account("bob").update([Account.balance.set(100)])
    with pytest.raises(MutexLostError) as caught:
        lock.row.save()
    assert caught.value.applied is False


def test_lock_in_the_lock_table_is_not_in_the_row():
    with Document.locked("readme") as document:
        with Document.batch_write() as writes:
            writes.save(Document("readme", text="not noticed"))
        document.text = "Read me."
        document.save()
        with pytest.raises(TransactWriteError):
            document.save(condition=Document.text == "something else")
        assert document.row_lock.held
        document.row_lock.save_data(1)
        assert not Mutex.for_row(Document, "readme").acquire(blocking=False)
    key = {"path": {"S": "readme"}}
    stored = boto3.client("dynamodb").get_item(TableName="page-documents", Key=key)
    assert stored["Item"] == {**key, "text": {"S": "Read me."}}

    lock = Document.locked("readme", auto_renew=False)
    assert lock.acquire()
    expire("readme", Document)
    Document("readme", text="new").save()
    with pytest.raises(MutexLostError) as caught:
        lock.row.save()
    assert caught.value.applied is False


def test_lock_of_for_row():
    with Mutex.for_row(Document, "new") as mutex, mutex.transaction() as transaction:
        transaction.save(Document("new", text="MIT"))
    assert Document.get("new").text == "MIT"
    with Account.locked("bob"):
        assert Mutex.for_row(Account, "bob").acquire(blocking=False)  # another lock


def test_renamed_attribute_of_a_lock():
    Entity("c1", "profile").save()
    with Entity.locked("c1", "profile"):
        key = {"pk": {"S": "c1"}, "sk": {"S": "profile"}}
        found = boto3.client("dynamodb").get_item(TableName="page-app", Key=key)["Item"]
        assert "lab" in found
        assert "lock_abandoned_by" not in found


def refused(**attributes: Attribute | type[LockItem]) -> bool:
    try:
        type(
            "Refused",
            (RowLockMixin, Model),
            {"name": UnicodeAttribute(hash_key=True), **attributes},
        )
    except TypeError:
        return True
    return False


@pytest.mark.parametrize(
    "name", ["locked", "locked_all", "row_lock", "is_locked", "lock_model", "lock_enforced"]
)
def test_reserved_name(name):
    assert refused(**{name: UnicodeAttribute()})
    assert not refused(other=UnicodeAttribute(attr_name=name))


def test_names_of_the_attributes_of_a_lock():
    assert refused(other=UnicodeAttribute(attr_name="lock_owner"))
    assert refused(lock_owner=UnicodeAttribute(null=True))
    assert not refused(lock_owner=UnicodeAttribute(null=True, attr_name="lo"))
    assert not refused(lock_owner=UnicodeAttribute(null=True), lock_model=LockItem)


def test_version_and_ttl_of_a_model():
    Page("a").save()
    with Page.locked("a") as page:
        assert page.version == 1
        page.lock_owner = "somebody"
        page.save()
        assert page.version == 2
        found = Page.get("a")
        assert found.version == 2
        assert found.ttl is None
        assert found.lock_owner != "somebody"
        assert found.to_simple_dict() == {"name": "a", "version": 2}
        assert "lock_owner" in found.to_simple_dict(with_lock=True)
    assert Page.get("a").version == 2
    with Page.locked_all(["a"]) as rows, rows.transaction() as transaction:
        transaction.update(Page("a"), [Page.ttl.remove()], add_version_condition=False)
