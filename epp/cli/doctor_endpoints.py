"""Finds the endpoints that ``epp doctor`` queries, in the same way as ``epp serve``."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from epp.cli.doctor_options import ServeOptions
from epp.config import GraphBuilder, PluginGraph
from epp.data_layer import (
    DiscoveryError,
    EndpointDiscovery,
    EndpointSpec,
    fixed_discoveries,
)
from epp.doctor import DoctorError
from epp.doctor.running import RunningPicker
from epp.kubernetes.source import PodSource, PoolsSource

_SECONDS: Final = 10.0


class _Found:
    """Collects the first report of each discovery."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._by_source: dict[str, tuple[EndpointSpec, ...]] = {}
        self.all_reported = asyncio.Event()

    def replace_endpoints(self, source: str, specs: Iterable[EndpointSpec]) -> None:
        self._by_source[source] = tuple(specs)
        if len(self._by_source) == self._missing:
            self.all_reported.set()

    @property
    def specs(self) -> tuple[EndpointSpec, ...]:
        return tuple(spec for specs in self._by_source.values() for spec in specs)


async def find_endpoints(
    options: ServeOptions,
    builder: GraphBuilder,
    graph: PluginGraph | None,
    pods: PodSource | PoolsSource | None,
    picker: RunningPicker | None,
) -> Sequence[EndpointSpec] | None:
    """Return the endpoints; None without any source of them, or if no source reported in time.

    The first of these sources that exists is used: the options, the pods of one pool, the discovery
    of the configuration, a running endpoint picker.

    Raises:
        DoctorError: The endpoints could not be read.
        ConfigError: An option is invalid.
    """
    discoveries: list[EndpointDiscovery] = []
    try:
        if options.has_endpoints:
            discoveries = fixed_discoveries(
                builder,
                options.values["endpoints"],
                options.values["endpoints_file"],
                options.values["endpoint_dns"],
            )
        elif isinstance(pods, PodSource):
            # Imported late: Kubernetes is an extra.
            from epp.kubernetes.discovery import KubernetesDiscovery  # noqa: PLC0415

            discoveries = [KubernetesDiscovery(pods)]
        elif graph is not None and isinstance(graph.discovery, EndpointDiscovery):
            discoveries = [graph.discovery]
        elif picker is not None and picker.endpoints is not None:
            return [EndpointSpec(each.name, each.address) for each in picker.endpoints.endpoints]
        return await _reported(discoveries) if discoveries else None
    except DiscoveryError as error:
        raise DoctorError(str(error)) from None


async def _reported(discoveries: Sequence[EndpointDiscovery]) -> Sequence[EndpointSpec] | None:
    found = _Found(len(discoveries))
    try:
        async with asyncio.timeout(_SECONDS), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(each.run(found)) for each in discoveries]
            await found.all_reported.wait()
            for task in running:
                task.cancel()
    except TimeoutError:
        return None
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return found.specs
