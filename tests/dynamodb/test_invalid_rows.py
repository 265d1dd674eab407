"""Rows that are not a lock's, or whose lock attributes cannot be right: an error, and no harm to the row."""

import functools
import threading
import time

import pytest
from operations_by_hand import send_renewal
from this_process import forget_everything, store_for
from two_clients import Elsewhere, held

from dev.faultproxy import drop_answer
from pynamodb_mutex import InvalidRowError, LockItem, Loss, Mutex, MutexLostError, Semaphore
from pynamodb_mutex.testing import held_elsewhere

FAR = {"N": "4102444800"}  # the year 2100
TOMBSTONE = {"token": {"S": "theirs"}, "version": {"N": "7"}, "writes": {"N": "0"}}
CLAIM = {**TOMBSTONE, "owner": {"S": "they"}, "lease": {"N": "30"}}
CLAIM |= {"expires_at": FAR, "abandoned_by": {"S": ""}}
JAVA = {"ownerName": {"S": "host"}, "leaseDuration": {"S": "20000"}}
VERSION_OF_JAVA = {"recordVersionNumber": {"S": "b6a1"}}

NO_LOCKS = {
    "row-of-another-application": ({"email": {"S": "a@example.com"}}, "token"),
    "row-with-names-of-ours": ({"owner": {"S": "Ann"}, "version": {"N": "3"}}, "token"),
    "session-that-expires": ({"user": {"S": "Ann"}, "expires_at": FAR}, "token"),
    "token-alone": ({"token": {"S": "secret"}, "user": {"S": "Ann"}}, "version"),
    "java-lock": (JAVA | VERSION_OF_JAVA, "recordVersionNumber"),
    "java-lock-and-ours": (TOMBSTONE | VERSION_OF_JAVA, "recordVersionNumber"),
}
WRONG = {
    "version-text": ({**TOMBSTONE, "version": {"S": "7"}}, "version"),
    "version-negative": ({**TOMBSTONE, "version": {"N": "-1"}}, "version"),
    "version-huge": ({**TOMBSTONE, "version": {"N": "1" + "0" * 30}}, "version"),
    "version-beyond-64-bits": ({**TOMBSTONE, "version": {"N": str(2**63)}}, "version"),
    "version-fraction": ({**CLAIM, "version": {"N": "7.5"}}, "version"),
    "version-missing": ({"token": {"S": "theirs"}, "expires_at": FAR}, "version"),
    "token-number": ({**TOMBSTONE, "token": {"N": "1"}}, "token"),
    "token-missing": ({"version": {"N": "7"}, "expires_at": FAR}, "token"),
    "end-text": ({**CLAIM, "expires_at": {"S": "soon"}}, "expires_at"),
    "end-null": ({**CLAIM, "expires_at": {"NULL": True}}, "expires_at"),
    "end-in-milliseconds": ({**CLAIM, "expires_at": {"N": "4102444800000"}}, "expires_at"),
    "lease-text": ({**CLAIM, "lease": {"S": "30"}}, "lease"),
    "lease-negative": ({**CLAIM, "lease": {"N": "-30"}}, "lease"),
    "owner-of-a-dead-claim": ({**CLAIM, "owner": {"N": "1"}, "expires_at": {"N": "1"}}, "owner"),
    "owner-map": ({**CLAIM, "owner": {"M": {"name": {"S": "they"}}}}, "owner"),
    "writes-fraction": ({**CLAIM, "writes": {"N": "0.5"}}, "writes"),
    "waiting-text": ({**CLAIM, "waiting": {"S": "they"}}, "waiting"),
    "waiting-numbers": ({**CLAIM, "waiting": {"L": [{"N": "1"}]}}, "waiting"),
    "free-since-text": ({**CLAIM, "free_since": {"S": "today"}}, "free_since"),
    "abandoned-by-binary": ({**CLAIM, "abandoned_by": {"B": b"they"}}, "abandoned_by"),
    "shared-by-text": ({**CLAIM, "shared_by": {"S": "they"}}, "shared_by"),
    "shared-by-ends": ({**CLAIM, "shared_by": {"M": {"theirs": FAR}}}, "shared_by"),
    "wanted-until-text": ({**CLAIM, "wanted_until": {"S": "soon"}}, "wanted_until"),
}
ALL = {**NO_LOCKS, **WRONG}


