"""The rules of `_protocol`, all of them at once, against a model of time and of the network.

The steps are called as in `dev/models/time.pml`.
"""

import itertools
import math
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pynamodb_mutex._protocol.claim import TICK, Claim, ObservedClaim, OwnClaim, new_token
from pynamodb_mutex._protocol.outcome import is_mine
from pynamodb_mutex._protocol.server_time import DRIFT, HOST_SKEW, ServerTime

EPOCH = 1_700_000_000.0
SKEW = st.sampled_from([0.0, HOST_SKEW])
RATE = st.sampled_from([1 / (1 + DRIFT), 1.0, 1 / (1 - DRIFT)])
STEP = st.sampled_from([0.001, 0.3, 0.9, 1.7, 3.0, 8.0, 3600.0])
WAY = st.sampled_from([0.0, 0.0, 0.01, 0.2, 1.2])
# there and back; None: it is left under way
WAYS = st.integers(0, 5).flatmap(lambda n: st.tuples(WAY, WAY) if n else st.none())
LEASE = st.sampled_from([0.5, 2.0, 5.0])
CLIENT = st.integers(0, 1)


serial = itertools.count()


class Request(NamedTuple):
    client: "Client"
    kind: str
    values: dict
    sent: float  # the client's time
    true_sent: float
    missed: int


class Answer(NamedTuple):
    request: Request
    applied: bool
    row: Claim
    date: float


class Client:
    """A process: its clock, what it knows, and its one acquisition."""

    def __init__(self, rate):
        self.local, self.rate = 50.0, rate
        self.server, self.watch = ServerTime(), ObservedClaim()
        self.tenure, self.first_sent, self.held = None, math.inf, False
        self.missed = 0  # times at which its clock stood still; a request knows how many
        self.astray = False  # and no answer has shown it yet

    @property
    def ends(self):
        return self.tenure.ends(self.server.bounds) if self.held else -math.inf

    @property
    def believes(self):
        return self.local < self.ends


