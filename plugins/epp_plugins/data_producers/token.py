"""``token-producer``: turns the prompt into token ids, for all plugins that count or hash tokens.

Estimate mode: the prompt's raw JSON bytes, taken four at a time as little-endian pseudo tokens::

    tokens = ceil(len(prompt) / 4)

Nothing is copied, so it costs no more than the record. Roles and tool JSON count because they are
part of those bytes. ``modelName`` is accepted and unused in this mode. Refused, because they could
not be honoured: ``vllm`` and ``udsTokenizerConfig`` (other modes), ``estimate.image`` and
``estimate.video`` (media count as the bytes they are).

Writes: ``TOKENIZED_PROMPT``; nothing for a request without a prompt.
Example::

    plugins:
      - type: token-producer
        parameters: {estimate: {}}
"""

from typing import Any, ClassVar

import msgspec

from epp.request_control.plugins import DataProducer
from epp.scheduling import CycleState, LLMRequest, StateKey
from epp_plugins.state_keys import TOKENIZED_PROMPT, TokenizedPrompt

BYTES_PER_TOKEN = 4


class Estimate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of the estimate mode."""

    image: dict[str, Any] | None = None
    video: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for field in ("image", "video"):
            if getattr(self, field) is not None:
                raise ValueError(
                    f"`{field}` is not supported: media are estimated by their bytes in the prompt"
                )


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Parameters of ``token-producer``."""

    estimate: Estimate | None = None
    model_name: str = ""
    vllm: dict[str, Any] | None = None
    uds_tokenizer_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for mode, given in (("vllm", self.vllm), ("udsTokenizerConfig", self.uds_tokenizer_config)):
            if given is not None:
                raise ValueError(f"mode `{mode}` is not supported: only `estimate` is")


class TokenProducer(DataProducer):
    """Estimates token ids from the prompt's bytes."""

    type: ClassVar[str] = "token-producer"
    writes: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)
    default_for: ClassVar[tuple[StateKey[Any], ...]] = (TOKENIZED_PROMPT,)

    def __init__(self, name: str, params: Params) -> None:
        self.name = name

    def prepare(self, request: LLMRequest, state: CycleState) -> None:
        prompt = request.prompt
        if prompt:
            count = (len(prompt) + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN
            state.write(TOKENIZED_PROMPT, TokenizedPrompt(prompt, count))
