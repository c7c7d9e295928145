"""The response to one request: arrival times, tokens, usage and errors."""

from array import array
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from epp.lab.load.errors import RequestFailedError
from epp.lab.load.sse import EventDecoder
from epp.lab.results.record import ErrorKind

SERVED_BY_HEADERS = (b"x-served-by", b"x-gateway-destination-endpoint")
"""Response headers that name the model server, the most reliable first."""
_MESSAGE_CHARS = 200


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None

    def has_text(self) -> bool:
        for choice in self.choices:
            if choice.text:
                return True
            delta = choice.delta
            if delta and (delta.content or delta.reasoning_content or delta.tool_calls):
                return True
        return False

    def text(self) -> str:
        """Return the text that the next turn of a conversation repeats."""
        for choice in self.choices:
            said = choice.delta or choice.message
            return choice.text or (said and said.content) or ""
        return ""


_decode = msgspec.json.Decoder(_Event).decode


class Response:
    """Receives and decodes the response of an OpenAI API (a `client.Receiver`).

    Times are seconds after `origin`, a time of `clock`.
    """

    __slots__ = (
        "_body",
        "_clock",
        "_decoder",
        "_done",
        "_fault",
        "_keeps_text",
        "_leaves_early",
        "_origin",
        "_texts",
        "first_byte_at",
        "left_early",
        "served_by",
        "status",
        "token_times",
        "usage",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        origin: float = 0.0,
        leaves_early: bool = False,
        keeps_text: bool = False,
    ) -> None:
        self._clock = clock
        self._origin = origin
        self._leaves_early = leaves_early
        self._keeps_text = keeps_text
        self._texts: list[str] = []
        self._decoder: EventDecoder | None = None
        self._body = bytearray()
        self._done = False
        self._fault: RequestFailedError | None = None
        self.status = 0
        self.served_by = ""
        self.first_byte_at: float | None = None
        self.token_times = array("d")
        self.usage = _Usage()
        self.left_early = False

    @property
    def output_tokens(self) -> int:
        """Tokens according to `usage`, else the number of events with text."""
        return self.usage.completion_tokens or len(self.token_times)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens from the server's prefix cache, according to `usage`."""
        details = self.usage.prompt_tokens_details
        return (details and details.cached_tokens) or 0

    @property
    def text(self) -> str:
        """The generated text; empty without `keeps_text`."""
        return "".join(self._texts)

    def on_headers(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Receive the status and the headers by lower-case name."""
        self.status = status
        for name in SERVED_BY_HEADERS:
            if value := headers.get(name):
                self.served_by = value.decode("latin-1")
                break
        if self._good and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._decoder = EventDecoder()

    def on_body(self, chunk: bytes) -> bool:
        """Receive bytes of the body; return False to abort the request."""
        now = self._clock() - self._origin
        if self.first_byte_at is None:
            self.first_byte_at = now
        if self._leaves_early and self._good:
            self.left_early = True
            return False
        if self._decoder is None:
            self._body += chunk
        else:
            for event in self._decoder.feed(chunk):
                self._on_event(event, now)
        return True

    def check(self) -> None:
        """Check a complete response; decode the body and its `usage` if it was not streamed.

        Raises:
            RequestFailedError: The status is not 2xx, the body is not the expected JSON, or the
                stream contains an error or lacks ``[DONE]``.
        """
        if self.left_early:
            return
        if not self._good:
            text = self._body[:_MESSAGE_CHARS].decode("utf-8", "replace").strip()
            raise RequestFailedError(ErrorKind.STATUS, text or f"HTTP {self.status} without a body")
        if self._fault is not None:
            raise self._fault
        if self._decoder is None:
            try:
                event = _decode(self._body)
            except msgspec.MsgspecError as error:
                raise RequestFailedError(ErrorKind.MALFORMED, f"response: {error}") from None
            self.usage = event.usage or self.usage
            if self._keeps_text:
                self._texts.append(event.text())
        elif not self._done:
            raise RequestFailedError(ErrorKind.STREAM, "the stream ended without [DONE]")

    @property
    def _good(self) -> bool:
        return 200 <= self.status < 300  # noqa: PLR2004 - successful (RFC 9110 §15.3)

    def _on_event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._done = True
            return
        try:
            event = _decode(data)
        except msgspec.MsgspecError as error:
            self._fail(ErrorKind.MALFORMED, f"event: {error}")
            return
        if event.error is not None:
            text = msgspec.json.encode(event.error).decode()
            self._fail(ErrorKind.STREAM, text[:_MESSAGE_CHARS])
        if event.has_text():
            self.token_times.append(now)
        if self._keeps_text:
            self._texts.append(event.text())
        if event.usage is not None:
            self.usage = event.usage

    def _fail(self, kind: ErrorKind, message: str) -> None:
        if self._fault is None:
            self._fault = RequestFailedError(kind, message)
