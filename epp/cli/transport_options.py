"""Options of the ext_proc port: transport, TLS, limits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import structlog

from epp.cli import option_groups as groups
from epp.cli.named_values import name_and_value
from epp.cli.running import from_flag
from epp.cli.units import TRUE_OR_FALSE, quantity, true_or_false
from epp.transport import TlsSettings, TransportSettings, minimum_version_from_flag

log = structlog.get_logger()

SecureServing = Annotated[
    str, groups.tls(help="Use TLS on the ext_proc port.", metavar=TRUE_OR_FALSE)
]
Listen = Annotated[
    str,
    groups.ports(
        help="Serve ext_proc on a Unix socket instead of --grpc-port.", metavar="unix:PATH"
    ),
]
CertPath = Annotated[
    str,
    groups.tls(
        help="Directory with tls.crt and tls.key; without it a self-signed certificate is made.",
        metavar="DIR",
    ),
]
ClientCaFile = Annotated[
    str,
    groups.tls(
        help="Certificate authorities, PEM; clients must have a certificate of one of them.",
        metavar="FILE",
    ),
]
GrpcMaxRecvMsgSize = Annotated[
    str,
    groups.transport(
        help="Maximum length of a received ext_proc message; 65MiB by default.", metavar="SIZE"
    ),
]
GrpcMaxSendMsgSize = Annotated[
    str,
    groups.transport(
        help="Maximum length of a sent ext_proc message; 65MiB by default.", metavar="SIZE"
    ),
]
TlsMinVersion = Annotated[
    str,
    groups.tls(
        help="`VersionTLS12` (the default, and Envoy's own maximum by default) or `VersionTLS13`.",
        metavar="VERSION",
    ),
]
TlsCipherSuites = Annotated[
    list[str] | None,
    groups.tls(help="Cipher suites of TLS 1.2, by IANA name; repeatable.", metavar="NAME,..."),
]
TransportSetting = Annotated[
    list[str] | None,
    groups.transport(
        help="Limit or timeout of the http2 transport; repeatable.", metavar="NAME=VALUE"
    ),
]

_OF_GRPCIO = frozenset({"max_message_bytes", "max_sent_message_bytes"})
"""Settings that grpcio supports, too."""

_SOCKET = "unix:"

_ROOM_BESIDE_BODY = 1 << 20
"""Margin of the message limit over the body limit, so that a body above its limit gets a 413
instead of failing its stream."""

_ROOM_FOR_MESSAGES = 1.5
"""``max_buffered_bytes`` as a multiple of the longest message: one message and parts of others."""


def socket_file(listen: str) -> Path | None:
    """Return the path in ``--listen``; None if it is not given.

    Raises:
        ValueError: It is not a socket path.
    """
    if not listen:
        return None
    path = listen.removeprefix(_SOCKET)
    if path == listen or not path or path.startswith("@"):
        raise ValueError(
            f"--listen {listen}: give unix:PATH with the path of a file, or leave it out and use"
            " --host and --grpc-port"
        )
    # gRPC's form of an absolute path, unix:///PATH.
    return Path("/" + path.lstrip("/") if path.startswith("///") else path)


def tls_settings(
    secure_serving: str,
    cert_path: str,
    minimum_version: str,
    ciphers: Sequence[str],
    client_ca_file: str = "",
) -> TlsSettings | None:
    """Return the TLS settings of the flags; None for plaintext.

    Raises:
        ValueError: A value is invalid; the message names the flag.
    """
    if not true_or_false("--secure-serving", secure_serving):
        if client_ca_file:
            # An error, not a warning: the flag is meant for access control.
            raise ValueError(
                "--client-ca-file: there are no client certificates without TLS; leave it out, or"
                " --secure-serving=false"
            )
        return None
    version = from_flag("--tls-min-version", minimum_version_from_flag, minimum_version)
    directory = Path(cert_path) if cert_path else None
    return from_flag(
        "--tls-cipher-suites",
        lambda names: TlsSettings(
            certificate_directory=directory,
            minimum_version=version,
            ciphers=names,
            client_authorities=Path(client_ca_file) if client_ca_file else None,
        ),
        tuple(each.strip() for given in ciphers for each in given.split(",") if each.strip()),
    )


def warn_of_unused(cert_path: str, minimum_version: str, ciphers: Sequence[str]) -> None:
    """Warn about TLS flags that have no effect with plaintext."""
    given = {
        "--cert-path": cert_path,
        "--tls-min-version": minimum_version,
        "--tls-cipher-suites": ciphers,
    }
    flags = [flag for flag, value in given.items() if value]
    if flags:
        # Not an error: the Go EPP starts with these flags, too, so manifests written for it may
        # have them, and they request plaintext explicitly.
        log.warning("flags were ignored", flags=flags, reason="--secure-serving=false: plaintext")


def transport_settings(
    given: Sequence[str],
    max_message: str,
    max_sent_message: str = "",
    *,
    max_body_bytes: int = 0,
) -> TransportSettings:
    """Return the settings of the transport.

    Args:
        given: ``NAME=VALUE``; ``_bytes`` take a quantity (64MiB), ``_seconds`` a duration (30s),
            the others an integer or a boolean.
        max_message: Limit on received messages, as a quantity; ``max_message_bytes`` in ``given``
            takes precedence. Empty for the default, but at least the body limit plus 1 MiB.
        max_sent_message: Likewise for sent messages, with ``max_sent_message_bytes``.
        max_body_bytes: Limit on request bodies.

    Raises:
        ValueError: A name is unknown, or a value is not allowed; the message names the flag.
    """
    values = dict(_name_and_value(text) for text in given)
    defaults = TransportSettings.names()
    for flag, name, text in (
        ("--grpc-max-recv-msg-size", "max_message_bytes", max_message),
        ("--grpc-max-send-msg-size", "max_sent_message_bytes", max_sent_message),
    ):
        least = max(defaults[name], max_body_bytes + _ROOM_BESIDE_BODY)
        # 0 means the default, as in the Go EPP.
        values.setdefault(name, (from_flag(flag, quantity, text) if text else 0) or least)
    room = values["max_message_bytes"] * _ROOM_FOR_MESSAGES
    if room > defaults["max_buffered_bytes"]:
        values.setdefault("max_buffered_bytes", int(room))
    if (buffered := values.get("max_buffered_bytes", 0)) > defaults["max_total_buffered_bytes"]:
        values.setdefault("max_total_buffered_bytes", buffered)
    return from_flag("--transport-setting", TransportSettings().with_values, values)


def refuse_for_grpcio(given: Sequence[str], tls: TlsSettings | None) -> None:
    """Refuse settings that grpcio does not support, instead of ignoring them.

    ``VersionTLS12`` is accepted: it is grpcio's default.

    Raises:
        ValueError: One of these settings is given; the message names the flag.
    """
    refused = [
        f"--transport-setting {text}: only {' and '.join(sorted(_OF_GRPCIO))} can be set"
        for text in given
        if _name_and_value(text)[0] not in _OF_GRPCIO
    ]
    if tls is not None and tls.minimum_version != "1.2":
        refused.append("--tls-min-version: the versions are the C core's own")
    if tls is not None and tls.ciphers:
        refused.append("--tls-cipher-suites: the suites are the C core's own")
    if refused:
        raise ValueError(
            f"{refused[0]} with --transport grpcio; leave it out, or use --transport http2"
        )


def _name_and_value(text: str) -> tuple[str, float]:
    return name_and_value(
        "--transport-setting", text, dict(sorted(TransportSettings.names().items()))
    )
