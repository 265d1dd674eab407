"""Faults of `once`: lost answers, late and repeated requests, lost leases, and answers that never come."""

import json
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from once_scene import There
from pynamodb.exceptions import TransactWriteError, UpdateError
from this_process import QueueFor, store_for
from waits import until

from dev.faultproxy import (
    DYNAMODBS,
    Reply,
    after,
    answer_with,
    apply_then_500,
    deny,
    drop_answer,
    drop_request,
    duplicate,
    late,
    server_error,
    throttle,
)
from pynamodb_mutex import (
    Loss,
    MutexError,
    NotRecordedError,
    Once,
    OnceItem,
    OutcomeUnknownError,
    ResultUnavailableError,
)

LOST = {
    "no answer": drop_answer,
    "500": apply_then_500,
    "twice": lambda: duplicate("second"),
    "not arrived": drop_request,
    "refused for now": server_error,
    "throttled": throttle,
}


class SpecialError(Exception):
    """What the work raises."""


@pytest.fixture
def scene(scene_of_once):
    """The scene, whose client knows server time, with a row whose result has ended."""
    scene_of_once.call("before", keep=0.5)
    time.sleep(10)
    scene_of_once.done.clear()
    scene_of_once.proxy.start_anew()
    return scene_of_once


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
@pytest.mark.parametrize("how", ["run", "raise"])
@pytest.mark.parametrize("request_", ["acquire", "complete"])
def test_lost_answer_costs_a_retry_and_nothing_else(scene, request_, fault, how):
    scene.proxy.next(fault(), op=request_)
    assert scene.call(1, on_abandoned=how) == 1
    assert scene.call(2) == scene.elsewhere(3) == 1
    assert scene.done == [1]
    assert not {"unknown", "expires_at", "owner"} & {*scene.raw}


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
def test_lost_answer_of_a_failure(scene, fault):
    scene.proxy.next(fault(), op="release")
    with pytest.raises(SpecialError):
        scene.once(on_abandoned="raise").call(_raise)
    assert scene.elsewhere(1) == 1


def _raise():
    raise SpecialError


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
@pytest.mark.parametrize("what", ["forget", "record"])
def test_lost_answer_of_a_decision(scene, fault, what):
    scene.proxy.next(fault(), op="decide")
    if what == "record":
        assert Once.record("a", 5, model=scene.here) is True
        assert scene.elsewhere() == 5
    else:
        scene.elsewhere(keep=100)
        assert Once.forget("a", model=scene.here) is True
        assert scene.known.state == "nothing"


@pytest.mark.parametrize("fault", LOST.values(), ids=LOST)
def test_lost_answer_of_a_transaction(scene, fault):
    scene.proxy.next(fault(), op="TransactWriteItems")
    with scene.once() as run, run.transaction(result=1) as transaction:
        transaction.update(OnceItem("effect"), actions=[OnceItem.writes.add(1)])
    assert run.result == 1
    assert There.get("effect", consistent_read=True).writes == 1
    assert scene.elsewhere() == 1


# -- the record --------------------------------------------------------------------------------------


def test_record_that_nobody_answers_may_have_been_made(scene):
    """The key is not released: the release could overtake the record, and the next caller would do the work again."""
    record = late()
    scene.proxy.next(record, op="complete")
    scene.proxy.always(server_error(), op="complete")
    with pytest.raises(NotRecordedError, match="may not have been recorded") as raised:
        scene.call("first", lease=10)
    error = raised.value
    assert (error.value, error.applied, error.loss, error.key) == (
        "first",
        None,
        Loss.UNREACHABLE,
        "a",
    )
    assert error.__cause__ is not None
    assert scene.known.state == "running"
    assert "release" not in scene.proxy.kinds()
    assert record.apply().status == 200
    assert scene.elsewhere() == "first"
    assert scene.done == ["first"]


def test_record_that_is_refused_was_not_made(scene):
    scene.proxy.next(deny(), op="complete")
    with pytest.raises(NotRecordedError, match="was not recorded") as raised:
        scene.call("first", lease=10)
    assert (raised.value.value, raised.value.applied) == ("first", False)
    assert scene.known.state == "running"
    began = time.monotonic()
    assert scene.elsewhere() == "other"  # when the lease has ended
    assert 5 < time.monotonic() - began < 15


def test_record_without_answer_after_the_lease_may_have_been_made(scene):
    with scene.once(lease=10, auto_renew=False) as run:
        time.sleep(11)
        scene.proxy.always(drop_answer(), op="complete")
        with pytest.raises(NotRecordedError) as raised:
            run.complete(1)
        assert raised.value.applied is None
        scene.proxy.clear()
        assert run.complete(2) == 1  # it was
        assert run.result == 1


def test_earlier_record_of_a_run_is_the_result(scene):
    """The caller got an error, and calls again with another result: the first one was recorded, and stays."""
    with scene.once(lease=10) as run:
        scene.proxy.always(drop_answer(), op="complete")
        with pytest.raises(NotRecordedError):
            run.complete("first")
        scene.proxy.clear()
        assert run.complete("second") == "first"
    assert scene.elsewhere() == "first"


