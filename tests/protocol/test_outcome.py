"""What a row that refused a request shows about it: the verdicts, one by one."""

from typing import get_args

import pytest

from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, Claim, OwnClaim
from pynamodb_mutex._lock.protocol.outcome import (
    GuardedWrite,
    Verdict,
    guarded_write,
    of_all,
    renewal,
    shows_release,
    was_lost_before_release,
)
from pynamodb_mutex._lock.protocol.server_time import Bounds

APPLIED, GONE, AGAIN, LOST, NOT_APPLIED, REFUSED = get_args(Verdict)
MINE = Claim("mine", 5, 1010.0)


@pytest.fixture
def own():
    own = OwnClaim("mine", 10.0)
    own.version, own.proposed = 5, 1020.0
    return own


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (MINE, "overtaken"),
        (MINE._replace(expires_at=1015.0), "applied"),
        (MINE._replace(expires_at=1020.0), "overtaken"),
        (MINE._replace(expires_at=1020.001), "again"),
        (MINE._replace(expires_at=None), "lost"),
        (MINE._replace(version=6, expires_at=1015.0), "lost"),
        (MINE._replace(token="other", expires_at=1015.0), "lost"),
        (Claim(), "lost"),
    ],
)
def test_refused_renewal(own, row, verdict):
    assert renewal(own, 1015.0, row, applied=False) is verdict
    assert renewal(own, 1015.0, row, applied=True) == "applied"


@pytest.mark.parametrize(
    ("verdicts", "verdict"),
    [
        ([], REFUSED),
        ([REFUSED, REFUSED], REFUSED),
        ([REFUSED, AGAIN], AGAIN),
        ([REFUSED, NOT_APPLIED], NOT_APPLIED),
        ([AGAIN, LOST], NOT_APPLIED),
        ([AGAIN, NOT_APPLIED, LOST], NOT_APPLIED),
        ([NOT_APPLIED, GONE], NOT_APPLIED),
        ([LOST, REFUSED], NOT_APPLIED),
        ([LOST, GONE], LOST),
        ([LOST, APPLIED], APPLIED),
        ([GONE, GONE], APPLIED),
        ([GONE], LOST),  # the other row still has its claim
    ],
)
def test_write_under_two_claims(verdicts, verdict):
    assert of_all(verdicts, 2) is verdict


@pytest.mark.parametrize(
    ("row", "end", "verdict"),
    [
        (MINE._replace(writes=9), None, APPLIED),
        (Claim("other", 6, writes=9), None, APPLIED),
        (MINE._replace(writes=7), None, REFUSED),
        (MINE._replace(writes=7), 1010.0, AGAIN),
        (MINE._replace(writes=7), 1010.001, REFUSED),
        (MINE._replace(writes=8), None, LOST),
        (Claim("other", 6, writes=7), None, NOT_APPLIED),
        (Claim("other", 6, writes=8), None, LOST),
    ],
)
def test_refused_guarded_write(own, row, end, verdict):
    own.writes = 7
    write = GuardedWrite(9, end)
    assert guarded_write(own, write, row, row_is_gone=False, may_delete=False) is verdict


def test_guarded_write_that_met_a_renewal_proposes_a_later_end_next(own):
    """Of an end that this process has not proposed itself. With the same end again, it would be refused for ever."""
    row = MINE._replace(expires_at=1030.0)
    write = GuardedWrite(9, 1025.0)
    assert guarded_write(own, write, row, row_is_gone=False, may_delete=False) is AGAIN
    end, _ = own.propose(0.0, Bounds(1000.0, 0.0, 1001.0, 0.0), own.lease)
    assert end > 1030.0


@pytest.mark.parametrize(("deletes", "verdict"), [({}, LOST), ({"deletes": True}, GONE)])
def test_only_a_write_that_deletes_may_have_deleted_the_row(own, deletes, verdict):
    own.writes = 7
    write = GuardedWrite(9, **deletes)
    assert guarded_write(own, write, Claim(), row_is_gone=True, may_delete=True) is verdict


FORCED = Claim(FORCED_MARK + "x", 6)


@pytest.mark.parametrize(
    ("row", "maybe_applied", "was_lost"),
    [
        (FORCED, True, True),
        (FORCED._replace(version=7), True, False),
        (Claim("other", 6, 1010.0), True, False),
        (Claim("other", 6, 1010.0), False, True),
        (Claim(), True, False),
    ],
)
def test_refused_release_of_a_lost_lock(own, row, maybe_applied, was_lost):
    assert was_lost_before_release(own, row, maybe_applied=maybe_applied) is was_lost


@pytest.mark.parametrize(
    ("row", "reserved_as", "deletes", "shows"),
    [
        (Claim("mine", 5), "", False, True),
        (MINE, "", False, False),
        (Claim("kept", 6, 1010.0), "kept", False, True),
        (Claim("other", 6, 1010.0), "", False, True),
        (Claim("other", 6, 1010.0, abandoned_by="me"), "", False, False),
        (Claim("other", 7, 1010.0), "", False, False),
        (FORCED, "", False, False),
        (Claim("mine", 5), "", True, False),
        (Claim(), "", False, False),
    ],
)
def test_refused_release_that_a_copy_has_made(own, row, reserved_as, deletes, shows):
    assert shows_release(own, row, reserved_as, deletes=deletes) is shows
