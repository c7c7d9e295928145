"""Protection against HTTP/2 frame floods that leaves busy clients alone."""

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.errors import ConnectionFault
from epp.transport.http2.limits import ConnectionLimits

_REPLENISH_DIVISOR = 100
"""Each call of ``replenish`` restores ``1 + budget // 100`` of the budgets for resets and stream
errors."""


class FloodGuard:
    """Budgets for frames that cost work but do not advance a request.

    Envoy ends its ext_proc streams with RST_STREAM, and one connection carries all requests of an
    Envoy worker: closing the connection aborts every response in flight. A reset therefore uses up
    budget only if no message was sent on its stream before, and every stream with a sent message
    gives back one reset and one stream error.

    :meth:`replenish`, called about once a second, restores the control-frame budget in full, and
    those of resets and stream errors in part.
    """

    __slots__ = (
        "_control_frames",
        "_early_resets",
        "_late_resets",
        "_limits",
        "_stream_faults",
        "_window_updates",
        "streams_opened",
    )

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._control_frames = 0
        self._early_resets = 0
        self._late_resets = 0
        self._stream_faults = 0
        self._window_updates = 0
        self.streams_opened = 0
        """Streams opened on the connection, counted by the caller; each allows two WINDOW_UPDATEs
        and one late RST_STREAM."""

    def control_frame(self, cost: int = 1) -> None:
        """Count a frame that does not advance a request.

        Args:
            cost: Number of frames that it counts as, such as the entries of a SETTINGS frame.

        Raises:
            ConnectionFault: The budget is used up.
        """
        self._control_frames += cost
        if self._control_frames > self._limits.control_frame_budget:
            raise _flood("too many frames that do not advance a request")

    def window_update(self, data_frames_sent: int) -> None:
        """Count a WINDOW_UPDATE; two for each stream and for each DATA frame that we sent are free.

        Raises:
            ConnectionFault: The control-frame budget is used up.
        """
        self._window_updates += 1
        if self._window_updates > 2 * (data_frames_sent + self.streams_opened):
            self.control_frame()

    def early_reset(self) -> None:
        """Count a stream that the peer reset before a message was sent on it.

        Raises:
            ConnectionFault: The budget is used up.
        """
        self._early_resets += 1
        if self._early_resets > self._limits.early_reset_budget:
            raise _flood("too many streams reset before they were answered")

    def late_reset(self) -> None:
        """Count an RST_STREAM on a stream that is closed and no longer known; one each is free.

        Raises:
            ConnectionFault: The control-frame budget is used up.
        """
        self._late_resets += 1
        if self._late_resets > self.streams_opened:
            self.control_frame()

    def stream_fault(self) -> None:
        """Count a stream that we reset because of a stream error.

        Raises:
            ConnectionFault: The budget is used up.
        """
        self._stream_faults += 1
        if self._stream_faults > self._limits.stream_fault_budget:
            raise _flood("too many stream errors")

    def answered(self) -> None:
        """Count a closed stream on which a message was sent."""
        if self._early_resets:
            self._early_resets -= 1
        if self._stream_faults:
            self._stream_faults -= 1

    def replenish(self) -> None:
        """Restore the control-frame budget in full, and the others in part."""
        limits = self._limits
        self._control_frames = 0
        self._early_resets -= min(
            self._early_resets, 1 + limits.early_reset_budget // _REPLENISH_DIVISOR
        )
        self._stream_faults -= min(
            self._stream_faults, 1 + limits.stream_fault_budget // _REPLENISH_DIVISOR
        )


def _flood(reason: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason)
