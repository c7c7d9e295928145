"""Responses of the embeddings API: vectors that depend only on the text."""

from __future__ import annotations

import base64
import struct
from hashlib import shake_128
from math import hypot

import msgspec

from epp.lab.fleet.api import ApiRequest
from epp.lab.fleet.openai_bodies import EmbeddingsBody
from epp.lab.fleet.response_formats import ResponseFormat
from epp.lab.fleet.sequence import Sequence

DIMENSIONS = 64
"""Default length of a vector."""

_MIDDLE = 127.5


class EmbeddingsFormat(ResponseFormat):
    """The response of `/v1/embeddings`, never a stream."""

    def __init__(self, request: ApiRequest, body: EmbeddingsBody, *, created: int) -> None:
        self._request = request
        self._body = body
        self._created = created

    def whole(self, sequence: Sequence) -> bytes:
        size = self._body.dimensions or DIMENSIONS
        vectors = (_vector(text, size) for text in self._body.inputs())
        if self._body.encoding_format == "base64":
            data: list[object] = [_base64(each) for each in vectors]
        else:
            data = list(vectors)
        usage = {"prompt_tokens": sequence.prompt_tokens, "total_tokens": sequence.prompt_tokens}
        return msgspec.json.encode(
            {
                "id": self._request.id,
                "object": "list",
                "created": self._created,
                "model": self._request.model,
                "data": [
                    {"index": index, "object": "embedding", "embedding": each}
                    for index, each in enumerate(data)
                ],
                "usage": {**usage, "completion_tokens": 0, "prompt_tokens_details": None},
            }
        )


def _vector(text: bytes, size: int) -> list[float]:
    numbers = [byte - _MIDDLE for byte in shake_128(text).digest(size)]
    length = hypot(*numbers)
    return [number / length for number in numbers]


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
