"""Restores the client's model name in a response that contains another one.

A document (a JSON body, or one line of an event stream) has its model name once: at the top level,
or in the object of its event. Anything else that looks like it is content and is left unchanged.
Bytes are held only while the client could not use them: an incomplete line, and the start of a JSON
body up to the name.
"""

import json
import re

MAX_HELD_BYTES = 64 << 10
"""A document without a model name in its first bytes passes unchanged."""

MAX_TOKENS = 4_000
"""Strings and brackets of a document to examine, at 0.4 us each; a document without a model name
among them passes unchanged."""

_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
"""A complete string, a bracket, or the opening quote of an incomplete string."""
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_KEY = b'"model"'
_MODEL_PARENTS = frozenset({b'"response"', b'"message"', b'"choices"'})
"""Keys of the objects besides the document itself that may have a ``model``: the Responses API,
Anthropic's first event, choices."""


class ModelNames:
    """Replaces one model name by another in a response body, chunk by chunk.

    Args:
        served_name: The name in the response, which the model server knows.
        client_name: The name that the client used.
        is_event_stream: Each line of the body is a document, instead of the body as a whole.
    """

    __slots__ = (
        "_client_name",
        "_held_bytes",
        "_is_done",
        "_is_event_stream",
        "_next_try",
        "_pieces",
        "_served_name",
    )

    def __init__(self, served_name: str, client_name: str, *, is_event_stream: bool) -> None:
        self._served_name = served_name
        self._client_name = json.dumps(client_name).encode()
        self._is_event_stream = is_event_stream
        self._is_done = False
        """The rest of the document (in an event stream: of the line) passes unchanged."""
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._next_try = 0

    def feed(self, chunk: bytes, *, is_last: bool) -> bytes:
        """Return the bytes to pass on after ``chunk``; after the last chunk nothing is held."""
        passed = self._lines(chunk) if self._is_event_stream else self._hold(chunk)
        return passed + self.flush() if is_last else passed

    def flush(self) -> bytes:
        """Return the held bytes, with the name replaced if it is there, and hold nothing."""
        held = self._take()
        return self._renamed(held) or held

    def _lines(self, chunk: bytes) -> bytes:
        end = chunk.rfind(b"\n") + 1
        if not end:
            return self._hold(chunk)
        whole = self._take() + chunk[:end]
        rest = b""
        if self._is_done:  # the rest of a line whose start has passed
            cut = whole.index(b"\n") + 1
            rest, whole = whole[:cut], whole[cut:]
            self._is_done = False
        if _KEY in whole:
            lines = whole.splitlines(keepends=True)
            whole = b"".join([self._renamed(line) or line for line in lines])
        return rest + whole + (self._hold(chunk[end:]) if end < len(chunk) else b"")

    def _take(self) -> bytes:
        held = b"".join(self._pieces)
        self._pieces, self._held_bytes = [], 0
        return held

    def _hold(self, chunk: bytes) -> bytes:
        """Hold a part of a document; return the held bytes that can be passed on."""
        if self._is_done:
            return chunk
        self._pieces.append(chunk)
        self._held_bytes = held_bytes = self._held_bytes + len(chunk)
        is_too_much = held_bytes > MAX_HELD_BYTES
        if not is_too_much and (self._is_event_stream or held_bytes < self._next_try):
            return b""
        held = self._take()
        renamed = self._renamed(held)
        if renamed is None and not is_too_much:
            # Search again at twice the size: the work is linear however small the chunks are.
            self._pieces, self._held_bytes, self._next_try = [held], held_bytes, 2 * held_bytes
            return b""
        self._is_done = True
        return renamed or held

    def _renamed(self, document: bytes) -> bytes | None:
        """Return a document, or the start of one, with its model name checked and replaced.

        None if it has no model name, or not yet.
        """
        if _KEY not in document:
            return None
        inside: list[bool] = []  # for each open bracket, whether its content may have the model
        key = b""
        at = 0
        for _ in range(MAX_TOKENS):
            token = _TOKEN.search(document, at)
            if token is None:
                break
            text, at = token[0], token.end()
            if text == b'"':
                return None  # incomplete
            if text in b"{[":
                inside.append(not inside or (inside[-1] and (not key or key in _MODEL_PARENTS)))
                key = b""
            elif text in b"}]":
                if inside:
                    inside.pop()
                key = b""
            elif colon := _COLON.match(document, at):
                key, at = text, colon.end()
                if key == _KEY and inside and inside[-1]:
                    return self._with_name(document, at)
            else:
                key = b""
        return None

    def _with_name(self, document: bytes, at: int) -> bytes | None:
        """Return ``document``, whose model name begins at ``at``, with the name replaced."""
        value = _TOKEN.match(document, at)
        if value is None:
            return document if at < len(document) else None  # null, or a number
        if value[0] == b'"':
            return None  # incomplete
        if not value[0].startswith(b'"') or _text(value[0]) != self._served_name:
            return document
        return document[:at] + self._client_name + document[value.end() :]


def _text(string: bytes) -> str | None:
    try:
        text = json.loads(string)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
