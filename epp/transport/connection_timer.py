"""Time limits of a connection: keepalive, idleness, slow frames, shutdown.

It has no socket and no event loop. The connection calls :meth:`ConnectionTimer.tick` once a second
with its state, and gets the action that is due. All times are counted in these ticks, so that one
timer of the server serves all connections; being a second late does not matter here.
"""

from collections.abc import Sized
from enum import Enum
from typing import Protocol

from epp.transport.settings import Timeouts

SHORT_PATIENCE_TICKS = 3
"""How long to wait for the response to the PING of a shutdown, and for the last bytes of a failed
connection to be sent."""
MINIMUM_BYTES_PER_SECOND = 500
"""Minimum rate of a slow frame; the default MinRate of Apache's mod_reqtimeout."""


class TimerAction(Enum):
    """What the connection has to do after a tick."""

    NOTHING = "nothing"
    PING = "send a keepalive PING"
    SHUTDOWN = "begin a graceful shutdown: the connection is idle"
    LIMIT = "accept no more streams: the PING of the shutdown was not answered"
    CLOSE = "close the socket: the peer has not closed its side"
    NO_PREFACE = "no HTTP/2 preface"
    SLOW_FRAME = "a frame was not completed in time"
    NOT_READ = "the peer does not read"
    NO_RESPONSE = "no response to a PING"

    @property
    def is_timeout(self) -> bool:
        """Whether the peer has exceeded a time limit."""
        return self in _TIMEOUTS


_TIMEOUTS = frozenset(
    {TimerAction.NO_PREFACE, TimerAction.SLOW_FRAME, TimerAction.NOT_READ, TimerAction.NO_RESPONSE}
)


class TimedConnection(Protocol):
    """The state of an HTTP/2 connection that its time limits depend on."""

    @property
    def is_established(self) -> bool:
        """Whether the peer's preface has arrived."""

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame or a header block has arrived only in part."""

    @property
    def highest_stream_id(self) -> int:
        """The last stream that the peer has opened."""

    @property
    def streams(self) -> Sized:
        """The open streams."""


class ConnectionTimer:
    """Counts the time of one connection."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._reader_patience = timeouts.keepalive_seconds + timeouts.keepalive_timeout_seconds
        self.read_bytes = 0
        """Bytes read since the last tick; the caller adds to it."""
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
        """Seconds without streams."""
        return self._unused_ticks

    # --- events of the connection ---------------------------------------------------------------

    def connected(self, seconds: float) -> None:
        """Count the duration of the TLS handshake towards the time limit of the preface."""
        self._unused_ticks = int(seconds)

    def drained(self) -> None:
        """Restart the keepalive: the peer has read everything that was written."""
        self._silent_ticks = self._stalled_ticks = self._unwritten_bytes = 0

    def shutting_down(self) -> None:
        """Start the time limit of a graceful shutdown."""
        if self._shutdown_ticks is None:
            self._shutdown_ticks = 0

    def ending(self, patience_ticks: float | None = None) -> None:
        """Start the time limit of closing: nothing more will be written.

        Args:
            patience_ticks: How long the peer may neither read nor close its side; None for the
                limits of an open connection.
        """
        self._is_ending = True
        self._patience_ticks = patience_ticks
        self._stalled_ticks = self._unwritten_bytes = 0

    # --- ticks ----------------------------------------------------------------------------------

    def tick(
        self,
        connection: TimedConnection,
        unwritten_bytes: int,
        *,
        is_read_held: bool,
        is_write_paused: bool,
    ) -> TimerAction:
        """Count a second; return the action that is due.

        Args:
            connection: State of the connection.
            unwritten_bytes: Bytes in the write buffer, not accepted by the socket yet.
            is_read_held: Reading is paused because the peer does not read.
            is_write_paused: The write buffer is full.
        """
        read_bytes, self.read_bytes = self.read_bytes, 0
        self._silent_ticks = 1 if read_bytes else self._silent_ticks + 1
        is_progress = unwritten_bytes < self._unwritten_bytes
        self._unwritten_bytes = unwritten_bytes
        is_waiting = (is_write_paused or self._is_ending) and not is_progress
        self._stalled_ticks = self._stalled_ticks + 1 if is_waiting else 0
        if self._is_ending:
            return self._check_end()
        self._count_unused(connection)
        if not connection.is_established:
            is_late = self._unused_ticks >= self._timeouts.preface_seconds
            return TimerAction.NO_PREFACE if is_late else TimerAction.NOTHING
        if not is_read_held and self._is_frame_slow(connection.is_mid_frame, read_bytes):
            return TimerAction.SLOW_FRAME
        action = self._check_shutdown()
        if action is TimerAction.NOTHING:
            # While writing is paused, a PING would only wait behind other output.
            action = self._check_reader() if is_write_paused else self._keep_alive()
        return action

    def _check_end(self) -> TimerAction:
        """Wait while the peer reads, and then a while for it to close its side."""
        patience = self._patience_ticks
        if patience is None:
            linger = self._timeouts.keepalive_timeout_seconds
            patience = self._reader_patience if self._unwritten_bytes else linger
        return TimerAction.CLOSE if self._stalled_ticks >= patience else TimerAction.NOTHING

    def _count_unused(self, connection: TimedConnection) -> None:
        if len(connection.streams) or connection.highest_stream_id != self._last_seen_stream_id:
            self._last_seen_stream_id = connection.highest_stream_id
            self._unused_ticks = 0
        else:
            self._unused_ticks += 1

    def _is_frame_slow(self, is_mid_frame: bool, read_bytes: int) -> bool:
        """Return whether frames were incomplete at every tick, and too few bytes arrived.

        It need not be a single frame: a peer may send the rest of one with the start of the next.
        A large frame on a slow network gets another period if the last one had enough bytes.
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

    def _check_shutdown(self) -> TimerAction:
        if self._shutdown_ticks is None:
            is_idle = self._unused_ticks >= self._timeouts.idle_seconds
            return TimerAction.SHUTDOWN if is_idle else TimerAction.NOTHING
        self._shutdown_ticks += 1
        is_late = self._shutdown_ticks == SHORT_PATIENCE_TICKS
        return TimerAction.LIMIT if is_late else TimerAction.NOTHING

    def _check_reader(self) -> TimerAction:
        return (
            TimerAction.NOT_READ
            if self._stalled_ticks >= self._reader_patience
            else TimerAction.NOTHING
        )

    def _keep_alive(self) -> TimerAction:
        if self._silent_ticks < self._timeouts.keepalive_seconds:
            self._ping_is_out = False
        elif not self._ping_is_out:
            self._ping_is_out = True
            return TimerAction.PING
        elif self._silent_ticks >= self._reader_patience:
            return TimerAction.NO_RESPONSE
        return TimerAction.NOTHING
