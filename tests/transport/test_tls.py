"""TLS handshakes in memory, with Python's ssl on both sides and once with gRPC."""

import ssl
import stat
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from epp.transport import TransportError, tls
from epp.transport.certificate import Certificate, load_certificate
from epp.transport.errors import TlsError
from epp.transport.tls import TlsSettings, make_context, minimum_version_from_flag

GCM_128 = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
GCM_256 = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
KNOWN = (
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,"
    " TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,"
    " TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def make_key(bits: int = 0) -> PrivateKey:
    """Return an EC key, or an RSA key of ``bits``."""
    if bits:
        return rsa.generate_private_key(public_exponent=65537, key_size=bits)
    return ec.generate_private_key(ec.SECP256R1())


def make_chain(key: PrivateKey, *, begins_in_days: float = -2, ends_in_days: float = 1) -> bytes:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + timedelta(days=begins_in_days))
        .not_valid_after(now + timedelta(days=ends_in_days))
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def pem(key: PrivateKey, passphrase: bytes | None = None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        encryption = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def make_certificate(key: PrivateKey) -> Certificate:
    return Certificate(chain=make_chain(key), key=pem(key), source="made by the test")


def make_directory(folder: Path, *, chain: bytes | None = None, key: bytes | None = None) -> Path:
    if chain is not None:
        (folder / "tls.crt").write_bytes(chain)
    if key is not None:
        (folder / "tls.key").write_bytes(key)
    return folder


@pytest.fixture(scope="module")
def rsa_certificate() -> Certificate:
    return make_certificate(make_key(2048))


def make_client(alpn: tuple[str, ...] = ("h2",)) -> ssl.SSLContext:
    """A client that does not verify, like Envoy by default."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    if alpn:
        client.set_alpn_protocols(alpn)
    return client


@dataclass
class Side:
    """One end of a connection in memory."""

    tls: ssl.SSLObject
    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    is_done: bool = False

    def advance(self) -> None:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_done = True


def make_side(context: ssl.SSLContext, **options: Any) -> Side:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    return Side(context.wrap_bio(incoming, outgoing, **options), incoming, outgoing)


def connect(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[Side, Side]:
    """Do the handshake; raise the error of the side that fails first."""
    there = make_side(server, server_side=True)
    here = make_side(client, server_hostname="localhost")
    while not (here.is_done and there.is_done):
        here.advance()
        there.incoming.write(here.outgoing.read())
        there.advance()
        here.incoming.write(there.outgoing.read())
    return there, here


def test_a_client_that_offers_h2_gets_h2_over_tls_1_3() -> None:
    server = make_context(TlsSettings(), load_certificate(None))
    there, here = connect(server, make_client(("http/1.1", "h2")))
    assert there.tls.selected_alpn_protocol() == "h2"
    assert here.tls.selected_alpn_protocol() == "h2"
    assert here.tls.version() == "TLSv1.3"
    here.tls.write(b"PRI * HTTP/2.0")
    there.incoming.write(here.outgoing.read())
    assert there.tls.read() == b"PRI * HTTP/2.0"


@pytest.mark.parametrize("alpn", [("http/1.1",), ()], ids=["another protocol", "no ALPN at all"])
def test_a_client_without_h2_negotiates_no_protocol(alpn: tuple[str, ...]) -> None:
    server = make_context(TlsSettings(), load_certificate(None))
    there, here = connect(server, make_client(alpn))
    assert there.tls.selected_alpn_protocol() is None
    assert here.tls.selected_alpn_protocol() is None


def test_a_tls_1_2_connection_is_neither_compressed_nor_renegotiable() -> None:
    server = make_context(TlsSettings(), load_certificate(None))
    client = make_client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.options &= ~ssl.OP_NO_COMPRESSION
    there, _ = connect(server, client)
    assert there.tls.version() == "TLSv1.2"
    assert there.tls.compression() is None
    assert server.options & ssl.OP_NO_RENEGOTIATION


def test_tls_1_1_is_refused() -> None:
    server = make_context(TlsSettings(), load_certificate(None))
    client = make_client()
    client.set_ciphers("ALL:@SECLEVEL=0")  # else the client itself would not speak it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        client.minimum_version = ssl.TLSVersion.TLSv1_1
        client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError) as error:
        connect(server, client)
    assert error.value.reason == "UNSUPPORTED_PROTOCOL"  # the server's; a client is told by alert


def test_tls_1_2_is_refused_when_1_3_is_the_minimum() -> None:
    settings = TlsSettings(minimum_version="1.3")
    server = make_context(settings, load_certificate(settings.certificate_directory))
    assert connect(server, make_client())[0].tls.version() == "TLSv1.3"
    client = make_client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError) as error:
        connect(server, client)
    assert error.value.reason == "UNSUPPORTED_PROTOCOL"


def test_a_client_that_trusts_the_self_signed_certificate_can_verify_it() -> None:
    certificate = load_certificate(None)
    server = make_context(TlsSettings(), certificate)
    client = ssl.create_default_context(cadata=certificate.chain.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    here = connect(server, client)[1]
    peer: Any = here.tls.getpeercert()
    assert peer["subject"] == ((("organizationName", "Inference Ext"),),)
    assert peer["subjectAltName"] == (("DNS", "localhost"), ("IP Address", "127.0.0.1"))
    years = ssl.cert_time_to_seconds(peer["notAfter"]) - datetime.now(UTC).timestamp()
    assert years / 86400 / 365 == pytest.approx(10, abs=0.01)


def test_each_start_generates_another_self_signed_certificate() -> None:
    first, second = load_certificate(None), load_certificate(None)
    assert first.key != second.key
    assert first.source == "self-signed"


def test_the_certificate_of_the_directory_is_the_one_served(tmp_path: Path) -> None:
    key = make_key()
    chain = make_chain(key)
    make_directory(tmp_path, chain=chain + make_chain(make_key()), key=pem(key))
    settings = TlsSettings(certificate_directory=tmp_path)
    with capture_logs() as lines:
        server = make_context(settings, load_certificate(settings.certificate_directory))
    client = make_client()
    der = connect(server, client)[1].tls.getpeercert(binary_form=True)
    assert der == ssl.PEM_cert_to_DER_cert(chain.decode())
    assert lines == []


def test_grpc_serves_with_the_same_certificate() -> None:
    certificate = load_certificate(None)
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials([(certificate.key, certificate.chain)])
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        trust = grpc.ssl_channel_credentials(root_certificates=certificate.chain)
        with grpc.secure_channel(f"127.0.0.1:{port}", trust) as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
    finally:
        server.stop(None).wait()


def cipher_of(server: ssl.SSLContext, offered: str) -> str:
    client = make_client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    client.set_ciphers(offered)
    chosen = connect(server, client)[0].tls.cipher()
    assert chosen is not None
    return chosen[0]


@pytest.mark.parametrize(
    ("ciphers", "expected"),
    [
        ((), "ECDHE-RSA-AES128-GCM-SHA256"),
        ((GCM_256,), "ECDHE-RSA-AES256-GCM-SHA384"),
        ((GCM_256, GCM_128), "ECDHE-RSA-AES256-GCM-SHA384"),
        ((GCM_128, GCM_256), "ECDHE-RSA-AES128-GCM-SHA256"),
        (("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",), "ECDHE-RSA-CHACHA20-POLY1305"),
        (("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",), "ECDHE-RSA-CHACHA20-POLY1305"),
    ],
    ids=[
        "the default's first",
        "the only one",
        "the server's order, not the client's",
        "the other way round",
        "ChaCha20",
        "Go's older name",
    ],
)
def test_the_first_cipher_suite_that_both_have_is_chosen(
    rsa_certificate: Certificate, ciphers: tuple[str, ...], expected: str
) -> None:
    server = make_context(TlsSettings(ciphers=ciphers), rsa_certificate)
    assert cipher_of(server, "ECDHE+AESGCM:ECDHE+CHACHA20") == expected


@pytest.mark.parametrize(
    ("ciphers", "offered"),
    [
        ((GCM_256,), "ECDHE-RSA-AES128-GCM-SHA256"),
        ((), "AES128-GCM-SHA256"),
        ((), "ECDHE-RSA-AES128-SHA256"),
        ((), "DHE-RSA-AES128-GCM-SHA256"),
    ],
    ids=["not in the list", "no forward secrecy", "CBC", "no elliptic curve"],
)
def test_a_client_with_other_cipher_suites_only_is_refused(
    rsa_certificate: Certificate, ciphers: tuple[str, ...], offered: str
) -> None:
    server = make_context(TlsSettings(ciphers=ciphers), rsa_certificate)
    with pytest.raises(ssl.SSLError) as error:
        cipher_of(server, offered)
    assert error.value.reason == "NO_SHARED_CIPHER"


def test_tls_1_3_suites_among_others_are_ignored_with_a_warning(
    rsa_certificate: Certificate,
) -> None:
    settings = TlsSettings(ciphers=("TLS_AES_128_GCM_SHA256", GCM_256))
    with capture_logs() as lines:
        server = make_context(settings, rsa_certificate)
    assert lines == [
        {
            "log_level": "warning",
            "event": "TLS 1.3 cipher suites were ignored",
            "suites": ["TLS_AES_128_GCM_SHA256"],
            "reason": "they are always enabled",
        }
    ]
    assert cipher_of(server, "ECDHE+AESGCM") == "ECDHE-RSA-AES256-GCM-SHA384"


def test_suites_that_do_not_match_the_certificate_cause_a_warning() -> None:
    settings = TlsSettings(ciphers=(GCM_128,))
    with capture_logs() as lines:
        server = make_context(settings, load_certificate(settings.certificate_directory))
    assert lines == [
        {
            "log_level": "warning",
            "event": "no cipher suite matches the type of the certificate's key",
            "certificate": "self-signed",
            "key": "ECDSA",
            "suites": [GCM_128],
            "effect": "clients without TLS 1.3 cannot connect",
        }
    ]
    with pytest.raises(ssl.SSLError, match="NO_SHARED_CIPHER"):
        cipher_of(server, "ECDHE+AESGCM")
    with capture_logs() as lines:  # no such client is expected
        make_context(
            TlsSettings(ciphers=(GCM_128,), minimum_version="1.3"),
            load_certificate(settings.certificate_directory),
        )
    assert lines == []


@pytest.mark.parametrize(
    ("ciphers", "text"),
    [
        (
            ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"),
            (
                "cipher suites TLS_AES_256_GCM_SHA384, TLS_CHACHA20_POLY1305_SHA256: all are"
                " TLS 1.3 suites, which Python cannot select, so none is left for TLS 1.2;"
                f" give none for the default, or some of {KNOWN}"
            ),
        ),
        (
            (GCM_128, "ECDHE-RSA-AES128-GCM-SHA256"),
            f"cipher suite 'ECDHE-RSA-AES128-GCM-SHA256': unknown; supported are {KNOWN}",
        ),
        (("",), f"cipher suite '': unknown; supported are {KNOWN}"),
        *(
            (
                (name,),
                (
                    f"cipher suite {name}: prohibited in HTTP/2 (RFC 9113 appendix A);"
                    f" supported are {KNOWN}"
                ),
            )
            for name in (
                "TLS_RSA_WITH_AES_128_GCM_SHA256",
                "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
                "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
            )
        ),
    ],
    ids=["only TLS 1.3", "OpenSSL's name", "empty", "no forward secrecy", "CBC", "RC4"],
)
def test_an_unsupported_cipher_list_is_an_error(
    rsa_certificate: Certificate, ciphers: tuple[str, ...], text: str
) -> None:
    with pytest.raises(TlsError) as error:
        make_context(TlsSettings(ciphers=ciphers), rsa_certificate)
    assert str(error.value) == text


def test_suites_that_openssl_was_built_without_are_an_error(
    rsa_certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tls._TLS12_SUITES, GCM_128, "NOT-BUILT-IN")
    with pytest.raises(TlsError) as error:
        make_context(TlsSettings(ciphers=(GCM_128,)), rsa_certificate)
    assert str(error.value) == (
        f"cipher suites {GCM_128}: this build of OpenSSL supports none of them"
        f" ({ssl.OPENSSL_VERSION}); give others, or none for the default"
    )


@pytest.mark.parametrize(
    ("flag", "version"), [("", "1.2"), ("VersionTLS12", "1.2"), ("VersionTLS13", "1.3")]
)
def test_the_flag_names_the_minimum_version(flag: str, version: str) -> None:
    assert minimum_version_from_flag(flag) == version


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("VersionTLS10", "VersionTLS10: HTTP/2 needs TLS 1.2 (RFC 9113 section 9.2)"),
        ("VersionTLS11", "VersionTLS11: HTTP/2 needs TLS 1.2 (RFC 9113 section 9.2)"),
        ("1.2", "'1.2': unknown"),
    ],
)
def test_versions_that_are_too_old_or_unknown_are_errors(flag: str, text: str) -> None:
    with pytest.raises(TlsError) as error:
        minimum_version_from_flag(flag)
    assert str(error.value) == f"minimum TLS version {text}; give VersionTLS12 or VersionTLS13"


def load_error(directory: Path) -> str:
    with pytest.raises(TransportError) as error:
        load_certificate(directory)
    assert isinstance(error.value, TlsError)
    return str(error.value)


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    assert load_error(tmp_path / "absent") == (
        f"{tmp_path}/absent: the directory does not exist; name a directory with tls.crt and"
        " tls.key, or none for a self-signed certificate"
    )


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tls.crt"
    path.touch()
    assert load_error(path).startswith(f"{path}: not a directory; name a directory with tls.crt")


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    make_directory(tmp_path, chain=make_chain(make_key()))
    (tmp_path / "tls.key").mkdir()  # permissions would not stop a test that runs as root
    assert load_error(tmp_path) == (
        f"{tmp_path}/tls.key: the file cannot be read (Is a directory);"
        " make it readable to this process"
    )


BROKEN = b"-----BEGIN CERTIFICATE-----\nbm90IGEgY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n"
NO_CERTIFICATE = (
    "{0}/tls.crt: contains no readable PEM certificate;"
    " it should begin with -----BEGIN CERTIFICATE-----"
)
NO_KEY = (
    "{0}/tls.key: contains no readable PEM private key;"
    " it should begin with -----BEGIN PRIVATE KEY-----"
)
MISSING = "{0}/{1}: the file is missing; the directory needs both tls.crt and tls.key"
MISMATCH = (
    "{0}/tls.key: the key does not match the first certificate in {0}/tls.crt;"
    " use the key and certificate of one issue, with the server's own certificate first"
)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"tls.crt": None}, MISSING.replace("{1}", "tls.crt")),
        ({"tls.key": None}, MISSING.replace("{1}", "tls.key")),
        ({"tls.crt": b""}, NO_CERTIFICATE),
        ({"tls.crt": b"\xff\x00"}, NO_CERTIFICATE),
        ({"tls.crt": BROKEN}, NO_CERTIFICATE),
        ({"tls.key": b""}, NO_KEY),
        ({"tls.key": b"\xff\x00"}, NO_KEY),
        ({"tls.key": BROKEN}, NO_KEY),
        ({"tls.key": pem(make_key())}, MISMATCH),
        ({"tls.key": pem(make_key(2048))}, MISMATCH),
        (
            {"tls.key": pem(make_key(), b"secret")},
            (
                "{0}/tls.key: the private key is encrypted; decrypt it, for example with:"
                " openssl pkey -in {0}/tls.key -out decrypted.key"
            ),
        ),
    ],
    ids=[
        "certificate missing",
        "key missing",
        "certificate empty",
        "certificate binary",
        "certificate broken",
        "key empty",
        "key binary",
        "key is a certificate",
        "another key of the same kind",
        "a key of another kind",
        "key encrypted",
    ],
)
def test_a_wrong_file_is_an_error(
    tmp_path: Path, changed: dict[str, bytes | None], error: str
) -> None:
    key = make_key()
    make_directory(tmp_path, chain=make_chain(key), key=pem(key))
    for name, content in changed.items():
        if content is None:
            (tmp_path / name).unlink()
        else:
            (tmp_path / name).write_bytes(content)
    assert load_error(tmp_path) == error.format(tmp_path)


def test_a_key_too_weak_for_openssl_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_MEMORY", tmp_path)
    with pytest.raises(TlsError) as error:
        make_context(TlsSettings(), make_certificate(make_key(1024)))
    assert str(error.value) == (
        "made by the test: OpenSSL rejects the certificate or its key (EE_KEY_TOO_SMALL);"
        " have it reissued, with an EC key on P-256 or an RSA key of 2048 bits"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("days", "event"),
    [((-2, -1), "certificate has expired"), ((1, 2), "certificate is not valid yet")],
    ids=["expired", "not yet valid"],
)
def test_a_certificate_out_of_its_dates_is_served_with_a_warning(
    tmp_path: Path, days: tuple[float, float], event: str
) -> None:
    key = make_key()
    chain = make_chain(key, begins_in_days=days[0], ends_in_days=days[1])
    settings = TlsSettings(
        certificate_directory=make_directory(tmp_path, chain=chain, key=pem(key))
    )
    with capture_logs() as lines:
        certificate = load_certificate(settings.certificate_directory)
    assert [(line["event"], line["log_level"]) for line in lines] == [(event, "warning")]
    assert lines[0]["path"] == f"{tmp_path}/tls.crt"
    connect(make_context(settings, certificate), make_client())


def test_the_key_file_exists_only_while_openssl_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[int] = []

    load = ssl.SSLContext.load_cert_chain

    def look(context: ssl.SSLContext, chain: Path, key: Path) -> None:
        modes.append(stat.S_IMODE(key.parent.stat().st_mode))
        load(context, chain, key)

    monkeypatch.setattr(tls, "_MEMORY", tmp_path)
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", look)
    make_context(TlsSettings(), load_certificate(None))
    assert modes == [0o700]
    assert list(tmp_path.iterdir()) == []


def test_without_a_temporary_directory_tls_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "_MEMORY", tmp_path / "absent")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent, too"))
    with pytest.raises(TlsError) as error:
        make_context(TlsSettings(), load_certificate(None))
    text = str(error.value)
    assert text.startswith(f"{tmp_path}/absent, too/epp-tls-")
    assert text.endswith(
        ": the key cannot be written to a file for OpenSSL (No such file or directory);"
        " make /dev/shm or the directory in TMPDIR writable"
    )


def test_the_key_is_not_in_the_certificates_representation() -> None:
    certificate = load_certificate(None)
    assert "PRIVATE KEY" not in repr(certificate)
