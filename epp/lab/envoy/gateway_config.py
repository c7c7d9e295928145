"""What a gateway is to do, in our terms; `bootstrap` turns it into Envoy's.

Free of Envoy's types, whose import takes most of a second.
"""

import os
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from epp.lab.envoy.client_headers import HeaderRules
from epp.lab.envoy.gateway_limits import GatewayLimits

MAX_PORT = 65535

MAX_SOCKET_PATH_BYTES = 107
"""Of Linux: a longer path does not fit the address of a socket."""


class Product(Enum):
    """What is configured."""

    ENVOY = "envoy"
    """Envoy itself, with a bootstrap."""

    ENVOY_GATEWAY = "envoy-gateway"
    """Envoy Gateway, with its policies."""

    ISTIO = "istio"
    """Istio's gateway, with an EnvoyFilter."""


class Mode(Enum):
    """Which parts of a request and of its response Envoy sends to the endpoint picker."""

    FULL_DUPLEX = "full-duplex"
    """Both bodies, chunk by chunk: cost grows with the tokens; what managed gateways send."""

    LEAN = "lean"
    """The request body chunk by chunk, of the response headers and trailers: four messages."""

    ADAPTIVE = "adaptive"
    """The request body whole, of the response headers and trailers: three messages. The answer to
    the response headers may switch the response body on."""


_LENGTHS = {
    Mode.ADAPTIVE: "of no use in adaptive mode, which keeps the header anyway",
    Mode.FULL_DUPLEX: (
        "full-duplex mode cannot: the endpoint picker may change the length of an answer after its "
        "headers have gone; use lean or adaptive mode"
    ),
}
"""Why a mode does not take `keep_content_length`."""


class ModelServerProtocol(Enum):
    """What Envoy speaks with the model servers."""

    HTTP1 = "http1"
    """HTTP/1.1, as vLLM's OpenAI server does."""

    H2C = "h2c"
    """HTTP/2 without TLS and without an upgrade, as gRPC servers do."""


