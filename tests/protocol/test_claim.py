"""Server time, whose the lock is, and until when: the rules, one by one, for every history of answers."""

import math
import random
import runpy
import time
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from this_process import current_process

from pynamodb_mutex._lock.protocol.claim import (
    FORCED_MARK,
    HIGHEST_VERSION,
    MARK_FAR,
    MOST_CHANGES,
    MOST_NUMBERS,
    NO_SERVER_TIME,
    TICK,
    YEAR_10000,
    Claim,
    ObservedClaim,
    OwnClaim,
    date_of,
    new_token,
    token_time,
)
from pynamodb_mutex._lock.protocol.outcome import is_mine, loss_of
from pynamodb_mutex._lock.protocol.server_time import (
    DRIFT,
    GRAIN,
    HEADROOM,
    HOST_SKEW,
    WATCH_GRACE,
    Bounds,
    ServerTime,
)
from pynamodb_mutex._lock.runtime import clock as _clock
from pynamodb_mutex._once.rows import OnceRow
from pynamodb_mutex.exceptions import Loss

pytestmark = pytest.mark.unmeasured

# -- bounds of server time: also after a clock stood still -----------------------------------------

EPOCH = 1_700_000_000.0
NOISE = 1e-5  # of floats of that size


class World:
    """True time, the server's hosts, and a client's clock that runs unevenly or stands still.

    Args:
        segments: Seconds of true time, and of the client's time meanwhile; the last goes on.
    """

    def __init__(self, segments):
        true, local = 0.0, 100.0
        self._parts = []
        for seconds, rate in segments:
            self._parts.append((true, local, rate))
            true, local = true + seconds, local + seconds * rate

    def local(self, true):
        start, local, rate = [part for part in self._parts if part[0] <= true][-1]
        return local + (true - start) * rate

    @property
    def last_thaw(self):
        """True time at which the clock last began to run again."""
        followed = pairwise([*self._parts, (math.inf,)])
        return max((after[0] for (_, _, rate), after in followed if not rate), default=-math.inf)

    @staticmethod
    def server(true, skew=0.0):
        return EPOCH + true + skew


def seconds(most, least=0):
    return st.integers(int(least * 1000), most * 1000).map(lambda ms: ms / 1000)


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
        server.learn(date, world.local(sent), world.local(received))
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
        # and hosts that agree well enough are not accused
        assert server.contradictions == 0


@pytest.mark.parametrize("ahead", [0.3, 20.0, -20.0, 0.08, -0.08, 0.0])
def test_answers_of_a_host_that_is_ahead_or_behind_contradict_the_others(ahead):
    server, rng, noticed = ServerTime(), random.Random(0), abs(ahead) > HOST_SKEW
    for request in range(3000):
        sent = 0.07 * request + rng.uniform(0.0, 0.05)
        date = math.floor(World.server(sent + 0.001, rng.choice([0.0, ahead])))
        server.learn(float(date), sent, sent + 0.002)
    assert (server.contradictions > 0) is noticed
    if noticed:
        assert max(HOST_SKEW, abs(ahead) - 1) < server.behind <= abs(ahead)


@pytest.mark.parametrize(("more", "contradictions"), [(0.0, 0), (1e-9, 1)])
def test_answer_contradicts_only_if_hosts_differ_by_more_than_is_allowed(more, contradictions):
    server, just_before = ServerTime(), math.nextafter(0.0, -1.0)

    def see(behind, lower_at=just_before):
        server.bounds = Bounds(behind, lower_at, 5.0, 0.0)
        server.learn(-1.0, 0.0, 0.0)
        return server.contradictions

    assert see(HOST_SKEW + 1e-6 + more) == contradictions
    assert server.behind == pytest.approx(HOST_SKEW * contradictions, abs=1e-5)
    # if the clock stands still, this may have been sent long before the other answer was given
    assert see(10.0, lower_at=0.0) == contradictions
    # the worst is kept
    assert see(3.0) == contradictions + 1
    assert see(2.0) == contradictions + 2
    assert server.behind == 3.0


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
    server.learn(float(math.floor(world.server(last + 1.0))), local, local)
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
        server.learn(date, sent, received)
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
    assert (set_back.lower, set_back.lower_at, set_back.upper, set_back.upper_at) == (
        500.0,
        11.0,
        501.0,
        11.0,
    )


