"""The waiting line: entries and the addresses in them, and when a waiter polls, takes the lock and passes others."""

import base64
import ipaddress
import math

import pytest

from pynamodb_mutex._fair.waiting_line import (
    HEAD_POLL,
    LONGEST_POLL,
    Take,
    WaitingLine,
    address_of,
    began_at,
    dead_after,
    id_of,
    label_of,
    new_entry,
)
from pynamodb_mutex._lock.protocol.claim import FORCED_MARK, NO_SERVER_TIME, TICK, Claim
from pynamodb_mutex._lock.protocol.server_time import Bounds

BITS = "0123456789abcdef" * 2
ID = "6b49d20089abcdef"
NOW = 1_800_000_000.0


def packed(address, port=5000):
    return ipaddress.ip_address(address).packed + port.to_bytes(2, "big")


def entry(address, port=5000, owner="she"):
    return new_entry(NOW, BITS, owner, packed(address, port))


@pytest.mark.parametrize(
    "address",
    ["10.0.0.7", "127.0.0.1", "192.168.255.254", "203.0.113.9", "::1", "2001:db8::1", "fe80::1"],
)
@pytest.mark.parametrize("port", [1, 255, 256, 65_535])
def test_address_in_an_entry_is_found(address, port):
    made = entry(address, port)
    assert (address_of(made), id_of(made), label_of(made)) == ((address, port), ID, "she")


@pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff"])
@pytest.mark.parametrize("owner", ["x" * 100, "ä" * 100, "a|b", "!CgAAB8Qw|"])
def test_entry_with_an_address_is_no_longer_than_others(address, owner):
    made = entry(address, owner=owner)
    assert len(made.encode()) <= 64
    assert owner.startswith(label_of(made))
    assert address_of(made) == (address, 5000)


@pytest.mark.parametrize(
    "address",
    [
        *("224.0.0.1", "239.255.255.255", "ff02::1"),  # multicast
        *("0.0.0.0", "::"),  # unspecified
        *("240.0.0.1", "255.255.255.255", "4000::1"),  # reserved, and broadcast
    ],
)
def test_address_that_is_not_that_of_one_host_is_ignored(address):
    assert address_of(entry(address)) is None


@pytest.mark.parametrize(
    "written",
    [
        "",
        "!",
        "AAAA",
        "not base64",
        "ÄÖÜ",
        base64.b64encode(packed("10.0.0.7")).decode()[:-1],
        base64.b64encode(packed("10.0.0.7")).decode() + "\n",
        base64.b64encode(packed("10.0.0.7")[:-1]).decode(),
        base64.b64encode(packed("10.0.0.7") + b"x").decode(),
        base64.b64encode(packed("10.0.0.7", 0)).decode(),
        base64.b64encode(b"10.0.0.7:5000").decode(),
        "10.0.0.7:5000",
    ],
)
def test_broken_address_is_ignored(written):
    assert address_of(f"{ID}!{written}|she") is None


@pytest.mark.parametrize("owner", ["x!CgAAB8Qw|y", "!CgAAB8Qw|y", "!CgAAB8Qw", "|!CgAAB8Qw|"])
def test_label_is_never_taken_for_an_address(owner):
    assert address_of(f"{ID}!CgAAB8Qw|x") is not None
    made = new_entry(NOW, BITS, owner)
    assert (address_of(made), label_of(made)) == (None, owner)


@pytest.mark.parametrize("made", ["", "x", ID, f"{ID}|", "!CgAAB8Qw|", f"{ID[:-1]}!CgAAB8Qw|x"])
def test_other_entries_have_no_address(made):
    assert address_of(made) is None


def test_entry_shows_since_when_its_waiter_waits_if_server_time_was_known():
    assert began_at(entry("10.0.0.7")) == NOW
    assert began_at(new_entry(NOW + 0.9, BITS, "she")) == NOW
    for other in (new_entry(None, BITS, "she"), "", "x", "not hexadecimal"):
        assert began_at(other) is None


# -- a waiter's view of the line -------------------------------------------------------------------


class Waiter:
    """A waiter, and the row that it is shown by consistent reads."""

    def __init__(self, *, poll=(0.05, 1.0)):
        self.line = WaitingLine(poll)
        self.line.entry = "own"

    def sees(self, waiting, at, token="t1", **claim):
        shown = Claim(token=token, version=1, waiting=tuple(waiting), **claim)
        assert self.line.see(shown, at, is_current=True)


HELD = {"expires_at": NOW + 100, "owner": "x"}


def test_waiter_polls_after_half_of_the_time_that_its_turn_takes_as_the_line_has_moved():
    """Two places in 3 s, and one more as if just gained: a second for each."""
    waiter = Waiter()
    waiter.sees(["a", "b", "c", "own"], 100.0, **HELD)
    waiter.sees(["c", "own"], 102.98, **HELD)
    assert waiter.line.polls_at(102.98, None, math.inf) == pytest.approx(102.98 + 0.5)


