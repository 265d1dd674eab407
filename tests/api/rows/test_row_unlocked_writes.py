"""Writes without the lock: refused while another holds the row, and never bad for fencing tokens."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from pynamodb.attributes import VersionAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import GetError, PutError, TransactWriteError, UpdateError
from pynamodb.transactions import TransactWrite
from row_scene import Account, RowScene, Write, delete, every_write, save, save_or_update, update
from scene import Lose, lost_in_two_ways

from dev.faultproxy import Exchange, Fault, after, deny, drop_answer, drop_request, throttle
from pynamodb_mutex import MutexError, MutexLostError, MutexNotHeldError, RowLockedError


def transact(row: Account, *writes: Callable[[TransactWrite], object]) -> None:
    """Make writes in PynamoDB's own transaction, on the way that a row's model goes."""
    with TransactWrite(connection=Connection(host=row.Meta.host)) as transaction:
        for write in writes:
            write(transaction)


def in_transaction(row: Account, write: Write) -> None:
    if write is save:
        row.balance, row.last = row.balance + 1, "mine"
        transact(row, lambda t: t.save(row))
    elif write is update:
        actions = [type(row).balance.add(1), type(row).last.set("mine")]
        transact(row, lambda t: t.update(row, actions))
    else:
        transact(row, lambda t: t.delete(row))


def alone(row: Account, write: Write) -> None:
    write(row)


ways = pytest.mark.parametrize("way", [alone, in_transaction])
Way = Callable[[Account, Write], None]


def assert_locked(any_scene: RowScene, write: Callable[[], object]) -> None:
    """See that a write is refused because another holds the row, and that nothing changes."""
    before = any_scene.everything
    with pytest.raises(RowLockedError) as raised:
        write()
    error = raised.value
    assert error.applied is False
    assert error.owner == "other"
    assert error.expires_at == float(any_scene.claim["expires_at"]["N"])
    assert error.key == any_scene.lock().key
    assert all(part in str(error) for part in (any_scene.lock().key, "held by 'other' until"))
    assert any_scene.everything == before


# -- while another holds the row -------------------------------------------------------------------


@ways
@every_write
def test_write_is_refused_while_another_holds_the_row(
    any_scene: RowScene, way: Way, write: Write
) -> None:
    other = any_scene.taken()
    assert_locked(any_scene, lambda: way(any_scene.here(any_scene.key), write))
    update(other.row, "other", unlock=True)
    if write is save:
        way(any_scene.row, write)
    else:
        way(any_scene.here(any_scene.key), write)
    assert any_scene.gone if write is delete else any_scene.row.balance == 2


@pytest.mark.real
@every_write
def test_write_of_an_instance_read_before_is_refused(any_scene: RowScene, write: Write) -> None:
    row = any_scene.row
    any_scene.taken()
    assert_locked(any_scene, lambda: write(row))


@every_write
def test_write_after_the_lock_was_released_is_one_without_it(
    any_scene: RowScene, write: Write
) -> None:
    with any_scene.lock() as row:
        pass
    assert not row.is_locked
    other = any_scene.taken()
    assert_locked(any_scene, lambda: write(row))
    other.release()
    row.balance = 0
    write(row)
    assert any_scene.gone if write is delete else any_scene.row.balance == 1


@save_or_update
def test_unlocking_write_without_the_lock_is_not_sent(any_scene: RowScene, write: Write) -> None:
    with pytest.raises(MutexNotHeldError):
        write(any_scene.here(any_scene.key), unlock=True)
    assert any_scene.proxy.kinds() == []


@pytest.mark.real
def test_one_locked_row_refuses_a_whole_transaction(any_scene: RowScene) -> None:
    any_scene.taken()
    free = any_scene.here(f"{any_scene.key}-free", balance=5)

    def write() -> None:
        held = any_scene.here(any_scene.key)
        transact(free, lambda t: t.save(free), lambda t: t.delete(held))

    assert_locked(any_scene, write)
    assert any_scene.here.count(free.name) == 0


@every_write
def test_refused_after_a_lost_request(any_scene: RowScene, write: Write) -> None:
    any_scene.proxy.next(drop_request(then=any_scene.taken), op=any_scene.op(write.__name__))
    with pytest.raises(RowLockedError) as raised:
        write(any_scene.here(any_scene.key))
    assert any_scene.row.last is None
    # the first attempt may still arrive; a transaction's token shows only that it has not been applied yet
    assert raised.value.applied is None


@lost_in_two_ways
@save_or_update
def test_refused_after_a_lost_answer(row_scene: RowScene, write: Write, lose: Lose) -> None:
    row_scene.proxy.next(lose(then=row_scene.taken), op=row_scene.op(write.__name__))
    with pytest.raises(RowLockedError, match="answer was lost") as raised:
        write(row_scene.here(row_scene.key))
    assert row_scene.row.last == "mine"
    assert raised.value.applied is None
    assert pickle.loads(pickle.dumps(raised.value)).applied is None


@save_or_update
def test_refused_after_an_attempt_that_was_surely_not_applied(
    any_scene: RowScene, write: Write
) -> None:
    def take_and_refuse(exchange: Exchange) -> None:
        any_scene.taken()
        throttle().meet(exchange)

    any_scene.proxy.next(Fault("throttle", take_and_refuse), op=any_scene.op(write.__name__))
    with pytest.raises(RowLockedError) as raised:
        write(any_scene.here(any_scene.key))
    assert any_scene.row.last is None
    assert raised.value.applied is False


@save_or_update
def test_transaction_is_not_refused_after_a_lost_answer(any_scene: RowScene, write: Write) -> None:
    """For its token tells that the first attempt was applied."""
    any_scene.proxy.next(drop_answer(then=any_scene.taken), op="TransactWriteItems")
    in_transaction(any_scene.here(any_scene.key), write)
    assert any_scene.row.last == "mine"


# -- dead holders ----------------------------------------------------------------------------------


@ways
@every_write
@pytest.mark.parametrize("late", [save, update, delete])
def test_dead_holder_stops_nobody_and_is_stopped_itself(
    row_scene: RowScene, way: Way, write: Write, late: Write
) -> None:
    dead = row_scene.other(auto_renew=False)
    assert dead.acquire()
    row_scene.expire()
    way(row_scene.here(row_scene.key), write)
    before = row_scene.everything
    assert bool(before[0]) is (write is not delete)
    # it wakes, and believes that it holds the row
    assert dead.held
    with pytest.raises(MutexLostError) as raised:
        late(dead.row)
    assert raised.value.applied is False
    assert row_scene.everything == before


@every_write
def test_dead_holder_in_a_lock_table_stops_nobody(table_scene: RowScene, write: Write) -> None:
    dead = table_scene.other(auto_renew=False)
    assert dead.acquire()
    table_scene.expire()
    write(table_scene.here(table_scene.key))
    assert table_scene.gone if write is delete else table_scene.row.balance == 1


def test_claim_that_ends_just_now_is_waited_for_no_longer_than_server_time_needs(
    row_scene: RowScene,
) -> None:
    dead = row_scene.other(auto_renew=False, lease=0.5)
    assert dead.acquire()
    began = time.monotonic()
    while row_scene.row.last is None:
        time.sleep(0.02)
        with suppress(RowLockedError):
            update(row_scene.here(row_scene.key), "late")
    # the lease, what is not known of server time, and two of these pauses
    assert time.monotonic() - began <= 0.5 + 1.3 + 0.04
    assert row_scene.row.last == "late"
    assert row_scene.is_free


# -- lock_enforced = False -------------------------------------------------------------------------


@pytest.fixture
def advisory(any_scene: RowScene) -> type[Account]:
    """The client with the bad network, whose locks bind only those who take them."""

    class Advisory(any_scene.here):
        class Meta(any_scene.here.Meta):
            pass

        lock_enforced = False

    return Advisory


@every_write
def test_lock_that_is_not_enforced_stops_no_write(
    any_scene: RowScene, advisory: type[Account], write: Write
) -> None:
    other = any_scene.taken()
    version = other.fencing_token
    write(advisory(any_scene.key))
    if write is delete:
        assert any_scene.gone
    else:
        assert any_scene.row.balance == 1
        assert any_scene.version >= version
    if not any_scene.in_table and write is not update:
        # the claim ended with the row that carried it
        with pytest.raises(MutexLostError) as raised:
            save(other.row, "late")
        assert raised.value.applied is False
        if write is save:
            assert any_scene.version > version
        return
    if write is update:
        # it leaves the claim alone
        update(other.row, "other")
        assert any_scene.row.balance == 2
    other.release()


@every_write
def test_guarded_writes_need_the_claim_also_if_it_is_not_enforced(
    any_scene: RowScene, advisory: type[Account], write: Write
) -> None:
    lock = advisory.locked(any_scene.key)
    assert lock.acquire()
    row = lock.row
    any_scene.forced_and_taken()
    with pytest.raises(MutexLostError):
        write(row)
    assert any_scene.row.balance == 0


# -- lost answers ----------------------------------------------------------------------------------


@lost_in_two_ways
@pytest.mark.parametrize("times", [1, 3])
def test_save_whose_answer_is_lost_is_reported_as_applied(
    row_scene: RowScene, lose: Lose, times: int
) -> None:
    row = row_scene.here(row_scene.key)
    row_scene.proxy.next(*[lose() for _ in range(times)], op="PutItem")
    save(row)
    assert row_scene.applied("PutItem") == [True] + [False] * times
    assert row_scene.row.balance == 1


@pytest.mark.real
@lost_in_two_ways
def test_save_of_a_model_with_a_version_whose_answer_is_lost_is_reported_as_applied(
    row_scene: RowScene, lose: Lose
) -> None:
    class Versioned(row_scene.here):
        class Meta(row_scene.here.Meta):
            pass

        revision = VersionAttribute()

    row = Versioned(row_scene.key)
    for n in (1, 2):
        row_scene.proxy.next(lose(), op="PutItem")
        save(row)
        assert row.revision == n
    assert Versioned.get(row_scene.key, consistent_read=True).revision == 2


def test_save_that_was_written_over_before_the_repeat_is_not_reported_as_refused(
    row_scene: RowScene,
) -> None:
    # without a lock the last one wins, as always
    row_scene.proxy.next(drop_answer(then=lambda: save(row_scene.row, "other")), op="PutItem")
    save(row_scene.here(row_scene.key))
    assert row_scene.row.last == "mine"


@lost_in_two_ways
def test_transaction_without_a_lock_whose_answer_is_lost_is_repeated_as_it_was(
    any_scene: RowScene, lose: Lose
) -> None:
    # by its token DynamoDB knows it again, as it does PynamoDB's own
    any_scene.proxy.next(lose(), lose(), op="TransactWriteItems")
    in_transaction(any_scene.here(any_scene.key), update)
    sent = [seen.body for seen in any_scene.proxy.of("TransactWriteItems")]
    assert len(sent) == 3
    assert sent[0] == sent[1] == sent[2]
    assert sent[0]["ClientRequestToken"]
    if any_scene.remembers:
        assert any_scene.row.balance == 1


@save_or_update
def test_condition_of_the_callers_own_is_pynamodbs_error(any_scene: RowScene, write: Write) -> None:
    errors = (PutError, UpdateError, TransactWriteError)
    with pytest.raises(errors) as raised:
        write(any_scene.here(any_scene.key), condition=any_scene.here.balance == 99)
    assert not isinstance(raised.value, MutexError)
    code = (
        "TransactionCanceledException" if any_scene.in_table else "ConditionalCheckFailedException"
    )
    assert raised.value.cause_response_code == code
    assert any_scene.row.balance == 0


def test_update_that_cannot_be_read_again_says_that_it_was_applied(table_scene: RowScene) -> None:
    row = table_scene.here(table_scene.key)
    table_scene.proxy.always(deny(), op="GetItem")
    with pytest.raises(GetError, match="was written"):
        update(row)
    table_scene.proxy.clear()
    assert table_scene.row.balance == 1
    assert row.balance == 0
    row.refresh()
    assert row.balance == 1


def test_failure_that_does_not_pass_is_pynamodbs_error(row_scene: RowScene) -> None:
    row_scene.proxy.next(deny(), op="PutItem")
    with pytest.raises(PutError):
        save(row_scene.here(row_scene.key))
    assert row_scene.row.balance == 0


# -- fencing tokens --------------------------------------------------------------------------------


def test_save_next_to_a_higher_token_takes_the_next_one(row_scene: RowScene) -> None:
    # written by a host whose time is ahead
    ahead = 10**15
    row_scene.set_claim(row_scene.there.lock_version.set(ahead))
    save(row_scene.here(row_scene.key))
    assert row_scene.version == ahead + 1
    assert row_scene.applied("PutItem") == [False, True]
    assert row_scene.taken().fencing_token > ahead + 1


def test_save_that_meets_another_takes_the_next_token(row_scene: RowScene) -> None:
    row_scene.proxy.next(after(lambda: save(row_scene.row, "other")), op="PutItem")
    save(row_scene.here(row_scene.key))
    assert row_scene.row.last == "mine"


def steps(any_scene: RowScene) -> Iterator[tuple[str, Callable[[], object]]]:
    """What may happen to a row, but its deletion."""
    clients = [any_scene.here, any_scene.there]

    def locked(model: type[Account], *writes: Write, unlock: bool) -> None:
        any_scene.expire_if_held()
        lock = model.locked(any_scene.key, timeout=20, auto_renew=False, poll=(0.01, 0.02))
        assert lock.acquire()
        for write in writes:
            write(lock.row)
        if unlock:
            save(lock.row, unlock=True)

    for model in clients:
        for writes in ((), (save,), (update, save), (save, update)):
            for unlock in (True, False):
                yield (
                    f"lock {[w.__name__ for w in writes]} unlock={unlock}",
                    lambda m=model, w=writes, u=unlock: locked(m, *w, unlock=u),
                )
        yield "force", lambda m=model: m.locked(any_scene.key).force_release()
        for write in (save, update):
            yield (
                f"unlocked {write.__name__}",
                lambda m=model, w=write: (any_scene.expire_if_held(), w(m(any_scene.key))),
            )
            yield (
                f"unlocked {write.__name__} in a transaction",
                lambda m=model, w=write: (
                    any_scene.expire_if_held(),
                    in_transaction(m(any_scene.key), w),
                ),
            )


@pytest.mark.parametrize("seed", range(4))
def test_tokens_never_fall(row_scene: RowScene, seed: int) -> None:
    chance = random.Random(seed)
    seen = 0
    history = []
    choices = list(steps(row_scene))
    for _ in range(25):
        name, step = chance.choice(choices)
        history.append(name)
        holder_before = row_scene.claim.get("token")
        step()
        version = int(row_scene.claim.get("version", {"N": "0"})["N"])
        assert version >= seen, history
        if row_scene.claim.get("token") != holder_before and "token" in row_scene.claim:
            assert version > seen, history
        seen = version
