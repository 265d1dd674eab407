"""LockItem: what items and the table say of who holds what, breaking a claim; and its subclasses."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import cache, partial
from itertools import product

import pytest
from pynamodb import attributes as types
from pynamodb.settings import default_settings_dict
from this_process import RENEWAL_WORKERS, TASK_WORKERS, forget_everything, store_for
from two_clients import Elsewhere
from waits import until

from pynamodb_mutex import LockItem, Mutex, MutexLostError, models
from pynamodb_mutex.testing import expire, held_elsewhere


def keys(items):
    return sorted(item.key for item in items)


def test_item_says_whether_it_is_held_and_until_when(table):
    assert table("a", token="theirs", expires_at=time.time() + 20).since is None
    item = table("a")
    assert (item.is_held, item.remaining, item.expires) == (False, 0.0, None)
    with Mutex.for_key("a", lease=20, owner="me", auto_renew=False) as mutex:
        item = table.get("a")
        assert (item.is_held, item.owner) == (True, "me")
        # until it may be taken over: somewhat later than its holder stops to believe
        before = item.remaining
        assert mutex.remaining <= before <= 20 + 3
        assert item.expires == datetime.fromtimestamp(item.expires_at, tz=timezone.utc)
        # by the engine's clock, which is this machine's
        assert abs(time.time() - item.since.timestamp()) < 60
        assert item.expires.utcoffset() == item.since.utcoffset() == timedelta(0)
        time.sleep(10)
        assert item.remaining == pytest.approx(before - 10)
        mutex.renew()
        assert table.get("a").since == item.since
        assert item.is_held
        time.sleep(15)
        assert not item.is_held
    item.refresh()
    assert (item.is_held, item.remaining, item.owner) == (False, 0.0, None)
    assert item.expires is item.since is None
    with held_elsewhere("a"):
        expire("a")
        item = table.get("a")
        assert (item.is_held, item.remaining) == (False, 0.0)
        assert item.expires == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)


def test_process_without_any_answer_yet_asks_for_the_time_once(table, wire):
    with held_elsewhere("a", lease=20):
        item = table.get("a")
        forget_everything()
        wire.sent.clear()
        assert 10 < item.remaining < 25
        assert item.is_held
        assert wire.sent == ["GetItem"]
        forget_everything()
        assert keys(table.held()) == ["a"]
        # without server time the lease is what is known
        wire.drop_dates("GetItem")
        assert item.remaining == pytest.approx(20, abs=0.1)
        assert item.is_held
        wire.after.clear()
        expire("a")
        item = table.get("a")
        forget_everything()
        assert not item.is_held


def test_held_gives_what_is_held_now_page_by_page(table, sent):
    held = table.held()
    assert sent == []
    assert (list(held), sent) == ([], ["Scan"])
    with Mutex.for_key("free"):
        pass
    # each page but the last one ends after a megabyte
    for number in range(3):
        Mutex.for_key(f"large{number}", data="x" * 390_000).acquire()
    sent.clear()
    with Mutex.for_key("a", owner="me"), held_elsewhere("b", owner="they"), held_elsewhere("c"):
        expire("c")
        items = list(table.held())
        assert keys(items) == ["a", "b", "large0", "large1", "large2"]
        assert {item.owner for item in items} >= {"me", "they"}
        assert all(isinstance(item, table) and item.is_held for item in items)
    assert sent.count("Scan") == 2


def test_force_release_breaks_a_claim_once_also_one_that_has_ended(table):
    mutex = Mutex.for_key("a", data={"page": 3})
    assert mutex.force_release() is LockItem.force_release("a") is False
    with mutex:
        pass
    ways = (mutex.force_release, partial(LockItem.force_release, "a"))
    for force_release, has_ended in product(ways, (False, True)):
        with held_elsewhere("a") as item:
            if has_ended:
                expire("a")
            assert (force_release(), force_release(), mutex.locked()) == (True, False, False)
            broken = table.get("a")
            assert (broken.data, broken.version) == ({"page": 3}, item.version + 1)
            assert broken.expires_at is None
            assert has_ended or broken.ttl.timestamp() > time.time() + 3600
            with mutex:
                # the claim was given up, not abandoned
                assert (mutex.fencing_token, mutex.abandoned) == (item.version + 2, False)


def test_force_release_of_an_old_claim_does_not_reach_a_newer_holder_of_this_process(table, wire):
    old, new = Mutex.for_key("a", model=Elsewhere), Mutex.for_key("a")
    old.acquire()

    def taken_over():
        expire("a")
        new.acquire(blocking=False)

    wire.before["UpdateItem"] = taken_over
    assert (table.force_release("a"), new.held) == (False, True)
    new.release()
    with pytest.raises(MutexLostError):
        old.release()
    old.acquire()
    # taken when the claim has just been broken
    wire.after["UpdateItem"] = lambda _: wire.after.clear() or new.acquire(blocking=False)
    assert (table.force_release("a"), new.held) == (True, True)


# -- subclasses -------------------------------------------------------------------------------------


def derived(model, *bases, meta=None, **its_own):
    """Return a subclass of a lock table whose Meta has these bases."""
    return type("Sub", (model,), {"Meta": type("Meta", bases, meta or {}), **its_own})


def subclass(*, meta=None, **its_own):
    """Return a subclass of LockItem with a table of its own."""
    named = {"table_name": f"locks-{uuid.uuid4().hex}", **(meta or {})}
    model = derived(LockItem, LockItem.Meta, meta=named, **its_own)
    model.create_table()
    return model


def raw(model, *key):
    return model._get_connection().get_item(*key, consistent_read=True).get("Item", {})


def exercise(model):
    """Go through all that the protocol does to a row."""
    first, second = (Mutex.for_key("a", model=model, data={"n": 1}) for _ in range(2))
    with first, ThreadPoolExecutor() as pool:
        first.renew()
        first.save_data({"n": 2})
        with first.transaction():
            pass
        assert keys(model.held()) == ["a"]
        assert Mutex.for_key("a", model=model).acquire(blocking=False) is False
        waiting = pool.submit(second.acquire, timeout=20)
        until(lambda: first._latest.contender.queue.turns)
        first.release()
        assert waiting.result(60)
    assert second.fencing_token == first.fencing_token + 1
    assert model.force_release("a")
    with pytest.raises(MutexLostError):
        second.release()
    with held_elsewhere("a", model=model, owner="they"):
        expire("a", model)
        with Mutex.for_key("a", model=model) as next_holder:
            assert next_holder.abandoned_by == "they"
    assert not next_holder.locked()
    with Mutex.for_key("gone", model=model, delete_on_release=True):
        pass
    assert keys(model.scan()) == ["a"]


def test_another_table_is_another_lock_and_the_same_one_is_not(table, monkeypatch):
    model, same = subclass(), type("Same", (LockItem,), {})
    with Mutex.for_key("a", model=model) as mutex:
        assert Mutex.for_key("a").acquire(blocking=False)
        assert keys(model.held()) == ["a"]
        assert model.Meta.table_name in repr(mutex)
    table.force_release("a")
    # a table name that changes is followed
    monkeypatch.setattr(model.Meta, "table_name", table.Meta.table_name)
    with mutex:
        assert table.get("a").token == mutex.token
    with Mutex.for_key("a", model=same):
        assert not Mutex.for_key("a").acquire(blocking=False)
        assert keys(table.held()) == ["a"]
    assert same._get_connection() is not table._get_connection()


@pytest.mark.real("embedded")
def test_connections(table, engine, monkeypatch):
    unnamed = derived(LockItem, meta={"read_timeout_seconds": 7.0})
    underived = derived(LockItem, meta={"table_name": f"locks-{uuid.uuid4().hex}"})

    def own(model):
        """Return the connection that the locks of a model have to themselves."""
        return store_for(model).connection.table

    def config(connection):
        return connection.connection.client.meta.config

    def timeouts(connection):
        return config(connection).connect_timeout, config(connection).read_timeout

    underived.create_table()
    for connection in (underived._get_connection(), own(underived)):
        assert timeouts(connection) == (1.0, LockItem.Meta.read_timeout_seconds)
        assert config(connection).max_pool_connections == 90
    # each thread of the library's finds an open connection, also if the model's own has few
    few = derived(LockItem, meta={"max_pool_connections": 5})
    assert config(own(few)).max_pool_connections >= RENEWAL_WORKERS + TASK_WORKERS
    assert config(few._get_connection()).max_pool_connections == 5
    with Mutex.for_key("a", model=underived):
        pass
    assert underived.Meta.billing_mode == "PAY_PER_REQUEST"
    # without a table name it is the default table
    with Mutex.for_key("a", model=unnamed) as mutex:
        assert table.get("a").token == mutex.token
    assert timeouts(own(unnamed)) == (1.0, 7.0)
    # without a limit, one that hangs would outlast a lease
    unlimited = derived(
        LockItem, meta={f"{part}_timeout_seconds": None for part in ("connect", "read")}
    )
    assert timeouts(own(unlimited)) == (1.0, LockItem.Meta.read_timeout_seconds)

    abroad = subclass(meta={"region": "eu-central-1"})
    exercise(abroad)
    for connection in (abroad._get_connection(), own(abroad)):
        assert connection.connection.client.meta.region_name == "eu-central-1"

    # botocore retries nothing of its own, whatever it is configured to
    asked_for = {"mode": "standard", "max_attempts": 5}
    monkeypatch.setitem(default_settings_dict, "retry_configuration", asked_for)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    monkeypatch.setenv("AWS_RETRY_MODE", "standard")
    forget_everything()
    assert config(own(table)).retries["total_max_attempts"] == 1
    assert config(table._get_connection()).retries["total_max_attempts"] > 1

    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:9")
    exercise(subclass(meta={"host": engine.endpoint_url}))


def test_default_table_is_named_by_the_environment_at_first_use(monkeypatch):
    # as after the import: nobody has asked for the name yet
    unread = cache(models._default_table.__wrapped__)
    monkeypatch.setattr(models, "_default_table", unread)
    monkeypatch.delenv("PYNAMODB_MUTEX_TABLE", raising=False)
    assert LockItem.Meta.table_name == "pynamodb-mutex"
    unread.cache_clear()
    mine = derived(LockItem, LockItem.Meta, meta={"table_name": "mine"})
    plain = derived(LockItem, meta={"read_timeout_seconds": 7.0})
    deeper = derived(plain, plain.Meta, meta={"connect_timeout_seconds": 3.0})
    other = derived(LockItem, LockItem.Meta, meta={"read_timeout_seconds": 7.0})
    mutex = Mutex.for_key("a")
    monkeypatch.setenv("PYNAMODB_MUTEX_TABLE", "first")
    for model in (LockItem, type("Sub", (LockItem,), {}), other, plain, deeper):
        assert model.Meta.table_name == model._get_connection().table_name == "first"
    assert "in first" in repr(mutex)
    monkeypatch.setenv("PYNAMODB_MUTEX_TABLE", "second")
    assert LockItem.Meta.table_name == "first"
    # a name that is assigned counts for all that inherit it
    with monkeypatch.context() as patch:
        patch.setattr(LockItem.Meta, "table_name", "assigned")
        assert (plain.Meta.table_name, mine.Meta.table_name) == ("assigned", "mine")
    assert plain.Meta.table_name == "first"


def test_subclass_of_a_subclass(table):
    core, shift = (types.UnicodeAttribute(default=name) for name in ("core", "night"))
    team = subclass(retention=86400.0, team=core)
    night = derived(team, team.Meta, meta={"region": "eu-west-1"}, shift=shift)
    assert night.Meta.table_name == team.Meta.table_name
    assert night._get_connection() is not team._get_connection()
    night.create_table()
    with Mutex.for_key("a", model=night):
        item = night.get("a")
        assert (item.team, item.shift) == ("core", "night")
        assert item.ttl.timestamp() == pytest.approx(item.expires_at + 86400, abs=3)


@pytest.mark.real("simulated", "local")
def test_every_attribute_may_be_stored_under_another_name(table):
    theirs = LockItem.get_attributes()
    stored_as = {"token": "t", "owner": "o", "lease": "l", "expires_at": "e", "writes": "w"}
    stored_as |= {"abandoned_by": "a", "ttl": "until", "data": "d", "free_since": "f"}
    renamed = subclass(
        key=types.UnicodeAttribute(hash_key=True, attr_name="pk"),
        version=types.VersionAttribute(attr_name="v"),
        waiting=types.ListAttribute(of=types.UnicodeAttribute, null=True, attr_name="line"),
        **{name: type(theirs[name])(null=True, attr_name=to) for name, to in stored_as.items()},
    )
    exercise(renamed)
    with Mutex.for_key("b", model=renamed, data=1):
        assert set(raw(renamed, "b")) == {"pk", "v", "t", "o", "l", "e", "w", "a", "until", "d"}
        with ThreadPoolExecutor(1) as pool:
            fair = Mutex.for_key("b", model=renamed, owner="she", timeout=1, fair=True)
            waits = pool.submit(fair.acquire)
            until(lambda: fair.position == 0)
            assert "|she" in str(raw(renamed, "b")["line"])
            assert not waits.result()
    assert set(raw(renamed, "b")) == {"pk", "v", "t", "w", "a", "until", "d", "line", "f"}
    client = renamed._get_connection().connection.client
    ttl = client.describe_time_to_live(TableName=renamed.Meta.table_name)["TimeToLiveDescription"]
    assert ttl["AttributeName"] == "until"


def test_names_that_belong_to_the_line_are_refused_for_another_use():
    for name in ("waiting", "free_since"):
        with pytest.raises(TypeError, match=f"Sub.{name} belongs to the lock"):
            type("Sub", (LockItem,), {name: types.BooleanAttribute(null=True)})


def test_range_key_with_a_default_is_a_place_in_a_single_table(table, caplog):
    single = subclass(
        key=types.UnicodeAttribute(hash_key=True, attr_name="pk"),
        kind=types.UnicodeAttribute(range_key=True, attr_name="sk", default="LOCK#1"),
    )
    other = {"pk": {"S": "a"}, "sk": {"S": "ORDER#1"}, "expires_at": {"N": "4102444800"}}
    client = single._get_connection().connection.client
    client.put_item(TableName=single.Meta.table_name, Item=other)
    with Mutex.for_key("a", model=single) as mutex:
        assert raw(single, "a", "LOCK#1")["token"] == {"S": mutex.token}
        assert [(item.key, item.kind) for item in single.held()] == [("a", "LOCK#1")]
        assert single.get("a", "LOCK#1").is_held
    assert (single.force_release("a"), caplog.records) == (False, [])
    assert raw(single, "a", "ORDER#1") == other

    class Prefixed(types.UnicodeAttribute):
        def serialize(self, value):
            assert value.isalnum()  # it may refuse what is no key of its own
            return f"LOCK#{value}"

        def deserialize(self, value):
            return value.removeprefix("LOCK#")

    # a number, stored as 1000
    part = types.NumberAttribute(range_key=True, default=1e3)
    numbered = subclass(key=Prefixed(hash_key=True), part=part)
    exercise(numbered)
    with Mutex.for_key("a", model=numbered):
        assert keys(numbered.held()) == ["a"]


def test_extra_attributes_come_with_the_first_claim_and_are_kept(table):
    class Where(types.MapAttribute):
        zone = types.UnicodeAttribute()

    # none is taken for one of the protocol's own values
    names = ["end", "seed", "now_low", "mine", "seen", "seen_until", "known", "next", "value"]
    rich = subclass(
        team=types.UnicodeAttribute(default="core", attr_name="tm"),
        weight=types.NumberAttribute(default=0),
        urgent=types.BooleanAttribute(default=False),
        made=types.NumberAttribute(default=lambda: 41 + 1),
        tags=types.ListAttribute(default=list),
        names=types.UnicodeSetAttribute(default=lambda: {"x", "y"}),
        where=Where(default=lambda: Where(zone="a")),
        note=types.UnicodeAttribute(null=True),
        must=types.UnicodeAttribute(),
        **{name: types.UnicodeAttribute(default="mine") for name in names},
    )
    with Mutex.for_key("a", model=rich, lease=20) as mutex:
        item = rich.get("a")
        assert (item.team, item.weight, item.urgent, item.made) == ("core", 0, False, 42)
        assert (item.tags, item.names, item.where.zone) == ([], {"x", "y"}, "a")
        assert {getattr(item, name) for name in names} == {"mine"}
        assert {"tm", "weight", "where"} <= set(raw(rich, "a"))
        assert not {"note", "must"} & set(raw(rich, "a"))
        assert (item.is_held, item.version) == (True, mutex.fencing_token)
        assert item.expires_at > time.time() + 5
        rich._get_connection().update_item("a", actions=[rich.note.set("hi"), rich.weight.set(5)])
    exercise(rich)
    item = rich.get("a")
    assert (item.note, item.weight, item.made) == ("hi", 5, 42)


def test_default_without_a_value_is_not_stored(table):
    user = None
    model = subclass(
        by=types.UnicodeAttribute(null=True, default=lambda: user),
        tags=types.UnicodeSetAttribute(default=set),
    )
    for user in (None, "me", None):
        key = f"by {user}"
        with (
            Mutex.for_keys([key, f"{key} too"], model=model),
            Mutex.for_key(f"{key} 3", model=model),
        ):
            stored = [raw(model, name) for name in (key, f"{key} too", f"{key} 3")]
        assert [row.get("by", {}).get("S") for row in stored] == [user] * 3
        assert not any("tags" in row for row in stored)


def test_two_attributes_under_one_name_are_refused():
    for other, mine in (("token", {}), ("b", {"b": types.NumberAttribute()})):
        mine["mine"] = types.UnicodeAttribute(attr_name=other)
        with pytest.raises(TypeError, match=f"{other}.* both stored as '{other}'"):
            subclass(**mine)


def test_payload_that_dynamodb_would_refuse_for_its_length_is_not_sent(table, sent):
    with Mutex.for_key("a", data=1) as mutex:
        sent.clear()
        with pytest.raises(ValueError, match="data has 409601 bytes of JSON"):
            mutex.save_data("x" * 409_599)
        assert (sent, mutex.data) == ([], 1)


def test_payload_may_be_a_map(table):
    mapped = subclass(data=types.MapAttribute(null=True))
    with Mutex.for_key("a", model=mapped, data={"page": 1, "of": "x"}) as mutex:
        assert raw(mapped, "a")["data"] == {"M": {"page": {"N": "1"}, "of": {"S": "x"}}}
        assert mutex.data == {"page": 1, "of": "x"}
        mutex.save_data({"page": 2})
        assert mutex.data == mapped.get("a").data.as_dict() == {"page": 2}
    with Mutex.for_key("b", model=mapped) as mutex:
        assert mutex.data is None


def test_subclasses_may_be_distinguished_by_a_discriminator(table):
    kind = subclass(kind=types.DiscriminatorAttribute())

    class Job(kind, discriminator="job"):
        attempts = types.NumberAttribute(default=0)

    class Door(kind, discriminator="door"):
        pass

    with Mutex.for_key("j", model=Job), Mutex.for_key("d", model=Door):
        assert raw(kind, "j")["kind"] == {"S": "job"}
        assert {type(item) for item in kind.held()} == {Job, Door}
        item = kind.get("j")
        assert (type(item), item.attempts) == (Job, 0)


def test_rows_are_kept_for_the_retention_and_never_less_than_an_hour(table, monkeypatch):
    century = 100 * 365.25 * 86400
    short = [(86400.0, 86400, 20), (0.0, 3600, 20), (10, 3600, 20)]
    for retention, kept, lease in (*short, (century, century, century)):
        model = type("Kept", (LockItem,), {"retention": retention})
        with Mutex.for_key("a", model=model, lease=lease) as mutex:
            for _ in range(2):
                item = model.get("a")
                assert item.expires.timestamp() == pytest.approx(time.time() + lease, abs=60)
                assert item.ttl.timestamp() == pytest.approx(item.expires_at + kept, abs=3)
                mutex.renew()
        item.refresh()
        assert item.ttl.timestamp() == pytest.approx(time.time() + kept, abs=60)
    # without server time the longest ends in the year 9999
    store = store_for(model)
    monkeypatch.setattr(store.connection.server, "bounds", None)
    assert datetime.fromtimestamp(int(store.ending(0.0)["ttl"]), tz=timezone.utc).year == 9999
