"""Addresses in the form that the gateway takes: ``ip:port``, an IPv6 address in brackets."""

from epp.inputs import MAX_PORT


def split_address(address: str) -> tuple[str, int]:
    """Return host (without brackets) and port of ``host:port``.

    Raises:
        ValueError: It is malformed; the message says which part.
    """
    if "://" in address:
        raise ValueError("it is a URL, expected host:port without a scheme and a path")
    host, colon, digits = address.rpartition(":")
    if not colon:
        raise ValueError("the port is missing, expected host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("an IPv6 address needs brackets, as in [::1]:8000")
    if not host:
        raise ValueError("the host is missing, expected host:port")
    if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= MAX_PORT):
        raise ValueError(f"port {digits!r} is not a number from 1 to {MAX_PORT}")
    return host, int(digits)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
