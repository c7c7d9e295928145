"""Sends encoded spans to a collector: OTLP over gRPC or over HTTP. Every call blocks."""

import gzip
import ssl
from typing import Final, Protocol
from urllib.parse import urlsplit

import grpc
import httpx

from epp.tracing.errors import SendError
from epp.tracing.settings import OtlpSettings

_EXPORT: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_GRPC_PORT: Final = 4317
_OK: Final = 200
_RETRYABLE_STATUSES: Final = frozenset({429, 502, 503, 504})
_RETRYABLE_CODES: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


class SpanSender(Protocol):
    """Sends encoded requests."""

    def send(self, request: bytes) -> None:
        """Send one ``ExportTraceServiceRequest``.

        Raises:
            SendError: The collector did not take it.
        """

    def close(self) -> None:
        """Close the connection."""


class HttpSender:
    """OTLP over HTTP, as binary protobuf.

    Args:
        settings: Where to send, and how.

    Raises:
        OSError: A certificate file is invalid.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        self._url = settings.endpoint
        self._is_compressed = settings.is_compressed
        headers = {"content-type": "application/x-protobuf", **settings.headers}
        if settings.is_compressed:
            headers["content-encoding"] = "gzip"
        self._client = httpx.Client(
            headers=headers, timeout=settings.timeout_seconds, verify=_tls_context(settings)
        )

    def send(self, request: bytes) -> None:
        content = gzip.compress(request, compresslevel=1) if self._is_compressed else request
        try:
            response = self._client.post(self._url, content=content)
        except httpx.HTTPError as error:
            text = str(error) or type(error).__name__
            raise SendError(text, is_temporary=True) from error
        if response.status_code != _OK:
            raise SendError(
                f"the collector answered with HTTP status {response.status_code}",
                is_temporary=response.status_code in _RETRYABLE_STATUSES,
            )

    def close(self) -> None:
        self._client.close()


def _tls_context(settings: OtlpSettings) -> ssl.SSLContext | bool:
    if not settings.is_tls:
        return True
    context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.client_certificate is not None:
        context.load_cert_chain(settings.client_certificate, settings.client_key)
    return context


class GrpcSender:
    """OTLP over gRPC.

    Args:
        settings: Where to send, and how.

    Raises:
        OSError: A certificate file is invalid.
    """

    def __init__(self, settings: OtlpSettings) -> None:
        url = urlsplit(settings.endpoint)
        host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
        target = f"{host}:{url.port or _GRPC_PORT}"
        compression = grpc.Compression.Gzip if settings.is_compressed else None
        self._channel = (
            grpc.secure_channel(target, _credentials(settings), compression=compression)
            if settings.is_tls
            else grpc.insecure_channel(target, compression=compression)
        )
        self._export = self._channel.unary_unary(_EXPORT)  # bytes in, bytes out
        self._metadata = tuple(settings.headers.items())
        self._timeout_seconds = settings.timeout_seconds

    def send(self, request: bytes) -> None:
        try:
            self._export(request, timeout=self._timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            text = f"the export ended with gRPC status {code.name}: {details}"
            raise SendError(text, is_temporary=code in _RETRYABLE_CODES) from error

    def close(self) -> None:
        self._channel.close()


def _credentials(settings: OtlpSettings) -> grpc.ChannelCredentials:
    _tls_context(settings)  # gRPC notices invalid files only when it connects
    files = (settings.ca_file, settings.client_key, settings.client_certificate)
    return grpc.ssl_channel_credentials(
        *(None if file is None else file.read_bytes() for file in files)
    )


def sender_of(settings: OtlpSettings) -> SpanSender:
    """Return the sender of ``settings``.

    Raises:
        OSError: A certificate file is invalid.
    """
    return HttpSender(settings) if settings.is_http else GrpcSender(settings)
