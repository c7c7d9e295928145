"""vLLM's render API: the tokens of a prompt; media become placeholder tokens."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from epp.lab.fleet.bodies import rendered_json
from epp.lab.fleet.errors import UnknownModelError, VllmApiError
from epp.lab.fleet.openai_bodies import ChatBody, CompletionsBody
from epp.lab.fleet.tokenizer import token_ids

RENDER_CHAT = b"/v1/chat/completions/render"
RENDER_COMPLETION = b"/v1/completions/render"
PLACEHOLDERS = 16
"""Tokens of one image, video or audio clip."""
_PLACEHOLDER_ID = 151_655
_MODALITIES = {"image_url": "image", "video_url": "video", "audio_url": "audio"}

_chat = msgspec.json.Decoder(ChatBody)
_completion = msgspec.json.Decoder(CompletionsBody)


def render_body(path: bytes, body: bytes, model: str, request_id: str) -> bytes:
    """Return the response body, with the tokens of the prompt in `body`.

    Raises:
        UnknownModelError: `body` names a model other than `model`.
        ApiError: `body` is not JSON or lacks a field.
    """
    try:
        parsed = (_chat if path == RENDER_CHAT else _completion).decode(body)
        prompt = parsed.prompt()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise VllmApiError(str(error)) from error
    if parsed.model not in {None, model}:
        raise UnknownModelError(f"The model `{parsed.model}` does not exist.", param="model")
    ids = token_ids(prompt)
    features = _add_media(ids, parsed) if isinstance(parsed, ChatBody) else None
    rendered = {
        "request_id": f"{parsed.id_prefix}{request_id}",
        "token_ids": ids,
        "features": features,
        "sampling_params": {"max_tokens": parsed.limit()},
        "model": model,
        "stream": bool(parsed.stream),
    }
    return msgspec.json.encode(rendered if path == RENDER_CHAT else [rendered])


def _add_media(ids: list[int], chat: ChatBody) -> dict[str, Any] | None:
    """Add placeholders to `ids`; return the position of each media part, as vLLM does."""
    hashes: dict[str, list[str]] = {}
    places: dict[str, list[dict[str, int]]] = {}
    for message in chat.messages:
        for part in message.content if isinstance(message.content, list) else ():
            modality = _MODALITIES.get(str(part.get("type")))
            if modality is not None:
                digest = blake2b(rendered_json(part).encode(), digest_size=8).hexdigest()
                hashes.setdefault(modality, []).append(digest)
                place = {"offset": len(ids), "length": PLACEHOLDERS}
                places.setdefault(modality, []).append(place)
                ids += [_PLACEHOLDER_ID] * PLACEHOLDERS
    if not hashes:
        return None
    return {"mm_hashes": hashes, "mm_placeholders": places, "kwargs_data": None}
