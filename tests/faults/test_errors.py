"""I8: what passes is repeated within the caller's timeout; what does not is raised at once."""

from functools import partial

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from group_scene import conflict
from hearing import OnLost, until
from pynamodb.exceptions import (
    DeleteError,
    GetError,
    PynamoDBException,
    ScanError,
    TableDoesNotExist,
    UpdateError,
)
from scene import held
from subjects import SUBJECTS, TOGETHER, crossed

from dev.faultproxy import (
    DYNAMODBS,
    Reply,
    answer_with,
    deny,
    drop_answer,
    drop_request,
    page,
    refuse,
    server_error,
    throttle,
    unavailable,
)
from pynamodb_mutex import MutexLostError, MutexNotHeldError
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock

# One of a kind goes by the same path in every request: all are tried in the acquire of one lock, a few elsewhere.
FEW = [throttle, server_error, drop_request]
WRONG = [partial(page, 200), partial(page, 200, apply=True)]  # answers that are not DynamoDB's
PASSING = [
    partial(throttle, "ProvisionedThroughputExceededException"),
    partial(throttle, "RequestLimitExceeded"),
    partial(refuse, "TransactionConflictException"),
    unavailable,
    partial(page, 502),
    partial(page, 504, apply=True),
    partial(page, 200, content=b"", apply=True),
    partial(page, 200, content=b"[]"),
    partial(page, 502, content=b"[]", apply=True),
    partial(page, 502, content=b"<!DOCTYPE html><p>D\xe9sol\xe9", apply=True),
]
FEW_FINAL = [deny, partial(page, 403)]
FINAL = [
    partial(refuse, "ValidationException"),
    partial(refuse, "UnrecognizedClientException"),
    partial(refuse, "ExpiredTokenException"),
]
OTHERS = [name for name in SUBJECTS if name != "one lock"]


def cases(few, more):
    """Return what locks meet in which requests: a few in all, and more in the acquire of one lock."""
    return [
        *[("one lock", kind, each) for kind in ("renew", "save_data", "release") for each in few],
        *[("one lock", "acquire", each) for each in (*few, *more)],
        *[(name, kind, each) for name in OTHERS for kind in KINDS for each in few[:1]],
    ]


KINDS = ("acquire", "renew", "release")


def assert_has_cause(error):
    assert isinstance(error.cause, (BotoCoreError, ClientError, OSError))
    assert error.__cause__ is not None
    assert str(error.cause) in str(error)


# -- what passes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "kind", "fault"),
    [
        *cases([*FEW, *WRONG], PASSING),
        *[(name, kind, conflict) for name in TOGETHER for kind in KINDS],
    ],
    indirect=["subject"],
)
def test_failure_that_passes_is_repeated(subject, kind, fault):
    subject.proxy.next(fault(), **subject.on(kind))
    lock = subject.held(timeout=30)
    assert subject.owns(lock)
    ends = subject.ends
    lock.renew()
    assert all(later > end for later, end in zip(subject.ends, ends, strict=True))
    if subject.name == "one lock":
        lock.save_data("mine")
        assert subject.scene.row.data == "mine"
    lock.release()
    assert subject.is_free
    assert len(subject.of(kind)) == 2
    for other in {*KINDS, "save_data"} - {kind}:
        assert len(subject.of(other)) <= 1


@pytest.mark.real("embedded")  # botocore falls over it
@pytest.mark.parametrize("kind", ["acquire", "renew", "save_data", "release"])
@pytest.mark.parametrize("subject", ["one lock"], indirect=True)
def test_null_is_no_answer(subject, kind):
    fault = partial(page, 200, content=b"null", apply=True)
    test_failure_that_passes_is_repeated(subject, kind, fault)


@pytest.mark.parametrize(
    ("subject", "fault", "how"),
    crossed(
        ["one lock"],
        [(fault, how) for fault in FEW for how in ({"blocking": False}, {"timeout": 0})],
        OTHERS,
        [(server_error, {"blocking": False})],
    ),
    indirect=["subject"],
)
def test_try_is_repeated_after_one_failure_that_passes(subject, fault, how):
    subject.proxy.next(fault(), **subject.on("acquire"))
    lock = subject.lock()
    assert lock.acquire(**how) is True
    assert subject.owns(lock)


