"""The process of one fake server: all that a restart loses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from epp.lab.fleet.api import ApiParser
from epp.lab.fleet.config import EngineConfig, EngineType
from epp.lab.fleet.driver import EngineDriver
from epp.lab.fleet.engine import Engine
from epp.lab.fleet.metrics_endpoint import Page
from epp.lab.fleet.metrics_page import MetricsPage
from epp.lab.fleet.self_load import StepLag
from epp.lab.fleet.sglang_page import SglangPage
from epp.lab.fleet.stages import Stage

_TRIES = 5


class FakeProcess:
    """An engine that runs on the event loop, with its models and its metrics."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        model: str,
        name: str,
        engine_type: EngineType,
        restarts: int,
        stages: Mapping[Stage, int],
        lag: StepLag,
    ) -> None:
        loop = asyncio.get_running_loop()
        wall = time.time()
        self.name = name
        """Name in `x-served-by`."""
        self.engine_type = engine_type
        """What it imitates."""
        self.restarts = restarts
        """How often the server had restarted before."""
        self.created = int(wall)
        """Start of the process, in seconds since the epoch."""
        self.engine = Engine(config)
        """The simulated engine."""
        self.driver = EngineDriver(self.engine, loop, lag)
        """Runs the engine."""
        self.api = ApiParser(
            model=model, adapters=config.adapters, max_model_len=config.max_model_len
        )
        """Parses requests for its models."""
        self._wall_offset = _wall_offset()
        self.page: Page = (
            MetricsPage(
                self.engine, stages, model=model, created=wall, wall_offset=self._wall_offset
            )
            if engine_type is EngineType.VLLM
            else SglangPage(self.engine, model=model)
        )
        """Its metrics."""

    @property
    def common_headers(self) -> bytes:
        """Header lines of every response."""
        return f"server: fake-{self.engine_type.value}\r\nx-served-by: {self.name}\r\n".encode()

    def wall_time(self, engine_time: float) -> float:
        """Return the seconds since the epoch at a past time of the engine's clock."""
        return self.driver.loop_time(engine_time) + self._wall_offset


def _wall_offset() -> float:
    """Return the seconds since the epoch minus the clock of asyncio and uvloop.

    Not of `loop.time`, which uvloop updates once per turn; the largest of some differences, as a
    pause between both calls makes one smaller.
    """
    return max(time.time() - time.monotonic() for _ in range(_TRIES))
