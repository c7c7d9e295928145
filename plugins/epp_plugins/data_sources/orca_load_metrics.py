"""``orca-load-metrics-reader``: reads the load that servers report in their responses (ORCA).

A model server that supports ORCA reports its current load in a header of each response, so the load
of a busy server is known with every response, not only with every scrape. The plugin asks for
reports: it sets the request header ``endpoint-load-metrics-format`` to ``format``. It reads the
headers ``endpoint-load-metrics`` (``TEXT``, ``JSON`` or ``BIN``) and ``endpoint-load-metrics-bin``
of every response, whether or not it asked for a report, and applies the values to the endpoint that
served.

The values of a report replace those of the last scrape, and a scrape that was requested before the
report arrived does not overwrite them. A report with the waiting requests makes the metrics fresh,
like a scrape at that moment. If it lacks the running requests, they are estimated from the requests
in flight and the last scrape. Scraping continues: it provides the running requests and the LoRA
adapters, and it reaches endpoints that get no requests.

vLLM reports waiting requests and KV cache usage in responses to completions and chats that are not
streamed; it sends such a response when it is complete. For each report vLLM collects all of its
metrics, which takes time on its API server, and some versions log a line. Of several data-parallel
engines behind one address it reports only the first, so do not use this plugin there. Triton with
TensorRT-LLM reports ``named_metrics.kv_cache_utilization``.

Metrics are named as in the format ``TEXT``: ``named_metrics.NAME``, ``utilization.NAME``,
``cpu_utilization``, ``mem_utilization``, ``application_utilization``, ``rps_fractional`` and
``eps``. An empty name is not read. ``customMetrics`` become endpoint attributes
``attributeKey/NAME``, where NAME is the name of this plugin; if a report does not have the metric,
the attribute is removed.

A report is ignored if its waiting requests, running requests or KV cache usage is negative or not a
finite number, or if it has more than 4096 characters. The first report of an endpoint that is
ignored is logged. ``orca_load_reports_total{outcome}`` counts all reports: ``used``, ``no-metric``
(it has none of the configured metrics), ``malformed``, ``too-long``.

The headers of a report are removed from the response, unless the client itself sent
``endpoint-load-metrics-format``. The header of the client is not changed.

Writes: ``endpoint.metrics``; the attributes of ``customMetrics``.
Example::

    plugins:
      - type: orca-load-metrics-reader
        parameters:
          format: JSON
          customMetrics: [{attributeKey: cpu, metric: cpu_utilization}]
"""

from collections.abc import Mapping
from math import nan
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import structlog

from epp.data_layer.plugins import LoadReport, ReportLoad, ignore_report
from epp.observability.plugins import NO_PLUGIN_METRICS, PluginMetrics
from epp.request_control.plugins import PreRequest, ResponseHead, ResponseHeader
from epp.scheduling import AttributeKey, CycleState, Endpoint, LLMRequest, SchedulingResult
from epp_plugins.data_sources.metrics_page import LARGEST
from epp_plugins.data_sources.orca_reports import (
    BINARY_HEADER,
    FORMAT_HEADER,
    HEADER,
    ReportError,
    metrics_of,
)
from epp_plugins.request_headers import set_header

_log = structlog.get_logger(__name__)

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class CustomMetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A metric that becomes an endpoint attribute."""

    attribute_key: _Text
    """Name of the attribute for filters and scorers."""
    metric: _Text
    """The metric."""


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``orca-load-metrics-reader``."""

    format: Literal["TEXT", "JSON", ""] = "TEXT"
    """Format to ask for; "" to ask for no reports."""
    queued_requests_metric: str = "named_metrics.num_requests_waiting"
    """Waiting requests."""
    running_requests_metric: str = "named_metrics.num_requests_running"
    """Running requests; used if the report has the waiting requests, too."""
    kv_usage_metric: str = "named_metrics.kv_cache_usage_perc"
    """Used fraction of the KV cache, 0.0 to 1.0."""
    custom_metrics: tuple[CustomMetric, ...] = ()
    """Metrics that become attributes."""