@pytest.mark.parametrize("fault", [*FEW, partial(page, 200)])
@pytest.mark.parametrize("how", [{"timeout": 3}, {"blocking": False}, {"timeout": 0}])
def test_failure_that_does_not_pass_is_raised_when_the_timeout_is_over(scene, fault, how):
    scene.proxy.always(fault(), op="acquire")
    mutex = scene.mutex()
    with pytest.raises(UpdateError) as raised:
        mutex.acquire(**how)
    if fault in FEW:
        assert_has_cause(raised.value)
    assert not mutex.held
    assert len(scene.proxy.of("acquire")) >= 2
    # throttled it leaves nothing to disown
    assert len(scene.proxy.of("disown")) == (fault is not throttle)
    assert scene.gone


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}",
        b'{"Attributes": {}}',
        b"[]",
        b"null",
        b'"held"',
        b"\xff\xfe",
        b'{"Attributes": []}',
        b'{"Attributes": {"token": 5}}',
        b'{"Attributes": {"token": {"B": 5}}}',
    ],
)
def test_success_in_no_shape_of_dynamodbs_is_a_failure_that_may_pass(scene, body):
    scene.proxy.always(answer_with(Reply(200, body, DYNAMODBS)), op="acquire")
    mutex = scene.mutex()
    with pytest.raises(UpdateError) as raised:
        mutex.acquire(blocking=False)
    assert raised.value.cause is not None or "not DynamoDB's" in str(raised.value)
    assert not mutex.held
    assert len(scene.proxy.of("acquire")) > 1
    assert len(scene.proxy.of("disown")) == 1  # it may have been applied
    scene.proxy.clear()
    assert mutex.acquire(blocking=False)


def test_refused_hand_over_does_not_spoil_the_holders_release(scene):
    mutex = held(scene.mutex())
    waiter = scene.waiting()
    scene.proxy.next(deny(), op="hand_over")
    mutex.release()
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.fencing_token == mutex.fencing_token + 1
    assert scene.applied("hand_over", "release") == [False, True]


def test_failing_reads_of_a_waiter_are_repeated(scene):
    other = scene.taken()
    waiter = scene.waiting()
    scene.proxy.next(throttle(), server_error(), drop_answer(), page(200), op="GetItem")
    scene.proxy.wait(6, "GetItem")
    other.release()
    waiter.join(60)
    assert waiter.acquired


def test_wrong_answer_to_a_read_or_to_a_force_is_no_answer(scene):
    other = scene.taken()
    scene.proxy.next(page(200), op="GetItem")
    assert scene.mutex().locked()
    scene.proxy.next(page(200), op="force")
    assert scene.here.force_release(scene.key)
    assert scene.applied("force") == [False, True]
    assert scene.row.token != other.token


def test_release_that_cannot_be_sent_is_raised_and_the_lock_ends_with_its_lease(scene):
    mutex = held(scene.mutex(lease=4))
    scene.proxy.always(drop_request(), op="release")
    with pytest.raises(UpdateError) as raised:
        mutex.release()
    assert_has_cause(raised.value)
    assert not mutex.held
    assert scene.other().acquire(timeout=30)


def test_renewal_that_cannot_be_sent_is_raised_when_the_lease_is_over(scene):
    mutex = held(scene.mutex(lease=2, auto_renew=False))
    scene.proxy.always(server_error(), op="renew")
    with FakeClock() as clock:
        with pytest.raises(UpdateError) as raised:
            mutex.renew()
        assert_has_cause(raised.value)
        # its answers may have shown by now that the lease ends a little later than when it began
        assert mutex.remaining < 1
        clock.advance(mutex.remaining)
        assert not mutex.held


@pytest.mark.parametrize("fault", [server_error, deny, partial(page, 200)])
def test_background_renewals_that_fail_until_the_lease_ends_are_a_loss(scene, fault):
    on_lost = OnLost()
    with FakeClock() as clock:
        mutex = held(scene.mutex(on_lost=on_lost))
        end = scene.row.expires_at
        scene.proxy.always(fault(), op="renew")
        clock.advance(11)
        scene.proxy.wait(1, "renew")
        assert mutex.held
        clock.advance(20)
        on_lost.wait()
        assert mutex.loss is Loss.UNREACHABLE
        assert not mutex.held
        assert scene.row.expires_at == end
        with pytest.raises(MutexLostError):
            mutex.release()


@pytest.mark.parametrize("fault", [server_error, deny, drop_answer])
def test_background_renewals_that_fail_for_a_while_are_no_loss(scene, fault):
    scene.proxy.next(fault(), fault(), op="renew")
    with FakeClock() as clock, scene.mutex() as mutex:
        end = scene.row.expires_at
        for count, pause in enumerate((11, 1, 1), start=1):  # those that failed are repeated soon
            clock.advance(pause)
            scene.proxy.wait(count, "renew")
            until(lambda: not mutex._latest.together.renewals_under_way)
        assert mutex.remaining > 25
        assert scene.row.expires_at > end
    assert scene.applied("renew") == [fault is drop_answer] * 2 + [True]


