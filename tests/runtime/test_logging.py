"""What is logged, and that each record says of which lock."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest
from driving import send_renewal
from group_scene import Keys
from hearing import until
from pynamodb.exceptions import PynamoDBException
from scene import Scene
from stores import QueueFor, store_for

from dev.faultproxy import (
    Reply,
    answer_with,
    apply_then_500,
    deny,
    drop_answer,
    drop_request,
    server_error,
)
from pynamodb_mutex import Mutex, MutexLostError
from pynamodb_mutex.testing import expire


class Records:
    """The records of one key."""

    def __init__(self, caplog, key: str) -> None:
        self._caplog = caplog
        self._key = key

    @property
    def all(self) -> list[logging.LogRecord]:
        return [
            record
            for record in list(self._caplog.records)
            if record.name == "pynamodb_mutex" and getattr(record, "lock_key", "") == self._key
        ]

    def the(self, text: str) -> logging.LogRecord:
        """The first record with a text."""
        return next(record for record in self.all if text in record.getMessage())

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(record.levelname, record.getMessage()) for record in self.all]


@pytest.fixture
def records(scene: Scene, caplog) -> Records:
    caplog.set_level(logging.DEBUG, "pynamodb_mutex")
    return Records(caplog, scene.key)


def test_each_record_says_which_lock_whose_and_which_acquisition(
    scene: Scene, records: Records
) -> None:
    with scene.mutex(owner="me") as mutex:
        mutex.renew()
    words = [text.removeprefix(f"{scene.key!r} ").split()[0] for _, text in records.texts]
    assert words == ["acquired", "renewed", "released"]
    for record in records.all:
        assert record.levelname == "DEBUG"
        assert record.lock_owner == "me"
        assert record.fencing_token == mutex.fencing_token


def test_levels(scene: Scene, records: Records) -> None:
    held = scene.taken(auto_renew=False)
    assert not scene.mutex(owner="me").acquire(timeout=0.1)
    assert records.the("is waited for by 'me', and held by 'other'").levelname == "DEBUG"
    assert records.the("not acquired by 'me'").levelname == "DEBUG"
    expire(scene.key, scene.there)
    mutex = scene.mutex(owner="me")
    assert mutex.acquire()
    abandoned = records.the("acquired by 'me': abandoned by 'other'")
    assert abandoned.levelname == "WARNING"
    assert abandoned.fencing_token == mutex.fencing_token > held.fencing_token
    scene.proxy.next(deny(), op="renew")
    with pytest.raises(PynamoDBException):
        mutex.renew()
    assert records.the("renewal of").levelname == "WARNING"
    assert records.the("renewal of").lock_owner == "me"
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.release()
    lost = records.the("lost by 'me': its claim was broken by force")
    assert lost.levelname == "WARNING"
    assert lost.fencing_token == mutex.fencing_token


def test_handing_over_is_logged(scene: Scene, records: Records) -> None:
    giver, taker = scene.mutex(owner="giver"), scene.mutex(owner="taker")
    giver.acquire()
    waiting = threading.Thread(target=taker.acquire)
    waiting.start()
    queue = QueueFor(scene.here, scene.key)
    until(lambda: queue.turns)
    giver.release()
    waiting.join(60)
    assert records.the("handed over by 'giver' to 'taker'").levelname == "DEBUG"
    taker.detach()
    assert records.the("handed over by 'taker' to the bearer of a ticket")


def test_requests_that_are_repeated_say_for_which_lock(scene: Scene, records: Records) -> None:
    scene.proxy.next(drop_answer(), op="acquire")
    mutex = scene.mutex()
    mutex.acquire()
    first = mutex.fencing_token
    scene.proxy.next(apply_then_500(), op="release")
    mutex.release()
    with mutex:
        scene.proxy.next(server_error(), op="renew")
        mutex.renew()
        second = mutex.fencing_token
    repeated = [record for record in records.all if "to be retried" in record.getMessage()]
    assert [record.fencing_token for record in repeated] == [None, first, second]


def test_a_release_that_does_not_get_through_is_a_warning(scene: Scene, records: Records) -> None:
    mutex = scene.mutex(lease=4, owner="me")
    mutex.acquire()
    scene.proxy.always(drop_request(), op="release")
    with pytest.raises(PynamoDBException):
        mutex.release()
    record = records.the("given up by 'me', and expires with its lease")
    assert record.levelname == "WARNING"
    assert record.fencing_token == mutex.fencing_token


def test_what_may_be_held_by_nobody_is_named(scene: Scene, records: Records) -> None:
    scene.proxy.always(drop_answer(), op="acquire")
    scene.proxy.always(drop_request(), op="disown")
    with pytest.raises(PynamoDBException):
        scene.mutex(timeout=0, owner="me").acquire()
    assert records.the("may be held by nobody").lock_owner == "me"


def test_each_of_a_group_has_its_own(scene: Scene, keys: Keys, caplog) -> None:
    caplog.set_level(logging.DEBUG, "pynamodb_mutex")
    with keys.group() as group:
        scene.proxy.next(deny(), op="TransactWriteItems")
        with pytest.raises(PynamoDBException):
            group.renew()
    for key in keys.keys:
        records = Records(caplog, key)
        words = [text.removeprefix(f"{key!r} ").split()[0] for _, text in records.texts]
        assert words == ["acquired", "renewal", "released"]


def test_a_batch_that_is_not_understood_names_a_lock(scene: Scene, records: Records) -> None:
    mutexes = [
        Mutex.for_key(key, model=scene.here, lease=120) for key in (scene.key, f"{scene.key}.b")
    ]
    for mutex in mutexes:
        assert mutex.acquire()
    store_for(scene.here).batches = True
    headers = (("Content-Type", "application/x-amz-json-1.0"), ("x-amzn-RequestId", "A"))
    odd = answer_with(Reply(200, b'{"Responses": [{}]}', headers))
    scene.proxy.next(odd, op="BatchExecuteStatement")
    send_renewal(mutexes[0]._latest, mutexes[1]._latest)
    assert records.the("cannot be renewed by batches").levelname == "ERROR"


SCRIPT = """
import sys
from pynamodb_mutex import LockItem, Mutex, MutexLostError
from pynamodb_mutex.testing import Engine, use
with use(Engine("embedded", sys.argv[1])):
    try:
        with Mutex.for_key("quiet", model=LockItem):
            LockItem.force_release("quiet")
    except MutexLostError:
        print("lost")
"""


@pytest.mark.unmeasured
@pytest.mark.real("embedded")
def test_nothing_is_printed_unless_it_is_asked_for(table, engine) -> None:
    command = [sys.executable, "-c", SCRIPT, engine.endpoint_url]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("lost\n", "")
