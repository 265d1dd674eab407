"""When to poll, to retry and to renew: the sums, each with the least and the most that randomness may give."""

import math

import pytest

from pynamodb_mutex._lock.protocol.schedule import (
    NEVER,
    Retries,
    plan_after_failure,
    plan_after_sending,
    plan_renewal,
    poll_at_end,
)


def least(low, _):
    return low


def most(_, high):
    return high


def times_of(retries, *, now=0.0, **how):
    """Return the times of all retries, if each fails at once."""
    times = []
    while (at := retries.next(now, most, **{"answered": True, **how})) is not None:
        times.append(now := at)
    return times


def test_poll_for_an_end_is_spread_over_the_shortest_wait_after_it():
    assert [poll_at_end(10.0, 20.0, (0.2, 5.0), each) for each in (least, most)] == [20.0, 20.2]
    # the end has passed, or just passes
    assert poll_at_end(10.0, -math.inf, (0.2, 5.0), most) == 10.01
    assert poll_at_end(10.0, 9.9, (0.05, 5.0), most) == 10.01


def test_waits_between_retries_double_up_to_a_second_until_the_time_is_over():
    times = times_of(Retries(0.0, 4.0))
    assert times == pytest.approx([0.05, 0.15, 0.35, 0.75, 1.55, 2.55, 3.55, 4.0])
    assert Retries(0.0, 4.0).next(2.0, least, answered=True) == 2.0


def test_retries_go_on_for_half_a_second_though_nobody_waits():
    assert times_of(Retries(0.0, 0.0)) == pytest.approx([0.05, 0.15, 0.35, 0.5])
    assert times_of(Retries(0.0, 3.0), now=3.0) == []


def test_endpoint_that_has_never_answered_is_asked_for_ten_seconds():
    assert times_of(Retries(5.0, math.inf), now=5.0, answered=False)[-1] == 15.0
    retries = Retries(0.0, 100.0)
    assert retries.next(10.0, most, answered=False) is None
    assert retries.next(10.0, most, answered=True) > 10.0


def test_callers_number_of_retries_counts_failures_that_are_no_conflicts():
    assert len(times_of(Retries(0.0, 0.0, most=3))) == 3
    assert times_of(Retries(0.0, 100.0, most=0)) == []
    retries = Retries(0.0, 60.0, most=1)
    for now, conflict in ((0.0, True), (50.0, True), (70.0, False)):
        assert retries.next(now, least, answered=True, conflict=conflict) == now
    assert retries.next(55.0, least, answered=True) is None
    assert retries.next(70.0, least, answered=True, conflict=True) is None


def test_renewal_is_planned_after_a_third_of_the_lease_and_anew_if_that_ends_earlier():
    plan = plan_renewal(10.0, 40.0)
    assert (plan.since, plan.end, plan.at) == (10.0, 40.0, 20.0)
    assert [plan.due(end) for end in (41.0, 40.0, 25.0, 5.0)] == [20.0, 20.0, 15.0, 10.0]
    assert plan_renewal(10.0, 9.0).at == 10.0
    sending = plan_after_sending(10.0, 30.0, 60.0)
    assert [sending.due(end) for end in (30.0, 29.5)] == [30.0, 16.5]
    assert plan_after_sending(10.0, 30.0, 6.0).due(25.0) == 12.0
    assert NEVER.due(-math.inf) == NEVER.due(5.0) == math.inf


def test_renewal_that_failed_is_followed_after_a_tenth_of_the_lease_and_at_most_a_second():
    for lease, pause in ((2.0, 0.2), (10.0, 1.0), (30.0, 1.0)):
        plans = [plan_after_failure(100.0, 120.0, lease, each) for each in (least, most)]
        assert [(plan.since, plan.end) for plan in plans] == [(100.0, 120.0)] * 2
        assert [plan.at for plan in plans] == pytest.approx([100.0 + pause / 2, 100.0 + pause])
