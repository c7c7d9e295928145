"""Senders with real servers: received data, and errors."""

import gzip
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client import CollectorRegistry

from epp.tracing import OtlpSettings, ProcessTracing, TracingError, TracingSettings
from epp.tracing.errors import SendError
from epp.tracing.senders import sender_of

BODY = b"not parsed here" * 100
SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass
class Taken:
    """What a server has got."""

    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "collector")])
    now = datetime.now(UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder / "certificate.pem", folder / "key.pem"


@contextmanager
def http_collector(
    status: int = 200, identity: tuple[Path, Path] | None = None
) -> Iterator[tuple[str, Taken]]:
    taken = Taken()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            taken.headers.append({name.lower(): value for name, value in self.headers.items()})
            taken.paths.append(self.path)
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    scheme = "http"
    if identity is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*identity)
        context.load_verify_locations(identity[0])
        context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{scheme}://127.0.0.1:{server.server_port}/v1/traces", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_collector(
    code: grpc.StatusCode = grpc.StatusCode.OK, identity: tuple[Path, Path] | None = None
) -> Iterator[tuple[str, Taken]]:
    taken = Taken()

    def export(request: bytes, context: grpc.ServicerContext) -> bytes:
        taken.headers.append(dict(context.invocation_metadata()))
        taken.bodies.append(request)
        if code is not grpc.StatusCode.OK:
            context.abort(code, "no room")
        return b""

    service = grpc.method_handlers_generic_handler(
        SERVICE, {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads, handlers=[service])
        scheme, port = "http", 0
        if identity is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            certificate, key = (each.read_bytes() for each in identity)
            port = server.add_secure_port(
                "127.0.0.1:0",
                grpc.ssl_server_credentials([(key, certificate)], certificate, True),
            )
            scheme = "https"
        server.start()
        try:
            yield f"{scheme}://127.0.0.1:{port}", taken
        finally:
            server.stop(None).wait()


def send(settings: OtlpSettings) -> None:
    sender = sender_of(settings)
    try:
        sender.send(BODY)
    finally:
        sender.close()


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "gzip"])
def test_http_posts_protobuf_with_the_operators_headers(is_compressed: bool) -> None:
    with http_collector() as (url, taken):
        headers = {"authorization": "Bearer x"}
        send(OtlpSettings(endpoint=url, is_http=True, headers=headers, is_compressed=is_compressed))
    assert taken.paths == ["/v1/traces"]
    (sent,) = taken.headers
    assert sent["content-type"] == "application/x-protobuf"
    assert sent["authorization"] == "Bearer x"
    assert sent.get("content-encoding") == ("gzip" if is_compressed else None)
    (body,) = taken.bodies
    assert (gzip.decompress(body) if is_compressed else body) == BODY


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "gzip"])
def test_grpc_calls_the_trace_service_with_the_operators_metadata(is_compressed: bool) -> None:
    with grpc_collector() as (url, taken):
        headers = {"x-scope": "a"}
        send(OtlpSettings(endpoint=url, headers=headers, is_compressed=is_compressed))
    assert taken.headers[0]["x-scope"] == "a"
    assert taken.bodies == [BODY]


@pytest.mark.parametrize("is_http", [True, False], ids=["http", "grpc"])
def test_both_sides_can_prove_who_they_are(is_http: bool, identity: tuple[Path, Path]) -> None:
    certificate, key = identity
    collector = http_collector if is_http else grpc_collector
    with collector(identity=identity) as (url, taken):
        send(
            OtlpSettings(
                endpoint=url,
                is_http=is_http,
                ca_file=certificate,
                client_certificate=certificate,
                client_key=key,
            )
        )
        assert taken.bodies == [BODY]
        # A collector that the system's CAs do not vouch for gets nothing.
        with pytest.raises(SendError):
            send(OtlpSettings(endpoint=url, is_http=is_http))
    assert taken.bodies == [BODY]


@pytest.mark.parametrize(
    ("status", "is_temporary"), [(400, False), (401, False), (404, False), (429, True), (503, True)]
)
def test_http_statuses_that_may_pass_are_temporary(status: int, is_temporary: bool) -> None:
    with http_collector(status) as (url, _), pytest.raises(SendError) as caught:
        send(OtlpSettings(endpoint=url, is_http=True))
    assert caught.value.is_temporary is is_temporary
    assert str(caught.value) == f"the collector answered with HTTP status {status}"


@pytest.mark.parametrize(
    ("code", "is_temporary"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, False),
        (grpc.StatusCode.UNAUTHENTICATED, False),
        (grpc.StatusCode.UNIMPLEMENTED, False),
        (grpc.StatusCode.UNAVAILABLE, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, True),
    ],
)
def test_grpc_statuses_that_may_pass_are_temporary(
    code: grpc.StatusCode, is_temporary: bool
) -> None:
    with grpc_collector(code) as (url, _), pytest.raises(SendError) as caught:
        send(OtlpSettings(endpoint=url))
    assert caught.value.is_temporary is is_temporary
    assert str(caught.value) == f"the export ended with gRPC status {code.name}: no room"


@pytest.mark.parametrize("is_http", [True, False], ids=["http", "grpc"])
def test_nobody_there_is_temporary(is_http: bool) -> None:
    with http_collector() as (url, _):
        pass  # its port is free again
    with pytest.raises(SendError) as caught:
        send(OtlpSettings(endpoint=url, is_http=is_http, timeout_seconds=5.0))
    assert caught.value.is_temporary


@pytest.mark.parametrize("is_http", [True, False], ids=["http", "grpc"])
def test_a_certificate_that_is_none_is_refused_at_the_start(is_http: bool, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    otlp = OtlpSettings(endpoint="https://c:1", is_http=is_http, ca_file=file)
    settings = TracingSettings(exporter="otlp", otlp=otlp)
    with pytest.raises(TracingError, match="OTEL_EXPORTER_OTLP"):
        ProcessTracing(settings, CollectorRegistry())
