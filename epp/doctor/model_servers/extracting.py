"""Runs the configured data sources and extractors on the pages of a model server."""

import asyncio
from typing import Final

from epp.config import PluginGraph
from epp.data_layer import DataSource, EndpointSpec, Extractor, ScrapeError
from epp.doctor.model_servers.server import Extraction
from epp.scheduling import PLUGIN_FAULTS, Endpoint, EndpointMetrics

_TIMEOUT_SECONDS: Final = 10.0


async def extract(
    spec: EndpointSpec, graph: PluginGraph
) -> tuple[tuple[Extraction, ...], EndpointMetrics]:
    """Return the result of each page, and the extracted metrics."""
    endpoint = Endpoint(spec.name, spec.address, spec.labels, node_address=spec.node_address)
    found: list[Extraction] = []
    for binding in graph.sources:
        source = binding.source
        if isinstance(source, DataSource):
            extractors = [each for each in binding.extractors if isinstance(each, Extractor)]
            found += await _of_source(source, extractors, endpoint)
    return tuple(found), endpoint.metrics


async def _of_source(
    source: DataSource, extractors: list[Extractor], endpoint: Endpoint
) -> list[Extraction]:
    try:
        client = source.open(endpoint)
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                page = await client.get()
        finally:
            client.close()
    except PLUGIN_FAULTS as error:
        return [Extraction(source.name, "", _fault_text(error))]
    found = []
    for extractor in extractors:
        fault = ""
        try:
            extractor.extract(endpoint, page)
        except PLUGIN_FAULTS as error:
            fault = _fault_text(error)
        found.append(Extraction(source.name, extractor.name, fault))
    return found


def _fault_text(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return f"no response for {_TIMEOUT_SECONDS:g} s"
    return str(error) if isinstance(error, ScrapeError) else f"{type(error).__name__}: {error}"