def test_clock_that_stood_still_is_noticed():
    learn = ServerTime().learn
    seen = [(500.0, 10.0, 10.0), (505.0, 11.0, 11.0), (506.0, 12.0, 12.0)]
    assert [learn(*each) for each in seen] == [False, True, False]
    # by a second, and by what is not worth planning anew
    assert learn(508.0, 13.0, 13.0)
    assert not learn(509.0, 13.995, 13.995)


def test_date_is_expected_of_the_first_three_answers():
    server, expected = ServerTime(), []
    for server.answered in range(4):
        expected.append(server.may_be_learned)
    assert expected == [True, True, True, False]


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
        monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    clock = runpy.run_path(_clock.__file__)["LocalClock"]()
    before = clock.now()
    time.sleep(0.01)
    assert clock.now() - before > 0.009


EXACT = Bounds(1000.0, 0.0, 1001.0, 0.0)  # at local time 0, server time is from 1000 to 1001
WATCHED = 3.0 + (10 + WATCH_GRACE) * (1 + DRIFT)  # a lease of 10 s, seen at 3 s


def claim(token="a", expires_at=1010.0, lease=10.0, version=5):
    return Claim(token=token, version=version, expires_at=expires_at, lease=lease)


def watching(*seen):
    watch = ObservedClaim()
    for row, received in seen:
        watch.see(row, received)
    return watch


def holder(lease=10.0, *, bounds=EXACT, sent=0.0, seen=0.0):
    tenure = OwnClaim("mine", lease)
    tenure.outbid(seen)
    end, written = tenure.propose(sent, bounds, lease)
    tenure.acquired(claim("mine", end, written), sent, bounds)
    return tenure


# -- a dead holder's claim -------------------------------------------------------------------------


@given(
    *(segments(RUNNING), REQUESTS, LATER, st.sampled_from([0.5, 1.0, 30.0, 600.0])),
    st.tuples(seconds(3), st.sampled_from([0.0, HOST_SKEW])),
)
def test_claim_of_a_dead_holder_is_free_in_time_however_long_the_holder_was_idle(
    parts, requests, idle, lease, newcomer
):
    history = answers(requests)
    *_, (world, server, received) = hear(parts, history)
    trip, skew = newcomer
    slowest = max(trip, *(received - sent for received, sent, _ in history))
    sent = received + idle
    end, _ = OwnClaim("mine", lease).propose(world.local(sent), server.bounds, lease)
    due = sent + 1.01 * lease + 2.5 + 2 * slowest
    # a process that has had no answer yet reads the row
    fresh, read_at = ServerTime(), due - trip
    fresh.learn(float(math.floor(World.server(read_at, skew))), read_at, due)
    assert watching((claim(expires_at=end, lease=lease), due)).free_at(fresh.bounds) <= due


@pytest.mark.parametrize("lasts", [0.99, 0.9999, 1.0, 1.0001, 1.01])
def test_end_does_not_creep_ahead_in_ten_hours_of_renewals(lasts):
    """A second of the holder's clock lasts so many true ones."""
    world, server = World([(0.0, 1 / lasts)]), ServerTime()
    server.learn(World.server(0.0), world.local(0.0), world.local(0.0))
    tenure = holder(30.0, bounds=server.bounds, sent=world.local(0.0))
    for number in range(1, 3_601):
        sent, received = 10.0 * number + 0.123, 10.0 * number + 0.133
        end, lease = tenure.propose(world.local(sent), server.bounds, 30.0)
        assert 0.0 < end - World.server(sent) - lease <= HEADROOM + TICK
        date = float(math.floor(World.server(sent)))
        server.learn(date, world.local(sent), world.local(received))
        tenure.renewed(end, lease, world.local(sent), server.bounds)
        assert tenure.ends(server.bounds) - world.local(received) > 0.9 * lease


