"""Endpoints given on the command line: ``--endpoint [name=]host:port``, any number of times.

A host name is resolved once, at start, because the gateway needs an ``ip:port``. Later DNS changes
are not followed.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import ClassVar

from epp.config import GraphBuilder
from epp.data_layer.address import join_address, split_address
from epp.data_layer.errors import DiscoveryError
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
        DiscoveryError: It has another form.
    """
    name, equals, address = value.rpartition("=")
    name = name.strip()
    if not equals:
        name = f"endpoint-{index}"
    elif not _NAME.fullmatch(name):
        raise DiscoveryError(
            f"--endpoint {value!r}: name {name!r} must be NAME or NAMESPACE/NAME of letters, "
            f"digits, '-', '_' and '.'"
        )
    try:
        host, port = split_address(address.strip())
    except ValueError as error:
        raise DiscoveryError(f"--endpoint {value!r}: {error}") from None
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
        resolve: How host names become addresses.

    Raises:
        DiscoveryError: A value has the wrong form.
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
    builder: GraphBuilder, endpoints: Sequence[str], endpoints_file: Path | None
) -> list[EndpointDiscovery]:
    """Return the discoveries of the command line.

    Args:
        builder: Creates the plugin that follows a file.
        endpoints: Values of ``--endpoint``.
        endpoints_file: Value of ``--endpoints-file``.

    Raises:
        DiscoveryError: One of ``endpoints`` has the wrong form.
    """
    discoveries: list[EndpointDiscovery] = []
    if endpoints_file is not None:
        # Like "--endpoint", a source name that cannot clash with a configured plugin.
        made = builder.make("file-discovery", "--endpoints-file", {"path": str(endpoints_file)})
        assert isinstance(made, EndpointDiscovery)  # noqa: S101 - it is installed with us
        discoveries.append(made)
    if endpoints:
        discoveries.append(StaticDiscovery(endpoints))
    return discoveries
