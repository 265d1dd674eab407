"""The rules by which readers share a claim, and by which a writer that waits for them marks its row."""

import asyncio
import time
from functools import partial
from statistics import mode

import pytest
from operations_by_hand import waiting
from pynamodb.exceptions import UpdateError
from pynamodb.expressions.operand import Path, Value
from sent_requests import REFUSALS, kept_from
from signal_receivers import hearing
from two_clients import Acquiring, held, on_thread

from dev import faultproxy as net
from dev.faultproxy import after, deny, drop_answer, drop_request
from pynamodb_mutex import Loss, Mutex, exceptions
from pynamodb_mutex._lock.dynamodb.layout import seconds
from pynamodb_mutex._lock.protocol.claim import Claim
from pynamodb_mutex._lock.protocol.server_time import Bounds
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex._shared import readers, requests


def lock(scene, where="there", **options):
    """Return a shared lock of a client; the second that one client acquires is nested."""
    options = {"shared": True, "auto_renew": False, "timeout": 0, **options}
    return Mutex.for_key(scene.key, model=getattr(scene, where), **options)


def reader(scene, where="there", **options):
    return held(lock(scene, where, **options))


def of_two_keys(key, **options):
    return Mutex.for_keys([key, f"{key}-2"], **options)


def end_of(scene, mutex):
    return scene.parsed.readers[f"{mutex.token} {mutex.owner}"]


def test_refused_renewal_proposes_its_own_end_again_and_not_that_of_another_thread():
    own, bounds = readers.SharedClaim("t", 30.0, "me"), Bounds(100.0, 0.0, 101.0, 0.0)
    refused = own.propose(0.0, bounds, 30.0)
    own.propose(5.0, bounds, 30.0)  # by another thread meanwhile
    own.again(*refused)
    assert own.propose(6.0, bounds, 30.0) == refused
    assert own.propose(6.0, bounds, 30.0)[0] > refused[0] + 5


def write(scene, *path, **attributes):
    """Write attributes by hand, as they are sent; or remove what is at a path."""
    actions = [Path(name).set(Value(value)) for name, value in attributes.items()]
    actions += [Path(path).remove()] if path else []
    scene.there._get_connection().update_item(scene.key, actions=actions)


def marking(mutex):
    """Return an acquisition of a lock that waits, and has polled once more."""
    driven = waiting(mutex)
    time.sleep(2)
    driven.wake()
    return driven


# -- joining, renewing and leaving -----------------------------------------------------------------


def test_join_and_renewal_move_the_row_as_far_as_they_must_and_its_lease_never_falls(scene):
    first, long = reader(scene), lock(scene, "here", lease=60.0004)
    short = lock(scene, "here", lease=5)
    kept_for = int(scene.claim["ttl"]["N"]) - scene.parsed.expires_at
    for form, call, mutex, lease in (
        ("far", Mutex.acquire, long, 60.0004),
        ("near", Mutex.acquire, short, 60.0004),
        ("near", Mutex.renew, short, 60.0004),
        ("near", Mutex.renew, first, 60.0004),
        ("far", partial(Mutex.renew, lease=600), first, 600),
        ("near", Mutex.renew, long, 600),
    ):
        before = scene.parsed.expires_at
        call(mutex)
        row, end = scene.parsed, end_of(scene, mutex)
        moved = end if form == "far" else before + 0.001
        assert row.expires_at == pytest.approx(moved, abs=0.0001)
        assert before < row.expires_at >= end
        assert lease <= row.lease == pytest.approx(lease, abs=0.01)
        assert int(scene.claim["ttl"]["N"]) >= row.expires_at + kept_for
    for copy in scene.proxy.of("renew"):
        assert scene.proxy.replay(copy).error in REFUSALS


def test_renewal_to_the_end_that_the_row_has_moves_that_too(scene):
    """Whoever watches the row without server time must see that it has changed."""

    def make_equal(exchange):
        # the end stands there several times
        end = mode(each.get("N") for each in exchange.body["ExpressionAttributeValues"].values())
        write(scene, expires_at={"N": end})
        exchange.answer(exchange.apply("equal"))

    mine = reader(scene, "here")
    scene.proxy.next(net.Fault("equal", make_equal), op="renew")
    mine.renew()
    assert scene.applied("renew") == [False, True]
    assert scene.parsed.expires_at > end_of(scene, mine)