# -- a claim of somebody else's --------------------------------------------------------------------


def test_claim_is_free_once_server_time_is_surely_past_its_end():
    free_at = watching((claim(), 0.0)).free_at(Bounds(1009.5, 0.0, 1001.0, 0.0))
    assert free_at == pytest.approx((0.5 + HOST_SKEW + TICK) / (1 - DRIFT))
    # at first sight, if it ended long ago
    assert watching((claim(expires_at=900.0), 0.0)).free_at(EXACT) < 0.0
    # by that alone, if it has no lease
    watch = watching((claim(lease=0.0), 3.0))
    assert watch.matures() == math.inf
    assert watch.free_at(EXACT) < math.inf


def test_claim_is_free_after_its_whole_lease_unchanged():
    """Without server time, or if that never reaches its end."""
    watch = watching((claim(), 3.0), (claim(), 12.0))
    assert watch.matures() == watch.free_at(None) == pytest.approx(WATCHED)
    endless = watching((claim(expires_at=NO_SERVER_TIME), 3.0))
    assert endless.free_at(EXACT) == pytest.approx(WATCHED)
    for other in (claim(expires_at=1010.001), claim(token="b")):
        changed = watching((claim(), 3.0), (other, 12.0))
        assert changed.matures() == pytest.approx(9.0 + WATCHED)
    tombstone = watching((claim(expires_at=None), 3.0))
    assert (tombstone.free_at(EXACT), tombstone.matures()) == (-math.inf, math.inf)
    never_seen = ObservedClaim()
    assert never_seen.free_at(EXACT) == never_seen.matures() == math.inf


def test_watch_knows_whether_the_lock_changed_hands_since_it_was_seen_before():
    b = claim("b", version=6)
    rows = [claim(), claim(expires_at=1011.0), b, b, b._replace(expires_at=None)]
    seen = [(row, 0.0) for row in rows]
    changed = [watching(*seen[:count]).changed_hands for count in range(1, 6)]
    assert changed == [False, False, True, False, False]


def test_row_shows_a_claim_or_a_result_until_server_time_has_surely_passed_its_end():
    row = Claim(token="a", expires_at=1005.0, of_room={"done_until": 1005.0})
    end, tick_later = EXACT.passes(1005.0), EXACT.passes(1005.0 + TICK)
    just_before = math.nextafter(end, 0.0)
    assert [row.is_held(at, EXACT) for at in (just_before, end)] == [True, False]
    assert [row.of(OnceRow).counts(at, EXACT) for at in (end, tick_later)] == [True, False]
    assert row.is_held(math.inf, None)
    assert row.of(OnceRow).counts(math.inf, None)
    assert not Claim().is_held(0.0, EXACT)
    assert not Claim().of(OnceRow).counts(0.0, EXACT)


# -- our own ---------------------------------------------------------------------------------------

LEASES = seconds(60, least=0.5)


@given(st.lists(st.tuples(seconds(30), LEASES, st.sampled_from([EXACT, None])), min_size=2))
def test_proposed_ends_strictly_increase_by_what_a_row_can_show(requests):
    tenure = OwnClaim("mine", 10.0)
    ends = [float(f"{tenure.propose(at, bounds, lease)[0]:.3f}") for at, lease, bounds in requests]
    assert ends == sorted(set(ends))
    assert ends[-1] == tenure.proposed


