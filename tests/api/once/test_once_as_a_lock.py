"""What concerns all locks, for keys of `once`: `release_all`, clocks, rows that are wrong, forks."""

import os
import pickle
import time

import pytest
from once_scene import There, died

from dev.faultproxy import after, no_date
from pynamodb_mutex import (
    InvalidRowError,
    Mutex,
    MutexError,
    MutexNotHeldError,
    Once,
    OutcomeUnknownError,
    ResultUnavailableError,
    release_all,
)
from pynamodb_mutex.testing import expire


def test_release_all_leaves_runs_alone(scene_of_once):
    with Mutex.for_key("lock"), scene_of_once.once() as run:
        assert not release_all()
        assert run.held
        run.complete(1)
        with pytest.raises(MutexNotHeldError):
            Mutex.for_key("lock").release()


def test_answers_without_a_date_are_refused(scene_of_once):
    scene_of_once.proxy.always(no_date())
    with pytest.raises(MutexError, match="'a': DynamoDB's answers have no Date"):
        Once.record("a", 1, model=scene_of_once.here)
    with pytest.raises(MutexError, match="'a': DynamoDB's answers have no Date"):
        scene_of_once.call()
    assert scene_of_once.raw == {}


def test_row_that_is_no_locks_is_refused(scene_of_once):
    def overwrite():
        There._get_connection().put_item("once#a", attributes={"payload_hash": {"S": "x"}})

    def wait():
        scene_of_once.proxy.next(
            after(overwrite), op="GetItem", when=lambda b: not b["ConsistentRead"]
        )
        scene_of_once.call()

    overwrite()
    for ask in (
        scene_of_once.call,
        lambda: Once.forget("a", model=There),
        lambda: Once.forget("a", force=True, model=There),
        lambda: scene_of_once.known,
    ):
        with pytest.raises(InvalidRowError):
            ask()
    There._get_connection().delete_item("once#a")
    once = scene_of_once.other()
    scene_of_once.begun(once)
    with pytest.raises(InvalidRowError):
        wait()


WRONG = {"S": "x", "N": "1" + "0" * 30, "B": b"x", "BOOL": True, "NULL": True, "L": [], "M": {}}
TEXTS = ("token", "owner", "abandoned_by", "result", "unstored", "payload_hash", "unknown")
NUMBERS = ("version", "lease", "expires_at", "writes", "free_since", "done_until")


@pytest.mark.parametrize("name", TEXTS + NUMBERS)
def test_forget_by_force_takes_a_row_that_cannot_be_right(scene_of_once, name):
    advice = r"Once\.forget\(key, force=True\) puts it right"
    for kind, value in WRONG.items():
        if kind == "S" and name in TEXTS:
            continue
        scene_of_once.call(payload=1)
        row = {**scene_of_once.raw, name: {kind: value}}
        client = There._get_connection().connection.client
        client.put_item(TableName=There.Meta.table_name, Item=row)
        # force alone would end a result that counts, or a run of unknown outcome, for somebody who did not mean to
        for ask in (
            scene_of_once.call,
            lambda: Once.forget("a", model=There),
            lambda: There.force_release("once#a"),
        ):
            with pytest.raises(InvalidRowError, match=advice):
                ask()
        assert scene_of_once.raw == row
        assert Once.forget("a", force=True, model=There) is True
        assert scene_of_once.known.state == "nothing"
        assert "ttl" in scene_of_once.raw
        assert scene_of_once.call("again", payload=2) == "again"
        assert Once.forget("a", model=There)


def test_errors_can_be_pickled(scene_of_once):
    died(scene_of_once)
    time.sleep(15)
    with pytest.raises(OutcomeUnknownError) as raised:
        scene_of_once.call()
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.owner, again.since, again.key) == ("dead", raised.value.since, "a")
    error = ResultUnavailableError("x", reason="r", value=[1], key="k")
    again = pickle.loads(pickle.dumps(error))
    assert (again.reason, again.value, again.key) == ("r", [1], "k")


@pytest.mark.real("embedded")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_child_does_not_complete_its_parents_run(table):
    with Once.for_key("a") as run:
        child = os.fork()
        if not child:
            try:
                run.complete("child")
            except MutexNotHeldError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert run.complete("parent") == "parent"
    assert Once.peek("a").result == "parent"


def test_expired_claim_is_taken_over_at_once(scene_of_once):
    scene_of_once.begun(scene_of_once.once(auto_renew=False))
    expire("once#a", There)
    before = time.monotonic()
    assert scene_of_once.elsewhere() == "other"
    assert time.monotonic() - before < 3
