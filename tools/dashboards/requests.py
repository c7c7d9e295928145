"""The service that clients get: rates, errors, latencies, tokens."""

from typing import Final

from tools.dashboards.model import Dashboard, DrillDown, Panel, Query, Row, Threshold, number
from tools.dashboards.queries import (
    MODEL,
    MODELS,
    POOL,
    mean,
    percentiles,
    quantile,
    rate,
    refused,
    select,
    share,
    total,
)

_BODIES: Final = " Empty in lean mode, where bodies do not pass through the endpoint picker."
_MODEL: Final = DrillDown("requests", "model", "model_name")


def _latency(title: str, metric: str, description: str) -> Panel:
    return Panel(title=title, description=description, queries=percentiles(metric, MODEL), unit="s")


_OVERVIEW: Final = Row(
    "Overview",
    (
        number(
            "Requests",
            "Requests that were sent to an endpoint.",
            total(rate("llm_d_epp_request_total", MODEL)),
            "reqps",
        ),
        number(
            "Refused",
            "Fraction of the requests that the endpoint picker refused or ended with an error.",
            refused(MODEL),
            "percentunit",
            thresholds=(Threshold(0.01, "orange"), Threshold(0.05)),
        ),
        number(
            "In progress",
            "Requests that were sent to an endpoint and have not ended.",
            total(select("llm_d_epp_request_running", MODEL)),
            "none",
        ),
        number(
            "Duration, p95",
            "From the request's headers to the end of the stream.",
            quantile(0.95, "llm_d_epp_request_duration_seconds", MODEL),
            "s",
        ),
        number(
            "First byte, p95",
            "From the request's headers to the first bytes of the response body." + _BODIES,
            quantile(0.95, "llm_d_epp_request_ttft_seconds", MODEL),
            "s",
        ),
        number(
            "Output tokens",
            "Tokens that model servers have generated, as they report it." + _BODIES,
            total(rate("llm_d_epp_request_output_tokens_sum", MODEL)),
            "none",
        ),
    ),
)
_RATES: Final = Row(
    "Requests and errors",
    (
        Panel(
            title="Requests by model",
            description="By the model that the client names.",
            queries=(
                Query(
                    total(rate("llm_d_epp_request_total", MODEL), "model_name"), "{{model_name}}"
                ),
            ),
            unit="reqps",
            is_stacked=True,
            drill_down=_MODEL,
        ),
        Panel(
            title="Errors of the endpoint picker by code",
            description="Requests that it refused or ended. The log has a line for each of them,"
            " with the reason.",
            queries=(
                Query(
                    total(rate("llm_d_epp_request_error_total", MODEL), "error_code"),
                    "{{error_code}}",
                ),
            ),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="Requests by tenant and priority",
            description="By fairness id (default-flow: none was given) and priority.",
            queries=(
                Query(
                    total(rate("llm_d_epp_request_total", MODEL), "fairness_id", "priority"),
                    "{{fairness_id}} {{priority}}",
                ),
            ),
            unit="reqps",
            is_stacked=True,
        ),
        Panel(
            title="In progress by model",
            description="Requests that were sent to an endpoint and have not ended.",
            queries=(
                Query(
                    total(select("llm_d_epp_request_running", MODEL), "model_name"),
                    "{{model_name}}",
                ),
            ),
            unit="none",
            is_stacked=True,
            drill_down=_MODEL,
        ),
        Panel(
            title="Requests that met a limit",
            description="Limits of the endpoint picker, by limit. docs/requests.md has the flag"
            " for each.",
            queries=(
                Query(
                    total(rate("llm_d_epp_request_limit_exceeded_total", POOL), "limit"),
                    "{{limit}}",
                ),
            ),
            unit="reqps",
        ),
        Panel(
            title="Rewrites and hedges",
            description="Requests whose model an InferenceModelRewrite has replaced, and requests"
            " that the gateway sent to a further endpoint because their response was late.",
            queries=(
                Query(
                    total(rate("llm_d_epp_model_rewrite_decisions_total", POOL), "target_model"),
                    "rewritten to {{target_model}}",
                ),
                Query(
                    total(rate("llm_d_epp_request_hedges_total", POOL), "result"),
                    "hedge {{result}}",
                ),
            ),
            unit="reqps",
        ),
    ),
)
_LATENCIES: Final = Row(
    "Latencies",
    (
        _latency(
            "Duration",
            "llm_d_epp_request_duration_seconds",
            "From the request's headers to the end of the stream, with the wait in flow control.",
        ),
        _latency(
            "Time to first byte",
            "llm_d_epp_request_ttft_seconds",
            "From the request's headers to the first bytes of the response body." + _BODIES,
        ),
        _latency(
            "Time per output token, streamed",
            "llm_d_epp_request_streaming_tpot_seconds",
            "Time after the first byte, divided by the other tokens." + _BODIES,
        ),
        _latency(
            "Between two chunks, streamed",
            "llm_d_epp_request_streaming_itl_seconds",
            "What a reader of the stream notices as a stall." + _BODIES,
        ),
        _latency(
            "Duration per output token",
            "llm_d_epp_request_ntpot_seconds",
            "Duration divided by all output tokens, with the time to the first." + _BODIES,
        ),
        Panel(
            title="Duration by model, p95",
            description="From the request's headers to the end of the stream.",
            queries=(
                Query(
                    quantile(0.95, "llm_d_epp_request_duration_seconds", MODEL, by="model_name"),
                    "{{model_name}}",
                ),
            ),
            unit="s",
            drill_down=_MODEL,
        ),
    ),
)
_TOKENS: Final = Row(
    "Tokens and bodies",
    (
        Panel(
            title="Tokens per second",
            description="As model servers report them; cached ones are part of the prompt's."
            + _BODIES,
            queries=tuple(
                Query(total(rate(f"llm_d_epp_request_{kind}_tokens_sum", MODEL)), label)
                for kind, label in (
                    ("input", "prompt"),
                    ("cached", "of it cached"),
                    ("output", "output"),
                )
            ),
            unit="none",
        ),
        Panel(
            title="Tokens per request, mean",
            description="As model servers report them." + _BODIES,
            queries=tuple(
                Query(mean(f"llm_d_epp_request_{kind}_tokens", MODEL), label)
                for kind, label in (("input", "prompt"), ("output", "output"))
            ),
            unit="none",
        ),
        Panel(
            title="Cached part of the prompts",
            description="Prompt tokens that model servers have read from a cache. Some servers"
            " report none." + _BODIES,
            queries=(
                Query(
                    share(
                        total(rate("llm_d_epp_request_cached_tokens_sum", MODEL)),
                        total(rate("llm_d_epp_request_input_tokens_sum", MODEL)),
                    ),
                    "cached",
                ),
            ),
            unit="percentunit",
            maximum=1,
        ),
        Panel(
            title="Size of request bodies",
            description="As they arrive.",
            queries=percentiles("llm_d_epp_request_size_bytes", MODEL),
            unit="bytes",
        ),
        Panel(
            title="Size of response bodies",
            description="As they pass." + _BODIES,
            queries=percentiles("llm_d_epp_response_size_bytes", MODEL),
            unit="bytes",
        ),
        Panel(
            title="Bodies held",
            description="Bytes of request bodies that are held until they are passed on, in each"
            " process.",
            queries=(
                Query(
                    total(select("llm_d_epp_request_held_bytes", POOL), "instance"), "{{instance}}"
                ),
            ),
            unit="bytes",
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    name="requests",
    title="Endpoint picker / Requests",
    description="What do clients get: how fast, and with which errors?",
    variables=MODELS,
    rows=(_OVERVIEW, _RATES, _LATENCIES, _TOKENS),
)
