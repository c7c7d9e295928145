"""Splits the bytes read into frames; checks everything that does not depend on a stream's state.

It checks the preface, the size of a frame, whether its type may be on its stream, padding, and that
no frame interrupts a header block (RFC 9113 §3.4, §4, §6). A frame above the size limit is refused
at its header and never buffered.
"""

from collections.abc import Callable, Mapping
from sys import maxsize
from typing import Final, NoReturn

from epp.transport.http2.constants import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    MAX_STREAM_ID,
    PADDED,
    PREFACE,
    PRIORITY_BYTES,
    PRIORITY_FIELDS,
    ErrorCode,
    FrameType,
)
from epp.transport.http2.errors import ConnectionFault, StreamFault
from epp.transport.http2.floods import FloodGuard

FrameHandler = Callable[[int, int, bytes], None]
"""Called with flags, stream id and payload."""

_ANY_SIZE: Final = range(1 << 24)
_STREAM, _CONNECTION, _BOTH = range(1, MAX_STREAM_ID + 1), range(1), range(MAX_STREAM_ID + 1)

# Allowed stream ids and payload sizes by frame type.
_RULES: Final[dict[FrameType, tuple[range, range]]] = {
    FrameType.DATA: (_STREAM, _ANY_SIZE),
    FrameType.HEADERS: (_STREAM, _ANY_SIZE),
    FrameType.PRIORITY: (_STREAM, _ANY_SIZE),  # a wrong size is only a stream error (§6.3)
    FrameType.RST_STREAM: (_STREAM, range(4, 5)),
    FrameType.SETTINGS: (_CONNECTION, range(0, 1 << 24, 6)),
    FrameType.PUSH_PROMISE: (range(0), _ANY_SIZE),  # never from a client (§8.4)
    FrameType.PING: (_CONNECTION, range(8, 9)),
    FrameType.GOAWAY: (_CONNECTION, range(8, 1 << 24)),
    FrameType.WINDOW_UPDATE: (_BOTH, range(4, 5)),
    FrameType.CONTINUATION: (_STREAM, _ANY_SIZE),
}

_Rule = tuple[int, int, int, int, int, FrameHandler]
"""First and last stream id, minimum and maximum payload bytes, the number that these are a multiple
of, and the handler. Checking two ranges with ``in`` takes twice as long."""

_DATA: Final = int(FrameType.DATA)
_HEADERS: Final = FrameType.HEADERS
_CONTINUATION: Final = FrameType.CONTINUATION
_NO_LIMIT: Final = maxsize

_unpack: Final = FRAME_HEADER.unpack_from

_TLS_HANDSHAKE: Final = b"\x16\x03"
"""First bytes of a TLS record of type handshake, any version (RFC 8446 §5.1)."""
_HTTP1_METHODS: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"CONNECT ")


def _why_no_preface(data: bytes) -> str:
    """Return why ``data`` is not the preface of HTTP/2; name its protocol if it is known."""
    if data.startswith(_TLS_HANDSHAKE):
        return "a TLS handshake on a port without TLS: use TLS on both sides or on neither"
    if data.startswith(_HTTP1_METHODS):
        return "an HTTP/1 request on a port for gRPC, which is HTTP/2"
    return "no HTTP/2 preface"


