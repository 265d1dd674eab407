"""The decorator ``once``: the key is made from the arguments of a call."""

import asyncio
import contextlib
import itertools
import time

import pytest
from once_scene import There
from processes import run_script

from pynamodb_mutex import InvalidKeyError, PayloadMismatchError, once

names = itertools.count()


class Order:
    """Something with an id."""

    def __init__(self, number):
        self.id = number


def decorated(template="charge-{order_id}", **options):
    """Return a function that is called once, and what it was called with."""
    done = []

    def charge(order_id, amount=1, *, note=""):
        done.append((order_id, amount, note))
        return len(done)

    charge.__qualname__ = f"charge_{next(names)}"
    # each test has a function, and so a template, of its own
    return once(f"{next(names)}-{template}", **options)(charge), done


@pytest.mark.real("simulated", "embedded")
def test_each_key_is_charged_once(table):
    charge, done = decorated()
    assert [charge(1), charge(1, 5), charge(order_id=1), charge(2, note="x")] == [1, 1, 1, 2]
    assert done == [(1, 1, ""), (2, 1, "x")]
    assert charge.__name__ == "charge"


def test_coroutines(table):
    done = []

    @once("coroutines-{number}")
    async def work(number):
        await asyncio.sleep(1)
        done.append(number)
        return number

    async def main():
        return await asyncio.gather(*(work(n % 2) for n in range(6)))

    assert asyncio.run(main()) == [0, 1] * 3
    assert sorted(done) == [0, 1]
    assert asyncio.iscoroutinefunction(work)


def test_payload_template_and_functions(table):
    charge, _ = decorated(payload="{amount}")
    assert charge(1, 5) == charge(1, 5) == 1
    with pytest.raises(PayloadMismatchError):
        charge(1, 6)
    done = []

    @once(
        lambda order, **_: f"function-{order.id}",
        payload=lambda order, **more: {"order": order.id, **more},
    )
    def refund(order, **_):
        done.append(order.id)

    assert refund(Order(1), why="x") is refund(Order(1), why="x") is None
    assert done == [1]
    with pytest.raises(PayloadMismatchError):
        refund(Order(1), why="y")
    with pytest.raises(InvalidKeyError):
        once(lambda: "")(int)()


def test_options_are_those_of_a_key(table):
    charge, done = decorated(keep=10, lease=5, model=There)
    assert charge(1) == charge(1) == 1
    time.sleep(15)
    assert charge(1) == 2
    assert len(done) == 2


@pytest.mark.parametrize(
    ("template", "argument"),
    [
        ("{order_id}", None),
        ("{order_id}", ""),
        ("{order_id.id}", Order(None)),
        ("{order_id!s}", None),
    ],
)
def test_field_of_the_key_that_is_none_or_empty_is_refused(table, template, argument):
    charge, done = decorated(template)
    with pytest.raises(InvalidKeyError, match="calls that are not about the same would share"):
        charge(argument)
    assert done == []
    charge("full" if template != "{order_id.id}" else Order(1))


def test_two_functions_cannot_share_a_template():
    def one(number):
        return number

    def two(number):
        return number

    once("shared-{number}")(one)
    once("shared-{number}")(one)  # a module that is loaded again
    with pytest.raises(ValueError, match=r"'shared-\{number\}' is the key of .*one already: .*two"):
        once("shared-{number}")(two)
    once("shared-{number}", model=There)(two)  # another table


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"key": None}, TypeError),
        ({"key": "a", "payload": 5}, TypeError),
        ({"key": "a", "fair": True}, TypeError),
        ({"key": "a", "keep": -1}, ValueError),
        ({"key": "a", "model": dict}, TypeError),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments, wrong):
    with pytest.raises(wrong):
        once(**arguments)


@contextlib.contextmanager
def manager():
    yield


@pytest.mark.parametrize(
    ("template", "function", "wrong"),
    [
        ("{", int.bit_length, ValueError),
        ("{nonsense}", lambda number: number, ValueError),
        ("a", lambda: (yield), TypeError),
        ("a", staticmethod(int), TypeError),
        ("a", classmethod(int), TypeError),
        ("a", manager, TypeError),
    ],
)
def test_wrong_templates_and_functions_are_refused_at_once(template, function, wrong):
    with pytest.raises(wrong):
        once(template)(function)


SCRIPT = """
import sys
from pynamodb_mutex import once
once("a-{n}")(lambda n: n)
print("asyncio" in sys.modules)
"""


def test_function_that_is_not_async_loads_no_asyncio():
    """That would take longer than all else of ``once``, in each cold start."""
    assert run_script(SCRIPT).stdout == "False\n"