@pytest.mark.parametrize("kind", ["join", "renew"])
@pytest.mark.parametrize(("had", "gets"), [(30, [600]), (50, [60]), (600, [900]), (30, [600, 900])])
def test_request_that_another_reader_has_outrun_is_sent_once_again(scene, kind, had, gets):
    """With the same end, in the other form or with the longer lease. A join counts from its first sending."""
    other, mine = reader(scene, lease=had), lock(scene, "here", lease=60)
    call = held(mine).renew if kind == "renew" else mine.acquire
    scene.proxy.start_anew()
    sent = [local_clock().now()]

    def outrun(longer):
        time.sleep(1)
        other.renew(longer)
        sent.append(local_clock().now())

    for longer in gets:
        scene.proxy.next(after(partial(outrun, longer)), op=kind)
    with hearing(scene.key) as heard:
        call()
        # the first renewal is the other's
        event = heard.wait("renewed", 1 + len(gets)) if kind == "renew" else heard.wait("acquired")
    assert scene.applied(kind) == [*[False] * len(gets), True]
    end = end_of(scene, mine)
    assert all(f'"{seconds(end)}"'.encode() in seen.raw for seen in scene.proxy.of(kind))
    assert mine.deadline <= sent[0 if kind == "join" else -1] + 60 * 0.99
    assert (event.fields["readers"], event.fields["resent"]) == (2, len(gets))
    mine.renew()
    assert end_of(scene, mine) > end + 0.9


@pytest.mark.parametrize(
    ("stored", "applied", "verdict"),
    [
        (None, True, "applied"),
        (15.0, False, "applied"),
        (15.001, False, "overtaken"),
        (14.999, False, "again"),
        (None, False, "gone"),
    ],
)
def test_verdict_about_a_renewal(stored, applied, verdict):
    own = readers.SharedClaim("mine", 10.0, "me")
    entries = {"other": 20.0} if stored is None else {own.name: stored}
    row = Claim("mine", 5, 20.0, 10.0, shared_by={"mine": entries})
    assert readers.renewal(own, 15.0, row, applied=applied) == verdict


def test_renewal_in_a_row_that_no_form_of_it_fits_is_lost_and_not_sent_for_ever(scene):
    mine = reader(scene)
    write(scene, lease={"N": "700.0004"})
    with pytest.raises(exceptions.MutexLostError):
        mine.renew()


@pytest.mark.parametrize("doubled", [False, True])
def test_renewal_that_was_applied_or_overtaken_is_not_sent_again(scene, doubled):
    mine = reader(scene, "here")
    overtaken = after(partial(mine.renew, 60))
    scene.proxy.next(net.duplicate("second") if doubled else overtaken, op="renew")
    mine.renew()
    assert (scene.applied("renew"), mine.held) == ([True, False], True)


@pytest.mark.parametrize(
    ("call", "many", "later"), [(Mutex.renew, 50, 0), (Mutex.release, 2, 0), (Mutex.release, 3, 2)]
)
def test_reader_that_was_taken_for_dead_and_removed_has_lost_the_lock(
    scene, monkeypatch, call, many, later
):
    """To a release it shows only where there are many readers, or were: few do not remove each other."""
    monkeypatch.setattr(readers, "BURY_FROM", many)
    reader(scene)
    mine = reader(scene, "here")
    for _ in range(later):
        reader(scene)
    write(scene, "shared_by", scene.parsed.token, f"{mine.token} {mine.owner}")
    for _ in range(2):
        with pytest.raises(exceptions.MutexNotHeldError):
            call(mine)
        assert (mine.held, mine.loss) == (False, Loss.EXPIRED)
        assert len(scene.parsed.readers) == 1 + later


