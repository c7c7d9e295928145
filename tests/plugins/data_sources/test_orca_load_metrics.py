"""``orca-load-metrics-reader``: requested formats, applied values, and headers for the client."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_watch import Logs

from epp.data_layer.plugins import LoadReport
from epp.observability.plugin_metrics import PluginMetricsCollector
from epp.request_control.plugins import REQUEST_HEADERS_TO_SET, ResponseHead
from epp.scheduling import AttributeKey, Endpoint, ProfileResult, SchedulingResult, ScoredEndpoint
from epp.testing import check, make_endpoint, make_plugin, make_request, make_state
from epp_plugins.data_sources.orca_load_metrics import OrcaLoadMetricsReader

ASK = "endpoint-load-metrics-format"
REPORT = "endpoint-load-metrics"
BINARY = "endpoint-load-metrics-bin"
VLLM = "TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=3.0"
HEAT = AttributeKey[float]("heat/reader")
HEATED = {"customMetrics": [{"attributeKey": "heat", "metric": "cpu_utilization"}]}


class Reader:
    """The plugin, and what it does."""

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        self.applied: list[tuple[str, LoadReport]] = []
        self.metrics = PluginMetricsCollector()
        self.endpoint = make_endpoint("ns/served")
        self.plugin = make_plugin(
            OrcaLoadMetricsReader,
            parameters,
            name="reader",
            report_load=self._apply,
            metrics=self.metrics,
        )

    def _apply(self, endpoint: Endpoint, report: LoadReport) -> None:
        self.applied.append((endpoint.name, report))

    def request_headers(self, sent: Mapping[str, str]) -> dict[str, str | None]:
        """Return the headers to set on a request with the headers ``sent``."""
        state = make_state()
        chosen = ProfileResult("default", [ScoredEndpoint(self.endpoint, 1.0)])
        result = SchedulingResult({"default": chosen}, "default")
        self.plugin.pre_request(make_request(headers=sent), result, state)
        return state.read(REQUEST_HEADERS_TO_SET) or {}

    def respond(
        self, report: str | None, *, sent: Mapping[str, str] | None = None, stream: bool = False
    ) -> dict[str, str | None]:
        """Have a response come with ``report``; return the headers to set on it."""
        headers = {":status": "200"} if report is None else {":status": "200", REPORT: report}
        return self.head(headers, sent=sent, stream=stream)

    def head(
        self,
        headers: Mapping[str, str],
        *,
        sent: Mapping[str, str] | None = None,
        stream: bool = False,
    ) -> dict[str, str | None]:
        """Have a response come; return the headers to set on it."""
        head = ResponseHead(200, headers)
        request = make_request(headers=sent, stream=stream)
        self.plugin.response_headers(request, head, self.endpoint, make_state())
        return head.set_headers

    def outcomes(self) -> dict[str, float]:
        """Return the counter by outcome."""
        return {
            sample.labels["outcome"]: sample.value
            for family in self.metrics.collect()
            for sample in family.samples
            if sample.name == "llm_d_epp_orca_load_reports_total"
        }


@pytest.mark.parametrize(
    ("parameters", "sent", "want"),
    [
        pytest.param({}, {}, {ASK: "TEXT"}, id="text by default"),
        pytest.param({"format": "JSON"}, {}, {ASK: "JSON"}, id="JSON"),
        pytest.param({"format": ""}, {}, {}, id="nothing"),
        pytest.param({}, {ASK: "JSON"}, {}, id="the client's format stays"),
    ],
)
def test_it_asks_for_reports(
    parameters: dict[str, str], sent: dict[str, str], want: dict[str, str]
) -> None:
    assert Reader(parameters).request_headers(sent) == want


@pytest.mark.parametrize(
    ("report", "want"),
    [
        pytest.param(VLLM, LoadReport(3, None, 0.4), id="vLLM"),
        pytest.param(
            'JSON {"named_metrics": {"num_requests_waiting": 3, "num_requests_running": 2}}',
            LoadReport(3, 3, None),  # 2, and this request, which is still counted here
            id="running requests",
        ),
        pytest.param(
            "TEXT named_metrics.kv_cache_usage_perc=1.5, eps=-1, cpu_utilization=nan",
            LoadReport(None, None, 1.0),
            id="only what is named counts, a cache is full at most",
        ),
        pytest.param(
            "TEXT named_metrics.num_requests_waiting=2.5", LoadReport(2, None, None), id="rounded"
        ),
    ],
)
def test_a_report_is_applied_to_the_endpoint_that_served(report: str, want: LoadReport) -> None:
    reader = Reader()
    assert reader.respond(report) == {REPORT: None}
    assert reader.applied == [("ns/served", want)]
    assert reader.outcomes() == {"used": 1.0}


def test_a_streamed_request_still_runs_when_its_report_comes() -> None:
    reader = Reader()
    reader.respond(
        "TEXT named_metrics.num_requests_waiting=0,named_metrics.num_requests_running=2",
        stream=True,
    )
    assert reader.applied == [("ns/served", LoadReport(0, 2, None))]


def test_metrics_are_read_under_the_names_that_the_parameters_give() -> None:
    reader = Reader(
        {
            "queuedRequestsMetric": "named_metrics.queue",
            "runningRequestsMetric": "",
            "kvUsageMetric": "mem_utilization",
        }
    )
    reader.respond(
        "TEXT named_metrics.queue=4, mem_utilization=0.25, named_metrics.num_requests_running=9"
    )
    assert reader.applied == [("ns/served", LoadReport(4, None, 0.25))]


def test_custom_metrics_become_attributes_while_reports_have_them() -> None:
    reader = Reader(HEATED)
    assert reader.plugin.writes == (HEAT,)
    reader.respond("TEXT cpu_utilization=0.75")  # alone it is of use, too
    assert reader.endpoint.attribute(HEAT) == 0.75
    assert reader.applied == []
    reader.respond(f"{VLLM}, cpu_utilization=nan")
    assert reader.endpoint.attribute(HEAT) is None
    reader.respond("TEXT cpu_utilization=-0.5")
    assert reader.endpoint.attribute(HEAT) == -0.5
    reader.respond(VLLM)
    assert reader.endpoint.attribute(HEAT) is None
    assert reader.outcomes() == {"used": 4.0}


@pytest.mark.parametrize(
    ("report", "outcome", "error"),
    [
        pytest.param(
            f"{VLLM.partition(',')[0]}, named_metrics.num_requests_waiting=nan",
            "malformed",
            "named_metrics.num_requests_waiting is nan",
            id="not a number, beside one",
        ),
        pytest.param(
            "TEXT named_metrics.num_requests_waiting=-1",
            "malformed",
            "named_metrics.num_requests_waiting is -1.0",
            id="less than nothing",
        ),
        pytest.param(
            "TEXT named_metrics.num_requests_waiting=1,named_metrics.num_requests_running=inf",
            "malformed",
            "named_metrics.num_requests_running is inf",
            id="without end",
        ),
        pytest.param(
            "TEXT named_metrics.kv_cache_usage_perc=1e300",
            "malformed",
            "named_metrics.kv_cache_usage_perc is 1e+300",
            id="huge",
        ),
        pytest.param("BIN @", "malformed", "Only base64 data is allowed", id="no base64"),
        pytest.param(
            "x" * 4097, "too-long", "it has 4097 characters, more than 4096", id="too long"
        ),
        pytest.param(
            "TEXT eps=1", "no-metric", "it has none of the configured metrics", id="other metrics"
        ),
    ],
)
def test_an_unusable_report_is_ignored_and_reported_once_for_each_endpoint(
    report: str, outcome: str, error: str, logs: Logs
) -> None:
    reader = Reader()
    for _ in range(3):
        assert reader.respond(report) == {REPORT: None}
    reader.endpoint = make_endpoint("ns/other")
    reader.respond(report)
    assert reader.applied == []
    assert reader.outcomes() == {outcome: 4.0}
    assert [(each["event"], each["endpoint"], each["error"]) for each in logs.entries] == [
        ("load report ignored", name, error) for name in ("ns/served", "ns/other")
    ]


@pytest.mark.parametrize(
    ("headers", "sent", "removed"),
    [
        pytest.param({}, {}, [], id="no report"),
        pytest.param({BINARY: ""}, {}, [BINARY], id="the binary header"),
        pytest.param({REPORT: VLLM, BINARY: ""}, {}, [REPORT, BINARY], id="both"),
        pytest.param({REPORT: VLLM}, {ASK: "TEXT"}, [], id="a client that asked"),
        pytest.param({REPORT: "TEXT a"}, {ASK: ""}, [], id="a client that asked for no format"),
    ],
)
def test_clients_see_only_reports_that_they_asked_for(
    headers: dict[str, str], sent: dict[str, str], removed: list[str]
) -> None:
    assert Reader().head(headers, sent=sent) == dict.fromkeys(removed)


def test_without_a_report_nothing_is_counted() -> None:
    reader = Reader(HEATED)
    reader.endpoint.attributes[HEAT] = 0.5
    assert reader.respond(None) == {}
    assert (reader.applied, reader.outcomes()) == ([], {})
    assert reader.endpoint.attribute(HEAT) == 0.5  # that of the last report


NUMBERS = st.floats() | st.integers() | st.text(max_size=5)


@given(waiting=NUMBERS, running=NUMBERS, usage=NUMBERS)
def test_whatever_a_report_says_only_counts_and_fractions_are_applied(
    waiting: object, running: object, usage: object
) -> None:
    reader = Reader()
    reader.respond(
        f"TEXT named_metrics.num_requests_waiting={waiting},"
        f"named_metrics.num_requests_running={running},named_metrics.kv_cache_usage_perc={usage}"
    )
    for _, report in reader.applied:
        assert report.waiting_requests is None or 0 <= report.waiting_requests <= 10**18
        assert report.running_requests is None or 0 <= report.running_requests <= 10**18 + 1
        assert report.kv_cache_usage is None or 0.0 <= report.kv_cache_usage <= 1.0


def test_the_class_is_sound() -> None:
    check(OrcaLoadMetricsReader)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"format": "BIN"}, "Invalid enum value 'BIN'"),
        ({"waitingMetric": "a"}, "unknown field `waitingMetric`"),
        (
            {"customMetrics": [{"attributeKey": "a", "metric": m} for m in "xy"]},
            r"customMetrics\[1\].attributeKey: 'a' is there twice",
        ),
    ],
)
def test_a_mistake_in_the_parameters_is_refused(parameters: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        make_plugin(OrcaLoadMetricsReader, parameters)
