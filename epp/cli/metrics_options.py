"""Options of the metrics port: TLS, and the set of metrics."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

import structlog

from epp.cli import option_groups as groups
from epp.cli.units import TRUE_OR_FALSE
from epp.transport import TlsSettings

log = structlog.get_logger()

MetricsCertDir = Annotated[
    str,
    groups.metrics(
        help="Directory with tls.crt and tls.key, reloaded when they change: the metrics port uses"
        " HTTPS.",
        metavar="DIR",
    ),
]
MetricsClientCaFile = Annotated[
    str,
    groups.metrics(
        help="Certificate authorities, PEM; clients of the metrics port must have a certificate of"
        " one of them. Needs --metrics-cert-dir.",
        metavar="FILE",
    ),
]
DeprecatedMetrics = Annotated[
    Literal["", "true", "false"],
    groups.metrics(
        help="Add metrics under their former names (inference_pool_…, inference_objective_…,"
        " inference_extension_…). On by default only with --compat=reference.",
        metavar=TRUE_OR_FALSE,
        show_default=False,
    ),
]


MetricsEndpointAuth = Annotated[
    Literal["", "true", "false"],
    groups.metrics(
        help="Let in only clients of the metrics port with a bearer token that may `get` the path,"
        " by RBAC of the cluster. On by default with endpoints from the Kubernetes API.",
        metavar=TRUE_OR_FALSE,
        show_default=False,
    ),
]


def checks_tokens(given: str, *, has_pods: bool) -> bool:
    """Return whether the metrics port checks its clients' tokens with the Kubernetes API.

    Args:
        given: Value of ``--metrics-endpoint-auth``; "" for the default.
        has_pods: Whether the endpoints come from the Kubernetes API.

    Raises:
        ValueError: The flag requires it, but the Kubernetes API is not used.
    """
    if given == "true" and not has_pods:
        raise ValueError(
            "--metrics-endpoint-auth: tokens are checked by the Kubernetes API, which this endpoint"
            " picker does not use: /metrics would be open to all. Set"
            " --metrics-endpoint-auth=false, and restrict access with a network policy or with"
            " --metrics-cert-dir and --metrics-client-ca-file"
        )
    return has_pods and given != "false"


def metrics_tls(cert_dir: str, client_ca_file: str) -> TlsSettings | None:
    """Return the TLS settings of the flags; None for plain HTTP.

    Raises:
        ValueError: Client certificates are required without TLS; the message names the flags.
    """
    if not cert_dir:
        if client_ca_file:
            raise ValueError(
                "--metrics-client-ca-file: there are no client certificates without TLS; give"
                " --metrics-cert-dir, too, a directory with tls.crt and tls.key"
            )
        return None
    return TlsSettings(
        certificate_directory=Path(cert_dir),
        client_authorities=Path(client_ca_file) if client_ca_file else None,
    )


def warn_of_open_token(host: str, tls: TlsSettings | None) -> None:
    """Warn if other hosts can make calls that change something, with an unencrypted token."""
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if tls is None and not is_local:
        log.warning(
            "the token of changing calls is sent without encryption",
            remedy="give --metrics-cert-dir, or restrict who can reach the metrics port",
        )


def warn_of_open_metrics(tls: TlsSettings | None) -> None:
    """Warn if TLS is enabled but clients are not authenticated."""
    if tls is not None and tls.client_authorities is None:
        log.warning(
            "metrics are encrypted, but open to every client",
            remedy="give --metrics-client-ca-file to let in only clients with a certificate",
        )