def put(attributes, key="odd"):
    row = {"key": {"S": key}, **attributes}
    client = LockItem._get_connection().connection.client
    client.put_item(TableName=LockItem.Meta.table_name, Item=row)
    return row


def stands(key="odd"):
    """Return the raw row as it stands in the table."""
    return LockItem._get_connection().get_item(key, consistent_read=True)["Item"]


def warm():
    """Let the process know server time, so that an acquisition begins with a write."""
    held(Mutex.for_key("warm")).release()


def refused(call, attribute, key="odd"):
    """Check that a call is refused, and that its error names the key and the attribute."""
    with pytest.raises(InvalidRowError) as caught:
        call()
    assert (caught.value.key, caught.value.attribute) == (key, attribute)
    for told in (repr(key), repr(attribute), LockItem.Meta.table_name):
        assert told in str(caught.value)


@pytest.mark.parametrize("odd", ALL)
def test_acquire_and_locked_are_refused(table, sent, odd):
    attributes, attribute = ALL[odd]
    before = put(attributes)
    mutex = Mutex.for_key("odd")
    # at first contact by a read, then by the write itself
    forget_everything()
    for request in ("GetItem", "UpdateItem"):
        sent.clear()
        refused(mutex.acquire, attribute)
        assert sent == [request]
        refused(mutex.locked, attribute)
        warm()
    if odd in NO_LOCKS:  # even by force
        refused(lambda: table.force_release("odd"), attribute)
        refused(mutex.force_release, attribute)
    assert stands() == before


def test_fraction_that_the_write_meets_is_given_up(table, sent):
    warm()
    put({**TOMBSTONE, "version": {"N": "7.5"}})
    sent.clear()
    mutex = Mutex.for_key("odd")
    refused(mutex.acquire, "version")
    # the write adds one to what is there, before anybody knows what that is
    assert sent == ["UpdateItem", "UpdateItem"]
    assert (mutex.held, "expires_at" in stands()) == (False, False)


def test_error_says_what_the_row_has(table):
    for odd, message in (
        (
            "row-of-another-application",
            "'token' is missing; it has ('key', 'email'|'email', 'key')",
        ),
        ("end-text", "'expires_at' is not a number of.*: {'S': 'soon'}"),
    ):
        put(ALL[odd][0])
        with pytest.raises(InvalidRowError, match=message):
            Mutex.for_key("odd").acquire()


def test_waiter_whose_row_turns_odd_stops_waiting(table):
    with held_elsewhere("odd", lease=60):
        threading.Timer(0.2, put, [WRONG["end-text"][0]]).start()
        refused(Mutex.for_key("odd", timeout=60).acquire, "expires_at")


@pytest.mark.parametrize("number", ["NaN", "sNaN", "Infinity", "-Infinity", "seven", ""])
@pytest.mark.parametrize("name", ["version", "expires_at"])
def test_answer_that_no_dynamodb_gives_is_read_without_a_crash(table, name, number):
    rows = store_for(table).layout
    for row in ({"key": {"S": "odd"}, **CLAIM}, CLAIM):
        fault = rows.claim({**row, name: {"N": number}}).fault
        assert isinstance(fault, InvalidRowError)
        assert (fault.key, fault.attribute) == ("odd" if "key" in row else "?", name)


FREE = [
    TOMBSTONE,
    {**TOMBSTONE, "writes": {"N": "3"}, "ttl": {"N": "1"}, "data": {"S": "{}"}},
    {**TOMBSTONE, "version": {"N": "0"}},
    {**TOMBSTONE, "version": {"N": str(2**63 - 2)}},
    {**CLAIM, "expires_at": {"N": "1.5"}},
    {"token": {"S": "theirs"}, "version": {"N": "7"}, "expires_at": {"N": "0"}},
]


