"""The ready receivers, with the real libraries, on real locks."""

import importlib
import io
import json
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from processes import forked
from prometheus_client import CollectorRegistry
from pynamodb.exceptions import PynamoDBException
from this_process import current_process
from two_clients import held
from waits import until

from dev.faultproxy import delay, deny, set_date
from pynamodb_mutex import (
    Mutex,
    MutexLostError,
    NotRecordedError,
    Once,
    OutcomeUnknownError,
    PayloadMismatchError,
)
from pynamodb_mutex.receivers import cloudwatch, opentelemetry, prometheus
from pynamodb_mutex.testing import expire, recorded, run_elsewhere, unknown_run

WAITS, HOLDS, READS = 0.5, 2.0, 1.5


def everything_that_happens(scene):
    """Let every event happen, and return the table.

    One acquisition is contended and fails. Then one takes over an abandoned lock, its renewal fails, and it is lost; the
    release of one fails; one is detached; one is released; the acquire of the last fails. Before all that, one waits for a
    reader, and marks the row.
    """

    def denied(op, call):
        scene.proxy.next(deny(), op=op)
        with pytest.raises(PynamoDBException):
            call()

    with scene.other(shared=True):
        assert not scene.mutex().acquire(timeout=READS)
    scene.taken(auto_renew=False)
    assert not scene.mutex().acquire(blocking=False)
    expire(scene.key, scene.there)
    scene.proxy.next(delay(WAITS), op="acquire")
    mutex = held(scene.mutex(owner="me"))
    time.sleep(HOLDS)
    denied("renew", mutex.renew)
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.release()
    mutex = held(scene.mutex())
    denied("release", mutex.release)
    expire(scene.key, scene.there)
    Mutex.attach(held(mutex).detach(), model=scene.here).release()
    denied("acquire", mutex.acquire)
    return scene.here.Meta.table_name


class Prometheus:
    def __init__(self):
        self.registry = CollectorRegistry()
        self.install = partial(prometheus.install, self.registry)

    @property
    def metrics(self):
        """Values, by name and the labels but for the table's."""
        samples = [sample for metric in self.registry.collect() for sample in metric.samples]
        assert all("table" in sample.labels for sample in samples)
        return {
            "/".join([
                re.sub("^pynamodb_mutex_|_seconds|_total$", "", sample.name),
                *(label for name, label in sample.labels.items() if name != "table"),
            ]): sample.value
            for sample in samples
            if "le" not in sample.labels and not sample.name.endswith("_created")
        }  # fmt: skip


class Telemetry:
    """SDKs that keep what they get."""

    def __init__(self):
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])
        providers = {"tracer_provider": self.tracers, "meter_provider": self.meters}
        self.install = partial(opentelemetry.install, **providers)

    @property
    def spans(self):
        return list(self._spans.get_finished_spans())

    @property
    def metrics(self):
        """Values, or sums and counts, by name and the attributes that are ours."""
        data = self._reader.get_metrics_data()
        scopes = [s for each in (data.resource_metrics if data else []) for s in each.scope_metrics]
        metrics = [metric for scope in scopes for metric in scope.metrics]
        found = {}
        for long_name, point in [(m.name, point) for m in metrics for point in m.data.data_points]:
            assert point.attributes["db.system.name"] == "aws.dynamodb"
            ours = [v for k, v in point.attributes.items() if k.startswith("pynamo")]
            name = long_name.removeprefix("pynamodb_mutex.").replace(".duration", "_count")
            count = getattr(point, "value", None) or getattr(point, "count", 0)
            found["/".join([name, *ours])] = count
        return found


COUNTS = {
    "acquired": 6, "wait_count": 6,  # two by the other client: it is of the same table
    "abandoned": 2, "contended": 2, "not_acquired/held": 2, "not_acquired/error": 1,
    "lost/FORCED": 1, "renewal_failures": 1, "hold_count": 5, "marked": 1,
    "held": 1,  # that of the other client, which never released it
}  # fmt: skip


def test_prometheus_counts_what_happens(scene):
    registry = Prometheus()
    with registry.install():
        everything_that_happens(scene)
        until(lambda: {"lost/FORCED", "renewal_failures"} <= registry.metrics.keys())
        times = {"hold_sum": pytest.approx(HOLDS + READS), "wait_sum": pytest.approx(WAITS)}
        assert registry.metrics == COUNTS | times
        with pytest.raises(ValueError, match="Duplicated"):
            registry.install()
    assert list(registry.registry.collect()) == []