class OrcaLoadMetricsReader(PreRequest, ResponseHeader):
    """Reads load reports from response headers."""

    type: ClassVar[str] = "orca-load-metrics-reader"
    keeps_result: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        params: Params,
        *,
        report_load: ReportLoad = ignore_report,
        metrics: PluginMetrics = NO_PLUGIN_METRICS,
    ) -> None:
        self.name = name
        self._format = params.format
        self._waiting = params.queued_requests_metric
        self._running = params.running_requests_metric
        self._usage = params.kv_usage_metric
        self._custom = [
            (AttributeKey[float](f"{each.attribute_key}/{name}"), each.metric)
            for each in params.custom_metrics
        ]
        self.writes: tuple[AttributeKey[Any], ...] = tuple(key for key, _ in self._custom)
        for place, key in enumerate(self.writes):
            if key in self.writes[:place]:
                given = params.custom_metrics[place].attribute_key
                raise ValueError(f"customMetrics[{place}].attributeKey: {given!r} is there twice")
        self._report_load = report_load
        self._logged = AttributeKey[bool](f"orca-report-ignored/{name}")
        """Set on endpoints for which an ignored report was logged."""
        self._reports = metrics.counter(
            self,
            "orca_load_reports_total",
            "Load reports in response headers, by outcome (used, no-metric, malformed, too-long).",
            ["outcome"],
        )

    def pre_request(self, request: LLMRequest, result: SchedulingResult, state: CycleState) -> None:
        if self._format and FORMAT_HEADER not in request.headers:
            set_header(request, state, FORMAT_HEADER, self._format)

    def response_headers(
        self, request: LLMRequest, response: ResponseHead, served_by: Endpoint, state: CycleState
    ) -> None:
        headers = response.headers
        try:
            metrics = metrics_of(headers)
            if metrics is None:
                return
            self._apply(metrics, served_by, is_streamed=request.stream)
        except ReportError as error:
            self._reports.inc(error.outcome)
            self._log_ignored(served_by, error)
        else:
            self._reports.inc("used")
        if FORMAT_HEADER not in request.headers:
            for name in (HEADER, BINARY_HEADER):
                if name in headers:
                    response.set_headers[name] = None

    def _apply(
        self, metrics: Mapping[str, float], endpoint: Endpoint, *, is_streamed: bool
    ) -> None:
        waiting = _count(metrics, self._waiting)
        running = _count(metrics, self._running)
        usage = _value(metrics, self._usage)
        if running is not None and not is_streamed:
            # The server has finished this request, which counts as in flight until its stream ends.
            running += 1
        is_used = waiting is not None or usage is not None
        if is_used:
            usage = None if usage is None else min(1.0, usage)
            self._report_load(endpoint, LoadReport(waiting, running, usage))
        for key, name in self._custom:
            value = metrics.get(name, nan)
            if -LARGEST <= value <= LARGEST:
                endpoint.attributes[key] = value
                is_used = True
            else:
                endpoint.attributes.pop(key, None)
        if not is_used:
            raise ReportError("no-metric", "it has none of the configured metrics")

    def _log_ignored(self, endpoint: Endpoint, error: ReportError) -> None:
        """Log the first ignored report of an endpoint."""
        if endpoint.attribute(self._logged):
            return
        endpoint.attributes[self._logged] = True
        _log.warning(
            "load report ignored", endpoint=endpoint.name, plugin=self.name, error=str(error)
        )


def _count(metrics: Mapping[str, float], name: str) -> int | None:
    value = _value(metrics, name)
    return None if value is None else round(value)


def _value(metrics: Mapping[str, float], name: str) -> float | None:
    """Return a metric of the report; None if it is missing.

    Raises:
        ReportError: The value is negative or not a finite number.
    """
    value = metrics.get(name) if name else None
    if value is not None and not 0 <= value <= LARGEST:  # also true for NaN
        raise ReportError("malformed", f"{name} is {value}")
    return value
