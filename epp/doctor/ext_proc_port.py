"""Detects whether an endpoint picker's ext_proc port speaks HTTP/2 in plaintext or over TLS."""

import socket
import ssl
from dataclasses import dataclass
from typing import Final

_TIMEOUT_SECONDS: Final = 3.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
"""A client's connection preface (RFC 9113 §3.4): the magic string and an empty SETTINGS frame."""
_SETTINGS: Final = 4
_TYPE_AT: Final = 3
"""Offset of the type in a frame."""


@dataclass(frozen=True, slots=True)
class ExtProcPort:
    """The ext_proc port and its protocol."""

    address: str
    speaks_tls: bool | None
    """Whether it speaks HTTP/2 over TLS, not in plaintext; None if it does not speak HTTP/2."""
    fault: str = ""
    """Why it does not respond; "" if it responds."""


def ask_port(host: str, port: int) -> ExtProcPort:
    """Return the protocol of the port; blocks."""
    address = f"{host}:{port}"
    try:
        if _responds_in_http2(host, port, None):
            return ExtProcPort(address, speaks_tls=False)
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # Envoy verifies the certificate
        context.set_alpn_protocols(["h2"])
        if _responds_in_http2(host, port, context):
            return ExtProcPort(address, speaks_tls=True)
    except OSError as error:  # including ssl.SSLError and TimeoutError
        return ExtProcPort(address, None, error.strerror or str(error))
    return ExtProcPort(address, None, "it does not speak HTTP/2")


def _responds_in_http2(host: str, port: int, context: ssl.SSLContext | None) -> bool:
    with socket.create_connection((host, port), _TIMEOUT_SECONDS) as plain:
        if context is None:
            try:
                return _exchange(plain)
            except OSError:
                return False  # a TLS server may reset the connection
        with context.wrap_socket(plain, server_hostname=host) as encrypted:
            return _exchange(encrypted)


def _exchange(connection: socket.socket) -> bool:
    connection.sendall(_PREFACE)
    head = connection.recv(_TYPE_AT + 1)
    return len(head) > _TYPE_AT and head[_TYPE_AT] == _SETTINGS