def test_opentelemetry_counts_what_happens(scene):
    telemetry = Telemetry()
    with telemetry.install():
        table = everything_that_happens(scene)
        until(lambda: {"lost/FORCED", "renewal_failures"} <= telemetry.metrics.keys())
        assert telemetry.metrics == COUNTS
        until(lambda: len(telemetry.spans) == 6 + 3 + 5)
    # and that of the lock that is held still
    assert (len(telemetry.spans), telemetry.metrics["held"]) == (15, 0)
    waits = [span for span in telemetry.spans if span.name == f"acquire {table}"]
    holds = [span for span in telemetry.spans if span.name == f"hold {table}"]
    assert (len(waits), len(holds)) == (9, 6)
    outcomes = [span.attributes["pynamodb_mutex.outcome"] for span in waits]
    assert sorted(outcomes) == ["acquired"] * 6 + ["error", "held", "held"]
    (failed,) = (span for span in waits if span.status.status_code is trace.StatusCode.ERROR)
    assert failed.events[0].name == "exception"
    (lost,) = (span.status for span in holds if "pynamodb_mutex.loss" in span.attributes)
    assert lost.status_code is trace.StatusCode.ERROR
    assert lost.description == "its claim was broken by force"
    to = [span.attributes.get("pynamodb_mutex.to") for span in holds]
    assert sorted(filter(None, to)) == ["a ticket"]


@pytest.mark.parametrize("kind", [Prometheus, Telemetry])
def test_receiver_knows_what_is_held_now(scene, kind):
    receiver = kind()
    installed = receiver.install(key_label=lambda key: key.partition("-")[0])

    def held_now():
        return receiver.metrics.get("held/key", 0)

    with scene.mutex() as mutex:
        mutex.renew()
        assert held_now() == 1
    assert held_now() == 0
    mutex = held(scene.mutex(lease=0.5, auto_renew=False))
    until(lambda: receiver.metrics.get("lost/key/EXPIRED") == 1)
    until(lambda: held_now() == 0)
    assert installed._held._held == {}
    # what is won back counts as held, and has no span of its own
    mutex.renew(lease=30)
    until(lambda: held_now() == 1)
    installed.uninstall()
    installed.uninstall()
    assert held_now() == 0
    mutex.release()
    acquired = receiver.metrics.get("acquired/key", 0)
    with mutex:  # no receiver listens any more
        assert receiver.metrics.get("acquired/key", 0) == acquired
    # it can be installed again
    with receiver.install(), mutex:
        assert receiver.metrics["acquired"] == 1


@pytest.mark.real("embedded")
def test_forked_child_holds_nothing(scene, monkeypatch):
    registry = Prometheus()
    with registry.install() as installed:
        scene.mutex().acquire()

        def child():
            installed._held.pop("any")
            return registry.metrics["held"], installed._held._held

        assert forked(child) == [0, {}]
        # for several processes: only its name is read, the real one keeps files by process
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "x")
        assert forked(child) == [1, {}]
        assert len(installed._held._held) == 1


@pytest.mark.real("embedded")
def test_forked_child_that_uninstalls_ends_no_span_of_its_parent(scene):
    telemetry = Telemetry()
    with telemetry.install() as installed, scene.mutex():

        def child():
            installed.uninstall()
            return [span.name.split()[0] for span in telemetry.spans], telemetry.metrics["held"]

        assert forked(child) == [["acquire"], 0]


@pytest.mark.real("embedded")
def test_spans_are_children_of_what_is_current(scene):
    telemetry = Telemetry()
    tracer = telemetry.tracers.get_tracer("the service's")
    mutex = scene.mutex(owner="me")
    with telemetry.install(), tracer.start_as_current_span("request") as request, mutex:
        time.sleep(0.05)
    waiting, holding, _ = telemetry.spans
    parent = request.get_span_context().span_id
    assert [span.parent.span_id for span in (waiting, holding)] == [parent] * 2
    assert [link.context.span_id for link in holding.links] == [waiting.context.span_id]
    assert waiting.start_time < waiting.end_time <= holding.start_time
    assert holding.end_time - holding.start_time >= 0.04e9
    assert holding.status.status_code is trace.StatusCode.UNSET
    assert holding.attributes == {
        "db.system.name": "aws.dynamodb",
        "db.collection.name": scene.here.Meta.table_name,
        "pynamodb_mutex.key": scene.key,
        "pynamodb_mutex.owner": "me",
        "pynamodb_mutex.token": mutex.token,
        "pynamodb_mutex.fencing_token": mutex.fencing_token,
    }
    assert waiting.attributes["pynamodb_mutex.attempts"] == 1


