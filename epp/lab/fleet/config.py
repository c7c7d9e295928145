"""How many fake servers there are and how fast each is; checked whole when it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from epp.lab.fleet.errors import ConfigError

MAX_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Physics of one fake server: what `Engine` needs to know.

    A step takes `(step_seconds + decode_seconds_per_sequence * decoding sequences + prefill tokens
    / prefill_tokens_per_second + adapter loads) * time_scale / speed` seconds.
    """

    max_num_seqs: int = 8
    """Sequences that run at once; the rest wait."""
    max_num_batched_tokens: int = 2048
    """Tokens one step computes at most: decodes first, what is left goes to prefill chunks."""
    block_size: int = 16
    """Tokens in a KV block."""
    num_blocks: int = 2000
    """KV blocks of the server."""
    max_model_len: int = 8192
    """Tokens of prompt and output together; must fit into the KV cache."""
    step_seconds: float = 0.010
    """Seconds of a step with nothing in it: weights are read once."""
    decode_seconds_per_sequence: float = 0.0005
    """Seconds each decoding sequence adds to a step."""
    prefill_tokens_per_second: float = 8000.0
    """Prompt tokens computed per second."""
    eos_probability: float = 0.0
    """Chance of each token to end the output early with `stop`; a request with `ignore_eos` is
    exempt."""
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters that the server offers."""
    max_loras: int = 2
    """Distinct adapters in one batch."""
    lora_load_seconds: float = 0.050
    """Seconds a step grows by for each adapter it brings into a slot."""
    time_scale: float = 1.0
    """Factor on every duration: 0.01 makes a server 100 times as fast."""
    speed: float = 1.0
    """Speed factor of this server: 0.3 is a straggler."""
    phantom_waiting: int = 0
    """Requests added to the reported queue; they exist on the metrics page only."""
    seed: int = 0
    """Seed of generated text and output lengths."""

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "num_blocks",
            "max_model_len",
            "max_loras",
        ):
            _check(
                getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}"
            )
        # A step of no duration would let an engine spin at one instant of a virtual clock.
        for name in ("step_seconds", "prefill_tokens_per_second", "time_scale", "speed"):
            _check(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("decode_seconds_per_sequence", "lora_load_seconds", "phantom_waiting"):
            _check(
                getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}"
            )
        _check(
            0 <= self.eos_probability < 1,
            f"eos_probability must be in [0, 1), got {self.eos_probability}",
        )
        _check(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below "
            f"max_num_seqs ({self.max_num_seqs})",
        )
        capacity = self.num_blocks * self.block_size
        _check(
            self.max_model_len <= capacity,
            f"max_model_len ({self.max_model_len}) does not fit the KV cache ({capacity} tokens)",
        )
        _check(
            len(set(self.adapters)) == len(self.adapters),
            f"adapters repeat: {', '.join(self.adapters)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """A fleet of fake vLLM servers in one process.

    Raises:
        ConfigError: a count, port or per-endpoint index is out of range, or the physics of a server
            is impossible.
    """

    endpoints: int = 4
    """Servers, named `endpoint-0` and so on."""
    model: str = "tiny"
    """Name of the base model."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    first_port: int = 0
    """Port of `endpoint-0`, the others follow; 0 lets the system choose."""
    ports: tuple[int, ...] = ()
    """One port per endpoint, instead of `first_port`."""
    engine: EngineConfig = field(default_factory=EngineConfig)
    """Physics that all servers share."""
    seed: int = 0
    """Seed of the fleet; every server answers the same prompt with the same text, as at temperature
    0."""
    time_scale: float = 1.0
    """Factor on every duration, times the engine's own."""
    speed: Mapping[int, float] = field(default_factory=dict)
    """Speed factor by endpoint index."""
    busy: Mapping[int, int] = field(default_factory=dict)
    """Phantom waiting requests by endpoint index: they lengthen the reported queue and nothing
    else."""
    num_blocks: Mapping[int, int] = field(default_factory=dict)
    """KV blocks by endpoint index, for an uneven fleet."""
    max_body_bytes: int = 16 * 2**20
    """Longest request body; a longer one is answered with 413."""

    def __post_init__(self) -> None:
        _check(self.endpoints >= 1, f"endpoints must be at least 1, got {self.endpoints}")
        _check(
            self.max_body_bytes >= 1,
            f"max_body_bytes must be at least 1, got {self.max_body_bytes}",
        )
        _check(self.model != "", "model must have a name")
        _check(
            self.model not in self.engine.adapters,
            f"adapter {self.model} has the name of the model",
        )
        _check(
            len(self.ports) in {0, self.endpoints},
            f"ports lists {len(self.ports)} ports for {self.endpoints} endpoints",
        )
        for name in ("speed", "busy", "num_blocks"):
            for index in getattr(self, name):
                _check(
                    0 <= index < self.endpoints,
                    f"{name} names endpoint {index} of {self.endpoints} endpoints",
                )
        for index in range(self.endpoints):
            port = self.port_of(index)
            _check(0 <= port <= MAX_PORT, f"endpoint-{index} would get port {port}")
            self.engine_of(index)

    def port_of(self, index: int) -> int:
        """Port to bind for an endpoint, 0 for any."""
        if self.ports:
            return self.ports[index]
        return self.first_port + index if self.first_port else 0

    def engine_of(self, index: int) -> EngineConfig:
        """Physics of an endpoint, its overrides applied."""
        shared = self.engine
        values = {name: getattr(shared, name) for name in EngineConfig.__dataclass_fields__}
        values["time_scale"] = shared.time_scale * self.time_scale
        values["speed"] = shared.speed * self.speed.get(index, 1.0)
        values["phantom_waiting"] = self.busy.get(index, shared.phantom_waiting)
        values["num_blocks"] = self.num_blocks.get(index, shared.num_blocks)
        values["seed"] = self.seed or shared.seed
        return EngineConfig(**values)


def _check(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