class FrameParser:
    """Calls a handler for each complete frame; HEADERS with the complete header block."""

    def __init__(
        self,
        handlers: Mapping[FrameType, FrameHandler],
        *,
        max_frame_bytes: int,
        max_block_bytes: int,
        guard: FloodGuard,
        faulted: Callable[[int, StreamFault], None],
        plain_data: Callable[[int, bytes], bool],
    ) -> None:
        """Expect the preface.

        Args:
            handlers: Handlers by frame type; CONTINUATION and PUSH_PROMISE need none.
            max_frame_bytes: The announced MAX_FRAME_SIZE.
            max_block_bytes: Limit on the length of a header block.
            guard: Counts frames that do not advance a request.
            faulted: Called with the stream id and the StreamFault that a handler has raised.
            plain_data: Called with the stream id and the payload of DATA without flags; returns
                False to have the handler called, as for any other frame.
        """
        # Header blocks are assembled here first.
        own = {_HEADERS: self._begin_block, _CONTINUATION: self._continue_block}
        all_handlers = {**handlers, **own}
        self._rules = tuple(
            _rule(*_RULES[kind], all_handlers.get(kind, _ignored)) for kind in FrameType
        )
        self._headers = handlers[_HEADERS]
        self._max_frame_bytes = max_frame_bytes
        self._max_block_bytes = max_block_bytes
        self._guard = guard
        self._faulted = faulted
        self._plain_data = plain_data
        self._rest = bytearray()
        self._needed_bytes = 1
        self._blocks_left = _NO_LIMIT
        self._block = bytearray()
        self._block_stream_id = 0
        self._block_flags = 0
        self._parse: Callable[[bytes], int] = self._parse_preface
        self.is_established = False
        """The preface has arrived, with the header of the SETTINGS frame that belongs to it."""

    def close(self) -> None:
        """Drop the handlers; :meth:`feed` must not be called after this.

        The handlers are part of reference cycles, which only the garbage collector would free; it
        blocks the event loop.
        """
        self._rules = ()
        self._headers = self._faulted = self._plain_data = self._parse = _closed

    @property
    def is_mid_frame(self) -> bool:
        """Whether the preface, a frame or a header block has arrived only in part."""
        return bool(self._rest) or self._block_stream_id != 0

    @property
    def is_between_frames(self) -> bool:
        """Whether the next bytes begin a frame that may be of any type."""
        return self.is_established and not self._rest and not self._block_stream_id

    @property
    def has_unread(self) -> bool:
        """Whether the last :meth:`feed` kept frames because of ``max_header_blocks``."""
        return not self._blocks_left and bool(self._rest)

    def feed(self, data: bytes, max_header_blocks: int = _NO_LIMIT) -> None:
        """Handle bytes.

        Args:
            data: The bytes; empty to continue with those left unread.
            max_header_blocks: Header blocks to handle in this call; bytes after them are kept.

        Raises:
            ConnectionFault: The bytes are not valid HTTP/2, or a handler has refused a frame.
        """
        self._blocks_left = max_header_blocks
        rest = self._rest
        if rest:
            if len(rest) + len(data) < self._needed_bytes:
                rest += data
                return
            data = b"".join((rest, data))
            rest.clear()
        used = self._parse(data)
        if used < len(data):
            rest += memoryview(data)[used:]

    def _parse_preface(self, data: bytes) -> int:
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, _why_no_preface(data))
        if len(data) < len(PREFACE):
            return 0
        self._parse = self._parse_first_frame
        return len(PREFACE) + self._parse_first_frame(data[len(PREFACE) :])

    def _parse_first_frame(self, data: bytes) -> int:
        if len(data) < FRAME_HEADER_BYTES:
            return 0
        # "This sequence MUST be followed by a SETTINGS frame", which may be empty (§3.4).
        word, flags, _ = _unpack(data)
        if word & 0xFF != FrameType.SETTINGS or flags & ACK:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "the preface ends with SETTINGS")
        self._parse = self._parse_frames
        self.is_established = True
        return self._parse_frames(data)

    def _parse_frames(self, data: bytes) -> int:
        """Handle all complete frames; return the number of bytes consumed."""
        size = len(data)
        start = 0
        word: int  # plain integers, when compiled
        flags: int
        stream_id: int
        first: int
        last: int
        least: int
        most: int
        step: int
        while size - start >= FRAME_HEADER_BYTES:
            word, flags, stream_id = _unpack(data, start)
            length = word >> 8
            if length > self._max_frame_bytes:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame of {length} bytes")
            end = start + FRAME_HEADER_BYTES + length
            if end > size:
                self._needed_bytes = FRAME_HEADER_BYTES + length
                return start
            payload = data[start + FRAME_HEADER_BYTES : end]
            start = end
            kind = word & 0xFF
            stream_id &= MAX_STREAM_ID
            if (
                kind == _DATA
                and length
                and not (flags or self._block_stream_id)
                and self._plain_data(stream_id, payload)
            ):
                continue
            if self._block_stream_id and (
                kind != _CONTINUATION or stream_id != self._block_stream_id
            ):
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            if kind > _CONTINUATION:
                self._guard.control_frame()  # an unknown type must be ignored (§5.5)
                continue
            first, last, least, most, step, handle = self._rules[kind]
            if not first <= stream_id <= last:
                raise ConnectionFault(
                    ErrorCode.PROTOCOL_ERROR, f"{FrameType(kind).name} on stream {stream_id}"
                )
            if not least <= length <= most or length % step:
                raise ConnectionFault(
                    ErrorCode.FRAME_SIZE_ERROR, f"{FrameType(kind).name} of {length} bytes"
                )
            try:
                handle(flags, stream_id, payload)
            except StreamFault as fault:
                self._faulted(stream_id, fault)
            if not self._blocks_left:
                break
        self._needed_bytes = FRAME_HEADER_BYTES
        return start

    def _begin_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = unpadded(payload)
        if flags & PRIORITY_FIELDS:
            if len(payload) < PRIORITY_BYTES:
                # "Padding that exceeds the size remaining ... PROTOCOL_ERROR" (§6.2)
                code = ErrorCode.PROTOCOL_ERROR if flags & PADDED else ErrorCode.FRAME_SIZE_ERROR
                raise ConnectionFault(code, "HEADERS without its priority")
            payload = payload[PRIORITY_BYTES:]
        self._check_block(len(payload))
        if flags & END_HEADERS:
            self._blocks_left -= 1
            self._headers(flags, stream_id, payload)
            return
        self._block_stream_id = stream_id
        self._block_flags = flags & END_STREAM
        self._block += payload

    def _continue_block(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._block_stream_id:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._guard.control_frame()
        self._block += payload
        self._check_block(len(self._block))
        if flags & END_HEADERS:
            block = bytes(self._block)
            self._block.clear()
            self._block_stream_id = 0
            self._blocks_left -= 1
            self._headers(self._block_flags, stream_id, block)

    def _check_block(self, size: int) -> None:
        if size > self._max_block_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")


def _rule(streams: range, sizes: range, handler: FrameHandler) -> _Rule:
    """Return the rule for two ranges; ``sizes`` begins with a multiple of its step."""
    return (streams.start, streams.stop - 1, sizes.start, sizes.stop - 1, sizes.step, handler)


def unpadded(payload: bytes) -> bytes:
    """Remove the padding from the payload of a frame with the PADDED flag.

    Raises:
        ConnectionFault: The padding is as long as the payload, or longer (§6.1).
    """
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def _ignored(_flags: int, _stream_id: int, _payload: bytes) -> None:
    """Placeholder for PUSH_PROMISE, which no stream id allows."""


def _closed(*_: object) -> NoReturn:
    """Stand in for the handlers of a closed parser."""
    raise RuntimeError("the parser is closed")