def test_late_join_after_its_own_leave_is_an_entry_of_nobody_until_its_end(scene):
    """The one exception, in the near form and while another reader stays."""
    reader(scene, lease=600)
    kept = kept_from(scene.proxy, op="join")
    mine = reader(scene, "here", lease=5)
    mine.release()
    assert (kept.apply().status, len(scene.parsed.readers)) == (200, 2)
    with pytest.raises(exceptions.MutexNotHeldError):
        mine.renew()


@pytest.mark.parametrize("fails", ["nothing", "leave", "join", "GetItem"])
def test_join_of_unknown_outcome_is_looked_for_and_left_once(scene, fails):
    reader(scene)
    scene.proxy.next(drop_request() if fails == "join" else drop_answer(), deny(), op="join")
    scene.proxy.next(drop_request(), op=fails)
    with pytest.raises(UpdateError):
        lock(scene, "here").acquire()
    assert scene.proxy.kinds()[3:] == ["GetItem", "leave"][: 1 + (fails in ("nothing", "leave"))]
    # an eventually consistent read might not show the entry
    assert all(each.body["ConsistentRead"] for each in scene.proxy.of("GetItem"))
    assert len(scene.parsed.readers) == 1 + (fails in ("GetItem", "leave"))


@pytest.mark.parametrize("kind", ["acquire", "join"])
def test_lease_counts_from_the_first_request_that_may_have_been_applied(scene, kind):
    (reader if kind == "join" else lock)(scene, lease=600)
    scene.proxy.next(drop_answer(then=lambda: time.sleep(1)), op=kind)
    began = local_clock().now()
    with hearing(scene.key) as heard:
        assert reader(scene, "here", lease=10, timeout=20).deadline <= began + 10 * 0.99
    assert heard.of("acquired")[0]["attempts"] == len(scene.proxy.kinds())


def test_claim_that_comes_too_late_and_cannot_be_renewed_is_begun_anew(scene):
    scene.proxy.next(net.delay_answer(2.5), op="acquire")
    scene.proxy.next(deny(), op="renew")
    assert reader(scene, "here", lease=2, timeout=20).held
    assert scene.proxy.kinds() == ["acquire", "renew", "GetItem", "release", "acquire"]


def test_join_is_sent_again_after_what_is_no_answer_and_begins_if_the_claim_was_broken(scene):
    first = reader(scene)
    scene.proxy.next(
        net.answer_with(net.Reply(200, b'{"Attributes": {}}', net.DYNAMODBS)), op="join"
    )
    scene.proxy.next(drop_answer(then=scene.force), op="join")
    mine = reader(scene, "here", timeout=20)
    assert scene.proxy.kinds() == ["acquire", "join", "join", "join", "acquire"]
    assert (scene.parsed.version, len(scene.parsed.readers)) == (mine.fencing_token, 1)
    with pytest.raises(exceptions.MutexLostError, match=Loss.FORCED.value):
        first.renew()


def test_late_leave_of_a_join_that_came_too_late_removes_no_later_entry(scene):
    other = reader(scene, lease=600)
    scene.proxy.next(net.delay_answer(2.5), op="join")
    scene.proxy.next(deny(), op="renew")
    kept = kept_from(scene.proxy, op="leave")
    mine = reader(scene, "here", lease=2, timeout=20)
    kept.apply()
    other.release()
    assert not lock(scene, shared=False).acquire()
    assert mine.held


@pytest.mark.parametrize("kinds", [["leave", "release"], ["release", "leave"]])
def test_leave_after_others_have_come_or_gone_is_sent_in_the_other_form(scene, kinds):
    mine, other = reader(scene, "here"), lock(scene)
    if leaves := kinds[0] == "leave":
        held(other)
        mine.renew()
    scene.proxy.next(after(other.release if leaves else other.acquire), op=kinds[0])
    mine.release()
    assert scene.proxy.kinds()[-2:] == kinds
    assert (other.held, len(scene.parsed.readers or ())) == (not leaves, not leaves)


@pytest.mark.parametrize(
    ("owner", "label"), [("b" * 70, "b" * 64), ("a" + "é" * 40, "a" + "é" * 31)]
)
def test_label_of_a_reader_is_cut_between_characters(scene, owner, label):
    reader(scene, owner=owner)
    assert [each for each, _ in scene.row.readers] == [label]


