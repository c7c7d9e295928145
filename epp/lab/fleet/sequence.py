"""A generation request, and its state in an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import shake_128
from math import ceil, log

from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN, BlockKey, BlockLease

WORDS = tuple(f" {a}{b}{c}".encode() for a in "bdklmprv" for b in "aeio" for c in "lmnrtvxd")
"""The vocabulary: 256 words of `BYTES_PER_TOKEN` bytes, one for each byte value."""

_LENGTH_BYTES = 8


class FinishReason(Enum):
    """Why a sequence ended; the values are vLLM's."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request to an engine."""

    id: str
    """Id of the response; does not affect the generated text."""
    prompt: bytes
    """Rendered prompt."""
    max_tokens: int = 16
    """Maximum tokens to generate."""
    min_tokens: int = 0
    """Minimum tokens to generate before the output may end early."""
    adapter: str | None = None
    """LoRA adapter; None for the base model."""
    ignore_eos: bool = False
    """Generate `max_tokens` tokens, ignoring `eos_probability`."""
    seed: int | None = None
    """The client's seed, combined with that of the fleet."""
    prefilled: bool = False
    """Another server has computed the prompt and transfers its KV."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, at least 1."""
        return max(1, len(self.prompt) // BYTES_PER_TOKEN)


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """The state of a request in an engine; times are seconds of the engine's clock."""

    request: GenerationRequest
    prompt_tokens: int
    """Tokens of the prompt."""
    output: bytes
    """The complete output, chosen on arrival: one byte, the index of a word, per token."""
    natural_end: FinishReason
    """Reason of its end unless it is aborted."""
    keys: list[BlockKey]
    """Keys of the prompt's full blocks."""
    arrived_at: float
    on_token: Callable[[Sequence], None] | None = None
    """Called after each token, including the last one."""
    on_end: Callable[[Sequence], None] | None = None
    """Called exactly once, after the last token or the abort."""
    lease: BlockLease | None = field(default=None)
    """KV blocks; None while it waits."""
    computed: int = 0
    """Tokens whose KV exists or is computed in the current step."""
    generated: int = 0
    """Tokens generated so far."""
    cached_tokens: int = 0
    """Prompt tokens from the prefix cache or another server at the first admission."""
    transferred_tokens: int = 0
    """Those of `cached_tokens` that another server transferred."""
    preemptions: int = 0
    admitted_at: float = 0.0
    """First admission into the batch."""
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    finish_reason: FinishReason | None = None
    """None until the sequence has ended."""

    @property
    def total_tokens(self) -> int:
        """Tokens of the prompt and of the output so far."""
        return self.prompt_tokens + self.generated

    def text(self, start: int = 0) -> str:
        """Return the generated text from token `start` on."""
        return b"".join([WORDS[i] for i in self.output[start : self.generated]]).decode()


def draw_output(
    request: GenerationRequest, *, seed: int, eos_probability: float
) -> tuple[bytes, FinishReason]:
    """Return the output, one byte per token, and why it ends.

    They depend only on seeds, adapter and prompt.
    """
    salt = f"{seed}/{request.seed}/{request.adapter}/".encode()
    stream = shake_128(salt + request.prompt).digest(_LENGTH_BYTES + request.max_tokens)
    tokens = stream[_LENGTH_BYTES:]
    if request.ignore_eos or eos_probability == 0:
        return tokens, FinishReason.LENGTH
    # Inverse of the geometric distribution: which token is the first to be an end of sequence.
    uniform = int.from_bytes(stream[:_LENGTH_BYTES], "big") / 2 ** (8 * _LENGTH_BYTES)
    length = max(
        1, request.min_tokens, ceil(log(1 - min(uniform, 1 - 2**-53)) / log(1 - eos_probability))
    )
    return (
        (tokens, FinishReason.LENGTH)
        if length > len(tokens)
        else (tokens[:length], FinishReason.STOP)
    )
