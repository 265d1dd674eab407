"""The exceptions: their tree, what they carry, and that they survive pickling."""

from __future__ import annotations

import copy
import pickle

import pytest
from pynamodb.exceptions import PynamoDBException, UpdateError

import pynamodb_mutex
from pynamodb_mutex import exceptions
from pynamodb_mutex.exceptions import (
    InvalidKeyError,
    InvalidRowError,
    InvalidTicketError,
    Loss,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
    RowLockedError,
    describe_holder,
)

ALL = [
    MutexError,
    MutexTimeoutError,
    MutexNotHeldError,
    MutexLostError,
    MutexAlreadyHeldError,
    RowLockedError,
    InvalidKeyError,
    InvalidRowError,
    InvalidTicketError,
]


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (MutexError, {PynamoDBException}),
        (MutexTimeoutError, {MutexError, TimeoutError}),
        (MutexNotHeldError, {MutexError, RuntimeError}),
        (MutexLostError, {MutexNotHeldError}),
        (MutexAlreadyHeldError, {MutexError, RuntimeError}),
        (RowLockedError, {MutexError}),
        (InvalidKeyError, {MutexError, ValueError}),
        (InvalidRowError, {MutexError}),
        (InvalidTicketError, {MutexError, ValueError}),
    ],
)
def test_each_stands_where_the_documentation_says(kind, bases):
    assert set(kind.__bases__) == bases
    assert getattr(pynamodb_mutex, kind.__name__) is kind


def test_all_names_are_public():
    assert set(exceptions.__all__) == {kind.__name__ for kind in ALL} | {"Loss"}
    assert set(exceptions.__all__) <= set(pynamodb_mutex.__all__)


@pytest.mark.parametrize("kind", ALL)
def test_each_can_be_made_of_nothing_and_of_a_message(kind):
    empty = kind()
    assert (empty.key, empty.owner, empty.expires_at, empty.cause) == (None, None, None, None)
    assert str(empty) == empty.msg == "Mutex error"
    cause = ValueError("why")
    error = kind("what", cause, key="a", owner="me", expires_at=7.5)
    assert str(error) == error.msg == "what"
    assert (error.key, error.owner, error.expires_at, error.cause) == ("a", "me", 7.5, cause)


def made(kind):
    error = kind("what: é", ValueError("why"), key="a", owner="me", expires_at=7.5)
    error.extra = [1]
    if kind is MutexLostError:
        error.loss, error.applied = Loss.TAKEN, None
    if kind is InvalidRowError:
        error.attribute = "version"
    return error


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_each_survives_pickling_but_for_its_cause(kind, protocol):
    error = made(kind)
    copied = pickle.loads(pickle.dumps(error, protocol))
    assert type(copied) is kind
    assert str(copied) == str(error)
    assert copied.args == error.args
    assert copied.__dict__ == {**error.__dict__, "cause": None}


@pytest.mark.parametrize("kind", ALL)
def test_each_can_be_copied(kind):
    error = made(kind)
    assert copy.copy(error).__dict__ == {**error.__dict__, "cause": None}


def test_a_cause_that_cannot_be_pickled_does_not_matter():
    error = MutexLostError("what", UpdateError("no", ValueError(lambda: 0)), key="a")
    assert pickle.loads(pickle.dumps(error)).key == "a"


def test_a_callers_own_subclass_survives_too():
    error = OwnError("what", 7)
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), copied.number, copied.key) == (OwnError, 7, "own")


class OwnError(MutexError):
    def __init__(self, message, number):
        super().__init__(message, key="own")
        self.number = number


def test_a_lost_error_says_how_and_whether_it_was_applied():
    error = MutexLostError("what")
    assert (error.loss, error.applied) == (Loss.EXPIRED, False)
    error = MutexLostError("what", loss=Loss.FORCED, applied=None)
    assert (error.loss, error.applied) == (Loss.FORCED, None)


def test_each_loss_reads_as_the_end_of_a_sentence():
    assert {loss.name for loss in Loss} == {
        "EXPIRED",
        "TAKEN",
        "FORCED",
        "DELETED",
        "UNREACHABLE",
    }
    for loss in Loss:
        assert f"the lock was lost: {loss.value}"[0].islower()
        assert loss.value[0].islower() or loss.value.startswith("DynamoDB")
        assert not loss.value.endswith(".")


def test_a_holder_is_described_with_its_end_in_words():
    told = describe_holder("me", 1700000000.25)
    assert "held by 'me' until 2023-11-14T22:13:20.250+00:00" in told
    assert "an unnamed owner" in describe_holder(None, 1.0)
    assert describe_holder("me", None) == "its holder is not known"


def test_an_end_that_no_calendar_has_does_not_hide_the_error():
    """Somebody wrote milliseconds into the row by hand."""
    assert "held by 'me'" in describe_holder("me", 1.7e12)


def test_builtin_handlers_catch_them():
    with pytest.raises(TimeoutError):
        raise MutexTimeoutError("x")
    with pytest.raises(RuntimeError):
        raise MutexLostError("x")
    with pytest.raises(ValueError, match="x"):
        raise InvalidKeyError("x")
