"""The body of one response on its way to the client: measured, read, renamed, reported.

A chunk that is not read costs two additions here. A reader gets every chunk as the model server
sent it and returns the token usage once, at the end. If a reader fails, the response passes without
it.
"""

from collections.abc import Callable, Mapping
from zlib import crc32

import structlog

from epp.ext_proc import processing_response
from epp.ext_proc.interfaces import TransportStream
from epp.ext_proc.model_names import ModelNames
from epp.ext_proc.modes import BUFFERED, FULL_DUPLEX, HELD, NONE, STREAMED
from epp.parsing import DecodingReader, response_decoder
from epp.parsing.plugins import ResponseReader, Usage
from epp.request_control import FindReader, RoutedRequest

_CRC32_VALUES = 1 << 32
_EVENT_STREAMS = ("text/event-stream", "ndjson", "jsonl")
"""Content types, or parts of them, of bodies in which each line is a document."""

log = structlog.get_logger(__name__)


def is_worth_requesting(routed: RoutedRequest, request_id: str, share: float) -> bool:
    """Return whether to request a response body that Envoy would not send by itself.

    Args:
        routed: The request of the response.
        request_id: Decides whether the response is in the sample; replicas agree on it.
        share: Share of the readable responses to request, 0.0 to 1.0.
    """
    if routed.is_renamed or (routed.wants_report and routed.reads_response):
        return True
    if not share or not routed.reads_response:
        return False
    return crc32(request_id.encode(errors="replace")) < share * _CRC32_VALUES


def report(routed: RoutedRequest | None, usage: Usage | None) -> bytes:
    """Return what plugins report to the gateway about a response, to append to a reply.

    Args:
        routed: The request of the response; None if it was not scheduled.
        usage: Token usage that the body contained; None if unknown.
    """
    if routed is None or not routed.wants_report:
        return b""
    metadata = routed.report(usage)
    return processing_response.dynamic_metadata(metadata) if metadata else b""


