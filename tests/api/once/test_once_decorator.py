"""The decorator ``once``: the key is made from the arguments of a call."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import importlib
import itertools
import runpy
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, Protocol, TypedDict, TypeVar

import pytest
from once_scene import There
from processes import run_script

from pynamodb_mutex import InvalidKeyError, Once, PayloadMismatchError, once, synchronized

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
    with pytest.raises(ValueError, match=r"the payload '\{nonsense\}': .* no parameter"):
        once("about-{number}", payload="{nonsense}")(lambda number: number)


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
        *(("{order_id}", empty) for empty in ([], (), {})),
    ],
)
def test_field_of_the_key_that_is_none_or_empty_is_refused(table, template, argument):
    charge, done = decorated(template)
    with pytest.raises(InvalidKeyError, match="calls that are not about the same would share"):
        charge(argument)
    assert done == []
    charge("full" if template != "{order_id.id}" else Order(1))


def generator():
    yield


class Shown:
    """Something with a text of its own, as ``str`` makes it."""

    def __str__(self):
        return "shown"


class Color(enum.Enum):
    """Something whose ``repr`` has an address, but not its text."""

    RED = object()


@dataclasses.dataclass
class Point:
    x: int


NO_TEXT = [
    *[("{it}", Order(1)), ("{it!r}", Order(1)), ("{it!s:>9}", Order(1)), ("{it!r}", Shown())],
    *[("{it.id}", Order(Order(1))), ("{it[0]}", [Order(1)]), ("{it}", [Order(1)])],
    *[("{it}", iter([1])), ("{it}", generator()), ("{it}", map(int, "1")), ("{it}", generator)],
    *[
        ("{it}", Order(1).__init__),
        ("{it}", {"a"}),
        ("{it!s}", frozenset("a")),
        ("{it.id}", Order({1})),
    ],
]


@pytest.mark.parametrize("decorator", [once, synchronized])
@pytest.mark.parametrize(("template", "argument"), NO_TEXT)
def test_value_without_a_text_of_its_own_is_refused(table, decorator, template, argument):
    """Python gives its address to another object as soon as it is gone: one customer would get another's result."""
    called = []
    named = f"{next(names)}-{template}"

    @decorator(named)
    def work(it):
        called.append(it)

    with pytest.raises(
        InvalidKeyError, match=r"write what identifies it, such as \{user.id\}"
    ) as raised:
        work(argument)
    assert f"the key {named!r}: " in str(raised.value)
    assert called == []


@pytest.mark.parametrize("decorator", [once, synchronized])
def test_method_of_an_object_without_a_text_is_refused(table, decorator):
    class Shop:
        @decorator(f"{next(names)}-{{self}}")
        def work(self):
            raise AssertionError

    with pytest.raises(InvalidKeyError, match="Shop object"):
        Shop().work()


TEXTS = [
    *[(1, "1"), (decimal.Decimal("1.50"), "1.50"), (True, "True"), (b"a", "b'a'"), ([1], "[1]")],
    *[(Color.RED, "Color.RED"), (uuid.UUID(int=1), str(uuid.UUID(int=1))), (Shown(), "shown")],
    *[(dt.date(2026, 1, 2), "2026-01-02"), (Point(1), "Point(x=1)")],
    ("a text <of an object at 0x7f3a>", "a text <of an object at 0x7f3a>"),
]


@pytest.mark.parametrize(("argument", "text"), TEXTS)
def test_value_with_a_text_of_its_own_is_a_part_of_the_key(table, argument, text):
    number = next(names)

    @once(f"{number}-{{it}}")
    def work(it):
        return 1

    work(argument)
    assert Once.peek(f"{number}-{text}").state == "recorded"


@pytest.mark.parametrize("decorator", [once, synchronized])
@pytest.mark.parametrize("template", ["{it[id]}", "{it[items][5]}", "{it.id}", "{it[id][id]}"])
def test_missing_field_is_named(table, decorator, template):
    def work(it):
        raise AssertionError

    argument = {"items": [1]} if "[id][id]" not in template else {"id": 5}
    with pytest.raises(InvalidKeyError) as raised:
        decorator(f"{next(names)}-{template}")(work)(argument)
    assert f"this call has no {template}: " in str(raised.value)


