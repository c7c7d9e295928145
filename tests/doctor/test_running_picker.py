"""The doctor queries a running endpoint picker, and judges its report."""

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from epp.admin.config_page import ConfigPage, ReloadLine
from epp.admin.plugin_page import PluginLine, PluginsPage
from epp.building import make_builder
from epp.cli.doctor_picker import read_picker
from epp.config import load_text
from epp.doctor import (
    Deployment,
    Diagnosis,
    DoctorError,
    Level,
    RunningPicker,
    ScrapeTimes,
    examine_deployment,
)
from epp.doctor.clock_skew import ClockSkew
from epp.doctor.running import CopyState, KubernetesState, samples_of
from epp.lab.fleet import Fleet, FleetConfig
from tools.harness.gateway import Picker, picking

from .envoys import level_of, rows_of
from .pages import serving_pages

SCRAPED = """\
llm_d_epp_info{commit="abc",build_ref=""} 1
llm_d_epp_endpoint_metrics_age_seconds{model_server_endpoint="fresh",name="p"} 0.1
llm_d_epp_endpoint_metrics_age_seconds{model_server_endpoint="stale",name="p"} 9
llm_d_epp_endpoint_metrics_age_seconds{model_server_endpoint="old",name="p"} 1
llm_d_epp_datalayer_scrape_interval_seconds{model_server_endpoint="fresh",source="m"} 0.05
llm_d_epp_datalayer_scrape_interval_seconds{model_server_endpoint="fresh",source="health-check"} 5
llm_d_epp_datalayer_scrape_interval_seconds{model_server_endpoint="stale",source="m"} 0.05
llm_d_epp_datalayer_scrape_interval_seconds{model_server_endpoint="old",source="m"} 0.05
llm_d_epp_datalayer_scrape_interval_seconds{model_server_endpoint="never",source="m"} 3
llm_d_epp_datalayer_scrape_duration_seconds_count{source_type="m"} 90
llm_d_epp_datalayer_poll_errors_total{source_type="m"} 10
llm_d_epp_datalayer_extract_errors_total{source_type="m",extractor_type="e"} 4
llm_d_epp_datalayer_scrape_lag_seconds_bucket{source_type="m",le="0.05"} 80
llm_d_epp_datalayer_scrape_lag_seconds_bucket{source_type="m",le="+Inf"} 100
llm_d_epp_datalayer_scrape_lag_seconds_count{source_type="m"} 100
"""


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(FleetConfig(endpoints=2)) as running:
        yield running


@pytest.fixture
async def picker(fleet: Fleet) -> AsyncIterator[Picker]:
    async with picking(fleet) as running:
        yield running


async def read(picker: Picker) -> RunningPicker:
    return await asyncio.to_thread(
        read_picker,
        f"http://127.0.0.1:{picker.ports.metrics}",
        grpc_port=picker.ports.grpc,
        health_port=picker.ports.health,
    )


def examine(picker: RunningPicker, **given: Any) -> Diagnosis:
    return examine_deployment(Deployment(picker=picker, **given))


def made(**given: Any) -> RunningPicker:
    return RunningPicker(url="http://epp:9090", **{"samples": {}, **given})


def with_scrapes_in_time(picker: RunningPicker) -> RunningPicker:
    """Return the picker as if no other test had taken its processor."""
    lag = "llm_d_epp_datalayer_scrape_lag_seconds"
    counts = [value for _, value in picker.series(f"{lag}_count")]
    assert counts
    buckets = list(picker.series(f"{lag}_bucket"))
    assert {"0.05", "+Inf"} <= {labels["le"] for labels, _ in buckets}
    in_time = [(labels, sum(counts)) for labels, _ in buckets if labels["le"] == "0.05"][:1]
    return replace(picker, samples={**picker.samples, f"{lag}_bucket": in_time})


