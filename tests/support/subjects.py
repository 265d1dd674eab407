"""Locks of every kind, and writes under a lock in every way, each kind and way by the same names.

The fixtures `subject` and `written` of scene_fixtures.py run one test over all of them.
"""

import asyncio
import inspect
import uuid
from functools import partial

import pytest
from group_scene import TRANSACT, Keys, that
from pynamodb.connection import Connection
from pynamodb.transactions import TransactWrite
from row_scene import OldAccount, Rows
from scene import Claims, held

from dev.faultproxy import late
from pynamodb_mutex import Loss, Mutex, Semaphore
from pynamodb_mutex.aio import AsyncMutex

REFUSALS = {"ConditionalCheckFailedException", "TransactionCanceledException"}


def kept_from(proxy, *faults, **rule):
    """Let the network keep the next request, and faults befall those after it; return the one that is kept."""
    kept = late()
    proxy.next(kept, *faults, **rule)
    return kept


def assert_changes_nothing(scene, kept):
    """Let a request that the network kept reach the engine, and see that it changes nothing."""
    before = scene.everything
    reply = kept.apply()
    # DynamoDB knows a transaction again by its token for ten minutes, and answers as it did at first
    assert reply.error in REFUSALS or (reply.status == 200 and kept.kept.op == TRANSACT)
    for each in (kept.kept, *scene.proxy.of(TRANSACT)):
        if each.op == TRANSACT:
            scene.proxy.replay(each, ClientRequestToken=str(uuid.uuid4()))
    assert scene.everything == before


def crossed(names, cases, others=(), few=()):
    """Return each of some names with each case, and each other name with a few cases only."""
    pairs = [(name, case) for name in names for case in cases]
    pairs += [(name, case) for name in others for case in few]
    return [(name, *case) if isinstance(case, tuple) else (name, case) for name, case in pairs]


def table(names, cases):
    """Run a test for each case in a table, the first column of which is a kind of lock or a way to write."""
    return pytest.mark.parametrize(names, cases, indirect=[names.split(",")[0]])


def of(*subjects):
    """Run a test for some kinds of locks."""
    return table("subject", subjects)


def by(*ways):
    """Run a test for some ways to write."""
    return table("written", ways)


class Awaited:
    """An asynchronous lock, each of whose calls is awaited on an event loop of its own."""

    def __init__(self, lock):
        self._lock = lock

    def __getattr__(self, name):
        value = getattr(self._lock, name)
        if not inspect.iscoroutinefunction(value):
            return value
        return lambda *args, **kwargs: asyncio.run(value(*args, **kwargs))


class FromTicket:
    """A lock that the other client acquires and detaches, and that is attached here."""

    def __init__(self, subject, **options):
        self._subject, self._options = subject, options
        self._lock = Mutex.for_key(subject.scene.key, **options)

    def acquire(self, *, blocking=True, timeout=None):
        ticket = self._subject.taken().detach()
        patience = 0 if not blocking else timeout
        options = self._options if patience is None else {**self._options, "timeout": patience}
        self._lock = Mutex.attach(ticket, **options)
        return True

    def __getattr__(self, name):
        return getattr(self._lock, name)


class HandedOver(FromTicket):
    """A lock that another thread of the same process hands over when it releases it."""

    def acquire(self, **_):
        giver = held(self._subject.scene.mutex())
        waiter = self._subject.scene.waiting(**self._options)
        giver.release()
        waiter.join(60)
        self._lock = waiter.mutex
        return waiter.acquired


# -- locks of every kind ---------------------------------------------------------------------------

DELETED = "deleted at release"
PASSED_ON = ["ticket", "handed over"]
"""What is acquired as the claim of another, and neither made anew nor disowned."""
SUBJECTS = [
    *("one lock", "several keys", "any of", "semaphore", "task", "fair lock", DELETED, *PASSED_ON),
    *("row", "row in a lock table", "several rows", "several rows in a lock table"),
]
MAIN = ["one lock", "several keys", "row"]
"""One for each kind of request; the others differ before or after it."""
OTHERS = [name for name in SUBJECTS if name not in MAIN]

LOSSES = [
    ("forced_and_taken", Loss.TAKEN),
    ("expired_and_taken", Loss.TAKEN),
    ("force", Loss.FORCED),
    ("clear", Loss.FORCED),
    ("delete", Loss.DELETED),
]
"""Ways in which a lock is lost, each a method of a subject, and the cause that is reported."""
TOGETHER = [name for name in SUBJECTS if name.startswith("several")]
KINDS = {
    "ticket": {"acquire": "attach"},
    "handed over": {"acquire": "hand_over"},
    DELETED: {"release": "DeleteItem"},
}
"""The requests of some locks that are of another kind than those of others."""


