"""A traced request through a real Envoy; its spans arrive at a real collector."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from epp.lab.envoy import Mode
from epp.lab.fleet.exchange import Exchange
from epp.lab.fleet.service import Service
from epp.tracing import TracingSettings, tracing_settings
from tools.harness.collector import Collector, collecting
from tools.harness.gateway import NO_FAULTS, Gateway, running

from .queueing import CONFIG, ONE_SERVER, occupied, queued

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE_ID}-b7ad6b7169203331-01"
NOT_SAMPLED = f"00-{TRACE_ID}-b7ad6b7169203331-00"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as made:
        yield made


@pytest.fixture
def arrived(monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """What the model servers get."""
    made: list[Exchange] = []
    serve = Service._serve_generation  # the fake tells nobody what it was sent

    def note_and_serve(service: Service, exchange: Exchange) -> None:
        made.append(exchange)
        serve(service, exchange)

    monkeypatch.setattr(Service, "_serve_generation", note_and_serve)
    return made


def exporting(
    collector: Collector, protocol: str, sampler: str = "parentbased_always_off"
) -> dict[str, TracingSettings | None]:
    """Return the settings of an endpoint picker that exports to ``collector``."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.grpc_url
        if protocol == "grpc"
        else collector.http_url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
        "OTEL_TRACES_SAMPLER": sampler,
        "OTEL_BSP_SCHEDULE_DELAY": "10",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test%20bed",
    }
    return {"tracing": tracing_settings(environment)}


async def ask(gateway: Gateway, **headers: str) -> int:
    document = {"model": "tiny", "prompt": "a secret", "max_tokens": 4, "stream": True}
    response = await gateway.client.post(
        f"{gateway.url}/v1/completions",
        json=document,
        headers={"authorization": "Bearer hidden", **headers},
    )
    return response.status_code


