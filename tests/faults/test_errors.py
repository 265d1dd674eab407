"""I8: what passes is repeated within the caller's timeout; what does not is raised at once.

And answers that hang, that come without a Date, or that are not DynamoDB's, never mean "held".
"""

import os
import re
import signal
import threading
import time
from functools import partial
from itertools import product
from unittest.mock import Mock, patch

import pytest
from botocore import exceptions
from kinds_of_locks import DELETED, PASSED_ON, SHARED, SUBJECTS, TOGETHER, crossed, of, table
from pynamodb import exceptions as errors
from pynamodb.connection import Connection
from this_process import store_for
from two_clients import held

from dev import faultproxy as net
from dev.faultproxy import deny, drop_answer, drop_request, page, refuse, server_error, throttle
from pynamodb_mutex import MutexNotHeldError
from pynamodb_mutex._lock.dynamodb.answers import may_pass
from pynamodb_mutex._lock.runtime.clock import local_clock

# One of a kind goes by the same path in every request: all are tried in the acquire of one lock, a few elsewhere.
FEW = [throttle, server_error, drop_request]
WRONG = [partial(page, 200), partial(page, 200, apply=True)]  # answers that are not DynamoDB's
PASSING = [
    partial(throttle, "ProvisionedThroughputExceededException"),
    partial(throttle, "RequestLimitExceeded"),
    partial(refuse, "TransactionConflictException"),
    net.unavailable,
    partial(page, 502),
    partial(page, 504, apply=True),
    partial(page, 200, content=b"", apply=True),
    partial(page, 200, content=b"[]"),
    partial(page, 502, content=b"[]", apply=True),
    partial(page, 502, content=b"<!DOCTYPE html><p>D\xe9sol\xe9", apply=True),
]
NO_TABLE = partial(refuse, "ResourceNotFoundException")
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


def conflict():
    """Cancel a transaction, because another one is under way on one of its rows."""
    reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}, {"Code": "None"}]
    return refuse("TransactionCanceledException", CancellationReasons=reasons)


def assert_has_cause(error):
    assert isinstance(error.cause, (exceptions.BotoCoreError, exceptions.ClientError, OSError))
    assert error.__cause__ is not None
    assert str(error.cause) in str(error)


# -- what passes -----------------------------------------------------------------------------------

SOURCE = {"provider": "custom-process", "error_msg": "no answer"}
UNREFRESHED = [exceptions.CredentialRetrievalError(**SOURCE)]
UNREFRESHED += [exceptions.MetadataRetrievalError(**SOURCE)]
UNREFRESHED += [exceptions.TokenRetrievalError(**SOURCE)]


def let_signing_fail(scene, error, seconds):
    """Let the source of credentials fail, so that nothing can be signed; return until when."""
    ends = time.monotonic() + seconds

    def sign(**_):
        if time.monotonic() < ends:
            raise error

    connection = store_for(getattr(scene.here, "lock_model", None) or scene.here).connection
    connection.open()
    connection.pynamodb.client.meta.events.register("before-send.dynamodb", sign)
    return ends


@table("subject, kind, error", cases(UNREFRESHED, []))
def test_outage_of_the_source_of_credentials_is_repeated(subject, kind, error):
    lock = subject.lock()
    if kind != "acquire":
        held(lock)
    ends = let_signing_fail(subject.scene, error, 1.5)
    getattr(lock, kind)(*["mine"] * (kind == "save_data"))
    assert ends <= time.monotonic() < ends + 5
    # nothing was sent that may have been applied
    assert subject.applied(kind) == [True]


def test_waiter_outlasts_an_outage_of_the_source_of_credentials(scene):
    other, waiter = scene.taken(), scene.waiting()
    let_signing_fail(scene, UNREFRESHED[0], 10)
    other.release()
    waiter.join(60)
    assert waiter.acquired


@pytest.mark.parametrize("error", UNREFRESHED)
def test_credentials_that_cannot_be_had_are_raised_at_once_before_any_answer(scene, error):
    with scene.fresh() as first:
        began = time.monotonic()
        let_signing_fail(first, error, 10)
        with pytest.raises(errors.GetError, match="no answer"):
            first.mutex().acquire()
        assert time.monotonic() == began