@given(LEASES, st.lists(st.tuples(seconds(30), LEASES), min_size=1))
def test_renewal_never_shortens(lease, renewals):
    tenure, now = holder(lease), 0.0
    for later, asked in renewals:
        now += later
        bounds = Bounds(1000.0 + now, now, 1001.0 + now, now)
        before = tenure.ends(bounds), tenure.expires_at
        end, granted = tenure.propose(now, bounds, asked)
        tenure.renewed(end, granted, now, bounds)
        assert tenure.ends(bounds) >= before[0] - 1e-9
        assert tenure.expires_at > before[1]
        # answers in another order change nothing
        after = tenure.ends(bounds), tenure.expires_at
        tenure.renewed(before[1], lease, 0.0, bounds)
        assert (tenure.ends(bounds), tenure.expires_at) == after


@given(LEASES, st.lists(st.tuples(seconds(30), LEASES), min_size=1), st.data())
def test_shorter_renewal_lets_no_watcher_take_over_before_the_holder_stops(lease, renewals, data):
    """The row shows one request's lease, the holder believes the longest whose answer came."""
    tenure, now = holder(lease, bounds=None), 0.0
    for later, asked in renewals:
        now += later
        end, granted = tenure.propose(now, None, asked)
        shown = claim("mine", end, granted)
        # this one is applied; its answer may be lost, and so may those before or not
        if data.draw(st.booleans()):
            tenure.renewed(end, granted, now, None)
        matures = watching((shown, now)).matures()  # seen at once: the worst case
        # the watcher's clock is fast, the holder's slow
        assert (matures - now) * (1 - DRIFT) >= (tenure.ends(None) - now) * (1 + DRIFT) * 0.9999
        assume(now < 1000)


def test_end_is_the_earlier_of_the_lease_and_of_server_time_reaching_what_the_row_says():
    tenure = holder()
    assert tenure.ends(None) == tenure.ends(EXACT) == pytest.approx(9.9)
    # an answer shows that the clock missed four seconds
    assert tenure.ends(Bounds(1005.0, 1.0, 1006.0, 1.0)) < 6.5
    assert tenure.ends(Bounds(1020.0, 1.0, 1021.0, 1.0)) < 1.0
    # without server time the row shows an end that never comes
    tenure = holder(bounds=None)
    assert tenure.expires_at == NO_SERVER_TIME
    assert tenure.propose(1.0, None, 10.0)[0] == NO_SERVER_TIME + TICK
    assert tenure.ends(None) == tenure.ends(EXACT) == pytest.approx(9.9)


def test_lease_counts_from_before_the_first_request_was_sent():
    tenure = OwnClaim("mine", 10.0)
    first, _ = tenure.propose(0.0, EXACT, 10.0)
    tenure.propose(4.0, EXACT, 10.0)
    tenure.acquired(claim("mine", first), 0.0, EXACT)
    assert tenure.ends(None) == pytest.approx(9.9)
    assert tenure.expires_at == first


def test_each_guarded_write_has_a_number_of_its_own_that_is_known_until_many_have_followed():
    tenure = OwnClaim("mine", 10.0)
    tenure.acquired(claim("mine")._replace(writes=7), 0.0, EXACT)
    bits = current_process().random_bits
    numbers = [7, *(tenure.next_write(bits()) for _ in range(MOST_NUMBERS + 1))]
    assert len(set(numbers)) == len(numbers)
    rows = [claim("other")._replace(writes=number) for number in numbers]
    assert [row.writes for row in rows if not tenure.has_numbered(row)] == numbers[1:2]
    assert max(numbers) <= HIGHEST_VERSION


def test_row_without_a_number_is_the_same_row_for_a_thousand_changes_of_hands():
    tenure = holder()
    rows = [
        claim("other", version=5 + changes) for changes in (1, MOST_CHANGES - 1, MOST_CHANGES, -1)
    ]
    assert [tenure.has_numbered(row) for row in (*rows, Claim())] == [
        True,
        True,
        False,
        False,
        False,
    ]
    tenure.writes = 7
    assert not tenure.has_numbered(rows[0])


