"""A generation request, and its state in an engine."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from hashlib import shake_128

import msgspec

from epp.lab.fleet.kv_cache import BYTES_PER_TOKEN, BlockLease

_VOCABULARY = """
act add age ago aid aim air all and ant any arc are arm art ash ask ate bag bar bat bay bed
bee bet bid big bin bit bow box boy bug bus but buy bye cab can cap car cat cow cup cut dad
day den did dig dim dip dog dot dry due dug ear eat egg end era eye fan far fed fee few fig
fin fit fix fly fog for fox fun fur gap gas get got gum gut guy gym had ham has hat hen her
hey hid him hip his hit hop hot how hub hug hut ice icy ink inn its jam jar jaw jet job jog
joy jug key kid kin kit lab lad lap law lay led leg let lid lie lip lit log lot low man map
mat max may men met mid mix mom mud mug nap net new nod nor not now nut oak odd off oil old
one our out owe owl own pad pan pay pen per pet pie pig pin pit pop pot pub put ram ran rap
raw red rib rid rim rip rod row rub rug run sad sat saw say sea see set she shy sip sir sit
six ski sky son soy spy sub sum sun tab tag tan tap tax tea ten the tie tin tip toe ton too
top toy try tub tug two use van vet via was wax way web wed wet who why win wit won wow yes
yet you zip
"""
WORDS = tuple(f" {word}".encode() for word in _VOCABULARY.split())
"""The vocabulary: 256 words of `BYTES_PER_TOKEN` bytes, one for each byte value.

Each is one token for the tokenizers of OpenAI, DeepSeek and Anthropic, alone and in a text of them.
So clients that count tokens of the text find as many as the server reports; words of random letters
were 1.19 tokens each, and inference-perf's time between tokens was a sixth too small.
"""

LENGTH_BYTES = 8
"""Random bytes from which the length of an output is drawn."""


class FinishReason(Enum):
    """Why a sequence ended; the values are vLLM's."""

    LENGTH = "length"
    STOP = "stop"
    ABORT = "abort"


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to an engine, with the text of its prompt, or, for a simulation, without."""

    id: str
    """Id of the response; does not affect the generated text."""
    prompt: bytes = b""
    """Rendered prompt."""
    num_prompt_tokens: int | None = None
    """Tokens of a prompt without text."""
    block_keys: Seq[Hashable] | None = None
    """Keys of the full blocks of a prompt without text: each stands for its block and all before
    it. More keys, for the blocks of the output, let the next turn of a chat hit them."""
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
        if self.num_prompt_tokens is not None:
            return max(1, self.num_prompt_tokens)
        return max(1, len(self.prompt) // BYTES_PER_TOKEN)


@dataclass(slots=True, eq=False)
class DecodeClock:
    """Counts the steps in which the decoding sequences of an engine generate a token each."""

    steps: int = 0
    """Steps that have ended."""
    planned: int = 0
    """Steps that have ended or are in progress."""
    ended_at: float = 0.0
    """End of the last step."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """The state of a request in an engine; times are seconds of the engine's clock."""

    request: GenerationRequest
    prompt_tokens: int
    """Tokens of the prompt."""
    output_tokens: int
    """Tokens that it will generate, chosen on arrival."""
    natural_end: FinishReason
    """Reason of its end unless it is aborted."""
    keys: Seq[Hashable]
    """Keys of the prompt's full blocks, and possibly of those of the output."""
    arrived_at: float
    ready_at: float
    """When it can be admitted: on arrival, or when another server has transferred its KV."""
    rank: int = 0
    """Data-parallel rank that runs it."""
    seed: int = 0
    """The fleet's seed of generated text."""
    on_token: Callable[[Sequence], None] | None = None
    """Called after each token, including the last one."""
    on_end: Callable[[Sequence], None] | None = None
    """Called exactly once, after the last token or the abort."""
    lease: BlockLease | None = None
    """KV blocks; None while it waits."""
    cached_tokens: int = 0
    """Prompt tokens from the prefix cache or another server at the first admission."""
    transferred_tokens: int = 0
    """Those of `cached_tokens` that another server transferred."""
    preemptions: int = 0
    admitted_at: float = 0.0
    """First admission into the batch."""
    first_token_at: float = 0.0
    finish_reason: FinishReason | None = None
    """None until the sequence has ended."""
    clock: DecodeClock | None = None
    """Counts its tokens while it decodes."""
    _generated: int = 0
    _computed: int = 0
    _last_token_at: float = 0.0
    _output: bytes | None = None

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        clock = self.clock
        return self._generated if clock is None else self._generated + clock.steps

    @property
    def computed(self) -> int:
        """Tokens whose KV exists or is computed in the current step."""
        clock = self.clock
        return self._computed if clock is None else self._computed + clock.planned

    @property
    def last_token_at(self) -> float:
        """When it generated its last token."""
        clock = self.clock
        return self._last_token_at if clock is None else clock.ended_at

    @property
    def total_tokens(self) -> int:
        """Tokens of the prompt and of the output so far."""
        return self.prompt_tokens + self.generated

    @property
    def output(self) -> bytes:
        """The complete output: one byte, the index of a word, per token."""
        if self._output is None:
            drawn = drawn_bytes(self.request, self.seed)[LENGTH_BYTES:]
            self._output = drawn[: self.output_tokens]
        return self._output

    def text(self, start: int = 0) -> str:
        """Return the generated text from token `start` on."""
        return b"".join([WORDS[i] for i in self.output[start : self.generated]]).decode()

    def compute(self, tokens: int) -> None:
        """Compute the KV of tokens of the prompt, or of those lost in a preemption."""
        self._computed += tokens

    def reset(self, computed: int) -> None:
        """Begin again with `computed` tokens whose KV exists."""
        self._computed = computed

    def generate(self, now: float) -> None:
        """Generate a token after the prompt, or the rest of it, is computed."""
        self._generated += 1
        self._last_token_at = now
        if self._generated == 1:
            self.first_token_at = now

    def join(self, clock: DecodeClock) -> None:
        """Decode: from now on, `clock` counts the tokens."""
        self._generated -= clock.steps
        self._computed -= clock.planned
        self.clock = clock

    def leave(self) -> None:
        """Stop decoding, and keep the state."""
        generated, computed, last = self.generated, self.computed, self.last_token_at
        self.clock = None
        self._generated, self._computed, self._last_token_at = generated, computed, last


def drawn_bytes(request: GenerationRequest, seed: int) -> bytes:
    """Return random bytes for a request: `LENGTH_BYTES` for the length, then one per token.

    They depend only on seeds, adapter and prompt; a prompt without text is replaced by the id.
    """
    prompt = request.prompt if request.num_prompt_tokens is None else request.id.encode()
    salt = f"{seed}/{request.seed}/{request.adapter}/".encode()
    return shake_128(salt + prompt).digest(LENGTH_BYTES + request.max_tokens)