@table(
    "subject, kind, fault",
    [
        *cases([*FEW, *WRONG], PASSING),
        *[(name, kind, conflict) for name in TOGETHER for kind in KINDS],
    ],
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


def test_warnings_about_one_request_that_fails_again_and_again_thin_out(scene, caplog):
    assert not scene.mutex().locked()  # it has answered
    scene.proxy.always(server_error())
    with pytest.raises(errors.UpdateError):
        scene.mutex().acquire(timeout=180)
    counts = re.findall(r"to be retried \(failure (\d+)\)", caplog.text)
    assert [int(count) for count in counts] == [2**power for power in range(len(counts))]
    assert 6 <= len(counts) <= 10


@pytest.mark.real("embedded")  # botocore falls over it
@of("one lock")
def test_null_is_no_answer(subject):
    fault = partial(page, 200, content=b"null", apply=True)
    test_failure_that_passes_is_repeated(subject, "acquire", fault)


@table(
    "subject, fault, how",
    crossed(
        ["one lock"],
        [(fault, how) for fault in FEW for how in ({"blocking": False}, {"timeout": 0})],
        OTHERS,
        [(server_error, {"blocking": False})],
    ),
)
def test_try_is_repeated_after_one_failure_that_passes(subject, fault, how):
    subject.proxy.next(fault(), **subject.on("acquire"))
    lock = subject.lock()
    assert lock.acquire(**how) is True
    assert subject.owns(lock)


NO_ATTRIBUTES = [b"{}", b"[]", b'{"token": 5}', b'{"token": {"B": 5}}']
NO_ANSWERS = [b"", b"{", b"{}", b"[]", b"null", b'"held"', b"\xff\xfe"]
NO_ANSWERS += [b'{"Attributes": %b}' % each for each in NO_ATTRIBUTES]
IN_NO_SHAPE = [net.answer_with(net.Reply(200, body, net.DYNAMODBS)) for body in NO_ANSWERS]
HOW_LONG = [{"timeout": 3}, {"blocking": False}, {"timeout": 0}]


@pytest.mark.parametrize(
    ("fault", "how"),
    [
        *product([*[each() for each in FEW], page(200)], HOW_LONG),
        *[(fault, {"blocking": False}) for fault in IN_NO_SHAPE],
    ],
)
def test_failure_that_does_not_pass_is_raised_when_the_timeout_is_over(scene, fault, how):
    scene.proxy.always(fault, op="acquire")
    mutex = scene.mutex()
    with pytest.raises(errors.UpdateError) as raised:
        mutex.acquire(**how)
    if fault.name in ("page", "answer_with"):
        assert raised.value.cause is not None or "not DynamoDB's" in str(raised.value)
    else:
        assert_has_cause(raised.value)
    assert not mutex.held
    assert len(scene.proxy.of("acquire")) >= 2
    # throttled it leaves nothing to disown; all others may have been applied
    assert len(scene.proxy.of("disown")) == (fault.name != "throttle")
    assert scene.gone
    scene.proxy.clear()
    assert mutex.acquire(blocking=False)


@of("one lock", "several keys", "row", *SHARED)
@pytest.mark.parametrize(
    ("fault", "timeout"), [(server_error(), 0), (net.delay_answer(2.5), 0), (server_error(), 4)]
)
def test_lock_that_is_answered_late_and_not_renewed_in_time_is_no_lock_of_another(
    subject, fault, timeout
):
    subject.proxy.next(net.delay_answer(1.5), **subject.on("acquire"))
    subject.proxy.always(fault, **subject.on("renew"))
    subject.proxy.next(net.delay_answer(2.5), op=subject.kind("disown"))
    with pytest.raises((errors.UpdateError, errors.TransactWriteError)):
        subject.lock(lease=2).acquire(timeout=timeout)
    assert subject.is_free


def test_refused_hand_over_is_logged_and_does_not_spoil_the_holders_release(scene, caplog):
    mutex = held(scene.mutex(owner="me"))
    waiter = scene.waiting(owner="next")
    scene.proxy.next(deny(), op="hand_over")
    mutex.release()
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.fencing_token == mutex.fencing_token + 1
    assert scene.applied("hand_over", "release") == [False, True]
    (record,) = (each for each in caplog.records if "not handed over" in each.getMessage())
    text = rf"'{scene.key}' not handed over to 'next': .*AccessDeniedException"
    assert re.match(text, record.getMessage())
    assert (record.levelname, record.lock_owner) == ("WARNING", "me")


def test_reads_and_forces_that_fail_are_repeated(scene):
    other = scene.taken()
    waiter = scene.waiting()
    scene.proxy.next(throttle(), server_error(), drop_answer(), page(200), op="GetItem")
    scene.proxy.wait(6, "GetItem")
    other.release()
    waiter.join(60)
    assert waiter.acquired
    scene.proxy.next(page(200), op="GetItem")
    assert scene.mutex().locked()
    scene.proxy.next(page(200), op="force")
    assert scene.here.force_release(scene.key)
    assert scene.applied("force") == [False, True]
    assert scene.row.token != waiter.mutex.token


@pytest.mark.parametrize("fault", [*FEW, *FEW_FINAL])
def test_first_request_of_a_process_that_fails_is_raised_as_the_failed_read_that_it_is(
    scene, fault
):
    is_final = fault in FEW_FINAL
    with scene.fresh() as first:
        first.proxy.always(fault())
        mutex = first.mutex()
        with pytest.raises(errors.GetError, match="GetItem failed") as raised:
            mutex.acquire(timeout=-1 if is_final else 0)
        assert_has_cause(raised.value)
        assert not mutex.held
        assert not is_final or len(first.proxy.log) == 1


# -- what does not pass ----------------------------------------------------------------------------


@table(
    "subject, kind, fault",
    [
        case
        for case in cases([*FEW_FINAL, NO_TABLE], FINAL)
        # that is refused to another
        if case[1] != "acquire" or case[0] not in PASSED_ON
    ],
)
def test_refused_request_is_raised_at_once(subject, kind, fault):
    lock = subject.lock(timeout=-1)
    if kind != "acquire":
        lock.acquire()
    before = subject.everything
    subject.proxy.next(fault(), **subject.on(kind))
    with pytest.raises(Exception) as raised:
        lock.save_data("mine") if kind == "save_data" else getattr(lock, kind)()
    if fault is not NO_TABLE:
        assert_has_cause(raised.value)
    error = errors.TransactWriteError if subject.is_together else errors.UpdateError
    error = errors.DeleteError if (subject.name, kind) == (DELETED, "release") else error
    assert type(raised.value) is (errors.TableDoesNotExist if fault is NO_TABLE else error)
    assert len(subject.of(kind)) == 1
    assert subject.everything == before
    stays = kind in {"renew", "save_data"}
    assert (lock.held, lock.lost) == (stays, False)
    if stays:
        getattr(lock, kind)(*["again"] if kind == "save_data" else [])
        lock.release()
    elif kind == "release":
        with pytest.raises(MutexNotHeldError):
            lock.ensure_held()
        # it ends with its lease
        assert subject.other(timeout=40).acquire()


@pytest.mark.parametrize(
    ("op", "error", "call"),
    [
        ("GetItem", errors.GetError, lambda scene: scene.mutex().locked()),
        ("force", errors.UpdateError, lambda scene: scene.here.force_release(scene.key)),
        ("Scan", errors.ScanError, lambda scene: list(scene.here.held())),
        ("GetItem", errors.GetError, lambda scene: scene.mutex().acquire(timeout=30)),
    ],
)
def test_refused_request_is_raised_as_what_it_is(scene, op, error, call):
    scene.taken()
    scene.proxy.next(deny(), op=op)
    with pytest.raises(error) as raised:
        call(scene)
    assert type(raised.value) is error
    assert "`pynamodb-mutex doctor` shows which permissions are missing" in str(raised.value)
    assert len(scene.proxy.of(op)) == 1


def test_payload_too_large_for_a_row_is_raised_at_once_and_the_lock_stays(scene):
    with scene.mutex() as mutex:
        with pytest.raises(errors.UpdateError):
            mutex.save_data("x" * 409_590)
        assert mutex.held
        assert len(scene.proxy.of("save_data")) == 1
        mutex.save_data("small")


# -- answers that hang, or come without a Date -----------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "apply"), [("acquire", False), *[(kind, True) for kind in (*KINDS, "save_data")]]
)
def test_request_that_hangs_is_repeated(scene, kind, apply):
    with scene.fresh(read_timeout=2) as hasty:
        hasty.proxy.next(net.stall(apply=apply), op=kind)
        with hasty.mutex(timeout=60) as mutex:
            mutex.renew()
            mutex.save_data("mine")
            assert mutex.held
            assert scene.row.token == mutex.token
        # more than twice if another answer took as long
        assert hasty.proxy.kinds().count(kind) >= 2
        assert (scene.row.expires_at, scene.row.data) == (None, "mine")
        # one that hangs to the end is not held
        hasty.proxy.start_anew()
        hasty.proxy.always(net.stall(apply=apply), op="acquire")
        with pytest.raises(errors.UpdateError):
            mutex.acquire(timeout=0.1)
        assert not mutex.held
        assert hasty.applied("disown") == [apply]
        assert scene.row.expires_at is None


