"""What the protocol costs and leaves: number, kind and capacity units of requests, and the row they write."""

import math
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from botocore.client import BaseClient
from row_models import Account, balance
from this_process import current_process, store_for

from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._fair.requests import Passing, entries, join
from pynamodb_mutex._fair.waiting_line import Take
from pynamodb_mutex._lock.dynamodb.store import Request as SentRequest
from pynamodb_mutex._lock.protocol.claim import MOST_WAITING, Claim, OwnClaim
from pynamodb_mutex._lock.protocol.server_time import Bounds
from pynamodb_mutex._lock.runtime.callers import caller
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex.testing import held_elsewhere

CLAIM = {"key", "version", "token", "owner", "lease", "expires_at", "writes", "abandoned_by", "ttl"}


@pytest.fixture
def sent(monkeypatch):
    """Collect every request of this process, with its answer."""
    requests = []
    original = BaseClient._make_api_call

    def record(self, operation, kwargs):
        requests.append(request := SimpleNamespace(operation=operation, kwargs=kwargs))
        if "ReturnConsumedCapacity" in kwargs:  # else it is about a table
            kwargs = kwargs | {"ReturnConsumedCapacity": "TOTAL"}
        request.answer = original(self, operation, kwargs)
        return request.answer

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    return requests


def operations(sent):
    return [request.operation for request in sent]


def row(key):
    """Return a row as it stands in the table: values by stored name."""
    item = LockItem._get_connection().get_item(key, consistent_read=True)["Item"]
    return {name: value for name, pair in item.items() for value in pair.values()}


def use(key, **options):
    with Mutex.for_key(key, **options):
        pass


def test_each_call_is_one_request_after_the_first_contact(table, sent):
    sent.clear()
    use("first", timeout=0)
    assert operations(sent) == ["GetItem", "UpdateItem", "UpdateItem"]
    # consistent, for an unlocked key is never waited for
    assert sent[0].kwargs["ConsistentRead"] is True
    sent.clear()
    for key in ("a", "b", "a", "first"):
        with Mutex.for_key(key, data=1) as mutex:
            mutex.renew()
            mutex.save_data(2)
            with mutex.transaction() as transaction:
                transaction.save(table(f"row {len(sent)}"))
    assert operations(sent) == [*["UpdateItem"] * 3, "TransactWriteItems", "UpdateItem"] * 4
    use("a", delete_on_release=True)
    assert operations(sent)[20:] == ["UpdateItem", "DeleteItem"]
    # each asks for what stands in its way
    for request in sent:
        (guard,) = request.kwargs.get("TransactItems", [{"": request.kwargs}])[-1].values()
        assert guard["ConditionExpression"]
        assert guard["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


# the embedded engine counts half a unit for an update, and the simulated one none
@pytest.mark.real("local")
def test_cycle_is_two_write_units_and_a_poll_half_a_read_unit(accounts, table, sent):
    def units(requests):
        return sum(each.answer["ConsumedCapacity"]["CapacityUnits"] for each in requests)

    use("first")
    for key in ("a", "a", "b"):
        sent.clear()
        use(key)
        assert units(sent) == 2
    with held_elsewhere("held"):
        sent.clear()
        assert not Mutex.for_key("held", poll=(0.1, 0.1)).acquire(timeout=1.0)
        _, *polls = sent
    assert set(operations(polls)) == {"GetItem"}
    assert units(polls) == len(polls) / 2
    sent.clear()
    with Account.locked("a") as account:
        account.balance += 10
        account.save(unlock=True)
    assert operations(sent) == ["UpdateItem", "PutItem"]
    assert (units(sent), balance(Account)) == (2, 10)


def test_short_lock_is_not_renewed_and_a_long_one_is(table, sent):
    with Mutex.for_key("a"):
        sent.clear()
        time.sleep(8)
        assert sent == []
        time.sleep(20)
        assert operations(sent) == ["UpdateItem"] * 2
    with Mutex.for_key("a", auto_renew=False):
        sent.clear()
        time.sleep(29)
        assert sent == []


def test_row_of_a_held_lock_and_its_tombstone(table):
    with Mutex.for_key("a", owner="me", lease=20) as mutex:
        stored = row("a")
        assert set(stored) == CLAIM
        shown = {"key": "a", "owner": "me", "token": mutex.token, "abandoned_by": ""}
        assert stored.items() >= {**shown, "version": str(mutex.fencing_token)}.items()
        assert float(stored["lease"]) == pytest.approx(20, abs=0.01)
        assert float(stored["expires_at"]) == pytest.approx(time.time() + 20, abs=10)
        kept = int(stored["ttl"]) - float(stored["expires_at"])
        assert kept == pytest.approx(LockItem.retention, abs=2)
        item = table.get("a")
        assert item.is_held
        assert item.ttl.timestamp() == int(stored["ttl"])
        time.sleep(2)
        mutex.renew()
        renewed = row("a")
    assert {name for name in CLAIM if renewed[name] != stored[name]} == {"expires_at", "ttl"}
    assert int(renewed["ttl"]) > int(stored["ttl"])
    with Mutex.for_key("a", data=[1]) as mutex:
        assert set(row("a")) == {*CLAIM, "data", "free_since"}
    stored = row("a")
    assert set(stored) == {*CLAIM, "data", "free_since"} - {"owner", "lease", "expires_at"}
    assert (stored["token"], stored["version"]) == (mutex.token, str(mutex.fencing_token))
    assert float(stored["free_since"]) == pytest.approx(time.time(), abs=10)
    assert int(stored["ttl"]) == pytest.approx(time.time() + LockItem.retention, abs=60)
    with held_elsewhere("a"):
        end = float(row("a")["expires_at"])
        assert LockItem.force_release("a")
    assert set(forced := row("a")) == set(stored)
    assert int(forced["ttl"]) == pytest.approx(end + LockItem.retention, abs=2)
    assert int(forced["version"]) == int(stored["version"]) + 2


def test_lock_that_was_taken_between_read_and_write_is_tried_by_the_write_itself(table, sent):
    """Between a release and the next acquire there is time for one request, not for a read and a write."""
    use("other")
    acquisition = Mutex.for_key("a")._acquisition(caller(), math.inf, blocks=True)

    def polls(*expected):
        sent.clear()
        for _ in expected:
            assert execute(current_process(), acquisition.poll()) is None
        assert operations(sent) == [*expected]

    def read_as_free(request):
        """Read it as free, and let it be taken before anything else is sent."""
        patch.undo()
        answer = request.send()
        stack.enter_context(held_elsewhere("a"))
        return answer

    with ExitStack() as stack:
        with held_elsewhere("a"):
            polls("UpdateItem", "GetItem")  # the first try is a write
        with held_elsewhere("a"):
            polls("GetItem", "GetItem")  # another's, and it was never seen free
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SentRequest, "send", read_as_free)
            sent.clear()
            assert execute(current_process(), acquisition.poll()) is None
        assert operations(sent)[:: len(sent) - 1] == ["GetItem", "UpdateItem"]
        polls("UpdateItem", "GetItem")  # it is the same as before
        stack.enter_context(held_elsewhere("a"))
        polls("GetItem", "UpdateItem")
        stack.enter_context(held_elsewhere("a"))
        polls("GetItem")
        stack.enter_context(held_elsewhere("a"))
        # the last write saw another's token once more
        polls("UpdateItem", "UpdateItem", "GetItem")
    # what is handed over in this process is only read
    acquisition._outrun = True
    for _ in range(3):
        with Mutex.for_key("a"):
            polls("GetItem")


