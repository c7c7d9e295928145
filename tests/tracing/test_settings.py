"""The variables of OpenTelemetry, and the errors that name them."""

import re
from pathlib import Path

import pytest

from epp.tracing import OtlpSettings, Sampler, TracingSettings, tracing_settings

OTLP = "OTEL_EXPORTER_OTLP_"


def otlp_of(**variables: str) -> OtlpSettings:
    found = tracing_settings({f"{OTLP}{name}": value for name, value in variables.items()})
    assert found is not None
    return found.otlp


def test_without_variables_requests_get_a_traceparent_and_no_spans() -> None:
    service = {"service.name": "llm-d-router/epp"}
    assert tracing_settings({}) == TracingSettings(resource=service)
    assert tracing_settings({"OTEL_TRACES_SAMPLER": "", "OTEL_SERVICE_NAME": " "}) is not None


@pytest.mark.parametrize("text", ["true", "TRUE", " true "])
def test_a_disabled_sdk_turns_tracing_off(text: str) -> None:
    # Whatever else is wrong.
    assert tracing_settings({"OTEL_SDK_DISABLED": text, "OTEL_TRACES_SAMPLER": "x"}) is None
    assert tracing_settings({"OTEL_SDK_DISABLED": "1"}) is not None


def test_what_the_charts_set_is_understood() -> None:
    environment = {
        "OTEL_SERVICE_NAME": "llama-epp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_RESOURCE_ATTRIBUTES": "k8s.node.name=n1,service.name=other,label=a%3Db%2Cc",
    }
    assert tracing_settings(environment) == TracingSettings(
        sampler=Sampler(0.25),
        exporter="otlp",
        otlp=OtlpSettings(endpoint="http://collector:4317"),
        resource={"service.name": "llama-epp", "k8s.node.name": "n1", "label": "a=b,c"},
    )


@pytest.mark.parametrize(
    ("variables", "endpoint", "is_http"),
    [
        pytest.param({"OTEL_TRACES_EXPORTER": "otlp"}, "http://localhost:4317", False, id="none"),
        pytest.param(
            {"OTEL_TRACES_EXPORTER": "otlp", f"{OTLP}PROTOCOL": "http/protobuf"},
            "http://localhost:4318/v1/traces",
            True,
            id="none, over HTTP",
        ),
        pytest.param(
            {f"{OTLP}ENDPOINT": "http://c:4318"}, "http://c:4318/v1/traces", True, id="HTTP's port"
        ),
        pytest.param(
            {f"{OTLP}ENDPOINT": "http://c:4318", f"{OTLP}PROTOCOL": "grpc"},
            "http://c:4318",
            False,
            id="gRPC on HTTP's port",
        ),
        pytest.param(
            {f"{OTLP}ENDPOINT": "https://c/otlp/", f"{OTLP}PROTOCOL": "http/protobuf"},
            "https://c/otlp/v1/traces",
            True,
            id="path",
        ),
        pytest.param(
            {
                f"{OTLP}ENDPOINT": "http://all:1",
                f"{OTLP}TRACES_ENDPOINT": "http://c:2/mine",
                f"{OTLP}TRACES_PROTOCOL": "http/protobuf",
                f"{OTLP}PROTOCOL": "grpc",
            },
            "http://c:2/mine",
            True,
            id="for traces",
        ),
        pytest.param({f"{OTLP}ENDPOINT": "c:4317"}, "http://c:4317", False, id="host and port"),
        pytest.param(
            {f"{OTLP}ENDPOINT": "c:4317", f"{OTLP}INSECURE": "false"},
            "https://c:4317",
            False,
            id="host and port with TLS",
        ),
        pytest.param({f"{OTLP}ENDPOINT": "[::1]:4317"}, "http://[::1]:4317", False, id="IPv6"),
    ],
)
def test_an_endpoint_is_found(variables: dict[str, str], endpoint: str, is_http: bool) -> None:
    found = tracing_settings(variables)
    assert found is not None
    assert found.exporter == "otlp"
    assert (found.otlp.endpoint, found.otlp.is_http) == (endpoint, is_http)


def test_details_of_the_export_are_read(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("ca", "certificate", "key")}
    for file in files.values():
        file.touch()
    assert otlp_of(
        ENDPOINT="https://c:4317",
        HEADERS="Authorization=Bearer%20x, x-scope = a",
        TIMEOUT="2500",
        COMPRESSION="gzip",
        CERTIFICATE=str(files["ca"]),
        CLIENT_CERTIFICATE=str(files["certificate"]),
        TRACES_CLIENT_KEY=str(files["key"]),
    ) == OtlpSettings(
        endpoint="https://c:4317",
        headers={"authorization": "Bearer x", "x-scope": "a"},
        timeout_seconds=2.5,
        is_compressed=True,
        ca_file=files["ca"],
        client_certificate=files["certificate"],
        client_key=files["key"],
    )
    found = tracing_settings({"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_BSP_MAX_QUEUE_SIZE": "7"})
    assert found is not None
    assert (found.export_seconds, found.max_queue) == (0.1, 7)


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'; it must be one of"),
        ({"OTEL_TRACES_SAMPLER": "xray"}, "OTEL_TRACES_SAMPLER is 'xray'"),
        ({f"{OTLP}ENDPOINT": "ftp://c"}, f"{OTLP}ENDPOINT is 'ftp://c'; it must be a URL such as"),
        ({f"{OTLP}ENDPOINT": "http://"}, f"{OTLP}ENDPOINT is 'http://'; it must be a URL"),
        ({f"{OTLP}ENDPOINT": "http://c:x"}, f"{OTLP}ENDPOINT is 'http://c:x'"),
        ({f"{OTLP}TRACES_ENDPOINT": "http://[c"}, f"{OTLP}TRACES_ENDPOINT is"),
        (
            {f"{OTLP}ENDPOINT": "http://c", f"{OTLP}PROTOCOL": "http/json"},
            f"{OTLP}PROTOCOL is 'http/json'; it must be one of grpc, http/protobuf",
        ),
        (
            {f"{OTLP}ENDPOINT": "http://c", f"{OTLP}COMPRESSION": "zstd"},
            f"{OTLP}COMPRESSION is 'zstd'; it must be one of none, gzip",
        ),
        (
            {f"{OTLP}ENDPOINT": "http://c", f"{OTLP}TIMEOUT": "10s"},
            f"{OTLP}TIMEOUT is '10s'; it must be a whole number above 0",
        ),
        (
            {f"{OTLP}ENDPOINT": "http://c", f"{OTLP}CERTIFICATE": "/nowhere/ca.pem"},
            f"{OTLP}CERTIFICATE is '/nowhere/ca.pem'; there is no such file",
        ),
        (
            {f"{OTLP}ENDPOINT": "http://c", f"{OTLP}CLIENT_KEY": __file__},
            "go together; only one is set",
        ),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "OTEL_BSP_MAX_QUEUE_SIZE is '0'"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "a=1,b"}, "OTEL_RESOURCE_ATTRIBUTES: entry 2 is not of"),
    ],
)
def test_an_invalid_variable_is_named(variables: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        tracing_settings(variables)


def test_an_error_about_headers_does_not_show_them() -> None:
    with pytest.raises(ValueError, match=f"{OTLP}HEADERS: entry 1 is not of the form") as caught:
        otlp_of(ENDPOINT="http://c", HEADERS="hunter2")
    assert "hunter2" not in str(caught.value)
