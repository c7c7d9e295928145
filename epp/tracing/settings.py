"""How requests are traced, read from the environment variables that OpenTelemetry specifies.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/ and
https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from epp.tracing.sampling import Sampler, sampler_of

VARIABLES: Final = frozenset(
    {
        "OTEL_SDK_DISABLED",
        "OTEL_TRACES_EXPORTER",
        "OTEL_TRACES_SAMPLER",
        "OTEL_TRACES_SAMPLER_ARG",
        "OTEL_SERVICE_NAME",
        "OTEL_RESOURCE_ATTRIBUTES",
        "OTEL_BSP_SCHEDULE_DELAY",
        "OTEL_BSP_MAX_QUEUE_SIZE",
        *(
            f"OTEL_EXPORTER_OTLP_{of}{what}"
            for of in ("", "TRACES_")
            for what in (
                "ENDPOINT",
                "PROTOCOL",
                "HEADERS",
                "TIMEOUT",
                "COMPRESSION",
                "INSECURE",
                "CERTIFICATE",
                "CLIENT_CERTIFICATE",
                "CLIENT_KEY",
            )
        ),
    }
)
"""The variables that are read here."""

DEFAULT_SERVICE_NAME: Final = "llm-d-router/epp"
"""As in the Go EPP."""
_GRPC_ENDPOINT: Final = "http://localhost:4317"
_HTTP_ENDPOINT: Final = "http://localhost:4318"
_HTTP_PORT: Final = 4318
_HTTP_PATH: Final = "/v1/traces"
_PROTOCOLS: Final = ("grpc", "http/protobuf")
_EXPORTERS: Final = ("otlp", "console", "none")
_SCHEMES: Final = ("http", "https")

ExporterKind = Literal["otlp", "console", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSettings:
    """Where spans are sent, and how."""

    endpoint: str = _GRPC_ENDPOINT
    """URL of the collector; over HTTP with the path."""
    is_http: bool = False
    """Whether spans are sent over HTTP, not over gRPC."""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float = 10.0
    is_compressed: bool = False
    """Whether requests are compressed with gzip."""
    ca_file: Path | None = None
    """CA certificates of the collector; None for those of the system."""
    client_certificate: Path | None = None
    client_key: Path | None = None

    @property
    def is_tls(self) -> bool:
        return self.endpoint.startswith("https:")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingSettings:
    """How requests are traced."""

    sampler: Sampler = field(default_factory=Sampler)
    exporter: ExporterKind = "none"
    """``none``: requests get a ``traceparent``, but no spans are recorded."""
    otlp: OtlpSettings = field(default_factory=OtlpSettings)
    resource: Mapping[str, str] = field(default_factory=dict)
    """Attributes of the process, given by the operator."""
    export_seconds: float = 5.0
    """Pause between two exports."""
    max_queue: int = 2048
    """Requests whose spans wait for the export; further ones are dropped."""


def tracing_settings(environment: Mapping[str, str]) -> TracingSettings | None:
    """Return the settings in the environment; None if it turns tracing off.

    Args:
        environment: The process's environment variables; an empty value counts as unset.

    Raises:
        ValueError: A variable is invalid; the message names it.
    """
    given = _Environment(environment)
    if given.boolean("OTEL_SDK_DISABLED"):
        return None
    has_endpoint = bool(given.signal("ENDPOINT"))
    # The Go EPP prints spans unless told otherwise. Spans on standard output are for development.
    default = "otlp" if has_endpoint else "none"
    exporter = given.one_of("OTEL_TRACES_EXPORTER", _EXPORTERS, default)
    return TracingSettings(
        sampler=sampler_of(given["OTEL_TRACES_SAMPLER"], given["OTEL_TRACES_SAMPLER_ARG"]),
        exporter=exporter,  # type: ignore[arg-type] # one of them
        otlp=_otlp_settings(given) if exporter == "otlp" else OtlpSettings(),
        resource=_resource(given),
        export_seconds=given.milliseconds("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000,
        max_queue=int(given.milliseconds("OTEL_BSP_MAX_QUEUE_SIZE", 2048)),
    )


class _Environment:
    """Reads variables; every error names the variable."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def __getitem__(self, name: str) -> str:
        return self._variables.get(name, "").strip()

    def signal(self, what: str) -> str:
        """Return the name of the variable of an OTLP setting that is set; "" if none is."""
        for name in (f"OTEL_EXPORTER_OTLP_TRACES_{what}", f"OTEL_EXPORTER_OTLP_{what}"):
            if self[name]:
                return name
        return ""

    def boolean(self, name: str) -> bool:
        """Return whether a variable is ``true``; the specification knows no other value for it."""
        return self[name].lower() == "true"

    def one_of(self, name: str, values: tuple[str, ...], default: str) -> str:
        value = self[name] or default
        if value not in values:
            raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(values)}")
        return value

    def milliseconds(self, name: str, default: int) -> int:
        text = self[name] if name else ""
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise ValueError(f"{name} is {text!r}; it must be a whole number above 0")
        return int(text)

    def pairs(self, name: str) -> dict[str, str]:
        """Return ``name=value,…``, percent-decoded. Values may be secret: no error shows them."""
        found: dict[str, str] = {}
        for number, entry in enumerate(self[name].split(",") if name else (), start=1):
            key, separator, value = entry.partition("=")
            if not entry.strip():
                continue
            if not separator or not key.strip():
                raise ValueError(f"{name}: entry {number} is not of the form name=value")
            found[unquote(key.strip())] = unquote(value.strip())
        return found

    def path(self, what: str) -> Path | None:
        name = self.signal(what)
        if not name:
            return None
        path = Path(self[name])
        if not path.is_file():
            raise ValueError(f"{name} is {str(path)!r}; there is no such file")
        return path