def test_write_spares_a_claim_that_has_ended_by_less_than_dynamodbs_hosts_may_differ(table):
    store = store_for(table)
    store.connection.server.bounds = Bounds(1000.0, 0.0, 1001.0, 0.0)
    assert 999.8 < float(store.now_low(0.0)) <= 999.9


# -- the write that takes the lock --------------------------------------------------------------------

LINE = ["first|", "second|", "third|"]


def take(how, *, entry="third|", seen=None, watched=None, line=LINE):
    """Send the acquiring write; return whether it was applied."""
    contender = Mutex.for_key("a")._acquisition(caller(), 0.0, blocks=True).contender
    values = contender.values(30.0, time.time() + 30) | {"entry": entry, "seen": seen}
    values["line"] = entries(line)
    now, row = current_process().clock(), contender.options.row
    values["past"] = contender.store.now_low(now, how.past if how else 0.0)
    own, clause = OwnClaim("mine", 30.0), how and Passing.by(how)
    request = contender.store.acquire(row, own, values, now=now, watched=watched, clause=clause)
    return request.send().applied


def stand(*waiting):
    actions = [LockItem.waiting.set(list(waiting))]
    LockItem._get_connection().update_item("a", actions=actions)


@pytest.mark.parametrize(
    ("how", "entry", "left"),
    [
        (Take(0, ahead=True), "first|", ["second|", "third|"]),
        (Take(2), "third|", ["first|", "second|"]),
        (Take(1, ahead=True), "second|", ["third|"]),
        (Take(ahead=True), "third|", None),
    ],
)
def test_write_that_takes_the_lock_removes_its_own_entry_and_those_of_the_dead(
    table, how, entry, left
):
    use("a")
    stand(*LINE)
    assert take(how, entry=entry)
    assert table.get("a").waiting == left


