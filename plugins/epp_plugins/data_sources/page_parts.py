"""Splits a long metrics page into parts, so that reading it does not block the event loop."""

from collections.abc import Iterator
from typing import Final

PART_BYTES: Final = 64 * 1024
"""Size of a part. It takes at most 10 ms to read; a vLLM page has 54 KB."""


def parts(page: bytes) -> Iterator[bytes]:
    """Yield the lines of ``page`` in parts, each with a leading newline.

    Lines longer than a part are skipped: servers do not write useful lines of that length.
    """
    start, size = 0, len(page)
    if size <= PART_BYTES:
        yield b"\n" + page
        return
    while start < size:
        end = start + PART_BYTES
        if end < size:
            end = page.rfind(b"\n", start, end)
            if end < 0:
                end = page.find(b"\n", start)
                start = size if end < 0 else end + 1
                continue
        yield b"\n" + page[start:end]
        start = end + 1