def test_decorator_without_parentheses_is_refused():
    """``charge`` would be a decorator, and ``charge(order)`` return a function."""

    @once
    def charge(order):
        raise AssertionError

    with pytest.raises(
        TypeError, match=r"once needs a template for the key, not <function .*charge"
    ):
        charge({"id": 1})


MODULE = """
from pynamodb_mutex import once

@once("twice-{number}")
def work(number):
    return number
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a package of two modules with a function of one name and template each; return its name and folder."""
    name = f"of_once_{next(names)}"
    folder = tmp_path / name
    folder.mkdir()
    for module in ("jobs", "other"):
        text = MODULE.replace("twice", f"twice-{name}")
        (folder / f"{name}_{module}.py").write_text(text)
    for path in (tmp_path, folder):
        monkeypatch.syspath_prepend(path)
    yield name, folder
    for module in [each for each in sys.modules if name in each]:
        del sys.modules[module]


def test_module_that_is_started_and_imported_again_is_one(package):
    name, folder = package
    runpy.run_path(str(folder / f"{name}_jobs.py"), run_name="__main__")
    importlib.import_module(f"{name}.{name}_jobs")
    importlib.import_module(f"{name}_jobs")  # the package is reached by two paths


def test_functions_of_one_name_in_two_modules_cannot_share_a_template(package):
    name, _ = package
    importlib.import_module(f"{name}_jobs")
    with pytest.raises(
        ValueError, match=rf"is the key of .*{name}_jobs.py:work already: .*other.py:work"
    ):
        importlib.import_module(f"{name}_other")


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
        ({"key": ""}, InvalidKeyError),
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


class Level(enum.Enum):
    """Something that JSON does not carry."""

    LOW = 1


@dataclasses.dataclass
class Receipt:
    """Something else that it does not."""

    number: int


class Rated(TypedDict):
    """A dict, whose fields nobody looks into."""

    level: Level


class Named(str, Generic[TypeVar("Kind")]):
    """Text about a class."""

    __slots__ = ()


class Sized(Protocol):
    """What a list may be."""

    def __len__(self) -> int: ...


@pytest.mark.parametrize(
    "returned",
    [
        *(Receipt, Level, dt.datetime, decimal.Decimal, uuid.UUID, bytes, set),
        *(list[Receipt], "dict[str, Receipt]", Receipt | None, int | dt.date, set[str]),
    ],
)
def test_function_that_returns_what_json_cannot_carry_is_refused_at_once(returned):
    def work(number): ...

    work.__annotations__["return"] = returned
    with pytest.raises(TypeError, match=r"work returns \w+, which JSON cannot carry: give once an"):
        once(f"{next(names)}-{{number}}")(work)
    once(f"{next(names)}-{{number}}", encode=str, decode=str)(work)


@pytest.mark.parametrize(
    "returned",
    [
        *(None, int, bool, str, float, enum.IntEnum, object, Any, Mapping, Rated, Sized, list),
        *(int | None, dict[str, Any], Sequence[str], Literal["a"], TypeVar("T"), "imported.Later"),
        *(Named[Receipt], Order, Callable[[Receipt], str]),
    ],
)
def test_function_whose_result_json_may_carry_is_accepted(returned):
    def work(number): ...

    work.__annotations__["return"] = returned
    once(f"{next(names)}-{{number}}")(work)


def test_annotation_of_a_function_below_another_decorator_is_not_that_of_its_result():
    def as_json(function):
        @functools.wraps(function)
        def call(number):
            return dataclasses.asdict(function(number))

        return call

    @once(f"{next(names)}-{{number}}")
    @as_json
    def receipt(number) -> Receipt:
        return Receipt(number)

    assert receipt.__wrapped__ is not None


SCRIPT = """
import sys
from pynamodb_mutex import once
once("a-{n}")(lambda n: n)
print("asyncio" in sys.modules)
"""


def test_function_that_is_not_async_loads_no_asyncio():
    """That would take longer than all else of ``once``, in each cold start."""
    assert run_script(SCRIPT).stdout == "False\n"
