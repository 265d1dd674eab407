"""What messages and log records show of keys, owners and other text from outside.

A newline in a key must not forge a line of a log, and an escape code must not reach a terminal.
"""

import json
import logging
import pickle
import sys
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from command_line import run_cli, run_here
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import PynamoDBException, TransactWriteError
from signal_receivers import hearing
from this_process import current_process
from two_clients import held
from waits import until

from dev.faultproxy import after, drop_answer, drop_request, fault_proxy, refuse
from pynamodb_mutex import Mutex, RowLock, Semaphore, signals, synchronized
from pynamodb_mutex._lock.operations.states import Belief
from pynamodb_mutex._lock.protocol.messages import (
    LONGEST_TEXT,
    one_line,
    shown,
    shown_all,
    shown_owner,
)
from pynamodb_mutex._lock.runtime import notifications
from pynamodb_mutex.cli import _listing
from pynamodb_mutex.testing import FakeClock, expire, held_elsewhere

SPITE = "a\nb\x1b[31m\x85\u202e"
OWNER = f"o\r{SPITE}"
DENIED = refuse("AccessDeniedException", message=SPITE)


class Said:
    """All that log records and exceptions said."""

    def __init__(self, caplog):
        self._caplog, self._texts = caplog, []

    def add(self, *texts):
        self._texts.extend(texts)

    def printed(self, done):
        """Note the lines that a command printed; tabs stand between columns."""
        self.add(*f"{done.stdout}\n{done.stderr}".replace("\t", "  ").split("\n"))

    @contextmanager
    def by(self, kind=PynamoDBException):
        """Expect an exception, and note what it says."""
        with pytest.raises(kind) as caught:
            yield
        self.add(str(caught.value), *getattr(caught.value, "__notes__", []))

    def refuses(self, kind, call, *args, **kwargs):
        with self.by(kind):
            call(*args, **kwargs)

    @property
    def texts(self):
        logged = [r.getMessage() for r in list(self._caplog.records) if r.name == "pynamodb_mutex"]
        return logged + self._texts

    def wait(self, phrase):
        until(lambda: any(phrase in text for text in self.texts))

    def is_harmless(self, *phrases):
        """Check all texts, and that each of the phrases was said with a key or an owner."""
        texts = self.texts
        assert [text for text in texts if not text.isprintable()] == []
        for phrase in phrases:
            about = [text for text in texts if phrase in text]
            assert about, f"nothing says {phrase!r}"
            assert all(r"\x1b[31m" in text or "%1B[31m" in text for text in about), about


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.DEBUG, "pynamodb_mutex")
    return Said(caplog)


@pytest.fixture
def spiteful(scene):
    """A scene whose key, and whose holders' labels, have control characters."""
    scene.key += SPITE
    return scene


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (shown("order-42"), "'order-42'"),
        (shown("it's"), '"it\'s"'),
        (shown(None), "None"),
        (shown(b"\x00"), r"b'\x00'"),
        (shown(SPITE), r"'a\nb\x1b[31m\x85\u202e'"),
        (shown(type("Odd", (), {"__repr__": lambda _: SPITE})()), r"a\nb\x1b[31m\x85\u202e"),
        (shown("k" * 78), f"'{'k' * 78}'"),
        (shown(f"{'a' * 2000}{'b' * 2000}"), f"'{'a' * 38}...{'b' * 37}'"),
        (shown_all("abc"), "'a', 'b', 'c'"),
        (shown_all([SPITE, *"bcd"]), f"{shown(SPITE)}, 'b', 'c', ... (4 in all)"),
        (shown_owner("me"), "'me'"),
        (shown_owner(None), "an unnamed owner"),
        (shown_owner(""), "an unnamed owner"),
        (one_line(ValueError("one\n  two\x1b[31m")), r"one two\x1b[31m"),
    ],
)
def test_text_from_outside(found, expected):
    assert found == expected
    assert len(found) <= LONGEST_TEXT


# -- records of the log --------------------------------------------------------------------------