@pytest.mark.parametrize("how", [Take(), Take(1), Take(3)])
def test_write_that_takes_the_lock_is_refused_by_another_line_than_it_was_made_for(table, how):
    use("a")
    stand(*LINE)
    assert not take(how)
    others = LINE[:2], LINE[1:], [*LINE, "x|"]
    assert not any(take(Take(ahead=True), line=line) for line in others)
    assert table.get("a").waiting == LINE


@pytest.mark.parametrize(("place", "changed"), [(2, False), (1, False), (2, True)])
def test_write_that_passes_the_dead_by_watching_requires_the_place_and_the_token(
    table, place, changed
):
    use("a")
    stand(*LINE)
    token = "other" if changed else table.get("a").token
    how = Take(place, ahead=True, unchanged=True)
    assert take(how, seen=token) is (place == 2 and not changed)


@pytest.mark.parametrize(("past", "passes"), [(2, True), (20, False)])
def test_write_that_passes_the_dead_by_time_requires_that_the_lock_is_free_for_as_long(
    table, past, passes
):
    use("a")
    time.sleep(10)
    stand(*LINE)
    how = Take(2, ahead=True, past=past)
    with held_elsewhere("a"):
        assert not take(how)
    time.sleep(10)
    assert take(how) is passes


def test_write_by_watching_takes_a_lock_that_was_released_meanwhile(table):
    with Mutex.for_key("a"):
        watched = store_for(table).read({"key": {"S": "a"}}, consistent=True).send().claim
        assert take(None, watched=watched._replace(token="other")) is False
    assert take(None, watched=watched)


@pytest.mark.parametrize(("waiting", "joins"), [(MOST_WAITING - 1, True), (MOST_WAITING, False)])
def test_line_has_room_for_a_hundred(table, waiting, joins):
    use("a")
    stand(*[f"{each}|" for each in range(waiting)])
    seen = Claim(version=table.get("a").version)
    request = join(store_for(table), {"key": {"S": "a"}}, "new|", seen, 0)
    assert request.send().applied is joins


@pytest.mark.parametrize("changed", [False, True])
def test_join_of_a_line_that_is_full_of_struck_out_entries_removes_them(table, changed):
    """Unless it has changed meanwhile: an entry that has joined would be lost."""
    use("a")
    full = ("first|", *["-"] * (MOST_WAITING - 2), "last|")
    seen = Claim(version=table.get("a").version, waiting=full)
    now = [*full[:-1], "another|"] if changed else [*full]
    stand(*now)
    answer = join(store_for(table), {"key": {"S": "a"}}, "new|", seen, 0).send()
    assert answer.applied is not changed
    assert table.get("a").waiting == (now if changed else ["first|", "last|", "new|"])


@pytest.mark.parametrize(
    ("since", "changes", "joins"),
    [(0, 0, True), (1, 0, False), (1, 1, True), (2, 1, False), (-1, 5, False)],
)
def test_join_is_refused_after_more_changes_of_hands_than_it_allows(table, since, changes, joins):
    """A late copy, whose waiter has gone, would make those behind it wait until it counts as dead."""
    use("a")
    seen = table.get("a").version - since
    request = join(store_for(table), {"key": {"S": "a"}}, "late|", Claim(version=seen), changes)
    stand("other|")
    answer = request.send()
    assert (answer.applied, answer.claim.waiting) == (joins, ("other|", *["late|"] * joins))


@pytest.mark.parametrize(("hold", "own"), [(Mutex.for_key, 1), (held_elsewhere, 2)])
def test_waiters_of_one_process_read_once_for_all_of_them(table, sent, pool, hold, own):
    with hold("a"):
        sent.clear()
        waiters = [Mutex.for_key("a", poll=(0.2, 0.2)) for _ in range(32)]
        assert not any(pool.map(lambda waiter: waiter.acquire(timeout=1), waiters))
    # one polls for all each 0.2 s; each sends a last poll at its deadline, and a first one if another process holds the lock
    assert len(sent) <= 5 + own * 32 + 4


@pytest.mark.parametrize(("auto_renew", "each"), [(True, 10), (False, 1)])
def test_waiter_looks_seldom_whether_a_claim_that_its_process_renews_was_broken(
    table, sent, pool, auto_renew, each
):
    with Mutex.for_key("a", lease=30, auto_renew=auto_renew):
        sent.clear()
        waiting = pool.submit(Mutex.for_key("a", poll=(0.05, 1.0)).acquire, timeout=25)
        assert not waiting.result(60)
    polls = operations(sent).count("GetItem")
    assert polls == pytest.approx(25 / each, abs=1.5)