def _otlp_settings(given: _Environment) -> OtlpSettings:
    endpoint, is_http = _endpoint(given)
    certificate, key = given.path("CLIENT_CERTIFICATE"), given.path("CLIENT_KEY")
    if (certificate is None) is not (key is None):
        raise ValueError(
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY go together;"
            " only one is set"
        )
    compression = given.signal("COMPRESSION") or "OTEL_EXPORTER_OTLP_COMPRESSION"
    return OtlpSettings(
        endpoint=endpoint,
        is_http=is_http,
        headers={
            name.lower(): value for name, value in given.pairs(given.signal("HEADERS")).items()
        },
        timeout_seconds=given.milliseconds(given.signal("TIMEOUT"), 10_000) / 1000,
        is_compressed=given.one_of(compression, ("none", "gzip"), "none") == "gzip",
        ca_file=given.path("CERTIFICATE"),
        client_certificate=certificate,
        client_key=key,
    )


def _endpoint(given: _Environment) -> tuple[str, bool]:
    """Return the URL, and whether it is used over HTTP."""
    name = given.signal("ENDPOINT")
    text = given[name] if name else ""
    if text and "://" not in text:  # host:port, as some charts write it
        insecure = given.signal("INSECURE")
        text = f"http{'s' if insecure and not given.boolean(insecure) else ''}://{text}"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}: {error}") from error
    if text and (url.scheme not in _SCHEMES or not url.hostname):
        raise ValueError(f"{name} is {text!r}; it must be a URL such as http://collector:4317")
    protocol = given.signal("PROTOCOL") or "OTEL_EXPORTER_OTLP_PROTOCOL"
    # The Go EPP has gRPC only; 4318 is OTLP's port for HTTP.
    default = "http/protobuf" if port == _HTTP_PORT else "grpc"
    is_http = given.one_of(protocol, _PROTOCOLS, default) != "grpc"
    if not is_http:
        return text or _GRPC_ENDPOINT, False
    if name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":
        return text, True
    return (text or _HTTP_ENDPOINT).rstrip("/") + _HTTP_PATH, True


def _resource(given: _Environment) -> dict[str, str]:
    resource = {"service.name": DEFAULT_SERVICE_NAME, **given.pairs("OTEL_RESOURCE_ATTRIBUTES")}
    if name := given["OTEL_SERVICE_NAME"]:
        resource["service.name"] = name
    return resource
