"""TLS for a gRPC server: where its certificate comes from, and what its handshakes accept.

Settings become a certificate (two PEM texts, read from a directory or made here), and that becomes
what a server needs: an ``ssl.SSLContext`` for one on asyncio; grpc.aio takes the texts themselves,
by ``grpc.ssl_server_credentials([(certificate.key, certificate.chain)])``. Everything here blocks
(files, arithmetic): call it at start-up, or in a thread.
"""

import os
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Literal

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

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

_VALIDITY = timedelta(days=3650)
_CLOCK_SKEW = timedelta(hours=1)
"""A client whose clock is slow by less accepts a certificate made this moment."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A server's certificate and its private key, in PEM."""

    chain: bytes
    """The server's certificate, then those of its issuers."""

    key: bytes = field(repr=False)
    """The private key, not encrypted."""

    source: str
    """Where it is from, for messages: a file's path, or that it was made here."""


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


def load_certificate(settings: TlsSettings) -> Certificate:
    """Read the certificate that the settings name, or make a self-signed one.

    The self-signed one has an EC key on P-256, not the reference's RSA-4096: that costs seconds of
    CPU at a start (0.1 to 1.4 measured; this one, 0.4 ms), for a certificate that no client can
    verify anyway.

    Raises:
        TlsError: The directory or a file is missing or unreadable, or the two do not go together.
    """
    directory = settings.certificate_directory
    if directory is None:
        return _self_signed()
    if not directory.is_dir():
        reason = "not a directory" if directory.exists() else "the directory does not exist"
        raise TlsError(
            str(directory),
            reason,
            "name a directory with tls.crt and tls.key, or none for a self-signed certificate",
        )
    chain_path, key_path = directory / "tls.crt", directory / "tls.key"
    chain, key = _read(chain_path), _read(key_path)
    leaf = _parse_leaf(chain, chain_path)
    if leaf.public_key() != _parse_key(key, key_path).public_key():
        raise TlsError(
            str(key_path),
            f"the key does not fit the first certificate in {chain_path}",
            "give the two from one issue, the server's own certificate before its issuers'",
        )
    _warn_of_dates(leaf, chain_path)
    return Certificate(chain=chain, key=key, source=str(chain_path))


def make_context(settings: TlsSettings, certificate: Certificate) -> ssl.SSLContext:
    """Make the context of a server that speaks HTTP/2 and nothing else.

    A client that does not offer h2 ends its handshake with no protocol chosen; the transport has to
    look, and close the connection.

    Raises:
        TlsError: A cipher suite is unknown or of no use, or OpenSSL refuses the certificate.
    """
    suites = _tls12_suites(settings.ciphers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if settings.minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    )
    # RFC 9113 section 9.2.1 forbids both in TLS 1.2; TLS 1.3 has neither.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["h2"])
    try:
        context.set_ciphers(":".join(_TLS12_SUITES[name] for name in suites))
    except ssl.SSLError as error:
        raise TlsError(
            f"cipher suites {', '.join(suites)}",
            f"this build of OpenSSL has none of them ({ssl.OPENSSL_VERSION})",
            "name others, or none for the default",
        ) from error
    _load_into(context, certificate)
    if settings.minimum_version == "1.2":
        _warn_of_unfit(suites, certificate)
    return context


def _tls12_suites(names: Sequence[str]) -> list[str]:
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
    if ignored:
        log.warning(
            "cipher suites were ignored", suites=ignored, reason="those of TLS 1.3 are always on"
        )
    return suites or list(_TLS12_SUITES)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise TlsError(
            str(path), "the file is missing", "the directory needs both tls.crt and tls.key"
        ) from error
    except OSError as error:
        reason = f"the file cannot be read ({error.strerror})"
        raise TlsError(str(path), reason, "make it readable to this process") from error


def _parse_leaf(chain: bytes, path: Path) -> x509.Certificate:
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        leaf.public_key()  # parsed only now
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsError(
            str(path),
            "holds no readable PEM certificate",
            "it should begin with -----BEGIN CERTIFICATE-----",
        ) from error
    return leaf


def _parse_key(key: bytes, path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(key, None)
    except TypeError as error:
        # Without this check OpenSSL would ask for the passphrase on the terminal.
        raise TlsError(
            str(path),
            "the private key is encrypted",
            f"decrypt it, for example with: openssl pkey -in {path} -out decrypted.key",
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsError(
            str(path),
            "holds no readable PEM private key",
            "it should begin with -----BEGIN PRIVATE KEY-----",
        ) from error


def _warn_of_dates(leaf: x509.Certificate, path: Path) -> None:
    start, end, now = leaf.not_valid_before_utc, leaf.not_valid_after_utc, datetime.now(UTC)
    # Only a warning: a client that does not verify, as Envoy by default, connects all the same.
    if now > end:
        log.warning("certificate has expired", path=str(path), expired_at=end.isoformat())
    elif now < start:
        log.warning("certificate is not valid yet", path=str(path), valid_from=start.isoformat())


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


def _self_signed() -> Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Inference Ext")])
    addresses = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    now = datetime.now(UTC)
    public_key = key.public_key()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        chain=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        source="self-signed",
    )


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
