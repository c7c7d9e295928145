"""``epp envoy-config``: Envoy's configuration for a gateway."""

from pathlib import Path
from typing import Annotated

from epp.cli import option_groups as groups
from epp.cli.envoy_options import (
    ClientHeadersOption,
    KeepHeader,
    Limit,
    SetHeader,
    StripHeader,
    gateway_limits,
    header_rules,
)
from epp.cli.running import fail, from_flag, write_whole
from epp.cli.units import size
from epp.lab.envoy import (
    CheckedHosts,
    ClientHeaders,
    Destination,
    EnvoyError,
    GatewayConfig,
    Mode,
    ModelServerProtocol,
    Product,
)
from epp.lab.envoy.addresses import parse_ip
from epp.settings import MAX_WORKERS


def envoy_config(
    mode: Annotated[
        Mode,
        groups.gateway(
            help="Which parts of a request and its response Envoy sends to the endpoint picker."
        ),
    ] = Mode.LEAN,
    product: Annotated[
        Product, groups.gateway("--for", help="Envoy itself, or a product that contains it.")
    ] = Product.ENVOY,
    endpoint: Annotated[
        list[str] | None,
        groups.model_servers(help="A model server; repeatable.", metavar="IP:PORT"),
    ] = None,
    endpoint_protocol: Annotated[
        ModelServerProtocol, groups.model_servers(help="Protocol of the model servers.")
    ] = ModelServerProtocol.HTTP1,
    destination: Annotated[
        Destination, groups.model_servers(help="How Envoy finds the picked endpoint.")
    ] = Destination.OVERRIDE_HOST,
    fail_open: Annotated[
        bool,
        groups.gateway(
            "--fail-open",
            help="Route round robin while the endpoint picker is down; adaptive mode only.",
        ),
    ] = False,
    health_check: Annotated[
        list[CheckedHosts] | None,
        groups.gateway(
            "--health-check",
            help="Have Envoy check the endpoint picker (epp serve --health-checking) or the model"
            " servers in the background; repeatable.",
        ),
    ] = None,
    health_path: Annotated[
        str,
        groups.model_servers(
            help="Path of --health-check model-servers, answered with 200.", metavar="PATH"
        ),
    ] = "/health",
    retries: Annotated[
        int,
        groups.model_servers(
            help="Maximum number of retries at other model servers; 0 for none.",
            min=0,
            metavar="N",
        ),
    ] = 2,
    retry_resets: Annotated[
        bool,
        groups.model_servers(
            help="Also retry requests that were sent, if the connection is reset before their"
            " response begins.",
        ),
    ] = True,
    hedging: Annotated[
        bool,
        groups.model_servers(
            "--hedging",
            help="Send a streamed request whose response is late to a second model server, too.",
        ),
    ] = False,
    pool: Annotated[
        str,
        groups.gateway(
            help="InferencePool of the requests, for an endpoint picker that serves several.",
            metavar="NAME",
        ),
    ] = "",
    buffer_limit: Annotated[
        str,
        groups.gateway(
            help="Maximum length of a request body in adaptive mode; in other modes, of one that"
            " can be sent again to another server.",
            metavar="SIZE",
        ),
    ] = "32MiB",
    client_headers: ClientHeadersOption = ClientHeaders.KEEP,
    keep_header: KeepHeader = None,
    strip_header: StripHeader = None,
    set_header: SetHeader = None,
    trusted_hops: Annotated[
        int,
        groups.clients(
            help="Number of proxies in front of Envoy whose x-forwarded-for entries are trusted.",
            min=0,
            metavar="N",
        ),
    ] = 0,
    limit: Limit = None,
    host: Annotated[
        str,
        groups.gateway(
            help="Address on which Envoy listens; 127.0.0.1 for this host only.", metavar="IP"
        ),
    ] = "0.0.0.0",  # noqa: S104 - clients are elsewhere
    port: Annotated[
        int, groups.gateway(help="Port on which Envoy listens.", metavar="PORT")
    ] = 8080,
    access_log: Annotated[
        str,
        groups.gateway(
            help="File for a JSON line per request; - for Envoy's standard output.", metavar="FILE"
        ),
    ] = "",
    keep_content_length: Annotated[
        bool,
        groups.gateway(
            "--keep-content-length",
            help="Keep content-length in lean mode, for model servers that refuse chunked"
            " requests.",
        ),
    ] = False,
    admin_port: Annotated[
        int, groups.gateway(help="Port of Envoy's admin endpoint, on loopback.", metavar="PORT")
    ] = 9901,
    epp_host: Annotated[
        str | None,
        groups.endpoint_picker(
            help="Host of the endpoint picker; by default 127.0.0.1, or its Service with --for.",
            metavar="HOST",
        ),
    ] = None,
    epp_port: Annotated[
        int, groups.endpoint_picker(help="Port of ext_proc.", metavar="PORT")
    ] = 9002,
    epp_socket: Annotated[
        str,
        groups.endpoint_picker(
            help="Unix socket of ext_proc, instead of host and port.", metavar="PATH"
        ),
    ] = "",
    workers: Annotated[
        int,
        groups.endpoint_picker(
            help="Number of workers with a port or socket each: epp serve --workers N"
            " --worker-ports each, or --listen.",
            min=1,
            max=MAX_WORKERS,
            metavar="N",
        ),
    ] = 1,
    epp_tls: Annotated[
        bool | None,
        groups.endpoint_picker(
            help="Use TLS to the endpoint picker, as epp serve does by default. Off by default"
            " with --for; turn it off for epp serve --secure-serving=false.",
        ),
    ] = None,
    epp_ca_file: Annotated[
        str,
        groups.endpoint_picker(
            help="Certificate authorities, to verify the endpoint picker's certificate.",
            metavar="FILE",
        ),
    ] = "",
    epp_client_cert: Annotated[
        str,
        groups.endpoint_picker(
            help="Envoy's certificate, for epp serve --client-ca-file.", metavar="FILE"
        ),
    ] = "",
    epp_client_key: Annotated[
        str, groups.endpoint_picker(help="Key of Envoy's certificate.", metavar="FILE")
    ] = "",
    write_all: Annotated[
        Path | None,
        groups.gateway(
            help="Write a sample of every kind into this directory, and print nothing.",
            metavar="DIR",
        ),
    ] = None,
) -> None:
    """Print an Envoy bootstrap for a mode, ready for `envoy -c`, or objects for Kubernetes."""
    if write_all is not None and not write_all.is_dir():
        fail(f"--write-all: there is no folder {write_all}")
    if parse_ip(host) is None:
        fail(f"--host: not an IP address: {host!r}")
    own_host = "127.0.0.1" if product is Product.ENVOY else "epp.default.svc.cluster.local"
    try:
        config = GatewayConfig(
            mode=mode,
            destination=destination,
            endpoints=tuple(endpoint or ()),
            endpoint_protocol=endpoint_protocol,
            fail_open=fail_open,
            health_checks=frozenset(health_check or ()),
            health_path=health_path,
            retries=retries,
            retry_resets=retry_resets,
            hedging=hedging,
            pool=pool,
            buffer_limit_bytes=from_flag("--buffer-limit", size, buffer_limit),
            headers=header_rules(client_headers, keep_header, strip_header, set_header),
            trusted_hops=trusted_hops,
            limits=gateway_limits(limit),
            listen_host=host,
            listen_port=port,
            access_log=access_log,
            keep_content_length=keep_content_length,
            admin_port=admin_port,
            epp_host=own_host if epp_host is None else epp_host,
            epp_port=epp_port,
            epp_socket=epp_socket,
            epp_workers=workers,
            epp_tls=product is Product.ENVOY if epp_tls is None else epp_tls,
            epp_ca_file=epp_ca_file,
            epp_client_certificate_file=epp_client_cert,
            epp_client_key_file=epp_client_key,
        )
        # Imported late: Envoy's types take most of a second to import.
        from epp.lab.envoy.samples import render, rendered  # noqa: PLC0415

        if write_all is None:
            print(render(product, config), end="")  # noqa: T201 - the command's output
            return
        for name, text in rendered().items():
            write_whole(write_all / name, text)
    except (ValueError, EnvoyError) as error:
        fail(str(error))