@pytest.mark.parametrize(
    ("moved_at", "wait"),
    [(100.0, 0.05), (130.0, LONGEST_POLL)],
    ids=["at once", "slowly"],
)
def test_waits_between_polls_are_neither_shorter_nor_longer_than_they_may_be(moved_at, wait):
    waiter = Waiter(poll=(0.05, 10.0))
    for at in (100.0, moved_at):
        waiter.sees(["a", "b", "own"], at, **HELD)
    now = moved_at + 8.0 * (moved_at > 100)
    assert waiter.line.polls_at(now, None, math.inf) == pytest.approx(moved_at + wait)


def passed_over(*, since=100.0):
    """Return the second in line; while the first stood there from this time on, others have taken the lock."""
    waiter = Waiter()
    waiter.sees(["a", "own"], since, **HELD)
    for seconds in range(2, 8, 2):
        taken = {"token": f"t{seconds}", "free_since": NOW + seconds}
        waiter.sees(["a", "own"], since + seconds, **taken, **HELD)
    return waiter.line


def test_first_in_line_that_others_pass_over_for_long_is_passed_by_the_second_one():
    """As soon as its patience has passed, and the lock is free. The first one may live, and stays in line."""
    line, free_at = passed_over(), 105.0
    due = 100.0 + dead_after(1)
    assert line.take(due - 0.001, None, free_at) is None
    assert line.take(due, None, free_at) == Take(1)
    assert line.take(due, None, due + 1) is None


def test_first_in_line_waits_while_nobody_takes_the_lock():
    waiter = Waiter()
    for seconds in range(0, 10, 2):
        waiter.sees(["a", "own"], 100.0 + seconds, **HELD)
    assert waiter.line.take(108.0, None, 108.0) is None


def test_waiter_polls_as_the_first_in_line_does_once_that_is_passed_over():
    line = passed_over()
    assert line.polls_at(106.0, None, math.inf) == pytest.approx(106.0 + 0.05)
    before = passed_over(since=100.5)
    assert before.polls_at(106.4, None, math.inf) > 106.5 + 0.1


def test_free_lock_that_is_seen_for_long_is_taken_from_behind_a_waiter_that_stands_still():
    """Of a claim in the row that has ended by the clock alone, it counts from that end."""
    waiter = Waiter()
    for seconds in range(0, 8, 2):
        waiter.sees(["a", "own"], 100.0 + seconds)
    assert waiter.line.take(105.9, None, 0.0) is None
    assert waiter.line.take(106.0, None, 0.0) == Take(1, ahead=True, unchanged=True)
    held = Waiter()
    for seconds in range(0, 10, 2):
        held.sees(["a", "own"], 100.0 + seconds, **HELD)
    assert held.line.take(108.0, None, 103.0) is None
    assert held.line.take(109.0, None, 103.0) == Take(1, ahead=True, unchanged=True)


@pytest.mark.parametrize(
    ("longest", "held_for", "wait"),
    [(1.0, 0.1, 0.05), (1.0, 1.0, 0.1), (0.15, 10.0, 0.15), (1.0, 10.0, HEAD_POLL)],
)
def test_first_in_line_polls_more_rarely_the_longer_it_has_seen_the_holder(longest, held_for, wait):
    waiter = Waiter(poll=(0.05, longest))
    waiter.sees(["own"], 100.0, **HELD)
    now = 100.0 + held_for
    waiter.sees(["own"], now, **HELD)
    assert waiter.line.polls_at(now, None, math.inf) == pytest.approx(now + wait)


# at the local time 100, server time is between NOW and a second after that
BOUNDS = Bounds(NOW, 100.0, NOW + 1, 100.0)


@pytest.mark.parametrize(
    ("row", "free"),
    [
        ({"free_since": NOW + 1}, NOW + 1),
        ({"free_since": NOW + 1, "expires_at": NOW + 3}, NOW + 3),
        ({"free_since": NOW + 3, "expires_at": NOW + 1}, NOW + 3),
        ({"free_since": NO_SERVER_TIME, "expires_at": NOW + 3}, NOW + 3),
        ({"expires_at": NOW + 3}, NOW + 3),
    ],
    ids=["free", "held since", "left since", "undated", "never released"],
)
def test_all_ahead_count_as_dead_once_the_lock_was_free_for_long_by_the_dates_in_the_row(row, free):
    waiter = Waiter()
    waiter.sees(["a", "b", "own"], 100.0, **row)
    at = BOUNDS.passes(free + dead_after(2) + 2 * TICK)
    assert waiter.line.passes_at(BOUNDS) == at
    assert waiter.line.take(at, BOUNDS, math.inf) == Take(2, ahead=True, past=dead_after(2))


def test_dates_of_a_late_write_count_from_the_poll_before_it():
    waiter = Waiter()
    waiter.sees(["a", "own"], 100.0, **HELD)
    waiter.sees(["a", "own"], 102.0, token="t2", free_since=NOW - 50)
    assert waiter.line.passes_at(BOUNDS) == 100.0 + dead_after(1)


