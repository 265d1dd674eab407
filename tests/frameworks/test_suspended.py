"""Functions that a framework ends in the middle, and runs again from their start."""

import importlib
import threading
from contextlib import ExitStack

import pytest

from pynamodb_mutex import Mutex, Once
from pynamodb_mutex._lock.handles import _SUSPEND

HOMES = {
    "aws_durable_execution_sdk_python": "aws_durable_execution_sdk_python.exceptions",
    "inngest": "inngest._internal.step_lib.base",
    "langgraph": "langgraph.errors",
    "prefect": "prefect.exceptions",
}


@pytest.mark.parametrize(("package", "name"), sorted(_SUSPEND))
def test_exception_has_the_name_by_which_a_suspension_is_known(package, name):
    """So that the list cannot age in silence."""
    kind = getattr(importlib.import_module(HOMES[package]), name)
    assert issubclass(kind, BaseException)
    assert (kind.__module__.partition(".")[0], kind.__name__) == (package, name)


def warnings(caplog):
    return [each.getMessage() for each in caplog.records if "suspends your" in each.getMessage()]


def test_interrupt_of_langgraph_in_a_block_releases_the_lock_and_is_reported(table, caplog):
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.graph import START, StateGraph
    from langgraph.types import Command, interrupt

    fences = []

    def node(_):
        with Mutex.for_key("order-7", timeout=10) as mutex:
            fences.append(mutex.fencing_token)
            return {"answer": interrupt("ship it?"), "held": mutex.held}

    graph = StateGraph(dict)
    graph.add_node(node)
    graph.add_edge(START, "node")
    graph = graph.compile(checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "7"}}
    graph.invoke({}, thread)
    assert not Mutex.for_key("order-7").locked()
    (warning,) = warnings(caplog)
    assert warning.startswith("'order-7' in pynamodb-mutex: GraphInterrupt suspends your function")
    assert graph.invoke(Command(resume="yes"), thread) == {"answer": "yes", "held": True}
    assert fences[0] < fences[1]


def test_durable_function_holds_a_lock_across_its_wait_by_a_ticket_alone(table, caplog):
    from aws_durable_execution_sdk_python import durable_execution
    from aws_durable_execution_sdk_python.config import Duration
    from aws_durable_execution_sdk_python_testing import DurableFunctionTestRunner

    locked, done = [], []

    def reserve(_):
        with Mutex.for_key("order-8", timeout=10, owner="the run") as mutex:
            return mutex.detach(lease=600)

    def finish(ticket):
        with Mutex.attach(ticket, lease=30) as mutex:
            done.append(mutex.key)

    @durable_execution
    def handler(event, context):
        ticket = context.step(reserve, name="reserve")
        locked.append(Mutex.for_key("order-8").locked())
        with Mutex.for_key("order-9", timeout=10):
            context.wait(Duration.from_seconds(1), name="wait")
        context.step(lambda _: finish(ticket), name="finish")
        return "done"

    with DurableFunctionTestRunner(handler=handler) as runner:
        result = runner.run(input="{}", execution_timeout=60)
    assert result.status.name == "SUCCEEDED"
    # the function ran twice, and held the key of its ticket all the time
    assert (locked, done) == ([True, True], ["order-8"])
    assert not Mutex.for_key("order-8").locked()
    (warning,) = warnings(caplog)
    assert warning.startswith("'order-9' in pynamodb-mutex: ")
    assert "SuspendExecution suspends your function" in warning


# -- a transaction that outlives the lock ----------------------------------------------------------


@pytest.fixture
def balance(configured_django):
    write(100)


def read():
    from django.db import connection

    with connection.cursor() as cursor:
        return cursor.execute("SELECT balance FROM account").fetchone()[0]


def write(balance):
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("UPDATE account SET balance = %s", [balance])


def on_thread(call):
    from django.db import connection

    found = []

    def run():
        found.append(call())
        connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("is_inside", [True, False], ids=["commit inside", "commit outside"])
def test_what_is_committed_inside_the_block_is_what_the_next_holder_reads(
    table, balance, is_inside
):
    from django.db import transaction

    def next_holder():
        with Mutex.for_key("account", timeout=10):
            return read()

    with ExitStack() as request:
        if not is_inside:  # as ATOMIC_REQUESTS does
            request.enter_context(transaction.atomic())
        with ExitStack() as block:
            block.enter_context(Mutex.for_key("account", timeout=10))
            if is_inside:
                block.enter_context(transaction.atomic())
            write(read() - 10)
        seen = on_thread(next_holder)
    assert seen == (90 if is_inside else 100)
    assert read() == 90


@pytest.mark.parametrize("is_inside", [True, False], ids=["commit inside", "commit outside"])
def test_work_of_once_is_done_if_it_is_committed_before_its_result_is_recorded(
    table, balance, is_inside
):
    from django.db import transaction

    def work():
        with transaction.atomic() if is_inside else ExitStack():
            write(read() + 1)

    def view():
        with ExitStack() if is_inside else transaction.atomic():
            Once.for_key("work").call(work)
            raise RuntimeError("later in the view")

    with pytest.raises(RuntimeError, match="later in the view"):
        view()
    assert Once.peek("work").state == "recorded"
    assert read() == (101 if is_inside else 100)
