"""The helpers for tests, with rows: a claim that ends, and one that somebody else has."""

from __future__ import annotations

import pytest
from accounts import Account
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import UpdateError
from pynamodb.models import Model

from pynamodb_mutex import Loss, MutexLostError, RowLockedError
from pynamodb_mutex.testing import expire, held_elsewhere


def test_row_is_held_elsewhere(model: type[Account]) -> None:
    with held_elsewhere("a", model=model, owner="worker-7", lease=5) as row:
        assert isinstance(row, model)
        assert row.balance == 0
        assert not model.locked("a").acquire(blocking=False)
        with pytest.raises(RowLockedError, match="worker-7"):
            model("a").save()
    with model.locked("a", timeout=0):
        pass


def test_row_held_here_is_lost_to_elsewhere(model: type[Account]) -> None:
    lock = model.locked("a")
    assert lock.acquire()
    with pytest.raises(MutexLostError) as raised, held_elsewhere("a", model=model):
        lock.row.save()
    assert raised.value.loss is Loss.FORCED


def test_claim_of_a_row_ends(model: type[Account]) -> None:
    with pytest.raises(UpdateError):
        expire("a", model)  # a claim that is not there
    lock = model.locked("a", auto_renew=False, owner="worker-7")
    assert lock.acquire()
    row = lock.row
    expire("a", model)
    with model.locked("a", timeout=0) as taken:
        assert taken.row_lock.abandoned_by == "worker-7"
    with pytest.raises(MutexLostError):
        row.save()


def test_model_without_locks_is_refused() -> None:
    class Plain(Model):
        name = UnicodeAttribute(hash_key=True)

    with pytest.raises(TypeError, match="RowLockMixin"):
        expire("a", Plain)
