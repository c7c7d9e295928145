"""Request bodies that are small when sent and large or expensive to process."""

import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any

from zstandard import ZstdCompressor

from tools.attacks.sending import CHAT, post

LARGE_BYTES = 62_000_000
"""Just below the longest body that the endpoint picker accepts by default."""
IMAGE = b'{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a/b.png"}}]}'


def zstd(data: bytes) -> bytes:
    """Compress."""
    return ZstdCompressor(level=9, write_content_size=True).compress(data)


def gzipped(data: bytes) -> bytes:
    """Compress."""
    return gzip.compress(data, 9, mtime=0)


def compressed_post(
    data: bytes, coding: str = "zstd", path: str = CHAT, headers: Mapping[str, str] | None = None
) -> bytes:
    """Return a POST with ``data`` compressed by ``coding``."""
    body = zstd(data) if coding == "zstd" else gzipped(data)
    return post(body, path, {"content-encoding": coding, **(headers or {})})


def dense_messages(size: int) -> bytes:
    """Return a chat of ``size`` bytes whose messages are mostly zeros; it ends with a picture."""
    start, end = b'{"model":"tiny","messages":[{}', b"," + IMAGE + b"]}"
    return start + b",0" * ((size - len(start) - len(end)) // 2) + end


def long_prompt(size: int) -> bytes:
    """Return a completion with a prompt of ``size`` bytes."""
    return b'{"model":"tiny","max_tokens":1,"prompt":"' + b"a" * size + b'"}'


def long_name(size: int, name: bytes = b"m") -> bytes:
    """Return a completion for a model whose name has about ``size`` bytes."""
    return b'{"prompt":"x","max_tokens":1,"model":"' + name * (size // len(name)) + b'"}'


def documents(*values: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a small chat for each mapping, with its fields added."""
    for value in values:
        plain = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
        yield json.dumps(plain | dict(value)).encode()


def nested(depth: int, opening: str, closing: str, inner: str = "1") -> bytes:
    """Return JSON nested to a depth."""
    return (opening * depth + inner + closing * depth).encode()
