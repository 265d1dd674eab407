"""Keys of ``once`` as tests need them: with a result, with a run that died, with a run of another process."""

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from pynamodb.attributes import UnicodeAttribute

from pynamodb_mutex import (
    LockItem,
    MutexTimeoutError,
    NotRecordedError,
    Once,
    OnceItem,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from pynamodb_mutex.testing import recorded, run_elsewhere, unknown_run


class Shop(OnceItem):
    Meta = type("Meta", (), {"table_name": "shop-results"})
    note = UnicodeAttribute(null=True)


@pytest.fixture(params=[OnceItem, Shop])
def model(request, table):
    if request.param is Shop:
        Shop._connection = None
        Shop.create_table(wait=True)
    yield request.param
    if request.param is Shop:
        Shop.delete_table()


def never():
    raise AssertionError("this was to be done already")


def test_recorded_replaces_what_there_was(model):
    once = Once.for_key("k", model=model)
    recorded("k", [1], model=model)
    assert once.call(never) == [1]
    recorded("k", {"id": 2}, keep=math.inf, model=model)
    assert (once.call(never), Once.peek("k", model=model).until) == ({"id": 2}, None)
    unknown_run("k", model=model)
    recorded("k", None, model=model)
    assert (once.call(never), Once.peek("k", model=model).state) == (None, "recorded")
    # of the model's own table alone
    assert (Once.peek("k").state == "recorded") == (model is OnceItem)


def test_recorded_is_what_who_waits_for_a_run_gets(model):
    with run_elsewhere("k", model=model), ThreadPoolExecutor() as pool:
        waiting = pool.submit(Once.for_key("k", model=model).call, never)
        recorded("k", "done elsewhere", model=model)
        assert waiting.result() == "done elsewhere"
    assert Once.peek("k", model=model).result == "done elsewhere"


def test_recorded_by_another_is_a_loss_of_the_run_here(table):
    with pytest.raises(NotRecordedError) as raised:
        Once.for_key("k").call(lambda: recorded("k", "theirs") or "ours")
    assert (raised.value.value, raised.value.applied) == ("ours", False)
    assert Once.peek("k").result == "theirs"


def test_unknown_run_is_for_somebody_to_decide(model):
    recorded("k", 1, model=model)
    unknown_run("k", owner="worker-7", model=model)
    known = Once.peek("k", model=model)
    assert (known.state, known.owner) == ("unknown", "worker-7")
    with pytest.raises(OutcomeUnknownError) as raised:
        Once.for_key("k", model=model).call(never)
    assert raised.value.owner == "worker-7"
    assert Once.forget("k", model=model)
    assert Once.for_key("k", model=model).call(lambda: 2) == 2


def test_run_elsewhere_is_under_way_as_in_another_process(model):
    recorded("k", 1, model=model)
    with run_elsewhere("k", payload=5, owner="cron", lease=600, model=model):
        known = Once.peek("k", model=model)
        assert (known.state, known.owner) == ("running", "cron")
        with pytest.raises(MutexTimeoutError, match="by 'cron'"):
            Once.for_key("k", timeout=0, model=model).call(never)
        with pytest.raises(PayloadMismatchError):
            Once.for_key("k", payload=6, model=model).call(never)
    assert Once.peek("k", model=model).state == "nothing"


def test_run_elsewhere_ends_whatever_the_test_does(table):
    with pytest.raises(LookupError), run_elsewhere("k"):
        raise LookupError
    assert Once.for_key("k", timeout=0).call(lambda: 1) == 1
    with run_elsewhere("k"):
        Once.forget("k", force=True)
    with run_elsewhere("k"):
        LockItem.delete_table()


def test_fake_clock_suspends_a_run_and_ends_no_result(table, fake_clock):
    def suspended():
        fake_clock.advance(31)
        return "done"

    # DynamoDB decides, which has seen no other run, and its time has not passed
    once = Once.for_key("k", keep=60)
    assert once.call(suspended) == "done"
    fake_clock.advance(3600)
    assert once.call(never) == "done"
