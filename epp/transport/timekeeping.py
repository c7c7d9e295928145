"""Says what a connection's time asks for; counts seconds, and knows neither socket nor loop.

Once a second the connection shows what it looks like, and is told what is due. Seconds are those
ticks: a second late is soon enough for everything here, and one timer does for all connections.
"""

from collections.abc import Sized
from enum import Enum
from typing import Protocol

from epp.transport.settings import Timeouts

SHORT_PATIENCE_TICKS = 3
"""For the answer to a shutdown's PING, and for the last bytes of a connection that has failed."""
MINIMUM_BYTES_PER_SECOND = 500
"""Of a frame that takes long; the default MinRate of Apache's mod_reqtimeout."""


class Due(Enum):
    """What a second asks for."""

    NOTHING = "nothing"
    PING = "ask for a sign of life"
    SHUTDOWN = "begin to shut down: the connection is not used"
    LIMIT = "limit the shutdown: its PING is not answered"
    HANG_UP = "wait no longer for the peer to end its side"
    NO_PREFACE = "no HTTP/2 preface"
    SLOW_FRAME = "a frame was begun and not ended"
    NOT_READ = "the peer does not read"
    NO_ANSWER = "no answer to a PING"

    @property
    def is_timeout(self) -> bool:
        """The peer has kept us waiting for too long."""
        return self in _TIMEOUTS


_TIMEOUTS = frozenset({Due.NO_PREFACE, Due.SLOW_FRAME, Due.NOT_READ, Due.NO_ANSWER})


class Watched(Protocol):
    """An HTTP/2 connection, as far as its time goes."""

    @property
    def is_established(self) -> bool:
        """The peer's preface has come."""

    @property
    def is_mid_frame(self) -> bool:
        """A frame or a header block has begun and not ended."""

    @property
    def highest_stream_id(self) -> int:
        """The last stream that was opened."""

    @property
    def streams(self) -> Sized:
        """Those open now."""


class Timekeeper:
    """Keeps one connection's time."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._reader_patience = timeouts.keepalive_seconds + timeouts.keepalive_timeout_seconds
        self.read_bytes = 0
        """Read since the last tick; whoever reads adds to it."""
        self._silent_ticks = 0
        self._unused_ticks = 0
        self._last_seen_stream_id = 0
        self._ping_is_out = False
        self._frame_ticks: int | None = None
        self._frame_bytes = 0
        self._unwritten_bytes = 0
        self._stalled_ticks = 0
        self._shutdown_ticks: int | None = None
        self._is_ending = False
        self._patience_ticks: float | None = None

    @property
    def unused_seconds(self) -> int:
        """For how long it has had no stream."""
        return self._unused_ticks

    # --- what the connection tells --------------------------------------------------------------

    def connected(self, seconds: float) -> None:
        """The TLS handshake took so long; it counts as a part of the wait for the preface."""
        self._unused_ticks = int(seconds)

    def drained(self) -> None:
        """The peer has read what was written: only now does its silence count."""
        self._silent_ticks = self._stalled_ticks = self._unwritten_bytes = 0

    def shutting_down(self) -> None:
        """A graceful shutdown was begun."""
        if self._shutdown_ticks is None:
            self._shutdown_ticks = 0

    def ending(self, patience_ticks: float | None = None) -> None:
        """Nothing more will be written.

        Args:
            patience_ticks: How long the peer may neither read nor end its side; None for as long as
                a peer may that is served.
        """
        self._is_ending = True
        self._patience_ticks = patience_ticks
        self._stalled_ticks = self._unwritten_bytes = 0

    # --- what is due ----------------------------------------------------------------------------

    def tick(
        self, peer: Watched, unwritten_bytes: int, *, is_read_held: bool, is_write_paused: bool
    ) -> Due:
        """Take note of a second and return what is due.

        Args:
            peer: The connection.
            unwritten_bytes: Written, and not taken by the socket yet.
            is_read_held: It is not read because the peer does not read, either.
            is_write_paused: Too much is unwritten.
        """
        read_bytes, self.read_bytes = self.read_bytes, 0
        self._silent_ticks = 1 if read_bytes else self._silent_ticks + 1
        is_progress = unwritten_bytes < self._unwritten_bytes
        self._unwritten_bytes = unwritten_bytes
        is_waiting = (is_write_paused or self._is_ending) and not is_progress
        self._stalled_ticks = self._stalled_ticks + 1 if is_waiting else 0
        if self._is_ending:
            return self._end()
        self._note_use(peer)
        if not peer.is_established:
            is_late = self._unused_ticks >= self._timeouts.preface_seconds
            return Due.NO_PREFACE if is_late else Due.NOTHING
        if not is_read_held and self._is_frame_slow(peer.is_mid_frame, read_bytes):
            return Due.SLOW_FRAME
        due = self._shut_down()
        if due is Due.NOTHING:
            # A PING would only wait with the rest of what is written.
            due = self._watch_reader() if is_write_paused else self._keep_alive()
        return due

    def _end(self) -> Due:
        """Wait while the peer reads on; then a while, for it to take what is on its way."""
        patience = self._patience_ticks
        if patience is None:
            linger = self._timeouts.keepalive_timeout_seconds
            patience = self._reader_patience if self._unwritten_bytes else linger
        return Due.HANG_UP if self._stalled_ticks >= patience else Due.NOTHING

    def _note_use(self, peer: Watched) -> None:
        if len(peer.streams) or peer.highest_stream_id != self._last_seen_stream_id:
            self._last_seen_stream_id = peer.highest_stream_id
            self._unused_ticks = 0
        else:
            self._unused_ticks += 1

    def _is_frame_slow(self, is_mid_frame: bool, read_bytes: int) -> bool:
        """Return whether the peer was in the middle of a frame all the time, and hardly sent.

        It need not be one frame: who sends the rest of one with the beginning of the next one is
        as slow. A large frame on a slow network has a new period whenever it got on in the last.
        """
        if not is_mid_frame:
            self._frame_ticks = None
            return False
        if self._frame_ticks is not None:
            self._frame_ticks += 1
            self._frame_bytes += read_bytes
            if self._frame_ticks < self._timeouts.frame_seconds:
                return False
            if self._frame_bytes < self._frame_ticks * MINIMUM_BYTES_PER_SECOND:
                return True
        self._frame_ticks = self._frame_bytes = 0
        return False

    def _shut_down(self) -> Due:
        if self._shutdown_ticks is None:
            is_idle = self._unused_ticks >= self._timeouts.idle_seconds
            return Due.SHUTDOWN if is_idle else Due.NOTHING
        self._shutdown_ticks += 1
        is_late = self._shutdown_ticks == SHORT_PATIENCE_TICKS
        return Due.LIMIT if is_late else Due.NOTHING

    def _watch_reader(self) -> Due:
        return Due.NOT_READ if self._stalled_ticks >= self._reader_patience else Due.NOTHING

    def _keep_alive(self) -> Due:
        if self._silent_ticks < self._timeouts.keepalive_seconds:
            self._ping_is_out = False
        elif not self._ping_is_out:
            self._ping_is_out = True
            return Due.PING
        elif self._silent_ticks >= self._reader_patience:
            return Due.NO_ANSWER
        return Due.NOTHING
