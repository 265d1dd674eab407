"""Runs of unknown outcome, and what people do about them: `Once.peek`, `forget` and `record`."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial

import pytest
from once_scene import DAY, SpecialError, There, died, failing

from dev.faultproxy import after
from pynamodb_mutex import (
    MutexError,
    NotRecordedError,
    Once,
    OutcomeUnknownError,
    PayloadMismatchError,
    ResultUnavailableError,
)
from pynamodb_mutex.testing import expire


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), SystemExit()])
def test_somebody_has_to_decide_about_a_run_that_died(scene_of_once, error):
    died(scene_of_once, error)
    began = time.time()
    for on_abandoned in ("raise", "run"):
        with pytest.raises(
            OutcomeUnknownError, match="unknown what became of the run by 'dead'"
        ) as raised:
            scene_of_once.elsewhere(on_abandoned=on_abandoned)
    assert raised.value.owner == "dead"
    assert abs(raised.value.since.timestamp() - began) < 3
    time.sleep(1000 * DAY)
    assert There.force_release("once#a")  # an ended claim
    with pytest.raises(OutcomeUnknownError):
        scene_of_once.call(timeout=0)
    assert scene_of_once.known[:1] == ("unknown",)
    assert "ttl" not in scene_of_once.raw


def test_person_can_say_that_it_is_done(scene_of_once):
    died(scene_of_once)
    time.sleep(15)
    assert Once.record("a", {"id": 1}, keep=60, model=There) is True
    assert not {"expires_at", "owner", "lease", "unknown"} & {*scene_of_once.raw}
    assert scene_of_once.call(on_abandoned="raise") == {"id": 1}
    assert scene_of_once.done == []
    time.sleep(70)
    assert scene_of_once.call() == "result"


def test_person_can_let_it_be_done_again(scene_of_once):
    died(scene_of_once)
    time.sleep(15)
    assert Once.forget("a", model=There) is True
    assert scene_of_once.call(on_abandoned="raise") == "result"


def fails_elsewhere(scene):
    with pytest.raises(SpecialError):
        scene.other().call(failing)


RECORD = partial(Once.record, result="by hand")
FORCE = partial(Once.forget, force=True)


def seems_dead(scene):
    """Begin a run, and let its lease end; it goes on."""
    run = scene.begun(scene.once(lease=10, auto_renew=False))
    expire("once#a", There)
    return run


@pytest.mark.parametrize("decide", [Once.forget, FORCE, RECORD])
def test_person_decides_about_no_later_run_than_was_seen(scene_of_once, decide):
    seems_dead(scene_of_once)
    scene_of_once.proxy.next(after(partial(fails_elsewhere, scene_of_once)), op="decide")
    assert decide("a", model=scene_of_once.here) is False
    assert scene_of_once.known.state == "nothing"


@pytest.mark.parametrize("decide", [Once.forget, FORCE, RECORD])
def test_result_that_is_recorded_before_a_persons_decision_stays(scene_of_once, decide):
    run = seems_dead(scene_of_once)
    scene_of_once.proxy.next(after(partial(run.complete, "late")), op="decide")
    assert decide("a", model=scene_of_once.here) is False
    assert scene_of_once.known.result == "late"


@pytest.mark.parametrize("decide", [Once.forget, RECORD])
def test_run_that_is_renewed_before_a_persons_decision_goes_on(scene_of_once, decide):
    run = seems_dead(scene_of_once)
    end = [There.expires_at.set(time.time() + 60)]
    renew = partial(There._get_connection().update_item, "once#a", actions=end)
    scene_of_once.proxy.next(after(renew), op="decide")
    assert decide("a", model=scene_of_once.here) is False
    assert run.complete("late") == "late"


def test_person_records_nothing_where_a_run_has_failed_meanwhile(scene_of_once):
    scene_of_once.proxy.next(after(partial(fails_elsewhere, scene_of_once)), op="decide")
    assert Once.record("a", 1, model=scene_of_once.here) is False
    assert scene_of_once.known.state == "nothing"


def test_late_copy_of_a_begin_leaves_nothing_to_decide(scene_of_once):
    for _ in range(2):  # at first there is no row
        died(scene_of_once, SpecialError())
        begin = scene_of_once.proxy.of("acquire")[-1]
        fails_elsewhere(scene_of_once)
        assert scene_of_once.proxy.replay(begin).error == "ConditionalCheckFailedException"
        assert scene_of_once.known.state == "nothing"


@pytest.mark.parametrize("error", [SpecialError(), None])
def test_failure_needs_no_decision(scene_of_once, error):
    once = scene_of_once.once(on_abandoned="raise")
    scene_of_once.begun(once)
    if error is None:
        with pytest.raises(MutexError, match="without complete"):
            once.__exit__(None, None, None)
    else:
        scene_of_once.ended(once, error)
    raw = scene_of_once.raw
    assert "unknown" not in raw
    assert "ttl" in raw
    assert scene_of_once.elsewhere(on_abandoned="raise") == "other"


def test_who_waits_for_a_run_that_dies_learns_that_it_is_unknown(scene_of_once):
    died(scene_of_once)
    with ThreadPoolExecutor() as pool:
        waiting = [
            pool.submit(scene_of_once.elsewhere, on_abandoned=how) for how in ("run", "raise")
        ]
        for each in waiting:
            with pytest.raises(OutcomeUnknownError):
                each.result()


# -- by people -----------------------------------------------------------------------------------


def test_peek_at_nothing(scene_of_once):
    assert scene_of_once.known == ("nothing", None, None, None, None, None)
    scene_of_once.call()
    known = scene_of_once.known
    assert Once.forget("a", model=There)
    assert scene_of_once.known == ("nothing", None, None, None, None, known.fencing_token + 1)


def test_peek_at_a_run(scene_of_once):
    with scene_of_once.once(owner="me") as run:
        known = scene_of_once.known
        assert known[:3] == ("running", None, None)
        assert (known.owner, known.fencing_token) == ("me", run.fencing_token)
        assert 25 < (known.until - datetime.now(timezone.utc)).total_seconds() < 35
        run.complete(1)
    assert scene_of_once.known.owner is None


def test_peek_at_a_run_that_died(scene_of_once):
    died(scene_of_once)
    time.sleep(20)
    assert scene_of_once.known[:5] == ("unknown", None, None, None, "dead")
    scene_of_once.key = "b"
    scene_of_once.begun(scene_of_once.once(owner="gone", lease=10, auto_renew=False))
    time.sleep(20)
    assert scene_of_once.known[:5] == ("abandoned", None, None, None, "gone")


def test_forget(scene_of_once):
    assert Once.forget("a", model=There) is False
    assert scene_of_once.raw == {}
    scene_of_once.call(1, payload=5)
    assert Once.forget("a", model=There) is True
    assert not {"result", "done_until", "payload_hash"} & {*scene_of_once.raw}
    before = scene_of_once.raw
    assert "ttl" in before
    assert Once.forget("a", model=There) is False  # nothing is known any more
    assert scene_of_once.raw == before
    assert scene_of_once.call(2, payload=6) == 2


def test_forget_leaves_a_run_alone_unless_forced(scene_of_once):
    with scene_of_once.once(owner="me") as run:
        with pytest.raises(MutexError, match="'a': a run by 'me' is under way") as refused:
            Once.forget("a", model=There)
        assert refused.value.owner == "me"
        assert Once.forget("a", force=True, model=There) is True
        with pytest.raises(NotRecordedError) as raised:
            run.complete(1)
    assert raised.value.applied is False
    assert scene_of_once.elsewhere() == "other"


def test_record_replaces_what_could_not_be_stored(scene_of_once):
    with pytest.raises(ResultUnavailableError):
        scene_of_once.call(object())
    assert Once.record("a", 7, model=There) is True
    assert "unstored" not in scene_of_once.raw
    assert scene_of_once.known[:3] == ("recorded", 7, None)
    assert scene_of_once.call(8) == 7
    with pytest.raises(MutexError, match="'a' has a result: forget it first"):
        Once.record("a", 9, model=There)


def test_what_replaces_an_unstored_result_is_for_its_payload_and_as_long(scene_of_once):
    for keep in (math.inf, 10 * 86400.0):
        with pytest.raises(ResultUnavailableError):
            scene_of_once.call(object(), payload=5, keep=keep)
        until = scene_of_once.raw["done_until"]
        assert Once.record("a", 7, keep=60, model=There) is True
        assert scene_of_once.raw["done_until"] == until
        assert ("ttl" in scene_of_once.raw) == (keep != math.inf)
        assert scene_of_once.call(8, payload=5) == 7
        with pytest.raises(PayloadMismatchError):
            scene_of_once.call(8, payload=6)
        Once.forget("a", model=There)
        assert "payload_hash" not in scene_of_once.raw
    with pytest.raises(ResultUnavailableError):
        scene_of_once.call(object(), keep=60)
    Once.record("a", 7, keep=math.inf, model=There)
    assert scene_of_once.known.until is None


def test_record(scene_of_once):
    assert Once.record("a", 1, model=There) is True
    assert scene_of_once.call() == 1
    with pytest.raises(MutexError, match="'a' has a result: forget it first"):
        Once.record("a", 2, model=There)
    for bad, wrong in ((object(), TypeError), (math.nan, ValueError)):
        with pytest.raises(wrong):
            Once.record("b", bad, model=There)
    assert Once.record("b", 3, keep=math.inf, encode=hex, model=There)
    assert Once.peek("b", model=There, decode=str).result == "0x3"
    with Once.for_key("c", owner="me") as run:
        with pytest.raises(MutexError, match="'c': a run by 'me' is under way"):
            Once.record("c", 1, model=There)
        run.complete(2)
