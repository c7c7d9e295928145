"""TLS settings of a server, and the ``ssl.SSLContext`` made from them.

grpc.aio uses only the certificate. Creating a context blocks: do it at start-up or in a thread.
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

log = structlog.get_logger(__name__)

MinimumVersion = Literal["1.2", "1.3"]

_VERSIONS: dict[str, MinimumVersion] = {
    "": "1.2",  # the Go EPP's default
    "VersionTLS12": "1.2",
    "VersionTLS13": "1.3",
}

# In order of preference. RFC 9113 appendix A prohibits all other TLS 1.2 suites that Go supports.
_TLS12_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
# Go's older names for the last two.
_ALIASES = {name.removesuffix("_SHA256"): name for name in list(_TLS12_SUITES)[-2:]}
_TLS13_SUITES = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)

_MEMORY = Path("/dev/shm")  # noqa: S108 - the directory created in it is private


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS settings of a server."""

    certificate_directory: Path | None = None
    """Directory with tls.crt (the server's certificate, then those of its issuers) and tls.key.

    None generates a self-signed certificate, a different one at each start.
    """

    minimum_version: MinimumVersion = "1.2"
    """The oldest version accepted; HTTP/2 requires 1.2 (RFC 9113 section 9.2)."""

    ciphers: tuple[str, ...] = ()
    """TLS 1.2 cipher suites by IANA name, in order of preference; empty for all known ones."""

    client_authorities: Path | None = None
    """PEM file of authorities; clients must present a certificate issued by one of them.

    None admits every client.
    """

    def __post_init__(self) -> None:
        """Validate the cipher suites.

        Raises:
            TlsError: A cipher suite is unknown or cannot be used.
        """
        _split_suites(self.ciphers)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that handshakes depend on."""
        directory, authorities = self.certificate_directory, self.client_authorities
        pair = () if directory is None else (directory / "tls.crt", directory / "tls.key")
        return pair if authorities is None else (*pair, authorities)


def minimum_version_from_flag(text: str) -> MinimumVersion:
    """Parse the Go EPP's ``--tls-min-version``.

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
    """Create the context of a server for one application protocol.

    If a client does not offer the protocol, the handshake succeeds without one: an HTTP/2 server
    must check the negotiated protocol, and close the connection.

    Args:
        settings: Versions and cipher suites.
        certificate: The server's certificate.
        client_authorities: PEM; if not empty, clients must present a certificate issued by one.
        protocol: ALPN name of the protocol.

    Raises:
        TlsError: OpenSSL supports none of the cipher suites, or rejects a certificate.
    """
    suites, ignored = _split_suites(settings.ciphers)
    if ignored:
        log.warning(
            "TLS 1.3 cipher suites were ignored", suites=ignored, reason="they are always enabled"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if settings.minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    )
    # RFC 9113 section 9.2.1 prohibits both in TLS 1.2; TLS 1.3 has neither.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols([protocol])
    try:
        context.set_ciphers(":".join(_TLS12_SUITES[name] for name in suites))
    except ssl.SSLError as error:
        raise TlsError(
            f"cipher suites {', '.join(suites)}",
            f"this build of OpenSSL supports none of them ({ssl.OPENSSL_VERSION})",
            "give others, or none for the default",
        ) from error
    _load_into(context, certificate)
    if client_authorities:
        _trust(context, client_authorities, settings)
    if settings.minimum_version == "1.2":
        _warn_about_mismatch(suites, certificate)
    return context


def _split_suites(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the TLS 1.2 suites to offer, and the TLS 1.3 suites to ignore."""
    suites: list[str] = []
    ignored: list[str] = []
    for given in names:
        name = _ALIASES.get(given, given)
        if name in _TLS12_SUITES:
            suites.append(name)
        elif name in _TLS13_SUITES:
            ignored.append(name)
        else:
            # Go supports these.
            prohibited = name.startswith("TLS_RSA_") or "_CBC_" in name or "_RC4_" in name
            raise TlsError(
                f"cipher suite {name}" if prohibited else f"cipher suite {name!r}",
                "prohibited in HTTP/2 (RFC 9113 appendix A)" if prohibited else "unknown",
                f"supported are {', '.join(_TLS12_SUITES)}",
            )
    if ignored and not suites:
        raise TlsError(
            f"cipher suites {', '.join(ignored)}",
            "all are TLS 1.3 suites, which Python cannot select, so none is left for TLS 1.2",
            f"give none for the default, or some of {', '.join(_TLS12_SUITES)}",
        )
    return suites or list(_TLS12_SUITES), ignored


def _warn_about_mismatch(suites: Sequence[str], certificate: Certificate) -> None:
    """Warn if TLS 1.2 clients, such as Envoy by default, will find no common suite."""
    public_key = x509.load_pem_x509_certificate(certificate.chain).public_key()
    kind = "RSA" if isinstance(public_key, rsa.RSAPublicKey) else "ECDSA"
    if not any(f"_{kind}_" in name for name in suites):
        log.warning(
            "no cipher suite matches the type of the certificate's key",
            certificate=certificate.source,
            key=kind,
            suites=list(suites),
            effect="clients without TLS 1.3 cannot connect",
        )


def _trust(context: ssl.SSLContext, authorities: str, settings: TlsSettings) -> None:
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(cadata=authorities)
    except ssl.SSLError as error:
        raise TlsError(
            str(settings.client_authorities),
            f"OpenSSL rejects a certificate in it ({error.reason})",
            "remove that certificate, or have it reissued",
        ) from error


def _load_into(context: ssl.SSLContext, certificate: Certificate) -> None:
    # OpenSSL reads only files. They are in memory if possible: the root file system may be
    # read-only, and a killed process leaves no key on disk. mkdtemp makes the directory private.
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
            f"OpenSSL rejects the certificate or its key ({error.reason})",
            "have it reissued, with an EC key on P-256 or an RSA key of 2048 bits",
        ) from error
    except OSError as error:
        raise TlsError(
            str(error.filename or memory or "temporary directory"),
            f"the key cannot be written to a file for OpenSSL ({error.strerror})",
            "make /dev/shm or the directory in TMPDIR writable",
        ) from error
