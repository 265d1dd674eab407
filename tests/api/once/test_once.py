"""`Once` for threads: the work is done one time, and its result is given to everybody who asks again."""

import math
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from once_scene import DAY, SpecialError, There, failing, never
from pynamodb.exceptions import TransactWriteError
from this_process import current_process
from waits import until

from dev.faultproxy import after, deny, drop_answer
from pynamodb_mutex import (
    InvalidKeyError,
    LockItem,
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexNotHeldError,
    MutexTimeoutError,
    NotRecordedError,
    Once,
    OnceItem,
    PayloadMismatchError,
    ResultUnavailableError,
)
from pynamodb_mutex.runs import Run


@pytest.mark.real
def test_work_is_done_once_and_its_result_kept(table):
    done = []

    def work(number, *, more):
        done.append(number)
        return {"number": number, "more": more}

    for _ in range(3):
        assert Once.for_key("a").call(work, 7, more="x") == {"number": 7, "more": "x"}
    assert Once.for_key("b").call(work, 8, more=None) == {"number": 8, "more": None}
    assert done == [7, 8]
    assert table.get("once#a").token
    with Mutex.for_key("a") as mutex:  # a lock of the same name is another thing
        assert mutex.held


def test_first_run_takes_two_requests_and_a_repeat_one(scene_of_once):
    scene = scene_of_once
    assert scene.call() == "result"
    assert scene.proxy.kinds() == ["GetItem", "acquire", "complete"]  # server time is not known
    scene.key = "b"
    scene.proxy.start_anew()
    assert scene.call() == "result"
    assert scene.proxy.kinds() == ["acquire", "complete"]
    assert scene.call() == "result"
    assert scene.proxy.kinds()[2:] == ["acquire"]
    scene.proxy.start_anew()
    scene.call(on_abandoned="raise")
    assert scene.proxy.kinds() == ["GetItem"]
    scene.key = "c"
    scene.call(on_abandoned="raise")
    assert scene.proxy.kinds()[1:] == ["GetItem", "acquire", "complete"]


def test_results_are_read_once_a_large_one_was_seen(scene_of_once):
    scene = scene_of_once
    scene.call("x" * 5000)
    for expected in (["acquire"], ["GetItem"], ["GetItem"]):
        scene.proxy.start_anew()
        assert len(scene.once().call(never)) == 5000
        assert scene.proxy.kinds() == expected


@pytest.mark.parametrize("result", [None, 0, "", [1, {"a": None}], "ü" * 100, 1e300, True])
def test_every_json_value_is_a_result(scene_of_once, result):
    assert scene_of_once.call(result) == result
    assert scene_of_once.call() == result
    assert scene_of_once.known.state == "recorded"
    assert scene_of_once.known.result == result


def test_all_callers_get_what_is_stored(scene_of_once):
    for _ in range(2):
        assert scene_of_once.call((1, {2: (3,)})) == [1, {"2": [3]}]
    assert scene_of_once.call() is not scene_of_once.call()


def test_results_may_be_encoded_otherwise(scene_of_once):
    own = {"encode": lambda result: f"<{result:x}>", "decode": lambda text: int(text[1:-1], 16)}
    assert scene_of_once.call(255, **own) == 255
    assert scene_of_once.raw["result"] == {"S": "<ff>"}
    assert scene_of_once.call(**own) == 255


@pytest.mark.parametrize("keep", [3600, 3600.0, timedelta(hours=1)])
def test_result_counts_for_as_long_as_it_is_kept(scene_of_once, keep):
    scene_of_once.call(1, keep=keep)
    time.sleep(3590)
    assert scene_of_once.call(2, keep=keep) == 1
    assert scene_of_once.elsewhere(2) == 1
    ends = scene_of_once.known.until
    time.sleep(14)
    assert scene_of_once.known.state == "nothing"
    assert scene_of_once.call(3, keep=keep) == 3
    assert scene_of_once.known.until > ends + timedelta(hours=1)
    assert scene_of_once.done == [1, 3]


def test_result_is_kept_for_a_day_by_default_and_its_row_for_longer(scene_of_once):
    scene_of_once.call()
    raw = scene_of_once.raw
    ends = float(raw["done_until"]["N"])
    assert DAY - 2 < ends - time.time() < DAY + 5
    assert int(raw["ttl"]["N"]) >= ends + LockItem.retention