def test_records_of_one_lock_are_harmless(spiteful, said):
    spiteful.taken(owner=OWNER, auto_renew=False)
    mutex = spiteful.mutex(owner=OWNER)
    assert not mutex.acquire(timeout=0)
    said.refuses(TimeoutError, spiteful.mutex(timeout=0).__enter__)
    expire(spiteful.key, spiteful.there)
    held(mutex).renew()
    spiteful.proxy.next(DENIED, op="renew")
    with pytest.raises(PynamoDBException):  # PynamoDB's own, with what DynamoDB said
        mutex.renew()
    spiteful.force()
    said.refuses(PynamoDBException, mutex.release)
    # handed over, but not at once
    spiteful.proxy.next(DENIED, op="hand_over")
    holder = held(mutex)
    for _ in range(2):
        waiter = spiteful.waiting(owner=OWNER)
        holder.release()
        waiter.join(60)
        holder = waiter.mutex
    holder.detach()
    said.is_harmless(
        *("is waited for by", "not acquired by", ": abandoned by", "renewed by"),
        *("renewal of", "lost by", "was lost", "released by", "acquired by"),
        *("not handed over to", "handed over by", "the bearer of a ticket"),
        "was not free within 0 s",
    )


def test_records_of_failing_requests_and_of_claims_too_short_or_too_long_are_harmless(
    spiteful, said
):
    mutex = spiteful.mutex(owner=OWNER, lease=4, timeout=0)
    spiteful.proxy.always(drop_answer(), op="acquire")
    spiteful.proxy.always(DENIED, op="disown")
    said.refuses(PynamoDBException, mutex.acquire)
    spiteful.proxy.clear()
    spiteful.proxy.next(refuse("InternalServerError", 500, message=SPITE), op="acquire")
    assert mutex.acquire(timeout=60)
    spiteful.proxy.always(drop_request(), op="release")
    said.refuses(PynamoDBException, mutex.release)
    spiteful.proxy.clear()
    spiteful.force()
    said.is_harmless("may be held by nobody", "not acquired by", "given up by")
    with FakeClock() as clock:
        spiteful.proxy.next(after(lambda: clock.advance(31)), op="acquire")
        spiteful.proxy.next(DENIED, op="renew")
        with pytest.raises(PynamoDBException):
            spiteful.mutex(owner=OWNER).acquire(blocking=False)
        spiteful.there.force_release(spiteful.key)
        assert spiteful.mutex(owner=OWNER, max_hold=0.001).acquire()
        clock.advance(11)
        said.wait("is held for")
    said.is_harmless("renewal of", "is held for more than")
    assert any("to be retried" in text and r"\x1b" in text for text in said.texts)


def test_records_of_code_that_fails_are_harmless(spiteful, said, monkeypatch):
    fails = Mock(side_effect=LookupError("mine"))
    with signals.acquired.connected_to(fails):
        mutex = held(spiteful.mutex(owner=OWNER, on_lost=fails))
    spiteful.force()
    said.refuses(PynamoDBException, mutex.renew)
    said.wait("on_lost of")
    with monkeypatch.context() as patch, hearing(spiteful.key):
        patch.setattr(signals.acquired, "receivers_for", fails)
        patch.setattr(notifications, "MOST_UNDELIVERED", 0)
        with mutex:
            mutex.renew()
    said.is_harmless("on_lost of", "was not reported", "is too slow")


# -- exceptions ------------------------------------------------------------------------------------


def test_errors_of_keys_and_options_are_harmless(said, table):
    for key in (SPITE + "\ud800", SPITE * 1000, [SPITE]):
        said.refuses((ValueError, TypeError), Mutex.for_key, key)
    said.refuses(ValueError, Mutex.for_key, "k", owner=SPITE + "\ud800")
    for options in ({"owner": [SPITE]}, {"lease": SPITE}, {"poll": SPITE}):
        said.refuses(TypeError, Mutex.for_key, "k", **options)
    for ticket in (SPITE, json.dumps({"format": SPITE})):
        said.refuses(ValueError, Mutex.attach, ticket)
    for make in (Mutex.for_keys, Mutex.any_of):
        said.refuses(TypeError, make, SPITE)
    said.refuses(TypeError, Mutex.any_of([SPITE, "b"]).force_release)
    said.refuses(TypeError, Semaphore.for_key, "k", permits=SPITE)
    said.refuses(ValueError, synchronized(SPITE + "{nobody}"), lambda: None)
    said.refuses(ValueError, synchronized, "k", on_locked=SPITE)
    said.refuses(TypeError, pickle.dumps, Mutex.for_key(SPITE))
    said.refuses(ValueError, Mutex.for_keys, [SPITE, Mutex.for_key(SPITE, lease=7)])
    said.is_harmless("cannot be written in UTF-8", "must be a label", "pickled", "comes twice")