@pytest.mark.parametrize("kind", [Prometheus, Telemetry])
def test_lock_that_was_taken_before_is_not_counted_as_held(scene, kind):
    receiver = kind()
    mutexes = [held(Mutex.for_key(f"{scene.key}.{n}", model=scene.here)) for n in range(3)]
    with receiver.install():
        mutexes[0].release()
        mutexes[1].detach()
        scene.here.force_release(mutexes[2].key)
        until(lambda: receiver.metrics.get("lost/FORCED"))
        assert receiver.metrics["hold_count"] == 3
        assert "held" not in receiver.metrics
        assert not getattr(receiver, "spans", ())


def check_format(line, namespace):
    """What the specification of the embedded metric format asks for."""
    assert set(line["_aws"]) == {"Timestamp", "CloudWatchMetrics"}
    assert abs(line["_aws"]["Timestamp"] - time.time() * 1000) < 100_000
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
    assert directive["Namespace"] == namespace
    assert all(isinstance(line[name], str) for name in chain(*directive["Dimensions"]))
    for metric in directive["Metrics"]:
        assert isinstance(line[metric["Name"]], (int, float))
        assert metric["Unit"] in {"Count", "Seconds"}


def test_cloudwatch_gets_a_line_for_each_event(scene):
    stream = io.StringIO()
    with cloudwatch.install(stream=stream):
        table = everything_that_happens(scene)
        until(lambda: '"lost"' in stream.getvalue() and '"renewal_failed"' in stream.getvalue())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    for line in lines:
        check_format(line, "pynamodb-mutex")
        assert (line["table"], line["key"]) == (table, scene.key)
    assert sorted(line["event"] for line in lines) == sorted(
        ["acquired"] * 6 + ["contended", "not_acquired"] * 2 + ["not_acquired", "renewal_failed"]
        + ["marked", "lost"] + ["released"] * 3 + ["handed_over"]
    )  # fmt: skip
    (lost,) = (line for line in lines if line["event"] == "lost")
    assert (lost["loss"], lost["owner"], lost["Lost"]) == ("FORCED", "me", 1)
    assert ["table", "loss"] in lost["_aws"]["CloudWatchMetrics"][0]["Dimensions"]
    assert lost["HoldTime"] == pytest.approx(HOLDS)
    assert isinstance(lost["fencing_token"], int)
    assert next(line["abandoned_by"] for line in lines if line.get("Abandoned")) == "other"
    assert [line["holder"] for line in lines if line["event"] == "contended"] == [
        "shared: other",
        "other",
    ]
    assert sum("error" in line for line in lines) == 3


@pytest.mark.parametrize("kind", [Prometheus, Telemetry])
def test_lock_that_was_won_back_is_held_until_its_second_end(scene, kind):
    """Its renewal has no line, and its second hold no span."""
    receiver, stream = kind(), io.StringIO()
    with receiver.install(), cloudwatch.install(stream=stream):
        mutex = held(scene.mutex(lease=0.5, auto_renew=False))
        until(lambda: receiver.metrics.get("lost/EXPIRED") == 1)
        mutex.renew(lease=30)
        mutex.release()
        until(lambda: receiver.metrics["hold_count"] == 2)
        assert receiver.metrics["held"] == 0
        assert len(getattr(receiver, "spans", "ah")) == 2
        until(lambda: '"released"' in stream.getvalue())
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["acquired", "danger", "lost", "released"]


@pytest.mark.parametrize("kind", [Prometheus, Telemetry])
def test_danger_is_counted(scene, clock, kind):
    receiver, stream = kind(), io.StringIO()
    with receiver.install(), cloudwatch.install(stream=stream):
        held(scene.mutex(auto_renew=False))
        clock.advance(21)
        until(lambda: receiver.metrics.get("danger") == 1)
        until(lambda: '"danger"' in stream.getvalue())
    line = json.loads(stream.getvalue().splitlines()[-1])
    check_format(line, "pynamodb-mutex")
    assert (line["event"], line["Danger"], 8 < line["remaining"] < 10) == ("danger", 1, True)


