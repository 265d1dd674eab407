"""Renewals of several locks by one request: what holds for single ones holds for these.

They are sent here as the renewer sends them, but when the test says so.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from botocore.client import BaseClient
from driving import batch_of, send_renewal
from hearing import until
from scene import Scene
from stores import store_for

from dev.faultproxy import (
    Fault,
    after,
    apply_then_500,
    deny,
    drop_answer,
    drop_request,
    duplicate,
    refuse,
    throttle,
    through,
)
from pynamodb_mutex import LockItem, Loss, Mutex
from pynamodb_mutex.testing import FakeClock

BATCH = "BatchExecuteStatement"
LEASE = 120.0
"""Long enough for batches where a request may take half a minute."""


class Several:
    """Some locks of the client with the bad network, which can be renewed together."""

    def __init__(self, scene: Scene, count: int = 3) -> None:
        self.scene = scene
        self.keys = [f"{scene.key}.{i}" for i in range(count)]
        self.mutexes = [Mutex.for_key(key, model=scene.here, lease=LEASE) for key in self.keys]
        for mutex in self.mutexes:
            assert mutex.acquire()
        time.sleep(0.1)  # so that the end of a renewal is a later one
        assert len({batch_of(hold) for hold in self.holds} - {None}) == 1

    @property
    def holds(self):
        return [mutex._latest for mutex in self.mutexes]

    def renew(self) -> None:
        first, *others = self.holds
        send_renewal(first, *others)

    def again(self) -> None:
        """Renew each by itself, as the renewer does after a batch that told nothing."""
        for hold in self.holds:
            assert batch_of(hold) is None
            send_renewal(hold)

    def ends(self) -> list[float]:
        """The ends as they stand in the rows."""
        return [self.scene.there.get(k, consistent_read=True).expires_at for k in self.keys]

    def believed(self) -> list[tuple[float, float]]:
        """The ends known to stand in the rows, and those by the local clock."""
        return [(hold.own.expires_at, hold.own.term.ends) for hold in self.holds]

    def later_than(self, believed: list[tuple[float, float]]) -> bool:
        pairs = zip(self.believed(), believed, strict=True)
        return all(new[0] > old[0] and new[1] > old[1] for new, old in pairs)

    def held(self) -> list[bool]:
        return [mutex.held for mutex in self.mutexes]


@pytest.fixture
def several(scene: Scene) -> Several:
    return Several(scene)


def requests(scene: Scene) -> list[str]:
    return [kind for kind in scene.proxy.kinds() if kind in {BATCH, "renew"}]


@pytest.mark.real
def test_one_request_renews_them_all(several: Several) -> None:
    before, believed = several.ends(), several.believed()
    several.renew()
    assert requests(several.scene) == [BATCH]
    assert all(new > old for new, old in zip(several.ends(), before, strict=True))
    assert several.later_than(believed)
    assert several.ends() == [end for end, _ in several.believed()]
    several.renew()
    assert requests(several.scene) == [BATCH] * 2


def test_it_asks_for_just_what_a_single_renewal_asks_for(several: Several) -> None:
    several.renew()
    rows = [several.scene.there.get(key, consistent_read=True) for key in several.keys]
    send_renewal(several.holds[0])
    alone = several.scene.there.get(several.keys[0], consistent_read=True)
    changed = {
        name
        for name, value in alone.attribute_values.items()
        if value != rows[0].attribute_values[name]
    }
    assert changed <= {"expires_at", "lease", "ttl"}
    assert {key for row in rows for key in row.attribute_values} == set(alone.attribute_values)


@pytest.mark.real
def test_one_that_was_taken_is_lost_and_the_others_are_renewed(several: Several) -> None:
    scene, before = several.scene, several.ends()
    lost = several.keys[1]
    assert scene.there.force_release(lost)
    with Mutex.for_key(lost, model=scene.there) as other:
        row = scene.there.get(lost, consistent_read=True)
        several.renew()
        assert several.held() == [True, False, True]
        assert several.mutexes[1].loss is Loss.TAKEN
        assert scene.there.get(lost, consistent_read=True).expires_at == row.expires_at
        assert other.held
    assert requests(scene) == [BATCH]
    assert several.ends()[0] > before[0]
    assert several.ends()[2] > before[2]


@pytest.mark.real
def test_one_that_was_broken_or_deleted_is_lost_with_its_cause(several: Several) -> None:
    scene = several.scene
    assert scene.there.force_release(several.keys[0])
    scene.there.get(several.keys[1], consistent_read=True).delete(add_version_condition=False)
    several.renew()
    assert several.mutexes[0].loss is Loss.FORCED
    # a refusal without a row may also be an engine's that shows none: it is asked for by itself
    assert several.held() == [False, True, True]
    send_renewal(several.holds[1])
    assert several.mutexes[1].loss is Loss.DELETED
    assert scene.there.count(several.keys[1], consistent_read=True) == 0


@pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
def test_an_answer_that_is_lost_is_no_loss_and_extends_no_belief(several: Several, lose) -> None:
    believed, before = several.believed(), several.ends()
    several.scene.proxy.next(lose(), op=BATCH)
    several.renew()
    assert several.believed() == believed
    applied = several.ends()
    assert all(new > old for new, old in zip(applied, before, strict=True))
    several.again()
    assert all(several.held())
    assert all(new > old for new, old in zip(several.ends(), applied, strict=True))
    assert requests(several.scene) == [BATCH, "renew", "renew", "renew"]
    # and then together again
    assert None not in {batch_of(hold) for hold in several.holds}
    several.renew()
    assert requests(several.scene)[-1] == BATCH


@pytest.mark.parametrize("fault", [drop_request, throttle])
def test_one_that_never_arrives_is_repeated_one_by_one(several: Several, fault) -> None:
    several.scene.proxy.next(fault(), op=BATCH)
    several.renew()
    assert all(hold.together.due() < hold.ends for hold in several.holds)
    several.again()
    assert all(several.held())
    assert store_for(several.scene.here).batches


@pytest.mark.parametrize(
    "fault", [deny(), refuse("ValidationException"), refuse("UnknownOperationException")]
)
def test_where_batches_are_not_allowed_or_not_known_each_is_renewed_alone(
    several: Several, fault: Fault
) -> None:
    several.scene.proxy.next(fault, op=BATCH)
    several.renew()
    several.again()
    assert all(several.held())
    assert not store_for(several.scene.here).batches
    assert [batch_of(hold) for hold in several.holds] == [None] * 3
    assert requests(several.scene) == [BATCH, "renew", "renew", "renew"]


def test_where_an_engine_fails_in_its_own_way_each_is_renewed_alone(
    several: Several, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = BaseClient._make_api_call

    def unknown(client, operation, kwargs):
        if operation == BATCH:
            raise NotImplementedError(operation)
        return original(client, operation, kwargs)

    monkeypatch.setattr(BaseClient, "_make_api_call", unknown)
    several.renew()
    assert "locks cannot be renewed by batches" in caplog.text
    several.again()
    assert all(several.held())
    assert not store_for(several.scene.here).batches


def edited(change) -> Fault:
    """Let the engine's answer to a batch be changed: what it says of each statement."""

    def edit(reply):
        body = reply.body
        body["Responses"] = [change(each) for each in body["Responses"]]
        return replace(reply, content=json.dumps(body).encode())

    def meet(exchange):
        exchange.edits.append(edit)
        exchange.answer(exchange.apply("edited"))

    return Fault("edited", meet)


