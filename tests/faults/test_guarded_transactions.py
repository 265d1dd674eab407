"""I2: a guarded transaction is applied only under the claim, at most once, in order."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute, VersionAttribute
from pynamodb.exceptions import TransactWriteError
from pynamodb.models import Model
from scene import Lose, Scene, losses, lost_in_two_ways

from dev.faultproxy import Fault, after, deny, drop_request, late, refuse, throttle
from pynamodb_mutex import Mutex, MutexLostError
from pynamodb_mutex.exceptions import Loss


@pytest.fixture
def counters(scene: Scene) -> type[Model]:
    """A table of the user's."""

    class Counter(Model):
        class Meta:
            table_name = f"counters-{uuid.uuid4().hex}"
            billing_mode = "PAY_PER_REQUEST"

        name = UnicodeAttribute(hash_key=True)
        n = NumberAttribute(default=0)
        last = UnicodeAttribute(null=True)

    Counter.create_table(wait=True)
    return Counter


class Counted:
    """A counter in a row of its own, and the lock in front of it."""

    def __init__(self, scene: Scene, counters: type[Model]) -> None:
        self.scene = scene
        self.model = counters
        counters(scene.key).save()

    def add(self, mutex: Mutex, what: str) -> None:
        with mutex.transaction() as transaction:
            actions = [self.model.n.add(1), self.model.last.set(what)]
            transaction.update(self.model(self.scene.key), actions=actions)

    @property
    def n(self) -> int:
        return self.model.get(self.scene.key, consistent_read=True).n

    @property
    def last(self) -> str | None:
        return self.model.get(self.scene.key, consistent_read=True).last


@pytest.fixture
def counter(scene: Scene, counters: type[Model]) -> Iterator[Counted]:
    return Counted(scene, counters)


def cancelled(*codes: str) -> Fault:
    """The answer of DynamoDB to a transaction that it cancels for these reasons."""
    reasons = [{"Code": code} for code in codes]
    return refuse("TransactionCanceledException", CancellationReasons=reasons)


TRANSACT = "TransactWriteItems"


@pytest.mark.real
def test_applied_with_the_guard_in_the_same_request(scene: Scene, counter: Counted) -> None:
    with scene.mutex() as mutex:
        counter.add(mutex, "first")
        counter.add(mutex, "second")
        assert (counter.n, counter.last, scene.row.writes) == (2, "second", 2)
    assert scene.proxy.kinds() == ["acquire", TRANSACT, TRANSACT, "release"]


@losses
def test_refused_at_the_first_attempt_is_not_applied(
    scene: Scene, counter: Counted, lose_it: Callable[[Scene], object], loss: Loss
) -> None:
    mutex = scene.mutex(auto_renew=False)
    mutex.acquire()
    lose_it(scene)
    with pytest.raises(MutexLostError) as raised:
        counter.add(mutex, "late")
    assert raised.value.applied is False
    assert raised.value.loss is mutex.loss is loss
    assert counter.n == 0


@lost_in_two_ways
@pytest.mark.parametrize("times", [1, 3])
def test_answer_lost_is_applied_once(
    scene: Scene, counter: Counted, lose: Lose, times: int
) -> None:
    with scene.mutex() as mutex:
        scene.proxy.next(*[lose() for _ in range(times)], op=TRANSACT)
        counter.add(mutex, "first")
        assert (counter.n, scene.row.writes) == (1, 1)
        counter.add(mutex, "second")
        assert (counter.n, counter.last, scene.row.writes) == (2, "second", 2)


@lost_in_two_ways
def test_applied_and_then_taken_over_before_the_repeat_is_not_reported_as_not_applied(
    scene: Scene, counter: Counted, lose: Lose
) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(lose(then=scene.forced_and_taken), op=TRANSACT)
    try:
        counter.add(mutex, "mine")  # an engine that remembers the request says so
    except MutexLostError as error:
        assert error.applied is None  # noqa: PT017 - it may not be raised
    assert (counter.n, scene.row.owner) == (1, "other")


def test_not_applied_and_then_taken_over_before_the_repeat_is_unknown(
    scene: Scene, counter: Counted
) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(drop_request(then=scene.forced_and_taken), op=TRANSACT)
    with pytest.raises(MutexLostError) as raised:
        counter.add(mutex, "mine")
    assert raised.value.applied is None
    assert counter.n == 0


def test_throttled_and_then_taken_over_is_not_applied(scene: Scene, counter: Counted) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    conflict = cancelled("TransactionConflict", "None")
    scene.proxy.next(throttle(), conflict, after(scene.forced_and_taken), op=TRANSACT)
    with pytest.raises(MutexLostError) as raised:
        counter.add(mutex, "mine")
    assert raised.value.applied is False