UNDATED = {"free_since": NO_SERVER_TIME}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"free_since": NOW}, {"free_since": NOW, **HELD}),
        ({"free_since": NOW, **HELD, "owner": None}, {"free_since": NOW, **HELD}),
        ({**UNDATED, **HELD}, {**UNDATED, **HELD}),
        ({"free_since": NOW, **HELD}, {"free_since": NOW, "abandoned_by": "dead", **HELD}),
    ],
    ids=["free lock", "kept by hold_at_least", "released without server time", "dead holder"],
)
def test_first_in_line_is_passed_over_by_whoever_takes_the_lock(before, after):
    """Taken for the same holder as before, such takers would keep the line behind a dead waiter from it for ever."""
    waiter = Waiter()
    waiter.sees(["a", "own"], 100.0, **before)
    waiter.sees(["a", "own"], 104.0, token="t2", **after)
    assert waiter.line.take(106.0, None, 106.0) == Take(1)


@pytest.mark.parametrize(
    ("at", "waiting", "row"),
    [
        (104.0, ["a", "b", "own"], {"token": "t2", "free_since": NOW, **HELD}),
        (104.0, ["a", "b", "own"], {"token": f"{FORCED_MARK}1"}),
        (104.0, ["b", "own"], {"token": "t2", **HELD}),
        (106.1, ["a", "b", "own"], {"token": "t2", **HELD}),
    ],
    ids=["attached", "forced", "another first in line", "not seen for long"],
)
def test_first_in_line_that_nobody_is_known_to_have_passed_over_keeps_its_turn(at, waiting, row):
    """Passed all the same, a waiter that lives would lose its turn before it could take it."""
    waiter = Waiter()
    waiter.sees(["a", "b", "own"], 100.0, free_since=NOW, **HELD)
    waiter.sees(waiting, at, **row)
    assert waiter.line.take(109.0, None, 109.0) is None


@pytest.mark.parametrize(
    ("row", "earlier"),
    [({"token": "t1", **HELD}, None), ({"token": "t0"}, Take(1))],
    ids=["held", "taken and released meanwhile"],
)
def test_watched_lock_counts_as_free_from_when_it_was_seen_so_with_the_same_token(row, earlier):
    """Counted from earlier, the first in line would be removed before it had time to see that its turn has come."""
    waiter = Waiter()
    waiter.sees(["a", "own"], 100.0, **row)
    for at in (104.0, 108.0):
        waiter.sees(["a", "own"], at, token="t1")
    assert waiter.line.take(109.0, None, -math.inf) == earlier
    assert waiter.line.take(110.0, None, -math.inf) == Take(1, ahead=True, unchanged=True)


def test_waiter_polls_when_all_ahead_come_to_count_as_dead():
    """Otherwise it would wait on for up to LONGEST_POLL, while the lock is free."""
    for waiting in (["a", "b", "own"], ["a", "b"]):
        waiter = Waiter()
        for at in (100.0, 104.0, 106.9):
            waiter.sees(waiting, at, free_since=NOW, expires_at=NOW + 1)
        due = BOUNDS.passes(NOW + 1 + dead_after(2) + 2 * TICK)
        assert waiter.line.polls_at(106.9, BOUNDS, math.inf) == due < 106.9 + LONGEST_POLL
    watching = Waiter()
    for at in (100.0, 103.0, 105.5):
        watching.sees(["a", "b", "own"], at)
    assert watching.line.polls_at(107.0, None, -math.inf) == 100.0 + dead_after(2)


def test_newcomer_passes_a_dead_line_only_if_the_row_says_that_the_lock_was_free_for_long():
    """Without that condition a write that arrives late would pass waiters that live, and remove them."""
    newcomer = Waiter()
    newcomer.sees(["a", "b"], 100.0, free_since=NOW)
    assert newcomer.line.take(120.0, BOUNDS, math.inf) == Take(ahead=True, past=dead_after(2))


def test_first_in_line_takes_the_lock_at_the_instant_for_which_it_wakes():
    waiter = Waiter()
    waiter.sees(["own"], 100.0, **HELD)
    due = waiter.line.polls_at(100.0, None, 100.03)
    assert (due, waiter.line.take(due, None, 100.03)) == (100.03, Take(0, ahead=True))


def test_read_from_before_what_is_known_is_not_believed_and_repeated_soon():
    """Believed, it would show a lock that was taken since as free, and the line as it was."""
    waiter = Waiter(poll=(0.05, 1.0))
    now = Claim("t2", 2, NOW + 100)
    assert waiter.line.see(now, 100.0, is_current=True)
    assert not waiter.line.see(Claim("t1", 1), 101.0, is_current=False)
    assert waiter.line.polls_at(101.0, None, math.inf) == 101.0 + 0.05
    assert waiter.line.see(now, 102.0, is_current=False)
