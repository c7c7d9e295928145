"""Options of the ext_proc port: which transport, TLS, limits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from epp.cli.units import duration, quantity
from epp.transport import TlsSettings, TransportSettings, minimum_version_from_flag

TransportName = Annotated[
    Literal["http2", "grpcio"],
    typer.Option("--transport", help="http2 is the fast one of our own, grpcio the C core's."),
]
SecureServing = Annotated[str, typer.Option(help="TLS on the ext_proc port: true or false.")]
CertPath = Annotated[
    str, typer.Option(help="Directory with tls.crt and tls.key; none makes a self-signed one.")
]
TlsMinVersion = Annotated[
    str, typer.Option(help="VersionTLS12 (Envoy's own upper limit by default) or VersionTLS13.")
]
TlsCipherSuites = Annotated[
    list[str] | None,
    typer.Option(help="Suites for TLS 1.2 by their IANA names; comma-separated, repeatable."),
]
TransportSetting = Annotated[
    list[str] | None,
    typer.Option(help="Limit or timeout of the http2 transport, NAME=VALUE; repeatable."),
]


def tls_settings(
    secure_serving: str, cert_path: str, minimum_version: str, ciphers: Sequence[str]
) -> TlsSettings | None:
    """Return what the flags say; None for plaintext.

    Raises:
        ValueError: ``secure_serving`` is neither true nor false.
        TlsError: The version is unknown, or too old for HTTP/2.
    """
    if secure_serving.lower() not in {"true", "false"}:
        raise ValueError(f"--secure-serving must be true or false, not {secure_serving!r}")
    if secure_serving.lower() == "false":
        return None
    names = (name.strip() for given in ciphers for name in given.split(","))
    return TlsSettings(
        certificate_directory=Path(cert_path) if cert_path else None,
        minimum_version=minimum_version_from_flag(minimum_version),
        ciphers=tuple(name for name in names if name),
    )


def transport_settings(given: Sequence[str], max_message: str) -> TransportSettings:
    """Return the settings of the transport.

    Args:
        given: ``NAME=VALUE``; ``_bytes`` take a quantity (64MiB), ``_seconds`` a duration (30s).
        max_message: Longest message, as a quantity.

    Raises:
        ValueError: A name is unknown, or a value not allowed.
    """
    known = TransportSettings.names()
    values: dict[str, float] = {"max_message_bytes": quantity(max_message)}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or name not in known:
            names = ", ".join(sorted(known))
            raise ValueError(f"--transport-setting {text}: give NAME=VALUE with one of {names}")
        try:
            values[name] = _number(name, value)
        except ValueError as error:
            raise ValueError(f"--transport-setting {text}: {error}") from None
    return TransportSettings().with_values(values)


def _number(name: str, value: str) -> float:
    if name.endswith("_seconds"):
        return duration(value)
    if name == "reuse_port":
        if value not in {"true", "false"}:
            raise ValueError("must be true or false")
        return value == "true"
    return quantity(value)