def test_result_can_be_kept_for_ever(scene_of_once):
    scene_of_once.call(1, keep=math.inf)
    assert "ttl" not in scene_of_once.raw
    assert scene_of_once.known.until is None
    time.sleep(50 * 365 * DAY)
    assert scene_of_once.call(2) == 1


def test_wall_clock_of_a_host_does_not_count(scene_of_once, monkeypatch):
    scene_of_once.call(1, keep=600)
    for hours in (-1, 1):
        wrong = time.time() + hours * 3600
        monkeypatch.setattr("time.time", lambda wrong=wrong: wrong)
        assert scene_of_once.elsewhere(2) == 1


def test_row_has_no_ttl_while_a_run_is_under_way(scene_of_once):
    scene_of_once.call(1, keep=1)
    time.sleep(5)
    with scene_of_once.once() as run:
        time.sleep(60)  # renewed
        raw = scene_of_once.raw
        assert not {"ttl", "result", "done_until"} & {*raw}
        run.complete(2)


# -- failing -------------------------------------------------------------------------------------


def test_work_that_raises_is_done_by_the_next_call_at_once(scene_of_once):
    with pytest.raises(SpecialError):
        scene_of_once.once().call(failing)
    assert "ttl" in scene_of_once.raw
    assert scene_of_once.known.state == "nothing"
    before = time.monotonic()
    assert scene_of_once.elsewhere() == "other"
    assert time.monotonic() - before < 1
    assert scene_of_once.call() == "other"


def test_late_end_of_a_run_that_failed_ends_no_other_run(scene_of_once):
    once, other = scene_of_once.once(), scene_of_once.other()
    scene_of_once.begun(once)
    lose = after(lambda: There.force_release("once#a") and scene_of_once.begun(other))
    scene_of_once.proxy.next(lose, op="release")
    scene_of_once.ended(once, SpecialError())
    assert (scene_of_once.known.state, scene_of_once.known.owner) == ("running", "other")


def test_interrupted_work_is_done_by_the_next_call_at_once(scene_of_once):
    once = scene_of_once.once()
    scene_of_once.begun(once)
    scene_of_once.ended(once, KeyboardInterrupt())
    assert scene_of_once.known.state == "nothing"
    assert scene_of_once.elsewhere(timeout=1) == "other"


UNSTORABLE = [
    (
        object(),
        {},
        "TypeError: Object of type object is not JSON serializable: give an encode= and a decode=",
    ),
    (math.nan, {}, "ValueError: Out of range float values are not JSON compliant"),
    ("x" * 360_000, {}, "ValueError: the result has over 358400 bytes, the most that are kept"),
    ("\ud800", {"encode": str}, "UnicodeEncodeError"),
    (1, {"encode": lambda _: b"1"}, "TypeError: encode must return a str, not b'1'"),
    (1, {"encode": failing}, "SpecialError"),
]


@pytest.mark.parametrize(("value", "options", "reason"), UNSTORABLE)
def test_result_that_cannot_be_stored_is_done_all_the_same(scene_of_once, value, options, reason):
    with pytest.raises(ResultUnavailableError, match="is not available") as first:
        scene_of_once.call(value, **options)
    assert first.value.value is value
    with pytest.raises(ResultUnavailableError, match="is not available") as second:
        scene_of_once.elsewhere()
    for raised in (first, second):
        assert reason in raised.value.reason
        assert raised.value.key == "a"
    assert second.value.value is None
    assert scene_of_once.done == [value]
    known = scene_of_once.known
    assert (known.state, known.result) == ("recorded", None)
    assert reason in known.unstored


def test_reason_that_is_too_long_for_a_row_is_cut(scene_of_once):
    """Otherwise nothing would be recorded, and each call would do the work."""

    def encode(_):
        raise ValueError("no " * 200_000)

    for call in (scene_of_once.call, scene_of_once.elsewhere):
        with pytest.raises(ResultUnavailableError, match="ValueError: no no"):
            call(encode=encode)
    assert len(scene_of_once.done) == 1


