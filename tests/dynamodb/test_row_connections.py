"""Connections of row locks: the retries and timeouts of a model's Meta, and transactions with a connection of the caller's."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest
from pynamodb.attributes import NumberAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import DeleteError, PutError, TransactWriteError, UpdateError
from pynamodb.signals import pre_dynamodb_send
from pynamodb.transactions import TransactWrite
from row_models import LOCKABLE, created, delete, every_write, hashed, made, save, update
from sent_requests import TRANSACT

from dev import faultproxy as net
from pynamodb_mutex import LockItem, MutexError, MutexLostError, RowLockedError
from pynamodb_mutex._lock.dynamodb import connection
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex.testing import use

ERRORS = {save: PutError, update: UpdateError, delete: DeleteError}
FAR = "eu-west-1"
CONFLICT = net.refuse(
    "TransactionCanceledException",
    CancellationReasons=[{"Code": "TransactionConflict"}, {"Code": "None"}],
)


@contextmanager
def new_process(scene, retries=3):
    """Make a client of a scene's row that has had no answer yet, whose Meta says how often to repeat."""
    with net.fault_proxy(scene.engine) as proxy:
        client = net.through(proxy, scene.there, read_timeout=30)
        client.Meta.max_retry_attempts = retries
        if scene.in_table:
            client.lock_model = net.through(proxy, scene.locks)
        yield client, proxy


def error_of(scene, write):
    """Return the error of a write that fails without its lock."""
    return TransactWriteError if scene.in_table else ERRORS[write]


def attempts(proxy, op):
    """Say of each attempt at a write whether it was applied."""
    return [seen.applied for seen in proxy.of(op)]


def by_caller(host, **options):
    """Return a transaction with a connection of the caller's, whose own number of retries does not count."""
    return TransactWrite(connection=Connection(host=host, max_retry_attempts=1), **options)


def send(transaction):
    """Send what was put into a transaction."""
    with transaction:
        pass


@pytest.mark.parametrize("fault", [net.throttle, net.server_error, net.drop_request])
@every_write
def test_write_is_repeated_as_often_as_meta_says(any_scene, write, fault):
    op, error = any_scene.op(write.__name__), error_of(any_scene, write)
    for retries in (0, 1, 6):
        any_scene.old(any_scene.key).save()
        with new_process(any_scene, retries) as (client, proxy):
            proxy.always(fault(), op=op)
            with pytest.raises(error) as raised:
                write(client(any_scene.key))
            assert type(raised.value) is error
            assert attempts(proxy, op) == [False] * (retries + 1)
        with new_process(any_scene, retries) as (client, proxy):
            proxy.next(*[fault()] * retries, op=op)
            write(client(any_scene.key))
            assert attempts(proxy, op) == [False] * retries + [True]
        assert any_scene.gone if write is delete else any_scene.row.last == "mine"


@pytest.mark.real("embedded")
@pytest.mark.parametrize("retries", [0, 2])
def test_transaction_is_repeated_as_often_as_meta_of_its_rows_says(row_scene, retries):
    with new_process(row_scene, retries) as (client, proxy):

        def transact(*faults):
            proxy.start_anew()
            proxy.next(*faults, op=TRANSACT)
            with by_caller(proxy.url) as transaction:
                transaction.save(client(row_scene.key))
                transaction.update(client(f"{row_scene.key}-2"), [client.balance.add(1)])

        faults = [net.throttle() for _ in range(retries)]
        # and if it meets a lock on its way, whatever that says
        for met in (faults, [CONFLICT, CONFLICT]):
            transact(*met)
            sent = proxy.of(TRANSACT)
            assert [seen.applied for seen in sent] == [False] * len(met) + [True]
            # by its token DynamoDB knows it again
            assert all(seen.body == sent[0].body for seen in sent)
        with pytest.raises(TransactWriteError):
            transact(*faults, net.throttle())
        assert not any(seen.applied for seen in proxy.of(TRANSACT))