def test_earlier_record_that_could_not_be_stored_is_the_result(scene):
    with scene.once(lease=10) as run:
        scene.proxy.always(drop_answer(), op="complete")
        with pytest.raises(NotRecordedError):
            run.complete(math.nan)
        scene.proxy.clear()
        with pytest.raises(ResultUnavailableError):
            run.complete("second")
    assert run.done


def test_store_decides_about_a_record_after_the_lease(scene):
    """A process stands still for longer than its lease, and nobody else has begun."""
    lost = []
    with scene.once(lease=5, auto_renew=False, on_lost=lost.append) as run:
        time.sleep(60)
        assert run.lost
        assert run.complete(1) == 1
    assert lost == [run]
    assert scene.elsewhere() == 1


def test_store_decides_about_a_record_after_max_hold(scene):
    with scene.once(lease=5, max_hold=10) as run:
        time.sleep(60)
        assert run.complete(1) == 1
    assert scene.known.result == 1


@pytest.mark.parametrize("ended", [True, False])
def test_run_that_lost_its_key_records_nothing(scene, ended):
    with scene.once(lease=5, auto_renew=False) as run:
        time.sleep(20)
        with scene.other() as other:
            assert other.abandoned_by is not None
            if ended:
                other.complete("other")
            with pytest.raises(NotRecordedError, match="the result was not recorded") as raised:
                run.complete("first")
            if not ended:
                other.complete("other")
    error = raised.value
    assert (error.value, error.applied, error.loss) == ("first", False, Loss.TAKEN)
    assert scene.elsewhere() == "other"


def test_late_record_is_refused_after_another_run(scene):
    record = late()
    scene.proxy.next(record, op="complete")
    scene.proxy.always(server_error(), op="complete")
    with pytest.raises(NotRecordedError):
        scene.call("first", lease=5)
    time.sleep(20)
    assert scene.elsewhere() == "other"
    assert_changes_nothing(scene, record)


def assert_changes_nothing(scene, kept):
    """Send a request that the network held back to the engine, and check that it is refused."""
    before = scene.raw
    assert kept.apply().error == "ConditionalCheckFailedException"
    assert scene.raw == before


def test_late_record_is_refused_after_its_own_release(scene):
    """It would record what was reported as failed, and done again perhaps."""
    once = scene.once()
    run = scene.begun(once)
    record = late()
    scene.proxy.next(record, op="complete")
    scene.proxy.always(server_error(), op="complete")
    with pytest.raises(NotRecordedError):
        run.complete(1)
    # by an earlier version of the library, or by hand: the same token and version, and no claim
    There._get_connection().update_item("once#a", actions=[There.expires_at.remove()])
    assert_changes_nothing(scene, record)


def test_late_beginning_is_refused_after_its_own_run(scene):
    beginning = late()
    scene.proxy.next(beginning, op="acquire")
    assert scene.call(1, keep=100) == 1
    assert_changes_nothing(scene, beginning)
    time.sleep(200)  # the result has ended, but the token is there still
    assert_changes_nothing(scene, beginning)


def test_late_beginning_after_a_failure_marks_nothing_as_unknown(scene):
    """Otherwise the key would be blocked until somebody decides, about work that was not begun."""
    beginning = late()
    scene.proxy.next(beginning, op="acquire")
    with pytest.raises(SpecialError):
        scene.once(on_abandoned="raise").call(_raise)
    with pytest.raises(SpecialError):
        scene.other(on_abandoned="raise").call(_raise)
    assert_changes_nothing(scene, beginning)


def test_late_decision_changes_nothing_that_was_recorded_since(scene):
    scene.elsewhere(1)
    decision = late()
    scene.proxy.next(decision, op="decide")
    assert Once.forget("a", model=scene.here)
    assert scene.elsewhere(2) == 2
    assert_changes_nothing(scene, decision)


def test_decision_about_what_has_changed_meanwhile_is_none(scene):
    scene.elsewhere(1, keep=100)

    def meanwhile():
        Once.forget("a", model=There)
        scene.elsewhere(2)

    scene.proxy.next(after(meanwhile), op="decide")
    assert Once.forget("a", model=scene.here) is False
    assert scene.elsewhere(3) == 2


@pytest.mark.parametrize("what", ["forget", "record"])
def test_decision_whose_outcome_cannot_be_known_is_an_error(scene, what):
    """It was applied, its answer was lost, and the key was used before it was sent again."""
    if what == "forget":
        scene.elsewhere(1, keep=100)

    def meanwhile():
        if what == "record":
            assert scene.known.result == 5
            Once.forget("a", model=There)
        scene.elsewhere(2)

    scene.proxy.next(drop_answer(), after(meanwhile), op="decide")
    given = (5,) if what == "record" else ()
    with pytest.raises(MutexError, match="unknown whether this was done") as raised:
        getattr(Once, what)("a", *given, model=scene.here)
    assert raised.value.key == "a"
    assert scene.elsewhere(3) == 2


