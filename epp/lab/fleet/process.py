"""The process of one fake server: the state that a restart loses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from epp.lab.fleet.api import ApiParser
from epp.lab.fleet.config import EngineType
from epp.lab.fleet.driver import EngineDriver
from epp.lab.fleet.engine_config import EngineConfig
from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.kv_events import KvEvent, KvEventSource
from epp.lab.fleet.metrics_endpoint import RenderablePage
from epp.lab.fleet.metrics_page import MetricsPage
from epp.lab.fleet.ranks import EngineRanks
from epp.lab.fleet.self_load import StepLag
from epp.lab.fleet.sglang_page import SglangPage
from epp.lab.fleet.stages import WorkStage

_TRIES = 5
_MAX_DIGITS = 10


class FakeProcess:
    """Engines that run on the event loop, with their models and their metrics."""

    def __init__(
        self,
        config: EngineConfig,
        ranks: int,
        *,
        model: str,
        name: str,
        engine_type: EngineType,
        restarts: int,
        stages: Mapping[WorkStage, int],
        lag: StepLag,
        started_at: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        wall = time.time()
        self.name = name
        """Name in `x-served-by`."""
        self.engine_type = engine_type
        """The program that it imitates."""
        self.restarts = restarts
        """How often the server had restarted before."""
        self.created = int(wall)
        """Start of the process, in seconds since the epoch."""
        self._ranks = EngineRanks(config, ranks)
        self.engines = self._ranks.engines
        """The simulated engine of each data-parallel rank."""
        self.drivers = tuple(
            EngineDriver(engine, loop, lag, rank, started_at)
            for rank, engine in enumerate(self.engines)
        )
        """They run the engines."""
        self.api = ApiParser(
            model=model, adapters=config.adapters, max_model_len=config.max_model_len
        )
        """Parses requests for its models."""
        self._wall_offset = _wall_offset()
        self.page: RenderablePage = (
            MetricsPage(
                self.engines, stages, model=model, created=wall, wall_offset=self._wall_offset
            )
            if engine_type is EngineType.VLLM
            else SglangPage(self.engines[0], model=model)
        )
        """Its metrics."""

    @property
    def common_headers(self) -> bytes:
        """Header lines of every response."""
        return f"server: fake-{self.engine_type.value}\r\nx-served-by: {self.name}\r\n".encode()

    def driver_for(self, rank: bytes | None) -> EngineDriver:
        """Return the driver of a rank, or of the least loaded one.

        Args:
            rank: Value of the header `x-data-parallel-rank`; None without it.

        Raises:
            ApiError: There is no such rank.
        """
        if rank is None:
            return self.drivers[self._ranks.least_loaded()]
        number = int(rank) if rank.isdigit() and len(rank) < _MAX_DIGITS else -1
        if not 0 <= number < len(self.drivers):
            raise VllmApiError(
                f"data_parallel_rank {rank.decode('latin-1')} is out of range"
                f" [0, {len(self.drivers)})"
            )
        return self.drivers[number]

    def send_events(self, publish: Sequence[Callable[[list[KvEvent]], None]]) -> None:
        """Call the function of each rank with the KV events of each change."""
        for driver, call in zip(self.drivers, publish, strict=True):
            source = KvEventSource(driver.engine.config.block_size)
            driver.engine.kv.observer = source
            driver.after_submit = source.attach
            driver.after_change = partial(_publish, source, call)

    def wall_time(self, engine_time: float, rank: int) -> float:
        """Return the seconds since the epoch at a past time of the clock of an engine."""
        return self.drivers[rank].loop_time(engine_time) + self._wall_offset


def _publish(source: KvEventSource, call: Callable[[list[KvEvent]], None]) -> None:
    call(source.take())


def _wall_offset() -> float:
    """Return the seconds since the epoch minus the clock of asyncio and uvloop.

    Does not use `loop.time`, which uvloop updates once per turn. Takes the largest of several
    differences, because a pause between the two calls makes a difference smaller.
    """
    return max(time.time() - time.monotonic() for _ in range(_TRIES))
