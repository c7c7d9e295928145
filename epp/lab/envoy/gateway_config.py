"""What a gateway is to do, in our terms; `bootstrap` turns it into Envoy's.

Free of Envoy's types, so the command line can build and check one without the extra `gateway`.
"""

from dataclasses import dataclass
from enum import Enum
from ipaddress import AddressValueError, IPv4Address, IPv6Address

MAX_PORT = 65535


class Mode(Enum):
    """Which parts of a request and of its response Envoy sends to the endpoint picker."""

    FULL_DUPLEX = "full-duplex"
    """Both bodies, chunk by chunk: cost grows with the tokens; what managed gateways send."""

    LEAN = "lean"
    """The request body chunk by chunk, of the response headers and trailers: four messages."""

    ADAPTIVE = "adaptive"
    """The request body whole, of the response headers and trailers: three messages. The answer to
    the response headers may switch the response body on."""


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
        ValueError: an address or a number is out of its range, or `OVERRIDE_HOST` has no endpoint.
    """

    mode: Mode = Mode.LEAN

    destination: Destination = Destination.OVERRIDE_HOST

    endpoints: tuple[str, ...] = ()
    """Model servers, `ip:port` or `[ip]:port`; not used by `ORIGINAL_DST`."""

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

    epp_tls: bool = False
    """Speak TLS with the endpoint picker. Its certificate is not verified: by default it is
    self-signed, another one at each start."""

    message_timeout_seconds: float = 1000.0
    """Longest wait for an answer of the endpoint picker; a request may wait there in a queue."""

    buffer_limit_bytes: int = 32 * 1024 * 1024
    """Largest request body that is buffered whole: above it, adaptive mode answers 413 and the
    other modes do not retry."""

    epp_connect_timeout_seconds: float = 1.0

    endpoint_connect_timeout_seconds: float = 1.0

    endpoint_idle_seconds: float = 4.0
    """An idle connection to a model server is closed after this; uvicorn closes its own after 5."""

    retries: int = 2
    """Further tries, down the list of endpoints, while nothing has reached a model server."""

    fail_open: bool = False
    """Route without the endpoint picker when it is down. Envoy can do so for requests without a
    body, and in adaptive mode for all."""

    reuse_port: bool = False
    """Let other processes listen on the same port. Off, as two gateways on one port would share
    the connections in silence; on, it spreads the connections over several workers evenly."""

    def __post_init__(self) -> None:
        for name in ("listen_host", "admin_host"):
            if parse_ip(getattr(self, name)) is None:
                raise ValueError(f"{name}: not an IP address: {getattr(self, name)!r}")
        if not self.epp_host:
            raise ValueError("epp_host: empty")
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
        if self.retries < 0:
            raise ValueError(f"retries: must not be below 0: {self.retries}")
        if self.destination is Destination.OVERRIDE_HOST and not self.endpoints:
            raise ValueError("endpoints: override-host needs at least one")
        for endpoint in self.endpoints:
            split_endpoint(endpoint)


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
