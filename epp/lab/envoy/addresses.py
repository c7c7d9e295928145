"""Parses the addresses in a gateway's settings: those of Envoy and of model servers."""

from ipaddress import AddressValueError, IPv4Address, IPv6Address

from epp.inputs import MAX_PORT


def parse_ip(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address (IPv6 without brackets); return None if `text` is not one."""
    for family in (IPv4Address, IPv6Address):
        try:
            return family(text)
        except AddressValueError:
            continue
    return None


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Split `ip:port` or `[ip]:port` into an address without brackets and a port.

    Raises:
        ValueError: `endpoint` has neither form.
    """
    host, _, port = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    address = parse_ip(host[1:-1] if bracketed else host)
    if (
        address is None
        or bracketed != isinstance(address, IPv6Address)
        or not (port.isascii() and port.isdigit() and 1 <= int(port) <= MAX_PORT)
    ):
        raise ValueError(f"endpoints: not ip:port or [ip]:port: {endpoint!r}")
    return str(address), int(port)