def failing(code: str):
    return lambda _: {"TableName": "t", "Error": {"Code": code, "Message": "made up"}}


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        (failing("ThrottlingError"), True),
        (failing("TransactionConflict"), True),
        (failing("ConditionalCheckFailed"), True),  # by an engine that shows no row
        (failing("AccessDenied"), False),
        (lambda each: {"TableName": "t"}, False),  # by one that does not say what it wrote
        (lambda each: each | {"Item": {"expires_at": {"N": "1"}}}, False),
    ],
)
def test_what_a_batch_does_not_show_is_asked_one_by_one(
    several: Several, change, goes_on: bool
) -> None:
    believed = several.believed()
    several.scene.proxy.next(edited(change), op=BATCH)
    several.renew()
    assert several.believed() == believed
    assert all(several.held())
    assert store_for(several.scene.here).batches is goes_on
    several.again()
    assert all(several.held())
    assert several.later_than(believed)


def test_an_answer_of_another_shape_is_no_answer(several: Several, caplog) -> None:
    def cut(reply):
        body = reply.body
        return replace(
            reply, content=json.dumps(body | {"Responses": body["Responses"][1:]}).encode()
        )

    def meet(exchange):
        exchange.edits.append(cut)
        exchange.answer(exchange.apply("cut"))

    several.scene.proxy.next(Fault("cut", meet), op=BATCH)
    several.renew()
    assert not store_for(several.scene.here).batches
    assert "cannot be renewed by batches" in caplog.text
    several.again()
    assert all(several.held())