def test_lease_is_longer_than_asked_for_only_if_an_earlier_request_reaches_further():
    tenure = holder(10.0)
    assert tenure.propose(5.0, EXACT, 10.0)[1] == 10.0
    assert tenure.propose(5.0, EXACT, 2.0)[1] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("row", "loss"),
    [
        (claim("other"), Loss.TAKEN),
        (claim("other", expires_at=None), Loss.TAKEN),
        (claim("mine", version=6), Loss.TAKEN),
        (claim(FORCED_MARK + new_token(1.0, "0" * 30), expires_at=None, version=6), Loss.FORCED),
        (claim("mine", expires_at=None), Loss.FORCED),  # by hand
        (Claim(), Loss.DELETED),
    ],
)
def test_row_shows_whose_it_is_or_why_a_lock_was_lost(row, loss):
    assert is_mine(holder(), claim("mine"))
    assert not is_mine(holder(), row)
    assert loss_of(holder(), row) is loss


def test_tokens_differ_and_show_when_they_were_made_if_server_time_was_known():
    bits = [current_process().random_bits() for _ in range(1000)]
    assert len(set(bits)) == 1000
    assert min(map(len, bits)) >= 27
    for at in (1763798400.123, 0.5, YEAR_10000 - 1, None):
        token = new_token(at, bits[0])
        assert token_time(token) == token_time(FORCED_MARK + token) == at
    for other in (None, "", "mine", "forced-", "ab" * 16):
        assert token_time(other) is None
    assert token_time(new_token(YEAR_10000, bits[0])) is None


def test_date_is_none_for_what_is_none():
    dates = [date_of(each) for each in (None, -0.5, 0.0, 0.5, NO_SERVER_TIME)]
    assert [date and date.timestamp() for date in dates] == [None, None, 0.0, 0.5, None]


def test_claim_that_is_kept_after_the_release_has_no_holder():
    kept, unnamed, named = claim(), claim()._replace(owner=""), claim()._replace(owner="she")
    assert [each.is_reserved for each in (kept, unnamed, named, Claim())] == [
        True,
        False,
        False,
        False,
    ]
    assert kept.holder.startswith("nobody (released, and kept until ")
    assert (unnamed.holder, named.holder) == ("an unnamed owner", "'she'")


@pytest.mark.parametrize("seen", [0.0, 9000.0])
def test_one_answer_after_a_freeze_ends_a_belief_that_a_watcher_need_not_share_any_more(seen):
    """The holder's clock stands while a watcher waits out the lease; any answer must show it.

    Also if the end in the row is far ahead, because it had to be later than one that was.
    """
    tenure = holder(1.0, seen=seen)  # server time is 1000.0
    row = claim("mine", tenure.expires_at, 1.0)
    watcher, watch = ServerTime(), watching((row, 70.0))
    watcher.learn(1000.0, 70.0, 70.0)
    takes_over = watch.free_at(watcher.bounds) - 70.0  # seconds of true time after the acquisition
    holders = ServerTime()
    holders.learn(1000.0, 0.0, 0.0)
    resumed = 0.01  # by the holder's clock, when the watcher has just taken over
    holders.learn(float(math.floor(1000.0 + takes_over)), resumed, resumed)
    assert tenure.ends(holders.bounds) <= resumed


def test_mark_counts_until_its_end_has_certainly_passed_and_if_a_writer_of_ours_has_made_it():
    bounds, claim = Bounds(1000.0, 10.0, 1001.0, 10.0), Claim(wanted_until=1004.0)
    passed = bounds.passes(1004.0 + TICK)
    assert claim.marked_until(bounds.passes(1004.0), bounds) == 1004.0
    assert claim.marked_until(passed, bounds) is None
    assert claim.marked_until(10.0, None) is None
    furthest = bounds.highest(10.0) + MARK_FAR
    assert Claim(wanted_until=furthest).marked_until(10.0, bounds) == furthest
    assert Claim(wanted_until=furthest + TICK).marked_until(10.0, bounds) is None
