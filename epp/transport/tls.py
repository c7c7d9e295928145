"""TLS for a gRPC server: what its handshakes accept.

A certificate and these settings become the ``ssl.SSLContext`` of a server on asyncio; grpc.aio
takes the certificate alone. Making a context blocks: do it at start-up, or in a thread.
"""

import os
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from epp.transport.certificate import Certificate
from epp.transport.errors import TlsError

log = structlog.get_logger()

MinimumVersion = Literal["1.2", "1.3"]

_VERSIONS: dict[str, MinimumVersion] = {
    "": "1.2",  # the reference's default
    "VersionTLS12": "1.2",
    "VersionTLS13": "1.3",
}

# The preferred first. RFC 9113 appendix A prohibits every other suite of TLS 1.2 that Go has.
_TLS12_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
# Go's older names of the last two.
_ALIASES = {name.removesuffix("_SHA256"): name for name in list(_TLS12_SUITES)[-2:]}
_TLS13_SUITES = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)

_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory made in it is private


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """How a server offers TLS."""

    certificate_directory: Path | None = None
    """Holds tls.crt (the server's certificate first, then its issuers) and tls.key, in PEM.

    None makes a self-signed certificate, another one at each start and in each replica.
    """

    minimum_version: MinimumVersion = "1.2"
    """The oldest version accepted; HTTP/2 allows none before 1.2 (RFC 9113 section 9.2)."""

    ciphers: tuple[str, ...] = ()
    """Suites for TLS 1.2 by their IANA names, the preferred first; empty for all that are known."""

    client_authorities: Path | None = None
    """PEM file; only clients with a certificate that one of its authorities issued are let in.

    None lets every client in.
    """

    def __post_init__(self) -> None:
        """Refuse what could never work.

        Raises:
            TlsError: A cipher suite is unknown or of no use.
        """
        _split_suites(self.ciphers)

    @property
    def files(self) -> tuple[Path, ...]:
        """Those that handshakes depend on."""
        directory, authorities = self.certificate_directory, self.client_authorities
        pair = () if directory is None else (directory / "tls.crt", directory / "tls.key")
        return pair if authorities is None else (*pair, authorities)


def minimum_version_from_flag(text: str) -> MinimumVersion:
    """Read the reference's ``--tls-min-version``.

    Raises:
        TlsError: The version is unknown, or too old for HTTP/2.
    """
    version = _VERSIONS.get(text)
    if version is None:
        old = text in {"VersionTLS10", "VersionTLS11"}
        raise TlsError(
            f"minimum TLS version {text}" if old else f"minimum TLS version {text!r}",
            "HTTP/2 needs TLS 1.2 (RFC 9113 section 9.2)" if old else "unknown",
            "give VersionTLS12 or VersionTLS13",
        )
    return version


def make_context(
    settings: TlsSettings,
    certificate: Certificate,
    client_authorities: str = "",
    *,
    protocol: str = "h2",
) -> ssl.SSLContext:
    """Make the context of a server that speaks one protocol.

    A client that does not offer it ends its handshake with no protocol chosen; a transport of
    HTTP/2 has to look, and close the connection.

    Args:
        settings: Versions and suites.
        certificate: The server's.
        client_authorities: PEM; if there are any, a client has to show a certificate of theirs.
        protocol: Its name in ALPN.

    Raises:
        TlsError: OpenSSL has none of the cipher suites, or refuses a certificate.
    """
    suites, ignored = _split_suites(settings.ciphers)
    if ignored:
        log.warning(
            "cipher suites were ignored", suites=ignored, reason="those of TLS 1.3 are always on"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if settings.minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    )
    # RFC 9113 section 9.2.1 forbids both in TLS 1.2; TLS 1.3 has neither.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols([protocol])
    try:
        context.set_ciphers(":".join(_TLS12_SUITES[name] for name in suites))
    except ssl.SSLError as error:
        raise TlsError(
            f"cipher suites {', '.join(suites)}",
            f"this build of OpenSSL has none of them ({ssl.OPENSSL_VERSION})",
            "name others, or none for the default",
        ) from error
    _load_into(context, certificate)
    if client_authorities:
        _trust(context, client_authorities, settings)
    if settings.minimum_version == "1.2":
        _warn_of_unfit(suites, certificate)
    return context


def _split_suites(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the suites of TLS 1.2 to offer, and those of TLS 1.3, which nobody can choose."""
    suites: list[str] = []
    ignored: list[str] = []
    for given in names:
        name = _ALIASES.get(given, given)
        if name in _TLS12_SUITES:
            suites.append(name)
        elif name in _TLS13_SUITES:
            ignored.append(name)
        else:
            # Go knows these, too.
            prohibited = name.startswith("TLS_RSA_") or "_CBC_" in name or "_RC4_" in name
            raise TlsError(
                f"cipher suite {name}" if prohibited else f"cipher suite {name!r}",
                "prohibited in HTTP/2 (RFC 9113 appendix A)" if prohibited else "unknown",
                f"known are {', '.join(_TLS12_SUITES)}",
            )
    if ignored and not suites:
        raise TlsError(
            f"cipher suites {', '.join(ignored)}",
            "these are of TLS 1.3, whose suites Python cannot choose, and there is none of TLS 1.2",
            f"name none for the default, or some of {', '.join(_TLS12_SUITES)}",
        )
    return suites or list(_TLS12_SUITES), ignored


def _warn_of_unfit(suites: Sequence[str], certificate: Certificate) -> None:
    """Warn if a client of TLS 1.2, as Envoy is by default, will find no common suite."""
    public_key = x509.load_pem_x509_certificate(certificate.chain).public_key()
    kind = "RSA" if isinstance(public_key, rsa.RSAPublicKey) else "ECDSA"
    if not any(f"_{kind}_" in name for name in suites):
        log.warning(
            "cipher suites do not fit the certificate",
            certificate=certificate.source,
            key=kind,
            suites=list(suites),
            effect="clients that cannot speak TLS 1.3 are refused",
        )


def _trust(context: ssl.SSLContext, authorities: str, settings: TlsSettings) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=authorities)
    except ssl.SSLError as error:
        raise TlsError(
            str(settings.client_authorities),
            f"OpenSSL refuses a certificate in it ({error.reason})",
            "leave that one out, or have it issued anew",
        ) from error


def _load_into(context: ssl.SSLContext, certificate: Certificate) -> None:
    # OpenSSL reads files only. In memory if possible: the root file system may be read-only, and a
    # process killed in between leaves no key on a disk. mkdtemp makes the directory private.
    memory = _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    try:
        with tempfile.TemporaryDirectory(prefix="epp-tls-", dir=memory) as folder:
            chain_path, key_path = Path(folder, "tls.crt"), Path(folder, "tls.key")
            chain_path.write_bytes(certificate.chain)
            key_path.write_bytes(certificate.key)
            context.load_cert_chain(chain_path, key_path)
    except ssl.SSLError as error:
        raise TlsError(
            certificate.source,
            f"OpenSSL refuses the certificate or its key ({error.reason})",
            "have it issued anew, with an EC key on P-256 or an RSA key of 2048 bits",
        ) from error
    except OSError as error:
        raise TlsError(
            str(error.filename or memory or "temporary directory"),
            f"the key cannot be handed to OpenSSL in a file ({error.strerror})",
            "give the process a place for temporary files, by TMPDIR or as /dev/shm",
        ) from error