def test_errors_of_one_lock_are_harmless(spiteful, said, monkeypatch):
    mutex = spiteful.mutex(owner=OWNER, reentrant=True)
    said.refuses(PynamoDBException, mutex.release)
    said.refuses(PynamoDBException, lambda: mutex.token)
    with mutex, mutex:
        said.refuses(PynamoDBException, mutex.detach)
        said.add(repr(mutex))
    said.refuses(PynamoDBException, mutex.save_data, 1)
    with spiteful.mutex(owner=OWNER, delete_on_release=True) as fleeting:
        said.refuses(PynamoDBException, fleeting.save_data, 1)
    plain = spiteful.mutex(owner=OWNER)
    with plain:
        said.refuses(PynamoDBException, plain.acquire)
        said.refuses(PynamoDBException, spiteful.mutex(owner=OWNER).acquire)
        with said.by(TransactWriteError), plain.transaction() as transaction:
            transaction.save(spiteful.here(spiteful.key))
        with monkeypatch.context() as patch:
            patch.setattr(current_process(), "inherited", True)  # as in a fork
            said.refuses(PynamoDBException, plain.renew)
        plain._latest.belief = Belief("in doubt")  # as after a write of unknown outcome
        said.refuses(PynamoDBException, plain.ensure_held)
        said.refuses(PynamoDBException, plain.detach)
    said.is_harmless(
        *("is not held", "was acquired 2 times", "released or detached"),
        *("cannot guard writes", "without an answer yet", "of unknown outcome"),
        *("already held by this thread or task, by this mutex", "would wait for it for ever"),
        *("two operations in one transaction", "held by the parent process", "<Mutex"),
    )


def test_errors_of_releases_and_tickets_are_harmless(spiteful, said, table):
    mutex = spiteful.mutex(owner=OWNER)
    with said.by(LookupError), mutex:
        spiteful.proxy.next(DENIED, op="release")
        raise LookupError
    said.is_harmless(*["could not be released"] if sys.version_info >= (3, 11) else [])
    spiteful.force()
    mutex.acquire()
    ticket = mutex.detach()
    said.refuses(ValueError, Mutex.attach, ticket, model=table)
    with Mutex.attach(ticket, model=spiteful.here, owner=OWNER):
        said.refuses(PynamoDBException, Mutex.attach, ticket, model=spiteful.here)
    with Mutex.for_keys([spiteful.key + "b"], model=spiteful.here, owner=OWNER) as group:
        said.refuses(PynamoDBException, group.members[0].detach)
    said.is_harmless("the ticket is for", "is not good any more", "taken together")


def test_errors_of_several_locks_are_harmless(spiteful, keys, said, monkeypatch):
    keys.keys[:] = [f"{spiteful.key}{name}" for name in "abc"]
    group = keys.group(owner=OWNER, reentrant=True)
    said.refuses(PynamoDBException, group.release)
    with group.members[0]:
        said.refuses(PynamoDBException, group.acquire)
    plain = keys.group(owner=OWNER)
    with plain:
        said.refuses(PynamoDBException, plain.acquire)
        said.add(repr(plain))
    keys.taken(1, owner=OWNER)
    said.refuses(TimeoutError, keys.group(timeout=0, owner=OWNER).__enter__)
    for place in (0, 2):
        keys.taken(place, owner=OWNER)
    said.refuses(TimeoutError, Mutex.any_of(keys.keys, model=spiteful.here, timeout=0).__enter__)
    semaphore = Semaphore.for_key(spiteful.key, permits=1, model=spiteful.here, timeout=0)
    with held_elsewhere(semaphore.keys[0], model=spiteful.there, owner=OWNER):
        said.refuses(TimeoutError, semaphore.__enter__)
    monkeypatch.setattr(Mutex, "force_release", lambda _: False)
    with said.by(TimeoutError), held_elsewhere(keys.keys[0], model=spiteful.there):
        pass
    said.is_harmless(
        *("are not held", "not together with exactly these", "already held by this thread"),
        *("were not all free", "was not free", "was taken before it could be held elsewhere"),
        "<MutexGroup",
    )


