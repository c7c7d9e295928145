"""The streams of a connection: the open ones, those recently ended, and how streams end."""

from typing import Final

from epp.transport.http2 import frames
from epp.transport.http2.constants import END_HEADERS, END_STREAM, MAX_STREAM_ID, ErrorCode
from epp.transport.http2.floods import FloodGuard
from epp.transport.http2.headers import TABLE_SIZE_UPDATE
from epp.transport.http2.sender import Sender
from epp.transport.http2.stream import Http2Stream, StreamInput, StreamState
from epp.transport.statistics import Http2Counters

_CLOSED: Final = StreamState.CLOSED
_NO_LIMIT: Final = MAX_STREAM_ID + 1


class EndedStreams:
    """Ids of streams that the server ended before the peer did: frames on them may still arrive.

    The last N to 2 N ids, in two generations, so that forgetting costs nothing. A stream that the
    peer has ended itself, as Envoy does with all of its streams, is removed. N is at least the
    number of streams that may be open, because a drain may end all of them at once.
    """

    __slots__ = ("_generation", "_older", "_younger")

    def __init__(self, generation: int) -> None:
        self._generation = generation
        self._younger: set[int] = set()
        self._older: set[int] = set()

    def __len__(self) -> int:
        return len(self._younger) + len(self._older)

    def __contains__(self, stream_id: int) -> bool:
        """Return whether frames on the stream must be discarded."""
        return stream_id in self._younger or stream_id in self._older

    def add(self, stream_id: int) -> None:
        """Discard frames on the stream from now on."""
        self._younger.add(stream_id)
        if len(self._younger) >= self._generation:
            self._older = self._younger
            self._younger = set()

    def discard(self, stream_id: int) -> None:
        """Forget the stream, because the peer has ended it, too."""
        self._younger.discard(stream_id)
        self._older.discard(stream_id)


class StreamTable:
    """Open and recently ended streams of one connection.

    Args:
        sender: Sends the frames that end streams.
        guard: Counts answered streams.
        counters: Counts answered streams for metrics.
        remembered: Minimum number of ended streams to remember.
    """

    __slots__ = (
        "_counters",
        "_guard",
        "_has_sent_block",
        "_sender",
        "ended",
        "highest_id",
        "last_accepted_id",
        "open",
    )

    def __init__(
        self, sender: Sender, guard: FloodGuard, counters: Http2Counters, remembered: int
    ) -> None:
        self.open: dict[int, Http2Stream] = {}
        """Open streams by id."""
        self.ended = EndedStreams(remembered)
        self.highest_id = 0
        """The last stream that the peer has opened; 0 for none."""
        self.last_accepted_id = _NO_LIMIT
        """The last stream that a GOAWAY sent to the peer still accepts."""
        self._sender = sender
        self._guard = guard
        self._counters = counters
        self._has_sent_block = False

    @property
    def is_limited(self) -> bool:
        """Whether :meth:`limit` was called."""
        return self.last_accepted_id != _NO_LIMIT

    def limit(self) -> None:
        """Send GOAWAY, and accept no stream above the highest so far; only the first call counts.

        Open streams continue.
        """
        if not self.is_limited:
            self.last_accepted_id = self.highest_id
            self._sender.write(frames.goaway(self.last_accepted_id, ErrorCode.NO_ERROR))

    def send_block(self, stream: Http2Stream, block: bytes, flags: int = END_HEADERS) -> None:
        """Send HEADERS."""
        if not self._has_sent_block:
            self._has_sent_block = True
            block = TABLE_SIZE_UPDATE + block
        self._sender.write(frames.headers(stream.id, block, flags))

    def end(self, stream: Http2Stream, trailers: bytes) -> None:
        """Send ``trailers``, a header block, after all waiting data, and close the stream."""
        if stream.state is _CLOSED or stream.trailers is not None:
            return
        if stream.waiting:
            stream.trailers = trailers
        else:
            self.send_block(stream, trailers, END_HEADERS | END_STREAM)
            self.trailers_sent(stream)

    def trailers_sent(self, stream: Http2Stream) -> None:
        """Advance a stream on which END_STREAM was sent."""
        stream.advance(StreamInput.SEND_END_STREAM)
        if stream.state is _CLOSED:
            self.close(stream, may_receive=False)
        else:
            # "a server MAY request that the client abort transmission of a request without error
            # by sending a RST_STREAM with an error code of NO_ERROR" (§8.1)
            self.reset(stream, ErrorCode.NO_ERROR)

    def reset(self, stream: Http2Stream, code: int) -> None:
        """End the stream with RST_STREAM."""
        if stream.state is not _CLOSED:
            self._sender.write(frames.reset(stream.id, code))
            self.close(stream, may_receive=not stream.has_peer_ended)

    def close(self, stream: Http2Stream, *, may_receive: bool) -> None:
        """Remove the stream.

        Args:
            stream: An open stream.
            may_receive: Whether frames on it may still arrive; they are discarded.
        """
        stream.state = _CLOSED
        if stream.has_sent_data:
            self._counters.streams_answered += 1
            self._guard.answered()
        if stream.waiting:
            self._sender.drop_waiting(stream)
        del self.open[stream.id]
        if may_receive:
            self.ended.add(stream.id)