@pytest.mark.parametrize("dateless", [(True, False), (False, True), (True, True)])
def test_without_date_a_dead_lock_is_taken_after_it_was_watched_for_its_lease(scene, dateless):
    with scene.fresh() as a, scene.fresh() as b:
        for client, has_none in zip((a, b), dateless, strict=True):
            client.proxy.always(net.no_date() if has_none else net.pass_on())
        dead = held(a.mutex(lease=0.6, auto_renew=False, owner="dead"))
        started = local_clock().now()
        taker = b.mutex()
        assert not taker.acquire(blocking=False)
        assert taker.acquire(timeout=60)
        assert not dead.held
        # its first poll came after that, and the watch lasts as long as the lease
        assert local_clock().now() - started >= 0.6
        assert taker.abandoned_by == "dead"
        assert taker.fencing_token == dead.fencing_token + 1


@pytest.mark.parametrize("date", ["", "yesterday", "0", "Sun, 99 Foo 2026 99:99:99 GMT"])
def test_date_that_cannot_be_read_is_none(scene, date):
    with scene.fresh() as odd:
        odd.proxy.always(net.set_date(lambda _: date))
        with odd.mutex() as mutex:
            mutex.renew()
            assert mutex.held
            assert not scene.other().acquire(blocking=False)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="needs time zones of processes")
