"""Responses of the completions and chat APIs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import msgspec

from epp.lab.fleet.api import ApiRequest
from epp.lab.fleet.openai_bodies import ChatBody, CompletionsBody
from epp.lab.fleet.response_formats import StreamFormat
from epp.lab.fleet.sequence import FinishReason, Sequence

FINGERPRINT = "vllm-0.32.0-fake"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


def usage(sequence: Sequence) -> dict[str, Any]:
    """Return the token counts, as vLLM does with `--enable-prompt-tokens-details`."""
    return {
        "prompt_tokens": sequence.prompt_tokens,
        "total_tokens": sequence.total_tokens,
        "completion_tokens": sequence.generated,
        "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
    }


class _OpenAiFormat(StreamFormat):
    """Base class of both formats; it encodes the fields that all events share only once."""

    kind: ClassVar[str]
    """Value of `object` in a complete body."""
    chunk: ClassVar[str]
    """Value of `object` in an event."""
    unset: ClassVar[tuple[str, ...]]
    """Fields of a complete body that are always null."""

    def __init__(
        self, request: ApiRequest, body: CompletionsBody | ChatBody, *, created: int
    ) -> None:
        self._request = request
        self._include_usage = body.include_usage
        self._fields = {"created": created, "model": request.model}
        head = {"id": request.id, "object": self.chunk, **self._fields}
        self._head = b"data: " + _encode(head)[:-1]

    def whole(self, sequence: Sequence) -> bytes:
        body = {
            "id": self._request.id,
            "object": self.kind,
            **self._fields,
            "choices": [{"index": 0, **self._choice(sequence)}],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {**usage(sequence), "completion_tokens_details": None},
        }
        return _encode(body | dict.fromkeys(self.unset))

    def last(self, sequence: Sequence) -> bytes:
        if not self._include_usage:
            return DONE
        tail = (self._head, _encode(usage(sequence)), FINGERPRINT.encode())
        return b'%b,"choices":[],"usage":%b,"system_fingerprint":"%b"}\n\n' % tail + DONE

    @abstractmethod
    def _choice(self, sequence: Sequence) -> dict[str, Any]:
        """Return the only choice of a complete body."""

    def _reason(self, reason: FinishReason | None) -> str | None:
        if reason is not None and self._request.call is not None:
            return "tool_calls"
        return reason.value if reason else None


class CompletionsFormat(_OpenAiFormat):
    """The response of `/v1/completions`."""

    kind = chunk = "text_completion"
    unset = ("kv_transfer_params", "ec_transfer_params", "metrics")

    def first(self, sequence: Sequence) -> bytes:
        return b""

    def delta(self, text: str, reason: FinishReason | None) -> bytes:
        template = (
            b'%b,"choices":[{"index":0,"text":%b,"logprobs":null,"finish_reason":%b,'
            b'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
        )
        return template % (self._head, _encode(text), _encode(self._reason(reason)))

    def _choice(self, sequence: Sequence) -> dict[str, Any]:
        choice = {
            "text": sequence.text(),
            "logprobs": None,
            "finish_reason": self._reason(sequence.finish_reason),
        }
        last = ("prompt_logprobs", "prompt_token_ids", "routed_experts")
        return choice | dict.fromkeys(("stop_reason", "token_ids", *last))


class ChatFormat(_OpenAiFormat):
    """The response of `/v1/chat/completions`: text, or a tool call."""

    kind = "chat.completion"
    chunk = "chat.completion.chunk"
    unset = (
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    )

    def first(self, sequence: Sequence) -> bytes:
        role = (
            b'%b,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
            b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n'
        ) % self._head
        call = self._request.call
        if call is None:
            return role
        begun = {**self._call(call.name, call.before), "index": 0}
        return role + self._event({"tool_calls": [begun]}, None)

    def delta(self, text: str, reason: FinishReason | None) -> bytes:
        call = self._request.call
        if call is None:
            return self._event({"content": text}, reason)
        arguments = call.text(text) + (call.after if reason else "")
        piece = {"index": 0, "function": {"arguments": arguments}}
        return self._event({"tool_calls": [piece]}, reason)

    def _event(self, delta: dict[str, Any], reason: FinishReason | None) -> bytes:
        stop = b',"stop_reason":null' if reason else b""
        template = (
            b'%b,"choices":[{"index":0,"delta":%b,"logprobs":null,'
            b'"finish_reason":%b%b,"token_ids":null}]}\n\n'
        )
        return template % (self._head, _encode(delta), _encode(self._reason(reason)), stop)

    def _choice(self, sequence: Sequence) -> dict[str, Any]:
        call, text = self._request.call, sequence.text()
        nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        message = {"role": "assistant", "content": text if call is None else None, **nothing}
        if call is not None:
            message["tool_calls"] = [self._call(call.name, call.arguments(text))]
        choice = {
            "message": message,
            "logprobs": None,
            "finish_reason": self._reason(sequence.finish_reason),
        }
        return choice | dict.fromkeys(("stop_reason", "token_ids", "routed_experts"))

    def _call(self, name: str, arguments: str) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-tool-{self._request.id}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