SHARED = Claim("mine", 5, 1060.0, 10.0, shared_by={"mine": {"mine me": 1060.0}})
EXACT = Bounds(1000.0, 0.0, 1001.0, 0.0)  # at local time 0, server time is from 1000 to 1001


@pytest.mark.parametrize(
    ("claim", "bounds"),
    [
        (SHARED._replace(lease=0.0), EXACT),
        (SHARED._replace(lease=10.0004), EXACT),
        (SHARED._replace(version=0), EXACT),
        (SHARED._replace(shared_by={"mine": {}}), EXACT),
        (SHARED, None),
    ],
)
def test_claim_that_nobody_joins(claim, bounds):
    assert readers.may_join(SHARED, 0.0, EXACT, nested=False)
    assert not readers.may_join(claim, 0.0, bounds, nested=False)


@pytest.mark.parametrize("renewed", [False, True])
def test_reader_whose_clock_stood_still_believes_no_longer_than_others_watch(renewed):
    """Its entry may end far later than its lease."""
    own = readers.SharedClaim("mine", 5.0, "me")
    own.acquired(SHARED, 0.0, None if renewed else EXACT)
    if renewed:
        own.renewed(1060.001, 5.0, 0.5, EXACT)
    assert own.ends(Bounds(1004.0, 1.0, 1005.0, 1.0)) > 2.0
    assert own.ends(Bounds(1020.0, 1.0, 1021.0, 1.0)) < 1.0


@pytest.mark.parametrize("by_hand", [{"version": "0"}, {"lease": "30.0004"}])
def test_row_that_nobody_can_join_is_polled_as_any_other_and_taken_over_at_its_end(scene, by_hand):
    reader(scene)
    write(scene, **{name: {"N": number} for name, number in by_hand.items()})
    scene.proxy.start_anew()
    assert not lock(scene, "here", timeout=6).acquire()
    assert len(scene.proxy.log) < 40
    assert lock(scene, "here", timeout=40).acquire()


# -- taking over -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("shared", "renewed"), [(False, False), (False, True), (True, False)])
def test_dead_reader_is_waited_for_as_long_as_its_own_lease(scene, shared, renewed):
    """Whatever a longer one had that has left; and it may be renewed while it is taken over."""
    dead = reader(scene, lease=5)
    reader(scene, "here", lease=600).release()
    assert scene.parsed.expires_at > time.time() + 500
    taker = lock(scene, "here", shared=shared)
    assert shared or not taker.acquire()
    time.sleep(1.01 * 5 + 2.5)
    scene.proxy.next(*[net.pass_on(), after(dead.renew)] * renewed, op="acquire")
    assert (taker.acquire(), dead.held) == (not renewed, renewed)
    assert shared or renewed or not taker.abandoned


def test_first_in_line_has_its_time_after_the_last_living_reader_has_left(scene):
    """Though a dead one stays, whose own end has passed long before."""
    living, _ = on_thread(held, lock(scene, lease=600)), reader(scene, "here", lease=5)
    time.sleep(20)
    first = waiting(lock(scene, "here", shared=False, fair=True, owner="first"))
    second = waiting(lock(scene, shared=False, fair=True))
    for _ in range(5):
        time.sleep(2)
        second.wake()
    living.release()
    newcomer = lock(scene, shared=False, fair=True)
    assert not newcomer.acquire()
    time.sleep(2)
    second.wake()
    assert len(scene.parsed.waiting) == 2
    second.interrupt()
    time.sleep(7)
    assert newcomer.acquire()
    first.interrupt()


@pytest.mark.parametrize("shared", [False, True])
def test_claim_without_readers_is_free_at_once(scene, shared):
    reader(scene, lease=600)
    seen = scene.parsed
    write(scene, shared_by={"M": {seen.token: {"M": {}}}})
    assert reader(scene, "here", shared=shared).fencing_token == seen.version + 1