def test_errors_of_rows_are_harmless(row_scene, table_scene, said, monkeypatch):
    model = row_scene.here
    row_scene.key += SPITE
    table_scene.key += SPITE
    said.refuses(table_scene.here.DoesNotExist, table_scene.lock(owner=OWNER).__enter__)
    said.is_harmless("there is no such row")
    said.refuses(model.DoesNotExist, row_scene.lock().acquire)
    row_scene.old(row_scene.key).save()
    said.refuses(ValueError, model.locked_all, [row_scene.key] * 2)
    said.refuses(ValueError, model.locked, SPITE * 1000)
    said.refuses(ValueError, model.locked, row_scene.key, SPITE)
    said.refuses(PynamoDBException, lambda: row_scene.row.row_lock)
    other = row_scene.taken(owner=OWNER)
    said.refuses(PynamoDBException, model(row_scene.key).save)
    said.refuses(TimeoutError, row_scene.lock(timeout=0).__enter__)
    other.release()
    with row_scene.lock(owner=OWNER) as row:
        with said.by(), model.batch_write() as batch:
            batch.save(row)
        row.name += "b"
        said.refuses(PynamoDBException, row.save)
        row.name = row_scene.key
    said.refuses(PynamoDBException, row.save, unlock=True)
    said.refuses(PynamoDBException, model(row_scene.key).save, unlock=True)
    with row_scene.lock(owner=OWNER, reentrant=True) as row, row.row_lock:
        said.refuses(PynamoDBException, row.save, unlock=True)
    assert row.row_lock.acquire()
    ticket = json.loads(row.row_lock.detach())
    ticket["key"] += SPITE
    said.refuses(ValueError, RowLock.attach, json.dumps(ticket), model=model)
    with monkeypatch.context() as patch:
        patch.setattr(UnicodeAttribute, "serialize", Mock(side_effect=ValueError(SPITE)))
        said.refuses(ValueError, model.locked, SPITE)
    missing = [f"{row_scene.key}{name}" for name in "ab"]
    said.refuses(model.DoesNotExist, model.locked_all(missing).acquire)
    said.is_harmless(
        *("no such row", "once at a time", "bytes, not the", "has no range key"),
        *("was read without its lock", "cannot be written without its lock"),
        *("was not free within 0 s", "a batch cannot be guarded"),
        *("is not the row that is locked", "is not locked here", "was acquired 2 times"),
        "was released at the end of its block",
        *("is not one for a row", "cannot be 'a"),
    )
    assert f"{shown(other.key)} cannot be written" in " ".join(said.texts)
    assert [text for text in said.texts if "'" not in text] == []


@pytest.mark.real("embedded")
def test_what_is_said_of_rows_that_are_no_locks_is_harmless(table, said, monkeypatch):
    client = table._get_connection().connection.client
    for number, odd in enumerate(
        (
            {"expires_at": {"S": SPITE}, "token": {"S": SPITE}},
            {"expires_at": {"N": "1"}, "token": {"SS": [SPITE]}},
            {"expires_at": {"N": "1"}, SPITE: {"S": SPITE}},
        )
    ):
        key = f"{number}{SPITE}"
        row = {"key": {"S": key}, "version": {"N": "1"}, "owner": {"S": OWNER}}
        client.put_item(TableName=table.Meta.table_name, Item=row | odd)
        said.refuses(PynamoDBException, Mutex.for_key(key).acquire, timeout=1)
        for command in (["show"], ["ls"], ["wait", "--timeout", "0"], ["release"]):
            said.printed(run_cli(*command, key))
        said.printed(run_here(key, "--timeout", "0", "--", "true"))
    assert list(table.held()) == []
    monkeypatch.setattr(_listing._Watching, "rest", Mock(side_effect=KeyboardInterrupt))
    for command in (["ls"], ["doctor"], ["watch"]):
        said.printed(run_cli(*command))
    said.is_harmless("left out", "the row of", "invalid: the row of")


# -- the command line ------------------------------------------------------------------------------


@pytest.mark.real("embedded")
def test_command_line_prints_no_control_character(engine, table, said):
    run_options = ("--if-locked", "fail", "--timeout", "0.1", "--verbose")
    for arguments in (
        ("--verbose", "--owner", OWNER, SPITE, "--", "true"),
        (SPITE, "--", f"no{SPITE}"),
    ):
        said.printed(run_here(*arguments))
    Mutex.for_key(SPITE, data={SPITE: OWNER}, owner=OWNER).acquire()
    said.printed(run_here(*run_options, SPITE, "--", "true"))
    broken = ["release", SPITE, "--force", "--yes"]
    for command in (
        *(["ls"], ["ls", "--json"], ["show", SPITE], ["wait", SPITE, "--timeout", "0"]),
        *(["doctor"], ["delete-table"], ["release", SPITE], broken, broken),
        *(["create-table", "--tag", SPITE], ["ls", "--endpoint-url", SPITE]),
        ["show", SPITE * 1000],
    ):
        said.printed(run_cli(*command))
    with fault_proxy(engine) as proxy:
        proxy.always(DENIED)
        for command in (["show", "k"], ["run", "k", "--", "true"], ["doctor"]):
            done = run_cli("--endpoint-url", proxy.url, *command)
            said.printed(done)
            assert done.exit_code != 0
    said.is_harmless(
        *("acquired '", "released '", "not found", "is still held by", "is locked"),
        *("waiting for", "is free", "AccessDenied"),
    )
