"""Options of the metrics port: TLS, and the set of metrics."""

from pathlib import Path
from typing import Annotated, Literal

import structlog
import typer

from epp.cli.units import TRUE_OR_FALSE
from epp.transport import TlsSettings

log = structlog.get_logger()

MetricsCertDir = Annotated[
    str,
    typer.Option(
        help="Directory with tls.crt and tls.key: the metrics port speaks HTTPS; followed while"
        " running."
    ),
]
MetricsClientCaFile = Annotated[
    str,
    typer.Option(
        help="PEM file; the metrics port lets in only clients with a certificate issued by one in"
        " it. Needs --metrics-cert-dir."
    ),
]
EnableGrpcStreamMetrics = Annotated[
    bool,
    typer.Option(
        "--enable-grpc-stream-metrics",
        help="Count and time the streams of the ext_proc port (extproc_stream…).",
    ),
]
DeprecatedMetrics = Annotated[
    Literal["", "true", "false"],
    typer.Option(
        help="Metrics also under the names that they had before (inference_pool_…,"
        " inference_objective_…, inference_extension_…); on by default with --compat=reference.",
        metavar=TRUE_OR_FALSE,
        show_default=False,
    ),
]


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


def warn_of_open_metrics(tls: TlsSettings | None) -> None:
    """Warn if TLS is enabled but clients are not authenticated."""
    if tls is not None and tls.client_authorities is None:
        log.warning(
            "metrics are encrypted, but open to every client",
            remedy="give --metrics-client-ca-file to let in only clients with a certificate",
        )
