"""The settings of a gateway, from which `bootstrap` makes an Envoy configuration.

This module does not import Envoy's types, because that takes most of a second.
"""

import os
from dataclasses import dataclass, field
from enum import Enum

from epp.inputs import MAX_PORT
from epp.lab.envoy.addresses import parse_ip, split_endpoint
from epp.lab.envoy.client_headers import HeaderRules
from epp.lab.envoy.gateway_limits import GatewayLimits

MAX_SOCKET_PATH_BYTES = 107
"""Maximum length of the path of a unix socket on Linux, without the terminating NUL."""


class Product(Enum):
    """The product to configure."""

    ENVOY = "envoy"
    """Envoy itself, with a bootstrap."""

    ENVOY_GATEWAY = "envoy-gateway"
    """Envoy Gateway, with policies."""

    ISTIO = "istio"
    """Istio's gateway, with an EnvoyFilter."""


class Mode(Enum):
    """Which parts of a request and of its response Envoy sends to the endpoint picker."""

    FULL_DUPLEX = "full-duplex"
    """Both bodies, in chunks, as managed gateways do; the cost grows with the number of tokens."""

    LEAN = "lean"
    """The request body in chunks; of the response, headers and trailers only. Four messages."""

    ADAPTIVE = "adaptive"
    """The buffered request body; of the response, headers and trailers only. Three messages. The
    endpoint picker may request the response body in its reply to the response headers."""


_LENGTHS = {
    Mode.ADAPTIVE: "not needed in adaptive mode, which always keeps the header",
    Mode.FULL_DUPLEX: (
        "not supported in full-duplex mode: the endpoint picker may change the length of a "
        "response after its headers were sent; use lean or adaptive mode"
    ),
}
"""Why a mode does not support `keep_content_length`."""


class ModelServerProtocol(Enum):
    """The protocol between Envoy and the model servers."""

    HTTP1 = "http1"
    """HTTP/1.1, as for vLLM's OpenAI server."""

    H2C = "h2c"
    """HTTP/2 without TLS and with prior knowledge, as for gRPC servers."""


class Destination(Enum):
    """How Envoy routes to the picked endpoint."""

    OVERRIDE_HOST = "override-host"
    """To one of the configured model servers; supports endpoint lists, retries and fail-open."""

    ORIGINAL_DST = "original-dst"
    """To the address in the header, for fleets that Envoy does not know: one endpoint, no fallback
    to another."""