def test_first_caller_gets_the_value_that_cannot_be_decoded(scene_of_once):
    decoded = []

    def decode(text):
        decoded.append(text)
        raise SpecialError

    with pytest.raises(ResultUnavailableError, match="SpecialError") as raised:
        scene_of_once.call((1,), decode=decode)
    assert (raised.value.value, decoded) == ((1,), ["[1]"])
    scene_of_once.key = "b"
    assert scene_of_once.call((1,), decode=lambda text: decoded.append(text) or "x") == "x"
    assert decoded == ["[1]"] * 2


def test_none_is_neither_encoded_nor_decoded(scene_of_once):
    for _ in range(2):
        assert scene_of_once.call(None, encode=failing, decode=failing) is None
    assert scene_of_once.raw["result"] == {"S": "null"}
    assert scene_of_once.done == [None]


def test_reason_in_a_row_does_nothing_to_a_terminal(scene_of_once):
    with pytest.raises(ResultUnavailableError):
        scene_of_once.call(math.nan)
    forged = "\x1b[2J\n" + "x" * 100_000
    There._get_connection().update_item("once#a", actions=[There.unstored.set(forged)])
    with pytest.raises(ResultUnavailableError) as raised:
        scene_of_once.elsewhere()
    assert raised.value.reason == forged
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1100


def test_result_that_cannot_be_decoded_is_not_done_again(scene_of_once):
    scene_of_once.call()
    with pytest.raises(ResultUnavailableError, match="SpecialError") as raised:
        scene_of_once.call(decode=failing)
    assert isinstance(raised.value.__cause__, SpecialError)
    with pytest.raises(ResultUnavailableError):
        Once.peek("a", model=There, decode=failing)
    assert scene_of_once.done == ["result"]


# -- by hand -------------------------------------------------------------------------------------


def test_block_by_hand(scene_of_once):
    with scene_of_once.once(owner="me") as run:
        assert (run.done, run.key, run.owner, run.abandoned_by) == (False, "a", "me", None)
        assert run.held
        assert run.fencing_token > 0
        assert repr(run).startswith("<Run 'a' in locks-")
        with pytest.raises(InvalidKeyError, match="not Run"):
            Mutex.any_of(["b", run])
        with pytest.raises(MutexError, match="'a' has no result yet"):
            print(run.result)
        assert run.complete((1,)) == [1]
        assert (run.done, run.result, run.held, run.lost) == (True, [1], False, False)
        with pytest.raises(MutexError, match="complete: 'a' has a result already"):
            run.complete(2)
        with pytest.raises(MutexError, match="transaction: 'a' has a result already"):
            run.transaction(result=2)
        assert run.done
    with scene_of_once.once() as run:
        assert (run.done, run.result, run.held) == (True, [1], False)
        with pytest.raises(MutexError, match="complete: 'a' has a result already"):
            run.complete(2)
        with pytest.raises(MutexNotHeldError, match="'a' is not held"):
            print(run.token)


def test_block_without_complete_is_an_error_and_has_failed(scene_of_once):
    with (
        pytest.raises(MutexError, match="block of 'a' ended without complete"),
        scene_of_once.once(),
    ):
        pass
    assert scene_of_once.known.state == "nothing"
    assert scene_of_once.call() == "result"


def test_run_that_died_is_named_to_the_next_one(scene_of_once):
    scene_of_once.begun(scene_of_once.once(owner="dead", lease=10, auto_renew=False))
    assert scene_of_once.known.state == "running"
    time.sleep(15)
    assert scene_of_once.known.state == "abandoned"
    with scene_of_once.other() as run:
        assert run.abandoned_by == "dead"
        run.complete(1)


def test_once_can_be_shared_by_threads(scene_of_once):
    once = scene_of_once.once()
    with ThreadPoolExecutor() as pool:
        results = [pool.submit(once.call, scene_of_once.work, n) for n in range(5)]
    assert len({each.result() for each in results}) == 1
    assert len(scene_of_once.done) == 1


def test_thread_may_leave_a_block_that_another_has_entered(scene_of_once):
    once = scene_of_once.once()
    run = scene_of_once.begun(once)
    run.complete(1)
    with ThreadPoolExecutor() as pool:
        pool.submit(once.__exit__, None, None, None).result()
    assert scene_of_once.call() == 1


# -- waiting -------------------------------------------------------------------------------------