@pytest.mark.parametrize("row", FREE)
def test_lock_that_is_free_is_taken(table, row):
    warm()
    before = int(put(row)["version"]["N"])
    with Mutex.for_key("odd", timeout=0) as mutex:
        assert mutex.fencing_token == before + 1
    if before + 1 == 2**63 - 1:  # the highest
        for _ in range(2):
            refused(Mutex.for_key("odd").acquire, "version")


@pytest.mark.parametrize("odd", WRONG)
def test_force_puts_a_broken_row_right(table, odd):
    attributes = WRONG[odd][0]
    put({**attributes, "data": {"S": "7"}})
    assert table.force_release("odd")
    assert stands().keys() == {"key", "token", "version", "ttl", "data", "free_since"}
    assert not Mutex.for_key("odd").locked()
    assert not table.force_release("odd")
    with Mutex.for_key("odd", timeout=0) as mutex:
        usable = attributes.get("version") in ({"N": "7"}, {"N": "7.5"})
        lowest = 8 if usable else 1000 * (time.time() - 3600)
        assert lowest < mutex.fencing_token < lowest + 2 * 3600_000
        assert mutex.data == 7
        assert not mutex.abandoned


@pytest.mark.parametrize(
    ("stored", "gets"), [(0, 1), (1, 2), (2**63 - 2, 2**63 - 1), (2**63 - 1, None)]
)
def test_force_that_puts_a_row_right_counts_its_fencing_token_on(table, stored, gets):
    put({**CLAIM, "expires_at": {"S": "soon"}, "version": {"N": str(stored)}})
    assert table.force_release("odd")
    version = int(stands()["version"]["N"])
    # after the highest anew, from the time
    assert version == gets or (gets is None and version < 2**62)


def test_force_breaks_the_very_row_that_was_seen(table, wire):
    row = put({**CLAIM, "expires_at": {"L": [{"S": "$soon"}, {"B": b"1"}]}})
    for change in ("owner", "lease", "writes", "abandoned_by", "version"):
        renewed = {**row, change: {"S": "else"} if "S" in row[change] else {"N": "8"}}
        without = {name: value for name, value in row.items() if name != change}
        for later in (renewed, without):
            put(row)
            wire.before["UpdateItem"] = functools.partial(put, later)
            assert not table.force_release("odd")
            assert stands() == later
    assert table.force_release("odd")


def test_force_whose_answer_is_lost_is_recognised(here, proxy):
    put(WRONG["end-text"][0])
    proxy.next(drop_answer(), op="UpdateItem")
    assert here.force_release("odd")
    assert [seen.applied for seen in proxy.of("UpdateItem")] == [True, False]
    held(Mutex.for_key("odd", timeout=0))


@pytest.mark.parametrize("forced_by", [LockItem, Elsewhere])
def test_holder_whose_broken_row_is_put_right_learns_that_it_was_forced(table, forced_by):
    """At once, if the same process breaks it by force."""
    mutex = held(Mutex.for_key("odd", auto_renew=False))
    overwrite("end-text")
    assert forced_by.force_release("odd")
    if forced_by is Elsewhere:
        with pytest.raises(MutexLostError):
            mutex.renew()
    assert mutex.loss is Loss.FORCED


@pytest.mark.parametrize(
    "odd",
    ["row-of-another-application", "end-text", "end-null", "version-text", "version-fraction"],
)
def test_several_locks_of_which_one_row_is_odd_are_refused(table, sent, odd):
    attributes, attribute = ALL[odd]
    before = put(attributes)
    warm()
    for timeout in (0, 60):
        group = Mutex.for_keys(["a", "odd", "b"], timeout=timeout)
        sent.clear()
        refused(group.acquire, attribute)
        assert sent == ["TransactWriteItems"]
        refused(group.locked, attribute)
        assert not Mutex.for_key("a").locked()
    with held_elsewhere("a"):
        any_of = Mutex.any_of(["a", "odd"])
        for call in (any_of.acquire, any_of.locked):
            refused(call, attribute)
    assert stands() == before
    put(attributes, "gpu#permit-1")
    refused(Semaphore.for_key("gpu", permits=1).acquire, attribute, "gpu#permit-1")


OVERWRITTEN = ["row-of-another-application", "end-text", "version-text", "token-number"]


