"""Renewals of several locks by one request: what holds for single ones holds for these.

They are sent here as the renewer sends them, but when the test says so.
"""

import json
import time
from dataclasses import replace

import pytest
from botocore.client import BaseClient
from operations_by_hand import batch_of, send_renewal
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from this_process import store_for
from two_clients import Keys, held

from dev import faultproxy as net
from dev.faultproxy import after, through
from pynamodb_mutex import LockItem, Loss, Mutex

BATCH = "BatchExecuteStatement"
LEASE = 120.0
"""Long enough for batches where a request may take half a minute."""


class Several(Keys):
    """Some locks of the client with the bad network, which can be renewed together."""

    def __init__(self, scene, count=3):
        super().__init__(scene)
        self.keys = [f"{scene.key}.{i}" for i in range(count)]
        self.mutexes = [held(self.mutex(key)) for key in self.keys]
        time.sleep(0.1)  # so that the end of a renewal is a later one
        assert len({batch_of(hold) for hold in self.holds} - {None}) == 1

    def mutex(self, key):
        return Mutex.for_key(key, model=self.scene.here, lease=LEASE)

    @property
    def holds(self):
        return [mutex._latest for mutex in self.mutexes]

    def renew(self):
        send_renewal(*self.holds)

    def row(self, place):
        return self.scene.there.get(self.keys[place], consistent_read=True)

    @property
    def rows(self):
        return [self.row(place) for place in range(len(self.keys))]

    def believed(self):
        """The ends known to stand in the rows, and those by the local clock."""
        return [end for hold in self.holds for end in (hold.own.expires_at, hold.own.term.ends)]

    def held(self):
        return [mutex.held for mutex in self.mutexes]

    def requests(self):
        return [kind for kind in self.scene.proxy.kinds() if kind in {BATCH, "renew"}]


@pytest.fixture
def several(scene):
    return Several(scene)


def all_later(new, old):
    return all(later > earlier for later, earlier in zip(new, old, strict=True))


@pytest.mark.real
def test_one_request_renews_them_all_but_those_that_were_lost(scene):
    several = Several(scene, 5)
    before, believed = several.ends, several.believed()
    several.renew()
    assert several.requests() == [BATCH]
    assert all_later(several.ends, before)
    assert all_later(several.believed(), believed)
    assert several.ends == several.believed()[::2]
    before, (_, taken, forced, deleted, _) = several.ends, several.mutexes
    several.force(1)
    several.force(2)
    several.row(3).delete(add_version_condition=False)
    with Mutex.for_key(taken.key, model=scene.there) as other:
        row = several.row(1)
        several.renew()
        # a refusal without a row may also be an engine's that shows none: it is asked for by itself
        assert several.held() == [True, False, False, True, True]
        assert (taken.loss, forced.loss) == (Loss.TAKEN, Loss.FORCED)
        assert several.row(1).expires_at == row.expires_at
        assert other.held
    assert several.requests() == [BATCH] * 2
    assert several.row(0).expires_at > before[0]
    assert several.row(4).expires_at > before[4]
    send_renewal(deleted._latest)
    assert deleted.loss is Loss.DELETED
    assert scene.there.count(deleted.key, consistent_read=True) == 0


def test_batch_asks_for_just_what_a_single_renewal_asks_for(several):
    several.renew()
    rows = several.rows
    send_renewal(several.holds[0])
    alone = several.row(0).attribute_values
    changed = {name for name, value in alone.items() if value != rows[0].attribute_values[name]}
    assert changed <= {"expires_at", "lease", "ttl"}
    assert {key for row in rows for key in row.attribute_values} == set(alone)


def edited(change):
    """Let the engine's answer to a batch be changed: what it says of the statements."""

    def edit(reply):
        body = reply.body | {"Responses": change(reply.body["Responses"])}
        return replace(reply, content=json.dumps(body).encode())

    return replace(net.pass_on(), edit=edit)


def each(change):
    return edited(lambda responses: [change(response) for response in responses])


def failing(code):
    return each(lambda _: {"TableName": "t", "Error": {"Code": code, "Message": "made up"}})


CUT = edited(lambda responses: responses[1:])


@pytest.mark.parametrize(
    ("fault", "goes_on"),
    [
        (net.drop_answer(), True),
        (net.apply_then_500(), True),
        (net.drop_request(), True),
        (net.throttle(), True),
        (failing("ThrottlingError"), True),
        (failing("TransactionConflict"), True),
        (failing("ConditionalCheckFailed"), True),  # by an engine that shows no row
        (failing("AccessDenied"), False),
        (each(lambda _: {"TableName": "t"}), False),  # by one that does not say what it wrote
        (each(lambda response: response | {"Item": {"expires_at": {"N": "1"}}}), False),
        (CUT, False),
        (net.deny(), False),
        (net.refuse("ValidationException"), False),
        (net.refuse("UnknownOperationException"), False),
        (None, False),  # an engine fails in its own way
    ],
)
def test_batch_that_shows_nothing_is_no_loss_extends_no_belief_and_is_repeated_one_by_one(
    several, fault, goes_on, monkeypatch, caplog
):
    original = BaseClient._make_api_call

    def unknown(client, operation, kwargs):
        if operation == BATCH:
            raise NotImplementedError(operation)
        return original(client, operation, kwargs)

    believed, before = several.believed(), several.ends
    if fault is None:
        monkeypatch.setattr(BaseClient, "_make_api_call", unknown)
    else:
        several.scene.proxy.next(fault, op=BATCH)
    several.renew()
    applied = several.ends
    if fault is not None and fault.name in {"drop_answer", "apply_then_500"}:
        assert all_later(applied, before)
    assert several.believed() == believed
    assert all(several.held())
    assert store_for(several.scene.here).batches is goes_on
    logged = [r for r in caplog.records if "cannot be renewed by batches" in r.getMessage()]
    expected = [("ERROR", several.keys[0])] if fault in (CUT, None) else []
    assert [(record.levelname, record.lock_key) for record in logged] == expected
    for hold in several.holds:
        # as the renewal loop does after that
        assert batch_of(hold) is None
        assert hold.together.due() < hold.ends
        send_renewal(hold)
    assert all_later(several.believed(), believed)
    assert all_later(several.ends, applied)
    assert several.requests()[-3:] == ["renew"] * 3
    assert (None not in {batch_of(hold) for hold in several.holds}) is goes_on


