"""The ready receivers, with the real libraries, on real locks."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hearing import until
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from pynamodb.exceptions import PynamoDBException
from scene import Scene

from dev.faultproxy import delay, deny
from pynamodb_mutex import Mutex, MutexLostError
from pynamodb_mutex.receivers import cloudwatch, opentelemetry, prometheus
from pynamodb_mutex.testing import expire

WAITS, HOLDS = 0.5, 2.0


def everything_that_happens(scene: Scene) -> str:
    """One acquisition that is contended and not made; then one abandoned, renewed in vain, lost; one
    released in vain; one detached; one released. Returns the table."""
    scene.taken(auto_renew=False)
    assert not scene.mutex().acquire(blocking=False)
    expire(scene.key, scene.there)
    mutex = scene.mutex(owner="me")
    scene.proxy.next(delay(WAITS), op="acquire")
    assert mutex.acquire()
    time.sleep(HOLDS)
    scene.proxy.next(deny(), op="renew")
    with pytest.raises(PynamoDBException):
        mutex.renew()
    scene.force()
    with pytest.raises(MutexLostError):
        mutex.release()
    mutex = scene.mutex()
    assert mutex.acquire()
    scene.proxy.next(deny(), op="release")
    with pytest.raises(PynamoDBException):
        mutex.release()
    expire(scene.key, scene.there)
    mutex.acquire()
    Mutex.attach(mutex.detach(), model=scene.here).release()
    scene.proxy.next(deny(), op="acquire")
    with pytest.raises(PynamoDBException):
        mutex.acquire()
    return scene.here.Meta.table_name


# -- Prometheus ------------------------------------------------------------------------------------


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def of_prometheus(registry: CollectorRegistry, table: str) -> dict[str, float]:
    """Samples of a table, by name and other labels."""
    found = {}
    for metric in registry.collect():
        for sample in metric.samples:
            labels = dict(sample.labels)
            if labels.pop("table") == table and "le" not in labels:
                name = sample.name.removeprefix("pynamodb_mutex_")
                found["/".join([name, *labels.values()])] = sample.value
    return {name: value for name, value in found.items() if "_created" not in name}


def test_prometheus_counts_what_happens(scene: Scene, registry: CollectorRegistry) -> None:
    with prometheus.install(registry):
        table = everything_that_happens(scene)
        until(lambda: of_prometheus(registry, table).get("lost_total/FORCED"))
        until(lambda: of_prometheus(registry, table).get("renewal_failures_total"))
        found = of_prometheus(registry, table)
        assert found.pop("hold_seconds_sum") == pytest.approx(HOLDS)
        assert found.pop("wait_seconds_sum") == pytest.approx(WAITS)
        assert found == {
            "acquired_total": 5,  # one by the other client: it is of the same table
            "abandoned_total": 2,
            "contended_total": 1,
            "not_acquired_total/held": 1,
            "not_acquired_total/error": 1,
            "lost_total/FORCED": 1,
            "renewal_failures_total": 1,
            "hold_seconds_count": 4,
            "wait_seconds_count": 5,
            "held": 1,  # that of the other client, which never gave it back
        }
    assert list(registry.collect()) == []


def test_prometheus_knows_what_is_held_now(scene: Scene, registry: CollectorRegistry) -> None:
    installed = prometheus.install(registry, key_label=lambda key: key.partition("-")[0])
    table = scene.here.Meta.table_name

    def held() -> float:
        return of_prometheus(registry, table)["held/key"]

    with scene.mutex() as mutex:
        mutex.renew()
        assert held() == 1
    assert held() == 0
    mutex = scene.mutex(lease=0.5, auto_renew=False)
    mutex.acquire()
    until(lambda: of_prometheus(registry, table).get("lost_total/key/EXPIRED") == 1)
    until(lambda: held() == 0)
    mutex.renew(lease=30)
    until(lambda: held() == 1)
    mutex.release()
    assert held() == 0
    assert installed._held._held == {}
    installed.uninstall()
    installed.uninstall()
    with mutex:  # nobody listens any more
        pass
    with prometheus.install(registry), mutex:
        assert of_prometheus(registry, table)["acquired_total"] == 1


def test_prometheus_counts_none_as_held_that_was_taken_before(
    scene: Scene, registry: CollectorRegistry
) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    with prometheus.install(registry):
        mutex.release()
        found = of_prometheus(registry, scene.here.Meta.table_name)
    assert found.pop("hold_seconds_sum") >= 0
    assert found == {"hold_seconds_count": 1}


def test_prometheus_is_installed_once_in_a_registry(registry: CollectorRegistry) -> None:
    with prometheus.install(registry), pytest.raises(ValueError, match="Duplicated"):
        prometheus.install(registry)


@pytest.mark.real("embedded")
@pytest.mark.parametrize("several", [False, True], ids=["one process", "several"])
def test_a_forked_child_holds_nothing(scene: Scene, monkeypatch, several: bool) -> None:
    registry = CollectorRegistry()
    with prometheus.install(registry) as installed:
        scene.mutex().acquire()
        if several:
            # only looked at: the real thing keeps files by process
            monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "x")
        child = os.fork()
        if child == 0:
            installed._held.pop("any")
            held = of_prometheus(registry, scene.here.Meta.table_name)["held"]
            os._exit(0 if held == several and installed._held._held == {} else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(installed._held._held) == 1


# -- OpenTelemetry ---------------------------------------------------------------------------------


class Telemetry:
    """SDKs that keep what they get."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def install(self, **options: Any) -> opentelemetry.OpenTelemetryReceiver:
        providers = {"tracer_provider": self.tracers, "meter_provider": self.meters}
        return opentelemetry.install(**providers, **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    @property
    def metrics(self) -> dict[str, Any]:
        """Values, or sums and counts, by name and the attributes that are ours."""
        data = self._reader.get_metrics_data()
        found = {}
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        ours = [v for k, v in point.attributes.items() if k.startswith("pynamo")]
                        name = "/".join([metric.name.removeprefix("pynamodb_mutex."), *ours])
                        found[name] = getattr(point, "value", None) or getattr(point, "count", 0)
                        assert point.attributes["db.system.name"] == "aws.dynamodb"
        return found


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.meters.shutdown()
    telemetry.tracers.shutdown()


def test_opentelemetry_counts_what_happens(scene: Scene, telemetry: Telemetry) -> None:
    with telemetry.install():
        table = everything_that_happens(scene)
        until(lambda: telemetry.metrics.get("lost/FORCED"))
        until(lambda: telemetry.metrics.get("renewal_failures"))
        assert telemetry.metrics == {
            "acquired": 5,
            "abandoned": 2,
            "contended": 1,
            "not_acquired/held": 1,
            "not_acquired/error": 1,
            "lost/FORCED": 1,
            "renewal_failures": 1,
            "hold.duration": 4,
            "wait.duration": 5,
            "held": 1,
        }
        until(lambda: len(telemetry.spans) == 5 + 2 + 4)
    # and that of the lock that is held still
    assert len(telemetry.spans) == 12
    assert telemetry.metrics["held"] == 0
    waits = [span for span in telemetry.spans if span.name == f"acquire {table}"]
    holds = [span for span in telemetry.spans if span.name == f"hold {table}"]
    assert (len(waits), len(holds)) == (7, 5)
    outcomes = [span.attributes["pynamodb_mutex.outcome"] for span in waits]
    assert sorted(outcomes) == ["acquired"] * 5 + ["error", "held"]
    (failed,) = (span for span in waits if span.status.status_code is trace.StatusCode.ERROR)
    assert failed.events[0].name == "exception"
    (lost,) = (span for span in holds if "pynamodb_mutex.loss" in span.attributes)
    assert lost.status.status_code is trace.StatusCode.ERROR
    assert lost.status.description == "its claim was broken by force"
    (detached,) = (span for span in holds if "pynamodb_mutex.to" in span.attributes)
    assert detached.attributes["pynamodb_mutex.to"] == "a ticket"


@pytest.mark.real("embedded")
def test_spans_are_children_of_what_is_current(scene: Scene, telemetry: Telemetry) -> None:
    tracer = telemetry.tracers.get_tracer("the service's")
    mutex = scene.mutex(owner="me")
    with telemetry.install(), tracer.start_as_current_span("request") as request, mutex:
        time.sleep(0.05)
    waiting, holding, _ = telemetry.spans
    for span in (waiting, holding):
        assert span.parent.span_id == request.get_span_context().span_id
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


def test_what_is_won_back_counts_as_held(scene: Scene, telemetry: Telemetry) -> None:
    with telemetry.install(key_label=lambda key: key.partition("-")[0]) as installed:
        with scene.mutex() as mutex:
            mutex.renew()
            assert telemetry.metrics["held/key"] == 1
        mutex = scene.mutex(lease=0.5, auto_renew=False)
        mutex.acquire()
        until(lambda: telemetry.metrics.get("lost/key/EXPIRED"))
        until(lambda: telemetry.metrics["held/key"] == 0)
        mutex.renew(lease=30)
        until(lambda: telemetry.metrics["held/key"] == 1)
        mutex.release()
        assert telemetry.metrics["held/key"] == 0
        assert installed._held._held == {}
        # what is won back has no span of its own
        mutex.acquire()
        until(lambda: mutex.lost)
        mutex.renew(lease=30)
        until(lambda: telemetry.metrics["held/key"] == 1)
    assert telemetry.metrics["held/key"] == 0


def test_a_lock_that_was_taken_before_leaves_no_span(scene: Scene, telemetry: Telemetry) -> None:
    mutexes = [Mutex.for_key(f"{scene.key}.{n}", model=scene.here) for n in range(3)]
    for mutex in mutexes:
        mutex.acquire()
    with telemetry.install():
        mutexes[0].release()
        mutexes[1].detach()
        scene.here.force_release(mutexes[2].key)
        until(lambda: telemetry.metrics.get("lost/FORCED"))
        assert telemetry.spans == []
        assert telemetry.metrics["hold.duration"] == 3
        assert "held" not in telemetry.metrics


# -- CloudWatch ------------------------------------------------------------------------------------


def check_format(line: dict[str, Any], namespace: str) -> None:
    """What the specification of the embedded metric format asks for."""
    assert set(line["_aws"]) == {"Timestamp", "CloudWatchMetrics"}
    assert abs(line["_aws"]["Timestamp"] - time.time() * 1000) < 100_000
    (directive,) = line["_aws"]["CloudWatchMetrics"]
    assert set(directive) == {"Namespace", "Dimensions", "Metrics"}
    assert directive["Namespace"] == namespace
    for dimensions in directive["Dimensions"]:
        assert 1 <= len(dimensions) <= 30
        assert all(
            isinstance(line[name], str) and 1 <= len(line[name]) <= 1024 for name in dimensions
        )
    assert 1 <= len(directive["Metrics"]) <= 100
    for metric in directive["Metrics"]:
        assert isinstance(line[metric["Name"]], (int, float))
        assert metric["Unit"] in {"Count", "Seconds"}


def test_cloudwatch_gets_a_line_for_each_event(scene: Scene) -> None:
    stream = io.StringIO()
    with cloudwatch.install(stream=stream):
        table = everything_that_happens(scene)
        until(lambda: '"lost"' in stream.getvalue() and '"renewal_failed"' in stream.getvalue())
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    for line in lines:
        check_format(line, "pynamodb-mutex")
        assert line["table"] == table
        assert line["key"] == scene.key
    events = sorted(line["event"] for line in lines)
    assert events == sorted(
        ["acquired"] * 5 + ["contended", "not_acquired", "not_acquired", "renewal_failed"]
        + ["lost", "released", "released", "handed_over"]
    )  # fmt: skip
    (lost,) = (line for line in lines if line["event"] == "lost")
    assert (lost["loss"], lost["owner"], lost["Lost"]) == ("FORCED", "me", 1)
    assert ["table", "loss"] in lost["_aws"]["CloudWatchMetrics"][0]["Dimensions"]
    assert lost["HoldTime"] == pytest.approx(HOLDS)
    assert isinstance(lost["fencing_token"], int)
    by = [line["abandoned_by"] for line in lines if line.get("Abandoned")]
    assert by[0] == "other"
    (contended,) = (line for line in lines if line["event"] == "contended")
    assert contended["holder"] == "other"
    assert sum("error" in line for line in lines) == 3


def test_cloudwatch_writes_to_what_is_standard_output_then(scene: Scene, capsys) -> None:
    installed = cloudwatch.install("Shop/Locks", key_label=lambda key: key.partition("-")[0])
    with scene.mutex():
        pass
    installed.uninstall()
    with scene.mutex():
        pass
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["acquired", "released"]
    for line in lines:
        check_format(line, "Shop/Locks")
        assert line["key_label"] == "key"
        dimensions = [["table"], ["table", "key_label"]]
        assert line["_aws"]["CloudWatchMetrics"][0]["Dimensions"] == dimensions


# -- what is missing -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("receiver", "library", "message"),
    [
        ("prometheus", "prometheus_client", "prometheus_client: pip install 'pynamodb-mutex[prom"),
        ("opentelemetry", "opentelemetry", "opentelemetry-api: pip install 'pynamodb-mutex[open"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    receiver: str, library: str, message: str
) -> None:
    script = f"""
import sys
sys.modules[{library!r}] = None
import pynamodb_mutex.signals
assert not [name for name in sys.modules if name.startswith("pynamodb_mutex.receivers")]
import pynamodb_mutex.receivers.{receiver}
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert f"ImportError: pynamodb_mutex.receivers.{receiver} needs {message}" in done.stderr
