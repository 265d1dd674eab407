"""Bounds of server time: true for every history of answers, and again after a clock stood still."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamodb_mutex._protocol.server_time import (
    DRIFT,
    GRAIN,
    HEADROOM,
    HOST_SKEW,
    WATCH_GRACE,
    Bounds,
    ServerTime,
)
from pynamodb_mutex._runtime.clock import LocalClock

EPOCH = 1_700_000_000.0
NOISE = 1e-5  # of floats of that size


class World:
    """True time, the server's hosts, and a client's clock that runs unevenly or stands still.

    Args:
        segments: Seconds of true time, and of the client's time meanwhile; the last goes on.
    """

    def __init__(self, segments):
        self._starts = [(0.0, 100.0)]
        self._rates = []
        for seconds, rate in segments:
            true, local = self._starts[-1]
            self._rates.append(rate)
            self._starts.append((true + seconds, local + seconds * rate))
        self._starts.pop()

    def local(self, true):
        for (start, local), rate in reversed(list(zip(self._starts, self._rates, strict=True))):
            if true >= start:
                return local + (true - start) * rate
        raise AssertionError(true)

    @property
    def last_thaw(self):
        """True time at which the clock last began to run again."""
        stood = [i for i, rate in enumerate(self._rates) if rate == 0]
        if not stood:
            return -math.inf
        after = stood[-1] + 1
        return self._starts[after][0] if after < len(self._starts) else math.inf

    @staticmethod
    def server(true, skew=0.0):
        return EPOCH + true + skew


def seconds(most):
    return st.integers(0, int(most * 1000)).map(lambda ms: ms / 1000)


LATER = seconds(60) | seconds(7 * 86_400)  # after the last answer
# a second of the client's lasts 0.99 to 1.01 true ones
RUNNING = st.integers(990, 1010).map(lambda r: 1000 / r)
REQUESTS = st.lists(
    # sent after the one before; on its way there and back; how far that host is ahead
    st.tuples(seconds(20), seconds(3), seconds(3), st.sampled_from([0.0, 0.05, HOST_SKEW])),
    min_size=1,
    max_size=12,
)


def segments(rate):
    return st.lists(st.tuples(seconds(40), rate), min_size=1, max_size=6)


def answers(requests):
    """Return (received, sent, date) in the order in which the answers come."""
    sent, history = 0.0, []
    for gap, there, back, skew in requests:
        sent += gap
        date = math.floor(World.server(sent + there, skew))
        history.append((sent + there + back, sent, float(date)))
    return sorted(history)


def hear(parts, history):
    """Yield the world, what is known, and when it was: after each answer."""
    world, server = World(parts), ServerTime()
    for received, sent, date in history:
        server.observe(date, world.local(sent), world.local(received))
        yield world, server, received


@given(segments(RUNNING) | segments(RUNNING | st.just(0.0)), REQUESTS, seconds(500))
def test_true_server_time_is_within_the_bounds_for_every_history_of_answers(parts, requests, later):
    """A clock that stood still spoils only the upper bound, and one answer repairs it."""
    history, latest_sent = answers(requests), -1.0
    for (world, server, received), (_, sent, _) in zip(hear(parts, history), history, strict=True):
        latest_sent = max(latest_sent, sent)
        for true in (received, received + later):
            local = world.local(true)
            assert server.bounds.lowest(local) - HOST_SKEW <= world.server(true) + NOISE
            if latest_sent > world.last_thaw:
                highest = server.bounds.highest(local) + HOST_SKEW
                assert highest >= world.server(true, HOST_SKEW) - NOISE


@given(segments(RUNNING), REQUESTS, seconds(500))
def test_estimate_is_off_by_a_second_the_way_of_an_answer_and_drift(parts, requests, later):
    history = answers(requests)
    *_, (world, server, _) = hear(parts, history)
    sent, received = max((sent, received) for received, sent, _ in history)
    now = received + later
    off = server.bounds.estimate(world.local(now)) - world.server(now)
    drift = DRIFT * (world.local(now) - world.local(sent))
    assert -GRAIN - drift - NOISE <= off <= received - sent + HOST_SKEW + drift + NOISE


@given(segments(RUNNING), REQUESTS)
def test_answer_that_came_at_once_leaves_less_than_two_seconds_of_doubt(parts, requests):
    *_, (world, server, last) = hear(parts, answers(requests))
    local = world.local(last + 1.0)
    server.observe(float(math.floor(world.server(last + 1.0))), local, local)
    doubt = server.bounds.highest(local) - server.bounds.lowest(local)
    assert 0 < doubt < GRAIN + HOST_SKEW + NOISE


@given(segments(RUNNING), REQUESTS, LATER, st.sampled_from([0.5, 2.0, 30.0, 600.0]))
def test_new_end_is_neither_far_beyond_server_time_nor_too_early(parts, requests, later, lease):
    history = answers(requests)
    *_, (world, server, last) = hear(parts, history)
    slowest = max(received - sent for received, sent, _ in history)
    bounds, local = server.bounds, world.local(last + later)
    ahead = bounds.nominal(local) - world.server(last + later)
    assert ahead <= max(HEADROOM, GRAIN + slowest) + HOST_SKEW + NOISE
    beyond_lower = bounds.nominal(local) - bounds.lowest(local)
    assert HEADROOM - NOISE <= beyond_lower <= WATCH_GRACE + NOISE
    if bounds.suffices(lease, local):
        assert ahead >= HEADROOM - GRAIN - lease / 2 - slowest - NOISE


def bounds_after(*answers):
    """Return the bounds after answers: the date, and the local times of sending and receiving."""
    server = ServerTime()
    for date, sent, received in answers:
        server.observe(date, sent, received)
    return server.bounds


def test_bounds_close_in_when_the_second_turns():
    seen = [(500.0, 10.0, 10.0), (501.0, 10.02, 10.02)]  # server time is 500.99, then 501.01
    assert bounds_after(*seen).lowest(10.02) == 501.0
    bounds = bounds_after(*seen, (501.0, 10.98, 10.98))  # 501.97
    assert bounds.lowest(10.98) == pytest.approx(501.96, abs=0.011)
    assert bounds.highest(10.98) == 502.0


def test_answer_that_was_late_or_contradicts_the_others_proves_what_it_can():
    # the clock stands for 30 s; the second was sent after that, and the third before, its answer was late
    bounds = bounds_after((500.0, 10.0, 10.0), (530.0, 10.2, 10.3), (500.0, 10.1, 10.4))
    assert bounds.highest(10.4) >= 531.0
    # the server got the third late
    bounds = bounds_after((500.0, 10.0, 10.0), (502.0, 12.0, 12.0), (509.0, 11.9, 13.0))
    assert bounds.lowest(13.0) == 509.0
    # the server's clock was set back
    set_back = bounds_after((1000.0, 10.0, 10.0), (500.0, 11.0, 11.0))
    assert set_back == Bounds(500.0, 11.0, 501.0, 11.0)


def test_clock_that_stood_still_is_noticed():
    server = ServerTime()
    assert not server.observe(500.0, 10.0, 10.0)
    assert server.observe(505.0, 11.0, 11.0)
    assert not server.observe(506.0, 12.0, 12.0)


BOUNDS = st.builds(
    lambda lower, lower_at, width, upper_at: Bounds(lower, lower_at, lower + width, upper_at),
    *(seconds(1000), seconds(100), seconds(3), seconds(100)),
)


@given(BOUNDS, seconds(2000))
def test_bounds_say_when_an_instant_is_reached_and_passed_on_each_host(bounds, instant):
    ends, passes = bounds.reaches(instant), bounds.passes(instant)
    assert bounds.highest(ends) <= instant + DRIFT * abs(instant - bounds.upper) + NOISE
    if instant > bounds.upper:
        assert bounds.highest(ends) == pytest.approx(instant)
    if instant + HOST_SKEW > bounds.lower:
        assert bounds.lowest(passes) == pytest.approx(instant + HOST_SKEW)
    else:
        assert passes <= bounds.lower_at
    # they suffice for twenty-five leases without an answer
    assert bounds.suffices(10.0, bounds.upper_at + 249)
    assert not bounds.suffices(10.0, bounds.upper_at + 251)


@pytest.mark.parametrize("counts_suspension", [True, False])
def test_local_clock_runs_forward(monkeypatch, counts_suspension):
    if not counts_suspension:  # as where there is no CLOCK_BOOTTIME
        monkeypatch.setattr("pynamodb_mutex._runtime.clock._SUSPEND_AWARE", None)
    clock = LocalClock()
    before = clock.now()
    time.sleep(0.01)
    assert clock.now() - before > 0.009