def test_late_batch_moves_no_end_back_and_revives_nothing(several):
    proxy = several.scene.proxy
    several.renew()
    (batch,) = proxy.of(BATCH)
    several.renew()
    several.mutexes[0].release()
    other = several.forced_and_taken(1)
    before = [row.to_simple_dict() for row in several.rows]
    codes = [each.get("Error", {}).get("Code") for each in proxy.replay(batch).body["Responses"]]
    assert codes == ["ConditionalCheckFailed"] * 3
    assert [row.to_simple_dict() for row in several.rows] == before
    assert other.held


def test_batch_that_is_applied_twice_or_overtaken_is_no_loss(several):
    several.scene.proxy.next(net.duplicate("second"), op=BATCH)
    believed = several.believed()
    several.renew()  # the second is refused, and shows the end that was asked for
    assert all_later(several.believed(), believed)
    assert "renew" not in several.requests()
    several.scene.proxy.next(after(several.mutexes[0].renew), op=BATCH)
    several.renew()
    assert several.ends[0] == several.holds[0].own.expires_at
    assert all(several.held())


def test_batch_that_meets_a_later_end_of_another_hand_goes_beyond_it(several):
    there, end = several.scene.there, round(several.ends[0] + 100, 3)
    actions = [there.expires_at.set(end)]
    there._get_connection().update_item(several.keys[0], actions=actions)
    several.renew()
    assert several.ends[0] == end
    send_renewal(several.holds[0])
    assert several.ends[0] == pytest.approx(end + 0.001, abs=0.0001)
    assert several.mutexes[0].remaining < LEASE + 1


def test_locks_released_meanwhile_are_left_out(several):
    first, second, third = several.mutexes
    several.scene.proxy.next(after(first.release), op=BATCH)
    several.renew()
    assert (several.held(), first.lost) == ([False, True, True], False)
    assert several.row(0).expires_at is None
    several.renew()
    second.release()
    several.renew()
    third.release()
    several.renew()
    assert several.requests() == [BATCH, BATCH, "renew"]
    sizes = [len(batch.body["Statements"]) for batch in several.scene.proxy.of(BATCH)]
    assert sizes == [3, 2]


def test_end_that_is_answered_slowly_counts_from_before_the_sending(several, clock):
    sent = clock.now()
    several.scene.proxy.next(after(lambda: clock.advance(5)), op=BATCH)
    several.renew()
    assert max(several.believed()[1::2]) <= sent + LEASE


def test_two_acquisitions_of_one_lock_are_not_put_into_one_batch(several):
    """One that was broken, and does not know yet, and the next. DynamoDB takes a row once."""
    scene, broken = several.scene, several.mutexes[0]
    # by another process, so that this one does not know
    replace(scene, key=broken.key).clear()
    again = several.mutex(broken.key)
    assert again.acquire(blocking=False)
    assert again.token != broken.token
    assert broken.held
    several.mutexes.append(again)
    several.renew()
    assert store_for(scene.here).batches
    assert several.requests() == [BATCH, "renew"]
    assert several.held() == [False, True, True, True]
    assert broken.loss is Loss.TAKEN


def test_short_lease_is_renewed_alone(scene):
    """For when a batch hangs until it times out, there must be time for single renewals."""
    here = through(scene.proxy, scene.there, read_timeout=2.0)
    for lease, together in ((8.9, False), (9.0, True)):
        with Mutex.for_key(f"{scene.key}.{lease}", model=here, lease=lease) as mutex:
            assert (batch_of(mutex._latest) is not None) is together


@pytest.mark.real
def test_rows_with_other_names_and_a_range_key_are_renewed_by_batches(scene):
    class Odd(LockItem):
        class Meta:
            table_name = f"odd-table.{scene.key}"
            host = scene.engine.endpoint_url

        key = UnicodeAttribute(hash_key=True, attr_name='the "key"')
        kind = UnicodeAttribute(range_key=True, default="LOCK", attr_name="from")
        expires_at = NumberAttribute(null=True, attr_name="ends.at")

    Odd.create_table()
    mutexes = [held(Mutex.for_key(f"k{i}", model=Odd)) for i in range(3)]
    before = [item.expires_at for item in Odd.scan()]
    send_renewal(*(mutex._latest for mutex in mutexes))
    assert store_for(Odd).batches
    assert min(item.expires_at for item in Odd.scan()) > max(before) - 1
    assert [item.expires_at for item in Odd.scan()] != before
    for mutex in mutexes:
        mutex.release()
