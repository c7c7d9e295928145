"""Responses of the Anthropic API."""

from __future__ import annotations

from typing import Any

import msgspec

from epp.lab.fleet.api import ApiRequest
from epp.lab.fleet.response_formats import StreamFormat, event
from epp.lab.fleet.sequence import FinishReason, Sequence

_STOP_REASONS = {FinishReason.STOP: "end_turn", FinishReason.LENGTH: "max_tokens"}

_encode = msgspec.json.encode


def count_body(tokens: int) -> bytes:
    """Return the response body of `/v1/messages/count_tokens`."""
    context = {"original_input_tokens": tokens}
    return _encode({"input_tokens": tokens, "context_management": context})


class MessagesFormat(StreamFormat):
    """The response of `/v1/messages`: one block, with text or a tool call."""

    def __init__(self, request: ApiRequest) -> None:
        self._request = request

    def whole(self, sequence: Sequence) -> bytes:
        call, text = self._request.call, sequence.text()
        block: dict[str, Any]
        if call is None:
            block = {"type": "text", "text": text}
        else:
            block = self._call(call.name, msgspec.json.decode(call.arguments(text)))
        message = self._message(
            content=[block],
            stop_reason=self._stop_reason(sequence.finish_reason),
            usage=_usage(sequence, sequence.generated),
        )
        return _encode(message)

    def first(self, sequence: Sequence) -> bytes:
        message = self._message(
            content=[], stop_reason=None, stop_sequence=None, usage=_usage(sequence, 0)
        )
        call = self._request.call
        block = {"type": "text", "text": ""} if call is None else self._call(call.name, {})
        return b"".join(
            (
                event("message_start", {"type": "message_start", "message": message}),
                event(
                    "content_block_start",
                    {"type": "content_block_start", "content_block": block, "index": 0},
                ),
                b"" if call is None else _delta("input_json_delta", "partial_json", call.before),
            )
        )

    def delta(self, text: str, reason: FinishReason | None) -> bytes:
        call = self._request.call
        if call is None:
            return _delta("text_delta", "text", text)
        arguments = call.text(text) + (call.after if reason else "")
        return _delta("input_json_delta", "partial_json", arguments) if arguments else b""

    def last(self, sequence: Sequence) -> bytes:
        delta = {"stop_reason": self._stop_reason(sequence.finish_reason)}
        usage = _usage(sequence, sequence.generated)
        return b"".join(
            (
                event("content_block_stop", {"type": "content_block_stop", "index": 0}),
                event("message_delta", {"type": "message_delta", "delta": delta, "usage": usage}),
                event("message_stop", {"type": "message_stop"}),
            )
        )

    def _message(self, **more: object) -> dict[str, object]:
        return {
            "id": self._request.id,
            "type": "message",
            "role": "assistant",
            "model": self._request.model,
            **more,
        }

    def _call(self, name: str, arguments: object) -> dict[str, object]:
        call_id = f"chatcmpl-tool-{self._request.id}"
        return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}

    def _stop_reason(self, reason: FinishReason | None) -> str | None:
        if reason is not None and self._request.call is not None:
            return "tool_use"
        return _STOP_REASONS.get(reason) if reason else None


def _usage(sequence: Sequence, output_tokens: int) -> dict[str, int]:
    return {"input_tokens": sequence.prompt_tokens, "output_tokens": output_tokens}


def _delta(kind: str, field: str, text: str) -> bytes:
    delta = {"type": kind, field: text}
    fields = {"type": "content_block_delta", "delta": delta, "index": 0}
    return event("content_block_delta", fields)
