"""The body of one request, from its first chunk until Envoy has it back.

Chunks are counted on the memory account, checked against the limits and joined without a copy. Once
the request is routed, Envoy gets the body back as its mode requires:

* FULL_DUPLEX_STREAMED: the body is sent back; a long one in pieces, as the transport takes them.
* STREAMED: each chunk gets a reply of its own, which lets it pass or replaces it.
* BUFFERED, BUFFERED_PARTIAL: nothing more; the reply that routes the request is also the reply to
  the body.
"""

from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from typing import Final

from epp.ext_proc import client_headers, processing_response
from epp.ext_proc.held_bytes import HeldBytes
from epp.ext_proc.interfaces import RequestHandler, TransportStream
from epp.ext_proc.modes import ASSUMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX, HELD, STREAMED
from epp.ext_proc.request_limits import too_large
from epp.ext_proc.settings import ExtProcSettings
from epp.request_control import (
    HeldBytesError,
    PartialBodyError,
    RequestError,
    SlowBodyError,
    source_of,
)

_COUNTED_HEADERS_BYTES: Final = 4 << 10
"""Longer headers are counted while the body arrives: 48 KB of them in each of 4000 requests whose
bodies did not end took 256 MB that the account did not see."""


class RequestBody:
    """The body of one request, its part of the memory account, and how fast it arrives.

    It is the account's :class:`~epp.ext_proc.held_bytes.BodyHolder` and the
    :class:`~epp.request_control.RequestMemory` that the director uses.
    """

    __slots__ = (
        "_account",
        "_buffer",
        "_data",
        "_echo",
        "_extra_bytes",
        "_handler",
        "_headers",
        "_progress_at",
        "_progress_bytes",
        "_refuse",
        "_settings",
        "_size",
        "_transport",
        "chunks",
        "is_buffered",
        "mode",
    )

    def __init__(
        self,
        transport: TransportStream,
        account: HeldBytes,
        handler: RequestHandler,
        settings: ExtProcSettings,
    ) -> None:
        self.mode: int = ASSUMED.request
        """Envoy's body mode."""
        self.is_buffered = False
        """Whether Envoy buffers the body and sends it in one message."""
        self.chunks = 0
        """Messages in which the body arrived, empty ones included."""
        self._transport = transport
        self._account = account
        self._handler = handler
        self._settings = settings
        self._headers: Mapping[str, str] = {}
        self._refuse: Callable[[RequestError], None] | None = None
        """Refuses the request; None unless the body is arriving."""
        self._data: bytes | memoryview = b""
        """The body, if it is one chunk or complete."""
        self._buffer: BytesIO | None = None
        """The chunks so far, if there are several."""
        self._size = 0
        """Bytes of the body on the account."""
        self._extra_bytes = 0
        """Other bytes on the account: long headers, the body decoded or rewritten."""
        self._progress_at = 0.0
        """When the upload was last fast enough."""
        self._progress_bytes = 0
        """Bytes of the body at that time."""
        self._echo: Iterator[bytes] | None = None
        """Replies still to be sent, which return a long body."""

    # --- arrival --------------------------------------------------------------------------------

    def begin(self, mode: int, headers: Mapping[str, str], now: float) -> None:
        """Record Envoy's mode for the body, if there is one, and the request's headers."""
        self.mode = mode
        self.is_buffered = mode in HELD
        self._headers = headers
        self._progress_at = now

    def expect(self, header_bytes: int, refuse: Callable[[RequestError], None]) -> None:
        """Wait for the body; long headers count as held meanwhile.

        Args:
            header_bytes: Size of the request's headers.
            refuse: Answers the request with an error; called if the body is evicted on its way.

        Raises:
            HeldBytesError: There is no memory left for the headers.
        """
        self._refuse = refuse
        if header_bytes > _COUNTED_HEADERS_BYTES:
            self.hold(header_bytes)

    def add(self, data: bytes | memoryview, end_of_stream: bool) -> bool:
        """Keep another chunk; return whether the body is complete.

        Raises:
            BodyTooLargeError: The body is longer than the limit.
            HeldBytesError: There is no memory left for it.
            PartialBodyError: Envoy has sent only the start of the body.
        """
        size, account, mode = len(data), self._account, self.mode
        self.chunks += 1
        if size:
            if self._size:
                self._append(data)
            else:
                account.arriving_bodies += 1
                self._data = data
            account.used_bytes += size
            self._size += size
        if self._size > self._settings.max_body_bytes:
            raise too_large(f"at least {self._size}", self._settings)
        if account.used_bytes > account.high_bytes:
            self._check_room()
            if not end_of_stream and not self.is_buffered and account.must_wait(self):
                self._transport.pause_reading()
        if mode == BUFFERED_PARTIAL and not end_of_stream:
            raise PartialBodyError(
                f"of the request's body only the first {self._size} bytes came: it is larger than"
                " Envoy buffers, or has trailers; raise Envoy's request_body_buffer_limit (or"
                " per_connection_buffer_limit_bytes), or set processing_mode.request_body_mode to"
                " FULL_DUPLEX_STREAMED"
            )
        # A buffered body is one message, without the end-of-stream flag if trailers follow.
        return end_of_stream or mode == BUFFERED

    def _append(self, data: bytes | memoryview) -> None:
        # Not a list: joining it at the end would take 45 ms for 64 MiB, and small chunks take up to
        # fifty times their size as objects.
        buffer = self._buffer
        if buffer is None:
            buffer = self._buffer = BytesIO()
            buffer.write(self._data)
            self._data = b""
        buffer.write(data)

    def complete(self) -> bytes | memoryview:
        """Return the body, which has arrived whole; it stays on the account."""
        if self._refuse is not None:
            self._stop_arriving()
        if self._buffer is not None:
            self._data, self._buffer = self._buffer.getvalue(), None
        return self._data

    def _stop_arriving(self) -> None:
        self._refuse = None
        if self._size:
            self._account.body_arrived(self)

    # --- the way back to Envoy ------------------------------------------------------------------

    def give_back(self, rewritten: bytes | None, end_of_stream: bool) -> None:
        """Let Envoy send the body on; a part to send back stays on the account until it is sent.

        Args:
            rewritten: Body to send instead; None sends the received one.
            end_of_stream: The body is the end of the request; False if trailers follow.
        """
        if self.chunks:
            if self.mode == STREAMED:
                self._reply_to_chunks(rewritten)
            elif self.mode == FULL_DUPLEX and (self._data or end_of_stream):
                data = bytes(self._data) if rewritten is None else rewritten
                self._send_back(data, end_of_stream)
        self._data = b""
        if self._echo is None:
            self.drop()

    def _reply_to_chunks(self, rewritten: bytes | None) -> None:
        """Reply to every chunk; a rewritten body replaces the first, and the others are removed."""
        replacement = rewritten
        for _ in range(self.chunks):
            self._transport.send(processing_response.streamed_request(replacement))
            replacement = None if rewritten is None else b""

    def _send_back(self, data: bytes, end_of_stream: bool) -> None:
        replies = processing_response.echoed_request(data, end_of_stream=end_of_stream)
        if len(data) <= processing_response.MAX_BODY_CHUNK_BYTES:
            for reply in replies:
                self._transport.send(reply)
            return
        self._echo = iter(replies)
        surplus = self.held_bytes - len(data)
        self._size, self._extra_bytes = len(data), 0
        self._account.release(surplus)
        self.continue_echo()

    @property
    def is_echoing(self) -> bool:
        """Whether a part of a long body still has to be sent back."""
        return self._echo is not None

    def continue_echo(self) -> bool:
        """Send back as much of a long body as the transport takes; return whether that is all."""
        transport = self._transport
        for reply in self._echo or ():
            transport.send(reply)
            # From here the transport counts what it has to keep. Release after sending: a release
            # may call this method again.
            sent_bytes = min(self._size, processing_response.MAX_BODY_CHUNK_BYTES)
            self._size -= sent_bytes
            self._account.release(sent_bytes)
            if not transport.is_writable:
                return False
        self._echo = None
        self.drop()
        return True

    def flush_echo(self) -> None:
        """Send back the rest of a long body, whether the transport has room or not."""
        for reply in self._echo or ():
            self._transport.send(reply)

    def drop(self) -> None:
        """Forget the body and take it off the account."""
        if self._refuse is not None:
            self._stop_arriving()
        self._data, self._buffer = b"", None
        if held_bytes := self._size + self._extra_bytes:
            self._size = self._extra_bytes = 0
            self._account.release(held_bytes)

    def close(self, keep_echo: bool) -> None:
        """Release everything at the end of the stream.

        Args:
            keep_echo: Continue to send a long body back: a complete response may arrive before all
                of the request has gone.
        """
        if self._size or self._extra_bytes or self._refuse is not None:
            self.drop()
        if not keep_echo:
            self._echo = None

    # --- memory ---------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """Bytes of this request on the account."""
        return self._size + self._extra_bytes

    @property
    def source(self) -> str:
        """The source of the request; "" if unknown."""
        return source_of(self._headers, self._settings.source_headers)

    @property
    def is_critical(self) -> bool:
        """Whether the request has a priority above 0."""
        ignored = self._settings.ignored_client_headers
        return self._handler.priority_of(client_headers.without(self._headers, ignored)) > 0

    @property
    def is_arriving(self) -> bool:
        """Whether the body is expected and not complete yet."""
        return self._refuse is not None

    def hold(self, size: int) -> None:
        """Count ``size`` more bytes that are kept for the request until it is sent on.

        Raises:
            HeldBytesError: There is no memory left for them.
        """
        self._extra_bytes += size
        self._account.used_bytes += size
        self._check_room()

    def _check_room(self) -> None:
        account = self._account
        if account.used_bytes > account.high_bytes and not account.has_room_for(self):
            raise HeldBytesError(
                f"other requests hold {account.used_bytes - self.held_bytes} bytes already; the"
                " operator may raise --max-held-bytes"
            )

    def evict(self) -> None:
        """Refuse the request, whose body is arriving, because others need the memory."""
        if self._refuse is not None:
            self._refuse(
                SlowBodyError(
                    f"memory is short, and {self._size} bytes of the request's body came without"
                    " its end; send it again, faster"
                )
            )

    def resume_reading(self) -> None:
        """Read the rest of a body that had to wait for memory."""
        self._transport.resume_reading()

    # --- upload rate ----------------------------------------------------------------------------

    def stalled_seconds(self, now: float) -> float:
        """Return the seconds of slow upload as of the last :meth:`slow_seconds`."""
        return now - self._progress_at

    def slow_seconds(self, now: float, min_bytes_per_second: float) -> float:
        """Return for how long the upload has been below the rate; called once a second.

        Time in which the body was not read, because memory was short, does not count.
        """
        seconds, new_bytes = now - self._progress_at, self._size - self._progress_bytes
        is_fast = new_bytes and new_bytes >= min_bytes_per_second * seconds
        if is_fast or self._account.is_waiting(self):
            self._progress_at, self._progress_bytes = now, self._size
            return 0.0
        return seconds