def test_disown_does_not_end_a_result(scene):
    with scene.once() as run:
        token = run.token
        run.complete(1)
    before, store = scene.raw, store_for(There)
    values = {"mine": token, "ttl": "5000000000"}
    request = store.update(store.requests.disown, {"key": {"S": "once#a"}}, values)
    assert not request.send().applied
    assert scene.raw == before


def test_late_disown_does_not_end_another_run(scene):
    disown = late()
    scene.proxy.next(drop_answer(), op="acquire")
    scene.proxy.always(server_error(), op="acquire")
    scene.proxy.next(disown, op="disown")
    with pytest.raises(UpdateError):
        scene.call(timeout=3, lease=5)
    assert scene.known.state == "running"
    time.sleep(20)
    scene.elsewhere(2)
    assert_changes_nothing(scene, disown)


@pytest.mark.parametrize("together", [False, True])
def test_renewal_notices_that_an_unanswered_record_was_made(scene, together, caplog):
    scene.proxy.next(drop_answer(), deny(), op="TransactWriteItems" if together else "complete")
    once = scene.once(lease=10)
    run = scene.begun(once)
    with pytest.raises(TransactWriteError if together else NotRecordedError) as raised:
        run.transaction(result=1).__exit__(None, None, None) if together else run.complete(1)
    time.sleep(60)
    assert (run.held, run.lost) == (False, False)
    scene.ended(once, raised.value)
    assert scene.elsewhere() == 1
    assert not [record for record in caplog.records if "expires with its lease" in record.message]


# -- waiting -----------------------------------------------------------------------------------------


def test_stale_poll_gives_nobody_a_result_that_was_forgotten(scene):
    """A poll is served by a replica that lags behind: it shows a result that was forgotten before this call began."""
    scene.elsewhere("old", keep=3600)
    Once.forget("a", model=There)
    entered, may_end = threading.Event(), threading.Event()

    def work():
        entered.set()
        may_end.wait()
        return scene.work("new")

    with ThreadPoolExecutor() as pool:
        running = pool.submit(scene.other().call, work)
        entered.wait()
        scene.proxy.always(_stale(), op="GetItem", when=lambda body: not body["ConsistentRead"])
        waiting = pool.submit(scene.call, "again")
        until(lambda: len(scene.proxy.of("GetItem")) > 3)
        assert not waiting.done()
        scene.proxy.clear()
        may_end.set()
        assert waiting.result() == running.result() == "new"
    assert scene.done == ["old", "new"]


def _stale():
    """Answer with a row of long ago, whose result counts."""
    values = {"token": {"S": "old"}, "version": {"N": "1"}, "result": {"S": '"old"'}}
    row = {"key": {"S": "once#a"}, "done_until": {"N": "4000000000"}, **values}
    return answer_with(Reply(200, json.dumps({"Item": row}).encode(), DYNAMODBS))


@pytest.mark.parametrize(("runner", "op"), [("other", "GetItem"), ("once", "complete")])
def test_call_that_begins_after_a_result_was_forgotten_does_not_get_it(scene, runner, op):
    """Though its process has read that result, or recorded it, and the answer is on its way."""
    calls, queue = [], QueueFor(scene.here, "once#a")

    def forgotten_and_called():
        Once.forget("a", model=There)
        calls.append(pool.submit(scene.call, "new"))
        until(lambda: len(queue.turns) == 2)

    with ThreadPoolExecutor() as pool, getattr(scene, runner)() as run:
        calls.append(pool.submit(scene.call, "again"))
        until(lambda: queue.turns and queue.in_the_way)
        meets = duplicate("first", forgotten_and_called)
        scene.proxy.next(meets, op=op, when=lambda body: body.get("ConsistentRead", True))
        run.complete("old")
        assert calls[0].result() == "old"
        assert calls[1].result() == "new"


def test_idle_process_takes_no_result_that_has_ended(scene):
    """After a day its bounds are minutes behind: the refusal of its first request shows the time, and it begins again."""
    scene.call("old", keep=3600)
    time.sleep(86400)
    scene.elsewhere("new", keep=300)
    time.sleep(320)
    assert scene.call("newest") == "newest"
    assert scene.known.result == "newest"


def test_unknown_outlives_force(scene):
    once = scene.once(on_abandoned="raise", lease=5, auto_renew=False)
    scene.begun(once)
    assert There.force_release("once#a")
    for _ in range(2):
        with pytest.raises(OutcomeUnknownError):
            scene.elsewhere()
        time.sleep(1e7)


def test_error_while_a_run_ends_is_noted(scene):
    scene.proxy.always(deny(), op="release")
    with pytest.raises(SpecialError) as raised:
        scene.once().call(_raise)
    if hasattr(raised.value, "__notes__"):
        assert "the lock could not be released" in raised.value.__notes__[0]
    with pytest.raises(MutexError):
        scene.elsewhere(timeout=0)