@pytest.mark.real("embedded")
def test_write_whose_answer_is_cut_off_may_have_been_applied(row_scene):
    with new_process(row_scene) as (client, proxy):
        proxy.next(net.cut_off(), net.after(row_scene.taken), op="PutItem")
        with pytest.raises(RowLockedError) as raised:
            save(client(row_scene.key))
        assert attempts(proxy, "PutItem") == [True, False]
        assert raised.value.applied is None


@pytest.mark.real("embedded")
def test_unreachable_endpoint_is_the_error_of_the_write(any_scene):
    with new_process(any_scene, retries=1) as (client, _):
        pass  # nothing listens there any more
    for write in ERRORS:
        with pytest.raises(error_of(any_scene, write)) as raised:
            write(client(any_scene.key))
        assert type(raised.value) is error_of(any_scene, write)
    transaction = by_caller("nowhere")
    transaction.save(any_scene.locked())
    with pytest.raises(TransactWriteError, match="Invalid endpoint"):
        send(transaction)


@pytest.mark.parametrize("fault", [net.refuse("TransactionConflictException"), CONFLICT])
@every_write
def test_write_that_meets_a_lock_on_its_way_is_repeated_whatever_meta_says(any_scene, write, fault):
    op = any_scene.op(write.__name__)
    with new_process(any_scene, retries=0) as (client, proxy):
        proxy.next(fault, fault, op=op)
        write(client(any_scene.key))
        assert attempts(proxy, op) == [False, False, True]


def test_first_save_of_a_process_has_metas_patience_for_its_read_too(row_scene):
    with new_process(row_scene, retries=4) as (client, proxy):
        proxy.next(*[net.drop_request()] * 4, op="GetItem")
        proxy.next(*[net.throttle()] * 4, op="PutItem")
        save(client(row_scene.key))
        for op in ("GetItem", "PutItem"):
            assert attempts(proxy, op) == [False] * 4 + [True]


@every_write
def test_page_in_place_of_an_answer_is_no_answer(any_scene, write):
    with new_process(any_scene, retries=0) as (client, proxy):
        proxy.next(net.page(200), op=any_scene.op(write.__name__))
        with pytest.raises(error_of(any_scene, write), match="not DynamoDB's"):
            write(client(any_scene.key))
    assert any_scene.row.last is None


def reads_for(seconds):
    """Set the timeout of reads, within that of the scene: undone after the scene has ended, it would put the scene's back."""
    return patch.object(connection, "READ_TIMEOUT", seconds)


@every_write
def test_late_answer_is_waited_for_as_long_as_meta_says(any_scene, write):
    op = any_scene.op(write.__name__)
    with reads_for(0.2), new_process(any_scene) as (client, proxy):
        for each in ("GetItem", op):
            proxy.next(net.delay_answer(1.0), op=each)
        write(client(any_scene.key))
        assert attempts(proxy, op) == [True]


@every_write
def test_attempt_that_hangs_for_metas_timeout_is_repeated(any_scene, write):
    op = any_scene.op(write.__name__)
    with new_process(any_scene, retries=2) as (client, proxy):
        proxy.next(net.delay_answer(100.0), net.delay_answer(100.0), op=op)
        began = local_clock().now()
        write(client(any_scene.key))
        assert 60 < local_clock().now() - began < 65
        # a transaction is recognised by its token, an update or a delete not at all
        is_refused = write is save and not any_scene.in_table
        assert attempts(proxy, op)[:2] == [True, not is_refused]


def test_guarded_write_has_the_patience_of_its_lock(row_scene):
    with (
        reads_for(0.5),
        new_process(row_scene, retries=0) as (client, proxy),
        client.locked(row_scene.key) as row,
    ):
        proxy.next(net.throttle(), net.throttle(), net.delay_answer(5.0), op="PutItem")
        save(row)
        # it did not wait for the late one, and knew its own result again
        assert attempts(proxy, "PutItem")[:4] == [False, False, True, False]
    assert row_scene.row.balance == 1


def test_request_of_who_listens_to_pynamodbs_signals_is_distinguished(row_scene):
    other = f"{row_scene.key}-other"
    with new_process(row_scene) as (client, proxy):
        client(other).save()

        def write_another(_, **__):
            pre_dynamodb_send.disconnect(write_another)
            row_scene.taken()
            proxy.next(net.drop_answer(), op="PutItem")
            client(other).save()

        pre_dynamodb_send.connect(write_another)
        with pytest.raises(RowLockedError) as raised:
            save(client(row_scene.key))
        assert raised.value.applied is False


