"""Kinds of locks, and ways to write under a lock, each with the same methods; tests run over all of them.

The fixture `subject` is a lock of each kind in turn, `written` what is written in each way.
"""

import asyncio
import inspect
import uuid
from functools import partial

import pytest
from pynamodb.connection import Connection
from pynamodb.expressions.operand import Path
from pynamodb.transactions import TransactWrite
from row_models import OldAccount
from sent_requests import TRANSACT, that
from two_clients import Claims, Keys, Rows, held, place_of

from pynamodb_mutex import Loss, Mutex, Semaphore
from pynamodb_mutex.aio import AsyncMutex


def crossed(names, cases, others=(), few=()):
    """Return each of some names with each case, and each of the others with a few cases."""
    pairs = [(name, case) for name in names for case in cases]
    pairs += [(name, case) for name in others for case in few]
    return [(name, *case) if isinstance(case, tuple) else (name, case) for name, case in pairs]


def table(names, cases):
    """Run a test for each case of a table, the first column of which is a kind of lock or a way to write."""
    return pytest.mark.parametrize(names, cases, indirect=[names.split(",")[0]])


def of(*subjects):
    """Run a test for some kinds of locks."""
    return table("subject", subjects)


def by(*ways):
    """Run a test for some ways to write."""
    return table("written", ways)


class Awaited:
    """An asynchronous lock; each call of it is awaited on an event loop of its own."""

    def __init__(self, lock):
        self._lock = lock

    def __getattr__(self, name):
        value = getattr(self._lock, name)
        if not inspect.iscoroutinefunction(inspect.unwrap(value)):
            return value
        return lambda *args, **kwargs: asyncio.run(value(*args, **kwargs))


class FromTicket:
    """A lock that the client `there` acquires and detaches, and that `here` attaches."""

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
    """A lock that another thread of the same process releases and hands over."""

    def acquire(self, **_):
        giver = held(self._subject.scene.mutex())
        waiter = self._subject.scene.waiting(**self._options)
        giver.release()
        waiter.join(60)
        self._lock = waiter.mutex
        return waiter.acquired


# -- locks of every kind ---------------------------------------------------------------------------

DELETED = "deleted at release"
SHARED = ["shared lock", "shared beside another"]
"""A lock that readers share, held by one, or joined while another client reads."""
PASSED_ON = ["ticket", "handed over"]
"""Kinds that are acquired with a claim of another holder."""
SUBJECTS = [
    *("one lock", "several keys", "any of", "semaphore", "task", "fair lock", DELETED, *PASSED_ON),
    *("row", "row in a lock table", "several rows", "several rows in a lock table"),
    *SHARED,
]
MAIN = ["one lock", "several keys", "row"]
"""One kind for each kind of request; the others differ before or after it."""
OTHERS = [name for name in SUBJECTS if name not in MAIN]

LOSSES = [
    ("forced_and_taken", Loss.TAKEN),
    ("expired_and_taken", Loss.TAKEN),
    ("force", Loss.FORCED),
    ("clear", Loss.FORCED),
    ("delete", Loss.DELETED),
]
"""Ways in which a lock is lost, as methods of a subject, and the cause that is reported."""
TOGETHER = [name for name in SUBJECTS if name.startswith("several")]
REQUESTS = {
    "ticket": {"acquire": "attach"},
    "handed over": {"acquire": "hand_over"},
    DELETED: {"release": "DeleteItem"},
    SHARED[0]: {"disown": "release"},
    SHARED[1]: {"acquire": "join", "release": "leave", "disown": "leave"},
}
"""By kind of lock: the requests that are of another kind than those of others."""


class Subject(Claims):
    """A kind of lock.

    Attributes:
        scene: The two clients: a `Scene` or a `RowScene`.
        lock: Returns a lock of the client `here`.
        guards: Whether the rows that it guards are there after its release, and show what was written.
    """

    def __init__(self, name, scene):
        self.name, self.scene, self.proxy, key = name, scene, scene.proxy, scene.key
        self.guards = name not in (DELETED, *SHARED)
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
                **dict.fromkeys(SHARED, partial(Mutex.for_key, key, shared=True)),
            }
            make = makers.get(name, partial(Mutex.for_key, key))
            self.lock = partial(make, timeout=20, model=scene.here)
            other = partial(Mutex.for_key, self.places[-1][1], model=scene.there)
            if name == "any of":  # the other one is not free
                held(Mutex.for_key(f"{key}-held", model=scene.there, lease=600, auto_renew=False))
        self.other = partial(other, owner="other", timeout=20, auto_renew=False)
        self.proxy.start_anew()

    def held(self, **options):
        """Acquire it by the client `here`."""
        return held(self.lock(**options))

    def on(self, kind):
        """Return the options of a proxy's rule for a kind of request of this lock."""
        if self.is_together:
            return {"when": that(kind)}
        key = {"S": self.places[0][1]}
        return {"op": self.kind(kind), "when": lambda body: key in body.get("Key", {}).values()}

    def kind(self, kind):
        """Return what a kind of request is called for this lock."""
        return REQUESTS.get(self.name, {}).get(kind, kind)

    def of(self, kind):
        """Return the requests of a kind."""
        rule = {"op": TRANSACT, **self.on(kind)}
        return [seen for seen in self.proxy.of(rule["op"]) if rule["when"](seen.body)]

    def applied(self, kind):
        """Return for each request of a kind whether it was applied."""
        return [seen.applied for seen in self.of(kind)]

    def parts(self, lock):
        """Return the locks of which a lock is made."""
        return lock._locks if self.is_together else [lock]

    def owns(self, lock):
        """Return whether the rows contain a lock's own claims."""
        claims = [(claim["token"]["S"], "expires_at" in claim) for claim in self.claims]
        locks = self.parts(lock)
        if claims != [(each.token, True) for each in locks]:
            return False
        versions = [int(claim["version"]["N"]) for claim in self.claims]
        return self.name == DELETED or versions == [each.fencing_token for each in locks]

    def write(self, lock, what="mine"):
        """Write under it: the data of locks, the rows of row locks."""
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


