"""SGLang's own generation API, `/generate`: the body of a request and the response."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import msgspec

from epp.lab.fleet.bodies import DecodedBody, rendered_prompt
from epp.lab.fleet.errors import VllmApiError
from epp.lab.fleet.response_formats import StreamFormat
from epp.lab.fleet.sequence import FinishReason, Sequence
from epp.lab.fleet.tokenizer import token_ids

GENERATE = b"/generate"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


class _SamplingParams(msgspec.Struct):
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    ignore_eos: bool = False


class GenerateBody(DecodedBody, kw_only=True):
    """`/generate`."""

    id_prefix: ClassVar[str] = ""

    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: _SamplingParams = msgspec.field(default_factory=_SamplingParams)
    lora_path: str | None = None
    rid: str | None = None

    def __post_init__(self) -> None:
        self.model = self.lora_path
        self.min_tokens = self.sampling_params.min_new_tokens
        self.ignore_eos = self.sampling_params.ignore_eos

    def prompt(self) -> bytes:
        if self.input_ids is not None:
            return rendered_prompt(list(self.input_ids))
        if self.text is None:
            raise VllmApiError("Either text or input_ids should be provided.", param="text")
        return self.text.encode()

    def limit(self) -> int:
        return self.sampling_params.max_new_tokens


class GenerateFormat(StreamFormat):
    """The response of `/generate`; each event of a stream has the whole text so far."""

    def __init__(self, request_id: str) -> None:
        self._id = request_id
        self._began = time.monotonic()
        self._text = ""
        self._sequence: Sequence | None = None

    def whole(self, sequence: Sequence) -> bytes:
        return self._response(sequence, sequence.text(), sequence.finish_reason)

    def first(self, sequence: Sequence) -> bytes:
        self._sequence = sequence
        return b""

    def delta(self, text: str, reason: FinishReason | None) -> bytes:
        self._text += text
        sequence = self._sequence
        assert sequence is not None  # noqa: S101 - `first` comes before
        return b"data: %b\n\n" % self._response(sequence, self._text, reason)

    def last(self, sequence: Sequence) -> bytes:
        return DONE

    def _response(self, sequence: Sequence, text: str, reason: FinishReason | None) -> bytes:
        ids = token_ids(text.encode())
        return _encode(
            {
                "text": text,
                "output_ids": ids,
                "meta_info": {
                    "id": self._id,
                    "finish_reason": _reason(reason, len(ids)),
                    "prompt_tokens": sequence.prompt_tokens,
                    "weight_version": "default",
                    "completion_tokens": len(ids),
                    "cached_tokens": sequence.cached_tokens,
                    "e2e_latency": time.monotonic() - self._began,
                },
            }
        )


def _reason(reason: FinishReason | None, tokens: int) -> dict[str, Any] | None:
    match reason:
        case None:
            return None
        case FinishReason.LENGTH:
            return {"type": "length", "length": tokens}
        case _:
            return {"type": reason.value, "matched": None}
