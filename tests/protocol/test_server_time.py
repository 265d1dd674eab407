"""Bounds of server time: true for every history of answers, and again after a clock stood still."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pynamodb_mutex._protocol import server_time as _clock
from pynamodb_mutex._protocol.server_time import DRIFT, GRAIN, HOST_SKEW, Bounds, ServerTime
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
    """Yield (received, sent, date), in the order in which the answers come."""
    sent, history = 0.0, []
    for gap, there, back, skew in requests:
        sent += gap
        date = math.floor(World.server(sent + there, skew))
        history.append((sent + there + back, sent, float(date)))
    return sorted(history)


def check_lower(world, bounds, true):
    assert bounds.lowest(world.local(true)) - HOST_SKEW <= world.server(true) + NOISE


def check_upper(world, bounds, true):
    assert bounds.highest(world.local(true)) + HOST_SKEW >= world.server(true, HOST_SKEW) - NOISE


@given(segments(RUNNING), REQUESTS, seconds(500))
def test_true_server_time_is_within_the_bounds_for_every_history_of_answers(parts, requests, later):
    world, server = World(parts), ServerTime()
    for received, sent, date in answers(requests):
        server.observe(date, world.local(sent), world.local(received))
        for true in (sent, received, received + later):
            check_lower(world, server.bounds, true)
            check_upper(world, server.bounds, true)


@given(segments(RUNNING | st.just(0.0)), REQUESTS, seconds(500))
def test_a_clock_that_stood_still_spoils_only_the_upper_bound_and_one_answer_repairs_it(
    parts, requests, later
):
    world, server = World(parts), ServerTime()
    latest_sent = -1.0
    for received, sent, date in answers(requests):
        server.observe(date, world.local(sent), world.local(received))
        latest_sent = max(latest_sent, sent)
        for true in (received, received + later):
            check_lower(world, server.bounds, true)
            if latest_sent > world.last_thaw:
                check_upper(world, server.bounds, true)


@given(segments(RUNNING), REQUESTS, seconds(500))
def test_estimate_is_off_by_a_second_the_way_of_an_answer_and_drift(parts, requests, later):
    world, server = World(parts), ServerTime()
    latest = (-1.0, 0.0)
    for received, sent, date in answers(requests):
        server.observe(date, world.local(sent), world.local(received))
        latest = max(latest, (sent, received))
    sent, received = latest
    now = received + later
    off = server.bounds.estimate(world.local(now)) - world.server(now)
    drift = DRIFT * (now - sent)
    assert -GRAIN - drift - NOISE <= off <= received - sent + HOST_SKEW + drift + NOISE


@given(segments(RUNNING), REQUESTS)
def test_an_answer_that_came_at_once_leaves_less_than_two_seconds_of_doubt(parts, requests):
    world, server = World(parts), ServerTime()
    received = 0.0
    for received, sent, date in answers(requests):
        server.observe(date, world.local(sent), world.local(received))
    received += 1.0
    local = world.local(received)
    server.observe(float(math.floor(world.server(received))), local, local)
    bounds = server.bounds
    assert 0 < bounds.highest(local) - bounds.lowest(local) < GRAIN + HOST_SKEW + NOISE


def bounds_after(*answers):
    """Return the bounds after answers: the date, and the local times of sending and receiving."""
    server = ServerTime()
    for date, sent, received in answers:
        server.observe(date, sent, received)
    return server.bounds


def test_the_bounds_close_in_when_the_second_turns():
    seen = [(500.0, 10.0, 10.0), (501.0, 10.02, 10.02)]  # server time is 500.99, then 501.01
    assert bounds_after(*seen).lowest(10.02) == 501.0
    bounds = bounds_after(*seen, (501.0, 10.98, 10.98))  # 501.97
    assert bounds.lowest(10.98) == pytest.approx(501.96, abs=0.011)
    assert bounds.highest(10.98) == 502.0


def test_an_answer_already_on_its_way_does_not_lower_the_upper_bound():
    # the clock stands for 30 s; the second was sent after that, and the third before, its answer was late
    bounds = bounds_after((500.0, 10.0, 10.0), (530.0, 10.2, 10.3), (500.0, 10.1, 10.4))
    assert bounds.highest(10.4) >= 531.0


def test_an_answer_already_on_its_way_says_how_late_it_is_at_least():
    # the server got the third late
    bounds = bounds_after((500.0, 10.0, 10.0), (502.0, 12.0, 12.0), (509.0, 11.9, 13.0))
    assert bounds.lowest(13.0) == 509.0


def test_an_answer_that_contradicts_what_was_believed_replaces_it():
    # the server's clock was set back
    assert bounds_after((1000.0, 10.0, 10.0), (500.0, 11.0, 11.0)) == Bounds(
        500.0, 11.0, 501.0, 11.0
    )


def test_a_clock_that_stood_still_is_noticed():
    server = ServerTime()
    assert not server.observe(500.0, 10.0, 10.0)
    assert server.observe(505.0, 11.0, 11.0)
    assert not server.observe(506.0, 12.0, 12.0)


BOUNDS = st.builds(
    lambda lower, lower_at, width, upper_at: Bounds(lower, lower_at, lower + width, upper_at),
    seconds(1000),
    seconds(100),
    seconds(3),
    seconds(100),
)


@given(BOUNDS, seconds(2000))
def test_reaches_is_the_last_moment_at_which_server_time_is_surely_before(bounds, instant):
    ends = bounds.reaches(instant)
    assert bounds.highest(ends) <= instant + DRIFT * abs(instant - bounds.upper) + NOISE
    if instant > bounds.upper:
        assert bounds.highest(ends) == pytest.approx(instant)


@given(BOUNDS, seconds(2000))
def test_passes_is_the_first_moment_at_which_server_time_is_past_on_each_host(bounds, instant):
    passes = bounds.passes(instant)
    if instant + HOST_SKEW > bounds.lower:
        assert bounds.lowest(passes) == pytest.approx(instant + HOST_SKEW)
    else:
        assert passes <= bounds.lower_at


@given(segments(RUNNING), REQUESTS, LATER, st.sampled_from([0.5, 2.0, 30.0, 600.0]))
def test_new_end_is_neither_far_beyond_server_time_nor_too_early(parts, requests, later, lease):
    world, server = World(parts), ServerTime()
    slowest, latest = 0.0, 0.0
    for received, sent, date in answers(requests):
        server.observe(date, world.local(sent), world.local(received))
        slowest, latest = max(slowest, received - sent), received
    now = latest + later
    bounds, local = server.bounds, world.local(now)
    ahead = bounds.nominal(local) - world.server(now)
    assert ahead <= max(_clock.HEADROOM, GRAIN + slowest) + HOST_SKEW + NOISE
    beyond_lower = bounds.nominal(local) - bounds.lowest(local)
    assert _clock.HEADROOM - NOISE <= beyond_lower <= _clock.WATCH_GRACE + NOISE
    if bounds.suffices(lease, local):
        assert ahead >= _clock.HEADROOM - GRAIN - lease / 2 - slowest - NOISE


@given(BOUNDS)
def test_bounds_suffice_for_twenty_five_leases_without_an_answer(bounds):
    assert bounds.suffices(10.0, bounds.upper_at + 249)
    assert not bounds.suffices(10.0, bounds.upper_at + 251)


@pytest.mark.parametrize("counts_suspension", [True, False])
def test_the_local_clock_runs_forward(monkeypatch, counts_suspension):
    if not counts_suspension:  # as where there is no CLOCK_BOOTTIME
        monkeypatch.setattr("pynamodb_mutex._runtime.clock._SUSPEND_AWARE", None)
    clock = LocalClock()
    before = clock.now()
    time.sleep(0.01)
    assert 0.009 < clock.now() - before < 10
