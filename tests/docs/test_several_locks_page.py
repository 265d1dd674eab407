"""The requests that docs/several_locks.rst names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model
from pynamodb.signals import pre_dynamodb_send
from simulated import simulated_engine

from pynamodb_mutex import LockItem, Mutex, Semaphore
from pynamodb_mutex.testing import held_elsewhere


class Order(Model):
    class Meta:
        table_name = "page-orders"
        billing_mode = "PAY_PER_REQUEST"

    name = UnicodeAttribute(hash_key=True)


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    with simulated_engine():
        LockItem._connection = None  # PynamoDB keeps a connection, also to an engine that has gone
        LockItem.create_table()
        LockItem.force_release("warm")  # the first request of a process to the endpoint
        Order.create_table(wait=True)
        yield
        Order.delete_table()
        LockItem.delete_table()
        LockItem._connection = None


@pytest.fixture
def sent() -> Iterator[Counter[str]]:
    sent: Counter[str] = Counter()

    def note(_sender: object, operation_name: str, **_: object) -> None:
        sent[operation_name] += 1

    with pre_dynamodb_send.connected_to(note):
        yield sent


def test_requests_of_a_group(sent):
    with Mutex.for_keys(["order-7", "stock-12"]) as both:
        assert sent == {"TransactWriteItems": 1}
        both.renew()
        assert sent == {"TransactWriteItems": 2}
        with both.transaction() as transaction:
            transaction.save(Order("7"))
        assert sent == {"TransactWriteItems": 3}
        assert both.locked()
        assert sent == {"TransactWriteItems": 3, "BatchGetItem": 1}
    assert sent == {"TransactWriteItems": 4, "BatchGetItem": 1}


def test_requests_of_a_waiting_group(sent):
    with Mutex.for_key("stock-12"):
        sent.clear()
        waiting = Mutex.for_keys(["order-7", "stock-12"], poll=(0.1, 0.1))
        assert not waiting.acquire(timeout=0.5)
        assert 2 <= sent.pop("BatchGetItem") <= 6
        assert sent == {"TransactWriteItems": 1}


def test_requests_of_a_semaphore(sent):
    with Semaphore.for_key("gpu", permits=2):
        assert sent == {"UpdateItem": 1}
        with Semaphore.for_key("gpu", permits=2):
            assert sent == {"UpdateItem": 2}  # a permit that this process holds is not tried first
    assert sent == {"UpdateItem": 4}


def test_requests_of_a_full_semaphore(sent):
    with ExitStack() as elsewhere:
        for permit in (1, 2):
            elsewhere.enter_context(held_elsewhere(f"gpu#permit-{permit}"))
        sent.clear()
        full = Semaphore.for_key("gpu", permits=2, poll=(0.2, 0.2))
        assert not full.acquire(blocking=False)
        assert sent == {"UpdateItem": 1, "BatchGetItem": 1}
        assert full.locked()
        assert sent == {"UpdateItem": 1, "BatchGetItem": 2}
        sent.clear()
        assert not full.acquire(timeout=0.5)
        assert 1 <= sent.pop("BatchGetItem") <= 5
        assert sent == {"UpdateItem": 1}