@pytest.mark.parametrize("renewed", [False, True])
def test_who_joins_many_removes_a_dead_one_unless_that_lives(scene, monkeypatch, renewed):
    for name in ("BURY_FROM", "MOST"):
        monkeypatch.setattr(readers, name, 3)
    dead, _, _ = reader(scene, lease=5), reader(scene), reader(scene)
    with pytest.raises(exceptions.MutexTimeoutError, match="3 readers are the most"):
        lock(scene, "here").__enter__()
    reader(scene).release()  # nested
    time.sleep(1.01 * 5 + 2.5)
    scene.proxy.next(*[after(dead.renew)] * renewed, op="join")
    assert lock(scene, "here").acquire() is (not renewed)
    assert (dead.held, len(scene.parsed.readers)) == (renewed, 3)


def test_who_joins_few_leaves_a_dead_one(scene):
    reader(scene, lease=5)
    reader(scene)
    time.sleep(1.01 * 5 + 2.5)
    reader(scene, "here")
    assert len(scene.parsed.readers) == 3


def test_most_readers_are_a_condition_of_the_join_unless_it_is_nested(scene, monkeypatch):
    monkeypatch.setattr(requests, "MOST", 1)
    reader(scene)
    assert not lock(scene, "here").acquire()
    assert set(scene.applied("join")) == {False}
    assert reader(scene).held


# -- a writer that waits ---------------------------------------------------------------------------


@pytest.mark.parametrize(("fair", "poll"), [(False, (30, 60)), (True, (0.5, 2))])
def test_writer_renews_its_mark_while_it_waits_and_removes_it_then(scene, pool, fair, poll):
    reader(scene, lease=600)
    writer = lock(scene, "here", shared=False, fair=fair, poll=poll, owner="writer")
    with hearing(scene.key) as heard:
        waits = pool.submit(writer.acquire, timeout=12)
        time.sleep(2)
        for _ in range(19):
            time.sleep(0.5)
            assert 0.9 < scene.parsed.wanted_until - time.time() < 7.3
        assert not waits.result()
    marks = scene.applied("mark")
    assert (3 <= len(marks) <= 6, set(marks), scene.applied("unmark")) == (True, {True}, [True])
    fields = {"key": scene.key, "owner": "writer", "readers": 1, "attributes": None}
    assert heard.of("marked") == [fields] * len(marks)
    assert (scene.parsed.wanted_until, scene.parsed.wanted_by) == (None, None)
    # a late mark ends when it would have ended
    assert scene.proxy.replay(scene.proxy.of("mark")[0]).status == 200
    assert reader(scene, "here").held


def test_cancelled_task_removes_its_mark(scene):
    async def work():
        waits = asyncio.create_task(scene.async_mutex(timeout=60).acquire())
        await asyncio.sleep(1.5)
        waits.cancel()
        await asyncio.wait([waits])

    reader(scene)
    asyncio.run(work())
    assert (scene.applied("mark", "unmark"), scene.parsed.wanted_until) == ([True, True], None)


def test_writers_share_a_mark_and_each_removes_its_own_alone(scene):
    reading = on_thread(held, lock(scene, lease=600))
    first = marking(lock(scene, "here", shared=False, owner="first"))
    waiting(scene.other()).interrupt()  # which has marked nothing
    second = waiting(scene.other(owner="second"))
    assert scene.parsed.wanted_by == "first"
    first.interrupt()
    for _ in range(2):  # of which the first one shows that there is no mark any more
        time.sleep(2)
        second.wake()
    mark = scene.parsed.wanted_until
    for late in scene.proxy.of("mark", "unmark"):
        assert scene.proxy.replay(late).error in REFUSALS
    assert (scene.parsed.wanted_by, scene.parsed.wanted_until) == ("second", mark)
    third = marking(lock(scene, "here", shared=False))
    reading.release()
    second.wake()
    # that it is held alone now, and then waits for it as for any
    for _ in range(2):
        time.sleep(4)
        third.wake()
    assert scene.applied("mark", "GetItem")[-2:] == [False, True]
    third.interrupt()