class AfterReader(FromTicket):
    """A lock that is acquired once the other reader has left it, if that is in there still."""

    def acquire(self, **how):
        if len(self._subject.entries) > len(self._subject.ends):
            self._subject.reader.release()
        return self._lock.acquire(**how)


class SharedSubject(Subject):
    """A lock that readers share. The token in its row is the first one's; each has an entry with an end of its own."""

    def __init__(self, name, scene):
        super().__init__(name, scene)
        if name == SHARED[1]:
            self.reader = held(scene.other(shared=True, lease=600, owner="another"))
            self.other = partial(AfterReader, self, **self.other.keywords)
            self.proxy.start_anew()

    @property
    def entries(self):
        """The names of the readers that share the claim, and their ends."""
        return self.scene.parsed.readers or {}

    @property
    def ends(self):
        return [end for name, end in self.entries.items() if not name.endswith(" another")]

    @property
    def is_free(self):
        return super().is_free or (bool(self.entries) and not self.ends)

    def expire(self):
        of_claim = Path(["shared_by", self.claim["token"]["S"]])
        self._change(-1, lambda _: [of_claim[name].set(1.0) for name in self.entries])
        super().expire()

    def owns(self, lock):
        mine = [name for name in self.entries if name.startswith(lock.token)]
        row = self.scene.parsed
        return len(mine) == 1 and row.version == lock.fencing_token and row.ends <= row.expires_at


# -- writes under a lock, in every way -------------------------------------------------------------

OF_KEYS = ["data", "transaction"]
OF_ROWS = [
    f"{place} {way} {what}"
    for place in ("row", "table")
    for way in ("alone", "plain", "guarded")
    for what in ("save", "update", "delete")
]
"""A row with its claim in it or in a lock table; written alone, in PynamoDB's transaction, or in the lock's."""


class Written(Claims):
    """What the client `here` writes under a lock, in one way.

    Subclasses have these methods: `acquire`; `write` adds 1 to the count and stores who wrote last; `write_next` writes
    again, a row alone and as a whole; `cycle_of_another` acquires by the other client after the claim has expired, writes, and
    releases; `use` sets another model of the row; `calls_of_three_threads`.

    Attributes:
        op: The operation or kind of the requests; `next_op` that of `write_next`.
        lock: The lock, once it is acquired.
        row: What is written, if it is a row; `model` its model, and `at` its index in `places`.
        content: The count, and who wrote last; None if there is no row.
        is_data: Whether the data of a lock is written.
        deletes: Whether the row is deleted.
        writes_second: Whether the same request writes a second row, which nobody locks.
        times_second: The number of writes of that.
    """

    is_data = deletes = writes_second = False
    times_second = 0
    at = 0

    def write_next(self, last):
        self.write(last)

    @property
    def shown(self):
        """The content, and the how-many-eth write under the lock was the last one; None if there is no row."""
        content = self.content
        return content and (*content, place_of(int(self.claim["writes"]["N"]), self.lock))

    @property
    def next_op(self):
        return self.op

    def applied(self):
        """Return for each request whether it was applied."""
        return super().applied(self.op)


def _read(model, key):
    row = next(iter(model.query(key, consistent_read=True)), None)
    simple = row and row.to_simple_dict()
    return simple and (simple["balance"], simple.get("last"))


class WrittenByKey(Written):
    """The data of a lock, or a user's row in a transaction of the lock."""

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
    """A row that is locked, with its claim in it or in a lock table."""

    at = 1

    def __init__(self, way, scene):
        _, self.way, self.what = way.split()
        self.scene, self.proxy, self.other = scene, scene.proxy, scene.other
        self.deletes, self.writes_second = self.what == "delete", self.way != "alone"
        self.second_key = f"{scene.key}-second"
        self.places = [(scene.there, self.second_key), *scene.places]

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


# -- fixtures --------------------------------------------------------------------------------------


def _scene_for(name, request):
    fixture = "table_scene" if "table" in name else "row_scene" if "row" in name else "scene"
    return request.getfixturevalue(fixture)


@pytest.fixture(params=SUBJECTS)
def subject(request, engine):
    """A lock of each kind in turn; of some kinds in a test that is marked by `of` or `table`."""
    made = SharedSubject if request.param in SHARED else Subject
    return made(request.param, _scene_for(request.param, request))


@pytest.fixture(params=[*OF_KEYS, *OF_ROWS])
def written(request, engine):
    """What is written under a lock, in each way in turn; in some ways in a test that is marked by `by` or `table`."""
    made = WrittenByKey if request.param in OF_KEYS else WrittenByRow
    return made(request.param, _scene_for(request.param, request))