def test_a_late_one_moves_no_end_back_and_revives_nothing(several: Several) -> None:
    scene = several.scene
    several.renew()
    (batch,) = scene.proxy.of(BATCH)
    several.renew()
    released, taken = several.mutexes[:2]
    released.release()
    assert scene.there.force_release(taken.key)
    with Mutex.for_key(taken.key, model=scene.there) as other:
        before = [scene.there.get(k, consistent_read=True).to_simple_dict() for k in several.keys]
        reply = scene.proxy.replay(batch)
        codes = [each.get("Error", {}).get("Code") for each in reply.body["Responses"]]
        assert codes == ["ConditionalCheckFailed"] * 3
        after = [scene.there.get(k, consistent_read=True).to_simple_dict() for k in several.keys]
        assert after == before
        assert other.held


def test_one_that_is_applied_twice_is_one(several: Several) -> None:
    several.scene.proxy.next(duplicate("second"), op=BATCH)
    believed = several.believed()
    several.renew()  # the second is refused, and shows the end that was asked for
    assert all(several.held())
    assert several.later_than(believed)
    assert requests(several.scene).count("renew") == 0


def test_one_that_meets_a_later_end_of_another_hand_goes_beyond_it(several: Several) -> None:
    scene, key = several.scene, several.keys[0]
    end = round(several.ends()[0] + 100, 3)
    scene.there._get_connection().update_item(key, actions=[scene.there.expires_at.set(end)])
    with FakeClock():  # so that what failed is not repeated in the background meanwhile
        several.renew()
        assert several.ends()[0] == end
        send_renewal(several.holds[0])
        assert several.ends()[0] == pytest.approx(end + 0.001, abs=0.0001)
    assert several.mutexes[0].remaining < LEASE + 1


def test_one_that_is_overtaken_leaves_the_later_end(several: Several) -> None:
    several.scene.proxy.next(after(several.mutexes[0].renew), op=BATCH)
    several.renew()
    assert several.ends()[0] == several.holds[0].own.expires_at
    assert all(several.held())


def test_those_released_meanwhile_are_left_out(several: Several) -> None:
    several.mutexes[0].release()
    several.renew()
    (batch,) = several.scene.proxy.of(BATCH)
    assert len(batch.body["Statements"]) == 2
    several.mutexes[1].release()
    several.renew()
    assert requests(several.scene) == [BATCH, "renew"]
    several.mutexes[2].release()
    several.renew()
    assert requests(several.scene) == [BATCH, "renew"]


def test_a_release_while_it_is_under_way_is_a_release(several: Several) -> None:
    several.scene.proxy.next(after(several.mutexes[0].release), op=BATCH)
    several.renew()
    assert several.held() == [False, True, True]
    assert not several.mutexes[0].lost
    assert several.scene.there.get(several.keys[0], consistent_read=True).expires_at is None


