"""The body of a response on its way to the client: what is read from it, and changed in it.

Where nobody needs it, a chunk costs two additions here. A reader gets every chunk as the model
server sent it, and is asked once, at the end; if it fails, the answer goes on without it.
"""

from collections.abc import Callable, Mapping
from zlib import crc32

import structlog

from epp.ext_proc.model_names import ModelNames
from epp.parsing import DecodingReader, answer_decoder
from epp.parsing.plugins import AnswerReader, Usage
from epp.request_control import FindReader, RoutedRequest

_CRC32_VALUES = 1 << 32
_LINES = ("text/event-stream", "ndjson", "jsonl")
"""Content types, or parts of them, of bodies in which each line is a document."""

log = structlog.get_logger()


def is_needed(exchange: RoutedRequest) -> bool:
    """Return whether the body of the response is to be looked at, if it comes."""
    return exchange.reads_answer or exchange.is_renamed


def is_worth_asking(exchange: RoutedRequest, request_id: str, share: float) -> bool:
    """Return whether a gateway that would not send the response's body is to be asked for it.

    Args:
        exchange: Whose response it is.
        request_id: Decides whether it is in the sample; replicas agree on it.
        share: Of the responses that are there to be read, which are asked for, 0.0 to 1.0.
    """
    if exchange.is_renamed or (exchange.wants_report and exchange.reads_answer):
        return True
    if not share or not exchange.reads_answer:
        return False
    return crc32(request_id.encode(errors="replace")) < share * _CRC32_VALUES


def _reader(find: FindReader, headers: Mapping[str, str]) -> AnswerReader | None:
    """Return what reads the answer with these headers, without its content encoding if it can."""
    if "content-encoding" not in headers or (decode := answer_decoder(headers)) is None:
        return find(headers)
    plain = {name: value for name, value in headers.items() if name != "content-encoding"}
    reader = find(plain)
    return None if reader is None else DecodingReader(reader, decode)


def _names(exchange: RoutedRequest, content_type: str) -> ModelNames | None:
    """Return what puts the client's name back; None in a body that is no JSON, such as gRPC's."""
    is_lines = any(kind in content_type for kind in _LINES)
    if not is_lines and "json" not in content_type:
        return None
    request = exchange.request
    return ModelNames(request.target_model, request.model, is_event_stream=is_lines)


class AnswerBody:
    """What has passed of one response's body.

    Attributes:
        began_at: When its first bytes came, in seconds of the clock.
        last_at: When the last ones so far came, if ``between`` is told of it.
        between: Is told the seconds between two chunks of a streamed answer; None for any other.
        size: Bytes so far.
        reader: Gets every chunk; None if nobody does.
        names: Changes chunks; None if nothing does.
    """

    __slots__ = (
        "_request_id",
        "_usage",
        "began_at",
        "between",
        "last_at",
        "names",
        "reader",
        "size",
    )

    def __init__(self, request_id: str) -> None:
        self._request_id = request_id
        self.began_at = self.last_at = 0.0
        self.between: Callable[[float], None] | None = None
        self.size = 0
        self.reader: AnswerReader | None = None
        self._usage: Usage | None = None
        self.names: ModelNames | None = None

    def begins(self, exchange: RoutedRequest, now: float) -> None:
        """Take note of the first bytes."""
        self.began_at = self.last_at = now
        if exchange.request.stream:
            self.between = exchange.metrics.answer.between_chunks.observe

    def watch(self, exchange: RoutedRequest, headers: Mapping[str, str]) -> None:
        """Find out who needs the body of the response with these ``headers``."""
        if exchange.find_reader is not None:
            self.reader = _reader(exchange.find_reader, headers)
        if exchange.is_renamed and headers.get("content-encoding", "identity") == "identity":
            self.names = _names(exchange, headers.get("content-type", ""))

    @property
    def is_watched(self) -> bool:
        """Whether anybody needs the body."""
        return self.reader is not None or self.names is not None

    def read(self, body: bytes, reader: AnswerReader) -> None:
        """Give ``reader``, who is ours, the next chunk."""
        try:
            reader.feed(body)
        except Exception as error:
            self.reader_failed(error)

    def flush(self) -> bytes:
        """Return what is held back of the body; nothing is afterwards."""
        names, self.names = self.names, None
        return b"" if names is None else names.flush()

    def ended(self, exchange: RoutedRequest, ended_at: float, *, is_whole: bool) -> None:
        """Tell ``exchange`` of the end, if any of the body came."""
        if not self.size:
            return
        exchange.answer_seen(
            self.usage(),
            body_bytes=self.size,
            began_at=self.began_at,
            ended_at=ended_at,
            is_whole=is_whole,
        )

    def usage(self) -> Usage | None:
        """Return what the body has said of its tokens; nothing is read any more afterwards."""
        if self.reader is not None:
            try:
                self._usage = self.reader.usage()
            except Exception as error:
                self.reader_failed(error)
            self.reader = None
        return self._usage

    def reader_failed(self, error: Exception) -> None:
        """Go on without the reader, which has raised."""
        log.error("answer not read", request_id=self._request_id, exc_info=error)
        self.reader = None