@pytest.fixture
def working(scene_of_once):
    """Work that ends when it is to, by another thread: ``working.begin(once)``, ``working.end(result)``."""

    class Working:
        def begin(self, once):
            self.may_end, begun = threading.Event(), threading.Event()

            def work():
                begun.set()
                self.may_end.wait()
                if isinstance(self.result, BaseException):
                    raise self.result
                return scene_of_once.work(self.result)

            self.pool = ThreadPoolExecutor()
            self.called = self.pool.submit(once.call, work)
            begun.wait()

        def end(self, result):
            self.result = result
            self.may_end.set()
            self.pool.shutdown()

    return Working()


def turns(scene):
    process = current_process()
    return process.queue(process.store(scene.here), "once#a").turns


def test_those_who_wait_in_the_process_get_the_result_from_memory(scene_of_once, working):
    working.begin(scene_of_once.once())
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(scene_of_once.once().call, never) for _ in range(4)]
        until(lambda: len(turns(scene_of_once)) == 4)
        before = len(scene_of_once.proxy.log)
        working.end([1])
        results = [each.result() for each in waiting]
    assert results == [[1]] * 4
    assert len({id(each) for each in results}) == 4
    assert scene_of_once.proxy.kinds()[before:] == ["complete"]


def test_after_a_run_that_failed_the_next_in_line_begins(scene_of_once, working):
    working.begin(scene_of_once.once())
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(scene_of_once.call, n) for n in range(3)]
        until(lambda: len(turns(scene_of_once)) == 3)
        working.end(SpecialError())
        assert {each.result() for each in waiting} == {0}
    with pytest.raises(SpecialError):
        working.called.result()
    assert scene_of_once.done == [0]


def test_one_full_read_serves_all_of_a_process_who_wait_for_another(scene_of_once, working):
    scene_of_once.call(keep=1)
    time.sleep(5)
    working.begin(scene_of_once.other())
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(scene_of_once.once().call, never) for _ in range(4)]
        until(lambda: len(turns(scene_of_once)) == 4)
        time.sleep(5)
        before = len(scene_of_once.proxy.log)
        working.end("other")
        assert [each.result() for each in waiting] == ["other"] * 4
    log = scene_of_once.proxy.log[before:]
    assert {seen.op for seen in log} == {"GetItem"}
    assert [seen.body["ConsistentRead"] for seen in log] == [False] * (len(log) - 1) + [True]


def test_run_that_failed_leaves_nothing_of_its_payload_to_the_next_in_line(scene_of_once, working):
    """As a hand-over would."""
    working.begin(scene_of_once.once(payload=1))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(scene_of_once.call, payload=2)
        until(lambda: len(turns(scene_of_once)) == 1)
        working.end(SpecialError())
        waiting.result()
    assert scene_of_once.elsewhere(payload=2) == "result"


@pytest.mark.parametrize("timeout", [0, 3])
def test_timeout(scene_of_once, working, timeout):
    working.begin(scene_of_once.other())
    before = time.monotonic()
    with pytest.raises(MutexTimeoutError, match="another run of 'a' did not end within") as raised:
        scene_of_once.call(timeout=timeout)
    assert timeout <= time.monotonic() - before <= timeout + 1
    assert (raised.value.key, raised.value.owner) == ("a", "other")
    working.end(1)
    assert scene_of_once.call(timeout=timeout) == 1


def test_call_within_its_own_run_is_refused(scene_of_once):
    def nested(timeout):
        return scene_of_once.call(timeout=timeout)

    for timeout in (-1, 0, 5):
        with pytest.raises(MutexAlreadyHeldError, match="'a' is called within its own run"):
            scene_of_once.once().call(nested, timeout)
    scene_of_once.once().call(lambda: Once.for_key("b", model=scene_of_once.here).call(int))
    assert scene_of_once.known.state == "recorded"


def test_lease_is_renewed_for_as_long_as_the_work_takes(scene_of_once):
    def work():
        time.sleep(100)
        assert scene_of_once.known.state == "running"
        return 1

    assert scene_of_once.once(lease=5).call(work) == 1


