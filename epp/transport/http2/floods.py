"""Tells a flood from a busy client.

The connection has no clock; who drives it calls ``forgive`` about once a second.
"""

from epp.transport.http2.constants import ErrorCode
from epp.transport.http2.errors import ConnectionFault
from epp.transport.http2.limits import ConnectionLimits

_FORGIVEN_SHARE = 100
"""A budget of resets fills up by a hundredth per call of ``forgive``, besides by answers."""


class FloodGuard:
    """Budgets of what costs us work and is worth nothing.

    Envoy ends each of its streams with RST_STREAM, and one connection carries all requests of a
    worker: losing it cuts every answer in flight. So a reset counts only if nothing had been sent
    on its stream, and each stream that was answered earns one back.
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
        """Streams so far; each earns two WINDOW_UPDATEs and a late RST_STREAM."""

    def control_frame(self, cost: int = 1) -> None:
        """Count a frame that moves nothing.

        Raises:
            ConnectionFault: There were too many.
        """
        self._control_frames += cost
        if self._control_frames > self._limits.control_frame_budget:
            raise _calm("too many frames that carry nothing")

    def window_update(self, data_frames_sent: int) -> None:
        """Count a WINDOW_UPDATE; two for each stream and each DATA frame of ours are its use.

        Raises:
            ConnectionFault: There were too many beyond these.
        """
        self._window_updates += 1
        if self._window_updates > 2 * (data_frames_sent + self.streams_opened):
            self.control_frame()

    def early_reset(self) -> None:
        """Count a stream that the peer reset before it was answered.

        Raises:
            ConnectionFault: There were too many.
        """
        self._early_resets += 1
        if self._early_resets > self._limits.early_reset_budget:
            raise _calm("too many streams reset before they were answered")

    def late_reset(self) -> None:
        """Count RST_STREAM of a closed stream; one for each stream is Envoy's way.

        Raises:
            ConnectionFault: There were too many beyond these.
        """
        self._late_resets += 1
        if self._late_resets > self.streams_opened:
            self.control_frame()

    def stream_fault(self) -> None:
        """Count a stream that we had to reset.

        Raises:
            ConnectionFault: There were too many.
        """
        self._stream_faults += 1
        if self._stream_faults > self._limits.stream_fault_budget:
            raise _calm("too many streams broken")

    def answered(self) -> None:
        """Count a stream that was answered."""
        if self._early_resets:
            self._early_resets -= 1
        if self._stream_faults:
            self._stream_faults -= 1

    def forgive(self) -> None:
        """Let time heal."""
        limits = self._limits
        self._control_frames = 0
        self._early_resets -= min(
            self._early_resets, 1 + limits.early_reset_budget // _FORGIVEN_SHARE
        )
        self._stream_faults -= min(
            self._stream_faults, 1 + limits.stream_fault_budget // _FORGIVEN_SHARE
        )


def _calm(reason: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, reason)
