"""Loads a server's certificate from a directory, or generates a self-signed one.

All functions block (files, key generation): call them at start-up or in a thread.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from math import inf
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from epp.transport.errors import TlsError

log = structlog.get_logger(__name__)

_VALIDITY = timedelta(days=3650)
_CLOCK_SKEW = timedelta(hours=1)
"""Clients whose clocks are slow by up to this much accept a new self-signed certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A server's certificate and its private key, in PEM."""

    chain: bytes
    """The server's certificate, then those of its issuers."""

    key: bytes = field(repr=False)
    """The private key, unencrypted."""

    source: str
    """Origin for messages: the path of a file, or "self-signed"."""

    expires_at: float = inf
    """Time of expiry, in seconds since 1970."""


def load_certificate(directory: Path | None) -> Certificate:
    """Read the certificate in ``directory``; if that is None, generate a self-signed one.

    The self-signed one has an EC key on P-256 (0.4 ms), not RSA-4096 as in the Go EPP (0.1 to 1.4 s
    of CPU at each start), because no client can verify it anyway.

    Raises:
        TlsError: A file is missing or invalid, or key and certificate do not match.
    """
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
            f"the key does not match the first certificate in {chain_path}",
            "use the key and certificate of one issue, with the server's own certificate first",
        )
    _warn_about_dates(leaf, chain_path)
    return Certificate(
        chain=chain,
        key=key,
        source=str(chain_path),
        expires_at=leaf.not_valid_after_utc.timestamp(),
    )


def load_authorities(path: Path) -> str:
    """Return the certificates of authorities in a file as PEM, without any text between them.

    Raises:
        TlsError: The file is missing or unreadable, or has no certificate.
    """
    text = _read(path, "name a file with the certificates of authorities, in PEM")
    try:
        found = x509.load_pem_x509_certificates(text)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_certificate(path) from error
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in found)


def _read(path: Path, remedy: str = "the directory needs both tls.crt and tls.key") -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise TlsError(str(path), "the file is missing", remedy) from error
    except OSError as error:
        reason = f"the file cannot be read ({error.strerror})"
        raise TlsError(str(path), reason, "make it readable to this process") from error


def _parse_leaf(chain: bytes, path: Path) -> x509.Certificate:
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        leaf.public_key()  # parsed only now
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_certificate(path) from error
    return leaf


def _no_certificate(path: Path) -> TlsError:
    return TlsError(
        str(path),
        "contains no readable PEM certificate",
        "it should begin with -----BEGIN CERTIFICATE-----",
    )


def _parse_key(key: bytes, path: Path) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(key, None)
    except TypeError as error:
        # Otherwise OpenSSL would prompt for the passphrase on the terminal.
        raise TlsError(
            str(path),
            "the private key is encrypted",
            f"decrypt it, for example with: openssl pkey -in {path} -out decrypted.key",
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsError(
            str(path),
            "contains no readable PEM private key",
            "it should begin with -----BEGIN PRIVATE KEY-----",
        ) from error


def _warn_about_dates(leaf: x509.Certificate, path: Path) -> None:
    start, end, now = leaf.not_valid_before_utc, leaf.not_valid_after_utc, datetime.now(UTC)
    # Only a warning: clients that do not verify, such as Envoy by default, still connect.
    if now > end:
        log.warning("certificate has expired", path=str(path), expired_at=end.isoformat())
    elif now < start:
        log.warning("certificate is not valid yet", path=str(path), valid_from=start.isoformat())


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
        expires_at=(now + _VALIDITY).timestamp(),
    )
