"""Bodies that a fake server answers with, field by field as vLLM 0.32 writes them."""

from __future__ import annotations

from typing import Any

import msgspec

from epp.lab.fleet.errors import ApiError
from epp.lab.fleet.openai_api import ApiKind, ApiRequest
from epp.lab.fleet.sequence import Sequence

FINGERPRINT = "vllm-0.32.0-fake"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.encode


def error_body(error: ApiError) -> bytes:
    """The body of a refused request."""
    fields = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.status,
    }
    return _encode({"error": fields})


def models_body(
    model: str, adapters: tuple[str, ...], *, max_model_len: int, created: int
) -> bytes:
    """The list of the base model and its adapters."""
    return _encode(
        {
            "object": "list",
            "data": [
                _model_card(
                    model, root=model, parent=None, max_model_len=max_model_len, created=created
                ),
                *(
                    _model_card(
                        name,
                        root=f"/adapters/{name}",
                        parent=model,
                        max_model_len=None,
                        created=created,
                    )
                    for name in adapters
                ),
            ],
        }
    )


def _model_card(
    name: str, *, root: str, parent: str | None, max_model_len: int | None, created: int
) -> dict[str, Any]:
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }


def usage(sequence: Sequence) -> dict[str, Any]:
    """Token counts; `cached_tokens` as with vLLM's `--enable-prompt-tokens-details`."""
    return {
        "prompt_tokens": sequence.prompt_tokens,
        "total_tokens": sequence.total_tokens,
        "completion_tokens": sequence.generated,
        "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
    }


def whole_body(request: ApiRequest, sequence: Sequence, *, created: int) -> bytes:
    """The answer of a request that does not stream."""
    reason = sequence.finish_reason.value if sequence.finish_reason else None
    choice: dict[str, Any] = {"index": 0}
    if request.kind is ApiKind.CHAT:
        nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        choice["message"] = {"role": "assistant", "content": sequence.text(), **nothing}
    else:
        choice["text"] = sequence.text()
    choice |= {"logprobs": None, "finish_reason": reason, "stop_reason": None, "token_ids": None}
    if request.kind is ApiKind.CHAT:
        choice["routed_experts"] = None
    else:
        choice |= {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
    body: dict[str, Any] = {
        "id": request.generation.id,
        "object": "chat.completion" if request.kind is ApiKind.CHAT else "text_completion",
        "created": created,
        "model": request.model,
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": {**usage(sequence), "completion_tokens_details": None},
    }
    if request.kind is ApiKind.CHAT:
        body |= dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
    body |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
    return _encode(body)


class StreamWriter:
    """Server-sent events of one streamed answer; what repeats in every event is encoded once."""

    def __init__(self, request: ApiRequest, *, created: int) -> None:
        self._chat = request.kind is ApiKind.CHAT
        self._include_usage = request.include_usage
        head = {
            "id": request.generation.id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created,
            "model": request.model,
        }
        self._head = b"data: " + _encode(head)[:-1]

    def first(self) -> bytes:
        """What precedes the first token: the role, in a chat."""
        if not self._chat:
            return b""
        delta = b'"delta":{"role":"assistant","content":""}'
        choice = b'[{"index":0,%b,"logprobs":null,"finish_reason":null}]' % delta
        return b'%b,"choices":%b,"prompt_token_ids":null,"prompt_text":null}\n\n' % (
            self._head,
            choice,
        )

    def delta(self, text: str, finish_reason: str | None) -> bytes:
        """New text; the last one says why the output ends."""
        content, reason = _encode(text), _encode(finish_reason)
        if self._chat:
            stop = b',"stop_reason":null' if finish_reason else b""
            template = (
                b'%b,"choices":[{"index":0,"delta":{"content":%b},"logprobs":null,'
                b'"finish_reason":%b%b,"token_ids":null}]}\n\n'
            )
            return template % (self._head, content, reason, stop)
        template = (
            b'%b,"choices":[{"index":0,"text":%b,"logprobs":null,"finish_reason":%b,'
            b'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}\n\n'
        )
        return template % (self._head, content, reason)

    def last(self, sequence: Sequence) -> bytes:
        """Usage, if the client asked for it, and the end mark."""
        if not self._include_usage:
            return DONE
        tail = (self._head, _encode(usage(sequence)), FINGERPRINT.encode())
        return b'%b,"choices":[],"usage":%b,"system_fingerprint":"%b"}\n\n' % tail + DONE