def test_an_end_that_is_answered_slowly_counts_from_before_the_sending(several: Several) -> None:
    with FakeClock() as clock:
        sent = clock.now()
        several.scene.proxy.next(after(lambda: clock.advance(5)), op=BATCH)
        several.renew()
        assert max(end for _, end in several.believed()) <= sent + LEASE


def test_two_acquisitions_of_one_lock_are_not_put_into_one_batch(several: Several) -> None:
    """One that was broken, and does not know yet, and the next. DynamoDB takes a row once."""
    scene, broken = several.scene, several.mutexes[0]
    seen = scene.there.get(broken.key, consistent_read=True).token
    # by another process, which tells this one nothing
    actions = [scene.there.expires_at.remove(), scene.there.owner.remove()]
    scene.there._get_connection().update_item(broken.key, actions=actions)
    again = Mutex.for_key(broken.key, model=scene.here, lease=LEASE)
    assert again.acquire(blocking=False)
    assert again.token != seen
    assert broken.held
    several.mutexes.append(again)
    several.renew()
    assert store_for(scene.here).batches
    assert requests(scene) == [BATCH, "renew"]
    assert several.held() == [False, True, True, True]
    assert broken.loss is Loss.TAKEN


def test_a_short_lease_is_renewed_alone(scene: Scene) -> None:
    """For when a batch hangs until it times out, there must be time for single renewals."""
    here = through(scene.proxy, scene.there, read_timeout=2.0)
    for lease, together in ((8.9, False), (9.0, True)):
        with Mutex.for_key(f"{scene.key}.{lease}", model=here, lease=lease) as mutex:
            assert (batch_of(mutex._latest) is not None) is together


@pytest.mark.real
def test_rows_with_other_names_and_a_range_key_are_renewed_by_batches(scene: Scene) -> None:
    from pynamodb.attributes import NumberAttribute, UnicodeAttribute

    class Odd(LockItem):
        class Meta:
            table_name = f"odd-table.{scene.key}"
            host = scene.engine.endpoint_url

        key = UnicodeAttribute(hash_key=True, attr_name='the "key"')
        kind = UnicodeAttribute(range_key=True, default="LOCK", attr_name="from")
        expires_at = NumberAttribute(null=True, attr_name="ends.at")

    Odd.create_table()
    mutexes = [Mutex.for_key(f"k{i}", model=Odd) for i in range(3)]
    for mutex in mutexes:
        mutex.acquire()
    before = [item.expires_at for item in Odd.scan()]
    first, *others = (mutex._latest for mutex in mutexes)
    send_renewal(first, *others)
    assert store_for(Odd).batches
    assert min(item.expires_at for item in Odd.scan()) > max(before) - 1
    assert [item.expires_at for item in Odd.scan()] != before
    for mutex in mutexes:
        mutex.release()


def test_in_the_background_many_are_renewed_by_few_requests(table, monkeypatch) -> None:
    sent = []
    original = BaseClient._make_api_call

    def record(self, operation, kwargs):
        sent.append(len(kwargs["Statements"]) if operation == BATCH else operation)
        return original(self, operation, kwargs)

    mutexes = [Mutex.for_key(f"k{i}", lease=30.0) for i in range(60)]
    with FakeClock() as clock:
        for mutex in mutexes:
            mutex.acquire()
            clock.advance(0.01)
        ends = [mutex.remaining for mutex in mutexes]
        monkeypatch.setattr(BaseClient, "_make_api_call", record)
        clock.advance(9.5)  # when the first is due
        until(lambda: sum(n for n in sent if isinstance(n, int)) >= 60)
        until(lambda: all(mutex.remaining > 25 for mutex in mutexes))
        assert sorted(sent) == [10, 25, 25]
        assert max(ends) < 31
    for mutex in mutexes:
        mutex._latest.forget()
