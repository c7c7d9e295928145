"""Settings of the fake fleet: number and speed of its servers, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from epp.lab.fleet.engine_config import EngineConfig
from epp.lab.fleet.errors import require

MAX_PORT = 65_535


class KvEventFormat(Enum):
    """How a KV event is encoded."""

    MAP = "map"
    ARRAY = "array"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventsConfig:
    """KV events of a fleet."""

    first_port: int = 0
    """Port of the events of `endpoint-0`; its replay socket has the next port, each further rank
    and server the next two. 0 for any free ports."""
    format: KvEventFormat = KvEventFormat.MAP
    """Encoding of an event: a map as of vLLM 0.32, an array as of SGLang and older versions."""

    def ports_of(self, publisher: int) -> tuple[int, int]:
        """Return the ports of the events and of the replay socket of a rank; 0 for any.

        Args:
            publisher: Index of the rank, counted over all servers.
        """
        first = self.first_port + 2 * publisher
        return (first, first + 1) if self.first_port else (0, 0)


class EngineType(Enum):
    """The program that a server imitates; the values are those of the EPP's metrics engines."""

    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A fleet of fake vLLM servers in one process.

    Raises:
        ConfigError: A count, port or endpoint index is out of range, or the settings of an engine
            contradict each other.
    """

    endpoints: int = 4
    """Number of servers, named `endpoint-0`, `endpoint-1` …"""
    model: str = "tiny"
    """Name of the base model."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    hosts: tuple[str, ...] = ()
    """One address per endpoint, instead of `host`."""
    first_port: int = 0
    """Port of `endpoint-0`; the others get the next ones. 0 for any free ports."""
    ports: tuple[int, ...] = ()
    """One port per endpoint, instead of `first_port`."""
    engine_type: EngineType = EngineType.VLLM
    """The program that the servers imitate."""
    ranks: int = 1
    """Data-parallel ranks of each server, each with its own engine."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Settings of all engines."""
    engines: tuple[EngineConfig, ...] = ()
    """Settings of the engines of each endpoint, instead of `engine`."""
    kv_events: KvEventsConfig | None = None
    """KV events of all servers; None for none."""
    seed: int = 0
    """Seed of the fleet; all servers respond to a prompt with the same text."""
    time_scale: float = 1.0
    """Factor for all durations, multiplied by the engine's own."""
    speed: Mapping[int, float] = field(default_factory=dict)
    """Speed factor by endpoint index."""
    busy: Mapping[int, int] = field(default_factory=dict)
    """`EngineConfig.phantom_waiting` by endpoint index."""
    num_blocks: Mapping[int, int] = field(default_factory=dict)
    """KV blocks by endpoint index."""
    max_body_bytes: int = 16 * 2**20
    """Maximum length of a request body; a longer one gets status 413."""

    def __post_init__(self) -> None:
        require(self.endpoints >= 1, f"endpoints must be at least 1, got {self.endpoints}")
        require(
            self.max_body_bytes >= 1,
            f"max_body_bytes must be at least 1, got {self.max_body_bytes}",
        )
        require(self.ranks >= 1, f"ranks must be at least 1, got {self.ranks}")
        require(
            self.ranks == 1 or self.engine_type is EngineType.VLLM,
            "data-parallel ranks are simulated for vLLM only",
        )
        require(self.model != "", "model must not be empty")
        for engine in (self.engine, *self.engines):
            require(
                self.model not in engine.adapters,
                f"adapter {self.model} has the name of the model",
            )
        require(
            len(self.engines) in {0, self.endpoints},
            f"engines has settings of {len(self.engines)} endpoints, but there are"
            f" {self.endpoints}",
        )
        require(
            len(self.ports) in {0, self.endpoints},
            f"ports lists {len(self.ports)} ports for {self.endpoints} endpoints",
        )
        for name in ("speed", "busy", "num_blocks"):
            for index in getattr(self, name):
                require(
                    0 <= index < self.endpoints,
                    f"{name} has index {index}, but there are {self.endpoints} endpoints",
                )
        for index in range(self.endpoints):
            port = self.port_of(index)
            require(0 <= port <= MAX_PORT, f"port of endpoint-{index} is out of range: {port}")
            if self.kv_events is not None:
                last = max(self.kv_events.ports_of((index + 1) * self.ranks - 1))
                require(
                    last <= MAX_PORT, f"KV-event port of endpoint-{index} is out of range: {last}"
                )
            self.engine_of(index)

    def host_of(self, index: int) -> str:
        """Return the address of an endpoint."""
        return self.hosts[index] if self.hosts else self.host

    def port_of(self, index: int) -> int:
        """Return the port of an endpoint; 0 for any."""
        if self.ports:
            return self.ports[index]
        return self.first_port + index if self.first_port else 0

    def engine_of(self, index: int) -> EngineConfig:
        """Return the engine settings of an endpoint."""
        shared = self.engines[index] if self.engines else self.engine
        values = {name: getattr(shared, name) for name in EngineConfig.__dataclass_fields__}
        values["time_scale"] = shared.time_scale * self.time_scale
        values["speed"] = shared.speed * self.speed.get(index, 1.0)
        values["phantom_waiting"] = self.busy.get(index, shared.phantom_waiting)
        values["num_blocks"] = self.num_blocks.get(index, shared.num_blocks)
        values["seed"] = self.seed or shared.seed
        return EngineConfig(**values)
