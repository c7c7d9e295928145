"""Settings of one engine: its speed and its size, validated on construction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any

import msgspec

from epp.lab.fleet.errors import FleetConfigError, require
from epp.lab.fleet.presets import PRESETS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Speed and capacity of one fake server.

    A step takes `(step_seconds + decode_seconds_per_sequence * decoding sequences +
    kv_seconds_per_token * KV tokens + prefill tokens / prefill_tokens_per_second +
    lora_load_seconds * adapter loads) * time_scale / speed` seconds. The KV tokens are those of the
    sequences in the step whose KV is in the cache when the step begins.
    """

    max_num_seqs: int = 8
    """Maximum batch size; further sequences wait."""
    max_num_batched_tokens: int = 2048
    """Maximum tokens computed in one step: decoding first, the rest for prefill chunks."""
    max_num_prefills: int = 0
    """Maximum number of sequences prefilled in one step; 0 for any number."""
    block_size: int = 16
    """Tokens per KV block."""
    num_blocks: int = 2000
    """KV blocks of the server."""
    max_model_len: int = 8192
    """Maximum tokens of prompt and output together; must fit into the KV cache."""
    step_seconds: float = 0.010
    """Seconds of an empty step, the time to read the weights once."""
    decode_seconds_per_sequence: float = 0.0005
    """Seconds that each decoding sequence adds to a step."""
    kv_seconds_per_token: float = 0.0
    """Seconds that each token in the KV cache adds to a step of its sequence."""
    prefill_tokens_per_second: float = 8000.0
    """Prompt tokens computed per second."""
    kv_transfer_seconds: float = 0.0
    """Seconds before the KV of a prompt that another server has prefilled begins to arrive."""
    kv_transfer_tokens_per_second: float = 0.0
    """Tokens whose KV arrives per second from another server; 0 for all at once."""
    eos_probability: float = 0.0
    """Probability that a token ends the output early with `stop`; 0 for a request with
    `ignore_eos`."""
    adapters: tuple[str, ...] = ()
    """Names of the LoRA adapters that the server serves."""
    max_loras: int = 2
    """Maximum number of different adapters in one batch."""
    lora_load_seconds: float = 0.050
    """Seconds that loading an adapter adds to a step."""
    time_scale: float = 1.0
    """Factor for all durations: 0.01 makes a server 100 times as fast."""
    speed: float = 1.0
    """Speed factor of this server: 0.3 is a straggler."""
    speed_changes: tuple[tuple[float, float], ...] = ()
    """Further speed factors over time: pairs, in ascending order, of seconds since the start of the
    server and the factor that holds from then on; 1 before the first."""
    phantom_waiting: int = 0
    """Requests added to the queue length on the metrics page; they do not exist."""
    seed: int = 0
    """Seed of generated text and output lengths."""

    @classmethod
    def preset(cls, name: str) -> EngineConfig:
        """Return the settings of a preset.

        Raises:
            ConfigError: No preset has this name.
        """
        return cls.from_mapping({"preset": name})

    @classmethod
    def from_mapping(cls, document: Mapping[str, Any]) -> EngineConfig:
        """Return the settings in a part of a YAML file.

        Args:
            document: Fields by name. `preset` names the preset of the others; `speed` may be a
                list of pairs as in `speed_changes`.

        Raises:
            ConfigError: A key is unknown, or its value is wrong; the message names it.
        """
        fields = dict(document)
        name = fields.pop("preset", "tiny")
        if not isinstance(name, str) or name not in PRESETS:
            raise FleetConfigError(f"preset {name!r} is unknown; there are {', '.join(PRESETS)}")
        for key in fields:
            if key not in cls.__dataclass_fields__:
                known = get_close_matches(str(key), cls.__dataclass_fields__, n=1)
                hint = f"; did you mean {known[0]}?" if known else ""
                raise FleetConfigError(f"{key!r} is not a setting of the engine{hint}")
        if isinstance(fields.get("speed"), list | tuple):
            fields["speed_changes"] = fields.pop("speed")
        try:
            return msgspec.convert({**PRESETS[name].fields, **fields}, cls)
        except msgspec.ValidationError as error:
            raise FleetConfigError(_without_path(str(error))) from error

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "num_blocks",
            "max_model_len",
            "max_loras",
        ):
            require(
                getattr(self, name) >= 1, f"{name} must be at least 1, got {getattr(self, name)}"
            )
        for name, value in self._numbers():
            require(isfinite(value), f"{name} must be a finite number, got {value}")
        # Steps of zero duration would never end on a virtual clock.
        for name in ("step_seconds", "prefill_tokens_per_second", "time_scale", "speed"):
            require(getattr(self, name) > 0, f"{name} must be above 0, got {getattr(self, name)}")
        for name in (
            "max_num_prefills",
            "decode_seconds_per_sequence",
            "kv_seconds_per_token",
            "lora_load_seconds",
            "kv_transfer_seconds",
            "kv_transfer_tokens_per_second",
            "phantom_waiting",
        ):
            require(
                getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)}"
            )
        require(
            0 <= self.eos_probability < 1,
            f"eos_probability must be in [0, 1), got {self.eos_probability}",
        )
        times = [at for at, _ in self.speed_changes]
        require(
            times == sorted(set(times)) and min(times, default=0) >= 0,
            f"speed_changes must have ascending times, from 0 on, got {times}",
        )
        for at, speed in self.speed_changes:
            require(speed > 0, f"speed_changes has the speed {speed} at {at} s; it must be above 0")
        require(
            self.max_num_batched_tokens >= self.max_num_seqs,
            f"max_num_batched_tokens ({self.max_num_batched_tokens}) is below "
            f"max_num_seqs ({self.max_num_seqs})",
        )
        capacity = self.num_blocks * self.block_size
        require(
            self.max_model_len <= capacity,
            f"max_model_len ({self.max_model_len}) does not fit the KV cache ({capacity} tokens)",
        )
        require(
            len(set(self.adapters)) == len(self.adapters),
            f"adapters has duplicate names: {', '.join(self.adapters)}",
        )

    def _numbers(self) -> Iterator[tuple[str, float]]:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float):
                yield name, value
        for change in self.speed_changes:
            for value in change:
                yield "speed_changes", value


def _without_path(message: str) -> str:
    """Replace msgspec's path at the end by the key at the beginning, as in the other messages."""
    text, _, path = message.partition(" - at `$.")
    return f"{path.rstrip('`')}: {text}" if path else text
