"""What is logged, and that each record says of which lock."""

import logging
import time

import pytest
from driving import send_renewal
from pynamodb.exceptions import PynamoDBException
from stores import store_for

from dev import faultproxy
from pynamodb_mutex import Mutex, MutexLostError
from pynamodb_mutex.testing import expire


class Records:
    """The records of one key."""

    def __init__(self, caplog, key):
        self._caplog, self._key = caplog, key
        caplog.set_level(logging.DEBUG, "pynamodb_mutex")

    @property
    def all(self):
        return [r for r in self._caplog.records if getattr(r, "lock_key", "") == self._key]

    def the(self, text, level="WARNING"):
        """The first record with a text, which has a level and names the library."""
        record = next(record for record in self.all if text in record.getMessage())
        assert (record.levelname, record.name) == (level, "pynamodb_mutex")
        return record

    @property
    def words(self):
        """What happened, by the first word after the key."""
        messages = [record.getMessage() for record in self.all]
        return [message.removeprefix(f"{self._key!r} ").split()[0] for message in messages]


@pytest.fixture
def records(scene, caplog):
    return Records(caplog, scene.key)


def test_each_record_names_the_lock_its_owner_and_the_acquisition(scene, records):
    with scene.mutex(owner="me") as mutex:
        mutex.renew()
    assert records.words == ["acquired", "renewed", "released"]
    for record in records.all:
        assert record.levelname == "DEBUG"
        assert record.lock_owner == "me"
        assert record.fencing_token == mutex.fencing_token


def test_levels(scene, records):
    held = scene.taken()
    assert not scene.mutex(owner="me").acquire(timeout=0.1)
    records.the("is waited for by 'me', and held by 'other'", "DEBUG")
    records.the("not acquired by 'me'", "DEBUG")
    expire(scene.key, scene.there)
    mutex = scene.mutex(owner="me")
    assert mutex.acquire()
    abandoned = records.the("acquired by 'me': abandoned by 'other'")
    assert abandoned.fencing_token == mutex.fencing_token > held.fencing_token
    scene.proxy.next(faultproxy.deny(), op="renew")
    with pytest.raises(PynamoDBException):
        mutex.renew()
    assert records.the("renewal of").lock_owner == "me"
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.release()
    lost = records.the("lost by 'me': its claim was broken by force")
    assert lost.fencing_token == mutex.fencing_token


def test_handing_over_is_logged(scene, records, pool):
    giver, taker = scene.mutex(owner="giver"), scene.mutex(owner="taker")
    giver.acquire()
    pool.submit(taker.acquire)
    time.sleep(1)
    giver.release()
    time.sleep(1)
    records.the("handed over by 'giver' to 'taker'", "DEBUG")
    taker.detach()
    records.the("handed over by 'taker' to the bearer of a ticket", "DEBUG")


def test_requests_that_are_repeated_say_for_which_lock(scene, records):
    scene.proxy.next(faultproxy.drop_answer(), op="acquire")
    scene.proxy.next(faultproxy.server_error(), op="renew")
    scene.proxy.next(faultproxy.apply_then_500(), op="release")
    with scene.mutex() as mutex:
        mutex.renew()
        token = mutex.fencing_token
    repeated = [record for record in records.all if "to be retried" in record.getMessage()]
    assert [record.fencing_token for record in repeated] == [None, token, token]


def test_what_nobody_may_have_released_is_a_warning(scene, records):
    mutex = scene.mutex(lease=4, timeout=0, owner="me")
    mutex.acquire()
    scene.proxy.always(faultproxy.drop_request(), op="release")
    with pytest.raises(PynamoDBException):
        mutex.release()
    record = records.the("given up by 'me', and expires with its lease")
    assert record.fencing_token == mutex.fencing_token
    time.sleep(10)
    scene.proxy.always(faultproxy.drop_answer(), op="acquire")
    scene.proxy.always(faultproxy.drop_request(), op="disown")
    with pytest.raises(PynamoDBException):
        mutex.acquire()
    assert records.the("may be held by nobody").lock_owner == "me"


def test_each_of_a_group_has_its_own(scene, keys, caplog):
    each = [Records(caplog, key) for key in keys.keys]
    with keys.group() as group:
        scene.proxy.next(faultproxy.deny(), op="TransactWriteItems")
        with pytest.raises(PynamoDBException):
            group.renew()
    assert [records.words for records in each] == [["acquired", "renewal", "released"]] * 3


def test_batch_that_is_not_understood_names_a_lock(scene, records):
    mutexes = [scene.mutex(lease=120), Mutex.for_key("other", model=scene.here, lease=120)]
    for mutex in mutexes:
        assert mutex.acquire()
    store_for(scene.here).batches = True
    headers = (("Content-Type", "application/x-amz-json-1.0"), ("x-amzn-RequestId", "A"))
    odd = faultproxy.answer_with(faultproxy.Reply(200, b'{"Responses": [{}]}', headers))
    scene.proxy.next(odd, op="BatchExecuteStatement")
    send_renewal(*(mutex._latest for mutex in mutexes))
    records.the("cannot be renewed by batches", "ERROR")
