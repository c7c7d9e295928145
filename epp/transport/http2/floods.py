"""Distinguishes a flood of frames from a busy client."""

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.errors import ConnectionFault
from epp.transport.http2.limits import ConnectionLimits

_REPLENISHED_SHARE = 100
"""Each call of ``replenish`` restores a hundredth of the budgets for resets and stream errors."""


class FloodGuard:
    """Budgets for frames that cost work but do not advance a request.

    Envoy ends each of its streams with RST_STREAM, and one connection carries all requests of a
    worker: closing it aborts every response in flight. So a reset counts only if nothing had been
    sent on its stream, and each answered stream restores one.

    Budgets are per period between calls of :meth:`replenish`, about a second.
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
        """Streams so far; each one allows two WINDOW_UPDATEs and a late RST_STREAM."""

    def control_frame(self, cost: int = 1) -> None:
        """Count a frame that does not advance a request.

        Raises:
            ConnectionFault: The budget is used up.
        """
        self._control_frames += cost
        if self._control_frames > self._limits.control_frame_budget:
            raise _flood("too many frames that carry nothing")

    def window_update(self, data_frames_sent: int) -> None:
        """Count a WINDOW_UPDATE; two for each stream and for each DATA frame sent are normal.

        Raises:
            ConnectionFault: There were too many above that.
        """
        self._window_updates += 1
        if self._window_updates > 2 * (data_frames_sent + self.streams_opened):
            self.control_frame()

    def early_reset(self) -> None:
        """Count a stream that the peer reset before it was answered.

        Raises:
            ConnectionFault: The budget is used up.
        """
        self._early_resets += 1
        if self._early_resets > self._limits.early_reset_budget:
            raise _flood("too many streams reset before they were answered")

    def late_reset(self) -> None:
        """Count RST_STREAM on a closed stream; Envoy sends one for each stream.

        Raises:
            ConnectionFault: There were too many above that.
        """
        self._late_resets += 1
        if self._late_resets > self.streams_opened:
            self.control_frame()

    def stream_fault(self) -> None:
        """Count a stream that was reset because of a stream error.

        Raises:
            ConnectionFault: The budget is used up.
        """
        self._stream_faults += 1
        if self._stream_faults > self._limits.stream_fault_budget:
            raise _flood("too many streams broken")

    def answered(self) -> None:
        """Count a stream that was answered."""
        if self._early_resets:
            self._early_resets -= 1
        if self._stream_faults:
            self._stream_faults -= 1

    def replenish(self) -> None:
        """Restore the budget for control frames, and part of the others."""
        limits = self._limits
        self._control_frames = 0
        self._early_resets -= min(
            self._early_resets, 1 + limits.early_reset_budget // _REPLENISHED_SHARE
        )
        self._stream_faults -= min(
            self._stream_faults, 1 + limits.stream_fault_budget // _REPLENISHED_SHARE
        )


def _flood(reason: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason)
