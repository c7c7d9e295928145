"""Provides the metrics of simulated servers to the endpoint picker, as values or as pages.

While nothing is wrong with a server, the values of its engine become the endpoint's metrics
directly, as ``core-metrics-extractor`` would read them. Other sources and extractors, and servers
with faults, get pages as text. A page takes no virtual time unless a fault delays it.
"""

import asyncio
from collections.abc import Callable, Mapping

from epp.data_layer import Page, PageClient
from epp.data_layer.errors import ScrapeConnectError, ScrapeStatusError
from epp.lab.fleet.metrics_page import GARBLED_PAGE, MetricsPage
from epp.lab.simulation.prompts import MODEL
from epp.lab.simulation.servers import UNAVAILABLE, SimulatedServer
from epp.scheduling import EndpointMetrics

_METRICS_PATH = "/metrics"
_NOT_FOUND = 404


class ServerPage:
    """A client for one page of a simulated server."""

    def __init__(self, server: SimulatedServer, path: str, clock: Callable[[], float]) -> None:
        self._server = server
        self._path = path
        self._clock = clock
        self._stale_page: bytes | None = None

    async def get(self) -> Page:
        requested_at = self._clock()
        faults = self._server.faults
        if faults.refuse:
            raise ScrapeConnectError(f"{self._server.address} refused the connection")
        if faults.hang:
            await asyncio.Event().wait()
        if faults.loading:
            raise ScrapeStatusError(UNAVAILABLE)
        if self._path == _METRICS_PATH:
            if faults.metrics_delay_seconds:
                await asyncio.sleep(faults.metrics_delay_seconds)
            return Page(self._metrics(), requested_at)
        if self._path == "/health":
            if faults.health_status is not None:
                raise ScrapeStatusError(faults.health_status)
            return Page(b"", requested_at)
        raise ScrapeStatusError(_NOT_FOUND)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _metrics(self) -> bytes:
        faults = self._server.faults
        if faults.metrics_status is not None:
            raise ScrapeStatusError(faults.metrics_status)
        if faults.garbled_metrics:
            return GARBLED_PAGE
        if not faults.stale_metrics:
            self._stale_page = None
        page = self._stale_page
        if page is None:
            self._server.advance()
            engine = self._server.engine
            page = MetricsPage([engine], {}, model=MODEL, created=0.0, wall_offset=0.0).render()
        if faults.stale_metrics:
            self._stale_page = page
        left_out = tuple(f"vllm:{name}" for name in faults.left_out_metrics)
        if left_out:
            kept = [
                line for line in page.decode().splitlines(True) if not line.startswith(left_out)
            ]
            page = "".join(kept).encode()
        return page


def page_opener(
    servers: Mapping[str, SimulatedServer], clock: Callable[[], float]
) -> Callable[..., PageClient]:
    """Return the service ``open_page`` for simulated servers by address."""

    def open_page(address: str, path: str, tls: object = None, /) -> PageClient:
        del tls
        return ServerPage(servers[address], path, clock)

    return open_page


def engine_metrics(server: SimulatedServer, now: float, last: EndpointMetrics) -> EndpointMetrics:
    """Return the values that the server's page would have; ``last`` are the previous ones."""
    engine = server.engine_at(now)
    config, stats = engine.config, engine.stats
    waiting_count = engine.num_waiting + config.phantom_waiting
    running_count = engine.num_running
    usage = engine.kv_usage_at(now)
    if (
        usage == last.kv_cache_usage
        and running_count == last.running_requests
        and waiting_count == last.waiting_requests
        and stats.prompt_tokens == last.prompt_tokens
        and last.cache_blocks
        and not config.adapters
    ):
        return last.requested(now)
    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    # As on the page of vLLM, adapters are those of the last step.
    series = engine.lora_series.items() if config.adapters else ()
    if series:
        running_names, waiting_names, _ = series[-1]
        running = frozenset(filter(None, running_names.split(",")))
        waiting = frozenset(filter(None, waiting_names.split(","))) - running
    return EndpointMetrics(
        waiting_count,
        running_count,
        usage,
        running,
        waiting,
        config.max_loras if config.adapters else 0,
        config.block_size,
        config.num_blocks,
        now,
        stats.prompt_tokens,
        stats.prompts,
    )
