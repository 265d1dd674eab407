"""The exceptions: their tree, what they carry, and that they survive pickling."""

import copy
import pickle

import pytest
from pynamodb.exceptions import PynamoDBException, UpdateError

import pynamodb_mutex
from pynamodb_mutex import Loss, MutexError, MutexLostError, MutexNotHeldError, exceptions

BASES = {
    MutexError: {PynamoDBException},
    exceptions.MutexTimeoutError: {MutexError, TimeoutError},
    MutexNotHeldError: {MutexError, RuntimeError},
    MutexLostError: {MutexNotHeldError},
    exceptions.MutexAlreadyHeldError: {MutexError, RuntimeError},
    exceptions.RowLockedError: {MutexError},
    exceptions.InvalidKeyError: {MutexError, ValueError},
    exceptions.InvalidRowError: {MutexError},
    exceptions.InvalidTicketError: {MutexError, ValueError},
}


def test_all_names_are_public():
    assert set(exceptions.__all__) == {kind.__name__ for kind in BASES} | {"Loss"}
    assert set(exceptions.__all__) <= set(pynamodb_mutex.__all__)


@pytest.mark.parametrize("kind", BASES)
def test_each_has_its_bases_and_survives_pickling_and_copying_but_for_its_cause(kind):
    assert set(kind.__bases__) == BASES[kind]
    assert getattr(pynamodb_mutex, kind.__name__) is kind
    empty = kind()
    assert (empty.key, empty.owner, empty.expires_at, empty.cause) == (None, None, None, None)
    assert str(empty) == empty.msg == "Mutex error"
    cause = ValueError("why")
    error = kind("what: é", cause, key="a", owner="me", expires_at=7.5)
    assert str(error) == error.msg == "what: é"
    assert (error.key, error.owner, error.expires_at, error.cause) == ("a", "me", 7.5, cause)
    error.extra = [1]
    if kind is MutexLostError:
        error.loss, error.applied = Loss.TAKEN, None
    if kind is exceptions.InvalidRowError:
        error.attribute = "version"
    pickled = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for copied in (*map(pickle.loads, pickled), copy.copy(error)):
        assert type(copied) is kind
        assert (str(copied), copied.args) == (str(error), error.args)
        assert copied.__dict__ == {**error.__dict__, "cause": None}


class OwnError(MutexError):
    def __init__(self, message, number):
        super().__init__(message, key="own")
        self.number = number


def test_subclass_and_cause_that_cannot_be_pickled_survive_too():
    copied = pickle.loads(pickle.dumps(OwnError("what", 7)))
    assert (type(copied), copied.number, copied.key) == (OwnError, 7, "own")
    error = MutexLostError("what", UpdateError("no", ValueError(lambda: 0)), key="a")
    assert pickle.loads(pickle.dumps(error)).key == "a"


def test_lost_error_says_how_and_whether_the_write_was_applied():
    error = MutexLostError("what")
    assert (error.loss, error.applied) == (Loss.EXPIRED, False)
    error = MutexLostError("what", loss=Loss.FORCED, applied=None)
    assert (error.loss, error.applied) == (Loss.FORCED, None)
    names = {loss.name for loss in Loss}
    assert names == {"EXPIRED", "TAKEN", "FORCED", "DELETED", "UNREACHABLE"}
    # each reads as the end of a sentence
    for loss in Loss:
        assert loss.value[0].islower() or loss.value.startswith("DynamoDB")
        assert not loss.value.endswith(".")


def test_holder_is_described_with_its_end_in_words():
    described = exceptions.describe_holder("me", 1700000000.25)
    assert "held by 'me' until 2023-11-14T22:13:20.250+00:00" in described
    assert "an unnamed owner" in exceptions.describe_holder(None, 1.0)
    assert exceptions.describe_holder("me", None) == "its holder is not known"
    # milliseconds, written into the row by hand: an end that no calendar has does not hide the error
    assert "held by 'me'" in exceptions.describe_holder("me", 1.7e12)
