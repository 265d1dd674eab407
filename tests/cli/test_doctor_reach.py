"""`pynamodb-mutex doctor`: credentials, the way to DynamoDB, and the clocks."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from doctor_scene import ON_TABLES, Found, on_one_engine, through

from dev.faultproxy import (
    DYNAMODBS,
    Fault,
    Reply,
    answer_with,
    drop_request,
    no_date,
    page,
    pass_on,
    refuse,
    set_date,
    stall,
)
from pynamodb_mutex import LockItem
from pynamodb_mutex._runtime import clock as _clock
from pynamodb_mutex.cli._infrastructure import USES
from pynamodb_mutex.cli._probes import Asker

pytestmark = pytest.mark.real

# -- credentials, region, endpoint -----------------------------------------------------------------


NOWHERE = {
    "AWS_CONFIG_FILE": "/nowhere",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.mark.parametrize(
    ("args", "env", "check", "reason"),
    [
        ([], {"AWS_DEFAULT_REGION": None, "AWS_REGION": None}, "access", "specify a region"),
        (
            [],
            dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
            "access",
            "credentials",
        ),
        (["--profile", "nobody"], {"AWS_PROFILE": None}, "access", "profile (nobody)"),
        ([], {"AWS_ENDPOINT_URL_DYNAMODB": "nonsense"}, "access", "Invalid endpoint"),
        (["--endpoint-url", "http://127.0.0.1:9"], {}, "endpoint", "Could not connect"),
    ],
)
def test_without_an_answer_the_rest_is_left_out(embedded_engine, args, env, check, reason):
    env = NOWHERE | embedded_engine_env(embedded_engine) | env
    found = Found(*args, env=env)
    assert found.of("problem") == {check}
    assert reason in found[check][1]
    assert found.of("unchecked") == {"clock", *ON_TABLES}


class Refusing(BaseHTTPRequestHandler):
    """STS, as it answers who may not assume a role."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        error = "<Error><Code>AccessDenied</Code><Message>not you</Message></Error>"
        answer = f"<ErrorResponse>{error}</ErrorResponse>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("x-amzn-RequestId", "1")
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing():
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_role_that_cannot_be_assumed(embedded_engine, tmp_path, refusing):
    config = tmp_path / "config"
    role = "arn:aws:iam::123456789012:role/none"
    keys = "aws_access_key_id = testing\naws_secret_access_key = testing\n"
    assumed = f"[profile assumed]\nrole_arn = {role}\nsource_profile = assumed\n"
    config.write_text(assumed + keys)
    env = embedded_engine_env(embedded_engine) | {"AWS_CONFIG_FILE": str(config)}
    env |= {"AWS_ENDPOINT_URL_STS": refusing}
    env |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"))
    found = Found("--profile", "assumed", env=env)
    assert found.of("problem") == {"access"}
    assert "AssumeRole operation: not you" in found["access"][1]


def embedded_engine_env(engine) -> dict[str, str | None]:
    return {
        "AWS_ENDPOINT_URL": engine.endpoint_url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }


@on_one_engine
def test_credentials_that_are_refused(table, proxy):
    proxy.always(refuse("ExpiredTokenException"))
    found = through(proxy)
    assert found.of("problem") == {"access"}
    assert found["access"][1].startswith("credentials: env, but ExpiredTokenException")
    assert {"endpoint", "clock"} <= found.of("ok")
    assert found.of("unchecked") == set(ON_TABLES)
    assert len(proxy.log) == 1


@on_one_engine
def test_credentials_of_the_model(table):
    class Keyed(LockItem):
        class Meta:
            table_name = LockItem.Meta.table_name
            aws_access_key_id = "testing"
            aws_secret_access_key = "testing"

    globals()["Keyed"] = Keyed
    found = Found("--model", f"{__name__}:Keyed")
    assert found["access"] == ("ok", "credentials given by the model")


@on_one_engine
@pytest.mark.parametrize(
    "answer",
    [
        page(200),
        page(404),
        answer_with(Reply(200, b"[]", DYNAMODBS)),
        answer_with(Reply(200, b'{"Table"', DYNAMODBS)),
        answer_with(Reply(200, b"\xff", DYNAMODBS)),
    ],
    ids=["page", "error page", "list", "half an answer", "no text"],
)
def test_something_else_answers(table, proxy, answer):
    proxy.always(answer)
    found = through(proxy)
    assert found.of("problem") == {"endpoint"}
    assert "what answers is not DynamoDB" in found["endpoint"][1]


@on_one_engine
def test_our_own_mistakes_are_not_taken_for_answers(table):
    with pytest.raises(AttributeError):
        Asker(LockItem).ask("MakeCoffee", {})


@on_one_engine
def test_what_stops_answering_is_not_asked_again_and_again(table, proxy):
    proxy.next(pass_on(), pass_on())
    proxy.always(drop_request())
    found = through(proxy)
    assert not found.of("problem")
    assert {"rows", *USES} <= found.of("unchecked")
    assert len(proxy.log) == 4
    assert found["Scan"][1] == "not asked, for nothing answered any more"


@pytest.mark.unmeasured
@on_one_engine
def test_it_ends_within_seconds_when_nothing_answers(table, proxy):
    class Patient(LockItem):
        class Meta:
            table_name = LockItem.Meta.table_name
            read_timeout_seconds = 300

    globals()["Patient"] = Patient
    proxy.always(stall())
    started = time.monotonic()
    found = through(proxy, "--model", f"{__name__}:Patient")
    assert time.monotonic() - started < Patient.Meta.read_timeout_seconds
    assert "Read timeout" in found["endpoint"][1]


# -- clocks ----------------------------------------------------------------------------------------


def shifted(seconds: float) -> Fault:
    def shift(date: str) -> str:
        return format_datetime(
            parsedate_to_datetime(date) + timedelta(seconds=seconds), usegmt=True
        )

    return set_date(shift)


@on_one_engine
@pytest.mark.parametrize(
    ("shift", "verdict", "side"),
    [(-20, "ok", "ahead of"), (20, "ok", "behind"), (-400, "warning", "ahead of")],
)
def test_clocks_that_differ(table, proxy, shift, verdict, side):
    proxy.always(shifted(shift))
    found = through(proxy)["clock"]
    assert found[0] == verdict
    offset, words = found[1].split(" s ", 1)
    # the margin, and what a busy machine adds to it
    assert abs(abs(shift) - float(offset)) < 3
    assert words.startswith(side)


@on_one_engine
def test_clocks_that_agree(table, proxy):
    # as if an earlier answer had been given by a host whose clock is wrong
    proxy.next(shifted(-20))
    verdict, what = through(proxy)["clock"]
    assert verdict == "ok"
    assert what.startswith("within ")


@on_one_engine
def test_no_date(table, proxy):
    proxy.always(no_date())
    assert through(proxy)["clock"] == ("unchecked", "no answer had a date")


@on_one_engine
def test_a_system_whose_clock_does_not_count_suspension(table, monkeypatch):
    assert Found()["local clock"][0] == ("ok" if hasattr(time, "CLOCK_BOOTTIME") else "warning")
    monkeypatch.setattr(_clock, "_SUSPEND_AWARE", None)
    assert Found()["local clock"][0] == "warning"