@pytest.mark.real("embedded")  # botocore reports an attempt that succeeded, too
def test_read_of_who_listens_to_pynamodbs_signals_is_no_attempt_at_a_write(row_scene):
    with new_process(row_scene) as (client, _):
        row = client(row_scene.key)
        save(row)

        def read(_, *, operation_name, **__):
            if operation_name == "PutItem":
                client.get(row_scene.key)

        row_scene.taken()
        with pre_dynamodb_send.connected_to(read), pytest.raises(RowLockedError) as raised:
            save(row)
        assert raised.value.applied is False


def test_writes_without_the_lock_go_by_one_connection(row_scene):
    senders = []
    note = lambda sender, **_: senders.append(sender)  # noqa: E731 - it is short
    with new_process(row_scene) as (client, _), pre_dynamodb_send.connected_to(note):
        for write in ERRORS:
            write(client(row_scene.key))
    assert senders == [senders[0]] * 4


def test_meta_of_a_subclass_counts():
    base = made(hashed()(), LOCKABLE, "rows")
    other_meta = {"Meta": type("Meta", (base.Meta,), {"region": FAR, "max_retry_attempts": 9})}
    own = base._get_connection()
    assert type("Same", (base,), {})._get_connection() is own
    other = type("Other", (base,), other_meta)._get_connection().connection
    assert (other.region, other._max_retry_attempts_exception) == (FAR, 9)


Row = made(hashed(balance=lambda: NumberAttribute(default=0))(), LOCKABLE)


class There(Row):
    class Meta(Row.Meta):
        table_name = Row.Meta.table_name
        region = FAR


@pytest.fixture
def two_regions(embedded_engine):
    """The table in two regions; DynamoDB Local would have one for both."""
    with use(embedded_engine):
        for model in (Row, There):
            created(model)
        yield
        for model in (Row, There):
            model.delete_table()


@pytest.mark.parametrize("options", [{"region": FAR}, {"aws_access_key_id": "other"}])
def test_row_is_not_written_by_a_connection_that_leads_elsewhere_than_its_model(
    two_regions, options
):
    options = {"aws_secret_access_key": "secret", **options}
    transaction = TransactWrite(connection=Connection(**options))
    transaction.save(There("b") if "region" in options else Row("b"))
    transaction.update(Row("a"), [Row.balance.set(2)])
    message = "|".join(
        [f"goes to {FAR} at .* but '.*/a' is in us-east-1 at", "other credentials, but"]
    )
    with pytest.raises(MutexError, match=message):
        send(transaction)
    assert [*Row.scan(), *There.scan()] == []


def test_row_whose_lock_table_is_in_another_region_is_not_written(two_regions):
    class Locks(LockItem):
        class Meta:
            table_name = f"locks-{There.Meta.table_name}"

    class OthersThere(Locks):
        class Meta(Locks.Meta):
            region = FAR

    class Locked(There):
        lock_model = Locks

    for model in (Locks, OthersThere):
        model.create_table()
    There("a").save()
    with Locked.locked("a") as row:
        for write in (row.save, Locked("a", balance=5).save):
            with pytest.raises(MutexError, match=f"in one region, not in {FAR} and us-east-1"):
                write()
    assert There.get("a").balance == 0
    Locks.Meta.region = "us-east-1"  # which is that of the environment
    type("Here", (Row,), {"lock_model": Locks})("a", balance=5).save()
    assert Row.get("a").balance == 5


def test_rows_of_two_regions_are_not_locked_together(two_regions):
    Row("a").save()
    Row("b").save()  # a namesake of the row that is meant
    There("b").save()
    with pytest.raises(ValueError, match=f"one region only, not '{FAR}', 'us-east-1'"):
        Row.locked_all(["a", There.locked("b")]).acquire()
    assert not Row.locked("b").locked()


