"""A server's certificate: two PEM texts, read from a directory or made here.

Everything here blocks (files, arithmetic): call it at start-up, or in a thread.
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

log = structlog.get_logger()

_VALIDITY = timedelta(days=3650)
_CLOCK_SKEW = timedelta(hours=1)
"""A client whose clock is slow by less accepts a certificate made this moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A server's certificate and its private key, in PEM."""

    chain: bytes
    """The server's certificate, then those of its issuers."""

    key: bytes = field(repr=False)
    """The private key, not encrypted."""

    source: str
    """Where it is from, for messages: a file's path, or that it was made here."""

    expires_at: float = inf
    """When clients that verify it begin to refuse it, in seconds since 1970."""


def load_certificate(directory: Path | None) -> Certificate:
    """Read the certificate in ``directory``, or make a self-signed one if there is none to read.

    The self-signed one has an EC key on P-256, not the reference's RSA-4096: that costs seconds of
    CPU at a start (0.1 to 1.4 measured; this one, 0.4 ms), for a certificate that no client can
    verify anyway.

    Raises:
        TlsError: The directory or a file is missing or unreadable, or the two do not go together.
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
            f"the key does not fit the first certificate in {chain_path}",
            "give the two from one issue, the server's own certificate before its issuers'",
        )
    _warn_of_dates(leaf, chain_path)
    return Certificate(
        chain=chain,
        key=key,
        source=str(chain_path),
        expires_at=leaf.not_valid_after_utc.timestamp(),
    )


def load_authorities(path: Path) -> str:
    """Return the certificates of authorities in a file, in PEM and without what is between them.

    Raises:
        TlsError: The file is missing or unreadable, or there is none in it.
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
        "holds no readable PEM certificate",
        "it should begin with -----BEGIN CERTIFICATE-----",
    )


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