@pytest.mark.parametrize(
    ("fault", "attempts"), [*[(each, None) for each in FEW], *[(each, 1) for each in FEW_FINAL]]
)
def test_first_request_of_a_process_that_fails_is_raised_as_the_failed_read_that_it_is(
    scene, fault, attempts
):
    with scene.fresh() as first:
        first.proxy.always(fault())
        mutex = first.mutex()
        with pytest.raises(GetError, match="GetItem failed") as raised:
            mutex.acquire(timeout=0 if attempts is None else -1)
        assert_has_cause(raised.value)
        assert not mutex.held
        assert attempts in (None, len(first.proxy.log))


# -- what does not pass ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subject", "kind", "fault"), cases(FEW_FINAL, FINAL), indirect=["subject"]
)
def test_refused_request_is_raised_at_once(subject, kind, fault):
    lock = subject.lock(timeout=-1)
    if kind != "acquire":
        lock.acquire()
    before = subject.everything
    subject.proxy.next(fault(), **subject.on(kind))
    with pytest.raises(PynamoDBException) as raised:
        lock.save_data("mine") if kind == "save_data" else getattr(lock, kind)()
    assert not isinstance(raised.value, MutexLostError)
    assert_has_cause(raised.value)
    assert len(subject.of(kind)) == 1
    assert subject.everything == before
    assert lock.held is (kind in {"renew", "save_data"})
    assert not lock.lost
    if kind in {"renew", "save_data"}:
        getattr(lock, kind)(*["again"] if kind == "save_data" else [])
        lock.release()
    elif kind == "release":
        with pytest.raises(MutexNotHeldError):
            lock.ensure_held()


def test_reads_of_a_waiter_that_are_refused_are_raised_as_such(scene):
    scene.taken()
    mutex = scene.mutex(poll=(0.02, 0.02))
    scene.proxy.always(deny(), op="GetItem")
    with pytest.raises(GetError, match="GetItem failed") as raised:
        mutex.acquire(timeout=30)
    assert_has_cause(raised.value)
    assert scene.proxy.kinds() == ["acquire", "GetItem"]
    assert not mutex.held


@pytest.mark.parametrize(
    ("op", "error", "call"),
    [
        ("GetItem", GetError, lambda scene: scene.mutex().locked()),
        ("force", UpdateError, lambda scene: scene.here.force_release(scene.key)),
        ("Scan", ScanError, lambda scene: list(scene.here.held())),
        ("acquire", UpdateError, lambda scene: scene.mutex().acquire(blocking=False)),
        ("acquire", UpdateError, lambda scene: scene.mutex().acquire(timeout=30)),
    ],
)
def test_refused_request_is_raised_as_what_it_is(scene, op, error, call):
    scene.taken()
    scene.proxy.next(deny(), op=op)
    with pytest.raises(error) as raised:
        call(scene)
    assert type(raised.value) is error
    assert len(scene.proxy.of(op)) == 1


def test_refused_release_that_deletes_is_raised_as_delete_error(scene):
    mutex = held(scene.mutex(delete_on_release=True))
    scene.proxy.next(deny(), op="DeleteItem")
    with pytest.raises(DeleteError):
        mutex.release()


@pytest.mark.parametrize("kind", ["acquire", "renew", "save_data", "release"])
def test_table_that_disappears_is_raised_at_once(scene, kind):
    scene.proxy.next(refuse("ResourceNotFoundException"), op=kind)
    mutex = scene.mutex()

    def cycle():
        mutex.acquire()
        mutex.renew()
        mutex.save_data(1)
        mutex.release()

    with pytest.raises(TableDoesNotExist):
        cycle()
    assert scene.proxy.kinds()[-1] == kind
    assert scene.proxy.kinds().count(kind) == 1


def test_payload_too_large_for_a_row_is_raised_at_once_and_the_lock_stays(scene):
    with scene.mutex() as mutex:
        with pytest.raises(UpdateError):
            mutex.save_data("x" * 410_000)
        assert mutex.held
        assert len(scene.proxy.of("save_data")) == 1
        mutex.save_data("small")


# -- what may have been applied --------------------------------------------------------------------


def test_failure_of_tls_may_come_with_the_answer_but_not_that_of_connecting():
    from botocore import exceptions

    from pynamodb_mutex._dynamodb.answers import may_pass

    endpoint = {"endpoint_url": "https://dynamodb", "error": OSError()}
    assert may_pass(exceptions.SSLError(**endpoint)) == (True, True)
    assert may_pass(exceptions.EndpointConnectionError(**endpoint)) == (True, False)
    assert may_pass(exceptions.ConnectTimeoutError(**endpoint)) == (True, False)
    assert may_pass(exceptions.ReadTimeoutError(**endpoint)) == (True, True)
    assert may_pass(exceptions.ConnectionClosedError(**endpoint)) == (True, True)
    assert may_pass(exceptions.NoCredentialsError())[0] is False
