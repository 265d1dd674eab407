"""A client of the same tables in another process, and what several folders of the API's tests use."""

import functools
from contextlib import ExitStack

import pytest
from accounts import Account, Ledger
from pynamodb.signals import pre_dynamodb_send

from pynamodb_mutex import LockItem, Mutex, Semaphore
from pynamodb_mutex.testing import held_elsewhere

QUICK = (0.02, 0.1)


class Subject:
    """A kind of lock.

    Attributes:
        make: Makes one.
        model: The lock table, or the model of the rows.
        keys: Every key that the lock may hold.
        several: Whether it holds all of them together.
    """

    def __init__(self, make, model, *keys, several=False):
        self.make = functools.partial(make, poll=QUICK)
        self.model, self.keys, self.several = model, keys, several

    @property
    def is_of_rows(self):
        return self.model is not LockItem

    @property
    def is_alternative(self):
        """Whether it holds one of its keys."""
        return not self.several and len(self.keys) > 1

    def singles(self):
        """Return a lock of each key alone."""
        make = self.model.locked if self.is_of_rows else Mutex.for_key
        return [make(key) for key in self.keys]

    def is_free(self):
        """Whether nobody holds any of the keys."""
        return not any(lock.locked() for lock in self.singles())

    def force(self):
        """Break the claim on the last of the keys that are held."""
        assert any(lock.force_release() for lock in reversed(self.singles()))

    def held_elsewhere(self, **options):
        """Let others hold the keys: of several the last one, of alternatives each."""
        stack = ExitStack()
        for key in self.keys[-1:] if self.several else self.keys:
            stack.enter_context(held_elsewhere(key, model=self.model, **options))
        return stack


def for_key(**options):
    return Mutex.for_key("a", **options)


def for_keys(**options):
    return Mutex.for_keys(["b", "c"], **options)


def any_of(**options):
    return Mutex.any_of(["d", "e"], **options)


def semaphore(**options):
    return Semaphore.for_key("s", permits=2, **options)


def in_row(**options):
    return Account.locked("a", **options)


def in_lock_table(**options):
    return Ledger.locked("a", **options)


def in_rows(**options):
    return Account.locked_all(["b", "c"], **options)


def in_lock_table_for_rows(**options):
    return Ledger.locked_all(["b", "c"], **options)


SUBJECTS = {
    "one lock": Subject(for_key, LockItem, "a"),
    "several": Subject(for_keys, LockItem, "b", "c", several=True),
    "any of": Subject(any_of, LockItem, "d", "e"),
    "semaphore": Subject(semaphore, LockItem, "s#permit-1", "s#permit-2"),
    "row": Subject(in_row, Account, "a"),
    "row and lock table": Subject(in_lock_table, Ledger, "a"),
    "rows": Subject(in_rows, Account, "b", "c", several=True),
    "rows and lock table": Subject(in_lock_table_for_rows, Ledger, "b", "c", several=True),
}


@pytest.fixture
def subjects(table, accounts, ledger):
    """Return every kind of lock, in fresh tables with the rows a, b and c; no two share a key."""
    for model in (accounts, ledger):
        for name in "bc":
            model(name).save()
    return list(SUBJECTS.values())


@pytest.fixture(params=SUBJECTS)
def subject(subjects, request):
    """Each kind of lock in turn."""
    return SUBJECTS[request.param]


@pytest.fixture
def silence():
    """Fail a test in which anything was sent."""
    sent = []

    def note(_sender, operation_name, **_):
        sent.append(operation_name)

    with pre_dynamodb_send.connected_to(note):
        yield
    assert not sent