def test_reader_that_times_out_learns_who_keeps_it_out(scene):
    def why():
        with pytest.raises(exceptions.MutexTimeoutError) as raised:
            on_thread(lock(scene, timeout=0.5).__enter__)
        return str(raised.value).removeprefix(f"{scene.key!r} was not free within 0.5 s: ")

    first = on_thread(held, lock(scene, owner="first"))
    writer = marking(lock(scene, "here", shared=False, owner="writer"))
    assert why().startswith("a writer waits ('writer'); held by 1 reader(s): 'first' until ")
    first.release()
    assert why() == "a writer waits ('writer'); its holder is not known"
    writer.interrupt()
    last = scene.taken(owner="last")
    assert why().startswith("held by 'last' until ")
    last.release()


def test_claim_that_readers_no_longer_share_is_not_marked(scene):
    reader(scene)
    scene.proxy.next(after(partial(write, scene, token={"S": "old"})), op="mark")
    writer = marking(lock(scene, "here", shared=False))
    assert (scene.applied("mark")[:1], scene.parsed.wanted_until) == ([False], None)
    writer.interrupt()


def test_mark_that_comes_before_a_join_refuses_it(scene):
    reader(scene)
    until = {"N": str(time.time() + 5)}
    scene.proxy.next(after(lambda: write(scene, wanted_until=until)), op="join")
    assert (lock(scene, "here").acquire(), scene.applied("join")) == (False, [False])


def test_readers_and_writers_of_one_process_wake_each_other(scene):
    writing = scene.taken()
    mine = [lock(scene, "here", poll=poll) for poll in ((1, 1), (50, 50))]
    waits = [Acquiring(each) for each in mine]
    for leave, most in (([writing], 2), (mine, 0.5)):
        time.sleep(3.3)
        for each in leave:
            each.release()
        began = time.monotonic()
        for each in waits:
            each.join(60)
        assert time.monotonic() - began < most
        waits = [Acquiring(lock(scene, "here", shared=False, poll=(60, 60)))]


@pytest.mark.parametrize("asks", [Mutex.for_key, partial(Mutex.for_key, fair=True), of_two_keys])
def test_reader_that_asks_for_the_lock_alone_behind_a_writer_of_its_process_is_refused_at_once(
    scene, asks
):
    mine, writer = reader(scene, "here"), Acquiring(lock(scene, "here", shared=False))
    time.sleep(3)
    began = time.monotonic()
    with pytest.raises(exceptions.MutexAlreadyHeldError, match="release the shared"):
        asks(scene.key, model=scene.here).acquire(timeout=8)
    assert time.monotonic() - began < 0.5
    mine.release()
    writer.join(60)
    assert time.monotonic() - began < 2


def test_mark_outlives_the_claim_and_its_writer_for_a_few_seconds(scene):
    reading = reader(scene)
    writer = marking(lock(scene, "here", shared=False))
    reading.renew()
    reader(scene).release()  # nested
    reading.release()
    assert (lock(scene).acquire(), lock(scene).locked()) == (False, True)
    began = time.monotonic()
    assert reader(scene, timeout=20).held
    assert 4 < time.monotonic() - began < 7.3 + 1
    writer.interrupt()


@pytest.mark.parametrize("begins", [True, False])
def test_mark_that_no_writer_has_made_counts_for_nothing(scene, begins):
    (Mutex.release if begins else Mutex.renew)(reader(scene))
    far = {"wanted_until": {"N": str(time.time() + 60)}}
    write(scene, **far)
    assert (lock(scene, "here").locked(), reader(scene, "here").held) == (not begins, True)
    write(scene, **far)
    if begins:
        writer = marking(scene.other())
        assert scene.parsed.wanted_until < time.time() + 7.3
        writer.interrupt()


# -- what others do --------------------------------------------------------------------------------


def test_map_under_the_token_of_another_claim_counts_for_nothing(scene):
    """A writer of an older version leaves it."""
    mine = reader(scene)
    old = {"token": {"S": "old"}, "version": {"N": "2"}, "abandoned_by": {"S": "shared: a"}}
    write(scene, **old, owner={"S": "old"})
    assert (scene.row.readers, scene.parsed.abandoned_by) == ([], "")
    assert not lock(scene, "here").acquire()
    with pytest.raises(exceptions.MutexLostError) as raised:
        mine.renew()
    assert (raised.value.loss, raised.value.owner) == (Loss.TAKEN, "old")
