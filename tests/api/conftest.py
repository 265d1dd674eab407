"""Every kind of lock, and what several folders of the API's tests use."""

from contextlib import ExitStack
from functools import partial

import pytest
from accounts import Account, Ledger

from pynamodb_mutex import LockItem, Mutex, Semaphore
from pynamodb_mutex.testing import held_elsewhere


class Subject:
    """A kind of lock on rows of a model, which `make` makes: it holds all of `several` keys, or one of them."""

    def __init__(self, make, model, *keys, several=False):
        self.make = partial(make, poll=(0.02, 0.1))
        self.model, self.keys, self.several = model, keys, several
        self.is_of_rows = model is not LockItem
        self.is_alternative = not several and len(keys) > 1

    def singles(self):
        """Return a lock of each key alone."""
        return [(self.model.locked if self.is_of_rows else Mutex.for_key)(key) for key in self.keys]

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


PERMITS = [f"s#permit-{number}" for number in (1, 2)]
SUBJECTS = {
    "one lock": Subject(partial(Mutex.for_key, "a"), LockItem, "a"),
    "several": Subject(partial(Mutex.for_keys, ["b", "c"]), LockItem, "b", "c", several=True),
    "any of": Subject(partial(Mutex.any_of, ["d", "e"]), LockItem, "d", "e"),
    "semaphore": Subject(partial(Semaphore.for_key, "s", permits=2), LockItem, *PERMITS),
    "row": Subject(partial(Account.locked, "a"), Account, "a"),
    "row and lock table": Subject(partial(Ledger.locked, "a"), Ledger, "a"),
    "rows": Subject(partial(Account.locked_all, ["b", "c"]), Account, "b", "c", several=True),
    "rows and lock table": Subject(
        partial(Ledger.locked_all, ["b", "c"]), Ledger, "b", "c", several=True
    ),
}


@pytest.fixture(params=SUBJECTS)
def subject(table, accounts, ledger, request):
    """Each kind of lock in turn, in fresh tables with the rows a, b and c."""
    for model in (accounts, ledger):
        for name in "bc":
            model(name).save()
    return SUBJECTS[request.param]


@pytest.fixture
def silence(sent):
    """Fail a test in which anything was sent."""
    yield
    assert sent == []
