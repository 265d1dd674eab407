"""A lock table's own attributes, given lock by lock; and locks that are acquired only if their row exists."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone

import pytest
from command_line import cli, json_of
from pynamodb import attributes as types
from test_lock_item import subclass
from waits import until

from pynamodb_mutex import LockItem, Mutex, Semaphore, signals
from pynamodb_mutex.testing import expire, held_elsewhere


class Place(types.MapAttribute):
    zone = types.UnicodeAttribute()


@pytest.fixture
def rich(engine):
    return subclass(
        purpose=types.UnicodeAttribute(default="none", attr_name="p"),
        pages=types.NumberAttribute(null=True),
        urgent=types.BooleanAttribute(null=True),
        blob=types.BinaryAttribute(null=True, legacy_encoding=False),
        tags=types.UnicodeSetAttribute(null=True),
        parts=types.ListAttribute(null=True),
        place=Place(null=True),
        due=types.UTCDateTimeAttribute(null=True),
    )


ALL = {
    "purpose": "export",
    "pages": 7,
    "urgent": False,
    "blob": b"\xff",
    "tags": {"a", "b"},
    "parts": [1, "x"],
    "place": {"zone": "a"},
    "due": datetime(2030, 1, 2, tzinfo=timezone.utc),
}


def values(item):
    found = {name: getattr(item, name) for name in ALL}
    found["place"] = None if item.place is None else item.place.as_dict()
    return found


def test_attributes_are_written_with_the_claim_and_stay_until_others_are_given(rich):
    with Mutex.for_key("a", model=rich, attributes=ALL):
        (item,) = rich.held()
        assert values(item) == ALL
    with Mutex.for_key("a", model=rich, attributes={"pages": 8}):
        assert values(next(rich.held())) == ALL | {"pages": 8}
    with Mutex.for_key("a", model=rich):
        assert values(next(rich.held())) == ALL | {"pages": 8}
    with Mutex.for_key("b", model=rich):
        assert next(rich.held("b")).purpose == "none"
    with Mutex.for_key("b", model=rich, attributes={"pages": 9}, must_exist=True):
        assert next(rich.held("b")).pages == 9


def test_attributes_at_hand_over_attach_and_in_groups(rich):
    def lock(purpose):
        return Mutex.for_key("a", model=rich, attributes={"purpose": purpose})

    def purposes():
        return [item.purpose for item in rich.held()]

    with lock("first") as first, ThreadPoolExecutor() as pool:
        second = lock("second")
        waiting = pool.submit(second.acquire, timeout=20)
        until(lambda: first._mine().contender.queue.turns)
        first.release()
        assert waiting.result()
        assert purposes() == ["second"]
        ticket = second.detach()
        with Mutex.attach(ticket, model=rich, attributes={"purpose": "third"}) as third:
            assert purposes() == ["third"]
            ticket = third.detach()
        with Mutex.attach(ticket, model=rich):
            assert purposes() == ["third"]
        first.acquire()
    with Mutex.for_keys(["a", "b"], model=rich, attributes={"purpose": "both"}):
        assert purposes() == ["both", "both"]
    with Mutex.any_of(["a", "b"], model=rich, attributes={"purpose": "any"}):
        assert purposes() == ["any"]
    with Mutex.for_key("a", model=rich, fair=True, attributes={"purpose": "fair"}):
        assert purposes() == ["fair"]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"nothing": 1}, TypeError, "no attribute 'nothing' of its own: it has 'blob', 'due', "),
        *(({name: "x"}, TypeError, f"no attribute '{name}'") for name in ("owner", "data", "key")),
        ({"purpose": 7}, TypeError, r"\.purpose cannot be 7: it is stored as S"),
        ({"purpose": None}, TypeError, r"\.purpose cannot be None"),
        ({"purpose": "\ud800"}, ValueError, r"\.purpose cannot be .*surrogates not allowed"),
        ({"pages": "7"}, ValueError, r"\.pages cannot be '7': it is stored as N"),
        ({"pages": float("inf")}, TypeError, r"\.pages cannot be inf"),
        ({"pages": True}, (TypeError, ValueError), r"\.pages cannot be True"),
        ({"urgent": "yes"}, TypeError, r"\.urgent cannot be 'yes'"),
        ({"blob": "x"}, TypeError, r"\.blob cannot be 'x'"),
        ({"tags": set()}, TypeError, r"\.tags cannot be set\(\)"),
        ({"parts": 5}, TypeError, r"\.parts cannot be 5"),
        ({"place": 5}, TypeError, r"\.place cannot be 5"),
        ({"due": "tomorrow"}, TypeError, r"\.due cannot be 'tomorrow'"),
        (["purpose"], TypeError, "attributes must be a dict of values by name"),
    ],
)
def test_wrong_attributes_are_refused_by_name_before_any_request(rich, given, error, text, sent):
    before = len(sent)
    with pytest.raises(error, match=text):
        Mutex.for_key("a", model=rich, attributes=given)
    assert len(sent) == before


def test_attribute_of_a_model_that_has_none_of_its_own():
    with pytest.raises(TypeError, match=r"of its own: it has none; declare it in a subclass$"):
        Mutex.for_key("a", attributes={"purpose": "x"})


def test_attributes_in_signals_and_the_command_line(rich, monkeypatch):
    events = []

    def receiver(_, **event):
        events.append((event["key"], event["attributes"]))

    with signals.acquired.connected_to(receiver), signals.released.connected_to(receiver):
        with Mutex.for_key("a", model=rich, attributes={"purpose": "export"}):
            pass
        with Mutex.for_key("b", model=rich):
            pass
    assert events == [*[("a", {"purpose": "export"})] * 2, *[("b", None)] * 2]
    monkeypatch.setitem(globals(), "Rich", rich)
    where = ("--model", f"{__name__}:Rich", "show", "a")
    assert json_of(*where)["attributes"] == {"purpose": "export"}
    assert 'purpose:        "export"' in cli(*where).stdout
    raw = {"key": {"S": "c"}, "token": {"S": "t"}, "version": {"N": "1"}, "due": {"N": "5"}}
    rich._get_connection().connection.client.put_item(TableName=rich.Meta.table_name, Item=raw)
    assert json_of(*where[:-1], "c")["attributes"] == {"due": {"N": "5"}}


def test_lock_that_must_have_a_row(table):
    mutex = Mutex.for_key("a", must_exist=True)
    for acquire in (lambda: mutex.acquire(blocking=False), mutex.acquire, mutex.__enter__):
        with pytest.raises(LockItem.DoesNotExist, match="'a': no such row to lock"):
            acquire()
    with pytest.raises(LockItem.DoesNotExist):
        Mutex.for_key("a", must_exist=True, fair=True).acquire()
    with pytest.raises(LockItem.DoesNotExist, match="'a': no such row"):
        Mutex.for_keys([mutex, "b"]).acquire()
    assert list(table.scan()) == []
    with held_elsewhere("a"):
        assert mutex.acquire(blocking=False) is False
        expire("a")
        assert mutex.acquire(blocking=False)
    mutex.release()
    with mutex:
        pass
    with Mutex.for_keys([mutex, "b"]):
        pass
    Mutex.for_key("a", must_exist=True, fair=True).acquire()


def test_must_exist_where_it_cannot_be(table):
    with pytest.raises(TypeError, match="needs the row that delete_on_release=True deletes"):
        Mutex.for_key("a", must_exist=True, delete_on_release=True)
    with pytest.raises(TypeError, match="must_exist=True is for one key"):
        Mutex.any_of(["a", "b"], must_exist=True)
    with pytest.raises(TypeError, match="must_exist=True is for one key"):
        Semaphore.for_key("a", permits=2, must_exist=True)


def test_row_that_is_deleted_while_one_waits_for_it(table):
    mutex = Mutex.for_key("a", must_exist=True)
    with Mutex.for_key("a", delete_on_release=True) as holder, ThreadPoolExecutor() as pool:
        waiting = pool.submit(mutex.acquire, timeout=20)
        until(lambda: holder._mine().contender.queue.turns)
        table.get("a").delete()
        with pytest.raises(LockItem.DoesNotExist):
            waiting.result()
        holder._mine().forget()
