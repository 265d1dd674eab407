"""An endpoint that has never answered, as one of a mistyped region, is given up after some seconds."""

import asyncio
import os
import re
import socket
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError
from processes import forked
from pynamodb.exceptions import GetError, PynamoDBException, ScanError, TableError
from row_models import Account
from this_process import store_for
from two_clients import held
from urllib3.util import connection

from dev import faultproxy as net
from pynamodb_mutex import LockItem, Mutex, Semaphore
from pynamodb_mutex._attach.ticket import Ticket
from pynamodb_mutex._lock.protocol import schedule
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex.aio import AsyncMutex


def at(host):
    """A lock table there, of which nothing is known yet."""
    meta = {"table_name": f"locks-{uuid.uuid4().hex}", "region": "eu-wst-1", "host": host}
    meta["read_timeout_seconds"] = 0.2
    return type("Strange", (LockItem,), {"Meta": type("Meta", (), meta)})


def closed():
    """Where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def seconds_until(kind, call):
    """Return how long a call took on the clock in use until it raised, and what."""
    began = local_clock().now()
    with pytest.raises(kind) as raised:
        call()
    assert type(raised.value) is kind
    return local_clock().now() - began, raised.value


# -- for how long ----------------------------------------------------------------------------------


def rows_at(host):
    class Row(Account):
        Meta = at(host).Meta

    return Row


def attach(host, **options):
    model = at(host)
    ticket = Ticket(model.Meta.table_name, "eu-wst-1", "a", "token", 1, 1.0, 30.0, None)
    Mutex.attach(ticket.write(), model=model, **options)


@pytest.mark.parametrize(
    ("call", "kind", "seconds"),
    [
        (lambda host: Mutex.for_key("a", model=at(host)).acquire(), GetError, 10),
        (lambda host: Mutex.for_key("a", model=at(host)).__enter__(), GetError, 10),
        (lambda host: Mutex.for_key("a", model=at(host)).acquire(timeout=60), GetError, 10),
        (lambda host: Mutex.for_key("a", model=at(host)).acquire(timeout=3), GetError, 3),
        (lambda host: Mutex.for_key("a", model=at(host)).acquire(blocking=False), GetError, 0.5),
        (lambda host: Mutex.for_keys(["a", "b"], model=at(host)).acquire(), GetError, 10),
        (lambda host: Mutex.for_keys(["a", "b"], model=at(host), timeout=2).acquire(), GetError, 2),
        (lambda host: Mutex.any_of(["a", "b"], model=at(host)).acquire(), GetError, 10),
        (lambda host: Semaphore.for_key("a", permits=2, model=at(host)).acquire(), GetError, 10),
        (attach, GetError, 10),
        (partial(attach, timeout=4), GetError, 4),
        (lambda host: rows_at(host).locked("a").acquire(), GetError, 10),
        (lambda host: rows_at(host).locked_all(["a", "b"]).acquire(), GetError, 10),
        (lambda host: asyncio.run(AsyncMutex.for_key("a", model=at(host)).acquire()), GetError, 10),
        (lambda host: Mutex.for_key("a", model=at(host)).locked(), GetError, 0.5),
        (lambda host: at(host).force_release("a"), GetError, 5),
        (lambda host: list(at(host).held()), ScanError, 10),
        (lambda host: at(host)("a", expires_at=1.0).remaining, GetError, 0.5),
    ],
)
@pytest.mark.usefixtures("scene")
def test_endpoint_that_never_answered_is_given_up(call, kind, seconds):
    host = closed()
    took, error = seconds_until(kind, lambda: call(host))
    assert took == pytest.approx(seconds, abs=0.01)
    assert f" in eu-wst-1 at {host} (wrong region or endpoint?): Could not connect" in str(error)
    assert str(error.cause) in str(error)


@pytest.mark.usefixtures("scene")
def test_table_that_cannot_be_created_is_named_with_its_place():
    host = closed()
    model = at(host)
    model.Meta.max_retry_attempts = 0
    place = re.escape(f"{model.Meta.table_name} in eu-wst-1 at {host}")
    with pytest.raises(TableError, match=f"^table {place} could not be created: Could not connect"):
        model.create_table()


# -- what counts as an answer ----------------------------------------------------------------------


def assert_never_answered(error, host, cause):
    """See that an error names the endpoint that never answered, and the cause."""
    assert f"has not answered yet in eu-wst-1 at {host} (wrong region or endpoint?)" in str(error)
    assert cause in str(error)


@pytest.mark.parametrize(
    ("fault", "cause", "more"),
    [
        (net.drop_request, "Connection was closed", 0),
        (partial(net.page, 200), "the answer is not DynamoDB's", 0),
        (partial(net.page, 502), "(502)", 0),
        (net.stall, "Read timeout", 0.2),  # the last attempt is sent just before
    ],
)
def test_what_is_not_dynamodbs_is_no_answer(engine, fault, cause, more):
    with net.fault_proxy(engine) as proxy:
        proxy.always(fault())
        took, error = seconds_until(GetError, Mutex.for_key("a", model=at(proxy.url)).acquire)
    assert took == pytest.approx(schedule.UNANSWERED_PATIENCE + more, abs=0.01)
    assert_never_answered(error, proxy.url, cause)


UNKNOWN = Mock(side_effect=socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
LATE = Mock(side_effect=TimeoutError("timed out"))


@pytest.mark.real("embedded")
@pytest.mark.parametrize(
    ("place", "fails", "cause"),
    [
        (lambda _: closed(), (), "Could not connect"),
        (lambda _: "http://no.invalid", (socket, "getaddrinfo", UNKNOWN), "Could not connect"),
        (lambda _: "http://192.0.2.1", (connection, "create_connection", LATE), "Connect timeout"),
        (lambda url: url.replace("http:", "https:"), (), "SSL validation failed"),
        (lambda url: url, (), "the answer is not DynamoDB's"),
    ],
)
def test_what_botocore_makes_of_no_dynamodb_is_no_answer(engine, monkeypatch, place, fails, cause):
    monkeypatch.setattr(schedule, "UNANSWERED_PATIENCE", 0.3)
    if fails:
        monkeypatch.setattr(*fails)
    with net.fault_proxy(engine) as proxy:
        proxy.always(net.page(200, content=b"null"))
        host = place(proxy.url)
        with pytest.raises(GetError) as raised:
            Mutex.for_key("a", model=at(host)).acquire()
    assert_never_answered(raised.value, host, cause)


@pytest.mark.real("embedded")  # by botocore's parser it is an empty answer
def test_answer_that_is_cut_off_is_none(scene):
    mutex = held(scene.mutex())
    scene.proxy.next(net.cut_off())
    assert scene.mutex().locked()
    # nor by the client that is made for other credentials
    for part in ("access_key_id", "secret_access_key"):
        setattr(scene.here.Meta, f"aws_{part}", "testing")
    waiter = scene.waiting(auto_renew=False)
    scene.proxy.next(net.cut_off(), op="hand_over")
    mutex.release()
    waiter.join()
    assert (waiter.acquired, waiter.mutex.token) == (True, scene.row.token)
    scene.proxy.next(net.cut_off())
    assert [item.token for item in scene.here.held()] == [waiter.mutex.token]


def asked_for(scene, seconds):
    """Return for how long an acquire goes on, and see that it says nothing of a strange endpoint."""
    began = local_clock().now()
    with pytest.raises(PynamoDBException) as raised:
        scene.mutex().acquire(timeout=seconds)
    assert "has not answered" not in str(raised.value)
    return local_clock().now() - began


@pytest.mark.parametrize("answer", [net.throttle, net.server_error, net.deny, net.pass_on])
@pytest.mark.parametrize("dated", [True, False])
def test_endpoint_that_has_answered_is_asked_until_the_timeout(scene, answer, dated):
    with scene.fresh() as first:
        first.proxy.next(answer())
        if not dated:
            first.proxy.always(net.no_date())
        first.proxy.always(net.drop_request())
        with suppress(PynamoDBException):  # the one answer
            first.mutex().acquire(blocking=False)
        assert asked_for(first, 45) >= 45
        # by whatever model it is asked
        other = replace(first, here=net.through(first.proxy, first.there))
        assert asked_for(other, 45) >= 45


def test_answer_while_an_endpoint_is_asked_again_counts(scene):
    with scene.fresh() as first:
        began = local_clock().now()
        since = lambda: local_clock().now() - began  # noqa: E731 - it is short
        # it comes up after 8 s, refuses to work until 9 s, and is away until 40 s
        first.proxy.always(net.throttle(), when=lambda _: 8 <= since() < 9)
        first.proxy.always(net.drop_request(), when=lambda _: since() < 40)
        with first.mutex(timeout=90) as mutex:
            assert mutex.held
        assert since() >= 40


@pytest.mark.real("embedded")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_forked_child_knows_no_endpoint(scene, monkeypatch):
    monkeypatch.setattr(schedule, "UNANSWERED_PATIENCE", 0.3)
    with scene.fresh() as first:
        with first.mutex():
            pass
        first.proxy.always(net.drop_request())

        def child():
            with pytest.raises(GetError) as raised:
                first.mutex().acquire(timeout=30)
            return str(raised.value)

        assert "has not answered" in forked(child)
        assert asked_for(first, 1) >= 1


def test_answer_of_the_service_that_gives_credentials_is_none(scene, monkeypatch):
    with scene.fresh() as first:
        store = store_for(first.here)
        assert store.bounds is None
        headers = {"x-amzn-requestid": "sts", "date": "Fri, 31 Dec 2049 00:00:00 GMT"}
        sts = {
            "Error": {"Code": "ThrottlingException", "Message": "slow down"},
            "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": headers},
        }
        assume_role = Mock(side_effect=ClientError(sts, "AssumeRole"))
        monkeypatch.setattr(store.connection.pynamodb.client, "_make_api_call", assume_role)
        took, error = seconds_until(GetError, first.mutex().acquire)
        assert took == pytest.approx(schedule.UNANSWERED_PATIENCE, abs=0.01)
        assert "AssumeRole" in str(error.__cause__.__cause__)
        assert store.bounds is None
