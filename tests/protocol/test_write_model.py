"""The protocol without time, as the program plays it: thousands of schedules of requests and faults.

It drives the library from the methods that users call down to PynamoDB's connection. Each client is a process of
its own. The table is that of `dev/simulation`; the network loses a request or its answer, or delivers it later, or
twice.

Each call runs on a greenlet, which stops at each request until a rule says what becomes of it. The clock stands, so no lease ends by itself. Instead another client may find a claim expired at ANY
moment, as in `dev/models/claim.pml`; the names of the steps and the numbers of the properties are those of that
model.

Not here: background threads, hand-over, transactions, deletes, and locks of several rows.
"""

import logging
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RULE_MARKER,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from model_clients import UNKNOWN, Call, Client, Clock, Crash, OwnClaim, Row, error, one_store
from operations_by_hand import send_renewal
from pynamodb.exceptions import PynamoDBException

from dev.simulation.table import Refusal, Tables
from pynamodb_mutex import MutexLostError, MutexNotHeldError, RowLockedError
from pynamodb_mutex._lock.runtime import process as _process
from pynamodb_mutex._lock.runtime.clock import replace_local_clock

WRITES = ("write", "save", "write_and_unlock")
NOBODY = "nobody"
END_OF_TIME = {"N": "9e99"}
FAULTS = ("request_lost", "answer_lost", "delayed")
FATES = st.sampled_from(["answered"] * 4 + ["under way"] * 2 + list(FAULTS))
EXPIRED = st.sampled_from([True, False, False])
FATES_OF_REPEATS = st.sampled_from(["answered", "denied", "under way"])


def begins(kind, act):
    """Return a step: a client that holds the lock, and does nothing else, begins a call."""

    def step(self, data):
        self.begin(data, kind, act, self.idle(holding=True))

    step.__name__ = kind
    return precondition(lambda self: self.idle(holding=True))(rule(data=st.data())(step))


def leaves_unanswered(fault):
    """Return a step: what becomes of a request that has no answer."""

    def step(self, data):
        self.be_unanswered(self.pick(data), fault, data)

    step.__name__ = fault
    return precondition(lambda self: self.is_under_way())(rule(data=st.data())(step))