def overwrite(odd, key="odd"):
    """Overwrite a lock's row, or the one attribute in it, while the lock is held."""
    attributes, attribute = ALL[odd]
    if odd in WRONG:
        attributes = {**stands(key), attribute: attributes[attribute]}
    put({**attributes, "key": {"S": key}}, key)


def write_in_a_transaction(mutex):
    with mutex.transaction() as transaction:
        transaction.save(LockItem("another"))


USES = [Mutex.renew, Mutex.release, lambda mutex: mutex.save_data("data"), write_in_a_transaction]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("odd", ["row-of-another-application", "version-text", "token-number"])
def test_holder_learns_that_its_row_was_overwritten(table, odd, use):
    mutex = held(Mutex.for_key("odd", auto_renew=False))
    overwrite(odd)
    with pytest.raises(MutexLostError) as caught:
        use(mutex)
    assert caught.value.loss is mutex.loss is Loss.DELETED
    assert not mutex.held


@pytest.mark.parametrize("odd", OVERWRITTEN)
def test_background_renewal_shows_that_the_row_was_overwritten(table, odd):
    mutexes = [held(Mutex.for_key(key)) for key in ("odd", "a")]
    overwrite(odd)
    send_renewal(*(mutex._latest for mutex in mutexes))
    assert [mutex.loss for mutex in mutexes] == [Loss.DELETED, None]


def test_group_and_ticket_are_lost_when_a_row_was_overwritten(table):
    group = held(Mutex.for_keys(["a", "odd"], auto_renew=False))
    ticket = held(Mutex.for_key("given")).detach()
    for key, use in ("odd", group.renew), ("given", lambda: Mutex.attach(ticket)):
        overwrite("end-text", key)
        with pytest.raises(MutexLostError) as caught:
            use()
        assert caught.value.loss is Loss.DELETED
    assert group.loss is Loss.DELETED
    # but a release puts a row right whose end was overwritten
    with Mutex.for_key("free", auto_renew=False):
        overwrite("end-text", "free")
    held(Mutex.for_key("free", timeout=0))


def test_held_leaves_out_odd_rows_with_a_warning(table, caplog):
    odd = {name: row for name, (row, _) in ALL.items() if "expires_at" in row}
    unread = [("data", {"S": "{no"}), ("data", {"M": {}}), ("ttl", {"N": "1" + "0" * 30})]
    odd |= {f"unread-{at}": {**CLAIM, name: value} for at, (name, value) in enumerate(unread)}
    for key, row in {**odd, "theirs": CLAIM}.items():
        put(row, key)
    with Mutex.for_key("a"):
        assert sorted(item.key for item in table.held()) == ["a", "theirs"]
    warnings = [each for each in caplog.records if "left out of LockItem.held()" in each.message]
    assert sorted(record.lock_key for record in warnings) == sorted(odd)
    assert all(repr(record.lock_key) in record.message for record in warnings)
    assert {record.levelname for record in warnings} == {"WARNING"}


def test_item_with_times_that_are_no_dates_shows_none(table):
    for end in (-1e15, -1.0, 253402300800.0, 4102444800e3, 1e30):
        put({**CLAIM, "expires_at": {"N": repr(end)}})
        item = table.get("odd")
        assert item.expires is None
        # also where the row is read first for server time
        forget_everything()
        assert item.is_held == (end > 0)
    put({**CLAIM, "token": {"S": "f" * 12 + "7" + "0" * 20}})
    item = table.get("odd")
    assert (item.since, item.expires.year) == (None, 2100)


def test_payload_that_cannot_be_read_or_saved_is_an_error_of_its_own_but_null_is_none(table):
    for written in ({"S": "{no"}, {"N": "7"}, {"M": {}}, {"NULL": True}):
        put({**TOMBSTONE, "data": written})
        with Mutex.for_key("odd") as mutex:
            if "NULL" in written:
                assert mutex.data is None
            else:
                refused(lambda mutex=mutex: mutex.data, "data")
            assert mutex.held
            mutex.save_data([1])
            with pytest.raises(ValueError, match="JSON, which has no NaN"):
                mutex.save_data({"rate": float("nan")})
            assert mutex.data == [1]
        assert stands()["data"] == {"S": "[1]"}
