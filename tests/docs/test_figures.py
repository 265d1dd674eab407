"""The figures and rules of docs/row_locks.rst, docs/several_locks.rst and docs/costs.rst that their snippets do not show."""

import inspect
import random
import re
import time
from pathlib import Path

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute, VersionAttribute
from pynamodb.connection import Connection
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite
from row_models import LOCKABLE, Account, created, hashed, made
from two_clients import held

from pynamodb_mutex import LockItem, Mutex, MutexLostError, Semaphore
from pynamodb_mutex._lock.protocol.schedule import RENEWALS_PER_LEASE, next_wait
from pynamodb_mutex.testing import expire, held_elsewhere

PUT, UPDATE, DELETE = "PutItem", "UpdateItem", "DeleteItem"
READ, BATCH, TRANSACT = "GetItem", "BatchGetItem", "TransactWriteItems"


def test_requests_for_a_row(model, sent, monkeypatch):
    def took_in(the_row, the_table):
        time.sleep(2)  # the first token that is chosen for the row is higher than those before
        found, sent[:] = sent[:], []
        return found == (the_row if model is Account else the_table)

    with held_elsewhere("warm"):
        Mutex.for_key("warm").acquire(blocking=False)
    sent.clear()
    to_one = [model.balance.set(1)]
    model("a").save()
    assert took_in([PUT], [TRANSACT])
    model("a").update(to_one)
    assert took_in([UPDATE], [TRANSACT, READ])
    model("missing").delete()
    assert took_in([DELETE], [TRANSACT])
    with model.locked("a", auto_renew=False) as row:
        assert took_in([UPDATE], [UPDATE, READ])
        row.save()
        assert took_in([PUT], [TRANSACT])
        row.update(to_one)
        assert took_in([UPDATE], [TRANSACT, READ])
        row.row_lock.renew()
        assert took_in([UPDATE], [UPDATE])
        with row.row_lock.transaction() as transaction:
            transaction.save(model("b"))
        assert took_in([TRANSACT], [TRANSACT])
        row.update(to_one, unlock=True)
        assert took_in([UPDATE], [TRANSACT, READ])
    with model.locked("a") as row:
        row.delete()
    assert took_in([UPDATE, DELETE], [UPDATE, READ, TRANSACT, UPDATE])
    monkeypatch.setattr(model, "lock_enforced", False)
    model("a").update(to_one)
    assert took_in([UPDATE], [UPDATE])


def test_requests_for_rows_and_keys_that_are_locked_together(model, sent):
    model("b").save()
    time.sleep(2)
    sent.clear()
    own = TransactWrite(connection=Connection())
    with model.locked_all(["a", "b"]) as rows, own as transaction:
        for row in rows:
            transaction.save(row)
    assert sent == [TRANSACT, BATCH, TRANSACT, TRANSACT]
    # the other requests for several keys are counted where they are tested
    with Mutex.for_keys(["order-7", "stock-12"]) as both, both.transaction() as transaction:
        transaction.save(LockItem("7"))
    assert sent[4:] == [TRANSACT] * 3
    sent.clear()
    with Semaphore.for_key("gpu", permits=2), Semaphore.for_key("gpu", permits=2):
        assert sent == [UPDATE] * 2  # a permit that this process holds is not tried first
    assert sent == [UPDATE] * 4


def test_constructed_instance_stands_for_a_locked_row(engine):
    model = created(made(hashed(edition=VersionAttribute)(), LOCKABLE))
    model("a").save()
    with model.locked_all(["a"]) as rows, rows.transaction() as transaction:
        transaction.update(model("a"), [model.note.set("n")], add_version_condition=False)
    assert model.get("a").note == "n"


def test_size_of_the_attributes_of_a_lock(accounts):
    def size():
        item = Account._get_connection().get_item("a")["Item"]
        return sum(
            len(name) + (len(typed["S"]) if "S" in typed else len(typed["N"]) // 2 + 2)
            for name, typed in item.items()
            if name.startswith("lock_")
        )

    with Account.locked("a"):
        assert 150 < size() < 230
    assert 90 < size() < 120


def test_which_writes_of_programs_without_the_mixin_the_holder_notices(model):
    class Old(Model):
        Meta = model.Meta
        name = UnicodeAttribute(hash_key=True)
        balance = NumberAttribute()

    def batch():
        with model.batch_write() as writes:
            writes.save(model("a"))

    update = lambda: Old("a").update([Old.balance.set(100)])  # noqa: E731 - it is short
    for write in (update, Old("a", balance=100).save, batch, Old("a").delete):
        Old("a", balance=0).save()
        row = held(model.locked("a")).row
        write()
        if write is update or model is not Account:
            row.save(unlock=True)
            continue
        with pytest.raises(MutexLostError) as caught:
            row.save()
        assert caught.value.applied is None  # with the row went what would show it


def test_holder_that_resumes_is_refused_after_a_write_without_the_expired_lock(model):
    row = held(model.locked("a", auto_renew=False)).row
    expire("a", model)
    model("a").save()
    with pytest.raises(MutexLostError) as caught:
        row.save()
    assert caught.value.applied is (None if model is Account else False)


def test_lock_of_for_row_is_that_of_the_row_only_in_the_lock_table(model):
    with model.locked("a"):
        assert Mutex.for_row(model, "a").acquire(blocking=False) is (model is Account)
    with Mutex.for_row(model, "new") as mutex, mutex.transaction() as transaction:
        transaction.save(model("new"))
    assert model.count("new") == 1


def test_prices():
    page = (Path(__file__).parents[2] / "docs" / "costs.rst").read_text("utf-8")
    write, read = (
        float(price) * 1e-6 for price in re.findall(r"\$([\d.]+) for a million [WR]CU", page)
    )
    default = {
        name: each.default for name, each in inspect.signature(Mutex.for_key).parameters.items()
    }
    day, month = 86400, 30 * 86400

    def polls(poll):
        chance, wait, total = random.Random(1), 0.0, 0.0
        for _ in range(100_000):
            wait = next_wait(wait, poll, chance.uniform)
            total += wait
        return month / (total / 100_000)

    renewals = [day / lease * RENEWALS_PER_LEASE for lease in (default["lease"], 300)]
    expected = [(2e6, write), (2 * 2 * 2e6, write), *((count, write) for count in renewals)]
    expected += [(polls(poll) / 2, read) for poll in (default["poll"], (0.2, 5.0))]
    once = [1 + 1, 1 + 2, 1]  # begin and complete, begin and transaction, a refused begin
    expected += [
        *((1e6 * units, write) for units in once),
        *((1e6 * units, read) for units in (1, 3)),
    ]
    shown = re.findall(r'"([\d,]+) [WR]CU", "\$([\d.]+)"', page)
    assert [float(units.replace(",", "")) for units, _ in shown] == pytest.approx(
        [units for units, _ in expected], rel=0.01
    )
    assert [float(price) for _, price in shown] == pytest.approx(
        [units * price for units, price in expected], rel=0.015
    )
    held = re.search(r"held for a month costs \$(\d\.\d+)", page)
    assert float(held[1]) == pytest.approx(30 * renewals[0] * write, rel=0.02)
