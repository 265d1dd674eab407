"""A table that is not there is named with its place, whichever request finds it missing."""

from contextlib import contextmanager

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import TableDoesNotExist
from pynamodb.transactions import TransactWrite
from row_tables import LOCKABLE, PLAIN, created, made

from dev.faultproxy import deny, fault_proxy, page, throttle, through
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.testing import Engine


def lock_table(*, there):
    model = made({}, (LockItem,))
    return created(model) if there else model


def rows(*, there, locks=None):
    attributes = {"lock_model": locks, "name": UnicodeAttribute(hash_key=True)}
    model = made(attributes, LOCKABLE)
    if there:
        created(model)
        model._get_connection().put_item("a")
    return model


@contextmanager
def missing_named(engine, *models, hint="create_table()`"):
    """See that an error names these tables and no other, where they were sought, and what to do last."""
    with pytest.raises(TableDoesNotExist) as raised:
        yield
    error = raised.value
    assert type(error) is TableDoesNotExist
    # moto cancels a transaction for a table that it only checks
    codes = {"ResourceNotFoundException", "TransactionCanceledException"}
    assert error.cause_response_code in codes
    names = "` or `".join(model.Meta.table_name for model in models)
    assert str(error).startswith(
        f"Table does not exist: `{names}` in us-east-1 at {engine.endpoint_url}: wrong region or "
        "profile? If not, create it with `"
    )
    assert str(error).endswith(hint)


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
def test_lock_table_that_is_missing_is_named(engine, call):
    missing = lock_table(there=False)
    with missing_named(engine, missing, hint=" `Row.create_table()`"):
        call(missing)


@pytest.mark.real
def test_table_of_locked_rows_that_is_missing_is_named(engine):
    missing = rows(there=False)
    for lock in (missing.locked("a"), missing.locked_all(["a", "b"])):
        with missing_named(engine, missing, hint=" `Row.create_table()`"):
            lock.acquire()


@pytest.mark.real
@pytest.mark.parametrize("warm", [False, True])
def test_missing_one_of_two_lock_tables_is_named(engine, warm):
    for order in (1, -1):
        there, missing = lock_table(there=True), lock_table(there=False)
        if warm:  # so that a transaction finds it, else a read
            assert not Mutex.for_key("b", model=there).locked()
        group = Mutex.for_keys([Mutex.for_key("a", model=m) for m in (there, missing)[::order]])
        for call in (group.acquire, group.locked):
            with missing_named(engine, missing):
                call()
        assert not group.held
        assert not Mutex.for_key("a", model=there).locked()


def test_missing_tables_are_all_named(engine):
    tables = [lock_table(there=False), lock_table(there=True), lock_table(there=False)]
    with missing_named(engine, tables[0], tables[2]):
        Mutex.for_keys(Mutex.for_key("a", model=model) for model in tables).acquire()


@pytest.mark.real
def test_table_of_a_row_in_a_transaction_is_named(engine):
    missing = made({"name": UnicodeAttribute(hash_key=True)}, PLAIN)
    locks, model = lock_table(there=True), rows(there=True)
    one, several = Mutex.for_key("a", model=locks), Mutex.for_keys(["b", "c"], model=locks)
    with model.locked("a") as row, one, several:
        of_row = TransactWrite(connection=Connection())
        of_row.save(row)
        for transaction in (of_row, one.transaction(), several.transaction()):
            transaction.save(missing("n"))
            with missing_named(engine, missing), transaction:
                pass
        # nothing was written
        assert row.row_lock.held
        assert one.held
        assert several.held


@pytest.mark.real
def test_table_of_rows_whose_locks_are_elsewhere_is_named(engine):
    locks = lock_table(there=True)
    model = rows(there=False, locks=locks)
    with missing_named(engine, model), model.locked("a"):
        pass
    assert not list(locks.held())
    # both in one request
    with missing_named(engine, model):
        model("a").save()
    both = rows(there=True, locks=locks).locked_all(["a", model.locked("a")])
    with missing_named(engine, model), both as found:
        found[0]
    assert not list(locks.held())
    # and the other way round
    missing = lock_table(there=False)
    with missing_named(engine, missing):
        rows(there=True, locks=missing)("a").save()


@pytest.mark.parametrize("fault", [deny, throttle, lambda: page(200)])
def test_tables_are_all_named_where_it_cannot_be_found_out_which_is_missing(engine, fault):
    with fault_proxy(engine) as proxy:
        there, missing = (
            through(proxy, lock_table(there=there), read_timeout=2) for there in (True, False)
        )
        with Mutex.for_key("warm", model=there):
            pass
        proxy.always(fault(), op="GetItem")
        group = Mutex.for_keys([Mutex.for_key("a", model=there), Mutex.for_key("a", model=missing)])
        with missing_named(Engine("proxy", proxy.url), there, missing):
            group.acquire()