class Destination(Enum):
    """How Envoy finds the endpoint that was picked."""

    OVERRIDE_HOST = "override-host"
    """Among the configured model servers: lists, retries and fail-open work."""

    ORIGINAL_DST = "original-dst"
    """Wherever the header says, for fleets the gateway does not know: one endpoint, no fallback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """One gateway: a listener, the endpoint picker behind it and the model servers.

    Raises:
        ValueError: an address or a number is out of its range, or the gateway cannot fail open.
    """

    mode: Mode = Mode.LEAN

    destination: Destination = Destination.OVERRIDE_HOST

    endpoints: tuple[str, ...] = ()
    """Model servers, `ip:port` or `[ip]:port`. A bootstrap with `OVERRIDE_HOST` needs at least one;
    `ORIGINAL_DST` and the snippets for Kubernetes take none of them."""

    endpoint_protocol: ModelServerProtocol = ModelServerProtocol.HTTP1

    listen_host: str = "127.0.0.1"
    """An IP address."""

    listen_port: int = 8080
    """0 lets the kernel choose: read it back with `EnvoyProcess.listener_address`."""

    admin_host: str = "127.0.0.1"
    """An IP address; whoever reaches it can stop the gateway."""

    admin_port: int = 0
    """0 lets the kernel choose: read it back as `EnvoyProcess.admin_url`."""

    epp_host: str = "127.0.0.1"
    """An IP address or a DNS name."""

    epp_port: int = 9002

    epp_socket: str = ""
    """Path of the unix socket where the endpoint picker listens, instead of its host and port."""

    epp_tls: bool = False
    """Speak TLS with the endpoint picker."""

    epp_ca_file: str = ""
    """Certificate authorities, on Envoy's disk, that the endpoint picker's certificate must come
    from; it must name `epp_host`, too. Empty: it is not verified, as by default the endpoint picker
    signs one itself, another at each start."""

    epp_client_certificate_file: str = ""
    """Certificate, on Envoy's disk, with which Envoy names itself to the endpoint picker, for one
    with `--client-ca-file`."""

    epp_client_key_file: str = ""
    """Its key."""

    message_timeout_seconds: float = 1000.0
    """Longest wait for an answer of the endpoint picker; a request may wait there in a queue."""

    keep_content_length: bool = False
    """Lean mode only: send a request's length on, as the endpoint picker tells it for a body that
    it changes. Without it Envoy removes the header and sends the body in chunks, which some model
    servers refuse."""

    access_log: str = ""
    """File on Envoy's disk that gets a JSON line for each request, or `-` for standard output."""

    buffer_limit_bytes: int = 32 * 1024 * 1024
    """Largest request body that is buffered whole: above it, adaptive mode answers 413 and the
    other modes do not retry. Of answers `limits.buffer_bytes` are buffered."""

    epp_connect_timeout_seconds: float = 1.0

    endpoint_connect_timeout_seconds: float = 1.0

    endpoint_idle_seconds: float = 4.0
    """An idle connection to a model server is closed after this; uvicorn closes its own after 5."""

    retries: int = 2
    """Further tries, down the list of endpoints, while nothing has reached a model server."""

    fail_open: bool = False
    """Route round robin when the endpoint picker is down; adaptive mode and `OVERRIDE_HOST` only.
    Elsewhere Envoy could not: a body that is on its way to the endpoint picker is lost with it."""

    limits: GatewayLimits = field(default_factory=GatewayLimits)
    """What one client may take."""

    headers: HeaderRules = field(default_factory=HeaderRules)
    """What becomes of the headers with which clients set priorities, shares and the like."""

    trusted_hops: int = 0
    """Proxies in front of Envoy whose entries in x-forwarded-for are believed; Envoy tells the
    client's address that results in x-envoy-external-address."""

    reuse_port: bool = False
    """Let other processes listen on the same port. Off, as two gateways on one port would share
    the connections in silence; on, it spreads the connections over several workers evenly."""

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
        if self.keep_content_length and self.mode is not Mode.LEAN:
            raise ValueError(f"keep_content_length: {_LENGTHS[self.mode]}")

    def _check_endpoint_picker(self) -> None:
        if not self.epp_host:
            raise ValueError("epp_host: empty")
        if len(os.fsencode(self.epp_socket)) > MAX_SOCKET_PATH_BYTES:
            raise ValueError(
                f"epp_socket: longer than {MAX_SOCKET_PATH_BYTES} bytes: {self.epp_socket!r}"
            )
        if self.epp_ca_file and not self.epp_tls:
            raise ValueError("epp_ca_file: nothing to verify without epp_tls")
        if bool(self.epp_client_certificate_file) != bool(self.epp_client_key_file):
            raise ValueError("epp_client_certificate_file: goes with epp_client_key_file")
        if self.epp_client_certificate_file and not self.epp_tls:
            raise ValueError("epp_client_certificate_file: of no use without epp_tls")

    def _check_fail_open(self) -> None:
        if self.mode is not Mode.ADAPTIVE:
            raise ValueError(
                f"fail_open: {self.mode.value} mode cannot: a body that is on its way to the "
                "endpoint picker is lost with it, and Envoy answers 500; use adaptive mode"
            )
        if self.destination is Destination.ORIGINAL_DST:
            raise ValueError(
                "fail_open: original-dst cannot: without the endpoint picker's header Envoy knows "
                "no model server; use override-host"
            )


def parse_ip(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address `text` spells (IPv6 without brackets), or None."""
    for family in (IPv4Address, IPv6Address):
        try:
            return family(text)
        except AddressValueError:
            continue
    return None


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Split `ip:port` or `[ip]:port` into a bare address and a port.

    Raises:
        ValueError: it is neither.
    """
    host, _, port = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    address = parse_ip(host[1:-1] if bracketed else host)
    if (
        address is None
        or bracketed != isinstance(address, IPv6Address)
        or not (port.isascii() and port.isdigit() and 1 <= int(port) <= MAX_PORT)
    ):
        raise ValueError(f"endpoints: not ip:port or [ip]:port: {endpoint!r}")
    return str(address), int(port)
