"""Pauses the reading of a socket for reasons that do not undo each other."""

import asyncio
from enum import Flag, auto


class Pause(Flag):
    """Why a socket is not read."""

    OUTPUT = auto()
    """The peer does not read what it makes us write."""
    TURN = auto()
    """It is the others' turn."""
    BACKLOG = auto()
    """What was read is not handled yet."""


class ReadPauses:
    """Reads again when the last reason is gone."""

    def __init__(self, transport: asyncio.ReadTransport) -> None:
        self._transport = transport
        self.reasons = Pause(0)

    def begin(self, reason: Pause) -> None:
        """Read no more."""
        if not self.reasons and not self._transport.is_closing():
            self._transport.pause_reading()
        self.reasons |= reason

    def end(self, reason: Pause) -> None:
        """Read on, if that was the only reason."""
        if reason in self.reasons:
            self.reasons &= ~reason
            if not self.reasons and not self._transport.is_closing():
                self._transport.resume_reading()