@settings(max_examples=75, stateful_step_count=30, suppress_health_check=list(HealthCheck))
class WriteMachine(RuleBasedStateMachine):
    @initialize(disturbed=st.sampled_from([None, "force", "save"]))
    def start(self, disturbed):
        logging.disable(logging.WARNING)  # a thousand faults
        self.clock_before = replace_local_clock(Clock())
        self.process_before = _process._process
        self.tables = Tables()
        hash_key = [{"AttributeName": "name", "KeyType": "HASH"}]
        types = [{"AttributeName": "name", "AttributeType": "S"}]
        table = {"TableName": "rows", "KeySchema": hash_key, "AttributeDefinitions": types}
        self.tables.apply("CreateTable", table | {"BillingMode": "PAY_PER_REQUEST"})
        self.tables.apply("PutItem", {"TableName": "rows", "Item": {"name": {"S": "a"}}})
        self.clients = [Client() for _ in range(2)]
        self.now_low = self.clients[0].process.stores[Row].now_low(0.0)
        self.late = []
        self.disturbed = disturbed  # whether somebody forces, or saves without the lock
        self.texts = 0
        self.standing = None  # the tenure whose claim the row carries
        self.whose = NOBODY  # whose doing the last change of hands was
        self.top = 0  # the greatest fencing token so far

    def teardown(self):
        try:
            for client in self.clients:
                self.end(client)
        finally:
            _process._process = self.process_before
            replace_local_clock(self.clock_before)
            logging.disable(logging.NOTSET)

    # -- the row -----------------------------------------------------------------------------------

    def claim(self):
        return one_store().layout.claim(self.row())

    def row(self):
        read = {"TableName": "rows", "Key": {"name": {"S": "a"}}, "ConsistentRead": True}
        return self.tables.apply("GetItem", read)["Item"]

    def apply(self, request, *, expired):
        """Let a request reach the row; return the answer."""
        call, before, old, kwargs = request.call, self.claim(), self.row(), request.kwargs
        if expired:
            values = kwargs["ExpressionAttributeValues"].items()
            late = {k: END_OF_TIME if v == {"N": self.now_low} else v for k, v in values}
            kwargs = kwargs | {"ExpressionAttributeValues": late}
        try:
            answer = self.tables.apply(request.operation, kwargs)
        except Refusal as refusal:
            return error(refusal.code, Item=old)
        answer["ResponseMetadata"] = {"HTTPHeaders": {"x-amzn-requestid": "model"}}
        if request.operation == "GetItem":
            return answer
        after = self.claim()
        assert (self.standing is None) == (before.expires_at is None)
        assert after.version >= before.version  # 30
        self.judge(request, before, after, expired)
        call.landed = True
        return answer

    def judge(self, request, before, after, expired):
        """Check what an applied request did."""
        call = request.call
        stood, stands = before.expires_at is not None, after.expires_at is not None
        if call.kind == "acquire" and stands:
            assert expired or not stood  # 50
            assert self.whose != after.token  # 42
            assert after.version > self.top  # 30
            self.interrupted("taken")
            self.top, self.whose = after.version, after.token
            self.standing = call.tenures[after.token] = OwnClaim(after.token, after.writes)
        elif call.kind == "acquire":  # it disowns
            assert not stood or before.token in call.tenures  # 50
        elif call.kind == "force":
            assert stood
            assert before.token == request.seen  # 50
            self.standing.forced_by = self.whose = object()
            self.interrupted("forced")
        elif call.kind == "save_without_the_lock":
            assert expired or not stood  # 50
            self.interrupted("taken")
            self.whose = NOBODY
        else:
            assert not stood or before.token == call.tenure.token  # 50
            assert not stands or (stood and self.standing is call.tenure)  # 41
            renews = after.expires_at != before.expires_at or call.kind in {"renew", "save"}
            assert not stands or not renews or after.expires_at > before.expires_at  # 40
        if call.kind in WRITES:
            assert stood  # 20
            assert self.standing is call.tenure  # 20
            assert call.number > call.tenure.last  # 20
            assert not call.reported_not_applied  # 21
            call.tenure.last = call.number
            call.tenure.numbers.append(after.writes)
            if not stands:
                self.interrupted("by its own write")
        if call.kind == "release" and not stands:
            call.freed = after.version
        if not stands:
            self.standing = None

    def interrupted(self, how):
        if self.standing is not None:
            self.standing.gone = how
            self.standing = None

    # -- what is reported --------------------------------------------------------------------------

    def go_on(self, call, answer=None):
        """Let a call run on to its next request or its end."""
        call.resume(answer)
        if not call.done:
            return
        call.client.calls.remove(call)
        error = call.error
        if error is not None and not isinstance(error, PynamoDBException):
            raise error
        if isinstance(error, MutexLostError):
            own = call.doubt or call.tenure.unlock_in_doubt
            if call.kind == "release":
                # it knows of a write that may have unlocked, unless a renewal has shown the loss
                own = call.knew
            # nothing in the row shows any more that a first copy of the release was applied
            row = self.claim()
            unseen = call.freed and (row.token is None or row.version > call.freed + 1)
            assert unseen or self.ended(call.tenure, own=own)  # 23
        elif isinstance(error, RowLockedError):
            assert error.applied is (None if call.doubt else False)  # 21
            assert call.doubt or not call.landed  # 21
            call.reported_not_applied = error.applied is False
        elif error is not None and not isinstance(error, MutexNotHeldError):
            # a claim that is ours refuses nothing
            assert error.cause_response_code == "AccessDeniedException"
        getattr(self, f"{call.kind}_is_over", lambda _: None)(call)
        if call.kind in WRITES:
            self.written(call)

    @staticmethod
    def ended(tenure, *, own):
        """Say whether another ended a claim, or an own write of unknown outcome."""
        return tenure.gone in {"taken", "forced"} or (own and tenure.gone == "by its own write")

    def acquire_is_over(self, call):
        token = None if self.standing is None else self.standing.token
        if call.result:
            assert call.lock.token == token
            call.client.take(call.lock, self.standing)
        elif call.error is None:
            assert token not in call.tenures  # 43
        elif call.doubt:
            assert call.asked["UpdateExpression"].startswith("REMOVE")  # it disowns

    def written(self, call):
        unlocks = call.kind == "write_and_unlock"
        if call.error is None:
            assert call.landed  # 21
            call.tenure.unlock_in_doubt = False  # what may have ended it comes too late now
            if unlocks:
                call.client.drop()
            return
        call.tenure.unlock_in_doubt |= unlocks and call.doubt
        if isinstance(call.error, MutexLostError):
            call.reported_not_applied = call.error.applied is False
            assert call.error.applied is not True
            if call.error.applied is None:  # unknown only if others have written since
                now = (
                    self.claim()
                )  # without a token after a save without the lock, which also resets the number
                assert now.token is None or now.writes not in call.tenure.numbers
            assert not (call.landed and call.reported_not_applied)  # 21

    def release_is_over(self, call):
        if call.error is None:
            in_doubt = call.doubt or call.tenure.unlock_in_doubt
            assert in_doubt or call.was not in {"taken", "forced"}  # 22
            # what shows that it was broken by force: nobody had it since
            assert call.was != "forced" or self.whose is not call.tenure.forced_by  # 22
        call.client.drop()

    def save_without_the_lock_is_over(self, call):
        assert call.landed or call.error is not None

    @invariant()
    def lost_is_reported_only_if_it_is(self):
        for client in getattr(self, "clients", ()):
            if client.lock is not None and client.lock.lost:
                assert self.ended(client.tenure, own=client.tenure.unlock_in_doubt)  # 23

    # -- what clients do ---------------------------------------------------------------------------

    def idle(self, *, holding):
        """Return the clients that can begin a call: those that hold the lock, or do not, or all."""
        idle = [client for client in self.clients if not client.busy]
        return [c for c in idle if holding is None or (c.lock is not None) == holding]

    def renewing(self):
        return [c for c in self.clients if c.lock is not None and len(c.calls) < 3]

    def begin(self, data, kind, act, able):
        """Let a client begin a call, and perhaps let its first request meet its fate."""
        client = data.draw(st.sampled_from(able))
        call = Call(client, kind, act)
        if kind in WRITES:
            client.writes += 1
            call.number = client.writes
        client.calls.append(call)
        self.go_on(call)
        # half of the locks are taken without more ado, or hardly anything would be done under them
        quiet = kind == "acquire" and data.draw(st.booleans())
        fate = "answered" if quiet else data.draw(FATES)
        if fate in FAULTS and not call.done:
            self.be_unanswered(call.request, fate, data)
        while fate == "answered" and not call.done:
            self.be_answered(call.request, data)
        if fate == "answered" and self.late and data.draw(st.booleans()):
            self.let_one_land_late(data)
        if fate == "under way" and kind in WRITES and data.draw(st.booleans()):
            # as the threads in the background do
            self.begin(data, "renew", lambda call: call.lock.renew(), [client])
        idle = client.lock is not None and not client.busy
        if call.error is not None and idle and data.draw(st.booleans()):
            # as leaving a with block by an exception does
            self.begin(data, "release", lambda call: call.lock.release(), [client])

    def is_unused(self):
        """Whether the claim's holder has written nothing yet: others let it, or little would happen."""
        return any(c.tenure is self.standing and c.writes == 0 for c in self.clients if c.tenure)

    @precondition(lambda self: self.idle(holding=False) and not self.is_unused())
    @rule(data=st.data())
    def acquire(self, data):
        def act(call):
            call.lock = Row.locked("a", auto_renew=False)
            return call.lock.acquire(blocking=False)

        self.begin(data, "acquire", act, self.idle(holding=False))

    @precondition(lambda self: self.renewing())
    @rule(data=st.data(), by_hand=st.booleans())
    def renew(self, data, by_hand):
        def act(call):
            if by_hand:
                call.lock.renew()
            else:  # as the threads in the background do
                send_renewal(call.lock._current("renew"))

        self.begin(data, "renew", act, self.renewing())

    write = begins("write", lambda call: call.lock.row.update([Row.text.set("written")]))
    save = begins("save", lambda call: call.lock.row.save())
    release = begins("release", lambda call: call.lock.release())

    @precondition(lambda self: self.idle(holding=True))
    @rule(data=st.data(), whole=st.booleans())
    def write_and_unlock(self, data, whole):
        def act(call):
            if whole:
                call.lock.row.save(unlock=True)
            else:
                call.lock.row.update([Row.text.set("unlocked")], unlock=True)

        self.begin(data, "write_and_unlock", act, self.idle(holding=True))

    @precondition(
        lambda self: self.disturbed == "force" and self.standing and self.idle(holding=None)
    )
    @rule(data=st.data())
    def force(self, data):
        self.begin(
            data, "force", lambda _: Row.locked("a").force_release(), self.idle(holding=None)
        )

    @precondition(lambda self: self.disturbed == "save" and self.idle(holding=None))
    @rule(data=st.data())
    def save_without_the_lock(self, data):
        self.texts += 1
        row = Row("a", text=str(self.texts))
        self.begin(data, "save_without_the_lock", lambda _: row.save(), self.idle(holding=None))

    @precondition(lambda self: any(c.lock is not None for c in self.clients))
    @rule(data=st.data())
    def crash(self, data):
        """What it has under way may still land."""
        client = data.draw(st.sampled_from([c for c in self.clients if c.lock is not None]))
        self.late += [call.request for call in client.calls]
        self.end(client)
        self.clients[self.clients.index(client)] = Client()

    @staticmethod
    def end(client):
        client.dead = True
        for call in client.calls:
            call.resume()
            assert isinstance(call.error, Crash)

    # -- what the network does ---------------------------------------------------------------------

    def is_under_way(self):
        return any(client.calls for client in self.clients)

    def pick(self, data):
        return data.draw(st.sampled_from([c.request for o in self.clients for c in o.calls]))

    def lands(self, request, data):
        """Let a request reach the row, which it may find expired."""
        values = request.kwargs.get("ExpressionAttributeValues", {}).values()
        asks = {"N": self.now_low} in values and self.standing is not None
        return self.apply(request, expired=asks and data.draw(EXPIRED))

    def be_answered(self, request, data):
        if request.operation == "GetItem":
            request.call.seen = self.claim().token
        self.go_on(request.call, self.lands(request, data))

    def be_unanswered(self, request, fault, data):
        """Leave a call without an answer; perhaps for good: then it meets what cannot pass."""
        call = request.call
        call.doubt = True
        if fault == "answer_lost":
            self.lands(request, data)
        if fault == "delayed":
            self.late.append(request)
        self.go_on(call, UNKNOWN)
        fate = "under way" if call.done else data.draw(FATES_OF_REPEATS)
        if fate == "answered":
            self.be_answered(call.request, data)
        if fate == "denied":
            self.go_on(call, error("AccessDeniedException"))

    @precondition(is_under_way)
    @rule(data=st.data())
    def answered(self, data):
        self.be_answered(self.pick(data), data)

    answer_lost = leaves_unanswered("answer_lost")
    request_lost = leaves_unanswered("request_lost")
    delayed = leaves_unanswered("delayed")

    @precondition(is_under_way)
    @rule(data=st.data(), by_a_proxy=st.booleans())
    def lands_twice(self, data, by_a_proxy):
        request = self.pick(data)
        # without the lock a copy is not recognised
        if by_a_proxy and request.call.kind != "save_without_the_lock":
            # it sends the second one later, and returns the answer to that
            self.lands(request, data)
            request.call.doubt = True
            return
        self.late.append(request)
        self.be_answered(request, data)

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def lands_late(self, data):
        self.let_one_land_late(data)

    def let_one_land_late(self, data):
        request = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        self.lands(request, data)


# thousands of calls take turns
TestWrites = pytest.mark.unmeasured(pytest.mark.timeout(1200)(WriteMachine.TestCase))


MODEL = Path(__file__).parents[2] / "dev" / "models" / "claim.pml"


def test_formal_model_and_the_machine_have_the_same_steps():
    steps = set(re.findall(r"STEP\((\w+)\)", MODEL.read_text(encoding="utf-8"))) - {"name"}
    rules = {name for name, value in vars(WriteMachine).items() if hasattr(value, RULE_MARKER)}
    # the library disowns by itself, when an acquire ends by a failure
    assert (steps - rules, rules - steps) == ({"disown"}, set())
