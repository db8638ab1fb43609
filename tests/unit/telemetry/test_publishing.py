"""Metrics reach Prometheus and a collector, and no failure there ends a writer."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from frazil.commit.marker import BatchKey, Marker
from frazil.events import BatchCommitted, Event
from frazil.offsets.spans import SourceIdentity
from frazil.spec.load import validate_stream
from frazil.telemetry import metrics as m
from frazil.telemetry.telemetry import CONTENT_TYPE, DEFAULT_LISTEN, MetricsSettings, Telemetry, format_exposition
from tests.otlp_collector import collecting

MARKER = Marker("ticks", BatchKey(4, 1), None, {("t", 0): 10}, SourceIdentity("c", {"t": "id"}))
BATCH = Event("ticks", 7_000, BatchCommitted(BatchKey(4, 1), MARKER, 100, 3, 2, stage_s=2.0, commit_s=0.5, bytes=9))
SPEC = validate_stream(
    {
        "name": "ticks",
        "source": {"topics": ["ticks"], "bootstrap-servers": "127.0.0.1:1"},
        "table": "demo.ticks",
        "schema": {"ts": "timestamptz not null"},
        "event-time": "ts",
    },
    Path("ticks.yaml"),
)


def free_ports(count: int) -> range:
    """Return consecutive ports that are free now."""
    for first in range(20_000, 60_000, 37):
        held = [socket.socket() for _ in range(count)]
        try:
            for one, port in zip(held, range(first, first + count), strict=True):
                one.bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
        return range(first, first + count)
    raise AssertionError("no ports are free")


def prometheus(ports: range) -> MetricsSettings:
    return MetricsSettings.load(
        {"FRAZIL_METRICS": "prometheus", "FRAZIL_METRICS_LISTEN": f"127.0.0.1:{ports[0]}-{ports[-1]}"}
    )


def scraped(telemetry: Telemetry) -> str:
    assert telemetry.endpoint is not None
    with urllib.request.urlopen(telemetry.endpoint.address, timeout=10) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return str(answer.read().decode())


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({}, MetricsSettings(host="127.0.0.1", ports=range(9464, 9564))),
        (
            {"FRAZIL_METRICS": " OTLP , prometheus ", "FRAZIL_METRICS_PARTITIONS": "1"},
            MetricsSettings(True, True, "127.0.0.1", range(9464, 9564), True),
        ),
        (
            {"FRAZIL_METRICS": "prometheus", "FRAZIL_METRICS_LISTEN": "[::]:9000"},
            MetricsSettings(True, False, "::", range(9000, 9001)),
        ),
    ],
)
def test_nothing_is_published_unless_declared(declared: dict[str, str], expected: MetricsSettings) -> None:
    assert MetricsSettings.load(declared) == expected


@pytest.mark.parametrize("listen", ["9464", "host:", "host:99999", "host:1-99999", "host:2-1", "a b:1"])
def test_an_invalid_listen_address_is_a_problem_but_no_error(listen: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = MetricsSettings.load({"FRAZIL_METRICS": "prometheus", "FRAZIL_METRICS_LISTEN": listen})
    assert not settings.prometheus
    with Telemetry(settings):
        pass
    assert repr(listen) in caplog.text
    assert DEFAULT_LISTEN in caplog.text


def test_a_misspelt_export_is_a_problem() -> None:
    (problem,) = MetricsSettings.load({"FRAZIL_METRICS": "promethius"}).problems
    assert "'promethius'" in problem


def test_without_declared_telemetry_no_sink_and_no_thread_exists() -> None:
    threads = threading.active_count()
    with Telemetry.from_environment("ticks", {}) as telemetry, telemetry.sinks(SPEC) as sinks:
        assert (sinks, telemetry.endpoint, threading.active_count()) == ((), None, threads)


def test_prometheus_scrapes_the_writers_metrics() -> None:
    with Telemetry(prometheus(free_ports(1))) as telemetry:
        with telemetry.sinks(SPEC) as (sink,):
            sink(BATCH)
            text = scraped(telemetry)
        after = scraped(telemetry)
    of = '{stream="ticks",table="demo.ticks"}'
    assert f"frazil_records_total{of} 100\n" in text
    assert f"frazil_writer_running{of} 1\n" in text
    assert 'frazil_stage_seconds_bucket{stream="ticks",table="demo.ticks",le="1"} 0\n' in text
    assert 'frazil_stage_seconds_bucket{stream="ticks",table="demo.ticks",le="2.5"} 1\n' in text
    assert 'frazil_stage_seconds_bucket{stream="ticks",table="demo.ticks",le="+Inf"} 1\n' in text
    assert f"frazil_stage_seconds_sum{of} 2\n" in text
    assert f"frazil_writer_running{of} 0\n" in after


def test_processes_of_one_host_take_the_next_free_port_and_continue_without_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ports = free_ports(2)
    with Telemetry(prometheus(ports)) as first, Telemetry(prometheus(ports)) as second:
        assert first.endpoint is not None
        assert second.endpoint is not None
        assert [first.endpoint.port, second.endpoint.port] == [*ports]
        with Telemetry(prometheus(ports)) as third, third.sinks(SPEC) as (sink,):
            assert third.endpoint is None
            sink(BATCH)  # it is written nevertheless
    assert [r.levelno for r in caplog.records if "FRAZIL_METRICS_LISTEN" in r.getMessage()] == [logging.WARNING]


def test_a_silent_metrics_client_delays_no_other_client() -> None:
    with Telemetry(prometheus(free_ports(1))) as telemetry:
        assert telemetry.endpoint is not None
        with socket.create_connection(("127.0.0.1", telemetry.endpoint.port)):
            assert scraped(telemetry) == ""


def test_unknown_metrics_paths_return_404() -> None:
    with Telemetry(prometheus(free_ports(1))) as telemetry:
        assert telemetry.endpoint is not None
        with pytest.raises(urllib.error.HTTPError, match="404") as found:
            urllib.request.urlopen(telemetry.endpoint.address.replace("/metrics", "/"), timeout=10)
        found.value.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this host has no IPv6")
def test_an_address_of_ipv6_is_served() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.skip(f"this host has no IPv6: {error}")
    listen = f"[::1]:{free_ports(1)[0]}"
    with Telemetry(
        MetricsSettings.load({"FRAZIL_METRICS": "prometheus", "FRAZIL_METRICS_LISTEN": listen})
    ) as telemetry:
        assert scraped(telemetry) == ""


def test_labels_are_escaped() -> None:
    meters = m.MetricValues()
    meters.set(m.LAG, ('a"b\\c\nd', "t"), 1.5)
    assert 'frazil_lag_records{stream="a\\"b\\\\c\\nd",table="t"} 1.5' in format_exposition(meters)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ExportMetricsServiceRequest]]:
    with collecting(monkeypatch) as received:
        yield received


def test_an_otlp_collector_gets_the_same_metrics(collector: list[ExportMetricsServiceRequest]) -> None:
    with Telemetry.from_environment("ticks", {"FRAZIL_METRICS": "otlp"}) as telemetry, telemetry.sinks(SPEC) as (sink,):
        sink(BATCH)
    (sent,) = collector[-1].resource_metrics
    resource = {a.key: a.value.string_value for a in sent.resource.attributes}
    assert resource["service.name"] == "frazil"
    assert resource["service.instance.id"].startswith("ticks/")
    metrics = {metric.name: metric for scope in sent.scope_metrics for metric in scope.metrics}
    assert set(metrics) <= {metric.name for metric in m.METRICS}
    records = metrics["frazil.records"].sum
    assert (records.is_monotonic, records.data_points[0].as_int or records.data_points[0].as_double) == (True, 100)
    assert {a.key: a.value.string_value for a in records.data_points[0].attributes} == {
        "stream": "ticks",
        "table": "demo.ticks",
    }
    (stage,) = metrics["frazil.stage"].histogram.data_points
    assert (stage.count, stage.sum, tuple(stage.explicit_bounds)) == (1, 2.0, m.BUCKET_BOUNDS_S)
    assert {name: metrics[name].unit for name in ("frazil.stage", "frazil.written")} == {
        "frazil.stage": "s",
        "frazil.written": "By",
    }


def test_a_missing_exporter_library_ends_no_writer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "frazil.telemetry.otlp", None)
    with Telemetry.from_environment("ticks", {"FRAZIL_METRICS": "otlp"}) as telemetry, telemetry.sinks(SPEC) as (sink,):
        sink(BATCH)
    assert "Install frazil[telemetry]" in caplog.text
