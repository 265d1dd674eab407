"""I8: what passes is repeated within the caller's timeout; what does not is raised at once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from hearing import until
from pynamodb.exceptions import (
    DeleteError,
    GetError,
    PynamoDBException,
    ScanError,
    TableDoesNotExist,
    UpdateError,
)
from scene import Scene

from dev.faultproxy import (
    Fault,
    deny,
    drop_answer,
    drop_request,
    page,
    refuse,
    server_error,
    throttle,
    unavailable,
)
from pynamodb_mutex import InvalidKeyError, LockItem, Mutex, MutexLostError, MutexNotHeldError
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock

MakeFault = Callable[[], Fault]

FEW = [throttle, server_error, drop_request]
PASSING = [
    *FEW,
    partial(throttle, "ProvisionedThroughputExceededException"),
    partial(throttle, "RequestLimitExceeded"),
    partial(refuse, "TransactionConflictException"),
    unavailable,
    partial(page, 502),
    partial(page, 504, apply=True),
]
FEW_FINAL = [deny, partial(page, 403)]
FINAL = [
    *FEW_FINAL,
    partial(refuse, "ValidationException"),
    partial(refuse, "UnrecognizedClientException"),
    partial(refuse, "ExpiredTokenException"),
]
"""One of a kind goes by the same path in every request: all are tried in acquire, a few elsewhere."""


def assert_has_cause(error: PynamoDBException) -> None:
    assert isinstance(error.cause, (BotoCoreError, ClientError, OSError))
    assert error.__cause__ is not None
    assert str(error.cause) in str(error)


# -- what passes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fault"),
    [*product(["acquire"], PASSING), *product(["renew", "save_data", "release"], FEW)],
)
def test_failure_that_passes_is_repeated(scene: Scene, fault: MakeFault, kind: str) -> None:
    scene.proxy.next(fault(), op=kind)
    with scene.mutex(timeout=30) as mutex:
        mutex.renew()
        mutex.save_data("mine")
        assert scene.row.token == mutex.token
    kinds = scene.proxy.kinds()
    assert kinds.count(kind) == 2
    assert len(kinds) == 5
    assert (scene.row.expires_at, scene.row.data) == (None, "mine")


@pytest.mark.parametrize("fault", FEW)
@pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0}])
def test_try_is_repeated_after_one_failure_that_passes(
    scene: Scene, fault: MakeFault, how: dict
) -> None:
    scene.proxy.next(fault(), op="acquire")
    mutex = scene.mutex()
    assert mutex.acquire(**how) is True
    assert mutex.held
    assert scene.row.token == mutex.token


@pytest.mark.parametrize("fault", FEW)
def test_failure_that_does_not_pass_is_raised_when_the_timeout_is_over(
    scene: Scene, fault: MakeFault
) -> None:
    scene.proxy.always(fault(), op="acquire")
    mutex = scene.mutex()
    with pytest.raises(UpdateError) as raised:
        mutex.acquire(timeout=3)
    assert_has_cause(raised.value)
    assert not mutex.held
    assert len(scene.proxy.of("acquire")) >= 2
    assert scene.gone or scene.row.expires_at is None


@pytest.mark.parametrize("fault", FEW)
def test_try_raises_what_does_not_pass_and_is_never_held(scene: Scene, fault: MakeFault) -> None:
    scene.proxy.always(fault(), op="acquire")
    mutex = scene.mutex()
    with pytest.raises(UpdateError):
        mutex.acquire(blocking=False)
    assert not mutex.held


def test_throttled_acquire_leaves_nothing_to_disown(scene: Scene) -> None:
    scene.proxy.always(throttle(), op="acquire")
    with pytest.raises(UpdateError):
        scene.mutex().acquire(timeout=0)
    assert set(scene.proxy.kinds()) == {"acquire"}
    assert scene.gone


def test_refused_hand_over_does_not_spoil_the_holders_release(scene: Scene) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    waiter = scene.waiting()
    scene.proxy.next(deny(), op="hand_over")
    mutex.release()
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.fencing_token == mutex.fencing_token + 1
    assert scene.applied("hand_over", "release") == [False, True]
    waiter.mutex.release()


def test_reads_of_a_waiter_that_fail_to_the_end_are_raised_as_such(scene: Scene) -> None:
    other = scene.taken()
    mutex = scene.mutex(poll=(0.02, 0.02))
    scene.proxy.always(deny(), op="GetItem")
    with pytest.raises(GetError, match="GetItem failed") as raised:
        mutex.acquire(timeout=30)
    assert_has_cause(raised.value)
    assert scene.proxy.kinds() == ["acquire", "GetItem"]
    assert not mutex.held
    other.release()


def test_failing_reads_of_a_waiter_are_repeated(scene: Scene) -> None:
    other = scene.taken()
    waiter = scene.waiting()
    scene.proxy.next(throttle(), server_error(), drop_answer(), op="GetItem")
    scene.proxy.wait(5, "GetItem")
    other.release()
    waiter.join(60)
    assert waiter.acquired
    waiter.mutex.release()


def test_release_that_cannot_be_sent_is_raised_and_the_lock_ends_with_its_lease(
    scene: Scene,
) -> None:
    mutex = scene.mutex(lease=4)
    mutex.acquire()
    scene.proxy.always(drop_request(), op="release")
    with pytest.raises(UpdateError) as raised:
        mutex.release()
    assert_has_cause(raised.value)
    assert not mutex.held
    assert scene.other().acquire(timeout=30)


def test_renewal_that_cannot_be_sent_is_raised_when_the_lease_is_over(scene: Scene) -> None:
    mutex = scene.mutex(lease=2, auto_renew=False)
    mutex.acquire()
    scene.proxy.always(server_error(), op="renew")
    with pytest.raises(UpdateError) as raised:
        mutex.renew()
    assert_has_cause(raised.value)
    # its answers may have shown by now that the lease ends a little later than when it began
    assert mutex.remaining < 1
    time.sleep(mutex.remaining)
    assert not mutex.held


def test_background_renewals_that_fail_until_the_lease_ends_are_a_loss(scene: Scene) -> None:
    told = threading.Event()
    with FakeClock() as clock:
        mutex = scene.mutex(on_lost=lambda _: told.set())
        mutex.acquire()
        scene.proxy.always(server_error(), op="renew")
        clock.advance(11)
        scene.proxy.wait(1, "renew")
        clock.advance(20)
        assert told.wait(60)
        assert mutex.loss is Loss.UNREACHABLE
        assert not mutex.held
        with pytest.raises(MutexLostError):
            mutex.release()


@pytest.mark.parametrize("fault", [server_error, deny])
def test_background_renewals_that_fail_for_a_while_are_none(scene: Scene, fault: MakeFault) -> None:
    scene.proxy.next(fault(), fault(), op="renew")
    with FakeClock() as clock, scene.mutex() as mutex:
        end = scene.row.expires_at
        for count, pause in enumerate((11, 1, 1), start=1):  # those that failed are repeated soon
            clock.advance(pause)
            scene.proxy.wait(count, "renew")
            until(lambda: not mutex._latest.together.renewals_under_way)
        assert mutex.remaining > 25
        assert scene.row.expires_at > end
    assert scene.applied("renew") == [False, False, True]


# -- nobody there ----------------------------------------------------------------------------------


def nobody_listens(scene: Scene) -> type[LockItem]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    class Unreachable(scene.there):
        class Meta(scene.there.Meta):
            host = f"http://127.0.0.1:{port}"

    return Unreachable


@pytest.mark.real("embedded")
@pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 0.6}])
def test_refused_connection_is_raised_with_its_cause(scene: Scene, how: dict) -> None:
    mutex = Mutex.for_key(scene.key, model=nobody_listens(scene))
    with pytest.raises(GetError) as raised:
        mutex.acquire(**how)
    assert_has_cause(raised.value)
    assert not mutex.held


@pytest.mark.parametrize("fault", FEW)
def test_first_request_of_a_process_that_fails_is_raised_as_the_failed_read_that_it_is(
    scene: Scene, fault: MakeFault
) -> None:
    with scene.fresh() as first:
        first.proxy.always(fault())
        mutex = first.mutex()
        with pytest.raises(GetError, match="GetItem failed") as raised:
            mutex.acquire(timeout=0)
        assert_has_cause(raised.value)
        assert not mutex.held


# -- what does not pass ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "fault"), [*product([{}], FINAL), ({"blocking": False}, deny), ({"timeout": 30}, deny)]
)
def test_refused_acquire_is_raised_at_once_and_never_held(
    scene: Scene, fault: MakeFault, how: dict
) -> None:
    scene.proxy.always(fault())
    mutex = scene.mutex()
    with pytest.raises(UpdateError) as raised:
        mutex.acquire(**how)
    assert_has_cause(raised.value)
    assert not mutex.held
    assert not mutex.lost
    assert len(scene.proxy.log) == 1
    assert scene.gone


@pytest.mark.parametrize("fault", FEW_FINAL)
def test_first_request_of_a_process_that_is_refused_is_raised_at_once(
    scene: Scene, fault: MakeFault
) -> None:
    with scene.fresh() as first:
        first.proxy.always(fault())
        with pytest.raises(GetError) as raised:
            first.mutex().acquire()
        assert_has_cause(raised.value)
        assert len(first.proxy.log) == 1


@pytest.mark.parametrize("fault", FEW_FINAL)
def test_refused_renewal_is_raised_at_once_and_the_lease_goes_on(
    scene: Scene, fault: MakeFault
) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    ends = scene.row.expires_at
    scene.proxy.next(fault(), op="renew")
    with pytest.raises(UpdateError):
        mutex.renew()
    assert mutex.held
    assert scene.row.expires_at == ends
    assert len(scene.proxy.of("renew")) == 1
    mutex.release()


@pytest.mark.parametrize("fault", FEW_FINAL)
def test_refused_release_is_raised_at_once(scene: Scene, fault: MakeFault) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(fault(), op="release")
    with pytest.raises(UpdateError):
        mutex.release()
    assert len(scene.proxy.of("release")) == 1
    assert not mutex.held
    with pytest.raises(MutexNotHeldError):
        mutex.save_data(1)


def test_refused_release_that_deletes_is_raised_as_delete_error(scene: Scene) -> None:
    mutex = scene.mutex(delete_on_release=True)
    mutex.acquire()
    scene.proxy.next(deny(), op="DeleteItem")
    with pytest.raises(DeleteError):
        mutex.release()


@pytest.mark.parametrize("fault", FEW_FINAL)
def test_refused_guarded_write_is_raised_at_once_and_the_lock_stays(
    scene: Scene, fault: MakeFault
) -> None:
    with scene.mutex() as mutex:
        scene.proxy.next(fault(), op="save_data")
        with pytest.raises(UpdateError) as raised:
            mutex.save_data("mine")
        assert not isinstance(raised.value, MutexLostError)
        assert mutex.held
        assert scene.row.data is None
        mutex.save_data("again")
        assert scene.row.data == "again"


def test_refused_reads_and_forces_are_raised_at_once(scene: Scene) -> None:
    scene.taken()
    scene.proxy.next(deny(), op="GetItem")
    with pytest.raises(GetError):
        scene.mutex().locked()
    scene.proxy.next(deny(), op="force")
    with pytest.raises(UpdateError):
        scene.here.force_release(scene.key)
    scene.proxy.next(deny(), op="Scan")
    with pytest.raises(ScanError):
        list(scene.here.held())


def test_refused_background_renewals_are_a_loss_only_when_the_lease_ends(scene: Scene) -> None:
    told = threading.Event()
    with FakeClock() as clock:
        mutex = scene.mutex(on_lost=lambda _: told.set())
        mutex.acquire()
        scene.proxy.always(deny(), op="renew")
        clock.advance(11)
        scene.proxy.wait(1, "renew")
        assert mutex.held
        clock.advance(20)
        assert told.wait(60)
        assert mutex.loss is Loss.UNREACHABLE


# -- no table --------------------------------------------------------------------------------------


def without_table(scene: Scene) -> type[LockItem]:
    class Missing(scene.there):
        class Meta(scene.there.Meta):
            table_name = f"{scene.there.Meta.table_name}-missing"

    return Missing


@pytest.mark.parametrize("how", [{"blocking": False}, {"timeout": 30}, {}])
def test_missing_table_is_raised_at_once_with_the_call_that_creates_it(
    scene: Scene, how: dict
) -> None:
    mutex = Mutex.for_key("k", model=without_table(scene))
    with pytest.raises(TableDoesNotExist, match=r"-missing.*Missing\.create_table\(\)") as raised:
        mutex.acquire(**how)
    assert raised.value.cause_response_code == "ResourceNotFoundException"
    assert not mutex.held


def test_missing_table_is_raised_by_the_with_statement_and_by_tools(scene: Scene) -> None:
    missing = without_table(scene)
    with pytest.raises(TableDoesNotExist), Mutex.for_key("k", model=missing):
        pass
    with pytest.raises(TableDoesNotExist):
        Mutex.for_key("k", model=missing).locked()
    with pytest.raises(TableDoesNotExist):
        missing.force_release("k")
    with pytest.raises(TableDoesNotExist):
        list(missing.held())


@pytest.mark.parametrize("kind", ["acquire", "renew", "save_data", "release"])
def test_table_that_disappears_is_raised_at_once(scene: Scene, kind: str) -> None:
    scene.proxy.next(refuse("ResourceNotFoundException"), op=kind)
    mutex = scene.mutex()

    def cycle() -> None:
        mutex.acquire()
        mutex.renew()
        mutex.save_data(1)
        mutex.release()

    with pytest.raises(TableDoesNotExist):
        cycle()
    assert scene.proxy.kinds()[-1] == kind
    assert scene.proxy.kinds().count(kind) == 1


# -- bad arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", "k" * 2049, "\ud800", None, 5, b"k"])
def test_key_that_no_row_can_have_is_refused_before_anything_is_sent(
    scene: Scene, key: object
) -> None:
    with pytest.raises(InvalidKeyError):
        Mutex.for_key(key, model=scene.here)
    with pytest.raises(InvalidKeyError):
        scene.here.force_release(key)
    assert scene.proxy.log == []


def test_longest_key_can_be_locked(scene: Scene) -> None:
    with Mutex.for_key("é" * 1024, model=scene.here) as mutex:
        assert mutex.held


def test_payload_that_is_not_json_is_refused_before_anything_is_sent(scene: Scene) -> None:
    with scene.mutex() as mutex:
        with pytest.raises(TypeError):
            mutex.save_data(object())
        mutex.save_data("fine")
    assert scene.applied("save_data") == [True]


def test_payload_too_large_for_a_row_is_raised_at_once_and_the_lock_stays(scene: Scene) -> None:
    with scene.mutex() as mutex:
        with pytest.raises(UpdateError):
            mutex.save_data("x" * 410_000)
        assert mutex.held
        assert len(scene.proxy.of("save_data")) == 1
        mutex.save_data("small")


# -- what may have been applied --------------------------------------------------------------------


def test_failure_of_tls_may_come_with_the_answer_but_not_that_of_connecting() -> None:
    from botocore import exceptions

    from pynamodb_mutex._dynamodb.answers import may_pass

    endpoint = {"endpoint_url": "https://dynamodb", "error": OSError()}
    assert may_pass(exceptions.SSLError(**endpoint)) == (True, True)
    assert may_pass(exceptions.EndpointConnectionError(**endpoint)) == (True, False)
    assert may_pass(exceptions.ConnectTimeoutError(**endpoint)) == (True, False)
    assert may_pass(exceptions.ReadTimeoutError(**endpoint)) == (True, True)
    assert may_pass(exceptions.ConnectionClosedError(**endpoint)) == (True, True)
    assert may_pass(exceptions.NoCredentialsError())[0] is False