@pytest.mark.parametrize("kind", [Prometheus, Telemetry])
def test_answers_that_contradict_each_other_are_counted_without_a_key(scene, kind):
    receiver, stream = kind(), io.StringIO()

    def label(key):
        assert key, "only of keys"
        return key

    with receiver.install(key_label=label), cloudwatch.install(stream=stream, key_label=label):
        scene.mutex().locked()
        time.sleep(0.1)
        scene.proxy.next(set_date(lambda _: "Thu, 01 Jan 2026 00:00:00 GMT"))
        scene.mutex().locked()
        until(lambda: receiver.metrics.get("clocks_disagree/-") == 1)
        until(lambda: '"clocks_disagree"' in stream.getvalue())
    line = json.loads(stream.getvalue().splitlines()[-1])
    check_format(line, "pynamodb-mutex")
    assert (line["ClocksDisagree"], line["key"], line["key_label"]) == (1, "", "-")
    assert line["endpoint"] == scene.proxy.url
    assert line["behind"] > 86_400


OUTCOMES = {
    "ran": 1,
    "repeated": 2,
    "waited": 1,
    "failed": 1,
    "mismatched": 1,
    "unknown": 1,
    "not_recorded": 1,
}


def calls_of_every_outcome():
    """Call works so that each outcome happens, and one twice; the key of a call is its outcome."""

    def call(outcome, result=None, **options):
        Once.for_key(outcome, **options).call(lambda: result)

    call("ran")
    for _ in range(2):
        recorded("repeated", 1)
        call("repeated")
    with run_elsewhere("waited"), ThreadPoolExecutor() as pool:
        before = current_process().read_clock()
        waiting = pool.submit(call, "waited", poll=(0.05, 0.05))
        until(lambda: current_process().read_clock() > before + 1)
        recorded("waited", 1)
        waiting.result()
    with pytest.raises(ZeroDivisionError):
        Once.for_key("failed").call(lambda: 1 / 0)
    with run_elsewhere("mismatched", payload=1), pytest.raises(PayloadMismatchError):
        call("mismatched", payload=2)
    unknown_run("unknown")
    with pytest.raises(OutcomeUnknownError):
        call("unknown")
    with pytest.raises(NotRecordedError):
        Once.for_key("not_recorded").call(lambda: recorded("not_recorded", 1))


@pytest.mark.parametrize("kind", [Prometheus, Telemetry])
def test_calls_of_once_are_counted_by_outcome(table, kind):
    receiver, stream = kind(), io.StringIO()
    with receiver.install(), cloudwatch.install(stream=stream):
        calls_of_every_outcome()
        counted = {name: n for name, n in receiver.metrics.items() if name.startswith("once_")}
    assert counted == {f"once_called/{outcome}": n for outcome, n in OUTCOMES.items()}
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    called = [line for line in lines if line["event"] == "once_called"]
    for line in called:
        check_format(line, "pynamodb-mutex")
        assert (line["key"], line["OnceCalled"]) == (line["outcome"], 1)
        assert ["table", "outcome"] in line["_aws"]["CloudWatchMetrics"][0]["Dimensions"]
    assert Counter(line["outcome"] for line in called) == OUTCOMES


def test_cloudwatch_writes_to_what_is_standard_output_then(scene, capsys):
    mutex = scene.mutex()
    with cloudwatch.install("Shop/Locks", key_label=lambda key: key.partition("-")[0]):
        mutex.acquire()
    mutex.release()
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    check_format(line, "Shop/Locks")
    assert (line["event"], line["key_label"]) == ("acquired", "key")
    dimensions = [["table"], ["table", "key_label"]]
    assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == dimensions


@pytest.mark.parametrize(
    ("receiver", "missing"),
    [("prometheus", "prometheus_client"), ("opentelemetry", "opentelemetry-api")],
)
def test_missing_library_is_named_with_its_extra(monkeypatch, receiver, missing):
    name = f"pynamodb_mutex.receivers.{receiver}"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing.removesuffix("-api"), None)
    message = f"{name} needs {missing}: pip install 'pynamodb-mutex[{receiver}]'"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        importlib.import_module(name)