@pytest.mark.integration
async def test_a_running_endpoint_picker_that_is_well(picker: Picker) -> None:
    found = await read(picker)
    assert found.faults == ()
    assert found.endpoints is not None
    assert [each.name for each in found.endpoints.endpoints] == [
        "default/endpoint-0",
        "default/endpoint-1",
    ]
    report = examine(with_scrapes_in_time(found), pickers_speak_tls=False)
    assert [row for row in report.rows if row.finding.level is not Level.OK] == []
    checked = {row.check for row in report.rows}
    assert checked >= {"scrape-age", "clock-skew", "plugin-failures", "epp-ready", "epp-port"}


@pytest.mark.integration
async def test_an_envoy_that_speaks_tls_to_a_port_without(picker: Picker) -> None:
    report = examine(await read(picker), pickers_speak_tls=True)
    (row,) = rows_of(report, "epp-port")
    assert row.finding.level is Level.ERROR
    assert row.finding.found == "speaks HTTP/2 in plaintext, and Envoy HTTP/2 over TLS"


@pytest.mark.integration
async def test_ports_with_tls_and_ports_that_do_not_answer(fleet: Fleet) -> None:
    async with picking(fleet, tls=True) as running:
        found = await read(running)
        assert found.ext_proc is not None
        assert found.ext_proc.speaks_tls is True
        url = f"http://127.0.0.1:{running.ports.metrics}"
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            wrong = await asyncio.to_thread(read_picker, url, grpc_port=port, health_port=port)
    report = examine(wrong)
    assert level_of(report, "epp-port") == level_of(report, "epp-ready") == "error"
    assert rows_of(report, "epp-port")[0].finding.found == "Connection refused"
    assert "UNAVAILABLE" in rows_of(report, "epp-ready")[0].finding.found


@pytest.mark.integration
async def test_another_configuration_than_that_of_the_file(picker: Picker) -> None:
    found = await read(picker)
    graph = picker.app.pool.graph
    assert level_of(examine(found, graph=graph, is_config_given=True), "config-in-use") == "ok"
    assert found.config is not None
    other = ConfigPage(source="x", digest="other", text="", last_reload=None, diff=[])
    report = examine(made(config=other), graph=graph, is_config_given=True)
    assert level_of(report, "config-in-use") == "warning"


def test_what_is_no_endpoint_picker() -> None:
    with (
        serving_pages({"/metrics": "up 1\n"}) as address,
        pytest.raises(DoctorError, match="not the metrics of an endpoint picker"),
    ):
        read_picker(f"http://{address}")
    with pytest.raises(DoctorError, match="is an endpoint picker running"):
        read_picker(f"http://{address}")
    with pytest.raises(DoctorError, match="--epp: give a URL"):
        read_picker("here")


def test_pages_that_cannot_be_read_are_warnings() -> None:
    with serving_pages({"/metrics": 'llm_d_epp_info{commit="a"} 1\n'}) as address:
        found = read_picker(f"http://{address}")
    assert len(found.faults) == 4  # Kubernetes is not always there, but this is another error
    assert level_of(examine(found), "epp-pages") == "warning"


def test_the_ages_of_metrics() -> None:
    report = examine(made(samples=samples_of(SCRAPED)))
    assert {
        (row.finding.where, row.finding.level.value, row.finding.found.partition(" old")[0])
        for row in rows_of(report, "scrape-age")
    } == {
        ("stale", "error", "its metrics are 9.0 s"),
        ("old", "warning", "its metrics are 1.0 s"),
        ("never", "error", "never scraped"),
        ("never", "warning", "scraped every 3.0 s"),
    }
    assert [row.finding.level.value for row in rows_of(report, "scrape-failures")] == [
        "warning",
        "warning",
    ]
    (lag,) = rows_of(report, "scrape-lag")
    assert lag.finding.found == "20.0% of 100 scrapes began more than 50 ms late"


def test_rare_failures_are_a_remark() -> None:
    few = SCRAPED.replace('poll_errors_total{source_type="m"} 10', 'poll_errors_total{a="m"} 0.5')
    assert few != SCRAPED
    report = examine(made(samples=samples_of(few)))
    assert {row.finding.level.value for row in rows_of(report, "scrape-failures")} == {
        "ok",
        "warning",
    }


