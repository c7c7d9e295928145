"""Parameters of :mod:`.dns_discovery`."""

import re
from ipaddress import ip_address
from typing import Annotated, Final, Literal

import msgspec

from epp.data_layer.plugins import split_address

_DNS_PORT: Final = 53
_HOST_NAME = re.compile(
    r"(?=.{1,254}\Z)(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?", re.I | re.ASCII
)
_SRV_NAME = re.compile(r"_[^.]+\._[^.]+\..+")


class DnsName(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """One name to follow."""

    hostname: str
    """The name; search domains apply unless it ends with a dot."""
    ports: list[Annotated[int, msgspec.Meta(ge=1, le=65535)]] = []
    """Ports of each address; none for SRV records."""
    records: Literal["address", "srv"] | None = None
    """Kind of the records; default: by the form of the name."""
    labels: dict[str, str] = {}
    """Labels of its endpoints."""

    def __post_init__(self) -> None:
        if not _HOST_NAME.fullmatch(self.hostname):
            raise ValueError(f"hostname {self.hostname!r} is not a DNS name")
        if _is_address(self.hostname):
            raise ValueError(
                f"hostname {self.hostname!r} is an IP address; list it with --endpoint or in an"
                " endpoints file"
            )
        if self.is_srv and self.ports:
            raise ValueError(
                "SRV records give the ports; remove `ports`, or set `records: address`"
            )
        if not self.is_srv and not self.ports:
            raise ValueError(
                f"`ports` is missing, such as `ports: [8000]`; for SRV records of {self.hostname!r}"
                " set `records: srv`"
            )

    @property
    def is_srv(self) -> bool:
        """Whether SRV records are looked up."""
        if self.records is None:
            return _SRV_NAME.match(self.hostname) is not None
        return self.records == "srv"


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``dns-discovery``."""

    names: Annotated[list[DnsName], msgspec.Meta(min_length=1)]
    """The names; the pool has the endpoints of all of them."""
    ip_families: Annotated[tuple[Literal["IPv4", "IPv6"], ...], msgspec.Meta(min_length=1)] = (
        "IPv4",
        "IPv6",
    )
    """Address families in order of preference: the first of which a host has addresses is used, so
    that a dual-stack server is one endpoint."""
    nameservers: list[str] = []
    """``ADDRESS`` or ``ADDRESS:PORT`` of the name servers to ask, instead of those in
    ``/etc/resolv.conf``."""
    min_refresh_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600.0)] = 1.0
    """Shortest time between two lookups of a name."""
    max_refresh_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600.0)] = 30.0
    """Longest time between two lookups of a name."""
    empty_after_seconds: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 5.0
    """Time for which all responses must have been empty before the endpoints of a name leave the
    pool; 0 for at once."""

    def __post_init__(self) -> None:
        if self.min_refresh_seconds > self.max_refresh_seconds:
            raise ValueError(
                f"minRefreshSeconds ({self.min_refresh_seconds:g}) is greater than"
                f" maxRefreshSeconds ({self.max_refresh_seconds:g})"
            )
        self.servers()

    def servers(self) -> list[tuple[str, int]]:
        """Return address and port of the name servers.

        Raises:
            ValueError: One is not an IP address, or the port is invalid.
        """
        return [_name_server(text) for text in self.nameservers]


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _name_server(text: str) -> tuple[str, int]:
    if _is_address(text):
        return text, _DNS_PORT
    try:
        host, port = split_address(text)
    except ValueError:
        host, port = "", 0
    if not _is_address(host):
        raise ValueError(f"name server {text!r} is not an IP address, or one with a port")
    return host, port
