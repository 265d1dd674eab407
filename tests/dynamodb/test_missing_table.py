"""A table that is not there is named with its place, whichever request finds it missing."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import TableDoesNotExist
from pynamodb.models import Model
from pynamodb.transactions import TransactWrite

from dev.faultproxy import Fault, deny, fault_proxy, page, throttle, through
from pynamodb_mutex import LockItem, Mutex, RowLockMixin
from pynamodb_mutex.testing import Engine


def lock_table(*, there: bool) -> type[LockItem]:
    class Locks(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

    if there:
        Locks.create_table()
    return Locks


def rows(*, there: bool, locks: type[LockItem] | None = None) -> type[RowLockMixin]:
    class Row(RowLockMixin, Model):
        class Meta:
            table_name = f"rows-{uuid.uuid4().hex}"
            billing_mode = "PAY_PER_REQUEST"

        lock_model = locks
        name = UnicodeAttribute(hash_key=True)

    if there:
        Row.create_table(wait=True)
        Row._get_connection().put_item("a")
    return Row


def notes() -> type[Model]:
    class Note(Model):
        class Meta:
            table_name = f"notes-{uuid.uuid4().hex}"

        name = UnicodeAttribute(hash_key=True)

    return Note


def assert_names(raised: pytest.ExceptionInfo, engine: Engine, *models: type[Model]) -> None:
    """See that an error names these tables and no other, where they were sought, and what to do last."""
    error = raised.value
    assert type(error) is TableDoesNotExist
    # moto cancels a transaction for a table that it only checks
    assert error.cause_response_code in {
        "ResourceNotFoundException",
        "TransactionCanceledException",
    }
    names = "` or `".join(model.Meta.table_name for model in models)
    assert str(error).startswith(
        f"Table does not exist: `{names}` in us-east-1 at {engine.endpoint_url}: wrong region or "
        "profile? If not, create it with `"
    )
    assert str(error).endswith("create_table()`")


# -- requests about one table ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda model: Mutex.for_key("a", model=model).acquire(),
        lambda model: Mutex.for_key("a", model=model).acquire(blocking=False),
        lambda model: Mutex.for_keys(["a", "b"], model=model).acquire(),
        lambda model: Mutex.any_of(["a", "b"], model=model).acquire(),
        lambda model: Mutex.for_key("a", model=model).locked(),
        lambda model: list(model.held()),
        lambda model: model.force_release("a"),
        lambda model: rows(there=True, locks=model).locked("a").acquire(),
        lambda model: rows(there=True, locks=model).locked_all(["a", "b"]).acquire(),
    ],
)
def test_lock_table_that_is_missing_is_named(
    engine: Engine, call: Callable[[type[LockItem]], object]
) -> None:
    missing = lock_table(there=False)
    with pytest.raises(TableDoesNotExist) as raised:
        call(missing)
    assert_names(raised, engine, missing)
    assert str(raised.value).endswith("If not, create it with `Locks.create_table()`")


@pytest.mark.real
@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.locked("a").acquire(),
        lambda model: model.locked_all(["a", "b"]).acquire(),
    ],
)
def test_table_of_locked_rows_that_is_missing_is_named(
    engine: Engine, call: Callable[[type[RowLockMixin]], object]
) -> None:
    missing = rows(there=False)
    with pytest.raises(TableDoesNotExist) as raised:
        call(missing)
    assert_names(raised, engine, missing)
    assert str(raised.value).endswith("`Row.create_table()`")


# -- requests about several ------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("missing_first", [False, True])
def test_missing_one_of_two_lock_tables_is_named(
    engine: Engine, warm: bool, missing_first: bool
) -> None:
    there, missing = lock_table(there=True), lock_table(there=False)
    if warm:  # so that a transaction finds it, else a read
        assert not Mutex.for_key("b", model=there).locked()
    locks = [Mutex.for_key("a", model=there), Mutex.for_key("a", model=missing)]
    group = Mutex.for_keys(reversed(locks) if missing_first else locks)
    with pytest.raises(TableDoesNotExist) as raised:
        group.acquire()
    assert_names(raised, engine, missing)
    assert not group.held
    assert not Mutex.for_key("a", model=there).locked()
    with pytest.raises(TableDoesNotExist) as raised:
        group.locked()
    assert_names(raised, engine, missing)


def test_missing_tables_are_all_named(engine: Engine) -> None:
    tables = [lock_table(there=False), lock_table(there=True), lock_table(there=False)]
    with pytest.raises(TableDoesNotExist) as raised:
        Mutex.for_keys(Mutex.for_key("a", model=model) for model in tables).acquire()
    assert_names(raised, engine, tables[0], tables[2])


@pytest.mark.parametrize("together", [False, True])
def test_table_of_a_row_in_a_transaction_is_named(engine: Engine, together: bool) -> None:
    locks, missing = lock_table(there=True), notes()
    lock = Mutex.for_keys(["a", "b"], model=locks) if together else Mutex.for_key("a", model=locks)
    with lock:
        transaction = lock.transaction()
        transaction.save(missing("n"))
        with pytest.raises(TableDoesNotExist) as raised, transaction:
            pass
        assert lock.held  # nothing was written
    assert_names(raised, engine, missing)


@pytest.mark.real
def test_table_in_a_transaction_with_a_locked_row_is_named(engine: Engine) -> None:
    model, missing = rows(there=True), notes()
    with model.locked("a") as row:
        transaction = TransactWrite(connection=Connection())
        transaction.save(row)
        transaction.save(missing("n"))
        with pytest.raises(TableDoesNotExist) as raised, transaction:
            pass
        assert row.row_lock.held
    assert_names(raised, engine, missing)


@pytest.mark.real
def test_table_of_rows_whose_locks_are_elsewhere_is_named(engine: Engine) -> None:
    locks = lock_table(there=True)
    model = rows(there=False, locks=locks)
    with pytest.raises(TableDoesNotExist) as raised, model.locked("a"):
        pass
    assert_names(raised, engine, model)
    assert not list(locks.held())
    # both in one request
    with pytest.raises(TableDoesNotExist) as raised:
        model("a").save()
    assert_names(raised, engine, model)
    both = rows(there=True, locks=locks).locked_all(["a", model.locked("a")])
    with pytest.raises(TableDoesNotExist) as raised, both as found:
        found[0]
    assert_names(raised, engine, model)
    assert not list(locks.held())


def test_lock_table_of_rows_that_are_written_without_their_lock_is_named(engine: Engine) -> None:
    missing = lock_table(there=False)
    with pytest.raises(TableDoesNotExist) as raised:
        rows(there=True, locks=missing)("a").save()
    assert_names(raised, engine, missing)


@pytest.mark.parametrize("fault", [deny, throttle, lambda: page(200)])
def test_tables_are_all_named_where_it_cannot_be_found_out_which_is_missing(
    engine: Engine, fault: Callable[[], Fault]
) -> None:
    with fault_proxy(engine) as proxy:
        there, missing = (
            through(proxy, lock_table(there=there), read_timeout=2) for there in (True, False)
        )
        with Mutex.for_key("warm", model=there):
            pass
        proxy.always(fault(), op="GetItem")
        group = Mutex.for_keys([Mutex.for_key("a", model=there), Mutex.for_key("a", model=missing)])
        with pytest.raises(TableDoesNotExist) as raised:
            group.acquire()
        here = Engine("proxy", proxy.url)
    assert_names(raised, here, there, missing)