@pytest.mark.parametrize("zone", ["-0000", "+0000", "GMT", ""])
def test_date_is_that_of_utc_whatever_the_zone_here(scene, zone, monkeypatch):
    # "-0000" says that nothing is known of the sender's zone; this process's is another matter
    monkeypatch.setenv("TZ", "XXX-5")
    time.tzset()
    try:
        with scene.fresh() as far:
            far.proxy.always(net.set_date(lambda date: date.replace("GMT", zone)))
            with far.mutex(lease=60):
                assert 55 < scene.row.expires_at - time.time() < 65
                assert not scene.other().acquire(blocking=False)
    finally:
        monkeypatch.undo()
        time.tzset()


# -- answers that are not DynamoDB's ---------------------------------------------------------------


def test_date_of_a_wrong_answer_is_not_dynamodbs(scene):
    # believed, it would show the holder's lease long over
    scene.taken()
    with scene.fresh() as first:
        ahead = "Fri, 31 Dec 2049 00:00:00 GMT"
        first.proxy.next(page(502, date=ahead), op="GetItem")
        mutex = first.mutex()
        assert not mutex.acquire(blocking=False)
        first.proxy.next(page(502, date=ahead), op="acquire")
        assert not mutex.acquire(timeout=3)


@pytest.mark.real("embedded")
def test_answer_that_breaks_off_is_no_answer(scene):
    def send_half(exchange):
        reply, wire = exchange.apply("half"), exchange._handler.wfile
        length = str(len(reply.content)).encode()
        wire.write(b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n")
        wire.write(reply.content[: len(reply.content) // 2])
        wire.flush()
        exchange.reset()

    scene.proxy.next(net.Fault("half", send_half), op="acquire")
    with scene.mutex(timeout=30) as mutex:
        assert scene.row.token == mutex.token
    assert scene.applied("acquire") == [True, False]


@pytest.mark.real("embedded")
def test_bug_in_a_hook_of_the_caller_is_not_taken_for_a_wrong_answer(scene):
    hook = Mock(side_effect=TypeError("a bug of the caller's"))
    with scene.fresh() as hooked, hooked.mutex() as mutex:
        events = store_for(hooked.here).connection.pynamodb.client.meta.events
        events.register("before-send.dynamodb", hook)
        with pytest.raises(TypeError, match="a bug of the caller's"):
            mutex.renew()
        events.unregister("before-send.dynamodb", hook)
        assert hook.call_count == 1
        assert mutex.held


@of("one lock", "task")
def test_answers_of_a_callers_mock_that_run_out_are_no_success(subject):
    lock = subject.held()
    with patch.object(Connection, "_make_api_call", side_effect=[]), pytest.raises(RuntimeError):
        lock.release()


class TimeLimitExceeded(Exception):  # noqa: N818 - named as Celery's
    """Raised by a signal handler, and an Exception, as Celery's SoftTimeLimitExceeded."""


@pytest.mark.real("embedded")
@pytest.mark.parametrize("kind", ["acquire", "release"])
def test_time_limit_of_a_signal_handler_ends_the_call_and_leaves_no_lock_behind(scene, kind):
    handled = threading.Event()

    def exceeded(*_):
        handled.set()
        raise TimeLimitExceeded

    def interrupt():
        os.kill(os.getpid(), signal.SIGUSR1)
        handled.wait(60)

    def call():
        with scene.mutex(auto_renew=False) as mutex:
            assert mutex.held

    # by the proxy's thread, while this one waits for the answer
    scene.proxy.next(
        drop_answer(interrupt) if kind == "acquire" else drop_request(interrupt), op=kind
    )
    before = signal.signal(signal.SIGUSR1, exceeded)
    try:
        with pytest.raises(TimeLimitExceeded):
            call()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert scene.is_free


def test_failure_of_tls_may_come_with_the_answer_but_not_that_of_connecting():
    endpoint = {"endpoint_url": "https://dynamodb", "error": OSError()}
    for name in ("SSLError", "ReadTimeoutError", "ConnectionClosedError"):
        assert may_pass(getattr(exceptions, name)(**endpoint)) == (True, True)
    for name in ("EndpointConnectionError", "ConnectTimeoutError"):
        assert may_pass(getattr(exceptions, name)(**endpoint)) == (True, False)
    assert may_pass(exceptions.NoCredentialsError())[0] is False