def test_late_duplicate_does_not_overwrite_the_next_transaction(
    scene: Scene, counter: Counted
) -> None:
    kept = late()
    with scene.mutex() as mutex:
        scene.proxy.next(kept, op=TRANSACT)
        counter.add(mutex, "first")
        counter.add(mutex, "second")
        kept.apply()
        assert (counter.n, counter.last) == (2, "second")


@pytest.mark.real
def test_late_duplicate_is_refused_also_when_its_request_token_is_forgotten(
    scene: Scene, counter: Counted
) -> None:
    with scene.mutex() as mutex:
        counter.add(mutex, "first")
        counter.add(mutex, "second")
    for seen in scene.proxy.of(TRANSACT):
        # as DynamoDB takes it after ten minutes
        reply = scene.proxy.replay(seen, ClientRequestToken=str(uuid.uuid4()))
        assert reply.error == "TransactionCanceledException"
    assert (counter.n, counter.last) == (2, "second")


def test_given_up_transaction_that_lands_before_the_next_one_keeps_its_place(
    scene: Scene, counter: Counted
) -> None:
    kept = late()
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(kept, drop_request(), deny(), op=TRANSACT)
    with pytest.raises(TransactWriteError):
        counter.add(mutex, "first")
    scene.proxy.next(after(kept.apply), op=TRANSACT)
    counter.add(mutex, "second")
    assert (counter.n, counter.last) == (2, "second")
    mutex.release()


def test_given_up_transaction_does_not_land_after_the_next_write(
    scene: Scene, counter: Counted
) -> None:
    kept = late()
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(kept, drop_request(), deny(), op=TRANSACT)
    with pytest.raises(TransactWriteError):
        counter.add(mutex, "first")
    mutex.save_data("second")
    assert kept.apply().error == "TransactionCanceledException"
    assert counter.n == 0
    mutex.release()


@pytest.mark.real
def test_condition_of_the_callers_own_is_no_loss(scene: Scene, counter: Counted) -> None:
    with scene.mutex() as mutex:
        transaction = mutex.transaction()
        model = counter.model
        transaction.update(model(scene.key), actions=[model.n.add(1)], condition=model.n == 99)
        with pytest.raises(TransactWriteError) as raised, transaction:
            pass
        assert not isinstance(raised.value, MutexLostError)
        assert mutex.held
        assert scene.row.writes == 0
        counter.add(mutex, "next")
        assert counter.n == 1


@pytest.mark.parametrize(
    "reasons",
    [
        ("TransactionConflict", "None"),
        ("None", "TransactionConflict"),
        ("ThrottlingError", "None"),
        ("None", "ProvisionedThroughputExceeded"),
    ],
)
def test_cancelled_for_a_reason_that_passes_is_repeated(
    scene: Scene, counter: Counted, reasons: tuple[str, ...]
) -> None:
    with scene.mutex() as mutex:
        scene.proxy.next(cancelled(*reasons), cancelled(*reasons), op=TRANSACT)
        counter.add(mutex, "first")
    assert scene.applied(TRANSACT) == [False, False, True]
    assert counter.n == 1


def test_cancelled_for_a_reason_that_stays_is_raised_at_once(
    scene: Scene, counter: Counted
) -> None:
    with scene.mutex() as mutex:
        scene.proxy.next(cancelled("None", "ValidationError"), op=TRANSACT)
        with pytest.raises(TransactWriteError):
            counter.add(mutex, "first")
        assert mutex.held
    assert len(scene.proxy.of(TRANSACT)) == 1
    assert counter.n == 0


def test_transactions_and_writes_of_several_threads_are_one_after_the_other(
    scene: Scene, counter: Counted
) -> None:
    with scene.mutex() as mutex:
        errors: list[BaseException] = []

        def work(write: Callable[[int], None]) -> None:
            try:
                for n in range(4):
                    write(n)
            except BaseException as error:
                errors.append(error)

        writes: list[Callable[[int], None]] = [
            lambda n: counter.add(mutex, str(n)),
            lambda n: counter.add(mutex, str(n)),
            mutex.save_data,
        ]
        threads = [threading.Thread(target=work, args=(write,)) for write in writes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        assert (counter.n, scene.row.writes) == (8, 12)


@lost_in_two_ways
def test_version_of_the_callers_items_is_right_after_a_lost_answer(
    scene: Scene, counters: type[Model], lose: Lose
) -> None:
    class Versioned(counters):
        class Meta(counters.Meta):
            pass

        version = VersionAttribute()

    item = Versioned(scene.key)
    item.save()
    with scene.mutex() as mutex:
        scene.proxy.next(lose(), op=TRANSACT)
        with mutex.transaction() as transaction:
            transaction.update(item, actions=[Versioned.n.add(1)])
        assert item.version == 2
        with mutex.transaction() as transaction:
            transaction.update(item, actions=[Versioned.n.add(1)])
    assert Versioned.get(scene.key, consistent_read=True).version == 3