class Subject(Claims):
    """A lock of some kind, by a client with a bad network and by another one.

    Attributes:
        scene: Where it is: a `Scene` or a `RowScene`.
        lock: Returns a lock of the client with the bad network.
    """

    def __init__(self, name, scene):
        self.name, self.scene, self.proxy, key = name, scene, scene.proxy, scene.key
        self.is_together = name in TOGETHER
        if "row" in name:
            rows = Rows(scene) if self.is_together else None
            self._rows = rows.keys if rows else [key]
            self.lock = partial(rows.locks if rows else scene.lock, timeout=20)
            other = partial(scene.there.locked, self._rows[-1])
            self.places = [
                (scene.locks, scene.there.locked(row).key) if scene.in_table else (scene.there, row)
                for row in self._rows
            ]
        else:
            keys = {"several keys": Keys(scene).keys, "semaphore": [f"{key}#permit-1"]}
            self.places = [(scene.there, each) for each in keys.get(name, [key])]
            makers = {
                "several keys": partial(Mutex.for_keys, keys["several keys"]),
                "any of": partial(Mutex.any_of, [key, f"{key}-held"]),
                "semaphore": partial(Semaphore.for_key, key, permits=1),
                "task": lambda **options: Awaited(AsyncMutex.for_key(key, **options)),
                "fair lock": partial(Mutex.for_key, key, fair=True),
                DELETED: partial(Mutex.for_key, key, delete_on_release=True),
                "ticket": partial(FromTicket, self),
                "handed over": partial(HandedOver, self),
            }
            make = makers.get(name, partial(Mutex.for_key, key))
            self.lock = partial(make, timeout=20, model=scene.here)
            other = partial(Mutex.for_key, self.places[-1][1], model=scene.there)
            if name == "any of":  # the other one is not free
                held(Mutex.for_key(f"{key}-held", model=scene.there, lease=600, auto_renew=False))
        self.other = partial(other, owner="other", timeout=20, auto_renew=False)
        self.proxy.start_anew()

    def held(self, **options):
        """Acquire it by the client with the bad network."""
        return held(self.lock(**options))

    def on(self, kind):
        """Return the options of the proxy's rules for a kind of request of this lock."""
        if self.is_together:
            return {"when": that(kind)}
        key = {"S": self.places[0][1]}
        kind = KINDS.get(self.name, {}).get(kind, kind)
        return {"op": kind, "when": lambda body: key in body.get("Key", {}).values()}

    def of(self, kind):
        """Return the requests of a kind."""
        rule = {"op": TRANSACT, **self.on(kind)}
        return [seen for seen in self.proxy.of(rule["op"]) if rule["when"](seen.body)]

    def applied(self, kind):
        """Say which requests of a kind were applied."""
        return [seen.applied for seen in self.of(kind)]

    def parts(self, lock):
        """Return the locks of which a lock is made."""
        return lock._locks if self.is_together else [lock]

    def owns(self, lock):
        """Whether the rows show a lock's own claims."""
        claims = [(claim["token"]["S"], "expires_at" in claim) for claim in self.claims]
        locks = self.parts(lock)
        if claims != [(each.token, True) for each in locks]:
            return False
        versions = [int(claim["version"]["N"]) for claim in self.claims]
        return self.name == DELETED or versions == [each.fencing_token for each in locks]

    def write(self, lock, what="mine"):
        """Write under it: the payloads of locks, the rows of row locks."""
        if "row" not in self.name:
            for each in self.parts(lock):
                each.save_data(what)
        elif self.is_together:
            with lock.transaction(unlock=False) as transaction:
                for row in lock._rows_of(lock._current("rows")):
                    row.last = what
                    transaction.save(row)
        else:
            lock.row.last = what
            lock.row.save()

    @property
    def content(self):
        """What was written, in each place."""
        if "row" not in self.name:
            return [model.get(key, consistent_read=True).data for model, key in self.places]
        return [self.scene.there.get(key, consistent_read=True).last for key in self._rows]


# -- writes under a lock, in every way -------------------------------------------------------------

OF_KEYS = ["data", "transaction"]
OF_ROWS = [
    f"{place} {way} {what}"
    for place in ("row", "table")
    for way in ("alone", "plain", "guarded")
    for what in ("save", "update", "delete")
]
"""A row locked in itself or in a lock table; written alone, in a transaction of PynamoDB's, or in the lock's."""


class Written(Claims):
    """What is written under a lock in one way, by a client with a bad network.

    Its classes have `acquire`; `write`, which counts one up and notes what was written last; `write_next`, which writes
    once more, a row alone and as a whole; `cycle_of_another`, in which another client acquires after the claim has ended,
    writes, and releases; `use`, which takes another model of the row; and `calls_of_three_threads`.

    Attributes:
        op: The operation or kind of the requests; `next_op` that of `write_next`.
        lock: The lock, once it is acquired.
        row: What is written, if it is a row; `model` its model, and `at` its place in `places`.
        content: The count, and what was written last; None if the row is gone.
        is_data: Whether it is the payload of a lock.
        deletes: Whether the row is deleted.
        writes_second: Whether another row is written in the same request, which nobody locks.
        times_second: How often that was written.
    """

    is_data = deletes = writes_second = False
    times_second = 0
    at = 0

    def write_next(self, last):
        self.write(last)

    @property
    def shown(self):
        """The content, and the number of the last guarded write; None if the row is gone."""
        content = self.content
        return content and (*content, int(self.claim["writes"]["N"]))

    @property
    def claim(self):
        """What stands in the row with the claim, but for what was written."""
        own = {"data", "name", "balance", "last"}
        return {k: v for k, v in self.claims[-1].items() if k not in own}

    @property
    def next_op(self):
        return self.op

    def applied(self):
        """Say which requests were applied."""
        return super().applied(self.op)