@pytest.mark.parametrize(
    ("times", "config", "found"),
    [
        pytest.param(ScrapeTimes(), "", ["ok"], id="the defaults"),
        pytest.param(
            ScrapeTimes(interval_seconds=0.5), "", ["ok"], id="half a second, a remark on scoring"
        ),
        pytest.param(
            ScrapeTimes(interval_seconds=2.5), "", ["error", "ok", "warning"], id="above the limit"
        ),
        pytest.param(
            ScrapeTimes(interval_seconds=0.5, metrics_staleness_seconds=1.2),
            "",
            ["ok", "warning"],
            id="fewer than three intervals",
        ),
        pytest.param(
            ScrapeTimes(metrics_staleness_seconds=1.0), "", ["warning"], id="less than idle ones"
        ),
        pytest.param(
            ScrapeTimes(metrics_staleness_seconds=1.0, is_adaptive=False),
            "",
            ["ok"],
            id="none rest",
        ),
        pytest.param(
            ScrapeTimes(),
            "plugins: [{type: metrics-data-source, parameters: {interval: 3s}}]\n",
            ["error", "ok", "warning"],
            id="the interval of a data source",
        ),
    ],
)
def test_the_settings_of_scraping(times: ScrapeTimes, config: str, found: list[str]) -> None:
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    graph = make_builder().build(load_text(head + config, "c"))
    report = examine_deployment(Deployment(graph=graph, times=times))
    assert sorted(row.finding.level.value for row in rows_of(report, "scrape-settings")) == found


def line(**given: Any) -> PluginLine:
    values: dict[str, Any] = {
        "name": "gold",
        "type": "by-label",
        "extension_point": "filter",
        "calls": 1000,
        "seconds": 1.0,
        "mean_seconds": 0.001,
        "p99_seconds": 0.001,
        "is_above_p99": False,
        "overruns": 0,
        "failures": 0,
        "disabled": False,
    }
    return PluginLine(**(values | given))


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ({}, "ok"),
        ({"failures": 1}, "warning"),
        ({"failures": 10, "disabled": True}, "error"),
        ({"overruns": 1}, "ok"),
        ({"overruns": 100}, "warning"),
    ],
    ids=["well", "one failure", "disabled", "rarely slow", "often slow"],
)
def test_plugins_that_have_failed(given: dict[str, Any], level: str) -> None:
    report = examine(made(plugins=PluginsPage(plugins=[line(**given)])))
    assert level_of(report, "plugin-failures") == level


@pytest.mark.parametrize(
    ("result", "level"),
    [("success", "ok"), ("unchanged", "ok"), ("failure", "error"), ("rollback", "error")],
)
def test_the_last_reload(result: str, level: str) -> None:
    last = ReloadLine(at=0.0, result=result, problem="x")
    page = ConfigPage(source="c.yaml", digest="d", text="", last_reload=last, diff=[])
    assert level_of(examine(made(config=page)), "config-in-use") == level


def test_the_copies_of_the_clusters_objects() -> None:
    well = KubernetesState(is_pool_known=True, copies=(CopyState(resource="pods"),))
    assert level_of(examine(made(kubernetes=well)), "kubernetes-copies") == "ok"
    ill = KubernetesState(
        is_pool_known=False,
        lease_fault="403",
        copies=(CopyState(resource="pods", fault="forbidden"),),
    )
    rows = rows_of(examine(made(kubernetes=ill)), "kubernetes-copies")
    assert [row.finding.level for row in rows] == [Level.ERROR] * 3


def test_the_clock_of_the_endpoint_picker() -> None:
    skew = ClockSkew.of("Tue, 24 Nov 2026 20:00:00 GMT", 1795550500.0, 1795550500.2)
    assert skew is not None
    assert skew.within == pytest.approx(0.6)
    assert str(skew).endswith(("ahead", "behind"))
    assert level_of(examine(made(skew=skew)), "clock-skew") != "ok"
    assert ClockSkew.of("yesterday", 0.0, 0.0) is None