class ResponseBody:
    """One response's body, as far as it has arrived.

    Args:
        transport: Where replies to chunks are sent.
        mode: Envoy's body mode.
        routed: The request of the response; None if it was not scheduled.
        request_id: Id of the request, for the log.
    """

    __slots__ = (
        "_began_at",
        "_last_at",
        "_mode",
        "_names",
        "_observe_interval",
        "_reader",
        "_request_id",
        "_routed",
        "_transport",
        "_usage",
        "after_chunk",
        "is_duplex",
        "is_plain",
        "size",
    )

    def __init__(
        self, transport: TransportStream, mode: int, routed: RoutedRequest | None, request_id: str
    ) -> None:
        self.size = 0
        """Bytes so far."""
        self._transport = transport
        self._mode = mode
        self.is_duplex = mode == FULL_DUPLEX
        """Whether the client gets the body from here, so that an early end would lose chunks."""
        self.is_plain = False
        """Whether chunks go back unchanged, one reply each, which :meth:`pass_plain` does."""
        self.after_chunk = b""
        """The fields after a chunk in Envoy's latest message: the same ones need no decoding."""
        self._routed = routed
        self._request_id = request_id
        self._began_at: float | None = None
        """When the first chunk arrived, in seconds of the clock."""
        self._last_at = 0.0
        """When the latest chunk arrived, if intervals are observed."""
        self._observe_interval: Callable[[float], None] | None = None
        """Gets the seconds between two chunks of a streamed response; None for any other."""
        self._reader: ResponseReader | None = None
        self._usage: Usage | None = None
        self._names: ModelNames | None = None

    # --- what the headers decide ----------------------------------------------------------------

    @property
    def is_needed(self) -> bool:
        """Whether the body should be read or changed, if its headers permit."""
        routed = self._routed
        return routed is not None and (routed.reads_response or routed.is_renamed)

    def watch(self, headers: Mapping[str, str]) -> None:
        """Choose the reader and the renaming for a response with these headers."""
        routed = self._routed
        if routed is None:
            return
        if (find := routed.find_reader) is not None:
            self._reader = _reader(find, headers)
        if routed.is_renamed and headers.get("content-encoding", "identity") == "identity":
            self._names = _model_names(routed, headers.get("content-type", ""))

    @property
    def is_unrequested(self) -> bool:
        """Whether the body is read or changed, but Envoy sends it only on request."""
        return self._mode == NONE and (self._reader is not None or self._names is not None)

    @property
    def is_length_unknown(self) -> bool:
        """Whether renaming may change a length that the headers have already stated."""
        return self._names is not None and self._mode in {NONE, STREAMED}

    # --- chunks ---------------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        """Whether a chunk has arrived."""
        return self._began_at is not None

    def pass_chunk(self, data: bytes, end_of_stream: bool, now: float) -> None:
        """Reply to a chunk, then read it."""
        if not self.size:
            self._begin(now)
            if data:
                self.is_plain = self.is_duplex and self._names is None
                if self._routed is not None:
                    self._routed.body_began()
        elif data and self._observe_interval is not None:
            self._observe_interval(now - self._last_at)
            self._last_at = now
        self.size += len(data)
        passed = data
        if self._names is not None:
            # A buffered body is one message, without the end-of-stream flag if trailers follow.
            is_last = end_of_stream or self._mode in HELD
            passed = self._names.feed(data, is_last=is_last)
        # Only the last chunk is read before it is answered: the report depends on it.
        reported = self.report(data) if end_of_stream else b""
        if self.is_duplex:
            if len(passed) <= processing_response.MAX_BODY_CHUNK_BYTES:
                echo = processing_response.echoed_chunk(passed, end_of_stream)
                self._transport.send(echo + reported if reported else echo)
            else:
                self._send_back(passed, reported, end_of_stream=end_of_stream)
        elif passed == data:
            self._transport.send(processing_response.CONTINUE_RESPONSE_BODY + reported)
        else:
            sets_length = self._mode == BUFFERED
            replaced = processing_response.replaced_response(passed, sets_length=sets_length)
            self._transport.send(replaced + reported)
        if data and self._reader is not None:
            self._read(data, self._reader)

    def pass_plain(self, data: bytes, before: bytes, now: float) -> None:
        """Reply to and read a chunk that is not the last one, if :attr:`is_plain`.

        Args:
            data: The chunk, not empty.
            before: The bytes before it in the reply.
            now: Seconds of the clock.
        """
        if self._observe_interval is not None:
            self._observe_interval(now - self._last_at)
            self._last_at = now
        self.size += len(data)
        self._transport.send(before + data)
        if self._reader is not None:
            self._read(data, self._reader)

    def _begin(self, now: float) -> None:
        self._began_at = self._last_at = now
        routed = self._routed
        if routed is not None and routed.request.stream:
            self._observe_interval = routed.metrics.response.between_chunks.observe

    def _send_back(self, data: bytes, reported: bytes = b"", *, end_of_stream: bool) -> None:
        for piece in processing_response.echoed_response(data, end_of_stream=end_of_stream):
            self._transport.send(piece + reported)
            reported = b""

    def _read(self, data: bytes, reader: ResponseReader) -> None:
        try:
            reader.feed(data)
        except Exception as error:
            self._drop_reader(error)

    def report(self, last: bytes = b"") -> bytes:
        """Return the report on the response, to append to the reply to its end.

        Args:
            last: A chunk that has not been read yet.
        """
        routed = self._routed
        if routed is None or not routed.wants_report:
            return b""
        if last and self._reader is not None:
            self._read(last, self._reader)
        return report(routed, self._final_usage())

    def flush(self) -> None:
        """Send back what renaming still holds; only full duplex takes unrequested replies."""
        if self.is_duplex and self._names is not None:
            names, self._names = self._names, None
            if held := names.flush():
                self._send_back(held, end_of_stream=False)

    def end(self, now: float, *, is_whole: bool) -> None:
        """Record size, times and usage of the body with the request, if any of the body arrived.

        Args:
            now: Seconds of the clock.
            is_whole: The end of the body was seen.
        """
        if self._routed is None or self._began_at is None or not self.size:
            return
        self._routed.response_seen(
            self._final_usage(),
            body_bytes=self.size,
            began_at=self._began_at,
            ended_at=now,
            is_whole=is_whole,
        )

    def _final_usage(self) -> Usage | None:
        """Return the token usage that the body contained; nothing is read afterwards."""
        if self._reader is not None:
            try:
                self._usage = self._reader.usage()
            except Exception as error:
                self._drop_reader(error)
            self._reader = None
        return self._usage

    def _drop_reader(self, error: Exception) -> None:
        log.error("response reader failed", request_id=self._request_id, exc_info=error)
        self._reader = None


def _reader(find: FindReader, headers: Mapping[str, str]) -> ResponseReader | None:
    """Return the reader for a response; it gets the body without its content encoding."""
    if "content-encoding" not in headers or (decode := response_decoder(headers)) is None:
        return find(headers)
    plain = {name: value for name, value in headers.items() if name != "content-encoding"}
    reader = find(plain)
    return None if reader is None else DecodingReader(reader, decode)


def _model_names(routed: RoutedRequest, content_type: str) -> ModelNames | None:
    """Return the object that restores the client's model name; None for a body that is not JSON."""
    is_event_stream = any(kind in content_type for kind in _EVENT_STREAMS)
    if not is_event_stream and "json" not in content_type:
        return None
    request = routed.request
    return ModelNames(request.target_model, request.model, is_event_stream=is_event_stream)
