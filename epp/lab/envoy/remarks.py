"""The explanatory comments at the top of a rendered file."""

import textwrap
from collections.abc import Iterable

from epp.lab.envoy.addresses import parse_ip
from epp.lab.envoy.client_headers import ClientHeaders
from epp.lab.envoy.gateway_config import (
    CheckedHosts,
    Destination,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
)

_WIDTH = 100

_MODES = {
    Mode.FULL_DUPLEX: (
        "Envoy sends both bodies through the endpoint picker in chunks: the cost grows with the "
        "length of the responses."
    ),
    Mode.LEAN: (
        "Envoy sends the request body through the endpoint picker, and of the response only the "
        "headers and trailers."
    ),
    Mode.ADAPTIVE: (
        "Envoy sends the buffered request body to the endpoint picker, and of the response only "
        "the headers and trailers. It answers a body above request_body_buffer_limit with 413."
    ),
}


def remarks(config: GatewayConfig) -> list[str]:
    """Return one paragraph for each setting that the file does not explain by itself."""
    paragraphs = [
        (
            f"Envoy in front of the endpoint picker, {config.mode.value} mode. For Envoy 1.40, "
            "written by `epp envoy-config`."
        ),
        _MODES[config.mode],
    ]
    streams_bodies = config.mode is not Mode.ADAPTIVE and not config.keep_content_length
    if streams_bodies and config.endpoint_protocol is ModelServerProtocol.HTTP1:
        paragraphs.append(_chunks(config.mode))
    listen = parse_ip(config.listen_host)
    if listen is not None and listen.is_loopback:
        paragraphs.append(
            f"Envoy listens on {config.listen_host}, for local clients only: see --host."
        )
    if config.destination is Destination.ORIGINAL_DST:
        paragraphs.append(
            "ORIGINAL_DST routes to the address in the header x-gateway-destination-endpoint. It "
            "supports one endpoint, not a list (503), and a retry goes to the same endpoint: leave "
            "maxNumOfEndpoints of the picker at 1. Envoy removes this header from client requests; "
            "otherwise a client could reach any address."
        )
    else:
        paragraphs.append(
            "A retry goes to the next endpoint of the list that the endpoint picker returned, and "
            "after the last one round robin. Endpoints that are not in this file are skipped."
        )
    if config.fail_open:
        paragraphs.append(
            "Fail-open: if the endpoint picker is down, requests are routed round robin. Envoy "
            "removes client headers that select a server, because they would take effect."
        )
    else:
        paragraphs.append(
            "Fail-closed: if the endpoint picker is down, Envoy answers requests with 500."
        )
    if CheckedHosts.ENDPOINT_PICKER in config.health_checks:
        paragraphs.append(_checked(config))
    if config.headers.client_headers is ClientHeaders.KEEP:
        paragraphs.append(
            "Clients can set their priority, share and model with headers: --client-headers strip "
            "removes these, --set-header sets them."
        )
    if config.limits.max_connections:
        paragraphs.append(
            f"Envoy accepts up to {config.limits.max_connections} client connections and opens as "
            "many to model servers: it needs more than twice as many file descriptors (ulimit -n)."
        )
    if not config.epp_tls:
        paragraphs.append(
            "Envoy connects to the endpoint picker without TLS: `epp serve --secure-serving=false`."
        )
    elif not config.epp_ca_file:
        paragraphs.append(
            "Envoy does not verify the endpoint picker's certificate: see --epp-ca-file."
        )
    return paragraphs


def _checked(config: GatewayConfig) -> str:
    text = "Envoy checks the health of the endpoint picker: `epp serve --health-checking`."
    if config.fail_open:
        return f"{text} While no check passes, requests are routed without it."
    return f"{text} While no check passes, the check has no effect."


def _chunks(mode: Mode) -> str:
    text = (
        "Envoy sends request bodies to the model servers with `transfer-encoding: chunked` instead "
        "of `content-length`. For a server that rejects this (411, 501, 503), use"
    )
    return f"{text} {'--keep-content-length or ' if mode is Mode.LEAN else ''}--mode adaptive."


def comment(paragraphs: Iterable[str]) -> str:
    """Return paragraphs as a block of YAML comments."""
    lines = [
        line
        for paragraph in paragraphs
        for line in textwrap.wrap(
            paragraph, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
    ]
    return "".join(f"{line}\n" for line in lines)