class CheckedHosts(Enum):
    """The hosts whose health Envoy checks in the background."""

    ENDPOINT_PICKER = "endpoint-picker"
    """Each address of the endpoint picker, over gRPC on its ext_proc port."""

    MODEL_SERVERS = "model-servers"
    """Each model server, over HTTP. The result matters only where Envoy chooses a server itself: a
    picked server is used even if its check fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway: a listener, the endpoint picker behind it and the model servers.

    Raises:
        ValueError: A value is invalid, or two settings contradict each other.
    """

    mode: Mode = Mode.LEAN

    destination: Destination = Destination.OVERRIDE_HOST

    endpoints: tuple[str, ...] = ()
    """Model servers, `ip:port` or `[ip]:port`. A bootstrap with `OVERRIDE_HOST` needs at least one;
    `ORIGINAL_DST` and the Kubernetes snippets do not use them."""

    endpoint_protocol: ModelServerProtocol = ModelServerProtocol.HTTP1

    listen_host: str = "127.0.0.1"
    """An IP address."""

    listen_port: int = 8080
    """0: the kernel chooses a port, which `EnvoyProcess.listener_address` returns."""

    admin_host: str = "127.0.0.1"
    """An IP address; any client that can connect to it can stop the gateway."""

    admin_port: int = 0
    """0: the kernel chooses a port, which `EnvoyProcess.admin_url` contains."""

    epp_host: str = "127.0.0.1"
    """An IP address or a DNS name."""

    epp_port: int = 9002

    epp_socket: str = ""
    """Path of the endpoint picker's unix socket, used instead of the host and port."""

    epp_workers: int = 1
    """Workers with a port or a socket each: ports from ``epp_port`` on, or the files that
    :func:`~epp.inputs.of_worker` names."""

    epp_tls: bool = False
    """Use TLS between Envoy and the endpoint picker."""

    epp_ca_file: str = ""
    """File on Envoy's disk with the certificate authorities that verify the endpoint picker's
    certificate, which must be valid for `epp_host`. Empty: no verification, because by default the
    endpoint picker makes a self-signed certificate at each start."""

    epp_client_certificate_file: str = ""
    """Client certificate of Envoy, a file on its disk, for an endpoint picker with
    `--client-ca-file`."""

    epp_client_key_file: str = ""
    """Private key of the client certificate."""

    pool: str = ""
    """Name of the InferencePool of all requests, for an endpoint picker that serves several; it is
    sent as gRPC metadata."""

    message_timeout_seconds: float = 1000.0
    """Maximum time for a reply of the endpoint picker, where a request may wait in a queue."""

    keep_content_length: bool = False
    """Lean mode only: keep `content-length`, which the endpoint picker updates if it changes the
    body. Otherwise Envoy removes the header and sends the body with chunked encoding, which some
    model servers reject."""

    access_log: str = ""
    """File on Envoy's disk for a line of JSON per request, or `-` for standard output."""

    buffer_limit_bytes: int = 32 * 1024 * 1024
    """Maximum size of a buffered request body: above it, adaptive mode answers 413 and the other
    modes do not retry. For responses the limit is `limits.buffer_bytes`."""

    health_checks: frozenset[CheckedHosts] = frozenset()

    health_path: str = "/health"
    """Path of the health check of model servers, which answer it with 200."""

    epp_connect_timeout_seconds: float = 1.0

    endpoint_connect_timeout_seconds: float = 1.0

    endpoint_idle_seconds: float = 4.0
    """Idle timeout of connections to model servers; uvicorn's default is 5 s."""

    retries: int = 2
    """Maximum number of retries, in the order of the picked endpoints. A request is retried only if
    its response has not begun."""

    retry_resets: bool = True
    """With `OVERRIDE_HOST`, also retry a request whose connection is reset after it was sent. Its
    generation may have begun, and a request that crashes its server goes to `retries` others."""

    hedging: bool = False
    """With `OVERRIDE_HOST` and retries, send a streamed request whose response is late to the next
    endpoint, too, and use the response that begins first. The endpoint picker says when."""

    fail_open: bool = False
    """Route round robin when the endpoint picker is down. Adaptive mode and `OVERRIDE_HOST` only:
    in the other modes the part of a body that was sent to the endpoint picker is lost with it."""

    limits: GatewayLimits = field(default_factory=GatewayLimits)
    """Limits per client."""

    headers: HeaderRules = field(default_factory=HeaderRules)
    """Changes to the headers with which clients set priorities, shares etc."""

    trusted_hops: int = 0
    """Number of trusted proxies in front of Envoy, for x-forwarded-for; Envoy writes the resulting
    address of the client to x-envoy-external-address."""

    reuse_port: bool = False
    """Set SO_REUSEPORT: on, the kernel distributes connections evenly over several workers; off, a
    second gateway on the same port fails instead of receiving part of the connections."""

    def __post_init__(self) -> None:
        for name in ("listen_host", "admin_host"):
            if parse_ip(getattr(self, name)) is None:
                raise ValueError(f"{name}: not an IP address: {getattr(self, name)!r}")
        self._check_endpoint_picker()
        for name, least in (("listen_port", 0), ("admin_port", 0), ("epp_port", 1)):
            if not least <= getattr(self, name) <= MAX_PORT:
                raise ValueError(f"{name}: not a port: {getattr(self, name)}")
        for name in (
            "message_timeout_seconds",
            "buffer_limit_bytes",
            "epp_connect_timeout_seconds",
            "endpoint_connect_timeout_seconds",
            "endpoint_idle_seconds",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be above 0: {getattr(self, name)}")
        for name in ("retries", "trusted_hops"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: must not be below 0: {getattr(self, name)}")
        for endpoint in self.endpoints:
            split_endpoint(endpoint)
        if self.fail_open:
            self._check_fail_open()
        self._check_health_checks()
        if self.hedging and self.max_destinations == 1:
            raise ValueError("hedging: requires override-host and retries")
        if self.keep_content_length and self.mode is not Mode.LEAN:
            raise ValueError(f"keep_content_length: {_LENGTHS[self.mode]}")

    @property
    def max_destinations(self) -> int:
        """How many picked endpoints one request can use: one, and another for each retry."""
        return 1 + self.retries if self.destination is Destination.OVERRIDE_HOST else 1

    def _check_endpoint_picker(self) -> None:
        if not self.epp_host:
            raise ValueError("epp_host: empty")
        if len(os.fsencode(self.epp_socket)) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"epp_socket: longer than {MAX_SOCKET_PATH_BYTES} bytes: {self.epp_socket!r}"
            )
        if not 1 <= self.epp_workers <= MAX_PORT - self.epp_port + 1:
            raise ValueError(f"epp_workers: at least 1, and a port for each: {self.epp_workers}")
        if self.epp_ca_file and not self.epp_tls:
            raise ValueError("epp_ca_file: requires epp_tls")
        if bool(self.epp_client_certificate_file) != bool(self.epp_client_key_file):
            raise ValueError("epp_client_certificate_file and epp_client_key_file: give both")
        if self.epp_client_certificate_file and not self.epp_tls:
            raise ValueError("epp_client_certificate_file: requires epp_tls")

    def _check_health_checks(self) -> None:
        if CheckedHosts.MODEL_SERVERS not in self.health_checks:
            return
        if self.destination is Destination.ORIGINAL_DST:
            raise ValueError(
                "health_checks: model-servers has no effect with original-dst: Envoy goes to the "
                "address in the header whatever a check says; use override-host"
            )
        if not self.health_path.startswith("/"):
            raise ValueError(f"health_path: does not begin with /: {self.health_path!r}")

    def _check_fail_open(self) -> None:
        if self.mode is not Mode.ADAPTIVE:
            raise ValueError(
                f"fail_open: not supported in {self.mode.value} mode: the part of a body that was "
                "sent to the endpoint picker is lost with it, and Envoy answers 500; use adaptive "
                "mode"
            )
        if self.destination is Destination.ORIGINAL_DST:
            raise ValueError(
                "fail_open: not supported with original-dst: without the endpoint picker's header "
                "Envoy knows no model server; use override-host"
            )