def _read(model, key):
    row = next(iter(model.query(key, consistent_read=True)), None)
    simple = row and row.to_simple_dict()
    return simple and (simple["balance"], simple.get("last"))


class WrittenByKey(Written):
    """The payload of a lock, or a row of a user in a transaction of the lock."""

    what = "update"

    def __init__(self, way, scene):
        self.scene, self.proxy, self.other = scene, scene.proxy, scene.other
        self.is_data = way == "data"
        self.op = "save_data" if self.is_data else TRANSACT
        self.places = [(scene.there, scene.key)]
        if not self.is_data:

            class Counter(OldAccount):
                class Meta:
                    table_name = f"counters-{uuid.uuid4().hex}"
                    billing_mode = "PAY_PER_REQUEST"

            Counter.create_table(wait=True)
            self.use(Counter)

    def use(self, model):
        self.model, self.row = model, model(self.scene.key)
        self.row.save()
        self.places = [(model, self.scene.key), self.places[-1]]

    def acquire(self, **options):
        self.lock = self.scene.mutex(**options)
        assert self.lock.acquire(timeout=20)

    def write(self, last="mine", *, data=False, **options):
        if self.is_data or data:
            self.lock.save_data([(self.lock.data or [0])[0] + 1, last])
            return
        with self.lock.transaction() as transaction:
            if self.what == "save":
                self.row.balance, self.row.last = self.content[0] + 1, last
                transaction.save(self.row, **options)
            else:
                actions = [self.model.balance.add(1), self.model.last.set(last)]
                transaction.update(self.row, actions=actions, **options)

    def cycle_of_another(self):
        other = self.expired_and_taken()
        other.save_data([77, "other"])
        other.release()

    def calls_of_three_threads(self):
        return [lambda n: self.write(str(n)), lambda n: self.write(str(n)), self.lock.save_data]

    @property
    def content(self):
        if not self.is_data:
            return _read(self.model, self.scene.key)
        return None if self.scene.gone else tuple(self.scene.row.data or (0, None))


class WrittenByRow(Written):
    """A row that is locked, in itself or in a lock table."""

    at = 1

    def __init__(self, way, scene):
        _, self.way, self.what = way.split()
        self.scene, self.proxy, self.other = scene, scene.proxy, scene.other
        self.deletes, self.writes_second = self.what == "delete", self.way != "alone"
        self.second_key = f"{scene.key}-second"
        self.places = [(scene.there, self.second_key), (scene.there, scene.key)]
        if scene.in_table:
            self.places.append((scene.locks, scene.lock().key))

    @property
    def op(self):
        return self.scene.op(self.what) if self.way == "alone" else TRANSACT

    @property
    def next_op(self):
        return self.scene.op("save")

    @property
    def model(self):
        return self.scene.here

    def use(self, model):
        self.scene.here = model
        model(self.scene.key).save()
        self.proxy.start_anew()

    def acquire(self, **options):
        self.row = self.scene.locked(**options)
        self.lock = self.row.row_lock

    def write(self, last="mine", *, by=None, **options):
        row = by or self.row
        model = type(row)
        arguments = []
        if self.what == "save":
            row.balance, row.last = row.balance + 1, last
        elif self.what == "update":
            arguments = [[model.balance.add(1), model.last.set(last)]]
        if self.way == "alone":
            getattr(row, self.what)(*arguments, **options)
            return
        plain = self.way == "plain" and TransactWrite(connection=Connection(host=row.Meta.host))
        with plain or row.row_lock.transaction() as transaction:
            getattr(transaction, self.what)(row, *arguments, **options)
            if by is None:  # threads that all write it at once would be in each other's way
                actions = [model.balance.add(1)]
                transaction.update(model(self.second_key), actions, add_version_condition=False)

    def write_next(self, last):
        self.row.balance, self.row.last = self.row.balance + 1, last
        self.row.save()

    def cycle_of_another(self):
        other = self.expired_and_taken()
        other.row.last = "other"
        other.row.save(unlock=True)

    def overwrite(self):
        self.scene.overwrite()

    def calls_of_three_threads(self):
        rows = [type(self.row)(self.row.name) for _ in range(3)]
        for row in rows:
            row._row_lock, row._row_claim = self.row._row_lock, self.row._row_claim
        last = rows.pop()
        calls = [lambda n, row=row: self.write(str(n), by=row) for row in rows]
        return [*calls, lambda n: last.update([type(last).balance.add(1)])]

    @property
    def content(self):
        return _read(self.scene.there, self.scene.key)

    @property
    def times_second(self):
        return int(self.everything[0].get("balance", {"N": "0"})["N"])