def test_loss_is_reported_to_the_run(scene_of_once):
    lost = []
    with scene_of_once.once(on_lost=lost.append) as run:
        assert There.force_release("once#a")
        time.sleep(30)
        with pytest.raises(NotRecordedError):
            run.complete(1)
    assert lost == [run]
    assert run.lost


# -- payloads ------------------------------------------------------------------------------------


def test_call_with_another_payload_is_refused(scene_of_once, working):
    scene_of_once.call(payload={"a": 1, "b": [2]})
    assert scene_of_once.call(payload={"b": [2], "a": 1}) == "result"
    assert scene_of_once.call() == "result"
    with pytest.raises(PayloadMismatchError, match="has a result for another payload") as raised:
        scene_of_once.call(payload={"a": 2, "b": [2]})
    assert isinstance(raised.value, ValueError)
    assert raised.value.key == "a"
    Once.forget("a", model=There)
    working.begin(scene_of_once.other(payload=1))
    with pytest.raises(PayloadMismatchError, match="has a run for another payload"):
        scene_of_once.call(payload=2)
    working.end(SpecialError())
    # that of a run that has failed does not count, nor that of a run without
    assert scene_of_once.call(3) == 3
    assert scene_of_once.elsewhere(payload=2) == 3
    assert "payload_hash" not in scene_of_once.raw


@pytest.mark.parametrize(("result", "error"), [("one", None), (object(), ResultUnavailableError)])
def test_waiter_with_another_payload_is_refused_when_its_turn_comes(
    scene_of_once, working, result, error
):
    working.begin(scene_of_once.once(payload=1))
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(scene_of_once.call, payload=payload) for payload in (1, None, 2)]
        until(lambda: len(turns(scene_of_once)) == 3)
        working.end(result)
        raised = [each.exception() for each in waiting]
    assert [each and type(each) for each in raised] == [error, error, PayloadMismatchError]
    assert error or waiting[0].result() == waiting[1].result() == result
    assert scene_of_once.done == [result]


# -- transactions --------------------------------------------------------------------------------


@pytest.mark.real
def test_effect_and_record_are_made_together(table):
    once = Once.for_key("move", payload=1)
    with once as run:
        with run.transaction(result={"id": 7}) as transaction:
            transaction.save(LockItem("effect", token="x"))
            assert not run.done
        assert run.done
        assert run.result == {"id": 7}
    assert table.get("effect").token == "x"
    assert Once.for_key("move", payload=1).call(never) == {"id": 7}


def test_transaction_takes_two_requests(scene_of_once):
    scene_of_once.call()
    scene_of_once.key = "b"
    scene_of_once.proxy.start_anew()
    with scene_of_once.once() as run, run.transaction(result=1) as transaction:
        transaction.save(OnceItem("effect", token="x"))
    assert scene_of_once.proxy.kinds() == ["acquire", "TransactWriteItems"]


def test_run_is_done_by_whichever_of_two_attempts_has_recorded(scene_of_once):
    once = scene_of_once.once()
    with once as run:
        first, second = run.transaction(result=1), run.transaction(result=2)
        with first:
            first.save(OnceItem("effect", token="x"))
        assert (run.done, run.result) == (True, 1)
        with pytest.raises(MutexNotHeldError):
            second.__exit__(None, None, None)
        assert (run.done, run.result) == (True, 1)


def test_transaction_after_one_that_was_applied_says_that_it_wrote_nothing(scene_of_once):
    """The answer to the first one was lost. Its result stays, and the writes of the second one are not made."""
    lost = []
    once = scene_of_once.once(on_lost=lost.append)
    run = scene_of_once.begun(once)
    scene_of_once.proxy.next(drop_answer(), deny(), op="TransactWriteItems")
    for token, wrong in (("first", TransactWriteError), ("second", MutexNotHeldError)):
        transaction = run.transaction(result=token)
        transaction.save(OnceItem(token, token="x"))
        with pytest.raises(wrong) as raised:
            transaction.__exit__(None, None, None)
    assert raised.value.applied is False
    assert (run.done, run.result, run.lost, lost) == (True, "first", False, [])
    assert (There.count("first"), There.count("second")) == (1, 0)
    scene_of_once.ended(once, raised.value)
    assert scene_of_once.call() == "first"


