"""Endpoints given on the command line.

``--endpoint [name=]host:port`` is fixed: a host name is resolved once, at start, because the
gateway needs an ``ip:port``. ``--endpoints-file`` and ``--endpoint-dns`` are followed, by plugins.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar

from epp.config import GraphBuilder
from epp.data_layer.address import join_address, split_address
from epp.data_layer.errors import DiscoveryError, EndpointOptionError
from epp.data_layer.plugins import EndpointDiscovery, EndpointSink, EndpointSpec

Resolver = Callable[[str], Awaitable[str]]
"""Turns a host name into one IP address; raises OSError if it has none."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*)(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")


@dataclass(frozen=True, slots=True)
class StaticEndpoint:
    """One parsed ``--endpoint`` value."""

    name: str
    """``namespace/name``; the namespace is ``default`` unless given."""
    host: str
    """IP address without brackets, or a host name."""
    port: int


def parse_endpoint(value: str, index: int) -> StaticEndpoint:
    """Parse ``[name=]host:port``, the ``index``-th of the command line (from 0).

    Raises:
        EndpointOptionError: It has another form.
    """
    name, equals, address = value.rpartition("=")
    name = name.strip()
    if not equals:
        name = f"endpoint-{index}"
    elif not _NAME.fullmatch(name):
        raise EndpointOptionError(
            f"--endpoint {value!r}: name {name!r} must be NAME or NAMESPACE/NAME of letters, "
            f"digits, '-', '_' and '.'"
        )
    try:
        host, port = split_address(address.strip())
    except ValueError as error:
        raise EndpointOptionError(f"--endpoint {value!r}: {error}") from None
    return StaticEndpoint(name if "/" in name else f"default/{name}", host, port)


async def resolve_host(host: str) -> str:
    """Return the first address of ``host`` from the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


class StaticDiscovery(EndpointDiscovery):
    """Reports a fixed list of endpoints once.

    Args:
        values: The ``--endpoint`` values.
        name: Source name that errors and the store use.
        resolve: Resolves host names.

    Raises:
        EndpointOptionError: A value has the wrong form.
    """

    type: ClassVar[str] = "static-discovery"

    def __init__(
        self, values: Sequence[str], *, name: str = "--endpoint", resolve: Resolver = resolve_host
    ) -> None:
        self.name = name
        self._endpoints = [parse_endpoint(value, index) for index, value in enumerate(values)]
        self._resolve = resolve

    async def run(self, sink: EndpointSink) -> None:
        specs = await asyncio.gather(*(self._spec(endpoint) for endpoint in self._endpoints))
        sink.replace_endpoints(self.name, specs)
        await asyncio.Event().wait()

    async def _spec(self, endpoint: StaticEndpoint) -> EndpointSpec:
        return EndpointSpec(
            endpoint.name, join_address(await self._address(endpoint), endpoint.port)
        )

    async def _address(self, endpoint: StaticEndpoint) -> str:
        try:
            return str(ip_address(endpoint.host))
        except ValueError:
            pass
        try:
            return await self._resolve(endpoint.host)
        except (OSError, UnicodeError) as error:
            raise DiscoveryError(
                f"--endpoint {endpoint.host}:{endpoint.port}: the host name does not resolve "
                f"({error}); give an IP address or check DNS"
            ) from error


def fixed_discoveries(
    builder: GraphBuilder,
    endpoints: Sequence[str],
    endpoints_file: Path | None,
    endpoint_dns: Sequence[str] = (),
) -> list[EndpointDiscovery]:
    """Return the discoveries of the command line.

    Args:
        builder: Creates the plugins that follow a file and DNS names.
        endpoints: Values of ``--endpoint``.
        endpoints_file: Value of ``--endpoints-file``.
        endpoint_dns: Values of ``--endpoint-dns``.

    Raises:
        ConfigError: One of ``endpoint_dns`` is not a DNS name, or dnspython is missing.
        EndpointOptionError: One of ``endpoints`` or ``endpoint_dns`` has the wrong form.
    """
    discoveries: list[EndpointDiscovery] = []

    def follow(plugin_type: str, flag: str, parameters: Mapping[str, Any]) -> None:
        # Like "--endpoint", a source name that cannot clash with a configured plugin.
        made = builder.make(plugin_type, flag, parameters)
        assert isinstance(made, EndpointDiscovery)  # noqa: S101 - it is installed with us
        discoveries.append(made)

    if endpoints_file is not None:
        follow("file-discovery", "--endpoints-file", {"path": str(endpoints_file)})
    if endpoint_dns:
        names = [_dns_name(value) for value in endpoint_dns]
        follow("dns-discovery", "--endpoint-dns", {"names": names})
    if endpoints:
        discoveries.append(StaticDiscovery(endpoints))
    return discoveries


def _dns_name(value: str) -> dict[str, Any]:
    """Return ``NAME:PORT``, or ``NAME`` with SRV records, as a parameter of ``dns-discovery``.

    Raises:
        EndpointOptionError: The port is invalid or missing, or it is an address.
    """
    if ":" not in value:
        if value.startswith("_"):
            return {"hostname": value, "records": "srv"}
        raise EndpointOptionError(
            f"--endpoint-dns {value!r}: the port is missing, expected NAME:PORT; only names of SRV"
            " records, such as _http._tcp.vllm, have none"
        )
    try:
        host, port = split_address(value)
    except ValueError as error:
        raise EndpointOptionError(f"--endpoint-dns {value!r}: {error}") from None
    try:
        ip_address(host)
    except ValueError:
        return {"hostname": host, "ports": [port]}
    raise EndpointOptionError(
        f"--endpoint-dns {value!r}: it is an IP address; give it with --endpoint"
    )
