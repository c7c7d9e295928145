"""Responses of the Responses API: one item, a message or a function call."""

from __future__ import annotations

from typing import Any

import msgspec

from epp.lab.fleet.api import ApiRequest
from epp.lab.fleet.openai_bodies import ResponsesBody
from epp.lab.fleet.response_formats import StreamFormat, event
from epp.lab.fleet.sequence import FinishReason, Sequence

_UNSET = (
    "max_tool_calls",
    "previous_response_id",
    "prompt",
    "reasoning",
    "text",
    "top_logprobs",
    "user",
)
_IN_OUTPUT = {"output_index": 0}
_IN_CONTENT = {"output_index": 0, "content_index": 0}


class ResponsesFormat(StreamFormat):
    """The response of `/v1/responses`."""

    def __init__(self, request: ApiRequest, body: ResponsesBody, *, created: int) -> None:
        self._request = request
        self._body = body
        self._created = created
        self._sent = 0
        response_id = request.id.removeprefix(body.id_prefix)
        self._item_id = f"msg_{response_id}" if request.call is None else f"fc_{response_id}"
        self._call_id = f"call_{response_id}"

    def whole(self, sequence: Sequence) -> bytes:
        return msgspec.json.encode(self._ended(sequence))

    def first(self, sequence: Sequence) -> bytes:
        call = self._request.call
        begun = self._response("in_progress", output=[])
        added = self._item("", "in_progress")
        if call is None:
            added["content"] = []
        events = [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
            self._event("response.output_item.added", **_IN_OUTPUT, item=added),
        ]
        if call is None:
            part = {"part": _text_part("") | {"logprobs": []}}
            events.append(self._event_of_item("response.content_part.added", _IN_CONTENT | part))
        else:
            events.append(self._arguments(call.before))
        return b"".join(events)

    def delta(self, text: str, reason: FinishReason | None) -> bytes:
        call = self._request.call
        if call is not None:
            arguments = call.text(text) + (call.after if reason else "")
            return self._arguments(arguments) if arguments else b""
        fields = _IN_CONTENT | {"delta": text, "logprobs": []}
        return self._event_of_item("response.output_text.delta", fields)

    def last(self, sequence: Sequence) -> bytes:
        call, text = self._request.call, sequence.text()
        response = self._ended(sequence)
        if call is None:
            whole = _IN_CONTENT | {"text": text, "logprobs": []}
            events = [
                self._event_of_item("response.output_text.done", whole),
                self._event_of_item(
                    "response.content_part.done", _IN_CONTENT | {"part": _text_part(text)}
                ),
            ]
        else:
            done = _IN_OUTPUT | {"arguments": call.arguments(text), "name": call.name}
            events = [self._event_of_item("response.function_call_arguments.done", done)]
        (item,) = response["output"]
        return b"".join(
            (
                *events,
                self._event("response.output_item.done", **_IN_OUTPUT, item=item),
                self._event("response.completed", response=response),
            )
        )

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self._sent = self._sent, self._sent + 1
        return event(kind, {"type": kind, "sequence_number": number, **fields})

    def _event_of_item(self, kind: str, fields: dict[str, Any]) -> bytes:
        return self._event(kind, item_id=self._item_id, **fields)

    def _arguments(self, piece: str) -> bytes:
        fields = _IN_OUTPUT | {"delta": piece}
        return self._event_of_item("response.function_call_arguments.delta", fields)

    def _item(self, text: str, status: str) -> dict[str, Any]:
        call, shared = self._request.call, {"id": self._item_id, "status": status}
        if call is None:
            content = [_text_part(text) | {"logprobs": None}]
            return {**shared, "type": "message", "role": "assistant", "content": content}
        return {
            **shared,
            "type": "function_call",
            "call_id": self._call_id,
            "name": call.name,
            "arguments": text,
        }

    def _ended(self, sequence: Sequence) -> dict[str, Any]:
        call, text = self._request.call, sequence.text()
        is_cut = call is None and sequence.finish_reason is FinishReason.LENGTH
        item = self._item(text if call is None else call.arguments(text), "completed")
        usage = {
            "input_tokens": sequence.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": sequence.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": sequence.generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sequence.total_tokens,
        }
        return self._response(
            "incomplete" if is_cut else "completed",
            output=[item],
            usage=usage,
            incomplete_details={"reason": "max_output_tokens"} if is_cut else None,
        )

    def _response(self, status: str, **more: object) -> dict[str, Any]:
        body = self._body
        return {
            "id": self._request.id,
            "created_at": self._created,
            "incomplete_details": None,
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": self._request.model,
            "object": "response",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "tool_choice": body.tool_choice,
            "tools": body.tools,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "background": False,
            "max_output_tokens": body.limit(),
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": None,
            **dict.fromkeys(_UNSET),
            **more,
        }


def _text_part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text"}