def refused(run, wrong, *, lose=None, **how):
    """Let a transaction of a run be refused; return the error."""
    transaction = run.transaction(result=1)
    transaction.save(OnceItem("effect", token="x"), **how)
    if lose is not None:
        lose()
    with pytest.raises(wrong) as raised:
        transaction.__exit__(None, None, None)
    return raised.value


def test_transaction_that_is_refused_has_failed(scene_of_once):
    once = scene_of_once.once()
    run = scene_of_once.begun(once)
    refused(run, TransactWriteError, condition=OnceItem.token == "other")
    assert not run.done
    with pytest.raises(TypeError, match="not JSON"):
        run.transaction(result=object())
    scene_of_once.ended(once, SpecialError())
    assert scene_of_once.known.state == "nothing"
    assert scene_of_once.call() == "result"


def test_transaction_of_a_run_that_was_lost_writes_nothing(scene_of_once):
    def lose():
        assert There.force_release("once#a")
        assert scene_of_once.elsewhere() == "other"

    once = scene_of_once.once(auto_renew=False)
    error = refused(scene_of_once.begun(once), NotRecordedError, lose=lose)
    scene_of_once.ended(once, error)
    assert error.applied is False
    assert not There.count("effect")
    assert scene_of_once.known.result == "other"


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "wrong", "why"),
    [
        ({"keep": None}, TypeError, "keep must be a number of seconds, not None"),
        ({"keep": 0}, ValueError, "keep must be above 0 seconds"),
        ({"keep": -1}, ValueError, "keep must be above 0 seconds"),
        ({"keep": math.nan}, ValueError, "finite"),
        ({"keep": 1e12}, ValueError, "100 years"),
        ({"keep": timedelta(0)}, ValueError, "keep must be above 0 seconds"),
        ({"on_abandoned": "skip"}, ValueError, "on_abandoned is 'run' or 'raise', not 'skip'"),
        ({"encode": "json"}, TypeError, "encode must be callable, not 'json'"),
        ({"decode": None}, TypeError, "decode must be callable, not None"),
        ({"model": LockItem}, TypeError, "model must be OnceItem or a subclass of it"),
        ({"payload": object()}, TypeError, "payload must be JSON: .* not JSON serializable"),
        ({"payload": math.inf}, ValueError, "payload must be JSON: .* not JSON compliant"),
        ({"lease": 0.1}, ValueError, "lease"),
        ({"timeout": -2}, ValueError, "timeout"),
        *(
            ({name: True}, TypeError, f"got an unexpected keyword argument '{name}'")
            for name in ("fair", "reentrant", "delete_on_release", "data", "nonsense")
        ),
    ],
)
def test_wrong_options_are_refused(options, wrong, why):
    with pytest.raises(wrong, match=why):
        Once.for_key("a", **options)


@pytest.mark.parametrize("key", ["", None, 5, "x" * 2044, "\ud800"])
def test_wrong_keys_are_refused(key):
    with pytest.raises(InvalidKeyError) as raised:
        Once.for_key(key)
    assert not isinstance(key, str) or key == "\ud800" or "1 to 2043 bytes" in str(raised.value)
    assert Once.for_key("x" * 2043).key


def test_handles_are_made_and_described(silence, table):
    once = Once.for_key("a")
    assert once.key == "a"
    assert repr(once) == f"<Once 'a' in {table.Meta.table_name}>"
    with pytest.raises(TypeError, match="for_key"):
        Once("a")
    with pytest.raises(TypeError, match=r"Once\.for_key"):
        Run()
    with pytest.raises(TypeError, match=r"cannot be pickled: .* by Once\.for_key"):
        pickle.dumps(once)


def test_generators_are_refused(scene_of_once, silence):
    with pytest.raises(TypeError, match="generator"):
        scene_of_once.once().call(lambda: (yield))


def test_coroutines_are_refused(scene_of_once, silence):
    async def work():
        pass

    with pytest.raises(TypeError, match="an async function needs an AsyncOnce"):
        scene_of_once.once().call(work)


def test_hidden_coroutine_is_refused_and_nothing_recorded(scene_of_once):
    async def work():
        pass

    with pytest.raises(TypeError, match="returned a coroutine"):
        scene_of_once.once().call(lambda: work())  # noqa: PLW0108 - hides that it is async
    assert scene_of_once.known.state == "nothing"