def value_of(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    assert kind is not None
    if kind == "array_value":
        return [value_of(each) for each in value.array_value.values]
    found: object = getattr(value, kind)
    return found


def attributes(span: Span) -> dict[str, object]:
    return {each.key: value_of(each.value) for each in span.attributes}


def path_of(span: Span, spans: list[Span]) -> str:
    """Return the names of the span's ancestors and its own."""
    by_id = {each.span_id: each for each in spans}
    names = [span.name]
    while span.parent_span_id in by_id:
        span = by_id[span.parent_span_id]
        names.insert(0, span.name)
    return " > ".join(names)


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
async def test_a_callers_trace_goes_on_through_the_gateway_to_the_model_server(
    mode: Mode, protocol: str, collector: Collector, arrived: list[Exchange]
) -> None:
    collector.receiver.resources.clear()
    async with running(mode, serve=exporting(collector, protocol)) as gateway:
        state = {"tracestate": "vendor=1"}
        assert await ask(gateway, traceparent=CALLER, **state) == 200
        assert await ask(gateway, traceparent=NOT_SAMPLED, **state) == 200
        assert await ask(gateway) == 200
        spans = await collector.receiver.wait_for("upstream")
        assert await gateway.faults() == NO_FAULTS
    by_name = {span.name: span for span in spans}
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
    assert {span.trace_state for span in spans} == {"vendor=1"}
    root, upstream = by_name["gateway.request"], by_name["upstream"]
    assert root.parent_span_id.hex() == CALLER.split("-")[2]
    assert root.kind == Span.SPAN_KIND_SERVER
    assert upstream.kind == Span.SPAN_KIND_CLIENT
    # The model server's spans become children of ours; without sampling they get none.
    sampled, unsampled, fresh = (each.headers[b"traceparent"].decode() for each in arrived)
    assert sampled == f"00-{TRACE_ID}-{upstream.span_id.hex()}-01"
    assert unsampled == NOT_SAMPLED
    assert fresh.endswith("-00")
    assert TRACE_ID not in fresh
    assert [each.headers.get(b"tracestate") for each in arrived] == [b"vendor=1"] * 2 + [None]
    decision = "gateway.request > gateway.request_orchestration"
    profile = f"{decision} > run_scheduler_profile"
    assert {path_of(span, spans) for span in spans} == {
        "gateway.request",
        decision,
        f"{decision} > parse_request",
        f"{decision} > produce_token",
        f"{decision} > produce_approx_prefix_cache",
        profile,
        f"{profile} > filter_endpoints",
        f"{profile} > llm_d.epp.scoring",
        f"{profile} > llm_d.epp.scoring > llm_d.epp.scorer.queue-scorer",
        f"{profile} > llm_d.epp.scoring > llm_d.epp.scorer.kv-cache-utilization-scorer",
        f"{profile} > llm_d.epp.scoring > llm_d.epp.scorer.prefix-cache-scorer",
        f"{profile} > pick_endpoints",
        f"{decision} > llm_d.epp.post_schedule.approx-prefix-cache-producer",
        "gateway.request > upstream",
    }
    parents = {span.span_id: span for span in spans}
    for span in spans:
        if (parent := parents.get(span.parent_span_id)) is not None:
            assert parent.start_time_unix_nano <= span.start_time_unix_nano
            assert span.end_time_unix_nano <= parent.end_time_unix_nano
    assert attributes(root)["llm_d.epp.outcome"] in {"completed", "ended"}
    assert attributes(root)["http.response.status_code"] == 200
    scored = attributes(by_name["llm_d.epp.scorer.queue-scorer"])
    assert scored["llm_d.epp.scorer.endpoints_scored"] == 3
    assert (scored["llm_d.epp.scorer.score.max"], scored["llm_d.epp.scorer.score.avg"]) == (1, 1)
    picked = attributes(by_name["pick_endpoints"])["llm_d.epp.picker.picked_endpoints"]
    assert picked == [attributes(upstream)["llm_d.epp.endpoint.name"]]
    assert [event.name for event in upstream.events] == ["response_headers"]
    everything = b"".join(each.SerializeToString() for each in collector.receiver.resources)
    assert b"secret" not in everything
    assert b"hidden" not in everything
    (resource,) = {each.resource.SerializeToString() for each in collector.receiver.resources}
    assert b"llm-d-router/epp" in resource
    assert b"test bed" in resource


async def test_a_refused_request_is_a_trace_with_an_error(collector: Collector) -> None:
    collector.receiver.resources.clear()
    async with running(serve=exporting(collector, "grpc", "always_on")) as gateway:
        response = await gateway.client.post(f"{gateway.url}/v1/completions", content=b'{"model":')
        assert response.status_code == 400
        spans = await collector.receiver.wait_for("gateway.request")
    root = next(span for span in spans if span.name == "gateway.request")
    assert not root.parent_span_id
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert "not a JSON object" in root.status.message
    assert attributes(root)["http.response.status_code"] == 400
    assert attributes(root)["error.type"] == "BadRequest"
    assert attributes(root)["llm_d.epp.outcome"] == "refused"
    assert "upstream" not in {span.name for span in spans}


async def test_the_time_in_the_queue_is_a_span(collector: Collector) -> None:
    collector.receiver.resources.clear()
    serve = exporting(collector, "grpc", "always_on")
    async with running(fleet=ONE_SERVER, config=CONFIG, serve=serve) as gateway:
        async with occupied(gateway):
            (task,) = await queued(gateway, 1)
        assert (await task).status_code == 200
        spans = await collector.receiver.wait_for("upstream", 2)
    (wait,) = (span for span in spans if span.name == "wait_in_queue")
    assert path_of(wait, spans) == (
        "gateway.request > gateway.request_orchestration > wait_in_queue"
    )
    decision = next(span for span in spans if span.span_id == wait.parent_span_id)
    (profile,) = (
        span
        for span in spans
        if span.parent_span_id == decision.span_id and span.name == "run_scheduler_profile"
    )
    assert decision.start_time_unix_nano < wait.end_time_unix_nano <= profile.start_time_unix_nano
    assert wait.end_time_unix_nano > wait.start_time_unix_nano


_TYPES = "type.googleapis.com/envoy."
_CALL = "async envoy.service.ext_proc.v3.ExternalProcessor.Process egress"
"""Envoy's span of a call of the endpoint picker."""


def tracing_envoy(collector: Collector) -> Callable[[dict[str, Any]], None]:
    """Return what makes Envoy trace all requests, and export to ``collector``."""
    host, port = collector.grpc_url.removeprefix("http://").split(":")

    def edit(bootstrap: dict[str, Any]) -> None:
        bootstrap["layered_runtime"] = {
            "layers": [
                {
                    "name": "export at once",
                    "static_layer": {"tracing.opentelemetry.min_flush_spans": 1},
                }
            ]
        }
        static = bootstrap["static_resources"]
        address = {"socket_address": {"address": host, "port_value": int(port)}}
        endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
        http = f"{_TYPES}extensions.upstreams.http.v3.HttpProtocolOptions"
        static["clusters"].append(
            {
                "name": "collector",
                "connect_timeout": "1s",
                "typed_extension_protocol_options": {
                    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                        "@type": http,
                        "explicit_http_config": {"http2_protocol_options": {}},
                    }
                },
                "load_assignment": {"cluster_name": "collector", "endpoints": endpoints},
            }
        )
        filters = static["listeners"][0]["filter_chains"][0]["filters"]
        filters[0]["typed_config"]["tracing"] = {
            "random_sampling": {"value": 100},
            "provider": {
                "name": "envoy.tracers.opentelemetry",
                "typed_config": {
                    "@type": f"{_TYPES}config.trace.v3.OpenTelemetryConfig",
                    "service_name": "gateway",
                    "grpc_service": {"envoy_grpc": {"cluster_name": "collector"}},
                },
            },
        }

    return edit


