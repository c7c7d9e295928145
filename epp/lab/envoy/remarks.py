"""What the reader of a rendered file should know, as comments at its head."""

import textwrap
from collections.abc import Iterable

from epp.lab.envoy.client_headers import ClientHeaders
from epp.lab.envoy.gateway_config import (
    Destination,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
    parse_ip,
)

_WIDTH = 100

_MODES = {
    Mode.FULL_DUPLEX: (
        "Both bodies go through the endpoint picker, chunk by chunk: its cost grows with the "
        "answers."
    ),
    Mode.LEAN: (
        "The request body goes through the endpoint picker, of the response its headers and its "
        "end."
    ),
    Mode.ADAPTIVE: (
        "The request body goes to the endpoint picker whole, of the response its headers and its "
        "end. A body above request_body_buffer_limit is answered with 413."
    ),
}


def remarks(config: GatewayConfig) -> list[str]:
    """Return one paragraph for each choice that is not plain from the file itself."""
    told = [
        (
            f"Envoy in front of the endpoint picker, {config.mode.value} mode. For Envoy 1.40, "
            "written by `epp envoy-config`."
        ),
        _MODES[config.mode],
    ]
    streams_bodies = config.mode is not Mode.ADAPTIVE and not config.keep_content_length
    if streams_bodies and config.endpoint_protocol is ModelServerProtocol.HTTP1:
        told.append(_chunks(config.mode))
    listen = parse_ip(config.listen_host)
    if listen is not None and listen.is_loopback:
        told.append(f"Listens on {config.listen_host}, so only this host reaches it: see --host.")
    if config.destination is Destination.ORIGINAL_DST:
        told.append(
            "ORIGINAL_DST goes wherever the header x-gateway-destination-endpoint says. It takes "
            "one endpoint and no lists (a list gives 503), and a retry goes to the same one: leave "
            "the picker's maxNumOfEndpoints at 1. The client's own header is removed first, or a "
            "client could go anywhere."
        )
    else:
        told.append(
            "A list of endpoints is walked in its order: a retry goes to the next one, then round "
            "robin. An endpoint that is not in this file is passed over."
        )
    if config.fail_open:
        told.append(
            "Fail-open: without the endpoint picker requests go round robin, unscheduled. Headers "
            "with which a client would name a server are removed before, or they would steer."
        )
    else:
        told.append("Fail-closed: without the endpoint picker requests are answered with 500.")
    if config.headers.client_headers is ClientHeaders.KEEP:
        told.append(
            "Clients set their own priority, share and model by headers: --client-headers strip "
            "removes these, --set-header writes them."
        )
    if config.limits.max_connections:
        told.append(
            f"Up to {config.limits.max_connections} connections of clients, and as many to the "
            "model servers: Envoy needs more than twice as many file descriptors (ulimit -n)."
        )
    if not config.epp_tls:
        told.append("Plaintext to the endpoint picker: `epp serve --secure-serving=false`.")
    elif not config.epp_ca_file:
        told.append("The endpoint picker's certificate is not verified: --epp-ca-file does it.")
    return told


def _chunks(mode: Mode) -> str:
    told = (
        "Request bodies reach the model servers with `transfer-encoding: chunked`, without their "
        "length. For a server that refuses this, some with 411, 501 or 503, use"
    )
    return f"{told} {'--keep-content-length or ' if mode is Mode.LEAN else ''}--mode adaptive."


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