@settings(max_examples=500, stateful_step_count=20, suppress_health_check=list(HealthCheck))
class LockMachine(RuleBasedStateMachine):
    @initialize(
        rates=st.lists(RATE, min_size=2, max_size=2),
        phase=st.integers(0, 9),
        dates=st.sampled_from([True, True, False]),
    )
    def start(self, rates, phase, dates):
        self.true = phase / 10  # of the second
        self.dates = dates  # whether answers carry one
        self.row, self.row_sent = Claim(), 0.0
        self.clients = [Client(rate) for rate in rates]
        self.under_way, self.answers = [], []
        self.round_trip, self.proposals = 0.0, 0

    # -- the world ---------------------------------------------------------------------------------

    def pass_time(self, seconds, standing=None):
        """It does for all, or one's clock stands still meanwhile."""
        if standing is not None:
            standing.missed += 1
            standing.astray = True
        self.true += seconds
        for client in self.clients:
            if client is not standing:
                client.local += seconds * client.rate
        self.one_holder()

    def send(self, client, kind, **values):
        self.proposals += "end" in values
        request = Request(client, kind, values, client.local, self.true, client.missed)
        self.under_way.append(request)

    def apply(self, request, skew):
        """Let a request reach the store; return its answer."""
        row, v = self.row, request.values
        if request.kind in ("read", "another"):
            applied = True
        elif request.kind == "acquire":
            free = row.expires_at is None or row.expires_at < v["low"]
            dead = v["watched"] is not None and (row.token, row.expires_at) == v["watched"]
            applied = (free or dead) and row.token != v["token"]
            if applied:
                self.row = Claim(v["token"], row.version + 1, v["end"], v["lease"])
        else:
            mine = (row.token, row.version) == (v["token"], v["version"])
            later = row.expires_at is not None and row.expires_at < v.get("end", math.inf)
            applied = mine and later
            if applied:
                self.row = row._replace(expires_at=v.get("end"), lease=v.get("lease", 0.0))
        if applied and row is not self.row:
            self.row_sent = request.true_sent
        shown = self.row if applied else row
        return Answer(request, applied, shown, float(math.floor(EPOCH + self.true + skew)))

    def receive(self, answer):
        client, request, row = answer.request.client, answer.request, answer.row
        self.round_trip = max(self.round_trip, self.true - request.true_sent)
        if self.dates:
            client.server.observe(answer.date, request.sent, client.local)
            if request.missed == client.missed:
                client.astray = False
        if request.kind == "another":
            return
        tenure, v = client.tenure, request.values
        ours = tenure is not None and tenure.token == v.get("token")
        if request.kind == "acquire" and ours and not client.held:
            if row.token == tenure.token and row.expires_at is not None:
                tenure.acquired(row, client.first_sent, client.server.bounds)
                client.held = True
                return
            client.tenure = None
        if request.kind == "renew" and ours:
            if answer.applied or (is_mine(tenure, row) and row.expires_at == v["end"]):
                tenure.renewed(v["end"], v["lease"], request.sent, client.server.bounds)
            return
        client.watch.see(row, client.local)

    # -- what clients do ---------------------------------------------------------------------------

    def ask_for_it(self, client, lease):
        bounds, now = client.server.bounds, client.local
        if client.tenure is None or client.held:
            seen = client.watch.claim is not None
            if (now < client.watch.free_at(bounds)) if seen else bounds is None:
                self.send(client, "read")
                return
            client.tenure = OwnClaim(new_token(0.0, f"{next(serial):030x}"), lease)
            client.first_sent, client.held = math.inf, False
        tenure = client.tenure  # the same once more, if no answer came yet
        end, written = tenure.propose(now, bounds, tenure.lease)
        client.first_sent = min(client.first_sent, now)
        seen = client.watch.claim
        watched = (seen.token, seen.expires_at) if now >= client.watch.matures() else None
        low = 0.0 if bounds is None else bounds.lowest(now) - HOST_SKEW - TICK
        values = {"token": tenure.token, "end": end, "lease": written, "low": low}
        self.send(client, "acquire", **values, watched=watched)

    def ask_for_more(self, client, lease):
        tenure = client.tenure
        end, written = tenure.propose(client.local, client.server.bounds, lease)
        values = {"token": tenure.token, "version": tenure.version}
        self.send(client, "renew", **values, end=end, lease=written)

    def be_answered(self, ways, skew):
        if ways is not None:
            there, back = ways
            request = self.under_way.pop()
            self.pass_time(there)
            answer = self.apply(request, skew)
            self.one_holder()
            self.pass_time(back)
            self.receive(answer)

    @rule(i=CLIENT, ways=WAYS, skew=SKEW)
    def look(self, i, ways, skew):
        client = self.clients[i]
        if not client.believes:
            self.send(client, "read")
            self.be_answered(ways, skew)

    @rule(i=CLIENT, lease=LEASE, ways=WAYS, skew=SKEW)
    def acquire(self, i, lease, ways, skew):
        """Read first, if nothing is known yet or the claim that was seen is not dead."""
        client = self.clients[i]
        if not client.believes:
            self.ask_for_it(client, lease)
            self.be_answered(ways, skew)

    @rule(i=CLIENT, lease=LEASE, ways=st.tuples(WAY, WAY), skew=SKEW, stands=st.booleans())
    def acquire_in_the_end(self, i, lease, ways, skew, stands):
        """Wait, perhaps while the other's clock stands still: chance would seldom wait so well."""
        client, other = self.clients[i], self.clients[1 - i]
        for _ in range(4):
            if client.believes:
                return
            free_at = client.watch.free_at(client.server.bounds)
            if client.local < free_at < math.inf:
                left = (free_at - client.local) / client.rate + 1e-9
                self.pass_time(left, other if stands else None)
            self.ask_for_it(client, lease)
            self.be_answered(ways, skew)

    @rule(i=CLIENT, lease=LEASE, ways=WAYS, skew=SKEW)
    def renew(self, i, lease, ways, skew):
        if self.clients[i].held:
            self.ask_for_more(self.clients[i], lease)
            self.be_answered(ways, skew)

    @rule(i=CLIENT, skew=SKEW)
    def ask_elsewhere(self, i, skew):
        self.send(self.clients[i], "another")
        self.be_answered((0.0, 0.0), skew)

    @rule(i=CLIENT)
    def release(self, i):
        client = self.clients[i]
        if client.held:
            values = {"token": client.tenure.token, "version": client.tenure.version}
            client.held, client.tenure = False, None
            self.send(client, "release", **values)

    @rule(i=CLIENT, does=st.sampled_from([False, False, False, True]))
    def crash(self, i, does):
        if does and self.clients[i].held:
            self.clients[i] = Client(self.clients[i].rate)

    # -- time and the network ----------------------------------------------------------------------

    @rule(seconds=STEP)
    def time_passes(self, seconds):
        self.pass_time(seconds)

    @rule(seconds=STEP, i=CLIENT)
    def clock_stands_still(self, seconds, i):
        """And goes on after that time."""
        self.pass_time(seconds, self.clients[i])

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), skew=SKEW)
    def lands(self, data, skew):
        request = data.draw(st.sampled_from(self.under_way))
        self.under_way.remove(request)
        self.answers.append(self.apply(request, skew))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), skew=SKEW, twice=st.booleans())
    def answer_lost(self, data, skew, twice):
        """A duplicate of the request may still be under way."""
        request = data.draw(st.sampled_from(self.under_way))
        if not twice:
            self.under_way.remove(request)
        self.apply(request, skew)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def request_lost(self, data):
        self.under_way.remove(data.draw(st.sampled_from(self.under_way)))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def answer_arrives(self, data):
        answer = data.draw(st.sampled_from(self.answers))
        self.answers.remove(answer)
        self.receive(answer)

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def one_holder(self):
        believers = [c for c in self.clients if c.believes and not c.astray]
        assert len(believers) <= 1
        for client in believers:
            assert is_mine(client.tenure, self.row)

    @precondition(lambda self: self.dates and self.row.expires_at is not None)
    @rule(skew=SKEW, trip=st.sampled_from([0.0, 0.01, 0.2]))
    def a_dead_holders_lock_is_free_for_a_newcomer(self, skew, trip):
        bound = 1.01 * self.row.lease + 2.5 + 2 * max(self.round_trip, trip)
        # here many may be proposed at one instant, and each end is a tick later than the one before
        due = self.row_sent + bound + self.proposals * TICK
        self.pass_time(max(0.0, due - trip - self.true))
        comer = Client(1.0)
        answer = self.apply(Request(comer, "read", {}, comer.local, self.true, 0), skew)
        self.pass_time(trip)
        comer.local += trip
        self.receive(answer)
        assert comer.local >= comer.watch.free_at(comer.server.bounds)


TestLock = pytest.mark.unmeasured(LockMachine.TestCase)