@pytest.mark.parametrize("caller", [CALLER, ""], ids=["a caller's trace", "no caller's trace"])
@pytest.mark.parametrize("mode", list(Mode), ids=lambda mode: mode.value)
async def test_if_envoy_traces_too_its_span_is_the_parent_of_ours(
    mode: Mode, caller: str, collector: Collector, arrived: list[Exchange]
) -> None:
    collector.receiver.resources.clear()
    serve = exporting(collector, "grpc", "parentbased_always_on")
    async with running(mode, serve=serve, edit=tracing_envoy(collector)) as gateway:
        assert await ask(gateway, traceparent=NOT_SAMPLED) == 200
        assert await ask(gateway, **({"traceparent": caller} if caller else {})) == 200
        await collector.receiver.wait_for("upstream")
        await collector.receiver.wait_for(_CALL)
        spans = await collector.receiver.wait_for("ingress")
        assert await gateway.faults() == NO_FAULTS
    services = {
        value_of(each.value)
        for resource in collector.receiver.resources
        for each in resource.resource.attributes
        if each.key == "service.name"
    }
    assert services == {"gateway", "llm-d-router/epp"}
    (trace_id,) = {span.trace_id.hex() for span in spans}  # nothing of the one not sampled
    assert (trace_id == TRACE_ID) == bool(caller)
    (root,) = (span for span in spans if span.name == "gateway.request")
    assert path_of(root, spans) == f"ingress > {_CALL} > gateway.request"
    (ingress,) = (span for span in spans if span.name == "ingress")
    assert ingress.parent_span_id.hex() == (caller.split("-")[2] if caller else "")
    # Envoy writes its own span into the header, after the endpoint picker.
    unsampled, sampled = (each.headers[b"traceparent"].decode() for each in arrived)
    assert sampled == f"00-{trace_id}-{ingress.span_id.hex()}-01"
    assert unsampled.startswith(f"00-{TRACE_ID}-")
    assert unsampled.endswith("-00")