def test_row_that_is_locked_elsewhere_is_an_error(two_regions):
    for key in ("a", "b"):
        Row(key).save()
    for unlock in (False, True):
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
    assert {row.pk: row.balance for row in Row.scan()} == {"a": 2, "b": 0}
    assert list(There.scan()) == []


def test_rows_that_are_locked_in_two_regions_are_not_written_together(two_regions):
    Row("a").save()
    There("b").save()
    with Row.locked("a") as row, There.locked("b") as there:
        transaction = row.row_lock.transaction()
        transaction.save(there)
        message = f"goes to {FAR} at .*'.*/a' is locked in us-east-1 at"
        with pytest.raises(MutexError, match=message):
            send(transaction)
        assert row.row_lock.held
        there.save()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aws_access_key_id": "other"}, "with other credentials"),
        ({"host": None}, r"is locked in .*row_lock\.transaction"),
    ],
)
def test_connection_that_leads_elsewhere_than_the_lock_is_an_error(any_scene, options, message):
    options = {"host": any_scene.here.Meta.host, "aws_secret_access_key": "secret", **options}
    transaction = TransactWrite(connection=Connection(**options))
    with any_scene.lock() as row:
        transaction.save(row)
        with pytest.raises(MutexError, match=message):
            send(transaction)
        assert row.row_lock.held
        assert any_scene.proxy.of(TRANSACT) == []


@pytest.mark.real("embedded")
def test_request_asks_for_what_the_caller_asked_for(any_scene):
    def commit(row, **options):
        transaction = by_caller(any_scene.here.Meta.host, **options)
        transaction.update(row, [any_scene.here.balance.add(1)])
        return transaction._commit()

    for locked in (False, True):
        row = any_scene.locked() if locked else any_scene.here(any_scene.key)
        any_scene.proxy.start_anew()
        asked = {"return_consumed_capacity": "INDEXES", "return_item_collection_metrics": "SIZE"}
        assert "ConsumedCapacity" in commit(row, **asked)
        commit(row)
        asking, silent = (seen.body for seen in any_scene.proxy.of(TRANSACT))
        assert asking["ReturnConsumedCapacity"] == "INDEXES"
        assert asking["ReturnItemCollectionMetrics"] == "SIZE"
        # as PynamoDB's own
        assert silent["ReturnConsumedCapacity"] == "TOTAL"
        assert "ReturnItemCollectionMetrics" not in silent
        for option in asked:
            with pytest.raises(ValueError, match="must be one of"):
                commit(row, **{option: "MUCH"})
        assert len(any_scene.proxy.of(TRANSACT)) == 2


@pytest.mark.parametrize("locked", [False, True])
def test_error_shows_the_row_only_if_asked_for(any_scene, locked):
    model = any_scene.here
    row = any_scene.locked() if locked else model(any_scene.key)
    no = model.balance == 99

    def refused(method, row, *args, **options):
        transaction = by_caller(model.Meta.host)
        transaction.condition_check(any_scene.old, f"{any_scene.key}-2", condition=~no)
        transaction.save(model(f"{any_scene.key}-3"))
        method(transaction, row, *args, condition=no, **options)
        with pytest.raises(TransactWriteError) as raised:
            send(transaction)
        (reason,) = filter(None, raised.value.cancellation_reasons)
        assert raised.value.cancellation_reasons[0] is None
        assert reason.code == "ConditionalCheckFailed"
        return reason.raw_item

    assert refused(TransactWrite.delete, row) is None
    update = (TransactWrite.update, row, [model.balance.add(1)])
    for write in ((TransactWrite.save, row), update):
        assert refused(*write) is None
        assert refused(*write, return_values="ALL_OLD")["name"] == {"S": any_scene.key}
        assert refused(*write, return_values="NONE") is None
    # that of a model without locks too
    old = any_scene.old(any_scene.key)
    assert refused(TransactWrite.save, old, return_values="ALL_OLD")["name"] == {"S": old.name}


def test_loss_still_shows_in_a_transaction_of_its_own_connection(row_scene):
    row = row_scene.locked()
    row_scene.forced_and_taken()
    transaction = by_caller(row_scene.here.Meta.host)
    transaction.save(row)
    with pytest.raises(MutexLostError) as raised:
        send(transaction)
    assert raised.value.applied is False
